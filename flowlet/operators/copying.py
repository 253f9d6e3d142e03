"""Copies of records, for operators that must not share them.

Hot path where object reuse is off: per record one look at its type, for tuples one at each field's, all in one go per chunk; nothing is
copied that cannot change.

Side:   task.
Source: Flink ``CopyingChainingOutput``, ``TypeSerializer.copy``; PyFlink records have no serializer here, so ``copy.deepcopy`` does it.
"""

import copy
from typing import Any

from flowlet.errors import FlowletError
from flowlet.fusing.unchanging import UNCHANGING, can_change
from flowlet.fusing.unchanging_records import are_unchanging, has_unchanging_columns, has_unchanging_fields
from flowlet.operators.user_function import preview
from flowlet.records import Chunk


def copy_chunk(chunk: Chunk) -> Chunk:
    """A chunk whose records can be changed without anybody else noticing.

    Raises:
        FlowletError: a record cannot be copied.
    """
    if chunk.is_unchanging:
        return chunk.copy()
    if has_unchanging_columns(chunk):
        return chunk  # nobody changes the list of a chunk with columns
    if chunk.columns is not None and has_unchanging_fields(chunk.columns):
        return chunk.copy()  # rows: each chunk makes its own
    return Chunk(copy_values(chunk.values), None if chunk.timestamps is None else chunk.timestamps.copy())


def copy_value(value: Any) -> Any:
    """A copy, or the value itself when it cannot change.

    Raises:
        FlowletError: it cannot be copied.
    """
    return _copy_value(value) if can_change(value) else value


def copy_values(values: list[Any]) -> list[Any]:
    """A list of copies; records that cannot change are their own.

    Raises:
        FlowletError: a record cannot be copied.
    """
    if are_unchanging(values):
        return values.copy()
    return [value if type(value) in UNCHANGING else _copy_value(value) for value in values]


def _copy_value(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise FlowletError(
            f"the record {preview(value)} cannot be copied between chained operators ({type(error).__name__}: {error}); "
            "make its type copyable, or call get_config().enable_object_reuse()"
        ) from error

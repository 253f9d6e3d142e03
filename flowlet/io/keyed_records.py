"""Keeps records as they are beside their keys, until it is known which channel they go to.

A reader in the same process gets the records themselves.  For any other reader their fields become columns.

Hot path: C code per field.
Side:       pure.
Invariants: no value of a field can change (``chain.record_copies``); the columns stand for records that are equal in
            everything.
"""

from collections.abc import Sequence
from typing import Any, Final

from flowlet.columns import Column, Columns, ListColumn, Shape, column_of
from flowlet.columns.inspection import exact_type, try_transpose
from flowlet.common.types import Row, parts_of
from flowlet.records import Chunk
from flowlet.serde.flat_classes import flat_class_of, parts_of_dicts
from flowlet.serde.object_columns import maker_of

_KEY: Final = 1  # position of the column of keys, behind the column of records


def beside_keys(chunk: Chunk) -> Chunk:
    """Convert a chunk of listed records with keys into two columns, records and keys (``Shape.KEYED``)."""
    assert chunk.keys is not None, "the key extractor gave them"
    fields = (ListColumn(chunk.values), column_of(chunk.keys))
    columns = Columns(len(chunk), fields, Shape.KEYED, key_position=_KEY, record_key=chunk.key_field)
    return Chunk.of_columns(columns, chunk.timestamps)


def as_it_is(chunk: Chunk) -> Chunk:
    """The chunk for a reader in the same process: records beside keys as lists, others unchanged."""
    columns = chunk.columns
    if columns is None:
        return chunk
    wide = columns.widened()
    if columns.shape is Shape.KEYED:
        return _listed(chunk, wide)
    return chunk if wide is columns else Chunk.of_columns(wide, chunk.timestamp_array)


def _listed(chunk: Chunk, columns: Columns) -> Chunk:
    records, keys = columns.fields
    listed = Chunk(records.as_list(), chunk.timestamps)
    listed.key_column = keys
    listed.key_field = columns.record_key
    return listed


def sendable(chunk: Chunk) -> Chunk:
    """The chunk for another process: records beside keys become columns of their fields, or else lists; others
    unchanged.
    """
    columns = chunk.columns
    if columns is None or columns.shape is not Shape.KEYED:
        return chunk
    listed = _listed(chunk, columns)
    parts = (
        None
        if columns.record_key is None
        else _columns_of_fields(listed.values, columns.fields[_KEY], columns.record_key)
    )
    timestamps = chunk.timestamps if chunk.timestamp_array is None else chunk.timestamp_array
    return listed if parts is None else Chunk.of_columns(parts, timestamps)


def _columns_of_fields(values: list[Any], keys: Column, field: int | str) -> Columns | None:
    """The records by field, with ``keys`` as column ``field``; None if records differ in type or fields."""
    kind: Any = exact_type(values)
    parts = None if kind is None else _parts_of(values, kind)
    if parts is None:
        return None
    names, fields = parts
    position = names.index(field) if isinstance(field, str) else field
    columns = tuple([keys if place == position else column_of(column) for place, column in enumerate(fields)])
    if kind is tuple:
        return Columns(len(values), columns, Shape.TUPLE, key_position=position)
    if kind is Row:
        return Columns(len(values), columns, Shape.ROW, names, position)
    return Columns(len(values), columns, Shape.OBJECT, names, position, kind, maker_of(kind, names))


def _parts_of(values: list[Any], kind: Any) -> tuple[tuple[str, ...], Sequence[Sequence[Any]]] | None:
    """Names (none for tuples) and values of the fields of records of one type; None if the records differ in their
    fields.
    """
    if kind is tuple:
        fields = try_transpose(values)
        return None if fields is None else ((), fields)
    if kind is dict:
        return parts_of_dicts(values, are_keys_checked=True)
    if kind is Row:
        rows = parts_of(values)
        return None if rows is None or rows[0] is None else (rows[0], list(zip(*rows[1], strict=True)))
    flat_class = flat_class_of(kind)
    return None if flat_class is None else flat_class.take_apart(values)

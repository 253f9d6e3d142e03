"""Copies of what operators keep, for snapshots.

Side:   task.
Source: Flink ``TypeSerializer.copy``.
"""

import copy
from typing import Any

from flowlet.chain.preview import preview
from flowlet.columns.unchanging import are_unchanging, is_unchanging
from flowlet.errors import FlowletError


def copy_values(values: list[Any]) -> list[Any]:
    """A list of copies; values that cannot change are their own.

    Raises:
        FlowletError: a value cannot be copied.
    """
    if are_unchanging(values):
        return values.copy()
    return [value if is_unchanging(value) else _copy_value(value) for value in values]


def _copy_value(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise FlowletError(
            f"{preview(value)} cannot be copied into a snapshot ({type(error).__name__}: {error}); make its type "
            "copyable"
        ) from error

"""The fields of rows by name or by position.

Side: pure.
"""

from collections.abc import Sequence
from typing import Any

from flowlet.common.types import Row, field_names_of


def fields_in_order(value: Any, names: list[str]) -> tuple[Any, ...] | None:
    """The fields of a row in the order of these names; None if it has others.

    A ``Row`` of ours or of Spark's has names of its own.  Anything else counts by position, and so does everything where the names are
    but positions (f0, f1, ...).
    """
    found = field_names_of(value) if isinstance(value, Row) else getattr(value, "__fields__", None)
    if found is None or found == names or are_positions(names):
        return tuple(value)
    if len(set(found)) != len(names) or set(found) != set(names):
        return None
    by_name = dict(zip(found, value, strict=True))
    return tuple([by_name[name] for name in names])


def are_positions(names: Sequence[str]) -> bool:
    """Whether these are the names of fields that nobody named."""
    return list(names) == [f"f{index}" for index in range(len(names))]

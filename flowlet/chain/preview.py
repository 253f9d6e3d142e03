"""Shows records in error messages.

Side:       pure.
Invariants: to show a record never raises.
"""

from collections.abc import Iterator
from typing import Any

from flowlet.serde.type_serializer import MAX_PREVIEW_CHARACTERS, preview



def last_of(values: list[Any], position: Iterator[Any]) -> Any:
    """The record that a list iterator over ``values`` returned last; it returned at least one."""
    return values[len(values) - position.__length_hint__() - 1]  # type: ignore[attr-defined]  # list iterators have it

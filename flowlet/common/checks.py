"""Checks of values that users pass in, whatever the annotations say; and tables by name.

Side: pure.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

K = TypeVar("K")


def is_whole_number(value: Any) -> bool:
    """Whether it is an ``int``, but no ``bool``."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_name(value: Any) -> bool:
    """Whether it is a text, not empty."""
    return isinstance(value, str) and bool(value)


def by_name(names: Mapping[K, str]) -> dict[str, K]:
    """The key of each name, of names with spaces between."""
    return {name: key for key, texts in names.items() for name in texts.split()}

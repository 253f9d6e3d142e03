"""Checks of values that users pass in, whatever the annotations say.

Side: pure.
"""

from typing import Any


def is_whole_number(value: Any) -> bool:
    """Whether it is an ``int``, but no ``bool``."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_name(value: Any) -> bool:
    """Whether it is a text, not empty."""
    return isinstance(value, str) and bool(value)

"""Checks of values that users pass in, whatever the annotations say.

Side: pure.
"""

import codecs
import math
from types import UnionType
from typing import Any

from flowlet.errors import FlowletError, JobGraphError


def is_whole_number(value: Any) -> bool:
    """Whether ``value`` is an ``int``, but no ``bool``."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_name(value: Any) -> bool:
    """Whether ``value`` is a text, not empty."""
    return isinstance(value, str) and bool(value)


def check_kind(
    value: object, kind: type[Any] | UnionType, needs: str, error: type[FlowletError] = JobGraphError
) -> None:
    """Check that a value is an instance of ``kind``.

    Raises JobGraphError, or ``error``: it is none; ``needs`` says which call needs what, and the rest of the text what
        it got.
    """
    if not isinstance(value, kind):
        raise error(f"{needs}, got {value!r} of type {type(value).__name__}")


def check_number(
    value: Any, at_least: int, needs: str, error: type[FlowletError] = JobGraphError, *, at_most: float = math.inf
) -> None:
    """Check that a value is a whole number from ``at_least`` to ``at_most``; raises as ``check_kind``."""
    if not is_whole_number(value) or not at_least <= value <= at_most:
        raise error(f"{needs}, got {value!r}")


def known_charset(charset: Any, what: str) -> str:
    """Return Python's name of a charset for texts.  Raises JobGraphError: it is unknown."""
    try:
        "".encode(charset)
        return codecs.lookup(charset).name
    except (LookupError, TypeError, UnicodeError) as error:
        raise JobGraphError(
            f"{what}: the charset {charset!r} is unknown; use one that Python knows, such as UTF-8"
        ) from error


def check_name(value: object, needs: str) -> None:
    """Check that a value is a text that is not empty; raises as ``check_kind``."""
    if not is_name(value):
        raise JobGraphError(f"{needs}, got {value!r}")

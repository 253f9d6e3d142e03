"""What must be there."""

from typing import TypeVar

_T = TypeVar("_T")


def present(found: _T | None) -> _T:
    """Return what was found, which must not be None."""
    assert found is not None
    return found

"""What a column holds, as numpy arrays for arithmetic.

Hot path, per column; int64 and float64 are not copied.

Side:       pure.
Invariants: the numbers are exactly the column's; what cannot be one such array (bool, ints beyond 64 bits, mixed types)
            is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from netstack.late import dataclass
from netstack.late import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
INSTANT: Final = "datetime64[us]"  # the name of its type
_WIDE_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class NumberKind:
    """What the numbers stand for.

    ``is_instant``: microseconds, or the unit of ``arrow_type``, since the epoch.
    """

    is_instant: bool = False
    arrow_type: Any = None  # of an instant that came from Arrow


@dataclass(frozen=True, slots=True)
class Numbers:
    """A column for arithmetic.

    ``array``: int64 or float64; anything where there is a null.  ``is_valid``: False for nulls; None where there are
        none.
    """

    array: NDArray[Any]
    is_valid: NDArray[np.bool_] | None = None
    kind: NumberKind = NumberKind()


def wide(array: NDArray[Any]) -> NDArray[Any] | None:
    """The array as int64 or float64, without change; None where that is not possible."""
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "i" or (kind == "u" and (size < _WIDE_BYTES or array.max(initial=0) <= INT64_MAX)):
        return array.astype(np.int64, copy=False)
    if kind == "f" and size <= _WIDE_BYTES:
        return array.astype(np.float64, copy=False)
    return None

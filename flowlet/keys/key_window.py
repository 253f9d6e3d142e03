"""A function of integers, looked up in a table as long as they lie close together.

Hot path, per chunk: two comparisons, a subtraction and a lookup, 1 ns per key (``bench shuffle-columnar``); most keys
that are numbers are dense, and hashing one takes 6 ns.

Side:       pure.
Invariants: a table has at most ``MAX_PLACES`` entries; the work of filling tables is at most an eighth of the keys that
            were looked at.
Rules:      the window grows around the keys that come, or begins anew with them where both do not fit into one.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]

MAX_PLACES: Final = 1 << 16  # entries of 2 or 8 bytes: they stay in the second cache
_PRICE: Final = 8  # keys that must have come for each entry that is filled
_MAX_BUDGET: Final = 4 * _PRICE * MAX_PLACES
_MARGIN: Final = 255  # windows begin and end at multiples of one more, so that they do not grow key by key


class KeyWindow:
    """Where the table is, and what is in it.

    Args:
        function: of an array of int64, gives an array as long; what it says of a key is true until the owner writes
            into ``table``.
    """

    __slots__ = ("_budget", "_first", "_function", "_last", "table")

    def __init__(self, function: Callable[[Int64Array], NDArray[Any]]) -> None:
        self._function = function
        self._first = 0
        self._last = -1
        self._budget = _PRICE * MAX_PLACES
        self.table: NDArray[Any] = np.empty(0, np.intp)

    def __repr__(self) -> str:
        return f"<KeyWindow from {self._first} to {self._last}>"

    def places(self, keys: Int64Array) -> NDArray[np.intp] | None:
        """The place of each key in ``table``; None if not all are in the window, and it does not move.

        There is at least one key.
        """
        low, high = int(keys.min()), int(keys.max())
        self._budget = min(self._budget + len(keys), _MAX_BUDGET)
        if (low < self._first or high > self._last) and not self._try_move(low, high):
            return None
        return keys - self._first

    def _try_move(self, low: int, high: int) -> bool:
        first, last = _aligned(low, high)
        if last - first >= MAX_PLACES:
            return False
        if self._first <= self._last and max(last, self._last) - min(first, self._first) < MAX_PLACES:
            first, last = min(first, self._first), max(last, self._last)
        size = last - first + 1
        if _PRICE * size > self._budget:
            return False
        self._budget -= _PRICE * size
        self._first, self._last = first, last
        self.table = self._function(first + np.arange(size))
        return True


def _aligned(low: int, high: int) -> tuple[int, int]:
    return low & ~_MARGIN, high | _MARGIN

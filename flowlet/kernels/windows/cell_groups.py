"""Rows by pairs of a window and a key.

Hot path.  Where the pairs that are possible are not many more than the rows, each has a place in an array and nothing
is sorted.

Side:       pure.
Invariants: groups are in the order of their windows, those of one window in the order of their slots.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowlet.kernels.grouping import IndexArray
from netstack.late import dataclass

Int64Array = NDArray[np.int64]

# An array of so many places per row is still cheaper than a sort of the rows (about 60 ns each); not measured closely.
_MAX_CELLS_PER_ROW: Final = 4
_MIN_CELLS: Final = 1 << 14
_MAX_CELLS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class CellGroups:
    """Groups of rows.

    ``codes``: the group of each row.  ``windows``, ``slots``: of each group.
    """

    codes: IndexArray
    windows: Int64Array
    slots: Int64Array

    def __len__(self) -> int:
        return len(self.windows)


def group_cells(windows: Int64Array, slots: Int64Array, num_slots: int) -> CellGroups:
    """Group rows; there is at least one.

    Args:
        windows: a number of the window of each row; consecutive windows should have consecutive numbers.
        slots: of the key of each row, below ``num_slots``.
        num_slots: at least 1.
    """
    low = int(windows.min())
    span = int(windows.max()) - low + 1
    found = _group_dense(windows, slots, num_slots, low, span)
    return _group_sorted(windows, slots, num_slots, low, span) if found is None else found


def try_group_cells(windows: Int64Array, slots: Int64Array, num_slots: int) -> CellGroups | None:
    """As ``group_cells``; None: a sort would be needed, for the pairs that are possible are many more than the rows."""
    low = int(windows.min())
    return _group_dense(windows, slots, num_slots, low, int(windows.max()) - low + 1)


def _group_dense(windows: Int64Array, slots: Int64Array, num_slots: int, low: int, span: int) -> CellGroups | None:
    if span * num_slots > max(_MAX_CELLS_PER_ROW * len(windows), _MIN_CELLS):
        return None
    cells = slots if span == 1 else (windows - low) * num_slots + slots
    present = np.bincount(cells, minlength=span * num_slots).nonzero()[0]
    if len(present) == span * num_slots:
        codes = cells.astype(np.intp, copy=False)
    else:
        places = np.empty(span * num_slots, np.intp)
        places[present] = np.arange(len(present))
        codes = places.take(cells)
    return _groups(codes, present, low, num_slots)


def _group_sorted(windows: Int64Array, slots: Int64Array, num_slots: int, low: int, span: int) -> CellGroups:
    if span * num_slots < _MAX_CELLS:
        present, codes = np.unique((windows - low) * num_slots + slots, return_inverse=True)
        return _groups(codes, present, low, num_slots)
    distinct, ranks = np.unique(windows, return_inverse=True)
    present, codes = np.unique(ranks.astype(np.int64) * num_slots + slots, return_inverse=True)
    return CellGroups(codes, distinct.take(present // num_slots), present % num_slots)


def _groups(codes: IndexArray, present: Int64Array, low: int, num_slots: int) -> CellGroups:
    number = present // num_slots
    return CellGroups(codes, number + low, present - number * num_slots)

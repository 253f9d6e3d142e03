"""The keys of windows of columns: a number for each, as long as a window holds it; rows by pairs of a window and a key.

Hot path.  Where the pairs that are possible are not many more than the rows, each has a place in an array
and nothing is sorted.

Side:       pure.
Invariants: groups are in the order of their windows, those of one window in the order of their slots.  equal keys have
            one slot; ``array`` has the key of each slot in its Arrow type.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flowlet.columns import ArrowColumn
from flowlet.kernels.grouping import IndexArray, first_rows
from flowlet.kernels.windows.window_partials import ColumnInputs
from flowlet.keys.key_columns import column_key_groups
from flowlet.keys.key_index import KeyIndex
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


def group_cells(windows: Int64Array, slots: Int64Array) -> CellGroups:
    """Group rows; there is at least one.

    Args:
        windows: a number of the window of each row; consecutive windows should have consecutive numbers.
        slots: of the key of each row.
    """
    found = try_group_cells(windows, slots)
    if found is not None:
        return found
    low, num_slots = int(windows.min()), int(slots.max()) + 1
    if (int(windows.max()) - low + 1) * num_slots < _MAX_CELLS:
        present, codes = np.unique((windows - low) * num_slots + slots, return_inverse=True)
        return _groups(codes, present, low, num_slots)
    distinct, ranks = np.unique(windows, return_inverse=True)
    present, codes = np.unique(ranks.astype(np.int64) * num_slots + slots, return_inverse=True)
    return CellGroups(codes, distinct.take(present // num_slots), present % num_slots)


def try_group_cells(windows: Int64Array, slots: Int64Array) -> CellGroups | None:
    """As ``group_cells``; None: a sort would be needed, for the pairs that are possible are many more than the rows."""
    low, num_slots = int(windows.min()), int(slots.max()) + 1
    span = int(windows.max()) - low + 1
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


def _groups(codes: IndexArray, present: Int64Array, low: int, num_slots: int) -> CellGroups:
    number = present // num_slots
    return CellGroups(codes, number + low, present - number * num_slots)


# Fewer slots are not worth numbering again.
_MIN_SLOTS: Final = 1 << 14
_NO_GROUPS: Final = np.empty(0, np.int64)


class WindowKeys:
    """Key -> slot.

    Args:
        name: of the key's column; None: there are no keys, and one slot.
        key_type: its Arrow type, of plain values.
    """

    def __init__(self, name: str | None, key_type: Any = None) -> None:
        self._name = name
        self._type = key_type
        self._index = KeyIndex(allows_null=True)
        self._arrays: list[Any] = [pa.nulls(1)] if name is None else []
        self._num_slots = 1 if name is None else 0
        self.num_bytes = 0  # of the keys in Arrow
        self._groups = _NO_GROUPS

    def __repr__(self) -> str:
        return f"<WindowKeys {self._name!r}, {self._num_slots} slots>"

    @property
    def num_slots(self) -> int:
        """How many slots there are."""
        return self._num_slots

    def slots(self, inputs: ColumnInputs, name: str | None = None) -> Int64Array:
        """The slot of each row's key.

        Args:
            inputs: the rows.
            name: of the column here; None: it has the usual name.

        Raises:
            TypeError: there are values that cannot be keys.
        """
        if self._name is None:
            return np.zeros(len(inputs), np.int64)
        name = name or self._name
        slots = self._index.slots(inputs.column(name))
        if slots is None:
            slots = self._index.slots(ArrowColumn(inputs.array(name)))
        if slots is None:
            raise TypeError(
                f"column {name!r} has values that cannot be keys together; cast it to string or int64 before key_by()"
            )
        if self._index.num_slots > self._num_slots:
            self._take_new(slots, inputs.array(name))
        return slots

    def slots_of(self, keys: Any) -> Int64Array:
        """The slot of each of these keys, an Arrow array as ``array`` gave it once; raises TypeError as ``slots``."""
        if self._name is None:
            return np.zeros(len(keys), np.int64)
        slots = self._index.slots(ArrowColumn(keys))
        if slots is None:
            raise TypeError(f"the keys of column {self._name!r} in the checkpoint are of another kind, or of several")
        if self._index.num_slots > self._num_slots:
            self._take_new(slots, keys)
        return slots

    def groups(self, max_parallelism: int) -> Int64Array:
        """The key group of each slot."""
        if len(self._groups) != self._num_slots:
            self._groups = column_key_groups(self.array(), max_parallelism).astype(np.int64)
        return self._groups

    def array(self) -> Any:
        """The key of each slot."""
        if len(self._arrays) != 1:
            self._arrays = [pa.concat_arrays(self._arrays) if self._arrays else pa.array([], self._type)]
        return self._arrays[0]

    def are_sparse(self, num_rows: int) -> bool:
        """Whether most slots belong to no row, if there are so many rows of state."""
        return self._name is not None and self._num_slots > max(_MIN_SLOTS, 2 * num_rows)

    def keep(self, is_live: Any) -> Int64Array:
        """Forget the keys of other slots; returns the new slot at each former one that stays."""
        live = is_live.nonzero()[0]
        keys = self.array().take(live)
        self.forget()
        self.slots_of(keys)
        slots = np.zeros(len(is_live), np.int64)
        slots[live] = np.arange(len(live))
        return slots

    def forget(self) -> None:
        """Forget all keys."""
        if self._name is not None:
            self._index.close()
            self._index = KeyIndex(allows_null=True)
            self._arrays = []
            self._num_slots = self.num_bytes = 0
            self._groups = _NO_GROUPS

    def _take_new(self, slots: Int64Array, keys: Any) -> None:
        after = self._index.num_slots
        array = keys.take(first_rows(slots, self._num_slots, after))
        self._arrays.append(array if array.type == self._type else array.cast(self._type))
        self.num_bytes += int(self._arrays[-1].nbytes)
        self._num_slots = after

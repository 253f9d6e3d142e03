"""Running results per key and row: sum, count, minimum and maximum, and the row that has them.

Hot path.  Exact sums of int64 are one cumulative sum over all groups, 12 ns per row with the sort.  Operations that
must run one after the other (on floats, extremes) use ``accumulate``: long groups one by one, short groups many at
once.
Side:       pure.
Invariants: results equal those of a loop over the rows with a dictionary by key.  Integers stay within 64 bits
            (``Int64Bound`` checks that first).  Floats are added in the order of their rows.
Units:      results are in the order of ``Grouping.order``; there is one initial value per group.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.kernels.grouping import Grouping, IndexArray

Int64Array = NDArray[np.int64]
# Groups of at least this length get a call each (1 us); shorter ones share one, as a matrix that is at least half full.
# Not measured closely.
_LONG_GROUP: Final = 64  # a power of two
_FROM_STATE: Final = -1


def running_sums(grouping: Grouping, values: Int64Array, initial: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The sum after each row, and after the last row of each group.

    ``values`` are in the order of the rows; ``initial`` are the sums before them.
    """
    sums: Int64Array = values.take(grouping.order)
    # One sum across all groups: the total before each group is subtracted again, modulo 2**64 if it overflowed.
    sums.cumsum(out=sums)
    last = sums.take(grouping.ends - 1)
    offsets = initial.copy()
    offsets[1:] -= last[:-1]
    sums += grouping.spread(offsets)
    return sums, last + offsets


def running_counts(grouping: Grouping, initial: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Numbers of rows so far, and those after the last row of each group."""
    counts: Int64Array = np.arange(1, len(grouping.order) + 1)
    counts += grouping.spread(initial - grouping.starts)
    return counts, initial + grouping.lengths


def accumulate(ufunc: np.ufunc, grouping: Grouping, in_order: NDArray[Any], initial: NDArray[Any]) -> NDArray[Any]:
    """Apply ``ufunc`` to the result so far and the next value, one after the other within each group.

    ``in_order`` are the values, group by group, and are overwritten.  ``initial`` are the results before them, of the
    same type.
    """
    starts, lengths = grouping.starts, grouping.lengths
    # As Python's floats, these become infinite or NaN without a warning.
    with np.errstate(over="ignore", invalid="ignore"):
        in_order[starts] = ufunc(initial, in_order[starts])
        is_long = lengths >= _LONG_GROUP
        for start, end in zip(starts[is_long].tolist(), grouping.ends[is_long].tolist(), strict=True):
            run = in_order[start:end]
            ufunc.accumulate(run, out=run)
        shortest = 2
        while shortest < _LONG_GROUP:
            chosen = ((lengths >= shortest) & (lengths < 2 * shortest)).nonzero()[0]
            if chosen.size:
                _accumulate_short(ufunc, in_order, starts[chosen], lengths[chosen])
            shortest *= 2
    return in_order


def _accumulate_short(ufunc: np.ufunc, in_order: NDArray[Any], starts: IndexArray, lengths: IndexArray) -> None:
    """Process groups of similar lengths as columns of a matrix, padded with each group's last row."""
    steps = np.arange(int(lengths.max()))
    places = starts + np.minimum(steps[:, np.newaxis], lengths - 1)
    matrix = in_order.take(places)
    ufunc.accumulate(matrix, axis=0, out=matrix)
    # Results in the padding are not used.
    is_inside = steps[:, np.newaxis] < lengths
    in_order[places[is_inside]] = matrix[is_inside]


def new_extremes(
    grouping: Grouping,
    in_order: NDArray[Any],
    running: NDArray[Any],
    initial: NDArray[Any],
    *,
    is_new: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Whether each value becomes its group's extreme; of equal values the first one stays.

    Args:
        grouping: of the rows.
        in_order: the values, group by group.
        running: the extreme after each row.
        initial: the extreme of each group before them.
        is_new: whether the group has no rows before them.
    """
    changes = np.empty(len(in_order), np.bool_)
    np.not_equal(running[1:], running[:-1], out=changes[1:])
    starts = grouping.starts
    changes[starts] = is_new | (in_order[starts] != initial) & (running[starts] == in_order[starts])
    return changes


def rows_of_extremes(grouping: Grouping, changes: NDArray[np.bool_]) -> IndexArray:
    """The row of each extreme so far, group by group; -1 if it is older than these rows."""
    places = np.where(changes, np.arange(len(changes)), 0)
    # A mark at the start of each group keeps out the extreme of the group before it.
    places[grouping.starts] = grouping.starts
    np.maximum.accumulate(places, out=places)
    rows: IndexArray = grouping.order.take(places)
    rows[~changes.take(places)] = _FROM_STATE
    return rows

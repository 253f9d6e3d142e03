"""Running results per key and row: sum, count, smallest and largest, and the row that has them.

Hot path.  Exact sums of int64 by one cumulative sum over all groups, 12 ns per row with the sort; anything whose operations must happen
one after the other (floats, extremes) by ``accumulate``, group by group where they are long, many groups at once where they are short.

Side:       pure.
Invariants: each result is the one that a loop over the rows, with a dictionary by key, gives; integers do not leave 64 bits
            (``Int64Bound`` says so before), floats are added in the order of their rows.
Units:      results are in the order of ``Grouping.order``; initial values one per group.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.kernels.grouping import Grouping, IndexArray

Int64Array = NDArray[np.int64]
# From here on a group has a call of its own (1 us); shorter ones share one, in a matrix that is at least half full.  Not measured closely.
_LONG_GROUP: Final = 64  # a power of two
_FROM_STATE: Final = -1


def running_sums(grouping: Grouping, values: Int64Array, initial: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Sums of integers so far, and those after the last row of each group.

    Args:
        grouping: of the rows.
        values: in the order of the rows.
        initial: the sum of each group before them.
    """
    sums: Int64Array = values.take(grouping.order)
    # Over the borders of the groups: what was before a group is taken away again, modulo 2**64 if it must be.
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
    """``ufunc`` of the result so far and the next value, one after the other within each group.

    Args:
        ufunc: of two arguments.
        grouping: of the rows.
        in_order: the values, group by group; overwritten.
        initial: where each group begins, of the same type.
    """
    starts, lengths = grouping.starts, grouping.lengths
    # Python's floats become infinite, or NaN, without a word.
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
    """Groups of similar lengths as the columns of a matrix, whose unused ends repeat each group's last row."""
    steps = np.arange(int(lengths.max()))
    places = starts + np.minimum(steps[:, np.newaxis], lengths - 1)
    matrix = in_order.take(places)
    ufunc.accumulate(matrix, axis=0, out=matrix)
    # What came out behind the end of a group is nobody's.
    is_inside = steps[:, np.newaxis] < lengths
    in_order[places[is_inside]] = matrix[is_inside]


def new_extremes(
    grouping: Grouping, in_order: NDArray[Any], running: NDArray[Any], initial: NDArray[Any], *, is_new: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Whether each value, group by group, is the one that its group has from now on: of equal ones the first stays.

    Args:
        grouping: of the rows.
        in_order: the values, group by group.
        running: the extremes so far, each with its own row's value.
        initial: the extreme of each group before them.
        is_new: whether the group has no row before them.
    """
    changes = np.empty(len(in_order), np.bool_)
    np.not_equal(running[1:], running[:-1], out=changes[1:])
    starts = grouping.starts
    changes[starts] = is_new | (in_order[starts] != initial) & (running[starts] == in_order[starts])
    return changes


def rows_of_extremes(grouping: Grouping, changes: NDArray[np.bool_]) -> IndexArray:
    """For each place, group by group, the row whose value is the extreme so far; -1 where it is older than these rows."""
    places = np.where(changes, np.arange(len(changes)), 0)
    # Where a group begins without a change a mark keeps the group before it out.
    places[grouping.starts] = grouping.starts
    np.maximum.accumulate(places, out=places)
    rows: IndexArray = grouping.order.take(places)
    rows[~changes.take(places)] = _FROM_STATE
    return rows

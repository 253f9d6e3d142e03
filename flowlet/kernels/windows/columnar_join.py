"""Joins of two streams of columns: rows with equal keys that are in one window.

Hot path.  Rows wait in arrays, in the order of their panes, so the rows of later windows are not touched.  Windows that
end are joined by one sort of each side.

Side:       pure.
Invariants: each pair of rows comes out once per window that holds both.  A row that is late for all its windows is left
            out.
Units:      milliseconds.
Rules:      null is a key like any other, as in windows.
Source:     Flink ``JoinedStreams``, ``CoGroupedStreams``.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from flowlet.kernels.grouping import IndexArray
from flowlet.kernels.windows.window_partials import ColumnInputs, Int64Array, group_cells, no_rows
from flowlet.kernels.windows.window_shapes import (
    WINDOW_END,
    WINDOW_START,
    WINDOW_TIME_TYPE,
    AlignedWindows,
    EmittedWindows,
    Run,
    WindowRuns,
    WindowTables,
    joined_runs,
)
from netstack.late import dataclass

JOIN_KINDS: Final = ("inner", "left", "right", "outer")
LEFT, RIGHT = 0, 1
_MAX_PAIRS: Final = 1 << 16
_NO_ROW: Final = -1


@dataclass(frozen=True, slots=True)
class JoinedColumn:
    """A column of the results: its ``name``, and the ``column`` of a ``side`` from which it is taken."""

    name: str
    side: int
    column: str
    column_type: Any


@dataclass(frozen=True, slots=True)
class ColumnJoin:
    """The description of a join.

    Args:
        windows: the windows in which rows meet.
        keys: the key's column on each side.
        key_type: its Arrow type, of plain values.
        kind: one of ``JOIN_KINDS``.
        columns: of the results, behind the key and the window.
        schemas: of each side.
    """

    windows: AlignedWindows
    keys: tuple[str, str]
    key_type: Any
    kind: str
    columns: tuple[JoinedColumn, ...]
    schemas: tuple[Any, Any]

    def output_schema(self) -> Any:
        """The ``pyarrow.Schema`` of the results."""
        times = [pa.field(name, WINDOW_TIME_TYPE, nullable=False) for name in (WINDOW_START, WINDOW_END)]
        columns = [pa.field(each.name, each.column_type) for each in self.columns]
        return pa.schema([pa.field(self.keys[LEFT], self.key_type), *times, *columns])

    def kept_columns(self, side: int) -> tuple[str, ...]:
        """The columns of a side that the results need, each once."""
        return tuple(dict.fromkeys(each.column for each in self.columns if each.side == side))


class ColumnarJoin(WindowTables[AlignedWindows]):
    """The state and the results of one subtask."""

    def __init__(self, join: ColumnJoin) -> None:
        self._join = join
        tables = [WindowRuns(Run.in_order, saves_rows=False) for _ in (LEFT, RIGHT)]
        super().__init__(join.windows, join.keys[LEFT], join.key_type, *tables)

    def add(self, side: int, inputs: ColumnInputs) -> int:
        """Take rows of one side, at least one; returns how many were too late.

        Raises:
            TypeError: see ``WindowKeys.slots``.
        """
        windows, num_late = self.shape, 0
        slots, panes = self._keys.slots(inputs, self._join.keys[side]), windows.panes(inputs.timestamps)
        found = windows.sorted_out(inputs.timestamps, panes, self.progress.of(slots, self._keys))
        if found is not None:
            rows, late_rows = found
            num_late = len(late_rows)
            slots, panes, inputs = slots.take(rows), panes.take(rows), inputs.take(rows)
        kept = tuple([inputs.array(name) for name in self._join.kept_columns(side)])
        self._tables[side].add(Run(slots, panes, (), (kept,)).in_order())
        return num_late

    def _ended(self, watermark: int) -> Iterator[EmittedWindows]:
        windows = self.shape
        limit, before = windows.last_ended(watermark), windows.last_ended(self.progress.emitted)
        if limit // windows.slide_panes * windows.slide_panes <= before:
            return  # no window ended since
        due = [table.take_before(self.shape.starts_before(watermark)) for table in self._tables]
        if any(due):
            sides = [joined_runs(runs or [self._empty(side)]) for side, runs in enumerate(due)]
            yield from self._joined(sides, limit)
            for table, run in zip(self._tables, sides, strict=True):
                kept = run.take((windows.last_windows(run.starts) > limit).nonzero()[0])
                table.add(kept.in_order())

    def _empty(self, side: int) -> Run:
        nothing = no_rows(self._join.schemas[side])
        kept = tuple([nothing.array(name) for name in self._join.kept_columns(side)])
        return Run(nothing.timestamps, nothing.timestamps, (), (kept,))

    # -- pairs

    def _joined(self, sides: Sequence[Run], limit: int) -> Iterator[EmittedWindows]:
        windows, spread = self.shape, []
        for run in sides:
            after = windows.last_ended(self.progress.of(run.slots, self._keys))
            spread.append(windows.spread(run.starts, after, limit))
        if not sum(len(rows) for rows, _ in spread):
            return
        starts = np.concatenate([of_side for _, of_side in spread])
        slots = np.concatenate([run.slots.take(rows) for run, (rows, _) in zip(sides, spread, strict=True)])
        groups = group_cells(starts // windows.slide_panes, slots)
        num_left = len(spread[LEFT][0])
        codes = (groups.codes[:num_left], groups.codes[num_left:])
        for pairs in matched_rows(codes[LEFT], codes[RIGHT], len(groups), self._join.kind):
            code = np.where(pairs[LEFT] >= 0, _through(codes[LEFT], pairs[LEFT]), _through(codes[RIGHT], pairs[RIGHT]))
            places = [_through(rows, of_side) for (rows, _), of_side in zip(spread, pairs, strict=True)]
            starts_ms = windows.start_ms(groups.windows.take(code) * windows.slide_panes)
            yield self._results(sides, places, starts_ms, groups.slots.take(code))

    def _results(
        self, runs: Sequence[Run], places: Sequence[IndexArray], starts_ms: Int64Array, slots: Int64Array
    ) -> EmittedWindows:
        """The result rows of pairs.

        Args:
            runs: the rows of each side.
            places: for each side, the row of each pair in its run; -1: the side has none.
            starts_ms: the start of each pair's window.
            slots: of each pair's key.
        """
        join, ends_ms = self._join, starts_ms + self.shape.size
        arrays = self._leading_columns(slots, starts_ms, ends_ms)
        taken = []
        for side, (run, rows) in enumerate(zip(runs, places, strict=True)):
            is_missing = rows == _NO_ROW
            found = pa.array(rows, mask=is_missing) if is_missing.any() else pa.array(rows)
            taken.append(dict(zip(join.kept_columns(side), [each.take(found) for each in run.parts[0]], strict=True)))
        arrays += [taken[each.side][each.column] for each in join.columns]
        return EmittedWindows(pa.RecordBatch.from_arrays(arrays, schema=join.output_schema()), ends_ms)


def matched_rows(
    left: IndexArray, right: IndexArray, num_groups: int, kind: str
) -> Iterator[tuple[IndexArray, IndexArray]]:
    """The pairs of rows of both sides that share a group, in pieces of about 65,536 pairs; -1 where a side has no row.

    Args:
        left: the group of each row of the left side.
        right: the group of each row of the right side.
        num_groups: all groups are below it.
        kind: one of ``JOIN_KINDS``.
    """
    left_order, right_order = left.argsort(kind="stable"), right.argsort(kind="stable")
    counts = np.bincount(right, minlength=num_groups)
    begins = counts.cumsum() - counts
    of_row = counts.take(left.take(left_order))
    first = begins.take(left.take(left_order))
    if kind in ("left", "outer"):
        is_alone = of_row == 0
        of_row = np.where(is_alone, 1, of_row)
    else:
        is_alone = np.zeros(len(of_row), np.bool_)
    stops = of_row.cumsum()
    start, done = 0, 0
    while start < len(left_order):
        # At least one row, because one alone may have more pairs than a piece holds.
        stop = max(start + 1, int(np.searchsorted(stops, done + _MAX_PAIRS, side="right")))
        repeats = of_row[start:stop]
        rows = np.repeat(left_order[start:stop], repeats)
        if len(rows):
            within = np.arange(len(rows)) - np.repeat(repeats.cumsum() - repeats, repeats)
            places = np.repeat(first[start:stop], repeats) + within
            alone = np.repeat(is_alone[start:stop], repeats)
            others = np.full(len(rows), _NO_ROW)
            others[~alone] = right_order.take(places[~alone])
            yield rows, others
        done, start = int(stops[stop - 1]), stop
    if kind in ("right", "outer"):
        unmatched = (np.bincount(left, minlength=num_groups) == 0).take(right.take(right_order)).nonzero()[0]
        for start in range(0, len(unmatched), _MAX_PAIRS):
            rows = right_order.take(unmatched[start : start + _MAX_PAIRS])
            yield np.full(len(rows), _NO_ROW), rows


def _through(rows: IndexArray, places: IndexArray) -> IndexArray:
    """The rows at these places; -1 stays."""
    if not len(rows):
        return places
    return np.where(places == _NO_ROW, _NO_ROW, rows.take(places, mode="wrap"))

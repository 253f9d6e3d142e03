"""Joins of two streams of columns: rows with equal keys in the same window.

Rows of one side of a join that wait for their window, found by their pane.

New rows stay as they came.  When there are enough, they are sorted into a run, and runs lie in a heap by their first
pane: a window that ends touches the runs that have rows for it, and takes their beginnings.  What waits for later
windows costs it nothing.

Hot path, per chunk and per window that ends.

Hot path.  Rows wait in arrays by their pane; windows that end are joined by one sort of each side.

Side:       pure.
Invariants: runs in the heap are sorted by pane and not empty.  After each call at most ``_MIN_SORTED_ROWS`` rows and
            ``_MAX_RECENT`` runs are unsorted.  each pair of rows comes out once per window that holds both.  A row that
            is late for all its windows is left out.
Units:      milliseconds.
Rules:      null is a key like any other, as in windows.
Source:     Flink ``JoinedStreams``, ``CoGroupedStreams``.
"""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Final

import numpy as np
import pyarrow as pa

from flowlet.kernels.grouping import IndexArray
from flowlet.kernels.windows.columnar_windows import WINDOW_END, WINDOW_START, WINDOW_TIME_TYPE, WindowTables
from flowlet.kernels.windows.window_keys import group_cells
from flowlet.kernels.windows.window_partials import ColumnInputs, Int64Array, value_type
from flowlet.kernels.windows.window_shapes import AlignedWindows, Run, joined_runs, split_before
from netstack.late import dataclass

# The fewer, the more runs a window that ends has to touch; the more, the more unsorted rows it looks through.  Not
# measured.
_MIN_SORTED_ROWS: Final = 1 << 13
_MAX_RECENT: Final = 64  # unsorted runs
_MIN_REST_ROWS: Final = 1 << 10  # what is left of a sorted run and smaller joins the unsorted rows


class WaitingRows:
    """The rows of one side."""

    def __init__(self) -> None:
        self._recent: list[Run] = []  # unsorted
        self._num_recent = 0
        # First pane, number, rows that the arrays of the run hold, run.
        self._sorted: list[tuple[int, int, int, Run]] = []
        self._num_pushed = 0
        self._num_rows = 0
        self._first_recent = 0  # the first pane of the unsorted rows, if there are any

    def __repr__(self) -> str:
        return f"<WaitingRows: {self._num_rows}, of which {self._num_recent} are unsorted>"

    def __len__(self) -> int:
        return self._num_rows

    def runs(self) -> Iterator[Run]:
        """All rows."""
        for _, _, _, run in self._sorted:
            yield run
        yield from self._recent

    def has_before(self, pane: int) -> bool:
        """Whether there are rows of earlier panes."""
        return bool(self._recent and self._first_recent < pane) or bool(self._sorted and self._sorted[0][0] < pane)

    def add_run(self, run: Run) -> None:
        """Take rows."""
        if len(run):
            self._num_rows += len(run)
            self._add_recent(run)
            self._settle()

    def take_before(self, pane: int) -> list[Run]:
        """Take the rows of earlier panes out."""
        due = self._take_sorted(pane)
        if self._recent and self._first_recent < pane:
            before, rest = split_before(self._recent, pane)
            due += before
            self._recent, self._num_recent = [], 0
            for run in rest:
                self._add_recent(run)
        self._num_rows -= sum(map(len, due))
        self._settle()
        return due

    def replace_slots(self, slots: Int64Array) -> None:
        """Give each key the slot that stands at its former one."""
        self._recent = [run.renumbered(slots) for run in self._recent]
        self._sorted = [(*place, run.renumbered(slots)) for *place, run in self._sorted]  # type: ignore[misc]  # the same shape

    def check_invariants(self) -> None:
        """Assert the invariants of the module header, and the numbers of rows."""
        assert self._num_rows == sum(map(len, self.runs())), "rows were not counted"
        assert self._num_recent == sum(map(len, self._recent)) <= _MIN_SORTED_ROWS, (
            "too many unsorted rows, or a wrong number"
        )
        assert len(self._recent) <= _MAX_RECENT, "too many unsorted runs"
        for first, _, num_held, run in self._sorted:
            assert 0 < len(run) <= num_held <= 2 * len(run), "a run holds more than twice its rows"
            assert first == run.starts[0], "a run in the wrong place"
            assert (run.starts[1:] >= run.starts[:-1]).all(), "an unsorted run"

    def _take_sorted(self, pane: int) -> list[Run]:
        due, rest = [], []
        while self._sorted and self._sorted[0][0] < pane:
            _, _, num_held, run = heappop(self._sorted)
            num_due = int(np.searchsorted(run.starts, pane))
            due.append(run.cut(0, num_due))
            if num_due < len(run):
                rest.append((num_held, run.cut(num_due, len(run))))
        for num_held, run in rest:
            if len(run) < _MIN_REST_ROWS:
                self._add_recent(_copied(run))
            elif num_held > 2 * len(run):
                self._push(_copied(run), len(run))
            else:
                self._push(run, num_held)
        return due

    def _add_recent(self, run: Run) -> None:
        first = int(run.starts.min())
        self._first_recent = min(self._first_recent, first) if self._recent else first
        self._recent.append(run)
        self._num_recent += len(run)

    def _settle(self) -> None:
        """Sort the unsorted rows if they are many, and join them if they are many runs."""
        if self._num_recent > _MIN_SORTED_ROWS:
            run = joined_runs(self._recent)
            if (run.starts[1:] < run.starts[:-1]).any():
                run = run.take(run.starts.argsort(kind="stable"))
            self._recent, self._num_recent = [], 0
            self._push(run, len(run))
        elif len(self._recent) > _MAX_RECENT:
            self._recent = [joined_runs(self._recent)]

    def _push(self, run: Run, num_held: int) -> None:
        self._num_pushed += 1  # an order of runs that begin with the same pane
        heappush(self._sorted, (int(run.starts[0]), self._num_pushed, num_held, run))


def _copied(run: Run) -> Run:
    """The rows in arrays of their own."""
    return run.take(np.arange(len(run)))


JOIN_KINDS: Final = ("inner", "left", "right", "outer")
LEFT, RIGHT = 0, 1
_MAX_PAIRS: Final = 1 << 16
_MAX_SPREAD_ROWS: Final = 1 << 20
_NO_ROW: Final = -1


@dataclass(frozen=True, slots=True)
class JoinedColumn:
    """A column of the results: ``name``, and the ``column`` of a ``side`` that it is."""

    name: str
    side: int
    column: str
    column_type: Any


@dataclass(frozen=True, slots=True)
class ColumnJoin:
    """What is joined.

    Args:
        windows: in which rows meet.
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


@dataclass(frozen=True, slots=True)
class Pairs:
    """Rows that belong together, by position; -1: none on that side.  ``windows`` and ``slots``: of each pair."""

    windows: Int64Array
    slots: Int64Array
    left: IndexArray
    right: IndexArray


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """A ``pyarrow.RecordBatch`` of results, and the end of each one's window."""

    batch: Any
    ends_ms: Int64Array


class ColumnarJoin(WindowTables):
    """The state and the results of one subtask."""

    def __init__(self, join: ColumnJoin) -> None:
        super().__init__(join.keys[LEFT], join.key_type)
        self._join = join
        self._tables = self._rows = (WaitingRows(), WaitingRows())

    def __repr__(self) -> str:
        return f"<ColumnarJoin of {self.num_rows} rows>"

    def add(self, side: int, inputs: ColumnInputs) -> int:
        """Take rows of one side, at least one; returns how many were too late.

        Raises:
            TypeError: see ``WindowKeys.slots``.
        """
        windows = self._join.windows
        slots = self._keys.slots(inputs, self._join.keys[side])
        panes = windows.panes(inputs.timestamps)
        last = windows.last_windows(panes)
        emitted = self._progress.of(slots)
        is_held = windows.holds(panes, last)
        is_kept = is_held & (last > windows.last_ended(emitted))
        num_late = 0
        if not is_kept.all():
            num_late = int(np.count_nonzero(~is_kept & (inputs.timestamps <= emitted)))
            rows = is_kept.nonzero()[0]
            slots, panes, inputs = slots.take(rows), panes.take(rows), inputs.take(rows)
        if len(panes):
            kept = tuple([inputs.array(name) for name in self._join.kept_columns(side)])
            self._rows[side].add_run(Run(slots, panes, (), (kept,)))
        return num_late

    def fire(self, watermark: int) -> Iterator[JoinedRows]:
        """The rows of the windows that end at or before a watermark, in the order of their ends."""
        windows = self._join.windows
        limit = windows.last_ended(watermark)
        due_before = limit + windows.size_panes
        if self._has_ended(limit) and any(rows.has_before(due_before) for rows in self._rows):
            left, right = (
                joined_runs([self._empty(side), *rows.take_before(due_before)]) for side, rows in enumerate(self._rows)
            )
            yield from self._joined(left, right, limit)
            for rows, run in zip(self._rows, (left, right), strict=True):
                rows.add_run(run.take((windows.last_windows(run.starts) > limit).nonzero()[0]))
        self._progress.advance(watermark)
        self._forget_keys()

    def _has_ended(self, limit: int) -> bool:
        """Whether a window that begins at or before a pane has ended, and had not before."""
        windows = self._join.windows
        before: int = windows.last_ended(self._progress.emitted)
        return limit // windows.slide_panes * windows.slide_panes > before

    # -- rows

    def _empty(self, side: int) -> Run:
        nothing = np.empty(0, np.int64)
        schema = self._join.schemas[side]
        kinds = [value_type(schema.field(name).type) for name in self._join.kept_columns(side)]
        return Run(nothing, nothing, (), (tuple([pa.array([], kind) for kind in kinds]),))

    # -- pairs

    def _joined(self, left: Run, right: Run, limit: int) -> Iterator[JoinedRows]:
        aligned, progress = self._join.windows, self._progress
        spread = [
            aligned.spread(run.starts, aligned.last_ended(progress.of(run.slots)), limit) for run in (left, right)
        ]
        if not sum(len(rows) for rows, _ in spread):
            return
        windows = np.concatenate([of_side for _, of_side in spread])
        slots = np.concatenate([run.slots.take(rows) for run, (rows, _) in zip((left, right), spread, strict=True)])
        groups = group_cells(windows // self._join.windows.slide_panes, slots, self._keys.num_slots)
        num_left = len(spread[LEFT][0])
        codes = (groups.codes[:num_left], groups.codes[num_left:])
        matched = matched_rows(codes[LEFT], codes[RIGHT], len(groups), self._join.kind)
        for left_rows, right_rows in matched:
            code = np.where(left_rows >= 0, codes[LEFT].take(left_rows, mode="wrap") if num_left else 0, 0)
            if len(codes[RIGHT]):
                code = np.where(left_rows >= 0, code, codes[RIGHT].take(right_rows, mode="wrap"))
            places = [_through(rows, pairs) for (rows, _), pairs in zip(spread, (left_rows, right_rows), strict=True)]
            starts = groups.windows.take(code) * self._join.windows.slide_panes
            yield self._results((left, right), places, starts, groups.slots.take(code))

    def _results(
        self, runs: Sequence[Run], places: Sequence[IndexArray], windows: Int64Array, slots: Int64Array
    ) -> JoinedRows:
        """The rows of pairs: where each is in the run of either side, its window, and the slot of its key."""
        join = self._join
        starts = join.windows.start_ms(windows)
        ends = starts + join.windows.size
        arrays = [self._keys.array().take(pa.array(slots))]
        arrays += [pa.array(each).view(WINDOW_TIME_TYPE) for each in (starts, ends)]
        taken = []
        for side, (run, rows) in enumerate(zip(runs, places, strict=True)):
            is_missing = rows == _NO_ROW
            found = pa.array(rows, mask=is_missing) if is_missing.any() else pa.array(rows)
            taken.append(dict(zip(join.kept_columns(side), [each.take(found) for each in run.parts[0]], strict=True)))
        arrays += [taken[each.side][each.column] for each in join.columns]
        return JoinedRows(pa.RecordBatch.from_arrays(arrays, schema=join.output_schema()), ends)


def matched_rows(
    left: IndexArray, right: IndexArray, num_groups: int, kind: str
) -> Iterator[tuple[IndexArray, IndexArray]]:
    """The rows of both sides that are in the same group, in pieces of a bounded number of pairs; -1 where a side has
    none.

    Args:
        left: the group of each row.
        right: the same of the other side.
        num_groups: groups are below it.
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

"""Aggregations over windows of columns: keys, windows and results.

Tumbling and sliding windows: parts per key and pane, put together when a window ends.  Session windows: sessions of
each chunk, joined with the others when one may have ended.

Hot path.  Per chunk one grouping of the rows, or a sort by key and time, and one call per aggregation; per watermark
work only if a window ends.

Side:       pure.
Local:      rows of one chunk become parts before they travel to the subtask that has their key.  From one chunk to the
            next only keys and their numbers are kept, which no other part of the program sees.  The parts of a chunk
            give the results that its rows give.  A part is too late exactly if its rows are: all windows that hold one
            row of a pane hold the others, too.
Invariants: a row counts once in its pane, however many windows share it.  Two sessions of a key are more than a gap
            apart once they are merged.  A window is emitted once when the watermark passes its end, and again after
            each chunk with late rows for it, as long as these are allowed.  The state is bounded by the keys and panes
            of windows that have not ended.
Rules:      rows of one chunk have no order among each other: a row that would be late by itself is taken if other rows
            of the chunk join it to a session that still lives.
Source:     Flink ``WindowOperator``, whose windows are emitted in the order of their ends; ``EventTimeSessionWindows``,
            ``MergingWindowSet``, ``TimeWindow.mergeWindows``: windows that touch are one; the local half of Flink SQL's
            two-phase aggregation (``LocalWindowAggregate``).
Units:      milliseconds.
Absent:     other functions than ``AGGREGATES``, and triggers: rows have to be records for them.
"""

import functools
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flowlet.columns import ArrayColumn, ArrowColumn, Column, Columns, Shape
from flowlet.columns.arrow_batches import column_of_array
from flowlet.kernels.grouping import IndexArray
from flowlet.kernels.windows.window_partials import (
    ColumnInputs,
    CountPartial,
    Int64Array,
    Part,
    Partial,
    WindowAggregate,
    WindowKeys,
    distinct_partials,
    group_cells,
    no_rows,
    try_group_cells,
)
from flowlet.kernels.windows.window_shapes import (
    MAX_WINDOW_TIMESTAMP,
    WINDOW_END,
    WINDOW_START,
    WINDOW_TIME_TYPE,
    AlignedWindows,
    EmittedWindows,
    Kind,
    Run,
    SessionWindows,
    WindowRuns,
    WindowShape,
    WindowTables,
    combined_parts,
    joined_runs,
)
from flowlet.records import Chunk
from netstack.late import dataclass

# Rows of panes that are spread over their windows at a time.
_MAX_SPREAD_ROWS: Final = 1 << 20
_NO_ROWS: Final = np.empty(0, np.intp)


@dataclass(frozen=True, slots=True)
class WindowedAggregation:
    """The description of aggregations over windows.

    Args:
        shape: of the windows.
        aggregates: the results.
        key: the key's column; None: all rows have one key.
        key_type: its Arrow type, of plain values.
        lateness_ms: how long after its end a window takes rows.
    """

    shape: WindowShape
    aggregates: tuple[WindowAggregate, ...]
    key: str | None = None
    key_type: Any = None
    lateness_ms: int = 0

    @property
    def can_be_local(self) -> bool:
        """Whether rows can become parts before they travel to the subtask of their key: the time of a row must tell all
        its windows.
        """
        return (
            isinstance(self.shape, AlignedWindows) and self.shape.is_event_time and self.shape.slide <= self.shape.size
        )

    def output_schema(self) -> Any:
        """The ``pyarrow.Schema`` of the results."""
        keys = [] if self.key is None else [pa.field(self.key, self.key_type)]
        times = [pa.field(name, WINDOW_TIME_TYPE, nullable=False) for name in (WINDOW_START, WINDOW_END)]
        results = [pa.field(each.name, each.output_type, nullable=each.kind != "count") for each in self.aggregates]
        return pa.schema([*keys, *times, *results])


@dataclass(frozen=True, slots=True)
class AddedRows:
    """The effects of a chunk: the rows that were too late, and the windows whose results changed."""

    late_rows: IndexArray
    changed: tuple[EmittedWindows, ...] = ()


class ColumnarWindows(WindowTables[Kind]):
    """The state and the results of one subtask.

    Args:
        shape: of the windows.
        aggregation: the description of the aggregations.
        received: for each kind of part, the columns in which it arrives, if another task made the parts; None: they are
            made of rows here.
    """

    def __init__(
        self, shape: Kind, aggregation: WindowedAggregation, received: Mapping[Partial, Partial] | None
    ) -> None:
        self._aggregation = aggregation
        self._names = distinct_partials(aggregation.aggregates)
        self._partials = self._names if received is None else tuple([received[each] for each in self._names])
        self._lateness_ms = aggregation.lateness_ms
        self._rows = WindowRuns(functools.partial(self._merged, self._partials), saves_rows=True)
        super().__init__(shape, aggregation.key, aggregation.key_type, self._rows)

    @staticmethod
    @abstractmethod
    def _merged(partials: Sequence[Partial], run: Run) -> Run:
        """The rows of several runs as one run in its order, with one row for each key and pane or session."""

    @abstractmethod
    def add(self, inputs: ColumnInputs) -> AddedRows:
        """Take rows, at least one; rows that are too late are left out.

        Raises:
            TypeError: see ``WindowKeys.slots``.
            OverflowError: a number or a sum is too large; names the column.
        """

    @abstractmethod
    def reopened(self, inputs: ColumnInputs) -> IndexArray:
        """The rows that may belong to windows that were emitted and still take rows."""

    def _emitted(
        self, slots: Int64Array, starts_ms: Int64Array, ends_ms: Int64Array, parts: tuple[Part, ...]
    ) -> EmittedWindows:
        """The results of windows in the output schema."""
        aggregation, found = self._aggregation, dict(zip(self._names, parts, strict=True))
        arrays = self._leading_columns(slots, starts_ms, ends_ms)
        arrays += [each.results([found[name] for name in each.partials()]) for each in aggregation.aggregates]
        return EmittedWindows(pa.RecordBatch.from_arrays(arrays, schema=aggregation.output_schema()), ends_ms)


def run_of_rows(partials: Sequence[Partial], panes: Int64Array, slots: Int64Array, inputs: ColumnInputs) -> Run | None:
    """The parts of rows, one for each pane and key; None: a sort would be needed (``try_group_cells``)."""
    groups = try_group_cells(panes, slots)
    if groups is None:
        return None
    parts = tuple([each.of_groups(inputs, groups.codes, len(groups)) for each in partials])
    return Run(groups.slots, groups.windows, (), parts)


class PaneWindows(ColumnarWindows[AlignedWindows]):
    """Tumbling and sliding windows."""

    @staticmethod
    def _merged(partials: Sequence[Partial], run: Run) -> Run:
        groups = group_cells(run.starts, run.slots)
        if len(groups) == len(run) and (groups.codes[1:] > groups.codes[:-1]).all():
            return run
        return Run(groups.slots, groups.windows, (), combined_parts(partials, run.parts, groups.codes, len(groups)))

    # -- rows

    def add(self, inputs: ColumnInputs) -> AddedRows:
        """Take rows as parts of their panes; rows that are late for all their windows are left out."""
        slots, panes = self._keys.slots(inputs), self.shape.panes(inputs.timestamps)
        late_rows, horizon = _NO_ROWS, self.progress.of(slots, self._keys) - self._lateness_ms
        found = self.shape.sorted_out(inputs.timestamps, panes, horizon)
        if found is not None:
            rows, late_rows = found
            slots, panes, inputs = slots.take(rows), panes.take(rows), inputs.take(rows)
        if not len(panes):
            return AddedRows(late_rows)
        run = run_of_rows(self._partials, panes, slots, inputs)
        if run is None:
            # Rows that share key and pane are rare, and are merged later with many others.
            parts = tuple([each.of_rows(inputs) for each in self._partials])
            run = Run(slots, panes, (), parts).in_order()
        self._rows.add(run)
        return AddedRows(late_rows, tuple(self._changed(run)) if self._lateness_ms else ())

    # -- windows

    def reopened(self, inputs: ColumnInputs) -> IndexArray:
        """The rows at or before the latest watermark, where windows take late rows; else none."""
        return (inputs.timestamps <= self.progress.latest()).nonzero()[0] if self._lateness_ms else _NO_ROWS

    def _ended(self, watermark: int) -> Iterator[EmittedWindows]:
        shape = self.shape
        due = self._rows.take_before(self.shape.starts_before(watermark))
        if due:
            run = self._merged(self._partials, joined_runs(due))
            yield from self._results(
                run, shape.last_ended(self.progress.of(run.slots, self._keys)), shape.last_ended(watermark)
            )
            is_kept = shape.last_windows(run.starts) > shape.last_ended(watermark - self._lateness_ms)
            self._rows.add(run if is_kept.all() else run.take(is_kept.nonzero()[0]))

    def _results(self, run: Run, after: Any, limit: Any) -> Iterator[EmittedWindows]:
        """The windows of merged rows that begin behind ``after`` and not behind ``limit``, both given by their first
        panes.
        """
        # A pane is a window: its parts are put together already, so no row is spread and grouped again.
        if self.shape.is_tumbling:
            is_due = (run.starts > after) & (run.starts <= limit)
            if is_due.any():
                found = run if is_due.all() else run.take(is_due.nonzero()[0])
                yield self._of_windows(found)
            return
        for first, stop in self._window_batches(run, after, limit):
            low = max(after, first - 1) if isinstance(after, int) else np.maximum(after, first - 1)
            yield self._spread_over(run, *self.shape.spread(run.starts, low, min(limit, stop - 1)))

    def _spread_over(self, run: Run, rows: IndexArray, windows: Int64Array) -> EmittedWindows:
        """The results of windows.

        Args:
            run: the rows.
            rows: numbers of rows; a row stands here once for each of its windows.
            windows: beside each of ``rows``, the first pane of the window.
        """
        slide, spread = self.shape.slide_panes, run.take(rows)
        groups = group_cells(windows // slide, spread.slots)
        parts = combined_parts(self._partials, spread.parts, groups.codes, len(groups))
        return self._of_windows(Run(groups.slots, groups.windows * slide, (), parts))

    def _of_windows(self, run: Run) -> EmittedWindows:
        starts = self.shape.start_ms(run.starts)
        return self._emitted(run.slots, starts, starts + self.shape.size, run.parts)

    def _window_batches(self, run: Run, after: Any, limit: Any) -> Iterator[tuple[int, int]]:
        """Ranges of windows that hold a bounded number of rows each."""
        found = [np.unique(windows) for _, windows in self.shape.each_spread(run.starts, after, limit)]
        due = np.unique(np.concatenate(found))
        if not len(due):
            return
        per_batch = max(1, len(due) * _MAX_SPREAD_ROWS // (len(run) * self.shape.max_windows))
        for start in range(0, len(due), per_batch):
            batch = due[start : start + per_batch]
            yield int(batch[0]), int(batch[-1]) + 1

    def _changed(self, added: Run) -> Iterator[EmittedWindows]:
        """The windows of these rows that were emitted before and still take rows, with their new results."""
        shape, emitted = self.shape, self.progress.of(added.slots, self._keys)
        limit, oldest = shape.last_ended(emitted), shape.last_ended(emitted - self._lateness_ms)
        rows, windows = shape.spread(added.starts, oldest, limit)
        if len(rows):
            run = self._rows.joined()
            candidates, of_windows = shape.spread(run.starts, int(windows.min()) - 1, int(windows.max()))
            wanted = _pairs(windows, added.slots.take(rows))
            # The windows between the first and the last one may hold keys whose results did not change.
            is_wanted = np.isin(_pairs(of_windows, run.slots.take(candidates)), wanted)
            yield self._spread_over(run, candidates[is_wanted], of_windows[is_wanted])


def _pairs(windows: Int64Array, slots: Int64Array) -> NDArray[Any]:
    """One value for each pair."""
    pairs = np.empty(len(windows), np.dtype([("window", np.int64), ("slot", np.int64)]))
    pairs["window"], pairs["slot"] = windows, slots
    return pairs


def sessions_of(slots: Int64Array, starts: Int64Array, ends: Int64Array) -> tuple[IndexArray, Run]:
    """The number of each part's session, and the sessions in the order of key and time, as a run without parts.

    The marks of the run: the end of each session, and whether it changed since it was emitted.
    """
    # lexsort sorts by its last argument first: by key, then by time.
    order = np.lexsort((starts, slots))
    in_order, first, last = slots.take(order), starts.take(order), ends.take(order)
    last = _running_maxima(in_order, last)
    is_start = np.ones(len(order), np.bool_)
    is_start[1:] = (in_order[1:] != in_order[:-1]) | (first[1:] > last[:-1])
    begins = is_start.nonzero()[0]
    codes = np.empty(len(order), np.intp)
    codes[order] = np.cumsum(is_start) - 1
    final = np.append(begins[1:], len(order)) - 1
    return codes, Run(in_order.take(begins), first.take(begins), (last.take(final), np.ones(len(begins), np.bool_)), ())


def _merged_with_codes(partials: Sequence[Partial], whole: Run) -> tuple[IndexArray, Run]:
    """The number of the session of each row, and the sessions, into which rows that are sessions were merged."""
    ends, were_changed = whole.marks
    codes, run = sessions_of(whole.slots, whole.starts, ends)
    is_changed = np.zeros(len(run), np.bool_)
    is_changed[codes[were_changed]] = True
    parts = combined_parts(partials, whole.parts, codes, len(run))
    return codes, Run(run.slots, run.starts, (run.marks[0], is_changed), parts)


class ColumnSessions(ColumnarWindows[SessionWindows]):
    """Sessions."""

    @staticmethod
    def _merged(partials: Sequence[Partial], run: Run) -> Run:
        return _merged_with_codes(partials, run)[1]

    def add(self, inputs: ColumnInputs) -> AddedRows:
        """Take rows as sessions; only if one may be late are they merged with all others at once."""
        slots, ends = self._keys.slots(inputs), inputs.timestamps + self.shape.gap
        codes, run = sessions_of(slots, inputs.timestamps, ends)
        parts = tuple([each.of_groups(inputs, codes, len(run)) for each in self._partials])
        run = Run(run.slots, run.starts, run.marks, parts)
        if not (ends - 1 <= self.progress.of(slots, self._keys)).any():
            self._rows.add(run)
            return AddedRows(_NO_ROWS)
        merged_codes, merged = _merged_with_codes(self._partials, joined_runs([*self._rows.runs(), run]))
        # Sessions that had ended before their rows came are dropped.
        emitted = self.progress.of(merged.slots, self._keys)
        is_late = merged.marks[0] - 1 <= emitted - self._lateness_ms
        late_rows = is_late.take(merged_codes[-len(run) :]).take(codes).nonzero()[0]
        is_kept = ~is_late
        merged = merged.take(is_kept.nonzero()[0])
        self._rows.replace(merged)
        if not self._lateness_ms:
            return AddedRows(late_rows)
        emitted = emitted[is_kept] if isinstance(emitted, np.ndarray) else emitted
        return AddedRows(late_rows, tuple(self._take_changed(merged, emitted)))

    def next_end(self) -> int | None:
        """The earliest end of a part: a session may end later than each of its parts, but never before all of them."""
        return min((int(run.marks[0].min()) - 1 for run in self._rows.runs()), default=None)

    def reopened(self, inputs: ColumnInputs) -> IndexArray:
        """The rows whose session, if they are alone in it, ended by the latest watermark."""
        return (inputs.timestamps + (self.shape.gap - 1) <= self.progress.latest()).nonzero()[0]

    def _ended(self, watermark: int) -> Iterator[EmittedWindows]:
        first_end = self.next_end()
        if first_end is None or first_end > watermark:
            return
        yield from self._take_changed(self._rows.joined(), watermark)
        (run,) = self._rows.runs()
        is_kept = run.marks[0] - 1 > watermark - self._lateness_ms
        self._rows.replace(run if is_kept.all() else run.take(is_kept.nonzero()[0]))

    def _take_changed(self, run: Run, watermark: Any) -> Iterator[EmittedWindows]:
        """Emit the sessions that changed and that ended by a watermark: one for all, or one for each session.

        ``run`` has all sessions.
        """
        ends, is_changed = run.marks
        is_due = is_changed & (ends - 1 <= watermark)
        if is_due.any():
            self._rows.replace(Run(run.slots, run.starts, (ends, is_changed & ~is_due), run.parts))
            found = run.take(is_due.nonzero()[0])
            found = found.take(np.lexsort((found.slots, found.starts, found.marks[0])))
            yield self._emitted(found.slots, found.starts, found.marks[0], found.parts)


def _running_maxima(slots: Int64Array, values: Int64Array) -> Int64Array:
    """The largest value so far of each slot, whose values lie together."""
    if len(values) == 0 or (values[1:] >= values[:-1])[slots[1:] == slots[:-1]].all():
        return values
    distinct, ranks = np.unique(values, return_inverse=True)
    group: Any = np.zeros(len(slots), np.int64)
    np.cumsum(slots[1:] != slots[:-1], out=group[1:])
    # Ranks of a later group are all above those of an earlier one.
    raised = np.maximum.accumulate(ranks + group * len(distinct)) - group * len(distinct)
    found: Int64Array = distinct.take(raised)
    return found


def columnar_windows(
    aggregation: WindowedAggregation, received: Mapping[Partial, Partial] | None = None
) -> PaneWindows | ColumnSessions:
    """Windows without rows; see ``ColumnarWindows``."""
    if isinstance(aggregation.shape, AlignedWindows):
        return PaneWindows(aggregation.shape, aggregation, received)
    return ColumnSessions(aggregation.shape, aggregation, received)


# More keys are forgotten, so that those of long ago cost neither memory nor empty places in the arrays of a chunk.
MAX_SLOTS: Final = 1 << 14
_MAX_KEY_BYTES: Final = 4 << 20
_NUM_ROWS: Final = CountPartial(None)


@dataclass(frozen=True, slots=True)
class ReceivedPartial(Partial):
    """A part that another task made of rows, and that arrives in columns.

    ``names``: of the columns, which are its arrays in their order.  ``are_numbers``: whether each is an array of
        numpy's.
    """

    partial: Partial
    names: tuple[str, ...]
    are_numbers: tuple[bool, ...]

    def of_rows(self, inputs: ColumnInputs) -> Part:
        """The columns."""
        return tuple(
            [
                inputs.numbers(name).array if is_number else inputs.array(name)
                for name, is_number in zip(self.names, self.are_numbers, strict=True)
            ]
        )

    def combined(self, part: Part, codes: IndexArray, num_groups: int) -> Part:
        """Combine the parts like parts of rows."""
        return self.partial.combined(part, codes, num_groups)


class PartsLayout:
    """The columns in which parts travel: the key, if there is one, and the arrays of the parts; each part counts its
    rows.

    Args:
        aggregation: the description of the aggregations.
        schema: of the rows, a ``pyarrow.Schema``.
    """

    def __init__(self, aggregation: WindowedAggregation, schema: Any) -> None:
        self.partials = tuple(dict.fromkeys((*distinct_partials(aggregation.aggregates), _NUM_ROWS)))
        self.received: dict[Partial, ReceivedPartial] = {}
        fields = [] if aggregation.key is None else [pa.field(aggregation.key, aggregation.key_type)]
        nothing = no_rows(schema)
        for number, partial in enumerate(self.partials):
            arrays = partial.of_rows(nothing)
            # Longer than the key, so not its name.
            names = tuple([f"{aggregation.key}.{number}.{place}" for place in range(len(arrays))])
            are_numbers = tuple([isinstance(array, np.ndarray) for array in arrays])
            types = [pa.from_numpy_dtype(each.dtype) if isinstance(each, np.ndarray) else each.type for each in arrays]
            fields += map(pa.field, names, types)
            self.received[partial] = ReceivedPartial(partial, names, are_numbers)
        self.schema = pa.schema(fields)

    def num_rows(self, parts: ColumnInputs, chosen: IndexArray) -> int:
        """How many rows went into the parts at these positions."""
        (counts,) = self.received[_NUM_ROWS].of_rows(parts)
        return int(counts.take(chosen).sum())


class LocalWindows:
    """Makes parts of rows."""

    def __init__(self, aggregation: WindowedAggregation, layout: PartsLayout) -> None:
        assert isinstance(aggregation.shape, AlignedWindows), "rows of a session have no pane"
        self._shape = aggregation.shape
        self._key = aggregation.key
        self._layout = layout
        self._keys = WindowKeys(self._key, aggregation.key_type)

    def __repr__(self) -> str:
        return f"<LocalWindows of {self._keys!r}>"

    def combined(self, inputs: ColumnInputs) -> Chunk | None:
        """A part for each key and pane; None: there may be too many of them, so that the rows would have to be sorted.

        Raises:
            TypeError: see ``WindowKeys.slots``.
            OverflowError: a number or a sum is too large; names the column.
        """
        panes = self._shape.panes(inputs.timestamps)
        if self._keys.num_slots > MAX_SLOTS or self._keys.num_bytes > _MAX_KEY_BYTES:
            # Before the slots of this chunk are taken: they would name keys that are gone.
            self.forget_keys()
        run = run_of_rows(self._layout.partials, panes, self._keys.slots(inputs), inputs)
        if run is None:
            return None
        keys = [] if self._key is None else [column_of_array(self._keys.array().take(pa.array(run.slots)))]
        # A time in the pane that windows can hold.
        stamps = np.maximum(self._shape.start_ms(run.starts), -MAX_WINDOW_TIMESTAMP)
        return Chunk.of_columns(self._columns(len(run), keys, run.parts), stamps)

    def forget_keys(self) -> None:
        """Forget the keys and their numbers."""
        if self._keys.num_bytes:
            self._keys.forget()

    def single(self, inputs: ColumnInputs) -> Chunk:
        """A part for each row; raises as ``combined``."""
        parts = tuple([partial.of_rows(inputs) for partial in self._layout.partials])
        keys = [] if self._key is None else [inputs.column(self._key)]
        return Chunk.of_columns(self._columns(len(inputs), keys, parts), inputs.timestamps)

    def _columns(self, num_parts: int, keys: list[Column], parts: tuple[Part, ...]) -> Columns:
        arrays = [array for part in parts for array in part]
        fields = (*keys, *[ArrayColumn(each) if isinstance(each, np.ndarray) else ArrowColumn(each) for each in arrays])
        return Columns(num_parts, fields, Shape.ROW, tuple(self._layout.schema.names))

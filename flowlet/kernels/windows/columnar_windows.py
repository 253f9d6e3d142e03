"""Aggregations over windows of columns: keys, windows and results.

Session windows of columns: sessions of each chunk, joined with the others when one may have ended.

Hot path, per chunk: one sort of its rows by key and time.

Hot path, per chunk and per watermark.

Side:       pure.
Invariants: two sessions of a key are more than a gap apart once they are merged.  the state is bounded by the keys and
            panes of windows that have not ended.
Rules:      rows of one chunk have no order among each other: one that would be late by itself is taken if the others
            join it to a session that still lives.
Source:     Flink ``EventTimeSessionWindows``, ``MergingWindowSet``, ``TimeWindow.mergeWindows``: windows that touch are
            one.
Units:      milliseconds.
Absent:     other functions than ``AGGREGATES``, and triggers: rows have to be records for them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from flowlet.kernels.grouping import IndexArray
from flowlet.kernels.windows.pane_windows import AddedRows, EmittedWindows, PaneWindows, WindowRuns
from flowlet.kernels.windows.window_keys import WindowKeys
from flowlet.kernels.windows.window_partials import (
    ColumnInputs,
    Int64Array,
    Partial,
    WindowAggregate,
    distinct_partials,
)
from flowlet.kernels.windows.window_shapes import (
    AlignedWindows,
    Progress,
    Run,
    SessionWindows,
    WindowShape,
    combined_parts,
    joined_runs,
)
from netstack.late import dataclass


class ColumnSessions(WindowRuns):
    """Sessions; ``windows``: their shape.  A run's marks: when each session ends, and whether it changed since it was
    emitted.
    """

    def __init__(
        self, windows: SessionWindows, partials: tuple[Partial, ...], lateness_ms: int, progress: Progress
    ) -> None:
        super().__init__(partials, lateness_ms, progress)
        self._gap = windows.gap

    def add(self, slots: Int64Array, inputs: ColumnInputs, num_slots: int) -> AddedRows:
        """Take rows; those that are too late are left out."""
        emitted = self._progress.of(slots)
        ends = inputs.timestamps + self._gap
        codes, run = self._sessions_of(slots, inputs.timestamps, ends)
        parts = tuple([partial.of_groups(inputs, codes, len(run)) for partial in self._partials])
        self.add_run(Run(run.slots, run.starts, run.marks, parts))
        if not (ends - 1 <= emitted).any():
            if self._are_many:
                self._merge()
            return AddedRows()
        merged_codes = self._merge()[-len(run) :]
        late_rows = self._drop_late(merged_codes, codes)
        if not self._lateness_ms or not self._runs:
            return AddedRows(late_rows)
        return AddedRows(late_rows, tuple(self._take_changed(self._progress.of(self._runs[0].slots))))

    def fire(self, watermark: int, num_slots: int) -> Iterator[EmittedWindows]:
        """The sessions that end at or before a watermark and were not emitted as they are; forgets those that take no
        more rows.
        """
        before = self._progress.emitted
        self._progress.advance(watermark)
        if watermark <= before:
            return
        # A session may end later than each of its parts, but not earlier than the earliest.
        first_end = self.next_end()
        if first_end is None or first_end > watermark:
            return
        self._merge()
        yield from self._take_changed(watermark)
        if self._runs:
            is_kept = self._runs[0].marks[0] - 1 > watermark - self._lateness_ms
            self._keep(is_kept.nonzero()[0])

    def next_end(self) -> int | None:
        """A time before which no session ends; None: there are none."""
        return min((int(run.marks[0].min()) - 1 for run in self._runs), default=None)

    # -- sessions

    def _sessions_of(self, slots: Int64Array, starts: Int64Array, ends: Int64Array) -> tuple[IndexArray, Run]:
        """The session of each part, and the sessions, by key and time; without parts."""
        order = np.lexsort((starts, slots))
        in_order, first, last = slots.take(order), starts.take(order), ends.take(order)
        last = _running_maxima(in_order, last)
        is_start = np.ones(len(order), np.bool_)
        is_start[1:] = (in_order[1:] != in_order[:-1]) | (first[1:] > last[:-1])
        begins = is_start.nonzero()[0]
        codes = np.empty(len(order), np.intp)
        codes[order] = np.cumsum(is_start) - 1
        final = np.append(begins[1:], len(order)) - 1
        return codes, Run(
            in_order.take(begins), first.take(begins), (last.take(final), np.ones(len(begins), np.bool_)), ()
        )

    def _merge(self) -> IndexArray:
        """Join what belongs together; returns where each row went, in their order."""
        whole = joined_runs(self._runs)
        codes, run = self._sessions_of(whole.slots, whole.starts, whole.marks[0])
        is_changed = np.zeros(len(run), np.bool_)
        is_changed[codes[whole.marks[1]]] = True
        parts = combined_parts(self._partials, whole.parts, codes, len(run))
        self._take_merged(Run(run.slots, run.starts, (run.marks[0], is_changed), parts))
        return codes

    def _drop_late(self, merged_codes: IndexArray, codes: IndexArray) -> IndexArray | None:
        """Drop the sessions that had ended before their rows came; returns these rows."""
        run = self._runs[0]
        is_late = run.marks[0] - 1 <= self._progress.of(run.slots) - self._lateness_ms
        if not is_late.any():
            return None
        self._keep((~is_late).nonzero()[0])
        rows: IndexArray = is_late.take(merged_codes).take(codes).nonzero()[0]
        return rows

    def _keep(self, rows: IndexArray) -> None:
        run = self._runs[0]
        if len(rows) < len(run):
            self._runs, self._num_rows = [run.take(rows)] if len(rows) else [], len(rows)

    def _take_changed(self, watermark: Any) -> Iterator[EmittedWindows]:
        """Emit the sessions that ended by a watermark, or one for each, and changed; the state is merged."""
        if not self._runs:
            return
        run = self._runs[0]
        ends, is_changed = run.marks
        is_due = is_changed & (ends - 1 <= watermark)
        if not is_due.any():
            return
        found = run.take(is_due.nonzero()[0])
        self._runs = [Run(run.slots, run.starts, (ends, is_changed & ~is_due), run.parts)]
        order = np.lexsort((found.slots, found.starts, found.marks[0]))
        found = found.take(order)
        yield EmittedWindows(found.slots, found.starts, found.marks[0], found.parts)


def _running_maxima(slots: Int64Array, values: Int64Array) -> Int64Array:
    """The largest value so far among those of the same slot, which lie together."""
    if len(values) == 0 or (values[1:] >= values[:-1])[slots[1:] == slots[:-1]].all():
        return values
    distinct, ranks = np.unique(values, return_inverse=True)
    group: Any = np.zeros(len(slots), np.int64)
    np.cumsum(slots[1:] != slots[:-1], out=group[1:])
    # Ranks of a later group are all above those of an earlier one.
    raised = np.maximum.accumulate(ranks + group * len(distinct)) - group * len(distinct)
    found: Int64Array = distinct.take(raised)
    return found


WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
WINDOW_TIME_TYPE: Final = pa.timestamp("ms")


@dataclass(frozen=True, slots=True)
class WindowedAggregation:
    """What is computed.

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
        """Whether parts of rows can be made before the rows are where their key is: if all windows of a row are known
        from its time.
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
class WindowsState:
    """The state at one moment, which nobody changes.

    ``keys``: of each slot; None: there are none.  ``floors``: by slot, how far its windows were emitted, if not as
        ``emitted`` says.
    ``tables``: of the windows; of a join, for each side.
    """

    keys: Any
    emitted: int
    floors: Int64Array | None
    tables: tuple[tuple[Run, ...], ...]


class WindowTable(Protocol):
    """Rows of windows by key: of an aggregation ``WindowRuns``, of one side of a join ``WaitingRows``."""

    def __len__(self) -> int:
        """The number of rows."""

    def runs(self) -> Iterator[Run]:
        """All rows."""

    def add_run(self, run: Run) -> None:
        """Take rows as they are."""

    def replace_slots(self, slots: Int64Array) -> None:
        """Give each key the slot that stands at its former one."""


class WindowTables:
    """The keys of one subtask, and the tables that have a row for each key and window.

    ``_tables`` is set by the subclass.
    """

    _tables: Sequence[WindowTable]

    def __init__(self, key: str | None, key_type: Any) -> None:
        self.is_keyed = key is not None
        self._keys = WindowKeys(key, key_type)
        self._progress = Progress()

    @property
    def num_rows(self) -> int:
        """Rows that wait."""
        return sum(map(len, self._tables))

    def latest_emitted(self) -> int:
        """The latest watermark up to which windows of any key were emitted."""
        return self._progress.latest()

    def state(self) -> WindowsState:
        """What a snapshot needs; nobody changes it."""
        floors = None if self._progress.floors is None else self._progress.of(np.arange(self._keys.num_slots))
        tables = tuple([tuple(table.runs()) for table in self._tables])
        return WindowsState(self._keys.array(), self._progress.emitted, floors, tables)

    def load(self, state: WindowsState) -> None:
        """Go on from there; before the first rows.

        Raises:
            TypeError: the keys are not those of these windows.
        """
        if state.keys is not None:
            self._keys.load(state.keys)
        self._progress.emitted = state.emitted
        self._progress.floors = state.floors
        for table, runs in zip(self._tables, state.tables, strict=False):  # no tables: there were no rows
            for run in runs:
                table.add_run(run)

    def _forget_keys(self) -> None:
        """Forget the keys without rows, if they are most."""
        if not self._keys.are_sparse(self.num_rows):
            return
        is_live = np.zeros(self._keys.num_slots, np.bool_)
        for table in self._tables:
            for run in table.runs():
                is_live[run.slots] = True
        self._progress.keep(is_live.nonzero()[0])
        slots = self._keys.keep(is_live)
        for table in self._tables:
            table.replace_slots(slots)


class ColumnarWindows(WindowTables):
    """The state and the results of one subtask.

    Args:
        aggregation: what is computed.
        received: where the parts come from, if they were made of rows elsewhere.
    """

    def __init__(self, aggregation: WindowedAggregation, received: Mapping[Partial, Partial] | None = None) -> None:
        super().__init__(aggregation.key, aggregation.key_type)
        self._aggregation = aggregation
        self._partials = distinct_partials(aggregation.aggregates)
        kept = self._partials if received is None else tuple([received[partial] for partial in self._partials])
        shape = aggregation.shape
        rest = (kept, aggregation.lateness_ms, self._progress)
        self._windows = PaneWindows(shape, *rest) if isinstance(shape, AlignedWindows) else ColumnSessions(shape, *rest)
        self._tables = (self._windows,)

    def __repr__(self) -> str:
        return f"<ColumnarWindows {self._windows!r} of {self._keys!r}>"

    def add(self, inputs: ColumnInputs) -> AddedRows:
        """Take rows, of which there is at least one.

        Raises:
            TypeError: see ``WindowKeys.slots``.
            OverflowError: a number or a sum is too large; names the column.
        """
        slots = self._keys.slots(inputs)
        return self._windows.add(slots, inputs, self._keys.num_slots)

    def fire(self, watermark: int) -> Iterator[EmittedWindows]:
        """The windows that end at or before a watermark, in the order of their ends.

        Raises:
            OverflowError: as ``add``.
        """
        yield from self._windows.fire(watermark, self._keys.num_slots)
        self._forget_keys()

    def next_end(self) -> int | None:
        """The last timestamp of the next window to end; None: there is none."""
        return self._windows.next_end()

    def results(self, emitted: EmittedWindows) -> Any:
        """A ``pyarrow.RecordBatch`` of the output schema."""
        aggregation = self._aggregation
        arrays = [] if aggregation.key is None else [self._keys.array().take(pa.array(emitted.slots))]
        arrays += [pa.array(each).view(WINDOW_TIME_TYPE) for each in (emitted.starts_ms, emitted.ends_ms)]
        parts = dict(zip(self._partials, emitted.parts, strict=True))
        arrays += [each.results([parts[partial] for partial in each.partials()]) for each in aggregation.aggregates]
        return pa.RecordBatch.from_arrays(arrays, schema=aggregation.output_schema())

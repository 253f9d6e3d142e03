"""Session windows of columns: sessions of each chunk, joined with the others when one may have ended.

Hot path, per chunk: one sort of its rows by key and time.

Side:       pure.
Invariants: two sessions of a key are more than a gap apart once they are merged.
Rules:      rows of one chunk have no order among each other: one that would be late by itself is taken if the others
            join it to a session that still lives.
Source:     Flink ``EventTimeSessionWindows``, ``MergingWindowSet``, ``TimeWindow.mergeWindows``: windows that touch are
            one.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from flowlet.kernels.grouping import IndexArray
from flowlet.kernels.windows.pane_windows import AddedRows, EmittedWindows
from flowlet.kernels.windows.window_partials import ColumnInputs, Int64Array, Partial
from flowlet.kernels.windows.window_shapes import Progress, Run, SessionWindows, combined_parts, joined_runs

_MIN_PENDING_ROWS: Final = 1 << 16
_MAX_RUNS: Final = 64


class ColumnSessions:
    """The sessions of all keys.  A run's marks: when each session ends, and whether it changed since it was emitted.

    Args: as ``PaneWindows``.
    """

    def __init__(
        self, windows: SessionWindows, partials: tuple[Partial, ...], lateness_ms: int, progress: Progress
    ) -> None:
        self._gap = windows.gap
        self._partials = partials
        self._lateness_ms = lateness_ms
        self._progress = progress
        self._runs: list[Run] = []
        self._num_rows = 0
        self._num_merged = 0

    def __repr__(self) -> str:
        return f"<ColumnSessions of {self._num_rows} rows in {len(self._runs)} runs>"

    @property
    def num_rows(self) -> int:
        """Rows that are kept."""
        return self._num_rows

    @property
    def runs(self) -> tuple[Run, ...]:
        """The state, which nobody changes."""
        return tuple(self._runs)

    def load(self, run: Run) -> None:
        """Take over rows of a snapshot."""
        self._append(run)

    def replace_slots(self, slots: Int64Array) -> None:
        """Give each key the slot that stands at its former one."""
        self._runs = [run.with_slots(slots.take(run.slots)) for run in self._runs]

    def add(self, slots: Int64Array, inputs: ColumnInputs, num_slots: int) -> AddedRows:
        """Take rows; those that are too late are left out."""
        emitted = self._progress.of(slots)
        ends = inputs.timestamps + self._gap
        codes, run = self._sessions_of(slots, inputs.timestamps, ends)
        parts = tuple([partial.of_groups(inputs, codes, len(run)) for partial in self._partials])
        self._append(Run(run.slots, run.starts, run.marks, parts))
        if not (ends - 1 <= emitted).any():
            if len(self._runs) > _MAX_RUNS or self._num_rows > 2 * max(self._num_merged, _MIN_PENDING_ROWS):
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

    def _append(self, run: Run) -> None:
        if len(run):
            self._runs.append(run)
            self._num_rows += len(run)

    def _merge(self) -> IndexArray:
        """Join what belongs together; returns where each row went, in their order."""
        whole = joined_runs(self._runs)
        codes, run = self._sessions_of(whole.slots, whole.starts, whole.marks[0])
        is_changed = np.zeros(len(run), np.bool_)
        is_changed[codes[whole.marks[1]]] = True
        merged = Run(
            run.slots,
            run.starts,
            (run.marks[0], is_changed),
            combined_parts(self._partials, whole.parts, codes, len(run)),
        )
        self._runs, self._num_rows, self._num_merged = [merged], len(merged), len(merged)
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

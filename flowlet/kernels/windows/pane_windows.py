"""Tumbling and sliding windows of columns: parts per key and pane, put together when a window ends.

Hot path.  Per chunk one grouping of the rows and one call per aggregation; per watermark work only if a window ends.

Side:       pure.
Invariants: a row counts once in its pane, however many windows share it.  A window is emitted once when the watermark
            passes its end, and again after each chunk with late rows for it, as long as these are allowed.
Source:     Flink ``WindowOperator``, whose windows are emitted in the order of their ends.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.kernels.grouping import IndexArray
from flowlet.kernels.windows.window_keys import group_cells, try_group_cells
from flowlet.kernels.windows.window_partials import ColumnInputs, Int64Array, Part, Partial
from flowlet.kernels.windows.window_shapes import (
    AlignedWindows,
    Progress,
    Run,
    combined_parts,
    joined_runs,
    split_before,
)
from netstack.late import dataclass

# More rows than this wait to be merged only if as many are merged already: so each row is merged a few times at most.
_MIN_PENDING_ROWS: Final = 1 << 16
_MAX_RUNS: Final = 64
# Rows of panes that are spread over their windows at a time.
_MAX_SPREAD_ROWS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class EmittedWindows:
    """Windows with their keys and parts; ``ends_ms`` is exclusive."""

    slots: Int64Array
    starts_ms: Int64Array
    ends_ms: Int64Array
    parts: tuple[Part, ...]

    def __len__(self) -> int:
        return len(self.slots)


@dataclass(frozen=True, slots=True)
class AddedRows:
    """What became of a chunk: the rows that were too late (None: none), and windows whose results changed."""

    late_rows: IndexArray | None = None
    changed: tuple[EmittedWindows, ...] = ()


class WindowRuns:
    """The rows of windows of all keys, in runs that are merged now and then.

    Args:
        partials: what is kept.
        lateness_ms: how long after its end a window takes rows.
        progress: advanced here.
    """

    def __init__(self, partials: tuple[Partial, ...], lateness_ms: int, progress: Progress) -> None:
        self._partials = partials
        self._lateness_ms = lateness_ms
        self._progress = progress
        self._runs: list[Run] = []
        self._num_merged = 0  # rows of the first run, if it came from a merge
        self._num_rows = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._num_rows} rows in {len(self._runs)} runs>"

    def __len__(self) -> int:
        return self._num_rows

    def runs(self) -> Iterator[Run]:
        """All rows."""
        return iter(self._runs)

    def add_run(self, run: Run) -> None:
        """Take rows as they are."""
        if len(run):
            self._runs.append(run)
            self._num_rows += len(run)

    def replace_slots(self, slots: Int64Array) -> None:
        """Give each key the slot that stands at its former one."""
        self._runs = [run.renumbered(slots) for run in self._runs]

    @property
    def _are_many(self) -> bool:
        return len(self._runs) > _MAX_RUNS or self._num_rows > 2 * max(self._num_merged, _MIN_PENDING_ROWS)

    def _take_merged(self, run: Run) -> None:
        """Have this run instead of all."""
        self._runs, self._num_rows, self._num_merged = [run], len(run), len(run)


class PaneWindows(WindowRuns):
    """Tumbling and sliding windows; ``windows``: their shape."""

    def __init__(
        self, windows: AlignedWindows, partials: tuple[Partial, ...], lateness_ms: int, progress: Progress
    ) -> None:
        super().__init__(partials, lateness_ms, progress)
        self._windows = windows
        self._first_pane = 0  # of all rows

    def add_run(self, run: Run) -> None:
        """Take rows as they are."""
        if len(run):
            first = int(run.starts.min())
            self._first_pane = min(self._first_pane, first) if self._runs else first
            super().add_run(run)

    # -- rows

    def add(self, slots: Int64Array, inputs: ColumnInputs, num_slots: int) -> AddedRows:
        """Take rows; those that are too late for all their windows are left out."""
        windows, progress = self._windows, self._progress
        panes = windows.panes(inputs.timestamps)
        last = windows.last_windows(panes)
        emitted = progress.of(slots)
        is_late = self._late(panes, last, inputs.timestamps, emitted)
        is_kept = self._kept(panes, last, emitted)
        if is_kept is not None:
            rows = is_kept.nonzero()[0]
            slots, panes, inputs = slots.take(rows), panes.take(rows), inputs.take(rows)
        late_rows = None if is_late is None else is_late.nonzero()[0]
        if not len(panes):
            return AddedRows(late_rows)
        run = self._run_of(slots, panes, inputs, num_slots)
        self.add_run(run)
        if self._are_many:
            self._take_merged(self._merged(joined_runs(self._runs), num_slots))
        changed = tuple(self._changed(run, num_slots)) if self._lateness_ms else ()
        return AddedRows(late_rows, changed)

    def _kept(self, panes: Int64Array, last: Int64Array, emitted: Any) -> NDArray[np.bool_] | None:
        """Whether each row belongs to a window that takes it; None: all do."""
        limit = self._windows.last_ended(emitted - self._lateness_ms)
        is_whole = self._windows.slide <= self._windows.size
        if is_whole and isinstance(limit, int) and int(last.min()) > limit:
            return None
        is_kept: NDArray[np.bool_] = last > limit
        if not is_whole:
            is_kept &= self._windows.holds(panes, last)
        return None if is_kept.all() else is_kept

    def _late(
        self, panes: Int64Array, last: Int64Array, timestamps: Int64Array, emitted: Any
    ) -> NDArray[np.bool_] | None:
        """Whether each row is late for all its windows, or for the windows before the gap that it lies in; None: none
        is.
        """
        horizon = emitted - self._lateness_ms
        if isinstance(horizon, int) and int(timestamps.min()) > horizon:
            return None
        is_late: NDArray[np.bool_] = timestamps <= horizon
        is_late &= (last <= self._windows.last_ended(horizon)) | ~self._windows.holds(panes, last)
        return is_late if is_late.any() else None

    def _run_of(self, slots: Int64Array, panes: Int64Array, inputs: ColumnInputs, num_slots: int) -> Run:
        # Where a sort would be needed, rows of the same key and pane are rare, and are merged later with many others.
        groups = try_group_cells(panes, slots, num_slots)
        if groups is None:
            return Run(slots, panes, (), tuple([partial.of_rows(inputs) for partial in self._partials]))
        parts = tuple([partial.of_groups(inputs, groups.codes, len(groups)) for partial in self._partials])
        return Run(groups.slots, groups.windows, (), parts)

    def _merged(self, run: Run, num_slots: int) -> Run:
        groups = group_cells(run.starts, run.slots, num_slots)
        if len(groups) == len(run) and (groups.codes[1:] > groups.codes[:-1]).all():
            return run
        return Run(
            groups.slots, groups.windows, (), combined_parts(self._partials, run.parts, groups.codes, len(groups))
        )

    # -- windows

    def fire(self, watermark: int, num_slots: int) -> Iterator[EmittedWindows]:
        """The windows that end at or before a watermark and were not emitted yet; forgets what no window needs any
        more.
        """
        windows, before = self._windows, self._progress.emitted
        limit = windows.last_ended(watermark)
        if self._runs and self._first_pane < limit + windows.size_panes and watermark > before:
            due = self._take_before(limit + windows.size_panes)
            merged = self._merged(due, num_slots)
            yield from self._emitted(merged, self._progress.of(merged.slots), limit, num_slots)
            last = windows.last_windows(merged.starts)
            kept = (last > windows.last_ended(watermark - self._lateness_ms)).nonzero()[0]
            self.add_run(merged if len(kept) == len(merged) else merged.take(kept))
        self._progress.advance(watermark)

    def next_end(self) -> int | None:
        """The last timestamp of the next window to be emitted; None: there are no rows."""
        if not self._runs:
            return None
        windows = self._windows
        first = -(-(self._first_pane - windows.size_panes + 1) // windows.slide_panes)
        after = windows.last_ended(self._progress.emitted) // windows.slide_panes + 1
        return int(windows.start_ms((max(first, after)) * windows.slide_panes) + windows.size - 1)

    def _take_before(self, pane: int) -> Run:
        """Take the rows of earlier panes out."""
        due, rest = split_before(self._runs, pane)
        self._runs, self._num_merged, self._num_rows = [], 0, 0
        for run in rest:
            self.add_run(run)
        return joined_runs(due)

    def _emitted(self, run: Run, emitted: Any, limit: Any, num_slots: int) -> Iterator[EmittedWindows]:
        """The windows of merged rows that end after what was emitted, up to a limit."""
        after = self._windows.last_ended(emitted)
        if self._windows.is_tumbling:
            rows = ((run.starts > after) & (run.starts <= limit)).nonzero()[0]
            if len(rows):
                found = run if len(rows) == len(run) else run.take(rows)
                yield self._as_windows(found.slots, found.starts, found.parts)
            return
        for first, stop in self._window_batches(run, after, limit):
            low = max(after, first - 1) if isinstance(after, int) else np.maximum(after, first - 1)
            rows, windows = self._windows.spread(run.starts, low, min(limit, stop - 1))
            groups = group_cells(windows // self._windows.slide_panes, run.slots.take(rows), num_slots)
            parts = [tuple([each.take(rows) for each in part]) for part in run.parts]
            combined = combined_parts(self._partials, parts, groups.codes, len(groups))
            yield self._as_windows(groups.slots, groups.windows * self._windows.slide_panes, combined)

    def _as_windows(self, slots: Int64Array, windows: Int64Array, parts: tuple[Part, ...]) -> EmittedWindows:
        starts = self._windows.start_ms(windows)
        return EmittedWindows(slots, starts, starts + self._windows.size, parts)

    def _window_batches(self, run: Run, after: Any, limit: Any) -> Iterator[tuple[int, int]]:
        """Ranges of windows that hold a bounded number of rows each."""
        found = [np.unique(windows) for _, windows in self._windows.each_spread(run.starts, after, limit)]
        due = np.unique(np.concatenate(found))
        if not len(due):
            return
        per_batch = max(1, len(due) * _MAX_SPREAD_ROWS // (len(run) * self._windows.max_windows))
        for start in range(0, len(due), per_batch):
            batch = due[start : start + per_batch]
            yield int(batch[0]), int(batch[-1]) + 1

    def _changed(self, added: Run, num_slots: int) -> Iterator[EmittedWindows]:
        """The windows that were emitted before these rows came, and still take rows."""
        windows = self._windows
        emitted = self._progress.of(added.slots)
        limit, oldest = windows.last_ended(emitted), windows.last_ended(emitted - self._lateness_ms)
        rows, starts = self._windows.spread(added.starts, oldest, limit)
        if not len(rows):
            return
        wanted = group_cells(starts, added.slots.take(rows), num_slots)
        merged = self._merged(joined_runs(self._runs), num_slots)
        self._take_merged(merged)
        low, high = int(wanted.windows.min()), int(wanted.windows.max())
        candidates, of_windows = self._windows.spread(merged.starts, low - 1, high)
        is_wanted = np.isin(_pairs(of_windows, merged.slots.take(candidates)), _pairs(wanted.windows, wanted.slots))
        candidates, of_windows = candidates[is_wanted], of_windows[is_wanted]
        groups = group_cells(of_windows, merged.slots.take(candidates), num_slots)
        parts = [tuple([each.take(candidates) for each in part]) for part in merged.parts]
        yield self._as_windows(
            groups.slots, groups.windows, combined_parts(self._partials, parts, groups.codes, len(groups))
        )


def _pairs(windows: Int64Array, slots: Int64Array) -> NDArray[Any]:
    """One value for each pair."""
    pairs = np.empty(len(windows), np.dtype([("window", np.int64), ("slot", np.int64)]))
    pairs["window"], pairs["slot"] = windows, slots
    return pairs

"""Rows of one side of a join that wait for their window, found by their pane.

New rows stay as they came.  When there are enough, they are sorted into a run, and runs lie in a heap by their first
pane: a window that ends touches the runs that have rows for it, and takes their beginnings.  What waits for later
windows costs it nothing.

Hot path, per chunk and per window that ends.

Side:       pure.
Invariants: runs in the heap are sorted by pane and not empty.  After each call at most ``_MIN_SORTED_ROWS`` rows and
            ``_MAX_RECENT`` runs are unsorted.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

import numpy as np

from flowlet.kernels.windows.column_inputs import Int64Array
from flowlet.kernels.windows.window_runs import Run, joined_runs

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

    def add(self, run: Run) -> None:
        """Take rows."""
        if not len(run):
            return
        self._num_rows += len(run)
        self._add_recent(run)
        self._settle()

    def take_before(self, pane: int) -> list[Run]:
        """Take the rows of earlier panes out."""
        due = self._take_sorted(pane)
        if self._recent and self._first_recent < pane:
            due += self._take_recent(pane)
        self._num_rows -= sum(map(len, due))
        self._settle()
        return due

    def replace_slots(self, slots: Int64Array) -> None:
        """Give each key the slot that stands at its former one."""
        self._recent = [run.with_slots(slots.take(run.slots)) for run in self._recent]
        self._sorted = [(*place, run.with_slots(slots.take(run.slots))) for *place, run in self._sorted]  # type: ignore[misc]  # the same shape

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

    def _take_recent(self, pane: int) -> list[Run]:
        recent, due = self._recent, []
        self._recent, self._num_recent = [], 0
        for run in recent:
            is_due = run.starts < pane
            if is_due.all():
                due.append(run)
            elif is_due.any():
                due.append(run.take(is_due.nonzero()[0]))
                self._add_recent(run.take((~is_due).nonzero()[0]))
            else:
                self._add_recent(run)
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

"""Windows of columns: which rows belong to which.

Hot path: one division per row and chunk.

Rows of a window's state in arrays, and how far the windows of each key have been emitted.

Side:       pure.
Units:      milliseconds; panes are numbered, pane 0 begins at the offset.
Source:     Flink ``TimeWindow.getWindowStartWithOffset``, ``SlidingEventTimeWindows``, ``EventTimeSessionWindows``;
            panes: "No pane, no gain" (Li et al., 2005).
Invariants: runs never change, so a snapshot may share them.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.kernels.grouping import IndexArray
from flowlet.kernels.windows.window_partials import Int64Array, Part, Partial, join_values, take_values
from flowlet.records import MIN_TIMESTAMP
from netstack.late import dataclass

# Timestamps beyond this would not leave room for the ends of windows and sessions.
MAX_WINDOW_TIMESTAMP: Final = 1 << 61


@dataclass(frozen=True, slots=True)
class AlignedWindows:
    """Windows of ``size`` that begin at every ``slide``: tumbling ones if both are equal.

    All windows consist of whole panes, which they share.
    """

    size: int
    slide: int
    offset: int = 0
    is_event_time: bool = True

    @property
    def pane(self) -> int:
        """The length of a pane."""
        return math.gcd(self.size, self.slide)

    @property
    def size_panes(self) -> int:
        """The size of a window in panes."""
        return self.size // self.pane

    @property
    def slide_panes(self) -> int:
        """From the start of one window to the next, in panes."""
        return self.slide // self.pane

    @property
    def is_tumbling(self) -> bool:
        """Whether a window is a pane."""
        return self.size == self.slide

    @property
    def max_windows(self) -> int:
        """To how many windows a row belongs at most."""
        return -(-self.size // self.slide)

    def panes(self, timestamps: Int64Array) -> Int64Array:
        """The pane of each timestamp."""
        found: Int64Array = (timestamps - self.offset) // self.pane if self.offset else timestamps // self.pane
        return found

    def last_windows(self, panes: Int64Array) -> Int64Array:
        """The last window that can hold each pane, by its first pane."""
        if self.slide_panes == 1:
            return panes
        found: Int64Array = panes // self.slide_panes * self.slide_panes
        return found

    def holds(self, panes: Int64Array, windows: Int64Array) -> NDArray[np.bool_]:
        """Whether the windows, which do not begin behind the panes, reach as far."""
        found: NDArray[np.bool_] = windows > panes - self.size_panes
        return found

    def each_spread(self, panes: Int64Array, after: Any, limit: Any) -> Iterator[tuple[IndexArray, Int64Array]]:
        """Rows of panes, each with a window that holds it and begins behind ``after`` and not behind ``limit``: first
        those in the last window of their pane, then those in the one before it, and so on.
        """
        last = self.last_windows(panes)
        for number in range(self.max_windows):
            starts = last - number * self.slide_panes
            rows = (self.holds(panes, starts) & (starts > after) & (starts <= limit)).nonzero()[0]
            yield rows, starts.take(rows)

    def spread(self, panes: Int64Array, after: Any, limit: Any) -> tuple[IndexArray, Int64Array]:
        """As ``each_spread``, all at once."""
        rows, windows = zip(*self.each_spread(panes, after, limit), strict=True)
        return np.concatenate(rows), np.concatenate(windows)

    def last_ended(self, watermark: Any) -> Any:
        """The last window, by its first pane, all of whose timestamps are at or below a watermark, if one began at
        every pane.
        """
        return (watermark + 1 - self.offset) // self.pane - self.size_panes

    def start_ms(self, windows: Any) -> Any:
        """When windows begin, given by their first panes."""
        return windows * self.pane + self.offset


@dataclass(frozen=True, slots=True)
class SessionWindows:
    """Windows of rows with the same key, of which each is at most ``gap`` behind the one before."""

    gap: int
    is_event_time: bool = True


WindowShape = AlignedWindows | SessionWindows


# Above the smallest timestamps, so that nothing that is computed from it wraps around.
_LOWEST_FLOOR: Final = -(1 << 62)


@dataclass(frozen=True, slots=True)
class Run:
    """Parts of windows.

    ``slots``: of the key of each.  ``starts``: a pane, or when a session starts.  ``marks``: what the kind of window
        needs besides.
    ``parts``: for each kind of part its arrays.
    """

    slots: Int64Array
    starts: Int64Array
    marks: Part
    parts: tuple[Part, ...]

    def __len__(self) -> int:
        return len(self.slots)

    def take(self, rows: IndexArray) -> "Run":
        """These rows."""
        return Run(
            self.slots.take(rows),
            self.starts.take(rows),
            _taken(self.marks, rows),
            tuple([_taken(part, rows) for part in self.parts]),
        )

    def cut(self, start: int, stop: int) -> "Run":
        """The rows from ``start`` to before ``stop``, without a copy."""
        parts = tuple([_cut(part, start, stop) for part in self.parts])
        return Run(self.slots[start:stop], self.starts[start:stop], _cut(self.marks, start, stop), parts)

    def renumbered(self, slots: Int64Array) -> "Run":
        """The same, with the slot that stands at each former one."""
        return self.with_slots(slots.take(self.slots))

    def with_slots(self, slots: Int64Array) -> "Run":
        """The same rows with other slots."""
        return Run(slots, self.starts, self.marks, self.parts)


def joined_runs(runs: Sequence[Run]) -> Run:
    """The rows of all runs in their order; there is at least one run."""
    if len(runs) == 1:
        return runs[0]
    first = runs[0]
    marks = tuple([join_values([run.marks[index] for run in runs]) for index in range(len(first.marks))])
    parts = tuple(
        [
            tuple([join_values([run.parts[number][index] for run in runs]) for index in range(len(part))])
            for number, part in enumerate(first.parts)
        ]
    )
    return Run(np.concatenate([run.slots for run in runs]), np.concatenate([run.starts for run in runs]), marks, parts)


def split_before(runs: Iterable[Run], start: int) -> tuple[list[Run], list[Run]]:
    """The rows that start earlier, and the others."""
    due: list[Run] = []
    rest: list[Run] = []
    for run in runs:
        is_due = run.starts < start
        if is_due.all():
            due.append(run)
        elif is_due.any():
            due.append(run.take(is_due.nonzero()[0]))
            rest.append(run.take((~is_due).nonzero()[0]))
        else:
            rest.append(run)
    return due, rest


def combined_parts(
    partials: Sequence[Partial], parts: Sequence[Part], codes: IndexArray, num_groups: int
) -> tuple[Part, ...]:
    """The parts of each group as one."""
    return tuple([partial.combined(part, codes, num_groups) for partial, part in zip(partials, parts, strict=True)])


class Progress:
    """How far windows have been emitted: up to a watermark, and after a restore in another parallelism some keys
    further.

    Args:
        emitted: the watermark.
        floors: by slot, below which no window of the key is emitted; None: the watermark says it all.
    """

    __slots__ = ("emitted", "floors")

    def __init__(self, emitted: int = MIN_TIMESTAMP, floors: Int64Array | None = None) -> None:
        self.emitted = emitted
        self.floors = floors

    def of(self, slots: Int64Array) -> Any:
        """The watermark of these keys: a number for all, or an array."""
        if self.floors is None:
            return self.emitted
        known = np.full(len(slots), self._floor, np.int64)
        is_known = slots < len(self.floors)
        known[is_known] = self.floors[slots[is_known]]
        return np.maximum(known, self._floor)

    def latest(self) -> int:
        """The watermark of the key that is furthest."""
        return self.emitted if self.floors is None else int(self.floors.max(initial=self.emitted))

    def advance(self, watermark: int) -> None:
        """Windows up to the watermark have been emitted."""
        self.emitted = max(self.emitted, watermark)
        if self.floors is not None and self.emitted >= self.floors.max(initial=MIN_TIMESTAMP):
            self.floors = None

    def keep(self, slots: Int64Array) -> None:
        """Only these slots remain; they get the numbers 0, 1, 2, ..."""
        if self.floors is not None:
            self.floors = self.of(slots)

    @property
    def _floor(self) -> int:
        return max(self.emitted, _LOWEST_FLOOR)


def _taken(values: Sequence[Any], rows: IndexArray) -> Part:
    return tuple([take_values(each, rows) for each in values])


def _cut(values: Sequence[Any], start: int, stop: int) -> Part:
    return tuple([each[start:stop] for each in values])

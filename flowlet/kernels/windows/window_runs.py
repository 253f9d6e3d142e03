"""Rows of a window's state in arrays, and how far the windows of each key have been emitted.

Side:       pure.
Invariants: runs never change, so a snapshot may share them.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from flowlet.kernels.grouping import IndexArray
from flowlet.kernels.windows.column_inputs import Int64Array
from flowlet.kernels.windows.window_partials import Part, Partial, join_values, take_values
from flowlet.records import MIN_TIMESTAMP
from netstack.late import dataclass

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

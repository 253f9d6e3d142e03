"""Runs of whole numbers: what readers of numbered records have left, and how it is dealt out.

Side:       pure.
Invariants: the shares of all readers together are the runs, each number once, in the order of the readers.
Source:     Flink ``NumberSequenceSource.NumberSequenceSplit``, which is one such run.
"""

from collections.abc import Iterable

Runs = tuple[tuple[int, int], ...]
"""The first number of each run, and the one behind its last."""


def share_of_runs(runs: Iterable[tuple[int, int]], subtask: int, parallelism: int) -> Runs:
    """The numbers of reader ``subtask`` of ``parallelism``: about as many as each of the others has."""
    left = list(runs)
    num_left = sum(end - start for start, end in left)
    first, behind = (num_left * number // parallelism for number in (subtask, subtask + 1))
    found = []
    for start, end in left:
        part = max(start, start + first), min(end, start + behind)
        if part[0] < part[1]:
            found.append(part)
        first -= end - start
        behind -= end - start
    return tuple(found)


class NumbersLeft:
    """The runs that one reader has before it; task thread only."""

    __slots__ = ("_end", "_later", "_next")

    def __init__(self, runs: Runs) -> None:
        self._next = 0  # these two are the present run
        self._end = 0
        self._later = runs

    def __repr__(self) -> str:
        return f"<NumbersLeft {self.runs}>"

    @property
    def runs(self) -> Runs:
        """What is left."""
        return ((self._next, self._end), *self._later) if self._next < self._end else self._later

    def take(self, max_numbers: int) -> range | None:
        """The next numbers, ``max_numbers`` (above 0) at most; None: none are left."""
        while self._next >= self._end:
            if not self._later:
                return None
            (self._next, self._end), *later = self._later
            self._later = tuple(later)
        start = self._next
        self._next = min(start + max_numbers, self._end)
        return range(start, self._next)

"""Enumerators of splits that are known without a look: of numbers, and of what the program has planned.

Runs of numbers: what readers of numbered records have left, and how it is dealt out.

Side:       pure.
Invariants: every number is assigned once, in ascending order; memory does not grow with the sequence.  The shares of
            all readers together are the runs, each number once, in the order of the readers.
Rules:      a single reader gets all numbers at once.  Several get half of a fair share of what is left, so a fast
            reader gets more and none is left with much at the end; the last splits have a 64th of a fair share of the
            whole, but ``LEAST_SPLIT`` numbers if that is more, and an eighth of the share if that is less.  Whatever a
            reader gets is above all that it had, so event time that follows the numbers does not go back.
Source:     Flink ``NumberSequenceSource``, ``NumberSequenceSource.NumberSequenceSplit``, which is one run,
            ``IteratorSourceEnumerator``; guided self-scheduling as in ``file_enumerator`` (Flink cuts into as many
            splits as there are readers).
"""

from collections import deque
from collections.abc import Iterable
from itertools import compress
from operator import not_
from typing import Final

import msgspec

from flowlet.splits.enumerator import STATE_VERSION, SplitEnumerator, stored_state
from flowlet.splits.split_kinds import NumberRange, NumberSplit, PlannedSplit, PlannedSplits

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


LEAST_SPLIT: Final = 1_000  # a chunk of a reader, which then asks with every chunk; not measured
_NumberState = tuple[int, int, int]  # the version; the first number that is not assigned, and the one behind the last
_number_decoder: Final = msgspec.msgpack.Decoder(_NumberState)


class NumberSplitEnumerator(SplitEnumerator):
    """The numbers of one source that are not assigned; see ``SplitEnumerator``.  Threading: one thread at a time."""

    def __init__(self, numbers: NumberRange) -> None:
        self.split_set = numbers
        self._num_readers = 1
        self._next = numbers.start
        self._end = numbers.end

    def __repr__(self) -> str:
        return (
            f"<NumberSplitEnumerator {self.waiting_bytes} of {self.split_set.end - self.split_set.start} numbers wait>"
        )

    @property
    def waiting_bytes(self) -> int:
        """How many numbers are not assigned."""
        return self._end - self._next

    def discover(self, num_readers: int) -> None:
        """All numbers wait."""
        self._num_readers = num_readers
        self._next = self.split_set.start
        self._end = self.split_set.end

    def next_splits(self, reader: int) -> list[NumberSplit]:
        """The next numbers; empty: none are left."""
        num_left = self.waiting_bytes
        if num_left <= 0:
            return []
        start = self._next
        self._next += min(self._length(num_left), num_left)
        return [NumberSplit(start, self._next)]

    def _length(self, num_left: int) -> int:
        if self._num_readers == 1:
            return num_left
        num_numbers = self.split_set.end - self.split_set.start
        least = max(LEAST_SPLIT, _ceiling(num_numbers, 64 * self._num_readers))
        return max(min(least, _ceiling(num_numbers, 8 * self._num_readers)), _ceiling(num_left, 2 * self._num_readers))

    def snapshot(self) -> bytes:
        """The numbers that are not assigned."""
        return msgspec.msgpack.encode((STATE_VERSION, self._next, self._end))

    def restore(self, state: bytes, num_readers: int) -> None:
        """Go on where ``snapshot`` was called, whatever the numbers of the program are now.

        Raises:
            StateRestoreError: the state is damaged, or of another version.
        """
        _, self._next, self._end = stored_state(_number_decoder, state, "the numbers of a source")
        self._num_readers = num_readers


def _ceiling(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


_PlannedState = tuple[int, list[tuple[int, str, bytes]]]  # the version; number, name and content of each split
_planned_decoder: Final = msgspec.msgpack.Decoder(_PlannedState)


class PlannedSplitEnumerator(SplitEnumerator):
    """The splits of a user's source, which the program planned when the job started.

    Without a limit of open splits each reader gets its share at once, in turns, so that all splits are read from the
    start.  With a limit a reader gets one whenever it asks, so that a fast reader gets more.
    """

    def __init__(self, planned: PlannedSplits) -> None:
        self.split_set = planned
        self._num_readers = 1
        self._waiting: deque[tuple[int, PlannedSplit]] = deque()  # each with its number, which says whose it is

    def __repr__(self) -> str:
        return f"<PlannedSplitEnumerator {len(self._waiting)} of {len(self.split_set.splits)} splits wait>"

    def discover(self, num_readers: int) -> None:
        """All splits wait."""
        self._num_readers = num_readers
        self._waiting = deque(enumerate(self.split_set.splits))

    def next_splits(self, reader: int) -> list[PlannedSplit]:
        """The next split, or all that are the reader's; empty: none are left."""
        if self.split_set.is_on_demand:
            return [self._waiting.popleft()[1]] if self._waiting else []
        is_mine = [number % self._num_readers == reader for number, _ in self._waiting]
        found = list(compress(self._waiting, is_mine))
        self._waiting = deque(compress(self._waiting, map(not_, is_mine)))
        return [split for _, split in found]

    def snapshot(self) -> bytes:
        """The splits that are not assigned."""
        return msgspec.msgpack.encode(
            (STATE_VERSION, [(number, split.name, split.content) for number, split in self._waiting])
        )

    def restore(self, state: bytes, num_readers: int) -> None:
        """Go on where ``snapshot`` was called.

        Raises:
            StateRestoreError: the state is damaged, or of another version.
        """
        _, waiting = stored_state(
            _planned_decoder, state, "the splits of a source", "have version {}, this flowlet reads {}"
        )
        self._num_readers = num_readers
        self._waiting = deque((number, PlannedSplit(name, content)) for number, name, content in waiting)

"""Cuts a sequence of numbers into splits while readers ask for them.

Runs of whole numbers: what readers of numbered records have left, and how it is dealt out.

Side:       pure.
Invariants: the shares of all readers together are the runs, each number once, in the order of the readers.  every
            number is assigned once, in ascending order; memory does not grow with the sequence.
Source:     Flink ``NumberSequenceSource.NumberSequenceSplit``, which is one such run.  Flink ``NumberSequenceSource``,
            ``IteratorSourceEnumerator``; guided self-scheduling as in ``file_enumerator`` (Flink cuts into as many
            splits as there are readers).
Rules:      a single reader gets everything at once.  Several get half of a fair share of what is left, so a fast reader
            gets more and none is left with much at the end; the last splits have a 64th of a fair share of the whole,
            but ``LEAST_SPLIT`` numbers if that is more, and an eighth of the share if that is less.  Whatever a reader
            gets is above all that it had, so event time that follows the numbers does not go back.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from flowlet.errors import StateRestoreError
from flowlet.splits.number_split import NumberRange, NumberSplit

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
_STATE_VERSION: Final = 1
_State = tuple[int, int, int]  # the version; the first number that is not assigned, and the one behind the last
_state_decoder: Final = msgspec.msgpack.Decoder(_State)


class NumberSplitEnumerator:
    """The numbers of one source that are not assigned; see ``SplitEnumerator``.  Threading: one thread at a time."""

    def __init__(self, numbers: NumberRange) -> None:
        self.numbers = numbers
        self._num_readers = 1
        self._next = numbers.start
        self._end = numbers.end

    def __repr__(self) -> str:
        return f"<NumberSplitEnumerator {self.waiting_bytes} of {self.numbers.end - self.numbers.start} numbers wait>"

    @property
    def waiting_bytes(self) -> int:
        """How many numbers are not assigned."""
        return self._end - self._next

    @property
    def discovery_interval_ms(self) -> int | None:
        """None: all numbers are known."""
        return None

    def find_new(self) -> list[NumberSplit]:
        """Nothing: see ``discovery_interval_ms``."""
        return []

    def add_found(self, found: Sequence[NumberSplit]) -> None:
        """Never called: see ``discovery_interval_ms``."""

    def discover(self, num_readers: int) -> None:
        """All numbers wait."""
        self._num_readers = num_readers
        self._next, self._end = self.numbers.start, self.numbers.end

    def next_splits(self, reader: int) -> list[NumberSplit]:
        """The next numbers; empty: none are left."""
        num_left = self.waiting_bytes
        if num_left <= 0:
            return []
        start, self._next = self._next, self._next + min(self._length(num_left), num_left)
        return [NumberSplit(start, self._next)]

    def _length(self, num_left: int) -> int:
        if self._num_readers == 1:
            return num_left
        num_numbers = self.numbers.end - self.numbers.start
        least = max(LEAST_SPLIT, _ceiling(num_numbers, 64 * self._num_readers))
        return max(min(least, _ceiling(num_numbers, 8 * self._num_readers)), _ceiling(num_left, 2 * self._num_readers))

    def snapshot(self) -> bytes:
        """The numbers that are not assigned."""
        return msgspec.msgpack.encode((_STATE_VERSION, self._next, self._end))

    def restore(self, state: bytes, num_readers: int) -> None:
        """Go on where ``snapshot`` was called, whatever the numbers of the program are now.

        Raises:
            StateRestoreError: the state is damaged, or of another version.
        """
        try:
            version, first, end = _state_decoder.decode(state)
        except msgspec.MsgspecError as error:
            raise StateRestoreError(f"the numbers of a source in a checkpoint cannot be read: {error}") from error
        if version != _STATE_VERSION:
            raise StateRestoreError(
                f"the numbers of a source in a checkpoint have version {version}, this flowlet reads version "
                f"{_STATE_VERSION}"
            )
        self._num_readers = num_readers
        self._next, self._end = first, end


def _ceiling(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)

"""``SplitEnumerator``: discovers the splits of a source and assigns them on demand.

``NumberSplitEnumerator``: the enumerator of numbers, which are known without a search.

A source that has a ``split_set`` gets one enumerator per job, in the JobManager; its readers, one per subtask, run in
the tasks and ask for splits, so a fast reader gets more.

A split: ``discover`` finds it, a reader asks, ``next_splits`` assigns it, and from then on it is the reader's alone.
A snapshot: ``left()`` gives the splits that are not assigned; the rest is in the readers' positions.  A rescale:
``take_left`` gets them, with another number of readers, and the source deals the readers' part out anew.

Side:       pure.
Invariants: every split is assigned once; every number in ascending order, and memory does not grow with the sequence.
Rules:      the JobManager calls ``discover`` once, on a thread of its own, and answers readers only after it has
            returned.  All other calls come from the JobManager's loop, one at a time, and must not block.  A checkpoint
            has the unassigned splits here, and in each reader's state the splits that were assigned to it and are not
            read.  The JobManager calls ``snapshot`` and sends the triggers in one turn of its loop, and a task handles
            triggers and splits in the order in which they were sent.  So every split is in exactly one of these states.
            The JobManager runs no code of users and unpickles nothing.  So enumerators and splits are made of plain
            data of the control protocol, and a new kind of enumerator needs a new kind of each in ``split_kinds.py``,
            and a line in ``enumerators.py``.  Where new splits may appear (``discovery_interval_ms``), the JobManager
            calls ``find_new`` again and again, on a thread of its own, and then ``add_found``.  A reader that asks gets
            an answer as soon as there are splits for it.
            A single reader gets all numbers at once.  Each of several readers gets half of a fair share of the rest, so
            a fast reader gets more and none is left with much at the end; the last splits have a 64th of a fair share
            of the whole, but ``LEAST_SPLIT`` numbers if that is more, and an eighth of the share if that is less.  All
            numbers that a reader gets are above those that it had, so event time that follows the numbers does not go
            back.
Source:     Flink ``SplitEnumerator``, ``SourceSplit``, ``SourceReader``; FLIP-27.
            ``NumberSequenceSource.NumberSequenceSplit``, ``IteratorSourceEnumerator``; guided self-scheduling as in the
            enumerator of files (Flink cuts into as many splits as there are readers).
Absent:     ``add_splits_back``, because all readers of a source restart together.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from flowlet.errors import StateRestoreError
from flowlet.splits.split_kinds import AnySplit, NumberRange, NumberSplit

STATE_VERSION: Final = 1  # of the states of all enumerators, which begin with it
LEAST_SPLIT: Final = 1_000  # a chunk of a reader, which then asks with every chunk; not measured


class SplitEnumerator(ABC):
    """Knows the splits of one source, or of several sources that are read one after the other.

    A kind of source says how splits are found (``find``, ``find_new``), which reader gets which (``add_found``,
    ``next_splits``), and which are left (``left``, ``take_left``).

    Threading: one thread at a time.
    Life cycle: ``discover`` or ``restore`` once, then ``next_splits`` and ``add_found``; ``snapshot`` in between.
        While ``is_discovered`` is False, nothing may be called but ``snapshot`` and, on a thread of its own,
        ``restore`` with the result of ``snapshot``.

    Attributes:
        name: the splits, in errors.
        state_form: the version, and the result of ``left``.
        is_discovered: whether the splits of the present source are known.  False only with several sources: at the
            start, and again when ``next_splits`` has ended a source.
    """

    name: ClassVar[str]
    state_form: ClassVar[msgspec.msgpack.Decoder[Any]]
    is_discovered: bool = True
    _num_readers: int = 1

    @property
    def has_next_source(self) -> bool:
        """Whether a reader that gets no split must wait for another source."""
        return False

    @property
    def discovery_interval_ms(self) -> int | None:
        """How often to look for new splits; None: never, so a reader that gets no split is at its end."""
        return None

    @property
    def waiting_bytes(self) -> int:
        """The size of the splits that are not assigned; 0: sizes are not known."""
        return 0

    def discover(self, num_readers: int) -> None:
        """Find the splits; may block.

        Raises:
            FlowletError: something cannot be read; the message names it, because the job fails with it.
        """
        found = self.find()
        self._num_readers = num_readers
        self.add_found(found)

    def find(self) -> Sequence[Any]:
        """Search for the splits, unless they are known already; may block.  Raises FlowletError: as ``discover``."""
        return ()

    def find_new(self) -> Sequence[Any]:
        """Search for new splits, without taking them over; may block.  Not called without ``discovery_interval_ms``.

        Raises:
            FlowletError: as ``discover``; it is tried again.
        """
        return []

    def add_found(self, found: Sequence[Any]) -> None:  # noqa: B027  # nothing to do unless something is looked for
        """Take the result of ``find`` or ``find_new``: these splits can be assigned from now on."""

    @abstractmethod
    def next_splits(self, reader: int) -> Sequence[AnySplit]:
        """Assign splits to the reader with this number, from 0; empty: none are left for it, at least now."""

    def snapshot(self) -> bytes:
        """The splits that are not assigned, as bytes; a version stands first, since a later flowlet reads them, too."""
        return msgspec.msgpack.encode((STATE_VERSION, *self.left()))

    def restore(self, state: bytes, num_readers: int) -> None:
        """Go on where ``snapshot`` was called.

        Raises:
            StateRestoreError: the state is damaged, or of another version.
        """
        try:
            version, *left = self.state_form.decode(state)
        except msgspec.MsgspecError as error:
            raise StateRestoreError(f"{self.name} in a checkpoint cannot be read: {error}") from error
        if version != STATE_VERSION:
            raise StateRestoreError(
                f"{self.name} in a checkpoint have version {version}, this flowlet reads version {STATE_VERSION}"
            )
        self._num_readers = num_readers
        self.take_left(*left)

    @abstractmethod
    def left(self) -> tuple[Any, ...]:
        """The splits that are not assigned, as plain data."""

    @abstractmethod
    def take_left(self, *left: Any) -> None:
        """Take over the result of ``left``, without a new search.

        Raises:
            StateRestoreError: the state does not fit the source.
            FlowletError: several sources: the present one had not been discovered, and cannot be.
        """


class NumberSplitEnumerator(SplitEnumerator):
    """The numbers of one source that are not assigned.  Threading: one thread at a time."""

    name = "the numbers of a source"
    state_form = msgspec.msgpack.Decoder(tuple[int, int, int])

    def __init__(self, numbers: NumberRange) -> None:
        self.split_set = numbers
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

    def left(self) -> tuple[int, int]:
        """The first number that is not assigned, and the number behind the last."""
        return self._next, self._end

    def take_left(self, start: int, end: int) -> None:
        """Go on with these numbers, even if the program names others now."""
        self._next = start
        self._end = end


def _ceiling(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)

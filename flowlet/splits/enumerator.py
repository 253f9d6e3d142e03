"""``SplitEnumerator``: discovers the splits of a source and assigns them on demand.

A source that has a ``split_set`` gets one enumerator per job, in the JobManager; its readers, one per subtask, run in
the tasks and ask for splits, so a fast reader gets more.

A split: ``discover`` finds it, a reader asks, ``next_splits`` assigns it, and from then on it is the reader's alone.
A snapshot: ``left()`` says what is not assigned; the rest is in the readers' positions.  A rescale: ``take_left`` gets
the same with another number of readers, and the readers' part is dealt out anew by the source.

Side:       pure.
Invariants: every split is assigned once.
Rules:      the JobManager calls ``discover`` once, on a thread of its own, and answers readers only after it has
            returned.  All other calls come from the JobManager's loop, one at a time, and must not block.  A checkpoint
            has what is not assigned here, and in each reader's state what was assigned to it and is not read.  The
            JobManager calls ``snapshot`` and sends the triggers in one turn of its loop, and a task handles triggers
            and splits in the order in which they were sent.  So every split is in exactly one of these states.  The
            JobManager runs no code of users and unpickles nothing.  So enumerators and splits are made of plain data of
            the control protocol, and a new kind of enumerator needs a new kind of each in ``split_kinds.py``, and a
            line in ``enumerators.py``.  Where new splits may appear (``discovery_interval_ms``), the JobManager calls
            ``find_new`` again and again, on a thread of its own, and then ``add_found``.  A reader that asks gets an
            answer as soon as there are splits for it.
Source:     Flink ``SplitEnumerator``, ``SourceSplit``, ``SourceReader``; FLIP-27.
Absent:     ``add_splits_back``, because all readers of a source restart together.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from flowlet.errors import StateRestoreError
from flowlet.splits.split_kinds import AnySplit

STATE_VERSION: Final = 1  # of the states of all enumerators, which begin with it


class SplitEnumerator(ABC):
    """Knows the splits of one source, or of several sources that are read one after the other.

    A kind of source says how splits are found (``find``, ``find_new``), who gets which (``add_found``,
    ``next_splits``), and what is left of them (``left``, ``take_left``).

    Threading: one thread at a time.
    Life cycle: ``discover`` or ``restore`` once, then ``next_splits`` and ``add_found``; ``snapshot`` in between.
        While ``is_discovered`` is False, nothing may be called but ``snapshot`` and, on a thread of its own,
        ``restore`` with what that gave.

    Attributes:
        name: the splits, in errors.
        state_form: the version, and what ``left`` gives.
        is_discovered: whether the splits of the present source are known.  False only with several sources: at the
            start, and again when ``next_splits`` has ended a source.
    """

    name: ClassVar[str]
    state_form: ClassVar[msgspec.msgpack.Decoder[Any]]
    is_discovered: bool = True
    _num_readers: int = 1

    @property
    def has_next_source(self) -> bool:
        """Whether a reader that gets nothing must wait for another source."""
        return False

    @property
    def discovery_interval_ms(self) -> int | None:
        """How often to look for new splits; None: never, so a reader that gets nothing has everything."""
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
        """The splits, if they are not known without a look; may block.  Raises FlowletError: as ``discover``."""
        return ()

    def find_new(self) -> Sequence[Any]:
        """Look for new splits, and change nothing; may block.  Not called without ``discovery_interval_ms``.

        Raises:
            FlowletError: as ``discover``; it is tried again.
        """
        return []

    def add_found(self, found: Sequence[Any]) -> None:  # noqa: B027  # nothing to do unless something is looked for
        """What ``find`` or ``find_new`` gave can be assigned from now on."""

    @abstractmethod
    def next_splits(self, reader: int) -> Sequence[AnySplit]:
        """Assign splits to the reader with this number, from 0; empty: none are left for it, at least now."""

    def snapshot(self) -> bytes:
        """The splits that are not assigned.

        What a former flowlet wrote is read: the version comes first.
        """
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
        """What is not assigned, as plain data."""

    @abstractmethod
    def take_left(self, *left: Any) -> None:
        """Take what ``left`` gave; nothing is looked for again.

        Raises:
            StateRestoreError: it does not fit the source.
            FlowletError: several sources: the present one had not been discovered, and cannot be.
        """

"""What enumerators and readers of splits are: ``SplitEnumerator`` discovers the splits of a source and assigns them on
demand, and a ``SplitReceiver`` reads them.

A source that has ``create_enumerator()`` gets one enumerator per job, in the JobManager; its readers, one per subtask,
run in the tasks and ask for splits, so a fast reader gets more.

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
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import msgspec

from flowlet.errors import StateRestoreError
from flowlet.splits.split_kinds import AnySplit

STATE_VERSION: Final = 1  # of the states of all enumerators, which begin with it
StateT = TypeVar("StateT", bound=tuple[Any, ...])


class SourceSplit(Protocol):
    """A part of a source that one reader reads in order."""

    @property
    def split_id(self) -> str:
        """A name that is unique among the source's splits."""

    @property
    def size_bytes(self) -> int:
        """The approximate size of the data."""


SplitT_contra = TypeVar("SplitT_contra", bound=SourceSplit, contravariant=True)


@runtime_checkable
class SplitReceiver(Protocol[SplitT_contra]):
    """What a reader must be whose source has an enumerator.

    Threading: task thread.
    Life cycle: ``start`` once, before the first poll; then ``add_splits`` after each request, or ``no_more_splits``
        after the last one.
    """

    def start(self, request_splits: Callable[[], None]) -> None:
        """The task runs; ``request_splits`` asks the enumerator for more."""

    def add_splits(self, splits: Sequence[SplitT_contra], waiting_bytes: int) -> None:
        """The enumerator gives these; it keeps so much for all readers together."""

    def no_more_splits(self) -> None:
        """The enumerator has nothing left."""


class SplitEnumerator(ABC):
    """Knows the splits of one source, or of several sources that are read one after the other.

    Those that the JobManager makes have ``split_set``: what they find their splits from.

    Threading: one thread at a time.
    Life cycle: ``discover`` or ``restore`` once, then ``next_splits`` and ``add_found``; ``snapshot`` in between.
        While ``is_discovered`` is False, nothing may be called but ``snapshot`` and, on a thread of its own,
        ``restore`` with what that gave.

    Attributes:
        is_discovered: whether the splits of the present source are known.  False only with several sources: at the
            start, and again when ``next_splits`` has ended a source.
    """

    is_discovered: bool = True

    @property
    def has_next_source(self) -> bool:
        """Whether a reader that gets nothing must wait for another source."""
        return False

    @abstractmethod
    def discover(self, num_readers: int) -> None:
        """Find the splits; may block.

        Raises:
            FlowletError: something cannot be read; the message names it, because the job fails with it.
        """

    @property
    def discovery_interval_ms(self) -> int | None:
        """How often to look for new splits; None: never, so a reader that gets nothing has everything."""
        return None

    def find_new(self) -> Sequence[Any]:
        """Look for new splits, and change nothing; may block.  Not called without ``discovery_interval_ms``.

        Raises:
            FlowletError: as ``discover``; it is tried again.
        """
        return []

    def add_found(self, found: Sequence[Any]) -> None:  # noqa: B027  # nothing to do unless find_new finds something
        """What ``find_new`` gave can be assigned from now on."""

    @abstractmethod
    def next_splits(self, reader: int) -> Sequence[AnySplit]:
        """Assign splits to the reader with this number, from 0; empty: none are left for it, at least now."""

    @abstractmethod
    def snapshot(self) -> bytes:
        """The splits that are not assigned."""

    @abstractmethod
    def restore(self, state: bytes, num_readers: int) -> None:
        """Go on where ``snapshot`` was called.

        Raises:
            StateRestoreError: the state is damaged, or of another version.
        """

    @property
    def waiting_bytes(self) -> int:
        """The size of the splits that are not assigned; 0: sizes are not known."""
        return 0


def stored_state(
    decoder: msgspec.msgpack.Decoder[StateT],
    state: bytes,
    what: str,
    mismatch: str = "have version {}, this flowlet reads version {}",
) -> StateT:
    """The state of an enumerator.

    Raises:
        StateRestoreError: it is damaged, or of another version; ``what`` is its subject.
    """
    try:
        found = decoder.decode(state)
    except msgspec.MsgspecError as error:
        raise StateRestoreError(f"{what} in a checkpoint cannot be read: {error}") from error
    if found[0] != STATE_VERSION:
        raise StateRestoreError(f"{what} in a checkpoint {mismatch.format(found[0], STATE_VERSION)}")
    return found

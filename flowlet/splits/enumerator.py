"""``SplitEnumerator``: discovers the splits of a source and assigns them to its readers on demand.

A source that has ``create_enumerator()`` gets one enumerator per job, in the JobManager; its readers, one per subtask,
run in the tasks and ask for splits, so a fast reader gets more.

Side:       pure.
Rules:      the JobManager calls ``discover`` once, on a thread of its own, and answers readers only after it has
            returned.  All other calls come from the JobManager's loop, one at a time, and must not block.  Each split
            is assigned once.  A checkpoint has what is not assigned here, and in each reader's state what was assigned
            to it and is not read.  The JobManager calls ``snapshot`` and sends the triggers in one turn of its loop,
            and a task handles triggers and splits in the order in which they were sent.  So every split is in exactly
            one of these states.  The JobManager runs no code of users and unpickles nothing.  So enumerators and splits
            are made of plain data of the control protocol (``FileSet`` and ``FileSplit``, ``KafkaTopics`` and
            ``KafkaSplit``, ``NumberRange`` and ``NumberSplit``; the content of a ``PlannedSplit`` is opaque bytes), and
            a new kind of enumerator needs a new kind of each, and a line in ``split_kinds.py`` and ``enumerators.py``.
            Where new splits may appear (``discovery_interval_ms``), the JobManager calls ``find_new`` again and again,
            on a thread of its own, and then ``add_found``.  A reader that asks gets an answer as soon as there are
            splits for it.
Source:     Flink ``SplitEnumerator``, ``SourceSplit``, FLIP-27.
Absent:     ``add_splits_back``, because all readers of a source restart together.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from flowlet.splits.split_kinds import AnySplit


class SourceSplit(Protocol):
    """A part of a source that one reader reads in order."""

    @property
    def split_id(self) -> str:
        """A name that is unique among the source's splits."""

    @property
    def size_bytes(self) -> int:
        """The approximate size of the data."""


class SplitEnumerator(Protocol):
    """Knows the splits of one source.

    Life cycle: ``discover`` or ``restore`` once, then ``next_splits`` and ``add_found``; ``snapshot`` in between.
    """

    def discover(self, num_readers: int) -> None:
        """Find the splits; may block.

        Raises:
            FlowletError: something cannot be read; the message names it, because the job fails with it.
        """

    @property
    def discovery_interval_ms(self) -> int | None:
        """How often to look for new splits; None: never, so a reader that gets nothing has everything."""

    def find_new(self) -> Sequence[Any]:
        """Look for new splits, and change nothing; may block.

        Raises:
            FlowletError: as ``discover``; it is tried again.
        """

    def add_found(self, found: Sequence[Any]) -> None:
        """What ``find_new`` gave can be assigned from now on."""

    def next_splits(self, reader: int) -> Sequence[AnySplit]:
        """Assign splits to the reader with this number, from 0; empty: none are left for it, at least now."""

    def snapshot(self) -> bytes:
        """The splits that are not assigned."""

    def restore(self, state: bytes, num_readers: int) -> None:
        """Go on where ``snapshot`` was called.

        Raises:
            StateRestoreError: the state cannot be read.
        """

    @property
    def waiting_bytes(self) -> int:
        """The size of the splits that are not assigned."""


@runtime_checkable
class SwitchingEnumerator(SplitEnumerator, Protocol):
    """Knows the splits of several sources, which are read one after the other.

    Life cycle: while ``is_discovered`` is False, nothing may be called but ``snapshot`` and, on a thread of its own,
    ``restore`` with what that gave.

    One implementer: ``HybridSplitEnumerator`` imports this module, which therefore cannot import it.
    """

    @property
    def is_discovered(self) -> bool:
        """Whether the splits of the present source are known; False at the start, and again when ``next_splits`` has
        ended a source.
        """

    @property
    def has_next_source(self) -> bool:
        """Whether a reader that gets nothing must wait for another source."""

"""Who finds the parts (splits) of a source and hands them to its readers, one after the other, on demand.

A source that has ``create_enumerator()`` gets one enumerator per job, which lives in the JobManager; the readers, one per subtask, live in
the tasks.  Readers ask, the enumerator answers: a fast reader gets more.

Side:       pure.
Rules:      the JobManager calls ``discover`` once, on a thread that is its own, and answers no reader before it has returned.  All other
            calls come from the JobManager's loop, one at a time, and must not wait for anything.  Each split is handed out once: a file
            that is one split is read by one reader, in its order.
            The JobManager runs no code of users and opens no pickles: what it needs to make an enumerator, and the splits, are plain data
            of the control protocol (``FileSet``, ``FileSplit``), so a new kind of enumerator needs a kind of each.
Source:     Flink ``SplitEnumerator``, ``SourceSplit``, FLIP-27.
Absent:     finding more splits while the job runs; what restarts and checkpoints need, since a job is not restarted yet.  Then an
            enumerator also has ``snapshot()`` and ``restore(value)`` of what it has not handed out, and ``add_splits_back(splits)`` for
            those of a reader that failed; the position of a reader is the list of its splits, each with the offset of its next record.
"""

from collections.abc import Sequence
from typing import Protocol

from flowlet.splits.file_split import FileSplit


class SourceSplit(Protocol):
    """A part of a source that one reader reads in its order."""

    @property
    def split_id(self) -> str:
        """A name that no other split of the source has."""

    @property
    def size_bytes(self) -> int:
        """About how much there is to read."""


class SplitEnumerator(Protocol):
    """Knows the splits of one source.

    Life cycle: ``discover`` once, then ``next_splits`` until it gives nothing.
    """

    def discover(self, num_readers: int) -> None:
        """Find the splits; may take as long as it likes.

        Raises:
            FlowletError: something cannot be read; the job fails with it, so the message names it.
        """

    def next_splits(self, reader: int) -> Sequence[FileSplit]:
        """What the reader with this number, from 0, gets now; nothing: there are no more, for nobody."""

    @property
    def waiting_bytes(self) -> int:
        """The size of what was not handed out yet."""

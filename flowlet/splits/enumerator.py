"""``SplitEnumerator``: discovers the splits of a source and assigns them to its readers on demand.

A source that has ``create_enumerator()`` gets one enumerator per job, in the JobManager; its readers, one per subtask, run in the tasks and
ask for splits, so a fast reader gets more.

Side:       pure.
Rules:      the JobManager calls ``discover`` once, on a thread of its own, and answers readers only after it has returned.  All other calls
            come from the JobManager's loop, one at a time, and must not block.  Each split is assigned once.
            The JobManager runs no code of users and unpickles nothing.  So enumerators and splits are made of plain data of the control
            protocol (``FileSet``, ``FileSplit``), and a new kind of enumerator needs a new kind of each.
Source:     Flink ``SplitEnumerator``, ``SourceSplit``, FLIP-27.
Absent:     discovering splits while the job runs; ``snapshot``, ``restore`` and ``add_splits_back``, because jobs are not restarted.
"""

from collections.abc import Sequence
from typing import Protocol

from flowlet.splits.file_split import FileSplit


class SourceSplit(Protocol):
    """A part of a source that one reader reads in order."""

    @property
    def split_id(self) -> str:
        """A name that is unique among the source's splits."""

    @property
    def size_bytes(self) -> int:
        """The approximate size of the data."""


class SplitEnumerator(Protocol):
    """Knows the splits of one source.  Life cycle: ``discover`` once, then ``next_splits`` until it returns nothing."""

    def discover(self, num_readers: int) -> None:
        """Find the splits; may block.

        Raises:
            FlowletError: something cannot be read; the message names it, because the job fails with it.
        """

    def next_splits(self, reader: int) -> Sequence[FileSplit]:
        """Assign splits to the reader with this number, from 0; empty: none are left for any reader."""

    @property
    def waiting_bytes(self) -> int:
        """The size of the splits that are not assigned."""

"""``SplitSource``: a source of a user's, in parts that are read side by side.

Side:   pure.
Source: FLIP-27 (Flink ``Source``, ``SourceSplit``, ``SplitEnumerator``, ``SourceReader``), in one class: PyFlink has no
        sources in Python.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final

from flowlet.datastream.connectors.base import BuiltInSource

__all__ = ["NO_RECORD", "NoRecord", "SplitSource"]


class NoRecord(Enum):
    """The type of ``NO_RECORD``."""

    NO_RECORD = "no record"


NO_RECORD: Final = NoRecord.NO_RECORD
"""What a split yields when it has nothing just now; the other splits of its reader go on, and it is asked again some
milliseconds later.
"""


class SplitSource(BuiltInSource):
    """Base class of a source that consists of parts (splits), such as the partitions of a log or the pages of a table.

    Each split is read in order by one subtask, and a subtask reads its splits side by side.  A ``WatermarkStrategy``
    follows every split by itself: the source's watermark is the lowest one of its open splits, splits without records
    become idle one by one, and with ``with_watermark_alignment`` a split that is too far ahead is paused.  How many
    records of each split were read belongs to checkpoints; splits that are left can be dealt out to another number of
    subtasks.

    ``is_bounded`` is False for a source whose splits have no end.  ``max_open_splits``: how many splits a subtask reads
    at once; the next one goes to the subtask that asks first.  None: all, each subtask its share from the start, so
    that no split can be late.
    """

    max_open_splits: int | None = None

    @abstractmethod
    def create_splits(self, parallelism: int) -> Mapping[str, Any]:
        """All splits: by name, what ``read_split`` needs to know of them, which is pickled.

        Called in the program, when the job starts.
        """

    @abstractmethod
    def read_split(self, split: Any, num_read: int) -> Iterable[Any]:
        """The records of a split, without the first ``num_read``, which were read before a restart; runs in the tasks.

        Often a generator.  It must not block: where it has nothing just now, it yields ``NO_RECORD``.  A split that is
        read again has the same records in the same order.
        """

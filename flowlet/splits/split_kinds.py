"""All kinds of splits, and the descriptions from which the JobManager finds them; messages can hold both.

Side:   pure.
Rules:  plain data of the control protocol, whose whole numbers have 64 bits: the JobManager finds the splits of files,
        topics and numbers, and unpickles nothing for it.  The content of a ``PlannedSplit`` is pickled by the program
        and unpickled by its reader alone: here it is bytes.
Units:  offsets and sizes of files in bytes on disk; offsets of Kafka are positions in a partition; times in
        milliseconds; the size of numbers is their count, in place of bytes: they are made, not read.
Source: Flink ``SourceSplit``, ``FileSourceSplit``, ``KafkaPartitionSplit``, ``KafkaSubscriber``,
        ``OffsetsInitializer``, ``NumberSequenceSource.NumberSequenceSplit``, ``HybridSourceSplit``;
        ``SwitchSourceEvent``, which is the end of a source here, or the first split of the next one.
"""

from collections.abc import Iterable
from enum import Enum

import msgspec


class SourceSplit(msgspec.Struct, frozen=True):
    """A part of a source that one reader reads in order."""

    @property
    def split_id(self) -> str:
        """A name that is unique among the source's splits: all that the split says, if its kind has no shorter one."""
        return repr(self)

    @property
    def size_bytes(self) -> int:
        """The approximate size of the data; 0: unknown."""
        return 0


class FileSplit(SourceSplit, frozen=True, tag="file"):
    r"""A part of a file: all pieces between two \n whose first byte is in ``start <= offset < end``.

    ``end`` 0: the size is not known, as of the files in ``/proc``; then the split is the whole file.
    """

    path: str
    start: int
    end: int

    @property
    def split_id(self) -> str:
        """Path and offset."""
        return f"{self.path}:{self.start}"

    @property
    def size_bytes(self) -> int:
        """The approximate size of the data."""
        return self.end - self.start


class FileSet(msgspec.Struct, frozen=True, tag="files"):
    """The files of a source: all that is needed to list them and cut them into splits.

    ``paths``: files, and folders, which stand for all files in them that are not hidden by a leading ``.`` or ``_``; a
    path given twice is read twice.  ``split_bytes``: the size of a split, if a file can be read in parts; None: the
    whole file.
    """

    paths: tuple[str, ...]
    charset: str = "UTF-8"
    split_bytes: int | None = None


class KafkaSplit(SourceSplit, frozen=True, tag="kafka"):
    """The records of a partition from ``offset`` on, up to and without ``stop``; None: without an end."""

    topic: str
    partition: int
    offset: int
    stop: int | None = None

    @property
    def split_id(self) -> str:
        """Topic and partition."""
        return f"{self.topic}-{self.partition}"


class OffsetKind(Enum):
    """The ways to find the offset that a partition is read from, or up to; the values are for messages."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"  # the first record that is not older
    OFFSETS = "offsets"  # given by the program
    COMMITTED = "committed"  # committed by the group


class OffsetRule(msgspec.Struct, frozen=True):
    """The rule by which the offset of each partition is found.

    ``fallback``: used where the offset is not known: ``EARLIEST``, ``LATEST``, or None: then that is an error.
    """

    kind: OffsetKind
    timestamp_ms: int = 0
    offsets: tuple[tuple[str, int, int], ...] = ()  # topic, partition, offset
    fallback: OffsetKind | None = None


class KafkaTopics(msgspec.Struct, frozen=True, tag="topics"):
    """The topics of a source: by name, by a pattern that the whole name matches, or single partitions.

    ``properties`` are those of librdkafka; they may hold passwords, so they belong in no message to people.
    """

    properties: dict[str, str]
    start: OffsetRule
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[tuple[str, int], ...] = ()
    stop: OffsetRule | None = None  # None: no end
    discovery_interval_ms: int | None = None  # None: partitions are looked for once
    timeout_ms: int = 30_000  # how long a broker may take to answer

    def __repr__(self) -> str:
        return f"<KafkaTopics {self.described} at {self.servers}>"

    @property
    def servers(self) -> str:
        """The addresses of the brokers."""
        return self.properties.get("bootstrap.servers", "")

    @property
    def described(self) -> str:
        """The topics, for people."""
        if self.pattern is not None:
            return f"topics that match {self.pattern!r}"
        return ", ".join([*self.topics, *(f"{topic}-{partition}" for topic, partition in self.partitions)])


class NumberSplit(SourceSplit, frozen=True, tag="number"):
    """The numbers ``start`` <= n < ``end``."""

    start: int
    end: int

    @property
    def split_id(self) -> str:
        """The end of the split, which stays when a part of it was read."""
        return f"up to {self.end}"

    @property
    def size_bytes(self) -> int:
        """How many numbers there are."""
        return self.end - self.start


Runs = tuple[tuple[int, int], ...]
"""The first number of each run, and the number behind its last."""


def share_of_runs(runs: Iterable[tuple[int, int]], subtask: int, parallelism: int) -> Runs:
    """The numbers of reader ``subtask`` of ``parallelism``; all readers get about equally many."""
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


class NumberRange(msgspec.Struct, frozen=True, tag="numbers"):
    """All numbers of a source: ``start`` <= n < ``end``."""

    start: int
    end: int


class PlannedSplit(SourceSplit, frozen=True, tag="planned"):
    """One part: its name, which is unique in the source, and the pickle that its reader opens."""

    name: str
    content: bytes

    @property
    def split_id(self) -> str:
        """The name of the part."""
        return self.name


class PlannedSplits(msgspec.Struct, frozen=True, tag="plan"):
    """All parts of a source, in their order; ``is_on_demand``: whether readers ask for one after the other."""

    splits: tuple[PlannedSplit, ...]
    is_on_demand: bool = False


PlainSplit = FileSplit | KafkaSplit | NumberSplit | PlannedSplit
"""A part of a single source."""

PlainSplitSet = FileSet | KafkaTopics | NumberRange | PlannedSplits
"""The description of a single source."""


class HybridSplit(SourceSplit, frozen=True, tag="hybrid"):
    """A part of the source with number ``source``, from 0; ``split`` None: the end of this source for the reader."""

    source: int
    split: PlainSplit | None = None

    @property
    def split_id(self) -> str:
        """The number of the source, and the id of its split."""
        return f"{self.source}: {'end' if self.split is None else self.split.split_id}"

    @property
    def size_bytes(self) -> int:
        """The size of the split; 0: there is none, or its size is unknown."""
        return 0 if self.split is None else self.split.size_bytes


class HybridSplits(msgspec.Struct, frozen=True, tag="sequel"):
    """The descriptions of several sources, in their order; at least one."""

    sources: tuple[PlainSplitSet, ...]


AnySplit = FileSplit | KafkaSplit | NumberSplit | PlannedSplit | HybridSplit
"""A part of a source, as a reader gets it."""

SplitSet = FileSet | KafkaTopics | NumberRange | PlannedSplits | HybridSplits
"""The description of a source; ``enumerators.py`` makes an enumerator of it."""

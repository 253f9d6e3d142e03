"""``KafkaSplit`` and ``KafkaTopics``: the parts of a Kafka source, and what is needed to find them.

Side:       pure.
Units:      offsets are positions in a partition; times in milliseconds.
Rules:      plain data of the control protocol: the JobManager finds the partitions, and unpickles nothing for it.
Source:     Flink ``KafkaPartitionSplit``, ``KafkaSubscriber``, ``OffsetsInitializer``.
"""

from enum import Enum

import msgspec


class KafkaSplit(msgspec.Struct, frozen=True, tag="kafka"):
    """The records of a partition from ``offset`` on, up to and without ``stop``; None: without an end."""

    topic: str
    partition: int
    offset: int
    stop: int | None = None

    @property
    def split_id(self) -> str:
        """Topic and partition."""
        return f"{self.topic}-{self.partition}"

    @property
    def size_bytes(self) -> int:
        """Unknown."""
        return 0


class OffsetKind(Enum):
    """Where a partition is read from, or up to; the values are for messages."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"  # the first record that is not older
    OFFSETS = "offsets"  # given by the program
    COMMITTED = "committed"  # what the group committed


class OffsetRule(msgspec.Struct, frozen=True):
    """How the offset of each partition is found.

    ``fallback`` stands in for offsets that are not known: ``EARLIEST``, ``LATEST``, or None, which is an error then.
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
        """Where the brokers are."""
        return self.properties.get("bootstrap.servers", "")

    @property
    def described(self) -> str:
        """The topics, for people."""
        if self.pattern is not None:
            return f"topics that match {self.pattern!r}"
        return ", ".join([*self.topics, *(f"{topic}-{partition}" for topic, partition in self.partitions)])

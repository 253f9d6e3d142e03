"""``KafkaSource`` and its builder, and where it begins and ends: ``KafkaOffsetsInitializer``; see
``flowlet.datastream.connectors.kafka``.

Side:   pure.
Source: PyFlink ``pyflink.datastream.connectors.kafka``; Flink ``KafkaSourceOptions``.
"""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass  # not late: programs may ask for the parameters of its __init__
from enum import Enum
from typing import Any, Final, Self, final

from flowlet.common.checks import check_kind, check_number, is_name
from flowlet.common.serialization import DeserializationSchema
from flowlet.common.typeinfo import TypeInformation
from flowlet.datastream.connectors.base import BuiltInSource
from flowlet.errors import JobGraphError
from flowlet.splits.split_kinds import KafkaTopics, OffsetKind, OffsetRule

__all__ = [
    "KafkaOffsetResetStrategy",
    "KafkaOffsetsInitializer",
    "KafkaSource",
    "KafkaSourceBuilder",
    "KafkaTopicPartition",
]


@dataclass(frozen=True, slots=True)
class KafkaTopicPartition:
    """One partition of a topic.

    Raises:
        JobGraphError: an argument is not of its kind.
    """

    topic: str
    partition: int

    def __post_init__(self) -> None:
        if not is_name(self.topic) or type(self.partition) is not int or self.partition < 0:
            raise JobGraphError(
                f"a partition of Kafka has a topic and a number from 0 on, got {self.topic!r} and {self.partition!r}"
            )


class KafkaOffsetResetStrategy(Enum):
    """Where to begin in a partition whose offset is not known; ``NONE``: that is an error."""

    LATEST = 0
    EARLIEST = 1
    NONE = 2


_FALLBACKS = {
    KafkaOffsetResetStrategy.LATEST: OffsetKind.LATEST,
    KafkaOffsetResetStrategy.EARLIEST: OffsetKind.EARLIEST,
    KafkaOffsetResetStrategy.NONE: None,
}


@final
class KafkaOffsetsInitializer:
    """An offset for each partition; made by one of the static methods."""

    __slots__ = ("rule",)

    def __init__(self, rule: OffsetRule) -> None:
        self.rule = rule

    def __repr__(self) -> str:
        return f"<KafkaOffsetsInitializer {self.rule.kind.value}>"

    @staticmethod
    def committed_offsets(
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.NONE,
    ) -> "KafkaOffsetsInitializer":
        """What the consumer group has committed."""
        return KafkaOffsetsInitializer(OffsetRule(OffsetKind.COMMITTED, fallback=_fallback(offset_reset_strategy)))

    @staticmethod
    def timestamp(timestamp: int) -> "KafkaOffsetsInitializer":
        """The first record that is not older than ``timestamp``, in milliseconds since 1970.

        JobGraphError: it is no such number.
        """
        check_number(timestamp, 0, "timestamp() needs milliseconds since 1970")
        return KafkaOffsetsInitializer(OffsetRule(OffsetKind.TIMESTAMP, timestamp_ms=timestamp))

    @staticmethod
    def earliest() -> "KafkaOffsetsInitializer":
        """The first record that the broker still has."""
        return KafkaOffsetsInitializer(OffsetRule(OffsetKind.EARLIEST))

    @staticmethod
    def latest() -> "KafkaOffsetsInitializer":
        """The end, as it is when the job starts."""
        return KafkaOffsetsInitializer(OffsetRule(OffsetKind.LATEST))

    @staticmethod
    def offsets(
        offsets: Mapping[KafkaTopicPartition, int],
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.EARLIEST,
    ) -> "KafkaOffsetsInitializer":
        """These offsets; other partitions by the strategy.  JobGraphError: one is no offset."""
        for partition, offset in offsets.items():
            if type(partition) is not KafkaTopicPartition or type(offset) is not int or offset < 0:
                raise JobGraphError(
                    f"offsets() needs numbers from 0 on by KafkaTopicPartition, got {offset!r} for {partition!r}"
                )
        listed = tuple((each.topic, each.partition, offset) for each, offset in offsets.items())
        return KafkaOffsetsInitializer(
            OffsetRule(OffsetKind.OFFSETS, offsets=listed, fallback=_fallback(offset_reset_strategy))
        )


def _fallback(strategy: KafkaOffsetResetStrategy) -> OffsetKind | None:
    check_kind(strategy, KafkaOffsetResetStrategy, "an offset reset strategy is one of KafkaOffsetResetStrategy")
    return _FALLBACKS[strategy]


DISCOVERY_INTERVAL: Final = "partition.discovery.interval.ms"
COMMIT_OFFSETS: Final = "commit.offsets.on.checkpoint"
CLIENT_ID_PREFIX: Final = "client.id.prefix"
API_TIMEOUT: Final = "default.api.timeout.ms"
_DEFAULT_DISCOVERY_MS: Final = 5 * 60_000  # Flink's
_DEFAULT_TIMEOUT_MS: Final = 30_000
# The source decides about these: offsets are state of the job, and the bytes are read by the schema.
_OWN: Final = (
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "key.deserializer",
    "value.deserializer",
)
_RESETS: Final = {"none": "error", "error": "error", "earliest": "earliest", "latest": "latest"}


class KafkaSource(BuiltInSource):
    """The records of Kafka topics; made by ``KafkaSource.builder()``.

    A partition is read by one subtask.  Offsets belong to checkpoints, not to the consumer group: the group only shows
    people how far the job was at its last checkpoint.
    """

    __slots__ = ("commits_offsets", "deserializer", "is_bounded", "topics")

    def __init__(
        self, topics: KafkaTopics, deserializer: DeserializationSchema, *, is_bounded: bool, commits_offsets: bool
    ) -> None:
        self.topics = topics
        self.deserializer = deserializer
        self.is_bounded = is_bounded
        self.commits_offsets = commits_offsets

    @property
    def type_info(self) -> TypeInformation:
        """The type of the records."""
        return self.deserializer.get_produced_type()

    @staticmethod
    def builder() -> "KafkaSourceBuilder":
        """Says what to read, step by step."""
        return KafkaSourceBuilder()


class KafkaSourceBuilder:
    """Builds a ``KafkaSource``; every method but ``build`` gives the builder itself, and raises JobGraphError for a
    wrong argument.
    """

    def __init__(self) -> None:
        self._properties: dict[str, str] = {}
        self._topics: tuple[str, ...] = ()
        self._pattern: str | None = None
        self._partitions: tuple[tuple[str, int], ...] = ()
        self._start = OffsetRule(OffsetKind.EARLIEST)
        self._stop: OffsetRule | None = None
        self._is_bounded = False
        self._deserializer: DeserializationSchema | None = None

    def set_bootstrap_servers(self, bootstrap_servers: str) -> Self:
        """The brokers to ask first, as ``host:port``, separated by commas."""
        return self.set_property("bootstrap.servers", bootstrap_servers)

    def set_group_id(self, group_id: str) -> Self:
        """The consumer group in which offsets are committed when a checkpoint is complete."""
        return self.set_property("group.id", group_id)

    def set_topics(self, *topics: str) -> Self:
        """Read these topics."""
        if not topics or not all(map(is_name, topics)):
            raise JobGraphError(f"set_topics() needs names of topics, got {topics!r}")
        self._subscribe_once()
        self._topics = tuple(dict.fromkeys(topics))
        return self

    def set_topic_pattern(self, topic_pattern: str) -> Self:
        """Read the topics whose whole name matches this regular expression (of Python)."""
        try:
            re.compile(topic_pattern)
        except (re.error, TypeError) as error:
            raise JobGraphError(
                f"set_topic_pattern() needs a regular expression, got {topic_pattern!r}: {error}"
            ) from error
        self._subscribe_once()
        self._pattern = topic_pattern
        return self

    def set_partitions(self, partitions: Set[KafkaTopicPartition]) -> Self:
        """Read these partitions."""
        if not partitions or not all(isinstance(each, KafkaTopicPartition) for each in partitions):
            raise JobGraphError(f"set_partitions() needs a set of KafkaTopicPartition, got {partitions!r}")
        self._subscribe_once()
        self._partitions = tuple(sorted((each.topic, each.partition) for each in partitions))
        return self

    def set_starting_offsets(self, starting_offsets_initializer: KafkaOffsetsInitializer) -> Self:
        """Where to begin; the default is ``earliest()``.

        It counts for a job that starts anew: a checkpoint has offsets of its own.
        """
        self._start = _rule("set_starting_offsets", starting_offsets_initializer)
        return self

    def set_unbounded(self, stopping_offsets_initializer: KafkaOffsetsInitializer) -> Self:
        """End at these offsets, in a job that counts as one without an end."""
        self._stop = _rule("set_unbounded", stopping_offsets_initializer)
        self._is_bounded = False
        return self

    def set_bounded(self, stopping_offsets_initializer: KafkaOffsetsInitializer) -> Self:
        """End at these offsets, which are looked up when the job starts."""
        self._stop = _rule("set_bounded", stopping_offsets_initializer)
        self._is_bounded = True
        return self

    def set_value_only_deserializer(self, deserialization_schema: DeserializationSchema) -> Self:
        """How values become records; messages without a value are left out."""
        if not isinstance(deserialization_schema, DeserializationSchema):
            raise JobGraphError(
                "set_value_only_deserializer() needs a DeserializationSchema such as SimpleStringSchema(), got "
                f"{deserialization_schema!r}"
            )
        self._deserializer = deserialization_schema
        return self

    def set_client_id_prefix(self, prefix: str) -> Self:
        """What the ids of the clients begin with, for the logs of the brokers."""
        return self.set_property(CLIENT_ID_PREFIX, prefix)

    def set_property(self, key: str, value: str) -> Self:
        """A property of librdkafka, such as ``security.protocol``."""
        set_kafka_property(self._properties, key, value)
        return self

    def set_properties(self, props: Mapping[str, str]) -> Self:
        """Several properties."""
        for key, value in props.items():
            self.set_property(key, value)
        return self

    def build(self) -> KafkaSource:
        """Build the source.  Raises JobGraphError: something is missing, or does not fit together."""
        if not self._properties.get("bootstrap.servers"):
            raise JobGraphError("a Kafka source needs brokers: set_bootstrap_servers('host:port')")
        if not self._topics and self._pattern is None and not self._partitions:
            raise JobGraphError("a Kafka source needs set_topics(), set_topic_pattern() or set_partitions()")
        if self._deserializer is None:
            raise JobGraphError("a Kafka source needs set_value_only_deserializer(), such as with SimpleStringSchema()")
        properties = dict(self._properties)
        own = [key for key in _OWN if key in properties]
        if own:
            raise JobGraphError(f"a Kafka source sets {own[0]} itself; leave it out")
        if "group.id" not in properties and OffsetKind.COMMITTED in (self._start.kind, self._stop and self._stop.kind):
            raise JobGraphError("committed_offsets() needs a consumer group: set_group_id()")
        commits = properties.pop(COMMIT_OFFSETS, "true").lower() == "true"
        interval_ms = _milliseconds(properties, DISCOVERY_INTERVAL, _DEFAULT_DISCOVERY_MS)
        _set_reset(properties)
        topics = KafkaTopics(
            timeout_ms=max(_milliseconds(properties, API_TIMEOUT, _DEFAULT_TIMEOUT_MS), 1),
            properties={"isolation.level": "read_committed", **properties},
            start=self._start,
            topics=self._topics,
            pattern=self._pattern,
            partitions=self._partitions,
            stop=self._stop,
            discovery_interval_ms=interval_ms if interval_ms > 0 and not self._is_bounded else None,
        )
        commits_offsets = commits and "group.id" in properties
        return KafkaSource(topics, self._deserializer, is_bounded=self._is_bounded, commits_offsets=commits_offsets)

    def _subscribe_once(self) -> None:
        if self._topics or self._pattern is not None or self._partitions:
            raise JobGraphError(
                "a Kafka source reads by topics, by a pattern or by partitions: call one of the methods, once"
            )


def set_kafka_property(properties: dict[str, str], key: Any, value: Any) -> None:
    """Set one property.  Raises JobGraphError: it is no text."""
    if not is_name(key) or not isinstance(value, str):
        raise JobGraphError(f"a property of Kafka is two texts, got {key!r} and {value!r}")
    properties[key] = value


def _rule(method: str, initializer: KafkaOffsetsInitializer) -> OffsetRule:
    if not isinstance(initializer, KafkaOffsetsInitializer):
        raise JobGraphError(
            f"{method}() needs a KafkaOffsetsInitializer such as KafkaOffsetsInitializer.latest(), got {initializer!r}"
        )
    return initializer.rule


def _milliseconds(properties: dict[str, str], key: str, default: int) -> int:
    text = properties.pop(key, str(default))
    try:
        return int(text)
    except ValueError as error:
        raise JobGraphError(f"the property {key} is a number of milliseconds, got {text!r}") from error


def _set_reset(properties: dict[str, str]) -> None:
    """What happens to an offset that the broker does not have: an error, unless the program says otherwise."""
    given = properties.get("auto.offset.reset", "none")
    if given not in _RESETS:
        raise JobGraphError(f"the property auto.offset.reset is one of earliest, latest and none, got {given!r}")
    properties["auto.offset.reset"] = _RESETS[given]

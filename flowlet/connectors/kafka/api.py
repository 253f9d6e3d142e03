"""``KafkaSource`` and ``KafkaSink``: records from and to the topics of Kafka.

Side:   pure.  The JobManager finds partitions, and tasks read and write them, with librdkafka (the package
        ``confluent-kafka``).
Rules:  properties are those of librdkafka.  Some properties of Flink's connector, which librdkafka does not know, have
        their meaning in Flink, and are not passed on: ``partition.discovery.interval.ms``,
        ``commit.offsets.on.checkpoint``, ``client.id.prefix``.
Source: PyFlink ``pyflink.datastream.connectors.kafka``.
Absent: ``FlinkKafkaConsumer`` and ``FlinkKafkaProducer``, which Flink has removed; headers, and keys of messages that
        are read.
"""

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field  # not late: programs may ask for the parameters of its __init__
from enum import Enum
from typing import Any, Final, Self, final

from flowlet.common.checks import check_kind, check_name, check_number, is_name
from flowlet.common.not_yet import java_only
from flowlet.common.serialization import DeserializationSchema, SerializationSchema
from flowlet.common.typeinfo import TypeInformation
from flowlet.datastream.connectors.base import BuiltInSource, DeliveryGuarantee, Sink, SinkWriter, WriterInitContext
from flowlet.datastream.connectors.write_ahead_sink import WriteAheadSink, WriteAheadTarget
from flowlet.errors import JobGraphError
from flowlet.splits.split_kinds import KafkaTopics, OffsetKind, OffsetRule


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
    """The place to begin in a partition whose offset is not known; ``NONE``: an unknown offset is an error."""

    LATEST = 0
    EARLIEST = 1
    NONE = 2


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
        """Begin with the offsets that the consumer group has committed."""
        return KafkaOffsetsInitializer(OffsetRule(OffsetKind.COMMITTED, fallback=_fallback(offset_reset_strategy)))

    @staticmethod
    def timestamp(timestamp: int) -> "KafkaOffsetsInitializer":
        """The first record that is not older than ``timestamp``, in milliseconds since 1970.

        Raises JobGraphError: it is no such number.
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
        """These offsets; the strategy decides about other partitions.  Raises JobGraphError: one is no offset."""
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
    return None if strategy is KafkaOffsetResetStrategy.NONE else OffsetKind[strategy.name]


DISCOVERY_INTERVAL: Final = "partition.discovery.interval.ms"
COMMIT_OFFSETS: Final = "commit.offsets.on.checkpoint"
CLIENT_ID_PREFIX: Final = "client.id.prefix"
API_TIMEOUT: Final = "default.api.timeout.ms"
_DEFAULT_DISCOVERY_MS: Final = 5 * 60_000  # Flink's
_DEFAULT_TIMEOUT_MS: Final = 30_000
# The source decides about these: offsets are state of the job, and the bytes are read by the schema.
_OWN_OF_SOURCES: Final = (
    *("enable.auto.commit", "enable.auto.offset.store", "enable.partition.eof"),
    *("key.deserializer", "value.deserializer"),
)
_RESETS: Final = {"none": "error", "error": "error", "earliest": "earliest", "latest": "latest"}


@dataclass(eq=False, repr=False)
class KafkaSource(BuiltInSource):
    """The records of Kafka topics; made by ``KafkaSource.builder()``.

    A partition is read by one subtask.  Offsets belong to checkpoints, not to the consumer group: the group only shows
    people how far the job was at its last checkpoint.
    """

    topics: KafkaTopics
    deserializer: DeserializationSchema
    is_bounded: bool = field(kw_only=True)
    commits_offsets: bool = field(kw_only=True)

    @property
    def type_info(self) -> TypeInformation:
        """The type of the records."""
        return self.deserializer.get_produced_type()

    @staticmethod
    def builder() -> "KafkaSourceBuilder":
        """A builder of a source."""
        return KafkaSourceBuilder()


class _KafkaBuilder:
    """The settings of brokers and clients, which both builders share."""

    def __init__(self) -> None:
        self._properties: dict[str, str] = {}

    def set_bootstrap_servers(self, bootstrap_servers: str) -> Self:
        """Set the brokers to ask first, as ``host:port``, separated by commas."""
        return self.set_property("bootstrap.servers", bootstrap_servers)

    def set_property(self, key: str, value: str) -> Self:
        """Set a property of librdkafka, such as ``security.protocol`` or ``compression.type``.

        Raises JobGraphError: it is no text.
        """
        if not is_name(key) or not isinstance(value, str):
            raise JobGraphError(f"a property of Kafka is two texts, got {key!r} and {value!r}")
        self._properties[key] = value
        return self

    def _checked_properties(self, own: tuple[str, ...], what: str) -> dict[str, str]:
        """The properties, after a check: brokers are named, and no property that the source or sink sets itself."""
        if not self._properties.get("bootstrap.servers"):
            raise JobGraphError(f"a Kafka {what} needs brokers: set_bootstrap_servers('host:port')")
        found = [key for key in own if key in self._properties]
        if found:
            raise JobGraphError(f"a Kafka {what} sets {found[0]} itself; leave it out")
        return dict(self._properties)


class KafkaSourceBuilder(_KafkaBuilder):
    """Builds a ``KafkaSource``; every method but ``build`` gives the builder itself, and raises JobGraphError for a
    wrong argument.
    """

    _subscription: Mapping[str, Any] | None = None  # one of the fields of ``KafkaTopics`` that say which partitions
    _start = OffsetRule(OffsetKind.EARLIEST)
    _stop: OffsetRule | None = None
    _is_bounded = False
    _deserializer: DeserializationSchema | None = None

    def set_group_id(self, group_id: str) -> Self:
        """Set the consumer group in which offsets are committed when a checkpoint is complete."""
        return self.set_property("group.id", group_id)

    def set_topics(self, *topics: str) -> Self:
        """Read these topics."""
        if not topics or not all(map(is_name, topics)):
            raise JobGraphError(f"set_topics() needs names of topics, got {topics!r}")
        return self._subscribe(topics=tuple(dict.fromkeys(topics)))

    def set_topic_pattern(self, topic_pattern: str) -> Self:
        """Read the topics whose whole name matches this regular expression (of Python)."""
        try:
            re.compile(topic_pattern)
        except (re.error, TypeError) as error:
            raise JobGraphError(
                f"set_topic_pattern() needs a regular expression, got {topic_pattern!r}: {error}"
            ) from error
        return self._subscribe(pattern=topic_pattern)

    def set_partitions(self, partitions: Set[KafkaTopicPartition]) -> Self:
        """Read these partitions."""
        if not partitions or not all(isinstance(each, KafkaTopicPartition) for each in partitions):
            raise JobGraphError(f"set_partitions() needs a set of KafkaTopicPartition, got {partitions!r}")
        return self._subscribe(partitions=tuple(sorted((each.topic, each.partition) for each in partitions)))

    def set_starting_offsets(self, starting_offsets_initializer: KafkaOffsetsInitializer) -> Self:
        """Set where to begin; the default is ``earliest()``.

        Only for a job that starts anew: a checkpoint has offsets of its own.
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
        """Set how values become records; messages without a value are left out."""
        needs = "set_value_only_deserializer() needs a DeserializationSchema such as SimpleStringSchema()"
        check_kind(deserialization_schema, DeserializationSchema, needs)
        self._deserializer = deserialization_schema
        return self

    def set_client_id_prefix(self, prefix: str) -> Self:
        """Set the beginning of the clients' ids, for the logs of the brokers."""
        return self.set_property(CLIENT_ID_PREFIX, prefix)

    def set_properties(self, props: Mapping[str, str]) -> Self:
        """Set several properties."""
        for key, value in props.items():
            self.set_property(key, value)
        return self

    def build(self) -> KafkaSource:
        """Build the source.  Raises JobGraphError: something is missing, or does not fit together."""
        properties = self._checked_properties(_OWN_OF_SOURCES, "source")
        if not self._subscription:
            raise JobGraphError("a Kafka source needs set_topics(), set_topic_pattern() or set_partitions()")
        if self._deserializer is None:
            raise JobGraphError("a Kafka source needs set_value_only_deserializer(), such as with SimpleStringSchema()")
        if "group.id" not in properties and OffsetKind.COMMITTED in (self._start.kind, self._stop and self._stop.kind):
            raise JobGraphError("committed_offsets() needs a consumer group: set_group_id()")
        commits = properties.pop(COMMIT_OFFSETS, "true").lower() == "true"
        interval_ms = _milliseconds(properties, DISCOVERY_INTERVAL, _DEFAULT_DISCOVERY_MS)
        # An offset that the broker does not have is an error, unless the program says otherwise.
        given = properties.get("auto.offset.reset", "none")
        if given not in _RESETS:
            raise JobGraphError(f"the property auto.offset.reset is one of earliest, latest and none, got {given!r}")
        properties["auto.offset.reset"] = _RESETS[given]
        topics = KafkaTopics(
            timeout_ms=max(_milliseconds(properties, API_TIMEOUT, _DEFAULT_TIMEOUT_MS), 1),
            # First, so that the program may override it: by default, aborted transactions give no records.
            properties={"isolation.level": "read_committed", **properties},
            start=self._start,
            **self._subscription,
            stop=self._stop,
            discovery_interval_ms=interval_ms if interval_ms > 0 and not self._is_bounded else None,
        )
        commits_offsets = commits and "group.id" in properties
        return KafkaSource(topics, self._deserializer, is_bounded=self._is_bounded, commits_offsets=commits_offsets)

    def _subscribe(self, **subscription: object) -> Self:
        if self._subscription:
            raise JobGraphError(
                "a Kafka source reads by topics, by a pattern or by partitions: call one of the methods, once"
            )
        self._subscription = subscription
        return self


def _rule(method: str, initializer: KafkaOffsetsInitializer) -> OffsetRule:
    needs = f"{method}() needs a KafkaOffsetsInitializer such as KafkaOffsetsInitializer.latest()"
    check_kind(initializer, KafkaOffsetsInitializer, needs)
    return initializer.rule


def _milliseconds(properties: dict[str, str], key: str, default: int) -> int:
    text = properties.pop(key, str(default))
    try:
        return int(text)
    except ValueError as error:
        raise JobGraphError(f"the property {key} is a number of milliseconds, got {text!r}") from error


KafkaMessage = tuple[str, bytes | None, bytes | None]
"""Topic, key and value."""


class KafkaTopicSelector(ABC):
    """Chooses the topic of each record."""

    @abstractmethod
    def apply(self, data: Any) -> str:
        """The topic of the record."""


class KafkaRecordSerializationSchema:
    """Makes messages of records; made by ``KafkaRecordSerializationSchema.builder()``."""

    __slots__ = ("_key", "_selector", "_value", "topic")

    def __init__(
        self,
        topic: str | None,
        selector: Callable[[Any], str] | None,
        key: SerializationSchema | None,
        value: SerializationSchema,
    ) -> None:
        self.topic = topic  # None: the selector says it
        self._selector = selector
        self._key = key
        self._value = value

    @staticmethod
    def builder() -> "KafkaRecordSerializationSchemaBuilder":
        """A builder of a schema."""
        return KafkaRecordSerializationSchemaBuilder()

    def messages(self, records: Sequence[Any]) -> list[KafkaMessage]:
        """The messages of some records, in order."""
        value = self._value.serialize
        key = None if self._key is None else self._key.serialize
        selector = self._selector
        if selector is None:
            topic = self.topic
            assert topic is not None, "the builder wants one of both"
            if key is None:
                return [(topic, None, value(record)) for record in records]
            return [(topic, key(record), value(record)) for record in records]
        return [(selector(record), None if key is None else key(record), value(record)) for record in records]


class KafkaRecordSerializationSchemaBuilder:
    """Builds a ``KafkaRecordSerializationSchema``; its methods raise JobGraphError for a wrong argument."""

    def __init__(self) -> None:
        self._topic: str | None = None
        self._selector: Callable[[Any], str] | None = None
        self._key: SerializationSchema | None = None
        self._value: SerializationSchema | None = None

    def set_topic(self, topic: str) -> Self:
        """Send all records to this topic."""
        check_name(topic, "set_topic() needs the name of a topic")
        self._topic = topic
        self._selector = None
        return self

    def set_topic_selector(self, topic_selector: Callable[[Any], str] | KafkaTopicSelector) -> Self:
        """Send each record to the topic that the selector returns."""
        selector = topic_selector.apply if isinstance(topic_selector, KafkaTopicSelector) else topic_selector
        if not callable(selector):
            raise JobGraphError(f"set_topic_selector() needs a function of a record, got {topic_selector!r}")
        self._topic = None
        self._selector = selector
        return self

    def set_key_serialization_schema(self, key_serialization_schema: SerializationSchema) -> Self:
        """Set how the key of a message is made of the record; without it messages have no key."""
        self._key = _schema("set_key_serialization_schema", key_serialization_schema)
        return self

    def set_value_serialization_schema(self, value_serialization_schema: SerializationSchema) -> Self:
        """Set how the value of a message is made of the record."""
        self._value = _schema("set_value_serialization_schema", value_serialization_schema)
        return self

    def build(self) -> KafkaRecordSerializationSchema:
        """Build the schema.  Raises JobGraphError: something is missing."""
        if self._topic is None and self._selector is None:
            raise JobGraphError("messages need a topic: set_topic() or set_topic_selector()")
        if self._value is None:
            raise JobGraphError(
                "messages need a value: set_value_serialization_schema(), such as with SimpleStringSchema()"
            )
        return KafkaRecordSerializationSchema(self._topic, self._selector, self._key, self._value)


def _schema(method: str, schema: SerializationSchema) -> SerializationSchema:
    check_kind(schema, SerializationSchema, f"{method}() needs a SerializationSchema such as SimpleStringSchema()")
    return schema


_PARTS_MODULE: Final = "flowlet.connectors.kafka.sink"
_OWN_OF_SINKS: Final = ("transactional.id", "enable.idempotence", "key.serializer", "value.serializer")
# Markers are offsets, which Kafka keeps for 7 days by default (offsets.retention.minutes).
_MARKER_RETENTION_MS: Final = 6 * 86_400_000


@dataclass(eq=False, repr=False)
class KafkaSink(Sink):
    """Writes records to topics; made by ``KafkaSink.builder()``."""

    get_transformer = java_only("sink_to(), which takes the sink itself")

    properties: dict[str, str]  # may hold passwords
    serializer: KafkaRecordSerializationSchema

    @staticmethod
    def builder() -> "KafkaSinkBuilder":
        """A builder of a sink."""
        return KafkaSinkBuilder()


@dataclass(eq=False, repr=False)
class FlushingKafkaSink(KafkaSink):
    """Sends records at once; ``flushes``: whether records before a checkpoint are acknowledged before it."""

    flushes: bool = field(kw_only=True)

    def create_writer(self, context: WriterInitContext) -> SinkWriter[Any]:
        """The writer of one subtask, with a client of its own."""
        made: SinkWriter[Any] = importlib.import_module(_PARTS_MODULE).KafkaWriter(
            self.properties, self.serializer, check_cancelled=context.check_cancelled, flushes=self.flushes
        )
        return made


@dataclass(eq=False, repr=False)
class ExactlyOnceKafkaSink(WriteAheadSink, KafkaSink):
    """Keeps messages in the checkpoint until it is complete; then one transaction of Kafka writes them with a marker.

    The marker is an offset of a group of its own.
    """

    marker_retention_ms = _MARKER_RETENTION_MS

    transactional_id_prefix: str
    marker_topic: str

    def rows_of(self, values: Sequence[Any]) -> Sequence[Any]:
        """The records as messages."""
        return self.serializer.messages(values)

    def create_target(self, context: WriterInitContext) -> WriteAheadTarget:
        """The transactions of one subtask."""
        made: WriteAheadTarget = importlib.import_module(_PARTS_MODULE).KafkaTarget(
            self.properties, self.transactional_id_prefix, self.marker_topic, check_cancelled=context.check_cancelled
        )
        return made


class KafkaSinkBuilder(_KafkaBuilder):
    """Builds a ``KafkaSink``; every method but ``build`` gives the builder itself, and raises JobGraphError for a wrong
    argument.
    """

    _serializer: KafkaRecordSerializationSchema | None = None
    _guarantee = DeliveryGuarantee.NONE  # as in Flink
    _prefix: str | None = None
    _marker_topic: str | None = None

    def set_record_serializer(self, record_serializer: KafkaRecordSerializationSchema) -> Self:
        """Set how records become messages, and to which topics they go."""
        needs = "set_record_serializer() needs KafkaRecordSerializationSchema.builder()...build()"
        check_kind(record_serializer, KafkaRecordSerializationSchema, needs)
        self._serializer = record_serializer
        return self

    def set_delivery_guarantee(self, delivery_guarantee: DeliveryGuarantee) -> Self:
        """Set how often a record is there if the job restarts on the way; ``NONE``, the default, may lose some."""
        check_kind(delivery_guarantee, DeliveryGuarantee, "set_delivery_guarantee() needs one of DeliveryGuarantee")
        self._guarantee = delivery_guarantee
        return self

    def set_transactional_id_prefix(self, transactional_id_prefix: str) -> Self:
        """Set the beginning of the ids of transactions and of marker groups; needed for exactly once.

        The brokers must allow these ids.
        """
        check_name(transactional_id_prefix, "set_transactional_id_prefix() needs a name")
        self._prefix = transactional_id_prefix
        return self

    def set_marker_topic(self, topic: str) -> Self:
        """Set an existing topic to which the markers of exactly once belong; needed if records have a topic selector.

        Not in Flink.

        The topic gets no messages: a marker is a committed offset, and an offset has a topic.
        """
        check_name(topic, "set_marker_topic() needs the name of a topic")
        self._marker_topic = topic
        return self

    def build(self) -> KafkaSink:
        """Build the sink.  Raises JobGraphError: something is missing, or does not fit together."""
        properties = self._checked_properties(_OWN_OF_SINKS, "sink")
        if self._serializer is None:
            raise JobGraphError("a Kafka sink needs set_record_serializer()")
        if self._guarantee is not DeliveryGuarantee.EXACTLY_ONCE:
            return FlushingKafkaSink(
                properties, self._serializer, flushes=self._guarantee is DeliveryGuarantee.AT_LEAST_ONCE
            )
        if self._prefix is None:
            raise JobGraphError("exactly once needs set_transactional_id_prefix()")
        marker_topic = self._marker_topic or self._serializer.topic
        if marker_topic is None:
            raise JobGraphError("exactly once with a topic selector needs set_marker_topic(), with a topic that exists")
        return ExactlyOnceKafkaSink(properties, self._serializer, self._prefix, marker_topic)

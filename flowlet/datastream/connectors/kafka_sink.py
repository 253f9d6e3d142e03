"""``KafkaSink`` and its builder, and how its messages are made of records: ``KafkaRecordSerializationSchema``; see
``flowlet.datastream.connectors.kafka``.

Side:   pure.  It travels with the job; writers and targets are loaded by name, in the tasks.
Source: PyFlink ``KafkaSink``, ``KafkaSinkBuilder``, ``KafkaRecordSerializationSchema``, ``KafkaTopicSelector``; Flink
        ``KafkaWriter``.  Exactly once is another way than Flink's: see docs/kafka.md.
Absent: headers, partitioners of the user's own (messages with a key go by its hash, others go round), timestamps (the
        client sets them).
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from flowlet.common.checks import check_kind, check_name
from flowlet.common.not_yet import java_only
from flowlet.common.serialization import SerializationSchema
from flowlet.datastream.connectors.base import DeliveryGuarantee, Sink, SinkWriter, WriterInitContext
from flowlet.datastream.connectors.kafka_source import set_kafka_property
from flowlet.datastream.connectors.write_ahead_sink import WriteAheadSink, WriteAheadTarget
from flowlet.errors import JobGraphError

__all__ = [
    "KafkaMessage",
    "KafkaRecordSerializationSchema",
    "KafkaRecordSerializationSchemaBuilder",
    "KafkaSink",
    "KafkaSinkBuilder",
    "KafkaTopicSelector",
]


KafkaMessage = tuple[str, bytes | None, bytes | None]
"""Topic, key and value."""


class KafkaTopicSelector(ABC):
    """Says to which topic a record goes."""

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
        """Says what messages look like, step by step."""
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
        """All records go to this topic."""
        check_name(topic, "set_topic() needs the name of a topic")
        self._topic = topic
        self._selector = None
        return self

    def set_topic_selector(self, topic_selector: Callable[[Any], str] | KafkaTopicSelector) -> Self:
        """Each record goes to the topic that this says."""
        selector = topic_selector.apply if isinstance(topic_selector, KafkaTopicSelector) else topic_selector
        if not callable(selector):
            raise JobGraphError(f"set_topic_selector() needs a function of a record, got {topic_selector!r}")
        self._topic = None
        self._selector = selector
        return self

    def set_key_serialization_schema(self, key_serialization_schema: SerializationSchema) -> Self:
        """How the key of a message is made of the record; without it messages have no key."""
        self._key = _schema("set_key_serialization_schema", key_serialization_schema)
        return self

    def set_value_serialization_schema(self, value_serialization_schema: SerializationSchema) -> Self:
        """How the value of a message is made of the record."""
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


_PARTS_MODULE: Final = "flowlet.connectors.kafka.kafka_writer"
_OWN: Final = ("transactional.id", "enable.idempotence", "key.serializer", "value.serializer")
# Markers are offsets, which Kafka keeps for 7 days by default (offsets.retention.minutes).
_MARKER_RETENTION_MS: Final = 6 * 86_400_000


class KafkaSink(Sink):
    """Writes records to topics; made by ``KafkaSink.builder()``."""

    get_transformer = java_only("sink_to(), which takes the sink itself")

    def __init__(self, properties: dict[str, str], serializer: KafkaRecordSerializationSchema) -> None:
        self.properties = properties  # may hold passwords
        self.serializer = serializer

    @staticmethod
    def builder() -> "KafkaSinkBuilder":
        """Says what to write where, step by step."""
        return KafkaSinkBuilder()


class FlushingKafkaSink(KafkaSink):
    """Records are sent at once; those before a checkpoint are acknowledged before it, if ``flushes``."""

    def __init__(
        self, properties: dict[str, str], serializer: KafkaRecordSerializationSchema, *, flushes: bool
    ) -> None:
        super().__init__(properties, serializer)
        self.flushes = flushes

    def create_writer(self, context: WriterInitContext) -> SinkWriter[Any]:
        """The writer of one subtask, with a client of its own."""
        made: SinkWriter[Any] = importlib.import_module(_PARTS_MODULE).KafkaWriter(
            self.properties, self.serializer, check_cancelled=context.check_cancelled, flushes=self.flushes
        )
        return made


class ExactlyOnceKafkaSink(WriteAheadSink, KafkaSink):
    """Messages wait in the checkpoint; then one transaction of Kafka has them and a marker, which is an offset of a
    group of its own.
    """

    marker_retention_ms = _MARKER_RETENTION_MS

    def __init__(
        self,
        properties: dict[str, str],
        serializer: KafkaRecordSerializationSchema,
        transactional_id_prefix: str,
        marker_topic: str,
    ) -> None:
        KafkaSink.__init__(self, properties, serializer)
        self.transactional_id_prefix = transactional_id_prefix
        self.marker_topic = marker_topic

    def rows_of(self, values: Sequence[Any]) -> Sequence[Any]:
        """The messages."""
        return self.serializer.messages(values)

    def create_target(self, context: WriterInitContext) -> WriteAheadTarget:
        """The transactions of one subtask."""
        made: WriteAheadTarget = importlib.import_module(_PARTS_MODULE).KafkaTarget(
            self.properties, self.transactional_id_prefix, self.marker_topic, check_cancelled=context.check_cancelled
        )
        return made


class KafkaSinkBuilder:
    """Builds a ``KafkaSink``; every method but ``build`` gives the builder itself, and raises JobGraphError for a wrong
    argument.
    """

    def __init__(self) -> None:
        self._properties: dict[str, str] = {}
        self._serializer: KafkaRecordSerializationSchema | None = None
        self._guarantee = DeliveryGuarantee.NONE  # as in Flink
        self._prefix: str | None = None
        self._marker_topic: str | None = None

    def set_bootstrap_servers(self, bootstrap_servers: str) -> Self:
        """The brokers to ask first, as ``host:port``, separated by commas."""
        return self.set_property("bootstrap.servers", bootstrap_servers)

    def set_record_serializer(self, record_serializer: KafkaRecordSerializationSchema) -> Self:
        """How records become messages, and to which topics they go."""
        if not isinstance(record_serializer, KafkaRecordSerializationSchema):
            raise JobGraphError(
                "set_record_serializer() needs KafkaRecordSerializationSchema.builder()...build(), got "
                f"{record_serializer!r}"
            )
        self._serializer = record_serializer
        return self

    def set_delivery_guarantee(self, delivery_guarantee: DeliveryGuarantee) -> Self:
        """How often a record is there if the job restarts on the way; ``NONE``, the default, may lose some."""
        check_kind(delivery_guarantee, DeliveryGuarantee, "set_delivery_guarantee() needs one of DeliveryGuarantee")
        self._guarantee = delivery_guarantee
        return self

    def set_transactional_id_prefix(self, transactional_id_prefix: str) -> Self:
        """What the ids of transactions and of the groups of markers begin with; needed for exactly once, and the
        brokers must allow it.
        """
        check_name(transactional_id_prefix, "set_transactional_id_prefix() needs a name")
        self._prefix = transactional_id_prefix
        return self

    def set_marker_topic(self, topic: str) -> Self:
        """An existing topic to which the markers of exactly once belong, if the records have a topic selector.

        Not in Flink.

        Nothing is written to it: a marker is a committed offset, and an offset has a topic.
        """
        check_name(topic, "set_marker_topic() needs the name of a topic")
        self._marker_topic = topic
        return self

    def set_property(self, key: str, value: str) -> Self:
        """A property of librdkafka, such as ``compression.type``."""
        set_kafka_property(self._properties, key, value)
        return self

    def build(self) -> KafkaSink:
        """Build the sink.  Raises JobGraphError: something is missing, or does not fit together."""
        if not self._properties.get("bootstrap.servers"):
            raise JobGraphError("a Kafka sink needs brokers: set_bootstrap_servers('host:port')")
        if self._serializer is None:
            raise JobGraphError("a Kafka sink needs set_record_serializer()")
        own = [key for key in _OWN if key in self._properties]
        if own:
            raise JobGraphError(f"a Kafka sink sets {own[0]} itself; leave it out")
        properties = dict(self._properties)
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

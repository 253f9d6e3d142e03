"""``KafkaRecordSerializationSchema``: from records to the messages of a topic.

Side:   pure.  It travels with the job and runs in the tasks.
Source: PyFlink ``KafkaRecordSerializationSchema``, ``KafkaTopicSelector``.
Absent: headers, partitioners of the user's own (messages with a key go by its hash, others go round), timestamps (the
        client sets them).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

from flowlet.common.checks import is_name
from flowlet.common.serialization import SerializationSchema
from flowlet.errors import JobGraphError

__all__ = [
    "KafkaMessage",
    "KafkaRecordSerializationSchema",
    "KafkaRecordSerializationSchemaBuilder",
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
        if not is_name(topic):
            raise JobGraphError(f"set_topic() needs the name of a topic, got {topic!r}")
        self._topic, self._selector = topic, None
        return self

    def set_topic_selector(self, topic_selector: Callable[[Any], str] | KafkaTopicSelector) -> Self:
        """Each record goes to the topic that this says."""
        selector = topic_selector.apply if isinstance(topic_selector, KafkaTopicSelector) else topic_selector
        if not callable(selector):
            raise JobGraphError(f"set_topic_selector() needs a function of a record, got {topic_selector!r}")
        self._topic, self._selector = None, selector
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
    if not isinstance(schema, SerializationSchema):
        raise JobGraphError(f"{method}() needs a SerializationSchema such as SimpleStringSchema(), got {schema!r}")
    return schema

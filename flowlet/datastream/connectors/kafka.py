"""``KafkaSource`` and ``KafkaSink``: records from and to the topics of Kafka.

Side:   pure.  The JobManager finds partitions, and tasks read and write them, with librdkafka (the package
        ``confluent-kafka``).
Rules:  properties are those of librdkafka.  Those of Flink's connector that begin none of librdkafka's are taken out
        and mean what they mean there: ``partition.discovery.interval.ms``, ``commit.offsets.on.checkpoint``,
        ``client.id.prefix``.
Source: PyFlink ``pyflink.datastream.connectors.kafka``.
Absent: ``FlinkKafkaConsumer`` and ``FlinkKafkaProducer``, which Flink has removed; headers, and keys of messages that
        are read.
"""

from typing import TYPE_CHECKING

from flowlet.common.not_yet import missing_names
from flowlet.datastream.connectors.base import DeliveryGuarantee
from flowlet.datastream.connectors.kafka_sink import (
    KafkaRecordSerializationSchema,
    KafkaRecordSerializationSchemaBuilder,
    KafkaSink,
    KafkaSinkBuilder,
    KafkaTopicSelector,
)
from flowlet.datastream.connectors.kafka_source import (
    KafkaOffsetResetStrategy,
    KafkaOffsetsInitializer,
    KafkaSource,
    KafkaSourceBuilder,
    KafkaTopicPartition,
)

__all__ = [
    "DeliveryGuarantee",
    "KafkaOffsetResetStrategy",
    "KafkaOffsetsInitializer",
    "KafkaRecordSerializationSchema",
    "KafkaRecordSerializationSchemaBuilder",
    "KafkaSink",
    "KafkaSinkBuilder",
    "KafkaSource",
    "KafkaSourceBuilder",
    "KafkaTopicPartition",
    "KafkaTopicSelector",
]


if not TYPE_CHECKING:
    __getattr__ = missing_names(__name__)

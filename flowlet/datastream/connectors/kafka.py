"""``KafkaSource`` and ``KafkaSink`` by PyFlink's path; see ``flowlet/connectors/kafka/api.py``.

Side:   pure.
Source: PyFlink ``pyflink.datastream.connectors.kafka``.
"""
# ruff: noqa: F403, F405 - __all__ lists the names

from flowlet.common.not_yet import explain_missing_names
from flowlet.connectors.kafka.api import *
from flowlet.datastream.connectors.base import DeliveryGuarantee

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

explain_missing_names(__name__)

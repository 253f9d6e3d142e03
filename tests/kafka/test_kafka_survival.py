"""From Kafka to Kafka with real processes: a TaskManager is killed by ``kill -9``, and each result is in the topic
exactly once.
"""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from flowlet.common.serialization import SimpleStringSchema
from flowlet.common.typeinfo import Types
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.datastream.connectors.base import WriterInitContext
from flowlet.datastream.connectors.kafka import (
    DeliveryGuarantee,
    ExactlyOnceKafkaSink,
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
    KafkaTopicPartition,
)
from flowlet.datastream.connectors.write_ahead_sink import WriteAheadTarget
from tests.integration.killing_sink import KillingTarget, deaths, environment
from tests.kafka.brokers import TestCluster

pytestmark = pytest.mark.slow

NUM_RECORDS = 6_000
NUM_KEYS = 7
PARTITIONS = 3
PACE_S = 0.05  # of 200 records of a partition: barriers pass between


class KillingKafkaSink(ExactlyOnceKafkaSink):
    """Subtask 0 dies at its first commit of the attempts that have a moment."""

    evidence: Path
    moments: tuple[str, ...]

    def create_target(self, context: WriterInitContext) -> WriteAheadTarget:
        attempt = context.get_attempt_number()
        is_chosen = context.get_index_of_this_subtask() == 0 and attempt < len(self.moments)
        return KillingTarget(
            super().create_target(context), self.moments[attempt] if is_chosen else None, self.evidence
        )


def source(servers: str, topic: str) -> KafkaSource:
    ends = {KafkaTopicPartition(topic, number): NUM_RECORDS // PARTITIONS for number in range(PARTITIONS)}
    builder = KafkaSource.builder().set_bootstrap_servers(servers).set_topics(topic).set_group_id(f"group-{topic}")
    return (
        builder.set_bounded(KafkaOffsetsInitializer.offsets(ends))
        .set_value_only_deserializer(SimpleStringSchema())
        .build()
    )


def sink(servers: str, topic: str, evidence: Path, moments: Sequence[str]) -> KafkaSink:
    serializer = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(topic)
        .set_value_serialization_schema(SimpleStringSchema())
        .build()
    )
    builder = KafkaSink.builder().set_bootstrap_servers(servers).set_record_serializer(serializer)
    made = builder.set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE).set_transactional_id_prefix(topic).build()
    assert isinstance(made, ExactlyOnceKafkaSink)
    killing = KillingKafkaSink(made.properties, made.serializer, made.transactional_id_prefix, made.marker_topic)
    killing.evidence, killing.moments = evidence, tuple(moments)
    return killing


def paced(value: str) -> tuple[int, int]:
    number = int(value)
    if number // PARTITIONS % 200 == 0:
        time.sleep(PACE_S)
    return number % NUM_KEYS, 1


@pytest.mark.parametrize(
    "moments", [pytest.param(["before"], marks=pytest.mark.long), pytest.param(["before", "after"])]
)
def test_kills_cost_no_record_and_repeat_none(tansu: TestCluster, moments: list[str], tmp_path: Path) -> None:
    """Running counts of each key are right: a record that is lost, or counted twice, would shift all that follow."""
    read, written = tansu.new_topic(PARTITIONS), tansu.new_topic(1)
    tansu.produce(read, map(str, range(NUM_RECORDS)), partitions=PARTITIONS)
    env = environment(tmp_path)
    counts = (
        env.from_source(source(tansu.servers, read), WatermarkStrategy.no_watermarks(), "kafka")
        .map(paced, output_type=Types.TUPLE([Types.LONG(), Types.LONG()]))
        .key_by(lambda record: record[0])
        .sum(1)
    )
    counts.map(lambda record: f"{record[0]} {record[1]}", Types.STRING()).sink_to(
        sink(tansu.servers, written, tmp_path, moments)
    )

    env.execute("survivor")

    sizes = Counter(number % NUM_KEYS for number in range(NUM_RECORDS))
    expected = Counter(f"{key} {count}" for key, size in sizes.items() for count in range(1, size + 1))
    assert deaths(tmp_path) == moments
    assert Counter((value or b"").decode() for value in tansu.read(written)) == expected
    # For people only: a process that is killed before it hears that a checkpoint is complete has not told the group of
    # it.
    assert all(offset <= NUM_RECORDS // PARTITIONS for offset in tansu.committed(f"group-{read}", read, PARTITIONS))

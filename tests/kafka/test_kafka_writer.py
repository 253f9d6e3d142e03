"""The Kafka sink without transactions, on real clients."""

import pytest

from flowlet.common.serialization import SimpleStringSchema
from flowlet.connectors.kafka.sink import KafkaWriter
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.datastream.connectors.base import SinkWriterContext
from flowlet.datastream.connectors.kafka import DeliveryGuarantee, KafkaRecordSerializationSchema, KafkaSink
from flowlet.errors import FlowletError
from tests.kafka.brokers import TestCluster

pytestmark = pytest.mark.slow


def texts_to(topic: str) -> KafkaRecordSerializationSchema:
    return (
        KafkaRecordSerializationSchema.builder()
        .set_topic(topic)
        .set_value_serialization_schema(SimpleStringSchema())
        .build()
    )


def test_a_job_writes_keys_and_values_to_the_topics_that_it_selects(
    tansu: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWLET_LOCAL", "inprocess")
    even, odd = tansu.new_topic(1), tansu.new_topic(1)
    serializer = (
        KafkaRecordSerializationSchema.builder()
        .set_topic_selector(lambda text: odd if int(text) % 2 else even)
        .set_key_serialization_schema(SimpleStringSchema())
        .set_value_serialization_schema(SimpleStringSchema())
        .build()
    )
    sink = KafkaSink.builder().set_bootstrap_servers(tansu.servers).set_record_serializer(serializer)
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)

    env.from_collection([str(number) for number in range(2_500)]).sink_to(
        sink.set_delivery_guarantee(DeliveryGuarantee.AT_LEAST_ONCE).build()
    )
    env.execute("writes")

    assert [(message.key(), message.value()) for message in tansu.messages(odd)] == [
        (str(number).encode(), str(number).encode()) for number in range(1, 2_500, 2)
    ]
    assert len(tansu.read(even)) == 1_250


def test_after_a_flush_every_record_is_there(tansu: TestCluster) -> None:
    topic = tansu.new_topic(1)
    writer = KafkaWriter({"bootstrap.servers": tansu.servers, "linger.ms": "10000"}, texts_to(topic), flushes=True)

    writer.write("a", SinkWriterContext())
    writer.write_all(["b", "c"], SinkWriterContext())
    writer.flush(end_of_input=False)

    assert tansu.read(topic) == [b"a", b"b", b"c"]
    writer.close()


def test_more_records_than_the_client_has_room_for_wait(tansu: TestCluster) -> None:
    topic = tansu.new_topic(1)
    writer = KafkaWriter(
        {"bootstrap.servers": tansu.servers, "queue.buffering.max.messages": "20"}, texts_to(topic), flushes=True
    )

    writer.write_all([str(number) for number in range(200)], SinkWriterContext())
    writer.flush(end_of_input=True)

    assert tansu.read(topic) == [str(number).encode() for number in range(200)]
    writer.close()


def test_a_message_that_is_not_delivered_fails_the_task_with_its_topic() -> None:
    properties = {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": "200"}
    writer = KafkaWriter(properties, texts_to("orders"), flushes=True)
    writer.write("a", SinkWriterContext())

    with pytest.raises(
        FlowletError, match=r"Kafka at 127.0.0.1:1: a message for orders was not delivered: .*timed out.*refused"
    ):
        writer.flush(end_of_input=False)

    writer.close()


def test_a_message_that_is_too_large_fails_at_once(tansu: TestCluster) -> None:
    writer = KafkaWriter(
        {"bootstrap.servers": tansu.servers, "message.max.bytes": "1000"}, texts_to("orders"), flushes=True
    )

    with pytest.raises(FlowletError, match=r"a message for topic orders: .*too large"):
        writer.write("a" * 5_000, SinkWriterContext())

    writer.close()


def test_without_a_guarantee_a_checkpoint_does_not_wait() -> None:
    writer = KafkaWriter({"bootstrap.servers": "127.0.0.1:1"}, texts_to("orders"), flushes=False)
    writer.write("a", SinkWriterContext())

    writer.flush(end_of_input=False)

    writer.close()

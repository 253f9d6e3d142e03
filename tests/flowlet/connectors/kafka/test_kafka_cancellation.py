"""A task that waits for brokers which do not answer can be cancelled."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from flowlet.common.serialization import SimpleStringSchema
from flowlet.connectors.kafka.kafka_target import KafkaTarget
from flowlet.connectors.kafka.kafka_writer import KafkaWriter
from flowlet.datastream.connectors.base import Sink
from flowlet.datastream.connectors.kafka import DeliveryGuarantee, KafkaRecordSerializationSchema, KafkaSink
from flowlet.datastream.connectors.sink_writer import SinkWriter, SinkWriterContext, WriterInitContext
from flowlet.errors import JobExecutionError, TaskCancelled
from flowlet.testing.mini_cluster import MiniCluster
from tests.flowlet.connectors.commit_requests import NoTimeContext
from tests.waiting import PATIENCE_S, spin_until

SERIALIZER = KafkaRecordSerializationSchema.builder().set_topic("t").set_value_serialization_schema(SimpleStringSchema()).build()

PAUSE = threading.Event()  # never set: between two questions of a writer that waits


class SilentProducer:
    """A client whose brokers never answer, with room for so many messages."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.num_slices = 0

    def produce(self, topic: str, value: bytes, key: bytes | None, *, on_delivery: object) -> None:
        if not self.room:
            raise BufferError
        self.room -= 1

    def poll(self, timeout_s: float) -> int:
        self.num_slices += timeout_s > 0
        return 0

    def flush(self, timeout_s: float) -> int:
        self.num_slices += 1
        return 1

    def purge(self) -> None:
        return

    def __len__(self) -> int:
        return 1

    def init_transactions(self, timeout_s: float) -> None:
        return

    def begin_transaction(self) -> None:
        return


class SilentConsumer:
    def __init__(self, _: object) -> None:
        return

    def committed(self, partitions: list[Any], timeout: float) -> list[Any]:
        partitions[0].offset = -1
        return partitions

    def close(self) -> None:
        return


def cancelled_after(producer: SilentProducer, num_slices: int) -> Callable[[], None]:
    def check() -> None:
        if producer.num_slices >= num_slices:
            raise TaskCancelled("sink (1/1) was cancelled")

    return check


def writer_over(producer: SilentProducer) -> KafkaWriter:
    return KafkaWriter({}, SERIALIZER, check_cancelled=cancelled_after(producer, 3), flushes=True, create_producer=lambda _: producer)


def test_a_flush_before_a_checkpoint_can_be_cancelled() -> None:
    producer = SilentProducer(room=1)
    writer = writer_over(producer)
    writer.write("a", NoTimeContext())

    with pytest.raises(TaskCancelled, match="was cancelled"):
        writer.flush(end_of_input=False)
    assert producer.num_slices == 3
    writer.close()


def test_a_write_that_waits_for_room_can_be_cancelled() -> None:
    producer = SilentProducer(room=1)
    writer = writer_over(producer)

    with pytest.raises(TaskCancelled, match="was cancelled"):
        writer.write_all(["a", "b"], NoTimeContext())
    assert producer.num_slices == 3
    writer.close()


def test_a_commit_can_be_cancelled() -> None:
    producer = SilentProducer(room=9)
    target = KafkaTarget(
        {},
        "prefix",
        "t",
        check_cancelled=cancelled_after(producer, 3),
        create_producer=lambda _: producer,
        create_consumer=SilentConsumer,
    )

    with pytest.raises(TaskCancelled, match="was cancelled"):
        target.commit("writer", 0, [("t", None, b"a")])
    assert producer.num_slices == 3
    target.close()


class WaitingWriter(SinkWriter[Any]):
    """A user's writer that waits for a system which never answers."""

    waits = threading.Event()

    def __init__(self, context: WriterInitContext) -> None:
        self.context = context

    def write(self, value: Any, context: SinkWriterContext) -> None:
        self.waits.set()
        while True:
            self.context.check_cancelled()
            PAUSE.wait(0.001)

    def flush(self, *, end_of_input: bool) -> None:
        return


class WaitingSink(Sink):
    def create_writer(self, context: WriterInitContext) -> SinkWriter[Any]:
        return WaitingWriter(context)


def test_a_job_whose_writer_waits_for_another_system_can_be_cancelled() -> None:
    """Its context tells it; without that, the task would hold its TaskManager up."""
    with MiniCluster(1) as cluster:
        env = cluster.environment()
        env.from_collection([1]).sink_to(WaitingSink())
        job = env.execute_async("waits")
        assert WaitingWriter.waits.wait(PATIENCE_S)

        end = job.get_job_execution_result()
        job.cancel().result()
        spin_until(end.done, "the end of the job")

        with pytest.raises(JobExecutionError, match="was cancelled"):
            end.result()


@pytest.mark.slow
def test_a_job_whose_brokers_are_silent_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, not when its messages have expired, five minutes later."""
    waits, flush = threading.Event(), KafkaWriter.flush

    def observed(writer: KafkaWriter, *, end_of_input: bool) -> None:
        waits.set()
        flush(writer, end_of_input=end_of_input)

    monkeypatch.setattr(KafkaWriter, "flush", observed)
    sink = KafkaSink.builder().set_bootstrap_servers("127.0.0.1:1").set_record_serializer(SERIALIZER)
    with MiniCluster(1) as cluster:
        env = cluster.environment()
        env.from_collection(["a"]).sink_to(sink.set_delivery_guarantee(DeliveryGuarantee.AT_LEAST_ONCE).build())
        job = env.execute_async("writes to nobody")
        assert waits.wait(PATIENCE_S)

        end = job.get_job_execution_result()
        job.cancel().result()
        spin_until(end.done, "the end of the job")

        with pytest.raises(JobExecutionError, match="was cancelled"):
            end.result()

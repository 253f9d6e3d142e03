"""A task that waits for brokers which do not answer can be cancelled."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest

from flowlet.common.job_client import JobClient
from flowlet.common.serialization import SimpleStringSchema
from flowlet.connectors.kafka.sink import KafkaTarget, KafkaWriter
from flowlet.datastream.connectors.base import Sink, SinkWriter, SinkWriterContext, WriterInitContext
from flowlet.datastream.connectors.kafka import DeliveryGuarantee, KafkaRecordSerializationSchema, KafkaSink
from flowlet.datastream.connectors.write_ahead_sink import CommitLaterError
from flowlet.errors import JobExecutionError, TaskCancelled
from flowlet.testing.mini_cluster import MiniCluster
from tests.waiting import PATIENCE_S, spin_until

kafka = pytest.importorskip("confluent_kafka")

SERIALIZER = (
    KafkaRecordSerializationSchema.builder().set_topic("t").set_value_serialization_schema(SimpleStringSchema()).build()
)

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


@pytest.mark.parametrize(
    "wait",
    [lambda writer: writer.flush(end_of_input=False), lambda writer: writer.write_all(["b"], SinkWriterContext())],
    ids=["for its acknowledgements", "for room"],
)
def test_a_writer_that_waits_for_silent_brokers_can_be_cancelled(
    wait: Callable[[KafkaWriter], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = SilentProducer(room=1)
    monkeypatch.setattr(kafka, "Producer", lambda _: producer)

    def check() -> None:
        if producer.num_slices >= 3:
            raise TaskCancelled("sink (1/1) was cancelled")

    writer = KafkaWriter({}, SERIALIZER, check_cancelled=check, flushes=True)
    writer.write("a", SinkWriterContext())

    with pytest.raises(TaskCancelled, match="was cancelled"):
        wait(writer)
    assert producer.num_slices == 3
    writer.close()


CALLS = ["init_transactions", "committed", "send_offsets_to_transaction", "commit_transaction"]


class SlowBrokers:
    """Clients of brokers that keep silent in one call, for so many seconds; each other call succeeds at once.

    Args:
        call: the one.
        silence_s: until the brokers do what was asked of them first.
        answer_s: how long each answer takes; one that comes after the call has given up is lost.
        code: of the error that ends a call too soon.
        can_go_on: whether the call may be made again to take it up.
    """

    def __init__(
        self,
        call: str,
        silence_s: float = 0.0,
        *,
        answer_s: float = 0.0,
        code: str = "_TIMED_OUT",
        can_go_on: bool = True,
    ) -> None:
        self.call = call
        self.silence_s = silence_s
        self.answer_s = answer_s
        self.code = code
        self.can_go_on = can_go_on
        self.now_s = 0.0
        self.slices_s: list[float] = []
        self.done: list[str] = []

    def ask(self, call: str, timeout_s: float) -> None:
        if call == self.call:
            self.slices_s.append(timeout_s)
            wait_s = max(0.0, self.silence_s - self.now_s) + self.answer_s
            self.now_s += min(timeout_s, wait_s)
            if wait_s >= timeout_s:
                # A question for an offset is no call of a transaction, and librdkafka calls none of its errors
                # retriable.
                is_retriable = self.can_go_on and call != "committed"
                raise kafka.KafkaException(
                    kafka.KafkaError(getattr(kafka.KafkaError, self.code), "silence", retriable=is_retriable)
                )
        self.done.append(call)

    def target(
        self, monkeypatch: pytest.MonkeyPatch, check_cancelled: Callable[[], None] = lambda: None
    ) -> KafkaTarget:
        monkeypatch.setattr(kafka, "Producer", lambda _: SlowProducer(self))
        monkeypatch.setattr(kafka, "Consumer", lambda _: SlowConsumer(self))
        return KafkaTarget({}, "prefix", "t", check_cancelled=check_cancelled, monotonic=lambda: self.now_s)


class SlowProducer(SilentProducer):
    def __init__(self, brokers: SlowBrokers) -> None:
        super().__init__(room=9)
        self.brokers = brokers
        for call in ("init_transactions", "commit_transaction"):
            setattr(self, call, partial(brokers.ask, call))

    def flush(self, timeout_s: float) -> int:
        if self.brokers.call == "flush":
            self.brokers.slices_s.append(timeout_s)
        return int(self.brokers.call == "flush")

    def begin_transaction(self) -> None:
        return

    def send_offsets_to_transaction(self, offsets: list[Any], group: object, timeout_s: float) -> None:
        self.brokers.ask("send_offsets_to_transaction", timeout_s)


class SlowConsumer:
    def __init__(self, brokers: SlowBrokers) -> None:
        self.brokers = brokers

    def committed(self, partitions: list[Any], timeout: float) -> list[Any]:
        self.brokers.ask("committed", timeout)
        partitions[0].offset = -1
        return partitions

    def consumer_group_metadata(self) -> object:
        return object()

    def close(self) -> None:
        return


@pytest.mark.parametrize("call", ["flush", *CALLS])
def test_each_call_to_silent_brokers_can_be_cancelled(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call ends between two short slices, not when its 30 seconds are over."""
    brokers = SlowBrokers(call, silence_s=1_000.0)

    def check() -> None:
        if len(brokers.slices_s) == 3:
            raise TaskCancelled("sink (1/1) was cancelled")

    target = brokers.target(monkeypatch, check)
    with pytest.raises(TaskCancelled, match="was cancelled"):
        target.commit("writer", 0, [("t", None, b"a")])
    assert sum(brokers.slices_s) < 2
    target.close()


@pytest.mark.parametrize("call", CALLS)
def test_brokers_that_answer_within_the_timeout_of_a_call_lose_nothing(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call is taken up where it was, and the rest follows once."""
    brokers = SlowBrokers(call, silence_s=7.0)
    target = brokers.target(monkeypatch)

    target.commit("writer", 0, [("t", None, b"a")])

    assert brokers.done == CALLS
    assert len(brokers.slices_s) > 3
    target.close()


@pytest.mark.parametrize("call", CALLS)
def test_a_call_to_silent_brokers_ends_after_its_timeout(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits add up to the timeout of one call, 30 seconds; then the committer tries again later."""
    brokers = SlowBrokers(call, silence_s=1_000.0)
    target = brokers.target(monkeypatch)

    with pytest.raises(CommitLaterError, match="silence"):
        target.commit("writer", 0, [("t", None, b"a")])

    assert sum(brokers.slices_s) == 30.0
    target.close()


def test_a_question_that_a_far_broker_answers_late_gets_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that takes longer than its slice is lost, so the slices grow."""
    brokers = SlowBrokers("committed", answer_s=1.9)
    target = brokers.target(monkeypatch)

    assert target.committed("writer") == -1
    assert brokers.slices_s == [0.25, 0.5, 1.0, 2.0]
    target.close()


@pytest.mark.parametrize(
    ("code", "can_go_on"), [("_TIMED_OUT", False), ("_TRANSPORT", True)], ids=["not resumable", "no timeout"]
)
def test_a_failure_that_is_no_end_of_a_slice_ends_the_call(
    code: str, monkeypatch: pytest.MonkeyPatch, *, can_go_on: bool
) -> None:
    brokers = SlowBrokers("commit_transaction", silence_s=1_000.0, code=code, can_go_on=can_go_on)
    target = brokers.target(monkeypatch)

    with pytest.raises(CommitLaterError, match="silence"):
        target.commit("writer", 0, [("t", None, b"a")])

    assert len(brokers.slices_s) == 1
    target.close()


class WaitingWriter(SinkWriter[Any]):
    """A user's writer that waits for a system which never answers."""

    waits = threading.Event()
    ended_by: ClassVar[list[type[BaseException]]] = []

    def __init__(self, context: WriterInitContext) -> None:
        self.context = context

    def write(self, value: Any, context: SinkWriterContext) -> None:
        self.waits.set()
        try:
            while True:
                self.context.check_cancelled()
                PAUSE.wait(0.001)
        except BaseException as error:
            self.ended_by.append(type(error))
            raise

    def flush(self, *, end_of_input: bool) -> None:
        return


def cancel(job: JobClient, waits: threading.Event) -> None:
    assert waits.wait(PATIENCE_S)
    end = job.get_job_execution_result()
    job.cancel().result()
    spin_until(end.done, "the end of the job")
    with pytest.raises(JobExecutionError, match="was cancelled"):
        end.result()


class WaitingSink(Sink):
    def create_writer(self, context: WriterInitContext) -> SinkWriter[Any]:
        return WaitingWriter(context)


def test_a_job_whose_writer_waits_for_another_system_can_be_cancelled() -> None:
    """The writer's context tells it of the cancel; without that, the task would hold its TaskManager up."""
    with MiniCluster(1) as cluster:
        env = cluster.environment()
        env.from_collection([1]).sink_to(WaitingSink())
        cancel(env.execute_async("waits"), WaitingWriter.waits)
    assert WaitingWriter.ended_by == [TaskCancelled]


@pytest.mark.slow
def test_a_job_whose_brokers_are_silent_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job ends at once, not when its messages have expired, five minutes later."""
    waits, flush = threading.Event(), KafkaWriter.flush

    def observed(writer: KafkaWriter, *, end_of_input: bool) -> None:
        waits.set()
        flush(writer, end_of_input=end_of_input)

    monkeypatch.setattr(KafkaWriter, "flush", observed)
    sink = KafkaSink.builder().set_bootstrap_servers("127.0.0.1:1").set_record_serializer(SERIALIZER)
    with MiniCluster(1) as cluster:
        env = cluster.environment()
        env.from_collection(["a"]).sink_to(sink.set_delivery_guarantee(DeliveryGuarantee.AT_LEAST_ONCE).build())
        cancel(env.execute_async("writes to nobody"), waits)

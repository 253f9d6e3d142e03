"""One reader on a consumer that a test fills; ``tests/kafka`` has real clients."""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

import pytest

from flowlet.chain.stream_operator import OperatorContext
from flowlet.common.serialization import ByteArraySchema, DeserializationSchema, SimpleStringSchema
from flowlet.connectors.kafka.reader import KafkaReader
from flowlet.connectors.split_reader import AssignedSource
from flowlet.errors import FlowletError
from flowlet.mailbox.task_mailbox import Interrupts
from flowlet.splits.split_kinds import KafkaSplit, PlannedSplits
from flowlet.state.state_snapshots import StateShare

kafka = pytest.importorskip("confluent_kafka")


@dataclass
class Message:
    """A message as librdkafka gives it; ``failure``: the name of its error."""

    partition_: int
    offset_: int
    value_: bytes | None = b"x"
    failure: str | None = None
    time_ms: int = 1_000

    def error(self) -> Any:
        return None if self.failure is None else kafka.KafkaError(getattr(kafka.KafkaError, self.failure))

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self.partition_

    def offset(self) -> int:
        return self.offset_

    def value(self) -> bytes | None:
        return self.value_

    def timestamp(self) -> tuple[int, int]:
        return 1, self.time_ms


def context(interrupts: Interrupts | None = None) -> OperatorContext:
    return OperatorContext("task", 0, 1, 128, "kafka", interrupts=Interrupts() if interrupts is None else interrupts)


class Consumer:
    """A consumer with the messages that the test put in; a waiting call ends when there is one, or the wait is over."""

    def __init__(self, properties: dict[str, Any]) -> None:
        self.properties = properties
        self.messages: list[Message] = []
        self.filled = Event()
        self.log: list[tuple[str, list[tuple[int, int]]]] = []
        self.closed = 0

    def put(self, *messages: Message) -> None:
        self.messages += messages
        self.filled.set()

    def consume(self, num_messages: int, timeout: float) -> Sequence[Message]:
        if timeout:
            self.filled.wait(timeout)
        self.filled.clear()
        found, self.messages = self.messages[:num_messages], self.messages[num_messages:]
        return found

    def __getattr__(self, name: str) -> Any:
        def noted(partitions: Any = (), offsets: Any = (), **_: Any) -> None:
            self.log.append((name, [(each.partition, each.offset) for each in [*partitions, *offsets]]))

        return noted

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def _consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "Consumer", Consumer)


class Driven:
    """A reader, its consumer, and how often it asked for partitions."""

    def __init__(
        self,
        *splits: KafkaSplit,
        schema: DeserializationSchema | None = None,
        commits: bool = True,
        interrupts: Interrupts | None = None,
        **properties: str,
    ) -> None:
        self.asked = 0
        self.reader = KafkaReader(
            {"bootstrap.servers": "a:1", **properties},
            SimpleStringSchema() if schema is None else schema,
            commits_offsets=commits,
        )
        self.reader.setup(context(interrupts))
        self.consumer: Consumer = self.reader._consumer
        self.reader.start(self._ask)
        if splits:
            self.reader.add_splits(splits, 0)

    def _ask(self) -> None:
        self.asked += 1

    def poll(self) -> list[Any] | None:
        chunk = self.reader.poll_chunk()
        return None if chunk is None else chunk.values

    def checkpoints(self, *nums_waiting: int) -> list[list[tuple[int, int]]]:
        """Complete checkpoints, at each of which so many records wait to be processed; return all commits."""
        for checkpoint_id, num_waiting in enumerate(nums_waiting, start=1):
            self.reader.snapshot_position()
            self.reader.position_taken(checkpoint_id, num_waiting)
            self.reader.position_kept(checkpoint_id)
        return [offsets for name, offsets in self.consumer.log if name == "commit"]


@pytest.fixture
def driven() -> Any:
    made: list[Driven] = []

    def make(*splits: KafkaSplit, **arguments: Any) -> Driven:
        made.append(Driven(*splits, **arguments))
        return made[-1]

    yield make
    for each in made:
        each.reader.close()
        each.reader.close()
        assert each.consumer.closed == 1


def test_a_chunk_has_the_records_of_one_partition_with_their_times(driven: Any) -> None:
    driver = driven(KafkaSplit("t", 0, 5), KafkaSplit("t", 1, 0))
    driver.consumer.put(Message(0, 5, b"a", time_ms=7), Message(1, 0, b"b"), Message(0, 6, b"c", time_ms=8))

    first = driver.reader.poll_chunk()
    assert (first.values, first.timestamps, driver.reader.current_split) == (["a", "c"], [7, 8], "t-0")
    assert driver.reader.snapshot_position() == (KafkaSplit("t", 0, 7), KafkaSplit("t", 1, 0))
    assert driver.poll() == ["b"]

    assert driver.reader.snapshot_position() == (KafkaSplit("t", 0, 7), KafkaSplit("t", 1, 1))
    assert driver.reader.open_splits == {"t-0", "t-1"}
    assert driver.consumer.log == [("incremental_assign", [(0, 5), (1, 0)])]


def test_a_reader_that_has_nothing_waits_on_a_future_that_a_message_completes(driven: Any) -> None:
    driver = driven(KafkaSplit("t", 0, 0))
    assert driver.poll() == []
    future, woken = driver.reader.available_future(), Event()
    future.add_done_callback(woken.set)
    assert not future.is_done
    assert driver.poll() == []  # the thread has the consumer: nothing changes

    driver.consumer.put(Message(0, 0, b"late"))

    assert woken.wait(10)
    assert driver.poll() == ["late"]


def test_without_partitions_a_reader_waits_for_them_and_asks_again_after_each_answer(driven: Any) -> None:
    driver = driven()
    assert driver.poll() == []
    future = driver.reader.available_future()
    assert (future.is_done, driver.asked) == (False, 1)

    driver.reader.add_splits([KafkaSplit("t", 3, 4)], 0)

    assert (future.is_done, driver.asked) == (True, 2)
    assert driver.consumer.log == [("incremental_assign", [(3, 4)])]


def test_a_reader_ends_when_all_partitions_have_ended(driven: Any) -> None:
    """One by a record behind its end, one by its last record, one by the end of the log, one that was empty."""
    splits = [KafkaSplit("t", 0, 0, 1), KafkaSplit("t", 1, 0, 1), KafkaSplit("t", 2, 0, 2), KafkaSplit("t", 3, 4, 4)]
    driver = driven(*splits)
    driver.reader.no_more_splits()
    driver.consumer.put(
        Message(0, 0), Message(0, 1), Message(1, 0), Message(2, 0), Message(2, 2, failure="_PARTITION_EOF")
    )

    polled = [driver.poll() for _ in range(4)]

    assert polled == [["x"], ["x"], ["x"], None]
    assert driver.reader.snapshot_position() == ()
    assert [name for name, _ in driver.consumer.log] == ["incremental_assign", *["incremental_unassign"] * 3]


@pytest.mark.parametrize(
    ("stop", "offset", "failure"),
    [
        pytest.param(None, 5, "_TRANSPORT", id="a broker is away"),
        pytest.param(9, 3, "_PARTITION_EOF", id="a transaction is not over"),
    ],
)
def test_what_comes_later_is_waited_for(driven: Any, stop: int | None, offset: int, failure: str) -> None:
    """Records of a transaction that is not over are behind the end of the log."""
    driver = driven(KafkaSplit("t", 0, 0, stop))
    driver.reader.no_more_splits()
    driver.consumer.put(Message(0, offset, failure=failure))

    assert driver.poll() == []
    assert driver.reader.open_splits == {"t-0"}


def test_messages_without_a_value_and_records_that_are_none_are_left_out(driven: Any) -> None:
    class OnlyEven(DeserializationSchema):
        def deserialize(self, message: bytes) -> int | None:
            return None if int(message) % 2 else int(message)

    driver = driven(KafkaSplit("t", 0, 0), schema=OnlyEven())
    driver.consumer.put(Message(0, 0, b"4"), Message(0, 1, b"5"), Message(0, 2, None), Message(0, 3, b"6"))

    assert driver.poll() == [4, 6]
    assert driver.reader.snapshot_position() == (KafkaSplit("t", 0, 4),)


def test_bytes_come_as_they_are(driven: Any) -> None:
    driver = driven(KafkaSplit("t", 0, 0), schema=ByteArraySchema())
    driver.consumer.put(Message(0, 0, b"\xff"))

    assert driver.poll() == [b"\xff"]


def test_an_error_of_the_schema_names_the_message(driven: Any) -> None:
    class Broken(DeserializationSchema):
        def deserialize(self, message: bytes) -> int:
            return int(message)

    driver = driven(KafkaSplit("t", 0, 0), schema=Broken())
    driver.consumer.put(Message(0, 7, b"seven"))

    with pytest.raises(ValueError, match="seven") as caught:
        driver.poll()

    assert caught.value.__notes__ == ["while message 7 of t-0 was read"]


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ("_AUTO_OFFSET_RESET", "partition t-0 does not have offset 5 any more, or not yet: .*auto.offset.reset"),
        ("UNKNOWN_TOPIC_OR_PART", "Kafka at a:1: the messages of partition t-0: Broker: Unknown topic or partition"),
        (
            "TOPIC_AUTHORIZATION_FAILED",
            "Kafka at a:1: the messages of partition t-0: Broker: Topic authorization failed",
        ),
    ],
)
def test_what_cannot_be_read_fails_with_its_partition(driven: Any, failure: str, message: str) -> None:
    driver = driven(KafkaSplit("t", 0, 5))
    driver.consumer.put(Message(0, 5, failure=failure))

    with pytest.raises(FlowletError, match=message):
        driver.poll()


def test_a_refusal_fails_with_the_reason(driven: Any) -> None:
    driver = driven(KafkaSplit("t", 0, 5))
    driver.consumer.properties["error_cb"](kafka.KafkaError(kafka.KafkaError._AUTHENTICATION, "wrong password"))

    with pytest.raises(FlowletError, match="the brokers refuse the client: wrong password"):
        driver.poll()


def test_offsets_are_committed_when_their_checkpoint_is_complete(driven: Any) -> None:
    driver = driven(KafkaSplit("t", 0, 0), **{"group.id": "g"})
    for checkpoint_id in (1, 2, 3):
        driver.consumer.put(Message(0, checkpoint_id - 1))
        driver.poll()
        driver.reader.snapshot_position()
        driver.reader.position_taken(checkpoint_id)

    driver.reader.position_kept(2)
    driver.reader.position_kept(1)  # late: nothing goes back
    driver.reader.position_kept(3)

    assert [each for each in driver.consumer.log if each[0] == "commit"] == [("commit", [(0, 2)]), ("commit", [(0, 3)])]


def test_the_end_of_a_partition_is_committed_once(driven: Any) -> None:
    driver = driven(KafkaSplit("t", 0, 0, 1), KafkaSplit("t", 1, 3), **{"group.id": "g"})
    driver.consumer.put(Message(0, 0))
    driver.poll()

    assert driver.checkpoints(0, 0) == [[(1, 3), (0, 1)], [(1, 3)]]


def test_offsets_of_records_that_wait_to_be_processed_are_not_committed(driven: Any) -> None:
    """Records that wait are in the checkpoint, and a job that begins at the group's offsets reads them again.

    A message without a value is no record.
    """
    driver = driven(KafkaSplit("t", 0, 5), KafkaSplit("t", 1, 3), **{"group.id": "g"})
    driver.consumer.put(Message(0, 5), Message(0, 7), Message(0, 8, None), Message(0, 9))
    driver.poll()

    assert driver.checkpoints(3, 2, 1, 0) == [[(0, at), (1, 3)] for at in (5, 7, 9, 10)]


def test_a_partition_whose_last_records_wait_is_committed_again_when_they_are_processed(driven: Any) -> None:
    driver = driven(KafkaSplit("t", 0, 0, 2), **{"group.id": "g"})
    driver.consumer.put(Message(0, 0), Message(0, 1))
    driver.poll()

    assert driver.checkpoints(1, 0, 0) == [[(0, 1)], [(0, 2)]]


def test_nothing_is_committed_while_records_of_a_checkpoint_before_wait(driven: Any) -> None:
    """The offsets of such records are not known any more."""
    assert driven(KafkaSplit("t", 0, 5), **{"group.id": "g"}).checkpoints(4) == []


def test_without_a_group_nothing_is_committed(driven: Any) -> None:
    driver = driven(KafkaSplit("t", 0, 0), commits=False)
    driver.checkpoints(0)

    assert [name for name, _ in driver.consumer.log] == ["incremental_assign"]
    assert driver.consumer.properties["group.id"].startswith("flowlet-")


def test_a_restored_reader_goes_on_at_its_offsets() -> None:
    reader = KafkaReader({"group.id": "g"}, SimpleStringSchema(), commits_offsets=True)
    reader.setup(context())
    consumer: Consumer = reader._consumer
    reader.restore_position((KafkaSplit("t", 0, 4), KafkaSplit("t", 2, 9)))

    reader.start(lambda: None)

    assert consumer.log == [("incremental_assign", [(0, 4), (2, 9)])]
    reader.close()


def test_splits_that_are_ahead_of_others_are_paused(driven: Any) -> None:
    driver = driven(KafkaSplit("t", 0, 4), KafkaSplit("t", 1, 5))

    driver.reader.pause_or_resume_splits(["t-0"], ["t-1", "t-9"])

    assert driver.consumer.log[1:] == [("pause", [(0, 4)]), ("resume", [(1, 5)])]


@pytest.mark.parametrize("width", [1, 2, 3])
def test_partitions_are_dealt_out_to_other_numbers_of_readers(width: int) -> None:
    source = AssignedSource(KafkaReader, PlannedSplits(()))
    former = [(KafkaSplit("t", 0, 4), KafkaSplit("t", 1, 5)), None, (KafkaSplit("t", 2, 6),)]

    found = [
        split
        for subtask in range(width)
        for split in source.redistribute_positions(former, StateShare(subtask, width, 128, 3))
    ]

    assert sorted(split.offset for split in found) == [4, 5, 6]


def test_a_mail_waits_for_one_message_of_a_schema_of_the_user(driven: Any) -> None:
    """Unread messages are read by the next poll, and the position is in front of them."""
    interrupts = Interrupts()

    class Slow(DeserializationSchema):
        def deserialize(self, message: bytes) -> Any:
            if message == b"b":
                interrupts.append(True)
            return message.decode()

    driver = driven(KafkaSplit("t", 0, 0, 6), schema=Slow(), interrupts=interrupts)
    messages = [Message(0, offset, value) for offset, value in enumerate([b"a", None, b"b", None, b"c", b"d"])]
    driver.consumer.put(*messages)

    first = driver.poll()
    position = driver.reader.snapshot_position()
    interrupts.clear()
    second = driver.poll()

    assert (first, position) == (["a", "b"], (KafkaSplit("t", 0, 4, 6),))
    assert (second, driver.reader.snapshot_position()) == (["c", "d"], ())
    assert driver.reader.ctx.counters.num_null_records_dropped == 2

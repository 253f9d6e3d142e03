"""Messages are in a topic exactly once: each interleaving of commits, deaths and restarts is forced, with the operator
that jobs run.
"""

from collections.abc import Iterable
from typing import Any
from zlib import crc32

import confluent_kafka
import pytest

from flowlet.common.serialization import SimpleStringSchema
from flowlet.connectors.kafka.sink import KafkaTarget
from flowlet.datastream.connectors.kafka import DeliveryGuarantee, KafkaRecordSerializationSchema, KafkaSink
from flowlet.datastream.connectors.write_ahead_sink import CommitLaterError
from flowlet.errors import FlowletError
from flowlet.sinks.sink_operator import SinkOperator
from flowlet.testing.harness_environment import SubtaskPlace
from flowlet.testing.input_harnesses import OneInputOperatorHarness
from flowlet.testing.operator_harness import OperatorSnapshot
from tests.flowlet.sinks.dealt_out import dealt_out
from tests.kafka.brokers import TestCluster

pytestmark = pytest.mark.slow


def sink(servers: str, topic: str) -> KafkaSink:
    serializer = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(topic)
        .set_value_serialization_schema(SimpleStringSchema())
        .build()
    )
    builder = KafkaSink.builder().set_bootstrap_servers(servers).set_record_serializer(serializer)
    return (
        builder.set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix(f"sink-{topic}")
        .build()
    )


def texts(first: int, end: int) -> list[str]:
    return [f"record {number}" for number in range(first, end)]


def checksums(values: Iterable[str | bytes | None]) -> tuple[int, int, int]:
    """Return count, sum and xor of the hashes: equal only if no value is lost or repeated (but for a chance of
    2**-32).
    """
    count = total = mixed = 0
    for value in values:
        data = value.encode() if isinstance(value, str) else value or b""
        count, total, mixed = count + 1, total + int(data.split()[1]), mixed ^ crc32(data)
    return count, total, mixed


class Table:
    """A topic and the sink that writes it."""

    def __init__(self, cluster: TestCluster) -> None:
        self.cluster = cluster
        self.topic = cluster.new_topic(1)

    def opened(
        self, snapshot: OperatorSnapshot | None = None, *, subtask: int = 0, parallelism: int = 1, attempt: int = 0
    ) -> OneInputOperatorHarness:
        restored = None if snapshot is None else 1
        place = SubtaskPlace(subtask=subtask, parallelism=parallelism, attempt=attempt, restored_checkpoint_id=restored)
        # librdkafka's threads end some time after their client.
        harness = OneInputOperatorHarness(
            SinkOperator(sink(self.cluster.servers, self.topic)), place=place, checks_leaks=False
        )
        harness.initialize_state(snapshot)
        harness.open()
        return harness

    def found(self) -> tuple[int, int, int]:
        return checksums(self.cluster.read(self.topic))


@pytest.fixture
def table(tansu: TestCluster) -> Table:
    return Table(tansu)


def test_messages_are_there_when_their_checkpoint_is_complete_and_not_before(table: Table) -> None:
    with table.opened() as harness:
        harness.process_chunk(texts(0, 10))
        harness.snapshot(1)
        assert table.found()[0] == 0

        harness.process_chunk(texts(10, 15))
        harness.notify_checkpoint_complete(1)
        assert table.found() == checksums(texts(0, 10))

        harness.snapshot(2)
        harness.notify_checkpoint_complete(2)

    assert table.found() == checksums(texts(0, 15))


def test_a_kill_between_prepare_and_commit_loses_nothing(table: Table) -> None:
    harness = table.opened()
    harness.process_chunk(texts(0, 10))
    snapshot = harness.snapshot(1)
    harness.process_chunk(texts(10, 15))  # of no checkpoint: the source gives them again
    harness.close()

    with table.opened(snapshot, attempt=1) as restored:
        restored.process_chunk(texts(10, 15))
        restored.snapshot(2)
        restored.notify_checkpoint_complete(2)

    assert table.found() == checksums(texts(0, 15))


def test_a_kill_between_commit_and_notify_repeats_nothing(table: Table) -> None:
    """A kill after the commit repeats no record: the restart begins with the checkpoint that was committed."""
    harness = table.opened()
    harness.process_chunk(texts(0, 10))
    snapshot = harness.snapshot(1)
    harness.notify_checkpoint_complete(1)
    harness.close()

    table.opened(snapshot, attempt=1).close()

    assert table.found() == checksums(texts(0, 10))


def test_two_kills_in_a_row_change_nothing(table: Table) -> None:
    harness = table.opened()
    harness.process_chunk(texts(0, 10))
    first = harness.snapshot(1)
    harness.close()  # before the commit
    harness = table.opened(first, attempt=1)
    harness.process_chunk(texts(10, 20))
    second = harness.snapshot(2)
    harness.close()  # after the commit of 1, before the commit of 2
    table.opened(second, attempt=2).close()  # after both

    table.opened(second, attempt=3).close()

    assert table.found() == checksums(texts(0, 20))


def test_a_dead_process_that_lives_on_cannot_commit_again(table: Table) -> None:
    """A process whose successor has fenced it and has committed cannot commit again."""
    zombie = table.opened()
    zombie.process_chunk(texts(0, 10))
    snapshot = zombie.snapshot(1)
    table.opened(snapshot, attempt=1).close()

    zombie.notify_checkpoint_complete(1)
    zombie.close()

    assert table.found() == checksums(texts(0, 10))


@pytest.mark.parametrize(("committed", "width"), [(1, 1), (0, 3), (2, 3)])
def test_another_parallelism_loses_and_repeats_nothing(table: Table, committed: int, width: int) -> None:
    """Two subtasks, of which ``committed`` have committed, lose and repeat no record: their waiting batches are dealt
    out.
    """
    snapshots = []
    for subtask in range(2):
        harness = table.opened(subtask=subtask, parallelism=2)
        harness.process_chunk(texts(10 * subtask, 10 * subtask + 10))
        snapshots.append(harness.snapshot(1))
        if subtask < committed:
            harness.notify_checkpoint_complete(1)
        harness.close()

    for subtask, share in enumerate(
        dealt_out(snapshots, width, SinkOperator(sink(table.cluster.servers, table.topic)))
    ):
        table.opened(share, subtask=subtask, parallelism=width, attempt=1).close()

    assert table.found() == checksums(texts(0, 20))


def test_a_transaction_and_its_marker_are_there_together(table: Table) -> None:
    target = KafkaTarget({"bootstrap.servers": table.cluster.servers}, "prefix", table.topic)
    assert target.committed("w") == -1

    target.commit("w", 0, [(table.topic, None, b"record 0")])
    target.commit("w", 1, [(table.topic, b"key", b"record 1"), (table.topic, None, None)])

    assert target.committed("w") == 1
    assert target.committed("another") == -1
    target.commit("w", 2, [])  # its clients were kept
    for number in range(3):
        target.committed(f"more-{number}")
    target.commit("w", 2, [(table.topic, None, b"record 2")])  # they were not: the marker says that it is there
    target.close()
    assert table.cluster.read(table.topic) == [b"record 0", b"record 1", None]
    assert table.cluster.committed("prefix-w", table.topic) == [2]


class SilencingClient:
    """A client whose brokers fall silent just before one call."""

    def __init__(self, client: Any, call: str, cluster: TestCluster) -> None:
        self.client = client
        self.call = call
        self.cluster = cluster

    def __getattr__(self, name: str) -> Any:
        if name == self.call:
            self.call = ""
            self.cluster.fall_silent()
        return getattr(self.client, name)


@pytest.mark.parametrize("call", ["init_transactions", "committed", "commit_transaction"])
def test_brokers_that_are_silent_for_a_while_get_a_transaction_once(
    mocked: TestCluster, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that timed out is made again, and librdkafka takes it up where it was."""
    topic = mocked.new_topic()
    num_checks = 0

    def check() -> None:
        nonlocal num_checks
        num_checks += 1
        if num_checks == 2:
            mocked.speak()

    target = KafkaTarget({"bootstrap.servers": mocked.servers}, f"prefix-{call}", topic, check_cancelled=check)
    producer = confluent_kafka.Producer
    consumer = confluent_kafka.Consumer
    monkeypatch.setattr(confluent_kafka, "Producer", lambda config: SilencingClient(producer(config), call, mocked))
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda config: SilencingClient(consumer(config), call, mocked))
    try:
        target.commit("w", 0, [(topic, None, b"record 0")])
    finally:
        mocked.speak()

    assert num_checks >= 2
    target.commit("w", 1, [(topic, None, b"record 1")])
    target.close()
    assert sorted(filter(None, mocked.read(topic, num_partitions=4))) == [b"record 0", b"record 1"]


def test_no_broker_is_a_reason_to_try_again() -> None:
    target = KafkaTarget({"bootstrap.servers": "127.0.0.1:1"}, "prefix", "t", timeout_s=0.3)

    with pytest.raises(
        CommitLaterError, match=r"Kafka at 127.0.0.1:1: the start of transactions: .*(Connect|Failed|Timed)"
    ):
        target.committed("w")


def test_a_property_that_does_not_exist_is_named() -> None:
    with pytest.raises(
        FlowletError, match=r'Kafka: No such configuration property: "acks.of.all"; properties are those of librdkafka'
    ):
        KafkaTarget({"bootstrap.servers": "127.0.0.1:1", "acks.of.all": "1"}, "prefix", "t").committed("w")

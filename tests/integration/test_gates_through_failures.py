"""Producers push through failures: of TaskManagers, of the JobManager, of themselves; each row is in the results once.

The oracle is outside of the engine: a row is a function of its partition and its number; count, sum and xor of hashes
of what the client reads are compared with those of what the producers were given.
"""

import hashlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from operator import xor
from pathlib import Path
from typing import Any

import pytest

from bench.cluster import Cluster
from flowlet.common.typeinfo import Types
from flowlet.datastream import CloseableIterator, DataStream
from flowlet.ingest import GateClient, PartitionOffer, PartitionWriter, close_producers, open_gate
from tests.integration.jobs import RESTARTING, cluster_fixture, collected, environment
from tests.waiting import PATIENCE_S, spin_until

pytestmark = pytest.mark.slow

ROWS = Types.ROW_NAMED(["key", "number"], [Types.LONG(), Types.LONG()])
NUM_ROWS = 4_000
CHUNK = 100


def rows_of(partition: int, num_rows: int = NUM_ROWS) -> list[tuple[int, int]]:
    return [(number % 17, partition * 1_000_000 + number) for number in range(num_rows)]


@dataclass(frozen=True, slots=True)
class Digest:
    """A digest of records, which the oracle compares."""

    count: int
    total: int
    hashes: int

    @classmethod
    def of(cls, numbers: list[int]) -> "Digest":
        hashes = (
            int.from_bytes(hashlib.blake2b(str(each).encode(), digest_size=8).digest(), "big") for each in numbers
        )
        return cls(len(numbers), sum(numbers), reduce(xor, hashes, 0))


def expected(*partitions: int) -> Digest:
    return Digest.of([number for partition in partitions for _, number in rows_of(partition)])


cluster = cluster_fixture(keeps_jobs=True)


@pytest.fixture(autouse=True)
def _producers_are_closed(cluster: Cluster) -> Iterator[None]:
    yield
    close_producers()


@dataclass
class Job:
    """A running job; its results are read by a thread, because a client that does not read holds up checkpoints."""

    cluster: Cluster
    results: CloseableIterator
    found: list[int] = field(default_factory=list)
    error: Exception | None = None

    def read(self) -> None:
        try:
            for each in self.results:
                self.found.append(each)
        except Exception as error:  # noqa: BLE001 - for the test's thread
            self.error = error

    def gate(self, **options: Any) -> GateClient:
        return open_gate(
            "clicks",
            jobmanager=self.cluster.address,
            secret_file=self.cluster.secret_file,
            timeout_s=PATIENCE_S,
            **{"resume_timeout_s": PATIENCE_S, **options},
        )


def keyed(stream: DataStream) -> DataStream:
    """Return a job whose rows are routed at the producers."""
    return stream.key_by(lambda row: row[0]).map(lambda row: row[1], output_type=Types.LONG())


def in_turns(stream: DataStream) -> DataStream:
    """Return a job whose rows are sent to the subtasks in turns, and shuffled behind the gate."""
    return (
        stream.map(lambda row: row[1], output_type=Types.LONG())
        .rebalance()
        .map(lambda number: number, output_type=Types.LONG())
    )


@contextmanager
def running(
    cluster: Cluster,
    folder: Path,
    producers: int,
    build: Callable[[DataStream], DataStream] = keyed,
    options: dict[str, str] | None = None,
) -> Iterator[Job]:
    restarts = {**RESTARTING, "restart-strategy.fixed-delay.attempts": "10", **(options or {})}
    env = environment(folder / "checkpoints", restarts, cluster=cluster)
    results = collected(build(env.from_remote_gate("clicks", type_info=ROWS, producers=producers)))
    job = Job(cluster, results)
    reader = threading.Thread(target=job.read, daemon=True)
    with results:
        reader.start()
        yield job
        reader.join(PATIENCE_S)
    assert job.error is None
    assert not reader.is_alive()


def write(
    writer: PartitionWriter, rows: list[tuple[int, int]], between: Callable[[int], None] = lambda _: None
) -> None:
    """Write in chunks; ``between`` is called with the number of rows that were written."""
    for start in range(0, len(rows), CHUNK):
        between(start)
        writer.write_records(rows[start : start + CHUNK])


def kill_task_manager(cluster: Cluster, number: int = 0) -> None:
    """Kill a TaskManager and start another one."""
    victim = cluster.task_managers.pop(number)
    victim.send(signal.SIGKILL)
    victim.wait(PATIENCE_S)
    cluster.start_task_manager()


def kill_job_manager(cluster: Cluster) -> None:
    cluster.job_manager.send(signal.SIGKILL)
    cluster.job_manager.wait(PATIENCE_S)
    cluster.start_job_manager()


@pytest.mark.parametrize("build", [keyed, pytest.param(in_turns, marks=pytest.mark.long)])
def test_a_call_goes_on_when_the_taskmanager_of_its_gate_is_killed_twice(
    build: Callable[[DataStream], DataStream], cluster: Cluster, tmp_path: Path
) -> None:
    """A call goes on although its gate's TaskManager is killed twice, both times in the middle of the partition."""

    def between(num_written: int) -> None:
        if num_written in (NUM_ROWS // 4, NUM_ROWS // 2):
            kill_task_manager(cluster)

    with running(cluster, tmp_path, 1, build) as job:
        with job.gate().open_partition(PartitionOffer("job", 0)) as writer:
            write(writer, rows_of(0), between)
            writer.finish(PATIENCE_S)
        assert writer.num_resumed >= 1

    assert Digest.of(job.found) == expected(0)


@pytest.mark.long
def test_a_call_goes_on_when_the_jobmanager_is_killed_and_started_again(cluster: Cluster, tmp_path: Path) -> None:
    """A call goes on with the JobManager's job store; it is killed in the middle of the partition, and once more while
    another one is written.
    """

    def between(num_written: int) -> None:
        if num_written == NUM_ROWS // 2:
            kill_job_manager(cluster)

    with running(cluster, tmp_path, 2) as job:
        for partition in range(2):
            with job.gate().open_partition(PartitionOffer("job", partition)) as writer:
                write(writer, rows_of(partition), between)
                writer.finish(PATIENCE_S)

    assert "job recovered" in cluster.job_manager.stderr
    assert Digest.of(job.found) == expected(0, 1)


PRODUCER = """
import sys
from flowlet.ingest import PartitionOffer, open_gate
from tests.integration.test_gates_through_failures import NUM_ROWS, rows_of, write
gate = open_gate("clicks", jobmanager=sys.argv[1], secret_file=sys.argv[2], timeout_s=60)
with gate.open_partition(PartitionOffer("job", int(sys.argv[3]), int(sys.argv[4]))) as writer:
    print("counted" if writer.is_counted else "new", flush=True)
    rows = rows_of(int(sys.argv[3]))
    write(writer, rows[:NUM_ROWS // 2])
    print("half", flush=True)
    if sys.argv[5] == "wait":
        sys.stdin.readline()
    write(writer, rows[NUM_ROWS // 2:])
    writer.finish(60)
    print("finished", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def worker(job: Job, partition: int, attempt: int, what: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a producer in a process of its own, which is killed at last."""
    arguments = [job.cluster.address, str(job.cluster.secret_file), str(partition), str(attempt), what]
    process = subprocess.Popen(
        [sys.executable, "-c", PRODUCER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    with process:
        yield process
        process.kill()


def lines_of(process: "subprocess.Popen[str]", num_lines: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(num_lines)]


@pytest.mark.long
def test_a_worker_that_is_killed_and_tried_again_leaves_each_row_in_once(cluster: Cluster, tmp_path: Path) -> None:
    """One worker dies in the middle, and a TaskManager with it; another one dies after its partition was counted, and
    its successor hears that it is done.
    """
    with running(cluster, tmp_path, 2) as job:
        with worker(job, 0, 0, "wait") as first:
            assert lines_of(first, 2) == ["new", "half"]
        kill_task_manager(cluster)
        with worker(job, 0, 1, "go on") as second:
            assert lines_of(second, 3) == ["new", "half", "finished"]
        kill_task_manager(cluster)
        with worker(job, 0, 2, "go on") as third:
            assert lines_of(third, 3) == ["counted", "half", "finished"]
        with worker(job, 1, 0, "go on") as other:
            assert lines_of(other, 3) == ["new", "half", "finished"]

    assert Digest.of(job.found) == expected(0, 1)


@pytest.mark.long
def test_many_producers_at_once_through_kills_of_everything(cluster: Cluster, tmp_path: Path) -> None:
    """Rows of many producers, in turns and behind an exchange, are in once with unaligned checkpoints."""
    num_producers = 4
    errors: list[Exception] = []

    def push(job: Job, partition: int) -> None:
        try:
            with job.gate(max_kept_bytes=20_000).open_partition(PartitionOffer("job", partition)) as writer:
                write(writer, rows_of(partition))
                writer.finish(PATIENCE_S)
        except Exception as error:  # noqa: BLE001 - for the test's thread
            errors.append(error)

    options = {"execution.checkpointing.unaligned.enabled": "true"}
    with running(cluster, tmp_path, num_producers, in_turns, options) as job:
        threads = [threading.Thread(target=push, args=(job, partition)) for partition in range(num_producers)]
        for each in threads:
            each.start()
        for kill in (kill_task_manager, kill_job_manager, kill_task_manager):
            spin_until(lambda: len(job.found) > NUM_ROWS // 4)
            kill(cluster)
        for each in threads:
            each.join(PATIENCE_S)

    assert not errors
    assert Digest.of(job.found) == expected(*range(num_producers))

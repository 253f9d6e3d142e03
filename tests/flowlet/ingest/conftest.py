"""A cluster in this process, a file with its secret, and an end for the producers of this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from flowlet.client import embedded
from flowlet.client.embedded import EmbeddedCluster
from flowlet.client.executor import execute
from flowlet.client.remote import RemoteTarget
from flowlet.client.running_job import RunningJob
from flowlet.client.translate import translate
from flowlet.common.job_client import JobClient
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.datastream.data_stream import CloseableIterator, DataStream
from flowlet.ingest import GateClient, PartitionOffer, open_gate
from flowlet.ingest.runtime import close_producers
from flowlet.testing.mini_cluster import MiniCluster
from flowlet.tm.task_executor import TaskExecutorConfig
from tests.flowlet.client.jobs import hold
from tests.flowlet.stream_graphs import graph_of, unstarted
from tests.quiet_logging import unconfigured_logging
from tests.waiting import PATIENCE_S, Stopwatch

__all__ = ["unconfigured_logging"]

E = TypeVar("E", bound=Exception)
PROMISED_S = 5.0  # every refusal comes within this time


class GateCluster(MiniCluster):
    """Knows how producers find it."""

    secret_file: Path

    @property
    def address(self) -> str:
        return f"{self.target.host}:{self.target.port}"

    def open(self, gate: str = "clicks", timeout_s: float = PATIENCE_S, **options: Any) -> GateClient:
        return open_gate(gate, jobmanager=self.address, secret_file=self.secret_file, timeout_s=timeout_s, **options)


def write_secret(secret: bytes, folder: Path) -> Path:
    return embedded.write_secret(folder / "secret", secret)


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., GateCluster]]:
    clusters: list[GateCluster] = []

    def make(num_task_managers: int, slots: int = 1, config: TaskExecutorConfig | None = None) -> GateCluster:
        cluster = GateCluster(num_task_managers, slots, config)
        clusters.append(cluster)
        assert cluster.target.secret is not None
        cluster.secret_file = write_secret(cluster.target.secret, tmp_path)
        return cluster

    yield make
    close_producers()
    for cluster in clusters:
        cluster.close()


@pytest.fixture
def cluster(make_cluster: Callable[..., GateCluster]) -> GateCluster:
    return make_cluster(1)


@contextmanager
def collecting(stream: DataStream) -> Iterator[CloseableIterator]:
    """Run the job and yield its results; closing them cancels the job unless they were read to their end."""
    results = stream.execute_and_collect()
    assert isinstance(results, CloseableIterator)
    with results:
        yield results


@contextmanager
def read(cluster: GateCluster, **options: Any) -> Iterator[CloseableIterator]:
    """Run a job that gives the records of a gate of any objects; yield its results."""
    gate = cluster.environment().from_remote_gate("clicks", allow_pickle=True, **options)
    with collecting(gate.map(lambda record: record)) as results:
        yield results


def running_gate(cluster: GateCluster, name: str = "clicks", *, held: str | None = None, **options: Any) -> JobClient:
    """Start a job that only reads a gate; ``held``: it holds at its first record until the test says so."""
    env = cluster.environment()
    stream = env.from_remote_gate(name, allow_pickle="type_info" not in options, **options)
    (stream if held is None else stream.map(lambda record: hold(held, record))).map(lambda record: record).print()
    return env.execute_async(f"job of {name}")


@contextmanager
def in_processes(
    num_task_managers: int, build: Callable[[StreamExecutionEnvironment], object], folder: Path
) -> Iterator[tuple[EmbeddedCluster, RunningJob, GateClient]]:
    """Run a job with the gate ``clicks``, whose tasks are in processes that can be killed."""
    cluster = EmbeddedCluster.start(num_task_managers, 1, in_process=False)
    try:
        env = unstarted().set_parallelism(1)
        build(env)
        target = RemoteTarget(cluster.host, cluster.port, secret=cluster.secret)
        job = execute(translate(graph_of(env.execute)), target)
        address, secret_file = f"{cluster.host}:{cluster.port}", write_secret(cluster.secret, folder)
        yield cluster, job, open_gate("clicks", jobmanager=address, secret_file=secret_file, timeout_s=PATIENCE_S)
        job.close()
    finally:
        close_producers()
        cluster.close()


@contextmanager
def in_time() -> Iterator[None]:
    """Check that it takes no longer than a refusal may."""
    with Stopwatch() as watch:
        yield
    assert watch.seconds < PROMISED_S


@contextmanager
def refused(error: type[E] | tuple[type[E], ...], reason: str) -> Iterator[pytest.ExceptionInfo[E]]:
    """Check that the error with this reason comes in time."""
    with in_time(), pytest.raises(error, match=reason) as raised:
        yield raised


def endlessly(writer: Any) -> None:
    while True:
        writer.write_records(list(range(1000)))


def push(
    gate: GateClient, records: list[Any], partition: int = 0, *, attempt: int = 0, epoch: int = 0, job: str = "job"
) -> None:
    """One whole partition."""
    with gate.open_partition(PartitionOffer(job, partition, attempt, epoch)) as writer:
        writer.write_records(records)
        writer.finish(PATIENCE_S)


def counts_of(client: JobClient, gate: str = "clicks") -> dict[str, Any]:
    """Return what a gate has taken, from the job's document."""
    [found] = [each for each in client.metrics()["gates"] if each["name"] == gate]
    document: dict[str, Any] = found
    return document

"""A cluster in this process, a file with its secret, and an end for the producers of this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flowlet.common.job_client import JobClient
from flowlet.datastream.data_stream import CloseableIterator, DataStream
from flowlet.ingest import GateClient, PartitionOffer, open_gate
from flowlet.ingest.runtime import close_producers
from flowlet.testing.mini_cluster import MiniCluster
from flowlet.tm.task_executor import TaskExecutorConfig
from tests.quiet_logging import unconfigured_logging
from tests.waiting import PATIENCE_S

__all__ = ["unconfigured_logging"]


class GateCluster(MiniCluster):
    """Knows how producers find it."""

    secret_file: Path

    @property
    def address(self) -> str:
        return f"{self.target.host}:{self.target.port}"

    def open(self, gate: str = "clicks", timeout_s: float = PATIENCE_S, **options: Any) -> GateClient:
        return open_gate(gate, jobmanager=self.address, secret_file=self.secret_file, timeout_s=timeout_s, **options)


def write_secret(secret: bytes, folder: Path) -> Path:
    path = folder / "secret"
    path.touch(mode=0o600)
    path.write_text(secret.hex() + "\n")
    return path


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

"""Jobs with a remote gate that take no checkpoints, and begin with one of another job."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlet.common import Configuration
from flowlet.common.job_client import JobClient
from flowlet.common.job_status import JobStatus
from flowlet.common.typeinfo import Types
from flowlet.datastream.connectors import DiscardingSink
from flowlet.ingest import GateClient, PartitionOffer, close_producers, open_gate
from flowlet.testing import MiniCluster
from tests.waiting import PATIENCE_S, spin_until

pytestmark = pytest.mark.slow

seen: list[int] = []  # by the tasks, which run in threads of this process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MiniCluster]:
    seen.clear()
    with MiniCluster(1, 1) as made:
        yield made
        close_producers()


def started(cluster: MiniCluster, savepoint: str = "", **options: str) -> JobClient:
    settings = {**options, "execution.state-recovery.path": savepoint} if savepoint else options
    env = cluster.environment().set_parallelism(1)
    env.configure(Configuration.from_dict(settings))
    stream = env.from_remote_gate("numbers", type_info=Types.LONG(), producers=2).uid("gate")
    stream.map(note, Types.LONG()).uid("note").sink_to(DiscardingSink()).uid("sink")
    return env.execute_async("gate")


def note(value: int) -> int:
    seen.append(value)
    return value


def push(cluster: MiniCluster, folder: Path, partition: int, attempt: int = 0) -> None:
    with opened(cluster, folder / "secret").open_partition(PartitionOffer("write", partition, attempt)) as writer:
        writer.write_records(list(range(partition * 100, partition * 100 + 10)))
        writer.finish(PATIENCE_S)


def opened(cluster: MiniCluster, secret_file: Path) -> GateClient:
    secret_file.touch(0o600)
    assert cluster.target.secret is not None, "of a MiniCluster"
    secret_file.write_text(cluster.target.secret.hex(), "ascii")
    address = f"{cluster.target.host}:{cluster.target.port}"
    return open_gate(
        "numbers", jobmanager=address, secret_file=secret_file, timeout_s=PATIENCE_S, wait_for_gate_s=PATIENCE_S
    )


def test_a_job_without_checkpoints_begins_with_one_of_another_job(cluster: MiniCluster, tmp_path: Path) -> None:
    """Rows that the other job's checkpoint holds are not taken again."""
    checkpointing = {
        "interval": "1 h",  # a partition that has ended asks for one
        "dir": str(tmp_path / "checkpoints"),
        "externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    }
    job = started(cluster, **{f"execution.checkpointing.{name}": value for name, value in checkpointing.items()})
    push(cluster, tmp_path, 0)
    job.cancel().result()
    spin_until(lambda: job.get_job_status().result() is JobStatus.CANCELED, "the end of the job")
    [checkpoint] = (tmp_path / "checkpoints" / str(job.get_job_id())).glob("chk-*")

    job = started(cluster, str(checkpoint))
    push(cluster, tmp_path, 0, attempt=1)
    push(cluster, tmp_path, 1)
    job.get_job_execution_result().result()

    assert sorted(seen) == [*range(10), *range(100, 110)]

"""What the jobs of these tests share: clusters of processes, environments, results, and checkpoints that stay.

Side: any.
"""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from bench.cluster import Cluster
from flowlet.client.remote import RemoteTarget
from flowlet.common import Configuration
from flowlet.common.job_client import JobClient
from flowlet.common.typeinfo import Types
from flowlet.datastream import (
    CloseableIterator,
    DataStream,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.errors import JobExecutionError
from flowlet.rpc.http import RpcClient
from flowlet.rpc.secret import load_secret
from flowlet.tm.taskmanager_process import PROCESS_NAME

PAIR: Final = Types.TUPLE([Types.LONG(), Types.LONG()])
RESTARTING: Final = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "3",
    "restart-strategy.fixed-delay.delay": "50 ms",
}
RETAINED: Final = {"execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION"}
PACE_S: Final = 0.1  # of 1000 records, in the chain of the source: barriers pass between its chunks


def cluster_fixture(num_task_managers: int = 2, *, keeps_jobs: bool = False, pins: bool = True) -> Any:
    """Return a fixture ``cluster``: TaskManagers with one slot each, whose secret this process knows.  ``keeps_jobs``:
    its JobManager has a job store, in the folder ``jobs``.
    """

    @pytest.fixture(name="cluster")
    def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
        folder = tmp_path / "cluster"
        folder.mkdir()
        options = ("--job-store", str(tmp_path / "jobs")) if keeps_jobs else ()
        with Cluster(
            folder, num_task_managers=num_task_managers, job_manager_options=options, pins=pins and not keeps_jobs
        ) as running:
            monkeypatch.setenv("FLOWLET_SECRET_FILE", str(running.secret_file))
            yield running

    return made


def target_of(cluster: Cluster) -> RemoteTarget:
    host, _, port = cluster.address.rpartition(":")
    return RemoteTarget(host, int(port), secret_file=cluster.secret_file)


def ask(cluster: Cluster, path: str) -> Any:
    """Return what the JobManager answers to a request."""
    host, _, port = cluster.address.rpartition(":")

    async def answer() -> bytes:
        async with RpcClient(host, int(port), load_secret(cluster.secret_file)) as client:
            return (await client.request("GET", path)).body

    return json.loads(asyncio.run(answer()))


def environment(
    checkpoints: Path | str,
    options: Mapping[str, str] = RESTARTING,
    *,
    interval_ms: int = 100,
    parallelism: int = 2,
    cluster: Cluster | None = None,
) -> StreamExecutionEnvironment:
    """Return the environment of a job with checkpoints in a folder or at a URL; without a cluster it brings its own."""
    where = {"flowlet.jobmanager": cluster.address} if cluster is not None else {}
    configuration = Configuration.from_dict({"execution.checkpointing.dir": str(checkpoints), **where, **options})
    env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(parallelism)
    return env.enable_checkpointing(interval_ms)


def collected(stream: Any, name: str = "collected") -> CloseableIterator:
    """Run the job; return its results, which the caller closes."""
    results = stream.execute_and_collect(name)
    assert isinstance(results, CloseableIterator)
    return results


def results_of(stream: Any, name: str = "collected") -> list[Any]:
    with collected(stream, name) as results:
        return list(results)


def task_managers() -> list[psutil.Process]:
    """Return the TaskManagers of the cluster that this process has started."""
    return [child for child in psutil.Process().children(recursive=True) if child.name() == PROCESS_NAME]


def stays_at(error: object) -> str:
    """Return the checkpoint that stays when a job has ended, by the text of its error."""
    (path,) = re.findall(r"stays at (\S+);", str(error))
    return str(path)


def retained(job: JobClient, why: str) -> str:
    """Wait until the job ends with an error; return the checkpoint that stays."""
    with pytest.raises(JobExecutionError, match=why) as caught:
        job.get_job_execution_result().result()
    return stays_at(caught.value)


class Pairs:
    """Makes pairs of a key and 1, slowly."""

    def __init__(self, num_keys: int) -> None:
        self._num_keys = num_keys

    def __call__(self, number: int) -> tuple[int, int]:
        if number % 1000 == 0:
            time.sleep(PACE_S)
        return number % self._num_keys, 1


def paced_pairs(env: StreamExecutionEnvironment, num_records: int, num_keys: int) -> DataStream:
    """Return pairs of a key and 1, from one subtask."""
    numbers = env.from_collection(list(range(num_records)), Types.LONG())
    return numbers.map(Pairs(num_keys), output_type=PAIR).set_parallelism(1)


class CountInState(KeyedProcessFunction):
    """Counts with a ``ValueState``."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        count = (self.count.value() or 0) + value[1]
        self.count.update(count)
        yield value[0], count


def running_counts(num_records: int, num_keys: int, times: int = 1) -> Counter[tuple[int, int]]:
    """Return each count of each key once.  ``times``: each record comes so often."""
    sizes = Counter(number % num_keys for number in range(num_records))
    return Counter((key, count) for key, size in sizes.items() for count in range(1, times * size + 1))

"""Every way of taking checkpoints, every state back end and more, as many and fewer slots: kill, restore, equal
results.

A job loses a TaskManager by ``kill -9`` in the middle of its data and fails.  Another one starts from its checkpoint,
with 2, 4 and 1 subtasks.
"""

import asyncio
import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.cluster import Cluster
from flowlet.common import Configuration
from flowlet.common.typeinfo import Types
from flowlet.datastream import (
    CloseableIterator,
    DataStream,
    KeyedProcessFunction,
    MapFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from flowlet.datastream.connectors import DiscardingSink
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.errors import JobExecutionError
from flowlet.rpc.http import RpcClient
from flowlet.rpc.secret import load_secret
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.long]

NUM_RECORDS = 30_000
NUM_KEYS = 37
FORMER_PARALLELISM = 2
FILLER = "x" * 200  # so that the records are more than one buffer
SIZES = Counter(number % NUM_KEYS for number in range(NUM_RECORDS))
TRIPLE = Types.TUPLE([Types.LONG(), Types.LONG(), Types.STRING()])
PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])
UNALIGNED = "execution.checkpointing.unaligned.enabled"
TIMEOUT = "execution.checkpointing.aligned-checkpoint-timeout"
MODES = {"aligned": {}, "unaligned": {UNALIGNED: "true"}, "aligned-with-timeout": {UNALIGNED: "true", TIMEOUT: "50 ms"}}
BACK_ENDS = {"heap": {}, "rocksdb": {"state.backend.type": "rocksdb", "execution.checkpointing.incremental": "true"}}


class Numbers(MapFunction):
    """Makes records, slowly until there is a file: in the chain of the source, so barriers pass between its chunks."""

    def __init__(self, folder: Path, pause_s: float) -> None:
        self._hurry = folder / "hurry"
        self._pause_s = pause_s

    def map(self, value: int) -> tuple[int, int, str]:
        if value % 1000 == 0 and not self._hurry.exists():
            time.sleep(self._pause_s)
        return value % NUM_KEYS, 1, FILLER


class CountInState(KeyedProcessFunction):
    """Counts; if ``pause_s``, slowly until there is a file, so that records queue up in front of it.

    Tells where it runs by a file.
    """

    def __init__(self, folder: Path, pause_s: float) -> None:
        self._folder = folder
        self._pause_s = pause_s

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self._is_slow = self._pause_s > 0 and not (self._folder / "hurry").exists()
        (self._folder / f"pid-{os.getpid()}").touch()

    def process_element(self, value: tuple[int, int, str], ctx: KeyedProcessFunction.Context) -> Any:
        if self._is_slow:
            time.sleep(self._pause_s)
        count = (self.count.value() or 0) + value[1]
        self.count.update(count)
        yield value[0], count


def program(
    cluster: Cluster, folder: Path, parallelism: int, options: dict[str, str]
) -> tuple[StreamExecutionEnvironment, DataStream]:
    configuration = Configuration()
    fixed = {
        "flowlet.jobmanager": cluster.address,
        "execution.checkpointing.dir": str(folder / "checkpoints"),
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "restart-strategy.type": "none",
    }
    for name, value in {**fixed, **options}.items():
        configuration.set_string(name, value)
    env = (
        StreamExecutionEnvironment.get_execution_environment(configuration)
        .set_parallelism(parallelism)
        .enable_checkpointing(200)
    )
    has_backlog = UNALIGNED in options
    numbers = Numbers(folder, 0.0 if has_backlog else 0.1)
    records = (
        env.from_collection(list(range(NUM_RECORDS)), Types.LONG()).map(numbers, output_type=TRIPLE).set_parallelism(1)
    )
    counting = CountInState(folder, 0.002 if has_backlog else 0.0)
    return env, records.key_by(lambda record: record[0], Types.LONG()).process(counting, output_type=PAIR)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Yield a cluster that has four TaskManagers with a slot each after one was killed."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    with Cluster(folder, num_task_managers=5) as running:
        monkeypatch.setenv("FLOWLET_SECRET_FILE", str(running.secret_file))
        yield running


def checkpoints(cluster: Cluster, job_id: str) -> list[dict[str, Any]]:
    host, _, port = cluster.address.rpartition(":")

    async def ask() -> bytes:
        async with RpcClient(host, int(port), load_secret(cluster.secret_file)) as client:
            return (await client.request("GET", f"/jobs/{job_id}/checkpoints")).body

    found: list[dict[str, Any]] = json.loads(asyncio.run(ask()))["history"]
    return found


def wait_for_checkpoint(cluster: Cluster, job_id: str, *, has_backlog: bool) -> None:
    """Wait until a checkpoint is complete in the middle of the data: one with records in flight, if they are part of
    it.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        history = [each for each in checkpoints(cluster, job_id) if each["status"] == "COMPLETED"]
        if any(each["id"] >= 2 and (each["persisted_data"] or not has_backlog) for each in history):
            return
        assert time.monotonic() < deadline, f"no such checkpoint: {history}"
        time.sleep(0.05)  # the JobManager is asked again; ended by the checkpoint


def killed_job(cluster: Cluster, folder: Path, options: dict[str, str]) -> str:
    """The checkpoint of a job whose TaskManager was killed."""
    env, counted = program(cluster, folder, FORMER_PARALLELISM, options)
    counted.sink_to(DiscardingSink())
    job = env.execute_async("former")
    wait_for_checkpoint(cluster, str(job.get_job_id()), has_backlog=UNALIGNED in options)
    pid = int(next(folder.glob("pid-*")).name.removeprefix("pid-"))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(JobExecutionError, match="was lost") as caught:
        job.get_job_execution_result().result()
    (path,) = re.findall(r"stays at (\S+);", str(caught.value))
    return str(path)


@pytest.mark.parametrize("back_end", BACK_ENDS)
@pytest.mark.parametrize("mode", MODES)
def test_results_are_equal_after_a_kill_with_any_number_of_slots(
    cluster: Cluster, tmp_path: Path, mode: str, back_end: str
) -> None:
    options = {**MODES[mode], **BACK_ENDS[back_end]}
    path = killed_job(cluster, tmp_path, options)
    (tmp_path / "hurry").touch()

    for parallelism in (FORMER_PARALLELISM, 2 * FORMER_PARALLELISM, FORMER_PARALLELISM // 2):
        _, counted = program(cluster, tmp_path, parallelism, {**options, "execution.state-recovery.path": path})
        results = counted.execute_and_collect("later")
        assert isinstance(results, CloseableIterator)
        counts: dict[int, list[int]] = {key: [] for key in SIZES}
        with results:
            for key, count in results:
                counts[key].append(count)

        assert 0 < sum(map(len, counts.values())) < NUM_RECORDS, (
            f"the checkpoint is in the middle, at parallelism {parallelism}"
        )
        for key, found in counts.items():
            assert found == list(range(SIZES[key] - len(found) + 1, SIZES[key] + 1)), (
                f"key {key} at parallelism {parallelism}"
            )

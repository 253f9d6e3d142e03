"""Every way of taking checkpoints, every state back end and more, as many and fewer slots: kill, restore, equal
results.

A job loses a TaskManager by ``kill -9`` in the middle of its data and fails.  Another one starts from its checkpoint,
with 2, 4 and 1 subtasks.
"""

import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench.cluster import Cluster
from flowlet.common.job_client import JobClient
from flowlet.common.typeinfo import Types
from flowlet.datastream import DataStream, KeyedProcessFunction, MapFunction, RuntimeContext, StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink
from tests.integration.jobs import PAIR, RETAINED, CountInState, ask, cluster_fixture, collected, environment, retained
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.long]

NUM_RECORDS = 30_000
NUM_KEYS = 37
FORMER_PARALLELISM = 2
FILLER = "x" * 200  # so that the records are more than one buffer
SIZES = Counter(number % NUM_KEYS for number in range(NUM_RECORDS))
TRIPLE = Types.TUPLE([Types.LONG(), Types.LONG(), Types.STRING()])
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


class CountSlowly(CountInState):
    """Counts; if ``pause_s``, slowly until there is a file, so that records queue up in front of it.

    Tells where it runs by a file.
    """

    def __init__(self, folder: Path, pause_s: float) -> None:
        self._folder = folder
        self._pause_s = pause_s

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self._is_slow = self._pause_s > 0 and not (self._folder / "hurry").exists()
        (self._folder / f"pid-{os.getpid()}").touch()

    def process_element(self, value: tuple[int, int, str], ctx: KeyedProcessFunction.Context) -> Any:
        if self._is_slow:
            time.sleep(self._pause_s)
        yield from super().process_element(value, ctx)


def retaining(cluster: Cluster, folder: Path, parallelism: int, options: dict[str, str]) -> StreamExecutionEnvironment:
    """Return the environment of a job that does not restart, and whose checkpoint stays."""
    fixed = {**RETAINED, "restart-strategy.type": "none", **options}
    return environment(folder / "checkpoints", fixed, interval_ms=200, parallelism=parallelism, cluster=cluster)


def program(
    cluster: Cluster, folder: Path, parallelism: int, options: dict[str, str]
) -> tuple[StreamExecutionEnvironment, DataStream]:
    env = retaining(cluster, folder, parallelism, options)
    has_backlog = UNALIGNED in options
    numbers = Numbers(folder, 0.0 if has_backlog else 0.1)
    records = (
        env.from_collection(list(range(NUM_RECORDS)), Types.LONG()).map(numbers, output_type=TRIPLE).set_parallelism(1)
    )
    counting = CountSlowly(folder, 0.002 if has_backlog else 0.0)
    return env, records.key_by(lambda record: record[0], Types.LONG()).process(counting, output_type=PAIR)


cluster = cluster_fixture(5)  # four after one was killed


def checkpoint_after_a_kill(cluster: Cluster, folder: Path, job: JobClient, *, has_backlog: bool = False) -> str:
    """Kill a TaskManager of the job when it has a checkpoint; return the one that stays."""
    wait_for_checkpoint(cluster, str(job.get_job_id()), has_backlog=has_backlog)
    os.kill(int(next(folder.glob("pid-*")).name.removeprefix("pid-")), signal.SIGKILL)
    return retained(job, "was lost")


def wait_for_checkpoint(cluster: Cluster, job_id: str, *, has_backlog: bool) -> None:
    """Wait until a checkpoint is complete in the middle of the data: one with records in flight, if they are part of
    it.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        history = [
            each for each in ask(cluster, f"/jobs/{job_id}/checkpoints")["history"] if each["status"] == "COMPLETED"
        ]
        if any(each["id"] >= 2 and (each["persisted_data"] or not has_backlog) for each in history):
            return
        assert time.monotonic() < deadline, f"no such checkpoint: {history}"
        time.sleep(0.05)  # the JobManager is asked again; ended by the checkpoint


@pytest.mark.parametrize("back_end", BACK_ENDS)
@pytest.mark.parametrize("mode", MODES)
def test_results_are_equal_after_a_kill_with_any_number_of_slots(
    cluster: Cluster, tmp_path: Path, mode: str, back_end: str
) -> None:
    options = {**MODES[mode], **BACK_ENDS[back_end]}
    env, counted = program(cluster, tmp_path, FORMER_PARALLELISM, options)
    counted.sink_to(DiscardingSink())
    path = checkpoint_after_a_kill(cluster, tmp_path, env.execute_async("former"), has_backlog=UNALIGNED in options)
    (tmp_path / "hurry").touch()

    for parallelism in (FORMER_PARALLELISM, 2 * FORMER_PARALLELISM, FORMER_PARALLELISM // 2):
        _, counted = program(cluster, tmp_path, parallelism, {**options, "execution.state-recovery.path": path})
        counts: dict[int, list[int]] = {key: [] for key in SIZES}
        with collected(counted, "later") as results:
            for key, count in results:
                counts[key].append(count)

        assert 0 < sum(map(len, counts.values())) < NUM_RECORDS, (
            f"the checkpoint is in the middle, at parallelism {parallelism}"
        )
        for key, found in counts.items():
            assert found == list(range(SIZES[key] - len(found) + 1, SIZES[key] + 1)), (
                f"key {key} at parallelism {parallelism}"
            )

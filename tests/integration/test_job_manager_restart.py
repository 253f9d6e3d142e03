"""The JobManager is killed (``kill -9``) and started again at its port: the job goes on, and the client reads each
result exactly once.

All kills come after a checkpoint in the middle of the data: a job that began with nothing, or with another checkpoint,
would repeat or lose counts.
"""

import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
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
    RuntimeContext,
    StreamExecutionEnvironment,
)
from flowlet.datastream.connectors import DiscardingSink
from flowlet.datastream.state import ValueStateDescriptor
from tests.waiting import PATIENCE_S, spin_until

pytestmark = pytest.mark.slow

NUM_RECORDS = 20_000
NUM_KEYS = 7
PACE_S = 0.1  # of 1000 records
CHECKPOINT_MS = 100
PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])


def paced(number: int) -> tuple[int, int]:
    if number % 1000 == 0:
        time.sleep(PACE_S)
    return number % NUM_KEYS, 1


class CountInState(KeyedProcessFunction):
    """Counts with a ``ValueState``."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: tuple[int, int], ctx: KeyedProcessFunction.Context) -> Any:
        count = (self.count.value() or 0) + value[1]
        self.count.update(count)
        yield value[0], count


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Yield a cluster of two TaskManagers whose JobManager keeps its jobs."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    with Cluster(folder, job_manager_options=("--job-store", str(tmp_path / "jobs")), pins=False) as running:
        monkeypatch.setenv("FLOWLET_SECRET_FILE", str(running.secret_file))
        yield running


def environment(cluster: Cluster, folder: Path) -> StreamExecutionEnvironment:
    configuration = Configuration()
    configuration.set_string("flowlet.jobmanager", cluster.address)
    configuration.set_string("execution.checkpointing.dir", str(folder / "checkpoints"))
    env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(2)
    env.enable_checkpointing(CHECKPOINT_MS)
    return env


def counts(env: StreamExecutionEnvironment, form: str = "sum") -> DataStream:
    records = (
        env.from_collection(list(range(NUM_RECORDS)), Types.LONG()).map(paced, output_type=PAIR).set_parallelism(1)
    )
    keyed = records.key_by(lambda record: record[0])
    return keyed.sum(1) if form == "sum" else keyed.process(CountInState(), output_type=PAIR)


def kill(cluster: Cluster) -> None:
    cluster.job_manager.send(signal.SIGKILL)
    cluster.job_manager.wait(PATIENCE_S)


def expected() -> Counter[tuple[int, int]]:
    sizes = Counter(number % NUM_KEYS for number in range(NUM_RECORDS))
    return Counter((key, count) for key, size in sizes.items() for count in range(1, size + 1))


@pytest.mark.parametrize("form", [pytest.param("sum", marks=pytest.mark.long), "state"])
def test_a_killed_jobmanager_costs_no_result_and_repeats_none(form: str, kept: Cluster, tmp_path: Path) -> None:
    """The first result is handed out when a checkpoint in the middle of the data is complete; then the JobManager is
    killed.
    """
    results = counts(environment(kept, tmp_path), form).execute_and_collect("kept")
    assert isinstance(results, CloseableIterator)
    with results:
        found = [next(results)]
        kill(kept)
        kept.start_job_manager()
        found += results

    assert "job recovered" in kept.job_manager.stderr
    assert Counter(found) == expected()


@pytest.mark.long
def test_a_jobmanager_that_is_killed_twice(kept: Cluster, tmp_path: Path) -> None:
    """A JobManager that had restored the job from a checkpoint, and had completed others, is killed, too; no result is
    lost or repeated.
    """
    results = counts(environment(kept, tmp_path)).execute_and_collect("kept")
    assert isinstance(results, CloseableIterator)
    with results:
        found = [next(results)]
        kill(kept)
        kept.start_job_manager()
        found += islice(results, NUM_RECORDS // 2)
        kill(kept)
        kept.start_job_manager()
        found += results

    assert Counter(found) == expected()


def test_a_jobmanager_and_a_taskmanager_that_are_killed_together(kept: Cluster, tmp_path: Path) -> None:
    """The job waits for the slots of a new TaskManager."""
    results = counts(environment(kept, tmp_path)).execute_and_collect("kept")
    assert isinstance(results, CloseableIterator)
    with results:
        found = [next(results)]
        kept.task_managers[0].send(signal.SIGKILL)
        kill(kept)
        kept.start_job_manager()
        kept.start_task_manager()
        found += results

    assert Counter(found) == expected()


@pytest.mark.long
def test_a_jobmanager_that_is_told_to_end_leaves_its_job_to_the_next_one(kept: Cluster, tmp_path: Path) -> None:
    """SIGTERM neither cancels the job nor removes its checkpoints."""
    results = counts(environment(kept, tmp_path)).execute_and_collect("kept")
    assert isinstance(results, CloseableIterator)
    with results:
        found = [next(results)]
        kept.job_manager.send(signal.SIGTERM)
        assert kept.job_manager.wait(PATIENCE_S) == 0
        kept.start_job_manager()
        found += results

    assert Counter(found) == expected()


@pytest.mark.long
def test_the_store_and_the_checkpoints_are_empty_after_the_end(kept: Cluster, tmp_path: Path) -> None:
    """Store and checkpoints are empty in the end, but for the job's outcome, which the next JobManager still tells."""
    results = counts(environment(kept, tmp_path)).execute_and_collect("kept")
    assert isinstance(results, CloseableIterator)
    with results:
        found = list(results)
    kill(kept)
    left = {str(path.relative_to(tmp_path / "jobs")) for path in (tmp_path / "jobs").rglob("*") if path.is_file()}
    kept.start_job_manager()

    assert Counter(found) == expected()
    assert {path.partition("/")[2] for path in left} == {"", "end"}
    assert "job recovered" not in kept.job_manager.stderr


def test_a_program_that_waits_for_its_job_waits_for_the_next_jobmanager(kept: Cluster, tmp_path: Path) -> None:
    """``execute_async`` and its result need no reader of results: the client hears of the end alone."""
    env = environment(kept, tmp_path)
    counts(env).sink_to(DiscardingSink())
    client = env.execute_async("kept")
    spin_until(lambda: complete_checkpoints(tmp_path), "a checkpoint is complete")
    kill(kept)
    kept.start_job_manager()

    result = client.get_job_execution_result().result()

    assert result.get_job_id() == client.get_job_id()
    assert re.search(r'"checkpoint": [1-9]\d*, "event": "job recovered"', kept.job_manager.stderr)


def complete_checkpoints(folder: Path) -> list[Path]:
    return list((folder / "checkpoints").glob("*/chk-*/_metadata"))

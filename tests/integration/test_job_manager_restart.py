"""The JobManager is killed (``kill -9``) and started again at its port: the job goes on, and the client reads each
result exactly once.

All kills come after a checkpoint in the middle of the data: a job that began with nothing, or with another checkpoint,
would repeat or lose counts.
"""

import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from bench.cluster import Cluster
from flowlet.datastream import CloseableIterator, DataStream, StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink
from tests.integration.jobs import (
    PAIR,
    CountInState,
    cluster_fixture,
    collected,
    environment,
    paced_pairs,
    running_counts,
)
from tests.waiting import PATIENCE_S, spin_until

pytestmark = pytest.mark.slow

NUM_RECORDS = 20_000
NUM_KEYS = 7

cluster = cluster_fixture(keeps_jobs=True)


@pytest.fixture
def env(cluster: Cluster, tmp_path: Path) -> StreamExecutionEnvironment:
    return environment(tmp_path / "checkpoints", {}, cluster=cluster)


def counts(env: StreamExecutionEnvironment, form: str = "sum") -> DataStream:
    keyed = paced_pairs(env, NUM_RECORDS, NUM_KEYS).key_by(lambda record: record[0])
    return keyed.sum(1) if form == "sum" else keyed.process(CountInState(), output_type=PAIR)


@contextmanager
def each_count_comes_once(stream: DataStream) -> Iterator[tuple[CloseableIterator, list[Any]]]:
    """Read the first result, which is handed out when a checkpoint in the middle of the data is complete, and the rest
    when the caller has done what it wants.
    """
    with collected(stream) as results:
        found = [next(results)]
        yield results, found
        found += results
    assert Counter(found) == running_counts(NUM_RECORDS, NUM_KEYS)


def kill(cluster: Cluster) -> None:
    cluster.job_manager.send(signal.SIGKILL)
    cluster.job_manager.wait(PATIENCE_S)


@pytest.mark.parametrize("form", [pytest.param("sum", marks=pytest.mark.long), "state"])
def test_a_killed_jobmanager_costs_no_result_and_repeats_none(
    form: str, cluster: Cluster, env: StreamExecutionEnvironment
) -> None:
    with each_count_comes_once(counts(env, form)):
        kill(cluster)
        cluster.start_job_manager()

    assert "job recovered" in cluster.job_manager.stderr


@pytest.mark.long
def test_a_jobmanager_that_is_killed_twice(cluster: Cluster, env: StreamExecutionEnvironment) -> None:
    """A JobManager that had restored the job from a checkpoint, and had completed others, is killed, too; no result is
    lost or repeated.
    """
    with each_count_comes_once(counts(env)) as (results, found):
        kill(cluster)
        cluster.start_job_manager()
        found += islice(results, NUM_RECORDS // 2)
        kill(cluster)
        cluster.start_job_manager()


def test_a_jobmanager_and_a_taskmanager_that_are_killed_together(
    cluster: Cluster, env: StreamExecutionEnvironment
) -> None:
    """The job waits for the slots of a new TaskManager."""
    with each_count_comes_once(counts(env)):
        cluster.task_managers[0].send(signal.SIGKILL)
        kill(cluster)
        cluster.start_job_manager()
        cluster.start_task_manager()


@pytest.mark.long
def test_a_jobmanager_that_is_told_to_end_leaves_its_job_to_the_next_one(
    cluster: Cluster, env: StreamExecutionEnvironment
) -> None:
    """SIGTERM neither cancels the job nor removes its checkpoints."""
    with each_count_comes_once(counts(env)):
        cluster.job_manager.send(signal.SIGTERM)
        assert cluster.job_manager.wait(PATIENCE_S) == 0
        cluster.start_job_manager()


@pytest.mark.long
def test_the_store_and_the_checkpoints_are_empty_after_the_end(
    cluster: Cluster, env: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    """Store and checkpoints are empty in the end, but for the job's outcome, which the next JobManager still tells."""
    with each_count_comes_once(counts(env)):
        pass
    kill(cluster)
    left = {str(path.relative_to(tmp_path / "jobs")) for path in (tmp_path / "jobs").rglob("*") if path.is_file()}
    cluster.start_job_manager()

    assert {path.partition("/")[2] for path in left} == {"", "end"}
    assert "job recovered" not in cluster.job_manager.stderr


def test_a_program_that_waits_for_its_job_waits_for_the_next_jobmanager(
    cluster: Cluster, env: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    """``execute_async`` and its result need no reader of results: the client hears of the end alone."""
    counts(env).sink_to(DiscardingSink())
    client = env.execute_async("kept")
    spin_until(lambda: list(tmp_path.glob("checkpoints/*/chk-*/_metadata")), "a checkpoint is complete")
    kill(cluster)
    cluster.start_job_manager()

    result = client.get_job_execution_result().result()

    assert result.get_job_id() == client.get_job_id()
    assert re.search(r'"checkpoint": [1-9]\d*, "event": "job recovered"', cluster.job_manager.stderr)


def keyed_by_the_shipped_module(pair: tuple[int, int]) -> int:
    import a_shipped_module  # type: ignore[import-not-found]  # it is where the tasks run

    return int(a_shipped_module.key_of(pair))


def test_files_outlive_all_processes_of_a_cluster(
    cluster: Cluster, env: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    """A JobManager that keeps its jobs keeps the files that a program has added, too, and TaskManagers that come later
    get them from the next one.
    """
    module = tmp_path / "a_shipped_module.py"
    module.write_text("def key_of(pair):\n    return pair[0]\n")
    env.add_python_file(str(module))

    with each_count_comes_once(paced_pairs(env, NUM_RECORDS, NUM_KEYS).key_by(keyed_by_the_shipped_module).sum(1)):
        for process in (*cluster.task_managers, cluster.job_manager):
            process.send(signal.SIGKILL)
        cluster.job_manager.wait(PATIENCE_S)
        module.unlink()
        cluster.start_job_manager()
        cluster.start_task_manager()
        cluster.start_task_manager()

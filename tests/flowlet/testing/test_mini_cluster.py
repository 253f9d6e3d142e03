"""A whole cluster in this process, gone without a trace afterwards."""

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from flowlet.client.running_job import RunningJob
from flowlet.datastream import MapFunction, RuntimeContext
from flowlet.errors import FlowletError, JobGraphError
from flowlet.testing.mini_cluster import MiniCluster
from flowlet.tm.task_executor import TaskExecutorConfig
from netstack.config import NetstackConfig
from tests.flowlet.client.jobs import endless_shuffle, expected_counts, word_count


def test_a_job_runs_on_its_task_managers() -> None:
    job_graph, edge_id = word_count()
    with MiniCluster(num_task_managers=2, slots_per_task_manager=1) as cluster:
        job = cluster.execute(job_graph)

        assert dict(job.collect(edge_id)) == expected_counts()


def test_a_program_runs_on_it() -> None:
    with MiniCluster(2) as cluster:
        env = cluster.environment()

        found = sorted(env.from_collection([1, 2, 3]).map(lambda number: (2 * number,)).execute_and_collect(limit=3))

    assert env.get_parallelism() == 2
    assert found == [(2,), (4,), (6,)]


class ReadsCached(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._path = runtime_context.get_distributed_cache().get_file("greeting")

    def map(self, value: str) -> str:
        return f"{Path(self._path).read_text()} {value}"


def test_files_of_a_program_come_with_it_and_those_for_processes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("hello")
    with MiniCluster(1) as cluster:
        env = cluster.environment()
        env.register_cached_file(str(tmp_path / "file.txt"), "greeting")

        assert list(env.from_collection(["you"]).map(ReadsCached()).execute_and_collect(limit=1)) == ["hello you"]

        env.add_python_archive(str(tmp_path / "data.zip"))
        env.from_collection([1]).print()
        with pytest.raises(JobGraphError, match=r"add_python_archive\(\), .*: run the job without MiniCluster"):
            env.execute()


def test_slots_and_settings_are_those_asked_for() -> None:
    config = TaskExecutorConfig(num_slots=99, network=NetstackConfig(network_memory_bytes=2 * 1024 * 1024))
    with MiniCluster(3, 2, config) as cluster:
        client = cluster.target.open(1)
        overview = client.call(lambda api: api.overview())
        client.close()
        sizes = {executor.config.network.network_memory_bytes for executor in cluster.task_executors}

    assert (overview["taskmanagers"], overview["slots-total"]) == (3, 6)
    assert sizes == {2 * 1024 * 1024}


def test_closing_it_ends_its_jobs_and_all_threads() -> None:
    threads = set(threading.enumerate())
    cluster = MiniCluster()
    job = cluster.execute(endless_shuffle())

    cluster.close()
    cluster.close()

    assert set(threading.enumerate()) == threads
    with pytest.raises(FlowletError, match="was closed"):
        job.status()


def test_a_job_whose_end_fails_does_not_keep_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other jobs and the cluster end, and the error is told."""
    threads = set(threading.enumerate())
    cluster = MiniCluster(2, 2)
    for _ in range(2):
        cluster.execute(endless_shuffle())
    close, num_closed = RunningJob.close, []

    def close_and_fail(job: RunningJob) -> None:
        close(job)
        num_closed.append(job)
        raise OSError("boom")

    monkeypatch.setattr(RunningJob, "close", close_and_fail)

    with pytest.raises(OSError, match="boom"):
        cluster.close()
    assert len(num_closed) == 2
    assert set(threading.enumerate()) == threads


@pytest.mark.slow
def test_jobs_that_were_closed_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that serves many tests must not keep the documents of all their jobs."""
    jobs: weakref.WeakSet[RunningJob] = weakref.WeakSet()
    num_made = 0
    make = RunningJob.__init__

    def made(job: RunningJob, *given: Any, **options: Any) -> None:
        nonlocal num_made
        num_made += 1
        jobs.add(job)
        make(job, *given, **options)

    monkeypatch.setattr(RunningJob, "__init__", made)
    with MiniCluster(1) as cluster:
        env = cluster.environment()
        for _ in range(3):
            env.from_collection([1]).map(lambda number: number)
            env.execute()
        gc.collect()

        assert num_made == 3
        assert len(jobs) <= 1, "the last one may stay until the next one comes"

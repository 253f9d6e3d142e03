"""Clusters that the tests of a module share.  One sets up logging, and hears Ctrl-C, as it does in a user's program.

Tests that take a TaskManager away, or that look at the start or the end of a cluster, have one of their own.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlet.client.remote import JobManagerApi, RemoteTarget
from flowlet.client.running_job import RunningJob
from flowlet.common import Configuration
from flowlet.common.job_status import JobStatus
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink
from flowlet.graph.job_graph import JobGraph
from flowlet.testing.mini_cluster import MiniCluster
from tests import forked_processes
from tests.flowlet.client.jobs import RESTARTING_ONCE, counts, reached, released
from tests.flowlet.client.programs import Programs
from tests.forked_processes import ClusterStarter
from tests.waiting import PATIENCE_S


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Shells start background commands with SIGINT ignored, and programs pass that on: then Ctrl-C would be waited for
    in vain.
    """
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.fixture(scope="module")
def forked_servers(_cluster_starter: ClusterStarter) -> Iterator[None]:
    """The processes from which a module's clusters fork TaskManagers begin with everything imported."""
    with forked_processes.forked_servers(_cluster_starter.server):
        yield


@pytest.fixture(scope="module")
def one_task_manager(unconfigured_logging_of_module: None) -> Iterator[MiniCluster]:
    """Provide a cluster with two slots in one TaskManager."""
    with MiniCluster(num_task_managers=1, slots_per_task_manager=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def two_task_managers(unconfigured_logging_of_module: None) -> Iterator[MiniCluster]:
    """Provide a cluster with two TaskManagers of one slot each: data between two subtasks crosses TCP.

    The TaskManagers know each other: their connections stay from job to job.
    """
    with MiniCluster() as cluster:
        both_ways = cluster.environment()
        both_ways.from_collection([1]).map(abs).rebalance().map(abs).sink_to(DiscardingSink())
        both_ways.execute()
        yield cluster


class SharedCluster:
    """The cluster of a module during one test, whose jobs end with the test."""

    def __init__(self, cluster: MiniCluster) -> None:
        self._cluster = cluster
        self._jobs: list[RunningJob] = []

    @property
    def target(self) -> RemoteTarget:
        return self._cluster.target

    def environment(self) -> StreamExecutionEnvironment:
        return self._cluster.environment()

    def execute(self, job_graph: JobGraph) -> RunningJob:
        self._jobs.append(self._cluster.execute(job_graph))
        return self._jobs[-1]

    def end_jobs(self) -> None:
        """End every job of the cluster, including those whose handle the test has dropped."""
        for held in released.values():
            held.set()
        client = self.target.open(0)
        for document in client.call(JobManagerApi.list_jobs):
            if not JobStatus[document["state"]].is_globally_terminal_state():
                client.call(lambda api, job_id=document["jid"]: api.cancel(job_id))  # type: ignore[misc]  # the default binds it
                assert client.call(lambda api, job_id=document["jid"]: api.wait_terminal(job_id, PATIENCE_S))  # type: ignore[misc]
        client.close()
        for job in self._jobs:
            job.close()


def _clear_signals() -> None:
    for signals in (reached, released, counts):
        signals.clear()


def _for_one_test(cluster: MiniCluster) -> Iterator[SharedCluster]:
    _clear_signals()
    shared = SharedCluster(cluster)
    yield shared
    shared.end_jobs()


@pytest.fixture
def cluster(two_task_managers: MiniCluster) -> Iterator[SharedCluster]:
    yield from _for_one_test(two_task_managers)


@pytest.fixture
def environment(one_task_manager: MiniCluster) -> Iterator[StreamExecutionEnvironment]:
    """Provide the environment of a program without parallelism; its jobs end with the test."""
    for shared in _for_one_test(one_task_manager):
        made = shared.environment().set_parallelism(1)
        yield made
        made.close()


@pytest.fixture
def surviving(tmp_path: Path) -> Iterator[StreamExecutionEnvironment]:
    """Provide the environment of jobs that take checkpoints, with a cluster of their own: it keeps threads for them.

    One attempt may fail.
    """
    _clear_signals()
    made = StreamExecutionEnvironment.get_execution_environment(RESTARTING_ONCE).set_parallelism(1)
    made.configure(Configuration.from_dict({"execution.checkpointing.dir": str(tmp_path / "checkpoints")}))
    yield made.enable_checkpointing(10)
    made.close()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("programs"))

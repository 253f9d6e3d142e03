"""Misdeeds that a user's function may do to the process of its TaskManager, and what its neighbours there hear of
them.
"""

import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flowlet.client.embedded import EmbeddedCluster, EmbeddedTarget
from flowlet.client.executor import execute
from flowlet.client.remote import RemoteTarget
from flowlet.client.running_job import RunningJob
from flowlet.client.translate import translate
from flowlet.common import Configuration
from flowlet.common.job_client import SubmittedJob
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.errors import JobExecutionError
from flowlet.graph.stream_graph import StreamGraph
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.long]

Target = EmbeddedTarget | RemoteTarget


@pytest.fixture
def neighbours() -> Iterator[RemoteTarget]:
    """Yield a cluster with one TaskManager, a process of its own, which has room for two jobs."""
    cluster = EmbeddedCluster.start(1, 2, in_process=False)
    yield RemoteTarget(cluster.host, cluster.port, secret=cluster.secret)
    cluster.close()


class Started:
    """A job that applies a function to 0 to 9 in a task of its own, and whose results are collected."""

    def __init__(self, function: Callable[[int], Any], target: Target, options: dict[str, str] | None = None) -> None:
        environment = StreamExecutionEnvironment(Configuration.from_dict(options or {}), self._submit)
        environment.set_parallelism(1)
        self._target = target
        self.results = environment.from_collection(list(range(10))).rebalance().map(function).execute_and_collect()

    def _submit(self, stream_graph: StreamGraph, *_: object) -> SubmittedJob:
        job_graph = translate(stream_graph)
        self.job = execute(job_graph, self._target)
        return SubmittedJob(self.job, tuple(edge.id for edge in job_graph.external_edges()))

    def wait_until_running(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.job.metrics()["vertices"][1]["subtasks"][0]["metrics"]["num_records_in"] == 0:
            assert time.monotonic() < deadline, "the map has no record"
            time.sleep(0.05)


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    """Yield a function that starts jobs; close these at the end."""
    jobs: list[RunningJob] = []

    def start_one(*arguments: Any) -> Started:
        started = Started(*arguments)
        jobs.append(started.job)
        return started

    yield start_one
    for job in jobs:
        job.close()


def ports_of_a_child(value: int) -> Any:
    """The ports of the network connections that a forked child has."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        found = []
        for name in os.listdir("/proc/self/fd"):
            try:
                found.append(socket.socket(fileno=os.dup(int(name))).getsockname())
            except OSError:
                continue
        os.write(writer, repr([name[1] for name in found if isinstance(name, tuple)]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return os.read(reader, 1000).decode()


def terminate_a_child(_value: int) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(PATIENCE_S,))
    process.start()
    process.terminate()
    process.join(PATIENCE_S)
    return process.exitcode


def leave(value: int) -> int:
    if value == 5:
        os._exit(3)
    return value


def sleep(_value: int) -> None:
    time.sleep(PATIENCE_S)


def test_a_forked_child_has_no_connection_of_its_task_manager(
    neighbours: RemoteTarget, start: Callable[..., Started]
) -> None:
    assert list(start(ports_of_a_child, neighbours).results) == ["[]"] * 10


def test_who_ends_a_child_of_his_does_not_end_the_task_manager(
    neighbours: RemoteTarget, start: Callable[..., Started]
) -> None:
    """A signal to a function's child does not end the TaskManager, although Python passes it on through a socket that
    the child inherits.
    """
    assert list(start(terminate_a_child, neighbours).results) == [-15] * 10


def test_the_error_says_how_the_process_ended(start: Callable[..., Started]) -> None:
    started = start(leave, EmbeddedTarget(1, 1, in_process=False))

    with pytest.raises(JobExecutionError, match=r"TaskManager process \d+ ended with exit code 3"):
        list(started.results)


def test_neighbours_of_a_task_that_does_not_end_are_told_whose_fault_it_is(
    neighbours: RemoteTarget, start: Callable[..., Started]
) -> None:
    """The user who cancels the task is told at once where it stands."""
    neighbour = start(sleep, neighbours)
    stuck = start(sleep, neighbours, {"task.cancellation.timeout": "2500", "task.cancellation.interval": "100"})
    stuck.wait_until_running()
    neighbour.wait_until_running()

    stuck.job.cancel()
    with pytest.raises(JobExecutionError) as told:
        stuck.job.wait(PATIENCE_S)
    with pytest.raises(JobExecutionError) as lost:
        neighbour.job.wait(PATIENCE_S)

    assert "was cancelled\n(these tasks have not ended yet: 'Map' subtask 1/1" in str(told.value)
    assert "operator 'Map', was cancelled" in str(told.value)
    assert "in sleep" in str(told.value)
    assert "task 'Map (1/1)' of job" in str(lost.value)
    assert "did not end within 2.5" in str(lost.value)
    assert "in sleep" in str(lost.value)

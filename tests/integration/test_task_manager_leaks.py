"""A TaskManager that runs many jobs holds no more memory, files and threads afterwards than before."""

import asyncio
import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from bench.memory import Held
from flowlet.client.embedded import EmbeddedCluster
from flowlet.client.executor import execute, to_message
from flowlet.client.remote import RemoteTarget
from flowlet.graph.job_graph import JobEdge, JobGraph
from flowlet.graph.partitioner import KeyGroups
from flowlet.operators.process_operator import MapOperator
from flowlet.sinks.function_sink import DiscardSink
from flowlet.tm.task_executor import TaskExecutorConfig
from netstack.config import NetstackConfig
from tests.flowlet.client.jobs import mapped, source, vertex
from tests.flowlet.task.watchdog import watchdog
from tests.waiting import PATIENCE_S, spin_until

pytestmark = pytest.mark.slow

NUM_TASKS = 1000
NUM_WARM_UP_ROUNDS = 3
MEMORY = NetstackConfig(network_memory_bytes=4 * 1024 * 1024)
WATCHED_PACKAGES = (
    "async_io",
    "chain",
    "connectors",
    "io",
    "mailbox",
    "operators",
    "serde",
    "task",
    "timers",
    "tm",
    "watermarks",
)
WATCHED = ("netstack.", *(f"flowlet.{package}." for package in WATCHED_PACKAGES))
VALUES = list(range(20))


def shuffle() -> JobGraph:
    """Return a job of three tasks in one process: a source, and two that read it by key."""
    head = vertex("head", source(VALUES))
    tail = vertex("tail", MapOperator(lambda value: value + 1, name="map"), DiscardSink(), parallelism=2)
    return JobGraph(
        "shuffle", vertices=[head, tail], edges=[JobEdge(head.id, 0, tail.id, KeyGroups(lambda value: value))]
    )


class Driver:
    """Runs jobs on the one TaskManager of a cluster, one after another."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        (self._executor,) = cluster.task_executors
        self.num_tasks = 0

    def run_round(self) -> None:
        """Run ten tasks: three jobs whose data stays in the process, and one whose results a client reads over TCP."""
        for _ in range(3):
            self._run(shuffle())
        job_graph, edge_id = mapped(VALUES, lambda value: value * 2)
        job = execute(job_graph, RemoteTarget(self._cluster.host, self._cluster.port, secret=self._cluster.secret))
        try:
            assert list(job.collect(edge_id)) == [value * 2 for value in VALUES]
            job.wait()
        finally:
            job.close()
        self.num_tasks += 1

    def _run(self, job_graph: JobGraph) -> None:
        message = to_message(job_graph)
        self._cluster.call(lambda api: api.submit(message))
        document = self._cluster.call(lambda api: api.wait_terminal(message.job_id, PATIENCE_S))
        assert document is not None
        assert document["state"] == "FINISHED", document
        self.num_tasks += sum(each.parallelism for each in message.vertices)

    def settle(self) -> None:
        """Wait until the last connection is closed and the last thread has ended: a job is over for the JobManager a
        moment before.
        """
        network = self._executor.network
        pool = network.buffer_pool

        def is_at_rest() -> bool:
            is_idle = pool.num_available == pool.num_total and not network.num_accepted_connections
            return is_idle and not any(map(is_task_thread, threading.enumerate()))

        spin_until(is_at_rest, f"rest of {network!r}")

    def take_stock(self) -> Held:
        self.settle()
        return self._cluster.run(self._take_stock)

    async def _take_stock(self) -> Held:
        network = self._executor.network
        assert self._executor.heartbeat().tasks == {}
        gc.collect()
        kinds = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
        return Held(
            buffers=network.buffer_pool.num_total - network.buffer_pool.num_available,
            partitions=len(network.partition_manager),
            fds=len(os.listdir("/proc/self/fd")),
            threads=threading.active_count(),
            tasks=len(asyncio.all_tasks()),
            objects={kind: count for kind, count in kinds.items() if kind.startswith(WATCHED)},
        )


def is_task_thread(thread: threading.Thread) -> bool:
    return thread.name.startswith("task ")


@pytest.fixture
def driver() -> Iterator[Driver]:
    cluster = EmbeddedCluster.start(1, 2, in_process=True, config=TaskExecutorConfig(network=MEMORY))
    try:
        yield Driver(cluster)
    finally:
        cluster.close()


@pytest.mark.long
def test_a_thousand_tasks_one_job_after_another_leave_nothing_behind(driver: Driver) -> None:
    """A TaskManager keeps no thread, file descriptor, buffer, partition, asyncio task or object of the data plane."""
    with watchdog(3 * PATIENCE_S):
        for _ in range(NUM_WARM_UP_ROUNDS):
            driver.run_round()
        before, num_before = driver.take_stock(), driver.num_tasks

        while driver.num_tasks < num_before + NUM_TASKS:
            driver.run_round()
        # The JobManager's end of a client's connection closes a moment after the client's.
        deadline = time.monotonic() + PATIENCE_S
        while (after := driver.take_stock()).more_than(before) and time.monotonic() < deadline:
            pass  # a look takes tens of milliseconds

    assert driver.num_tasks == num_before + NUM_TASKS
    assert after.more_than(before) == {}
    assert before.buffers == after.buffers == 0
    assert before.partitions == after.partitions == 0

"""Results come one by one, no faster than they are taken, to their very end."""

import itertools
import time
from collections import deque
from typing import Any

import pytest

from flowlet.client.collect import CollectedValues
from flowlet.client.program.interrupts import Latch
from flowlet.client.running_job import RunningJob
from flowlet.common.job_status import JobStatus
from flowlet.errors import FlowletError, JobExecutionError
from flowlet.graph.job_graph import JobEdge, JobGraph
from flowlet.graph.partitioner import Forward
from flowlet.io.record_writer import MAX_PENDING_RECORDS
from flowlet.operators.process_operator import MapOperator
from netstack.errors import ConnectError
from netstack.transport.network_channel import NetworkChannel
from netstack.transport.server import connect
from tests.flowlet.client.conftest import SharedCluster
from tests.flowlet.client.jobs import (
    ctrl_c_inside,
    endless,
    expected_counts,
    hold,
    mapped,
    reached,
    released,
    source,
    vertex,
    word_count,
)
from tests.waiting import PATIENCE_S


def records_out(job: RunningJob) -> int:
    return sum(
        each["metrics"]["num_records_out"] for vertex in job.metrics()["vertices"] for each in vertex["subtasks"]
    )


def collecting(cluster: SharedCluster, job: tuple[JobGraph, str]) -> tuple[RunningJob, CollectedValues]:
    """Start a job, and read the edge that goes to the client."""
    job_graph, edge_id = job
    running = cluster.execute(job_graph)
    return running, running.collect(edge_id)


def test_the_values_of_all_producers_come_and_then_the_job_has_finished(cluster: SharedCluster) -> None:
    job, results = collecting(cluster, word_count())

    values = list(results)
    job.wait(PATIENCE_S)

    assert sorted(values) == sorted(expected_counts().items())


def test_one_producers_values_keep_their_order_and_their_types(cluster: SharedCluster) -> None:
    values = [1, "two", 3.0, None, (4, [5]), b"six", True, {"seven": 7}] * 1000

    collected = list(collecting(cluster, mapped(values, lambda value: value))[1])

    assert collected == values
    assert [type(value) for value in collected] == [type(value) for value in values]


def test_values_larger_than_a_buffer_arrive_whole(cluster: SharedCluster) -> None:
    sizes = [200_000, 1, 1_000_000]
    _, results = collecting(cluster, mapped(sizes, lambda size: "a" * size))

    assert [len(value) for value in results] == sizes


def test_a_job_without_results_just_ends(cluster: SharedCluster) -> None:
    _, results = collecting(cluster, mapped([], lambda value: value))

    assert list(results) == []
    assert next(results, "end") == "end"


def test_a_task_manager_that_hangs_up_at_first_is_dialled_again(
    cluster: SharedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TaskManager that has no file descriptors left for a moment does not fail the reader."""
    attempts: list[int] = []

    async def hang_up(*args: Any, **options: Any) -> NetworkChannel:
        attempts.append(1)
        if len(attempts) <= 2:
            raise ConnectError("closed before it said anything")
        return await connect(*args, **options)

    monkeypatch.setattr("netstack.connection_manager.connect", hang_up)
    _, results = collecting(cluster, mapped([1, 2, 3], lambda value: value))

    assert list(results) == [1, 2, 3]
    assert len(attempts) == 3


def test_values_come_while_the_job_runs(cluster: SharedCluster) -> None:
    """Values do not wait for the end: the source is still held when the first value is here."""
    num_values = 10 * MAX_PENDING_RECORDS  # so many wait for each other before they are written
    late = mapped(range(num_values), lambda value: hold("late", value) if value == num_values - 1 else value)
    _, results = collecting(cluster, late)

    first = next(results)
    released["late"].set()

    assert first == 0
    # The task would have failed if the test had released it too late.
    assert list(results) == list(range(1, num_values))


def test_a_reader_that_pauses_makes_the_job_pause(cluster: SharedCluster) -> None:
    """Backpressure reaches the source: the job's output stops growing while nothing is taken, and goes on when
    something is.
    """
    job, results = collecting(cluster, endless())
    next(results)
    (subtask,) = job.metrics()["vertices"][0]["subtasks"]
    wait_for_waiting(job)

    before = records_out(job)
    after = records_out(job)
    for _ in itertools.islice(results, before + 1):
        continue

    assert subtask["state"] == "RUNNING"
    assert before == after
    assert next(results) is not None
    results.close()


def wait_for_waiting(job: RunningJob) -> None:
    """Wait until two heartbeats, one after the other, say that the task waits for a buffer."""
    deadline, last_ms = time.monotonic() + PATIENCE_S, 0
    while time.monotonic() < deadline:
        (subtask,) = job.metrics()["vertices"][0]["subtasks"]
        waited_ms = subtask["metrics"]["accumulated_back_pressured_ms"]
        if 0 < last_ms < waited_ms:
            return
        last_ms = waited_ms
    raise AssertionError("the task never waited")


def test_closing_early_cancels_the_job_and_gives_everything_back(cluster: SharedCluster) -> None:
    job, results = collecting(cluster, endless())
    next(results)

    results.close()
    results.close()

    with pytest.raises(JobExecutionError, match="was cancelled"):
        job.wait(PATIENCE_S)
    assert next(results, "end") == "end"


def test_closing_after_the_end_does_not_cancel(cluster: SharedCluster) -> None:
    job, results = collecting(cluster, mapped([1], lambda value: value))
    assert list(results) == [1]

    results.close()

    job.wait(PATIENCE_S)
    assert job.status() is JobStatus.FINISHED


def test_a_failure_while_reading_is_the_users_not_the_networks(cluster: SharedCluster) -> None:
    """The values before it may or may not have come; the error names the function, not the connection."""
    failing = mapped(range(10_000), lambda value: 1 // (9_000 - value) if value else hold("first", value))
    _, results = collecting(cluster, failing)
    released["first"].set()

    reason = r"operator 'map'.*\nwhile processing the record 9000\n(.*\n)*ZeroDivisionError"
    with pytest.raises(JobExecutionError, match=reason):
        list(results)


def test_a_failure_before_reading_is_reported_at_once(cluster: SharedCluster) -> None:
    """The partitions of the job are gone; waiting for them would take ten seconds."""
    job_graph, edge_id = mapped([0], lambda value: 1 // value)
    job = cluster.execute(job_graph)
    with pytest.raises(JobExecutionError):
        job.wait(PATIENCE_S)

    with pytest.raises(JobExecutionError, match="ZeroDivisionError"):
        list(job.collect(edge_id))


def test_a_cancellation_by_somebody_else_ends_the_reading(cluster: SharedCluster) -> None:
    job, results = collecting(cluster, endless())
    next(results)

    job.cancel()

    with pytest.raises(JobExecutionError, match="job 'endless' was cancelled"):
        deque(results, maxlen=0)


def test_ctrl_c_while_reading_cancels_the_job(cluster: SharedCluster) -> None:
    job, results = collecting(cluster, mapped(range(2), lambda value: hold("map", value)))

    with ctrl_c_inside(CollectedValues.__next__, Latch.wait, after=reached["map"]), pytest.raises(KeyboardInterrupt):
        next(results)
    released["map"].set()

    with pytest.raises(JobExecutionError, match="was cancelled"):
        job.wait(PATIENCE_S)


def test_two_edges_of_one_job_can_be_read_one_after_the_other(cluster: SharedCluster) -> None:
    """The task ends only when both edges were read to their ends."""
    head = vertex("head", source(range(5)), MapOperator(lambda value: value * 10))
    plain, tenfold = JobEdge(head.id, 0, None, Forward()), JobEdge(head.id, 1, None, Forward())
    job = cluster.execute(JobGraph("two", vertices=[head], edges=[plain, tenfold]))

    with_plain, with_tenfold = job.collect(plain.id), job.collect(tenfold.id)

    assert list(with_tenfold) == [0, 10, 20, 30, 40]
    assert list(with_plain) == [0, 1, 2, 3, 4]
    job.wait(PATIENCE_S)


def test_closing_the_job_ends_a_reader_with_an_error(cluster: SharedCluster) -> None:
    job, results = collecting(cluster, mapped(range(2), lambda value: hold("map", value)))
    assert reached["map"].wait(PATIENCE_S)

    job.close()
    released["map"].set()

    with pytest.raises(FlowletError):
        next(results)

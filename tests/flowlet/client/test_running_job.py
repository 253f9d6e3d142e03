"""The handle of a job: its end, its failure in words, its counters, its cancellation."""

from typing import Any

import msgspec
import pytest

from flowlet.client.program.interrupts import Latch
from flowlet.client.running_job import RunningJob, describe_end, failure_of
from flowlet.common.job_status import JobStatus
from flowlet.errors import FlowletError, JobExecutionError, RemoteTraceback
from flowlet.graph.job_graph import JobEdge, JobGraph
from flowlet.graph.partitioner import Rebalance
from flowlet.messages.control_messages import FailureInfo
from flowlet.sinks.function_sink import DiscardSink
from flowlet.testing.mini_cluster import MiniCluster
from tests.flowlet.client.conftest import SharedCluster
from tests.flowlet.client.jobs import (
    ctrl_c_inside,
    endless_shuffle,
    expected_counts,
    hold,
    reached,
    released,
    source,
    vertex,
    word_count,
)
from tests.waiting import PATIENCE_S


def discarding() -> JobGraph:
    head, tail = vertex("head", source(range(100))), vertex("tail", DiscardSink(), parallelism=2)
    return JobGraph("discarding", vertices=[head, tail], edges=[JobEdge(head.id, 0, tail.id, Rebalance())])


def failing_split(line: str) -> list[tuple[str, int]]:
    return [(word, int(word)) for word in line.split()]


def test_waiting_for_a_job_gives_its_id_and_its_duration(cluster: SharedCluster) -> None:
    """Cancelling it then changes nothing."""
    job = cluster.execute(discarding())

    result = job.wait(PATIENCE_S)

    assert str(result.get_job_id()) == job.job_id
    assert 0 <= result.get_net_runtime() < PATIENCE_S * 1000
    assert job.status() is JobStatus.FINISHED
    job.cancel()
    assert job.status() is JobStatus.FINISHED


def test_the_counters_of_every_subtask_are_in_the_document_also_after_close(cluster: SharedCluster) -> None:
    job = cluster.execute(discarding())
    job.wait(PATIENCE_S)
    job.close()

    document = job.metrics()

    head, tail = document["vertices"]
    assert [each["metrics"]["num_records_out"] for each in head["subtasks"]] == [100]
    assert sum(each["metrics"]["num_records_in"] for each in tail["subtasks"]) == 100
    assert sum(each["metrics"]["num_bytes_in_remote"] for each in tail["subtasks"]) > 0
    assert sum(each["metrics"]["num_bytes_in_local"] for each in tail["subtasks"]) > 0


def test_a_timeout_leaves_the_job_alone(cluster: SharedCluster) -> None:
    job = cluster.execute(endless_shuffle())

    with pytest.raises(TimeoutError, match=r"job 'endless' has not ended within 0\.01 s"):
        job.wait(0.01)

    assert job.status() in (JobStatus.CREATED, JobStatus.RUNNING)


def test_a_failed_job_shows_task_operator_record_and_the_users_traceback(cluster: SharedCluster) -> None:
    """All that a user needs, without looking into any log."""
    job_graph, edge_id = word_count(["1 2", "3 four"], split=failing_split)
    job = cluster.execute(job_graph)

    with pytest.raises(JobExecutionError) as caught:
        dict(job.collect(edge_id))
    with pytest.raises(JobExecutionError) as again:
        job.wait(PATIENCE_S)

    first, second, third = str(caught.value).splitlines()
    assert first.startswith("job 'word count' failed: task 'split', operator 'flat map', subtask 1/1 on tm-")
    assert second == "while processing the record '3 four'"
    assert third == "ValueError: invalid literal for int() with base 10: 'four'"
    frames = str(caught.value.__cause__).strip().splitlines()
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert frames[0] == "Traceback (most recent call last):"
    assert any("in failing_split" in frame for frame in frames)
    assert not any("flowlet/operators" in frame for frame in frames)
    assert frames[-1] == third
    assert (str(again.value), str(again.value.__cause__)) == (str(caught.value), str(caught.value.__cause__))
    assert job.status() is JobStatus.FAILED


def test_a_cancelled_job_ends_as_cancelled(cluster: SharedCluster) -> None:
    job = cluster.execute(endless_shuffle())

    job.cancel()
    job.cancel()

    with pytest.raises(JobExecutionError, match="job 'endless' was cancelled"):
        job.wait(PATIENCE_S)
    assert job.status() is JobStatus.CANCELED
    job.cancel()


def test_ctrl_c_while_waiting_cancels_the_job(cluster: SharedCluster) -> None:
    """The user wants the job to end, not only their program."""
    job = cluster.execute(endless_shuffle(lambda value: hold("map", value)))
    released["map"].set()

    with ctrl_c_inside(RunningJob.wait, Latch.wait, after=reached["map"]), pytest.raises(KeyboardInterrupt):
        job.wait(PATIENCE_S)

    assert job.status() is JobStatus.CANCELED


def test_a_lost_task_manager_fails_the_job_by_name() -> None:
    reached.clear()
    released.clear()
    with MiniCluster() as cluster:
        job = cluster.execute(endless_shuffle(lambda value: hold("map", value)))
        assert reached["map"].wait(PATIENCE_S)
        released["map"].set()
        lost = cluster.task_executors[1].tm_id

        cluster.stop_task_manager(1)

        with pytest.raises(JobExecutionError, match=lost):
            job.wait(PATIENCE_S)


def test_a_job_that_is_too_wide_for_the_cluster_waits_for_more(cluster: SharedCluster) -> None:
    """The job waits until the JobManager's own timeout; the client sees it as created."""
    wide = vertex("wide", source(range(100)), DiscardSink(), parallelism=3)
    job = cluster.execute(JobGraph("wide", vertices=[wide]))

    assert job.status() is JobStatus.CREATED


def test_closing_twice_is_no_error_and_ends_what_can_be_asked(cluster: SharedCluster) -> None:
    job = cluster.execute(endless_shuffle())

    job.close()
    job.close()

    with pytest.raises(FlowletError, match="was closed"):
        job.status()


def test_two_jobs_run_one_after_the_other_on_one_cluster(cluster: SharedCluster) -> None:
    """The first one gives its slots and buffers back."""
    for _ in range(2):
        job_graph, edge_id = word_count()
        job: RunningJob = cluster.execute(job_graph)

        assert dict(job.collect(edge_id)) == expected_counts()
        job.wait(PATIENCE_S)


def document(state: str, *, task_states: tuple[str, str] = ("FAILED", "CANCELED"), **failure: Any) -> dict[str, Any]:
    info = FailureInfo("E", "m", "", None, "t", 0, None, "tm-1", 0)
    full = {**msgspec.to_builtins(info), **failure} if failure else None
    subtasks = [
        {"subtask": number, "state": ended, "tm_id": f"tm-{number + 1}", "stuck": None}
        for number, ended in enumerate(task_states)
    ]
    vertices = [{"name": "t", "parallelism": 2, "subtasks": subtasks}]
    return {"name": "j", "state": state, "vertices": vertices, "failure": full}


ENDS = {
    "a failure that the JobManager found": (
        document("FAILED", task_name="", subtask=-1, message="job needs 4 slots, the cluster has 2"),
        "job 'j' failed: job needs 4 slots, the cluster has 2",
    ),
    "a failure without a traceback": (
        document("FAILED", message="gone", exception_type="TaskManagerLost"),
        "job 'j' failed: task 't', subtask 1/2 on tm-1\nTaskManagerLost: gone",
    ),
    "a source whose files the JobManager could not list": (
        document("FAILED", subtask=-1, tm_id="", message="cannot read x", exception_type="flowlet.errors.FlowletError"),
        "job 'j' failed: task 't'\nflowlet.errors.FlowletError: cannot read x",
    ),
    "no reason": (document("FAILED"), "job 'j' ended as FAILED"),
    "somebody cancelled it": (document("CANCELED"), "job 'j' was cancelled"),
    "nobody asked for its cancellation": (
        document("CANCELED") | {"cancel-reason": "no sign of life from its client"},
        "job 'j' was cancelled: no sign of life from its client",
    ),
}


@pytest.mark.parametrize(("ended", "text"), ENDS.values(), ids=ENDS)
def test_an_end_is_told_with_its_reason(ended: dict[str, Any], text: str) -> None:
    assert describe_end(ended) == text


@pytest.mark.parametrize(
    ("num_restarts", "expected"),
    [(0, "(not restarted: W)"), (1, "(restarted 1 time, not again: W)"), (3, "(restarted 3 times, not again: W)")],
)
def test_why_a_job_did_not_start_again_is_the_last_line(num_restarts: int, expected: str) -> None:
    """The reason is the last line on the command line and in the error."""
    failed = document("FAILED", message="gone") | {"numRestarts": num_restarts, "why-no-restart": "W"}

    assert describe_end(failed).splitlines()[-1] == expected
    assert str(failure_of(failed)).splitlines()[-1] == expected


def test_tasks_that_do_not_end_are_named() -> None:
    """The job has failed for certain, but a blocked function cannot be interrupted."""
    failing = document("FAILING", task_states=("FAILED", "CANCELING"), message="gone")

    assert describe_end(failing).splitlines()[-1] == "(these tasks have not ended yet: 't' subtask 2/2 on tm-2)"


def test_where_a_task_stands_that_does_not_end_is_shown() -> None:
    """A person who waits for a cancelled job sees it, too."""
    cancelled = document("CANCELLING", task_states=("CANCELED", "CANCELING"))
    stuck = {"waited-ms": 1_400, "operator": "map", "stack": "  File x, in f"}
    cancelled["vertices"][0]["subtasks"][1]["stuck"] = stuck

    assert describe_end(cancelled).splitlines() == [
        "job 'j' was cancelled",
        "(these tasks have not ended yet: 't' subtask 2/2 on tm-2)",
        "'t' subtask 2/2 on tm-2, operator 'map', was cancelled 1 s before, and stood in",
        "  File x, in f",
    ]


def test_results_that_cannot_be_read_are_explained_by_the_task_that_made_the_job_restart(
    cluster: SharedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's own report of lost results is passed over, as it explains nothing."""
    job = cluster.execute(endless_shuffle())
    restarts = [{"task": None, "cause": "the results were lost"}, {"task": "tail (1/2)", "cause": "ValueError: four"}]
    document = {"state": "RUNNING", "numRestarts": 2, "restarts": restarts}
    monkeypatch.setattr(job, "_wait_terminal", lambda _: None)
    monkeypatch.setattr(job, "metrics", lambda: document)

    failure = job.explain(FlowletError("no partition"))

    expected = (
        "its results could not be read: no partition; the job has restarted 2 times, last because of tail "
        "(1/2): ValueError: four"
    )
    assert str(failure) == f"job 'endless': {expected}"

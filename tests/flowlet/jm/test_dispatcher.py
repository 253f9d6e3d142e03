"""Tests of ``flowlet.jm.dispatcher``: several jobs and TaskManagers at once."""

import dataclasses
from pathlib import Path

import msgspec
import pytest

from flowlet.common.job_settings import CheckpointSettings, JobSettings, RestartKind, RestartSettings
from flowlet.errors import JobGraphError
from flowlet.messages import control_messages as messages
from flowlet.messages.execution_state import ExecutionState
from flowlet.messages.job_messages import JobGraphMessage
from flowlet.rpc.requests import RequestError
from tests.flowlet.jm.conftest import Cluster
from tests.flowlet.jm.scripted_task_manager import JOB_ID, registration, user_failure, word_count
from tests.waiting import PATIENCE_S

SECOND_ID, THIRD_ID = "e" * 32, "f" * 32


async def test_a_job_that_fits_passes_one_that_does_not(cluster: Cluster) -> None:
    """The large one is not started with half of its slots either."""
    large, small = cluster.dispatcher.submit(word_count(sinks=2)), cluster.dispatcher.submit(word_count(SECOND_ID))

    task_manager = await cluster.connect()

    assert (await task_manager.expect_deployment()).job_id == SECOND_ID
    assert (large.graph.status.name, small.graph.status.name) == ("CREATED", "RUNNING")


async def test_a_lost_task_manager_fails_only_the_jobs_it_ran(cluster: Cluster) -> None:
    first, second = await cluster.connect("tm-1"), await cluster.connect("tm-2")
    here, there = cluster.dispatcher.submit(word_count()), cluster.dispatcher.submit(word_count(SECOND_ID))
    await first.expect_deployment()
    await second.expect_deployment()

    await first.close()

    assert await here.wait_until_ended(5)
    assert here.graph.status.name == "FAILED"
    assert there.graph.status.name == "RUNNING"


async def test_two_jobs_on_one_lost_task_manager_both_fail(cluster: Cluster) -> None:
    """No job is started again on slots that are gone, and a waiting one goes on waiting."""
    task_manager = await cluster.connect(slots=2)
    running = [cluster.dispatcher.submit(word_count()), cluster.dispatcher.submit(word_count(SECOND_ID))]
    waiting = cluster.dispatcher.submit(word_count(THIRD_ID))
    await task_manager.expect_deployment()

    await task_manager.close()

    assert [await job.wait_until_ended(5) for job in running] == [True, True]
    assert waiting.graph.status.name == "CREATED"


async def test_messages_of_a_session_that_is_over_are_counted_and_ignored(cluster: Cluster) -> None:
    """Such messages may be on their way while the TaskManager has registered again and runs the job's successor."""
    first = await cluster.connect()
    stale = next(iter(cluster.dispatcher.sessions.values()))
    await cluster.connect()
    job = cluster.dispatcher.submit(word_count())
    attempt = next(iter(job.graph.executions))

    cluster.dispatcher.heartbeat(
        stale, messages.TaskManagerHeartbeat("tm-1", {attempt: messages.TaskMetrics(num_records_in=1)})
    )
    cluster.dispatcher.handle(stale, messages.TaskStateChanged(attempt, ExecutionState.FAILED, user_failure()))
    cluster.dispatcher.task_manager_lost(stale, "late")

    assert cluster.dispatcher.num_ignored_messages == 2
    assert job.graph.status.name == "RUNNING"
    assert job.metrics == {}
    await first.expect_close()


async def test_a_stopping_one_takes_no_task_manager_and_no_job(cluster: Cluster) -> None:
    await cluster.dispatcher.close()
    task_manager = await cluster.open()
    await task_manager.send(registration())

    assert (await task_manager.expect(messages.RegistrationRefused)).reason == "the JobManager is shutting down"
    with pytest.raises(RequestError, match="stopping"):
        cluster.dispatcher.submit(word_count())


async def test_a_refused_job_leaves_nothing(cluster: Cluster) -> None:
    job = cluster.dispatcher.submit(word_count())

    with pytest.raises(RequestError, match=JOB_ID):
        cluster.dispatcher.submit(word_count())
    with pytest.raises(JobGraphError):
        cluster.dispatcher.submit(word_count("x"))

    assert list(cluster.dispatcher.jobs.values()) == [job]
    assert cluster.dispatcher.jobs.get("x") is None


async def test_ended_jobs_do_not_count_as_active(unstarted: Cluster) -> None:
    await unstarted.start(max_active_jobs=1)

    for job_id in (JOB_ID, SECOND_ID, THIRD_ID):
        unstarted.dispatcher.submit(word_count(job_id)).cancel()

    assert unstarted.dispatcher.overview()["jobs-cancelled"] == 3


def restartable(job_id: str = JOB_ID) -> JobGraphMessage:
    settings = JobSettings(restart=RestartSettings(RestartKind.FIXED_DELAY, delay_ms=0))
    return msgspec.structs.replace(word_count(job_id), settings=settings)


async def test_a_job_starts_again_on_another_task_manager(cluster: Cluster) -> None:
    """The job has attempts of its own, on slots that no other job has."""
    first, second = await cluster.connect("tm-1"), await cluster.connect("tm-2")
    job = cluster.dispatcher.submit(restartable())
    before = (await first.expect_deployment()).attempt

    await first.close()
    after = (await second.expect_deployment()).attempt

    assert (before[:-4], before[-1], after[-1]) == (after[:-4], 0, 1)
    assert job.graph.status.name == "RUNNING"
    assert cluster.dispatcher.overview()["slots-available"] == 0


async def test_a_job_that_restarts_waits_for_a_task_manager(cluster: Cluster) -> None:
    """A job that restarts counts as running, and takes no slot of a job that was there before."""
    first = await cluster.connect("tm-1")
    job, other = cluster.dispatcher.submit(restartable()), cluster.dispatcher.submit(word_count(SECOND_ID))
    await first.expect_deployment()

    await first.close()
    assert await job.wait_until(lambda: job.graph.attempt_number == 1, 5)
    numbers = cluster.dispatcher.overview()
    second = await cluster.connect("tm-2", 2)
    started = {(await second.expect_deployment()).job_id for _ in range(4)}

    assert numbers["jobs-running"] == 2
    assert started == {JOB_ID, SECOND_ID}
    assert other.graph.status.name == "RUNNING"


async def test_without_another_task_manager_it_fails_with_both_reasons(unstarted: Cluster) -> None:
    await unstarted.start(slot_request_timeout_s=0.05)
    task_manager = await unstarted.connect()
    job = unstarted.dispatcher.submit(restartable())
    await task_manager.expect_deployment()

    await task_manager.close()

    assert await job.wait_until_ended(5)
    assert job.graph.failure is not None
    lost, no_slots, *_ = job.graph.failure.message.splitlines()
    assert lost.startswith("TaskManager tm-1 (127.0.0.1:6000, pid 42) was lost")
    assert no_slots.startswith(
        "and the job could not start again: NoResourceAvailable: job needs 1 slot, the cluster has 0 on 0 TaskManagers"
    )


async def test_a_checkpoint_on_its_way_does_not_stand_in_the_way_of_a_restart(cluster: Cluster, tmp_path: Path) -> None:
    """The checkpoint is aborted for tasks on the lost TaskManager, too, which can get no message any more."""
    first, second = await cluster.connect("tm-1"), await cluster.connect("tm-2")
    settings = dataclasses.replace(restartable().settings, checkpoints=CheckpointSettings(10, str(tmp_path)))
    job = cluster.dispatcher.submit(msgspec.structs.replace(word_count(), settings=settings))
    source, sink = await first.expect_deployment(), await first.expect_deployment()
    for task in (source, sink):
        await first.report(task.attempt, ExecutionState.RUNNING)
    assert (await first.expect(messages.TriggerCheckpoint)).attempt == source.attempt

    await first.close()

    assert (await second.expect_deployment()).attempt[-1] == 1
    assert job.graph.status.name == "RUNNING"


TASK = messages.TaskDeploymentDescriptor("", "", "", "", 0, 1, 1, bytes(40), b"chain", [], [])
ORDERS = [
    TASK,
    messages.CancelTask(bytes(40)),
    messages.AddSplits(bytes(40), [], 0),
    messages.NoMoreSplits(bytes(40)),
    messages.AllowSourceWatermark(bytes(40), 1),
    messages.FinishGate(bytes(40)),
    messages.EmitMark(bytes(40), 1),
    messages.CheckpointAborted(bytes(40), 1),
    messages.ReleaseResults(bytes(40)),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
async def test_an_order_for_a_task_manager_that_was_lost_is_dropped(
    cluster: Cluster, order: messages.ToTaskManager
) -> None:
    """A job may send it before it hears of the loss, by a timer of a JobManager that is ending; one that is there gets
    it.
    """
    await cluster.connect("tm-1")
    there = await cluster.connect("tm-2")
    cluster.dispatcher.task_manager_lost(next(iter(cluster.dispatcher.sessions.values())), "a test")

    for tm_id in ("tm-1", "tm-2"):
        cluster.dispatcher.send(tm_id, order)

    assert (
        msgspec.msgpack.Decoder(messages.union_of(messages.ToTaskManager)).decode(
            await there.websocket.receive(PATIENCE_S)
        )
        == order
    )

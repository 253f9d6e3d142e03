"""Tests of ``flowlet.jm.dispatcher``: several jobs and TaskManagers at once."""

import dataclasses
from pathlib import Path

import msgspec
import pytest

from flowlet.common.job_settings import CheckpointSettings, JobSettings, RestartKind, RestartSettings
from flowlet.errors import JobGraphError
from flowlet.jm.dispatcher import DuplicateJobError
from flowlet.jm.job_manager import JobManager
from flowlet.messages.control_messages import (
    AddSplits,
    AllowSourceWatermark,
    CancelTask,
    CheckpointAborted,
    EmitMark,
    FinishGate,
    JobGraphMessage,
    NoMoreSplits,
    RegistrationRefused,
    ReleaseResults,
    TaskDeploymentDescriptor,
    TaskManagerHeartbeat,
    TaskMetrics,
    TaskStateChanged,
    ToTaskManager,
    TriggerCheckpoint,
    union_of,
)
from flowlet.messages.execution_state import ExecutionState
from tests.flowlet.jm.conftest import Connect, StartJobManager
from tests.flowlet.jm.scripted_task_manager import JOB_ID, ScriptedTaskManager, registration, user_failure, word_count
from tests.waiting import PATIENCE_S

Address = tuple[str, int]
SECOND_ID, THIRD_ID = "e" * 32, "f" * 32


async def test_a_job_that_fits_passes_one_that_does_not(
    address: Address, connect: Connect, job_managers: list[JobManager]
) -> None:
    """The large one is not started with half of its slots either."""
    dispatcher = job_managers[0].dispatcher
    large, small = dispatcher.submit(word_count(sinks=2)), dispatcher.submit(word_count(SECOND_ID))

    task_manager = await connect(address)

    assert (await task_manager.expect_deployment()).job_id == SECOND_ID
    assert (large.graph.status.name, small.graph.status.name) == ("CREATED", "RUNNING")


async def test_a_lost_task_manager_fails_only_the_jobs_it_ran(
    address: Address, connect: Connect, job_managers: list[JobManager]
) -> None:
    dispatcher = job_managers[0].dispatcher
    first, second = await connect(address, "tm-1"), await connect(address, "tm-2")
    here, there = dispatcher.submit(word_count()), dispatcher.submit(word_count(SECOND_ID))
    await first.expect_deployment()
    await second.expect_deployment()

    await first.close()

    assert await here.wait_until_ended(5)
    assert here.graph.status.name == "FAILED"
    assert there.graph.status.name == "RUNNING"


async def test_two_jobs_on_one_lost_task_manager_both_fail(
    address: Address, connect: Connect, job_managers: list[JobManager]
) -> None:
    """No job is started again on slots that are gone, and a waiting one goes on waiting."""
    dispatcher = job_managers[0].dispatcher
    task_manager = await connect(address, slots=2)
    running = [dispatcher.submit(word_count()), dispatcher.submit(word_count(SECOND_ID))]
    waiting = dispatcher.submit(word_count(THIRD_ID))
    await task_manager.expect_deployment()

    await task_manager.close()

    assert [await job.wait_until_ended(5) for job in running] == [True, True]
    assert waiting.graph.status.name == "CREATED"


async def test_messages_of_a_session_that_is_over_are_counted_and_ignored(
    address: Address, connect: Connect, job_managers: list[JobManager]
) -> None:
    """Such messages may be on their way while the TaskManager has registered again and runs the job's successor."""
    dispatcher = job_managers[0].dispatcher
    first = await connect(address)
    stale = next(iter(dispatcher.sessions.values()))
    await connect(address)
    job = dispatcher.submit(word_count())
    attempt = next(iter(job.graph.executions))

    dispatcher.heartbeat(stale, TaskManagerHeartbeat("tm-1", {attempt: TaskMetrics(num_records_in=1)}))
    dispatcher.handle(stale, TaskStateChanged(attempt, ExecutionState.FAILED, user_failure()))
    dispatcher.task_manager_lost(stale, "late")

    assert dispatcher.num_ignored_messages == 2
    assert job.graph.status.name == "RUNNING"
    assert job.metrics == {}
    await first.expect_close()


async def test_a_stopping_one_takes_no_task_manager(address: Address, job_managers: list[JobManager]) -> None:
    await job_managers[0].dispatcher.close()
    task_manager = await ScriptedTaskManager.open(address)
    await task_manager.send(registration())

    assert (await task_manager.expect(RegistrationRefused)).reason == "the JobManager is shutting down"
    await task_manager.close()


async def test_a_refused_job_leaves_nothing(address: Address, job_managers: list[JobManager]) -> None:
    dispatcher = job_managers[0].dispatcher
    job = dispatcher.submit(word_count())

    with pytest.raises(DuplicateJobError, match=JOB_ID):
        dispatcher.submit(word_count())
    with pytest.raises(JobGraphError):
        dispatcher.submit(word_count("x"))

    assert list(dispatcher.jobs.values()) == [job]
    assert dispatcher.jobs.get("x") is None


async def test_ended_jobs_do_not_count_as_active(
    start_job_manager: StartJobManager, job_managers: list[JobManager]
) -> None:
    await start_job_manager(max_active_jobs=1)
    dispatcher = job_managers[0].dispatcher

    for job_id in (JOB_ID, SECOND_ID, THIRD_ID):
        dispatcher.submit(word_count(job_id)).cancel()

    assert dispatcher.overview()["jobs-cancelled"] == 3


def restartable(job_id: str = JOB_ID) -> JobGraphMessage:
    settings = JobSettings(restart=RestartSettings(RestartKind.FIXED_DELAY, delay_ms=0))
    return msgspec.structs.replace(word_count(job_id), settings=settings)


async def test_a_job_starts_again_on_another_task_manager(
    address: Address, connect: Connect, job_managers: list[JobManager]
) -> None:
    """The job has attempts of its own, on slots that no other job has."""
    dispatcher = job_managers[0].dispatcher
    first, second = await connect(address, "tm-1"), await connect(address, "tm-2")
    job = dispatcher.submit(restartable())
    before = (await first.expect_deployment()).attempt

    await first.close()
    after = (await second.expect_deployment()).attempt

    assert (before[:-4], before[-1], after[-1]) == (after[:-4], 0, 1)
    assert job.graph.status.name == "RUNNING"
    assert dispatcher.overview()["slots-available"] == 0


async def test_a_job_that_restarts_waits_for_a_task_manager(
    address: Address, connect: Connect, job_managers: list[JobManager]
) -> None:
    """A job that restarts counts as running, and takes no slot of a job that was there before."""
    dispatcher = job_managers[0].dispatcher
    first = await connect(address, "tm-1")
    job, other = dispatcher.submit(restartable()), dispatcher.submit(word_count(SECOND_ID))
    await first.expect_deployment()

    await first.close()
    assert await job.wait_until(lambda: job.graph.attempt_number == 1, 5)
    numbers = dispatcher.overview()
    second = await connect(address, "tm-2", 2)
    started = {(await second.expect_deployment()).job_id for _ in range(4)}

    assert numbers["jobs-running"] == 2
    assert started == {JOB_ID, SECOND_ID}
    assert other.graph.status.name == "RUNNING"


async def test_without_another_task_manager_it_fails_with_both_reasons(
    start_job_manager: StartJobManager, connect: Connect, job_managers: list[JobManager]
) -> None:
    address = await start_job_manager(slot_request_timeout_s=0.05)
    task_manager = await connect(address, "tm-1")
    job = job_managers[0].dispatcher.submit(restartable())
    await task_manager.expect_deployment()

    await task_manager.close()

    assert await job.wait_until_ended(5)
    assert job.graph.failure is not None
    lost, no_slots, *_ = job.graph.failure.message.splitlines()
    assert lost.startswith("TaskManager tm-1 (127.0.0.1:6000, pid 42) was lost")
    assert no_slots.startswith(
        "and the job could not start again: NoResourceAvailable: job needs 1 slot, the cluster has 0 on 0 TaskManagers"
    )


async def test_a_checkpoint_on_its_way_does_not_stand_in_the_way_of_a_restart(
    address: Address, connect: Connect, job_managers: list[JobManager], tmp_path: Path
) -> None:
    """The checkpoint is aborted for tasks on the lost TaskManager, too, which can get no message any more."""
    dispatcher = job_managers[0].dispatcher
    first, second = await connect(address, "tm-1"), await connect(address, "tm-2")
    settings = dataclasses.replace(restartable().settings, checkpoints=CheckpointSettings(10, str(tmp_path)))
    job = dispatcher.submit(msgspec.structs.replace(word_count(), settings=settings))
    source, sink = await first.expect_deployment(), await first.expect_deployment()
    for task in (source, sink):
        await first.report(task.attempt, ExecutionState.RUNNING)
    assert (await first.expect(TriggerCheckpoint)).attempt == source.attempt

    await first.close()

    assert (await second.expect_deployment()).attempt[-1] == 1
    assert job.graph.status.name == "RUNNING"


TASK = TaskDeploymentDescriptor("", "", "", "", 0, 1, 1, bytes(40), b"chain", [], [])
ORDERS = [
    TASK,
    CancelTask(bytes(40)),
    AddSplits(bytes(40), [], 0),
    NoMoreSplits(bytes(40)),
    AllowSourceWatermark(bytes(40), 1),
    FinishGate(bytes(40)),
    EmitMark(bytes(40), 1),
    CheckpointAborted(bytes(40), 1),
    ReleaseResults(bytes(40)),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
async def test_an_order_for_a_task_manager_that_was_just_lost_is_dropped(
    address: Address, connect: Connect, job_managers: list[JobManager], order: ToTaskManager
) -> None:
    """A job may send it before it hears of the loss, by a timer of a JobManager that is ending; one that is there gets
    it.
    """
    dispatcher = job_managers[0].dispatcher
    await connect(address, "tm-1")
    there = await connect(address, "tm-2")
    dispatcher.task_manager_lost(next(iter(dispatcher.sessions.values())), "a test")

    for tm_id in ("tm-1", "tm-2"):
        dispatcher.send(tm_id, order)

    assert msgspec.msgpack.Decoder(union_of(ToTaskManager)).decode(await there.websocket.receive(PATIENCE_S)) == order

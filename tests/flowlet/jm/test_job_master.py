"""Tests of ``flowlet.jm.job_master``: effects become orders, and all waiting callers are told."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowlet.common.watermark_strategy import WatermarkAlignment
from flowlet.jm.job_document import describe_stuck, mark_waits_for
from flowlet.jm.job_master import JobMaster
from flowlet.messages import control_messages as messages
from flowlet.messages.execution_state import ExecutionState
from flowlet.messages.job_messages import RemoteGateMessage
from flowlet.splits.split_kinds import FileSet
from tests.flowlet.jm.recorder import PLACE, Recorder
from tests.flowlet.jm.scripted_task_manager import COLLECT_ID, SOURCE_ID, user_failure, word_count
from tests.flowlet.rpc.manual_timers import ManualTimers
from tests.waiting import PATIENCE_S


@pytest.fixture
async def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def master(recorder: Recorder) -> JobMaster:
    """Start a job with a source and a sink; it is deployed."""
    return deployed(recorder)


def report(
    master: JobMaster, attempt: bytes, state: ExecutionState, *, tm_id: str = "tm-1", num_records: int | None = None
) -> bool:
    failure = user_failure() if state is ExecutionState.FAILED else None
    metrics = None if num_records is None else messages.TaskMetrics(num_records_in=num_records)
    return master.handle(tm_id, messages.TaskStateChanged(attempt, state, failure, metrics))


async def test_tasks_are_deployed_with_their_code_which_is_then_dropped(master: JobMaster, recorder: Recorder) -> None:
    """External channels are known without the code."""
    assert [task.chain for task in recorder.deployed] == [b"chain of source", b"chain of sink"]
    assert [vertex.chain for vertex in master.job.vertices] == [b"", b""]
    assert [edge.partitioner for edge in master.job.edges] == [b"", b""]

    (channel,) = master.plan.external_channels(next(each for each in master.job.edges if each.id == COLLECT_ID))

    assert (channel.producer, channel.port) == (recorder.deployed[1].attempt, 6000)


async def test_the_owner_is_told_once_and_last(master: JobMaster, recorder: Recorder) -> None:
    source, sink = master.graph.executions
    report(master, source, ExecutionState.FAILED)
    before = list(recorder.ended)
    report(master, sink, ExecutionState.CANCELED)
    report(master, sink, ExecutionState.FAILED)
    master.cancel()

    assert before == []
    assert recorder.ended == [(master, 1)]


async def test_metrics_are_those_of_the_tasks_own_task_manager_and_its_last_message_is_final(master: JobMaster) -> None:
    source, _ = master.graph.executions
    assert not master.task_metrics("tm-2", source, messages.TaskMetrics(num_records_in=5))
    assert not report(master, source, ExecutionState.RUNNING, tm_id="tm-2", num_records=5)
    assert not master.task_metrics("tm-1", b"x" * 40, messages.TaskMetrics())
    assert master.metrics == {}
    report(master, source, ExecutionState.FINISHED, num_records=9)

    assert master.task_metrics("tm-1", source, messages.TaskMetrics(num_records_in=5)), "it comes late"

    assert master.metrics[source].num_records_in == 9


async def test_who_waits_for_the_deployment_is_woken_by_the_end_as_well(recorder: Recorder) -> None:
    """A job that ends without slots drops its code, too."""
    master = JobMaster(word_count(), recorder, lambda: 1_000)

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(master.wait_until_deployed(10))
        asyncio.get_running_loop().call_soon(master.fail_scheduling, "no slots")

    assert waiting.result() is True
    assert master.is_ended
    assert master.graph.failure is not None
    assert master.graph.failure.message == "no slots"
    assert [vertex.chain for vertex in master.job.vertices] == [b"", b""]


async def test_a_wait_ends_with_its_time(master: JobMaster) -> None:
    assert await master.wait_until_ended(0) is False
    assert await master.wait_until_deployed(0) is True


async def test_a_failing_job_whose_tasks_do_not_end_has_a_result_after_the_grace(master: JobMaster) -> None:
    """The client hears of the failure although a function is blocked for ever; the job itself goes on failing."""
    source, _ = master.graph.executions
    assert not await master.wait_for_result(0.0, 0.001)

    report(master, source, ExecutionState.FAILED)

    assert not await master.wait_for_result(0.0, 60.0), "not before the grace is over"
    assert await master.wait_for_result(PATIENCE_S, 0.001)
    assert not master.is_ended


async def test_a_failing_job_that_ends_within_the_grace_is_reported_as_ended(master: JobMaster) -> None:
    source, sink = master.graph.executions
    report(master, source, ExecutionState.FAILED)
    waiting = asyncio.create_task(master.wait_for_result(PATIENCE_S, PATIENCE_S))
    await asyncio.sleep(0)

    report(master, sink, ExecutionState.CANCELED)

    assert await waiting
    assert master.is_ended


def deployed(recorder: Recorder, **source_fields: Any) -> JobMaster:
    """Start a job whose source has these fields; it is deployed."""
    source, sink = word_count().vertices
    vertices = [msgspec.structs.replace(source, **source_fields), sink]
    master = JobMaster(msgspec.structs.replace(word_count(), vertices=vertices), recorder, lambda: 1_000)
    master.start(dict.fromkeys(master.graph.executions, PLACE))
    return master


async def test_aligned_sources_are_told_how_far_they_may_be_until_the_job_ends(recorder: Recorder) -> None:
    """Reports of others, or from elsewhere, do not count."""
    master = deployed(recorder, watermark_alignment=WatermarkAlignment("group", 100, 10))
    source, sink = master.graph.executions

    assert master.graph.executions[source].vertex_id == SOURCE_ID
    assert master.handle("tm-1", messages.SourceWatermarkReported(source, 1_000))
    assert not master.handle("tm-2", messages.SourceWatermarkReported(source, 5))
    assert not master.handle("tm-1", messages.SourceWatermarkReported(sink, 5))
    assert not master.handle("tm-1", messages.SourceWatermarkReported(bytes(40), 5))
    recorder.was_told.clear()
    await recorder.told()
    assert recorder.allowed[-1] == (source, 1_100)
    report(master, source, ExecutionState.FAILED)
    report(master, sink, ExecutionState.CANCELED)
    num_told = len(recorder.allowed)

    assert not master.handle("tm-1", messages.SourceWatermarkReported(source, 5))
    assert not master._alignment._timers
    assert len(recorder.allowed) == num_told


async def source_job(recorder: Recorder, *paths: Path) -> JobMaster:
    """Start a job with a source of files, which the JobManager lists, and a sink; it is deployed."""
    return deployed(recorder, split_set=FileSet(tuple(str(path) for path in paths)))


async def test_a_source_gets_splits_when_it_asks(recorder: Recorder, tmp_path: Path) -> None:
    """A request from another TaskManager, from a task without a source or for an unknown attempt is ignored."""
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.write_bytes(b"x" * 3_000_000)
    master = await source_job(recorder, *paths)
    source, sink = master.graph.executions

    for tm_id, attempt in (("tm-2", source), ("tm-1", sink), ("tm-1", bytes(40))):
        assert not master.handle(tm_id, messages.SplitsRequested(attempt))
    for _ in range(3):
        recorder.was_told.clear()
        assert master.handle("tm-1", messages.SplitsRequested(source))
        await recorder.told()

    assert recorder.splits == [(source, [f"{paths[0]}:0"], 3_000_000), (source, [f"{paths[1]}:0"], 0), (source, [], 0)]
    assert [vertex.split_set for vertex in master.job.vertices] == [None, None]
    report(master, source, ExecutionState.FAILED)
    assert not master.handle("tm-1", messages.SplitsRequested(source))


async def test_files_that_cannot_be_listed_fail_the_job(recorder: Recorder, tmp_path: Path) -> None:
    master = await source_job(recorder, tmp_path / "missing")
    source, sink = master.graph.executions

    assert await master.wait_until(lambda: master.graph.failure is not None, PATIENCE_S)

    assert master.graph.failure is not None
    assert master.graph.failure.message == f"cannot read {tmp_path / 'missing'}: No such file or directory"
    assert (master.graph.failure.task_name, master.graph.failure.subtask) == ("source", -1)
    assert recorder.cancelled == [source, sink]
    assert master.handle("tm-1", messages.SplitsRequested(source)), "it does not know yet"
    assert recorder.splits == []


async def test_a_job_that_is_being_cancelled_hands_out_nothing(recorder: Recorder, tmp_path: Path) -> None:
    """The reader may be on a TaskManager that is gone."""
    (tmp_path / "a").write_text("x")
    master = await source_job(recorder, tmp_path / "a")
    source, _ = master.graph.executions
    assert master.handle("tm-1", messages.SplitsRequested(source))

    master.cancel()
    master.handle("tm-1", messages.SplitsRequested(source))

    assert "closed" in repr(master._sources)
    assert recorder.splits == []


class TestClientHeartbeats:
    @staticmethod
    def start(timers: ManualTimers, timeout_ms: int | None) -> tuple[JobMaster, Recorder]:
        recorder = Recorder()
        job = msgspec.structs.replace(word_count(), client_heartbeat_timeout_ms=timeout_ms)
        master = JobMaster(job, recorder, lambda: 1_000, timers)
        master.start(dict.fromkeys(master.graph.executions, PLACE))
        return master, recorder

    async def test_a_job_without_its_client_is_cancelled_after_the_timeout(self) -> None:
        """A job without its client would wait for the reader of its results for ever."""
        timers = ManualTimers()
        master, recorder = self.start(timers, 30_000)

        timers.advance(29)
        master.lease.renew()
        timers.advance(29.5)
        before = list(recorder.cancelled)
        timers.advance(0.5)

        assert before == []
        assert len(recorder.cancelled) == 2
        assert master.graph.status.name == "CANCELLING"
        assert master.graph.cancel_reason is not None
        assert master.graph.cancel_reason.startswith(
            "no sign of life from its client for 30 s (client.heartbeat.timeout)"
        )

    async def test_a_detached_job_goes_on_for_ever(self) -> None:
        timers = ManualTimers()
        master, recorder = self.start(timers, None)
        master.lease.renew()

        timers.advance(10**9)

        assert recorder.cancelled == []
        assert timers.timers == []

    async def test_a_job_that_was_cancelled_before_needs_no_client_and_keeps_its_reason(self) -> None:
        timers = ManualTimers()
        master, _ = self.start(timers, 30_000)
        master.cancel()
        timers.advance(60)

        assert (master.graph.status.name, master.graph.cancel_reason) == ("CANCELLING", None)

    async def test_one_that_ended_is_watched_no_longer(self) -> None:
        timers = ManualTimers()
        master, _ = self.start(timers, 30_000)
        for attempt in list(master.graph.executions):
            for state in (ExecutionState.INITIALIZING, ExecutionState.RUNNING, ExecutionState.FINISHED):
                master.handle("tm-1", messages.TaskStateChanged(attempt, state))

        assert master.graph.status.name == "FINISHED"
        assert [timer.is_cancelled for timer in timers.timers] == [True]


async def test_who_waits_for_a_cancelled_job_is_told_which_task_does_not_end(master: JobMaster) -> None:
    """The cancellation is not over, but its result is known; the report is forgotten when the task ends after all."""
    source, sink = master.graph.executions
    report(master, source, ExecutionState.RUNNING)
    stuck = messages.TaskStuck(source, 1_000, "split", "in split")
    assert not master.handle("tm-1", stuck), "it was not cancelled"
    master.cancel()
    waiter = asyncio.create_task(master.wait_for_result(PATIENCE_S, failure_grace_s=PATIENCE_S))
    await asyncio.sleep(0)

    assert not master.handle("tm-2", stuck), "it runs elsewhere"
    assert master.handle("tm-1", stuck)

    assert await waiter
    assert not master.is_ended
    assert master.stuck == {source: stuck}
    assert "'source' on tm-1 in\nin split" in describe_stuck(master)
    report(master, source, ExecutionState.CANCELED)
    assert not master.stuck
    assert not await master.wait_for_result(0, failure_grace_s=PATIENCE_S)
    report(master, sink, ExecutionState.CANCELED)
    assert await master.wait_for_result(0, failure_grace_s=PATIENCE_S)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_mark_goes_to_the_sources_and_is_complete_unless_the_job_ends(
    recorder: Recorder, *, is_cancelled: bool
) -> None:
    """A task that has failed has not passed the mark; in a job that was cancelled none has."""
    master = deployed(recorder, remote_gate=RemoteGateMessage("clicks", "Long", b"F" * 16, b""))
    source, sink = master.graph.executions

    assert master.handle("tm-1", messages.MarkRequested(source, 0))
    assert not master.handle("tm-2", messages.MarkRequested(source, 1))
    assert master.handle("tm-1", messages.MarkPassed(source, 1))
    assert recorder.marks == [messages.EmitMark(source, 1)]
    assert mark_waits_for(master) == ["sink (subtask 0)"]
    assert master.handle("tm-1", messages.MarkPassed(sink, 1))
    assert recorder.marks == [messages.EmitMark(source, 1), messages.MarkCompleted(source, 1)]

    master.handle("tm-1", messages.MarkRequested(source, 1))
    master.handle("tm-1", messages.MarkPassed(source, 2))
    if is_cancelled:
        master.cancel()
        master.handle("tm-1", messages.MarkPassed(sink, 2))
    else:
        report(master, sink, ExecutionState.FAILED)
    assert recorder.marks[2:] == [messages.EmitMark(source, 2)]

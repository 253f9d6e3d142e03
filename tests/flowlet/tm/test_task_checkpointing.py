"""The checkpoints of one attempt: the files, the messages to the JobManager, and the state of a restored task."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from flowlet.chain.stream_operator import StreamOperator
from flowlet.checkpoint.task.barrier_orders import CheckpointError, CheckpointFailureReason
from flowlet.checkpoint.task.channel_state_writer import decode_channels, encode_channels
from flowlet.checkpoint.task.single_checkpoint_barrier_handler import BarrierMode
from flowlet.checkpoint.task.snapshots import ChannelStateSnapshot, OperatorState, RecoveredStream, SubtaskState
from flowlet.checkpoint.task.state_codec import encode_state
from flowlet.common.job_settings import CheckpointSettings, JobSettings
from flowlet.errors import FlowletError, StateRestoreError
from flowlet.messages.control_messages import (
    CheckpointAborted,
    CheckpointAcknowledged,
    CheckpointCompleted,
    CheckpointDeclined,
    CheckpointDurations,
    TriggerCheckpoint,
)
from flowlet.messages.execution_state import ExecutionState
from flowlet.messages.job_messages import RestoredEdge, RestoredState, RestoredVertex, StateHandle, SubtaskEntry
from flowlet.operators.source_operator import SourceOperator
from flowlet.operators.source_reader import Source, SourceReader
from flowlet.records import Chunk
from flowlet.sinks.function_sink import DiscardSink
from flowlet.state.state_snapshots import OperatorStateRows, OperatorStateSnapshot, Redistribution
from flowlet.tm.task_checkpointing import TaskCheckpointing
from netstack.wire.events import Alignment, CheckpointBarrier, CheckpointOptions
from tests.flowlet.tm.checkpoint_rig import SETTINGS, Rig, checkpoint_rig
from tests.flowlet.tm.recording_executor import ATTEMPT, JOB_ID, VERTEX_ID, ended
from tests.waiting import PATIENCE_S

SINK_ID = b"remembering sink"
STATE = SubtaskState({SINK_ID.hex(): OperatorState(7)})
OPERATORS = {SINK_ID.hex(): DiscardSink(name="remembering")}
METRICS = CheckpointDurations(2, 3, 5, 6, 40)


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    async with checkpoint_rig() as made:
        yield made


def checkpointing(rig: Rig, **fields: object) -> TaskCheckpointing:
    descriptor = msgspec.structs.replace(rig.task(DiscardSink()).descriptor, **fields)
    return TaskCheckpointing(descriptor, "t (1/1)", rig.checkpoints, rig.send_threadsafe)


def opened(rig: Rig, **fields: object) -> TaskCheckpointing:
    made = checkpointing(rig, **fields)
    assert made.open(OPERATORS) is not None
    return made


# ---------------------------------------------------------------- the responder


async def test_an_acknowledgement_is_sent_when_its_state_is_written(rig: Rig) -> None:
    """An acknowledgement never blocks its caller, and the time of the write is part of the asynchronous part."""
    responder = opened(rig)
    rig.storage.release.clear()

    responder.acknowledge_checkpoint(5, METRICS, STATE)
    assert await asyncio.to_thread(rig.storage.is_writing.wait, PATIENCE_S)
    await rig.passed()
    assert (rig.reports, responder.statistics.num_acknowledged) == ([], 0)
    rig.now_ns = 10_000_000
    rig.storage.release.set()
    await rig.until(lambda: rig.reports)

    ((path, content),) = rig.storage.states.items()
    assert path == f"chk-5/{VERTEX_ID}-0-2", "the attempt is part of the name"
    (report,) = rig.reports
    assert report.durations == CheckpointDurations(2, 3, 5, 6 + 10, 40)
    assert (report.attempt, report.checkpoint_id) == (ATTEMPT, 5)
    assert (report.part.state, report.part.is_finished) == (StateHandle(len(content), b"", path), False)
    assert responder.statistics.num_acknowledged == 1
    assert responder.statistics.last == report.durations
    assert rig.storage.opened_with == [("memory", JOB_ID)]


@pytest.mark.parametrize("redistribution", list(Redistribution))
async def test_an_acknowledgement_says_whether_every_subtask_needs_the_state(
    rig: Rig, redistribution: Redistribution
) -> None:
    """The JobManager gives such state to all subtasks at a restart."""
    rows = OperatorStateRows(redistribution, "T", (1,))
    state = OperatorState(by_subtask=OperatorStateSnapshot({"state": rows}))

    opened(rig).acknowledge_checkpoint(5, METRICS, SubtaskState({SINK_ID.hex(): state}))
    await rig.until(lambda: rig.reports)

    (report,) = rig.reports
    assert report.part.has_union_state is (redistribution is Redistribution.UNION)


@pytest.mark.parametrize("is_finished", [False, True])
async def test_a_subtask_without_state_writes_nothing(rig: Rig, is_finished: bool) -> None:
    responder = opened(rig)

    responder.acknowledge_checkpoint(5, METRICS, SubtaskState(is_finished=is_finished))
    await rig.until(lambda: rig.reports)

    assert rig.reports == [CheckpointAcknowledged(ATTEMPT, 5, SubtaskEntry(VERTEX_ID, 0, None, is_finished), METRICS)]
    assert rig.storage.states == {}


async def test_a_storage_that_fails_declines_the_checkpoint(rig: Rig) -> None:
    """The next one may succeed; it is counted as declined only."""
    responder = opened(rig)
    rig.storage.error = FlowletError("disk full at /x")

    responder.acknowledge_checkpoint(5, METRICS, STATE)
    await rig.until(lambda: rig.reports)
    rig.storage.error = None
    responder.acknowledge_checkpoint(6, METRICS, STATE)
    await rig.until(lambda: len(rig.reports) == 2)

    declined, acknowledged = rig.reports
    assert isinstance(declined, CheckpointDeclined)
    assert (declined.attempt, declined.checkpoint_id, declined.reason) == (ATTEMPT, 5, "ASYNCHRONOUS_PART_FAILED")
    assert "t (1/1)" in declined.message
    assert "disk full at /x" in declined.message
    assert isinstance(acknowledged, CheckpointAcknowledged)
    assert (responder.statistics.num_acknowledged, responder.statistics.num_declined) == (1, 1)


def refuse(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_a_state_that_no_thread_can_write_declines_the_checkpoint(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    responder = opened(rig)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        responder.acknowledge_checkpoint(5, METRICS, STATE)
    await rig.until(lambda: rig.reports)

    (report,) = rig.reports
    assert (type(report), report.reason) == (CheckpointDeclined, "ASYNCHRONOUS_PART_FAILED")
    assert "can't start new thread" in report.message
    assert "[] being written" in repr(responder)


class Failing:
    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[object, ...]:
        raise self._error


@pytest.mark.parametrize(("error", "name"), [(SystemExit(3), "SystemExit"), (ValueError("bad"), "'remembering'")])
async def test_state_that_cannot_be_pickled_declines_the_checkpoint(rig: Rig, error: BaseException, name: str) -> None:
    """The checkpoint is declined whatever a user's pickling code does."""
    responder = opened(rig)

    responder.acknowledge_checkpoint(5, METRICS, SubtaskState({SINK_ID.hex(): OperatorState(Failing(error))}))
    await rig.until(lambda: rig.reports)

    (report,) = rig.reports
    assert isinstance(report, CheckpointDeclined)
    assert name in report.message


@pytest.mark.parametrize("end", ["close", "abort"])
async def test_nothing_is_sent_when_the_task_or_the_checkpoint_has_ended_during_the_write(rig: Rig, end: str) -> None:
    responder = opened(rig)
    rig.storage.release.clear()
    responder.acknowledge_checkpoint(5, METRICS, STATE)
    assert await asyncio.to_thread(rig.storage.is_writing.wait, PATIENCE_S)

    if end == "close":
        responder.close()
        responder.decline_checkpoint(6, CheckpointError(6, CheckpointFailureReason.TASK_CLOSING))
        responder.acknowledge_checkpoint(7, METRICS, SubtaskState())
    else:
        responder.handle(CheckpointAborted(ATTEMPT, 5), None)
    rig.storage.release.set()
    assert rig.checkpoints.pool.close(PATIENCE_S)
    await rig.passed()

    assert rig.reports == []
    assert responder.statistics.num_acknowledged == responder.statistics.num_declined == 0


async def test_what_was_aborted_before_it_is_acknowledged_is_not_written(rig: Rig) -> None:
    """The JobManager has removed the files of that checkpoint."""
    responder = opened(rig)

    responder.handle(CheckpointAborted(ATTEMPT, 5), None)
    responder.acknowledge_checkpoint(5, METRICS, STATE)
    responder.acknowledge_checkpoint(6, METRICS, STATE)
    await rig.until(lambda: rig.reports)

    assert [report.checkpoint_id for report in rig.reports if isinstance(report, CheckpointAcknowledged)] == [6]
    assert list(rig.storage.states) == [f"chk-6/{VERTEX_ID}-0-2"]


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        (CheckpointSettings(1000, "x"), BarrierMode.ALIGNED),
        (CheckpointSettings(1000, "x", is_unaligned=True), BarrierMode.ALTERNATING),
        (CheckpointSettings(1000, "x", is_exactly_once=False, after_tasks_finish=False, max_concurrent=3), None),
    ],
)
async def test_the_jobs_settings_reach_the_task(
    rig: Rig, settings: CheckpointSettings, mode: BarrierMode | None
) -> None:
    made = checkpointing(rig, settings=JobSettings(checkpoints=settings)).open(OPERATORS)

    assert made is not None
    assert (made.mode, made.are_taken_after_finish, made.max_concurrent) == (
        mode,
        settings.after_tasks_finish,
        settings.max_concurrent,
    )


async def test_a_job_without_checkpoints_has_none_and_cannot_be_restored(rig: Rig) -> None:
    assert checkpointing(rig, settings=JobSettings()).open(OPERATORS) is None
    with pytest.raises(StateRestoreError, match=r"t \(1/1\) shall be restored"):
        checkpointing(rig, settings=JobSettings(), restored=RestoredState(3)).open(OPERATORS)


# ---------------------------------------------------------------- whole tasks

seen: list[object] = []
on_snapshot: Callable[[], object] = dict
on_open: Callable[[], object] = dict


class Remembering(StreamOperator):
    """A sink that notes its calls."""

    name = "remembering"
    operator_id = SINK_ID

    def initialize_state(self, state: object | None) -> None:
        seen.append(("restored", state))

    def open(self) -> None:
        on_open()
        seen.append("open")

    def process_chunk(self, chunk: Chunk) -> None:
        seen.append(list(chunk.values))

    def snapshot_state(self, checkpoint_id: int) -> object:
        on_snapshot()
        return checkpoint_id

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        seen.append(("complete", checkpoint_id))
        told.set()

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        seen.append(("aborted", checkpoint_id))
        told.set()

    def finish(self) -> None:
        seen.append("finish")

    def close(self) -> None:
        seen.append("close")


class Idle(Source):
    """A source that has no records, and ends when the test says so."""

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        return _IdleReader()


class _IdleReader:
    def poll_chunk(self) -> Chunk | None:
        return None if ending.is_set() else Chunk([])

    def close(self) -> None:
        pass


told, ending = threading.Event(), threading.Event()


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    seen.clear()
    told.clear()
    ending.clear()
    monkeypatch.setitem(globals(), "on_snapshot", dict)
    monkeypatch.setitem(globals(), "on_open", dict)


async def test_a_running_task_acknowledges_and_hears_what_became_of_it(rig: Rig) -> None:
    task = await rig.running(SourceOperator(Idle()), Remembering())

    report = await rig.answer(task, 1)
    task.handle(CheckpointCompleted(ATTEMPT, 1))
    assert await asyncio.to_thread(told.wait, PATIENCE_S)
    told.clear()
    task.handle(CheckpointAborted(ATTEMPT, 2))
    assert await asyncio.to_thread(told.wait, PATIENCE_S)

    assert report.part.state is not None
    assert seen == [("restored", None), "open", ("complete", 1), ("aborted", 2)]
    metrics = task.metrics()
    assert (metrics.num_checkpoints, metrics.num_declined_checkpoints, metrics.last_checkpoint_id) == (1, 0, 1)
    await rig.cancelled(task)
    assert rig.states[-1] is ExecutionState.CANCELED


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"is_exactly_once": False}, CheckpointOptions(alignment=Alignment.AT_LEAST_ONCE)),
        ({}, CheckpointOptions()),
        ({"is_unaligned": True}, CheckpointOptions(alignment=Alignment.UNALIGNED)),
        ({"is_unaligned": True, "aligned_timeout_ms": 70}, CheckpointOptions(aligned_timeout_ms=70)),
    ],
)
async def test_the_jobs_settings_say_how_barriers_are_sent(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], options: CheckpointOptions
) -> None:
    settings = JobSettings(checkpoints=replace(SETTINGS.checkpoints, **fields))  # type: ignore[type-var]
    task = await rig.running(SourceOperator(Idle()), Remembering(), settings=settings)
    stream_task = task._stream_task
    assert stream_task is not None
    assert stream_task.checkpoints is not None
    seen: list[object] = []
    trigger = stream_task.checkpoints.trigger_checkpoint_async

    def note(barrier: CheckpointBarrier) -> object:
        seen.append(barrier.options)
        return trigger(barrier)

    monkeypatch.setattr(stream_task.checkpoints, "trigger_checkpoint_async", note)

    report = await rig.answer(task, 1)

    assert isinstance(report, CheckpointAcknowledged)
    assert seen == [options]


async def test_a_task_that_does_not_run_declines(rig: Rig) -> None:
    """A task that has not started declines; one that has been cancelled says nothing any more."""
    task = rig.task(SourceOperator(Idle()), Remembering())

    report = await rig.answer(task, 1)

    assert isinstance(report, CheckpointDeclined)
    assert (report.attempt, report.checkpoint_id, report.reason) == (ATTEMPT, 1, "TASK_NOT_READY")
    assert "t (1/1)" in report.message

    task.start()
    await rig.until(lambda: ExecutionState.RUNNING in rig.states)
    await rig.cancelled(task)
    task.handle(TriggerCheckpoint(ATTEMPT, 2, 0))
    await rig.passed()
    assert len(rig.reports) == 1


async def test_a_task_whose_operators_open_declines(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task would take the checkpoint much later, and the other tasks would wait for its barrier."""
    opening, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        opening.set()
        assert go_on.wait(PATIENCE_S)

    monkeypatch.setitem(globals(), "on_open", hold)
    task = rig.task(SourceOperator(Idle()), Remembering())
    task.start()
    assert await asyncio.to_thread(opening.wait, PATIENCE_S)

    report = await rig.answer(task, 1)
    go_on.set()
    await rig.until(lambda: ExecutionState.RUNNING in rig.states)

    assert isinstance(report, CheckpointDeclined)
    assert report.reason == "TASK_NOT_READY"
    assert isinstance(await rig.answer(task, 2), CheckpointAcknowledged)


async def test_nothing_is_sent_for_a_task_that_ended_while_its_state_was_written(rig: Rig) -> None:
    settings = JobSettings(checkpoints=CheckpointSettings(1000, "x", after_tasks_finish=False))
    task = await rig.running(SourceOperator(Idle()), Remembering(), settings=settings)
    rig.storage.release.clear()
    task.handle(TriggerCheckpoint(ATTEMPT, 1, 0))
    assert await asyncio.to_thread(rig.storage.is_writing.wait, PATIENCE_S)

    ending.set()
    await ended(task)
    rig.storage.release.set()
    assert rig.checkpoints.pool.close(PATIENCE_S)
    await rig.passed()

    assert rig.states[-1] is ExecutionState.FINISHED
    assert rig.reports == []


async def test_a_snapshot_that_fails_fails_the_task_and_the_checkpoint(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ValueError("no snapshot today")

    monkeypatch.setitem(globals(), "on_snapshot", fail)
    task = await rig.running(SourceOperator(Idle()), Remembering())

    report = await rig.answer(task, 1)
    await ended(task)

    assert isinstance(report, CheckpointDeclined)
    assert report.reason == "SYNCHRONOUS_PART_FAILED"
    assert "no snapshot today" in report.message
    assert rig.states[-1] is ExecutionState.FAILED
    assert "no snapshot today" in rig.failure.message


async def test_a_task_whose_snapshot_finds_no_thread_declines_it_and_goes_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await rig.running(SourceOperator(Idle()), Remembering())

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        declined = await rig.answer(task, 1)
    acknowledged = await rig.answer(task, 2)

    assert (type(declined), declined.reason) == (CheckpointDeclined, "ASYNCHRONOUS_PART_FAILED")
    assert "can't start new thread" in declined.message
    assert isinstance(acknowledged, CheckpointAcknowledged)
    await rig.cancelled(task)
    assert rig.states[-1] is ExecutionState.CANCELED


def kept(rig: Rig, state: SubtaskState) -> StateHandle:
    """Return a state of an earlier attempt."""
    rig.storage.states["chk-3/old"] = content = encode_state(state)
    return StateHandle(len(content), b"", "chk-3/old")


def own_part(state: StateHandle | None, channels: StateHandle | None = None, **fields: Any) -> RestoredState:
    """Return the state with which the only subtask of a vertex begins, of checkpoint 3."""
    return RestoredState(3, [RestoredVertex(1, [], [SubtaskEntry(VERTEX_ID, 0, state, channels=channels)])], **fields)


async def test_a_restored_task_has_its_state_before_it_opens(rig: Rig) -> None:
    task = await rig.running(SourceOperator(Idle()), Remembering(), restored=own_part(kept(rig, STATE)))

    assert seen == [("restored", 7), "open"]
    assert rig.storage.reading == ["task t (1/1)"], "not the loop's thread"
    await rig.cancelled(task)


async def test_a_subtask_that_had_no_state_begins_anew(rig: Rig) -> None:
    await rig.running(SourceOperator(Idle()), Remembering(), restored=RestoredState(3))

    assert seen == [("restored", None), "open"]


async def test_a_state_that_cannot_be_read_fails_the_task_and_names_the_file(rig: Rig) -> None:
    rig.storage.error = FlowletError("its SHA-256 is another one")
    await rig.run(SourceOperator(Idle()), Remembering(), restored=own_part(StateHandle(12, b"", "chk-3/old")))
    for part in ("t (1/1)", "checkpoint 3", "chk-3/old", "its SHA-256 is another one"):
        assert part in rig.failure.message
    assert seen == []


IN_FLIGHT = ChannelStateSnapshot({(0, 0): (b"abc",)}, {(0, 1): (b"de", b"f")})


@pytest.mark.parametrize("operators", [{}, STATE.operators])
async def test_data_in_flight_is_a_part_of_its_own(rig: Rig, operators: dict[str, OperatorState]) -> None:
    responder = opened(rig)

    responder.acknowledge_checkpoint(5, METRICS, SubtaskState(operators, IN_FLIGHT))
    await rig.until(lambda: rig.reports)

    (report,) = rig.reports
    assert report.part.channels is not None
    assert report.part.channels.path == f"chk-5/{VERTEX_ID}-0-2-channels"
    assert decode_channels(rig.storage.states[report.part.channels.path]) == IN_FLIGHT
    assert (report.part.state is None) == (not operators)


def restored_edge(*producers: SubtaskEntry) -> RestoredEdge:
    return RestoredEdge("e", 0, 1, list(producers), former_producers=1, former_consumers=1, num_producers=1)


async def test_data_in_flight_is_read_before_the_task_begins(rig: Rig) -> None:
    rig.storage.states |= {
        "chk-3/own": encode_channels(IN_FLIGHT),
        "chk-3/producer": encode_channels(ChannelStateSnapshot({}, {(1, 0): (b"g",)})),
    }
    producer = SubtaskEntry(VERTEX_ID, 0, channels=StateHandle(1, b"", "chk-3/producer"))
    restored = own_part(None, StateHandle(1, b"", "chk-3/own"), edges=[restored_edge(producer)])

    made = checkpointing(rig, restored=restored).open(OPERATORS)

    assert made is not None
    assert (made.restored, made.in_flight) == ({}, [RecoveredStream(0, 0, (b"abc", b"g"))])


async def test_data_in_flight_that_cannot_be_read_fails_the_task(rig: Rig) -> None:
    rig.storage.states["chk-3/producer"] = b"FLST and more than this"
    producer = SubtaskEntry(VERTEX_ID, 0, channels=StateHandle(1, b"", "chk-3/producer"))

    with pytest.raises(
        StateRestoreError,
        match=r"t \(1/1\): its data in flight in checkpoint 3 cannot be restored: .* are no data in flight",
    ):
        checkpointing(rig, restored=RestoredState(3, edges=[restored_edge(producer)])).open(OPERATORS)


async def test_operators_that_had_finished_do_not_run_again(rig: Rig) -> None:
    """The task only waits for a checkpoint of its end, of which it is a part."""
    handle = StateHandle(12, b"", "chk-3/nobody reads it")
    task = await rig.running(SourceOperator(Idle()), Remembering(), restored=own_part(handle, is_finished=True))
    # It has come to its end when the first checkpoint says so; an earlier one may still be taken before.
    number = 4
    while not (
        isinstance(report := await rig.answer(task, number), CheckpointAcknowledged) and report.part.is_finished
    ):
        number += 1

    task.handle(CheckpointCompleted(ATTEMPT, number))
    await ended(task)

    assert rig.states[-1] is ExecutionState.FINISHED
    assert report.part.state is None
    assert seen == []
    assert rig.storage.states == {}

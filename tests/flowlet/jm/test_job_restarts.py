"""Tests of ``flowlet.jm.job_master``: what happens between two runs of a job, and who hears of it."""

import asyncio
import dataclasses
import queue
from pathlib import Path

import msgspec
import pytest

from flowlet.common.job_settings import CheckpointSettings, JobSettings, RestartKind, RestartSettings
from flowlet.common.job_status import JobStatus
from flowlet.common.watermark_strategy import WatermarkAlignment
from flowlet.jm.job_document import exceptions_document, job_document
from flowlet.jm.job_master import JobMaster
from flowlet.jm.scheduler import attempt_id
from flowlet.messages import control_messages as messages
from flowlet.messages.execution_state import ExecutionState
from flowlet.messages.job_messages import JobGraphMessage, RemoteGateMessage, StateHandle
from flowlet.splits.split_kinds import FileSet
from flowlet.storage.checkpoint_storage import CheckpointStorage
from tests.flowlet.jm.acknowledgements import acknowledged
from tests.flowlet.jm.recorder import PLACE, Recorder
from tests.flowlet.jm.scripted_task_manager import COLLECT_ID, JOB_ID, SINK_ID, SOURCE_ID, user_failure, word_count
from tests.flowlet.rpc.manual_timers import ManualTimers
from tests.waiting import PATIENCE_S

S = ExecutionState
DELAY_S = 5.0


def restartable(job: JobGraphMessage | None = None, attempts: int = 1) -> JobGraphMessage:
    restart = RestartSettings(RestartKind.FIXED_DELAY, attempts=attempts, delay_ms=round(DELAY_S * 1000))
    return msgspec.structs.replace(job or word_count(), settings=JobSettings(restart=restart))


def source_and_sink(run: int) -> tuple[bytes, bytes]:
    return attempt_id(JOB_ID, SOURCE_ID, 0, run), attempt_id(JOB_ID, SINK_ID, 0, run)


def report(
    master: JobMaster, attempt: bytes, state: ExecutionState, failure: messages.FailureInfo | None = None
) -> bool:
    if state is S.FAILED:
        failure = failure or user_failure()
    return master.handle("tm-1", messages.TaskStateChanged(attempt, state, failure))


class Job:
    """A job that may restart, deployed, with a time that the test moves."""

    def __init__(self, job: JobGraphMessage | None = None) -> None:
        self.recorder = Recorder()
        self.timers = ManualTimers()
        self.master = JobMaster(
            job or restartable(), self.recorder, lambda: round(self.timers.now_s * 1000), self.timers
        )
        self.start()

    def start(self) -> None:
        """Give the job its slots."""
        self.master.start(dict.fromkeys(self.master.graph.executions, PLACE))

    def fail(self, failure: messages.FailureInfo | None = None) -> None:
        """The source fails, and the sink is cancelled."""
        source, sink = self.master.graph.executions
        report(self.master, source, S.FAILED, failure)
        report(self.master, sink, S.CANCELED)

    def restart(self) -> None:
        self.fail()
        self.timers.advance(DELAY_S)
        self.start()


@pytest.fixture
async def job() -> Job:
    return Job()


async def test_the_slots_are_given_back_at_the_failure_and_asked_for_after_the_delay(job: Job) -> None:
    job.fail()
    at_the_failure = list(job.recorder.slots)
    job.timers.advance(DELAY_S - 0.001)
    before = list(job.recorder.slots)
    job.timers.advance(0.001)

    assert (at_the_failure, before, job.recorder.slots) == (["released"], ["released"], ["released", "requested"])
    assert job.recorder.ended == []


async def test_the_next_run_has_new_attempts_and_all_of_the_code(job: Job) -> None:
    """The channels of a run, the client's too, lead to attempts of that run; the last restart drops the code."""
    before = [vertex.chain for vertex in job.master.job.vertices]
    edge = next(each for each in job.master.job.edges if each.id == COLLECT_ID)
    job.restart()
    source, sink = job.recorder.deployed[2:]

    assert (source.attempt, sink.attempt) == source_and_sink(1)
    assert (source.chain, sink.chain) == (b"chain of source", b"chain of sink")
    assert sink.gates[0].channels[0].producer == source.attempt
    assert [channel.producer for channel in job.master.plan.external_channels(edge)] == [sink.attempt]
    assert job.master.graph.status is JobStatus.RUNNING
    assert before == [b"chain of source", b"chain of sink"]
    assert [vertex.chain for vertex in job.master.job.vertices] == [b"", b""]


async def test_late_messages_of_the_run_before_are_about_unknown_attempts(job: Job) -> None:
    """Its metrics are forgotten, too."""
    old_source, _ = source_and_sink(0)
    assert job.master.task_metrics("tm-1", old_source, messages.TaskMetrics(num_records_in=9))
    job.restart()

    assert job.master.metrics == {}
    assert not report(job.master, old_source, S.FAILED)
    assert job.master.graph.status is JobStatus.RUNNING
    assert not job.master.task_metrics("tm-1", old_source, messages.TaskMetrics())
    assert not job.master.handle("tm-1", messages.TaskStuck(old_source, 1, None, ""))
    assert not job.master.handle("tm-1", messages.SplitsRequested(old_source))


@pytest.mark.parametrize("are_slots_free", [True, False])
async def test_a_gate_is_told_to_finish_again_behind_the_deployment(are_slots_free: bool) -> None:
    """Also where the next run has its slots at once; a TaskManager ignores messages for tasks that it does not know."""
    plain = word_count()
    gate = RemoteGateMessage("clicks", "Long", b"F" * 16, b"")
    source, sink = plain.vertices
    gated = msgspec.structs.replace(source, remote_gate=gate)
    job = Job(restartable(msgspec.structs.replace(plain, vertices=[gated, sink])))
    found = job.master.gates.find("clicks")
    assert found is not None
    job.master.gates.finish(found)
    if are_slots_free:
        job.recorder.request_slots = lambda master: job.start()  # type: ignore[method-assign]
    job.recorder.sent.clear()
    job.fail()
    job.timers.advance(DELAY_S)
    if not are_slots_free:
        job.start()

    deployed = messages.TaskDeploymentDescriptor
    assert job.recorder.sent == [messages.CancelTask, deployed, deployed, messages.FinishGate]


async def test_a_wait_for_the_tasks_goes_on_into_the_next_run(job: Job) -> None:
    """A producer that asks for its gate at the end of a run hears of the next one, not of a time that is over."""
    waiting = asyncio.ensure_future(job.master.wait_until_running(PATIENCE_S))
    await asyncio.sleep(0)  # it looks at the first run
    job.restart()

    for attempt in source_and_sink(1):
        report(job.master, attempt, S.INITIALIZING)
        report(job.master, attempt, S.RUNNING)
    await asyncio.sleep(0)
    is_told, _ = await asyncio.wait([waiting], timeout=PATIENCE_S / 10)

    assert is_told == {waiting}
    assert waiting.result()


async def test_aligned_sources_are_told_in_the_next_run_too() -> None:
    """The sources of the run before are not told."""
    plain = word_count()
    aligned = msgspec.structs.replace(plain.vertices[0], watermark_alignment=WatermarkAlignment("group", 100, 10))
    job = Job(restartable(msgspec.structs.replace(plain, vertices=[aligned, plain.vertices[1]])))
    source, _ = source_and_sink(1)

    assert job.master.handle("tm-1", messages.SourceWatermarkReported(source_and_sink(0)[0], 5))
    job.restart()
    assert job.master.handle("tm-1", messages.SourceWatermarkReported(source, 1_000))
    job.recorder.was_told.clear()
    await job.recorder.told()

    assert job.recorder.allowed == [(source, 1_100)]
    job.master.cancel()


async def test_a_cancel_during_the_delay_ends_the_job_and_nothing_follows(job: Job) -> None:
    job.fail()

    job.master.cancel()
    job.timers.advance(DELAY_S)

    assert job.master.graph.status is JobStatus.CANCELED
    assert job.recorder.ended == [(job.master, 1)]
    assert job.recorder.slots == ["released"]
    assert job.master.graph.num_ignored_events == 0, "the timer is gone"


async def test_who_waits_for_the_result_hears_nothing_of_a_restart(job: Job) -> None:
    """The grace for a failing job is over at once, but this job does not fail."""
    source, sink = source_and_sink(0)
    report(job.master, source, S.FAILED)
    while_ending = await job.master.wait_for_result(0.0, 0.0)
    report(job.master, sink, S.CANCELED)
    while_waiting = await job.master.wait_for_result(0.0, 0.0)
    job.timers.advance(DELAY_S)
    job.start()
    for attempt in source_and_sink(1):
        report(job.master, attempt, S.FINISHED)

    assert (while_ending, while_waiting) == (False, False)
    assert await job.master.wait_for_result(0.0, 0.0)
    assert job.master.graph.failure is None


async def test_who_waits_for_the_next_run_is_woken_by_it_or_by_the_end_of_the_job(job: Job) -> None:
    """A run that is being cancelled is not deployed."""
    assert await job.master.wait_until_deployed(0.0)
    assert not await job.master.wait_until_deployed(0.0, after_attempt=0)
    job.fail()
    assert not await job.master.wait_until_deployed(0.0)
    waiting = asyncio.create_task(job.master.wait_until_deployed(PATIENCE_S, after_attempt=0))
    await asyncio.sleep(0)
    job.timers.advance(DELAY_S)
    job.start()
    assert await waiting
    waiting = asyncio.create_task(job.master.wait_until_deployed(PATIENCE_S, after_attempt=1))
    await asyncio.sleep(0)

    job.fail()

    assert await waiting
    assert job.master.is_ended


async def test_who_waits_for_a_checkpoint_is_woken_by_the_end_of_the_run(job: Job) -> None:
    assert not await job.master.wait_for_checkpoint(0.0, attempt=0, after_checkpoint=-1)
    waiting = asyncio.create_task(job.master.wait_for_checkpoint(PATIENCE_S, attempt=0, after_checkpoint=-1))
    await asyncio.sleep(0)

    report(job.master, source_and_sink(0)[0], S.FAILED)

    assert await waiting
    assert await job.master.wait_for_checkpoint(0.0, attempt=1, after_checkpoint=-1)


async def test_a_gate_lives_through_no_restart_so_producers_see_trouble_only_at_the_end(job: Job) -> None:
    waiting = asyncio.create_task(job.master.wait_for_trouble(PATIENCE_S, 0.0))
    await asyncio.sleep(0)
    job.fail()
    await asyncio.sleep(0)
    before = waiting.done()
    job.timers.advance(DELAY_S)
    job.start()

    job.fail()
    await waiting

    assert not before


async def test_a_state_that_cannot_be_restored_ends_the_job(job: Job) -> None:
    job.fail(msgspec.structs.replace(user_failure(), suppresses_restarts=True))

    assert job.master.graph.status is JobStatus.FAILED


CHECKPOINT_INTERVAL_S = 1.0


@pytest.fixture
def discarded(monkeypatch: pytest.MonkeyPatch) -> queue.Queue[int]:
    """Provide the checkpoints that are removed; manifests go nowhere: files on disks are not looked at here."""
    found: queue.Queue[int] = queue.Queue()
    monkeypatch.setattr(CheckpointStorage, "write_manifest", lambda _storage, _manifest: None)
    monkeypatch.setattr(CheckpointStorage, "discard", lambda _storage, checkpoint_id: found.put(checkpoint_id))
    return found


@pytest.fixture
async def saved_job(discarded: queue.Queue[int], tmp_path: Path) -> Job:
    """Start a job with checkpoints, and a source of two files, the first of which was handed out before the first
    trigger.
    """
    plain = word_count()
    for name in "ab":
        (tmp_path / name).write_bytes(b"x" * 5_000_000)
    files = msgspec.structs.replace(plain.vertices[0], split_set=FileSet((str(tmp_path / "a"), str(tmp_path / "b"))))
    checkpoints = CheckpointSettings(round(CHECKPOINT_INTERVAL_S * 1000), str(tmp_path / "checkpoints"))
    settings = dataclasses.replace(restartable().settings, checkpoints=checkpoints)
    edges = plain.edges[:1]  # no client reads, so that a checkpoint is complete once its tasks say so
    job = Job(msgspec.structs.replace(plain, vertices=[files, plain.vertices[1]], edges=edges, settings=settings))
    await next_splits(job, run=0)
    trigger(job, run=0, checkpoint_id=1)
    return job


async def next_splits(job: Job, run: int) -> list[str]:
    """Return the splits that the source gets when it asks."""
    job.recorder.was_told.clear()
    assert job.master.handle("tm-1", messages.SplitsRequested(source_and_sink(run)[0]))
    await job.recorder.told()
    return [Path(split).name for split in job.recorder.splits[-1][1]]


def trigger(job: Job, run: int, checkpoint_id: int) -> None:
    """All tasks run, and the time has come."""
    for attempt in source_and_sink(run):
        report(job.master, attempt, S.RUNNING)
    job.timers.advance(CHECKPOINT_INTERVAL_S)
    (order,) = [order for order in job.recorder.checkpoint_orders if isinstance(order, messages.TriggerCheckpoint)]
    assert (order.attempt, order.checkpoint_id) == (source_and_sink(run)[0], checkpoint_id)


def acknowledge(job: Job, *attempts: bytes) -> list[bool]:
    """Each with a state of its own."""
    states = [StateHandle(3, b"", inline=attempt[-8:-4]) for attempt in attempts]
    return [
        job.master.handle("tm-1", acknowledged(attempt, 1, state))
        for attempt, state in zip(attempts, states, strict=True)
    ]


async def test_a_run_goes_on_from_the_newest_checkpoint_with_the_splits_that_were_left_then(saved_job: Job) -> None:
    """Splits that were handed out after it are handed out again; the run takes the next checkpoint."""
    master = saved_job.master
    waiting = asyncio.create_task(master.wait_for_checkpoint(PATIENCE_S, attempt=0, after_checkpoint=-1))
    assert acknowledge(saved_job, *source_and_sink(0)) == [True, True]
    assert await waiting
    assert (master.checkpoints.last_completed_id, master.restored_checkpoint_id) == (1, -1)
    after = await next_splits(saved_job, run=0)

    saved_job.restart()

    restored = [task.restored for task in saved_job.recorder.deployed]
    assert restored[:2] == [None, None]
    assert [part.state for each in restored[2:] if each is not None for part in each.vertices[0].parts] == [
        StateHandle(3, b"", inline=attempt[-8:-4]) for attempt in source_and_sink(0)
    ]
    assert master.restored_checkpoint_id == 1
    assert (after, await next_splits(saved_job, run=1), await next_splits(saved_job, run=1)) == (["b:0"], ["b:0"], [])
    saved_job.recorder.checkpoint_orders.clear()
    trigger(saved_job, run=1, checkpoint_id=2)


async def test_a_checkpoint_that_was_not_complete_at_the_failure_does_not_count(saved_job: Job) -> None:
    """Late acknowledgements of the checkpoint are refused, and the cancelled tasks hear that it was aborted."""
    source, sink = source_and_sink(0)
    acknowledge(saved_job, source)

    saved_job.restart()

    assert acknowledge(saved_job, sink) == [False]
    assert [task.restored for task in saved_job.recorder.deployed[2:]] == [None, None]
    assert saved_job.master.restored_checkpoint_id == -1
    assert await next_splits(saved_job, run=1) == ["a:0"]


async def test_a_job_that_is_cancelled_takes_no_checkpoints_and_keeps_none(
    saved_job: Job, discarded: queue.Queue[int]
) -> None:
    acknowledge(saved_job, *source_and_sink(0))
    assert await saved_job.master.wait_for_checkpoint(PATIENCE_S, attempt=0, after_checkpoint=-1)
    saved_job.master.cancel()
    saved_job.recorder.checkpoint_orders.clear()

    saved_job.timers.advance(60.0)
    for attempt in source_and_sink(0):
        report(saved_job.master, attempt, S.CANCELED)
    saved_job.timers.advance(60.0)

    assert saved_job.recorder.checkpoint_orders == []
    assert saved_job.recorder.ended == [(saved_job.master, 2)]
    assert await asyncio.to_thread(discarded.get, timeout=PATIENCE_S) == 1


async def test_people_see_the_restarts_and_what_led_to_them(job: Job) -> None:
    job.fail(user_failure("first"))
    restarting = job_document(job.master, 1_000)
    job.timers.advance(DELAY_S)
    job.start()
    job.fail(msgspec.structs.replace(user_failure("second"), traceback=""))
    document = job_document(job.master, 1_000)
    history = exceptions_document(job.master, 1)
    entry = history["exceptionHistory"]

    assert (restarting["state"], restarting["numRestarts"]) == ("RESTARTING", 0)
    assert (document["state"], document["numRestarts"]) == ("FAILED", 1)
    assert document["restart-strategy"] == "fixed-delay, 1 attempts, 5000 ms apart"
    assert entry == {
        "entries": [
            {
                "exceptionName": "builtins.ValueError",
                "stacktrace": "builtins.ValueError: second",
                "timestamp": 1,
                "failureLabels": {},
                "taskName": "source (1/1)",
                "endpoint": None,
                "taskManagerId": "tm-1",
                "concurrentExceptions": [],
            }
        ],
        "truncated": True,
    }

"""Tests of ``flowlet.jm.job_master``: jobs of several regions, of which one starts again while the others go on."""

import dataclasses
from pathlib import Path

import msgspec
import pytest

from flowlet.checkpoint.jobmanager.job_store import RecoveredJob
from flowlet.common.job_settings import CheckpointSettings, JobSettings, RestartKind, RestartSettings
from flowlet.common.job_status import JobStatus
from flowlet.common.watermark_strategy import WatermarkAlignment
from flowlet.jm.job_document import exceptions_document, job_document
from flowlet.jm.job_master import JobMaster
from flowlet.jm.scheduler import attempt_id
from flowlet.messages import control_messages as messages
from flowlet.messages.execution_state import ExecutionState
from flowlet.messages.job_messages import JobGraphMessage, StateHandle, SubtaskEntry
from flowlet.splits.split_kinds import FileSet
from flowlet.storage.checkpoint_storage import CheckpointStorage
from flowlet.storage.manifest import CheckpointManifest
from tests.flowlet.jm.acknowledgements import acknowledged
from tests.flowlet.jm.conftest import Cluster
from tests.flowlet.jm.recorder import PLACE, Recorder
from tests.flowlet.jm.scripted_task_manager import JOB_ID, edge, user_failure, vertex
from tests.flowlet.rpc.manual_timers import ManualTimers
from tests.waiting import PATIENCE_S

S = ExecutionState
DELAY_S = 5.0
INTERVAL_S = 1.0
LEFT, LEFT_SINK, RIGHT, RIGHT_SINK = (f"{number:032x}" for number in range(21, 25))
ALIGNED = WatermarkAlignment("group", 100, 10)


def two_pipelines(folder: Path, *, checkpoints: bool = False) -> JobGraphMessage:
    """Each has a source of two files and a sink."""
    vertices = []
    for source, sink, name in ((LEFT, LEFT_SINK, "left"), (RIGHT, RIGHT_SINK, "right")):
        paths = [folder / f"{name}-{number}" for number in (1, 2)]
        for path in paths:
            path.write_bytes(b"x" * 5_000_000)
        files = FileSet(tuple(map(str, paths)))
        vertices += [msgspec.structs.replace(vertex(source, name), split_set=files), vertex(sink, f"{name} sink")]
    edges = [edge(f"{31:032x}", LEFT, LEFT_SINK), edge(f"{32:032x}", RIGHT, RIGHT_SINK)]
    settings = JobSettings(restart=RestartSettings(RestartKind.FIXED_DELAY, attempts=2, delay_ms=round(DELAY_S * 1000)))
    if checkpoints:
        found = CheckpointSettings(round(INTERVAL_S * 1000), str(folder / "checkpoints"))
        settings = dataclasses.replace(settings, checkpoints=found)
    return JobGraphMessage(JOB_ID, "two pipelines", vertices, edges, settings=settings)


def attempt(vertex_id: str, number: int = 0) -> bytes:
    return attempt_id(JOB_ID, vertex_id, 0, number)


class Job:
    """A deployed job, with a time that the test moves."""

    def __init__(self, job: JobGraphMessage) -> None:
        self.recorder = Recorder()
        self.timers = ManualTimers()
        self.master = JobMaster(job, self.recorder, lambda: round(self.timers.now_s * 1000), self.timers)
        self.start()

    def start(self) -> None:
        """Give those that wait their slots."""
        self.master.start({each.attempt: PLACE for each in self.master.graph.waiting})

    def report(self, vertex_id: str, state: ExecutionState, number: int = 0) -> bool:
        failure = user_failure(f"{vertex_id[-2:]} {number}") if state is S.FAILED else None
        return self.master.handle("tm-1", messages.TaskStateChanged(attempt(vertex_id, number), state, failure))

    def fail_left(self, number: int = 0) -> None:
        self.report(LEFT, S.FAILED, number)
        self.report(LEFT_SINK, S.CANCELED, number)

    def restart_left(self) -> None:
        self.fail_left()
        self.timers.advance(DELAY_S)
        self.start()

    def run_all(self, *, left: int = 0, right: int = 0) -> None:
        for vertex_id, number in ((LEFT, left), (LEFT_SINK, left), (RIGHT, right), (RIGHT_SINK, right)):
            self.report(vertex_id, S.RUNNING, number)

    async def splits(self, vertex_id: str, number: int = 0) -> list[str]:
        """Return the splits that a source gets when it asks."""
        self.recorder.was_told.clear()
        assert self.master.handle("tm-1", messages.SplitsRequested(attempt(vertex_id, number)))
        await self.recorder.told()
        to, splits, _ = self.recorder.splits[-1]
        assert to == attempt(vertex_id, number)
        return [Path(split).name for split in splits]

    def triggers(self) -> list[tuple[bytes, int]]:
        orders = self.recorder.checkpoint_orders
        return [
            (order.attempt, order.checkpoint_id) for order in orders if isinstance(order, messages.TriggerCheckpoint)
        ]

    def acknowledge(self, checkpoint_id: int, *attempts: bytes) -> None:
        for each in attempts:
            state = StateHandle(3, b"", inline=each[-8:])
            assert self.master.handle("tm-1", acknowledged(each, checkpoint_id, state))


@pytest.fixture
async def job(tmp_path: Path) -> Job:
    return Job(two_pipelines(tmp_path))


@pytest.fixture
async def saved_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Job:
    """Start a job with checkpoints, whose files go nowhere."""
    monkeypatch.setattr(CheckpointStorage, "write_manifest", lambda _storage, _manifest: None)
    monkeypatch.setattr(CheckpointStorage, "discard", lambda _storage, _checkpoint_id: None)
    return Job(two_pipelines(tmp_path, checkpoints=True))


async def test_only_the_region_that_failed_is_cancelled_and_deployed_again(job: Job) -> None:
    job.fail_left()
    while_waiting = list(job.recorder.slots)
    job.timers.advance(DELAY_S)
    job.start()

    assert job.recorder.cancelled == [attempt(LEFT_SINK)]
    assert [task.attempt for task in job.recorder.deployed[4:]] == [attempt(LEFT, 1), attempt(LEFT_SINK, 1)]
    assert job.recorder.deployed[5].gates[0].channels[0].producer == attempt(LEFT, 1)
    assert (while_waiting, job.recorder.slots) == ([], ["requested"]), "the slots are kept"
    assert job.master.graph.status is JobStatus.RUNNING


async def test_late_messages_of_its_last_run_are_about_unknown_attempts(job: Job) -> None:
    job.restart_left()

    assert not job.report(LEFT, S.FAILED)
    assert not job.master.handle("tm-1", messages.TaskStuck(attempt(LEFT), 1, None, ""))
    assert not job.master.handle("tm-1", messages.SplitsRequested(attempt(LEFT)))
    assert job.master.graph.status is JobStatus.RUNNING
    assert len(job.recorder.deployed) == 6, "nothing starts again"


async def test_the_others_are_heard_while_it_restarts(job: Job) -> None:
    """The JobManager hears the metrics, the requests for splits and the ends of the others."""
    assert job.master.task_metrics("tm-1", attempt(RIGHT), messages.TaskMetrics(num_records_in=7))
    assert await job.splits(RIGHT) == ["right-1:0"]

    job.fail_left()
    while_it_waits = await job.splits(RIGHT)
    refused = job.master.handle("tm-1", messages.SplitsRequested(attempt(LEFT)))
    job.timers.advance(DELAY_S)
    job.start()

    assert (while_it_waits, refused) == (["right-2:0"], False)
    assert await job.splits(RIGHT) == []
    assert await job.splits(LEFT, 1) == ["left-1:0"], "from the beginning"
    assert list(job.master.metrics) == [attempt(RIGHT)]


async def test_an_enumerator_of_a_region_that_ends_answers_nobody(tmp_path: Path) -> None:
    """The readers that asked before it was ready may be on a TaskManager that is gone."""
    job = Job(two_pipelines(tmp_path))
    assert job.master.handle("tm-1", messages.SplitsRequested(attempt(LEFT)))
    job.fail_left()

    await job.splits(RIGHT)
    job.timers.advance(DELAY_S)
    job.start()
    await job.splits(LEFT, 1)

    assert {to for to, _, _ in job.recorder.splits} == {attempt(RIGHT), attempt(LEFT, 1)}


async def test_the_job_finishes_when_all_regions_have(job: Job) -> None:
    for vertex_id in (RIGHT, RIGHT_SINK):
        job.report(vertex_id, S.FINISHED)
    job.restart_left()
    for vertex_id in (LEFT, LEFT_SINK):
        job.report(vertex_id, S.FINISHED, 1)

    assert job.master.graph.status is JobStatus.FINISHED
    assert job.recorder.ended == [(job.master, 1)]
    assert len(job.recorder.deployed) == 6, "the finished pipeline does not run again"


async def test_a_cancel_during_the_delay_stops_the_timer(job: Job) -> None:
    job.fail_left()

    job.master.cancel()
    for vertex_id in (RIGHT, RIGHT_SINK):
        job.report(vertex_id, S.CANCELED)
    job.timers.advance(2 * DELAY_S)

    assert job.master.graph.status is JobStatus.CANCELED
    assert (job.recorder.slots, job.master.graph.num_ignored_events) == ([], 0)


async def test_aligned_sources_are_told_on_and_those_that_ended_are_left_out(tmp_path: Path) -> None:
    """The announcements go on, at their interval, once."""
    plain = two_pipelines(tmp_path)
    vertices = [
        msgspec.structs.replace(each, watermark_alignment=ALIGNED) if each.id == RIGHT else each
        for each in plain.vertices
    ]
    job = Job(msgspec.structs.replace(plain, vertices=vertices))
    assert job.master.handle("tm-1", messages.SourceWatermarkReported(attempt(RIGHT), 1_000))

    job.restart_left()
    job.recorder.was_told.clear()
    await job.recorder.told()

    assert set(job.recorder.allowed) == {(attempt(RIGHT), 1_100)}
    job.master.cancel()


class TestCheckpoints:
    async def test_one_on_its_way_is_aborted_and_the_next_has_the_attempts_of_now(self, saved_job: Job) -> None:
        """The next checkpoint is triggered an interval after all its attempts run, and is complete when all have
        acknowledged.
        """
        saved_job.run_all()
        saved_job.timers.advance(INTERVAL_S)
        assert saved_job.triggers() == [(attempt(LEFT), 1), (attempt(RIGHT), 1)]
        saved_job.acknowledge(1, attempt(RIGHT), attempt(RIGHT_SINK))

        saved_job.fail_left()
        aborted = {
            order.attempt
            for order in saved_job.recorder.checkpoint_orders
            if isinstance(order, messages.CheckpointAborted)
        }
        saved_job.recorder.checkpoint_orders.clear()
        saved_job.timers.advance(DELAY_S)
        saved_job.start()
        saved_job.timers.advance(10 * INTERVAL_S)
        while_it_starts = saved_job.triggers()
        for vertex_id in (LEFT, LEFT_SINK):
            saved_job.report(vertex_id, S.RUNNING, 1)
        saved_job.timers.advance(INTERVAL_S)
        saved_job.acknowledge(2, attempt(LEFT, 1), attempt(LEFT_SINK, 1), attempt(RIGHT), attempt(RIGHT_SINK))

        assert aborted >= {attempt(RIGHT), attempt(RIGHT_SINK)}
        assert while_it_starts == []
        assert saved_job.triggers() == [(attempt(LEFT, 1), 2), (attempt(RIGHT), 2)]
        assert await saved_job.master.wait_for_checkpoint(PATIENCE_S, attempt=1, after_checkpoint=-1)
        assert saved_job.master.checkpoints.last_completed_id == 2

    async def test_the_region_begins_with_its_part_of_the_newest(self, saved_job: Job) -> None:
        """The region also begins with the splits that were left then."""
        assert await saved_job.splits(LEFT) == ["left-1:0"]
        saved_job.run_all()
        saved_job.timers.advance(INTERVAL_S)
        saved_job.acknowledge(1, *(attempt(each) for each in (LEFT, LEFT_SINK, RIGHT, RIGHT_SINK)))
        assert await saved_job.master.wait_for_checkpoint(PATIENCE_S, attempt=0, after_checkpoint=-1)
        assert await saved_job.splits(LEFT) == ["left-2:0"]

        saved_job.restart_left()

        restored = [task.restored for task in saved_job.recorder.deployed[4:]]
        parts = [each.vertices[0].parts[0] for each in restored if each is not None]
        assert [part.state and part.state.inline for part in parts] == [attempt(LEFT)[-8:], attempt(LEFT_SINK)[-8:]]
        assert await saved_job.splits(LEFT, 1) == ["left-2:0"]
        assert await saved_job.splits(RIGHT) == ["right-1:0"], "its own enumerator goes on"

    async def test_none_is_triggered_while_another_region_still_restarts(self, saved_job: Job) -> None:
        saved_job.run_all()
        saved_job.fail_left()
        saved_job.timers.advance(DELAY_S / 2)
        saved_job.report(RIGHT_SINK, S.FAILED)  # its source does not end
        saved_job.timers.advance(DELAY_S / 2)
        saved_job.start()
        for vertex_id in (LEFT, LEFT_SINK):
            saved_job.report(vertex_id, S.RUNNING, 1)
        saved_job.timers.advance(20 * INTERVAL_S)

        assert saved_job.triggers() == []

    async def test_a_second_region_that_fails_has_its_own_delay_and_then_checkpoints_go_on(
        self, saved_job: Job
    ) -> None:
        """The region that runs already when the last one is deployed counts as running."""
        saved_job.run_all()
        saved_job.fail_left()
        saved_job.timers.advance(DELAY_S / 2)
        saved_job.report(RIGHT_SINK, S.FAILED)
        saved_job.report(RIGHT, S.CANCELED)
        saved_job.timers.advance(DELAY_S / 2)
        first = [each.attempt for each in saved_job.master.graph.waiting]
        saved_job.start()
        between = saved_job.master.graph.status
        saved_job.run_all(left=1)
        saved_job.timers.advance(DELAY_S / 2)
        second = [each.attempt for each in saved_job.master.graph.waiting]
        saved_job.start()
        for vertex_id in (RIGHT, RIGHT_SINK):
            saved_job.report(vertex_id, S.RUNNING, 1)
        saved_job.timers.advance(INTERVAL_S)

        assert first == [attempt(LEFT, 1), attempt(LEFT_SINK, 1)]
        assert second == [attempt(RIGHT, 1), attempt(RIGHT_SINK, 1)]
        assert (between, saved_job.master.graph.status) == (JobStatus.RESTARTING, JobStatus.RUNNING)
        assert saved_job.triggers() == [(attempt(LEFT, 1), 1), (attempt(RIGHT, 1), 1)]

    async def test_a_finished_region_is_part_of_the_next_one_without_being_asked(self, saved_job: Job) -> None:
        saved_job.run_all()
        for vertex_id in (RIGHT, RIGHT_SINK):
            saved_job.report(vertex_id, S.FINISHED)
        saved_job.restart_left()
        for vertex_id in (LEFT, LEFT_SINK):
            saved_job.report(vertex_id, S.RUNNING, 1)
        saved_job.timers.advance(INTERVAL_S)

        assert saved_job.triggers() == [(attempt(LEFT, 1), 1)]
        saved_job.acknowledge(1, attempt(LEFT, 1), attempt(LEFT_SINK, 1))
        assert await saved_job.master.wait_for_checkpoint(PATIENCE_S, attempt=1, after_checkpoint=-1)


async def test_people_see_the_attempt_of_each_subtask_and_each_failure(job: Job) -> None:
    job.restart_left()
    job.fail_left(1)
    document = msgspec.to_builtins(job_document(job.master, 1_000))
    history = msgspec.to_builtins(exceptions_document(job.master, 9))

    numbers = {each["name"]: each["subtasks"][0]["attempt-number"] for each in document["vertices"]}
    assert numbers == {"left": 1, "left sink": 1, "right": 0, "right sink": 0}
    assert (document["state"], document["numRestarts"]) == ("RESTARTING", 1)
    assert [entry["taskName"] for entry in history["exceptionHistory"]["entries"]] == ["source (1/0)"] * 2


def independent_subtasks() -> JobGraphMessage:
    settings = JobSettings(restart=RestartSettings(RestartKind.FIXED_DELAY, attempts=2, delay_ms=0))
    return JobGraphMessage(JOB_ID, "subtasks", [vertex(LEFT, "left", 2)], [], settings=settings)


async def test_a_lost_slot_is_replaced_and_the_other_one_kept(cluster: Cluster) -> None:
    """The region on it waits for the next TaskManager."""
    first, second = await cluster.connect("tm-1"), await cluster.connect("tm-2")
    master = cluster.dispatcher.submit(independent_subtasks())
    kept, lost = (await first.expect_deployment()), (await second.expect_deployment())

    await second.close()
    assert await master.wait_until(lambda: bool(master.graph.waiting), PATIENCE_S)
    third = await cluster.connect("tm-3")
    again = await third.expect_deployment()

    assert (lost.subtask, lost.attempt[-1], again.subtask, again.attempt[-1]) == (1, 0, 1, 1)
    assert master.graph.status is JobStatus.RUNNING
    assert kept.attempt in master.graph.executions
    assert cluster.dispatcher.overview()["slots-available"] == 0


async def test_without_a_slot_for_its_region_the_job_fails_and_says_how_many_are_missing(unstarted: Cluster) -> None:
    await unstarted.start(slot_request_timeout_s=0.05)
    first, second = await unstarted.connect("tm-1"), await unstarted.connect("tm-2")
    master = unstarted.dispatcher.submit(independent_subtasks())
    kept = await first.expect_deployment()
    await second.expect_deployment()

    await second.close()

    assert await first.expect_cancel() == kept.attempt
    assert master.graph.failure is not None
    shortage = "NoResourceAvailable: job needs 1 slot, the cluster has 1 (0 free) on 1 TaskManager"
    assert shortage in master.graph.failure.message


@pytest.mark.parametrize("num_retained", [2, 3])
async def test_a_region_falls_back_from_the_checkpoint_that_it_began_with_itself(
    tmp_path: Path, num_retained: int
) -> None:
    """Both regions began with 7; when the second one says that 7 is bad, the first one has begun with the good 6."""
    graph = two_pipelines(tmp_path, checkpoints=True)
    assert graph.settings.checkpoints is not None
    checkpoints = dataclasses.replace(graph.settings.checkpoints, num_retained=num_retained, restore_fallback=True)
    graph = msgspec.structs.replace(graph, settings=dataclasses.replace(graph.settings, checkpoints=checkpoints))
    manifests = [
        CheckpointManifest(
            JOB_ID,
            "j",
            number,
            0,
            {each.id: 1 for each in graph.vertices},
            [SubtaskEntry(each.id, 0) for each in graph.vertices],
        )
        for number in range(8 - num_retained, 8)
    ]
    recorder, timers = Recorder(), ManualTimers()
    recovered = RecoveredJob(graph, 0, manifests, 100)
    master = JobMaster(graph, recorder, lambda: round(timers.now_s * 1000), timers, recovered=recovered)
    unrestorable = msgspec.structs.replace(user_failure("its state"), suppresses_restarts=True)

    def fail(vertex_id: str, sink: str) -> None:
        master.handle("tm-1", messages.TaskStateChanged(attempt(vertex_id), S.FAILED, unrestorable))
        master.handle("tm-1", messages.TaskStateChanged(attempt(sink), S.CANCELED))

    def start() -> None:
        master.start({each.attempt: PLACE for each in master.graph.waiting})

    start()
    fail(LEFT, LEFT_SINK)
    timers.advance(DELAY_S)
    start()
    assert master.restored_checkpoint_id == 6
    fail(RIGHT, RIGHT_SINK)
    timers.advance(DELAY_S)
    start()

    assert (master.graph.status, master.checkpoints.last_completed_id) == (JobStatus.RUNNING, 6)
    master.cancel()

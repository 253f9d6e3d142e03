"""Checkpoints of a job; timers and the calls in the background end when the test says so."""

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from types import CellType, FunctionType

import pytest
from msgspec import structs

from flowlet.checkpoint.jobmanager.former_checkpoint import FormerCheckpoint
from flowlet.checkpoint.jobmanager.job_checkpoints import CheckpointsFailedError, JobCheckpoints
from flowlet.checkpoint.jobmanager.job_store import RecoveredJob
from flowlet.checkpoint.jobmanager.pending_checkpoint import CheckpointTopology
from flowlet.common.job_settings import CheckpointSettings, StateSettings
from flowlet.common.job_status import JobStatus
from flowlet.errors import FlowletError
from flowlet.messages.control_messages import (
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointDeclined,
    CheckpointOrder,
    TriggerCheckpoint,
)
from flowlet.messages.execution_state import ExecutionState
from flowlet.messages.job_messages import CheckpointPlace, StateHandle, SubtaskEntry
from flowlet.storage.checkpoint_storage import CheckpointStorage
from flowlet.storage.manifest import CheckpointManifest, SourceEntry, VertexEntry
from tests.flowlet.checkpoint.jobmanager.background import Background
from tests.flowlet.checkpoint.jobmanager.coordinated import JOB_ID, STATE, attempt, job_of, vertex_id
from tests.flowlet.jm.acknowledgements import acknowledged
from tests.flowlet.rpc.manual_timers import ManualTimers

SETTINGS = CheckpointSettings(interval_ms=125, directory="/checkpoints", timeout_ms=1000)
JOB = {"s": 1, "t": 1}
TMS = {"s": "tm-1", "t": "tm-2"}


@dataclass
class Storage(CheckpointStorage):
    """A storage in memory: the files that would be on the disk, and the calls that were made."""

    manifests: dict[int, CheckpointManifest] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    error: str | None = None  # of the next call
    swept: list[int] = field(default_factory=list)  # below these ids, what was incomplete was removed

    def write_manifest(self, manifest: CheckpointManifest) -> None:
        self._fail()
        self.done.append(f"write {manifest.checkpoint_id}")
        self.manifests[manifest.checkpoint_id] = manifest

    def discard(self, checkpoint_id: int) -> None:
        self._fail()
        self.done.append(f"discard {checkpoint_id}")
        self.manifests.pop(checkpoint_id, None)

    def discard_incomplete(self, before: int) -> None:
        self._fail()
        self.swept.append(before)

    def discard_shared(self, paths: Iterable[str]) -> None:
        self._fail()
        self.done.append(f"discard {', '.join(sorted(paths))}")

    def discard_all_shared(self) -> None:
        self._fail()
        self.done.append("discard all shared")

    def _fail(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise FlowletError(error)


class Rig:
    """The checkpoints of a source on ``tm-1`` and a sink on ``tm-2``."""

    def __init__(
        self, settings: CheckpointSettings | None = SETTINGS, *, is_incremental: bool = False, next_id: int = 1
    ) -> None:
        self.timers = ManualTimers()
        self.storage = Storage()
        self.orders: list[tuple[str, CheckpointOrder]] = []
        self.errors: list[Exception] = []
        self.background = Background()
        self.opened: list[tuple[str, str, bytes]] = []
        self.on_failure: Callable[[], None] = lambda: None
        self.wall_ms = 5_000_000
        self.run = 0
        self.reserved: list[int] = []
        job = job_of(JOB, ["st"], settings)
        state = StateSettings(is_incremental, is_incremental)
        self.job = structs.replace(job, settings=replace(job.settings, state=state))
        self.checkpoints = JobCheckpoints(
            RecoveredJob(self.job, 0, next_checkpoint_id=next_id),
            lambda tm_id, order: self.orders.append((tm_id, order)),
            clock=lambda: self.wall_ms,
            fail=self._fail,
            call_in_background=self.background,
            key=b"key",
            may_trigger=self._reserve,
            timers=self.timers,
            open_storage=self._open,
        )

    def _reserve(self, checkpoint_id: int) -> bool:
        self.reserved.append(checkpoint_id)
        return True

    def _fail(self, error: Exception) -> None:
        self.errors.append(error)
        self.on_failure()

    def _open(self, directory: str, job_id: str, key: bytes) -> Storage:
        self.opened.append((directory, job_id, key))
        return self.storage

    def start(self, run: int = 0) -> None:
        """The attempts of a run are running; a checkpoint is due after each eighth of a second."""
        self.run = run
        self.checkpoints.tasks_deployed({attempt(name, run=run): tm_id for name, tm_id in TMS.items()})
        for name in TMS:
            self.checkpoints.task_state_changed(attempt(name, run=run), ExecutionState.RUNNING)

    def acknowledge(self, checkpoint_id: int, *names: str) -> list[bool]:
        return [
            self.checkpoints.report(TMS[name], acknowledged(attempt(name, run=self.run), checkpoint_id, STATE))
            for name in names or TMS
        ]

    def complete(self, *checkpoint_ids: int) -> None:
        for checkpoint_id in checkpoint_ids:
            self.timers.advance(0.125)
            assert self.acknowledge(checkpoint_id) == [True, True]
            self.background.end_all()

    @property
    def counts(self) -> object:
        return self.checkpoints.documents()["counts"]

    def orders_of(self, kind: type) -> list[tuple[str, int]]:
        return [(tm_id, order.checkpoint_id) for tm_id, order in self.orders if isinstance(order, kind)]


def started(settings: CheckpointSettings | None = SETTINGS, *, is_incremental: bool = False) -> Rig:
    """Return a rig whose tasks run."""
    rig = Rig(settings, is_incremental=is_incremental)
    rig.start()
    return rig


def under_way(settings: CheckpointSettings | None = SETTINGS, *, is_incremental: bool = False) -> Rig:
    """Return a rig whose first checkpoint was triggered."""
    rig = started(settings, is_incremental=is_incremental)
    rig.timers.advance(0.125)
    return rig


def part_of(rig: Rig, vertex: str, *, is_finished: bool = False) -> tuple[int, StateHandle | None]:
    """Return the checkpoint, and the state in it, with which the only subtask of a vertex begins."""
    restored = rig.checkpoints.restored_state(vertex, 0)
    assert restored is not None
    assert restored.is_finished is is_finished
    (former,) = restored.vertices
    return restored.checkpoint_id, next((each.state for each in former.parts), None)


def test_the_manifest_is_written_before_anybody_hears_of_the_end() -> None:
    rig = Rig()
    rig.checkpoints.add_source(vertex_id("s"), lambda: b"splits")
    rig.start()

    rig.timers.advance(0.125)
    triggered = rig.orders_of(TriggerCheckpoint)
    rig.acknowledge(1)
    before = (rig.orders_of(CheckpointCompleted), rig.checkpoints.last_completed_id, rig.background.names)
    rig.background.end_all()

    assert triggered == [("tm-1", 1)]
    assert rig.orders[0][1] == TriggerCheckpoint(attempt("s"), 1, 5_000_125)
    assert before == ([], -1, ["manifest of checkpoint 1"])
    assert rig.storage.manifests[1].sources == [SourceEntry(vertex_id("s"), b"splits")]
    assert rig.orders_of(CheckpointCompleted) == [("tm-1", 1), ("tm-2", 1)]
    assert rig.checkpoints.last_completed_id == 1
    assert set(rig.opened) == {("/checkpoints", JOB_ID, b"key")}


def test_the_next_run_begins_with_the_newest_one_and_its_own_attempts_and_sources() -> None:
    rig = Rig()
    source, sink = vertex_id("s"), vertex_id("t")
    rig.checkpoints.add_source(source, lambda: b"old")
    rig.start()
    assert (rig.checkpoints.restored_state(sink, 0), rig.checkpoints.source_state(source)) == (None, None)
    rig.complete(1)

    rig.checkpoints.stop()
    assert part_of(rig, sink) == (1, STATE)
    assert (rig.checkpoints.source_state(source), rig.checkpoints.source_state(sink)) == (b"old", None)

    rig.checkpoints.add_source(source, lambda: b"new")
    rig.start(run=1)
    rig.orders.clear()
    rig.complete(2)
    assert {order.attempt for _, order in rig.orders} == {attempt("s", run=1), attempt("t", run=1)}
    assert rig.checkpoints.source_state(source) == b"new"
    assert rig.counts == {"restored": 1, "total": 2, "in_progress": 0, "completed": 2, "failed": 0}


def test_older_ones_are_removed() -> None:
    rig = started(replace(SETTINGS, num_retained=2))

    rig.complete(1, 2, 3, 4)

    assert rig.storage.done == ["write 1", "write 2", "write 3", "discard 1", "write 4", "discard 2"]
    assert list(rig.storage.manifests) == [3, 4]


def test_an_older_one_stays_until_the_manifest_of_the_newer_one_is_written() -> None:
    """A JobManager that dies in between would otherwise leave nothing to restore."""
    rig = started()
    rig.complete(1)

    rig.timers.advance(0.125)
    rig.acknowledge(2)

    assert rig.background.names == ["manifest of checkpoint 2"]


def test_one_at_a_time_is_removed() -> None:
    """A file server that hangs must not collect threads."""
    rig = started()
    for number in (1, 2, 3):
        rig.timers.advance(0.125)
        rig.acknowledge(number)
        rig.background.end_one(-1)

    assert rig.background.names == ["discard of what is left before checkpoint 1"]
    rig.background.end_all()
    assert rig.storage.done[-2:] == ["discard 1", "discard 2"]
    assert rig.storage.swept == [1, 3]


def test_what_could_not_be_removed_goes_when_a_later_checkpoint_is_complete() -> None:
    rig = under_way()
    rig.storage.error = "the server does not answer"
    rig.timers.advance(1.0)  # checkpoint 1 expires, and its files stay
    rig.background.end_all()
    assert rig.storage.done == []

    rig.start(1)
    rig.complete(2)

    assert rig.storage.swept == [2]


def test_leftovers_of_a_checkpoint_whose_manifest_is_being_written_stay() -> None:
    """The manifest would otherwise name files that are gone."""
    rig = under_way(replace(SETTINGS, max_concurrent=2))
    rig.timers.advance(0.125)
    rig.acknowledge(1)
    rig.acknowledge(2)
    _, slow = rig.background.waiting.pop(0)

    rig.background.end_all()
    assert rig.storage.swept == [1]
    slow()
    rig.complete(3)

    assert rig.storage.swept == [1, 3]


def test_a_restart_removes_what_its_last_run_left() -> None:
    rig = started()
    rig.complete(1)
    rig.storage.swept.clear()

    rig.checkpoints.stop()
    rig.start(1)
    rig.background.end_all()

    assert rig.storage.swept == [1]


def test_files_that_cannot_be_removed_do_not_stop_the_others() -> None:
    rig = started()
    rig.complete(1)
    rig.timers.advance(0.125)
    rig.acknowledge(2)
    rig.background.end_one()

    rig.storage.error = "permission denied"
    rig.background.end_all()
    rig.complete(3)

    assert rig.storage.done == ["write 1", "write 2", "write 3", "discard 2"]
    assert rig.errors == []


def two_complete(*, fallback: bool) -> Rig:
    rig = started(replace(SETTINGS, num_retained=2, restore_fallback=fallback, is_retained_on_failure=True))
    rig.complete(1, 2)
    rig.checkpoints.stop()
    return rig


def test_without_the_option_the_job_does_not_go_back() -> None:
    """FLINK-22502: the newest checkpoint was passed over in silence."""
    rig = two_complete(fallback=False)

    assert not rig.checkpoints.fall_back(2)

    assert rig.checkpoints.last_completed_id == 2


def test_the_job_goes_back_once_however_many_tasks_cannot_be_restored() -> None:
    rig = two_complete(fallback=True)

    answers = [rig.checkpoints.fall_back(2), rig.checkpoints.fall_back(2)]

    assert answers == [True, True]
    assert rig.checkpoints.last_completed_id == 1
    assert not rig.checkpoints.fall_back(1), "there is none before it"
    assert rig.storage.manifests.keys() == {1, 2}, "people may put its file back"
    rig.start(1)
    rig.complete(3)
    assert rig.storage.manifests.keys() == {1, 3}


def test_the_job_goes_back_to_the_states_of_the_older_checkpoint() -> None:
    """The job's tasks and its sources both go back to the older checkpoint, if the newest one cannot be restored."""
    rig = Rig(replace(SETTINGS, num_retained=2, restore_fallback=True))
    number = 0
    rig.checkpoints.add_source(vertex_id("s"), lambda: b"splits %d" % number)
    rig.start()
    for number in (1, 2):
        rig.timers.advance(0.125)
        for name, tm_id in TMS.items():
            state = StateHandle(number, b"sum")
            rig.checkpoints.report(tm_id, acknowledged(attempt(name), number, state))
        rig.background.end_all()
    rig.checkpoints.stop()
    source, sink = vertex_id("s"), vertex_id("t")
    newest = part_of(rig, sink), rig.checkpoints.source_state(source)

    assert rig.checkpoints.fall_back(2)

    assert newest == ((2, StateHandle(2, b"sum")), b"splits 2")
    for each in (source, sink):
        assert part_of(rig, each) == (1, StateHandle(1, b"sum"))
    assert rig.checkpoints.source_state(source) == b"splits 1"


def test_a_subtask_that_has_ended_is_restored_as_ended() -> None:
    """The subtask gets the id of the checkpoint; a vertex that has no state there gets the id alone."""
    rig = under_way()
    rig.checkpoints.report(TMS["s"], acknowledged(attempt("s"), 1, None, is_finished=True))
    rig.checkpoints.report(TMS["t"], acknowledged(attempt("t"), 1, None))
    rig.background.end_all()
    rig.checkpoints.stop()

    assert part_of(rig, vertex_id("s"), is_finished=True) == (1, None)
    assert part_of(rig, vertex_id("t")) == (1, None)


def test_a_manifest_that_cannot_be_written_fails_its_checkpoint() -> None:
    rig = under_way()
    rig.acknowledge(1)

    rig.storage.error = "the disk is full"
    rig.background.end_all()

    (error,) = rig.errors
    assert isinstance(error, CheckpointsFailedError)
    assert "checkpoint 1, failed: its manifest could not be written: the disk is full" in str(error)
    assert rig.orders_of(CheckpointAborted) == [("tm-1", 1), ("tm-2", 1)]
    assert rig.orders_of(CheckpointCompleted) == []
    assert (rig.storage.done, rig.checkpoints.last_completed_id) == (["discard 1"], -1)


def test_a_failure_may_end_the_run_at_once() -> None:
    rig = Rig()
    rig.on_failure = rig.checkpoints.stop
    rig.start()
    rig.timers.advance(0.125)

    rig.checkpoints.report("tm-2", CheckpointDeclined(attempt("t"), 1, "ASYNCHRONOUS_PART_FAILED", "no space left"))
    rig.timers.advance(100)

    assert len(rig.errors) == 1
    assert "t (subtask 0): no space left" in str(rig.errors[0])
    assert rig.orders_of(TriggerCheckpoint) == [("tm-1", 1)]


def test_a_source_that_cannot_tell_its_state_fails_the_checkpoint() -> None:
    def snapshot() -> bytes:
        raise ValueError("too large")

    rig = Rig()
    rig.checkpoints.add_source(vertex_id("s"), snapshot)
    rig.start()

    rig.timers.advance(0.125)

    assert rig.orders == []
    assert "the state of a source could not be kept: source s: ValueError('too large')" in str(rig.errors[0])


def test_a_report_of_a_wrong_task_manager_or_checkpoint_does_not_count() -> None:
    rig = under_way()

    assert not rig.checkpoints.report("tm-2", acknowledged(attempt("s"), 1))
    assert not rig.checkpoints.report("tm-9", acknowledged(attempt("s"), 1))
    assert rig.acknowledge(2) == [False, False]
    assert rig.acknowledge(1, "t") == [True]
    assert rig.acknowledge(1, "t") == [True], "a repeated one changes nothing"

    assert rig.background.waiting == []


def test_a_late_report_of_the_last_run_is_refused() -> None:
    rig = under_way()
    rig.checkpoints.stop()
    rig.start(run=1)
    rig.timers.advance(0.125)

    rig.run = 0

    assert rig.acknowledge(2) == [False, False]


def test_after_a_run_no_timer_and_no_order_is_left() -> None:
    rig = under_way()
    rig.orders.clear()

    rig.checkpoints.stop()
    rig.checkpoints.stop()
    rig.timers.advance(100)

    assert rig.orders == []
    assert all(timer.is_cancelled for timer in rig.timers.timers)


def test_at_the_end_of_the_job_all_are_removed() -> None:
    rig = started(replace(SETTINGS, num_retained=3))
    rig.complete(1, 2)
    rig.timers.advance(0.125)
    rig.acknowledge(3)

    rig.checkpoints.close()
    rig.checkpoints.close()
    rig.background.end_all()

    assert rig.storage.manifests == {}
    assert set(rig.storage.done[-3:]) == {"discard 1", "discard 2", "discard 3"}
    assert rig.counts == {"restored": 0, "total": 3, "in_progress": 0, "completed": 2, "failed": 1}


def test_a_clock_that_is_put_back_holds_nothing_up() -> None:
    rig = started()

    rig.wall_ms -= 3_600_000
    rig.complete(1)
    rig.timers.advance(0.125)

    assert rig.orders_of(TriggerCheckpoint) == [("tm-1", 1), ("tm-1", 2)]


def test_a_job_without_checkpoints() -> None:
    rig = Rig(settings=None)
    rig.checkpoints.add_source(vertex_id("s"), lambda: b"splits")
    rig.start()

    rig.timers.advance(1000)

    assert rig.acknowledge(1) == [False, False]
    assert (rig.checkpoints.restored_state(vertex_id("s"), 0), rig.checkpoints.last_completed_id) == (None, -1)
    assert rig.checkpoints.documents()["history"] == []
    assert repr(rig.checkpoints) == f"<JobCheckpoints of {JOB_ID}, none>"
    rig.checkpoints.close()
    assert (rig.orders, rig.background.waiting, rig.timers.timers) == ([], [], [])


def test_the_blobs_of_the_job_are_not_kept() -> None:
    """Chains and partitioners may be large, and a job runs for months."""
    rig = Rig()

    referents, waiting = {id(rig.checkpoints)}, list[object]([rig.checkpoints])
    while waiting:
        for each in gc.get_referents(waiting.pop()):
            is_ours = type(each).__module__.startswith("flowlet")
            is_followed = is_ours or isinstance(each, dict | list | tuple | FunctionType | CellType)
            if id(each) not in referents and is_followed and each is not rig:
                referents.add(id(each))
                waiting.append(each)

    assert not {id(rig.job), id(rig.job.vertices[0]), id(rig.job.edges[0])} & referents


@pytest.mark.parametrize(
    ("on_cancellation", "on_failure", "kept_in"),
    [(False, False, set()), (False, True, {JobStatus.FAILED}), (True, True, {JobStatus.FAILED, JobStatus.CANCELED})],
    ids=["none", "of a job that fails", "of a job that fails or is cancelled"],
)
def test_the_newest_checkpoints_outlive_a_job_if_that_is_wanted(
    on_cancellation: bool, on_failure: bool, kept_in: set[JobStatus]
) -> None:
    """A job that finishes keeps none, and others keep the newest ones alone."""
    settings = replace(SETTINGS, is_retained_on_cancellation=on_cancellation, is_retained_on_failure=on_failure)
    for status in (JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED):
        rig = Rig(settings)
        rig.start()
        rig.complete(1, 2)

        path = rig.checkpoints.retained_path(status)
        rig.checkpoints.close(status)
        rig.background.end_all()

        is_kept = status in kept_in
        assert path == (f"/checkpoints/{JOB_ID}/chk-2" if is_kept else None)
        assert set(rig.storage.manifests) == ({2} if is_kept else set())
        completed = rig.checkpoints.documents()["latest"]
        assert isinstance(completed, dict)
        assert completed["completed"]["external_path"] == f"/checkpoints/{JOB_ID}/chk-2"
        assert completed["completed"]["discarded"] is not is_kept


PLACE = CheckpointPlace("/former", "7" * 32, 5)


def former_checkpoint() -> FormerCheckpoint:
    """Return checkpoint 5 of another job with the same vertices."""
    vertices = [VertexEntry(vertex_id(name), name, 1, 128, {}) for name in JOB]
    entries, sources = [SubtaskEntry(vertex_id("t"), 0, STATE)], [SourceEntry(vertex_id("s"), b"splits")]
    written = CheckpointManifest("7" * 32, "former", 5, 0, JOB, entries, sources, vertices)
    return FormerCheckpoint(PLACE, written, CheckpointTopology(job_of(JOB, ["st"])))


def test_a_job_starts_from_the_checkpoint_of_another_until_it_has_one_of_its_own() -> None:
    """The job's checkpoint ids go on behind the other job's checkpoint, which is never removed."""
    rig, heard = Rig(), list[object]()
    rig.checkpoints.read_former = former_checkpoint

    rig.checkpoints.recover(lambda: heard.append("recovered"), heard.append)
    assert heard == []
    rig.background.end_all()
    first = rig.checkpoints.restored_state(vertex_id("t"), 0)
    splits = rig.checkpoints.source_state(vertex_id("s"))
    rig.start()
    restored = rig.checkpoints.documents()["latest"]
    rig.complete(6)

    assert (heard, splits, rig.checkpoints.last_completed_id) == (["recovered"], b"splits", 6)
    assert first is not None
    assert (first.checkpoint_id, first.former) == (5, PLACE)
    assert isinstance(restored, dict)
    assert restored["restored"]["external_path"] == f"/former/{'7' * 32}/chk-5"
    assert part_of(rig, vertex_id("t")) == (6, STATE)
    assert "discard 5" not in rig.storage.done


def test_shared_files_go_when_no_kept_checkpoint_names_them_and_all_at_the_end() -> None:
    """The second checkpoint fails: its file stays until the third one, which does not name it, is complete."""
    rig = started(is_incremental=True)

    for number, names in ((1, "ab"), (2, "bc"), (3, "bd")):
        rig.timers.advance(0.125)
        shared = [StateHandle(1, b"", path=f"shared/{name}") for name in names]
        rig.checkpoints.report("tm-1", acknowledged(attempt("s"), number, STATE, shared=shared))
        if number == 2:
            rig.checkpoints.report("tm-2", CheckpointDeclined(attempt("t"), number, "TASK_NOT_READY", "not now"))
        else:
            rig.checkpoints.report("tm-2", acknowledged(attempt("t"), number))
        rig.background.end_all()
    rig.checkpoints.close()
    rig.background.end_all()

    assert rig.storage.done[:5] == ["write 1", "discard 2", "write 3", "discard 1", "discard shared/a, shared/c"]
    assert rig.storage.done[-2:] == ["discard 3", "discard all shared"]


def test_files_of_another_tasks_report_are_not_taken_for_used() -> None:
    rig = under_way(is_incremental=True)

    message = acknowledged(attempt("s"), 1, STATE, shared=[StateHandle(1, b"", path="shared/x")])
    taken = [rig.checkpoints.report("tm-2", message), rig.checkpoints.report("tm-1", message)]

    assert taken == [False, True]


def test_a_checkpoint_that_was_passed_over_stays_with_those_that_are_retained() -> None:
    """The missing file of such a checkpoint may be put back."""
    rig = two_complete(fallback=True)

    fell_back = [rig.checkpoints.fall_back(2), rig.checkpoints.fall_back(1)]
    passed_over = rig.checkpoints.unrestorable
    rig.checkpoints.close(JobStatus.FAILED)
    rig.background.end_all()

    assert (fell_back, passed_over, set(rig.storage.manifests)) == ([True, False], [2], {1, 2})


@pytest.mark.parametrize(("next_id", "expected"), [(1, 6), (151, 151)])
def test_ids_go_on_behind_the_former_checkpoint_and_those_of_an_earlier_job_manager(
    next_id: int, expected: int
) -> None:
    """The first one is reserved in the job store before the job runs."""
    rig = Rig(next_id=next_id)
    rig.checkpoints.read_former = former_checkpoint
    rig.checkpoints.recover(lambda: None, rig.errors.append)
    rig.background.end_all()

    assert rig.reserved == [expected]

"""Tests of ``flowlet.jm.checkpoints.job_checkpoints``; timers and the calls in the background end when the test says so."""

import gc
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import CellType, FunctionType

import pytest

from flowlet.common.checkpoint_settings import CheckpointSettings
from flowlet.errors import FlowletError
from flowlet.graph.execution_state import ExecutionState
from flowlet.jm.checkpoints.job_checkpoints import CheckpointsFailedError, JobCheckpoints
from flowlet.rpc.control_messages import (
    CheckpointAborted,
    CheckpointAcknowledged,
    CheckpointCompleted,
    CheckpointDeclined,
    CheckpointOrder,
    RestoredState,
    TriggerCheckpoint,
)
from flowlet.storage.manifest import CheckpointManifest, SourceEntry
from tests.flowlet.jm.checkpoints.coordinated import JOB_ID, STATE, attempt, job_of, vertex_id
from tests.flowlet.rpc.manual_timers import ManualTimers

SETTINGS = CheckpointSettings(interval_ms=125, directory="/checkpoints", timeout_ms=1000)
JOB = {"s": 1, "t": 1}
TMS = {"s": "tm-1", "t": "tm-2"}


@dataclass
class Storage:
    """What is on the disk, and what was done."""

    manifests: dict[int, CheckpointManifest] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    error: str | None = None  # of the next call

    def write_manifest(self, manifest: CheckpointManifest) -> None:
        self._fail()
        self.done.append(f"write {manifest.checkpoint_id}")
        self.manifests[manifest.checkpoint_id] = manifest

    def discard(self, checkpoint_id: int) -> None:
        self._fail()
        self.done.append(f"discard {checkpoint_id}")
        self.manifests.pop(checkpoint_id, None)

    def _fail(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise FlowletError(error)


class Rig:
    """The checkpoints of a source on ``tm-1`` and a sink on ``tm-2``."""

    def __init__(self, settings: CheckpointSettings | None = SETTINGS) -> None:
        self.timers = ManualTimers()
        self.storage = Storage()
        self.orders: list[tuple[str, CheckpointOrder]] = []
        self.errors: list[Exception] = []
        self.calls: list[tuple[str, Callable[[], None]]] = []  # in the background, not ended
        self.opened: list[tuple[str, str, bytes]] = []
        self.on_failure: Callable[[], None] = lambda: None
        self.wall_ms = 5_000_000
        self.run = 0
        self.checkpoints = JobCheckpoints(
            job_of(JOB, ["st"], settings),
            self,
            clock=lambda: self.wall_ms,
            fail=self._fail,
            call_in_background=self._call,
            key=b"key",
            timers=self.timers,
            open_storage=self._open,
        )

    def send_checkpoint_order(self, tm_id: str, order: CheckpointOrder) -> None:
        self.orders.append((tm_id, order))

    def _fail(self, error: Exception) -> None:
        self.errors.append(error)
        self.on_failure()

    def _open(self, directory: str, job_id: str, key: bytes) -> Storage:
        self.opened.append((directory, job_id, key))
        return self.storage

    def _call(
        self, function: Callable[[], None], on_result: Callable[[None], None], on_error: Callable[[Exception], None], name: str
    ) -> None:
        def finish() -> None:
            try:
                function()
            except FlowletError as error:
                on_error(error)
            else:
                on_result(None)

        self.calls.append((name, finish))

    def answer(self) -> None:
        """The storage answers all calls."""
        while self.calls:
            self.calls.pop(0)[1]()

    def start(self, run: int = 0) -> None:
        """The attempts of a run are running; a checkpoint is due after each eighth of a second."""
        self.run = run
        self.checkpoints.tasks_deployed({attempt(name, run=run): tm_id for name, tm_id in TMS.items()})
        for name in TMS:
            self.checkpoints.task_state_changed(attempt(name, run=run), ExecutionState.RUNNING)

    def acknowledge(self, checkpoint_id: int, *names: str) -> list[bool]:
        return [
            self.checkpoints.report(TMS[name], CheckpointAcknowledged(attempt(name, run=self.run), checkpoint_id, STATE))
            for name in names or TMS
        ]

    def complete(self, checkpoint_id: int) -> None:
        self.timers.advance(0.125)
        assert self.acknowledge(checkpoint_id) == [True, True]
        self.answer()

    def orders_of(self, kind: type) -> list[tuple[str, int]]:
        return [(tm_id, order.checkpoint_id) for tm_id, order in self.orders if isinstance(order, kind)]


def test_the_manifest_is_written_before_anybody_hears_of_the_end() -> None:
    rig = Rig()
    rig.checkpoints.add_source(vertex_id("s"), lambda: b"splits")
    rig.start()

    rig.timers.advance(0.125)
    triggered = rig.orders_of(TriggerCheckpoint)
    rig.acknowledge(1)
    before = (rig.orders_of(CheckpointCompleted), rig.checkpoints.last_completed_id, [name for name, _ in rig.calls])
    rig.answer()

    assert triggered == [("tm-1", 1)]
    assert rig.orders[0][1] == TriggerCheckpoint(attempt("s"), 1, 5_000_125)
    assert before == ([], -1, ["manifest of checkpoint 1"])
    assert rig.storage.manifests[1].sources == [SourceEntry(vertex_id("s"), b"splits")]
    assert rig.orders_of(CheckpointCompleted) == [("tm-1", 1), ("tm-2", 1)]
    assert rig.checkpoints.last_completed_id == 1
    assert rig.opened == [("/checkpoints", JOB_ID, b"key")]


def test_the_next_run_begins_with_the_newest_one() -> None:
    rig = Rig()
    rig.checkpoints.add_source(vertex_id("s"), lambda: b"splits")
    rig.start()
    anew = rig.checkpoints.restored_state(vertex_id("t"), 0), rig.checkpoints.source_state(vertex_id("s"))

    rig.complete(1)
    rig.checkpoints.stop()

    assert anew == (None, None)
    assert rig.checkpoints.restored_state(vertex_id("t"), 0) == RestoredState(1, STATE)
    assert rig.checkpoints.source_state(vertex_id("s")) == b"splits"
    assert rig.checkpoints.source_state(vertex_id("t")) is None


def test_the_next_run_goes_on_with_its_own_attempts_and_sources() -> None:
    rig = Rig()
    rig.checkpoints.add_source(vertex_id("s"), lambda: b"old")
    rig.start()
    rig.complete(1)
    rig.checkpoints.stop()

    rig.checkpoints.add_source(vertex_id("s"), lambda: b"new")
    rig.start(run=1)
    rig.orders.clear()
    rig.complete(2)

    assert {order.attempt for _, order in rig.orders} == {attempt("s", run=1), attempt("t", run=1)}
    assert rig.checkpoints.source_state(vertex_id("s")) == b"new"
    assert rig.checkpoints.documents()["counts"] == {"restored": 1, "total": 2, "in_progress": 0, "completed": 2, "failed": 0}


def test_older_ones_are_removed() -> None:
    rig = Rig(replace(SETTINGS, num_retained=2))
    rig.start()

    for number in (1, 2, 3, 4):
        rig.complete(number)

    assert rig.storage.done == ["write 1", "write 2", "write 3", "discard 1", "write 4", "discard 2"]
    assert list(rig.storage.manifests) == [3, 4]


def test_an_older_one_stays_until_the_manifest_of_the_newer_one_is_written() -> None:
    """Otherwise a JobManager that dies in between would leave nothing to restore."""
    rig = Rig()
    rig.start()
    rig.complete(1)

    rig.timers.advance(0.125)
    rig.acknowledge(2)

    assert [name for name, _ in rig.calls] == ["manifest of checkpoint 2"]


def test_one_at_a_time_is_removed() -> None:
    """A file server that hangs must not collect threads."""
    rig = Rig()
    rig.start()
    for number in (1, 2, 3):
        rig.timers.advance(0.125)
        rig.acknowledge(number)
        rig.calls.pop()[1]()

    assert [name for name, _ in rig.calls] == ["discard of checkpoint 1"]
    rig.answer()
    assert rig.storage.done[-2:] == ["discard 1", "discard 2"]


def test_files_that_cannot_be_removed_do_not_stop_the_others() -> None:
    rig = Rig()
    rig.start()
    rig.complete(1)
    rig.timers.advance(0.125)
    rig.acknowledge(2)
    rig.calls.pop(0)[1]()

    rig.storage.error = "permission denied"
    rig.answer()
    rig.complete(3)

    assert rig.storage.done == ["write 1", "write 2", "write 3", "discard 2"]
    assert rig.errors == []


def test_a_manifest_that_cannot_be_written_fails_its_checkpoint() -> None:
    rig = Rig()
    rig.start()
    rig.timers.advance(0.125)
    rig.acknowledge(1)

    rig.storage.error = "the disk is full"
    rig.answer()

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


@pytest.mark.parametrize("tm_id", ["tm-2", "tm-9"])
def test_a_report_of_the_wrong_task_manager_does_not_count(tm_id: str) -> None:
    rig = Rig()
    rig.start()
    rig.timers.advance(0.125)

    assert not rig.checkpoints.report(tm_id, CheckpointAcknowledged(attempt("s"), 1))
    rig.acknowledge(1, "t")

    assert rig.calls == []


def test_a_report_about_an_unknown_checkpoint_is_refused() -> None:
    rig = Rig()
    rig.start()
    rig.timers.advance(0.125)

    assert rig.acknowledge(2) == [False, False]
    assert rig.acknowledge(1, "s") == [True]
    assert rig.acknowledge(1, "s") == [True], "a repeated one changes nothing"
    assert rig.calls == []


def test_a_late_report_of_the_last_run_is_refused() -> None:
    rig = Rig()
    rig.start()
    rig.timers.advance(0.125)
    rig.checkpoints.stop()
    rig.start(run=1)
    rig.timers.advance(0.125)

    rig.run = 0

    assert rig.acknowledge(2) == [False, False]


def test_after_a_run_no_timer_and_no_order_is_left() -> None:
    rig = Rig()
    rig.start()
    rig.timers.advance(0.125)
    rig.orders.clear()

    rig.checkpoints.stop()
    rig.checkpoints.stop()
    rig.timers.advance(100)

    assert rig.orders == []
    assert all(timer.is_cancelled for timer in rig.timers.timers)


def test_at_the_end_of_the_job_all_are_removed() -> None:
    rig = Rig(replace(SETTINGS, num_retained=3))
    rig.start()
    for number in (1, 2):
        rig.complete(number)
    rig.timers.advance(0.125)
    rig.acknowledge(3)

    rig.checkpoints.close()
    rig.checkpoints.close()
    rig.answer()

    assert rig.storage.manifests == {}
    assert set(rig.storage.done[-3:]) == {"discard 1", "discard 2", "discard 3"}
    assert rig.checkpoints.documents()["counts"] == {"restored": 0, "total": 3, "in_progress": 0, "completed": 2, "failed": 1}


def test_a_clock_that_is_put_back_holds_nothing_up() -> None:
    rig = Rig()
    rig.start()

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
    assert (rig.orders, rig.calls, rig.timers.timers) == ([], [], [])


def test_the_blobs_of_the_job_are_not_kept() -> None:
    """Chains and partitioners may be large, and a job runs for months."""
    job = job_of(JOB, ["st"])
    rig = Rig()
    kept = JobCheckpoints(job, rig, clock=lambda: 0, fail=lambda _: None, call_in_background=rig._call, timers=rig.timers)

    referents, waiting = {id(kept)}, list[object]([kept])
    while waiting:
        for each in gc.get_referents(waiting.pop()):
            is_followed = isinstance(each, dict | list | tuple | FunctionType | CellType) or type(each).__module__.startswith("flowlet")
            if id(each) not in referents and is_followed and each is not rig:
                referents.add(id(each))
                waiting.append(each)

    assert not {id(job), id(job.vertices[0]), id(job.edges[0])} & referents

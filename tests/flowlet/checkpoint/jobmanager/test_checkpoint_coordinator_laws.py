"""Laws of the coordinator of checkpoints that hold whatever happens, in whatever order."""

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from flowlet.checkpoint.jobmanager.checkpoint_coordinator import CheckpointCoordinator
from flowlet.checkpoint.jobmanager.checkpoint_history import CompletedCheckpoints
from flowlet.checkpoint.jobmanager.coordinator_events import (
    CheckpointFailed,
    DiscardCheckpoint,
    Effect,
    FailJob,
    KeepCheckpoint,
    SavepointCompleted,
    SavepointFailed,
    WriteManifest,
)
from flowlet.checkpoint.jobmanager.pending_checkpoint import CheckpointTopology, SavepointRequest
from flowlet.common.job_settings import CheckpointSettings
from flowlet.errors import FlowletError
from flowlet.messages.control_messages import (
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointDeclined,
    FinalCheckpointAwaited,
    TriggerCheckpoint,
)
from flowlet.messages.execution_state import EXECUTION_TRANSITIONS, ExecutionState, Subtask
from flowlet.storage.manifest import CheckpointManifest, SourceEntry
from netstack.wire.events import SnapshotType
from tests.flowlet.checkpoint.jobmanager.coordinated import STATE, attempts_of, job_of
from tests.flowlet.jm.acknowledgements import acknowledged

JOB = job_of({"s": 2, "r": 1, "m": 2, "t": 1}, ["rm", "mt"], pointwise=["sm"])
REASONS = (
    "ASYNCHRONOUS_PART_FAILED",
    "SYNCHRONOUS_PART_FAILED",
    "TASK_NOT_READY",
    "CANCELLATION_BARRIER",
    "OF_A_LATER_VERSION",
)


class Checkpoints(RuleBasedStateMachine):
    """TaskManagers that report what they like, and a storage that answers when it likes."""

    attempts = Bundle("attempts")

    @initialize(
        max_concurrent=st.integers(1, 3),
        tolerable=st.integers(-1, 2),
        min_pause=st.sampled_from([0, 70]),
        after_finish=st.booleans(),
    )
    def begin(self, max_concurrent: int, tolerable: int, min_pause: int, after_finish: bool) -> None:
        self.settings = CheckpointSettings(
            100,
            "/checkpoints",
            timeout_ms=300,
            min_pause_ms=min_pause,
            max_concurrent=max_concurrent,
            tolerable_failures=tolerable,
            after_tasks_finish=after_finish,
        )
        self.coordinator = CheckpointCoordinator(
            CheckpointTopology(JOB), self.settings, snapshot_sources=self._snapshot_sources
        )
        self.now_ms = 0
        self.num_runs = 0
        self.states: dict[bytes, ExecutionState] = {}  # of the current run
        self.subtasks: dict[bytes, Subtask] = {}  # of all runs
        self.pending: dict[int, set[bytes]] = {}  # by id: who has not acknowledged
        self.ended: dict[int, str] = {}
        self.do_sources_fail = False
        self.writing: dict[int, CheckpointManifest] = {}
        self.kept: list[int] = []
        self.last_id = 0
        self.last_end_ms: int | None = None
        self.is_failing = False  # FailJob was an effect of this run
        self.is_cancelling = False  # a task was told to end, and so all of this run will be, even if it finishes before
        self.num_wanted = 0
        self.wanted: set[SavepointRequest] = set()  # savepoints that have not ended
        self.locations: dict[int, str] = {}  # of savepoints, by id

    @rule(target=attempts)
    def start_run(self) -> bytes:
        found = attempts_of(JOB, self.num_runs)
        self.num_runs += 1
        self.subtasks.update(found)
        self.states = {}
        self.is_failing = self.is_cancelling = False
        self._handle(lambda it: it.run_started(found), new_states=dict.fromkeys(found, ExecutionState.DEPLOYING))
        return next(iter(found))

    @precondition(lambda self: self.states)
    @rule()
    def all_run(self) -> None:
        for each, state in list(self.states.items()):
            if ExecutionState.RUNNING in EXECUTION_TRANSITIONS[state]:
                self._change(each, ExecutionState.RUNNING)

    @precondition(lambda self: self.subtasks)
    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(sorted(self.subtasks)))  # also of old runs
        options = (
            sorted(EXECUTION_TRANSITIONS[self.states[attempt]]) if attempt in self.states else list(ExecutionState)
        )
        if options:
            self._change(attempt, data.draw(st.sampled_from(options)))

    @precondition(lambda self: any(state is ExecutionState.RUNNING for state in self.states.values()))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        running = sorted(each for each, state in self.states.items() if state is ExecutionState.RUNNING)
        self._change(data.draw(st.sampled_from(running)), ExecutionState.FINISHED)

    @rule(duration_ms=st.sampled_from([1, 30, 70, 100, 250, 1000]))
    def wait(self, duration_ms: int) -> None:
        end_ms = self.now_ms + duration_ms
        while (due_ms := self.coordinator.next_due_ms) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self._handle(CheckpointCoordinator.time_passed)
        self.now_ms = end_ms

    @rule()
    def want(self) -> None:
        self._handle(CheckpointCoordinator.checkpoint_wanted)

    @precondition(lambda self: self.subtasks)
    @rule(data=st.data())
    def await_the_last(self, data: st.DataObject) -> None:
        self._handle(lambda it: it.reported(FinalCheckpointAwaited(data.draw(st.sampled_from(sorted(self.subtasks))))))

    @rule(duration_ms=st.integers(0, 500))
    def stall(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        self._handle(CheckpointCoordinator.time_passed)

    @rule()
    def the_next_sources_fail(self) -> None:
        self.do_sources_fail = True

    @precondition(lambda self: self.pending)
    @rule()
    def all_acknowledge(self) -> None:
        checkpoint_id = max(self.pending)
        for attempt in sorted(self.pending[checkpoint_id]):
            self._acknowledge(attempt, checkpoint_id)

    @precondition(lambda self: self.subtasks)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        self._acknowledge(
            data.draw(st.sampled_from(sorted(self.subtasks))), data.draw(st.integers(0, self.last_id + 1))
        )

    @precondition(lambda self: self.subtasks)
    @rule(data=st.data())
    def decline(self, data: st.DataObject) -> None:
        attempt, checkpoint_id = (
            data.draw(st.sampled_from(sorted(self.subtasks))),
            data.draw(st.integers(0, self.last_id + 1)),
        )
        self._handle(
            lambda it: it.reported(
                CheckpointDeclined(attempt, checkpoint_id, data.draw(st.sampled_from(REASONS)), "why")
            )
        )

    @precondition(lambda self: self.writing)
    @rule(data=st.data(), fails=st.booleans())
    def answer_of_the_storage(self, data: st.DataObject, fails: bool) -> None:
        manifest = self.writing.pop(data.draw(st.sampled_from(sorted(self.writing))))
        was_ended = manifest.checkpoint_id in self.ended
        effects = self._handle(
            (lambda it: it.manifest_failed(manifest.checkpoint_id, "why"))
            if fails
            else (lambda it: it.manifest_written(manifest))
        )
        if was_ended or fails:
            location = self.locations.get(manifest.checkpoint_id, "")
            assert DiscardCheckpoint(manifest.checkpoint_id, location) in effects, (
                "a manifest that nobody restores is removed"
            )
        elif manifest.is_savepoint:
            assert any(isinstance(effect, SavepointCompleted) for effect in effects)
        else:
            assert self.kept[-1] == manifest.checkpoint_id

    @rule(kind=st.sampled_from([SnapshotType.SAVEPOINT, SnapshotType.SAVEPOINT_SUSPEND]))
    def want_savepoint(self, kind: SnapshotType) -> None:
        self.num_wanted += 1
        request = SavepointRequest(f"/{self.num_wanted}", kind)
        self.wanted.add(request)
        self._handle(lambda it: it.savepoint_requested(request))

    @rule(is_last=st.booleans())
    def end_run(self, is_last: bool) -> None:
        self.states = {}
        self._handle(CheckpointCoordinator.job_ended if is_last else CheckpointCoordinator.run_ended)
        assert not self.pending
        assert not self.wanted, "each has an end"

    def _change(self, attempt: bytes, state: ExecutionState) -> None:
        if attempt in self.states:
            self.states[attempt] = state
            self.is_cancelling |= state is ExecutionState.CANCELING
        self._handle(lambda it: it.attempt_changed(attempt, state))

    def _acknowledge(self, attempt: bytes, checkpoint_id: int) -> None:
        self.pending.get(checkpoint_id, set()).discard(attempt)
        self._handle(lambda it: it.reported(acknowledged(attempt, checkpoint_id, STATE)))

    def _handle(
        self, happened: Callable[[CheckpointCoordinator], None], new_states: dict[bytes, ExecutionState] | None = None
    ) -> list[Effect]:
        effects = self.coordinator.handle(happened, self.now_ms)
        self.states = self.states if new_states is None else new_states
        for index, effect in enumerate(effects):
            self._check(effect, is_last=index == len(effects) - 1)
        return effects

    def _check(self, effect: Effect, *, is_last: bool) -> None:
        match effect:
            case TriggerCheckpoint(attempt, checkpoint_id, location=location):
                assert checkpoint_id in self.pending
                if location:
                    assert list(self.pending) == [checkpoint_id], "a savepoint runs alone"
                    self.locations[checkpoint_id] = location
                assert self.states[attempt] is ExecutionState.RUNNING
            case CheckpointCompleted(attempt, checkpoint_id):
                assert checkpoint_id in self.locations or self.kept[-1] == checkpoint_id
                assert not self.states[attempt].is_terminal
            case CheckpointAborted(attempt, checkpoint_id):
                assert self.ended[checkpoint_id] == "failed"
                assert not self.states[attempt].is_terminal
            case WriteManifest(manifest):
                assert not self.pending[manifest.checkpoint_id], "everybody has acknowledged"
                assert manifest.checkpoint_id not in self.writing
                assert {(each.vertex_id, each.subtask) for each in manifest.subtasks} == {
                    tuple(each) for each in attempts_of(JOB).values()
                }
                self.writing[manifest.checkpoint_id] = manifest
            case KeepCheckpoint(manifest):
                assert not manifest.is_savepoint
                assert not self.kept or manifest.checkpoint_id > self.kept[-1]
                self._end(manifest.checkpoint_id, "completed")
                self.kept.append(manifest.checkpoint_id)
            case CheckpointFailed(checkpoint_id):
                self._end(checkpoint_id, "failed")
            case DiscardCheckpoint(checkpoint_id):
                assert self.ended[checkpoint_id] == "failed"
                assert checkpoint_id not in self.writing, "a thread still writes its manifest"
            case SavepointCompleted(request, checkpoint_id):
                assert self.locations[checkpoint_id] == request.location
                self._end(checkpoint_id, "completed")
                self.wanted.remove(request)
            case SavepointFailed(request):
                self.wanted.remove(request)
            case FailJob():
                assert is_last
                self.is_failing = True

    def _snapshot_sources(self, checkpoint_id: int) -> list[SourceEntry]:
        self._check_trigger(checkpoint_id)
        fails, self.do_sources_fail = self.do_sources_fail, False
        if fails:
            raise FlowletError("why")
        return []

    def _check_trigger(self, checkpoint_id: int) -> None:
        assert checkpoint_id > self.last_id
        assert not self.is_failing
        assert all(state in (ExecutionState.RUNNING, ExecutionState.FINISHED) for state in self.states.values())
        assert self.wanted or self.last_end_ms is None or self.now_ms >= self.last_end_ms + self.settings.min_pause_ms
        assert self.settings.after_tasks_finish or ExecutionState.FINISHED not in self.states.values()
        self.last_id = checkpoint_id
        self.pending[checkpoint_id] = {each for each, state in self.states.items() if state is ExecutionState.RUNNING}
        assert self.pending[checkpoint_id], "a checkpoint that concerns no task"

    def _end(self, checkpoint_id: int, how: str) -> None:
        del self.pending[checkpoint_id]
        assert checkpoint_id not in self.ended
        self.ended[checkpoint_id] = how
        self.last_end_ms = self.now_ms

    @invariant()
    def what_is_pending_is_bounded_and_known(self) -> None:
        if not hasattr(self, "coordinator"):
            return
        self.coordinator.check_invariants()
        assert list(self.coordinator.pending) == sorted(self.pending)
        assert len(self.pending) <= self.settings.max_concurrent
        topology = CheckpointTopology(JOB)
        counts = self.coordinator.document(CompletedCheckpoints(self.settings, topology))["counts"]
        assert counts["total"] == self.last_id == len(self.pending) + len(self.ended)  # type: ignore[index]  # a dict
        assert counts["completed"] == len(self.kept)  # type: ignore[index]  # a dict

    @invariant()
    def it_goes_on_while_tasks_run(self) -> None:
        if not hasattr(self, "coordinator") or not self.states or self.is_failing or self.is_cancelling:
            return
        states = set(self.states.values())
        may_go_on = (
            {ExecutionState.RUNNING}
            if not self.settings.after_tasks_finish
            else {ExecutionState.RUNNING, ExecutionState.FINISHED}
        )
        if ExecutionState.RUNNING in states and states <= may_go_on:
            due_ms = self.coordinator.next_due_ms
            assert due_ms is not None, "without a timer no further checkpoint is triggered"
            assert due_ms <= self.now_ms + 100

    def teardown(self) -> None:
        if hasattr(self, "coordinator"):
            self.states = {}
            self._handle(CheckpointCoordinator.job_ended)
            assert set(self.ended) == set(range(1, self.last_id + 1)), "each id that was triggered has ended"


Checkpoints.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_the_laws = Checkpoints.TestCase

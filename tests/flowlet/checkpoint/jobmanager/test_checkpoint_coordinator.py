"""Tests of ``flowlet.checkpoint.jobmanager.checkpoint_coordinator``: what follows each event, by a clock
that moves by hand.
"""

from collections.abc import Sequence

import pytest

from flowlet.checkpoint.jobmanager.checkpoint_coordinator import CheckpointCoordinator
from flowlet.checkpoint.jobmanager.coordinator_events import (
    CheckpointFailed,
    DiscardCheckpoint,
    FailJob,
    KeepCheckpoint,
    WriteManifest,
)
from flowlet.checkpoint.jobmanager.pending_checkpoint import SYMPTOM
from flowlet.messages.control_messages import (
    CheckpointAborted,
    CheckpointAcknowledged,
    CheckpointCompleted,
    CheckpointDeclined,
    StateHandle,
    SubtaskEntry,
    TriggerCheckpoint,
)
from flowlet.messages.execution_state import ExecutionState, Subtask
from flowlet.storage.manifest import (
    SourceEntry,
)
from tests.flowlet.checkpoint.jobmanager.coordinated import (
    JOB_ID,
    STATE,
    Coordinated,
    attempt,
    attempts_of,
    job_of,
    told,
    triggered,
    vertex_id,
)
from tests.flowlet.jm.acknowledgements import acknowledged

RUNNING, FINISHED, FAILED = ExecutionState.RUNNING, ExecutionState.FINISHED, ExecutionState.FAILED
S, T = Subtask(vertex_id("s"), 0), Subtask(vertex_id("t"), 0)


def started(**settings: object) -> Coordinated:
    coordinated = Coordinated(**settings)  # type: ignore[arg-type]  # of CheckpointSettings
    coordinated.start()
    return coordinated


def failures(effects: Sequence[object]) -> list[tuple[int, str]]:
    return [(effect.checkpoint_id, effect.failure.reason) for effect in effects if isinstance(effect, CheckpointFailed)]


def failed_job(effects: Sequence[object]) -> list[str]:
    found = [effect.message for effect in effects if isinstance(effect, FailJob)]
    assert not found or isinstance(effects[-1], FailJob), "it is the last effect"
    return found


class TestOneCheckpoint:
    def test_from_the_trigger_to_the_end(self) -> None:
        coordinated = started()
        s, t = attempt("s"), attempt("t")

        trigger = coordinated.at(100)
        first = coordinated.acknowledge(1, "s0")
        last = coordinated.acknowledge(1, "t0")
        end = coordinated.write(1)

        manifest = coordinated.manifests[1]
        assert trigger == [TriggerCheckpoint(s, 1, 100)]
        assert (first, last) == ([], [WriteManifest(manifest)])
        assert end == [KeepCheckpoint(manifest), CheckpointCompleted(s, 1), CheckpointCompleted(t, 1)]
        assert (manifest.job_id, manifest.job_name, manifest.checkpoint_id, manifest.timestamp_ms) == (
            JOB_ID,
            "job",
            1,
            100,
        )
        assert manifest.subtasks == [SubtaskEntry(*S, STATE), SubtaskEntry(*T, STATE)]
        assert manifest.sources == [SourceEntry(vertex_id("s"), b"splits")]
        assert manifest.parallelisms == {vertex_id("s"): 1, vertex_id("t"): 1}

    def test_a_source_that_fails_fails_it_and_no_task_hears_of_it(self) -> None:
        coordinated = started()
        coordinated.problem = "no connection"

        effects = coordinated.at(100)

        assert failures(effects) == [(1, "TRIGGER_CHECKPOINT_FAILURE")]
        assert "no connection" in failed_job(effects)[0]
        assert [type(effect) for effect in effects] == [CheckpointFailed, FailJob]

    def test_what_a_finishing_task_acknowledges(self) -> None:
        coordinated = started()
        coordinated.at(100)

        coordinated.acknowledge(1, "t0")
        coordinated.report(acknowledged(attempt("s"), 1, None, is_finished=True))

        assert coordinated.manifests[1].subtasks[0] == SubtaskEntry(*S, None, is_finished=True)

    def test_a_manifest_that_cannot_be_written_fails_it(self) -> None:
        coordinated = started()
        coordinated.at(100)
        coordinated.acknowledge(1)

        effects = coordinated.fail_to_write(1)

        (failure,) = [effect.failure for effect in effects if isinstance(effect, CheckpointFailed)]
        assert (failure.reason, failure.message) == (
            "FINALIZE_CHECKPOINT_FAILURE",
            "its manifest could not be written: the disk is full",
        )
        assert told(effects, CheckpointAborted) == [(1, attempt("s")), (1, attempt("t"))]
        assert DiscardCheckpoint(1) in effects
        assert "the disk is full" in failed_job(effects)[0]


class TestPeriod:
    def test_the_first_comes_an_interval_after_the_last_task_runs(self) -> None:
        coordinated = Coordinated()
        coordinated.handle(lambda it: it.run_started(attempts_of(coordinated.job)))
        coordinated.handle(lambda it: it.attempt_changed(attempt("s"), RUNNING))
        waiting = coordinated.coordinator.next_due_ms
        coordinated.now_ms = 500
        coordinated.handle(lambda it: it.attempt_changed(attempt("t"), ExecutionState.INITIALIZING))
        coordinated.handle(lambda it: it.attempt_changed(attempt("t"), RUNNING))

        early, due = coordinated.at(599), coordinated.at(600)

        assert (waiting, triggered(early), list(triggered(due))) == (None, {}, [1])

    def test_a_task_that_finishes_before_all_run_does_not_hold_the_first_up(self) -> None:
        coordinated = Coordinated()
        coordinated.handle(lambda it: it.run_started(attempts_of(coordinated.job)))
        coordinated.handle(lambda it: it.attempt_changed(attempt("t"), RUNNING))
        coordinated.handle(lambda it: it.attempt_changed(attempt("s"), FINISHED))

        assert triggered(coordinated.at(100)) == {1: {attempt("t")}}

    def test_they_come_at_fixed_times(self) -> None:
        coordinated = started()

        times = []
        for number in (1, 2, 3):
            coordinated.at(number * 100 + 7)
            coordinated.complete(number)
            times.append(coordinated.manifests[number].timestamp_ms)

        assert times == [100, 200, 300]

    def test_one_that_is_due_while_another_is_on_its_way_waits_and_no_more_queue_up(self) -> None:
        coordinated = started()

        coordinated.at(350)
        busy = coordinated.pending
        effects = coordinated.complete(1)
        coordinated.complete(2)
        before, after = coordinated.at(399), coordinated.at(400)

        assert (busy, list(triggered(effects)), triggered(before), list(triggered(after))) == ([1], [2], {}, [3])

    def test_several_at_a_time(self) -> None:
        coordinated = started(max_concurrent=2)

        coordinated.at(1000 - 1)

        assert coordinated.pending == [1, 2]

    def test_a_loop_that_stood_still_triggers_once(self) -> None:
        coordinated = started(max_concurrent=10)

        coordinated.now_ms = 1042
        late = coordinated.handle(CheckpointCoordinator.time_passed)

        assert list(triggered(late)) == [1]
        assert coordinated.coordinator.next_due_ms == 1142

    @pytest.mark.parametrize("ends", ["complete", "decline"])
    def test_the_pause_begins_at_the_end_of_one(self, ends: str) -> None:
        coordinated = started(min_pause_ms=80, tolerable_failures=-1)

        coordinated.at(170)
        if ends == "complete":
            coordinated.complete(1)
        else:
            coordinated.decline(1, "s", "ASYNCHRONOUS_PART_FAILED")
        before, after = coordinated.at(249), coordinated.at(250)

        assert (triggered(before), list(triggered(after))) == ({}, [2])

    def test_one_that_is_wanted_comes_at_once_and_those_behind_it_with_a_pause(self) -> None:
        """A tenth of the interval lies between them, and as long as the last one took; wishes meanwhile share the next
        one.
        """
        coordinated = started(interval_ms=1000)

        assert list(triggered(coordinated.handle(CheckpointCoordinator.checkpoint_wanted))) == [1]
        coordinated.handle(CheckpointCoordinator.checkpoint_wanted)
        coordinated.now_ms = 20
        coordinated.complete(1)
        coordinated.handle(CheckpointCoordinator.checkpoint_wanted)
        assert (triggered(coordinated.at(119)), list(triggered(coordinated.at(120)))) == ({}, [2])
        coordinated.handle(CheckpointCoordinator.checkpoint_wanted)
        coordinated.now_ms = 320
        coordinated.complete(2)
        assert (triggered(coordinated.at(519)), list(triggered(coordinated.at(520)))) == ({}, [3])
        coordinated.complete(3)
        assert (triggered(coordinated.at(999)), list(triggered(coordinated.at(1000)))) == ({}, [4])

    def test_one_that_is_wanted_waits_for_all_tasks_to_run_and_for_the_pause(self) -> None:
        coordinated = Coordinated(interval_ms=1000, min_pause_ms=400)
        coordinated.handle(CheckpointCoordinator.checkpoint_wanted)
        coordinated.handle(lambda it: it.run_started(attempts_of(coordinated.job, 0)))
        assert triggered(coordinated.handle(CheckpointCoordinator.checkpoint_wanted)) == {}

        coordinated.run = 0
        coordinated.change("s", RUNNING)
        assert list(triggered(coordinated.change("t", RUNNING))) == [1]
        coordinated.complete(1)
        coordinated.handle(CheckpointCoordinator.checkpoint_wanted)
        assert (triggered(coordinated.at(399)), list(triggered(coordinated.at(400)))) == ({}, [2])

    def test_the_interval_is_at_least_the_pause(self) -> None:
        coordinated = started(min_pause_ms=300)

        assert (triggered(coordinated.at(299)), list(triggered(coordinated.at(300)))) == ({}, [1])

    @pytest.mark.parametrize("is_held", [True, False])
    def test_one_that_waits_for_the_client_alone_counts_as_no_failure(self, is_held: bool) -> None:
        """The sink has acknowledged, or cannot, because the client does not read."""
        coordinated = started(timeout_ms=1000)
        coordinated.at(100)
        if is_held:
            coordinated.acknowledge(1, "s0")
        coordinated.now_ms = 1100
        held = frozenset({(1, attempt("t"))} if is_held else ())
        blocked = frozenset(() if is_held else {attempt("t")})

        effects = coordinated.handle(lambda it: it.time_passed(held, blocked))

        assert failures(effects) == [(1, "READER_BEHIND")]
        assert failed_job(effects) == []

    def test_one_that_waits_for_a_task_too_counts(self) -> None:
        coordinated = started(timeout_ms=1000)
        coordinated.at(100)
        coordinated.now_ms = 1100

        effects = coordinated.handle(lambda it: it.time_passed(held=frozenset({(1, attempt("t"))})))

        assert failures(effects) == [(1, "CHECKPOINT_EXPIRED")]
        assert len(failed_job(effects)) == 1

    def test_one_that_takes_too_long_fails(self) -> None:
        coordinated = started(timeout_ms=1000, tolerable_failures=5)
        coordinated.at(100)
        coordinated.acknowledge(1, "s0")

        early, late = coordinated.at(1099), coordinated.at(1100)

        (failed,) = [effect for effect in late if isinstance(effect, CheckpointFailed)]
        assert (failures(early), failed.failure.reason, failed.held_up_by) == ([], "CHECKPOINT_EXPIRED", (T,))
        assert "1000 ms" in failed.failure.message
        assert told(late, CheckpointAborted) == [(1, attempt("s")), (1, attempt("t"))]
        assert list(triggered(late)) == [2], "the trigger that was due waits no longer"


class TestFailures:
    def test_a_task_declines(self) -> None:
        coordinated = started(tolerable_failures=1)
        coordinated.at(100)
        coordinated.acknowledge(1, "s0")

        effects = coordinated.decline(1, "t", "ASYNCHRONOUS_PART_FAILED")

        (failed,) = [effect for effect in effects if isinstance(effect, CheckpointFailed)]
        assert (failed.failure.reason, failed.failure.message, failed.failure.subtask) == (
            "ASYNCHRONOUS_PART_FAILED",
            "no space left",
            T,
        )
        assert told(effects, CheckpointAborted) == [(1, attempt("s")), (1, attempt("t"))]
        assert DiscardCheckpoint(1) in effects
        assert failed_job(effects) == []

    def test_too_many_in_a_row_fail_the_job_and_nothing_is_triggered_then(self) -> None:
        coordinated = started(tolerable_failures=1)

        messages = []
        for number in (1, 2):
            coordinated.at(number * 100)
            messages.append(failed_job(coordinated.decline(number, "t", "ASYNCHRONOUS_PART_FAILED")))
        after = coordinated.at(10_000)

        assert messages[0] == []
        assert messages[1] == [
            (
                "more than 1 checkpoints failed one after the other "
                "(execution.checkpointing.tolerable-failed-checkpoints); the last one, "
                "checkpoint 2, failed in t (subtask 0): no space left"
            )
        ]
        assert triggered(after) == {}

    def test_in_the_next_run_it_goes_on(self) -> None:
        coordinated = started(tolerable_failures=0)
        coordinated.at(100)
        coordinated.decline(1, "t", "ASYNCHRONOUS_PART_FAILED")
        coordinated.stop()

        coordinated.start()
        again = coordinated.at(200)

        assert triggered(again) == {2: {attempt("s", run=1)}}

    def test_a_complete_one_between_two_failures(self) -> None:
        coordinated = started(tolerable_failures=1)

        for number in (1, 2, 3):
            coordinated.at(number * 100)
            ends = (
                coordinated.complete(number)
                if number == 2
                else coordinated.decline(number, "t", "ASYNCHRONOUS_PART_FAILED")
            )
            assert failed_job(ends) == []

    def test_any_number_if_the_job_says_so(self) -> None:
        coordinated = started(tolerable_failures=-1)

        for number in range(1, 6):
            coordinated.at(number * 100)
            assert failed_job(coordinated.decline(number, "t", "ASYNCHRONOUS_PART_FAILED")) == []

    def test_an_older_one_than_the_complete_one_does_not_count(self) -> None:
        coordinated = started(tolerable_failures=0, max_concurrent=2)
        coordinated.at(200)
        coordinated.decline(1, "t", SYMPTOM)
        coordinated.complete(2)

        assert failed_job(coordinated.decline(1, "s", "ASYNCHRONOUS_PART_FAILED")) == []

    @pytest.mark.parametrize("reason", ["TASK_NOT_READY", "TASK_CLOSING", SYMPTOM, "SUBSUMED", "INPUT_END_OF_STREAM"])
    def test_some_reasons_do_not_count(self, reason: str) -> None:
        coordinated = started(tolerable_failures=0)
        coordinated.at(100)

        effects = coordinated.decline(1, "t", reason)

        assert (failures(effects), failed_job(effects)) == ([(1, reason)], [])
        assert list(triggered(coordinated.at(200))) == [2]

    def test_the_cause_of_a_symptom_counts_when_it_arrives(self) -> None:
        """A consumer that got a cancelled barrier may report before the producer that cancelled it."""
        coordinated = started(tolerable_failures=0)
        coordinated.at(100)
        symptom = coordinated.decline(1, "t", SYMPTOM)

        cause = coordinated.decline(1, "s", "ASYNCHRONOUS_PART_FAILED")
        again = coordinated.decline(1, "s", "ASYNCHRONOUS_PART_FAILED")

        assert failed_job(symptom) == []
        assert "failed in s (subtask 0): no space left" in failed_job(cause)[0]
        assert again == []
        (document,) = coordinated.document()["history"]
        assert (document["failure_reason"], document["failed_task"]["name"]) == ("ASYNCHRONOUS_PART_FAILED", "s")

    def test_another_symptom_replaces_nothing(self) -> None:
        coordinated = started(tolerable_failures=0)
        coordinated.at(100)
        coordinated.decline(1, "t", SYMPTOM)

        assert coordinated.decline(1, "s", "TASK_CLOSING") == []

    @pytest.mark.parametrize("state", [FAILED, ExecutionState.CANCELED, ExecutionState.CANCELING])
    def test_a_task_that_is_lost_ends_all_and_counts_as_no_failure(self, state: ExecutionState) -> None:
        coordinated = started(max_concurrent=2, tolerable_failures=0)
        coordinated.at(200)

        effects = coordinated.change("t", state)

        assert failures(effects) == [(1, "TASK_FAILURE"), (2, "TASK_FAILURE")]
        assert failed_job(effects) == []
        assert triggered(coordinated.at(5000)) == {}
        told_ids = told(effects, CheckpointAborted)
        assert ((1, attempt("t")) in told_ids) == (state is ExecutionState.CANCELING), (
            "an attempt that has ended gets no orders"
        )


class TestSubsumption:
    def test_a_complete_one_fails_the_older_ones(self) -> None:
        coordinated = started(max_concurrent=3)
        coordinated.at(400)

        coordinated.acknowledge(2)
        effects = coordinated.write(2)

        assert failures(effects) == [(1, "CHECKPOINT_SUBSUMED")]
        assert set(told(effects, CheckpointAborted)) == {(1, attempt("s")), (1, attempt("t"))}
        assert set(told(effects, CheckpointCompleted)) == {(2, attempt("s")), (2, attempt("t"))}
        assert effects.index(KeepCheckpoint(coordinated.manifests[2])) < effects.index(DiscardCheckpoint(1))
        assert coordinated.pending == [3, 4], "and leave room for the next one, which was due"

    def test_manifests_that_are_written_in_the_other_order(self) -> None:
        """The older one is never complete after the newer one, and its files go once no thread writes them."""
        coordinated = started(max_concurrent=2)
        coordinated.at(200)
        coordinated.acknowledge(1)
        coordinated.acknowledge(2)

        newer = coordinated.write(2)
        older = coordinated.write(1)

        assert failures(newer) == [(1, "CHECKPOINT_SUBSUMED")]
        assert DiscardCheckpoint(1) not in newer, "a thread still writes it"
        assert older == [DiscardCheckpoint(1)]

    def test_in_the_right_order_both_are_complete(self) -> None:
        coordinated = started(max_concurrent=2)
        coordinated.at(200)
        coordinated.acknowledge(2)
        coordinated.acknowledge(1)

        coordinated.write(1)
        effects = coordinated.write(2)

        assert failures(coordinated.effects) == []
        assert KeepCheckpoint(coordinated.manifests[2]) in effects


class TestManifestThatOutlivesItsCheckpoint:
    def test_the_timeout_covers_it(self) -> None:
        """A file server that hangs must not end checkpoints in silence."""
        coordinated = started(tolerable_failures=0)
        coordinated.at(100)
        coordinated.acknowledge(1)

        expired = coordinated.at(1100)
        late = coordinated.write(1)

        assert failures(expired) == [(1, "CHECKPOINT_EXPIRED")]
        assert "waited for its manifest" in failed_job(expired)[0]
        assert DiscardCheckpoint(1) not in expired
        assert late == [DiscardCheckpoint(1)]

    @pytest.mark.parametrize("is_written", [True, False])
    def test_the_run_ends_meanwhile(self, is_written: bool) -> None:
        """The next run restores an older one, so this one must never become complete."""
        coordinated = started()
        coordinated.at(100)
        coordinated.acknowledge(1)

        stopped = coordinated.stop()
        coordinated.start()
        late = coordinated.write(1) if is_written else coordinated.fail_to_write(1)

        assert failures(stopped) == [(1, "CHECKPOINT_COORDINATOR_SUSPEND")]
        assert DiscardCheckpoint(1) not in stopped
        assert late == [DiscardCheckpoint(1)]


class TestTasksThatFinish:
    def test_they_count_as_acknowledged_and_their_consumers_are_triggered(self) -> None:
        coordinated = started()
        coordinated.change("s", FINISHED)

        trigger = coordinated.at(100)
        coordinated.acknowledge(1, "t0")
        end = coordinated.write(1)

        assert triggered(trigger) == {1: {attempt("t")}}
        assert coordinated.manifests[1].subtasks == [SubtaskEntry(*S, None, is_finished=True), SubtaskEntry(*T, STATE)]
        assert told(end, CheckpointCompleted) == [(1, attempt("t"))]

    def test_one_that_took_part_may_finish(self) -> None:
        coordinated = started()
        coordinated.at(100)
        coordinated.acknowledge(1, "s0")

        coordinated.change("s", FINISHED)
        coordinated.acknowledge(1, "t0")
        end = coordinated.write(1)

        assert told(end, CheckpointCompleted) == [(1, attempt("t"))]

    def test_one_that_did_not_take_part_fails_it_and_counts_as_no_failure(self) -> None:
        """The task's trigger crossed the report of its end; the checkpoint would otherwise wait until its timeout."""
        coordinated = started(tolerable_failures=0)
        coordinated.at(100)

        effects = coordinated.change("s", FINISHED)

        assert failures(effects) == [(1, "TASK_FINISHED")]
        assert told(effects, CheckpointAborted) == [(1, attempt("t"))]
        assert failed_job(effects) == []
        assert triggered(coordinated.at(200)) == {2: {attempt("t")}}

    def test_checkpoints_go_on_until_the_last_one_has_finished(self) -> None:
        """Tasks at their end wait for one more checkpoint."""
        coordinated = started()
        coordinated.change("s", FINISHED)
        coordinated.at(100)
        coordinated.complete(1)
        going_on = coordinated.coordinator.next_due_ms

        coordinated.change("t", FINISHED)

        assert (going_on, coordinated.coordinator.next_due_ms) == (200, None)

    def test_without_after_tasks_finish_none_is_triggered_then(self) -> None:
        coordinated = started(after_tasks_finish=False)
        coordinated.at(100)
        coordinated.acknowledge(1, "s0")

        coordinated.change("s", FINISHED)
        coordinated.acknowledge(1, "t0")
        end = coordinated.write(1)

        assert told(end, CheckpointCompleted) == [(1, attempt("t"))], "one that is on its way goes on"
        assert triggered(coordinated.at(1000)) == {}

    def test_a_part_of_a_vertex(self) -> None:
        coordinated = Coordinated(job_of({"s": 2, "t": 2}, [], pointwise=["st"]))
        coordinated.start()
        coordinated.change("s", FINISHED, 1)

        assert triggered(coordinated.at(100)) == {1: {attempt("s", 0), attempt("t", 1)}}


class TestReportsThatDoNotFit:
    def test_of_an_unknown_checkpoint(self) -> None:
        coordinated = started()
        coordinated.at(100)

        effects = [*coordinated.acknowledge(7, "s0"), *coordinated.decline(7, "s", "ASYNCHRONOUS_PART_FAILED")]

        assert (effects, coordinated.pending) == ([], [1])

    def test_twice(self) -> None:
        coordinated = started()
        coordinated.at(100)
        coordinated.acknowledge(1, "s0")

        effects = [*coordinated.acknowledge(1, "s0"), *coordinated.decline(1, "s", "ASYNCHRONOUS_PART_FAILED")]

        assert (effects, coordinated.pending) == ([], [1])

    def test_while_the_manifest_is_written(self) -> None:
        coordinated = started()
        coordinated.at(100)
        coordinated.acknowledge(1)

        assert coordinated.decline(1, "t", "ASYNCHRONOUS_PART_FAILED") == []
        assert coordinated.acknowledge(1, "t0") == []

    @pytest.mark.parametrize("message", [CheckpointDeclined, CheckpointAcknowledged])
    def test_flink_13593_of_an_attempt_of_the_last_run(self, message: type) -> None:
        """A late decline must not fail the new attempts' checkpoint, nor a late acknowledgement complete it."""
        coordinated = started()
        coordinated.stop()
        coordinated.start()
        coordinated.at(200)
        old = attempt("t", run=0)
        report = (
            CheckpointDeclined(old, 1, "ASYNCHRONOUS_PART_FAILED", "")
            if message is CheckpointDeclined
            else acknowledged(old, 1)
        )

        effects = coordinated.report(report)

        assert (effects, coordinated.pending) == ([], [1])
        assert coordinated.handle(lambda it: it.attempt_changed(old, FAILED)) == []
        assert coordinated.pending == [1]

    def test_flink_18533_of_a_checkpoint_of_the_last_run(self) -> None:
        """The checkpoint's id is never used again, so it fits no checkpoint of this run."""
        coordinated = started()
        coordinated.at(100)
        coordinated.stop()
        coordinated.start()
        coordinated.at(200)

        effects = [*coordinated.acknowledge(1), *coordinated.decline(1, "s", "ASYNCHRONOUS_PART_FAILED")]

        assert (effects, coordinated.pending) == ([], [2])

    def test_flink_28984_a_state_that_is_written_late_is_removed(self) -> None:
        coordinated = started(tolerable_failures=9)
        coordinated.at(100)
        coordinated.decline(1, "t", "ASYNCHRONOUS_PART_FAILED")

        in_a_file = coordinated.acknowledge(1, "s0")
        inline = coordinated.report(acknowledged(attempt("s"), 1, StateHandle(1, b"sum", inline=b"x")))

        assert (in_a_file, inline) == ([DiscardCheckpoint(1)], [])

    def test_a_state_of_a_complete_checkpoint_is_never_removed(self) -> None:
        coordinated = started()
        coordinated.at(100)
        coordinated.complete(1)

        assert coordinated.acknowledge(1) == []

    def test_a_state_is_not_removed_while_the_manifest_is_written(self) -> None:
        coordinated = started(tolerable_failures=9)
        coordinated.at(100)
        coordinated.acknowledge(1)
        coordinated.at(1100)

        assert coordinated.acknowledge(1, "s0") == []

    def test_before_any_run(self) -> None:
        coordinated = Coordinated()

        assert coordinated.handle(lambda it: it.attempt_changed(attempt("s", run=0), RUNNING)) == []
        assert coordinated.handle(CheckpointCoordinator.time_passed) == []


class TestRuns:
    def test_ids_rise_over_restarts(self) -> None:
        coordinated = started()
        coordinated.at(100)
        coordinated.stop()
        coordinated.start()
        again = coordinated.at(300)

        assert triggered(again) == {2: {attempt("s", run=1)}}

    def test_the_end_of_a_run_ends_what_is_on_its_way_and_sends_nothing(self) -> None:
        coordinated = started()
        coordinated.at(100)

        effects = coordinated.stop()

        assert failures(effects) == [(1, "CHECKPOINT_COORDINATOR_SUSPEND")]
        assert told(effects, CheckpointAborted) == []
        assert (coordinated.stop(), coordinated.coordinator.next_due_ms) == ([], None)

    def test_a_run_without_an_end_before_it(self) -> None:
        coordinated = started()
        coordinated.at(100)

        coordinated.start()

        assert failures(coordinated.effects) == [(1, "CHECKPOINT_COORDINATOR_SUSPEND")]

    @pytest.mark.parametrize("is_last", [True, False])
    def test_what_old_attempts_wrote_late_is_removed_when_they_have_ended(self, is_last: bool) -> None:
        coordinated = started()
        coordinated.at(100)
        coordinated.stop()

        once = coordinated.handle(CheckpointCoordinator.job_ended if is_last else (lambda it: it.run_started({})))
        twice = coordinated.handle(CheckpointCoordinator.job_ended)

        assert (once, twice) == ([DiscardCheckpoint(1)], [])

    def test_what_attempts_that_go_on_write_late_is_removed_in_the_end(self) -> None:
        """The sink starts again, and the source may still write for the checkpoint that failed."""
        coordinated = started()
        coordinated.at(100)
        coordinated.change("t", FAILED)
        attempts = {attempt("s"): S, attempt("t", run=1): T}

        once = coordinated.handle(lambda it: it.run_started(attempts, None, {attempt("s"): RUNNING}))

        assert DiscardCheckpoint(1) not in once
        assert coordinated.report(acknowledged(attempt("s"), 1, STATE)) == [DiscardCheckpoint(1)]
        assert coordinated.handle(CheckpointCoordinator.job_ended) == [DiscardCheckpoint(1)]

    @pytest.mark.parametrize("after_tasks_finish", [True, False])
    def test_a_task_that_had_finished_before_others_started_again(self, after_tasks_finish: bool) -> None:
        coordinated = started(after_tasks_finish=after_tasks_finish)
        states = {attempt("s"): FINISHED}

        coordinated.handle(lambda it: it.run_started({attempt("s"): S, attempt("t", run=1): T}, None, states))
        coordinated.handle(lambda it: it.attempt_changed(attempt("t", run=1), RUNNING))

        expected = {1: {attempt("t", run=1)}} if after_tasks_finish else {}
        assert triggered(coordinated.at(100)) == expected

    def test_the_pause_lasts_over_a_restart(self) -> None:
        coordinated = started(min_pause_ms=100)
        coordinated.at(100)
        coordinated.now_ms = 150
        coordinated.stop()
        coordinated.start()

        assert coordinated.coordinator.next_due_ms == 250

    def test_what_a_run_begins_with_is_counted(self) -> None:
        coordinated = started()
        coordinated.at(100)
        coordinated.complete(1)
        coordinated.stop()
        coordinated.start(restored=1)

        document = coordinated.document()
        assert document["counts"] == {"restored": 1, "total": 1, "in_progress": 0, "completed": 1, "failed": 0}
        assert document["latest"]["restored"] == {
            "id": 1,
            "restore_timestamp": 100,
            "is_savepoint": False,
            "external_path": f"/checkpoints/{JOB_ID}/chk-1",
        }

    def test_a_manifest_of_no_run(self) -> None:
        coordinated = started()
        coordinated.at(100)
        coordinated.acknowledge(1)
        coordinated.stop()
        coordinated.handle(CheckpointCoordinator.job_ended)

        assert coordinated.handle(lambda it: it.manifest_written(coordinated.manifests[1])) == [DiscardCheckpoint(1)]

    def test_it_is_described_for_people(self) -> None:
        coordinated = started()
        coordinated.at(100)

        assert repr(coordinated.coordinator) == (
            "<CheckpointCoordinator [<PendingCheckpoint 1 waits for the tasks, 2 tasks are missing>], next id 2>"
        )

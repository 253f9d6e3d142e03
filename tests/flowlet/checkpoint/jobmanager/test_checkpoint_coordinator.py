"""Tests of ``flowlet.checkpoint.jobmanager.checkpoint_coordinator``: what follows each event, by a clock
that moves by hand.
"""

from collections.abc import Sequence

import pytest

from flowlet.checkpoint.jobmanager.checkpoint_coordinator import CheckpointCoordinator
from flowlet.checkpoint.jobmanager.coordinator_events import CheckpointFailed, DiscardCheckpoint, FailJob
from flowlet.checkpoint.jobmanager.pending_checkpoint import SYMPTOM
from flowlet.messages.control_messages import CheckpointAcknowledged, CheckpointDeclined, TriggerCheckpoint
from flowlet.messages.execution_state import ExecutionState, Subtask
from flowlet.messages.job_messages import StateHandle, SubtaskEntry
from flowlet.storage.manifest import SourceEntry
from tests.flowlet.checkpoint.jobmanager.coordinated import (
    JOB_ID,
    STATE,
    Coordinated,
    attempt,
    job_of,
    started,
    triggered,
    under_way,
    vertex_id,
)
from tests.flowlet.jm.acknowledgements import acknowledged

RUNNING, FINISHED, FAILED = ExecutionState.RUNNING, ExecutionState.FINISHED, ExecutionState.FAILED
S, T = Subtask(vertex_id("s"), 0), Subtask(vertex_id("t"), 0)


def failures(effects: Sequence[object]) -> list[tuple[int, str]]:
    return [(effect.checkpoint_id, effect.failure.reason) for effect in effects if isinstance(effect, CheckpointFailed)]


def failed_job(effects: Sequence[object]) -> list[str]:
    found = [effect.message for effect in effects if isinstance(effect, FailJob)]
    assert not found or isinstance(effects[-1], FailJob), "it is the last effect"
    return found


class TestOneCheckpoint:
    def test_from_the_trigger_to_the_end(self) -> None:
        coordinated = started().play(
            "at 100 -> trigger 1 s",
            "ack 1 s ->",
            "ack 1 t -> write 1",
            "write 1 -> keep 1; completed 1 s t",
        )

        manifest = coordinated.manifests[1]
        assert coordinated.effects[0] == TriggerCheckpoint(attempt("s"), 1, 100)
        assert (manifest.job_id, manifest.job_name) == (JOB_ID, "job")
        assert (manifest.checkpoint_id, manifest.timestamp_ms) == (1, 100)
        assert manifest.subtasks == [SubtaskEntry(*S, STATE), SubtaskEntry(*T, STATE)]
        assert manifest.sources == [SourceEntry(vertex_id("s"), b"splits")]
        assert manifest.parallelisms == {vertex_id("s"): 1, vertex_id("t"): 1}

    def test_a_source_that_fails_fails_it_and_no_task_hears_of_it(self) -> None:
        coordinated = started()
        coordinated.problem = "no connection"

        coordinated.play("at 100 -> failed 1 TRIGGER_CHECKPOINT_FAILURE; fail the job")

        assert "no connection" in failed_job(coordinated.effects)[0]

    def test_what_a_finishing_task_acknowledges(self) -> None:
        coordinated = under_way()

        coordinated.acknowledge(1, "t0")
        coordinated.report(acknowledged(attempt("s"), 1, None, is_finished=True))

        assert coordinated.manifests[1].subtasks[0] == SubtaskEntry(*S, None, is_finished=True)

    def test_a_manifest_that_cannot_be_written_fails_it(self) -> None:
        coordinated = under_way().play(
            "ack 1 -> write 1",
            "cannot-write 1 -> failed 1 FINALIZE_CHECKPOINT_FAILURE; aborted 1 s t; discard 1; fail the job",
        )

        (failure,) = [effect.failure for effect in coordinated.effects if isinstance(effect, CheckpointFailed)]
        assert failure.message == "its manifest could not be written: the disk is full"
        assert "the disk is full" in failed_job(coordinated.effects)[0]


class TestPeriod:
    def test_the_first_comes_an_interval_after_the_last_task_runs(self) -> None:
        Coordinated().play(
            "deploy ->",
            "s RUNNING ->",
            "at 500 ->",
            "t INITIALIZING ->",
            "t RUNNING ->",
            "at 599 ->",
            "at 600 -> trigger 1 s",
        )

    def test_a_task_that_finishes_before_all_run_does_not_hold_the_first_up(self) -> None:
        Coordinated().play("deploy ->", "t RUNNING ->", "s FINISHED ->", "at 100 -> trigger 1 t")

    def test_they_come_at_fixed_times(self) -> None:
        coordinated = started()

        times = []
        for number in (1, 2, 3):
            coordinated.at(number * 100 + 7)
            coordinated.complete(number)
            times.append(coordinated.manifests[number].timestamp_ms)

        assert times == [100, 200, 300]

    def test_one_that_is_due_while_another_is_on_its_way_waits_and_no_more_queue_up(self) -> None:
        started().play(
            "at 350 -> trigger 1 s",
            "complete 1 -> trigger 2 s",
            "complete 2 ->",
            "at 399 ->",
            "at 400 -> trigger 3 s",
        )

    def test_several_at_a_time(self) -> None:
        started(max_concurrent=2).play("at 999 -> trigger 1 s; trigger 2 s")

    def test_a_loop_that_stood_still_triggers_once(self) -> None:
        started(max_concurrent=10).play("late 1042 -> trigger 1 s", "at 1141 ->", "at 1142 -> trigger 2 s")

    @pytest.mark.parametrize(
        "end", ["complete 1 ->", "decline 1 s -> failed 1 ASYNCHRONOUS_PART_FAILED; aborted 1 s t; discard 1"]
    )
    def test_the_pause_begins_at_the_end_of_one(self, end: str) -> None:
        coordinated = started(min_pause_ms=80, tolerable_failures=-1)

        coordinated.play("at 170 -> trigger 1 s", end, "at 249 ->", "at 250 -> trigger 2 s")

    def test_one_that_is_wanted_comes_at_once_and_those_behind_it_with_a_pause(self) -> None:
        """A tenth of the interval, and as long as the last one took, lies between; wishes meanwhile share the next."""
        coordinated = started(interval_ms=1000)

        coordinated.play("want -> trigger 1 s", "want ->", "clock 20 ->", "complete 1 ->", "want ->")
        coordinated.play("at 119 ->", "at 120 -> trigger 2 s", "want ->", "clock 320 ->", "complete 2 ->")
        coordinated.play("at 519 ->", "at 520 -> trigger 3 s", "complete 3 ->")
        coordinated.play("at 999 ->", "at 1000 -> trigger 4 s")

    def test_one_that_is_wanted_waits_for_all_tasks_to_run_and_for_the_pause(self) -> None:
        coordinated = Coordinated(interval_ms=1000, min_pause_ms=400)

        coordinated.play("want ->", "deploy ->", "want ->", "s RUNNING ->", "t RUNNING -> trigger 1 s")
        coordinated.play("complete 1 ->", "want ->", "at 399 ->", "at 400 -> trigger 2 s")

    def test_the_interval_is_at_least_the_pause(self) -> None:
        started(min_pause_ms=300).play("at 299 ->", "at 300 -> trigger 1 s")

    @pytest.mark.parametrize("is_held", [True, False])
    def test_one_that_waits_for_the_client_alone_counts_as_no_failure(self, is_held: bool) -> None:
        """The sink has acknowledged, or cannot, because the client does not read."""
        coordinated = under_way(timeout_ms=1000)
        if is_held:
            coordinated.acknowledge(1, "s0")
        coordinated.now_ms = 1100
        held = frozenset({(1, attempt("t"))} if is_held else ())
        blocked = frozenset(() if is_held else {attempt("t")})

        effects = coordinated.handle(lambda it: it.time_passed(held, blocked))

        assert failures(effects) == [(1, "READER_BEHIND")]
        assert failed_job(effects) == []

    def test_one_that_waits_for_a_task_too_counts(self) -> None:
        coordinated = under_way(timeout_ms=1000)
        coordinated.now_ms = 1100

        effects = coordinated.handle(lambda it: it.time_passed(held=frozenset({(1, attempt("t"))})))

        assert failures(effects) == [(1, "CHECKPOINT_EXPIRED")]
        assert len(failed_job(effects)) == 1

    def test_one_that_takes_too_long_fails(self) -> None:
        """The trigger that was due waits no longer."""
        coordinated = under_way(timeout_ms=1000, tolerable_failures=5).play(
            "ack 1 s ->",
            "at 1099 ->",
            "at 1100 -> failed 1 CHECKPOINT_EXPIRED; aborted 1 s t; discard 1; trigger 2 s",
        )

        (failed,) = [effect for effect in coordinated.effects if isinstance(effect, CheckpointFailed)]
        assert failed.held_up_by == (T,)
        assert "1000 ms" in failed.failure.message


class TestFailures:
    def test_too_many_in_a_row_fail_the_job_and_nothing_is_triggered_then(self) -> None:
        coordinated = under_way(tolerable_failures=1).play(
            "ack 1 s ->",
            "decline 1 t -> failed 1 ASYNCHRONOUS_PART_FAILED; aborted 1 s t; discard 1",
            "at 200 -> trigger 2 s",
            "decline 2 t -> failed 2 ASYNCHRONOUS_PART_FAILED; aborted 2 s t; discard 2; fail the job",
            "at 10000 ->",
        )

        failure = next(effect.failure for effect in coordinated.effects if isinstance(effect, CheckpointFailed))
        assert (failure.message, failure.subtask) == ("no space left", T)
        (message,) = failed_job(coordinated.effects)
        assert message == (
            "more than 1 checkpoints failed one after the other "
            "(execution.checkpointing.tolerable-failed-checkpoints); the last one, "
            "checkpoint 2, failed in t (subtask 0): no space left"
        )

    def test_in_the_next_run_it_goes_on(self) -> None:
        coordinated = under_way(tolerable_failures=0)
        coordinated.decline(1, "t")

        coordinated.play("stop ->", "start -> discard 1", "at 200 -> trigger 2 s")

    def test_a_complete_one_between_two_failures(self) -> None:
        """Then two did not fail in a row."""
        under_way(tolerable_failures=1).play(
            "decline 1 t -> failed 1 ASYNCHRONOUS_PART_FAILED; aborted 1 s t; discard 1",
            "at 200 -> trigger 2 s",
            "complete 2 ->",
            "at 300 -> trigger 3 s",
            "decline 3 t -> failed 3 ASYNCHRONOUS_PART_FAILED; aborted 3 s t; discard 3",
        )

    def test_any_number_if_the_job_says_so(self) -> None:
        coordinated = started(tolerable_failures=-1)

        for number in range(1, 6):
            coordinated.at(number * 100)
            assert failed_job(coordinated.decline(number, "t")) == []

    def test_an_older_one_than_the_complete_one_does_not_count(self) -> None:
        coordinated = started(tolerable_failures=0, max_concurrent=2)
        coordinated.at(200)
        coordinated.decline(1, "t", SYMPTOM)

        coordinated.play("complete 2 ->", "decline 1 s ->")

    @pytest.mark.parametrize("reason", ["TASK_NOT_READY", "TASK_CLOSING", SYMPTOM, "SUBSUMED", "INPUT_END_OF_STREAM"])
    def test_some_reasons_do_not_count(self, reason: str) -> None:
        coordinated = under_way(tolerable_failures=0)

        effects = coordinated.decline(1, "t", reason)

        assert (failures(effects), failed_job(effects)) == ([(1, reason)], [])
        assert list(triggered(coordinated.at(200))) == [2]

    def test_the_cause_of_a_symptom_counts_when_it_arrives(self) -> None:
        """A consumer that got a cancelled barrier may report before the producer that cancelled it."""
        coordinated = under_way(tolerable_failures=0)
        symptom = coordinated.decline(1, "t", SYMPTOM)

        cause = coordinated.decline(1, "s")
        again = coordinated.decline(1, "s")

        assert failed_job(symptom) == []
        assert "failed in s (subtask 0): no space left" in failed_job(cause)[0]
        assert again == []
        (document,) = coordinated.document()["history"]
        assert (document["failure_reason"], document["failed_task"]["name"]) == ("ASYNCHRONOUS_PART_FAILED", "s")

    def test_another_symptom_replaces_nothing(self) -> None:
        coordinated = under_way(tolerable_failures=0)
        coordinated.decline(1, "t", SYMPTOM)

        coordinated.play("decline 1 s TASK_CLOSING ->")

    @pytest.mark.parametrize(("state", "told"), [("FAILED", "s"), ("CANCELED", "s"), ("CANCELING", "s t")])
    def test_a_task_that_is_lost_ends_all_and_counts_as_no_failure(self, state: str, told: str) -> None:
        """An attempt that has ended gets no orders."""
        started(max_concurrent=2, tolerable_failures=0).play(
            "at 200 -> trigger 1 s; trigger 2 s",
            f"t {state} -> failed 1 TASK_FAILURE; aborted 1 {told}; discard 1; "
            f"failed 2 TASK_FAILURE; aborted 2 {told}; discard 2",
            "at 5000 ->",
        )


class TestSubsumption:
    def test_a_complete_one_fails_the_older_ones(self) -> None:
        """They leave room for the next one, which was due."""
        started(max_concurrent=3).play(
            "at 400 -> trigger 1 s; trigger 2 s; trigger 3 s",
            "ack 2 -> write 2",
            "write 2 -> keep 2; failed 1 CHECKPOINT_SUBSUMED; aborted 1 s t; discard 1; completed 2 s t; trigger 4 s",
        )

    def test_manifests_that_are_written_in_the_other_order(self) -> None:
        """The older one is never complete after the newer one, and its files go once no thread writes them."""
        started(max_concurrent=2).play(
            "at 200 -> trigger 1 s; trigger 2 s",
            "ack 1 -> write 1",
            "ack 2 -> write 2",
            "write 2 -> keep 2; failed 1 CHECKPOINT_SUBSUMED; aborted 1 s t; completed 2 s t",
            "write 1 -> discard 1",
        )

    def test_in_the_right_order_both_are_complete(self) -> None:
        started(max_concurrent=2).play(
            "at 200 -> trigger 1 s; trigger 2 s",
            "ack 2 -> write 2",
            "ack 1 -> write 1",
            "write 1 -> keep 1; completed 1 s t",
            "write 2 -> keep 2; completed 2 s t",
        )


class TestManifestThatOutlivesItsCheckpoint:
    def test_the_timeout_covers_it(self) -> None:
        """A file server that hangs must not end checkpoints in silence."""
        coordinated = under_way(tolerable_failures=0).play(
            "ack 1 -> write 1",
            "at 1100 -> failed 1 CHECKPOINT_EXPIRED; aborted 1 s t; fail the job",
            "write 1 -> discard 1",
        )

        assert "waited for its manifest" in failed_job(coordinated.effects[:-1])[0]

    @pytest.mark.parametrize("late", ["write", "cannot-write"])
    def test_the_run_ends_meanwhile(self, late: str) -> None:
        """The next run restores an older one, so this one must never become complete."""
        under_way().play(
            "ack 1 -> write 1",
            "stop -> failed 1 CHECKPOINT_COORDINATOR_SUSPEND",
            "start ->",
            f"{late} 1 -> discard 1",
        )

    def test_the_job_ends_meanwhile(self) -> None:
        under_way().play(
            "ack 1 -> write 1",
            "stop -> failed 1 CHECKPOINT_COORDINATOR_SUSPEND",
            "end ->",
            "write 1 -> discard 1",
        )


class TestTasksThatFinish:
    def test_they_count_as_acknowledged_and_their_consumers_are_triggered(self) -> None:
        coordinated = started().play(
            "s FINISHED ->",
            "at 100 -> trigger 1 t",
            "ack 1 t -> write 1",
            "write 1 -> keep 1; completed 1 t",
        )

        assert coordinated.manifests[1].subtasks == [SubtaskEntry(*S, None, is_finished=True), SubtaskEntry(*T, STATE)]

    def test_one_that_did_not_take_part_fails_it_and_counts_as_no_failure(self) -> None:
        """The task's trigger crossed the report of its end; the checkpoint would otherwise wait until its timeout."""
        under_way(tolerable_failures=0).play(
            "s FINISHED -> failed 1 TASK_FINISHED; aborted 1 t; discard 1",
            "at 200 -> trigger 2 t",
        )

    def test_checkpoints_go_on_until_the_last_one_has_finished(self) -> None:
        """Tasks at their end wait for one more checkpoint."""
        coordinated = started().play("s FINISHED ->", "at 100 -> trigger 1 t", "complete 1 ->")
        assert coordinated.coordinator.next_due_ms == 200

        coordinated.play("t FINISHED ->")

        assert coordinated.coordinator.next_due_ms is None

    @pytest.mark.parametrize("after_tasks_finish", [True, False])
    def test_one_that_took_part_may_finish(self, after_tasks_finish: bool) -> None:
        """Without ``after_tasks_finish`` the checkpoint that is on its way goes on, and none is triggered then."""
        under_way(after_tasks_finish=after_tasks_finish).play(
            "ack 1 s ->",
            "s FINISHED ->",
            "ack 1 t -> write 1",
            "write 1 -> keep 1; completed 1 t",
            "at 250 -> trigger 2 t" if after_tasks_finish else "at 1000 ->",
        )

    def test_a_part_of_a_vertex(self) -> None:
        coordinated = started(job_of({"s": 2, "t": 2}, [], pointwise=["st"]))

        coordinated.play("s1 FINISHED ->", "at 100 -> trigger 1 s0 t1")


class TestReportsThatDoNotFit:
    def test_of_an_unknown_checkpoint_and_twice(self) -> None:
        coordinated = under_way().play("ack 7 s ->", "decline 7 s ->", "ack 1 s ->", "ack 1 s ->", "decline 1 s ->")

        assert coordinated.pending == [1]

    def test_while_the_manifest_is_written(self) -> None:
        """No report ends the checkpoint then, nor is a state removed when it has expired."""
        under_way(tolerable_failures=9).play(
            "ack 1 -> write 1",
            "decline 1 t ->",
            "ack 1 t ->",
            "at 1100 -> failed 1 CHECKPOINT_EXPIRED; aborted 1 s t; trigger 2 s",
            "ack 1 s ->",
        )

    @pytest.mark.parametrize("message", [CheckpointDeclined, CheckpointAcknowledged])
    def test_flink_13593_of_an_attempt_of_the_last_run(self, message: type) -> None:
        """A late decline must not fail the new attempts' checkpoint, nor a late acknowledgement complete it."""
        coordinated = started().play("stop ->", "start ->", "at 200 -> trigger 1 s")
        old = attempt("t", run=0)
        declined = CheckpointDeclined(old, 1, "ASYNCHRONOUS_PART_FAILED", "")

        effects = coordinated.report(declined if message is CheckpointDeclined else acknowledged(old, 1))

        assert (effects, coordinated.pending) == ([], [1])
        assert coordinated.handle(lambda it: it.attempt_changed(old, FAILED)) == []
        assert coordinated.pending == [1]

    def test_flink_18533_of_a_checkpoint_of_the_last_run(self) -> None:
        """The checkpoint's id is never used again, so it fits no checkpoint of this run."""
        coordinated = under_way().play(
            "stop -> failed 1 CHECKPOINT_COORDINATOR_SUSPEND; discard 1",
            "start -> discard 1",
            "at 200 -> trigger 2 s",
            "ack 1 ->",
            "decline 1 s ->",
        )

        assert coordinated.pending == [2]

    def test_flink_28984_a_state_that_is_written_late_is_removed(self) -> None:
        """A state that is no file is not."""
        coordinated = under_way(tolerable_failures=9)
        coordinated.decline(1, "t")

        coordinated.play("ack 1 s -> discard 1")

        assert coordinated.report(acknowledged(attempt("s"), 1, StateHandle(1, b"sum", inline=b"x"))) == []

    def test_a_state_of_a_complete_checkpoint_is_never_removed(self) -> None:
        under_way().play("complete 1 ->", "ack 1 ->")

    def test_before_any_run(self) -> None:
        coordinated = Coordinated()

        assert coordinated.handle(lambda it: it.attempt_changed(attempt("s", run=0), RUNNING)) == []
        assert coordinated.handle(CheckpointCoordinator.time_passed) == []


class TestRuns:
    def test_the_end_of_a_run_ends_what_is_on_its_way_and_sends_nothing(self) -> None:
        coordinated = under_way().play("stop -> failed 1 CHECKPOINT_COORDINATOR_SUSPEND; discard 1", "stop ->")

        assert coordinated.coordinator.next_due_ms is None

    def test_a_run_without_an_end_before_it(self) -> None:
        coordinated = under_way()

        coordinated.start()

        assert failures(coordinated.effects) == [(1, "CHECKPOINT_COORDINATOR_SUSPEND")]

    @pytest.mark.parametrize("next_thing", ["deploy", "end"])
    def test_what_old_attempts_wrote_late_is_removed_when_they_have_ended(self, next_thing: str) -> None:
        coordinated = under_way()
        coordinated.stop()

        coordinated.play(f"{next_thing} -> discard 1", "end ->")

    def test_what_attempts_that_go_on_write_late_is_removed_in_the_end(self) -> None:
        """The sink starts again, and the source may still write for the checkpoint that failed."""
        coordinated = under_way()
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
        coordinated = under_way(min_pause_ms=100)
        coordinated.now_ms = 150
        coordinated.stop()

        coordinated.play("start -> discard 1", "at 249 ->", "at 250 -> trigger 2 s")

    def test_what_a_run_begins_with_is_counted(self) -> None:
        coordinated = under_way()
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

    def test_it_is_described_for_people(self) -> None:
        coordinated = under_way()

        assert repr(coordinated.coordinator) == (
            "<CheckpointCoordinator [<PendingCheckpoint 1 waits for the tasks, 2 tasks are missing>], next id 2>"
        )

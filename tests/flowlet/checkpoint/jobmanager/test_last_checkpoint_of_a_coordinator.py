"""Tests of ``flowlet.checkpoint.jobmanager.checkpoint_coordinator``: the last checkpoint, for which all
unfinished tasks wait.
"""

import pytest

from flowlet.checkpoint.jobmanager.coordinator_events import Effect
from flowlet.messages.control_messages import FinalCheckpointAwaited
from flowlet.messages.execution_state import ExecutionState
from tests.flowlet.checkpoint.jobmanager.coordinated import Coordinated, attempt, attempts_of, started

RUNNING, FINISHED, FAILED = ExecutionState.RUNNING, ExecutionState.FINISHED, ExecutionState.FAILED
HOUR_MS = 3_600_000
DECLINED = "failed 1 TASK_NOT_READY; aborted 1 s t; discard 1"


def hourly(**settings: object) -> Coordinated:
    """Return a coordinator that tolerates all failures, and whose next periodic checkpoint is far away."""
    return started(**{"interval_ms": HOUR_MS, "tolerable_failures": -1, **settings})  # type: ignore[arg-type]  # of CheckpointSettings


def waiting(**settings: object) -> Coordinated:
    """Return a coordinator that has triggered the last checkpoint, for which both tasks wait."""
    return hourly(**settings).play("s waits ->", "t waits -> trigger 1 s")


def start_t_again(coordinated: Coordinated, state: ExecutionState) -> list[Effect]:
    """Return what follows when t has a new attempt in this state, and s goes on."""
    attempts = {**attempts_of(coordinated.job, 1), **attempts_of(coordinated.job, 0)}
    s, t = attempt("s"), attempt("t", run=1)
    return coordinated.handle(
        lambda it: it.run_started({each: attempts[each] for each in (s, t)}, states={s: RUNNING, t: state})
    )


def test_the_last_one_comes_when_all_tasks_wait_for_it() -> None:
    """A bounded job does not wait for the interval; one checkpoint serves all."""
    waiting().play(
        "complete 1 ->",
        "s FINISHED ->",
        f"at {HOUR_MS - 1} ->",
        "s waits ->",
        f"at {HOUR_MS} -> trigger 2 t",
    )


def test_the_last_one_comes_when_the_tasks_that_do_not_wait_have_finished() -> None:
    hourly().play("t waits ->", "s FINISHED -> trigger 1 t")


@pytest.mark.parametrize("reason", ["ASYNCHRONOUS_PART_FAILED", "TASK_NOT_READY"], ids=["counted", "not counted"])
def test_the_last_one_is_tried_again_a_pause_after_it_was_declined(reason: str) -> None:
    """Tasks report that they wait only once; the report counts until a checkpoint is complete."""
    waiting().play(
        "clock 10000 ->",
        f"decline 1 t {reason} -> failed 1 {reason}; aborted 1 s t; discard 1",
        "at 10999 ->",
        "at 11000 -> trigger 2 s",
        "complete 2 ->",
        f"at {HOUR_MS - 1} ->",
    )


def test_the_last_one_is_tried_again_a_pause_after_its_timeout() -> None:
    waiting(timeout_ms=1000).play(
        "at 1999 -> failed 1 CHECKPOINT_EXPIRED; aborted 1 s t; discard 1",
        "at 2000 -> trigger 2 s",
    )


def test_the_last_one_is_tried_again_if_its_manifest_cannot_be_written() -> None:
    waiting().play(
        "ack 1 -> write 1",
        "cannot-write 1 -> failed 1 FINALIZE_CHECKPOINT_FAILURE; aborted 1 s t; discard 1",
        "at 999 ->",
        "at 1000 -> trigger 2 s",
    )


@pytest.mark.parametrize(
    ("interval_ms", "pause_ms", "min_pause_ms"),
    [(100, 100, 0), (5000, 1000, 0), (HOUR_MS, 2500, 2500)],
    ids=["the interval", "a second", "the pause"],
)
def test_failing_last_ones_come_no_oftener_than_a_second_the_interval_or_the_pause(
    interval_ms: int, pause_ms: int, min_pause_ms: int
) -> None:
    """A cause that stays, such as a full disk, makes no busy loop, even if failures do not count."""
    coordinated = waiting(interval_ms=interval_ms, min_pause_ms=min_pause_ms)

    for number in range(1, 6):
        declined = f"failed {number} TASK_NOT_READY; aborted {number} s t; discard {number}"
        coordinated.play(
            f"decline {number} t TASK_NOT_READY -> {declined}",
            f"at {number * pause_ms - 1} ->",
            f"at {number * pause_ms} -> trigger {number + 1} s",
        )


def test_failing_last_ones_count_and_end_the_job() -> None:
    waiting(tolerable_failures=1).play(
        "decline 1 t -> failed 1 ASYNCHRONOUS_PART_FAILED; aborted 1 s t; discard 1",
        "at 1000 -> trigger 2 s",
        "decline 2 t -> failed 2 ASYNCHRONOUS_PART_FAILED; aborted 2 s t; discard 2; fail the job",
        f"at {2 * HOUR_MS} ->",
    )


def test_the_pause_of_a_wish_is_short_again_once_one_is_complete() -> None:
    """The longer pause lies only behind one that failed."""
    coordinated = waiting(interval_ms=2000).play(
        f"decline 1 t TASK_NOT_READY -> {DECLINED}", "at 1000 -> trigger 2 s", "complete 2 ->", "t FINISHED ->"
    )

    coordinated.run += 1  # s starts again, and waits again
    again = attempt("s", run=1)
    coordinated.handle(
        lambda it: it.run_started({again: attempts_of(coordinated.job, 1)[again]}, states={again: RUNNING})
    )

    coordinated.play("s waits ->", "at 1199 ->", "at 1200 -> trigger 3 s")


def test_the_last_one_is_wanted_when_a_region_comes_back_with_nothing_left_to_do() -> None:
    """The others wait since before its failure, and report no second time."""
    coordinated = hourly().play("s waits ->", "t FAILED ->", "clock 5000 ->")

    assert coordinated.text_of(start_t_again(coordinated, FINISHED)) == "trigger 1 s"


def test_the_last_one_that_a_restart_of_a_region_called_off_is_tried_again() -> None:
    coordinated = waiting().play("clock 5000 ->", "t FAILED -> failed 1 TASK_FAILURE; aborted 1 s; discard 1")

    start_t_again(coordinated, RUNNING)
    coordinated.play("at 7000 ->")

    again = FinalCheckpointAwaited(attempt("t", run=1))
    assert coordinated.text_of(coordinated.report(again)) == "trigger 2 s"


def test_no_other_one_is_wanted_while_one_that_serves_all_is_on_its_way() -> None:
    """An older one serves only some of the tasks; when it fails, the one on its way remains enough."""
    hourly(max_concurrent=3, interval_ms=10_000, timeout_ms=HOUR_MS).play(
        "at 10000 -> trigger 1 s",
        "s waits ->",
        "t waits -> trigger 2 s",
        f"decline 1 t TASK_NOT_READY -> {DECLINED}",
        "at 19999 ->",
        "complete 2 ->",
        "at 19999 ->",
    )


def test_a_savepoint_is_no_last_checkpoint() -> None:
    """Tasks do not hear of its end, so they go on to wait."""
    hourly().play(
        "s waits ->",
        "savepoint /a -> trigger 1 /a s",
        "t FINISHED -> failed 1 TASK_FINISHED; aborted 1 s; discard 1 /a; no savepoint /a",
        "at 1000 -> trigger 2 s",
    )


def test_no_last_checkpoint_is_triggered_while_a_stop_with_a_savepoint_is_near() -> None:
    """The tasks would end with that one, and the savepoint, whose directory is being made, would come too late."""
    coordinated = hourly()
    coordinated.handle(lambda it: it.stop_announced(is_near=True))

    coordinated.play("s waits ->", "t waits ->", "drain /a -> trigger 1 /a s")


def test_the_last_checkpoint_comes_if_the_savepoint_has_no_directory_after_all() -> None:
    coordinated = hourly()
    coordinated.handle(lambda it: it.stop_announced(is_near=True))
    coordinated.play("s waits ->", "t waits ->")

    assert coordinated.text_of(coordinated.handle(lambda it: it.stop_announced(is_near=False))) == "trigger 1 s"

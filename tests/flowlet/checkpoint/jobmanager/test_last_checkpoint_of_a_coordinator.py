"""Tests of ``flowlet.checkpoint.jobmanager.checkpoint_coordinator``: the last checkpoint, for which all
unfinished tasks wait.
"""

import pytest

from flowlet.checkpoint.jobmanager.coordinator_events import Effect, FailJob
from flowlet.checkpoint.jobmanager.pending_checkpoint import SavepointRequest
from flowlet.messages.control_messages import FinalCheckpointAwaited
from flowlet.messages.execution_state import ExecutionState
from netstack.wire.events import SnapshotType
from tests.flowlet.checkpoint.jobmanager.coordinated import Coordinated, attempt, attempts_of, triggered

RUNNING, FINISHED, FAILED = ExecutionState.RUNNING, ExecutionState.FINISHED, ExecutionState.FAILED
HOUR_MS = 3_600_000
COUNTED, NOT_COUNTED = "ASYNCHRONOUS_PART_FAILED", "TASK_NOT_READY"


def started(**settings: object) -> Coordinated:
    coordinated = Coordinated(**{"interval_ms": HOUR_MS, "tolerable_failures": -1, **settings})  # type: ignore[arg-type]  # of CheckpointSettings
    coordinated.start()
    return coordinated


def wait_for_it(coordinated: Coordinated, *names: str) -> list[Effect]:
    """Let the tasks report that nothing is left for them; return the effects of the last report."""
    return [coordinated.report(FinalCheckpointAwaited(coordinated.attempt(name))) for name in names][-1]


def ids(effects: list[Effect]) -> list[int]:
    return list(triggered(effects))


def test_the_last_one_comes_when_all_tasks_wait_for_it() -> None:
    """A bounded job does not wait for the interval; one checkpoint serves all."""
    coordinated = started()

    assert ids(wait_for_it(coordinated, "s")) == []
    assert ids(wait_for_it(coordinated, "t")) == [1]
    coordinated.complete(1)
    coordinated.change("s", FINISHED)
    assert ids(coordinated.at(HOUR_MS - 1)) == []
    assert wait_for_it(coordinated, "s") == []
    assert ids(coordinated.at(HOUR_MS)) == [2]


def test_the_last_one_comes_when_the_tasks_that_do_not_wait_have_finished() -> None:
    coordinated = started()

    assert ids(wait_for_it(coordinated, "t")) == []
    assert ids(coordinated.change("s", FINISHED)) == [1]


@pytest.mark.parametrize("reason", [COUNTED, NOT_COUNTED])
def test_the_last_one_is_tried_again_a_pause_after_it_was_declined(reason: str) -> None:
    """Tasks report that they wait only once; the report counts until a checkpoint is complete."""
    coordinated = started()
    assert ids(wait_for_it(coordinated, "s", "t")) == [1]

    coordinated.now_ms = 10_000
    assert ids(coordinated.decline(1, "t", reason)) == []
    assert ids(coordinated.at(10_999)) == []
    assert ids(coordinated.at(11_000)) == [2]
    coordinated.complete(2)

    assert ids(coordinated.at(HOUR_MS - 1)) == []


def test_the_last_one_is_tried_again_a_pause_after_its_timeout() -> None:
    coordinated = started(timeout_ms=1000)
    assert ids(wait_for_it(coordinated, "s", "t")) == [1]

    assert ids(coordinated.at(1999)) == []
    assert ids(coordinated.at(2000)) == [2]


def test_the_last_one_is_tried_again_if_its_manifest_cannot_be_written() -> None:
    coordinated = started()
    wait_for_it(coordinated, "s", "t")
    coordinated.acknowledge(1)

    coordinated.fail_to_write(1)

    assert ids(coordinated.at(1000)) == [2]


@pytest.mark.parametrize(
    ("interval_ms", "pause_ms", "min_pause_ms"), [(100, 100, 0), (5000, 1000, 0), (HOUR_MS, 2500, 2500)]
)
def test_failing_last_ones_come_no_oftener_than_a_second_the_interval_or_the_pause(
    interval_ms: int, pause_ms: int, min_pause_ms: int
) -> None:
    """A cause that stays, such as a full disk, makes no busy loop, even if failures do not count."""
    coordinated = started(interval_ms=interval_ms, min_pause_ms=min_pause_ms)
    wait_for_it(coordinated, "s", "t")

    for checkpoint_id in range(1, 6):
        assert ids(coordinated.decline(checkpoint_id, "t", NOT_COUNTED)) == []
        assert ids(coordinated.at(checkpoint_id * pause_ms - 1)) == []
        assert ids(coordinated.at(checkpoint_id * pause_ms)) == [checkpoint_id + 1]


def test_failing_last_ones_count_and_end_the_job() -> None:
    coordinated = started(tolerable_failures=1)
    wait_for_it(coordinated, "s", "t")
    coordinated.decline(1, "t", COUNTED)
    assert ids(coordinated.at(1000)) == [2]

    effects = coordinated.decline(2, "t", COUNTED)

    assert isinstance(effects[-1], FailJob)
    assert ids(coordinated.at(2 * HOUR_MS)) == []


def test_the_pause_of_a_wish_is_short_again_once_one_is_complete() -> None:
    """The longer pause lies only behind one that failed."""
    coordinated = started(interval_ms=2000)
    wait_for_it(coordinated, "s", "t")
    coordinated.decline(1, "t", NOT_COUNTED)
    assert ids(coordinated.at(1000)) == [2]
    coordinated.complete(2)
    coordinated.change("t", FINISHED)

    coordinated.run += 1  # s starts again, and waits again
    again = attempt("s", run=1)
    coordinated.handle(
        lambda it: it.run_started({again: attempts_of(coordinated.job, 1)[again]}, states={again: RUNNING})
    )

    assert ids(wait_for_it(coordinated, "s")) == []
    assert ids(coordinated.at(1199)) == []
    assert ids(coordinated.at(1200)) == [3]


def test_the_last_one_is_wanted_when_a_region_comes_back_with_nothing_left_to_do() -> None:
    """The others wait since before its failure, and report no second time."""
    coordinated = started()
    wait_for_it(coordinated, "s")
    coordinated.change("t", FAILED)
    attempts = {**attempts_of(coordinated.job, 1), **attempts_of(coordinated.job, 0)}
    s, t = attempt("s"), attempt("t", run=1)

    coordinated.now_ms = 5000
    effects = coordinated.handle(
        lambda it: it.run_started({each: attempts[each] for each in (s, t)}, states={s: RUNNING, t: FINISHED})
    )

    assert triggered(effects) == {1: {s}}


def test_the_last_one_that_a_restart_of_a_region_called_off_is_tried_again() -> None:
    coordinated = started()
    assert ids(wait_for_it(coordinated, "s", "t")) == [1]
    coordinated.now_ms = 5000
    coordinated.change("t", FAILED)
    attempts = {**attempts_of(coordinated.job, 1), **attempts_of(coordinated.job, 0)}
    s, t = attempt("s"), attempt("t", run=1)

    coordinated.handle(
        lambda it: it.run_started({each: attempts[each] for each in (s, t)}, states={s: RUNNING, t: RUNNING})
    )
    assert ids(coordinated.at(7000)) == []
    assert triggered(coordinated.report(FinalCheckpointAwaited(t))) == {2: {s}}


def test_no_other_one_is_wanted_while_one_that_serves_all_is_on_its_way() -> None:
    """An older one serves only some of the tasks; when it fails, the one on its way remains enough."""
    coordinated = started(max_concurrent=3, interval_ms=10_000, timeout_ms=HOUR_MS)
    assert ids(coordinated.at(10_000)) == [1]
    assert ids(wait_for_it(coordinated, "s", "t")) == [2]

    coordinated.decline(1, "t", NOT_COUNTED)
    assert ids(coordinated.at(19_999)) == []
    coordinated.complete(2)
    assert ids(coordinated.at(19_999)) == []


def test_a_savepoint_is_no_last_checkpoint() -> None:
    """Tasks do not hear of its end, so they go on to wait."""
    coordinated = started()
    wait_for_it(coordinated, "s")
    coordinated.handle(lambda it: it.savepoint_requested(SavepointRequest("/savepoints/savepoint-1")))
    assert coordinated.pending == [1]

    assert ids(coordinated.change("t", FINISHED)) == []
    assert triggered(coordinated.at(1000)) == {2: {coordinated.attempt("s")}}


def test_no_last_checkpoint_is_triggered_while_a_stop_with_a_savepoint_is_near() -> None:
    """The tasks would end with that one, and the savepoint, whose directory is being made, would come too late."""
    coordinated = started()
    coordinated.handle(lambda it: it.stop_announced(is_near=True))
    before = ids(wait_for_it(coordinated, "s", "t"))

    stop = SavepointRequest("/savepoints/savepoint-1", SnapshotType.SAVEPOINT_TERMINATE)
    triggers = triggered(coordinated.handle(lambda it: it.savepoint_requested(stop)))

    assert (before, list(triggers), coordinated.pending) == ([], [1], [1])


def test_the_last_checkpoint_comes_if_the_savepoint_has_no_directory_after_all() -> None:
    coordinated = started()
    coordinated.handle(lambda it: it.stop_announced(is_near=True))
    before = ids(wait_for_it(coordinated, "s", "t"))

    assert (before, ids(coordinated.handle(lambda it: it.stop_announced(is_near=False)))) == ([], [1])

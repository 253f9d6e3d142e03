"""Promises of a task's stopwatches.

Source: Flink `TaskIOMetricGroupTest`.
"""

import pytest

from flowlet.mailbox.mailbox_processor import TaskTimings, TimingsSnapshot, WaitKind
from tests.flowlet.mailbox.boxes import Clock


@pytest.fixture
def clock() -> Clock:
    """Provide a clock that does not begin at 0, as no clock of a machine does."""
    clock = Clock()
    clock.advance(1_000)
    return clock


@pytest.fixture
def timings(clock: Clock) -> TaskTimings:
    return TaskTimings(clock)


def test_before_the_start_everything_is_zero(timings: TaskTimings) -> None:
    assert timings.snapshot() == TimingsSnapshot(0, 0, 0)


def test_each_kind_of_wait_has_its_own_sum(timings: TaskTimings, clock: Clock) -> None:
    """5 working, 7 idle, 11 backpressured, 13 idle."""
    timings.mark_start()
    clock.advance(5)
    for kind, by_ns in ((WaitKind.IDLE, 7), (WaitKind.BACK_PRESSURED, 11), (WaitKind.IDLE, 13)):
        timings.start_wait(kind)
        clock.advance(by_ns)
        timings.end_wait()

    assert timings.snapshot() == TimingsSnapshot(running_ns=36, idle_ns=20, soft_back_pressured_ns=11)


def test_a_wait_for_the_tasks_own_work_counts_as_busy(timings: TaskTimings, clock: Clock) -> None:
    """The wait for asynchronous calls is such a wait: the task is not held up by others, it holds them up."""
    timings.mark_start()
    timings.start_wait(WaitKind.IDLE)
    clock.advance(3)
    timings.start_wait(WaitKind.BUSY)
    clock.advance(7)
    timings.end_wait()

    snapshot = timings.snapshot()

    assert (snapshot.idle_ns, snapshot.back_pressured_ns, snapshot.busy_ns) == (3, 0, 7)


def test_a_wait_in_progress_counts_up_to_now(timings: TaskTimings, clock: Clock) -> None:
    """A look at the wait does not end it."""
    timings.mark_start()
    timings.start_wait(WaitKind.BACK_PRESSURED)
    clock.advance(3)
    first = timings.snapshot()
    clock.advance(4)

    assert first.soft_back_pressured_ns == 3
    assert timings.snapshot().soft_back_pressured_ns == 7


def test_a_new_wait_ends_the_one_before(timings: TaskTimings, clock: Clock) -> None:
    timings.mark_start()
    timings.start_wait(WaitKind.IDLE)
    clock.advance(3)
    timings.start_wait(WaitKind.BACK_PRESSURED)
    clock.advance(4)

    assert timings.snapshot() == TimingsSnapshot(7, 3, 4)


def test_ending_without_a_wait_changes_nothing(timings: TaskTimings, clock: Clock) -> None:
    timings.mark_start()
    timings.end_wait()
    clock.advance(3)

    assert timings.snapshot() == TimingsSnapshot(3, 0, 0)


def test_after_the_end_the_sums_stand_still(timings: TaskTimings, clock: Clock) -> None:
    """A wait that was going on ends with the task; a second end changes nothing."""
    timings.mark_start()
    timings.start_wait(WaitKind.IDLE)
    clock.advance(3)
    timings.mark_end()
    clock.advance(100)
    timings.mark_end()

    assert timings.snapshot() == TimingsSnapshot(3, 3, 0)


SECOND_NS = 1_000_000_000


def test_hard_backpressure_is_told_apart_from_soft(timings: TaskTimings, clock: Clock) -> None:
    """4 working, 7 parked without room, 11 inside a write without room."""
    timings.mark_start()
    clock.advance(4)
    timings.start_wait(WaitKind.BACK_PRESSURED)
    clock.advance(7)
    timings.end_wait()
    timings.hard_back_pressure.mark_start()
    clock.advance(11)
    timings.hard_back_pressure.mark_end()

    snapshot = timings.snapshot()
    assert snapshot == TimingsSnapshot(22, 0, 7, 11)
    assert (snapshot.back_pressured_ns, snapshot.busy_ns) == (18, 4)


def test_rates_are_shares_of_each_second(timings: TaskTimings, clock: Clock) -> None:
    """Of five seconds 1 is idle, 2 are soft, 0.5 hard, 1.5 busy; an interval that is not over counts no wait."""
    timings.mark_start()
    for kind, by_ns in ((WaitKind.IDLE, SECOND_NS), (WaitKind.BACK_PRESSURED, 2 * SECOND_NS)):
        timings.start_wait(kind)
        clock.advance(by_ns)
    timings.end_wait()
    timings.hard_back_pressure.mark_start()
    clock.advance(SECOND_NS // 2)
    timings.hard_back_pressure.mark_end()
    early = timings.rates()
    clock.advance(SECOND_NS * 3 // 2)
    rates = timings.rates()

    assert [*early.values()] == [0, 1_000, 0, 0, 0, 0, False]
    assert [*rates.values()] == [200, 300, 400, 100, 2_000, 500, False]


def test_a_task_is_backpressured_while_it_waits_for_room(timings: TaskTimings) -> None:
    """Both waits for room count; a wait for input does not."""
    timings.start_wait(WaitKind.IDLE)
    assert not timings.rates()["is_back_pressured"]

    timings.start_wait(WaitKind.BACK_PRESSURED)
    assert timings.rates()["is_back_pressured"]

    timings.end_wait()
    assert not timings.rates()["is_back_pressured"]

    timings.hard_back_pressure.mark_start()
    assert timings.rates()["is_back_pressured"]


def test_whoever_looks_late_sees_the_average(timings: TaskTimings, clock: Clock) -> None:
    """10 s idle, 10 s not: two intervals each, closed at once.  After an hour nothing of it counts."""
    timings.mark_start()
    timings.start_wait(WaitKind.IDLE)
    clock.advance(10 * SECOND_NS)
    timings.end_wait()
    clock.advance(10 * SECOND_NS)
    late = timings.rates()
    clock.advance(3_600 * SECOND_NS)

    assert late["idle_ms_per_second"] == 500
    assert timings.rates()["idle_ms_per_second"] == 0


def test_shares_never_exceed_the_second(timings: TaskTimings, clock: Clock) -> None:
    """Parked and blocked at once, as far as two threads can tell."""
    timings.mark_start()
    timings.start_wait(WaitKind.BACK_PRESSURED)
    timings.hard_back_pressure.mark_start()
    clock.advance(5 * SECOND_NS)

    rates = timings.rates()
    assert rates["soft_back_pressured_ms_per_second"] == rates["hard_back_pressured_ms_per_second"] == 1_000
    assert rates["busy_ms_per_second"] == 0


def test_a_task_is_busy_only_while_it_runs(timings: TaskTimings, clock: Clock) -> None:
    """The task is not busy before, when its waits are not marked, nor afterwards."""
    before = timings.rates()
    timings.mark_start()
    clock.advance(5 * SECOND_NS)
    meanwhile = timings.rates()
    timings.mark_end()

    assert [rates["busy_ms_per_second"] for rates in (before, meanwhile, timings.rates())] == [0, 1_000, 0]

import pytest

from flowlet.task.task_timings import TaskTimings, TimingsSnapshot, WaitKind


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1_000

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, by_ns: int) -> None:
        self.now_ns += by_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


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


def test_a_wait_in_progress_counts_up_to_now(timings: TaskTimings, clock: Clock) -> None:
    """And looking at it does not end it."""
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

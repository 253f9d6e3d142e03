"""The interval is long while nothing but throughput is at stake."""

from contextlib import ExitStack

import pytest

from flowlet.tm.latency.latency_policy import (
    CROWDED_SWITCH_INTERVAL_MS,
    DEFAULT_SWITCH_INTERVAL_MS,
    FIRST_SWITCH_INTERVAL_MS,
    STARVED_SWITCH_INTERVAL_MS,
    BusyTasks,
    SwitchInterval,
    TaskLoad,
)

_MS = 1_000_000
LONG, SHORT = CROWDED_SWITCH_INTERVAL_MS, DEFAULT_SWITCH_INTERVAL_MS


@pytest.mark.parametrize(
    ("num_working", "num_light", "expected"),
    [(0, 0, SHORT), (1, 0, SHORT), (2, 0, LONG), (5, 0, LONG), (2, 1, SHORT), (1, 1, SHORT), (0, 3, SHORT)],
)
def test_it_is_long_while_two_are_at_work_and_no_other_one_does_anything(
    num_working: int, num_light: int, expected: float
) -> None:
    intervals: list[float] = []
    interval = SwitchInterval(intervals.append)

    interval.follow(TaskLoad(is_crowded=num_working > 0, num_working=num_working, num_light=num_light))

    assert intervals[-1] == expected


def test_it_is_set_when_it_changes_and_is_short_again_when_the_tasks_are_gone() -> None:
    intervals: list[float] = []
    interval = SwitchInterval(intervals.append)
    both = TaskLoad(is_crowded=True, num_working=2)

    for load in (both, both, TaskLoad(is_crowded=True, num_working=1, num_light=1), both, TaskLoad(), TaskLoad()):
        interval.follow(load)

    assert intervals == [SHORT, LONG, SHORT, LONG, SHORT]


def test_it_is_longest_for_a_minute_after_the_loop_did_not_get_the_interpreter() -> None:
    """Looks count: while the loop starves there are none."""
    intervals: list[float] = []
    interval = SwitchInterval(intervals.append)

    interval.follow(TaskLoad(is_starved=True))
    for _ in range(599):
        interval.follow(TaskLoad(num_working=1))
    before = intervals[-1]
    interval.follow(TaskLoad(num_working=1))

    assert (before, intervals[-1]) == (STARVED_SWITCH_INTERVAL_MS, SHORT)


def test_it_is_longer_while_a_new_task_may_meet_its_first_record() -> None:
    intervals: list[float] = []
    interval = SwitchInterval(intervals.append)

    interval.task_deployed()
    for _ in range(19):
        interval.follow(TaskLoad(num_working=1))
    before = intervals[-1]
    interval.follow(TaskLoad(num_working=1))

    assert (before, intervals[-1]) == (FIRST_SWITCH_INTERVAL_MS, SHORT)


def test_a_look_that_comes_late_says_that_the_loop_starves() -> None:
    """A late look counts only while a task runs: no look is taken before."""
    now_ns = 0
    tasks = BusyTasks(lambda _native_id, _niceness: None, lambda: now_ns, lambda _clock: 0)

    now_ns += 3_600_000 * _MS
    without_tasks = tasks.look()
    now_ns += 3_600_000 * _MS
    with tasks.watched():
        now_ns += 400 * _MS
        in_time = tasks.look()
        now_ns += 501 * _MS
        late = tasks.look()

    assert [load.is_starved for load in (without_tasks, in_time, late)] == [False, False, True]


def test_the_load_tells_working_light_and_sleeping_threads_apart() -> None:
    used_ns, now_ns = [0, 0, 0, 0], 0
    tasks = BusyTasks(lambda _native_id, _niceness: None, lambda: now_ns, lambda clock: used_ns[clock])
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr("time.pthread_getcpuclockid", lambda _ident: len(tasks._threads))
        patch.setattr("os.getpriority", lambda _which, _who: 0)
        leaving = stack.enter_context(ExitStack())
        for native_id in range(4):  # each thread takes out what has its id
            patch.setattr("threading.get_native_id", lambda native_id=native_id: native_id)
            leaving.enter_context(tasks.watched())
        loads = []
        for shares in ((20, 25, 0, 0), (19, 50, 1, 0), (0, 0, 0, 0)):
            now_ns += 100 * _MS
            for clock, percent in enumerate(shares):
                used_ns[clock] += percent * _MS
            loads.append(tasks.look())
        loads.append(tasks.look())  # at one moment

    assert [(load.num_working, load.num_light) for load in loads] == [(2, 0), (1, 2), (0, 0), (0, 0)]
    assert [load.is_crowded for load in loads] == [False, True, True, True]

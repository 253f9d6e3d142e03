"""Threads that use their core are lowered, and raised when they calm down; the switch interval follows the load."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from flowlet.tm.latency.latency_policy import (
    CROWDED_SWITCH_INTERVAL_MS,
    DEFAULT_SWITCH_INTERVAL_MS,
    FIRST_SWITCH_INTERVAL_MS,
    LOW_NICENESS,
    STARVED_SWITCH_INTERVAL_MS,
    BusyTasks,
    SwitchInterval,
    TaskLoad,
)
from tests.waiting import spin_tightly_until

_MS = 1_000_000


class Rig:
    """One watched thread, whose CPU time the test decides."""

    def __init__(self) -> None:
        self.used_ns = 5 * _MS
        self.now_ns = 100 * _MS
        self.changes: list[int] = []
        self.is_allowed = True
        self.load = TaskLoad()
        self.tasks = BusyTasks(self._set_niceness, lambda: self.now_ns, lambda _clock: self.used_ns)

    def _set_niceness(self, native_id: int, niceness: int) -> None:
        if not self.is_allowed:
            raise PermissionError("RLIMIT_NICE")
        self.changes.append(niceness)

    def calm_down(self) -> None:
        for _ in range(10):
            self.look_after(9)

    def look_after(self, percent: int) -> None:
        """100 ms later, of which so many percent were used."""
        self.now_ns += 100 * _MS
        self.used_ns += percent * _MS
        self.load = self.tasks.look()


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_busy_thread_is_lowered_once_and_raised_when_it_is_calm(rig: Rig) -> None:
    """A thread between the two limits stays as it is, so that it does not change with every look."""
    with rig.tasks.watched():
        seen = []
        for percent in (0, 29, 30, *[24] * 9):
            rig.look_after(percent)
            seen.append(rig.load.is_crowded)
        assert seen == [False, False, *[True] * 10]

        rig.look_after(24)
        assert not rig.load.is_crowded
        rig.look_after(29)

    assert rig.changes == [LOW_NICENESS, os.getpriority(os.PRIO_PROCESS, 0)]
    assert not rig.load.is_crowded


def test_a_busy_thread_that_is_kept_from_its_core_stays_low(rig: Rig) -> None:
    """Raised, it would keep the others waiting until the next look."""
    with rig.tasks.watched():
        rig.look_after(100)
        for percent in [*[0] * 5, *[50] * 5] * 3:
            rig.look_after(percent)
            assert rig.load.is_crowded

    assert rig.changes == [LOW_NICENESS]


def test_a_thread_that_is_busy_only_to_begin_with_does_not_stay_low(rig: Rig) -> None:
    """A thread that loads what it needs, and catches up, is busy only at first; its later records must not wait for a
    busy thread.
    """
    with rig.tasks.watched():
        for percent in (100, 100, 80, *[15] * 8):
            rig.look_after(percent)
        assert rig.load.is_crowded

        for _ in range(2):
            rig.look_after(15)

    assert not rig.load.is_crowded
    assert rig.changes == [LOW_NICENESS, os.getpriority(os.PRIO_PROCESS, 0)]


def test_without_the_right_to_raise_it_a_thread_stays_low(rig: Rig) -> None:
    """The thread does not count as busy any more: parts that rest beside busy threads must not rest for ever."""
    with rig.tasks.watched():
        rig.look_after(100)
        rig.is_allowed = False
        rig.calm_down()
        assert repr(rig.tasks) == "<BusyTasks 1 of 1 threads are low>"
        assert not rig.load.is_crowded

        rig.is_allowed = True
        rig.look_after(0)
        assert repr(rig.tasks) == "<BusyTasks 0 of 1 threads are low>"


def test_a_thread_that_stayed_low_is_busy_again_when_it_uses_its_core(rig: Rig) -> None:
    with rig.tasks.watched():
        rig.look_after(100)
        rig.is_allowed = False
        rig.calm_down()
        seen = []
        for percent in (0, 29, 30, 10):
            rig.look_after(percent)
            seen.append(rig.load.is_crowded)

    assert seen == [False, False, True, True]


def test_a_thread_that_has_left_is_not_touched(rig: Rig) -> None:
    with rig.tasks.watched():
        pass

    rig.look_after(100)

    assert rig.changes == []
    assert repr(rig.tasks) == "<BusyTasks 0 of 0 threads are low>"


def test_two_looks_at_the_same_moment_are_one(rig: Rig) -> None:
    with rig.tasks.watched():
        rig.tasks.look()

    assert rig.changes == []


@contextmanager
def spinning(tasks: BusyTasks) -> Iterator[int]:
    """Run a thread that is busy; yield its native id."""
    is_over = threading.Event()

    def spin() -> None:
        while not is_over.is_set():
            pass

    with _acting(tasks, spin, is_over) as native_id:
        yield native_id


@contextmanager
def waiting(tasks: BusyTasks) -> Iterator[int]:
    """Run a thread that has nothing to do; yield its native id."""
    is_over = threading.Event()
    with _acting(tasks, is_over.wait, is_over) as native_id:
        yield native_id


@contextmanager
def _acting(tasks: BusyTasks, act: Callable[[], object], is_over: threading.Event) -> Iterator[int]:
    found: list[int] = []
    is_watched = threading.Event()

    def run() -> None:
        with tasks.watched():
            found.append(threading.get_native_id())
            is_watched.set()
            act()

    thread = threading.Thread(target=run)
    thread.start()
    assert is_watched.wait(20)
    yield found[0]
    is_over.set()
    thread.join()


def test_a_real_thread_that_spins_is_found_and_one_that_waits_is_not() -> None:
    """The time that passes here is the CPU time of the one that spins."""
    changes: list[int] = []
    clock: list[int] = []

    def now_ns() -> int:
        return time.clock_gettime_ns(clock[0]) if clock else 0

    tasks = BusyTasks(lambda native_id, _niceness: changes.append(native_id), now_ns)
    with waiting(tasks), spinning(tasks) as native_id:
        [found] = [thread.cpu_clock for thread in tasks._threads.values() if thread.native_id == native_id]
        clock.append(found)
        tasks.look()
        end_ns = now_ns() + 20 * _MS
        spin_tightly_until(lambda: now_ns() >= end_ns)
        tasks.look()

    assert changes == [native_id]


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


@pytest.mark.parametrize(
    ("begin", "num_looks", "interval_ms"),
    [
        pytest.param(
            lambda interval: interval.follow(TaskLoad(is_starved=True)), 600, STARVED_SWITCH_INTERVAL_MS, id="starved"
        ),
        pytest.param(lambda interval: interval.task_deployed(), 20, FIRST_SWITCH_INTERVAL_MS, id="a new task"),
    ],
)
def test_it_is_longer_for_some_looks_after_the_loop_starved_or_while_a_new_task_may_meet_its_first_record(
    begin: Callable[[SwitchInterval], None], num_looks: int, interval_ms: float
) -> None:
    """Looks count, a minute of them for a loop that did not get the interpreter: while it starves there are none."""
    intervals: list[float] = []
    interval = SwitchInterval(intervals.append)

    begin(interval)
    for _ in range(num_looks - 1):
        interval.follow(TaskLoad(num_working=1))
    before = intervals[-1]
    interval.follow(TaskLoad(num_working=1))

    assert (before, intervals[-1]) == (interval_ms, SHORT)


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

"""Threads that use their core are lowered, and raised when they calm down."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from flowlet.tm.latency.latency_policy import LOW_NICENESS, BusyTasks, TaskLoad
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

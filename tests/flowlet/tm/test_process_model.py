"""The changes of a TaskManager to its process, and its end with its parent."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from flowlet.errors import ConfigError
from flowlet.tm.latency.latency_policy import apply_switch_interval
from flowlet.tm.process.process_model import (
    DEFAULT_GC_THRESHOLD,
    GarbageCollectorTuning,
    ParentWatch,
    TaskScheduling,
    apply_task_scheduling,
    pin_to_cpu,
)
from netstack.testing.embedded_event_loop import EmbeddedEventLoop
from tests.waiting import PATIENCE_S


@pytest.fixture(autouse=True)
def _restored_process() -> Iterator[None]:
    interval, thresholds, cpus = sys.getswitchinterval(), gc.get_threshold(), os.sched_getaffinity(0)
    gc.freeze()  # so that collections here look at the test's own objects alone
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)
    gc.freeze()  # what pytest had frozen (tests/conftest.py)
    os.sched_setaffinity(0, cpus)


def test_the_switch_interval_is_given_in_milliseconds() -> None:
    apply_switch_interval(0.25)

    assert sys.getswitchinterval() == pytest.approx(0.000_25)


@pytest.mark.parametrize("interval_ms", [0.0, -1.0, 0.0009, 1000.1, float("nan")])
def test_switch_intervals_out_of_range_are_refused(interval_ms: float) -> None:
    """Zero would make the interpreter spin, a minute would stop the network."""
    before = sys.getswitchinterval()

    with pytest.raises(ConfigError, match=r"--switch-interval-ms is .*, allowed is 0\.001 to 1000"):
        apply_switch_interval(interval_ms)

    assert sys.getswitchinterval() == before


def test_a_pinned_process_runs_on_one_core_which_must_be_ours() -> None:
    cpu = max(os.sched_getaffinity(0))

    pin_to_cpu(cpu)

    assert os.sched_getaffinity(0) == {cpu}
    with pytest.raises(ConfigError, match=rf"--pin-cpu is 4095, this process may run on \[{cpu}"):
        pin_to_cpu(4095)


@pytest.mark.parametrize(
    ("scheduling", "policy", "niceness"),
    [
        (TaskScheduling.NORMAL, os.SCHED_OTHER, None),
        (TaskScheduling.NICE, os.SCHED_OTHER, 10),
        (TaskScheduling.IDLE, os.SCHED_IDLE, None),
    ],
)
def test_a_task_thread_gets_its_own_class_and_no_other_thread_does(
    scheduling: TaskScheduling, policy: int, niceness: int | None
) -> None:
    """``niceness`` is absolute; None: that of the process, which need not be 0."""
    before = (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))
    found: list[tuple[int, int]] = []

    def task() -> None:
        apply_task_scheduling(scheduling)
        own = threading.get_native_id()
        found.append((os.sched_getscheduler(own), os.getpriority(os.PRIO_PROCESS, own)))

    thread = threading.Thread(target=task)
    thread.start()
    thread.join()

    assert found == [(policy, before[1] if niceness is None else niceness)]
    assert (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)) == before


def test_freezing_hides_what_is_alive_and_thawing_brings_it_back() -> None:
    """A second freeze does not forget how it was before the first one."""
    thresholds, before = gc.get_threshold(), gc.get_freeze_count()
    alive = [[number] for number in range(1000)]
    tuning = GarbageCollectorTuning()

    tuning.freeze()
    assert gc.get_freeze_count() > before + len(alive) // 2  # others may have died
    tuning.freeze()
    assert gc.get_threshold() == (DEFAULT_GC_THRESHOLD, 50, 100)
    for _ in range(2):
        tuning.thaw()
        assert gc.get_freeze_count() == 0
        assert gc.get_threshold() == thresholds


def test_the_collector_is_not_tuned_for_tasks_that_have_ended_before() -> None:
    """A task may end in the pass in which it was deployed: its thread could not be started."""
    before, loop = gc.get_threshold(), EmbeddedEventLoop()
    tuning = GarbageCollectorTuning()
    tuning.freeze_soon(loop.loop)

    tuning.thaw()
    loop.run_pending()
    at_once = gc.get_threshold()
    tuning.freeze_soon(loop.loop)
    loop.run_pending()
    later = gc.get_threshold()
    tuning.thaw()
    loop.close()

    assert (at_once, later != before, gc.get_threshold()) == (before, True, before)


def test_the_collector_runs_as_seldom_as_was_asked_for() -> None:
    tuning = GarbageCollectorTuning(0)

    tuning.freeze()
    tuned = gc.get_threshold()
    tuning.thaw()

    assert tuned[0] == 0


@pytest.mark.parametrize("threshold", [-1, 2**31])
def test_a_threshold_that_the_collector_does_not_take_is_refused_at_once(threshold: int) -> None:
    with pytest.raises(ConfigError, match=rf"--gc-threshold is {threshold}, allowed is 0 \(never\) to 2147483647"):
        GarbageCollectorTuning(threshold)


def test_garbage_is_not_frozen() -> None:
    """Frozen garbage would never be freed."""

    class Node:
        alive = 0

        def __init__(self) -> None:
            Node.alive += 1
            self.self = self

        def __del__(self) -> None:
            Node.alive -= 1

    tuning = GarbageCollectorTuning()
    Node()

    tuning.freeze()

    assert Node.alive == 0


async def test_a_parent_that_is_alive_does_nothing() -> None:
    died = asyncio.Event()

    watch = ParentWatch(asyncio.get_running_loop(), os.getppid(), died.set)
    await asyncio.sleep(0)
    watch.close()
    watch.close()

    assert not died.is_set()


@pytest.mark.parametrize("has_ended", [False, True], ids=["a stranger", "no process"])
async def test_what_is_not_our_parent_counts_as_a_parent_that_died(has_ended: bool) -> None:
    """The id may belong to another process by now."""
    other = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE)
    assert other.stdin is not None
    if has_ended:
        other.stdin.close()
        await other.wait()
    died = asyncio.Event()

    watch = ParentWatch(asyncio.get_running_loop(), other.pid, died.set)
    async with asyncio.timeout(PATIENCE_S):
        await died.wait()

    watch.close()
    other.stdin.close()
    await other.wait()


_CHILD = """
import asyncio, os, sys
from flowlet.tm.process.process_model import ParentWatch
async def main():
    died = asyncio.Event()
    watch = ParentWatch(asyncio.get_running_loop(), int(sys.argv[1]), died.set)
    print("watching", flush=True)
    await died.wait()
    print("parent died", flush=True)
asyncio.run(main())
"""
_PARENT = (
    "import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1], str(os.getpid())]); "
    "sys.stdin.read()"
)


@pytest.mark.slow
def test_the_death_of_the_parent_is_noticed() -> None:
    """The death by SIGKILL leaves the parent no time to say anything."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    with parent.stdin, parent.stdout as lines:
        assert lines.readline() == "watching\n"

        parent.kill()

        assert lines.readline() == "parent died\n"
        parent.wait()

"""The measures of a TaskManager for quick records: what its policy asks for, requests to the kernel, a busy thread."""

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from flowlet.tm import command, taskmanager_process
from flowlet.tm.latency import latency_policy
from flowlet.tm.latency.latency_policy import CROWDED_SWITCH_INTERVAL_MS as LONG
from flowlet.tm.latency.latency_policy import DEFAULT_SWITCH_INTERVAL_MS as SHORT
from flowlet.tm.latency.latency_policy import KeepAwake, LatencyPolicy, TaskDriver, TaskLoad
from tests.waiting import PATIENCE_S


@pytest.fixture(autouse=True)
def _the_interval_is_put_back() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_throughput_follows_the_load_and_does_nothing_else() -> None:
    assert LatencyPolicy.of() == LatencyPolicy(switch_interval_ms=SHORT, follows_load=True)


def test_latency_is_everything_at_once() -> None:
    assert LatencyPolicy.of(latency_mode=True) == LatencyPolicy(
        keeps_awake=True,
        runs_light_tasks=True,
        busy_poll_us=latency_policy.LATENCY_BUSY_POLL_US,
        switch_interval_ms=latency_policy.LATENCY_SWITCH_INTERVAL_MS,
        has_quick_wakeups=True,
        lowers_busy_tasks=True,
    )


def test_what_the_user_asked_for_counts_more_than_the_goal() -> None:
    policy = LatencyPolicy.of(latency_mode=True, busy_poll_us=0, switch_interval_ms=3.0)
    driven = LatencyPolicy.of(keeps_awake=True, task_driver=TaskDriver.LOOP, busy_poll_us=10)

    assert (policy.busy_poll_us, policy.switch_interval_ms, policy.follows_load) == (0, 3.0, False)
    assert driven == LatencyPolicy(
        keeps_awake=True, runs_light_tasks=True, busy_poll_us=10, switch_interval_ms=SHORT, has_quick_wakeups=True
    )


@pytest.mark.parametrize(
    ("policy", "expected_ms"),
    [
        (LatencyPolicy.of(), SHORT),
        (LatencyPolicy.of(task_driver=TaskDriver.LOOP), SHORT),
        (LatencyPolicy.of(switch_interval_ms=3.0), 3.0),
        (LatencyPolicy.of(latency_mode=True), latency_policy.LATENCY_SWITCH_INTERVAL_MS),
    ],
)
def test_the_interval_is_set_when_the_process_begins_and_grows_when_the_loop_starves(
    policy: LatencyPolicy, expected_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interval grows whatever the user chose: while a function keeps the interpreter's lock for seconds, latencies
    are lost anyway.
    """
    monkeypatch.setattr(latency_policy, "ask_for_quick_wakeups", lambda: None)

    found = policy.begin()
    begun_s = sys.getswitchinterval()
    assert found is not None
    found.follow(TaskLoad(is_starved=True))

    assert begun_s * 1000 == pytest.approx(expected_ms)
    assert sys.getswitchinterval() * 1000 == pytest.approx(latency_policy.STARVED_SWITCH_INTERVAL_MS)
    assert policy.busy_tasks() is not None, "whoever looks at the tasks sees that the loop is late"


def test_a_users_own_process_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(latency_policy, "ask_for_quick_wakeups", lambda: asked.append("slices"))
    monkeypatch.setattr(sys, "setswitchinterval", lambda _seconds: asked.append("interval"))
    policy = LatencyPolicy()

    policy.begin()
    with policy.keeper() as keeper:
        assert keeper is None

    assert asked == []
    assert policy.busy_tasks() is None


@pytest.mark.parametrize(
    ("arguments", "follows"),
    [
        ([], True),
        (["--switch-interval-ms", "0.3"], False),
        (["--latency-mode"], False),
        (["--task-driver", "loop"], False),
    ],
)
def test_a_process_that_was_asked_for_nothing_watches_its_tasks_and_follows_them(
    arguments: list[str], follows: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(taskmanager_process, "run", started.append)
    monkeypatch.setattr(taskmanager_process, "configure_logging", lambda *_: None)  # these are for the whole process
    monkeypatch.setattr(latency_policy, "ask_for_quick_wakeups", lambda: None)
    monkeypatch.setattr(latency_policy, "KeepAwake", nullcontext)
    secret_file = tmp_path / "secret"
    assert command.run_command(["--jobmanager", "127.0.0.1:1", "--secret-file", str(secret_file), *arguments]) == 0
    [process] = started
    idle_s = sys.getswitchinterval()
    process._loaded(TaskLoad(is_crowded=True, num_working=2))
    crowded_s = sys.getswitchinterval()

    assert process.config.latency.follows_load is follows
    assert crowded_s == pytest.approx(LONG / 1000 if follows else idle_s)


_PROGRAM = """
import threading
from pathlib import Path
from flowlet.tm.latency.latency_policy import ask_for_quick_wakeups

missing = ask_for_quick_wakeups()
slacks = []

def look():
    slacks.append(Path(f"/proc/{threading.get_native_id()}/timerslack_ns").read_text().strip())

look()
thread = threading.Thread(target=look)
thread.start()
thread.join()
print(len([each for each in missing if each.startswith("exact")]), *slacks)
"""


@pytest.mark.skipif(not Path("/proc/self/timerslack_ns").exists(), reason="the kernel has no timer slack")
def test_this_thread_and_those_that_it_starts_have_exact_timers() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.split() == ["0", "1", "1"]


def test_what_the_kernel_does_not_offer_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No request fails; the process runs as it would without it."""
    monkeypatch.setattr(latency_policy, "_SYSCALLS", {})
    monkeypatch.setattr(latency_policy, "_SLACK_FILE", tmp_path / "nowhere" / "timerslack_ns")

    missing = latency_policy.ask_for_quick_wakeups()

    assert [each.partition(":")[0] for each in missing] == ["short time slices", "exact timers"]


def test_it_is_busy_in_the_lowest_class_until_the_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[int, str]] = []
    has_worked_twice = threading.Event()

    def work(*_: object) -> None:
        found.append((os.sched_getscheduler(threading.get_native_id()), threading.current_thread().name))
        if len(found) >= 2:
            has_worked_twice.set()

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", work)
    before = os.sched_getscheduler(0)

    with KeepAwake() as keeper:
        assert has_worked_twice.wait(PATIENCE_S)
        assert repr(keeper) == "<KeepAwake on>"

    for thread in threading.enumerate():
        # In the lowest class it may get no time for a while, and the block does not wait for ever.
        if thread.name == "keep awake":
            thread.join(PATIENCE_S)
    assert repr(keeper) == "<KeepAwake off>"
    assert set(found) == {(os.SCHED_IDLE, "keep awake")}
    assert os.sched_getscheduler(0) == before


def test_it_rests_while_something_else_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper ends the round that it is in, and begins another one only when it may."""
    rounds = threading.Semaphore(0)
    may_end = threading.Semaphore(0)

    def work(*_: object) -> None:
        rounds.release()
        may_end.acquire()

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", work)
    with KeepAwake() as keeper:
        assert rounds.acquire(timeout=20)
        keeper.rest(is_crowded=True)
        may_end.release()
        assert not rounds.acquire(timeout=0.05)

        keeper.rest(is_crowded=False)
        assert rounds.acquire(timeout=20)
        may_end.release(10)
        monkeypatch.setattr(hashlib, "pbkdf2_hmac", lambda *_: None)

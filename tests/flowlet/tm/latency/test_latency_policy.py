"""The measures of a TaskManager for quick records, by the policy that it was asked for."""

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from flowlet.errors import ConfigError
from flowlet.tm import command, taskmanager_process
from flowlet.tm.latency import latency_policy
from flowlet.tm.latency.latency_policy import (
    CROWDED_SWITCH_INTERVAL_MS as LONG,
)
from flowlet.tm.latency.latency_policy import (
    DEFAULT_SWITCH_INTERVAL_MS as SHORT,
)
from flowlet.tm.latency.latency_policy import (
    LATENCY_BUSY_POLL_US,
    LATENCY_SWITCH_INTERVAL_MS,
    STARVED_SWITCH_INTERVAL_MS,
    LatencyPolicy,
    TaskDriver,
    TaskLoad,
)


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
        busy_poll_us=LATENCY_BUSY_POLL_US,
        switch_interval_ms=LATENCY_SWITCH_INTERVAL_MS,
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
        (LatencyPolicy.of(latency_mode=True), LATENCY_SWITCH_INTERVAL_MS),
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
    assert sys.getswitchinterval() * 1000 == pytest.approx(STARVED_SWITCH_INTERVAL_MS)
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


def test_an_interval_out_of_bounds_is_refused() -> None:
    with pytest.raises(ConfigError, match="--switch-interval-ms is 0"):
        LatencyPolicy.of(switch_interval_ms=0).begin()


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
    before = sys.getswitchinterval()
    secret_file = tmp_path / "secret"
    try:
        assert command.run_command(["--jobmanager", "127.0.0.1:1", "--secret-file", str(secret_file), *arguments]) == 0
        [process] = started
        idle_s = sys.getswitchinterval()
        process._loaded(TaskLoad(is_crowded=True, num_working=2))
        crowded_s = sys.getswitchinterval()
    finally:
        sys.setswitchinterval(before)

    assert process.config.latency.follows_load is follows
    assert crowded_s == pytest.approx(LONG / 1000 if follows else idle_s)

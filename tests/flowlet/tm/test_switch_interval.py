"""The interval is long while nothing but throughput is at stake."""

import sys
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest

from flowlet.tm import command
from flowlet.tm.busy_tasks import BusyTasks, TaskLoad
from flowlet.tm.process_model import DEFAULT_SWITCH_INTERVAL_MS, LATENCY_SWITCH_INTERVAL_MS
from flowlet.tm.switch_interval import CROWDED_SWITCH_INTERVAL_MS, SwitchInterval, begin_switch_interval
from flowlet.tm.task_executor import TaskExecutorConfig

_MS = 1_000_000
LONG, SHORT = CROWDED_SWITCH_INTERVAL_MS, DEFAULT_SWITCH_INTERVAL_MS


@pytest.mark.parametrize(
    ("num_working", "num_light", "expected"),
    [(0, 0, SHORT), (1, 0, SHORT), (2, 0, LONG), (5, 0, LONG), (2, 1, SHORT), (1, 1, SHORT), (0, 3, SHORT)],
)
def test_it_is_long_while_two_are_at_work_and_no_other_one_does_anything(num_working: int, num_light: int, expected: float) -> None:
    intervals: list[float] = []
    interval = SwitchInterval(intervals.append)

    interval.follow(TaskLoad(is_crowded=num_working > 0, num_working=num_working, num_light=num_light))

    assert intervals[-1] == expected


@pytest.mark.parametrize(
    ("asked_for_ms", "is_latency_mode", "runs_light_tasks", "expected", "changes"),
    [
        (None, False, False, SHORT, True),
        (None, False, True, SHORT, False),  # a light task has a share of the loop's thread, not of its own
        (None, True, True, LATENCY_SWITCH_INTERVAL_MS, False),
        (3.0, False, False, 3.0, False),
        (3.0, True, True, 3.0, False),
    ],
)
def test_it_stays_as_it_was_asked_for_and_where_the_loop_runs_tasks(
    asked_for_ms: float | None, is_latency_mode: bool, runs_light_tasks: bool, expected: float, changes: bool
) -> None:
    intervals: list[float] = []

    found = begin_switch_interval(
        asked_for_ms, is_latency_mode=is_latency_mode, runs_light_tasks=runs_light_tasks, set_interval_ms=intervals.append
    )

    assert intervals == [expected]
    assert (found is not None) is changes


def test_it_is_set_when_it_changes_and_is_short_again_when_the_tasks_are_gone() -> None:
    intervals: list[float] = []
    interval = SwitchInterval(intervals.append)
    both = TaskLoad(is_crowded=True, num_working=2)

    for load in (both, both, TaskLoad(is_crowded=True, num_working=1, num_light=1), both, TaskLoad(), TaskLoad()):
        interval.follow(load)

    assert intervals == [SHORT, LONG, SHORT, LONG, SHORT]


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
        loads.append(tasks.look())  # at the same moment

    assert [(load.num_working, load.num_light) for load in loads] == [(2, 0), (1, 2), (0, 0), (0, 0)]
    assert [load.is_crowded for load in loads] == [False, True, True, True]


@pytest.mark.parametrize(
    ("arguments", "follows"),
    [([], True), (["--switch-interval-ms", "0.3"], False), (["--latency-mode"], False), (["--task-driver", "loop"], False)],
)
def test_a_process_that_was_asked_for_nothing_watches_its_tasks_and_follows_them(
    arguments: list[str], follows: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[tuple[command.ProcessOptions, TaskExecutorConfig]] = []
    monkeypatch.setattr(command, "run", lambda process, config, _keeper: started.append((process, config)))
    for name in ("configure_logging", "ask_for_quick_wakeups", "KeepAwake"):  # they are for the whole process
        monkeypatch.setattr(command, name, lambda *_: nullcontext())
    before = sys.getswitchinterval()
    secret_file = tmp_path / "secret"
    try:
        assert command.run_command(["--jobmanager", "127.0.0.1:1", "--secret-file", str(secret_file), *arguments]) == 0
        [(process, config)] = started
        idle_s = sys.getswitchinterval()
        command._Process(process, config)._loaded(TaskLoad(is_crowded=True, num_working=2))
        crowded_s = sys.getswitchinterval()
    finally:
        sys.setswitchinterval(before)

    assert config.watches_tasks is follows
    assert crowded_s == pytest.approx(LONG / 1000 if follows else idle_s)

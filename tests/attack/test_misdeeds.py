"""A user's function does its worst beside the bystander, in one TaskManager.

The function may not end the process if a Python process can survive it, harm the bystander, hang its own job, or leave
the reason unsaid.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from flowlet.common.time import Time
from flowlet.datastream import AsyncDataStream, DataStream
from flowlet.datastream.stream_execution_environment import StreamExecutionEnvironment
from tests.attack import misdeeds
from tests.attack.arena import Arena, environment_seed
from tests.attack.functions import Awaits
from tests.attack.jobs import JobOutcome, run_job
from tests.attack.misdeeds import NUM, RELEASE, SCRATCH, deed

TOLD_S = 25.0  # within which the job ends, or fails with the reason
CANCEL_S = 15.0
LOST = r"TaskManager .*(lost|closed|ended|silent|stopp|signal|heard)"


@dataclass(frozen=True)
class Misdeed:
    """A function, and what must become of its job.

    ``outcome``: a pattern of the failure, or ``runs``, ``runs or PATTERN``, or ``cancelled``.
    """

    function: Callable[[], Any] | Callable[[int], Any]
    outcome: str
    ends: bool = False  # the process may end, or the JobManager give it up
    spoils: bool = False  # the process is replaced afterwards
    build: Callable[[StreamExecutionEnvironment, Callable[[Any], Any]], DataStream] | None = None
    known: str = ""  # a fault of the product


def mapped(env: StreamExecutionEnvironment, function: Callable[[Any], Any]) -> DataStream:
    return env.from_collection(list(range(NUM))).map(function)


def as_it_is(env: StreamExecutionEnvironment, function: Callable[[Any], Any]) -> DataStream:
    return env.from_collection(list(range(NUM))).map(function).map(misdeeds.fails_at_no_repr)


def keyed(env: StreamExecutionEnvironment, key: Callable[[Any], Any]) -> DataStream:
    return env.from_collection(list(range(NUM))).key_by(key).reduce(max)


def flat(env: StreamExecutionEnvironment, function: Callable[[Any], Any]) -> DataStream:
    return env.from_collection(list(range(NUM))).flat_map(function)


def awaited(env: StreamExecutionEnvironment, function: Callable[[Any], Any]) -> DataStream:
    return AsyncDataStream.ordered_wait(env.from_collection(list(range(NUM))), Awaits(function), Time.seconds(60), 10)


MISDEEDS = [
    Misdeed(misdeeds.sys_exit, "SystemExit"),
    Misdeed(misdeeds.os_exit, LOST, ends=True),
    Misdeed(misdeeds.exit_zero, LOST, ends=True),
    Misdeed(misdeeds.sigterm, LOST, ends=True),
    Misdeed(misdeeds.sigint, LOST, ends=True),
    Misdeed(misdeeds.sigkill, LOST, ends=True),
    Misdeed(misdeeds.sigabrt, LOST, ends=True),
    Misdeed(misdeeds.sigstop, LOST, ends=True),
    Misdeed(misdeeds.segfault, LOST, ends=True),
    Misdeed(misdeeds.close_all_fds, LOST, ends=True),
    Misdeed(misdeeds.sockets_replaced, LOST, ends=True, spoils=True),
    Misdeed(misdeeds.event_fds_replaced, LOST, ends=True),
    Misdeed(misdeeds.fork_into_engine, "runs or fork"),
    Misdeed(misdeeds.fork_and_exit, "runs"),
    Misdeed(misdeeds.fork_and_sys_exit, "runs or fork"),
    Misdeed(misdeeds.fork_and_raise, "runs or fork"),
    Misdeed(misdeeds.multiprocessing_fork, "runs"),
    Misdeed(misdeeds.subprocess_run, "runs"),
    Misdeed(misdeeds.endless_loop, "cancelled"),
    Misdeed(misdeeds.endless_sleep, "cancelled"),
    Misdeed(misdeeds.swallows_everything, "cancelled"),
    Misdeed(misdeeds.lock_for_ever, "cancelled"),
    Misdeed(misdeeds.blocks_the_loop, "cancelled", build=awaited),
    Misdeed(misdeeds.never_resolves, "cancelled", build=awaited),
    Misdeed(misdeeds.yields_for_ever, "cancelled", build=flat),
    Misdeed(misdeeds.recursion, "RecursionError"),
    Misdeed(misdeeds.base_exception, "beyond Exception"),
    Misdeed(misdeeds.generator_exit, "GeneratorExit"),
    Misdeed(misdeeds.keyboard_interrupt, "KeyboardInterrupt"),
    Misdeed(misdeeds.stop_iteration, "StopIteration"),
    Misdeed(misdeeds.cancelled_error, "CancelledError"),
    Misdeed(misdeeds.memory_error, "MemoryError"),
    Misdeed(misdeeds.unpicklable_exception, "Locked"),
    Misdeed(misdeeds.unspeakable_exception, "Unspeakable"),
    Misdeed(misdeeds.surrogates_in_error, "lone .* and .* and"),
    Misdeed(misdeeds.huge_error, "ValueError: xxxxx"),
    Misdeed(misdeeds.deep_causes, "number 4999"),
    Misdeed(misdeeds.circular_causes, "ValueError"),
    Misdeed(misdeeds.exception_group, "several"),
    Misdeed(misdeeds.error_about_record, "about a record that has no repr", build=as_it_is),
    Misdeed(misdeeds.unpicklable_result, "lock"),
    Misdeed(misdeeds.generator_result, "generator"),
    Misdeed(misdeeds.no_reduce, "not pickled|NoReduce"),
    Misdeed(misdeeds.exits_when_pickled, "SystemExit|ExitsWhenPickled"),
    Misdeed(misdeeds.deeply_nested, "runs or recursion|nested|list"),
    Misdeed(misdeeds.key_no_hash, "no hash|NoHash", build=keyed),
    Misdeed(misdeeds.key_no_eq, "runs or no comparison|NoEq", build=keyed),
    Misdeed(misdeeds.key_list, "runs or list", build=keyed),
    Misdeed(misdeeds.key_nan, "runs or nan", build=keyed),
    Misdeed(misdeeds.hundreds_of_threads, "runs"),
    Misdeed(misdeeds.threads_that_raise, "runs"),
    Misdeed(misdeeds.signal_handlers, "main thread"),
    Misdeed(misdeeds.excepthooks, "runs", spoils=True),
    Misdeed(misdeeds.modules_cleared, "runs or Error"),
    Misdeed(misdeeds.own_modules_removed, "runs"),
    Misdeed(misdeeds.path_cleared, "runs", spoils=True),
    Misdeed(misdeeds.change_folder, "runs", spoils=True),
    Misdeed(misdeeds.environ_cleared, "runs", spoils=True),
    Misdeed(misdeeds.gc_off, "runs", spoils=True),
    Misdeed(misdeeds.gc_callbacks, "runs"),
    Misdeed(misdeeds.recursion_limit, f"runs or [Rr]ecursion|{LOST}", ends=True, spoils=True),
    Misdeed(misdeeds.trace, "runs", spoils=True),
    Misdeed(misdeeds.trace_that_raises, "runs or in a thread", spoils=True),
    Misdeed(misdeeds.time_stands_still, "runs", spoils=True),
    Misdeed(misdeeds.time_goes_back, "runs", spoils=True),
    Misdeed(misdeeds.stdout_closed, "runs"),
    Misdeed(misdeeds.standard_fds_closed, "runs"),
    Misdeed(misdeeds.temporary_folder_removed, "runs", spoils=True),
    Misdeed(misdeeds.switch_interval, "runs", spoils=True),
    Misdeed(misdeeds.print_replaced, "runs", spoils=True),
    Misdeed(misdeeds.balloon, "MemoryError"),
    Misdeed(misdeeds.fds_used_up, "runs"),
    Misdeed(misdeeds.fd_limit_lowered, "runs"),
    Misdeed(misdeeds.large_records, "runs or bytes"),
    Misdeed(misdeeds.warnings_are_errors, "runs", spoils=True),
]
WITHOUT_DEED = (mapped, None)


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """Yield TaskManagers whose temporary folder may be removed."""
    folder = tmp_path_factory.mktemp("misdeeds")
    with (
        Arena(folder, environment_seed(), environment=settings_of(folder)) as running,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("FLOWLET_SECRET_FILE", str(running.secret_file))
        yield running


def settings_of(folder: Path) -> dict[str, str]:
    """Return the environment variables in which misdeeds find their folders."""
    (folder / "tmp").mkdir()
    return {"TMPDIR": str(folder / "tmp"), RELEASE: str(folder / "release"), SCRATCH: str(folder)}


@pytest.mark.parametrize("misdeed", [pytest.param(each, id=each.function.__name__) for each in MISDEEDS])
def test_misdeed(arena: Arena, misdeed: Misdeed) -> None:
    commit(arena, misdeed)


def commit(arena: Arena, misdeed: Misdeed) -> None:
    """Run the job of one misdeed beside the bystander."""
    build, function = misdeed.build or mapped, misdeed.function
    one: Any = deed(function) if misdeed.build is None else function  # type: ignore[arg-type]
    release = arena.folder / "release"
    release.unlink(missing_ok=True)
    with arena.attack(f"misdeed: {function.__name__}", may_end=LOST if misdeed.ends else "", more_mib=400) as it:
        try:
            if misdeed.outcome == "cancelled":
                found = run_job(arena.address, lambda env: build(env, one), TOLD_S, cancel_after_s=1.5)
                assert found.cancel_s is not None, found
                assert found.cancel_s < CANCEL_S, f"cancelled only after {found.cancel_s:.0f} s"
                it.outcome(f"cancelled in {found.cancel_s:.1f} s")
            else:
                found = run_job(arena.address, lambda env: build(env, one), TOLD_S)
                judge(misdeed, found)
                it.outcome(found.summary)
        finally:
            release.touch()
            resume(arena)
            (arena.folder / "tmp").mkdir(exist_ok=True)
    if misdeed.spoils:
        arena.replace_task_managers([int((arena.folder / "pid").read_text())])


def judge(misdeed: Misdeed, found: JobOutcome) -> None:
    assert not found.is_late, f"the job neither ended nor failed within {TOLD_S:.0f} s"
    pattern = misdeed.outcome.removeprefix("runs or ")
    if found.error is None:
        assert misdeed.outcome.startswith("runs"), f"no error, but {len(found.results)} results"
        if misdeed.build is None and misdeed.function not in (misdeeds.large_records, misdeeds.deeply_nested):
            assert sorted(found.results) == list(range(NUM)), found.results
    else:
        assert misdeed.outcome != "runs", found.error
        assert re.search(pattern, found.error), f"the reason does not tell {pattern!r}: {found.error[:2000]}"
        assert len(found.error) < 100_000, f"an error of {len(found.error)} characters"


def resume(arena: Arena) -> None:
    for each in arena.task_managers:
        with suppress(psutil.Error):
            psutil.Process(each.process.pid).resume()

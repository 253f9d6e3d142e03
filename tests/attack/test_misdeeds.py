"""A user's function does its worst beside the bystander, in one TaskManager.

The function may not end the process if a Python process can survive it, harm the bystander, hang its own job, or leave
the reason unsaid.
"""

import asyncio
import ctypes
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable
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
from tests.attack.arena import Arena
from tests.attack.functions import Awaits
from tests.attack.jobs import JobOutcome, run_job
from tests.attack.misdeeds import AT, NUM, RELEASE, SCRATCH, deed, throw

TOLD_S = 25.0  # within which the job ends, or fails with the reason
CANCEL_S = 15.0
LOST = r"TaskManager .*(lost|closed|ended|silent|stopp|signal|heard)"


@dataclass(frozen=True)
class Misdeed:
    """A function, and what must become of its job.

    ``outcome``: a pattern of the failure, or ``runs``, ``runs or PATTERN``, or ``cancelled``.
    """

    name: str
    function: Callable[..., Any]
    outcome: str
    ends: bool = False  # the process may end, or the JobManager give it up
    spoils: bool = False  # the process is replaced afterwards
    build: Callable[[StreamExecutionEnvironment, Callable[[Any], Any]], DataStream] | None = None


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
    Misdeed("sys_exit", lambda: sys.exit(3), "SystemExit"),
    Misdeed("os_exit", lambda: os._exit(3), LOST, ends=True),
    Misdeed("exit_zero", lambda: os._exit(0), LOST, ends=True),
    Misdeed("sigterm", lambda: os.kill(os.getpid(), signal.SIGTERM), LOST, ends=True),
    Misdeed("sigint", lambda: os.kill(os.getpid(), signal.SIGINT), LOST, ends=True),
    Misdeed("sigkill", lambda: os.kill(os.getpid(), signal.SIGKILL), LOST, ends=True),
    Misdeed("sigabrt", os.abort, LOST, ends=True),
    Misdeed("sigstop", lambda: os.kill(os.getpid(), signal.SIGSTOP), LOST, ends=True),
    Misdeed("segfault", lambda: ctypes.string_at(1), LOST, ends=True),
    Misdeed("close_all_fds", lambda: os.closerange(3, 4096), LOST, ends=True),
    Misdeed("sockets_replaced", lambda: misdeeds.descriptors_replaced("socket:"), LOST, ends=True, spoils=True),
    Misdeed("event_fds_replaced", lambda: misdeeds.descriptors_replaced("anon_inode:"), LOST, ends=True),
    Misdeed("fork_into_engine", misdeeds.fork_into_engine, "runs or fork"),
    Misdeed("fork_and_exit", misdeeds.fork_and_exit, "runs"),
    Misdeed("fork_and_sys_exit", misdeeds.fork_and_sys_exit, "runs or fork"),
    Misdeed("fork_and_raise", misdeeds.fork_and_raise, "runs or fork"),
    Misdeed("multiprocessing_fork", misdeeds.multiprocessing_fork, "runs"),
    Misdeed("subprocess_run", misdeeds.subprocess_run, "runs"),
    Misdeed("endless_loop", misdeeds.endless_loop, "cancelled"),
    Misdeed("endless_sleep", misdeeds.endless_sleep, "cancelled"),
    Misdeed("swallows_everything", misdeeds.swallows_everything, "cancelled"),
    Misdeed("lock_for_ever", misdeeds.lock_for_ever, "cancelled"),
    Misdeed("blocks_the_loop", misdeeds.blocks_the_loop, "cancelled", build=awaited),
    Misdeed("never_resolves", misdeeds.never_resolves, "cancelled", build=awaited),
    Misdeed("yields_for_ever", misdeeds.yields_for_ever, "cancelled", build=flat),
    Misdeed("recursion", misdeeds.recursion, "RecursionError"),
    Misdeed("base_exception", lambda: throw(misdeeds.Base("beyond Exception")), "beyond Exception"),
    Misdeed("generator_exit", lambda: throw(GeneratorExit("in a map")), "GeneratorExit"),
    Misdeed("keyboard_interrupt", lambda: throw(KeyboardInterrupt("in a map")), "KeyboardInterrupt"),
    Misdeed("stop_iteration", lambda: throw(StopIteration("in a map")), "StopIteration"),
    Misdeed("cancelled_error", lambda: throw(asyncio.CancelledError("in a map")), "CancelledError"),
    Misdeed("memory_error", lambda: throw(MemoryError("in a map")), "MemoryError"),
    Misdeed("unpicklable_exception", lambda: throw(misdeeds.Locked()), "Locked"),
    Misdeed("unspeakable_exception", lambda: throw(misdeeds.Unspeakable()), "Unspeakable"),
    Misdeed(
        "surrogates_in_error", lambda: throw(ValueError("lone \ud800 and \x00 and \x1b[31m")), "lone .* and .* and"
    ),
    Misdeed("huge_error", lambda: throw(ValueError("x" * 20_000_000)), "ValueError: xxxxx"),
    Misdeed("deep_causes", misdeeds.deep_causes, "number 4999"),
    Misdeed("circular_causes", misdeeds.circular_causes, "ValueError"),
    Misdeed(
        "exception_group", lambda: throw(BaseExceptionGroup("several", [KeyboardInterrupt(), SystemExit(1)])), "several"
    ),
    Misdeed(
        "error_about_record",
        lambda number: misdeeds.NoRepr() if number == AT else number,
        "about a record that has no repr",
        build=as_it_is,
    ),
    Misdeed("unpicklable_result", lambda: threading.Lock(), "lock"),
    Misdeed("generator_result", lambda: (number for number in range(3)), "generator"),
    Misdeed("no_reduce", misdeeds.NoReduce, "not pickled|NoReduce"),
    Misdeed("exits_when_pickled", misdeeds.ExitsWhenPickled, "SystemExit|ExitsWhenPickled"),
    Misdeed("deeply_nested", misdeeds.deeply_nested, "runs or recursion|nested|list"),
    Misdeed("key_no_hash", lambda number: misdeeds.NoHash() if number == AT else number, "no hash|NoHash", build=keyed),
    Misdeed(
        "key_no_eq",
        lambda number: misdeeds.NoEq() if number in (AT, AT + 1) else number,
        "runs or no comparison|NoEq",
        build=keyed,
    ),
    Misdeed("key_list", lambda number: [number] if number == AT else number, "runs or list", build=keyed),
    Misdeed("key_nan", lambda number: float("nan") if number == AT else number, "runs or nan", build=keyed),
    Misdeed("hundreds_of_threads", misdeeds.hundreds_of_threads, "runs"),
    Misdeed("threads_that_raise", misdeeds.threads_that_raise, "runs"),
    Misdeed("signal_handlers", lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN), "main thread"),
    Misdeed("excepthooks", misdeeds.excepthooks, "runs", spoils=True),
    Misdeed("modules_cleared", lambda: sys.modules.clear(), "runs or Error"),
    Misdeed("own_modules_removed", misdeeds.own_modules_removed, "runs"),
    Misdeed("path_cleared", lambda: sys.path.clear(), "runs", spoils=True),
    Misdeed("change_folder", misdeeds.change_folder, "runs", spoils=True),
    Misdeed("environ_cleared", lambda: os.environ.clear(), "runs", spoils=True),
    Misdeed("gc_off", misdeeds.gc_off, "runs", spoils=True),
    Misdeed("gc_callbacks", misdeeds.gc_callbacks, "runs"),
    Misdeed(
        "recursion_limit", lambda: sys.setrecursionlimit(60), f"runs or [Rr]ecursion|{LOST}", ends=True, spoils=True
    ),
    Misdeed("trace", misdeeds.trace, "runs", spoils=True),
    Misdeed("trace_that_raises", lambda: sys.settrace(misdeeds.raises), "runs or in a thread", spoils=True),
    Misdeed("time_stands_still", misdeeds.time_stands_still, "runs", spoils=True),
    Misdeed("time_goes_back", misdeeds.time_goes_back, "runs", spoils=True),
    Misdeed("stdout_closed", misdeeds.stdout_closed, "runs"),
    Misdeed("standard_fds_closed", misdeeds.standard_fds_closed, "runs"),
    Misdeed("temporary_folder_removed", misdeeds.temporary_folder_removed, "runs", spoils=True),
    Misdeed("switch_interval", misdeeds.switch_interval, "runs", spoils=True),
    Misdeed("print_replaced", misdeeds.print_replaced, "runs", spoils=True),
    Misdeed("balloon", misdeeds.balloon, "MemoryError"),
    Misdeed("fds_used_up", misdeeds.fds_used_up, "runs"),
    Misdeed("fd_limit_lowered", misdeeds.fd_limit_lowered, "runs"),
    Misdeed("large_records", lambda: bytes(100 * 2**20), "runs or bytes"),
    Misdeed("warnings_are_errors", lambda: warnings.simplefilter("error"), "runs", spoils=True),
]


def settings_of(folder: Path) -> dict[str, str]:
    """Return the environment variables in which misdeeds find their folders; the temporary one may be removed."""
    (folder / "tmp").mkdir()
    return {"TMPDIR": str(folder / "tmp"), RELEASE: str(folder / "release"), SCRATCH: str(folder)}


@pytest.mark.parametrize("misdeed", [pytest.param(each, id=each.name) for each in MISDEEDS])
def test_misdeed(arena: Arena, misdeed: Misdeed) -> None:
    commit(arena, misdeed)


def commit(arena: Arena, misdeed: Misdeed) -> None:
    """Run the job of one misdeed beside the bystander."""
    build = misdeed.build or mapped
    one = deed(misdeed.name, misdeed.function) if misdeed.build is None else misdeed.function
    release = arena.folder / "release"
    release.unlink(missing_ok=True)
    with arena.attack(f"misdeed: {misdeed.name}", may_end=LOST if misdeed.ends else "", more_mib=400) as it:
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
        if misdeed.build is None and misdeed.name not in ("large_records", "deeply_nested"):
            assert sorted(found.results) == list(range(NUM)), found.results
    else:
        assert misdeed.outcome != "runs", found.error
        assert re.search(pattern, found.error), f"the reason does not tell {pattern!r}: {found.error[:2000]}"
        assert len(found.error) < 100_000, f"an error of {len(found.error)} characters"


def resume(arena: Arena) -> None:
    for each in arena.task_managers:
        with suppress(psutil.Error):
            psutil.Process(each.process.pid).resume()

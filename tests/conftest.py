"""Checks and fixtures of every test: nothing may be left behind, and the loop can be exchanged.

A test fails if it leaves a thread, a child process, an orphan of a child, a socket, pipe or eventfd, or an asyncio
task.  ``--uvloop`` runs the asynchronous tests on uvloop.  Hypothesis prints how to replay a failure, and is
deterministic if CI=true.
"""

import asyncio
import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import hypothesis
import psutil
import pytest
import pytest_asyncio
import structlog
import uvloop

from tests import schedule
from tests.forked_processes import ClusterStarter, fork_server
from tests.quiet_logging import unconfigured_logging_of_module

__all__ = ["unconfigured_logging_of_module"]  # every module begins with logging unconfigured, and leaves it so

OUT_OF_TIME = "the time of --stop-after is over: make test runs the other tests"
_STARTED_S = time.monotonic()
_GC_THRESHOLDS = 50_000, 20, 20  # with 700, 10, 10 the collector took 7 to 12 % of the CPU, and found nearly nothing
LOG_TAIL_BYTES = 6_000  # of each process, in the report of a failed test
GRACE_S = 3.0  # an ending thread may take this long if it has a processor; no test waits if none is left
_PR_SET_CHILD_SUBREAPER = 36
_WATCHED_FD_KINDS = ("socket:", "pipe:", "anon_inode:[event", "anon_inode:[pidfd", "anon_inode:[timerfd")
_Thing = TypeVar("_Thing")

_FOLDERS_OF_JOBS = ("tests/bench/jobs/", "tests/flowlet/ingest/", "tests/pyflink/")  # their helpers run the jobs
_DEBUGS_JOBS = "FLOWLET_TESTS_DEBUG_JOBS" in os.environ  # make test-pythons says so
os.environ.setdefault("PYTHONASYNCIODEBUG", "1")
os.environ.setdefault("NETSTACK_DEBUG", "1")
# OpenBLAS starts threads that spin for 0.1 s of CPU in each process that imports numpy; tests start hundreds.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A machine that stands still for a second fails no test: no deadlines, and how long examples take to make is not
# judged.
hypothesis.settings.register_profile(
    "local", deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("ci", hypothesis.settings.get_profile("local"), derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") == "true" else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--uvloop", action="store_true", help="run asynchronous tests on uvloop instead of asyncio's own loop"
    )
    parser.addoption(
        "--stop-after", type=float, metavar="SECONDS", help="begin no test once this much time is over; no failure"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Orphans of our children become our children: a TaskManager that outlives its parent is seen as a leak.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # libuv makes one pipe per process with its first loop and keeps it: before any test starts to count.
    uvloop.new_event_loop().close()
    # Modules beside the main program are shipped to TaskManagers.  A worker of pytest-xdist has no main file, and would
    # ship all tests.
    if not hasattr(sys.modules["__main__"], "__file__"):
        sys.modules["__main__"].__file__ = pytest.__file__
    # By default structlog has rich colour the sources of a traceback: 0.3 s for each error that is logged.
    structlog.get_config()["processors"][-1].exception_formatter = structlog.dev.plain_traceback
    # A shell starts what runs in the background with the interrupt ignored, and children inherit that: tests of Ctrl-C
    # would wait for ever.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Stop the session after a test, in each process that runs tests, if the time of ``--stop-after`` is over."""
    limit_s = item.config.getoption("--stop-after")
    try:
        return (yield)
    finally:
        if limit_s is not None and time.monotonic() - _STARTED_S > limit_s:
            item.session.shouldstop = OUT_OF_TIME


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A session that stopped because its time was over has failed only if a test has."""
    if session.exitstatus == pytest.ExitCode.INTERRUPTED and _is_out_of_time(session):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED if session.testsfailed else pytest.ExitCode.OK


def _is_out_of_time(session: pytest.Session) -> bool:
    # The process that hands tests to workers is told by them why they stopped.
    hands_out = session.config.pluginmanager.getplugin("dsession")
    return OUT_OF_TIME in (session.shouldstop, getattr(hands_out, "shouldstop", None))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Switch the garbage collector off while 18,000 tests are collected, and freeze their objects.

    No garbage arises meanwhile, and the objects stay: the collector need not walk through them, neither now nor when a
    test has it look for garbage.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Have the collection before a run fill Hypothesis's files of characters and of constants in our modules, 9 s of
    CPU, which each worker would compute for itself.
    """
    if session.config.option.collectonly:

        @hypothesis.given(hypothesis.strategies.lists(hypothesis.strategies.text(), min_size=20))
        @hypothesis.settings(max_examples=20, database=None)
        def draw_texts(_: list[str]) -> None: ...

        draw_texts()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the ends of the logs of a failed test's processes: its folder is gone when somebody asks."""
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and isinstance(folder, Path):
        for log in sorted(folder.rglob("*.log")):
            data = log.read_bytes()
            report.sections.append(
                (f"{log.relative_to(folder)}, {len(data)} bytes", data[-LOG_TAIL_BYTES:].decode(errors="replace"))
            )
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Hand files out in the order of ``tests/schedule.py``, with ``--dist loadfile``."""
    from xdist.scheduler import LoadFileScheduling

    class LongestFirst(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return schedule.scope_of(nodeid)

        def _assign_work_unit(self, node: object) -> None:
            work = [units for other, units in self.assigned_work.items() if other is not node]
            running = [scope for units in work for scope, tests in units.items() if not all(tests.values())]
            waiting = {scope: len(tests) for scope, tests in self.workqueue.items()}
            self.workqueue.move_to_end(schedule.next_scope(waiting, running), last=False)
            super()._assign_work_unit(node)

    return LongestFirst(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if config.getoption("--uvloop"):
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


def open_fds() -> set[tuple[int, str]]:
    """The sockets, pipes, eventfds and the like that this process has open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of the listing itself
            continue
        if target.startswith(_WATCHED_FD_KINDS):
            found.add((int(name), target))
    return found


def describe_fd(number: int, target: str) -> str:
    """Describe an open descriptor; a socket by its addresses too, which say whose it is."""
    if not target.startswith("socket:"):
        return f"{number}: {target}"
    with socket.socket(fileno=os.dup(number)) as found:
        try:
            peer: object = found.getpeername()
        except OSError:
            peer = "no peer"
        return f"{number}: {target}, {found.family.name}, {found.getsockname()!r} -> {peer!r}"


def leads_to_the_jvm(number: int, target: str) -> bool:
    """Whether a descriptor is a connection of py4j to the JVM of Spark, which lives as long as the tests of a worker: a
    thread that collects an object of Java's says so on a connection of its own, in whatever test that is.
    """
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    gateway = getattr(context, "_gateway", None)
    if gateway is None or not target.startswith("socket:"):
        return False
    # It has no peer, or is closed meanwhile.
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as found:
        return found.family == socket.AF_INET and found.getpeername()[1] == gateway.gateway_parameters.port
    return False


def live_threads() -> set[threading.Thread]:
    """Return the threads that run, but those of py4j: the JVM of Spark, which lives as long as the tests of a worker,
    connects at any time to say that it has collected an object.
    """
    return {thread for thread in threading.enumerate() if not is_of_py4j(thread)}


def is_of_py4j(thread: threading.Thread) -> bool:
    """Whether an object of py4j runs a thread of its own; they have no names."""
    runner = getattr(getattr(thread, "_target", None), "__self__", None)
    return type(runner).__module__.startswith("py4j.")


class _Children:
    """The children of this process, looked at twice per test.

    The list that the kernel keeps costs a hundredth of a walk through all processes of the machine.  It may miss some
    while others end, so any change in it is looked into.
    """

    def __init__(self) -> None:
        self._listed: set[int] = set()
        self._running: set[int] = set()

    def running(self) -> set[int]:
        """Return the children that still run; reap dead ones for which nobody waited."""
        try:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return set()
        listed = self._list()
        if dead is not None or not listed or listed != self._listed:
            self._running = self._walk()
            self._listed = self._running
        return set(self._running)

    @staticmethod
    def _list() -> set[int]:
        """Return the kernel's list of children; an empty list where the kernel keeps none."""
        pids: set[int] = set()
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
                pids.update(map(int, Path(f"/proc/self/task/{thread}/children").read_bytes().split()))
        return pids

    @staticmethod
    def _walk() -> set[int]:
        pids = set()
        for child in psutil.Process().children():
            try:
                is_dead = child.status() == psutil.STATUS_ZOMBIE
            except psutil.NoSuchProcess:
                continue
            if is_dead:
                os.waitpid(child.pid, os.WNOHANG)
            else:
                pids.add(child.pid)
        return pids


child_pids = _Children().running


def grace_s() -> float:
    """Return ``GRACE_S``, times the number of processes that want a processor: each has its part of the time."""
    return GRACE_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def left_behind(look: Callable[[], set[_Thing]], before: set[_Thing]) -> set[_Thing]:
    """Return the things that ``look`` sees beyond ``before`` once everything on its way out has had its time."""
    for _ in range(10):
        if not look() - before:
            return set()
        time.sleep(0.002)  # most threads end meanwhile: to look at all objects takes a hundred times as long
    gc.collect()
    deadline = time.monotonic() + grace_s()
    while (rest := look() - before) and time.monotonic() < deadline:
        time.sleep(0.005)
    return rest


def describe_process(pid: int) -> str:
    try:
        return f"{pid}: {' '.join(psutil.Process(pid).cmdline())[:200]}"
    except psutil.Error:
        return str(pid)


def end_kept_server() -> None:
    """End the process that a program keeps for its next cluster: a test is over as a program is, and then no process of
    it may be there.
    """
    module = sys.modules.get("flowlet.client.fork_server_client")
    if module is not None:
        module.KEPT_SERVER.close()


@pytest.fixture(scope="session")
def _cluster_starter() -> Iterator[ClusterStarter]:
    """Yield one process that has imported all modules of JobManagers, TaskManagers and programs, 0.5 s of CPU each."""
    with fork_server("tests.cluster_modules") as server:
        yield ClusterStarter(server)


def _runs_whole_jobs(module: pytest.Module) -> bool:
    """Whether a file of tests runs jobs in this process."""
    names = ("StreamExecutionEnvironment", "MiniCluster")
    return module.nodeid.startswith(_FOLDERS_OF_JOBS) or any(hasattr(module.obj, name) for name in names)


@pytest.fixture(scope="module", autouse=True)
def _jobs_run_as_users_run_them(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whole jobs do without asyncio's debug mode, which takes a third of their time; what they consist of is tested
    with it.

    With ``FLOWLET_TESTS_DEBUG_JOBS`` jobs in this process have it too.  Programs and processes of a cluster never have
    it: they would log what takes long on a busy machine.
    """
    starts_programs = hasattr(request.module, "subprocess") or schedule.starts_clusters(
        schedule.scope_of(request.node.nodeid)
    )
    with pytest.MonkeyPatch.context() as patch:
        if starts_programs or (_runs_whole_jobs(request.node) and not _DEBUGS_JOBS):
            patch.delenv("PYTHONASYNCIODEBUG", raising=False)
        if "bench.cluster" in sys.modules:
            patch.setattr(sys.modules["bench.cluster"].Process, "starter", request.getfixturevalue("_cluster_starter"))
        yield


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    threads, children, fds = live_threads(), child_pids(), open_fds()

    yield

    end_kept_server()
    left_children = left_behind(child_pids, children)
    names = [describe_process(pid) for pid in left_children]
    for pid in left_children:
        psutil.Process(pid).kill()
        os.waitpid(pid, 0)
    assert not names, f"processes left behind (killed now): {names}"
    left_threads = left_behind(live_threads, threads)
    assert not left_threads, f"threads left behind: {sorted(thread.name for thread in left_threads)}"
    left_fds = {each for each in left_behind(open_fds, fds) if not leads_to_the_jvm(*each)}
    described = [describe_fd(*each) for each in sorted(left_fds)]
    assert not described, f"file descriptors left behind: {described}"


@pytest_asyncio.fixture
async def _task_guard() -> AsyncIterator[None]:
    yield
    deadline = time.monotonic() + grace_s()
    while left := asyncio.all_tasks() - {asyncio.current_task()}:
        if time.monotonic() > deadline:
            pytest.fail(f"asyncio tasks left behind: {sorted(repr(task) for task in left)}")
        await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def _no_asyncio_task_is_left_behind(request: pytest.FixtureRequest, _nothing_is_left_behind: None) -> None:
    """Set up first, so torn down last: after the other fixtures of the test closed what they had opened."""
    if request.node.get_closest_marker("asyncio") is not None:
        request.getfixturevalue("_task_guard")

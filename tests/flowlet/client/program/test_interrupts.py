"""Ctrl-C at every place where Python lets it in: the caller hears of it, and nothing that other threads need stays
locked or half done.
"""

import _weakrefset
import linecache
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

from flowlet import client, datastream
from flowlet.client.embedded import EmbeddedCluster
from flowlet.client.executor import execute, to_message
from flowlet.client.program import interrupts
from flowlet.client.program.interrupts import DeferredSignals, Latch
from flowlet.client.remote import ClusterClient, JobManagerApi, RemoteTarget
from flowlet.client.running_job import RunningJob
from flowlet.client.translate import translate
from flowlet.common import Configuration
from flowlet.common.job_client import SubmittedJob
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink
from flowlet.graph.stream_graph import StreamGraph
from flowlet.shipping.bundle_maker import NeededCode
from tests.flowlet.client.jobs import endless, mapped
from tests.waiting import PATIENCE_S, spin_until

# This file and the stacks that asyncio's debug mode takes have no places that matter; and what a finalizer of a weak
# reference raises, the interpreter swallows, whoever runs it.
_NO_PLACES = (__file__, _weakrefset.__file__, traceback.__file__, linecache.__file__)
_MAX_PLACES = 20_000  # far more than there are
_STRIDES = {"execute_and_collect": 7, "execute": 3}  # hundreds of places in the client, each with a job of its own


class _CtrlCAtCall:
    """Sends SIGINT when the main thread enters its ``number``th Python function; that is where the interpreter looks
    for signals.
    """

    def __init__(self, number: int, folder: str) -> None:
        self._number = number
        self._folder = folder
        self._num_calls = 0
        self.is_sent = False

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        file = frame.f_code.co_filename
        if self.is_sent or event != "call" or file in _NO_PLACES or not file.startswith(self._folder):
            return
        self._num_calls += 1
        if self._num_calls == self._number:
            self.is_sent = True
            signal.raise_signal(signal.SIGINT)


def ctrl_c_at(number: int, action: Callable[[], object], folder: str = "") -> bool:
    """Interrupt ``action`` at one place, in a module below ``folder``; whether there is that place."""
    ctrl_c, before = _CtrlCAtCall(number, folder), sys.gettrace()
    is_interrupted = False
    sys.settrace(ctrl_c)
    try:
        action()
    except KeyboardInterrupt:  # not contextlib.suppress, which is a place for interrupts itself
        is_interrupted = True
    finally:
        sys.settrace(before)
    assert is_interrupted is ctrl_c.is_sent, f"the interrupt at call {number} was swallowed"
    return ctrl_c.is_sent


def ctrl_c_everywhere(
    action: Callable[[], object], check: Callable[[], None], stride: int = 1, folder: str = ""
) -> int:
    """Interrupt ``action`` at one place after the other, and ``check`` each time; returns at how many places."""
    for number in range(1, _MAX_PLACES, stride):
        if not ctrl_c_at(number, action, folder):
            return number - 1
        check()
    raise AssertionError(f"{action} does not come to its end")


def assert_answers(client: ClusterClient) -> None:
    """Ask on another thread, so that a stopped loop fails the test."""
    answered = threading.Event()

    def ask() -> None:
        client.call(JobManagerApi.overview)
        answered.set()

    threading.Thread(target=ask, daemon=True).start()
    assert answered.wait(PATIENCE_S), "the loop thread stands still"


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    cluster = EmbeddedCluster.start(1, 1, in_process=True)
    yield cluster
    cluster.close()


@pytest.mark.slow
def test_a_call_can_be_interrupted_anywhere_and_the_loop_goes_on(cluster: EmbeddedCluster) -> None:
    """An interrupt once left a future's lock taken; the loop waited for it for ever, and so did ``close``.

    No coroutine is left that was made and never run, which is a warning on the user's terminal.
    """
    num_places = ctrl_c_everywhere(lambda: cluster.call(JobManagerApi.overview), lambda: assert_answers(cluster))

    assert num_places > 20


@pytest.mark.slow
def test_reading_can_be_interrupted_anywhere_and_the_loop_goes_on(cluster: EmbeddedCluster) -> None:
    job, edge_id = _submitted(cluster)

    def start_another() -> None:
        nonlocal job, edge_id
        assert_answers(cluster)
        job.cancel_quietly()
        job.release_readers()
        job, edge_id = _submitted(cluster)

    num_places = ctrl_c_everywhere(lambda: list(job.collect(edge_id)), start_another, stride=211)
    job.release_readers()

    assert num_places > 100


def _submitted(cluster: EmbeddedCluster) -> tuple[RunningJob, str]:
    job_graph, edge_id = mapped(range(3), lambda value: value)
    cluster.call(lambda api: api.submit(to_message(job_graph)))
    return RunningJob(cluster, job_graph.job_id, job_graph.name), edge_id


@pytest.mark.slow
def test_closing_can_be_interrupted_anywhere_and_still_ends_everything() -> None:
    """The interrupt is deferred to the end of ``close``, which completes what was begun."""
    for number in (1, 2, 3, 5, 10, 20, 40, 80):
        job = execute(endless()[0], _InProcess())

        ctrl_c_at(number, job.close)
        job.close()  # the interrupt may have come before the first step

        assert not any(thread.name.startswith("flowlet") for thread in threading.enumerate())


@pytest.mark.slow
def test_submitting_can_be_interrupted_anywhere_and_no_job_runs_on(cluster: EmbeddedCluster) -> None:
    """A cluster that outlives the program may have taken a job whose client has not heard of it yet."""
    target = RemoteTarget(cluster.host, cluster.port, secret=cluster.secret)

    submitted: list[RunningJob] = []

    def submit() -> None:
        submitted.append(execute(endless()[0], target))

    def assert_nothing_runs() -> None:
        spin_until(lambda: all(job["state"] in ("CANCELED", "FAILED") for job in cluster.call(JobManagerApi.list_jobs)))

    num_places = ctrl_c_everywhere(submit, assert_nothing_runs, folder=str(Path(interrupts.__file__).parent))
    for job in submitted:
        job.cancel()
        job.close()

    assert (len(submitted), num_places > 20) == (1, True)


@pytest.mark.slow
@pytest.mark.parametrize("package", [client, datastream], ids=["in the client", "in the API"])
@pytest.mark.parametrize("method", ["execute", "execute_async", "execute_and_collect"])
def test_a_program_that_starts_a_job_can_be_interrupted_anywhere(
    cluster: EmbeddedCluster, method: str, package: ModuleType
) -> None:
    """The API has the job before the JobManager has it: it was left, and its connections with it, by a Ctrl-C between
    the two.
    """
    options = {"rest.address": cluster.host, "rest.port": str(cluster.port)}
    env = StreamExecutionEnvironment(Configuration.from_dict(options), _with_secret(cluster.secret)).set_parallelism(1)
    threads = set(threading.enumerate())

    def start() -> None:
        stream = env.from_collection([1])
        if method == "execute_and_collect":
            stream.execute_and_collect(limit=1)
            return
        stream.sink_to(DiscardingSink())
        getattr(env, method)()

    def states() -> set[str]:
        return {job["state"] for job in cluster.call(JobManagerApi.list_jobs)}

    def assert_nothing_is_left() -> None:
        assert states() <= {"CANCELLING", "CANCELED", "FINISHED"}
        spin_until(lambda: "CANCELLING" not in states())
        spin_until(lambda: threads.issuperset(threading.enumerate()))

    stride = _STRIDES.get(method, 1) if package is client else 1
    num_places = ctrl_c_everywhere(start, assert_nothing_is_left, stride, str(Path(str(package.__file__)).parent))
    env.close()

    assert num_places > 20


def _with_secret(secret: bytes) -> Callable[..., SubmittedJob]:
    """Return a function that starts jobs with this secret, which no file holds."""

    def start(
        stream_graph: StreamGraph, address: tuple[str, int], _in_process: bool, keep: Callable[[RunningJob], None]
    ) -> SubmittedJob:
        job_graph = translate(stream_graph)
        job = execute(job_graph, RemoteTarget(*address, secret=secret), keep=keep)
        return SubmittedJob(job, tuple(edge.id for edge in job_graph.external_edges()))

    return start


class _InProcess:
    needed_code = NeededCode.NOTHING

    def open(self, needed_slots: int) -> ClusterClient:
        return EmbeddedCluster.start(1, needed_slots, in_process=True)


# -------------------------------------------------------------------- the parts


def test_a_signal_inside_the_block_is_delivered_after_the_outermost_one() -> None:
    steps = []

    def step() -> None:
        with DeferredSignals():
            with DeferredSignals():
                signal.raise_signal(signal.SIGINT)
                steps.append("whole")
            steps.append("still whole")

    with pytest.raises(KeyboardInterrupt):
        step()

    assert steps == ["whole", "still whole"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handlers_of_the_program_are_called_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program's handlers run after the block, as if a second SIGINT had come before the first one was served."""
    calls: list[int] = []
    former = [
        (number, signal.signal(number, lambda number, _frame: calls.append(number)))
        for number in (signal.SIGINT, signal.SIGTERM)
    ]

    with DeferredSignals():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
        assert calls == []
    for number, handler in former:
        signal.signal(number, handler)

    assert sorted(calls) == [signal.SIGINT, signal.SIGTERM]


def test_a_signal_that_the_program_ignores_stays_ignored() -> None:
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with DeferredSignals():
        inside = signal.getsignal(signal.SIGHUP)
    signal.signal(signal.SIGHUP, former)

    assert inside is signal.SIG_IGN


def test_other_threads_are_left_alone() -> None:
    """Signal handlers do not run there, and cannot be set there."""
    seen: list[Any] = []

    def run() -> None:
        with DeferredSignals():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE_S)

    assert seen == [signal.default_int_handler]


def test_an_error_of_the_block_is_kept_behind_the_interrupt() -> None:
    def step() -> None:
        with DeferredSignals():
            signal.raise_signal(signal.SIGINT)
            raise ValueError("the block's own")

    with pytest.raises(KeyboardInterrupt) as caught:
        step()

    assert isinstance(caught.value.__context__, ValueError)


def test_a_latch_opens_once_and_stays_open() -> None:
    latch = Latch()

    before = latch.wait(0.0)
    latch.open()
    latch.open()

    assert (before, latch.wait(), latch.wait(0.0), latch.is_open) == (False, True, True, True)


@pytest.mark.slow
def test_a_signal_that_does_not_interrupt_the_wait_is_heard_all_the_same() -> None:
    """A signal that came a moment before the wait began, or that another thread got, wakes no thread: a program hung
    after Ctrl-C.
    """
    latch, is_over = Latch(), threading.Event()

    def interrupt() -> None:
        while not _is_inside(Latch.wait):
            pass
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # this thread notes it, the main thread sleeps on
        is_over.wait(PATIENCE_S)
        latch.open()

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            latch.wait()
        is_heard_in_time = not latch.is_open
    finally:
        is_over.set()
        thread.join()

    assert is_heard_in_time


def _is_inside(function: Callable[..., Any]) -> bool:
    main = threading.main_thread().ident
    assert main is not None
    return function.__code__ in {frame.f_code for frame, _ in traceback.walk_stack(sys._current_frames()[main])}


def test_a_latch_wakes_the_thread_that_waits() -> None:
    latch, woken = Latch(), threading.Event()

    def wait() -> None:
        if latch.wait(PATIENCE_S):
            woken.set()

    thread = threading.Thread(target=wait)
    thread.start()

    latch.open()
    thread.join(PATIENCE_S)

    assert woken.is_set()

"""The delays by slow functions: how long a barrier, a result and a cancellation wait for them at most.

Side:     any.
Job:      one subtask per operator on one TaskManager process; ``bench/jobs/slow_functions.py`` has the functions, one
          kind per row.
Figures:  in ms, the longest of each: ``barrier``: from the trigger of a savepoint to its end, some in a row, or of
          unaligned checkpoints where the input is full: an aligned barrier waits for the records in front of it, too,
          as in Flink, and its wait counts from the moment when the barrier is the next element of every input;
          ``result``: from a record's emission by the function to the program that iterates over
          ``execute_and_collect``; ``last call``: from ``cancel()`` to the start of the last call of the function;
          ``end``: from ``cancel()`` to the end of the job; ``restarts``: how often the job restarted.
Owed:     a barrier and the end of a job wait for one record of the chain's head, with all that becomes of it, and 10
          ms; a result for the buffer timeout (100 ms) and 10 ms; no call starts later than 10 ms after ``cancel()``; no
          job restarts because of a slow function.
Noise:    a job whose function does nothing runs first; its figures are what the client, the JobManager and the files of
          a savepoint cost on this machine.  A thread that sleeps for a millisecond all the time tells how late threads
          wake.
Verdict:  ``ok`` up to owed + noise; ``over`` up to three times what is owed + noise; above that ``FAILS``, and the case
          exits with 1.
Limit:    each figure is cut at 10 s (``> 10 s``): the whole bench takes two minutes if waits are short, and six if they
          are all cut.
"""

import argparse
import concurrent.futures
import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.cluster import Cluster
from bench.jobs import slow_functions
from bench.jobs.slow_functions import KINDS, Beats, Kind
from bench.options import choices
from bench.report import Result
from bench.rounds import tell
from flowlet.client.executor import execute
from flowlet.client.remote import ClusterClient, JobDocument, RemoteTarget
from flowlet.client.translate import translate
from flowlet.common import Configuration
from flowlet.common.job_client import SubmittedJob
from flowlet.common.job_status import JobStatus
from flowlet.datastream import CloseableIterator, StreamExecutionEnvironment
from flowlet.errors import FlowletError
from flowlet.graph.stream_graph import StreamGraph

LIMIT_S: Final = 10.0
RESULTS_S: Final = 1.5  # how long results are watched before the first barrier
NUM_BARRIERS: Final = 3
QUICK_RESULTS_S: Final = 0.3
QUICK_BARRIERS: Final = 1
CHECKPOINT_INTERVAL_MS: Final = 200
OVERHEAD_MS: Final = 10.0
BUFFER_TIMEOUT_MS: Final = 100.0
FACTOR: Final = 3.0  # a wait of more than three times the owed one is a fault
FIGURES: Final = ("barrier", "result", "last call", "end")


@dataclass
class Waits:
    """The longest waits of one kind in ms; None: not measured; infinite: cut at the limit."""

    barrier: float | None = None
    result: float | None = None
    last_call: float | None = None
    end: float | None = None
    num_restarts: int = 0
    wake_up: float = 0.0  # how late a thread woke that slept
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def is_cut(self) -> bool:
        """Whether something took longer than the limit: then a task of the job may still run."""
        return any(
            value is not None and math.isinf(value) for value in (self.barrier, self.result, self.last_call, self.end)
        )

    def of(self, figure: str) -> float | None:
        """Return one of ``FIGURES``."""
        found: float | None = getattr(self, figure.replace(" ", "_"))
        return found


def parse_options(arguments: list[str]) -> dict[str, Any]:
    """Return the options of this case alone."""
    parser = argparse.ArgumentParser(
        prog="python -m bench slow", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--only", type=choices(KINDS), default=tuple(KINDS), metavar="KIND", help=f"some of {', '.join(KINDS)}"
    )
    return vars(parser.parse_args(arguments))


def run(num_runs: int, *, quick: bool = False, only: Sequence[str] = tuple(KINDS)) -> list[Result]:
    """Measure every kind ``num_runs`` times, one after another; the longest wait of all runs counts for the verdict."""
    results: list[Result] = []
    with Clusters() as clusters:
        noise = measured(clusters, slow_functions.NOTHING, is_quick=quick)
        tell(f"{'':16}{''.join(f'{figure:>26}' for figure in FIGURES)}  restarts   (ms, owed, verdict)")
        tell(row("no function", noise, None, None))
        for name in only:
            kind = KINDS[name]
            runs = [measured(clusters, kind, is_quick=quick) for _ in range(num_runs)]
            for waits in runs:
                tell(row(name, waits, kind, noise))
            results += figures(name, kind, runs, noise)
    return results


# ---------------------------------------------------------------- verdicts


def owed_ms(kind: Kind, figure: str) -> float:
    """Return how long it may wait."""
    match figure:
        case "barrier" | "end":
            return kind.unit_ms + OVERHEAD_MS
        case "result":
            return BUFFER_TIMEOUT_MS + OVERHEAD_MS + (kind.unit_ms if kind.stops_threads else 0.0)
        case _:
            return OVERHEAD_MS


def noise_ms(waits: Waits, noise: Waits, figure: str) -> float:
    """Return the time that the machine and the control plane add."""
    return (noise.of(figure) or 0.0) + waits.wake_up


def verdict(value: float, owed: float, noise: float) -> str:
    """Whether a wait is as short as it should be."""
    if value <= owed + noise:
        return "ok"
    return "over" if value <= FACTOR * owed + noise else "FAILS"


def figures(name: str, kind: Kind, runs: Sequence[Waits], noise: Waits) -> Iterator[Result]:
    """Return one result per figure that was measured."""
    for figure in FIGURES:
        values = [(value, waits) for waits in runs if (value := waits.of(figure)) is not None]
        if not values:
            continue
        owed = owed_ms(kind, figure)
        verdicts = [verdict(value, owed, noise_ms(waits, noise, figure)) for value, waits in values]
        shown = [min(value, kind.limit_s * 1000) for value, _ in values]
        yield Result(
            f"slow {name}: {figure}",
            "ms",
            shown,
            {
                "owed_ms": owed,
                "noise_ms": [noise_ms(waits, noise, figure) for _, waits in values],
                "is_cut": [math.isinf(value) for value, _ in values],
                "verdicts": verdicts,
                "fails": "FAILS" in verdicts,
                "samples": [waits.details for _, waits in values],
            },
        )
    restarts = [float(waits.num_restarts) for waits in runs]
    yield Result(f"slow {name}: restarts", "restarts", restarts, {"fails": any(restarts)})


def row(name: str, waits: Waits, kind: Kind | None, noise: Waits | None) -> str:
    """Return one line of the table."""
    cells = []
    for figure in FIGURES:
        value = waits.of(figure)
        if value is None:
            cells.append("-")
        elif kind is None or noise is None:
            cells.append(f"{value:.0f}")
        else:
            owed = owed_ms(kind, figure)
            shown = f"> {kind.limit_s:.0f} s" if math.isinf(value) else f"{value:.0f}"
            cells.append(f"{shown} ({owed:.0f}) {verdict(value, owed, noise_ms(waits, noise, figure))}")
    return (
        f"{name:16}{''.join(f'{cell:>26}' for cell in cells)}  {waits.num_restarts:8}   threads woke "
        f"{waits.wake_up:.0f} ms late"
    )


# ---------------------------------------------------------------- measuring


class Clusters:
    """Starts one cluster after another: a job that was cut off may hold its TaskManager's slot for long."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._cluster: Cluster | None = None
        self.folder = Path()

    def __enter__(self) -> "Clusters":
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def drop(self) -> None:
        """End the cluster; the next job gets a fresh one."""
        self._cluster = None
        self._stack.close()

    def get(self) -> Cluster:
        """Return the cluster that runs."""
        if self._cluster is None:
            self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="flowlet-bench-")))
            self._cluster = self._stack.enter_context(Cluster(self.folder, num_task_managers=1, slots=2, pins=False))
        return self._cluster

    def target(self) -> RemoteTarget:
        """Return the address and secret of the cluster's JobManager."""
        host, _, port = self.get().address.rpartition(":")
        return RemoteTarget(host, int(port), self.get().secret_file)

    def collecting(self, kind: Kind, beats: Beats) -> CloseableIterator:
        """Start a job of this kind; gives its results."""
        target = self.target()

        def submit(graph: StreamGraph, *_: object) -> SubmittedJob:
            job_graph = translate(graph)
            return SubmittedJob(execute(job_graph, target), tuple(edge.id for edge in job_graph.external_edges()))

        environment = StreamExecutionEnvironment(submit=submit).set_parallelism(1)
        settings = {
            "execution.checkpointing.savepoint-dir": str(self.folder / "savepoints"),
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "3",
            "restart-strategy.fixed-delay.delay": "100 ms",
        }
        if kind.has_full_input:
            settings["execution.checkpointing.interval"] = f"{CHECKPOINT_INTERVAL_MS} ms"
            settings["execution.checkpointing.unaligned.enabled"] = "true"
        environment.configure(Configuration.from_dict(settings))
        results = kind.build(environment, beats).execute_and_collect(f"slow {kind.name}")
        assert isinstance(results, CloseableIterator), "no limit was given"
        return results


def measured(clusters: Clusters, kind: Kind, *, is_quick: bool) -> Waits:
    """Run one job of this kind, from its start to its cancellation."""
    clusters.get()
    with Beats.made(clusters.folder / f"beats-{time.monotonic_ns()}") as beats, woken_late() as late:
        results = clusters.collecting(kind, beats)
        waits = Waits()
        try:
            # The iterator closes its own connection when its results break off, which is not yet the end of the job.
            with closing(clusters.target().open(0)) as client:
                job = WatchedJob(client, str(results.job_client.get_job_id()))
                measure(results, job, kind, beats, waits, is_quick=is_quick)
        finally:
            if waits.is_cut or waits.num_restarts:
                clusters.drop()
            with suppress(FlowletError):
                results.close()
    waits.wake_up = late[0]
    return waits


def measure(
    results: CloseableIterator, job: "WatchedJob", kind: Kind, beats: Beats, waits: Waits, *, is_quick: bool
) -> None:
    """Watch the results, then trigger savepoints, then cancel."""
    received = Received()
    reader = threading.Thread(target=received.read, args=(results,), name="slow results", daemon=True)
    reader.start()
    has_begun = wait_until(lambda: beats.has_begun, LIMIT_S)
    if not has_begun:
        raise FlowletError(f"{kind.name}: the function was not called within {LIMIT_S:g} s")
    begun = time.monotonic()
    time.sleep(QUICK_RESULTS_S if is_quick else RESULTS_S)
    barriers: list[float] = []
    for _ in range(QUICK_BARRIERS if is_quick else NUM_BARRIERS):
        barriers.append(overtaking_ms(job, kind.limit_s) if kind.has_full_input else barrier_ms(job, kind.limit_s))
        if math.isinf(barriers[-1]):
            break
    waits.barrier = max(barriers)
    time.sleep(max(0.0, begun + kind.settle_s - time.monotonic()))
    waits.num_restarts = job.num_restarts()
    if kind.has_results:
        waits.result = result_ms(received, beats, kind.limit_s)
    waits.end, waits.last_call = cancel_ms(job, beats, kind.limit_s)
    waits.details = {
        "barriers_ms": [min(each, kind.limit_s * 1000) for each in barriers],
        "num_results": received.number,
    }
    reader.join(0.0 if waits.is_cut else LIMIT_S)


def barrier_ms(job: "WatchedJob", limit_s: float) -> float:
    """Measure from the trigger of a savepoint until one is complete; one that fails, such as before all tasks run, is
    tried again.
    """
    start = time.monotonic()
    while (left_s := start + limit_s - time.monotonic()) > 0 and not job.has_ended():
        with suppress(FlowletError):  # it was refused, or has failed
            savepoint = job.savepoint()
            if not wait_until(savepoint.done, left_s):
                break
            savepoint.result()
            return 1000 * (time.monotonic() - start)
        time.sleep(0.02)
    return math.inf


def overtaking_ms(job: "WatchedJob", limit_s: float) -> float:
    """Return the duration of the next unaligned checkpoint, from its trigger to the last acknowledgement."""
    last_id = max((each["id"] for each in job.checkpoints()), default=0)
    found: list[float] = []

    def is_complete() -> bool:
        newer = [each for each in job.checkpoints() if each["id"] > last_id and each["status"] == "COMPLETED"]
        found.extend(float(each["end_to_end_duration"]) for each in newer)
        return bool(found)

    return found[-1] if wait_until(is_complete, limit_s) else math.inf


def result_ms(received: "Received", beats: Beats, limit_s: float) -> float:
    """Return the longest way of a result, in ms; wait for the oldest one that is late.  Infinity: above ``limit_s``."""
    oldest_ns = beats.emitted_at(received.number)
    waiting_ns = time.monotonic_ns() - oldest_ns if oldest_ns else 0
    if waiting_ns > 1e6 * BUFFER_TIMEOUT_MS:  # it is late: wait for it, to see how late
        number, deadline_ns = received.number, oldest_ns + int(limit_s * 1e9)
        if not wait_until(lambda: received.number > number, max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)):
            return math.inf
    longest = received.longest_ns / 1e6
    return math.inf if longest > limit_s * 1000 else longest


def cancel_ms(job: "WatchedJob", beats: Beats, limit_s: float) -> tuple[float, float]:
    """Measure from ``cancel()`` to the end of the job, and to the start of the last call of the function."""
    start_ns = time.monotonic_ns()
    job.cancel()
    has_ended = wait_until(job.has_ended, limit_s)
    end_ns = time.monotonic_ns()
    last_call = max(0.0, (beats.last_call_ns - start_ns) / 1e6)
    if not has_ended:
        is_called = beats.last_call_ns > end_ns - 1_000_000_000  # calls go on
        return math.inf, math.inf if is_called else last_call
    return (end_ns - start_ns) / 1e6, last_call


@dataclass(frozen=True)
class WatchedJob:
    """A job, through a connection of its own."""

    client: ClusterClient
    job_id: str

    def has_ended(self) -> bool:
        """Whether its state is a last one."""
        return JobStatus[self._document()["state"]].is_globally_terminal_state()

    def num_restarts(self) -> int:
        """Return how often the job has restarted."""
        number: int = self._document()["numRestarts"]
        return number

    def checkpoints(self) -> list[JobDocument]:
        """Return the last checkpoints, newest first."""
        history: list[JobDocument] = self.client.call(lambda api: api.checkpoints(self.job_id))["history"]
        return history

    def savepoint(self) -> "concurrent.futures.Future[str]":
        """Ask for one; its directory."""
        request_id = self.client.call(lambda api: api.trigger_savepoint(self.job_id, None))
        return self.client.begin(lambda api: api.wait_for_savepoint(self.job_id, request_id))

    def cancel(self) -> None:
        """Ask for its end."""
        self.client.call(lambda api: api.cancel(self.job_id))

    def _document(self) -> JobDocument:
        return self.client.call(lambda api: api.job(self.job_id))


class Received:
    """The results that came, read by a thread of its own."""

    def __init__(self) -> None:
        self.number = 0  # Written by the reading thread, like ``longest_ns``.
        self.longest_ns = 0

    def read(self, results: CloseableIterator) -> None:
        """Read to the end of the job."""
        with suppress(FlowletError):  # the job was cancelled
            for emitted_ns in results:
                self.longest_ns = max(self.longest_ns, time.monotonic_ns() - emitted_ns)
                self.number += 1


def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Look every few milliseconds; False: it did not become true in time."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


@contextmanager
def woken_late() -> Iterator[list[float]]:
    """Measure how late a thread wakes at worst, in ms, that always sleeps for a millisecond; known at the end of the
    block.
    """
    late, is_over = [0.0], threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            start = time.monotonic()
            time.sleep(0.001)
            late[0] = max(late[0], 1000 * (time.monotonic() - start) - 1.0)

    thread = threading.Thread(target=watch, name="woken late", daemon=True)
    thread.start()
    try:
        yield late
    finally:
        is_over.set()
        thread.join()

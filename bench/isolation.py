"""Two channels on one TCP connection: does a consumer that stalls slow the other one down?

Side:  any; the classes below run inside the TaskManagers.
Job:   source 1 -> consumer 1, source 2 -> consumer 2; both sources in one TaskManager, both consumers in the other, so
       that one TCP connection carries both channels.  ``beside``: consumer 1 blocks in a system call (it reads a FIFO)
       for the whole window; ``alone``: source 1 and consumer 1 are not there.
Proof: consumer 2 looks at every record: none is lost, doubled or out of order.
Unit:  records/s of consumer 2 beside the stalled one, in percent of its rate alone; memory growth of both TaskManagers
       in the details.
"""

import os
import select
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from bench.cluster import Cluster
from bench.jobs.checked import WrongOutputError
from bench.jobs.pipeline import into_operator, running
from bench.report import ProcessUse, Result
from flowlet.chain.stream_operator import StreamOperator
from flowlet.common import WatermarkStrategy
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.datastream.connectors import Source
from flowlet.operators.source_reader import SourceReader
from flowlet.records import Chunk

RECORDS_PER_CHUNK = 1000
WARM_UP_S = 1.0
START_TIMEOUT_S = 30.0
WINDOW_S = 10.0


def endless_records() -> list[str]:
    """Return the records that are given again and again."""
    return [f"record {number:06d} of an endless stream" for number in range(RECORDS_PER_CHUNK)]


class EndlessReader:
    """Gives a thousand strings again and again."""

    def __init__(self) -> None:
        self._values = endless_records()

    def poll_chunk(self) -> Chunk | None:
        """Return the next thousand records; there is always one."""
        return Chunk(self._values.copy())  # the consumer owns the list

    def close(self) -> None:
        """Do nothing: the reader holds no resource."""


class EndlessSource(Source):
    """A source without an end."""

    is_bounded = False

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        """Return one reader per subtask."""
        return EndlessReader()


class StallingConsumer(StreamOperator):
    """Blocks in the operating system at its first chunk until ``release`` is written to; says so through
    ``stalled``.
    """

    takes_chunks = True

    def __init__(self, stalled: Path, release: Path) -> None:
        self.name = "stalled consumer"
        self._stalled, self._release = stalled, release
        self._has_stalled = False

    def process_chunk(self, chunk: Chunk) -> None:
        """Stall once."""
        if not self._has_stalled:
            self._has_stalled = True
            self._stalled.write_bytes(b"stalled\n")
            self._release.read_bytes()


class CountingConsumer(StreamOperator):
    """Checks and counts records, and appends ``monotonic_ns count`` to a file about twenty times per second."""

    takes_chunks = True

    def __init__(self, progress: Path) -> None:
        self.name = "counting consumer"
        self._progress = progress
        self._count = 0
        self._next_report_ns = 0
        self._expected = endless_records()

    def process_chunk(self, chunk: Chunk) -> None:
        """Check and count a chunk.

        Raises:
            WrongOutputError: it does not go on where the last one ended; the job fails.
        """
        at, values = self._count % RECORDS_PER_CHUNK, chunk.values
        expected = (self._expected * (2 + len(values) // RECORDS_PER_CHUNK))[at : at + len(values)]
        if values != expected:
            raise WrongOutputError(f"record {self._count} and those behind it are not those that were sent")
        self._count += len(values)
        now = time.monotonic_ns()
        if now >= self._next_report_ns:
            self._next_report_ns = now + 50_000_000
            with self._progress.open("a", encoding="ascii") as out:
                out.write(f"{now} {self._count}\n")


@dataclass(frozen=True)
class Sample:
    """The measurements of one window."""

    records_per_s: float
    rss_growth_bytes: tuple[int, ...]  # per TaskManager


def add_pair(environment: StreamExecutionEnvironment, number: int, make_consumer: Callable[[], StreamOperator]) -> None:
    """Add a source and a consumer: tasks of their own in slots of their own."""
    records = environment.from_source(EndlessSource(), WatermarkStrategy.no_watermarks(), f"source {number}")
    moved = records.slot_sharing_group(f"source {number}").rebalance()
    into_operator(moved, f"consumer {number}", make_consumer).slot_sharing_group(f"consumer {number}")


def counts(progress: Path) -> list[tuple[int, int]]:
    """Return the times and counts that the counting consumer wrote so far."""
    lines = progress.read_text(encoding="ascii").splitlines() if progress.exists() else []
    return [(int(when), int(count)) for when, count in (line.split() for line in lines if line.count(" ") == 1)]


def rate_between(samples: list[tuple[int, int]], start_ns: int, end_ns: int) -> float:
    """Return the records per second between two moments."""
    inside = [sample for sample in samples if start_ns <= sample[0] <= end_ns]
    if len(inside) < 2:
        raise WrongOutputError("nothing came in the window")
    (first_ns, first_count), (last_ns, last_count) = inside[0], inside[-1]
    return (last_count - first_count) / ((last_ns - first_ns) / 1e9)


def wait_for_fifo(fifo: int) -> None:
    """Wait until the FIFO was written to."""
    readable, _, _ = select.select([fifo], [], [], START_TIMEOUT_S)
    if not readable:
        raise TimeoutError("the stalling consumer was not reached in time")


def measure(folder: Path, *, is_beside_a_stalled_one: bool, window_s: float) -> Sample:
    """Return the rate of consumer 2 in a fresh cluster.

    Raises:
        JobExecutionError: a record is wrong.
        WrongOutputError: there were no records.
    """
    progress, stalled, release = folder / "progress", folder / "stalled", folder / "release"
    for fifo in (stalled, release):
        os.mkfifo(fifo)
    stalled_fd, release_fd = (os.open(fifo, os.O_RDWR | os.O_NONBLOCK) for fifo in (stalled, release))

    def build(environment: StreamExecutionEnvironment) -> None:
        if is_beside_a_stalled_one:
            add_pair(environment, 1, partial(StallingConsumer, stalled, release))
        add_pair(environment, 2, partial(CountingConsumer, progress))

    try:
        with Cluster(folder, slots=2) as cluster, running(cluster, build) as job:
            if is_beside_a_stalled_one:
                wait_for_fifo(stalled_fd)
            deadline = time.monotonic() + START_TIMEOUT_S
            while not counts(progress) and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(WARM_UP_S)
            before, start_ns = [ProcessUse.of(tm.pid).rss_bytes for tm in cluster.task_managers], time.monotonic_ns()
            time.sleep(window_s)
            end_ns, after = time.monotonic_ns(), [ProcessUse.of(tm.pid).rss_bytes for tm in cluster.task_managers]
            if job.status().is_globally_terminal_state():
                job.wait()  # raises the job's error
            os.close(release_fd)  # end of file: the stalled consumer goes on
            release_fd = -1
    finally:
        os.close(stalled_fd)
        if release_fd >= 0:
            os.close(release_fd)
    return Sample(
        rate_between(counts(progress), start_ns, end_ns),
        tuple(new - old for old, new in zip(before, after, strict=True)),
    )


def compare(folder: Path, window_s: float) -> tuple[list[Sample], Sample]:
    """Measure one window beside a stalled consumer, and one alone before and after it: the speed of a shared machine
    varies.
    """
    samples = []
    for name, is_beside in (("alone", False), ("beside", True), ("alone again", False)):
        (folder / name).mkdir()
        samples.append(measure(folder / name, is_beside_a_stalled_one=is_beside, window_s=window_s))
    before, beside, after = samples
    return [before, after], beside


def percent_of_alone(alone: list[Sample], beside: Sample) -> float:
    """Return the rate beside the stalled consumer, in percent of the mean rate alone."""
    return 100.0 * beside.records_per_s / statistics.mean(sample.records_per_s for sample in alone)


def run(num_runs: int) -> list[Result]:
    """Compare ``num_runs`` times."""
    percent, samples = [], []
    for _ in range(num_runs):
        with tempfile.TemporaryDirectory() as folder:
            alone, beside = compare(Path(folder), WINDOW_S)
        percent.append(percent_of_alone(alone, beside))
        samples.append({"alone": [asdict(sample) for sample in alone], "beside": asdict(beside)})
    return [Result("isolation", "percent of the rate alone", percent, {"window_s": WINDOW_S, "samples": samples})]

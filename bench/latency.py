"""How long a record takes from one TaskManager to the other: 1,000 records/s through the whole job path.

Side:       any; the classes below run inside the TaskManagers.
Job:        a source in one TaskManager, a sink in the other, one connection between them.  Each record is (number, monotonic ns at its
            creation); the sink subtracts.  The first records are not counted.  Both processes read the same clock of this machine.
Cases:      buffer timeouts of 0, 1, 10 and 100 ms, alone and beside a CPU-bound task (pure Python, it never waits) in the receiving
            TaskManager; with the neighbour and timeout 0 also with the task threads at nice +10 and at SCHED_IDLE
            (``--task-scheduling`` of the TaskManager), the latency modes.
Figures:    the value is the median latency in us; p99, p99.9 and max are in the details, and how much work the neighbour did.
Proof:      every record arrives once, in order; the source falls behind by less than the sink counts, or the figure says so (``late_ms``).
"""

import argparse
import json
import re
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.cluster import Cluster
from bench.isolation import running
from bench.report import Result
from bench.transport import orders
from flowlet.graph.job_graph import JobEdge, JobVertex, stable_id
from flowlet.graph.partitioner import Rebalance
from flowlet.operators.base import StreamOperator
from flowlet.operators.chain import ChainedOperator
from flowlet.operators.sinks import DiscardSink
from flowlet.operators.source import Source, SourceOperator, SourceReader
from flowlet.records import Chunk

RECORDS_PER_S: Final = 1000
SECONDS: Final = 12.0
WARM_UP_S: Final = 1.5
QUICK_SECONDS: Final = 0.3
END_TIMEOUT_S: Final = 60.0
UNITS_PER_POLL: Final = 200  # of the neighbour: about 1 ms between two looks at its mailbox


@dataclass(frozen=True)
class Setting:
    """One case."""

    buffer_timeout_ms: int
    has_neighbour: bool = False
    task_scheduling: str = "normal"

    @property
    def name(self) -> str:
        """For the result."""
        neighbour = " beside a CPU-bound task" if self.has_neighbour else ""
        mode = f", task threads {self.task_scheduling}" if self.task_scheduling != "normal" else ""
        return f"timeout {self.buffer_timeout_ms} ms{neighbour}{mode}"


TIMEOUTS_MS: Final = (0, 1, 10, 100)
SETTINGS: Final = (
    *(Setting(timeout_ms) for timeout_ms in TIMEOUTS_MS),
    *(Setting(timeout_ms, has_neighbour=True) for timeout_ms in TIMEOUTS_MS),
    Setting(0, has_neighbour=True, task_scheduling="nice"),
    Setting(0, has_neighbour=True, task_scheduling="idle"),
)
QUICK_SETTINGS: Final = (SETTINGS[0], SETTINGS[2], SETTINGS[-1])


class PacedReader:
    """One record per chunk, at its time; a reader that is late gives the next ones at once."""

    def __init__(self, num_records: int) -> None:
        self._num_records = num_records
        self._number = 0
        self._start_ns = 0

    def poll_chunk(self) -> Chunk | None:
        """Sleep until the next record is due."""
        number = self._number
        if number == self._num_records:
            return None
        if number == 0:
            self._start_ns = time.monotonic_ns()
        wait_ns = self._start_ns + number * 1_000_000_000 // RECORDS_PER_S - time.monotonic_ns()
        if wait_ns > 0:
            time.sleep(wait_ns / 1e9)
        self._number = number + 1
        return Chunk([(number, time.monotonic_ns())])

    def close(self) -> None:
        """Nothing to close."""


class PacedSource(Source):
    """``num_records`` records, ``RECORDS_PER_S`` of them per second."""

    def __init__(self, num_records: int) -> None:
        self._num_records = num_records

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        """The one reader."""
        assert parallelism == 1
        return PacedReader(self._num_records)


class LatencySink(StreamOperator):
    """Collects latencies; writes them into a file at the end."""

    def __init__(self, report: Path) -> None:
        self.name = "latency sink"
        self._report = report
        self._latencies_ns: list[int] = []
        self._sent_ns: list[int] = []

    def process_chunk(self, chunk: Chunk) -> None:
        """Look at the clock."""
        now_ns = time.monotonic_ns()
        for number, sent_ns in chunk.values:
            assert number == len(self._sent_ns), f"record {number} arrived as number {len(self._sent_ns)}"
            self._latencies_ns.append(now_ns - sent_ns)
            self._sent_ns.append(sent_ns)

    def finish(self) -> None:
        """All records arrived; the file appears whole or not at all."""
        late_ns = self._sent_ns[-1] - self._sent_ns[0] - (len(self._sent_ns) - 1) * 1_000_000_000 // RECORDS_PER_S
        partial = self._report.with_suffix(".part")
        partial.write_text(json.dumps({"latencies_ns": self._latencies_ns, "late_ms": late_ns / 1e6}), encoding="ascii")
        partial.rename(self._report)


class BusyReader:
    """Counts words in pure Python, without a pause and without an end; writes down how often, and in how many seconds."""

    def __init__(self, report: Path) -> None:
        self._report = report
        self._words = [f"word{number % 97}" for number in range(50)]
        self._num_units = 0
        self._start_ns = time.monotonic_ns()

    def poll_chunk(self) -> Chunk | None:
        """Some units of work, no records."""
        for _ in range(UNITS_PER_POLL):
            counts: dict[str, int] = {}
            for word in self._words:
                counts[word] = counts.get(word, 0) + 1
        self._num_units += UNITS_PER_POLL
        return Chunk([])

    def close(self) -> None:
        """The task was cancelled."""
        seconds = (time.monotonic_ns() - self._start_ns) / 1e9
        self._report.write_text(json.dumps({"units_per_s": self._num_units / seconds}), encoding="ascii")


class BusySource(Source):
    """A task that wants a core for itself."""

    is_bounded = False

    def __init__(self, report: Path) -> None:
        self._report = report

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        """One reader per subtask."""
        return BusyReader(self._report)


def build(folder: Path, setting: Setting, num_records: int) -> tuple[list[JobVertex], list[JobEdge]]:
    """Source and sink in slots of their own, and so in TaskManagers of their own; the neighbour shares the sink's slot."""
    source = vertex("source", "sender", SourceOperator(PacedSource(num_records)))
    sink = vertex("sink", "receiver", LatencySink(folder / "latencies"))
    edges = [JobEdge(source.id, 0, sink.id, Rebalance(), buffer_timeout_ms=setting.buffer_timeout_ms)]
    vertices = [source, sink]
    if setting.has_neighbour:
        vertices.append(vertex("neighbour", "receiver", SourceOperator(BusySource(folder / "neighbour")), DiscardSink()))
    return vertices, edges


def vertex(name: str, slot: str, *operators: StreamOperator) -> JobVertex:
    """One task."""
    chain = [ChainedOperator(operator, index - 1) for index, operator in enumerate(operators)]
    return JobVertex(id=stable_id(name), name=name, parallelism=1, chain=chain, slot_sharing_group=slot)


def measure(setting: Setting, seconds: float, warm_up_s: float) -> dict[str, Any]:
    """One job in a fresh cluster; latencies in us.

    Raises:
        TimeoutError: the sink did not see the end in time.
    """
    num_skipped, num_records = int(warm_up_s * RECORDS_PER_S), int((warm_up_s + seconds) * RECORDS_PER_S)
    with tempfile.TemporaryDirectory() as name:
        folder, options = Path(name), ["--task-scheduling", setting.task_scheduling]
        vertices, edges = build(folder, setting, num_records)
        with Cluster(folder, task_manager_options=options) as cluster, running(cluster, vertices, edges):
            wait_for_file(folder / "latencies", warm_up_s + seconds + END_TIMEOUT_S)
        report = json.loads((folder / "latencies").read_text(encoding="ascii"))
        neighbour = folder / "neighbour"
        units_per_s = json.loads(neighbour.read_text(encoding="ascii"))["units_per_s"] if neighbour.exists() else None
    assert len(report["latencies_ns"]) == num_records, "a record was lost"
    counted = sorted(report["latencies_ns"][num_skipped:])
    figures = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
    latencies = {f"{key}_us": percentile(counted, share) / 1000 for key, share in figures.items()}
    return {**latencies, "num_records": len(counted), "late_ms": report["late_ms"], "neighbour_units_per_s": units_per_s}


def percentile(ordered: Sequence[int], share: float) -> int:
    """The smallest value that at least ``share`` of all are not above."""
    return ordered[max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1)]


def wait_for_file(file: Path, timeout_s: float) -> None:
    """Looks seldom, so that it does not disturb."""
    deadline = time.monotonic() + timeout_s
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {file.name} within {timeout_s} s")
        time.sleep(0.1)


def parse_options(arguments: list[str]) -> dict[str, Any]:
    """The options of this case alone."""
    parser = argparse.ArgumentParser(prog="python -m bench latency", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="counted, per case and round")
    parser.add_argument("--only", default="", help="a regular expression that the names of the cases contain, such as 'timeout 0 ms$'")
    return vars(parser.parse_args(arguments))


def run(num_runs: int, *, quick: bool = False, seconds: float = SECONDS, only: str = "") -> list[Result]:
    """All cases ``num_runs`` times, in another order each time."""
    chosen = {setting.name: setting for setting in (QUICK_SETTINGS if quick else SETTINGS) if re.search(only, setting.name)}
    length, warm_up = (QUICK_SECONDS, QUICK_SECONDS) if quick else (seconds, WARM_UP_S)
    rounds = [{name: measure(chosen[name], length, warm_up) for name in order} for order in orders(list(chosen), num_runs)]
    results = []
    for name in chosen:
        samples = [samples_of_round[name] for samples_of_round in rounds]
        medians = {key: statistics.median(sample[key] for sample in samples) for key in ("p50_us", "p99_us", "p99.9_us", "max_us")}
        details = {"records_per_s": RECORDS_PER_S, "medians": medians, "samples": samples}
        results.append(Result(f"latency {name}", "us, p50", [sample["p50_us"] for sample in samples], details))
    return results

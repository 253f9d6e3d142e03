"""How long a record takes from one TaskManager to the other: 1,000 records/s through the whole job path.

Side:       any; the classes below run inside the TaskManagers.
Job:        a source in one TaskManager, a map in the other, one connection between them.  Each record is (number,
            monotonic ns at its creation); the map subtracts.  The first records are not counted.  Both processes read
            one clock, that of this machine.
Cases:      buffer timeouts of 0, 1, 10 and 100 ms, alone and beside CPU-bound tasks (pure Python, they never wait), one
            in each of the two TaskManagers; timeout 0 also in the latency mode of the TaskManager (``--latency-mode``),
            with the neighbours also with the task threads at nice +10 (``--task-scheduling``), and without them with
            cores that never halt (``--keep-awake``) and with light tasks on the loop (``--task-driver``), each alone,
            and with such tasks on a loop that polls (``--busy-poll-us``).
Figures:    p50 and p99 in us; p99.9 and max are in the details, and how much work the neighbours did.
Peers:      our job in Flink's Java API, the busy tasks written in Java; only with timeout 0.
Proof:      every record arrives once, in order; the source falls behind by less than the map counts, or the figure says
            so (``late_ms``).
"""

import argparse
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Container, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.cluster import Cluster
from bench.jobs.pipeline import running
from bench.load import ForeignLoad
from bench.peers import flink_cluster, flink_latency
from bench.percentiles import PERCENTILES, RECORDS_PER_S, Measure, evaluated
from bench.report import Result
from bench.rounds import tell
from bench.transport import orders
from flowlet.common import WatermarkStrategy
from flowlet.datastream import MapFunction, StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink, Source
from flowlet.operators.source_reader import SourceReader
from flowlet.records import Chunk
from flowlet.tm.latency.latency_policy import LATENCY_BUSY_POLL_US

SECONDS: Final = 12.0
WARM_UP_S: Final = 1.5
QUICK_SECONDS: Final = 0.3
END_TIMEOUT_S: Final = 60.0
UNITS_PER_POLL: Final = 200  # of the neighbour: about 1 ms between two looks at its mailbox


@dataclass(frozen=True)
class Setting:
    """One case."""

    buffer_timeout_ms: int
    has_neighbours: bool = False
    task_scheduling: str = "normal"
    is_kept_awake: bool = False
    is_driven_by_loop: bool = False
    is_polling: bool = False
    is_latency_mode: bool = False

    @property
    def name(self) -> str:
        """The name of the case in the result."""
        neighbour = " beside CPU-bound tasks" if self.has_neighbours else ""
        mode = f", task threads {self.task_scheduling}" if self.task_scheduling != "normal" else ""
        awake = ", cores kept awake" if self.is_kept_awake else ""
        driver = ", light tasks on the loop" if self.is_driven_by_loop else ""
        polling = ", loops that poll" if self.is_polling else ""
        latency = ", latency mode" if self.is_latency_mode else ""
        return f"timeout {self.buffer_timeout_ms} ms{neighbour}{mode}{awake}{driver}{polling}{latency}"

    @property
    def options(self) -> list[str]:
        """The options of the TaskManagers."""
        options = [
            "--task-scheduling",
            self.task_scheduling,
            "--task-driver",
            "loop" if self.is_driven_by_loop else "thread",
        ]
        options += ["--keep-awake"] if self.is_kept_awake else []
        options += ["--busy-poll-us", str(LATENCY_BUSY_POLL_US)] if self.is_polling else []
        return options + (["--latency-mode"] if self.is_latency_mode else [])


TIMEOUTS_MS: Final = (0, 1, 10, 100)
SETTINGS: Final = (
    *(Setting(timeout_ms) for timeout_ms in TIMEOUTS_MS),
    *(Setting(timeout_ms, has_neighbours=True) for timeout_ms in TIMEOUTS_MS),
    Setting(0, has_neighbours=True, task_scheduling="nice"),
    Setting(0, is_kept_awake=True),
    Setting(0, is_driven_by_loop=True),
    Setting(0, is_driven_by_loop=True, is_polling=True),
    Setting(0, is_latency_mode=True),
    Setting(0, has_neighbours=True, is_latency_mode=True),
)
QUICK_SETTINGS: Final = (SETTINGS[0], SETTINGS[2], SETTINGS[-1])


class PacedReader:
    """Gives one record per chunk, at its time; a reader that is late gives the next ones at once."""

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
        """Do nothing: the reader holds no resource."""


class PacedSource(Source):
    """``num_records`` records, ``RECORDS_PER_S`` of them per second."""

    def __init__(self, num_records: int) -> None:
        self._num_records = num_records

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        """Return the one reader."""
        assert parallelism == 1
        return PacedReader(self._num_records)


class Latencies(MapFunction):
    """Collects latencies; writes them into a file at the end.  Its own output is of no use."""

    def __init__(self, report: Path) -> None:
        self._report = report
        self._latencies_ns: list[int] = []
        self._sent_ns: list[int] = []

    def map(self, value: tuple[int, int]) -> None:
        """Look at the clock."""
        now_ns = time.monotonic_ns()
        number, sent_ns = value
        assert number == len(self._sent_ns), f"record {number} arrived as number {len(self._sent_ns)}"
        self._latencies_ns.append(now_ns - sent_ns)
        self._sent_ns.append(sent_ns)

    def close(self) -> None:
        """Write the file, whole or not at all: all records arrived."""
        late_ns = self._sent_ns[-1] - self._sent_ns[0] - (len(self._sent_ns) - 1) * 1_000_000_000 // RECORDS_PER_S
        partial = self._report.with_suffix(".part")
        partial.write_text(json.dumps({"latencies_ns": self._latencies_ns, "late_ms": late_ns / 1e6}), encoding="ascii")
        partial.rename(self._report)


class BusyReader:
    """Counts words in pure Python, without a pause and without an end; writes down how often, and
    in how many seconds.
    """

    def __init__(self, report: Path) -> None:
        self._report = report
        self._words = [f"word{number % 97}" for number in range(50)]
        self._num_units = 0
        self._start_ns = time.monotonic_ns()

    def poll_chunk(self) -> Chunk | None:
        """Work for some units; give no records."""
        for _ in range(UNITS_PER_POLL):
            counts: dict[str, int] = {}
            for word in self._words:
                counts[word] = counts.get(word, 0) + 1
        self._num_units += UNITS_PER_POLL
        return Chunk([])

    def close(self) -> None:
        """Write how much was done: the task was cancelled."""
        seconds = (time.monotonic_ns() - self._start_ns) / 1e9
        self._report.write_text(json.dumps({"units_per_s": self._num_units / seconds}), encoding="ascii")


class BusySource(Source):
    """A task that wants a core for itself."""

    is_bounded = False

    def __init__(self, report: Path) -> None:
        self._report = report

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        """Return one reader per subtask."""
        return BusyReader(self._report)


def build(environment: StreamExecutionEnvironment, folder: Path, setting: Setting, num_records: int) -> None:
    """Put source and sink into slots, and so TaskManagers, of their own; each slot has a neighbour, too."""
    environment.set_buffer_timeout(setting.buffer_timeout_ms)
    records = environment.from_source(PacedSource(num_records), WatermarkStrategy.no_watermarks(), "source")
    latencies = (
        records.slot_sharing_group("sender")
        .rebalance()
        .map(Latencies(folder / "latencies"))
        .slot_sharing_group("receiver")
    )
    latencies.sink_to(DiscardingSink())
    for slot in ("sender", "receiver") if setting.has_neighbours else ():
        source = BusySource(folder / f"neighbour-{slot}")
        busy = environment.from_source(source, WatermarkStrategy.no_watermarks(), f"neighbour of the {slot}")
        busy.slot_sharing_group(slot).sink_to(DiscardingSink())


def measure(setting: Setting, warm_up_s: float, seconds: float) -> dict[str, Any]:
    """Run one job in a fresh cluster; latencies in us.

    Raises:
        TimeoutError: the map did not see the end in time.
    """
    num_skipped, num_records = int(warm_up_s * RECORDS_PER_S), int((warm_up_s + seconds) * RECORDS_PER_S)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = partial(build, folder=folder, setting=setting, num_records=num_records)
        with Cluster(folder, task_manager_options=setting.options) as cluster, running(cluster, program):
            wait_for_file(folder / "latencies", warm_up_s + seconds + END_TIMEOUT_S)
        report = json.loads((folder / "latencies").read_text(encoding="ascii"))
        reports = [json.loads(file.read_text(encoding="ascii")) for file in sorted(folder.glob("neighbour-*"))]
    assert len(report["latencies_ns"]) == num_records, "a record was lost"
    assert len(reports) == 2 * setting.has_neighbours, "a neighbour did not run"
    units_per_s = [neighbour["units_per_s"] for neighbour in reports]
    return {
        **evaluated(report["latencies_ns"][num_skipped:]),
        "late_ms": report["late_ms"],
        "neighbour_units_per_s": units_per_s,
    }


def wait_for_file(file: Path, timeout_s: float) -> None:
    """Wait for the file; look seldom, to disturb little."""
    deadline = time.monotonic() + timeout_s
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {file.name} within {timeout_s} s")
        time.sleep(0.1)


def parse_options(arguments: list[str]) -> dict[str, Any]:
    """Return the options of this case alone."""
    parser = argparse.ArgumentParser(
        prog="python -m bench latency", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="counted, per case and round")
    parser.add_argument(
        "--only", default="", help="a regular expression that the names of the cases contain, such as 'timeout 0 ms$'"
    )
    return vars(parser.parse_args(arguments))


def run(
    num_runs: int, *, quick: bool = False, peers: frozenset[str] = frozenset(), seconds: float = SECONDS, only: str = ""
) -> list[Result]:
    """Measure all cases ``num_runs`` times, in another order each time."""
    warm_up_s, length_s = (QUICK_SECONDS, QUICK_SECONDS) if quick else (WARM_UP_S, seconds)
    chosen = [setting for setting in (QUICK_SETTINGS if quick else SETTINGS) if re.search(only, setting.name)]
    measures: dict[str, Measure] = {setting.name: partial(measure, setting, warm_up_s, length_s) for setting in chosen}
    with ExitStack() as stack:
        if {"flink", "all"} & peers:
            with_peer = {setting.has_neighbours for setting in chosen if setting.buffer_timeout_ms == 0}
            measures |= flink_latency.measures(stack, sorted(with_peer), warm_up_s, length_s)
        rounds = [
            {name: measured(name, measures[name]) for name in order} for order in orders(list(measures), num_runs)
        ]
    results = [figure(name, key, rounds) for name in measures for key in ("p50", "p99")]
    return results + [
        ratio(ours, theirs, key, rounds) for ours, theirs in compared(chosen, rounds[0]) for key in ("p50", "p99")
    ]


def measured(name: str, measure_it: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Measure one run, and the load of other programs meanwhile."""
    with ForeignLoad() as load:
        sample = measure_it()
    tell(
        f"latency {name}: p50 {sample['p50_us']:.0f} us, p99 {sample['p99_us']:.0f} us, {load.cores:.2f} cores used by "
        "others"
    )
    return sample | {"foreign_cores": load.cores}


def figure(name: str, key: str, rounds: Sequence[dict[str, dict[str, Any]]]) -> Result:
    """Return one percentile of one case."""
    samples = [samples_of_round[name] for samples_of_round in rounds]
    medians = {f"{each}_us": statistics.median(sample[f"{each}_us"] for sample in samples) for each in PERCENTILES}
    details = {"records_per_s": RECORDS_PER_S, "medians": medians, "samples": samples}
    foreign = [sample["foreign_cores"] for sample in samples]
    values, is_peer = [sample[f"{key}_us"] for sample in samples], name in flink_latency.NAMES
    return Result(f"latency {name}, {key}", "us", values, details, foreign, versions=versions_of(name), is_peer=is_peer)


def versions_of(name: str) -> dict[str, str]:
    """Return the versions of the peer, if ``name`` is one."""
    return flink_cluster.versions() if name in flink_latency.NAMES else {}


def compared(settings: Sequence[Setting], names: Container[str]) -> list[tuple[str, str]]:
    """Return the pairs of a case of ours and the peer's case that it is compared with."""
    at_once = [setting for setting in settings if not setting.buffer_timeout_ms]
    pairs = [(setting.name, flink_latency.name_of(has_neighbours=setting.has_neighbours)) for setting in at_once]
    return [(ours, theirs) for ours, theirs in pairs if theirs in names]


def ratio(ours: str, theirs: str, key: str, rounds: Sequence[dict[str, dict[str, Any]]]) -> Result:
    """Return the ratio of ours to theirs; less than 1: ours is quicker."""
    ratios = [samples[ours][f"{key}_us"] / samples[theirs][f"{key}_us"] for samples in rounds]
    foreign = [max(samples[ours]["foreign_cores"], samples[theirs]["foreign_cores"]) for samples in rounds]
    return Result(f"latency {ours} / {theirs}, {key}", "x", ratios, {}, foreign, versions=versions_of(theirs))

"""Whether time grows as the work does: 5,000, 10,000 and 20,000 splits, partitions, channels, timers of keys, metrics
and jobs.

Side:   any.
Way:    each case does its work with each size at least three times, the sizes in turns, and the lowest CPU time of this
        process counts.  A case whose time grows by more than 2.3 when the work doubles is quadratic somewhere, and the
        bench fails.  A neighbour that takes the machine's caches looks alike, but not for long: at most ten times as
        many rounds decide.
Memory: the collector of cycles is set as in a TaskManager with tasks; with Python's own settings it looks at living
        objects ever more often.  Each case has a process of its own.  Cases without a network give no memory back:
        memory that is given back and taken again costs page faults, whose number depends on the size by steps.
Figure: CPU us per item with the largest size, and the growth of the time per doubling.
Hold:   ``--hold-minutes 10`` repeats each case with its smallest size for ten minutes, as many cases at a time as
        there are cores, each in its own process.  The figure is how many MiB the process has more at the end than
        after a tenth of the time; above 10 the bench fails.
Jobs:   a job takes milliseconds, so there are 50 times fewer of them.
Proof:  each case checks its result.
"""

import argparse
import gc
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

from bench.options import choices
from bench.report import ProcessUse, Result
from bench.rounds import tell
from flowlet.checkpoint.task.barrier_orders import BarrierReceived, ChannelFinished
from flowlet.checkpoint.task.single_checkpoint_barrier_handler import SingleCheckpointBarrierHandler
from flowlet.common import Types, WatermarkStrategy
from flowlet.connectors.kafka.split import KafkaBrokers, KafkaSplitEnumerator
from flowlet.datastream import KeyedProcessFunction, MapFunction, RuntimeContext, StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink, SplitSource
from flowlet.metrics.metricbase import MAX_METRICS, MetricRegistry
from flowlet.operators.event_time_stream import WatermarkEmitter
from flowlet.operators.source_event_time import SourceAlignment
from flowlet.records import MAX_TIMESTAMP, Watermark
from flowlet.splits.split_kinds import KafkaTopics, OffsetKind, OffsetRule
from flowlet.testing import KeyedOneInputOperatorHarness, MiniCluster
from flowlet.tm.process.process_model import GarbageCollectorTuning
from flowlet.watermarks.combined_watermarks import StatusWatermarkValve, WatermarkMultiplexer
from netstack import (
    ChannelSpec,
    ExecutionAttemptID,
    IntermediateResultPartitionID,
    NetstackConfig,
    ResultPartitionID,
    SecurityConfig,
    StandaloneNetwork,
    wait_consumed,
)
from netstack.wire.events import CheckpointBarrier

SIZES: Final = (5_000, 10_000, 20_000)
QUICK_SIZES: Final = (50, 100, 200)
NUM_RUNS: Final = 3
MIN_CPU_S: Final = 3.0
MAX_RUNS: Final = 20
MAX_MORE: Final = 10
MAX_GROWTH: Final = 2.3  # of the time, when the work doubles
MAX_GROWN_MIB: Final = 10.0
NETWORKED: Final = {"channels", "jobs"}
KEEPS_MEMORY: Final = {
    "PYTHONMALLOC": "malloc",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 25),
}
SETTLED_SHARE: Final = 0.1
_NUM_READERS: Final = 8
_TIMEOUT_S: Final = 600.0
_MIB: Final = 1024 * 1024
_EARLIEST: Final = OffsetRule(OffsetKind.EARLIEST)
_marks: Final[list[float]] = []  # CPU seconds at the records of the job that runs in this process


class WrongResultError(Exception):
    """A case did not do its work."""


def check(found: object, expected: object) -> None:
    """Compare.  Raises WrongResultError: they differ."""
    if found != expected:
        raise WrongResultError(f"found {found!r}, not {expected!r}")


# ---------------------------------------------------------------- splits


class OneRecordSplits(SplitSource):
    """A source with ``num_splits`` splits of one record each."""

    def __init__(self, num_splits: int, max_open_splits: int | None) -> None:
        self.max_open_splits = max_open_splits
        self._num_splits = num_splits

    def create_splits(self, parallelism: int) -> Mapping[str, int]:
        """Return one number per split."""
        return {f"split {number}": number for number in range(self._num_splits)}

    def read_split(self, split: int, num_read: int) -> Iterator[int]:
        """Return the split's number, unless it was read."""
        return iter([split][num_read:])


class Mark(MapFunction):
    """Writes down when a record came; the job runs in this process."""

    def map(self, value: int) -> int:
        """Look at the CPU clock."""
        _marks.append(time.process_time())
        return value


def splits(num_items: int, max_open_splits: int | None) -> float:
    """Return the CPU seconds from the first record to the last one of a job that reads many splits."""
    _marks.clear()
    environment = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    source = OneRecordSplits(num_items, max_open_splits)
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    environment.from_source(source, strategy, "splits", Types.LONG()).map(Mark(), Types.LONG()).sink_to(
        DiscardingSink()
    )
    environment.execute()
    check(len(_marks), num_items)
    return _marks[-1] - _marks[0]


def alignment(num_items: int) -> float:
    """Return the CPU seconds of ten watermark intervals of a source whose splits are aligned, and of their ends."""
    emitter = WatermarkEmitter(cast(Any, None))  # never flushed
    aligned, parts = SourceAlignment(emitter), WatermarkMultiplexer(_NoOutput())
    names = [f"topic-{number}" for number in range(num_items)]
    start = time.process_time()
    outputs = [parts.add(name) for name in names]
    aligned.allow(10_000)
    for timestamp in range(1_000, 11_000, 1_000):
        parts.defer()
        for output in outputs:
            output.emit_watermark(timestamp)
        parts.update()
        aligned.split_orders(parts.watermarks())
    for name in names:
        parts.remove(name)
    check(len(parts.watermarks()), 0)
    return time.process_time() - start


class _NoOutput:
    """Takes combined watermarks."""

    def emit_watermark(self, timestamp: int) -> None:
        """Ignore it."""

    def mark_idle(self) -> None:
        """Ignore it."""

    def mark_active(self) -> None:
        """Ignore it."""


# ---------------------------------------------------------------- partitions


class _Brokers(KafkaBrokers):
    """Brokers with one topic, whose answers take no time."""

    def __init__(self, num_partitions: int) -> None:
        self._num_partitions = num_partitions

    def partitions(self, topics: KafkaTopics) -> list[tuple[str, int]]:
        """Return all partitions, made anew as from an answer of brokers."""
        return [("topic", number) for number in range(self._num_partitions)]

    def edges(self, partitions: Sequence[tuple[str, int]], kind: OffsetKind) -> dict[tuple[str, int], int]:
        """Return 0 for each partition."""
        return dict.fromkeys(partitions, 0)

    def at_time(self, partitions: Sequence[tuple[str, int]], timestamp_ms: int) -> dict[tuple[str, int], int]:
        """Return 0 for each partition."""
        return dict.fromkeys(partitions, 0)

    def committed(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """Say that none is known."""
        return {}

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def partitions(num_items: int) -> float:
    """Return the CPU seconds of discovering, assigning, writing and searching again."""
    brokers = _Brokers(num_items)
    enumerator = KafkaSplitEnumerator(
        KafkaTopics({"bootstrap.servers": "a:1"}, _EARLIEST, topics=("topic",)), lambda _: brokers
    )
    start = time.process_time()
    enumerator.discover(_NUM_READERS)
    check(sum(len(enumerator.next_splits(reader)) for reader in range(_NUM_READERS)), num_items)
    enumerator.restore(enumerator.snapshot(), _NUM_READERS)
    for _ in range(10):
        enumerator.add_found(enumerator.find_new())
    return time.process_time() - start


# ---------------------------------------------------------------- channels


def channels(num_items: int) -> float:
    """Return the CPU seconds of a partition and a gate with many channels over TCP: open, a buffer through each,
    finish, close.
    """
    memory = 16 * 4096 * num_items
    config = NetstackConfig(
        network_memory_bytes=memory,
        segment_size_bytes=4096,
        max_readers=num_items,
        security=SecurityConfig.hmac(bytes(32)),
    )
    start = time.process_time()
    with StandaloneNetwork(config, "producer") as producer, StandaloneNetwork(config, "consumer") as consumer:
        address = producer.serve()
        partition_id = ResultPartitionID(IntermediateResultPartitionID(bytes(20)), ExecutionAttemptID(bytes(40)))
        partition = producer.create_partition(partition_id, num_items)
        try:
            gate = consumer.open_gate([ChannelSpec(partition_id, number, address, 1) for number in range(num_items)])
            for number in range(num_items):
                partition.emit_record(b"record", number)
            partition.finish()
            num_buffers = 0
            while (found := gate.get_next(_TIMEOUT_S)) is not None:
                if found.buffer is not None:
                    num_buffers += 1
                    found.buffer.recycle()
            gate.close()
            check(num_buffers, num_items)
        finally:
            partition.close()
        if not wait_consumed(partition, _TIMEOUT_S):
            raise WrongResultError(f"{partition!r} was not released")
    return time.process_time() - start


def valve(num_items: int) -> float:
    """Return the CPU seconds of the watermarks and barriers of a task with many channels, three rounds of
    each, and of the ends.
    """
    watermarks, barriers = StatusWatermarkValve(num_items), SingleCheckpointBarrierHandler(num_items)
    channel_ids = [(0, number) for number in range(num_items)]
    num_out = 0
    start = time.process_time()
    for step in range(1, 4):
        for number in range(num_items):
            num_out += len(watermarks.input_watermark(number, Watermark(step * 1_000 + number % 7)))
        barrier = CheckpointBarrier(step, step)
        for channel in channel_ids:
            barriers.handle(BarrierReceived(channel, barrier), step)
    for number, channel in enumerate(channel_ids):
        num_out += len(watermarks.input_watermark(number, Watermark(MAX_TIMESTAMP)))
        barriers.handle(ChannelFinished(channel), 10)
    check((barriers.is_checkpoint_pending, num_out > 0), (False, True))
    return time.process_time() - start


# ---------------------------------------------------------------- keys, metrics, jobs


class TimersOfKeys(KeyedProcessFunction):
    """Sets two timers per key; the second record deletes the first of them."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Count."""
        self.num_fired = 0

    def process_element(self, value: tuple[int, int], ctx: KeyedProcessFunction.Context) -> None:
        """Register, or delete."""
        key, step = value
        service = ctx.timer_service()
        if step:
            service.delete_event_time_timer(key + 1)
        else:
            service.register_event_time_timer(key + 1)
            service.register_event_time_timer(key + 1_000_000)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[int]:
        """Say so."""
        yield timestamp


def timers(num_items: int) -> float:
    """Return the CPU seconds of the timers of many keys: registered, half of them deleted, half of them fired."""
    with KeyedOneInputOperatorHarness(TimersOfKeys(), lambda value: value[0], checks_leaks=False) as harness:
        start = time.process_time()
        for step in range(2):
            for key in range(num_items):
                harness.process_element((key, step))
        harness.process_watermark(MAX_TIMESTAMP)
        check(len(harness.values), num_items)
        return time.process_time() - start


def metrics(num_items: int) -> float:
    """Return the CPU seconds of counters whose names are made of values of records, ten times as many as items."""
    registry = MetricRegistry()
    group = registry.group
    start = time.process_time()
    for number in range(10 * num_items):
        group.counter(f"user {number}").inc()
    check(len(registry.values()), min(MAX_METRICS, 10 * num_items))
    return time.process_time() - start


def jobs(num_items: int) -> float:
    """Return the CPU seconds of jobs that run one after the other on one cluster, which remembers them."""
    with MiniCluster(num_task_managers=1) as cluster:
        start = time.process_time()
        for _ in range(max(1, num_items // 50)):
            environment = cluster.environment()
            environment.from_collection([1, 2, 3], Types.LONG()).sink_to(DiscardingSink())
            environment.execute()
        return time.process_time() - start


# How many items -> CPU seconds.
CASES: Final[dict[str, Callable[[int], float]]] = {
    "splits-one-by-one": partial(splits, max_open_splits=1),
    "splits-all-open": partial(splits, max_open_splits=None),
    "alignment": alignment,
    "partitions": partitions,
    "channels": channels,
    "valve": valve,
    "timers": timers,
    "metrics": metrics,
    "jobs": jobs,
}


def parse_options(arguments: list[str]) -> dict[str, Any]:
    """Return the options of this case alone."""
    parser = argparse.ArgumentParser(
        prog="python -m bench scale", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", type=choices(CASES), default=tuple(CASES), help="which, separated by commas")
    parser.add_argument(
        "--hold-minutes", type=float, default=0.0, help="repeat for so long and look at the memory, instead of the time"
    )
    return vars(parser.parse_args(arguments))


def run(
    num_runs: int, *, quick: bool = False, only: Sequence[str] = tuple(CASES), hold_minutes: float = 0.0
) -> list[Result]:
    """Grow each case, or hold it.

    Raises:
        SystemExit: a case grows faster than its work, or holds more and more memory.
    """
    if hold_minutes:
        results = held(only, hold_minutes)
        bad = [result.name for result in results if max(result.runs) > MAX_GROWN_MIB]
    else:
        sizes = QUICK_SIZES if quick else SIZES
        results = [result for name in only for result in grown(name, sizes, num_runs)]
        bad = [result.name for result in results if result.unit == "x" and max(result.runs) > MAX_GROWTH and not quick]
    if bad:
        for result in results:
            tell(result.to_json())
        sys.exit(f"above the limit: {', '.join(bad)}")
    return results


def lowest(works: Sequence[Callable[[], float]], num_runs: int) -> Iterator[list[float]]:
    """Yield the least CPU seconds of each work until now, after each round; a round does all works.

    The first figures come after ``num_runs`` rounds; for short works later, when each has spent ``MIN_CPU_S`` or
    ``MAX_RUNS`` are done.
    """
    spent: list[list[float]] = [[] for _ in works]
    while True:
        for work, times in zip(works, spent, strict=True):
            times.append(work())
        num_rounds = len(spent[0])
        if num_rounds >= num_runs and (
            min(map(sum, spent)) >= MIN_CPU_S or num_rounds >= MAX_RUNS * num_runs / NUM_RUNS
        ):
            yield [min(times) for times in spent]


def growth_of(seconds: Sequence[float]) -> list[float]:
    """Return each time divided by the previous one."""
    return [after / max(before, 1e-9) for before, after in itertools.pairwise(seconds)]


def grown(name: str, sizes: Sequence[int], num_runs: int) -> list[Result]:
    """Return the time per item and the growth of one case."""
    seconds = in_child(
        "grow", name, json.dumps(sizes), str(num_runs), environ=os.environ | ({} if name in NETWORKED else KEEPS_MEMORY)
    )
    per_item = [spent / size * 1e6 for spent, size in zip(seconds, sizes, strict=True)]
    growth = growth_of(seconds)
    times = ", ".join(f"{each:.2f}" for each in per_item)
    tell(f"scale {name}: {times} us per item, {', '.join(f'{each:.2f}' for each in growth)} x per doubling")
    details = {"sizes": list(sizes), "seconds": seconds}
    return [
        Result(f"scale {name}, per item", "CPU us", [per_item[-1]], details),
        Result(f"scale {name}, growth per doubling", "x", growth, details),
    ]


def grow(name: str, sizes: str, num_runs: str) -> list[float]:
    """Return the CPU seconds of a case in this process with each size."""
    work = CASES[name]
    numbers = json.loads(sizes)
    work(numbers[0])  # imports modules, fills caches
    tuning = GarbageCollectorTuning()
    tuning.freeze()
    try:
        rounds = lowest([partial(work, size) for size in numbers], int(num_runs))
        seconds = next(rounds)
        for _ in range(MAX_MORE * int(num_runs) if numbers[0] >= SIZES[0] else 0):
            if max(growth_of(seconds)) <= MAX_GROWTH:
                break
            seconds = next(rounds)
    finally:
        tuning.thaw()
    return seconds


def in_child(*arguments: str, environ: Mapping[str, str], timeout_s: float = 6 * _TIMEOUT_S) -> Any:
    """Return the result of a function of this module in a process of its own, which is killed when it takes too
    long.
    """
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", "bench.scale", *arguments]
    done = subprocess.run(
        command, cwd=root, env=environ, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=timeout_s, check=False
    )
    if done.returncode:
        raise WrongResultError(f"scale {' '.join(arguments)} ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


# ---------------------------------------------------------------- memory


def held(names: Sequence[str], minutes: float) -> list[Result]:
    """Return how much more memory each case's process has at the end than after a tenth of the time.

    Raises:
        WrongResultError: a case ended without a figure; cases that have not begun do not begin, and running ones end
            first.
    """
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        return list(pool.map(partial(held_alone, minutes=minutes), names))
    finally:
        pool.shutdown(cancel_futures=True)


def held_alone(name: str, minutes: float) -> Result:
    """Hold one case in a process of its own."""
    document = in_child("hold", name, str(minutes * 60), environ=os.environ, timeout_s=minutes * 60 + _TIMEOUT_S)
    tell(
        f"scale {name}: {document['grown_mib']:+.1f} MiB of {document['mib']:.0f} after {document['num_rounds']} rounds"
    )
    return Result(f"scale {name}, held", "MiB", [document["grown_mib"]], document)


def hold(name: str, seconds_text: str) -> dict[str, Any]:
    """Repeat a case in this process."""
    seconds = float(seconds_text)
    start, num_rounds, settled = time.monotonic(), 0, 0
    while (spent := time.monotonic() - start) < seconds or num_rounds < 2:
        CASES[name](SIZES[0])
        num_rounds += 1
        if not settled and spent >= seconds * SETTLED_SHARE:
            settled = resident_bytes()
    return {"grown_mib": (resident_bytes() - settled) / _MIB, "mib": resident_bytes() / _MIB, "num_rounds": num_rounds}


def resident_bytes() -> int:
    """Return the memory of this process, without garbage."""
    gc.collect()
    return ProcessUse.of(os.getpid()).rss_bytes


if __name__ == "__main__":
    # Imported by its name: the tasks of jobs would get copies of the classes and lists of a main program.
    from bench import scale

    print(json.dumps(scale.grow(*sys.argv[2:]) if sys.argv[1] == "grow" else scale.hold(*sys.argv[2:])))

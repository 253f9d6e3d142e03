"""A job with checkpoints loses TaskManagers by ``kill -9``; its client, or its files, have each result exactly once."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlet.common import WatermarkStrategy
from flowlet.common.time import Time
from flowlet.common.typeinfo import Types
from flowlet.common.watermark_strategy import TimestampAssigner
from flowlet.datastream import (
    BroadcastProcessFunction,
    CheckpointedFunction,
    DataStream,
    EmbeddedRocksDBStateBackend,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedProcessFunction,
    KeyedStream,
    MapFunction,
    ProcessJoinFunction,
    RuntimeContext,
    SourceContext,
    SourceFunction,
    StreamExecutionEnvironment,
)
from flowlet.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from flowlet.datastream.window import TumblingEventTimeWindows
from tests.flowlet.connectors.files.file_formats import FORMATS, Format, fingerprint
from tests.integration.jobs import (
    PACE_S,
    PAIR,
    RESTARTING,
    CountInState,
    collected,
    environment,
    paced_pairs,
    running_counts,
    task_managers,
)
from tests.waiting import PATIENCE_S, spin_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_servers")]

NUM_RECORDS = 20_000


def read_while_a_taskmanager_is_killed(stream: DataStream, look: Callable[[], object] = lambda: None) -> list[Any]:
    """The first result is handed out when a checkpoint in the middle of the data is complete; then one of two
    TaskManagers is killed.  ``look`` is called before.
    """
    with collected(stream, "survivor") as results:
        found = [next(results)]
        look()
        killed, *others = task_managers()
        assert others, "there was one TaskManager only"
        killed.kill()
        killed.wait(PATIENCE_S)
        return found + list(results)


@pytest.mark.parametrize("form", ["sum", "state"])
def test_a_killed_taskmanager_costs_no_result_and_repeats_none(form: str, tmp_path: Path) -> None:
    keyed = paced_pairs(environment(tmp_path), NUM_RECORDS, 7).key_by(lambda record: record[0])

    found = read_while_a_taskmanager_is_killed(
        keyed.sum(1) if form == "sum" else keyed.process(CountInState(), output_type=PAIR)
    )

    assert Counter(found) == running_counts(NUM_RECORDS, 7)


# ---------------------------------------------------------------- joins

NUM_JOINED, NUM_KEYS_JOINED = 6_000, 11
CLOSE = 100  # milliseconds between records that meet


class Number(TimestampAssigner):
    """A record a millisecond."""

    def extract_timestamp(self, value: tuple[int, int], record_timestamp: int) -> int:
        return value[1]


def keyed_number(number: int) -> tuple[int, int]:
    if number % 500 == 0:
        time.sleep(PACE_S)
    return number % NUM_KEYS_JOINED, number


def numbers(env: StreamExecutionEnvironment) -> DataStream:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Number())
    made = env.from_collection(list(range(NUM_JOINED)), Types.LONG()).map(keyed_number, output_type=PAIR)
    return made.set_parallelism(1).assign_timestamps_and_watermarks(strategy).set_parallelism(1)


def by_key(stream: DataStream) -> KeyedStream:
    return stream.key_by(lambda record: record[0], Types.LONG())


class Both(ProcessJoinFunction):
    """The numbers of both records."""

    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Iterator[tuple[int, int]]:
        yield left[1], right[1]


def test_an_interval_join_loses_no_pair_and_repeats_none(tmp_path: Path) -> None:
    env = environment(tmp_path)
    pairs = (
        by_key(numbers(env))
        .interval_join(by_key(numbers(env)))
        .between(Time.milliseconds(-CLOSE), Time.milliseconds(0))
    )

    found = read_while_a_taskmanager_is_killed(pairs.process(Both(), PAIR))

    sooner = [(left, right) for left in range(NUM_JOINED) for right in range(max(0, left - CLOSE), left + 1)]
    assert Counter(found) == Counter(pair for pair in sooner if (pair[0] - pair[1]) % NUM_KEYS_JOINED == 0)


def test_a_window_join_loses_no_pair_and_repeats_none(tmp_path: Path) -> None:
    env = environment(tmp_path)
    joined = (
        numbers(env).join(numbers(env)).where(lambda record: record[0], Types.LONG()).equal_to(lambda record: record[0])
    )
    pairs = joined.window(TumblingEventTimeWindows.of(Time.milliseconds(CLOSE)))

    found = read_while_a_taskmanager_is_killed(pairs.apply(lambda left, right: (left[1], right[1]), PAIR))

    windows = [range(start, start + CLOSE) for start in range(0, NUM_JOINED, CLOSE)]
    together = [(left, right) for window in windows for left in window for right in window]
    assert Counter(found) == Counter(pair for pair in together if (pair[0] - pair[1]) % NUM_KEYS_JOINED == 0)


# ---------------------------------------------------------------- operator state

RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())
POSITION = ListStateDescriptor("position", Types.LONG())
COUNTS = ListStateDescriptor("counts", PAIR)


class Numbers(SourceFunction, CheckpointedFunction):
    """Emits paced numbers; its position is in list state."""

    def __init__(self) -> None:
        self.next = 0

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.position = context.get_operator_state_store().get_list_state(POSITION)
        for position in self.position:
            self.next = position

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.position.update([self.next])

    def run(self, ctx: SourceContext) -> None:
        while self.next < NUM_RECORDS and not ctx.is_cancelled:
            with ctx.get_checkpoint_lock():
                ctx.collect(self.next)
                self.next += 1
            if self.next % 1000 == 0:
                time.sleep(PACE_S)


class RulesOnce(SourceFunction, CheckpointedFunction):
    """A rule that a job which goes on from a checkpoint is not told again."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.is_told = context.is_restored()

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Store no state: the restored source learns from the checkpoint's existence that its rule was told."""

    def run(self, ctx: SourceContext) -> None:
        if not self.is_told:
            ctx.collect(("add", 7))


class AddRule(BroadcastProcessFunction, CheckpointedFunction):
    """Adds the number of the rule; numbers that came before the rule wait in list state."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("waiting", Types.LONG()))
        self.waiting = list(self.state)

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.state.update(self.waiting)

    def process_element(self, value: int, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterator[int]:
        added = ctx.get_broadcast_state(RULES).get("add")
        if added is None:
            self.waiting.append(value)
        else:
            yield value + added

    def process_broadcast_element(self, value: tuple[str, int], ctx: BroadcastProcessFunction.Context) -> Iterator[int]:
        ctx.get_broadcast_state(RULES).put(*value)
        waiting, self.waiting = self.waiting, []
        yield from (number + value[1] for number in waiting)


class CountInUnion(MapFunction, CheckpointedFunction):
    """Numbers its records; each subtask finds its own count among the counts of all."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.counts = context.get_operator_state_store().get_union_list_state(COUNTS)

    def open(self, runtime_context: RuntimeContext) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()
        self.count = dict(self.counts).get(self.subtask, 0)

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.counts.update([(self.subtask, self.count)])

    def map(self, value: int) -> tuple[int, int, int]:
        self.count += 1
        return value, self.subtask, self.count


@pytest.mark.parametrize("num_counters", [1, 2])
def test_a_killed_taskmanager_costs_no_operator_state(num_counters: int, tmp_path: Path) -> None:
    """Without the position numbers would be there twice, without the rule they would wait for ever, without the counts
    there would be two records of a number.
    """
    env = environment(tmp_path)
    rules = env.add_source(RulesOnce()).set_parallelism(1).broadcast(RULES)
    numbers = env.add_source(Numbers()).set_parallelism(1).rebalance()
    added = numbers.connect(rules).process(AddRule(), output_type=Types.LONG())
    triple = Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG()])

    found = read_while_a_taskmanager_is_killed(
        added.rebalance().map(CountInUnion(), output_type=triple).set_parallelism(num_counters)
    )

    sizes = Counter(subtask for _, subtask, _ in found)
    assert sorted(number for number, _, _ in found) == [number + 7 for number in range(NUM_RECORDS)]
    assert sorted((subtask, count) for _, subtask, count in found) == [
        (subtask, count) for subtask in range(num_counters) for count in range(1, sizes[subtask] + 1)
    ]


# ---------------------------------------------------------------- RocksDB


class CountInThreeStates(KeyedProcessFunction):
    """Counts with a value, a list and a map, which must agree."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.ones = runtime_context.get_list_state(ListStateDescriptor("ones", Types.LONG()))
        self.by_count = runtime_context.get_map_state(MapStateDescriptor("by count", Types.LONG(), Types.LONG()))

    def process_element(self, value: tuple[int, int], ctx: KeyedProcessFunction.Context) -> Any:
        count = (self.count.value() or 0) + value[1]
        self.count.update(count)
        self.ones.add(value[1])
        self.by_count.put(count, value[0])
        agreed = {count, len(list(self.ones.get())), len(list(self.by_count.keys()))}
        yield value[0], count if len(agreed) == 1 else -1


COUNTED: dict[str, Callable[[KeyedStream], DataStream]] = {
    "states": lambda stream: stream.process(CountInThreeStates(), output_type=PAIR),
    "sum": lambda stream: stream.sum(1),
    "reduce": lambda stream: stream.reduce(lambda one, other: (one[0], one[1] + other[1])),
}


@pytest.mark.parametrize(
    ("counted", "is_incremental"),
    [("states", True), ("sum", True), *(pytest.param(each, False, marks=pytest.mark.long) for each in COUNTED)],
)
def test_a_killed_taskmanager_costs_no_result_and_its_databases_are_removed(
    *, counted: str, is_incremental: bool, tmp_path: Path
) -> None:
    pytest.importorskip("rocksdict")
    checkpoints, databases = tmp_path / "checkpoints", tmp_path / "databases"
    backend = EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=is_incremental)
    backend.set_db_storage_paths(str(databases))
    env = environment(checkpoints).set_state_backend(backend)
    shared: list[Path] = []

    def look() -> None:
        shared.extend(checkpoints.glob("*/shared/*"))
        # Not by Path.glob: it fails if the directory of a snapshot goes while it looks.
        files = [name for _, _, names in os.walk(databases) for name in names]
        assert any(name.endswith(".sst") for name in files), "checkpoints write the rows"

    found = read_while_a_taskmanager_is_killed(
        COUNTED[counted](paced_pairs(env, NUM_RECORDS, 700).key_by(lambda record: record[0])), look
    )

    assert Counter(found) == running_counts(NUM_RECORDS, 700)
    assert bool(shared) == is_incremental
    assert not list(checkpoints.glob("*/*")), "the job has ended"
    assert not [file for base in databases.iterdir() for file in base.iterdir()], (
        "the killed process's databases are removed, too"
    )


# ---------------------------------------------------------------- files

NUM_WRITTEN = 16_000


def paced_tuple(number: int) -> tuple[int]:
    if number % 1000 == 0:
        time.sleep(PACE_S / 2)
    return (number,)


def paced(number: int) -> int:
    return paced_tuple(number)[0]


def newest(folder: Path) -> int:
    """Return the number of the newest complete checkpoint."""
    return max((int(each.parent.name[4:]) for each in folder.glob("*/chk-*/_metadata")), default=0)


@pytest.mark.parametrize(
    "fmt",
    [FORMATS[0], *(pytest.param(each, marks=pytest.mark.long) for each in FORMATS[1:])],
    ids=lambda each: each.name,
)
def test_killed_taskmanagers_cost_no_record_in_files_and_repeat_none(fmt: Format, tmp_path: Path) -> None:
    """Kills at a complete checkpoint, and at another one of the restarted job, lose and repeat no record."""
    checkpoints, output = tmp_path / "checkpoints", tmp_path / "output"
    restarts = {"restart-strategy.fixed-delay.attempts": "5", "restart-strategy.fixed-delay.delay": "20 ms"}
    env = environment(checkpoints, {**RESTARTING, **restarts}, interval_ms=60)
    numbers = env.from_collection(list(range(NUM_WRITTEN)), Types.LONG())
    mapped: Any = numbers.map(
        paced_tuple if fmt.of_tuples else paced,
        output_type=Types.TUPLE([Types.LONG()]) if fmt.of_tuples else Types.LONG(),
    )
    mapped.set_parallelism(1).rebalance().sink_to(fmt.sink(output, part_size=4_000))

    job = env.execute_async("files")
    for _ in range(2):
        seen = newest(checkpoints)
        spin_until(lambda seen=seen: newest(checkpoints) > seen)  # type: ignore[misc]  # mypy cannot infer a lambda with a default
        task_managers()[0].kill()
    job.get_job_execution_result().result()

    assert fingerprint(fmt.visible(output)) == fingerprint(range(NUM_WRITTEN))
    assert list(output.rglob(".*")) == []


# ---------------------------------------------------------------- a reader that pauses

NUM_TEXTS = 400_000
PAUSE_S = 8.0  # two timeouts and more


@pytest.mark.long
def test_a_pause_of_the_reader_is_no_failure_of_the_job(tmp_path: Path) -> None:
    """Tasks wait for room, so no checkpoint is complete; none of them counts, though no failure is tolerated."""
    options = {
        "execution.checkpointing.timeout": "3 s",
        "execution.checkpointing.mode": "AT_LEAST_ONCE",
        "restart-strategy.type": "none",
    }
    env = environment(tmp_path, options)
    texts = env.from_collection(range(NUM_TEXTS)).rebalance().map(lambda number: f"{number:0100d}")

    with collected(texts) as results:
        found = [int(next(results))]
        time.sleep(PAUSE_S)  # the pause of the reader
        found += map(int, results)

    assert sorted(found) == list(range(NUM_TEXTS))

"""Programs with one kind of operator each, in two halves: what both halves give together is known, wherever a savepoint
parts them.

The source stays at a record until the test lets it go on, so a job that is stopped has seen a part of the data.
Results go into a list of this process.
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from flowlet.common import WatermarkStrategy
from flowlet.common.typeinfo import Types
from flowlet.datastream import (
    AsyncDataStream,
    AsyncFunction,
    CheckpointedFunction,
    DataStream,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeyedStream,
    MapFunction,
    RuntimeContext,
    SourceContext,
    SourceFunction,
    StreamExecutionEnvironment,
)
from flowlet.datastream.connectors import DiscardingSink
from flowlet.datastream.connectors.file_system import FileSource, StreamFormat
from flowlet.datastream.functions import AggregateFunction, FlatMapFunction, ReduceFunction
from flowlet.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)

NUM_RECORDS, NUM_KEYS = 300, 7
HALF = 150
AT_THE_END = 10**15  # event time
PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])
RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())

go_on = threading.Event()  # the sources read behind HALF
results: list[Any] = []
# What functions report at their ends, and how many records have passed.
closed: defaultdict[str, int] = defaultdict(int)


def key_of(number: int) -> str:
    return f"key {number % NUM_KEYS}"


SIZES = Counter(map(key_of, range(NUM_RECORDS)))
RUNNING_COUNTS = Counter((key, number) for key, size in SIZES.items() for number in range(1, size + 1))


def num_seen() -> int:
    """Return how many results are seen.  Results of a source that never waits come late: its chunks go on together."""
    return max(len(results), closed["seen"])


def reset() -> None:
    go_on.clear()
    results.clear()
    closed.clear()


class Numbers(SourceFunction, CheckpointedFunction):
    """Emits pairs of a key and 1; its position is in list state."""

    def __init__(self) -> None:
        self.next = 0

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.position = context.get_operator_state_store().get_list_state(ListStateDescriptor("position", Types.LONG()))
        for position in self.position:
            self.next = position

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.position.update([self.next])

    def run(self, ctx: SourceContext) -> None:
        while self.next < NUM_RECORDS and not ctx.is_cancelled:
            if self.next == HALF and not go_on.is_set():
                go_on.wait(0.005)
                continue
            with ctx.get_checkpoint_lock():
                ctx.collect((key_of(self.next), 1))
                self.next += 1


class ReplayedNumbers(SourceFunction):
    """Emits pairs of a key and 1; marks its position."""

    def __init__(self) -> None:
        self.next = 0

    def restore_position(self, position: int) -> None:
        self.next = position

    def run(self, ctx: SourceContext) -> None:
        while self.next < NUM_RECORDS and not ctx.is_cancelled:
            if self.next == HALF and not go_on.is_set():
                go_on.wait(0.005)
                continue
            ctx.collect((key_of(self.next), 1))
            self.next += 1
            if self.next % 10 == 0:
                ctx.mark_position(self.next)


class Keep(MapFunction):
    """The sink."""

    def map(self, value: Any) -> Any:
        results.append(value)
        return value


def keep(stream: DataStream) -> None:
    stream.map(Keep()).uid("results").sink_to(DiscardingSink())


def numbers(env: StreamExecutionEnvironment) -> DataStream:
    return env.add_source(Numbers(), type_info=PAIR).set_parallelism(1).uid("numbers")


def keyed(env: StreamExecutionEnvironment) -> KeyedStream:
    return numbers(env).key_by(lambda pair: pair[0], Types.STRING())


class CountInEachState(KeyedProcessFunction):
    """Counts in state of each kind, which must agree; a timer emits the count at the end."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("value", Types.LONG()))
        self.elements = runtime_context.get_list_state(ListStateDescriptor("list", Types.LONG()))
        self.map = runtime_context.get_map_state(MapStateDescriptor("map", Types.STRING(), Types.LONG()))
        self.reducing = runtime_context.get_reducing_state(
            ReducingStateDescriptor("reducing", lambda one, other: one + other, Types.LONG())
        )
        self.aggregating = runtime_context.get_aggregating_state(
            AggregatingStateDescriptor("aggregating", Sum(), Types.LONG())
        )

    def process_element(self, value: tuple[str, int], ctx: KeyedProcessFunction.Context) -> Any:
        count = (self.value.value() or 0) + 1
        if count == 1:
            ctx.timer_service().register_event_time_timer(AT_THE_END)
        self.value.update(count)
        self.elements.add(count)
        self.map.put(f"{count}", count)
        self.reducing.add(1)
        self.aggregating.add(1)
        counts = {
            count,
            len(list(self.elements)),
            len(list(self.map.keys())),
            self.reducing.get(),
            self.aggregating.get(),
        }
        yield (
            ("counted", ctx.get_current_key(), count)
            if counts == {count}
            else ("differ", ctx.get_current_key(), counts)
        )

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield "timer", ctx.get_current_key(), self.value.value()


class PassOn(KeyedProcessFunction):
    """Has a state, and passes records on unchanged."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield value


class Sum(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, a: int, b: int) -> int:
        return a + b


def process(env: StreamExecutionEnvironment, folder: Path) -> DataStream:
    return keyed(env).process(CountInEachState()).uid("counts")


def process_is_right() -> bool:
    counted = Counter({("counted", *each): number for each, number in RUNNING_COUNTS.items()})
    return Counter(results) == counted + Counter(("timer", key, size) for key, size in SIZES.items())


def counts_are_right() -> bool:
    """Return whether each record of a key has the next number: none is lost, none counts twice."""
    return Counter((key, number) for key, number, *_ in results) == RUNNING_COUNTS


class AddUp(ReduceFunction):
    def reduce(self, one: tuple[str, int], other: tuple[str, int]) -> tuple[str, int]:
        return one[0], one[1] + other[1]


class NumberInLists(FlatMapFunction, CheckpointedFunction):
    """Keeps its count in list state; the counts of all subtasks together equal the number of all records."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        store = context.get_operator_state_store()
        self.counts = store.get_list_state(ListStateDescriptor("counts", Types.LONG()))
        self.everywhere = store.get_union_list_state(ListStateDescriptor("everywhere", Types.LONG()))
        self.count = sum(self.counts)
        self.restored = sum(self.everywhere)

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.counts.update([self.count])
        self.everywhere.update([self.count])

    def flat_map(self, value: tuple[str, int]) -> Iterator[tuple[str, int]]:
        self.count += 1
        yield value

    def close(self) -> None:
        if go_on.is_set():
            closed["count"] += self.count
            closed["restored"] = self.restored


def flat_map(env: StreamExecutionEnvironment, folder: Path) -> DataStream:
    return numbers(env).rebalance().flat_map(NumberInLists(), output_type=PAIR).uid("lists")


def flat_map_is_right() -> bool:
    return len(results) == NUM_RECORDS == closed["count"] and closed["restored"] == HALF


class CountBoth(KeyedCoProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element1(self, value: tuple[str, int], ctx: KeyedCoProcessFunction.Context) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield ctx.get_current_key(), self.count.value()

    def process_element2(self, value: tuple[str, int], ctx: KeyedCoProcessFunction.Context) -> Any:
        yield from ()


def co_process(env: StreamExecutionEnvironment, folder: Path) -> DataStream:
    other = env.add_source(RulesOnce(), type_info=PAIR).set_parallelism(1).uid("other")
    return keyed(env).connect(other.key_by(lambda pair: pair[0], Types.STRING())).process(CountBoth()).uid("both")


class RulesOnce(SourceFunction, CheckpointedFunction):
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.is_told = context.is_restored()

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Store no state: the restored source learns from the savepoint's existence that its rule was told."""

    def run(self, ctx: SourceContext) -> None:
        if not self.is_told:
            ctx.collect(("add", 1000))
        while not go_on.is_set() and not ctx.is_cancelled:
            go_on.wait(0.005)


class AddRule(KeyedBroadcastProcessFunction):
    """Numbers that come before the rule wait in keyed state."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: tuple[str, int], ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield ctx.get_current_key(), self.count.value(), ctx.get_broadcast_state(RULES).get("add")

    def process_broadcast_element(self, value: tuple[str, int], ctx: KeyedBroadcastProcessFunction.Context) -> Any:
        ctx.get_broadcast_state(RULES).put(*value)
        yield from ()


def broadcast(env: StreamExecutionEnvironment, folder: Path) -> DataStream:
    rules = env.add_source(RulesOnce(), type_info=PAIR).set_parallelism(1).uid("rules").broadcast(RULES)
    return keyed(env).connect(rules).process(AddRule()).uid("rule")


def broadcast_is_right() -> bool:
    """The second half knows the rule, which no source told it."""
    return counts_are_right() and all(rule == 1000 for _, _, rule in results[HALF:])


class Later(AsyncFunction):
    """The results of some records come only in the second half."""

    async def async_invoke(self, value: tuple[str, int]) -> list[tuple[str, int]]:
        import asyncio

        while value[0] == "key 3" and not go_on.is_set():  # noqa: ASYNC110 - the event is of threads
            await asyncio.sleep(0.002)
        return [value]


def async_wait(env: StreamExecutionEnvironment, folder: Path) -> DataStream:
    from flowlet.common.time import Time

    return AsyncDataStream.unordered_wait(
        numbers(env).rebalance(), Later(), Time.seconds(100), 1000, output_type=PAIR
    ).uid("async")


def records_are_right() -> bool:
    return Counter(key for key, *_ in results) == SIZES


def pace(quick_s: float) -> None:
    """Hold a record back; a record of the second half for long, so that a savepoint finds records in front of it
    however late it comes.
    """
    if not go_on.is_set():
        closed["paced"] += 1
        time.sleep(quick_s if closed["paced"] < HALF else 0.1)


class Paced(MapFunction):
    """A function in the chain of a source that never waits: barriers pass between its chunks."""

    def map(self, value: Any) -> tuple[str, int]:
        pace(0.005)
        return key_of(int(value)), 1


class PacedTenths(FlatMapFunction):
    """A paced function for chunks of 1000 records: one of ten counts."""

    def flat_map(self, value: int) -> Iterator[tuple[str, int]]:
        if value % 10:
            return
        closed["seen"] += 1
        pace(0.003)
        yield key_of(value // 10), 1


def collection(env: StreamExecutionEnvironment, folder: Path) -> DataStream:
    source = env.from_collection(range(10 * NUM_RECORDS), Types.LONG()).uid("collection")
    return (
        source.flat_map(PacedTenths(), output_type=PAIR)
        .set_parallelism(1)
        .key_by(lambda pair: pair[0], Types.STRING())
        .sum(1)
        .uid("sum")
    )


def files(env: StreamExecutionEnvironment, folder: Path) -> DataStream:
    """Read files, some of whose splits were read, some are with one reader, and some are not handed out."""
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(folder)).build()
    lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "lines").uid("lines")
    return lines.map(Paced(), output_type=PAIR).key_by(lambda pair: pair[0], Types.STRING()).sum(1).uid("sum")


def replayed(env: StreamExecutionEnvironment, folder: Path) -> DataStream:
    source = env.add_source(ReplayedNumbers(), type_info=PAIR).set_parallelism(1).uid("replayed")
    return source.key_by(lambda pair: pair[0], Types.STRING()).sum(1).uid("sum")


def arrow(env: StreamExecutionEnvironment, folder: Path) -> DataStream:
    """Sum columns from the source on."""
    schema = pa.schema([("key", pa.string()), ("one", pa.int64())])
    source = env.from_arrow(_batches, schema).set_parallelism(1).uid("arrow")
    paced = source.map_batches(_paced, schema).set_parallelism(1)
    return paced.key_by("key").sum("one").uid("sum").to_records()


def _batches(subtask: int, parallelism: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, NUM_RECORDS, 20):
        keys = [key_of(each) for each in range(start, start + 20)]
        yield pa.record_batch({"key": keys, "one": pa.array([1] * 20, pa.int64())})


def _paced(batch: pa.RecordBatch) -> pa.RecordBatch:
    closed["seen"] += batch.num_rows
    if not go_on.is_set():
        time.sleep(0.03)
    return batch


Build = Callable[[StreamExecutionEnvironment, Path], DataStream]
PROGRAMS: dict[str, tuple[Build, Callable[[], bool]]] = {
    "flat_map": (flat_map, flat_map_is_right),
    "process": (process, process_is_right),
    "reduce": (lambda env, _: keyed(env).reduce(AddUp()).uid("reduce"), counts_are_right),
    "sum": (lambda env, _: keyed(env).sum(1).uid("sum"), counts_are_right),
    "count": (lambda env, _: keyed(env).count().uid("count"), counts_are_right),
    "max": (lambda env, _: keyed(env).max(1).uid("max"), records_are_right),
    "co_process": (co_process, counts_are_right),
    "broadcast": (broadcast, broadcast_is_right),
    "async": (async_wait, records_are_right),
    "collection": (collection, counts_are_right),
    "files": (files, counts_are_right),
    "replayed": (replayed, counts_are_right),
    "arrow": (arrow, counts_are_right),
}
"""By the kind of the operator: the program, and whether ``results`` are right."""


def write_files(folder: Path) -> None:
    """Write twelve files, with all numbers."""
    for index in range(12):
        text = "".join(f"{each}\n" for each in range(index, NUM_RECORDS, 12))
        (folder / f"{index}.txt").write_text(text, encoding="ascii")

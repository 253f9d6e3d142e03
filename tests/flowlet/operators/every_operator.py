"""One case at least for every operator that reads records: the operator, and its input."""

import asyncio
import atexit
import decimal
import fractions
import operator
import random
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from flowlet.async_io.async_wait_operator import AsyncWaitOperator
from flowlet.chain.stream_operator import StreamOperator
from flowlet.common.time import Duration
from flowlet.common.typeinfo import Types
from flowlet.common.types import Row
from flowlet.common.watermark_generator import WatermarkGenerator, WatermarkOutput
from flowlet.common.watermark_strategy import TimestampAssigner, WatermarkStrategy
from flowlet.connectors.files.sink import RunningFileSink
from flowlet.datastream import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ReduceFunction,
    RuntimeContext,
)
from flowlet.datastream.async_retry_predicates import has_exception_predicate
from flowlet.datastream.async_retry_strategies import AsyncRetryStrategy
from flowlet.datastream.connectors import BucketAssigner, FileSink
from flowlet.datastream.formats.parquet import ParquetBulkWriters
from flowlet.datastream.state import MapStateDescriptor, ValueStateDescriptor
from flowlet.datastream.user_functions.aggregations import Aggregation
from flowlet.keys.column_key import ColumnKey
from flowlet.operators.co_functions import BroadcastProcessOperator, CoFlatMapOperator, CoMapOperator, SplitOperator
from flowlet.operators.event_time_stream import TimestampsAndWatermarksOperator
from flowlet.operators.keyed_aggregation_operator import KeyedCountOperator, KeyedReduceOperator, KeyedSumOperator
from flowlet.operators.process_operator import (
    CoProcessOperator,
    FilterOperator,
    FlatMapOperator,
    MapOperator,
    ProcessOperator,
)
from flowlet.operators.record_batches import (
    MapBatchesOperator,
    SelectColumnsOperator,
    ToColumnsOperator,
    ToRecordsOperator,
)
from flowlet.sinks.function_sink import DiscardSink, FunctionSink, PrintSink
from flowlet.sinks.sink_operator import SinkOperator

MakeRecord = Callable[[random.Random], Any]

ODD, LATE = OutputTag("odd"), OutputTag("late")
FOLDER = tempfile.mkdtemp(prefix="flowlet-tests-")
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
POISON = 13  # functions of the failing cases raise at it


@dataclass(frozen=True)
class Case:
    """An operator, and records for it.

    Args:
        make: a new operator.
        record: a record by chance.
        num_inputs: how many it has.
    """

    make: Callable[[], StreamOperator]
    record: MakeRecord
    num_inputs: int = 1


# -- records


def small_int(rng: random.Random) -> int:
    return rng.randrange(-5, 20)


def number_or_text(rng: random.Random) -> tuple[int | str]:
    """Now and then of another type than declared."""
    return (rng.randrange(100) if rng.random() < 0.95 else "text",)


def often_nothing(rng: random.Random) -> int:
    """Draw a number of results, 0 in most cases, of which ``flood`` makes a chunk."""
    return rng.choices([0, 1, 22], weights=[300, 10, 2])[0]


def safe_int(rng: random.Random) -> int:
    return rng.randrange(-5, POISON)


def word(rng: random.Random) -> str:
    return "".join(rng.choices("ab é", k=rng.randrange(4)))


def number(rng: random.Random) -> Any:
    kinds: list[Callable[[], Any]] = [
        lambda: rng.randrange(-3, 9),
        lambda: rng.random() < 0.5,
        lambda: rng.choice([0.5, -0.0, 0.0, 1e300, float("nan"), float("inf")]),
        lambda: 2**70,
        lambda: 1j,
        lambda: fractions.Fraction(1, 3),
    ]
    return rng.choice(kinds)()


def key(rng: random.Random) -> Any:
    return rng.choice(["a", "b", "ab", 1, True, 1.0, 0.0, -0.0, b"a", ("a", 1), float("nan")])


def int_pair(rng: random.Random) -> tuple[Any, int]:
    return rng.choice("abc"), rng.randrange(-3, 9)


def pair(rng: random.Random) -> tuple[Any, Any]:
    return key(rng), number(rng)


class Point(NamedTuple):
    name: str
    weight: Any


def mixed_record(rng: random.Random) -> Any:
    """Pairs mostly, so that the fast path is left in the middle."""
    name, weight = rng.choice("ab"), number(rng)
    return rng.choices(
        [
            (name, weight),
            Point(name, weight),
            [name, weight],
            Row(name, weight),
            (name, weight, "more"),
            (name, "no number"),
            (name,),
        ],
        weights=[30, 2, 2, 2, 2, 1, 1],
    )[0]


def triple(rng: random.Random) -> Any:
    return rng.choice(
        [
            ("x", rng.choice("ab"), number(rng)),
            ["x", rng.choice("ab"), number(rng)],
            Row("x", rng.choice("ab"), number(rng)),
        ]
    )


def named(rng: random.Random) -> Any:
    return rng.choice([Row(name=rng.choice("ab"), weight=number(rng)), Point(rng.choice("ab"), number(rng))])


def row(rng: random.Random) -> Row:
    return Row(name=rng.choice(["a", "b", None]), weight=number(rng))


def int_or_text(rng: random.Random) -> Any:
    return rng.choices([rng.randrange(9), "text"], weights=[30, 1])[0]


def bad_key_pair(rng: random.Random) -> tuple[Any, int]:
    return rng.choice([*"abcabcabc", ["unhashable"], None, object]), 1


# -- functions; those that count show in which order they were called


class Numbered(MapFunction):
    def __init__(self) -> None:
        self.num_calls = 0

    def map(self, value: Any) -> Any:
        self.num_calls += 1
        return self.num_calls, value


def divide(value: int) -> float:
    return 1 / (value - POISON)


class EverySecond(FilterFunction):
    def __init__(self) -> None:
        self.num_calls = 0

    def filter(self, value: Any) -> Any:
        self.num_calls += 1
        return value if self.num_calls % 2 else []  # truth, not bool


def is_odd(value: int) -> bool:
    return [bool(value % 2)][value // POISON]  # fails from POISON on, and below 0


class Repeat(FlatMapFunction):
    def flat_map(self, value: int) -> Iterator[Any]:
        for number in range(value):
            yield value, number
        if value == POISON:
            raise ValueError("poison")


def repeat_in_list(value: int) -> list[Any]:
    return [value] * max(value, 0)


def flat_anything(value: int) -> Any:
    return [[], (value,), "text", {value: 1}, iter([value, value]), range(3), None][value % 7]


def flood(value: int) -> Iterator[int]:
    return iter(range(value * 97))


class Join(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1[0], f"{value1[1]}+{value2[1]}"[-40:]


def reduce_or_fail(value1: Any, value2: Any) -> Any:
    return value1[0], 1 // (value1[1] + value2[1]) + value2[1]


class Route(ProcessFunction):
    """Main output, side outputs, everything and nothing; shows timestamp and watermark."""

    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Any:
        if value < 0:
            return None
        if value % 3 == 0:
            return [(ODD, value), (value, ctx.timestamp()), (LATE, (value, ctx.timer_service().current_watermark()))]
        if value == POISON:
            raise ValueError("poison")
        return iter([(LATE, None)] * (value % 4) + [value])


class Alarm(KeyedProcessFunction):
    """Timers of both kinds, set, set again and deleted."""

    def __init__(self) -> None:
        self.counts: dict[Any, int] = defaultdict(int)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        self.counts[repr(ctx.get_current_key())] += 1
        timers, timestamp = ctx.timer_service(), ctx.timestamp()
        if timestamp is None:
            timers.register_processing_time_timer(
                timers.current_processing_time() + self.counts[repr(ctx.get_current_key())] * 3
            )
        else:
            timers.register_event_time_timer(timestamp + 7)
            if self.counts[repr(ctx.get_current_key())] % 3 == 0:
                timers.delete_event_time_timer(timestamp + 7)
        yield ctx.get_current_key(), timestamp, timers.current_watermark(), timers.current_processing_time()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        count = self.counts[repr(ctx.get_current_key())]
        yield "timer", timestamp, ctx.get_current_key(), ctx.time_domain(), ctx.timestamp(), count
        yield LATE, timestamp
        if count % 4 == 0:
            ctx.timer_service().register_event_time_timer(timestamp + 1)
            self.counts[repr(ctx.get_current_key())] += 1


class Both(CoMapFunction):
    def __init__(self) -> None:
        self.num_calls = 0

    def map1(self, value: int) -> Any:
        self.num_calls += 1
        return "first", self.num_calls, 1 / (value - POISON)

    def map2(self, value: int) -> Any:
        self.num_calls += 1
        return "second", self.num_calls, value


class BothFlat(CoFlatMapFunction):
    def __init__(self) -> None:
        self.allowed = 3

    def flat_map1(self, value: int) -> Any:
        return [value] * min(self.allowed, abs(value))

    def flat_map2(self, value: int) -> Any:
        self.allowed = value % 5
        return None if value % 2 else (item for item in (value, self.allowed))


class BothRoute(CoProcessFunction):
    def __init__(self) -> None:
        self.last = 0

    def process_element1(self, value: int, ctx: CoProcessFunction.Context) -> Iterator[Any]:
        yield "first", value, self.last, ctx.timestamp(), ctx.timer_service().current_watermark()

    def process_element2(self, value: int, ctx: CoProcessFunction.Context) -> Iterator[Any]:
        self.last = value
        if value == POISON:
            raise ValueError("poison")
        yield ODD, value


class BothAlarm(KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer((ctx.timestamp() or 0) + 5)
        yield ctx.get_current_key(), value

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
        ctx.timer_service().delete_event_time_timer((ctx.timestamp() or 0) + 5)
        ctx.timer_service().register_processing_time_timer(10)

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield timestamp, ctx.get_current_key(), ctx.time_domain()


RULES = MapStateDescriptor("rules")


class Ruled(BroadcastProcessFunction):
    def process_element(self, value: int, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterator[Any]:
        yield "first", value, ctx.get_broadcast_state(RULES).get("last"), ctx.timestamp(), ctx.current_watermark()

    def process_broadcast_element(self, value: int, ctx: BroadcastProcessFunction.Context) -> Iterator[Any]:
        ctx.get_broadcast_state(RULES).put("last", value)
        if value == POISON:
            raise ValueError("poison")
        yield ODD, value


class RuledAlarm(KeyedBroadcastProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(COUNT)

    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer((ctx.timestamp() or 0) + 5)
        yield ctx.get_current_key(), self.count.value(), list(ctx.get_broadcast_state(RULES).items())

    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> Iterator[Any]:
        ctx.get_broadcast_state(RULES).put(value[0], value)
        counts: list[Any] = []
        ctx.apply_to_keyed_state(COUNT, lambda key, state: counts.append((key, state.value())))
        yield counts

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield timestamp, ctx.get_current_key(), ctx.time_domain(), ctx.current_processing_time()


COUNT = ValueStateDescriptor("count")


def names_of(value: int) -> Any:
    return [["low"], ["high", "low", "high"], [], None, ("high",)][value % 5]


class Punctuated(WatermarkGenerator):
    """Speaks at some records, and at times."""

    def __init__(self) -> None:
        self.largest = 0

    def on_event(self, event: int, event_timestamp: int, output: WatermarkOutput) -> None:
        self.largest = max(self.largest, event)
        if event % 4 == 0:
            output.emit_watermark(event)
        if event % 5 == 1:
            output.mark_idle()
        if event == POISON:
            raise ValueError("poison")

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.emit_watermark(self.largest)


class ByValue(TimestampAssigner):
    def extract_timestamp(self, value: int, record_timestamp: int) -> int:
        return value * 10 + record_timestamp % 3


class HalfAssigner(TimestampAssigner):
    def extract_timestamp(self, value: int, record_timestamp: int) -> Any:
        return "soon" if value == POISON else value


async def look_up(value: int) -> list[Any]:
    await asyncio.sleep((value * 7 % 5) / 1_000)
    if value == POISON:
        raise ValueError("poison")
    return [value] * (value % 3)


class Flaky:
    """Fails at the first attempt for some records."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    async def async_invoke(self, value: int) -> list[Any]:
        await asyncio.sleep(0)
        if value % 4 == 0 and value not in self.seen:
            self.seen.add(value)
            raise OSError("try again")
        return [value]

    def timeout(self, value: int) -> list[Any]:
        return ["late", value]


async def slow(value: int) -> list[Any]:
    await asyncio.sleep(value * 3 / 1_000)
    return [value]


class Slow:
    async def async_invoke(self, value: int) -> list[Any]:
        return await slow(value)

    def timeout(self, value: int) -> list[Any]:
        return ["late", value]


def parquet_sink() -> SinkOperator:
    builder = FileSink.for_bulk_format(FOLDER, ParquetBulkWriters.for_row_type(Types.ROW([Types.LONG()])))
    return SinkOperator(
        RunningFileSink(builder.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build())
    )


class Remember:
    """A sink whose records are printed, so that they can be compared."""

    def invoke(self, value: int, context: object) -> None:
        if value == POISON:
            raise ValueError("poison")
        print(repr(value))


def async_operator(
    function: Any, *, capacity: int, is_ordered: bool, timeout_ms: int = 0, retries: int = 0
) -> StreamOperator:
    strategy = AsyncRetryStrategy.fixed_delay(retries, 4, None, has_exception_predicate) if retries else None
    return AsyncWaitOperator(
        function, timeout_ms=timeout_ms, capacity=capacity, is_ordered=is_ordered, retry_strategy=strategy
    )


NUMBERS = pa.schema([("n", pa.int64())])


def twice(batch: Any) -> Any:
    return pa.record_batch({"n": [2 * number for number in batch.column(0).to_pylist()]}, NUMBERS)


def first_field(record: Any) -> Any:
    return record[0]


def first_or_fail(record: Any) -> Any:
    return record[0] if record[1] != 8 else {}[record[1]]


def with_ticks(strategy: WatermarkStrategy) -> StreamOperator:
    return TimestampsAndWatermarksOperator(strategy, auto_watermark_interval_ms=5)


BOUNDED = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(3))

CASES: dict[str, Case] = {
    "map": Case(lambda: MapOperator(Numbered()), mixed_record),
    "map that fails": Case(lambda: MapOperator(divide), small_int),
    "map to text": Case(lambda: MapOperator(str.upper), word),
    "filter": Case(lambda: FilterOperator(EverySecond()), small_int),
    "filter that fails": Case(lambda: FilterOperator(is_odd), small_int),
    "flat map with generators": Case(lambda: FlatMapOperator(Repeat()), small_int),
    "flat map with lists": Case(lambda: FlatMapOperator(repeat_in_list), small_int),
    "flat map with anything": Case(lambda: FlatMapOperator(flat_anything), small_int),
    "flat map with more than a chunk": Case(lambda: FlatMapOperator(flood), often_nothing),
    "reduce": Case(lambda: KeyedReduceOperator(first_field, Join()), pair),
    "reduce that fails": Case(lambda: KeyedReduceOperator(first_field, reduce_or_fail), int_pair),
    "reduce at the end": Case(lambda: KeyedReduceOperator(first_field, Join(), emit_on_finish=True), pair),
    "reduce with bad keys": Case(lambda: KeyedReduceOperator(first_field, Join()), bad_key_pair),
    "sum of pairs": Case(lambda: KeyedSumOperator(first_field, 1), pair),
    "sum of plain pairs": Case(lambda: KeyedSumOperator(operator.itemgetter(0), 1), int_pair),
    "sum of pairs by another key": Case(lambda: KeyedSumOperator(lambda record: record[0] == "a", 1), pair),
    "sum with a selector that fails": Case(lambda: KeyedSumOperator(first_or_fail, 1), int_pair),
    "sum of a mixture": Case(lambda: KeyedSumOperator(first_field, 1), mixed_record),
    "sum of a mixture by another key": Case(lambda: KeyedSumOperator(lambda record: str(record[0]), 1), mixed_record),
    "sum of triples": Case(lambda: KeyedSumOperator(operator.itemgetter(1), 2), triple),
    "sum by name": Case(lambda: KeyedSumOperator(lambda record: record[0], "weight"), named),
    "sum of numbers": Case(lambda: KeyedSumOperator(lambda value: value % 3, 0), small_int),
    "sum with bad keys": Case(lambda: KeyedSumOperator(first_field, 1), bad_key_pair),
    "sum at the end": Case(lambda: KeyedSumOperator(first_field, 1, emit_on_finish=True), pair),
    "sum of a mixture at the end": Case(lambda: KeyedSumOperator(first_field, 1, emit_on_finish=True), mixed_record),
    "sum of decimals": Case(
        lambda: KeyedSumOperator(first_field, 1), lambda rng: (rng.choice("ab"), decimal.Decimal(rng.randrange(9)) / 7)
    ),
    "min": Case(lambda: KeyedReduceOperator(first_field, Aggregation("min", 1)), int_pair),
    "max by": Case(lambda: KeyedReduceOperator(first_field, Aggregation("max_by", 1)), int_pair),
    "known reduce": Case(lambda: KeyedReduceOperator(first_field, lambda a, b: (a[0], a[1] + b[1])), pair),
    "count": Case(lambda: KeyedCountOperator(first_field), pair),
    "count of anything": Case(lambda: KeyedCountOperator(lambda record: record), key),
    "count with bad keys": Case(lambda: KeyedCountOperator(first_field), bad_key_pair),
    "count in rows": Case(lambda: KeyedCountOperator(ColumnKey("name"), field_names=("name", "count")), row),
    "map batches": Case(lambda: MapBatchesOperator(twice, NUMBERS, NUMBERS), small_int),
    "some columns": Case(lambda: SelectColumnsOperator((0,), NUMBERS), small_int),
    "to columns": Case(lambda: ToColumnsOperator(NUMBERS), small_int),
    "to columns that fails": Case(lambda: ToColumnsOperator(NUMBERS), int_or_text),
    "to records": Case(lambda: ToRecordsOperator(), mixed_record),
    "process": Case(lambda: ProcessOperator(Route()), small_int),
    "keyed process": Case(lambda: ProcessOperator(Alarm(), first_field), pair),
    "keyed process with a selector that fails": Case(lambda: ProcessOperator(Alarm(), first_or_fail), int_pair),
    "keyed process with bad keys": Case(lambda: ProcessOperator(Alarm(), first_field), bad_key_pair),
    "co-map": Case(lambda: CoMapOperator(Both()), small_int, 2),
    "co-flat map": Case(lambda: CoFlatMapOperator(BothFlat()), small_int, 2),
    "co-process": Case(lambda: CoProcessOperator(BothRoute()), small_int, 2),
    "keyed co-process": Case(lambda: CoProcessOperator(BothAlarm(), (first_field, first_field)), pair, 2),
    "broadcast process": Case(lambda: BroadcastProcessOperator(Ruled(), [RULES]), small_int, 2),
    "keyed broadcast process": Case(lambda: BroadcastProcessOperator(RuledAlarm(), [RULES], first_field), pair, 2),
    "split": Case(
        lambda: SplitOperator(names_of, [frozenset({"low"}), frozenset({"high", "low"}), frozenset({"none"})]),
        small_int,
    ),
    "monotonous timestamps": Case(lambda: with_ticks(WatermarkStrategy.for_monotonous_timestamps()), small_int),
    "bounded out-of-orderness": Case(lambda: with_ticks(BOUNDED.with_timestamp_assigner(ByValue())), small_int),
    "timestamps that are none": Case(lambda: with_ticks(BOUNDED.with_timestamp_assigner(HalfAssigner())), small_int),
    "idleness": Case(lambda: with_ticks(BOUNDED.with_idleness(Duration.of_millis(8))), small_int),
    "max future skew": Case(lambda: with_ticks(BOUNDED.with_max_future_skew(Duration.of_millis(10))), small_int),
    "punctuated watermarks": Case(lambda: with_ticks(WatermarkStrategy.for_generator(Punctuated)), small_int),
    "timestamps without watermarks": Case(
        lambda: TimestampsAndWatermarksOperator(BOUNDED.with_timestamp_assigner(ByValue()), emits_watermarks=False),
        small_int,
    ),
    "async ordered": Case(lambda: async_operator(look_up, capacity=4, is_ordered=True), safe_int),
    "async unordered": Case(lambda: async_operator(look_up, capacity=100, is_ordered=False), safe_int),
    "async unordered with little room": Case(lambda: async_operator(look_up, capacity=2, is_ordered=False), safe_int),
    "async that fails": Case(lambda: async_operator(look_up, capacity=100, is_ordered=True), small_int),
    "async with retries": Case(
        lambda: async_operator(Flaky(), capacity=100, is_ordered=True, timeout_ms=50, retries=3), safe_int
    ),
    # Room for every record: while an operator waits for room time passes, and when a record begins to wait decides
    # whether it is late.
    "async that is late": Case(
        lambda: async_operator(Slow(), capacity=10_000, is_ordered=True, timeout_ms=20), safe_int
    ),
    "print": Case(lambda: PrintSink("sink"), mixed_record),
    "function sink": Case(lambda: FunctionSink(Remember()), small_int),
    "discard": Case(DiscardSink, small_int),
    "parquet": Case(parquet_sink, number_or_text),
}

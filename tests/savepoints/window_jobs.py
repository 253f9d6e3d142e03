"""Programs with windows, joins and columns, each with a savepoint of its own."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from flowlet.common import Duration, Row, Time, Types
from flowlet.datastream import (
    AggregateFunction,
    AllWindowFunction,
    CoGroupFunction,
    KeyedStream,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessJoinFunction,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
    WindowFunction,
)
from flowlet.datastream.column_stream import ColumnStream
from flowlet.datastream.state import ReducingStateDescriptor, ValueStateDescriptor
from flowlet.datastream.window import (
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    DeltaEvictor,
    EventTimeSessionWindows,
    GlobalWindows,
    PurgingTrigger,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    TimeEvictor,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from tests.savepoints.stage import feed, keep, keep_named, pace

NUM_RECORDS, NUM_KEYS = 60, 4
TRIPLE: Final = Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG()])


def _items() -> Iterator[tuple[Any, int] | int]:
    """Yield records out of order, some of them late, and a watermark behind every fifth one."""
    for number in range(NUM_RECORDS):
        timestamp = 10 * number - (130 if number % 11 == 10 else 7 * (number % 3))
        yield (f"key {number % NUM_KEYS}", number, timestamp), timestamp
        if number % 5 == 4:
            yield 10 * number - 20


ITEMS: Final = list(_items())
HALF: Final = 35
assert isinstance(ITEMS[HALF], int), (
    "a savepoint has no watermark: without one in front nothing of the second half would be late"
)


def records(env: StreamExecutionEnvironment, name: str = "feed") -> Any:
    return feed(env, ITEMS, HALF, TRIPLE, name=name)


def first(triple: Any) -> Any:
    return triple[0]


def keyed(env: StreamExecutionEnvironment) -> KeyedStream:
    return records(env).key_by(first, Types.STRING())  # type: ignore[no-any-return]  # a stream


class Numbers(AggregateFunction):
    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: Any, accumulator: list[int]) -> list[int]:
        return sorted([*accumulator, value[1]])

    def get_result(self, accumulator: list[int]) -> Any:
        return tuple(accumulator)

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return sorted([*acc_a, *acc_b])


def add(one: Any, other: Any) -> Any:
    return one[0], one[1] + other[1], min(one[2], other[2])


def span(window: Any) -> Any:
    return window.start, window.end


class Show(ProcessWindowFunction):
    """The records of a window, with state of the window and of the key."""

    def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Iterable[Any]) -> Iterator[Any]:
        evaluations = context.window_state().get_state(ValueStateDescriptor("evaluations", Types.LONG()))
        total = context.global_state().get_reducing_state(
            ReducingStateDescriptor("total", lambda one, other: one + other, Types.LONG())
        )
        evaluations.update((evaluations.value() or 0) + 1)
        total.add(1)
        yield key, span(context.window()), evaluations.value(), total.get(), sorted(each[1] for each in elements)

    def clear(self, context: ProcessWindowFunction.Context) -> None:
        context.window_state().get_state(ValueStateDescriptor("evaluations", Types.LONG())).clear()


class Apply(WindowFunction):
    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterator[Any]:
        yield key, sorted(each[1] for each in inputs)


class ApplyAll(AllWindowFunction):
    def apply(self, window: Any, inputs: Iterable[Any]) -> Iterator[Any]:
        yield span(window), sorted(each[1] for each in inputs)


class ShowAll(ProcessAllWindowFunction):
    def process(self, context: ProcessAllWindowFunction.Context, elements: Iterable[Any]) -> Iterator[Any]:
        yield span(context.window()), list(elements)


class Gap(SessionWindowTimeGapExtractor):
    def extract(self, element: Any) -> int:
        return 30 + int(element[1]) % 3


class Threshold(Trigger[Any, Any]):
    """Fires when the numbers of the records add up to a limit; its sum is state of the window."""

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        total: Any = ctx.get_partitioned_state(
            ReducingStateDescriptor("sum", lambda one, other: one + other, Types.LONG())
        )
        total.add(element[1])
        if total.get() < 60:
            return TriggerResult.CONTINUE
        total.clear()
        return TriggerResult.FIRE_AND_PURGE

    def on_event_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        raise NotImplementedError

    def clear(self, window: Any, ctx: Trigger.TriggerContext) -> None:
        pass


def ms(number: int) -> Time:
    return Time.milliseconds(number)


def time_windows(env: StreamExecutionEnvironment) -> None:
    """Build windows with their own triggers, whose contents a dictionary has between snapshots."""
    pairs, late = keyed(env), OutputTag("late", TRIPLE)
    tumbling = pairs.window(TumblingEventTimeWindows.of(ms(100), ms(10)))
    keep_named(tumbling.reduce(add), "tumbling")
    keep_named(pairs.window(SlidingEventTimeWindows.of(ms(100), ms(50))).aggregate(Numbers()), "sliding")
    keep_named(pairs.window(TumblingEventTimeWindows.of(ms(150))).apply(Apply()), "apply")
    keep_named(pairs.window(TumblingEventTimeWindows.of(ms(150))).process(Show()), "process")
    keep_named(pairs.window(TumblingEventTimeWindows.of(ms(150))).reduce(add, Show()), "reduce and process")
    allowed = pairs.window(TumblingEventTimeWindows.of(ms(100))).allowed_lateness(60).side_output_late_data(late)
    shown = allowed.process(Show()).uid("lateness")
    keep(shown, "lateness")
    keep(shown.get_side_output(late), "late")


def session_windows(env: StreamExecutionEnvironment) -> None:
    pairs = keyed(env)
    keep_named(pairs.window(EventTimeSessionWindows.with_gap(ms(45))).aggregate(Numbers()), "sessions")
    keep_named(pairs.window(EventTimeSessionWindows.with_gap(ms(45))).reduce(add), "reduced")
    keep_named(pairs.window(EventTimeSessionWindows.with_dynamic_gap(Gap())).process(ShowSession()), "dynamic")
    lasting = pairs.window(EventTimeSessionWindows.with_gap(ms(45))).allowed_lateness(100)
    keep_named(lasting.aggregate(Numbers()), "lasting")


class ShowSession(ProcessWindowFunction):
    """Sessions that merge have no state of their own."""

    def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Iterable[Any]) -> Iterator[Any]:
        yield key, span(context.window()), sorted(each[1] for each in elements)


def other_windows(env: StreamExecutionEnvironment) -> None:
    """Build count windows, windows with triggers and evictors, and windows of all records."""
    source = records(env)
    pairs = source.key_by(first, Types.STRING())
    keep_named(pairs.count_window(4).reduce(add), "count")
    keep_named(pairs.count_window(5, 2).apply(Apply()), "sliding count")
    globally = pairs.window(GlobalWindows.create())
    keep_named(globally.trigger(PurgingTrigger.of(CountTrigger.of(4))).aggregate(Numbers()), "global")
    custom = pairs.window(GlobalWindows.create()).trigger(Threshold())
    keep_named(custom.apply(Apply()), "threshold")
    continuous = pairs.window(TumblingEventTimeWindows.of(ms(200))).trigger(ContinuousEventTimeTrigger.of(ms(50)))
    keep_named(continuous.aggregate(Numbers()), "continuous")
    for name, evictor in (
        ("count evictor", CountEvictor.of(2)),
        ("time evictor", TimeEvictor.of(ms(40))),
        ("delta evictor", DeltaEvictor.of(20.0, lambda one, other: abs(one[1] - other[1]))),
    ):
        keep_named(pairs.window(TumblingEventTimeWindows.of(ms(150))).evictor(evictor).apply(Apply()), name)
    keep_named(source.window_all(TumblingEventTimeWindows.of(ms(100))).apply(ApplyAll()), "all")
    keep_named(source.window_all(SlidingEventTimeWindows.of(ms(90), ms(30))).process(ShowAll()), "all process")
    keep_named(source.count_window_all(7).reduce(add), "all count")


def clock_windows(env: StreamExecutionEnvironment) -> None:
    """Build windows of a thousand years: only their state is looked at."""
    by_clock = keyed(env).window(TumblingProcessingTimeWindows.of(Time.days(365_000)))
    keep_named(by_clock.aggregate(Numbers()), "clock")


# -- joins


class Pair(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Iterator[Any]:
        yield left, right, ctx.get_left_timestamp(), ctx.get_right_timestamp()


class Lists(CoGroupFunction):
    def co_group(self, first: Iterable[Any], second: Iterable[Any]) -> Iterator[Any]:
        yield sorted(each[1] for each in first), sorted(each[1] for each in second)


def in_order(start: int, step: int) -> list[tuple[Any, int] | int]:
    found: list[tuple[Any, int] | int] = []
    for number in range(start, 40, step):
        found += [((f"key {number % 3}", number, 10 * number), 10 * number), 10 * number - 5]
    return found


def joins(env: StreamExecutionEnvironment) -> None:
    """Join two half-read sources; the test compares only that no pair is lost or comes twice, not which pairs have met
    by then.
    """
    one = feed(env, in_order(0, 1), 41, TRIPLE)
    other = feed(env, in_order(1, 2), 17, TRIPLE, name="other")
    key = Types.STRING()
    near = one.key_by(first, key).interval_join(other.key_by(first, key)).between(ms(-60), ms(90))
    keep_named(near.process(Pair()), "interval")
    where = one.join(other).where(first, key).equal_to(first, key)
    tumbling = TumblingEventTimeWindows.of(ms(100))
    keep_named(where.window(tumbling).apply(lambda left, right: (left[1], right[1])), "join")
    grouped = one.co_group(other).where(first, key).equal_to(first, key)
    keep_named(grouped.window(SlidingEventTimeWindows.of(ms(100), ms(50))).apply(Lists()), "co-group")


# -- columns

SCHEMA: Final = pa.schema([("k", pa.string()), ("n", pa.int64()), ("x", pa.float64()), ("ts", pa.timestamp("ms"))])
COLUMN_ROW: Final = Types.ROW_NAMED(
    ["k", "n", "x", "ts"], [Types.STRING(), Types.LONG(), Types.DOUBLE(), Types.SQL_TIMESTAMP()]
)


def _column_items(start: int, step: int) -> list[tuple[Any, int] | int]:
    epoch = datetime.fromisoformat("2024-01-01")
    return [
        (
            Row(
                k=None if number % 7 == 6 else f"key {number % 5}",
                n=number,
                x=number / 4,
                ts=epoch + timedelta(milliseconds=20 * number),
            ),
            20 * number,
        )
        for number in range(start, 80, step)
    ]


def columns(env: StreamExecutionEnvironment, name: str = "feed", start: int = 0, step: int = 1) -> ColumnStream:
    items = _column_items(start, step)
    return feed(env, items, len(items) // 2, COLUMN_ROW, name=name).to_arrow(SCHEMA)


def column_aggregations(env: StreamExecutionEnvironment) -> None:
    """Build aggregations of columns whose running results come per row."""
    by_key = columns(env).key_by("k")
    for name, stream in (
        ("sum", by_key.sum("n")),
        ("sum of floats", by_key.sum("x")),
        ("min", by_key.min("n")),
        ("max", by_key.max("x")),
        ("max_by", by_key.max_by("n")),
        ("count", by_key.count()),
    ):
        keep(stream.uid(name).to_records(), name)


BATCH_ROWS, NUM_BATCHES = 300, 12


def _batches(subtask: int, parallelism: int) -> Iterator[pa.RecordBatch]:
    """Yield large batches: aggregations keep their state in arrays."""
    for start in range(0, BATCH_ROWS * NUM_BATCHES, BATCH_ROWS):
        numbers = range(start, start + BATCH_ROWS)
        keys = [None if number % 7 == 6 else f"key {number % 5}" for number in numbers]
        columns = {
            "k": keys,
            "g": [number % 3 for number in numbers],
            "n": list(numbers),
            "x": [number / 4 for number in numbers],
        }
        yield pa.record_batch(columns)


def paced(batch: pa.RecordBatch) -> pa.RecordBatch:
    pace("batches", 0.05)
    return batch


def is_shown(row: Row) -> bool:
    """Whether a running result is looked at: few are."""
    return sum(map(float, row[1:])) % 40 == 0


def column_batches(env: StreamExecutionEnvironment) -> None:
    schema = pa.schema([("k", pa.string()), ("g", pa.int64()), ("n", pa.int64()), ("x", pa.float64())])
    rows = env.from_arrow(_batches, schema).uid("batches").map_batches(paced, schema).uid("paced")
    for key in ("k", "g"):
        by_key = rows.key_by(key)
        for name, stream in (
            ("sum", by_key.sum("n")),
            ("sum of floats", by_key.sum("x")),
            ("min", by_key.min("n")),
            ("max_by", by_key.max_by("x")),
            ("count", by_key.count()),
        ):
            label = f"{name} by {key}"
            keep(stream.uid(label).to_records().filter(is_shown).uid(f"shown {label}"), label)


def column_windows(env: StreamExecutionEnvironment) -> None:
    """Build windows of columns without late rows: the watermark is far behind."""
    rows = columns(env).with_event_time("ts", Duration.of_millis(10_000))
    by_key = rows.key_by("k")
    tumbling, sliding = TumblingEventTimeWindows.of(ms(500)), SlidingEventTimeWindows.of(ms(600), ms(200))
    all_kinds = {
        "total": ("n", "sum"),
        "mean": ("x", "mean"),
        "least": ("n", "min"),
        "most": ("x", "max"),
        "one": ("ts", "first"),
        "last": ("n", "last"),
        "num": "count",
    }
    # Two-step windows, one-step windows of sessions and with a side output for late rows, windows of all rows.
    keep(by_key.window(tumbling).agg(**all_kinds).uid("tumbling").to_records(), "tumbling")
    keep(by_key.window(sliding).agg(**all_kinds).uid("sliding").to_records(), "sliding")
    sessions = by_key.window(EventTimeSessionWindows.with_gap(ms(120)))
    keep(sessions.agg(total=("n", "sum"), num="count", names=("k", "max")).uid("sessions").to_records(), "sessions")
    one_step = by_key.window(tumbling).side_output_late_data(OutputTag("late"))
    keep(one_step.agg(total=("n", "sum"), last=("x", "last")).uid("one step").to_records(), "one step")
    keep(rows.window_all(tumbling).agg(total=("n", "sum"), num="count").uid("all").to_records(), "all")


def column_joins(env: StreamExecutionEnvironment) -> None:
    one = columns(env).with_event_time("ts", Duration.of_millis(10_000))
    other = columns(env, "other", 1, 3).with_event_time("ts", Duration.of_millis(10_000))
    window = TumblingEventTimeWindows.of(ms(500))
    for how in ("inner", "outer"):
        joined = one.join(other, how=how).where("k").equal_to("k").window(window)
        keep(joined.select(n=("left", "n"), m=("right", "n")).uid(how).to_records(), how)

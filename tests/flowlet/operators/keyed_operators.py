"""Every operator that keeps state by key: a small job for each, over one literal input.

The clock shows 0 for the first part of the input, 9 for the second and 10 for the third: states that expire after 10 ms
lose what the first part wrote, and keep what the second one wrote.  For operators that go by the clock it goes on
by itself at the end.

Side:   any.
Units:  milliseconds.
Absent: asynchronous functions, which have no keyed state.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa

from flowlet.common import Row, Time, Types
from flowlet.datastream import (
    AggregateFunction,
    AllWindowFunction,
    CoFlatMapFunction,
    CoGroupFunction,
    CoMapFunction,
    ConnectedStreams,
    DataStream,
    FilterFunction,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeyedStream,
    MapFunction,
    OutputTag,
    ProcessJoinFunction,
    ProcessWindowFunction,
    ReduceFunction,
    RuntimeContext,
    WindowFunction,
)
from flowlet.datastream.column_stream import ColumnStream
from flowlet.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from flowlet.datastream.window import (
    ContinuousEventTimeTrigger,
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TimeEvictor,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)

# Records of a key, a number and a timestamp; watermarks.  A watermark is repeated behind a stop: a checkpoint has none.
ITEMS: Final[list[Any]] = [
    *[("a", 1, 3), ("b", 2, 9), ("c", 7, 1), 5, ("a", 4, 12), ("d", 6, 8), ("e", 9, 14), ("f", 5, 7), ("g", 3, 11)],
    *[5, ("b", 8, 16), ("a", 2, 17), ("h", 1, 6), ("c", 3, 4), 10, ("d", 5, 20), ("e", 9, 18), ("a", 6, 9)],
    *[10, ("a", 5, 19), ("f", 2, 24), ("b", 9, 11), ("h", 8, 25), ("c", 4, 33), 20, ("d", 1, 26), ("i", 6, 41)],
]
LATE: Final = [("c", 3, 4), ("a", 6, 9)]
TTL: Final = Time.milliseconds(10)


# -- functions with state


def expiring(descriptor: Any) -> Any:
    update = StateTtlConfig.UpdateType.OnCreateAndWrite
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(TTL).set_update_type(update).build())
    return descriptor


def plus(one: int, other: int) -> int:
    return one + other


class Numbers(AggregateFunction):
    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: Any, accumulator: list[int]) -> list[int]:
        return sorted([*accumulator, value if isinstance(value, int) else value[1]])

    def get_result(self, accumulator: list[int]) -> Any:
        return tuple(accumulator)

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        return sorted([*acc_a, *acc_b])


LONG, LONGS = Types.LONG(), Types.LIST(Types.LONG())
# By kind: the state of a context, how a number is added, how the content is read.
STATES: Final[dict[str, tuple[Callable[..., Any], Callable[[Any, int], None], Callable[[Any], Any]]]] = {
    "value": (
        lambda ctx, name, with_ttl: ctx.get_state(with_ttl(ValueStateDescriptor(name, LONGS))),
        lambda state, number: state.update([*(state.value() or []), number]),
        lambda state: state.value(),
    ),
    "list": (
        lambda ctx, name, with_ttl: ctx.get_list_state(with_ttl(ListStateDescriptor(name, LONG))),
        lambda state, number: state.add(number),
        list,
    ),
    "map": (
        lambda ctx, name, with_ttl: ctx.get_map_state(with_ttl(MapStateDescriptor(name, LONG, LONG))),
        lambda state, number: state.put(number % 3, number),
        lambda state: sorted(state.items()),
    ),
    "reducing": (
        lambda ctx, name, with_ttl: ctx.get_reducing_state(with_ttl(ReducingStateDescriptor(name, plus, LONG))),
        lambda state, number: state.add(number),
        lambda state: state.get(),
    ),
    "aggregating": (
        lambda ctx, name, with_ttl: ctx.get_aggregating_state(
            with_ttl(AggregatingStateDescriptor(name, Numbers(), LONGS))
        ),
        lambda state, number: state.add(number),
        lambda state: state.get(),
    ),
}


class Show(KeyedProcessFunction):
    """Shows a state that lasts and one that expires, and adds to them."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def open(self, runtime_context: RuntimeContext) -> None:
        make, self.add, self.read = STATES[self.kind]
        self.states = (
            make(runtime_context, "lasting", lambda descriptor: descriptor),
            make(runtime_context, "expiring", expiring),
        )

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        yield value, *map(self.read, self.states)
        for state in self.states:
            self.add(state, value[1])


class Counts:
    """Counts the records of a key, and those of the last milliseconds."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.recent = runtime_context.get_state(expiring(ValueStateDescriptor("recent", Types.LONG())))

    def counted(self, value: Any) -> tuple[Any, int, int]:
        count, recent = (self.count.value() or 0) + 1, (self.recent.value() or 0) + 1
        self.count.update(count)
        self.recent.update(recent)
        return value[0], count, recent


class CountMap(Counts, MapFunction):
    def map(self, value: Any) -> Any:
        return self.counted(value)


class CountFlatMap(Counts, FlatMapFunction):
    def flat_map(self, value: Any) -> Iterator[Any]:
        yield from [self.counted(value)] * 2


class First(Counts, FilterFunction):
    def filter(self, value: Any) -> bool:
        return self.counted(value)[2] == 1


class CountReduce(Counts, ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return (*self.counted(value2)[:2], value1[1] + value2[1])


class CountBothMap(Counts, CoMapFunction):
    def map1(self, value: Any) -> Any:
        return self.counted(value)

    map2 = map1


class CountBothFlatMap(Counts, CoFlatMapFunction):
    def flat_map1(self, value: Any) -> Iterator[Any]:
        yield self.counted(value)

    flat_map2 = flat_map1


class CountBothProcess(Counts, KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(value[2] + 9)
        yield self.counted(value)

    process_element2 = process_element1

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield "timer", ctx.get_current_key(), timestamp


RULES: Final = MapStateDescriptor("rules", Types.STRING(), Types.LONG())


class CountByRules(Counts, KeyedBroadcastProcessFunction):
    """Shows the rules at the end: before, there is no order between them and the records."""

    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(1_000)
        yield self.counted(value)

    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(RULES).put(f"{value}", value[1])

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key(), self.count.value(), sorted(ctx.get_broadcast_state(RULES).items())


class Alarm(KeyedProcessFunction):
    """Has timers of event time, some of which are deleted."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.numbers = runtime_context.get_list_state(ListStateDescriptor("numbers", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self.numbers.add(value[1])
        for timestamp in (value[2] + 4, value[2] + 10, value[2] + 100):
            ctx.timer_service().register_event_time_timer(timestamp)
        if value[1] % 2:
            ctx.timer_service().delete_event_time_timer(value[2] + 10)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield timestamp, ctx.get_current_key(), list(self.numbers)


class ClockAlarm(KeyedProcessFunction):
    """Has a timer of the clock for each record."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.numbers = runtime_context.get_map_state(MapStateDescriptor("numbers", Types.LONG(), Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self.numbers.put(value[2], value[1])
        ctx.timer_service().register_processing_time_timer(value[2])

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield timestamp, ctx.get_current_key(), self.numbers.get(timestamp)


# -- windows and joins


def add(one: Any, other: Any) -> Any:
    return one[0], one[1] + other[1], min(one[2], other[2])


class Apply(WindowFunction, AllWindowFunction):
    def apply(self, *arguments: Any) -> Iterator[Any]:
        *_, window, elements = arguments
        yield window.max_timestamp(), sorted(elements)


class ShowWindow(ProcessWindowFunction):
    """The records of a window, with state of the window and of the key."""

    def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Iterable[Any]) -> Iterator[Any]:
        evaluations = context.window_state().get_state(ValueStateDescriptor("evaluations", Types.LONG()))
        total = context.global_state().get_reducing_state(ReducingStateDescriptor("total", plus, Types.LONG()))
        recent = context.global_state().get_state(expiring(ValueStateDescriptor("recent", Types.LONG())))
        evaluations.update((evaluations.value() or 0) + 1)
        total.add(1)
        recent.update((recent.value() or 0) + 1)
        yield key, context.window().start, evaluations.value(), total.get(), recent.value(), sorted(elements)

    def clear(self, context: ProcessWindowFunction.Context) -> None:
        context.window_state().get_state(ValueStateDescriptor("evaluations", Types.LONG())).clear()


class ShowSession(ProcessWindowFunction):
    """Sessions that merge have no state of their own."""

    def process(self, key: Any, context: ProcessWindowFunction.Context, elements: Iterable[Any]) -> Iterator[Any]:
        yield key, context.window().start, context.window().end, sorted(elements)


class Threshold(Trigger[Any, Any]):
    """Fires when the numbers of the records add up to a limit; its sum is state of the window."""

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        total: Any = ctx.get_partitioned_state(ReducingStateDescriptor("sum", plus, Types.LONG()))
        total.add(element[1])
        if total.get() < 9:
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


class Pair(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Iterator[Any]:
        yield left, right, ctx.get_left_timestamp(), ctx.get_right_timestamp()


class Lists(CoGroupFunction):
    def co_group(self, first: Iterable[Any], second: Iterable[Any]) -> Iterator[Any]:
        yield sorted(first), sorted(second)


# -- the rows


Rows = dict[str, Callable[["Streams"], DataStream]]


def ms(number: int) -> Time:
    return Time.milliseconds(number)


def first(record: Any) -> Any:
    return record[0]


def row_of(record: Any) -> Row:
    return Row(k=record[0], n=record[1])


SCHEMA: Final = pa.schema([("k", pa.string()), ("n", pa.int64())])
TRIPLE: Final = Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG()])
ROW: Final = Types.ROW_NAMED(["k", "n"], [Types.STRING(), Types.LONG()])
BY_CLOCK: Final = TumblingProcessingTimeWindows.of(ms(5))
TUMBLING, SLIDING = TumblingEventTimeWindows.of(ms(5)), SlidingEventTimeWindows.of(ms(10), ms(5))
WIDE, SESSIONS, GLOBAL = (
    TumblingEventTimeWindows.of(ms(20)),
    EventTimeSessionWindows.with_gap(ms(6)),
    GlobalWindows.create(),
)


class Streams:
    """The streams that rows begin with."""

    def __init__(self, records: DataStream) -> None:
        self.records = records

    @property
    def keyed(self) -> KeyedStream:
        return self.records.key_by(first, Types.STRING())

    def sides(self) -> "tuple[Streams, Streams]":
        """Two streams without the late records: what is late depends on the order between the streams."""
        in_time = self.records.filter(lambda record: record not in LATE).set_parallelism(1)
        even, odd = in_time.filter(lambda record: record[1] % 2 == 0), in_time.filter(lambda record: record[1] % 2 == 1)
        return Streams(even.set_parallelism(1)), Streams(odd.set_parallelism(1))

    @property
    def connected(self) -> ConnectedStreams:
        left, right = self.sides()
        return left.keyed.connect(right.keyed)

    @property
    def columns(self) -> ColumnStream:
        rows = self.records.map(row_of, output_type=ROW).set_parallelism(1)
        return rows.to_arrow(SCHEMA).set_parallelism(1)


def by_rules(streams: Streams) -> DataStream:
    left, right = streams.sides()
    return left.keyed.connect(right.records.broadcast(RULES)).process(CountByRules())


def late_too(streams: Streams) -> DataStream:
    late = OutputTag("late", TRIPLE)
    windows = streams.keyed.window(TUMBLING).allowed_lateness(5).side_output_late_data(late)
    shown = windows.process(ShowWindow())
    return shown.union(shown.get_side_output(late).map(lambda record: ("late", record)))


def interval_join(streams: Streams) -> DataStream:
    left, right = streams.sides()
    return left.keyed.interval_join(right.keyed).between(ms(-20), ms(20)).process(Pair())


def window_join(streams: Streams) -> DataStream:
    left, right = streams.sides()
    windows = left.records.join(right.records).where(first).equal_to(first).window(WIDE)
    return windows.apply(lambda one, other: (one, other))


def co_group(streams: Streams) -> DataStream:
    left, right = streams.sides()
    return left.records.co_group(right.records).where(first).equal_to(first).window(SLIDING).apply(Lists())


def column_join(streams: Streams) -> DataStream:
    left, right = streams.sides()
    windows = left.columns.join(right.columns, how="outer").where("k").equal_to("k").window(WIDE)
    return windows.select(n=("left", "n"), m=("right", "n")).to_records()


def column_windows(streams: Streams, assigner: Any) -> DataStream:
    chosen: dict[str, Any] = {"total": ("n", "sum"), "mean": ("n", "mean"), "last": ("n", "last"), "num": "count"}
    return streams.columns.key_by("k").window(assigner).agg(**chosen).to_records()


def late_columns_too(streams: Streams) -> DataStream:
    late = OutputTag("late")
    shown = streams.columns.key_by("k").window(TUMBLING).side_output_late_data(late).agg(total=("n", "sum"))
    return shown.to_records().union(shown.get_side_output(late))


_RUNNING: Final[Rows] = {
    "sum": lambda streams: streams.keyed.sum(1),
    "count": lambda streams: streams.keyed.count(),
    "min": lambda streams: streams.keyed.min(1),
    "max": lambda streams: streams.keyed.max(1),
    "min_by": lambda streams: streams.keyed.min_by(1),
    "max_by": lambda streams: streams.keyed.max_by(1),
    "reduce": lambda streams: streams.keyed.reduce(add),
    "reduce with state": lambda streams: streams.keyed.reduce(CountReduce()),
}
_FUNCTIONS: Final[Rows] = {
    "value": lambda streams: streams.keyed.process(Show("value")),
    "list": lambda streams: streams.keyed.process(Show("list")),
    "map": lambda streams: streams.keyed.process(Show("map")),
    "reducing": lambda streams: streams.keyed.process(Show("reducing")),
    "aggregating": lambda streams: streams.keyed.process(Show("aggregating")),
    "rich map": lambda streams: streams.keyed.map(CountMap()),
    "rich flat_map": lambda streams: streams.keyed.flat_map(CountFlatMap()),
    "rich filter": lambda streams: streams.keyed.filter(First()),
    "connected map": lambda streams: streams.connected.map(CountBothMap()),
    "connected flat_map": lambda streams: streams.connected.flat_map(CountBothFlatMap()),
    "connected process": lambda streams: streams.connected.process(CountBothProcess()),
    "broadcast": by_rules,
    "timers": lambda streams: streams.keyed.process(Alarm()),
}
_WINDOWS: Final[Rows] = {
    "tumbling reduce": lambda streams: streams.keyed.window(TUMBLING).reduce(add),
    "tumbling aggregate": lambda streams: streams.keyed.window(TUMBLING).aggregate(Numbers()),
    "tumbling apply": lambda streams: streams.keyed.window(TUMBLING).apply(Apply()),
    "tumbling process": lambda streams: streams.keyed.window(TUMBLING).process(ShowWindow()),
    "reduce and process": lambda streams: streams.keyed.window(TUMBLING).reduce(add, ShowWindow()),
    "lateness": late_too,
    "sliding": lambda streams: streams.keyed.window(SLIDING).aggregate(Numbers()),
    "session reduce": lambda streams: streams.keyed.window(SESSIONS).reduce(add),
    "session process": lambda streams: streams.keyed.window(SESSIONS).process(ShowSession()),
    "count window": lambda streams: streams.keyed.count_window(2).reduce(add),
    "sliding count window": lambda streams: streams.keyed.count_window(3, 2).apply(Apply()),
    "global": lambda streams: (
        streams.keyed.window(GLOBAL).trigger(PurgingTrigger.of(CountTrigger.of(2))).aggregate(Numbers())
    ),
    "trigger with state": lambda streams: streams.keyed.window(GLOBAL).trigger(Threshold()).apply(Apply()),
    "continuous trigger": lambda streams: (
        streams.keyed.window(WIDE).trigger(ContinuousEventTimeTrigger.of(ms(5))).aggregate(Numbers())
    ),
    "evictor": lambda streams: streams.keyed.window(WIDE).evictor(TimeEvictor.of(ms(5))).apply(Apply()),
    "window of all": lambda streams: streams.records.window_all(TUMBLING).apply(Apply()),
}
_JOINS: Final[Rows] = {
    "interval join": interval_join,
    "window join": window_join,
    "co-group": co_group,
}
_COLUMNS: Final[Rows] = {
    "column sum": lambda streams: streams.columns.key_by("k").sum("n").to_records(),
    "column max_by": lambda streams: streams.columns.key_by("k").max_by("n").to_records(),
    "column count": lambda streams: streams.columns.key_by("k").count().to_records(),
    "column tumbling": partial(column_windows, assigner=TUMBLING),
    "column sliding": partial(column_windows, assigner=SLIDING),
    "column sessions": partial(column_windows, assigner=SESSIONS),
    "column lateness": late_columns_too,
    "column window of all": lambda streams: streams.columns.window_all(TUMBLING).agg(total=("n", "sum")).to_records(),
    "column join": column_join,
}
_BY_CLOCK: Final[Rows] = {
    "timers of the clock": lambda streams: streams.keyed.process(ClockAlarm()),
    "windows of the clock": lambda streams: streams.keyed.window(BY_CLOCK).reduce(add),
    "column windows of the clock": partial(column_windows, assigner=BY_CLOCK),
}
# Those of one job, by its name.
JOBS: Final[dict[str, Rows]] = {
    "running results": _RUNNING,
    "functions": _FUNCTIONS,
    "windows": _WINDOWS,
    "joins": _JOINS,
    "columns": _COLUMNS,
    "by the clock": _BY_CLOCK,
}
OPERATORS: Final[Rows] = {name: make for rows in JOBS.values() for name, make in rows.items()}
# How many results the clock brings; the end of the input would bring none of them.
NUM_BY_CLOCK: Final = {"timers of the clock": 22, "windows of the clock": 20, "column windows of the clock": 20}

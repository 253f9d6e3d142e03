"""Programs with keyed state, timers, broadcast state and state of subtasks, each with a savepoint of its own."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple

import numpy as np

from flowlet.common import Row, Time, Types
from flowlet.datastream import (
    BroadcastProcessFunction,
    CheckpointedFunction,
    CoProcessFunction,
    FlatMapFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeyedStream,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from flowlet.datastream.functions import AggregateFunction, ReduceFunction
from flowlet.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tests.savepoints.stage import STAGE, feed, keep_named

NUM_RECORDS, NUM_KEYS, HALF = 40, 6, 20
PAIR: Final = Types.TUPLE([Types.STRING(), Types.LONG()])
AT_THE_END: Final = 10**15  # event time
RULES: Final = MapStateDescriptor("rules", Types.STRING(), Types.LONG())
PAIRS: Final[list[tuple[Any, int] | int]] = [
    ((f"key {number % NUM_KEYS}", number), 10 * number) for number in range(NUM_RECORDS)
]
PAUSE_S: Final = 0.05
DAY: Final = datetime.fromisoformat("2024-01-01")
MOMENT: Final = datetime.fromisoformat("2024-01-02T03:04:05.000006")


class Color(Enum):
    RED = 1
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True)
class Place:
    number: int
    color: Color


@dataclass
class Total:
    count: int = 0
    tags: list[Color] = field(default_factory=list)


class Seen(NamedTuple):
    color: Color
    number: int


class Plain:
    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"Plain({self.number})"


class Sum(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> str:
        return f"{accumulator[0]} of {accumulator[1]}"

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]


def plus(one: int, other: int) -> int:
    return one + other


def first(pair: Any) -> Any:
    return pair[0]


def keyed(env: StreamExecutionEnvironment, **arguments: Any) -> KeyedStream:
    return feed(env, PAIRS, HALF, PAIR, **arguments).key_by(first, Types.STRING())


# -- each kind of state


def with_ttl(descriptor: Any, ttl: Time, *, cleans: bool = False) -> Any:
    builder = StateTtlConfig.new_builder(ttl).set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)
    descriptor.enable_time_to_live((builder.cleanup_full_snapshot() if cleans else builder).build())
    return descriptor


class EachState(KeyedProcessFunction):
    """Emits what each state has, behind each record."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("value", Types.LONG()))
        self.elements = runtime_context.get_list_state(
            ListStateDescriptor("list", Types.TUPLE([Types.STRING(), Types.DOUBLE()]))
        )
        self.map = runtime_context.get_map_state(MapStateDescriptor("map", Types.STRING(), Types.LIST(Types.LONG())))
        self.reducing = runtime_context.get_reducing_state(ReducingStateDescriptor("reducing", plus, Types.LONG()))
        self.aggregating = runtime_context.get_aggregating_state(
            AggregatingStateDescriptor("aggregating", Sum(), Types.TUPLE([Types.LONG(), Types.LONG()]))
        )
        self.row = runtime_context.get_state(
            ValueStateDescriptor(
                "row",
                Types.ROW_NAMED(
                    ["text", "bytes", "day"], [Types.STRING(), Types.PICKLED_BYTE_ARRAY(), Types.SQL_DATE()]
                ),
            )
        )

    def process_element(self, value: tuple[str, int], ctx: KeyedProcessFunction.Context) -> Any:
        key, number = value
        self.value.update((self.value.value() or 0) + number)
        self.elements.add((f"ä{number}", number / 4))
        self.map.put(f"{number % 3}", [*(self.map.get(f"{number % 3}") or []), number])
        self.reducing.add(number)
        self.aggregating.add(number)
        row = self.row.value()
        self.row.update(Row(text=f"{number}", bytes=b"\x00%d" % number, day=date(2024, 2, 29) + timedelta(number)))
        found = self.value.value(), list(self.elements), sorted(self.map.items())
        yield key, *found, self.reducing.get(), self.aggregating.get(), row


class ObjectStates(KeyedProcessFunction):
    """Has states without declared types: objects of classes of a module, and of Python's own."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("value"))
        self.elements = runtime_context.get_list_state(ListStateDescriptor("list"))
        self.map = runtime_context.get_map_state(MapStateDescriptor("map"))
        self.reducing = runtime_context.get_reducing_state(ReducingStateDescriptor("reducing", plus))
        self.aggregating = runtime_context.get_aggregating_state(AggregatingStateDescriptor("aggregating", Sum()))
        self.plain = runtime_context.get_state(ValueStateDescriptor("plain"))

    def process_element(self, value: tuple[str, int], ctx: KeyedProcessFunction.Context) -> Any:
        key, number = value
        color = Color.RED if number % 2 else Color.BLUE
        total = self.value.value() or Total()
        total.count += 1
        total.tags.append(color)
        self.value.update(total)
        self.elements.add(Seen(color, number))
        self.elements.add({"a": [None, True, 2**70, 1.5, b"x", Decimal("1.50"), MOMENT, time_of_day(1, 2)]})
        self.map.put(Place(number % 3, color), Level.HIGH if number % 5 else Level.LOW)
        self.reducing.add(number)
        self.aggregating.add(number)
        plain = self.plain.value()
        self.plain.update(Plain(number))
        is_same = type(total) is Total and all(tag in Color for tag in total.tags)
        is_same = is_same and all(type(place) is Place for place, _ in self.map.items())
        places = sorted(f"{place}={level!r}" for place, level in self.map.items())
        yield key, is_same, total, list(self.elements), places, self.reducing.get(), self.aggregating.get(), plain


class ExpiringStates(KeyedProcessFunction):
    """Entries that have expired between the halves, and some that never do."""

    def open(self, runtime_context: RuntimeContext) -> None:
        def states(name: str, ttl: Time) -> tuple[Any, Any, Any]:
            return (
                runtime_context.get_state(with_ttl(ValueStateDescriptor(f"{name} value", Types.LONG()), ttl)),
                runtime_context.get_list_state(with_ttl(ListStateDescriptor(f"{name} list", Types.LONG()), ttl)),
                runtime_context.get_map_state(
                    with_ttl(MapStateDescriptor(f"{name} map", Types.STRING(), Types.LONG()), ttl)
                ),
            )

        self.short, self.long = states("short", Time.milliseconds(1)), states("long", Time.days(36_500))
        self.cleaned = runtime_context.get_state(
            with_ttl(ValueStateDescriptor("cleaned"), Time.days(36_500), cleans=True)
        )

    def process_element(self, value: tuple[str, int], ctx: KeyedProcessFunction.Context) -> Any:
        key, number = value
        if number >= HALF:
            yield (
                key,
                *[(each[0].value(), list(each[1]), sorted(each[2].items())) for each in (self.short, self.long)],
                self.cleaned.value(),
            )
        if number < HALF:
            for state, elements, mapped in (self.short, self.long):
                state.update(number)
                elements.add(number)
                mapped.put(f"{number}", number)
            self.cleaned.update(f"{number}")


def each_state(env: StreamExecutionEnvironment) -> None:
    pairs = keyed(env)
    keep_named(pairs.process(EachState()), "typed")
    keep_named(pairs.process(ObjectStates()), "objects")


class LargeStates(KeyedProcessFunction):
    """Arrays and texts that are too large to lie in the manifest."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.array = runtime_context.get_state(ValueStateDescriptor("array"))
        self.text = runtime_context.get_state(ValueStateDescriptor("text", Types.STRING()))

    def process_element(self, value: tuple[str, int], ctx: KeyedProcessFunction.Context) -> Any:
        array, text = self.array.value(), self.text.value() or ""
        if array is None:
            array = np.zeros(2_000)
        array[value[1]] = value[1] + 0.5
        self.array.update(array)
        self.text.update(text + "ö" * 2_000)
        yield value[0], float(array.sum()), len(text), set(text)


def large_states(env: StreamExecutionEnvironment) -> None:
    keep_named(keyed(env).process(LargeStates()), "large")


def expiring_states(env: StreamExecutionEnvironment) -> None:
    keep_named(keyed(env, pause_s=PAUSE_S).process(ExpiringStates()), "expiring")


# -- each type of keys


class Count(KeyedProcessFunction):
    """Counts the records of a key, in a state and in a timer."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        if self.count.value() is None:
            ctx.timer_service().register_event_time_timer(AT_THE_END)
        self.count.update((self.count.value() or 0) + 1)
        yield from ()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield ctx.get_current_key(), self.count.value()


ROW: Final = Types.ROW_NAMED(["a", "b"], [Types.STRING(), Types.LONG()])
KEYS: Final[dict[str, tuple[Any, Any]]] = {
    "str": (lambda pair: pair[0], Types.STRING()),
    "int": (lambda pair: pair[1] % 5 - 2, Types.LONG()),
    "big": (lambda pair: 2**70 + pair[1] % 3, Types.BIG_INT()),
    "bool": (lambda pair: pair[1] % 2 == 0, Types.BOOLEAN()),
    "float": (lambda pair: pair[1] % 4 / 4, Types.DOUBLE()),
    "tuple": (lambda pair: (pair[0], pair[1] % 2), Types.TUPLE([Types.STRING(), Types.LONG()])),
    "row": (lambda pair: Row(a=pair[0], b=pair[1] % 2), ROW),
    "bytes": (lambda pair: bytes([pair[1] % 4, 0]), Types.PICKLED_BYTE_ARRAY()),
    "array": (lambda pair: bytes([pair[1] % 4, 0]), Types.PRIMITIVE_ARRAY(Types.BYTE())),
    "timestamp": (lambda pair: DAY + timedelta(hours=pair[1] % 3), Types.SQL_TIMESTAMP()),
    "date": (lambda pair: date(2024, 1, 1 + pair[1] % 3), Types.SQL_DATE()),
    "decimal": (lambda pair: Decimal(pair[1] % 3) / 8, Types.BIG_DEC()),
    "untyped str": (lambda pair: pair[0], None),
    "untyped int": (lambda pair: pair[1] % 3, None),
    "untyped tuple": (lambda pair: (pair[0], None, pair[1] % 2), None),
    "untyped row": (lambda pair: Row(pair[0], pair[1] % 2), None),
    "untyped datetime": (lambda pair: datetime(2024, 1, 1, pair[1] % 3, tzinfo=UTC), None),
    "enum": (lambda pair: Color.RED if pair[1] % 2 else Color.BLUE, None),
    "dataclass": (lambda pair: Place(pair[1] % 2, Color.BLUE), None),
    "named tuple": (lambda pair: Seen(Color.RED, pair[1] % 2), None),
    "none": (lambda pair: None if pair[1] % 2 else "odd", None),
}


def each_key(env: StreamExecutionEnvironment) -> None:
    pairs = feed(env, PAIRS, HALF, PAIR)
    for name, (selector, key_type) in KEYS.items():
        keep_named(pairs.key_by(selector, key_type).process(Count()), name)


# -- timers


class Timers(KeyedProcessFunction):
    """Timers of both kinds; some fire in front of the savepoint, some behind it, and some are deleted."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.numbers = runtime_context.get_list_state(ListStateDescriptor("numbers", Types.LONG()))

    def process_element(self, value: tuple[str, int], ctx: KeyedProcessFunction.Context) -> Any:
        number = value[1]
        self.numbers.add(number)
        for timer in (10 * number + 35, 10 * number + 300, 10 * number + 500):
            ctx.timer_service().register_event_time_timer(timer)
        if number % 2:
            ctx.timer_service().delete_event_time_timer(10 * number + 300)
        yield from ()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield timestamp, ctx.get_current_key(), list(self.numbers)


class Alarms(KeyedProcessFunction):
    """Timers of the clock, one per key; they have not fired when the savepoint is taken, if that is soon."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.has_alarm = runtime_context.get_state(ValueStateDescriptor("has alarm", Types.BOOLEAN()))

    def process_element(self, value: tuple[str, int], ctx: KeyedProcessFunction.Context) -> Any:
        if self.has_alarm.value() is None:
            self.has_alarm.update(True)
            ctx.timer_service().register_processing_time_timer(
                int(time.time() * 1000) + (ALARM_MS if STAGE.is_making else 50)
            )
        yield from ()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield ctx.get_current_key(), ctx.time_domain().name, self.has_alarm.value()


ALARM_MS: Final = 15_000
WITH_WATERMARKS: Final[list[tuple[Any, int] | int]] = [
    item for each in PAIRS for item in ((each, each[1]) if isinstance(each, tuple) else ())
]


def timers(env: StreamExecutionEnvironment) -> None:
    pairs = feed(env, WITH_WATERMARKS, 2 * HALF, PAIR, name="with watermarks").key_by(first, Types.STRING())
    keep_named(pairs.process(Timers()), "timers")
    alarms = keyed(env, waits_for=("alarms", NUM_KEYS))
    keep_named(alarms.process(Alarms()), "alarms")


# -- two inputs


class BothKeyed(KeyedCoProcessFunction):
    """The sums of both inputs come with a timer."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.sums = runtime_context.get_map_state(MapStateDescriptor("sums", Types.INT(), Types.LONG()))

    def process_element1(self, value: tuple[str, int], ctx: KeyedCoProcessFunction.Context) -> Any:
        return self.add(1, value, ctx)

    def process_element2(self, value: tuple[str, int], ctx: KeyedCoProcessFunction.Context) -> Any:
        return self.add(2, value, ctx)

    def add(self, number: int, value: tuple[str, int], ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        self.sums.put(number, (self.sums.get(number) or 0) + value[1])
        ctx.timer_service().register_event_time_timer(AT_THE_END)
        yield from ()

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Any:
        yield ctx.get_current_key(), sorted(self.sums.items())


class Both(CoProcessFunction, CheckpointedFunction):
    """Counts both inputs in state of the subtask; the result of a record has its own number alone."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.stored = context.get_operator_state_store().get_list_state(
            ListStateDescriptor("counts", Types.TUPLE([Types.INT(), Types.LONG()]))
        )
        self.counts = dict(self.stored)

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.stored.update(sorted(self.counts.items()))

    def process_element1(self, value: tuple[str, int], ctx: CoProcessFunction.Context) -> Any:
        self.counts[1] = self.counts.get(1, 0) + 1
        yield "first", value, self.counts[1]

    def process_element2(self, value: tuple[str, int], ctx: CoProcessFunction.Context) -> Any:
        self.counts[2] = self.counts.get(2, 0) + 1
        yield "second", value, self.counts[2]


def two_inputs(env: StreamExecutionEnvironment) -> None:
    one, other = feed(env, PAIRS, HALF, PAIR), feed(env, PAIRS[::3], 5, PAIR, name="other")
    keep_named(
        one.key_by(first, Types.STRING()).connect(other.key_by(first, Types.STRING())).process(BothKeyed()), "keyed"
    )
    keep_named(one.connect(other).process(Both()), "both")


class Judge(KeyedBroadcastProcessFunction):
    """A rule changes what records behind it give; which those are is not known, so that only the second half tells."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: tuple[str, int], ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        if value[1] >= HALF:
            yield value, self.count.value(), sorted(ctx.get_broadcast_state(RULES).items())
        ctx.timer_service().register_event_time_timer(AT_THE_END)

    def process_broadcast_element(self, value: tuple[str, int], ctx: KeyedBroadcastProcessFunction.Context) -> Any:
        ctx.get_broadcast_state(RULES).put(*value)
        yield from ()

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Any:
        yield "end", ctx.get_current_key(), self.count.value(), sorted(ctx.get_broadcast_state(RULES).items())


OBJECTS: Final = MapStateDescriptor("objects")


class JudgeUnkeyed(BroadcastProcessFunction):
    """Judges records without keys by rules in broadcast state."""

    def process_element(self, value: tuple[str, int], ctx: BroadcastProcessFunction.ReadOnlyContext) -> Any:
        if value[1] >= HALF:
            yield value, sorted(ctx.get_broadcast_state(OBJECTS).items(), key=repr)

    def process_broadcast_element(self, value: tuple[str, int], ctx: BroadcastProcessFunction.Context) -> Any:
        ctx.get_broadcast_state(OBJECTS).put(Seen(Color.RED, value[1]), Color.BLUE)
        yield from ()


RULE_ITEMS: Final[list[tuple[Any, int] | int]] = [*(((f"rule {number}", number), 0) for number in range(5)), 0]


def broadcast_state(env: StreamExecutionEnvironment) -> None:
    """Broadcast all rules before the savepoint; the source of records waits for them at its half."""
    rules = feed(env, RULE_ITEMS, 5, PAIR, name="rules")
    pairs = feed(env, PAIRS, HALF, PAIR, pause_s=5 * PAUSE_S)
    keep_named(pairs.key_by(first, Types.STRING()).connect(rules.broadcast(RULES)).process(Judge()), "keyed")
    keep_named(pairs.connect(rules.broadcast(OBJECTS)).process(JudgeUnkeyed()).set_parallelism(2), "unkeyed")


# -- state of a subtask


class NumberInLists(FlatMapFunction, CheckpointedFunction):
    """Counts in list state and in union list state; broadcast state has a name, and another list has objects."""

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        store = context.get_operator_state_store()
        self.counts = store.get_list_state(ListStateDescriptor("counts", Types.LONG()))
        self.everywhere = store.get_union_list_state(ListStateDescriptor("everywhere", Types.LONG()))
        self.objects = store.get_list_state(ListStateDescriptor("objects"))
        self.names = store.get_broadcast_state(MapStateDescriptor("names", Types.STRING(), Types.STRING()))
        self.count = sum(self.counts)
        if not context.is_restored():
            self.names.put("name", "value")
            return
        found = list(self.counts), list(self.everywhere), list(self.objects)
        assert found == ([HALF // 2], [HALF // 2] * 2, [Seen(Color.BLUE, HALF // 2), Place(1, Color.RED)]), found

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.counts.update([self.count])
        self.everywhere.update([self.count])
        self.objects.update([Seen(Color.BLUE, self.count), Place(1, Color.RED)])

    def flat_map(self, value: tuple[str, int]) -> Iterator[Any]:
        self.count += 1
        yield value, self.names.get("name")

    def close(self) -> None:
        if STAGE.go_on.is_set():  # at the end of all records
            STAGE.results.append(f"count: {self.count}")


def subtask_state(env: StreamExecutionEnvironment) -> None:
    keep_named(feed(env, PAIRS, HALF, PAIR).rebalance().flat_map(NumberInLists()).set_parallelism(2), "lists")


# -- aggregations of a keyed stream


class AddUp(ReduceFunction):
    def reduce(self, one: Any, other: Any) -> Any:
        return one[0], one[1] + other[1]


def add_rows(one: Row, other: Row) -> Row:
    return Row(a=one["a"], b=one["b"] + other["b"])


def add_dicts(one: Any, other: Any) -> Any:
    return {"key": one["key"], "numbers": one["numbers"] + other["numbers"]}


def add_totals(one: tuple[Place, Total], other: tuple[Place, Total]) -> tuple[Place, Total]:
    return one[0], Total(one[1].count + other[1].count, [*one[1].tags, *other[1].tags])


def as_row(pair: Any) -> Row:
    return Row(a=pair[0], b=pair[1])


def as_dict(pair: Any) -> dict[str, Any]:
    return {"key": pair[0], "numbers": [pair[1]]}


def as_total(pair: Any) -> tuple[Place, Total]:
    return Place(pair[1] % 3, Color.RED), Total(1, [Color.BLUE])


def as_triple(pair: Any) -> tuple[str, int, int]:
    return pair[0], pair[1] % 2, pair[1]


def as_float(pair: Any) -> tuple[str, float]:
    return pair[0], pair[1] / 8


def aggregations(env: StreamExecutionEnvironment) -> None:
    source = feed(env, PAIRS, HALF, PAIR)
    pairs = source.key_by(first, Types.STRING())
    keep_named(pairs.reduce(AddUp()), "reduce")
    keep_named(pairs.reduce(lambda one, other: (one[0], max(one[1], other[1]))), "reduce function")
    keep_named(
        source.map(as_row, output_type=ROW).key_by(lambda row: row["a"], Types.STRING()).reduce(add_rows), "rows"
    )
    keep_named(source.map(as_dict).key_by(lambda each: each["key"]).reduce(add_dicts), "dicts")
    keep_named(source.map(as_total).key_by(first).reduce(add_totals), "objects")
    keep_named(pairs.sum(1), "sum")
    keep_named(pairs.min(1), "min")
    keep_named(pairs.max(1), "max")
    keep_named(pairs.min_by(1), "min_by")
    keep_named(pairs.max_by(1), "max_by")
    keep_named(pairs.count(), "count")
    keep_named(source.map(as_row, output_type=ROW).key_by(lambda row: row["a"], Types.STRING()).sum("b"), "sum of rows")
    floats = source.map(as_float, output_type=Types.TUPLE([Types.STRING(), Types.DOUBLE()])).key_by(
        first, Types.STRING()
    )
    keep_named(floats.sum(1), "sum of floats")
    triples = source.map(as_triple, output_type=Types.TUPLE([Types.STRING(), Types.INT(), Types.LONG()])).key_by(
        first, Types.STRING()
    )
    keep_named(triples.sum(2), "sum of triples")
    keep_named(source.map(as_float).key_by(first).sum(1), "sum without types")

"""A program whose own classes are in its state and its records: ``python -m tests.savepoints.main_program KIND STEP
FOLDER [SAVEPOINT]``.

Its module is ``__main__``, as that of any script; prints what the step gave as JSON.  A ``msgspec.Struct`` of the main
module is missing, and records in flight with ``__slots__`` are: the flowlet that stored these savepoints could not read
them from its own.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple

from flowlet.common import Types
from flowlet.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from flowlet.datastream.functions import AggregateFunction
from flowlet.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from flowlet.datastream.window import CountTrigger, GlobalWindows, PurgingTrigger
from tests.savepoints.jobs import CHECKPOINTS, JOBS, at_work, run_to_its_end, run_to_the_savepoint
from tests.savepoints.keyed_jobs import AT_THE_END
from tests.savepoints.source_jobs import SlowSum
from tests.savepoints.stage import Job, feed, keep, keep_named

NUM_RECORDS, HALF = 24, 12


class Color(Enum):
    RED = 1
    BLUE = "blue"

    def other(self) -> "Color":
        return Color.BLUE if self is Color.RED else Color.RED


@dataclass(frozen=True)
class Place:
    number: int
    color: Color


@dataclass
class Total:
    count: int = 0
    tags: list[Color] = field(default_factory=list)

    def add(self, color: Color) -> None:
        self.count += 1
        self.tags.append(color)


class Seen(NamedTuple):
    color: Color
    number: int


class Kept:
    class Level(IntEnum):
        LOW = 1
        HIGH = 2

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"Kept({self.number})"


@dataclass(kw_only=True)
class Order:
    place: Place
    number: int = 0
    tags: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Slotted:
    number: int
    color: Color = Color.RED


def place_of(number: int) -> Place:
    return Place(number, color_of(number))


def color_of(number: int) -> Color:
    return Color.RED if number % 2 else Color.BLUE


KINDS: Final[dict[str, Callable[[int], Any]]] = {
    "dataclass": place_of,
    "nested": lambda number: Order(place=place_of(number), number=number, tags=[f"{number}"]),
    "slots": lambda number: Slotted(number, color_of(number)),
    "named tuple": lambda number: Seen(color_of(number), number),
    "plain": lambda number: Kept(number),
    "enum": lambda number: Kept.Level(1 + number % 2),
    "mixed": lambda number: (color_of(number), place_of(number) if number % 3 else Kept(number)),
}


IN_FLIGHT: Final = tuple(name for name in KINDS if name != "slots")


def number_of(value: Any) -> int:
    """Return the number of a record of any kind, whose class must be the class of the program that runs, not of another
    program.
    """
    if isinstance(value, tuple) and type(value) is tuple:
        assert value[0] in Color
        return number_of(value[1])
    assert type(value) in (Place, Order, Slotted, Seen, Kept, Kept.Level), type(value)
    if isinstance(value, Kept.Level):
        return int(value)
    if isinstance(value, Order):
        assert type(value.place) is Place
        return value.place.number
    assert getattr(value, "color", Color.RED) in Color
    number: int = value.number
    return number


class Totals(AggregateFunction):
    def create_accumulator(self) -> Total:
        return Total()

    def add(self, value: Color, accumulator: Total) -> Total:
        accumulator.add(value)
        return accumulator

    def get_result(self, accumulator: Total) -> Total:
        return accumulator

    def merge(self, a: Total, b: Total) -> Total:
        return Total(a.count + b.count, a.tags + b.tags)


def merged(one: Seen, other: Seen) -> Seen:
    return Seen(one.color.other(), one.number + other.number)


class EachState(KeyedProcessFunction):
    """Finds objects whose classes are those of the program that runs."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("value"))
        self.elements = runtime_context.get_list_state(ListStateDescriptor("list"))
        self.kinds = runtime_context.get_list_state(ListStateDescriptor("kinds"))
        self.map = runtime_context.get_map_state(MapStateDescriptor("map"))
        self.reducing = runtime_context.get_reducing_state(ReducingStateDescriptor("reducing", merged))
        self.aggregating = runtime_context.get_aggregating_state(AggregatingStateDescriptor("aggregating", Totals()))

    def process_element(self, value: Place, ctx: KeyedProcessFunction.Context) -> Any:
        total, kept = self.value.value() or (Total(), Kept(-1))
        assert type(total) is Total
        assert type(kept) is Kept
        total.add(value.color)
        self.value.update((total, Kept(value.number)))
        self.elements.add(Seen(value.color.other(), value.number))
        assert all(type(each) is Seen and each.color in Color for each in self.elements)
        level = Kept.Level.HIGH if value.number % 2 else Kept.Level.LOW
        self.map.put(Place(value.number % 4, value.color), level)
        assert self.map.get(Place(value.number % 4, value.color)) is level
        self.reducing.add(Seen(value.color, value.number))
        self.aggregating.add(value.color)
        for make in KINDS.values():
            self.kinds.add(make(value.number))
        ctx.timer_service().register_event_time_timer(AT_THE_END)
        yield ctx.get_current_key(), total.count, kept, list(self.elements), self.reducing.get(), self.aggregating.get()
        yield ctx.get_current_key(), list(map(number_of, self.kinds))

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        assert type(ctx.get_current_key()) is Place
        yield "end", ctx.get_current_key(), sorted(f"{place}={level!r}" for place, level in self.map.items())


def key_of(place: Place) -> Place:
    return Place(place.number % 3, Color.RED)


def joined(one: tuple[Color, Place], other: tuple[Color, Place]) -> tuple[Color, Place]:
    return one[0], Place(one[1].number + other[1].number, other[1].color)


def states(env: StreamExecutionEnvironment) -> None:
    numbers = feed(env, [(number, number) for number in range(NUM_RECORDS)], HALF, Types.LONG())
    places = numbers.map(place_of).uid("places")
    keep_named(places.key_by(key_of).process(EachState()), "states")
    pairs = places.map(lambda place: (place.color, place)).uid("pairs")
    keep_named(pairs.key_by(lambda pair: pair[0]).reduce(joined), "reduce")
    windows = (
        pairs.key_by(lambda pair: pair[0]).window(GlobalWindows.create()).trigger(PurgingTrigger.of(CountTrigger.of(5)))
    )
    keep_named(windows.reduce(joined), "windows")


def in_flight(env: StreamExecutionEnvironment) -> None:
    env.disable_operator_chaining()
    source = env.from_collection(list(range(200)), Types.LONG()).uid("numbers")
    for name in IN_FLIGHT:
        records = source.map(KINDS[name]).uid(f"made {name}").key_by(lambda record: number_of(record) % 2)
        keep(records.process(SlowSum(name, number_of)).uid(f"sum {name}"), name)


PROGRAMS: Final = {
    "states": Job(states),
    "in-flight": Job(
        in_flight,
        sources=IN_FLIGHT,
        counts_first=False,
        takes_checkpoint=True,
        options={**CHECKPOINTS, "execution.checkpointing.unaligned.enabled": "true"},
    ),
}


def main(kind: str, step: str, folder: Path, savepoint: str = "") -> None:
    JOBS[kind] = PROGRAMS[kind]
    with at_work(folder):
        if step == "make":
            path, first = run_to_the_savepoint(kind, "hashmap", folder / "made")
            print(json.dumps([str(path.relative_to(folder)), first if PROGRAMS[kind].counts_first else []]))
        else:
            print(json.dumps(run_to_its_end(kind, "hashmap", Path(savepoint) if savepoint else None)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])

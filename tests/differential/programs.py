"""Random programs as data: their inputs, their steps, and the output that is collected.

Side:       pure.
Invariants: a seed always gives one program; every program has one outcome, whatever threads do first (see
            ``_Stream``).
"""

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from flowlet.datastream import KeyedProcessFunction
from tests.differential.functions import function as function_named
from tests.differential.worlds import Box, Label, Point


class Kind(Enum):
    COLLECTION = "from_collection"
    SOURCE = "add_source"
    MAP = "map"
    FILTER = "filter"
    FLAT_MAP = "flat_map"
    PROCESS = "process"
    KEYED_PROCESS = "keyed process"
    REDUCE = "reduce"
    AGGREGATE = "aggregate"
    ASYNC = "ordered_wait"
    EVENT_TIME = "assign_timestamps_and_watermarks"
    CO_MAP = "connected map"
    CO_FLAT_MAP = "connected flat_map"
    CO_PROCESS = "connected process"
    KEYED_CO_PROCESS = "connected keyed process"

    @property
    def is_source(self) -> bool:
        return self in (Kind.COLLECTION, Kind.SOURCE)

    @property
    def is_connected(self) -> bool:
        return self in (Kind.CO_MAP, Kind.CO_FLAT_MAP, Kind.CO_PROCESS, Kind.KEYED_CO_PROCESS)


class Chaining(Enum):
    """A step's wish for its chain."""

    ALWAYS = ""
    HEAD = "start_new_chain"
    NEVER = "disable_chaining"


@dataclass(frozen=True)
class Call:
    """A call of a name in ``functions``, with the arguments behind world and step."""

    name: str
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.arguments))})"


@dataclass(frozen=True)
class Read:
    """An output of a step: the main one, or the output of a tag."""

    step: int
    tag: str | None = None

    def __str__(self) -> str:
        return f"s{self.step}" + (f".get_side_output(TAGS[{self.tag!r}])" if self.tag else "")


@dataclass(frozen=True)
class Step:
    """One operator.

    ``reads``: nothing for a source; several for a union, or the two inputs of connected streams.  ``key``: the
        selector, of ``functions``.
    ``watermarks``: the generator, of event time.  ``capacity``: of async calls.  ``records``: of a collection.
    """

    id: int
    kind: Kind
    reads: tuple[Read, ...] = ()
    call: Call | None = None
    key: str | None = None
    watermarks: Call | None = None
    capacity: int = 1
    records: tuple[Any, ...] = ()
    chaining: Chaining = Chaining.ALWAYS
    is_rebalanced: bool = False

    @property
    def name(self) -> str:
        return f"step-{self.id}"

    @property
    def method(self) -> str:
        return self.kind.value.rpartition(" ")[2]

    @property
    def may_be_chained(self) -> bool:
        """Whether it can run in the task of the step that it reads; that one must allow it, too."""
        is_forward = self.key is None or self.is_forward_by_key
        return len(self.reads) == 1 and is_forward and not self.is_rebalanced and self.chaining is Chaining.ALWAYS

    @property
    def is_forward_by_key(self) -> bool:
        """Whether there is no exchange between one subtask and this one: it takes records one by one, and timers set
        nothing off.
        """
        if self.kind is Kind.REDUCE:
            return True
        if self.kind is not Kind.KEYED_PROCESS or self.call is None:
            return False
        return getattr(function_named(self.call.name), "on_timer", None) in (None, KeyedProcessFunction.on_timer)

    def __str__(self) -> str:
        """The line of Python."""
        first, rest = (str(self.reads[0]), self.reads[1:]) if self.reads else ("", ())
        if self.kind.is_connected:
            text = f"{first}.connect({rest[0]})" + (f".key_by({self.key}, {self.key})" if self.key else "")
        else:
            text = first + (f".union({', '.join(map(str, rest))})" if rest else "")
            text += ".rebalance()" if self.is_rebalanced else ""
            text += f".key_by({self.key})" if self.key else ""
        call = str(self.call)
        match self.kind:
            case Kind.COLLECTION:
                text = f"env.from_collection({list(self.records)!r})"
            case Kind.SOURCE:
                text = f"env.add_source({call})"
            case Kind.ASYNC:
                text = f"AsyncDataStream.ordered_wait({text}, {call}, Time.seconds(60), capacity={self.capacity})"
            case Kind.EVENT_TIME:
                strategy = "no_watermarks()" if self.watermarks is None else f"for_generator({self.watermarks})"
                text += (
                    f".assign_timestamps_and_watermarks(WatermarkStrategy.{strategy}.with_timestamp_assigner({call}))"
                )
            case Kind.AGGREGATE:
                text += f".{call}"
            case _:
                text += f".{self.method}({call})"
        chaining = f".{self.chaining.value}()" if self.chaining.value else ""
        return f"s{self.id} = {text}.name({self.name!r}){chaining}"


@dataclass(frozen=True)
class Program:
    """Steps in the order in which they are added, and the output that is collected."""

    seed: int
    steps: tuple[Step, ...]
    collected: Read

    def __str__(self) -> str:
        return "\n".join([*map(str, self.steps), f"{self.collected}.execute_and_collect()"])

    def step(self, step_id: int) -> Step:
        return next(step for step in self.steps if step.id == step_id)

    def consumers(self, step_id: int) -> list[Step]:
        """Return the steps that read any output of a step, in the order in which they were added."""
        return [step for step in self.steps if any(read.step == step_id for read in step.reads)]

    def is_chained(self, step: Step) -> bool:
        """Whether a step runs in the task of the one that it reads."""
        return step.may_be_chained and self.step(step.reads[0].step).chaining is not Chaining.NEVER

    def head(self, step: Step) -> int:
        """The number of the first step of its task, which names the task."""
        while self.is_chained(step):
            step = self.step(step.reads[0].step)
        return step.id

    def unordered_tasks(self) -> set[int]:
        """The tasks whose input comes in no order, because several streams with records meet there."""
        found: set[int] = set()
        for step in self.steps:  # steps that are read come first
            meets = len([read for read in step.reads if not self._is_empty(read)]) > 1
            if meets or any(self.head(self.step(read.step)) in found for read in step.reads):
                found.add(self.head(step))
        return found

    def with_cells(self) -> "Program":
        """Return this program with shared variables: functions of one task share a variable.  Functions of different
        tasks, which run side by side, share none.
        """
        return replace(self, steps=tuple(self._with_cell(step) for step in self.steps))

    def _with_cell(self, step: Step) -> Step:
        if step.call is None or step.call.name not in _WITH_CELL:
            return step
        return replace(step, call=Call(step.call.name, (f"cell of {self.head(step)}",)))

    def _is_empty(self, read: Read) -> bool:
        step = self.step(read.step)
        return step.kind is Kind.COLLECTION and not step.records


# ---------------------------------------------------------------- records

_ATOMS: Final[Sequence[Callable[[random.Random], Any]]] = (
    lambda rng: rng.randrange(10),
    lambda rng: rng.choice([2**31, -(2**63), 2**64, 10**30]),
    lambda rng: rng.choice(["", "a", "bc", "é😀"]),
    lambda rng: rng.choice([None, True, False, 1.5, -0.0, b"x"]),
)
_RECORDS: Final[Sequence[Callable[[random.Random], Any]]] = (
    *_ATOMS[:3],
    lambda rng: (rng.randrange(3), rng.randrange(10)),
    lambda rng: (rng.choice("abc"), rng.randrange(10), 1.5),
    lambda rng: (rng.randrange(3), [rng.randrange(10)]),
    lambda rng: ((rng.randrange(3), "x"), {"k": rng.randrange(3)}),
    lambda rng: [rng.randrange(10) for _ in range(rng.randrange(3))],
    lambda rng: {"k": rng.randrange(3), "n": rng.randrange(10)},
    lambda rng: {"k": rng.randrange(3), "inner": {"list": [rng.randrange(10)]}},
    lambda rng: Point(rng.randrange(3)),
    lambda rng: Point(rng.randrange(3), [[rng.randrange(10)]]),
    lambda rng: Label(rng.choice("abc"), rng.randrange(10)),
    lambda rng: Box([rng.randrange(10)]),
)
_MAX_RECORDS: Final = 40  # of one stream, unless it is a long one
_LONG_RUNS: Final = (999, 1_000, 1_001, 2_000, 2_001, 3_000)


def _records(rng: random.Random, count: int) -> tuple[Any, ...]:
    if count and rng.random() < 0.3:
        made: list[Callable[[random.Random], Any]] = [*_RECORDS, *_ATOMS]
    else:
        made = [rng.choice([*_RECORDS, *_ATOMS])]
    return tuple(rng.choice(made)(rng) for _ in range(count))


# ---------------------------------------------------------------- steps

# Those without state come first: they may stand where records come in no order.
_ANY_MAPS: Final = ("Identity", "Touch", "Boxed", "Twins", "Entry", "Small")
_MAPS: Final = (
    *_ANY_MAPS,
    *("Pair", "Triple", "Dot", "GrowingList", "KeepAll", "OneDict", "OnePoint"),
    *("TouchTheLast", "ReturnTheLast", "WithCount", "MixedTypes"),
)
_WITH_CELL: Final = frozenset({"WriteCell", "ReadCell", "TouchTheLastOfAll", "TouchCell", "EvenCell", "YieldWithCell"})
_CELL_MAPS: Final = ("WriteCell", "ReadCell", "TouchTheLastOfAll", "TouchCell")
_ANY_FILTERS: Final = ("TouchAll", "SomeSizes")
_FILTERS: Final = (*_ANY_FILTERS, "EveryOther")
_ANY_FLAT_MAPS: Final = ("TwiceInAList", "YieldOneDict", "YieldGrowing", "YieldTouchYield")
_FLAT_MAPS: Final = (*_ANY_FLAT_MAPS, "TupleOfTwo", "SometimesNone", "YieldKept")
_ANY_PROCESSES: Final = ("EmitTouched", "EmitNothing", "EmitBySide")
_PROCESSES: Final = (*_ANY_PROCESSES, "EmitKept", "EmitOneList", "EmitListBySide")
_SIDES: Final = dict.fromkeys(["EmitBySide", "EmitListBySide"], ("left", "right")) | dict.fromkeys(
    ["EmitThenFail", "LastPerKey", "CoEmit"], ("left",)
)
_KEYED: Final = ("DictPerKey", "LastPerKey")
_REDUCES: Final = ("AbsorbInPlace", "TouchBoth", "FreshPair", "OneForAllKeys")
_ASYNCS: Final = ("Answer", "AnswerOneList", "AnswerKept", "NoAnswer")
_SOURCES: Final = ("EmitGrowing", "EmitChanging", "EmitNumbers")
_LONG: Final = {  # kinds that do not gather more and more; their entries in the log are short
    Kind.MAP: (
        *("Identity", "Touch", "Pair", "Triple", "Entry", "Dot", "Small", "OneDict", "OnePoint"),
        *("TouchTheLast", "MixedTypes"),
    ),
    Kind.FILTER: _FILTERS,
    Kind.FLAT_MAP: ("TwiceInAList", "SometimesNone", "YieldTouchYield"),
    Kind.PROCESS: ("EmitTouched", "EmitBySide", "EmitKept"),
    Kind.KEYED_PROCESS: ("DictPerKey", "LastPerKey"),
    Kind.REDUCE: ("TouchBoth", "FreshPair"),
}
_FAILING: Final = {
    Kind.MAP: ("MapFails",),
    Kind.FILTER: ("FilterFails",),
    Kind.FLAT_MAP: ("YieldThenFail", "ReturnOrFail"),
    Kind.PROCESS: ("EmitThenFail",),
    Kind.KEYED_PROCESS: ("KeyedFails",),
    Kind.REDUCE: ("ReduceFails",),
    Kind.ASYNC: ("AnswerFails",),
    Kind.CO_MAP: ("CoMapFails",),
}
# Results per record, where there may be more than one.
_FACTOR: Final = (
    dict.fromkeys(["TwiceInAList", "TupleOfTwo", "YieldTouchYield", "YieldKept", "YieldWithCell", "YieldThenFail"], 2)
    | dict.fromkeys(["EmitTouched", "EmitKept", "EmitListBySide", "LastPerKey", "Answer", "CoYield", "KeyedCoEmit"], 2)
    | dict.fromkeys(["YieldOneDict", "YieldGrowing"], 3)
    | dict.fromkeys(["KeptUntilTimer", "TimerFails"], 5)
)
_SHAPES: Final = {"Pair": "pair", "Triple": "triple", "Entry": "entry", "Dot": "dot"}
_KEEPS_SHAPE: Final = frozenset(
    {"Identity", "EveryOther", "SomeSizes", "SometimesNone", "WriteCell", "TouchAll", "Touch", "TouchTheLast"}
)
_KEYS: Final = {"pair": "first_field", "triple": "first_field", "entry": "k_field", "dot": "n_attribute"}


@dataclass
class _Stream:
    """The known properties of an output.

    ``is_ordered``: False behind the meeting of two streams with records; then functions without state follow, and no
        keys.
    ``says_time``: whether watermarks come before the last one.  ``is_time_unclear``: such a stream has met another one,
        so that nobody can
    say between which records its watermarks come; no timers follow.
    """

    read: Read
    count: int
    shape: str = "any"
    is_ordered: bool = True
    has_timestamps: bool = False
    says_time: bool = False
    is_time_unclear: bool = False


@dataclass
class _Maker:
    seed: int
    rng: random.Random
    is_long: bool = False
    steps: list[Step] = field(default_factory=list)
    streams: list[_Stream] = field(default_factory=list)
    has_failure: bool = False

    def make(self) -> Program:
        self.add_source()
        for _ in range(self.rng.randint(1, 4 if self.is_long else 8)):
            self.add_step()
        if self.rng.random() < 0.25 and not self.has_failure:
            self.add_step(fails=True)
            for _ in range(self.rng.randrange(3)):
                self.add_step()
        return Program(self.seed, tuple(self.steps), self.rng.choice(self.streams[-3:]).read).with_cells()

    # -- sources

    def add_source(self) -> None:
        number = len(self.steps)
        count = self.rng.choice(_LONG_RUNS) if self.is_long else self.rng.randint(1, 12)
        if self.rng.random() < 0.25 and not self.is_long:
            has_timestamps, name = self.rng.random() < 0.5, self.rng.choice(_SOURCES)
            if self.rng.random() < 0.1:
                self.has_failure, name = True, "SourceFails"
            step = Step(number, Kind.SOURCE, call=Call(name, (count, has_timestamps)))
            stream = _Stream(Read(number), count, has_timestamps=has_timestamps, says_time=has_timestamps)
        else:
            step = Step(number, Kind.COLLECTION, records=_records(self.rng, count))
            stream = _Stream(Read(number), count)
        if self.rng.random() < 0.1:
            step = replace(step, chaining=Chaining.NEVER)
        self.steps.append(step)
        self.streams.append(stream)

    def add_nothing(self) -> Read:
        number = len(self.steps)
        self.steps.append(Step(number, Kind.COLLECTION))
        return Read(number)

    # -- steps

    def add_step(self, *, fails: bool = False) -> None:
        rng = self.rng
        # Mostly the last output; at times one that has a reader already.
        upstream = self.streams[-1] if rng.random() < 0.8 else rng.choice(self.streams)
        other = None if fails or self.is_long or rng.random() < 0.96 else self.other_than(upstream)
        if other is not None:
            upstream = replace(upstream, is_ordered=False, shape="any", says_time=upstream.says_time or other.says_time)
        if fails and not upstream.is_ordered:
            return
        kind = self.kind_behind(upstream, fails=fails)
        call = self.call_of(kind, upstream, fails=fails)
        self.has_failure = self.has_failure or fails
        reads = self.reads_of(kind, upstream) if other is None else (upstream.read, other.read)
        step = Step(len(self.steps), kind, reads, call, key=self.key_of(kind, upstream))
        if kind is Kind.ASYNC:
            # The head of its task: what runs before it would run ahead of the results by chance.
            step = replace(step, capacity=rng.choice([1, 2, 100]), chaining=Chaining.HEAD)
        elif kind is Kind.EVENT_TIME and rng.random() < 0.7:
            step = replace(step, watermarks=Call("MakePunctuated", (rng.randint(1, 3), rng.randrange(3))))
        elif rng.random() < 0.1:
            step = replace(step, chaining=rng.choice([Chaining.HEAD, Chaining.NEVER]))
        if len(reads) == 1 and step.key is None and rng.random() < 0.05:
            step = replace(step, is_rebalanced=True)
        self.steps.append(step)
        self.streams += self.outputs_of(step, upstream, 0 if other is None else other.count)

    def other_than(self, upstream: _Stream) -> _Stream | None:
        """Return another stream with records, to make a union of both."""
        others = [stream for stream in self.streams if stream.read != upstream.read]
        return self.rng.choice(others) if others else None

    def kind_behind(self, upstream: _Stream, *, fails: bool) -> Kind:
        kinds: dict[Kind, float] = {Kind.MAP: 12, Kind.FILTER: 3, Kind.FLAT_MAP: 6, Kind.PROCESS: 6}
        if upstream.is_ordered:
            kinds |= {Kind.KEYED_PROCESS: 2.5, Kind.REDUCE: 2.5}
            if not self.is_long:
                kinds |= {Kind.ASYNC: 1.5, Kind.EVENT_TIME: 3, Kind.CO_MAP: 0.5, Kind.CO_FLAT_MAP: 0.4}
                kinds |= {Kind.CO_PROCESS: 0.4, Kind.KEYED_CO_PROCESS: 0.4}
            if upstream.shape in ("pair", "triple"):
                kinds[Kind.AGGREGATE] = 6
            if upstream.has_timestamps and not upstream.is_time_unclear and not self.is_long:
                kinds[Kind.KEYED_PROCESS] = 10  # with timers
        if fails:
            kinds = {kind: weight for kind, weight in kinds.items() if kind in _FAILING or kind is Kind.EVENT_TIME}
        return self.rng.choices(list(kinds), list(kinds.values()))[0]

    def call_of(self, kind: Kind, upstream: _Stream, *, fails: bool) -> Call:
        rng = self.rng
        if fails:
            at = rng.randint(1, max(1, min(upstream.count, 2_500 if self.is_long else 6)))
            if kind is Kind.EVENT_TIME:
                return Call("TicksFail", ((0, 0, 2), at))
            if kind is Kind.KEYED_PROCESS and upstream.has_timestamps and not upstream.is_time_unclear:
                return Call("TimerFails", (rng.randrange(3), rng.randint(1, 2)))
            return Call(rng.choice(_FAILING[kind]), (at,))
        if self.is_long:
            return Call(rng.choice(_LONG[kind]), ()) if kind in _LONG else self.aggregation(upstream)
        match kind:
            case Kind.MAP if upstream.is_ordered and rng.random() < 0.3:
                return Call(rng.choice(_CELL_MAPS))
            case Kind.MAP:
                return Call(rng.choice(_MAPS if upstream.is_ordered else _ANY_MAPS))
            case Kind.FILTER if upstream.is_ordered and rng.random() < 0.3:
                return Call("EvenCell")
            case Kind.FILTER:
                return Call(rng.choice(_FILTERS if upstream.is_ordered else _ANY_FILTERS))
            case Kind.FLAT_MAP if upstream.is_ordered and rng.random() < 0.2:
                return Call("YieldWithCell")
            case Kind.FLAT_MAP:
                return Call(rng.choice(_FLAT_MAPS if upstream.is_ordered else _ANY_FLAT_MAPS))
            case Kind.PROCESS:
                return Call(rng.choice(_PROCESSES if upstream.is_ordered else _ANY_PROCESSES))
            case Kind.KEYED_PROCESS:
                has_timers = upstream.has_timestamps and not upstream.is_time_unclear
                name = "KeptUntilTimer" if has_timers and rng.random() < 0.6 else rng.choice(_KEYED)
                return Call(name, (rng.randrange(3),) if name == "KeptUntilTimer" else ())
            case Kind.REDUCE:
                return Call(rng.choice(_REDUCES))
            case Kind.AGGREGATE:
                return self.aggregation(upstream)
            case Kind.ASYNC:
                return Call(rng.choice(_ASYNCS))
            case Kind.EVENT_TIME:
                return Call("Ticks", (rng.choice([(0,), (0, 0, 2), (0, 3, -1), (5, 0)]),))
            case _:
                names = {
                    Kind.CO_MAP: ("CoGrowing", "CoTouch", "CoSometimesNone"),
                    Kind.CO_FLAT_MAP: ("CoYield",),
                    Kind.CO_PROCESS: ("CoEmit",),
                    Kind.KEYED_CO_PROCESS: ("KeyedCoEmit",),
                }
                return Call(rng.choice(names[kind]))

    def aggregation(self, upstream: _Stream) -> Call:
        if self.rng.random() < 0.15:
            return Call("count")
        return Call(self.rng.choice(["sum", "min", "max", "min_by", "max_by"]), (1,))

    def key_of(self, kind: Kind, upstream: _Stream) -> str | None:
        if kind is Kind.AGGREGATE or (
            upstream.shape in _KEYS and kind in (Kind.KEYED_PROCESS, Kind.REDUCE) and self.rng.random() < 0.7
        ):
            return _KEYS[upstream.shape]
        if kind in (Kind.KEYED_PROCESS, Kind.REDUCE, Kind.KEYED_CO_PROCESS):
            return self.rng.choice(["by_size", "by_type", "constant"])
        return None

    def reads_of(self, kind: Kind, upstream: _Stream) -> tuple[Read, ...]:
        rng = self.rng
        if kind.is_connected:
            other = self.add_nothing()
            return (upstream.read, other) if rng.random() < 0.5 else (other, upstream.read)
        if kind in (Kind.MAP, Kind.FILTER, Kind.FLAT_MAP, Kind.PROCESS) and not self.is_long and rng.random() < 0.02:
            return (upstream.read, self.add_nothing())
        return (upstream.read,)

    def outputs_of(self, step: Step, upstream: _Stream, num_others: int) -> list[_Stream]:
        assert step.call is not None, "no source"
        name = step.call.name
        count = (upstream.count + num_others) * _FACTOR.get(name, 1)
        main = replace(upstream, read=Read(step.id), count=count)
        main.is_time_unclear = main.is_time_unclear or (main.says_time and len(step.reads) > 1)
        if step.kind is Kind.EVENT_TIME:
            main.has_timestamps, main.says_time, main.is_time_unclear = True, step.watermarks is not None, False
        elif step.kind is not Kind.AGGREGATE and name not in _KEEPS_SHAPE:
            main.shape = _SHAPES.get(name, "any")
        elif name == "count":
            main.shape = "pair"
        sides = [replace(main, read=Read(step.id, tag), shape="any") for tag in _SIDES.get(name, ())]
        return [*sides[: self.rng.randrange(3)], main]


def random_program(seed: int) -> Program:
    rng = random.Random(f"program {seed}")
    while True:
        maker = _Maker(seed, rng, is_long=rng.random() < 0.04)
        program = maker.make()
        if maker.is_long or max(stream.count for stream in maker.streams) <= _MAX_RECORDS * 3:
            return program


def copied(records: Sequence[Any]) -> list[Any]:
    return copy.deepcopy(list(records))

"""The key groups of a thousand keys of all types: stored state lies in them, and records must go where the state of
their keys is.

The keys are made of a digest, so that they are equal everywhere.  Three ways are compared with the list: the group that
a harness finds for a record (key by key), the group in which a snapshot keeps the state of a key (column by column),
and the subtask to which a job sends it.

Items:  ``KIND NUMBER`` with the groups for two numbers of key groups, and the key.
"""

import datetime
import decimal
import enum
import fractions
import hashlib
import pathlib
import pickle
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

from flowlet.common import Duration, Instant, Row, RowKind, Time, Types
from flowlet.common.typeinfo import TypeInformation
from flowlet.datastream import CountWindow, GlobalWindow, KeyedProcessFunction, MapFunction, RuntimeContext, TimeWindow
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.testing import KeyedOneInputOperatorHarness, MiniCluster, SubtaskPlace
from tests.frozen.frozen_list import FrozenList

MAX_PARALLELISMS: Final = (128, 32_768)
_PER_KIND: Final = 30
_SHOWN_CHARS: Final = 70
_PARALLELISM: Final = 4
_DAY_US: Final = 86_400_000_000
_ZONE: Final = datetime.timezone(datetime.timedelta(hours=5, minutes=45))


class Color(enum.Enum):
    RED = 1
    GREEN = 2
    BLUE = 3


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Place(NamedTuple):
    city: str
    number: int


@dataclass(frozen=True)
class Order:
    user: str
    number: int


class Draw:
    """Numbers and texts that follow from a name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0

    def bits(self, count: int) -> int:
        self._count += 1
        size = (count + 7) // 8
        digest = hashlib.shake_256(f"{self._name} {self._count}".encode()).digest(size)
        return int.from_bytes(digest, "big") >> (8 * size - count)

    def below(self, limit: int) -> int:
        return self.bits(64) % limit

    def signed(self, count: int) -> int:
        return self.bits(count) - (1 << (count - 1))

    def text(self, letters: str, most: int) -> str:
        return "".join(letters[self.below(len(letters))] for _ in range(self.below(most + 1)))

    def float(self) -> float:
        return self.signed(53) * 2.0 ** (self.below(120) - 60)

    def datetime(self) -> datetime.datetime:
        first = datetime.datetime(1600, 1, 1)  # noqa: DTZ001 - one without a time zone
        return first + datetime.timedelta(days=self.below(200_000), microseconds=self.below(_DAY_US))


Make = Callable[[Draw], Any]
ASCII: Final = "abcXYZ 0189_-"
WORLD: Final = "äßéЖ中文字\u0000\u07ff\u0800\uffff"
ASTRAL: Final = "a😀\U0001d518\U0010ffff"
KINDS: Final[dict[str, Make]] = {
    "int small": lambda draw: draw.signed(8),
    "int 32 bits": lambda draw: draw.signed(33),
    "int 64 bits": lambda draw: draw.signed(64),
    "int larger": lambda draw: draw.signed(65 + draw.below(200)),
    "str ascii": lambda draw: draw.text(ASCII, 12),
    "str other": lambda draw: draw.text(WORLD, 8),
    "str astral": lambda draw: draw.text(ASTRAL, 6),
    "str long": lambda draw: draw.text(ASCII + WORLD, 6) * 900,
    "bytes": lambda draw: bytes(draw.bits(8) for _ in range(draw.below(20))),
    "float": lambda draw: draw.float(),
    "float whole": lambda draw: float(draw.signed(20)),
    "bool": lambda draw: bool(draw.below(2)),
    "complex": lambda draw: complex(draw.float(), draw.float()),
    "decimal": lambda draw: decimal.Decimal(draw.signed(70)).scaleb(-draw.below(20)),
    "fraction": lambda draw: fractions.Fraction(draw.signed(30), 1 + draw.below(1000)),
    "tuple": lambda draw: (draw.text(ASCII, 5), draw.signed(40), None, draw.float()),
    "tuple nested": lambda draw: (draw.below(3), (draw.text(WORLD, 3), (bool(draw.below(2)),)), ()),
    "list": lambda draw: [draw.signed(40) for _ in range(draw.below(5))],
    "frozenset": lambda draw: frozenset(draw.signed(40) for _ in range(draw.below(5))),
    "row": lambda draw: Row(draw.text(ASCII, 5), draw.signed(40)),
    "row named": lambda draw: Row(name=draw.text(ASCII, 5), number=draw.signed(40)),
    "date": lambda draw: draw.datetime().date(),
    "datetime": lambda draw: draw.datetime(),
    "datetime with zone": lambda draw: draw.datetime().replace(tzinfo=_ZONE),
    "time": lambda draw: draw.datetime().time(),
    "timedelta": lambda draw: datetime.timedelta(days=draw.signed(16), microseconds=draw.below(_DAY_US)),
    "uuid": lambda draw: uuid.UUID(int=draw.bits(128)),
    "path": lambda draw: pathlib.PurePosixPath("/", draw.text("ab", 3), draw.text("cd", 3)),
    "named tuple": lambda draw: Place(draw.text(ASCII, 5), draw.below(9999)),
    "dataclass": lambda draw: Order(draw.text(ASCII, 5), draw.below(9999)),
    "time window": lambda draw: TimeWindow(draw.signed(40), draw.signed(40)),
    "count window": lambda draw: CountWindow(draw.bits(40)),
    "instant": lambda draw: Instant(draw.signed(40), draw.below(1_000_000_000)),
    "numpy int": lambda draw: np.int64(draw.signed(63)),
    "numpy float": lambda draw: np.float64(draw.float()),
    "numpy time": lambda draw: np.datetime64(draw.signed(40), "ms"),
}
SINGLE: Final[dict[str, Any]] = {
    "none": None,
    "bool true": True,
    "bool false": False,
    "float zero": 0.0,
    "float minus zero": -0.0,
    "float nan": float("nan"),
    "float infinity": float("inf"),
    "float smallest": 5e-324,
    "int zero": 0,
    "int lowest": -(2**63),
    "int highest": 2**63 - 1,
    "int highest unsigned": 2**64 - 1,
    "str empty": "",
    "bytes empty": b"",
    "tuple empty": (),
    "list empty": [],
    "row empty": Row(),
    "datetime first": datetime.datetime.min,  # noqa: DTZ901 - one without a time zone
    "datetime last": datetime.datetime.max,  # noqa: DTZ901 - as above
    "decimal minus zero": decimal.Decimal("-0"),
    "decimal nan": decimal.Decimal("NaN"),
    "enum": Color.GREEN,
    "enum of ints": Level.HIGH,
    "row kind": RowKind.UPDATE_AFTER,
    "global window": GlobalWindow(),
    "duration": Duration.of_millis(1234),
    "time of the API": Time.seconds(5),
}


@cache
def keys() -> dict[str, Any]:
    drawn = {
        f"{kind} {number:02}": make(Draw(f"{kind} {number}"))
        for kind, make in KINDS.items()
        for number in range(_PER_KIND)
    }
    return {**{f"{name} 00": key for name, key in SINGLE.items()}, **drawn}


class KeepIndex(KeyedProcessFunction):
    """Keeps the place of its record for the record's key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._places = runtime_context.get_state(ValueStateDescriptor("places"))

    def process_element(self, value: tuple[int, Any], ctx: KeyedProcessFunction.Context) -> None:
        self._places.update([*(self._places.value() or []), value[0]])


def groups_in_a_snapshot(max_parallelism: int) -> list[int]:
    """The key group in which a snapshot has the state of each key."""
    found: dict[int, int] = {}
    place = SubtaskPlace(max_parallelism=max_parallelism)
    with KeyedOneInputOperatorHarness(KeepIndex(), lambda pair: pair[1], place=place) as harness:
        harness.process_elements(list(enumerate(keys().values())))
        payload = harness.snapshot().payload
    _, _, keyed, _ = pickle.loads(payload[payload.index(b"\x80\x05") :])
    for group, states in keyed.groups.items():
        found.update((index, group) for places in states["places"].values for index in places)
    return [found[index] for index in range(len(keys()))]


def groups_of_records(max_parallelism: int) -> list[int]:
    """The key group of each record, as a harness of the first of as many subtasks as groups tells it when it refuses a
    record of others.
    """
    place = SubtaskPlace(parallelism=max_parallelism, max_parallelism=max_parallelism)
    found: list[int] = []
    with KeyedOneInputOperatorHarness(KeepIndex(), lambda pair: pair[1], place=place) as harness:
        for pair in enumerate(keys().values()):
            try:
                harness.process_element(pair)
            except ValueError as error:
                found += map(int, re.findall(r"belongs to key group (\d+)", str(error)))
            else:
                found.append(0)
    return found


def key_groups() -> Iterator[str]:
    columns = [groups_in_a_snapshot(each) for each in MAX_PARALLELISMS]
    for (name, key), *groups in zip(keys().items(), *columns, strict=True):
        shown = ascii(key.item() if isinstance(key, np.generic) else key)  # versions of numpy show them in other ways
        told = ", ".join(f"{group} of {number}" for group, number in zip(groups, MAX_PARALLELISMS, strict=True))
        yield f"{name}  {told}: {shown if len(shown) <= _SHOWN_CHARS else shown[:_SHOWN_CHARS] + '...'}"


KEY_GROUPS: Final = FrozenList(
    "key_groups",
    "Key groups",
    key_groups,
    "Stored state would not be found.  A class of ours that has moved keeps its keys by a line in "
    "flowlet/former_names.py.",
)


def _stored(max_parallelism: int) -> list[int]:
    found = KEY_GROUPS.read()
    return [int(re.findall(rf"(\d+) of {max_parallelism}\b", found[name])[0]) for name in keys()]


@pytest.mark.slow
def test_the_state_of_a_key_stays_in_its_key_group() -> None:
    assert len(keys()) > 1_000

    KEY_GROUPS.check()


@pytest.mark.slow
@pytest.mark.parametrize("max_parallelism", MAX_PARALLELISMS)
def test_a_record_belongs_to_the_key_group_of_its_state(max_parallelism: int) -> None:
    """The key group of a record, found key by key, is the group in which a snapshot, which takes columns of keys,
    stores it.
    """
    found, stored = groups_of_records(max_parallelism), _stored(max_parallelism)

    assert [each for each in zip(keys(), found, stored, strict=True) if each[1] != each[2]] == []


class Subtask(MapFunction):
    """Tells where a record came to."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._subtask = runtime_context.get_index_of_this_subtask()

    def map(self, value: tuple[int, Any]) -> tuple[int, int]:
        return value[0], self._subtask


ROUTED: Final[dict[str, TypeInformation]] = {
    "int 64 bits": Types.LONG(),
    "str other": Types.STRING(),
    "float": Types.DOUBLE(),
}


@pytest.mark.slow
def test_a_job_sends_each_record_to_the_subtask_of_its_key_group() -> None:
    """A job sends columns of numbers and texts, and records of any kind, to the subtasks of their key groups."""
    names, max_parallelism = list(keys()), MAX_PARALLELISMS[0]
    with MiniCluster(2, slots_per_task_manager=2) as cluster:
        env = cluster.environment().set_parallelism(_PARALLELISM).set_max_parallelism(max_parallelism)

        def routed(chosen: Sequence[str], kind: TypeInformation) -> Any:
            pairs = [(names.index(name), keys()[name]) for name in chosen]
            stream = env.from_collection(pairs, type_info=Types.TUPLE([Types.LONG(), kind]))
            return stream.rebalance().key_by(lambda pair: pair[1], kind).map(Subtask())

        first, *others = [
            routed([name for name in names if name.startswith(f"{kind} ")], type_info)
            for kind, type_info in ROUTED.items()
        ]
        everything = routed(names, Types.PICKLED_BYTE_ARRAY())
        with first.union(*others, everything).execute_and_collect() as results:
            found = list(results)

    stored = _stored(max_parallelism)
    assert len(found) > len(names) + 80
    assert [
        (names[index], subtask)
        for index, subtask in found
        if subtask != stored[index] * _PARALLELISM // max_parallelism
    ] == []

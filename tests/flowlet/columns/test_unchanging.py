import collections
import dataclasses
import datetime
import decimal
import enum
import uuid
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from flowlet.columns import (
    ArrayColumn,
    ArrowColumn,
    CodedColumn,
    Column,
    Columns,
    ConstantColumn,
    ListColumn,
    NameTable,
    Shape,
    ShortTextColumn,
)
from flowlet.columns.column import UNCHANGING, are_unchanging, is_unchanging
from flowlet.common.types import Row
from tests.flowlet.columns.test_short_texts import heads_of
from tests.names import stable_repr


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Bits(enum.Flag):
    ONE = 1
    TWO = 2


class Point(NamedTuple):
    x: int
    label: Any = None


Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    a: int
    b: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenOne:
    a: Any


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenNothing:
    pass


@dataclasses.dataclass
class Plain:
    a: int


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Pairs(tuple[Any, ...]):
    __slots__ = ()


class PointWithMore(Point):
    """A point with a dictionary of its own."""


class FrozenList(list[int]):
    pass


@dataclasses.dataclass(frozen=True)
class FrozenOfList(list[int]):
    a: int = 1


class LooseSubclass(Frozen):
    """No dataclass by itself: other attributes can be set, and set again."""


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenBase:
    a: int


class SlotSubclass(FrozenBase):
    __slots__ = ("more",)


class Struct(msgspec.Struct, frozen=True):
    a: int


NOW = datetime.datetime(2024, 1, 2, 3, 4, tzinfo=datetime.UTC)
CANNOT_CHANGE: list[Any] = [
    *("text", 1, 1.5, True, b"bytes", 1j, None, decimal.Decimal("1.5"), uuid.UUID(int=7)),
    *(NOW, NOW.date(), NOW.time(), datetime.timedelta(1), datetime.UTC),
    *(Color.RED, Level.LOW, Bits.ONE | Bits.TWO),
    *((), (1, "a"), (1, (2, (3, "x"))), frozenset({1, (2, 3)}), (Color.RED, frozenset())),
    *(Point(1), Point(1, (2, "x")), Pair(1, Frozen(2))),
    *(Frozen(1), Frozen(1, (2,)), FrozenSlots(1, "x"), FrozenOne(1), FrozenOne((1, Point(2))), FrozenNothing()),
]
CAN_CHANGE: list[Any] = [
    *([], {}, set(), bytearray(), Row(1), np.array([1]), memoryview(bytearray(1)), object(), print, int),
    *(([],), (1, ({},)), frozenset({Plain}), Point(1, []), Pair({}, 1)),
    *(Frozen(1, []), Frozen(1, ([],)), FrozenSlots(1, {}), FrozenOne([]), Plain(1)),
    *(Text("a"), Number(1), Pairs((1,)), PointWithMore(1), FrozenList(), Struct(1)),
    *(np.int64(1), np.str_("a")),
]


@pytest.mark.parametrize("value", CANNOT_CHANGE, ids=stable_repr)
def test_what_cannot_change_is_known(value: Any) -> None:
    """A value is known alone and in any company."""
    assert is_unchanging(value)
    assert are_unchanging([value])
    assert are_unchanging([1, value, ("a", 2), value])
    assert is_unchanging((value, (value,)))


@pytest.mark.parametrize("value", CAN_CHANGE, ids=stable_repr)
def test_what_can_change_is_found_wherever_it_is(value: Any) -> None:
    """The value may be among others or inside of others; a subclass may do anything, and so can change."""
    assert not is_unchanging(value)
    assert not are_unchanging([1, value])
    assert not are_unchanging([(1, "a"), (2, value)])
    assert not is_unchanging((1, (value,)))
    assert not is_unchanging(Frozen(1, value))
    assert not is_unchanging(FrozenSlots(1, value))
    assert not is_unchanging(Point(1, value))


def test_what_is_a_frozen_dataclass_and_more_can_change() -> None:
    """It is a list, or a subclass that is no dataclass itself: Python lets its other attributes be set."""
    record = LooseSubclass(1)
    record.more = 1  # type: ignore[attr-defined]  # that is the point

    assert not is_unchanging(record)
    assert not is_unchanging(SlotSubclass(1))
    assert not is_unchanging(FrozenOfList())
    assert are_unchanging([])


def test_what_is_nested_too_deep_counts_as_changing() -> None:
    """The limit keeps the stack from overflowing; 20 levels are allowed."""
    value: Any = 1
    for _ in range(20):
        value = (value,)
    assert is_unchanging(value)
    for _ in range(100_000):
        value = (value,)

    assert not is_unchanging(value)
    assert not are_unchanging([value])


def test_a_class_that_lies_about_its_fields_is_no_named_tuple() -> None:
    class Liar(list[int]):
        _fields = ("a",)

    class Twice(Point, tuple[Any, ...]):
        __slots__ = ()

    assert not is_unchanging(Liar())
    assert not is_unchanging(Twice(1))


def test_all_types_that_cannot_change_are_hashable_and_exact() -> None:
    assert all(kind.__hash__ is not None for kind in UNCHANGING)
    assert not {int, str} - UNCHANGING
    assert Number not in UNCHANGING


def coded(*names: Any) -> CodedColumn:
    return CodedColumn(np.arange(len(names), dtype=np.uint16), NameTable(list(names)))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (ArrayColumn(np.array([1, 2])), True),
        (ShortTextColumn(heads_of(["a", "b"])), True),
        (ListColumn(["a", "b"], str), True),
        (ListColumn(["a", None]), True),
        (ListColumn(["a", (1, Color.RED)]), True),
        (ListColumn(["a", []]), False),
        (ListColumn([[], []], list), False),
        (ConstantColumn("a", 2), True),
        (ConstantColumn([1], 2), False),
        (coded("a", "b"), True),
        (coded("a", (1, 2)), False),
        (ArrowColumn(pa.array(["a", None])), True),
        (ArrowColumn(pa.array([1, 2]).dictionary_encode()), True),
        (ArrowColumn(pa.array([decimal.Decimal(1), None])), True),
        (ArrowColumn(pa.array([NOW, None])), True),
        (ArrowColumn(pa.array([[1], []])), False),
        (ArrowColumn(pa.array([{"a": 1}, None])), False),
    ],
    ids=stable_repr,
)
def test_columns_tell_whether_their_values_can_change(column: Column, expected: bool) -> None:
    """The answer does not depend on the records of which the columns are fields."""
    for shape, names in ((Shape.SCALAR, ()), (Shape.TUPLE, ()), (Shape.ROW, ("a",))):
        assert Columns(2, (column,), shape, names).is_unchanging() is expected


def test_one_column_that_can_change_is_enough() -> None:
    columns = Columns(2, (ConstantColumn(1, 2), ListColumn([[], []]), ConstantColumn("a", 2)), Shape.TUPLE)

    assert not columns.is_unchanging()

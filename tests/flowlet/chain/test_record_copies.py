import copy
import dataclasses
import enum
import functools
from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from flowlet.chain.record_shape import can_own_parts, copy_if_mutable, holder_of, owns_parts, unpickled
from flowlet.common.types import Row
from flowlet.records import PickledRecord
from flowlet.serde.pickles.record_pickle import loads_record


class Color(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: Any = None


@dataclasses.dataclass
class Event:
    name: str
    value: Any = 1


@dataclasses.dataclass(slots=True)
class SlotEvent:
    name: str
    value: Any = 1


@dataclasses.dataclass(slots=True)
class OneSlot:
    value: Any


@dataclasses.dataclass(slots=True, weakref_slot=True)
class WeakSlots:
    value: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any


@dataclasses.dataclass
class Derived(Event):
    more: Any = 2


class Bare:
    def __init__(self, value: Any) -> None:
        self.value = value


class Subclass(Bare):
    pass


class Slots:
    __slots__ = ("unset", "value")
    unset: Any

    def __init__(self, value: Any) -> None:
        self.value = value


class Struct(msgspec.Struct):
    value: Any
    more: int = 1


class WeakStruct(msgspec.Struct, weakref=True):
    value: Any


class Reduced(Bare):
    def __reduce__(self) -> Any:
        return Bare, ("reduced",)


@dataclasses.dataclass
class WithState:
    value: Any

    def __getstate__(self) -> Any:
        return {"value": "its own state"}


@dataclasses.dataclass
class WithNew:
    value: Any

    def __new__(cls, *_: Any) -> "WithNew":
        return super().__new__(cls)


class Watching:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)


class MyDict(dict[str, Any]):
    pass


class MyList(list[Any]):
    pass


class MyRow(Row):
    pass


# Makes a flat record of a class that leaves copies to Python, around a value; and changes the value.
FLAT: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "dict": (lambda value: {"value": value}, lambda record, value: record.update(value=value)),
    "list": (lambda value: [value], lambda record, value: record.__setitem__(0, value)),
    "set": (lambda value: {value}, lambda record, value: (record.clear(), record.add(value))),
    "Row": (lambda value: Row(value=value), lambda record, value: record.__setitem__("value", value)),
    "unnamed Row": (lambda value: Row(value), lambda record, value: record.__setitem__(0, value)),
    **{
        kind.__name__: (functools.partial(kind, "a"), lambda record, value: setattr(record, "value", value))
        for kind in (Event, SlotEvent, Derived)
    },
    **{
        kind.__name__: (kind, lambda record, value: setattr(record, "value", value))
        for kind in (Bare, Subclass, OneSlot, WeakSlots, Struct, WeakStruct)
    },
}
# Makes a record that only pickle knows.
OTHERS: dict[str, Callable[[Any], Any]] = {kind.__name__: kind for kind in (Reduced, WithState, WithNew, Watching)} | {
    "subclass of dict": lambda value: MyDict(value=value),
    "subclass of list": lambda value: MyList([value]),
    "subclass of Row": lambda value: MyRow(value=value),
    "OrderedDict": lambda value: OrderedDict(value=value),
    "defaultdict": lambda value: defaultdict(list, value=value),
    "deque": lambda value: deque([value]),
    "UserDict": lambda value: UserDict(value=value),
    "array": lambda value: np.array([value], object),
    "tuple of a list": lambda value: ([value],),
    "frozen dataclass of a list": lambda value: Frozen([value]),
    "named tuple of a list": lambda value: Point(1, [value]),
    "dict of a list": lambda value: {"a": [value]},
    "dataclass of a list": lambda value: Event("a", [value]),
    "Struct of a list": lambda value: Struct([value]),
    "Row of a list": lambda value: Row([value]),
}


def same(one: Any, other: Any) -> bool:
    """Return whether both have one class and equal values, all the way down."""
    if type(one) is not type(other):
        return False
    if hasattr(one, "__dict__") and not isinstance(one, enum.Enum):
        return list(vars(one)) == list(vars(other)) and all(map(same, vars(one).values(), vars(other).values()))
    if isinstance(one, Slots):
        return same(one.value, other.value)
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else repr(one) == repr(other)


@pytest.mark.parametrize(
    "record", ["a", 1, None, ("a", (1, Color.RED)), Point(1), Frozen("a"), Color.RED, frozenset({1}), ()], ids=repr
)
def test_a_record_that_cannot_change_is_kept_as_it_is(record: Any) -> None:
    assert copy_if_mutable(record) is record


@pytest.mark.parametrize("name", FLAT)
def test_a_flat_record_is_copied(name: str) -> None:
    """The copy of a flat record has the record's class and its very values; a later change of the record does not reach
    the copy.
    """
    make, change = FLAT[name]
    value = "the value"
    record = make(value)
    expected = copy.copy(record)

    found = copy_if_mutable(record)
    change(record, "changed")

    assert found is not record
    assert same(found, expected)
    assert not same(found, record)
    assert holder_of(type(record)) is not None


def test_bytes_that_can_change_are_copied() -> None:
    record = bytearray(b"abc")

    found = copy_if_mutable(record)
    record[0] = 0

    assert (type(found), found) == (bytearray, b"abc")


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_record_is_pickled(name: str) -> None:
    """A record of any other class is pickled, by the rules of its class."""
    record = OTHERS[name]("value")

    found = copy_if_mutable(record)

    assert type(found) is PickledRecord
    assert same(loads_record(found.data), copy.deepcopy(record))


def test_a_pickle_keeps_what_is_shared_within_a_record() -> None:
    inner: list[Any] = [1]

    found = copy_if_mutable({"a": inner, "b": inner})
    inner.append(2)
    record = loads_record(found.data)

    assert record == {"a": [1], "b": [1]}
    assert record["a"] is record["b"]


def test_a_slot_that_was_never_set_stays_so() -> None:
    record = Slots("value")

    found = copy_if_mutable(record)
    record.value = "changed"
    found = loads_record(found.data) if isinstance(found, PickledRecord) else found

    assert type(found) is Slots
    assert found.value == "value"
    assert not hasattr(found, "unset")


def test_an_attribute_that_was_added_is_copied_too() -> None:
    record = Event("a")
    record.more = "more"  # type: ignore[attr-defined]  # that is the point

    found = copy_if_mutable(record)

    assert vars(found) == {"name": "a", "value": 1, "more": "more"}


def test_what_was_pickled_is_the_records_again() -> None:
    """The same list where nothing was pickled."""
    records: list[Any] = ["a", {"b": [1]}, ("c", 2), [[3]]]
    plain = ["a", ("c", 2)]

    assert unpickled([copy_if_mutable(record) for record in records]) == records
    assert unpickled(plain) is plain


HELD: list[Any] = [1]


def in_lists(depth: int) -> list[Any]:
    return [in_lists(depth - 1)] if depth else []


@pytest.mark.parametrize(
    ("make", "is_owned"),
    [
        (lambda: {"a": [1], "b": {"c": [{"d": ()}]}}, True),
        (lambda: [[], [[1], "x"]], True),
        (lambda: ("a", [1]), True),
        (lambda: Point(1, {"a": []}), True),
        (lambda: Row(a=[1], b=Row(2, [3])), True),
        (lambda: {"a": 1}, True),
        (lambda: {"a": ("x", Color.RED, Frozen("y"))}, True),
        (lambda: {"a": HELD}, False),
        (lambda: {"a": [HELD]}, False),
        (lambda: [(HELD,)], False),
        (lambda: Row(a={"b": HELD}), False),
        (lambda: [*[[]] * 2], False),
        (lambda: {"a": [Event("x")]}, False),
        (lambda: {"a": {1, 2}}, False),
        (lambda: {"a": bytearray(1)}, False),
        (lambda: {OneSlot: 1}, False),
        (lambda: in_lists(20), False),
    ],
)
def test_a_record_owns_what_nobody_else_holds(make: Callable[[], Any], is_owned: bool) -> None:
    """Parts are looked at to any depth, but for very deep ones, and for classes whose instances are left to pickle."""
    assert owns_parts(make()) is is_owned


@pytest.mark.parametrize(
    "hold", [lambda record: record["a"], lambda record: iter(record["a"]), lambda record: record["b"][0]]
)
def test_whoever_holds_a_part_may_change_it(hold: Callable[[Any], Any]) -> None:
    record = {"a": [1], "b": [[2]]}
    assert owns_parts(record)

    held = hold(record)

    assert not owns_parts(record)
    del held
    assert owns_parts(record)


def test_an_iterator_over_a_row_holds_its_values() -> None:
    record = [Row(1, [2])]
    assert owns_parts(record)

    held = iter(record[0])

    assert not owns_parts(record)
    del held


def test_a_named_tuple_with_attributes_is_left_to_pickle() -> None:
    class WithMore(Point):
        pass

    assert can_own_parts(Point)
    assert not can_own_parts(WithMore)

import dataclasses
import enum
import gc
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from flowlet.columns import Columns, column_of
from flowlet.common.types import Row, RowKind
from flowlet.operators.loop_code import LoopCode
from flowlet.operators.record_shape import MAX_FIELDS, RecordShape, fields_of, shape_of
from tests.flowlet.operators.test_settling import (
    FLAT,
    Bare,
    Color,
    Event,
    Frozen,
    MyDict,
    Point,
    Slots,
    Struct,
    Subclass,
    WeakSlots,
    WeakStruct,
    same,
)
from tests.names import stable_repr


class Label(NamedTuple):
    name: str
    number: Any

    def shout(self) -> str:
        return self.name.upper()


class PointWithMore(Point):
    """Has a dictionary of its own."""


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass(order=True)
class Measured:
    name: str
    value: Any = 0.5

    def __post_init__(self) -> None:
        raise AssertionError("made by its fields, not called")


def measured(name: str, value: Any) -> Measured:
    made = object.__new__(Measured)
    made.name, made.value = name, value
    return made


def deleted_row() -> Row:
    row = Row(a=1)
    row.set_row_kind(RowKind.DELETE)
    return row


# ---------------------------------------------------------------- what is looked for


@pytest.mark.parametrize(
    ("record", "shape"),
    [
        ("a", RecordShape(str)),
        (None, RecordShape(type(None))),
        (("a", 1), RecordShape(tuple, (str, int))),
        (("a", None, 1.5), RecordShape(tuple, (str, type(None), float))),
        (("a", Color.RED), RecordShape(tuple, (str, Color))),
        ((1,) * MAX_FIELDS, RecordShape(tuple, (int,) * MAX_FIELDS)),
        ((1,) * (MAX_FIELDS + 1), RecordShape(tuple)),
        ((), RecordShape(tuple)),
        (("a", (1, 2)), RecordShape(tuple)),
        (("a", []), None),
        (Point(1), RecordShape(Point, (int, type(None)), ("x", "y"))),
        (Point(1, (2,)), RecordShape(Point)),
        (Point(1, []), None),
        (PointWithMore(1), None),
        (Color.RED, RecordShape(Color)),
        (Frozen(1), RecordShape(Frozen, (int,), ("value",))),
        (Frozen([]), None),
        ({"a": 1, "b": "x"}, RecordShape(dict, (int, str), ("a", "b"))),
        ({1: "x"}, RecordShape(dict)),
        ({"a": []}, None),
        ({}, RecordShape(dict)),
        (Row(a=1, b="x"), RecordShape(Row, (int, str), ("a", "b"))),
        (Row(1), RecordShape(Row)),
        (deleted_row(), RecordShape(Row)),
        (Row(a=[]), None),
        (Event("a"), RecordShape(Event, (str, int), ("name", "value"))),
        (Slots("a"), None),
        (Struct("a"), RecordShape(Struct)),
        ([1], RecordShape(list)),
        (MyDict(), None),
    ],
    ids=stable_repr,
)
def test_the_shape_of_a_record_is_what_a_loop_can_look_for(record: Any, shape: RecordShape | None) -> None:
    """None where it is pickled."""
    assert shape_of(record) == shape


def test_two_shapes_are_joined_by_field() -> None:
    """A field of several types is any that cannot change."""
    for kind, names in ((tuple, None), (dict, ("a", "b", "c")), (Row, ("a", "b", "c"))):
        one, other = RecordShape(kind, (str, int, int), names), RecordShape(kind, (str, int, type(None)), names)

        assert one.joined(other) == RecordShape(kind, (str, int, None), names)
        assert one.joined(other).joined(one) == RecordShape(kind, (str, int, None), names)
        assert one.joined(one) == one
        assert one.joined(RecordShape(kind, (str, int), None if names is None else names[:2])) == one
        assert one.joined(RecordShape(kind)) == one
        assert RecordShape(kind).joined(one) == RecordShape(kind)
        assert one.joined(RecordShape(kind, one.field_types, ("c", "b", "a"))) == one
    assert RecordShape(dict, (str,), ("a",)).joined(RecordShape(Row, (int,), ("a",))) == RecordShape(dict, (str,), ("a",))


# ---------------------------------------------------------------- records in columns


def columns_of_shape(shape: RecordShape) -> Callable[[Any], tuple[list[Any], list[Any]]]:
    """A loop as emitters write it: the records that it took, made of their columns again; and those that it did not take."""
    code = LoopCode("test", lambda: None)
    assert shape.field_types is not None
    taken: list[list[Any]] = [[] for _ in shape.field_types]
    left: list[Any] = []
    leave = f"{code.bind(left, 'left')}.append(record)"
    with code.block("for record in records:"):
        with code.block(f"if {shape.type_test(code, 'record')}:"):
            fields, tests = shape.write_fields(code, "record")
            with code.block(f"if {' and '.join(tests)}:"):
                for field, values in zip(fields, taken, strict=True):
                    code.line(f"{code.bind(values, 'values')}.append({field})")
            with code.block("else:"):
                code.line(leave)
        with code.block("else:"):
            code.line(leave)
    run = code.define("records")

    def emit(records: Any) -> tuple[list[Any], list[Any]]:
        run(records)
        columns = shape.columns([column_of(values) for values in taken], None) if taken[0] else Columns
        return columns.to_list() if isinstance(columns, Columns) else [], left

    return emit


# Of each kind: records of one shape; and others that look much like them, but are not.
FIELDWISE: dict[str, tuple[list[Any], list[Any]]] = {
    "tuple": ([("a", 1), ("b", 2)], [("a",), ("a", 1, 2), ("a", True), ("a", 1.0), ("a", None), ("a", [1]), ["a", 1], Point("a", 1)]),  # type: ignore[arg-type]
    "dict": (
        [{"a": "x", "b": 1}, {"a": "y", "b": 2}],
        [
            {"b": 1, "a": "x"},
            {"a": "x"},
            {"a": "x", "b": 1, "c": 2},
            {"a": "x", "c": 1},
            {"a": "x", "b": True},
            {"a": "x", "b": [1]},
            MyDict(a="x", b=1),
            OrderedDict(a="x", b=1),
        ],
    ),
    "row": (
        [Row(a="x", b=1), Row(a="y", b=2)],
        [Row(b=1, a="x"), Row(a="x"), Row("x", 1), Row(a="x", c=1), Row(a="x", b=True), Row(a="x", b=[1]), Row(a="x", b=1, c=2)],
    ),
    "dataclass": ([Event("a"), Event("b", 2)], [Event("a", True), Event("a", [1]), Event("a", None), Bare("a")]),
    "class": ([Bare("a"), Bare("b")], [Bare(1), Bare([]), Subclass("a")]),
    "named tuple": ([Label("a", 1), Label("b", 2)], [Label("a", True), Label("a", []), ("a", 1), Point("a", 1)]),  # type: ignore[arg-type]
    "frozen": ([Frozen("a"), Frozen("b")], [Frozen(1), Frozen([])]),
    "not called": ([measured("a", 1.5), measured("b", -0.0)], [measured("a", 1)]),
    "enum": ([("a", Level.LOW), ("b", Level.LOW)], [("a", 1), ("a", Color.RED)]),
}


@pytest.mark.parametrize("name", FIELDWISE)
def test_records_come_back_from_their_columns_and_others_are_left(name: str) -> None:
    """Of the same class, with the same attributes in the same order; nothing that only looks like them is taken."""
    records, others = FIELDWISE[name]
    shape = shape_of(records[0])
    assert shape is not None

    found, left = columns_of_shape(shape)([*others, *records, *others])

    assert all(map(same, found, records))
    assert len(found) == len(records)
    assert not any(found_record is record for found_record in found for record in records if not isinstance(record, tuple))
    assert [id(record) for record in left] == [id(record) for record in [*others, *others]]


def test_a_name_that_only_equals_a_key_is_another_one() -> None:
    """A key may be a subclass of str, with a hash and an order of its own."""

    class Name(str):
        __slots__ = ()

    shape = shape_of({"a": 1})
    assert shape is not None
    made = "".join(["lon", "g"])
    long = shape_of({"long": 1})
    assert long is not None

    assert columns_of_shape(shape)([{Name("a"): 1}]) == ([], [{"a": 1}])
    assert columns_of_shape(long)([{made: 1}]) == ([{"long": 1}], [])


def test_an_attribute_that_was_added_makes_another_record() -> None:
    record, short = Event("a"), Event("a")
    record.more = 1  # type: ignore[attr-defined]  # that is the point
    del short.value
    swapped = Event("a")
    vars(swapped)["name"] = vars(swapped).pop("name")
    shape = shape_of(Event("a"))
    assert shape is not None

    found, left = columns_of_shape(shape)([record, short, swapped])

    assert found == []
    assert [vars(each) for each in left] == [{"name": "a", "value": 1, "more": 1}, {"name": "a"}, {"value": 1, "name": "a"}]
    assert list(vars(left[2])) == ["value", "name"]


def test_a_row_of_another_kind_is_not_taken() -> None:
    shape = shape_of(Row(a=1))
    assert shape is not None

    found, left = columns_of_shape(shape)([deleted_row(), Row(a=1)])

    assert found == [Row(a=1)]
    assert [row.get_row_kind() for row in left] == [RowKind.DELETE]


def test_a_field_of_any_type_is_any_that_cannot_change() -> None:
    one, other = shape_of({"a": 1, "b": "x"}), shape_of({"a": None, "b": "x"})
    assert one is not None
    assert other is not None
    records: list[Any] = [{"a": value, "b": "x"} for value in (1, None, "text", 2.5, True)]

    found, left = columns_of_shape(one.joined(other))([*records, {"a": [], "b": "x"}, {"a": 1, "b": 2}])

    assert found == records
    assert left == [{"a": [], "b": "x"}, {"a": 1, "b": 2}]


def test_the_fields_of_a_record_are_those_of_its_columns() -> None:
    records: list[Any] = ["a", ("a", 1), {"a": "x", "b": 1}, Row(a="x"), Event("a"), Point(1), Frozen(2)]

    found = []
    for record in records:
        shape = shape_of(record)
        assert shape is not None
        found.append(fields_of(record, shape))

    assert found == [("a",), ("a", 1), ("x", 1), ("x",), ("a", 1), (1, None), (2,)]


# ---------------------------------------------------------------- records in a list


def taker_of(shape: RecordShape) -> Callable[[list[Any]], list[Any]]:
    """A loop as emitters write it for records that are kept whole; what it does not take is None."""
    shape = RecordShape(shape.kind)  # as if it had no columns
    code = LoopCode("test", lambda: None)
    taken: list[Any] = []
    with code.block("for record in records:"):
        tests = [shape.type_test(code, "record")]
        flat = shape.flat_test(code, "record")
        tests += [] if flat is None else [flat]
        with code.block(f"if {' and '.join(tests)}:"):
            code.line(f"{code.bind(taken, 'taken')}.append({shape.owned(code, 'record')})")
        with code.block("else:"):
            code.line(f"{code.bind(taken, 'taken')}.append(None)")
        code.line("record = None")
    run = code.define("records")

    def emit(records: Any) -> list[Any]:
        taken.clear()
        run(records)
        return taken.copy()

    return emit


@pytest.mark.parametrize("name", FLAT)
def test_a_flat_record_that_nobody_else_holds_is_not_copied(name: str) -> None:
    make, _ = FLAT[name]
    shape = shape_of(make("value"))
    assert shape is not None
    made: list[int] = []

    def records() -> Any:
        for _ in range(3):
            made.append(id(record := make("value")))
            boxed, record = [record], None
            yield boxed.pop()

    found = taker_of(shape)(records())

    assert list(map(id, found)) == made
    assert all(same(each, make("value")) for each in found)


@pytest.mark.parametrize("name", FLAT)
def test_a_flat_record_that_somebody_holds_is_copied(name: str) -> None:
    make, change = FLAT[name]
    record = make("value")
    shape = shape_of(record)
    assert shape is not None

    found = taker_of(shape)([record, record])
    change(record, "changed")

    assert len({id(record), *map(id, found)}) == 3
    assert all(same(each, make("value")) for each in found)


@pytest.mark.parametrize("make", [Bare, Event, WeakSlots, WeakStruct])
def test_a_record_with_a_weak_reference_is_not_taken_as_it_is(make: Any) -> None:
    """Whoever has it could change the record, though nobody holds it."""
    shape = shape_of(make("value"))
    assert shape is not None
    references: list[Any] = []

    def records() -> Any:
        record = make("value")
        references.append(weakref.ref(record))
        boxed, record = [record], None
        yield boxed.pop()

    (found,) = taker_of(shape)(records())
    gc.collect()

    assert found is None
    assert references[0]() is None


def test_attributes_that_somebody_holds_are_not_taken_as_they_are() -> None:
    """``vars(record)`` changes the record, though nobody holds the record itself."""
    shape = shape_of(Bare("value"))
    assert shape is not None
    kept: list[dict[str, Any]] = []

    def records() -> Any:
        boxed = [Bare("value")]
        kept.append(vars(boxed[0]))
        yield boxed.pop()

    (found,) = taker_of(shape)(records())
    kept[0]["value"] = "changed"

    assert found is None or found.value == "value"


@pytest.mark.parametrize("name", FLAT)
def test_a_record_that_holds_something_that_can_change_is_not_taken(name: str) -> None:
    make, _ = FLAT[name]
    if name == "set":
        return  # holds only what has a hash
    shape = shape_of(make("value"))
    assert shape is not None

    assert taker_of(shape)([make([]), make(([],))]) == [None, None]


def test_a_subclass_is_not_its_base() -> None:
    shape = shape_of({"a": 1})
    assert shape is not None
    assert taker_of(shape)([MyDict(a=1), OrderedDict(a=1), [1]]) == [None, None, None]
    shape = shape_of(Bare(1))
    assert shape is not None
    assert taker_of(shape)([Subclass(1)]) == [None]


@pytest.mark.parametrize("make", [Slots, WeakSlots])
def test_a_record_with_a_slot_that_was_never_set_is_not_taken(make: Any) -> None:
    """Whether the first record, or any later one, lacks it."""
    complete, record = make("value"), make("value")
    if make is Slots:
        complete.unset = 1
    else:
        del record.value
    shape = shape_of(complete)
    assert shape is not None

    assert shape_of(record) is None
    assert taker_of(shape)([complete, record])[1] is None

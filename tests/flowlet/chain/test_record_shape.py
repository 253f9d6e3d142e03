import dataclasses
import enum
import gc
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from flowlet.chain.loop_code import LoopCode
from flowlet.chain.record_shape import MAX_FIELDS, MIN_OTHERS, RecordShape, ShapeWatch, fields_of, shape_of
from flowlet.columns import column_of
from flowlet.common.types import Row, RowKind
from tests.flowlet.chain.test_record_copies import (
    FLAT,
    Bare,
    Color,
    Derived,
    Event,
    Frozen,
    MyDict,
    MyRow,
    Point,
    SlotEvent,
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
    """A point with a dictionary of its own."""


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


def known_shape(record: Any) -> RecordShape:
    shape = shape_of(record)
    assert shape is not None
    return shape


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
        (("a", []), RecordShape(tuple, is_nested=True)),
        (Point(1), RecordShape(Point, (int, type(None)), ("x", "y"))),
        (Point(1, (2,)), RecordShape(Point)),
        (Point(1, []), RecordShape(Point, is_nested=True)),
        (PointWithMore(1), None),
        (Color.RED, RecordShape(Color)),
        (Frozen(1), RecordShape(Frozen, (int,), ("value",))),
        (Frozen([]), None),
        ({"a": 1, "b": "x"}, RecordShape(dict, (int, str), ("a", "b"))),
        ({1: "x"}, RecordShape(dict)),
        ({"a": []}, RecordShape(dict, is_nested=True)),
        ({}, RecordShape(dict)),
        (Row(a=1, b="x"), RecordShape(Row, (int, str), ("a", "b"))),
        (Row(1), RecordShape(Row)),
        (deleted_row(), RecordShape(Row)),
        (Row(a=[]), RecordShape(Row, is_nested=True)),
        (Event("a"), RecordShape(Event, (str, int), ("name", "value"))),
        (Slots("a"), None),
        (Struct("a"), RecordShape(Struct, (str, int), ("value", "more"))),
        ([1], RecordShape(list)),
        (MyDict(), None),
    ],
    ids=stable_repr,
)
def test_the_shape_of_a_record_is_what_a_loop_can_look_for(record: Any, shape: RecordShape | None) -> None:
    """A record that is pickled has the shape None."""
    assert shape_of(record) == shape


def test_two_shapes_are_joined_by_field() -> None:
    """A field of several types is any that cannot change; a tuple keeps the number of its fields, others are looked at
    as they come.
    """
    for kind, names in ((tuple, None), (dict, ("a", "b", "c")), (Row, ("a", "b", "c")), (Event, ("a", "b", "c"))):
        one, other = RecordShape(kind, (str, int, int), names), RecordShape(kind, (str, int, type(None)), names)

        assert one.joined(other) == RecordShape(kind, (str, int, None), names)
        assert one.joined(other).joined(one) == RecordShape(kind, (str, int, None), names)
        assert one.joined(one) == one
        assert RecordShape(kind).joined(one) == RecordShape(kind)
        for unlike in (RecordShape(kind), RecordShape(kind, (str, int), None if names is None else names[:2])):
            assert one.joined(unlike) == (one if kind is tuple else RecordShape(kind))
    assert RecordShape(dict, (str,), ("a",)).joined(RecordShape(Row, (int,), ("a",))) == RecordShape(
        dict, (str,), ("a",)
    )


def test_only_the_names_of_attributes_are_looked_up() -> None:
    """Fields of a dict or a Row are taken in order, whatever their names."""
    for kind in (dict, Row):
        one, swapped = RecordShape(kind, (str, int), ("a", "b")), RecordShape(kind, (str, int), ("b", "a"))
        assert one.joined(swapped) == one
    one, swapped = RecordShape(Event, (str, int), ("name", "value")), RecordShape(Event, (str, int), ("value", "name"))
    assert one.joined(swapped) == RecordShape(Event)


# ---------------------------------------------------------------- records that are looked at field by field


def taken_by(shape: RecordShape) -> Callable[[Any], tuple[list[Any], list[Any]]]:
    """Return a loop as chunking outputs write it; it gives the records that it took, as the consumer gets them, and
    those that it did not take.
    """
    code = LoopCode("test", lambda: None)
    assert shape.field_types is not None
    columns: list[list[Any]] = [[] for _ in shape.field_types]
    listed: list[Any] = []
    left: list[Any] = []
    leave = f"{code.bind(left, 'left')}.append(record)"
    with code.block("for record in records:"):
        with code.block(f"if {shape.type_test(code, 'record')}:"):
            fields, tests = shape.write_fields(code, "record")
            with code.block(f"if {' and '.join(tests)}:"):
                if shape.is_by_column:
                    for field, values in zip(fields, columns, strict=True):
                        code.line(f"{code.bind(values, 'values')}.append({field})")
                else:
                    code.line(f"{code.bind(listed, 'listed')}.append({shape.owned(code, 'record', fields)})")
            with code.block("else:"):
                code.line(leave)
        with code.block("else:"):
            code.line(leave)
    run = code.define("records")

    def emit(records: Any) -> tuple[list[Any], list[Any]]:
        run(records)
        if not columns[0]:
            return listed, left
        return shape.columns([column_of(values) for values in columns], None).to_list(), left

    return emit


# Of each kind: records of one shape; others of which the loop may take some; and some that it must leave: they can
# change in ways of
# which it knows nothing, or are of other types.
FIELDWISE: dict[str, tuple[list[Any], list[Any], list[Any]]] = {
    "tuple": (
        [("a", 1), ("b", 2)],
        [],
        [("a",), ("a", 1, 2), ("a", True), ("a", 1.0), ("a", None), ("a", [1]), ["a", 1], Point("a", 1)],  # type: ignore[arg-type]
    ),
    "dict": (
        [{"a": "x", "b": 1}, {"a": "y", "b": 2}],
        [{"b": "x", "a": 1}, {"a": "x", "c": 1}, {1: "x", None: 1}],
        [
            {"b": 1, "a": "x"},
            {"a": "x"},
            {"a": "x", "b": 1, "c": 2},
            {"a": "x", "b": True},
            {"a": "x", "b": [1]},
            MyDict(a="x", b=1),
            OrderedDict(a="x", b=1),
        ],
    ),
    "row": (
        [Row(a="x", b=1), Row(a="y", b=2)],
        [Row("x", 1), Row(a="x", c=1), Row.of_kind(RowKind.DELETE, a="x", b=1)],
        [Row(b=1, a="x"), Row(a="x"), Row(a="x", b=True), Row(a="x", b=[1]), Row(a="x", b=1, c=2), MyRow(a="x", b=1)],
    ),
    "dataclass": (
        [Event("a"), Event("b", 2)],
        [],
        [Event("a", True), Event("a", [1]), Event("a", None), Bare("a"), Derived("a")],
    ),
    "class": ([Bare("a"), Bare("b")], [], [Bare(1), Bare([]), Subclass("a")]),
    "slots": ([SlotEvent("a"), SlotEvent("b", 2)], [], [SlotEvent("a", True), SlotEvent("a", [1]), Event("a")]),
    "struct": ([Struct("a"), Struct("b", 2)], [], [Struct("a", True), Struct([]), Event("a")]),
    "named tuple": ([Label("a", 1), Label("b", 2)], [], [Label("a", True), Label("a", []), ("a", 1), Point("a", 1)]),  # type: ignore[arg-type]
    "frozen": ([Frozen("a"), Frozen("b")], [], [Frozen(1), Frozen([])]),
    "not called": ([measured("a", 1.5), measured("b", -0.0)], [], [measured("a", 1)]),
    "enum": ([("a", Level.LOW), ("b", Level.LOW)], [], [("a", 1), ("a", Color.RED)]),
}


@pytest.mark.parametrize("name", FIELDWISE)
def test_records_of_a_shape_are_taken_as_they_are_and_others_are_left(name: str) -> None:
    """A shape takes records of its class with its attributes in its order, as objects of the consumer's own; others are
    left.
    """
    records, alike, others = FIELDWISE[name]
    shape = known_shape(records[0])
    taken = [*records, *alike, *records]

    found, left = taken_by(shape)([*others, *taken, *others])

    assert all(map(same, found, taken))
    assert len(found) == len(taken)
    if not isinstance(records[0], tuple | Frozen):
        assert not any(each is record for each in found for record in taken)
    assert [id(record) for record in left] == [id(record) for record in [*others, *others]]


def test_a_name_that_only_equals_a_key_stays_what_it_is() -> None:
    """A key may be a subclass of str, with a hash and an order of its own; whether a loop looks at it depends on the
    collector.
    """

    class Name(str):
        __slots__ = ()

    shape = known_shape({"a": 1})

    found, left = taken_by(shape)([{Name("a"): 1}, {"a": 2}])

    assert sorted(record["a"] for record in [*found, *left]) == [1, 2]
    assert {record["a"]: type(name) for record in [*found, *left] for name in record} == {1: Name, 2: str}


def test_a_copy_of_attributes_is_made_of_the_fields_that_were_read() -> None:
    """Neither instance gets a ``__dict__``, which both would keep."""

    @dataclasses.dataclass
    class Reading:
        name: str
        value: int

    record = Reading("a", 1)
    shape = known_shape(Reading("b", 2))

    (found,), left = taken_by(shape)([record])

    assert left == []
    assert found == record
    assert found is not record
    if sys.version_info < (3, 13):  # where attributes are read by name
        assert [len(gc.get_referents(each)) for each in (record, found)] == [3, 3]


def test_a_class_that_sets_its_attributes_itself_is_not_asked_to() -> None:
    """A copy is what pickle would make."""
    asked = []

    class Careful:
        def __init__(self, name: str, value: int) -> None:
            self.name = name
            self.value = value

        def __setattr__(self, name: str, value: Any) -> None:
            asked.append(name)
            super().__setattr__(name, value)

    record = Careful("a", 1)
    shape = known_shape(Careful("b", 2))
    asked.clear()

    found, left = taken_by(shape)([record])

    assert [vars(each) for each in (*found, *left)] == [{"name": "a", "value": 1}]
    assert asked == []


def test_an_attribute_that_was_added_makes_another_record() -> None:
    """An attribute that was deleted does so, too, even if there are as many as before."""
    record, short, other = Event("a"), Event("a"), Event("a")
    record.more = 1  # type: ignore[attr-defined]  # that is the point
    del short.value
    del other.value
    other.more = 1  # type: ignore[attr-defined]  # as above
    swapped = Event("a")
    vars(swapped)["name"] = vars(swapped).pop("name")
    shape = known_shape(Event("a"))

    found, left = taken_by(shape)([record, short, swapped])

    assert found == []
    assert [vars(each) for each in left] == [
        {"name": "a", "value": 1, "more": 1},
        {"name": "a"},
        {"value": 1, "name": "a"},
    ]
    assert list(vars(left[2])) == ["value", "name"]
    found, left = taken_by(shape)([other])
    assert [(list(vars(each).items()), each is other) for each in (*found, *left)] == [
        ([("name", "a"), ("more", 1)], bool(left))
    ]


def test_a_row_keeps_its_kind() -> None:
    shape = known_shape(Row(a=1))
    deleted = deleted_row()

    found, left = taken_by(shape)([deleted, Row(a=1)])

    assert (found, left) == ([deleted, Row(a=1)], [])
    assert [row.get_row_kind() for row in found] == [RowKind.DELETE, RowKind.INSERT]
    assert found[0] is not deleted


def test_a_field_of_any_type_is_any_that_cannot_change() -> None:
    one, other = known_shape({"a": 1, "b": "x"}), known_shape({"a": None, "b": "x"})
    records: list[Any] = [{"a": value, "b": "x"} for value in (1, None, "text", 2.5, True)]

    found, left = taken_by(one.joined(other))([*records, {"a": [], "b": "x"}, {"a": 1, "b": 2}])

    assert found == records
    assert left == [{"a": [], "b": "x"}, {"a": 1, "b": 2}]


def test_the_fields_of_a_record_are_those_that_a_loop_takes() -> None:
    objects = [Event("a"), SlotEvent("a"), Struct("a"), Point(1), Frozen(2)]
    records: list[Any] = ["a", ("a", 1), {"a": "x", "b": 1}, Row(a="x"), *objects]

    found = [fields_of(record, known_shape(record)) for record in records]

    assert found == [("a",), ("a", 1), ("x", 1), ("x",), ("a", 1), ("a", 1), ("a", 1), (1, None), (2,)]


# ---------------------------------------------------------------- which shape is looked for


def watched(watch: ShapeWatch, shape: RecordShape | None, records: list[Any]) -> RecordShape | None:
    for record in records:
        watch.note(record)
    return watch.chosen(shape)


def test_a_shape_is_chosen_when_many_records_had_another_one() -> None:
    watch = ShapeWatch()

    assert watched(watch, None, [("a", 1)] * 15) is None
    assert watch.num_others < MIN_OTHERS
    pairs = watched(watch, None, [("a", 1)])

    assert pairs == RecordShape(tuple, (str, int))
    assert watch.last is None  # it keeps no record of the user's
    assert watched(watch, pairs, [("a", None)] * 15) == pairs
    assert watched(watch, pairs, [("a", None)]) == RecordShape(tuple, (str, None))
    assert watched(watch, pairs, ["a"] * 16) == RecordShape(str)


def test_shapes_that_change_forever_are_given_up() -> None:
    watch, shape = ShapeWatch(), RecordShape(str)
    chosen = [watched(watch, shape, [record] * 16) for record in [1, None] * 5]

    assert chosen == [RecordShape(int), RecordShape(type(None))] * 4 + [None, None]


# ---------------------------------------------------------------- records in a list


def taker_of(shape: RecordShape) -> Callable[[list[Any]], list[Any]]:
    """Return a loop as chunking outputs write it for records that are kept whole; a record that it does not take is
    None.
    """
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
    shape = known_shape(make("value"))
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
    """A list alone holds it; each time it is emitted it is a new one."""
    make, change = FLAT[name]
    held = [make("value")]
    take = taker_of(known_shape(make("value")))

    found = [*take(held), *take(held)]
    change(held[0], "changed")

    assert len({*map(id, held), *map(id, found)}) == 3
    assert all(same(each, make("value")) for each in found)


@pytest.mark.parametrize("make", [Bare, Event, WeakSlots, WeakStruct])
def test_a_record_with_a_weak_reference_is_not_taken_as_it_is(make: Any) -> None:
    """The owner of a weak reference could change the record, so it is not taken, even if no variable holds it."""
    shape = known_shape(make("value"))
    references: list[Any] = []

    def records() -> Any:
        record = make("value")
        references.append(weakref.ref(record))
        boxed, record = [record], None
        yield boxed.pop()

    (found,) = taker_of(shape)(records())

    assert found is None
    assert references[0]() is None


def test_attributes_that_somebody_holds_are_not_taken_as_they_are() -> None:
    """The dictionary of ``vars(record)`` can change the record, though no variable holds the record itself."""
    shape = known_shape(Bare("value"))
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
    shape = known_shape(make("value"))

    assert taker_of(shape)([make([]), make(([],))]) == [None, None]


def test_a_subclass_is_not_its_base() -> None:
    shape = known_shape({"a": 1})
    assert taker_of(shape)([MyDict(a=1), OrderedDict(a=1), [1]]) == [None, None, None]
    shape = known_shape(Bare(1))
    assert taker_of(shape)([Subclass(1)]) == [None]


@pytest.mark.parametrize("make", [Slots, WeakSlots])
def test_a_record_with_a_slot_that_was_never_set_is_not_taken(make: Any) -> None:
    """Whether the first record, or any later one, lacks it."""
    complete, record = make("value"), make("value")
    if make is Slots:
        complete.unset = 1
    else:
        del record.value
    shape = known_shape(complete)

    assert shape_of(record) is None
    assert taker_of(shape)([complete, record])[1] is None


def test_a_dict_with_a_key_that_can_change_is_not_taken() -> None:
    """Whether the loop looks at its values one by one, or at all together."""
    fieldwise, whole = known_shape({"a": 1}), known_shape({1: 1})
    records: list[Any] = [{Bare("a"): 1}]

    assert shape_of(records[0]) is None
    assert taken_by(fieldwise)(records) == ([], records)
    assert taker_of(whole)(records) == [None]


def test_a_dict_that_the_collector_tracks_is_taken_if_its_keys_cannot_change() -> None:
    shape = known_shape({"a": 1})
    record = {"a": 1, "more": []}
    del record["more"]

    _, left = taken_by(shape)([record])

    assert left == []


def test_a_row_whose_values_an_iterator_holds_is_copied() -> None:
    shape = known_shape(Row(1))
    iterators: list[Any] = []

    def records() -> Any:
        boxed = [Row("value")]
        iterators.append(iter(boxed[0]))
        yield boxed.pop()

    (found,) = taker_of(shape)(records())
    found[0] = "changed"

    assert list(iterators[0]) == ["value"]


def owned_by_loop(make: Callable[[Any], Any], *, is_shared: bool) -> tuple[Any, Any]:
    """Return the record that a loop takes if nothing but its variable holds it, and the variable's value afterwards."""
    shape = known_shape(make("value"))
    code = LoopCode("test", lambda: None)
    made: list[Any] = []
    code.line(f"record = {code.bind(lambda: make('value'), 'make')}()")
    with code.sharing("record", is_shared=is_shared):
        code.line(f"{code.bind(made, 'made')}.append({shape.owned(code, 'record')})")
    code.line(f"{code.bind(made, 'made')}.append(record)")
    code.define("")()
    return made[0], made[1]


@pytest.mark.parametrize("name", FLAT)
def test_a_record_whose_variable_is_read_again_is_copied(name: str) -> None:
    """The record is copied though no other variable holds it."""
    make, _ = FLAT[name]

    taken, left = owned_by_loop(make, is_shared=False)
    assert taken is left

    taken, left = owned_by_loop(make, is_shared=True)
    assert taken is not left
    assert same(taken, left)

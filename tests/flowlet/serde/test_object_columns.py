"""Records of classes, rows and dicts go by columns, and come back as pickles would bring them."""

import contextlib
import copy
import pickle
import struct
import sys
import types
from dataclasses import dataclass, make_dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common.types import Row
from flowlet.errors import SerdeError
from flowlet.records import Chunk
from flowlet.serde import column_writer as module
from flowlet.serde.column_reader import decode_column
from flowlet.serde.column_writer import MIN_OBJECTS, are_apart, encode_column
from flowlet.serde.column_writer import framed as column
from flowlet.serde.element_serializer import ElementDeserializer, StreamElementSerializer
from flowlet.serde.flat_classes import flat_class_of
from flowlet.serde.pickles.record_pickle import class_of, class_reference
from tests.flowlet.serde import records_of_classes as records
from tests.flowlet.serde.exact import ANY_ATOM, INTS, TEXTS, exact, round_trip
from tests.flowlet.serde.records_of_classes import FLAT, PICKLED

COLUMNS = {module.Kind.OBJECTS, module.Kind.ROWS, module.Kind.DICTS}


def described(value: Any) -> Any:
    """Describe everything about a value that a pickle keeps, and the parts of the value likewise."""
    if isinstance(value, Row):
        return type(value), value.get_row_kind(), value._fields, list(map(described, value))
    if isinstance(value, list | tuple) or (isinstance(value, dict) and type(value) is dict):
        inner = list(value.items()) if isinstance(value, dict) else list(value)
        return type(value), list(map(described, inner)), getattr(value, "__dict__", None)
    if isinstance(value, msgspec.Struct):
        return type(value), described(msgspec.structs.astuple(value))
    if type(value).__module__ != records.__name__ or isinstance(value, records.Color):
        return exact(value)
    slots = {
        name: getattr(value, name)
        for base in type(value).__mro__
        for name in vars(base).get("__slots__", ())
        if hasattr(value, name)
    }
    attributes = (
        [(name, item) for name, item in vars(value).items() if item is not value] if hasattr(value, "__dict__") else []
    )
    return (
        type(value),
        described(attributes),
        described([(name, slots[name]) for name in sorted(slots) if name != "__weakref__"]),
    )


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize("num_values", [MIN_OBJECTS - 1, MIN_OBJECTS, 20])
def test_records_of_one_flat_class_travel_by_columns_unless_they_are_few(name: str, num_values: int) -> None:
    """The records are those that a pickle brings."""
    values = [FLAT[name](number) for number in range(num_values)]

    kind = encode_column(values)[0]

    assert (kind in COLUMNS, kind == module.Kind.PICKLE) == (num_values >= MIN_OBJECTS, num_values < MIN_OBJECTS)
    assert described(round_trip(values)) == described(pickle.loads(pickle.dumps(values)))


@pytest.mark.parametrize("name", PICKLED)
def test_other_records_are_pickled(name: str) -> None:
    values = [PICKLED[name](number) for number in range(20)]

    data = encode_column(values)

    assert data[0] == module.Kind.PICKLE
    assert described(round_trip(values)) == described(pickle.loads(pickle.dumps(values)))


@pytest.mark.parametrize("name", [*FLAT, *PICKLED])
def test_every_record_can_stand_in_a_tuple(name: str) -> None:
    values = [(number, (FLAT | PICKLED)[name](number)) for number in range(20)]

    assert described(round_trip(values)) == described(pickle.loads(pickle.dumps(values)))


@given(st.data())
def test_values_of_fields_come_back_exactly(data: st.DataObject) -> None:
    """The values may be of any type."""
    makers: list[Any] = [records.Plain, records.FrozenSlots, records.Point, records.Struct, lambda a, b: Row(a=a, b=b)]
    make = data.draw(st.sampled_from(makers))
    firsts, seconds = (
        data.draw(st.sampled_from([INTS, TEXTS, ANY_ATOM, st.none(), st.tuples(INTS, TEXTS)])) for _ in range(2)
    )
    values = [
        make(*pair) for pair in data.draw(st.lists(st.tuples(firsts, seconds), min_size=MIN_OBJECTS, max_size=20))
    ]

    received = round_trip(values)

    assert described(received) == described(values)


@given(st.lists(st.dictionaries(TEXTS, ANY_ATOM, max_size=4), min_size=1, max_size=20), st.integers(1, 20))
def test_dicts_come_back_with_their_keys_in_order(dicts: list[dict[str, Any]], repeat: int) -> None:
    values = [{"".join(key): value for key, value in each.items()} for each in dicts * repeat]

    assert exact(round_trip(values)) == exact(values)


def test_keys_that_only_equal_a_text_stay_what_they_are() -> None:
    class Key(str):
        __slots__ = ()

    values: list[dict[str, int]] = [records.json_of(number) for number in range(20)]
    values[7] = {Key("number"): 7, "text": values[7]["text"]}

    assert encode_column(values)[0] == module.Kind.PICKLE
    received = [[type(key).__name__ for key in each] for each in round_trip(values)]
    assert received == [["Key", "str"] if number == 7 else ["str", "str"] for number in range(20)]


def test_dicts_that_were_read_share_their_keys() -> None:
    """Each key was a new object in the text; a sender of the dicts pickles it once."""
    received = round_trip([records.json_of(number) for number in range(20)])

    assert len({id(key) for each in received for key in each}) == 2


def test_methods_that_pickle_does_not_call_are_not_called() -> None:
    values = [records.Loud(number) for number in range(20)]
    before = records.Loud.num_set

    received = round_trip(values)

    assert records.Loud.num_set == before
    assert [each.number for each in received] == list(range(20))


def test_a_slot_that_was_never_set_stays_unset() -> None:
    values = [records.Slots(number, records.Color.RED) for number in range(20)]
    del values[5].color

    received = round_trip(values)

    assert not hasattr(received[5], "color")
    assert received[4] == values[4]


def test_what_a_record_holds_twice_it_holds_twice_afterwards() -> None:
    for values in (
        [records.twice(number) for number in range(20)],
        [(each.tags, each.tags) for each in (records.Derived(number) for number in range(20))],
        [Row(a=each.tags, b=each.tags) for each in (records.Derived(number) for number in range(20))],
    ):
        for received in round_trip(values):
            first, second = (received.more, received.tags) if isinstance(received, records.Derived) else received
            assert first is second


def test_a_record_that_holds_itself_holds_itself_afterwards() -> None:
    assert all(each.more is each for each in round_trip([records.itself(number) for number in range(20)]))


def test_records_that_were_one_object_become_two() -> None:
    """Values in a list become single objects, so a later change of one changes that one only."""
    first, *_, last = round_trip([records.Plain(1)] * 20)

    assert first == last
    assert first is not last


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ([[1, "a", None, records.Color.RED]], True),
        ([[(1, (2,)), frozenset({1})]], True),
        ([[[1], [2]], [{"a": [3]}, {4}]], True),
        ([[records.Plain(1), None]], True),
        ([[([],)]], True),
        ([[object()]], False),
        ([[bytearray()]], False),
        ([[[object()]]], False),
        ([[[[[[[1]]]]]]], False),
        ([[records.Slots.__new__(records.Slots)]], False),
        ([[{records.Reduced(1): 1}]], False),
    ],
)
def test_what_may_hold_a_mutable_object_unseen_is_known(columns: list[list[Any]], expected: bool) -> None:
    assert are_apart(columns) is expected


@pytest.mark.parametrize(
    "wrap",
    [lambda x: x, lambda x: (x,), lambda x: [x], lambda x: {"a": x}, lambda x: records.Box(x), Row],
    ids=["alone", "tuple", "list", "dict", "object", "Row"],
)
def test_a_mutable_object_that_occurs_twice_is_seen_wherever_it_is(wrap: Any) -> None:
    for shared in ([1], {1}, {"a": 1}, records.Plain(1), Row(1)):
        assert not are_apart([[wrap(shared)], [wrap(shared)]])
        assert not are_apart([[wrap(shared), wrap(shared)]])
        assert are_apart([[wrap(shared)], [wrap(copy.copy(shared))]])


def test_nested_columns_end_before_the_reader_refuses_them() -> None:
    value: Any = records.Frozen(1, "x")
    for _ in range(20):
        value = records.Box(value)
        assert round_trip([value] * 20) == [value] * 20
        assert round_trip([(1, (2, value))] * 20) == [(1, (2, value))] * 20


def of_main(make: Any) -> Any:
    """Return a class of a program that cannot be imported."""
    made = make()
    made.__module__ = "__main__"
    return made


BY_VALUE = {
    "dataclass": lambda: make_dataclass("Event", ["number", "text"]),
    "frozen": lambda: make_dataclass("Event", ["number", "text"], frozen=True),
    "slots": lambda: make_dataclass("Event", ["number", "text"], slots=True),
    "frozen slots": lambda: make_dataclass("Event", ["number", "text"], slots=True, frozen=True),
    "struct": lambda: msgspec.defstruct("Event", ["number", "text"]),
    "class": lambda: types.new_class("Event", (records.Plain,)),
    "named tuple": lambda: __import__("collections").namedtuple("Event", ["number", "text"]),
}


@pytest.mark.parametrize("name", BY_VALUE)
@pytest.mark.parametrize("num_values", [2, 20])
def test_classes_of_a_program_go_by_value_and_stay_one_class(name: str, num_values: int) -> None:
    event = of_main(BY_VALUE[name])
    values = [event(number, str(number)) for number in range(num_values)]

    first, second = round_trip(values), round_trip([(1, each) for each in values])

    assert {type(each) for each in first} == {type(each) for _, each in second}
    assert [(each.number, each.text) for each in first] == [(number, str(number)) for number in range(num_values)]


def test_a_class_whose_module_was_loaded_again_is_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The class of a notebook's cell that is run again is the new one."""
    module = types.ModuleType("some_module")
    monkeypatch.setitem(sys.modules, "some_module", module)
    for _ in range(2):
        event = make_dataclass("Event", ["number"])
        event.__module__, module.Event = "some_module", event  # type: ignore[attr-defined]

        received = round_trip([event(number) for number in range(20)])

        assert {type(each) for each in received} == {event}


def test_many_classes_of_a_program_do_not_fill_the_memory() -> None:
    """The caches begin anew, and nothing else changes."""
    for number in range(300):
        event = of_main(lambda number=number: make_dataclass(f"Event{number}", ["number"]))
        [first, *_] = round_trip([event(number)] * 20)
        assert first.number == number
        assert type(first).__name__ == f"Event{number}"


def test_records_of_a_chunk_come_back_through_the_channel() -> None:
    """Named rows come back as columns, the others as a list."""
    for name in FLAT:
        values = [FLAT[name](number) for number in range(20)]

        [chunk] = ElementDeserializer().feed(
            memoryview(StreamElementSerializer().serialize(Chunk(values, list(range(20)))))
        )

        assert isinstance(chunk, Chunk)
        assert described(chunk.values) == described(values)
        assert chunk.timestamps == list(range(20))
        assert (chunk.columns is not None) == (name in ("row with names", "row in a row"))


def objects(head: bytes, *fields: bytes) -> bytes:
    return column(module.Kind.OBJECTS, struct.pack(">I", len(head)) + head + b"".join(fields))


def head(cls: Any, names: list[Any]) -> bytes:
    return struct.pack(">H", len(names)) + encode_column(names) + class_reference(cls)


ONE = encode_column([1])
CORRUPT = {
    "no head": column(module.Kind.OBJECTS, b""),
    "a head that ends behind": column(module.Kind.OBJECTS, struct.pack(">I", 100) + b"abc"),
    "an empty head": objects(b""),
    "no field": objects(head(records.Plain, [])),
    "names that are none": objects(head(records.Plain, [1, 2]), ONE, ONE),
    "more fields than there are": objects(head(records.Plain, ["number", "text"]), ONE),
    "fewer fields than there are": objects(head(records.Plain, ["number"]), ONE, ONE),
    "other fields of a tuple": objects(head(records.Point, ["x"]), ONE),
    "other fields of slots": objects(head(records.Slots, ["color", "number"]), ONE, ONE),
    "other fields of a struct": objects(head(records.Struct, ["number"]), ONE),
    "a class that is pickled": objects(head(records.Reduced, ["number"]), ONE),
    "no class": objects(struct.pack(">H", 1) + encode_column(["a"]) + pickle.dumps(7), ONE),
    "a broken class": objects(struct.pack(">H", 1) + encode_column(["a"]) + b"\x80\x05garbage", ONE),
    "a struct that refuses": objects(head(records.CheckedStruct, ["number"]), encode_column([-1])),
    "too many values": objects(head(records.Plain, ["number"]), encode_column([1, 2])),
    "dicts without a key": column(module.Kind.DICTS, struct.pack(">H", 0) + encode_column([])),
    "dicts of other keys": column(module.Kind.DICTS, struct.pack(">H", 1) + encode_column([1]) + ONE),
    "dicts with a rest": column(module.Kind.DICTS, struct.pack(">H", 1) + encode_column(["a"]) + ONE + b"x"),
    "dicts of too many keys": column(
        module.Kind.DICTS, struct.pack(">H", 256) + encode_column(["a"] * 256) + ONE * 256
    ),
    "rows without a field": column(module.Kind.ROWS, struct.pack(">H", 0) + encode_column([])),
    "rows with half of their names": column(
        module.Kind.ROWS, struct.pack(">H", 2) + encode_column(["a", None]) + ONE + ONE
    ),
}


@pytest.mark.parametrize("name", CORRUPT)
def test_a_corrupt_column_is_refused(name: str) -> None:
    with pytest.raises((SerdeError, ValueError, struct.error)):
        decode_column(memoryview(CORRUPT[name]), 0, 1)


@pytest.mark.parametrize("kind", [module.Kind.DICTS, module.Kind.ROWS, module.Kind.OBJECTS])
@pytest.mark.parametrize("place", ["names", "fields"])
def test_columns_nested_without_end_are_refused(kind: int, place: str) -> None:
    data = ONE
    for _ in range(3_000):
        payload = struct.pack(">H", 1) + (data if place == "names" else encode_column(["a"]) + data)
        data = column(kind, (struct.pack(">I", len(payload)) if kind == module.Kind.OBJECTS else b"") + payload)

    with pytest.raises((SerdeError, ValueError, struct.error)):
        decode_column(memoryview(data), 0, 1)


@given(st.sampled_from([*FLAT]), st.data())
def test_damaged_columns_raise_only_the_documented_errors(name: str, data: st.DataObject) -> None:
    """The class reference is left as it is: a damaged pickle may do anything."""
    values = [FLAT[name](number) for number in range(20)]
    encoded = bytearray(encode_column(values))
    start = 9 + struct.unpack_from(">I", encoded, 5)[0] if encoded[0] == module.Kind.OBJECTS else 5
    places = [place for place in range(len(encoded)) if place < 9 or place >= start]
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.sampled_from(places))] = data.draw(st.integers(0, 255))
    size = data.draw(st.integers(0, len(encoded)))

    with contextlib.suppress(SerdeError, ValueError, struct.error):
        decode_column(memoryview(encoded)[:size], 0, len(values))


@pytest.mark.parametrize("name", FLAT)
def test_a_column_that_was_cut_is_refused_at_every_place(name: str) -> None:
    values = [FLAT[name](number) for number in range(20)]
    encoded = memoryview(encode_column(values))

    for size in range(len(encoded)):
        with pytest.raises((SerdeError, ValueError, struct.error)):
            decode_column(encoded[:size], 0, len(values))


def test_a_class_that_cannot_be_sent_is_named() -> None:
    lock = __import__("threading").Lock()

    @dataclass
    class Locked:
        number: int

        def lock(self) -> Any:
            return lock

    with pytest.raises(SerdeError, match="Locked cannot be pickled"):
        encode_column([Locked(number) for number in range(20)])


def test_what_is_no_class_is_not_read_as_one() -> None:
    with pytest.raises(SerdeError, match="a int instead of a class"):
        class_of(pickle.dumps(5))


def test_classes_are_flat_or_not() -> None:
    """A class with content that only C sees, or with objects that cannot be made, is pickled."""
    for cls in (int, str, object(), list, Exception, records.Base, memoryview, types.FunctionType, type, records.Meta):
        assert not isinstance(cls, type) or flat_class_of(cls) is None

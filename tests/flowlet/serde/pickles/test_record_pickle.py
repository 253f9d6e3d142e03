"""Records that are pickled one by one, when they are emitted."""

import enum
import pickle
import struct
import subprocess
import sys
import threading
import types
from dataclasses import dataclass, make_dataclass
from typing import Any

import cloudpickle
import pytest
from hypothesis import given

from flowlet.common.types import Row
from flowlet.errors import SerdeError
from flowlet.records import Chunk, PickledRecord
from flowlet.serde import column_writer as module
from flowlet.serde.column_reader import decode_column
from flowlet.serde.column_writer import encode_column
from flowlet.serde.element_serializer import ElementDeserializer, StreamElementSerializer
from flowlet.serde.pickles.record_pickle import PickleWithClasses, dumps_record, dumps_value, loads_record, loads_value
from tests.flowlet.serde.exact import NESTED, exact, round_trip
from tests.flowlet.serde.records_of_classes import FLAT, PICKLED
from tests.flowlet.serde.test_object_columns import described


@dataclass
class Mutable:
    number: int
    tags: list[Any]


def of_main(name: str = "Event") -> Any:
    """Return a class of a program that cannot be imported."""
    made = make_dataclass(name, ["number", "text"])
    made.__module__ = "__main__"
    return made


def table_of(data: bytes) -> bytes:
    return data.table if isinstance(data, PickleWithClasses) else b""


def received(values: list[Any]) -> list[Any]:
    assert encode_column(values)[0] == module.Kind.PICKLES
    return round_trip(values)


@given(NESTED)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    """What it holds twice it holds twice afterwards."""
    assert exact(loads_record(dumps_record(value))) == exact(value)
    first, second = loads_record(dumps_record([[value]] * 2))
    assert first is second


@pytest.mark.parametrize("name", [*FLAT, *PICKLED])
def test_a_record_of_any_class_comes_back_as_pickle_brings_it(name: str) -> None:
    value = (FLAT | PICKLED)[name](7)

    data = dumps_record(value)

    assert data == pickle.dumps(value, 5)
    assert described(loads_record(data)) == described(pickle.loads(pickle.dumps(value)))


def test_a_record_is_what_it_was_when_it_was_pickled() -> None:
    value = Mutable(1, [])
    pickles = []
    for number in range(3):
        value.tags.append(number)
        pickles.append(PickledRecord(dumps_record(value)))

    assert [each.tags for each in received([*pickles])] == [[0], [0, 1], [0, 1, 2]]


def test_plain_values_and_pickles_stand_side_by_side() -> None:
    values = [PickledRecord(dumps_record([1])), "a", 2, PickledRecord(dumps_record({"a": 1})), None, (1, "x"), Row(a=1)]

    assert received(values) == [[1], "a", 2, {"a": 1}, None, (1, "x"), Row(a=1)]


def test_a_single_pickle_is_a_column_and_says_its_size() -> None:
    assert received([PickledRecord(dumps_record([1]))]) == [[1]]
    assert repr(PickledRecord(b"1234")) == "<PickledRecord of 4 bytes>"


def test_pickles_come_through_a_channel_as_records() -> None:
    chunk = Chunk([PickledRecord(dumps_record([number])) for number in range(20)], list(range(20)))

    [found] = ElementDeserializer().feed(memoryview(StreamElementSerializer().serialize(chunk)))

    assert found == Chunk([[number] for number in range(20)], list(range(20)))


def test_a_class_of_the_program_is_one_class_for_all_records() -> None:
    event, other = of_main(), of_main("Other")
    values = [
        PickledRecord(dumps_record((other if number % 3 else event)(number, [other(1, "x")]))) for number in range(20)
    ]

    found = received([*values, event(20, "plain")])

    assert len({type(each) for each in found}) == 2
    assert {type(each.text[0]) for each in found[:20]} == {type(found[1])}
    assert [each.number for each in found] == list(range(21))
    assert type(loads_record(values[0].data)) is type(found[0])


def test_a_class_of_the_program_is_sent_once_for_all_records() -> None:
    event = of_main()
    pickles = [dumps_record(event(number, "x")) for number in range(100)]

    size = len(encode_column([PickledRecord(each) for each in pickles]))

    assert len(table_of(pickles[0])) > 1000
    assert size < 2 * len(table_of(pickles[0])) + 100 * 100


def test_more_classes_than_a_table_takes_come_all_the_same() -> None:
    values = [of_main(f"Event{number}")(number, "x") for number in range(300)]

    found = round_trip([PickledRecord(dumps_record(each)) for each in values])

    assert [(type(each).__name__, each.number) for each in found] == [
        (f"Event{number}", number) for number in range(300)
    ]


def test_a_class_of_the_program_in_a_dict_is_found_and_forgotten() -> None:
    """Dicts without one are pickled the quick way again."""
    event = of_main()

    assert loads_record(dumps_record({"event": event(1, "x")}))["event"].number == 1
    for _ in range(2):
        assert dumps_record({"event": 1}) == pickle.dumps({"event": 1}, 5)


def test_text_that_looks_like_the_main_module_is_only_text() -> None:
    assert loads_record(dumps_record(["__main__"])) == ["__main__"]


def test_a_class_that_the_main_module_has_here_goes_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader's main module is another one."""
    event = of_main()
    monkeypatch.setattr(sys.modules["__main__"], "Event", event, raising=False)
    assert pickle.loads(pickle.dumps(event(1, "x"))) == event(1, "x")

    assert table_of(dumps_record(event(1, "x")))


def test_a_module_that_was_registered_goes_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages in the module go by value, too."""
    package, inner = types.ModuleType("some_package"), types.ModuleType("some_package.inner")
    for module_name in (package, inner):
        monkeypatch.setitem(sys.modules, module_name.__name__, module_name)
    event = of_main()
    event.__module__, inner.Event = inner.__name__, event  # type: ignore[attr-defined]
    assert not table_of(dumps_record(event(1, "x")))

    cloudpickle.register_pickle_by_value(package)
    try:
        data = dumps_record(event(1, "x"))
    finally:
        cloudpickle.unregister_pickle_by_value(package)

    assert table_of(data)
    assert loads_record(data).number == 1


def test_a_pickle_takes_its_classes_along_when_it_is_pickled_itself() -> None:
    """Pickled records may be part of the state of an operator, for example."""
    event = of_main()
    record = PickledRecord(dumps_record(event(1, "x")))

    [copied] = pickle.loads(pickle.dumps([record], 5))

    assert loads_record(copied.data).number == 1


@given(NESTED)
def test_a_value_as_bytes_alone_comes_back(value: Any) -> None:
    assert exact(loads_value(dumps_value(value))) == exact(value)
    assert exact(loads_value(memoryview(dumps_value(value)))) == exact(value)


def test_a_value_as_bytes_alone_has_its_classes_in_front() -> None:
    data = dumps_value({"event": of_main()(1, "x")})

    assert type(data) is bytes
    assert loads_value(data)["event"].text == "x"
    for size in range(len(data)):
        with pytest.raises((SerdeError, EOFError, pickle.UnpicklingError)):
            loads_value(data[:size])


def test_members_of_an_enum_of_the_program_stay_members() -> None:
    color = enum.Enum("color", ["RED", "BLUE"], module="__main__")

    found = loads_record(dumps_record([color.RED, color.BLUE, color.RED]))

    assert found[0] is found[2]
    assert (found[0].name, found[1].value) == ("RED", 2)


def test_functions_go_by_value() -> None:
    def local(x: int) -> int:
        return x + number

    number = 5
    of_program = types.FunctionType(local.__code__, globals(), "local", None, local.__closure__)
    of_program.__module__ = "__main__"

    for function in (local, of_program, lambda x: x + 5):
        assert loads_record(dumps_record({"function": function}))["function"](1) == 6


def test_another_process_reads_what_a_program_wrote() -> None:
    """The program's class is in no module."""
    event = of_main()
    values = [event(number, "x") for number in range(20)]
    data = [
        encode_column([PickledRecord(dumps_record(each)) for each in values]),
        encode_column(values),
        encode_column(values[:2]),
    ]
    code = (
        "import sys, pickle\n"
        "from flowlet.serde.column_reader import decode_column\n"
        "for data, count in zip(pickle.loads(sys.stdin.buffer.read()), (20, 20, 2)):\n"
        "    found, _ = decode_column(memoryview(data), 0, count)\n"
        "    print(len({type(each) for each in found}), sum(each.number for each in found))\n"
    )

    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(data), capture_output=True, check=True)

    assert done.stdout.split() == [b"1", b"190", b"1", b"190", b"1", b"1"]


@pytest.mark.parametrize(
    ("wrap", "part"),
    [
        (lambda value: value, ""),
        (lambda value: [value], r"`value\[0\]` \(_thread.lock\): "),
        (lambda value: {"a": value}, r"`value\['a'\]` \(_thread.lock\): "),
        (lambda value: Mutable(1, [value]), r"`value.tags\[0\]` \(_thread.lock\): "),
    ],
)
def test_a_value_that_cannot_be_pickled_is_named_by_its_type_and_its_part(wrap: Any, part: str) -> None:
    value = wrap(threading.Lock())

    with pytest.raises(
        SerdeError, match=f"a value of type {type(value).__name__} cannot be pickled: {part}TypeError: cannot pickle"
    ):
        dumps_record(value)


def test_a_plain_value_that_cannot_be_pickled_beside_pickles_is_named() -> None:
    with pytest.raises(SerdeError, match="type lock cannot be pickled"):
        encode_column([PickledRecord(dumps_record(1)), threading.Lock()])


def column(payload: bytes) -> bytes:
    return struct.pack(">BI", module.Kind.PICKLES, len(payload)) + payload


NONE = struct.pack(">H", 0)
ONE = struct.pack(">H", 1)
CORRUPT = {
    "nothing": column(b""),
    "no sizes": column(NONE),
    "sizes beyond the pickles": column(NONE + encode_column([5]) + b"\x80"),
    "sizes that are none": column(NONE + encode_column(["a"]) + b"\x80"),
    "a broken pickle": column(NONE + encode_column([9]) + b"\x80\x05garbage"),
    "an empty pickle": column(NONE + encode_column([0])),
    "a table that is no bytes": column(ONE + encode_column([1]) + encode_column([1]) + encode_column([1]) + b"N"),
    "a place that is not there": column(ONE + encode_column([b""]) + encode_column([2]) + encode_column([2]) + b"N."),
    "a negative place": column(ONE + encode_column([b""]) + encode_column([-1]) + encode_column([2]) + b"N."),
    "a broken table": column(ONE + encode_column([b"abc"]) + encode_column([1]) + encode_column([2]) + b"N."),
    "a table that ends behind": column(
        ONE + encode_column([b"\0\0\0\5abc"]) + encode_column([1]) + encode_column([2]) + b"N."
    ),
    "too many tables": column(
        struct.pack(">H", 256) + encode_column([b""] * 256) + encode_column([0]) + encode_column([2]) + b"N."
    ),
    "a pickle with its table": column(NONE + encode_column([7]) + b"\0\0\0\0\x00N."),
    "in a constant": struct.pack(">BI", module.Kind.CONSTANT, 14) + column(NONE + encode_column([2]) + b"N.")[:14],
}


@pytest.mark.parametrize("name", CORRUPT)
def test_a_corrupt_column_is_refused(name: str) -> None:
    with pytest.raises((SerdeError, ValueError, struct.error)):
        decode_column(memoryview(CORRUPT[name]), 0, 1)


def test_a_class_that_is_not_in_the_table_is_refused() -> None:
    pickled = dumps_record(of_main()(1, "x"))

    with pytest.raises(SerdeError, match="IndexError"):
        decode_column(memoryview(column(NONE + encode_column([len(pickled)]) + pickled)), 0, 1)


@pytest.mark.parametrize("is_of_program", [False, True])
def test_a_column_that_was_cut_is_refused_at_every_place(is_of_program: bool) -> None:
    event = of_main()
    encoded = memoryview(
        encode_column([PickledRecord(dumps_record(event(1, "x") if is_of_program else [1])) for _ in range(3)])
    )

    for size in range(len(encoded)):
        with pytest.raises((SerdeError, ValueError, struct.error)):
            decode_column(encoded[:size], 0, 3)


def test_a_process_of_ours_sends_a_programs_class_by_value_too() -> None:
    """The main module of such a process is ours: there, no pickle is searched for the name of the main module."""
    code = (
        "import pickle, sys, types\n"
        "sys.modules['__main__'].__package__ = 'flowlet.tm'\n"
        "from dataclasses import make_dataclass\n"
        "from flowlet.serde.pickles.record_pickle import PickleWithClasses, dumps_record, dumps_value\n"
        "Event = make_dataclass('Event', ['number'])\n"
        "Event.__module__ = '__main__'\n"
        "event = Event(7)\n"
        "del Event\n"  # as where the class came from a program
        "assert type(dumps_record(event)) is PickleWithClasses\n"
        "assert type(dumps_record('__main__')) is bytes\n"
        "sys.stdout.buffer.write(dumps_value(event))\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)

    assert loads_value(done.stdout).number == 7

"""Records that the loop of a chunking output was not made for, or that change afterwards.

Each program is run record by record, too: what arrives is what each record was when it was emitted.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.chain.chunking_output import KeyExtractor
from flowlet.common.types import Row, field_names_of
from flowlet.io.record_writer import beside_keys, sendable
from flowlet.records import Chunk, PickledRecord
from flowlet.serde.element_serializer import ElementDeserializer, StreamElementSerializer
from flowlet.serde.pickles.record_pickle import loads_record
from tests.flowlet.operators.chains import Emission, KeyedRecordingOutput
from tests.flowlet.operators.harness import RecordingOutput
from tests.flowlet.serde import named_records
from tests.flowlet.serde.exact import exact
from tests.flowlet.serde.named_records import Event, Slots, Struct, WithDefaults, with_other_order
from tests.named_cases import case


class SubEvent(Event):
    pass


class MyDict(dict[Any, Any]):
    pass


def other_attribute(name: Any, value: Any) -> Any:
    event = Event(name, value)
    del event.value
    event.other = value  # type: ignore[attr-defined]  # that is the point
    return event


def default_and_other(name: Any, value: Any) -> Any:
    """Return a record with as many attributes as the others have, but ``value`` is the one of the class."""
    record = WithDefaults(name, value)
    del record.value
    record.other = value  # type: ignore[attr-defined]  # that is the point
    return record


def without_default(name: Any, value: Any) -> Any:
    """Return a record whose ``value`` is the one of the class."""
    record = WithDefaults(name, value)
    del record.value
    return record


MAKERS: dict[str, Callable[[Any, Any], Any]] = {
    **named_records.MAKERS,
    "SubEvent": SubEvent,
    "other attribute": other_attribute,
    "without default": without_default,
    "default and another": default_and_other,
    "dict with a number": lambda name, value: {1: name, "value": value},
    "short dict": lambda name, _: {"name": name},
    "subclass of dict": lambda name, value: MyDict(name=name, value=value),
    "list": lambda name, value: [name, value],
}
VALUES: dict[str, Callable[[int], Any]] = {
    "int": lambda number: number,
    "float": lambda number: number / 2,
    "None": lambda _: None,
    "text": lambda number: f"text {number}",
    "list": lambda number: [number],
    "bytearray": lambda number: bytearray([number % 256]),
    "array": lambda number: np.array([number, 1]),
    "dict": lambda number: {"number": [number]},
    "tuple of a list": lambda number: (1, [number]),
}


def change_value(value: Any) -> None:
    match value:
        case list():
            value.append(-1)
        case bytearray():
            value.append(1)
        case np.ndarray():
            value[0] = -1
        case dict():
            value["number"] = -1
        case (_, list() as inner):
            inner.append(-1)
        case _:
            pass  # cannot change


def change(record: Any) -> None:
    """The values in it first, then the record itself, as far as that can be."""
    match record:
        case dict():
            change_value(record.get("value"))
            record["value"] = -1
        case Row():
            change_value(record[1])
            record[1] = -1
        case tuple():
            change_value(record[1])
        case list():
            change_value(record[1])
            record[1] = -1
        case _:
            change_value(getattr(record, "value", None))
            change_value(getattr(record, "other", None))
            record.value = -1


def described(value: Any) -> Any:
    match value:
        case np.ndarray():
            return np.ndarray, value.dtype.str, value.tolist()
        case bytearray():
            return bytearray, bytes(value)
        case Row():
            return Row, field_names_of(value), value.get_row_kind(), [described(each) for each in value]
        case tuple() | list():
            return type(value), [described(each) for each in value]
        case dict():
            return type(value), [(type(name), name, described(each)) for name, each in value.items()]
        case Slots() | Struct():
            return type(value), described(value.name), described(value.value)
        case _ if hasattr(value, "__dict__"):
            return type(value), described(vars(value))
        case _:
            return exact(value)


def name_of(record: Any) -> Any:
    if isinstance(record, dict):
        return next((value for name, value in record.items() if name in ("name", 1)), None)
    return record[0] if isinstance(record, list | tuple | Row) else record.name


def arrived(chunk: Chunk, *, is_sent: bool) -> list[Any]:
    """Return the records of one chunk behind the record writer, handed over in this process or sent."""
    if chunk.keys is not None:
        chunk = beside_keys(chunk)
    if is_sent:
        (element,) = ElementDeserializer(name="test").feed(
            memoryview(StreamElementSerializer().serialize_chunk(sendable(chunk)))
        )
        assert isinstance(element, Chunk)
        chunk = element
    return [loads_record(value.data) if type(value) is PickledRecord else value for value in chunk.values]


class Program:
    """Emits records by a chunking output, with keys or without; remembers how each was when it was emitted."""

    def __init__(self, *, is_keyed: bool, is_sent: bool) -> None:
        self._is_sent = is_sent
        self.output = KeyedRecordingOutput(KeyExtractor(name_of, "key_by", 0)) if is_keyed else RecordingOutput()
        self._emission = Emission(self.output)
        self.expected: list[Any] = []

    def run(self, records: Callable[[], Iterator[Any]]) -> None:
        """Emit what one run of the function makes; what another run makes is looked at, which leaves traces in
        instances.
        """
        for record in records():
            self.expected.append(described(record))
        self._emission.run(records())

    def check(self) -> None:
        found = [record for chunk in self.output.chunks for record in arrived(chunk, is_sent=self._is_sent)]
        assert [described(record) for record in found] == self.expected


WAYS = [(False, False), (True, False), (True, True)]
both_ways = pytest.mark.parametrize(("is_keyed", "is_sent"), WAYS)


@both_ways
@pytest.mark.parametrize("name", MAKERS)
def test_a_record_may_be_changed_right_after_it_was_emitted(name: str, is_keyed: bool, is_sent: bool) -> None:
    """A later change does not reach the consumer either, whether the loop knows such records or not."""
    for value in VALUES:
        with case(value):
            change_right_after(name, value, Program(is_keyed=is_keyed, is_sent=is_sent))


def change_right_after(name: str, value: str, program: Program) -> None:
    kept: list[Any] = []

    def records(make: Callable[[int], Any]) -> Iterator[Any]:
        for number in range(40):
            record = MAKERS[name](f"k{number % 3}", make(number))
            kept.append(record)
            yield record
            change(record)

    for make in (VALUES["int"], VALUES[value], VALUES["int"]):
        program.run(partial(records, make))
        for record in kept:
            change(record)

    program.check()


@both_ways
@pytest.mark.parametrize("other", ["other attribute", "dataclass with more", "default and another", "without default"])
@pytest.mark.parametrize("first", ["Event", "WithDefaults"])
def test_records_of_one_class_with_other_attributes_arrive_as_they_were(
    first: str, other: str, is_keyed: bool, is_sent: bool
) -> None:
    """A few among many, and a whole run of them, whose values change."""
    program = Program(is_keyed=is_keyed, is_sent=is_sent)

    def records(names: list[str]) -> Iterator[Any]:
        for number in range(40):
            record = MAKERS[names[number % len(names)]](f"k{number % 3}", [number] if number % 7 == 0 else number)
            yield record
            change(record)

    for names in ([first], [first, first, other], [other], [first]):
        program.run(partial(records, names))

    program.check()


@both_ways
@pytest.mark.parametrize("name", MAKERS)
def test_a_record_may_be_emitted_twice_and_changed_in_between(name: str, is_keyed: bool, is_sent: bool) -> None:
    program = Program(is_keyed=is_keyed, is_sent=is_sent)

    def records() -> Iterator[Any]:
        for number in range(40):
            record = MAKERS[name](f"k{number % 3}", number)
            yield record
            if not isinstance(record, tuple):
                change(record)
            yield record
            yield record

    for _ in range(3):
        program.run(records)

    program.check()


@both_ways
@pytest.mark.parametrize("name", ["Event", "WithDefaults", "SubEvent", "dataclass with more"])
def test_the_attributes_of_a_record_may_be_changed_by_their_dictionary(
    name: str, is_keyed: bool, is_sent: bool
) -> None:
    program = Program(is_keyed=is_keyed, is_sent=is_sent)
    held: list[dict[str, Any]] = []

    def records() -> Iterator[Any]:
        for number in range(40):
            if number:
                held[-1]["value"] = -1
            boxed = [MAKERS[name](f"k{number % 3}", number)]
            held.append(vars(boxed[0]))
            yield boxed.pop()

    for _ in range(3):
        program.run(records)
    for attributes in held:
        attributes["more"] = -1

    program.check()


def held_by(held: list[Any], make: Callable[[Any, Any], Any]) -> Iterator[Any]:
    held += [make(f"k{number % 3}", number) for number in range(40)]
    return iter(held[-40:])


@both_ways
def test_records_that_a_list_holds_are_copied(is_keyed: bool, is_sent: bool) -> None:
    """The list is emitted as a whole, then its records are changed."""
    for name in MAKERS:
        program = Program(is_keyed=is_keyed, is_sent=is_sent)
        for _ in range(3):
            held: list[Any] = []
            program.run(partial(held_by, held, MAKERS[name]))
            for record in held:
                change(record)
        program.check()


@given(
    runs=st.lists(
        st.lists(
            st.tuples(st.sampled_from(sorted(MAKERS)), st.sampled_from(sorted(VALUES)), st.integers(1, 20)),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_records_of_any_kinds_with_values_of_any_kinds_arrive_as_they_were(runs: list[Any]) -> None:

    def records(run: list[Any]) -> Iterator[Any]:
        for name, value, length in run:
            for number in range(length):
                record = MAKERS[name](f"k{number % 3}", VALUES[value](number))
                yield record
                change(record)

    for is_keyed, is_sent in WAYS:
        with case(is_keyed, is_sent):
            program = Program(is_keyed=is_keyed, is_sent=is_sent)
            for run in runs:
                program.run(partial(records, run))
            program.check()


def test_the_key_takes_the_place_of_no_other_attribute() -> None:
    """The writer puts the column of keys in the place of one; here the attributes of a whole chunk of records are in
    another order than those of the record for which the loop was made.
    """
    output = KeyedRecordingOutput(KeyExtractor(lambda event: event.name, "key_by", 0))
    emission = Emission(output)
    emission.run(Event(f"k{number}", number) for number in range(40))
    output.elements.clear()

    emission.run(with_other_order(f"k{number}", number) for number in range(40))

    (chunk,) = output.chunks
    assert sendable(beside_keys(chunk)).values == [with_other_order(f"k{number}", number) for number in range(40)]

"""Records beside their keys, for a reader of the process or any other one."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.columns import Columns, Shape
from flowlet.common.types import Row, field_names_of
from flowlet.io.record_writer import as_it_is, beside_keys, sendable
from flowlet.records import Chunk
from flowlet.serde.element_serializer import ElementDeserializer, StreamElementSerializer
from tests.flowlet.serde import named_records
from tests.flowlet.serde.exact import ANY_ATOM, INTS, TEXTS, exact
from tests.flowlet.serde.named_records import Slots, Struct, with_other_order
from tests.named_cases import case


@dataclasses.dataclass(frozen=True)
class Frozen:
    name: Any
    value: Any


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    name: Any
    value: Any


MAKERS: dict[str, Callable[[Any, Any], Any]] = {
    **named_records.MAKERS,
    "dict with numbers": lambda name, value: {1: name, 2: value},
    "longer tuple": lambda name, value: (name, value, 1),
    "dataclass in another order": with_other_order,
    "value": lambda name, _: name,
    **{kind.__name__: kind for kind in (Frozen, FrozenSlots)},
}
# Where the key stands in each record, as a chunking output finds it.
POSITIONS = {"dict in another order": 1, "dataclass in another order": 1, "value": None}


def described(record: Any) -> Any:
    """Type, names of the fields in their order, and exact values."""
    if isinstance(record, Row):
        return Row, field_names_of(record), record.get_row_kind(), exact(list(record))
    if hasattr(record, "__dict__"):
        return type(record), exact(vars(record))
    if isinstance(record, Slots | FrozenSlots | Struct):
        return type(record), exact([record.name, record.value])
    return exact(record)


def keyed(
    values: list[Any], keys: list[Any], timestamps: list[int] | None = None, key_field: int | None = None
) -> Chunk:
    chunk = Chunk(values, timestamps)
    chunk.keys = keys
    chunk.key_field = key_field
    return beside_keys(chunk)


def read_back(chunk: Chunk) -> Chunk:
    (element,) = ElementDeserializer(name="test").feed(memoryview(StreamElementSerializer().serialize_chunk(chunk)))
    assert isinstance(element, Chunk)
    return element


def keys_in(chunk: Chunk) -> list[Any] | None:
    if chunk.columns is None:
        return chunk.keys
    return None if chunk.columns.key_position is None else chunk.columns.fields[chunk.columns.key_position].to_list()


def check(names: list[str], fields: list[tuple[Any, Any]], timestamps: list[int] | None, *, is_known: bool) -> Chunk:
    """Check that the records arrive as they were sent; return the chunk that was sent."""
    positions = {POSITIONS.get(name, 0) for name in names}
    position = positions.pop() if is_known and len(positions) == 1 else None
    values = [MAKERS[name](*each) for name, each in zip(names, fields, strict=True)]
    keys = [key for key, _ in fields]

    sent = sendable(keyed(list(values), keys, timestamps, position))
    arrived = read_back(sent)

    assert list(map(described, arrived.values)) == list(map(described, values))
    assert arrived.timestamps == timestamps
    assert exact(keys_in(sent)) == exact(keys)
    assert exact(keys_in(arrived)) in (exact(keys), exact(None))
    return sent


FIELDS = st.lists(st.tuples(TEXTS | INTS, ANY_ATOM), min_size=1, max_size=20)


@given(fields=FIELDS, is_known=st.booleans(), is_timed=st.booleans())
def test_records_of_one_kind_arrive_as_they_were(fields: Any, is_known: bool, is_timed: bool) -> None:
    """Records of every kind keep their type, their attributes with the order, and their keys."""
    for name in MAKERS:
        with case(name):
            check([name] * len(fields), fields, list(range(len(fields))) if is_timed else None, is_known=is_known)


@given(fields=FIELDS, names=st.lists(st.sampled_from(sorted(MAKERS)), min_size=20, max_size=20), is_known=st.booleans())
def test_records_of_any_kinds_arrive_as_they_were(fields: Any, names: list[str], is_known: bool) -> None:
    check(names[: len(fields)], fields, None, is_known=is_known)


@pytest.mark.parametrize(
    ("name", "shape"), [("tuple", Shape.TUPLE), ("row", Shape.ROW), ("dict", Shape.OBJECT), ("Event", Shape.OBJECT)]
)
def test_records_whose_key_is_a_field_are_sent_in_columns(name: str, shape: Shape) -> None:
    sent = check([name] * 40, [(f"k{number}", number) for number in range(40)], None, is_known=True)

    assert sent.columns is not None
    assert (sent.columns.shape, sent.columns.key_position) == (shape, 0)


def test_the_column_of_keys_is_the_one_that_is_sent() -> None:
    """Codes stay codes."""
    chunk = keyed(
        [{"name": f"k{number}", "value": number} for number in range(40)],
        [f"k{number}" for number in range(40)],
        None,
        0,
    )

    sent = sendable(chunk)

    assert chunk.columns is not None
    assert sent.columns is not None
    assert sent.columns.fields[0] is chunk.columns.fields[1]


@pytest.mark.parametrize(
    "names", [["dict", "dict with another kind of name"] * 20, ["dict with another kind of name", "dict"] * 20]
)
def test_a_name_that_only_equals_another_one_stays_what_it_is(names: list[str]) -> None:
    check(names, [(f"k{number}", number) for number in range(40)], None, is_known=True)


@pytest.mark.parametrize("name", ["dict", "Event", "tuple", "row"])
def test_records_whose_key_is_nowhere_in_them_are_sent_as_a_list(name: str) -> None:
    values = [MAKERS[name](f"k{number}", number) for number in range(40)]

    sent = sendable(keyed(values, list(range(40))))

    assert sent.columns is None
    assert sent.values is values
    assert keys_in(sent) == list(range(40))


def test_a_reader_of_the_process_gets_the_very_records() -> None:
    """The reader also gets keys, timestamps, and the place of the key's field."""
    values = [{"name": f"k{number}"} for number in range(40)]
    keys = [record["name"] for record in values]

    listed = as_it_is(keyed(values, keys, list(range(40)), 0))

    assert [id(each) for each in listed.values] == [id(each) for each in values]
    assert (listed.columns, listed.keys, listed.timestamps, listed.key_field) == (None, keys, list(range(40)), 0)


def test_some_of_the_records_keep_their_keys() -> None:
    """Records of one channel, which a writer takes from a chunk, keep their keys."""
    chunk = keyed([{"name": f"k{number}"} for number in range(40)], [f"k{number}" for number in range(40)], None, 0)
    assert chunk.columns is not None

    part = Chunk.of_columns(chunk.columns.take(np.array([3, 1])).slice(0, 2))

    assert as_it_is(part).keys == keys_in(sendable(part)) == ["k3", "k1"]
    assert as_it_is(part).values == sendable(part).values == [{"name": "k3"}, {"name": "k1"}]


def test_chunks_of_other_kinds_stay_as_they_are() -> None:
    listed = Chunk([1, 2])
    columns = Chunk.of_columns(Columns(1, keyed([1], [2]).columns.fields, Shape.TUPLE))  # type: ignore[union-attr]  # it has columns

    for chunk in (listed, columns):
        assert as_it_is(chunk) is chunk
        assert sendable(chunk) is chunk

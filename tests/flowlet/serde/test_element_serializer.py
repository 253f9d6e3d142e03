from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.columns import Columns, ConstantColumn, Shape, columns_of
from flowlet.errors import SerdeError
from flowlet.records import (
    ACTIVE,
    IDLE,
    MAX_WATERMARK,
    Chunk,
    CompletionMark,
    InternalWatermark,
    LatencyMarker,
    PickledRecord,
    RecordAttributes,
    StreamElement,
    Watermark,
)
from flowlet.serde.element_serializer import CONTROL_FORMS, ElementDeserializer, StreamElementSerializer
from flowlet.serde.pickles.record_pickle import dumps_record
from tests.flowlet.serde.exact import INTS, columns, exact

KEYS = (
    st.text(max_size=3)
    | st.integers(-3, 3)
    | st.booleans()
    | st.tuples(st.text(max_size=2), st.integers(0, 3))
    | st.none()
)

GOLDEN = [
    (Watermark(1000), "00000009 02 00000000000003E8"),
    (Watermark(-1), "00000009 02 FFFFFFFFFFFFFFFF"),
    (MAX_WATERMARK, "00000009 02 7FFFFFFFFFFFFFFF"),
    (
        LatencyMarker(5, bytes.fromhex("0000000000000001 0000000000000002"), 3),
        "0000001D 03 0000000000000005 0000000000000001 0000000000000002 00000003",
    ),
    (ACTIVE, "00000005 04 00000000"),
    (IDLE, "00000005 04 FFFFFFFF"),
    (RecordAttributes(is_backlog=True), "00000002 05 01"),
    (RecordAttributes(is_backlog=False), "00000002 05 00"),
    (InternalWatermark(1000, subpartition=3), "0000000D 06 00000003 00000000000003E8"),
    (CompletionMark(1000), "00000009 42 00000000000003E8"),
]


@pytest.mark.parametrize(("element", "expected"), GOLDEN, ids=[repr(row[0]) for row in GOLDEN])
def test_control_elements_are_flinks_bytes(element: StreamElement, expected: str) -> None:
    assert StreamElementSerializer().serialize(element) == bytes.fromhex(expected)


def test_a_chunk_is_a_header_and_columns() -> None:
    """A chunk is its length, tag 64, version 1, flags, the number of records, then the column of texts."""
    data = StreamElementSerializer().serialize(Chunk(["ab", "c"]))

    assert data == bytes.fromhex("00000010 40 01 00 00000002 08 00000004") + b"ab\0c"


def test_timestamps_come_before_the_values() -> None:
    data = StreamElementSerializer().serialize(Chunk(["ab", "c"], [7, 7]))

    constant_7 = "01 0000000D 05 00000008 0700000000000000"
    assert data == bytes.fromhex("00000022 40 01 01 00000002" + constant_7 + "08 00000004") + b"ab\0c"


@given(columns(), st.booleans(), st.data())
def test_keys_come_back_with_their_records(values: list[Any], has_timestamps: bool, data: st.DataObject) -> None:
    """The keys may be of any type."""
    chunk = Chunk(values, list(range(len(values))) if has_timestamps else None)
    chunk.keys = data.draw(st.lists(KEYS, min_size=len(values), max_size=len(values)))

    (found,) = ElementDeserializer().feed(memoryview(StreamElementSerializer().serialize(chunk)))

    assert isinstance(found, Chunk)
    assert exact(found.values) == exact(values)
    assert found.timestamps == chunk.timestamps
    position = None if found.columns is None else found.columns.key_position
    keys = found.keys if found.columns is None or position is None else found.columns.fields[position].to_list()
    assert exact(keys) == exact(chunk.keys if values else None)


@given(columns(), st.booleans(), st.integers(0, 9))
def test_a_field_that_is_the_key_is_known_behind_the_channel(
    values: list[Any], has_timestamps: bool, position: int
) -> None:
    """Few records tell of their key, too: the consumer need not ask the selector again."""
    table = columns_of(values)
    if table is None:
        return
    position %= len(table.fields)
    with_key = Columns(table.num_rows, table.fields, table.shape, key_position=position)
    timestamps = list(range(len(values))) if has_timestamps else None

    (found,) = ElementDeserializer().feed(
        memoryview(StreamElementSerializer().serialize(Chunk.of_columns(with_key, timestamps)))
    )

    assert isinstance(found, Chunk)
    if found.columns is None:
        assert exact(found.keys) == exact([value[position] if type(value) is tuple else value for value in values])
    else:
        assert found.columns.key_position == position
    assert exact(found.values) == exact(values)
    assert found.timestamps == timestamps


def test_keys_come_before_the_values() -> None:
    """The keys stand behind the timestamps; a field that is the key is one byte."""
    chunk = Chunk(["ab", "c"])
    chunk.keys = [7, 7]
    columns = Columns(2, (ConstantColumn(7, 2),), Shape.SCALAR, key_position=0)

    constant_7 = "01 0000000D 05 00000008 0700000000000000"
    assert (
        StreamElementSerializer().serialize(chunk)
        == bytes.fromhex("00000022 40 01 02 00000002" + constant_7 + "08 00000004") + b"ab\0c"
    )
    assert StreamElementSerializer().serialize(Chunk.of_columns(columns)) == bytes.fromhex(
        "0000001A 40 01 04 00000002 00" + constant_7
    )


def test_a_pickled_record_arrives_as_the_record() -> None:
    """A pickled record may be among others or alone, and in any number; the sender need not read it."""
    records: list[Any] = [{"a": [1]}, ("b", 2), [3], {"a": [4]}]
    for size in (1, 4, 40, 400):
        expected = (records * 100)[:size]
        values = [value if type(value) is tuple else PickledRecord(dumps_record(value)) for value in expected]

        (found,) = ElementDeserializer().feed(memoryview(StreamElementSerializer().serialize(Chunk(values))))

        assert isinstance(found, Chunk)
        assert found.values == expected


@given(st.lists(INTS))
def test_a_serializer_does_not_touch_the_chunk(timestamps: list[int]) -> None:
    """The record writer empties and refills the lists of its chunk."""
    values = [("a", timestamp) for timestamp in timestamps]
    chunk = Chunk(list(values), list(timestamps))

    StreamElementSerializer().serialize(chunk)

    assert (chunk.values, chunk.timestamps) == (values, timestamps)


def test_a_subclass_of_chunk_is_a_chunk() -> None:
    class Special(Chunk):
        __slots__ = ()

    assert StreamElementSerializer().serialize(Special([1])) == StreamElementSerializer().serialize(Chunk([1]))


def test_a_record_that_no_receiver_would_take_is_refused_by_the_sender() -> None:
    """A chunk of several is not: it can be sent in parts."""
    serializer = StreamElementSerializer(max_element_bytes=1000)

    with pytest.raises(
        SerdeError,
        match=r"a record takes 1012 bytes, the limit is 1000: .* the job's option 'flowlet\.max-record-bytes'",
    ):
        serializer.serialize(Chunk(["x" * 1000]))
    assert len(serializer.serialize(Chunk(["x" * 1000, "y"]))) > 1000
    assert len(serializer.serialize(Chunk(["x" * 988]))) == 1004


def test_each_kind_of_element_has_a_form() -> None:
    assert {Chunk, *CONTROL_FORMS} == set(get_args(StreamElement))


def test_a_chunk_of_too_many_records_is_refused() -> None:
    with pytest.raises(SerdeError, match="a chunk of 1048577 records, at most 1048576"):
        StreamElementSerializer().serialize(Chunk([None] * ((1 << 20) + 1)))

"""Columns go through the wire exactly, and lazily."""

import contextlib
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    columns_of,
)
from flowlet.columns.column import UNCHANGING
from flowlet.common.types import Row
from flowlet.errors import SerdeError
from flowlet.records import MAX_TIMESTAMP, MIN_TIMESTAMP, Chunk
from flowlet.serde import column_writer as module
from flowlet.serde.column_reader import MAX_CHARACTERS, ChannelDictionary, decode_records, decode_timestamps
from flowlet.serde.column_writer import encode_codes, encode_column, table_parts
from flowlet.serde.element_serializer import ElementDeserializer, StreamElementSerializer
from tests.flowlet.serde.exact import ANY_ATOM, FLOATS, INTS, TEXTS, columns, exact

NAN_WITH_PAYLOAD = struct.unpack(">d", bytes.fromhex("7ff8000000000123"))[0]


def sent(chunk: Chunk) -> Chunk:
    (received,) = ElementDeserializer().feed(memoryview(bytearray(StreamElementSerializer().serialize(chunk))))
    assert isinstance(received, Chunk)
    return received


def table(*fields: Column, shape: Shape = Shape.TUPLE, names: tuple[str, ...] = ()) -> Columns:
    return Columns(len(fields[0]), fields, shape, names)


@given(columns(), st.booleans(), st.booleans())
def test_records_come_back_exactly_whether_sent_as_list_or_as_columns(
    values: list[Any], is_timed: bool, as_columns: bool
) -> None:
    """Records that were sent as a list arrive as columns if they have plain fields and are more than a few.

    Other records may be one object in two places, which only a pickle of the list keeps.
    """
    timestamps = list(range(len(values))) if is_timed else None
    in_columns = columns_of(values)
    chunk = (
        Chunk(values, timestamps) if in_columns is None or not as_columns else Chunk.of_columns(in_columns, timestamps)
    )

    received = sent(chunk)

    assert (len(received), exact(received.values), received.timestamps) == (len(values), exact(values), timestamps)
    if (
        in_columns is not None
        and in_columns.shape is Shape.TUPLE
        and (as_columns or (len(values) > 16 and have_plain_fields(values)))
    ):
        assert received.columns is not None


def have_plain_fields(records: list[tuple[Any, ...]]) -> bool:
    return UNCHANGING.issuperset(type(field) for record in records for field in record)


@pytest.mark.parametrize(
    "dtype", ["b", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "datetime64[us]", "?"]
)
def test_arrays_keep_their_type(dtype: str) -> None:
    array = np.array([0, 1, 100], "i1").astype(dtype)

    received = sent(Chunk.of_columns(table(ArrayColumn(array), ArrayColumn(array[::-1])))).columns

    assert received is not None
    first, second = received.fields
    assert isinstance(first, ArrayColumn)
    assert isinstance(second, ArrayColumn)
    assert (first.array.dtype, first.array.tolist(), second.array.tolist()) == (
        array.dtype,
        array.tolist(),
        array[::-1].tolist(),
    )


@pytest.mark.parametrize(
    "column",
    [
        ArrayColumn(np.array([2**63 - 1, -(2**63), 0])),
        ArrayColumn(np.array([5, 5, 5])),
        ArrayColumn(np.array([NAN_WITH_PAYLOAD, -0.0, 0.0])),
        ConstantColumn(None, 3),
        ConstantColumn(2**80, 3),
        ConstantColumn(-0.0, 3),
        ConstantColumn(((((((1, "a"),),),),),), 3),
        ListColumn(["a", "b\0", "\ud800"], str),
        ListColumn([2**70, 1, 2], int),
        ListColumn([b"a", b"b", b"c"], bytes),
        ListColumn([(1, (2, (3, (4, (5,))))), (1, 2), ()]),
        ListColumn([[1], None, {"a": 1}]),
        CodedColumn(np.array([0, 2, 0], np.uint16), NameTable(["a", "b", "c"])),
        CodedColumn(np.array([1, 1, 0], np.uint32), NameTable([(1, 2), b"x"])),
        ArrowColumn(pa.array(["a", None, "é"])),
        ArrowColumn(pa.array(["a", None, "c", "d", "e"])[1:4]),
        ArrowColumn(pa.array([1, None, 3], pa.timestamp("ms", "UTC"))),
        ArrowColumn(pa.array(["a", None, "a"]).dictionary_encode()),
    ],
    ids=repr,
)
@pytest.mark.parametrize("size", [1, 3])
def test_every_column_comes_back_in_every_shape(column: Column, size: int) -> None:
    column = column.slice(0, size)
    for chunk in (
        Chunk.of_columns(table(column, shape=Shape.SCALAR)),
        Chunk.of_columns(table(column, ConstantColumn(1, size))),
        Chunk.of_columns(table(column, ConstantColumn(1, size), shape=Shape.ROW, names=("a", "b"))),
    ):
        assert exact(sent(chunk).values) == exact(chunk.values)


class Range(Column):
    """A column class that is not flowlet's."""

    def __len__(self) -> int:
        return 3

    def to_list(self) -> list[Any]:
        return [0, 1, 2]

    def take(self, indices: Any) -> Column:
        raise NotImplementedError

    def slice(self, start: int, stop: int) -> Column:
        raise NotImplementedError

    def is_unchanging(self) -> bool:
        return True


def test_a_column_of_another_kind_goes_as_its_values() -> None:
    columns = table(Range())

    assert sent(Chunk.of_columns(columns)).values == [(0,), (1,), (2,)]


def test_rows_have_their_names() -> None:
    chunk = Chunk.of_columns(
        table(ArrayColumn(np.array([1, 2])), ListColumn(["x", "y"]), shape=Shape.ROW, names=("id", "name"))
    )

    assert sent(chunk).values == [Row(id=1, name="x"), Row(id=2, name="y")]


def test_arrow_columns_stay_arrow() -> None:
    column = ArrowColumn(pa.array(["a", None]))

    received = sent(Chunk.of_columns(table(column))).columns

    assert received is not None
    assert isinstance(received.fields[0], ArrowColumn)
    assert received.fields[0].array.equals(column.array)


def test_more_fields_than_can_be_sent() -> None:
    """Tuples go as a whole; rows are refused."""
    fields = (ConstantColumn(1, 2),) * 256

    assert sent(Chunk.of_columns(table(*fields))).values == [(1,) * 256] * 2
    with pytest.raises(SerdeError, match="rows of 256 fields, at most 255"):
        table_parts(table(*fields, shape=Shape.ROW, names=tuple(map(str, range(256)))))


def test_timestamps_are_an_array_for_those_who_want_one() -> None:
    received = sent(Chunk([("a", 1), ("b", 2)], [-(2**63), 2**63 - 1]))

    assert received.timestamp_array is not None
    assert received.timestamp_array.tolist() == [-(2**63), 2**63 - 1]


def test_nothing_of_the_buffer_is_referenced() -> None:
    chunk = Chunk([(str(number), number, number / 2, number % 2 == 0) for number in range(50)], list(range(50)))
    buffer = bytearray(StreamElementSerializer().serialize(chunk))

    (received,) = ElementDeserializer().feed(memoryview(buffer))
    buffer[:] = b"\xee" * len(buffer)

    assert received == chunk


class TestDictionary:
    def read(self, dictionary: ChannelDictionary, data: bytes, num_values: int = 2) -> list[Any]:
        received, end = decode_records(memoryview(data), 0, num_values, dictionary)
        assert end == len(data)
        assert isinstance(received, Columns)
        return received.to_list()

    def codes(self, *codes: int) -> "np.ndarray[tuple[int], np.dtype[np.uint16]]":
        return np.array(codes, np.uint16)

    def test_texts_come_once(self) -> None:
        dictionary = ChannelDictionary()

        assert self.read(dictionary, encode_codes(0, 0, ["a", "b"], self.codes(1, 0))) == ["b", "a"]
        assert self.read(dictionary, encode_codes(0, 2, [], self.codes(1, 1))) == ["b", "b"]
        assert self.read(dictionary, encode_codes(0, 2, ["c"], self.codes(0, 2))) == ["a", "c"]

    def test_a_generation_has_one_table_and_the_next_one_another(self) -> None:
        dictionary = ChannelDictionary()
        tables = []
        for data in (
            encode_codes(0, 0, ["a"], self.codes(0)),
            encode_codes(0, 1, ["b"], self.codes(1)),
            encode_codes(1, 0, ["c"], self.codes(0)),
        ):
            received, _ = decode_records(memoryview(data), 0, 1, dictionary)
            assert isinstance(received, Columns)
            assert isinstance(received.fields[0], CodedColumn)
            tables.append(received.fields[0])

        assert tables[0].names is tables[1].names
        assert tables[0].names is not tables[2].names
        assert [each.to_list() for each in tables] == [["a"], ["b"], ["c"]]

    def test_65_536_texts_can_be_told_apart(self) -> None:
        dictionary = ChannelDictionary()
        texts = [str(number) for number in range(65_536)]

        assert self.read(dictionary, encode_codes(0, 0, texts, self.codes(0, 65_535))) == ["0", "65535"]
        with pytest.raises(SerdeError, match="a dictionary of 65537 texts"):
            self.read(dictionary, encode_codes(0, 65_536, ["x"], self.codes(0, 0)))

    def test_texts_are_bounded(self) -> None:
        dictionary = ChannelDictionary()
        half = MAX_CHARACTERS // 2

        self.read(dictionary, encode_codes(0, 0, ["a" * half], self.codes(0, 0)))
        with pytest.raises(SerdeError, match="a dictionary of 16777217 characters, at most 16777216"):
            self.read(dictionary, encode_codes(0, 1, ["b" * half, "c"], self.codes(0, 0)))
        self.read(ChannelDictionary(), encode_codes(0, 0, ["b" * half, "b" * half], self.codes(0, 0)))

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (
                encode_codes(0, 2, [], np.array([0, 2], np.uint16)),
                "code 2 of <ChannelDictionary, generation 0: 2 texts>",
            ),
            (encode_codes(1, 2, [], np.array([0, 1], np.uint16)), "codes for 2 texts of generation 1, known are"),
            (encode_codes(1, 2, ["c"], np.array([0, 1], np.uint16)), "texts that follow the first 2 of generation 1"),
            (encode_codes(0, 1, ["c"], np.array([0, 1], np.uint16)), "texts that follow the first 1 of generation 0"),
            (encode_codes(0, 3, ["c"], np.array([0, 1], np.uint16)), "texts that follow the first 3 of generation 0"),
            (encode_codes(0, 1, [], np.array([0, 0], np.uint16)), "codes for 1 texts of generation 0"),
            (encode_codes(0, 2, [], np.array([0], np.uint16)), "1 codes in a chunk of 2 records"),
            (encode_codes(0, 2, [1], np.array([0, 0], np.uint16)), ("other values than texts")),  # type: ignore[list-item]  # corrupt
        ],
    )
    def test_codes_that_do_not_follow_are_refused(self, data: bytes, message: str) -> None:
        dictionary = ChannelDictionary()
        self.read(dictionary, encode_codes(0, 0, ["a", "b"], self.codes(1, 0)))

        with pytest.raises(SerdeError, match=message):
            self.read(dictionary, data)

    def test_damaged_codes_are_refused_with_channel_and_offset(self) -> None:
        class Codes:
            def try_encode(self, column: CodedColumn) -> bytes:
                return encode_codes(0, 5, [], column.codes)

        chunk = Chunk.of_columns(table(CodedColumn(np.array([0, 0], np.uint16), NameTable(["a"]))))
        serializer = StreamElementSerializer()
        head = serializer.serialize(Chunk(["x"]))
        damaged = serializer.serialize_chunk(chunk, Codes())

        with pytest.raises(
            SerdeError,
            match=f"^task, input channel 3: corrupt stream in the element at offset {len(head)}: StreamElem.*5 texts",
        ):
            ElementDeserializer("task, input channel 3").feed(memoryview(head + damaged))

    @given(st.lists(st.lists(TEXTS, min_size=1, max_size=5), max_size=4), st.data())
    def test_damaged_dictionaries_raise_only_the_documented_errors(
        self, batches: list[list[str]], data: st.DataObject
    ) -> None:
        dictionary = ChannelDictionary()
        num_known = 0
        for texts in batches:
            encoded = bytearray(
                encode_codes(0, num_known, texts, np.arange(num_known, num_known + len(texts), dtype=np.uint16))
            )
            num_known += len(texts)
            for _ in range(data.draw(st.integers(0, 2))):
                encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
            with contextlib.suppress(SerdeError, ValueError, struct.error):
                received, _ = decode_records(memoryview(encoded), 0, len(texts), dictionary)
                assert len(list(received if isinstance(received, list) else received.to_list())) == len(texts)


class TestCorruptTables:
    @pytest.mark.parametrize(
        "data",
        [
            module.framed(module.Kind.TUPLES, struct.pack(">H", 1), encode_column([1]), b"x"),
            module.framed(module.Kind.TUPLES, struct.pack(">H", 0), b"x"),
            module.framed(module.Kind.TUPLES, struct.pack(">H", 2), encode_column([1])),
            module.framed(module.Kind.ROWS, struct.pack(">H", 1), encode_column([1]), encode_column([1])),
            module.framed(module.Kind.ROWS, struct.pack(">H", 0), encode_column([])),
            module.framed(module.Kind.ROWS, struct.pack(">H", 2), encode_column(["a", "b"]), encode_column([1])),
            module.framed(module.Kind.BOOL, b"\2"),
            module.framed(module.Kind.ARRAY),
            module.framed(module.Kind.ARRAY, b"\x63\0"),
            module.framed(module.Kind.ARRAY, b"\2\0\0\0"),
            module.framed(module.Kind.INT32, b"\0" * 7),
            module.framed(module.Kind.OFFSETS, b"\0" * 7),
            module.framed(module.Kind.OFFSETS, struct.pack(">qB", 0, 3) + b"\0" * 3),
            module.framed(module.Kind.OFFSETS, struct.pack(">qB", 0, 2) + b"\0" * 3),
            module.framed(module.Kind.OFFSETS, struct.pack(">qB", 2**63 - 1, 1) + b"\1"),
            module.framed(module.Kind.INT32, b"\0" * 8),
            module.framed(module.Kind.CONSTANT, encode_column([1]), b"x"),
            module.framed(module.Kind.ARROW, b"nonsense"),
            module.framed(module.Kind.ARROW),
            module.framed(module.Kind.CODED, b"\0"),
            module.framed(module.Kind.PICKLE, b"\0"),
            module.framed(77),
        ],
        ids=bytes.hex,
    )
    def test_a_corrupt_table_is_refused(self, data: bytes) -> None:
        with pytest.raises((SerdeError, ValueError, struct.error)):
            decode_records(memoryview(data), 0, 1, ChannelDictionary())

    def test_a_batch_of_other_than_one_field_is_refused(self) -> None:
        sink = pa.BufferOutputStream()
        batch = pa.record_batch([pa.array([1]), pa.array([2])], names=["a", "b"])
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)

        with pytest.raises(SerdeError, match="a record batch of 2 fields"):
            decode_records(
                memoryview(module.framed(module.Kind.ARROW, sink.getvalue().to_pybytes())), 0, 1, ChannelDictionary()
            )

    @pytest.mark.parametrize(
        "array", [pa.array(["a" * 1000] * 100), pa.array(["a" * 1000, None] * 9).dictionary_encode()], ids=str
    )
    def test_compressed_arrays_are_refused(self, array: pa.Array) -> None:
        """A few compressed bytes may stand for as much memory as their sender likes; also those of a dictionary."""
        sink = pa.BufferOutputStream()
        batch = pa.record_batch([array], names=[""])
        with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_batch(batch)

        with pytest.raises(SerdeError, match="is compressed"):
            decode_records(
                memoryview(module.framed(module.Kind.ARROW, sink.getvalue().to_pybytes())),
                0,
                len(array),
                ChannelDictionary(),
            )

    @pytest.mark.parametrize("values", [["a"], [1.5], [True], [None], [2**63], [-(2**63) - 1]], ids=repr)
    def test_timestamps_that_are_none_are_refused(self, values: list[Any]) -> None:
        with pytest.raises(SerdeError, match="timestamps that are not all integers of 64 bits"):
            decode_timestamps(memoryview(encode_column(values)), 0, 1)

    def test_timestamps_may_be_a_constant(self) -> None:
        assert decode_timestamps(memoryview(encode_column([7] * 5)), 0, 5)[0].tolist() == [7] * 5

    @pytest.mark.parametrize("timestamp", [MIN_TIMESTAMP, MAX_TIMESTAMP])
    def test_the_first_and_the_last_timestamp_of_all_come_back(self, timestamp: int) -> None:
        """All records may have the timestamp, as those without a time of their own do in Flink."""
        chunk = Chunk(["a", "b"], [timestamp, timestamp])

        assert sent(chunk).timestamps == [timestamp, timestamp]

    @pytest.mark.parametrize("depth", [0, 1])
    def test_records_of_more_fields_than_anybody_sends_are_refused(self, depth: int) -> None:
        """Constants are little on the wire: a few bytes would otherwise be a list of all records for each of 65,535
        fields.
        """
        data = module.framed(module.Kind.TUPLES, module.FIELDS.pack(256), encode_column([7]) * 256)
        for _ in range(depth):
            data = module.framed(module.Kind.TUPLES, module.FIELDS.pack(1), data)

        with pytest.raises(SerdeError, match="records of 256 fields, at most 255"):
            decode_records(memoryview(data), 0, 1, ChannelDictionary())

    def test_tuples_without_fields_are_a_list(self) -> None:
        assert decode_records(memoryview(encode_column([()] * 3)), 0, 3, ChannelDictionary())[0] == [()] * 3

    @given(st.lists(st.tuples(TEXTS, INTS, FLOATS, st.booleans(), ANY_ATOM), min_size=1, max_size=20), st.data())
    def test_damaged_tables_raise_only_the_documented_errors(self, values: list[Any], data: st.DataObject) -> None:
        in_columns = columns_of(values)
        assert in_columns is not None
        encoded = bytearray(b"".join(table_parts(in_columns)))
        for _ in range(data.draw(st.integers(1, 3))):
            encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
        size = data.draw(st.integers(0, len(encoded)))

        with contextlib.suppress(SerdeError, ValueError, struct.error):
            received, _ = decode_records(memoryview(encoded)[:size], 0, len(values), ChannelDictionary())
            assert len(received if isinstance(received, list) else received.to_list()) == len(values)


class TestDataInFlight:
    """The bytes of ``unconsumed`` bring another deserializer to the place of the first one, its dictionary too."""

    class Codes:
        """A dictionary that never restarts."""

        def __init__(self) -> None:
            self.num_sent = 0

        def try_encode(self, column: CodedColumn) -> bytes:
            known, self.num_sent = self.num_sent, len(column.names)
            return encode_codes(0, known, column.names.names[known:], column.codes)

    @pytest.mark.parametrize("piece_bytes", [1, 7, 1_000])
    def test_another_deserializer_goes_on(self, piece_bytes: int) -> None:
        serializer, codes, names = StreamElementSerializer(), self.Codes(), NameTable()
        elements = []
        for number in range(4):
            names.names.append(f"text {number}")
            column = CodedColumn(np.arange(number + 1, dtype=np.uint16), names)
            elements.append(serializer.serialize_chunk(Chunk.of_columns(table(column)), codes))
        data = b"".join(elements)
        expected = [Chunk([(f"text {number}",) for number in range(count + 1)]) for count in range(4)]

        for cut in range(len(data)):
            first, second = ElementDeserializer(), ElementDeserializer()
            before = first.feed(memoryview(data)[:cut])
            pieces = list(first.unconsumed(piece_bytes))
            assert all(0 < len(piece) <= piece_bytes for piece in pieces)

            behind = [element for piece in [*pieces, data[cut:]] for element in second.feed(memoryview(piece))]

            assert before + behind == expected

    def test_nothing_is_kept_where_no_codes_are(self) -> None:
        deserializer = ElementDeserializer()

        deserializer.feed(memoryview(StreamElementSerializer().serialize(Chunk(["a"]))))

        assert list(deserializer.unconsumed(100)) == []

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            (b"\x41\x02" + bytes(8), "a dictionary of version 2, known is version 1"),
            (b"\x41\x01" + struct.pack(">II", 1, 1) + encode_column([1]), "other values than texts"),
            (b"\x41\x01" + struct.pack(">II", 1, 2) + encode_column(["a"]), "1 values in a chunk of 2"),
            (b"\x41\x01" + struct.pack(">II", 1, 1) + encode_column(["a"]) + b"x", "1 bytes are left"),
            (b"\x41\x01" + struct.pack(">II", 1, 1 << 17) + encode_column(["a"]), "of 131072 texts"),
            (b"\x41", "tag 65, 1 bytes"),
        ],
    )
    def test_a_corrupt_definition_is_refused(self, body: bytes, message: str) -> None:
        with pytest.raises(SerdeError, match=message):
            ElementDeserializer().feed(memoryview(struct.pack(">i", len(body)) + body))

"""Columns on their way to a task in their own process: nothing is serialized, and large ones travel in parts."""

from collections.abc import Iterator
from typing import Any

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
    OffsetColumn,
    Shape,
)
from flowlet.columns.short_text_column import try_short_texts
from flowlet.graph.partitioner import Broadcast, Forward, KeyGroups, Partitioner
from flowlet.io.chunk_content import MAX_CONTENT_BYTES, MIN_CONTENT_RECORDS, ChunkContent, try_contents
from flowlet.io.create_record_writer import create_record_writer
from flowlet.io.record_writer import RecordWriter, RecordWriterOptions
from flowlet.keys.column_key import ColumnKey
from flowlet.records import Chunk, Watermark
from flowlet.serde.element_serializer import ElementDeserializer
from netstack.buffer.network_buffer import BufferContent
from tests.flowlet.serde.exact import exact
from tests.flowlet.task.local_network import LocalNetwork
from tests.flowlet.task.writer_rig import channel_of

NUM_ROWS = 1_000
# Rows of 8 bytes that make three times as much as a content may hold.
NUM_LARGE = 3 * MAX_CONTENT_BYTES // 8


def short_texts() -> Column:
    column = try_short_texts([f"name {number % 90}" for number in range(NUM_ROWS)])
    assert column is not None
    return column


COLUMNS: dict[str, Column] = {
    "floats": ArrayColumn(np.arange(NUM_ROWS) / 3),
    "narrow integers": ArrayColumn(np.arange(NUM_ROWS, dtype=np.uint16)),
    "truth values": ArrayColumn(np.arange(NUM_ROWS) % 3 == 0),
    "instants": ArrayColumn(np.arange(NUM_ROWS).astype("M8[us]")),
    "texts in Arrow": ArrowColumn(pa.array([f"text {number}" for number in range(NUM_ROWS)])),
    "nulls in Arrow": ArrowColumn(pa.array([None if number % 7 else number for number in range(NUM_ROWS)])),
    "a slice in Arrow": ArrowColumn(pa.array([f"text {number}" for number in range(2 * NUM_ROWS)])).slice(
        NUM_ROWS, 2 * NUM_ROWS
    ),
    "a dictionary in Arrow": ArrowColumn(pa.array(["a", "b", "a", "c"] * (NUM_ROWS // 4)).dictionary_encode()),
    "codes": CodedColumn(np.arange(NUM_ROWS, dtype=np.uint16) % 5, NameTable(["a", "b", "c", "d", "e", "no code yet"])),
    "short texts": short_texts(),
    "a constant": ConstantColumn("x", NUM_ROWS),
    "a list": ListColumn([f"text {number}" for number in range(NUM_ROWS)], str),
}
OFFSETS = OffsetColumn(10**12, (np.arange(NUM_ROWS) % 200).astype(np.uint8))


def in_rows(*fields: Column, timestamps: Any = None) -> Chunk:
    names = tuple([f"f{number}" for number in range(len(fields))])
    return Chunk.of_columns(Columns(len(fields[0]), fields, Shape.ROW, names), timestamps)


class Local:
    """A record writer whose consumers are in its own process."""

    def __init__(self, network: LocalNetwork, partitioner: Partitioner, num_channels: int) -> None:
        self.partition = network.partition(num_channels, 7_000)
        self.gates = [network.gate(self.partition, subpartition=index) for index in range(num_channels)]
        for gate in self.gates:
            gate.request_partitions()
        self.writer: RecordWriter = create_record_writer(self.partition, partitioner, RecordWriterOptions(-1))
        self._deserializers = [ElementDeserializer(name="test") for _ in range(num_channels)]

    def write(self, chunk: Chunk) -> None:
        """Write the chunk, and a watermark behind it."""
        self.writer.collect(chunk)
        self.writer.emit_control(Watermark(7))
        self.partition.flush_all()

    def received(self, channel: int = 0) -> Iterator[tuple[Any, bool]]:
        """Yield the elements that arrived, and whether each was handed over."""
        while (item := self.gates[channel].poll_next()) is not None:
            assert item.buffer is not None
            content = item.buffer.content
            if isinstance(content, ChunkContent):
                yield content.take(), True
            else:
                for element in self._deserializers[channel].feed(item.buffer.view):
                    yield element, False
            item.buffer.recycle()


@pytest.fixture
def local() -> Iterator[Any]:
    """Makes ``Local``s."""
    with LocalNetwork(num_segments=8_000) as network:
        yield lambda partitioner, num_channels=1: Local(network, partitioner, num_channels)


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS.keys())
def test_columns_of_every_kind_are_handed_over(local: Any, column: Column) -> None:
    """The very columns arrive with their timestamps, in front of the elements that follow them; the rows count as
    written.
    """
    it = local(Forward())
    timestamps = np.arange(NUM_ROWS)

    it.write(in_rows(column, timestamps=timestamps))
    (chunk, is_handed_over), (watermark, _) = it.received()

    assert is_handed_over
    assert chunk.columns.fields == (column,)
    assert np.array_equal(chunk.timestamp_array, timestamps)
    assert watermark == Watermark(7)
    assert it.writer.num_written == [NUM_ROWS]


def test_few_rows_share_a_buffer(local: Any) -> None:
    it = local(Forward())

    it.write(in_rows(COLUMNS["floats"].slice(0, MIN_CONTENT_RECORDS - 1)))

    assert [is_handed_over for _, is_handed_over in it.received()] == [False, False]


def test_integers_that_were_narrowed_for_the_split_are_wide_again(local: Any) -> None:
    """Integers reach the consumer as 64-bit ones, because nobody calculates with narrow ones."""
    it = local(KeyGroups(ColumnKey("f0")), 2)
    keys, numbers = np.arange(NUM_ROWS) % 9, np.arange(NUM_ROWS) % 250

    it.write(in_rows(ArrayColumn(keys), ArrayColumn(numbers)))

    for channel in range(2):
        (chunk, is_handed_over), _ = it.received(channel)
        is_there = np.array([channel_of(key, 2) == channel for key in keys.tolist()])
        assert is_handed_over
        assert [field.array.dtype for field in chunk.columns.fields] == [np.int64, np.int64]
        assert [field.to_list() for field in chunk.columns.fields] == [
            keys[is_there].tolist(),
            numbers[is_there].tolist(),
        ]


def test_every_consumer_of_all_records_gets_its_own(local: Any) -> None:
    it = local(Broadcast(), 2)

    it.write(in_rows(COLUMNS["floats"]))

    for channel in range(2):
        (chunk, is_handed_over), _ = it.received(channel)
        assert not is_handed_over
        assert chunk.columns.fields[0].to_list() == COLUMNS["floats"].to_list()


@pytest.mark.parametrize("kind", ["floats", "texts in Arrow"])
def test_large_columns_are_handed_over_in_parts(local: Any, kind: str) -> None:
    """No part is larger than a content may be; rows, timestamps and watermark keep their order, and the numbers are
    right.
    """
    num_rows = 60_000
    floats, texts = (
        ArrayColumn(np.arange(num_rows) / 3),
        ArrowColumn(pa.array([f"{number:040}" for number in range(num_rows)])),
    )
    column = floats if kind == "floats" else texts
    it = local(Forward())

    it.write(in_rows(column, floats, floats, floats, timestamps=np.arange(num_rows)))
    *parts, (watermark, _) = it.received()
    chunks = [chunk for chunk, _ in parts]

    assert len(chunks) > 1
    assert all(is_handed_over for _, is_handed_over in parts)
    assert [value for chunk in chunks for value in chunk.columns.fields[0].to_list()] == column.to_list()
    assert np.array_equal(np.concatenate([chunk.timestamp_array for chunk in chunks]), np.arange(num_rows))
    assert watermark == Watermark(7)
    assert it.writer.num_written == [num_rows]
    assert it.partition.statistics().num_bytes_out >= sum(
        field.array.nbytes for chunk in chunks for field in chunk.columns.fields
    )


def test_no_content_is_larger_than_a_buffer_may_hold() -> None:
    """No content is much smaller than it could be, either."""
    chunk = in_rows(ArrayColumn(np.arange(NUM_LARGE)))

    contents = try_contents(chunk)

    assert contents is not None
    assert sum(map(len, contents)) == NUM_LARGE
    assert all(MAX_CONTENT_BYTES // 2 <= content.size_bytes <= MAX_CONTENT_BYTES for content in contents)
    tables = [content.take().columns for content in contents]
    numbers = [table.fields[0].as_array(np.dtype(np.int64)) for table in tables if table is not None]
    assert np.array_equal(np.concatenate([each for each in numbers if each is not None]), np.arange(NUM_LARGE))


@pytest.mark.parametrize(
    "column",
    [
        ArrowColumn(pa.array([f"{number:0200}" for number in range(8_000)]).dictionary_encode()),
        ArrowColumn(pa.array(["x"] * 4_000 + ["x" * 2 * MAX_CONTENT_BYTES] + ["x"] * 3_999)),
        ListColumn(["x" * MAX_CONTENT_BYTES] * MIN_CONTENT_RECORDS),
    ],
    ids=["a large dictionary", "one long text", "long texts in a list"],
)
def test_columns_that_stay_large_in_parts_are_serialized_as_a_whole(column: Column) -> None:
    """Parts that each bring the whole dictionary would be far more bytes than the chunk."""
    assert try_contents(in_rows(column)) is None


def test_a_dictionary_that_is_too_large_is_sent_once(local: Any) -> None:
    it = local(Forward())
    column = ArrowColumn(pa.array([f"{number:0200}" for number in range(8_000)]).dictionary_encode())

    it.write(in_rows(column))
    (chunk, is_handed_over), _ = it.received()

    assert not is_handed_over
    assert chunk.columns.fields[0].to_list() == column.to_list()
    assert it.writer.num_written == [8_000]


@pytest.mark.parametrize("num_taken", [0, 1, 2])
def test_a_consumer_that_leaves_between_two_parts_gets_the_rest_as_bytes(
    local: Any, monkeypatch: pytest.MonkeyPatch, num_taken: int
) -> None:
    """The bytes are for the next consumer, which gets the rest in order, each row once."""
    it = local(Forward())
    emit, attempts = it.partition.emit_content, iter(range(1_000))

    def emit_until_it_leaves(content: BufferContent, lane: int) -> bool:
        return next(attempts) < num_taken and bool(emit(content, lane))

    monkeypatch.setattr(it.partition, "emit_content", emit_until_it_leaves)
    numbers = ArrayColumn(np.arange(60_000) / 3)

    it.write(in_rows(*[numbers] * 7, timestamps=np.arange(60_000)))
    *parts, (watermark, _) = it.received()
    chunks = [chunk for chunk, _ in parts]

    assert [is_handed_over for _, is_handed_over in parts] == [True] * num_taken + [False] * (len(parts) - num_taken)
    assert [value for chunk in chunks for value in chunk.columns.fields[0].to_list()] == numbers.to_list()
    assert np.array_equal(np.concatenate([chunk.timestamp_array for chunk in chunks]), np.arange(60_000))
    assert watermark == Watermark(7)
    assert it.writer.num_written == [60_000]


@pytest.mark.parametrize("timestamps", [None, np.arange(NUM_ROWS)], ids=["untimed", "timed"])
@pytest.mark.parametrize("column", [*COLUMNS.values(), OFFSETS], ids=[*COLUMNS.keys(), "offsets"])
def test_a_checkpoint_can_keep_columns_of_every_kind(column: Column, timestamps: Any) -> None:
    """A checkpoint that overtakes columns in flight keeps them as bytes."""
    chunk = in_rows(column, timestamps=timestamps)

    (read,) = ElementDeserializer(name="test").feed(memoryview(ChunkContent(chunk, 1).to_bytes()))

    assert isinstance(read, Chunk)
    assert exact(read.values) == exact(chunk.values)
    assert read.timestamps == chunk.timestamps


def test_codes_are_handed_over_while_their_table_grows(local: Any) -> None:
    """The meaning of a code does not change later."""
    it = local(KeyGroups(ColumnKey("f0")), 2)
    found: list[Any] = [[], []]
    sent: list[str] = []

    for round_number in range(3):
        texts = [f"key {round_number} {number % 9}" for number in range(NUM_ROWS)]
        it.write(in_rows(ListColumn(texts, str), COLUMNS["floats"]))
        sent += texts
    for channel in range(2):
        found[channel] = [
            chunk for chunk, is_handed_over in it.received(channel) if isinstance(chunk, Chunk) and is_handed_over
        ]

    for channel in range(2):
        keys = [key for chunk in found[channel] for key in chunk.columns.fields[0].to_list()]
        assert keys == [text for text in sent if channel_of(text, 2) == channel]
    tables = {id(chunk.columns.fields[0].names) for chunks in found for chunk in chunks}
    assert len(tables) == 1

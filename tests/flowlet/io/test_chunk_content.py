"""Chunks that are handed over, as they are, to a task in their own process."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flowlet.chain.record_shape import copy_if_mutable
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
from flowlet.columns.short_text_column import try_short_texts
from flowlet.common.types import Row
from flowlet.graph.partitioner import Forward, KeyGroups
from flowlet.io.chunk_content import MAX_CONTENT_BYTES, MIN_CONTENT_RECORDS, ChunkContent, estimated_bytes
from flowlet.io.create_record_writer import create_record_writer
from flowlet.io.input_processor import InputProcessor
from flowlet.io.record_writer import RecordWriterOptions
from flowlet.records import Chunk, PickledRecord, Watermark
from flowlet.serde.element_serializer import ElementDeserializer
from netstack.partition.result_partition import ResultPartition
from netstack.wire.events import EndOfData, StopMode
from tests.flowlet.io.head import Head
from tests.flowlet.serde.exact import exact
from tests.flowlet.task.local_network import LocalNetwork


def read_back(content: ChunkContent) -> Chunk:
    deserializer = ElementDeserializer(name="test")
    (element,) = deserializer.feed(memoryview(content.to_bytes()))
    assert isinstance(element, Chunk)
    assert not deserializer.has_partial
    return element


def in_columns(*fields: Column) -> Chunk:
    return Chunk.of_columns(Columns(len(fields[0]), fields, Shape.TUPLE))


@pytest.mark.parametrize("timestamps", [None, [5, 6, 7]])
@pytest.mark.parametrize(
    "values",
    [
        [1, 2, 3],
        ["a", None, 2.5],
        [("a", 1), ("b", 2), ("c", 3)],
        [{"a": 1}, {"b": [2]}, {}],
        [Row(a=1), Row(2), (1, [2])],
        [copy_if_mutable({"a": [number]}) for number in range(3)],
    ],
    ids=repr,
)
def test_the_bytes_and_the_chunk_are_the_same_records(values: list[Any], timestamps: list[int] | None) -> None:
    """The records are equal for any chunk; pickled records are records again."""
    chunk = Chunk(list(values), timestamps)
    chunk.keys = ["x", "y", "z"]
    content = ChunkContent(chunk, 10)

    read, taken = read_back(content), content.take()

    assert exact(read.values) == exact(taken.values)
    assert PickledRecord not in set(map(type, taken.values))
    assert read.timestamps == taken.timestamps == timestamps
    assert taken.keys == ["x", "y", "z"]
    assert read.keys in (None, taken.keys)


def test_a_chunk_in_columns_is_handed_over_as_it_is() -> None:
    columns = columns_of([("a", 1), ("b", 2)])
    assert columns is not None
    chunk = Chunk.of_columns(columns, [1, 2])
    content = ChunkContent(chunk, 10)

    assert read_back(content) == chunk
    assert content.take() is chunk


def test_records_that_cannot_change_are_the_very_objects() -> None:
    values = [{"a": 1}, ("b", 2)]

    taken = ChunkContent(Chunk(values), 10).take()

    assert [id(each) for each in taken.values] == [id(each) for each in values]


def test_it_says_how_much_it_holds() -> None:
    assert repr(ChunkContent(Chunk([1, 2]), 10)) == "<ChunkContent: 2 records, about 10 bytes>"


@pytest.mark.parametrize(
    ("chunk", "least", "most"),
    [
        (Chunk(["x" * 100] * 10), 1_000, 1_300),
        (Chunk([PickledRecord(bytes(100))] * 10), 1_000, 1_000),
        (Chunk([lambda: None] * 10), 160, 160),
        (in_columns(ArrayColumn(np.arange(10)), ArrayColumn(np.arange(10, dtype=np.int16))), 100, 100),
        (in_columns(ListColumn(["x" * 100] * 10)), 1_000, 1_000),
        (in_columns(ListColumn([b"x" * 100] * 10)), 1_000, 1_000),
        (in_columns(ListColumn([2**70] * 10)), 160, 160),
        (in_columns(ConstantColumn("x" * 100, 10)), 1, 200),
        (
            in_columns(
                CodedColumn(np.arange(10, dtype=np.uint16), NameTable([f"name {number}" for number in range(10)]))
            ),
            20,
            20,
        ),
        (in_columns(ArrowColumn(pa.array(["x" * 100] * 10))), 1, 1_500),
    ],
    ids=str,
)
def test_the_size_is_an_estimate(chunk: Chunk, least: int, most: int) -> None:
    """The estimate is near the bytes of the serialized chunk; records that cannot be pickled get a guess."""
    assert least <= estimated_bytes(chunk) <= most


def test_the_size_of_short_texts_is_an_estimate() -> None:
    column = try_short_texts([f"name {number}" for number in range(100)])

    assert column is not None
    assert estimated_bytes(in_columns(column)) == 1_600


# ---------------------------------------------------------------- from a record writer to an input


def handed_over(partition: ResultPartition, chunk: Chunk, partitioner: Any = None) -> Any:
    writer = create_record_writer(partition, partitioner or Forward(), RecordWriterOptions(-1))
    writer.collect(chunk)
    writer.emit_control(Watermark(7))
    writer.flush_pending()
    partition.broadcast_event(EndOfData(StopMode.DRAIN))
    partition.flush_all()
    return writer


def received(network: LocalNetwork, chunk: Chunk, partitioner: Any = None) -> list[Any]:
    partition = network.partition(1, 2_000)
    gate = network.gate(partition)
    gate.request_partitions()
    head = Head()
    handed_over(partition, chunk, partitioner)
    InputProcessor([gate], head, "reader").process_input(10_000, lambda: False)
    return list(head.seen)


@pytest.mark.parametrize("is_keyed", [False, True])
@pytest.mark.parametrize(
    ("num_records", "text", "is_handed_over"),
    [
        (MIN_CONTENT_RECORDS - 1, "x", False),
        (MIN_CONTENT_RECORDS, "x", True),
        (MIN_CONTENT_RECORDS, "x" * (MAX_CONTENT_BYTES // MIN_CONTENT_RECORDS + 1), False),
    ],
)
def test_a_local_reader_gets_the_very_records_of_a_chunk_neither_small_nor_large(
    num_records: int, text: str, is_handed_over: bool, is_keyed: bool
) -> None:
    """The records arrive with their keys, in front of the elements that follow them."""
    records = [{"key": f"k{number % 3}", "text": text} for number in range(num_records)]

    with LocalNetwork(2_000 if is_handed_over or num_records < MIN_CONTENT_RECORDS else 6_000) as network:
        chunk = Chunk(list(records))
        if is_keyed:  # as a chunking output does
            chunk.keys, chunk.key_field = [record["key"] for record in records], 0
        found, watermark, *_ = received(network, chunk, KeyGroups(lambda record: record["key"]) if is_keyed else None)

        assert found.values == records
        assert watermark == Watermark(7)
        assert all(read is record for read, record in zip(found.values, records, strict=True)) is is_handed_over
        if is_keyed and is_handed_over:
            assert found.keys == [record["key"] for record in records]

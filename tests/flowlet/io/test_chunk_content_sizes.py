"""Promises of ``ChunkContent``: whatever it is sent as, a receiver takes it, and its size is not thought to be much
less than it is.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flowlet.columns import ArrayColumn, ArrowColumn, Column, Columns, ListColumn, OffsetColumn, Shape
from flowlet.errors import SerdeError
from flowlet.io import chunk_content
from flowlet.io.chunk_content import MAX_CONTENT_BYTES, ChunkContent, estimated_bytes
from flowlet.records import Chunk, PickledRecord
from flowlet.serde.element_limits import DEFAULT_ELEMENT_LIMITS, ElementLimits
from flowlet.serde.element_serializer import ElementDeserializer
from flowlet.serde.pickles.record_pickle import dumps_record

MAX_ELEMENT_BYTES = 10_000  # in the place of 16 MiB


@pytest.fixture
def small_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_content, "MAX_ELEMENT_BYTES", MAX_ELEMENT_BYTES)


def received(data: bytes) -> list[Chunk]:
    elements = ElementDeserializer(name="test").feed(memoryview(data))
    chunks = [element for element in elements if isinstance(element, Chunk)]
    assert len(chunks) == len(elements)
    return chunks


def list_column_of(values: list[Any]) -> Chunk:
    return Chunk.of_columns(Columns(len(values), (ListColumn(values),), Shape.SCALAR))


@pytest.mark.usefixtures("small_elements")
@pytest.mark.parametrize("make", [Chunk, list_column_of])
def test_a_large_content_becomes_several_elements(make: Any) -> None:
    """A receiver refuses an element that is too large for it; records keep their order."""
    values = [f"{number:1000}" for number in range(100)]

    chunks = received(ChunkContent(make(values), 1).to_bytes())

    assert [value for chunk in chunks for value in chunk.values] == values
    assert all(len(chunk) * 1_000 <= MAX_ELEMENT_BYTES for chunk in chunks)


@pytest.mark.usefixtures("small_elements")
def test_timestamps_stay_with_their_records() -> None:
    values, timestamps = [f"{number:1000}" for number in range(50)], list(range(50))

    chunks = received(ChunkContent(Chunk(values, timestamps), 1).to_bytes())

    assert len(chunks) > 1
    assert [value for chunk in chunks for value in chunk.values] == values
    assert [timestamp for chunk in chunks for timestamp in chunk.timestamps or []] == timestamps


@pytest.mark.usefixtures("small_elements")
def test_one_large_record_is_one_element() -> None:
    """A record that is larger than an element may be cannot be cut."""
    values = ["small", "x" * 3 * MAX_ELEMENT_BYTES, "small"]

    chunks = received(ChunkContent(Chunk(values), 1).to_bytes())

    assert [value for chunk in chunks for value in chunk.values] == values


def test_a_small_content_is_one_element() -> None:
    (chunk,) = received(ChunkContent(Chunk(["a", "b"]), 1).to_bytes())

    assert chunk.values == ["a", "b"]


def large_after_small(make: Any) -> list[Any]:
    return [make("x"), *[make("x" * 100_000) for _ in range(99)]]


@pytest.mark.parametrize(
    "chunk",
    [
        Chunk(large_after_small(str)),
        Chunk(large_after_small(lambda text: [text])),
        Chunk(large_after_small(lambda text: PickledRecord(dumps_record([text])))),
        list_column_of(large_after_small(str)),
        list_column_of(large_after_small(str.encode)),
    ],
    ids=["texts", "lists", "pickles", "column of texts", "column of bytes"],
)
def test_a_small_first_record_does_not_hide_large_ones(chunk: Chunk) -> None:
    """A buffer would otherwise hold far more than was planned for it."""
    assert estimated_bytes(chunk) >= 99 * 100_000 > MAX_CONTENT_BYTES


@pytest.mark.parametrize(
    "chunk",
    [Chunk([lambda: None]), Chunk([""]), list_column_of([""])],
    ids=["what cannot be pickled", "empty text", "column of an empty text"],
)
def test_no_content_is_of_no_size(chunk: Chunk) -> None:
    assert estimated_bytes(chunk) >= 1


def scalars(column: Column) -> Chunk:
    return Chunk.of_columns(Columns(len(column), (column,), Shape.SCALAR))


LONG_TEXTS = ArrowColumn(pa.array(["x" * 1_000] * 1_000, pa.large_string()))
_OFFSET_BYTES = 8  # of a large text


@pytest.mark.parametrize(
    ("column", "num_bytes"),
    [
        (ArrayColumn(np.arange(100)), 800),
        (OffsetColumn(5, np.arange(100, dtype=np.uint8)), 100),
        (OffsetColumn(5, np.arange(100, dtype=np.uint16)).slice(10, 20), 20),
        (ArrowColumn(pa.array(range(100), pa.int32())), 400),
        (LONG_TEXTS, 1_000_000 + 1_000 * _OFFSET_BYTES),
        (LONG_TEXTS.slice(500, 510), 10_000 + 10 * _OFFSET_BYTES),
    ],
    ids=["numbers", "offsets", "some offsets", "numbers in Arrow", "texts in Arrow", "some texts in Arrow"],
)
def test_the_size_of_a_column_is_that_of_its_part_of_the_arrays(column: Column, num_bytes: int) -> None:
    """The arrays may hold far more beside the part."""
    assert estimated_bytes(scalars(column)) == num_bytes


def test_a_dictionary_counts_with_every_part_that_needs_it() -> None:
    """Each part would bring the dictionary along."""
    names = pa.array([f"{number:0100}" for number in range(1_000)])
    column = ArrowColumn(pa.DictionaryArray.from_arrays(pa.array(range(1_000), pa.int16()), names))

    assert estimated_bytes(scalars(column.slice(0, 10))) >= names.nbytes


@pytest.mark.slow
def test_the_limit_of_the_reader_holds_above_the_default() -> None:
    """The limit serves records in flight, sorted runs and exchanges of a job whose ``flowlet.max-record-bytes`` is
    larger.
    """
    limits = ElementLimits(2 * DEFAULT_ELEMENT_LIMITS.max_element_bytes)
    record = bytes(DEFAULT_ELEMENT_LIMITS.max_element_bytes + 1)

    data = ChunkContent(Chunk([record]), 1, limits.max_element_bytes).to_bytes()

    (chunk,) = ElementDeserializer(limits=limits).feed(memoryview(data))
    assert isinstance(chunk, Chunk)
    assert chunk.values == [record]
    with pytest.raises(SerdeError, match=r"flowlet\.max-record-bytes"):
        ChunkContent(Chunk([record]), 1).to_bytes()


def test_the_limit_of_the_reader_holds_below_the_default() -> None:
    """The content is cut until each element is small enough; a record that is not is refused where it is written."""
    values = [f"{number:500}" for number in range(100)]

    data = ChunkContent(Chunk(values), 1, 5_000).to_bytes()

    chunks = ElementDeserializer(limits=ElementLimits(5_000)).feed(memoryview(data))
    assert [value for chunk in chunks if isinstance(chunk, Chunk) for value in chunk.values] == values
    with pytest.raises(SerdeError, match="the limit is 5000"):
        ChunkContent(Chunk(["x" * 6_000]), 1, 5_000).to_bytes()

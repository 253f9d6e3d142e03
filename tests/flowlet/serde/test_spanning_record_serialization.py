"""Elements cut into buffers and put together again.

Source: Flink `SpanningRecordSerializationTest`.  Its records of one value each are here a chunk of one record.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlet.records import Chunk, StreamElement, Watermark
from flowlet.serde.element_limits import ElementLimits
from flowlet.serde.element_serializer import ElementDeserializer, StreamElementSerializer
from netstack.buffer.buffer_builder import BufferBuilder
from netstack.buffer.network_buffer import BufferRecycler, MemorySegment

SEGMENT_BYTES = 32 * 1024
SEED = 4


class _NoPool(BufferRecycler):
    """Takes segments back by forgetting them."""

    def recycle(self, segment: MemorySegment) -> None:
        segment.view[:] = b"\xee" * len(segment.view)


class Pipe:
    """Serializer, buffers and deserializer of one channel; buffers are overwritten once they were fed."""

    def __init__(self, segment_bytes: int, limits: ElementLimits | None = None) -> None:
        self.serializer = StreamElementSerializer()
        self.deserializer = ElementDeserializer(limits=ElementLimits() if limits is None else limits)
        self.num_buffers = 0
        self._segment_bytes = segment_bytes
        self._builder = self._new_builder(start=random.Random(SEED).randrange(segment_bytes))

    def send(self, *elements: StreamElement) -> list[StreamElement]:
        """Return the elements that are complete while these go in; bytes behind the last full buffer wait."""
        found: list[StreamElement] = []
        for element in elements:
            rest = memoryview(self.serializer.serialize(element))
            while rest:
                rest = rest[self._builder.append_and_commit(rest) :]
                if self._builder.is_full:
                    found += self.flush()
        return found

    def flush(self) -> list[StreamElement]:
        """Hand over the buffer as full as it is."""
        skipped, builder = self._skipped, self._builder
        self._builder = self._new_builder(start=0)
        consumer = builder.create_buffer_consumer()
        builder.finish()
        buffer = consumer.build()
        self.num_buffers += 1
        try:
            return self.deserializer.feed(buffer.view[skipped:])
        finally:
            buffer.recycle()
            consumer.close()
            builder.close()

    def _new_builder(self, *, start: int) -> BufferBuilder:
        """Return a builder for the next buffer; the first one of a channel may begin anywhere, with bytes that do not
        belong to us.
        """
        self._skipped = start
        builder = BufferBuilder(MemorySegment(memoryview(bytearray(self._segment_bytes))), _NoPool())
        builder.append_and_commit(bytes(start))
        return builder


def records_of(elements: list[StreamElement]) -> list[Any]:
    return [value for element in elements if isinstance(element, Chunk) for value in element.values]


def random_values(count: int) -> Iterator[Any]:
    rng = random.Random(SEED)
    for _ in range(count):
        yield rng.choice(
            [
                rng.getrandbits(31),
                rng.random(),
                "x" * rng.randrange(40),
                bytes(rng.randrange(60)),
                (rng.random() < 0.5, "é"),
                None,
                [1, {}],
            ]
        )


@pytest.mark.parametrize(
    ("segment_bytes", "num_records"),
    [(1, 10), (64, 200), (31, 248), (127, 250), (SEGMENT_BYTES, 5000)],
    ids=[
        "int_records_spanning_multiple_segments",
        "with_aligned_buffers",
        "with_unaligned_buffers",
        "odd_segments",
        "full_segments",
    ],
)
def test_int_records(segment_bytes: int, num_records: int) -> None:
    """Records come out once, in order, and not before their last byte was there, with segments of any size."""
    pipe = Pipe(segment_bytes)

    found: list[Any] = []
    for number in range(num_records):
        found += records_of(pipe.send(Chunk([number])))
        assert len(found) <= number + 1
    found += records_of(pipe.flush())

    assert found == list(range(num_records))
    assert not pipe.deserializer.has_partial


@pytest.mark.parametrize("segment_bytes", [1, 127, SEGMENT_BYTES])
def test_random_types(segment_bytes: int) -> None:
    """RandomRecords: of all kinds and sizes, with and without timestamps, watermarks between them."""
    pipe = Pipe(segment_bytes)
    sent: list[StreamElement] = []
    for index, value in enumerate(random_values(150)):
        sent.append(Chunk([value], [index] if index % 3 else None))
        if index % 10 == 0:
            sent.append(Watermark(index))

    found = pipe.send(*sent) + pipe.flush()

    def flat(elements: list[StreamElement]) -> list[Any]:
        flattened: list[Any] = []
        for element in elements:
            if isinstance(element, Chunk):
                timestamps = element.timestamps if element.timestamps is not None else [None] * len(element)
                flattened += zip(element.values, timestamps, strict=True)
            else:
                flattened.append(element)
        return flattened

    assert flat(found) == flat(sent)


def test_small_records_between_large_ones(tmp_path: Path) -> None:
    """LargeObjects: 99 records, an int or a megabyte in turn; those of 200 KB and more wait in a file."""
    limits = ElementLimits(spill_above_bytes=102_400, spill_directory=str(tmp_path))
    pipe = Pipe(SEGMENT_BYTES, limits)
    rng = random.Random(SEED)
    values = [
        42 if index % 2 else rng.randbytes(rng.choice([1_000, 50_000, 102_396, 102_397, 500_000]))
        for index in range(99)
    ]

    found = pipe.send(*(Chunk([value]) for value in values)) + pipe.flush()

    assert records_of(found) == values
    assert not pipe.deserializer.has_partial


@pytest.mark.parametrize("size_bytes", [5 << 20, (5 << 20) + 100_000, 40 << 20])
@pytest.mark.slow
def test_records_above_5_mib_wait_in_a_file(size_bytes: int) -> None:
    """HandleMixedLargeRecords: by default, through buffers of 32 KiB."""
    pipe = Pipe(SEGMENT_BYTES)
    large = random.Random(SEED).randbytes(size_bytes)
    has_spilled = False

    found: list[StreamElement] = []
    data = memoryview(pipe.serializer.serialize(Chunk([large])))
    for start in range(0, len(data), SEGMENT_BYTES):
        found += pipe.deserializer.feed(data[start : start + SEGMENT_BYTES])
        has_spilled = has_spilled or "in a file" in repr(pipe.deserializer)
        assert len(pipe.deserializer._partial) <= 5 << 20, "memory holds no more than the threshold"
    found += pipe.send(Chunk([42])) + pipe.flush()

    assert records_of(found) == [large, 42]
    assert has_spilled is (size_bytes > 5 << 20)


UNCONSUMED = {
    "small": (10, 1000),
    "spanning": (60_000, 32_768),
    "large": (400_000, 32_768),
    "large_with_leftover": (400_000, 50_001),
}


@pytest.mark.parametrize("name", UNCONSUMED)
def test_unconsumed_buffer(name: str, tmp_path: Path) -> None:
    """The bytes of a half element bring another deserializer to the place of the first one, wherever the cut is, and
    can be asked for again.
    """
    record_bytes, piece_bytes = UNCONSUMED[name]
    limits = ElementLimits(spill_above_bytes=102_400, spill_directory=str(tmp_path))
    chunk = Chunk([random.Random(SEED).randbytes(record_bytes)])
    leading = StreamElementSerializer().serialize(Watermark(1))
    data = leading + StreamElementSerializer().serialize(chunk)

    for cut in {len(leading), len(leading) + 3, len(leading) + 5, len(data) // 2, len(data) - 1}:
        first, second = (ElementDeserializer(limits=limits) for _ in range(2))
        for start in range(0, cut, 30_000):
            first.feed(memoryview(data)[start : min(cut, start + 30_000)])

        pieces = list(first.unconsumed(piece_bytes))

        assert b"".join(pieces) == data[len(leading) : cut]
        assert all(len(piece) == piece_bytes for piece in pieces[:-1])
        assert list(first.unconsumed(piece_bytes)) == pieces
        for piece in pieces:
            assert second.feed(memoryview(piece)) == []
        for deserializer in (first, second):
            assert deserializer.feed(memoryview(data)[cut:]) == [chunk]
            assert list(deserializer.unconsumed(piece_bytes)) == []


def test_an_element_that_fills_its_buffer_leaves_nothing_behind() -> None:
    """The next one starts a new buffer."""
    pipe = Pipe(13)
    pipe.flush()

    assert pipe.send(Watermark(1)) == [Watermark(1)]
    assert not pipe.deserializer.has_partial
    assert pipe.num_buffers == 2


def test_no_two_records_are_the_same_object() -> None:
    """NonReusingDeserializationDelegate: the operator may keep its records."""
    pipe = Pipe(SEGMENT_BYTES)

    values = records_of(pipe.send(Chunk([[1]]), Chunk([[1]])) + pipe.flush())

    assert values == [[1], [1]]
    assert values[0] is not values[1]

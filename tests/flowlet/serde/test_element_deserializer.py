import contextlib
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.columns import Columns, ConstantColumn, Shape
from flowlet.errors import ConfigError, SerdeError
from flowlet.records import (
    ACTIVE,
    IDLE,
    Chunk,
    CompletionMark,
    InternalWatermark,
    LatencyMarker,
    RecordAttributes,
    StreamElement,
    Watermark,
)
from flowlet.serde.element_limits import DEFAULT_ELEMENT_LIMITS, ElementLimits
from flowlet.serde.element_serializer import ElementDeserializer, StreamElementSerializer
from tests.flowlet.serde.exact import columns

ELEMENTS: list[StreamElement] = [
    Chunk([("a", 1), ("bb", 2)]),
    Watermark(1000),
    Chunk([1.5, None, {"x": [1]}], [1, 2, 3]),
    IDLE,
    LatencyMarker(-5, bytes(range(16)), 3),
    RecordAttributes(is_backlog=True),
    InternalWatermark(7, subpartition=2),
    CompletionMark(2**62),
    ACTIVE,
    Chunk(["日本", "\0"]),
]


def serialize(*elements: StreamElement) -> bytes:
    return b"".join(map(StreamElementSerializer().serialize, elements))


def feed(deserializer: ElementDeserializer, data: bytes) -> list[StreamElement]:
    """Feed a buffer that is overwritten as soon as it was read, as network buffers are."""
    buffer = bytearray(data)
    elements = deserializer.feed(memoryview(buffer))
    buffer[:] = b"\xee" * len(buffer)
    return elements


def test_all_elements_of_a_buffer_come_out_at_once() -> None:
    deserializer = ElementDeserializer()

    assert feed(deserializer, serialize(*ELEMENTS)) == ELEMENTS
    assert not deserializer.has_partial


def test_byte_by_byte() -> None:
    """Each element comes out with its last byte, and is partial before that."""
    deserializer = ElementDeserializer()
    data = serialize(*ELEMENTS)
    ends = [len(serialize(*ELEMENTS[: count + 1])) for count in range(len(ELEMENTS))]

    found: list[StreamElement] = []
    for count, byte in enumerate(data, 1):
        new = feed(deserializer, bytes([byte]))
        assert len(new) == (count in ends)
        assert deserializer.has_partial is (count not in ends)
        found += new

    assert found == ELEMENTS


def test_cut_in_two_at_every_point() -> None:
    data = serialize(*ELEMENTS)

    for cut in range(len(data) + 1):
        deserializer = ElementDeserializer()
        assert feed(deserializer, data[:cut]) + feed(deserializer, data[cut:]) == ELEMENTS


@given(st.lists(columns(), max_size=4), st.lists(st.integers(0, 60), max_size=30))
def test_cut_anywhere(chunks: list[list[Any]], sizes: list[int]) -> None:
    """The elements are those of one piece."""
    data = serialize(*map(Chunk, chunks))
    whole = ElementDeserializer().feed(memoryview(data))
    deserializer = ElementDeserializer()

    found: list[StreamElement] = []
    start = 0
    for size in [*sizes, len(data)]:
        found += feed(deserializer, data[start : start + size])
        start += size

    assert repr(found) == repr(whole)
    assert serialize(*found) == serialize(*whole)


def test_an_element_much_larger_than_a_buffer() -> None:
    element = Chunk(["x" * 1_000_000, "y"])
    data = serialize(element, Watermark(1))
    deserializer = ElementDeserializer()

    found = [item for start in range(0, len(data), 32_768) for item in feed(deserializer, data[start : start + 32_768])]

    assert found == [element, Watermark(1)]


def feed_in_steps(deserializer: ElementDeserializer, data: bytes, step: int) -> None:
    for start in range(0, len(data), step):
        feed(deserializer, data[start : start + step])


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


CHUNK = serialize(Chunk(["ab", "c"]))[4:]
TABLE = serialize(
    Chunk.of_columns(Columns(2, (ConstantColumn("a", 2), ConstantColumn(1, 2)), Shape.TUPLE, key_position=1))
)[4:]
CORRUPT = {
    "length 0": (struct.pack(">i", 0), "its length is 0, allowed are 1 to 1000"),
    "negative length": (struct.pack(">i", -5), "its length is -5"),
    "too long": (struct.pack(">i", 1001), "its length is 1001, allowed are 1 to 1000 bytes"),
    "single record": (framed(b"\x01abc"), "found tag 1"),
    "unknown tag": (framed(b"\x63"), "found tag 99"),
    "short watermark": (framed(b"\x02\0"), "tag 2, 2 bytes"),
    "long watermark": (framed(b"\x02" + bytes(9)), "tag 2, 10 bytes"),
    "unknown attribute": (framed(b"\x05\x02"), "tag 5, 2 bytes: KeyError: 2"),
    "long attributes": (framed(b"\x05\x01\x01"), "tag 5, 3 bytes"),
    "short internal watermark": (framed(b"\x06" + bytes(11)), "tag 6, 12 bytes"),
    "short latency marker": (framed(b"\x03" + bytes(27)), "tag 3, 28 bytes"),
    "unknown status": (framed(b"\x04" + struct.pack(">i", 7)), "tag 4, 5 bytes: KeyError: 7"),
    "short chunk": (framed(CHUNK[:-1]), "ends 1 bytes behind its chunk"),
    "long chunk": (framed(CHUNK + b"x"), "1 bytes are left behind the chunk"),
    "no header": (framed(CHUNK[:5]), "tag 64, 5 bytes"),
    "other version": (framed(b"\x40\x02" + CHUNK[2:]), "a chunk of version 2 with flags 0"),
    "unknown flag": (framed(b"\x40\x01\x08" + CHUNK[3:]), "version 1 with flags 8"),
    "no keys": (framed(b"\x40\x01\x02" + CHUNK[3:7]), "tag 64, 7 bytes"),
    "too few keys": (
        framed(b"\x40\x01\x02" + struct.pack(">I", 3) + CHUNK[7:]),
        "has 2 values in a chunk of 3 records",
    ),
    "no place of the key": (framed(b"\x40\x01\x04" + CHUNK[3:7]), "tag 64, 7 bytes"),
    "a key behind the fields": (framed(TABLE[:7] + b"\2" + TABLE[8:]), "the key is field 2 of records with 2 fields"),
    "too many records": (
        framed(b"\x40\x01\x00" + struct.pack(">I", 1 << 21) + CHUNK[7:]),
        "a chunk of 2097152 records",
    ),
    "other number of records": (
        framed(b"\x40\x01\x00" + struct.pack(">I", 3) + CHUNK[7:]),
        "has 2 values in a chunk of 3 records",
    ),
    "not UTF-8": (framed(CHUNK[:-1] + b"\xff"), "UnicodeDecodeError"),
}


@pytest.mark.parametrize("name", CORRUPT)
@pytest.mark.parametrize("step", [1, 10_000])
def test_corrupt_bytes_are_reported_with_channel_and_offset(name: str, step: int) -> None:
    """The bytes may come whole or one by one; every later feed reports the error again."""
    data, message = CORRUPT[name]
    data = serialize(Watermark(5)) + data
    deserializer = ElementDeserializer(limits=ElementLimits(max_element_bytes=1000), name="task, input channel 3")

    with pytest.raises(SerdeError) as caught:
        feed_in_steps(deserializer, data, step)

    assert str(caught.value).startswith("task, input channel 3: corrupt stream in the element at offset 13: ")
    assert "its length is" in message or "at offset 13: StreamElementSerializer(): " in str(caught.value)
    assert message in str(caught.value)
    with pytest.raises(SerdeError, match="offset 13"):
        feed(deserializer, serialize(Watermark(6)))
    assert "broken" in repr(deserializer)


def test_a_forged_length_does_not_reserve_memory() -> None:
    """The bytes that came in are kept, and no more."""
    deserializer = ElementDeserializer()

    assert feed(deserializer, struct.pack(">i", 64 << 20) + b"x") == []

    assert deserializer.has_partial
    assert repr(deserializer) == "<ElementDeserializer of channel at offset 0: 5 bytes of an element>"


@given(st.lists(columns(), min_size=1, max_size=3), st.data())
def test_damaged_streams_raise_nothing_else(chunks: list[list[Any]], data: st.DataObject) -> None:
    stream = bytearray(serialize(*map(Chunk, chunks)))
    for _ in range(data.draw(st.integers(1, 4))):
        stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
    deserializer = ElementDeserializer(limits=ElementLimits(max_element_bytes=10_000))

    with contextlib.suppress(SerdeError):
        feed_in_steps(deserializer, bytes(stream), 7)


def test_by_default_64_mib_are_taken_and_5_mib_of_them_in_memory() -> None:
    assert ElementLimits(64 * 1024 * 1024, 5 * 1024 * 1024, None) == DEFAULT_ELEMENT_LIMITS


@pytest.mark.parametrize("limit", [0, -1, 2**31])
def test_an_element_has_at_least_one_byte_and_a_length_of_31_bits(limit: int) -> None:
    assert ElementLimits(max_element_bytes=2**31 - 1).max_element_bytes == 2**31 - 1
    with pytest.raises(ConfigError, match=f"max_element_bytes is {limit}, allowed are 1 to 2147483647"):
        ElementLimits(max_element_bytes=limit)


def test_files_are_for_elements_above_100_kib() -> None:
    """A file costs more than 100 KiB of memory, as in Flink."""
    assert ElementLimits(spill_above_bytes=102_400).spill_above_bytes == 102_400
    with pytest.raises(ConfigError, match="spill_above_bytes is 102399, allowed are 102400 and more"):
        ElementLimits(spill_above_bytes=102_399)


LARGE = Chunk([b"x" * 150_000])
SPILLING = ElementLimits(spill_above_bytes=102_400)


def test_a_large_element_waits_in_a_file_only_while_it_is_incomplete(tmp_path: Path) -> None:
    limits = ElementLimits(spill_above_bytes=102_400, spill_directory=str(tmp_path))
    deserializer = ElementDeserializer(limits=limits)
    data = serialize(LARGE)

    feed(deserializer, data[:102_400])
    assert "in a file" not in repr(deserializer)
    feed(deserializer, data[102_400:102_500])
    assert repr(deserializer) == "<ElementDeserializer of channel at offset 0: 102500 bytes of an element, in a file>"
    assert deserializer.has_partial

    assert feed(deserializer, data[102_500:] + serialize(Watermark(1))) == [LARGE, Watermark(1)]
    assert repr(deserializer) == f"<ElementDeserializer of channel at offset {len(data) + 13}: 0 bytes of an element>"
    assert not deserializer.has_partial


def test_an_element_that_comes_in_one_piece_needs_no_file() -> None:
    limits = ElementLimits(spill_above_bytes=102_400, spill_directory="/nowhere")

    assert feed(ElementDeserializer(limits=limits), serialize(LARGE, LARGE)) == [LARGE, LARGE]


def test_a_spilled_element_that_is_corrupt_is_reported_as_any_other(tmp_path: Path) -> None:
    """The file of the element is closed."""
    limits = ElementLimits(spill_above_bytes=102_400, spill_directory=str(tmp_path))
    deserializer = ElementDeserializer("channel 7", limits=limits)
    data = bytearray(serialize(LARGE))
    data[4] = 99

    with pytest.raises(SerdeError, match=r"channel 7: corrupt stream in the element at offset 0: .*found tag 99"):
        feed_in_steps(deserializer, bytes(data), 30_000)

    assert not deserializer.has_partial
    with pytest.raises(SerdeError, match="found tag 99"):
        feed(deserializer, b"")


def test_a_file_that_cannot_be_made_is_reported_with_the_channel() -> None:
    limits = ElementLimits(spill_above_bytes=102_400, spill_directory="/nowhere")

    with pytest.raises(
        SerdeError, match=r"channel 7: .* an element too large for memory cannot be kept in a file in /nowhere"
    ):
        feed_in_steps(ElementDeserializer("channel 7", limits=limits), serialize(LARGE), 30_000)


def test_a_deserializer_that_was_closed_forgets_its_half_element() -> None:
    for size in (5, 120_000):
        deserializer = ElementDeserializer(limits=SPILLING)
        feed_in_steps(deserializer, serialize(LARGE)[:size], 30_000)
        assert deserializer.has_partial

        deserializer.close()

        assert not deserializer.has_partial

"""Buffers that hold an object instead of its bytes."""

import pytest

from netstack.buffer.buffer_builder import ContentBuffer, ContentConsumer, pieces_of
from netstack.buffer.network_buffer import BufferContent, BufferRecycler, MemorySegment, NetworkBuffer
from netstack.errors import BufferOwnershipError, LocalProtocolError
from netstack.wire.messages import DataType

KIB = 1024


class Content:
    """Counts how often it was made bytes."""

    def __init__(self, data: bytes = b"content", size_bytes: int = 100) -> None:
        self.data = data
        self.size_bytes = size_bytes
        self.num_made = 0

    def to_bytes(self) -> bytes:
        self.num_made += 1
        return self.data


class Home(BufferRecycler):
    """Keeps the segments that came home."""

    def __init__(self) -> None:
        self.segments: list[MemorySegment] = []

    def recycle(self, segment: MemorySegment) -> None:
        self.segments.append(segment)


def consumer_of(content: BufferContent) -> tuple[ContentConsumer, Home]:
    home = Home()
    return ContentConsumer(MemorySegment(memoryview(bytearray(16))), home, content), home


def taken(content: BufferContent) -> tuple[NetworkBuffer, Home]:
    consumer, home = consumer_of(content)
    buffer = consumer.take()
    assert buffer is not None
    return buffer, home


def bytes_of(buffers: list[NetworkBuffer]) -> list[bytes]:
    found = [bytes(buffer.view) for buffer in buffers]
    for buffer in buffers:
        buffer.recycle()
    return found


# ---------------------------------------------------------------- the buffer


def test_a_content_is_handed_over_without_bytes() -> None:
    """A content is handed over as a data buffer whose size is an estimate; no bytes are made."""
    content = Content()

    buffer, _ = taken(content)

    assert (buffer.content, buffer.size, content.num_made) == (content, 100, 0)
    assert (buffer.data_type, buffer.is_buffer, buffer.is_compressed) == (DataType.DATA_BUFFER, True, False)
    buffer.recycle()


def test_bytes_are_made_once_when_they_are_asked_for() -> None:
    """Bytes are made once, even if there are more of them than the segment holds; from then on the size is exact."""
    content = Content(b"x" * 50)
    buffer, _ = taken(content)

    assert bytes(buffer.view) == bytes(buffer.view) == b"x" * 50
    assert (buffer.size, content.num_made) == (50, 1)
    buffer.recycle()


def test_any_other_buffer_has_no_content() -> None:
    assert NetworkBuffer.unpooled(b"data", DataType.DATA_BUFFER).content is None


def test_the_segment_goes_home_once() -> None:
    """The last holder recycles the segment, once."""
    buffer, home = taken(Content())

    buffer.retain()
    buffer.recycle()
    assert home.segments == []
    buffer.recycle()

    assert len(home.segments) == 1
    with pytest.raises(BufferOwnershipError, match="used after its release"):
        _ = buffer.view
    with pytest.raises(BufferOwnershipError, match="released twice"):
        buffer.recycle()
    assert len(home.segments) == 1


def test_a_slice_has_bytes_of_its_own() -> None:
    buffer, home = taken(Content(b"0123456789"))

    part = buffer.slice(2, 3)
    buffer.recycle()

    assert (bytes(part.view), part.data_type, part.content) == (b"234", DataType.DATA_BUFFER, None)
    part.recycle()
    assert len(home.segments) == 1


@pytest.mark.parametrize("size", [0, 1, 32 * KIB, 32 * KIB + 1, 100 * KIB])
def test_bytes_come_in_buffers_as_large_as_others_are(size: int) -> None:
    """Each buffer has at most 32 KiB of the bytes; the buffers outlive the content."""
    data = bytes(number % 251 for number in range(size))
    buffer, _ = taken(Content(data))
    assert isinstance(buffer, ContentBuffer)

    pieces = buffer.byte_buffers()
    buffer.recycle()

    assert {(piece.data_type, piece.is_buffer) for piece in pieces} <= {(DataType.DATA_BUFFER, True)}
    found = bytes_of(pieces)
    assert b"".join(found) == data
    assert [len(piece) for piece in found] == [32 * KIB] * (size // (32 * KIB)) + [size % (32 * KIB)] * (
        size % (32 * KIB) > 0
    )
    assert bytes_of(pieces_of(memoryview(data))) == found


# ---------------------------------------------------------------- its reader


def test_a_consumer_gives_the_content_once() -> None:
    """The reference goes along: closing the consumer afterwards does nothing."""
    content = Content()
    consumer, home = consumer_of(content)
    before = (
        consumer.is_finished,
        consumer.is_data_available,
        consumer.num_bytes_unread,
        consumer.is_start_of_data_buffer,
    )

    buffer = consumer.take()

    assert before == (False, True, 100, True)
    assert isinstance(buffer, ContentBuffer)
    assert (consumer.is_finished, consumer.is_data_available, consumer.num_bytes_unread) == (True, False, 0)
    assert (consumer.take(), consumer.try_build()) == (None, None)
    consumer.close()
    assert home.segments == []
    buffer.recycle()
    assert len(home.segments) == 1


@pytest.mark.parametrize("num_closes", [1, 2])
def test_a_consumer_that_nobody_reads_gives_the_segment_back(num_closes: int) -> None:
    content = Content()
    consumer, home = consumer_of(content)

    for _ in range(num_closes):
        consumer.close()

    assert (len(home.segments), content.num_made) == (1, 0)


@pytest.mark.parametrize("is_tried", [False, True])
def test_a_consumer_builds_bytes_once(is_tried: bool) -> None:
    """A consumer of a content makes its bytes once, and stays open like any other."""
    consumer, home = consumer_of(Content(b"x" * 50))

    built = consumer.try_build() if is_tried else consumer.build()
    assert built is not None
    assert (bytes(built.view), built.content, consumer.is_finished, consumer.is_data_available) == (
        b"x" * 50,
        None,
        True,
        False,
    )
    assert consumer.try_build() is None
    assert bytes_of([consumer.build()]) == [b""]
    assert consumer.byte_buffers() == []
    built.recycle()

    assert home.segments == []
    consumer.close()
    assert len(home.segments) == 1


def test_a_copy_of_a_consumer_reads_bytes() -> None:
    """A copy gives bytes and leaves the content where it is."""
    content = Content(b"x" * 50)
    consumer, home = consumer_of(content)

    copy = consumer.copy()
    read = copy.take()
    assert read is not None
    assert bytes_of([read]) == [b"x" * 50]
    copy.close()
    assert bytes_of(consumer.byte_buffers()) == [b"x" * 50]

    buffer = consumer.take()
    assert buffer is not None
    assert buffer.content is content
    buffer.recycle()
    assert len(home.segments) == 1


def test_a_content_is_no_whole_segment_and_has_no_part() -> None:
    consumer, home = consumer_of(Content())

    assert consumer.take_segment() is None
    with pytest.raises(LocalProtocolError, match="3 bytes of a content cannot be skipped"):
        consumer.skip(3)

    assert consumer.is_data_available
    consumer.close()
    assert len(home.segments) == 1

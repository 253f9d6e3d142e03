"""``NetworkBuffer``: each holder counts exactly once."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.buffer.buffer_builder import ContentBuffer, ContentConsumer, pieces_of
from netstack.buffer.network_buffer import BufferContent, BufferLease, MemorySegment, NetworkBuffer
from netstack.errors import BufferOwnershipError, LocalProtocolError
from netstack.wire.messages import DataType
from tests.netstack.buffer.pools import Home
from tests.netstack.present import present
from tests.netstack.threads import run_together


def make_buffer(content: bytes = b"0123456789", size: int = 10, offset: int = 0) -> tuple[NetworkBuffer, Home]:
    recycler = Home()
    segment = MemorySegment(memoryview(bytearray(content)), 7)
    return NetworkBuffer(segment, recycler, size, DataType.DATA_BUFFER, offset=offset), recycler


def test_the_last_holder_returns_the_segment_once() -> None:
    """The first of two holders recycles without effect; then nobody can use, keep or release the buffer any more: one
    piece of memory would belong to two tasks.
    """
    buffer, recycler = make_buffer()
    assert buffer.lease.count == 1
    assert buffer.retain() is buffer
    assert buffer.lease.count == 2
    assert "\n" not in repr(buffer)

    buffer.recycle()
    assert recycler.segments == []
    buffer.recycle()
    assert [segment.index for segment in recycler.segments] == [7]

    with pytest.raises(BufferOwnershipError, match="released twice"):
        buffer.recycle()
    with pytest.raises(BufferOwnershipError, match="used after"):
        _ = buffer.view
    with pytest.raises(BufferOwnershipError, match="retained after"):
        buffer.retain()
    with pytest.raises(BufferOwnershipError, match="retained after"):
        buffer.slice(0, 1)
    assert recycler.count == 1


def test_the_view_is_the_buffers_part_of_the_segment() -> None:
    """Offset and size bound the view, and writes reach the segment."""
    buffer, _ = make_buffer(size=3, offset=4)

    before = bytes(buffer.view)
    buffer.view[0:1] = b"x"

    assert (before, bytes(buffer.view), len(buffer.view)) == (b"456", b"x56", 3)


def test_a_slice_keeps_the_memory_alive() -> None:
    """The slice has a reference of its own, relative to its buffer."""
    buffer, recycler = make_buffer(size=6, offset=2)
    part = buffer.slice(1, 3)

    buffer.recycle()

    assert (bytes(part.view), recycler.segments, part.is_buffer) == (b"345", [], True)
    part.recycle()
    assert len(recycler.segments) == 1


@pytest.mark.parametrize(("offset", "size"), [(-1, 2), (0, 7), (5, 2), (2, -1)])
def test_a_slice_outside_the_buffer_is_refused(offset: int, size: int) -> None:
    """A slice outside the buffer is refused, even within the segment, and takes no reference."""
    buffer, recycler = make_buffer(size=6, offset=2)

    with pytest.raises(ValueError, match="are not inside a buffer of 6"):
        buffer.slice(offset, size)

    buffer.recycle()
    assert len(recycler.segments) == 1


def test_an_unpooled_buffer_is_the_bytes_themselves() -> None:
    """An unpooled buffer, such as an event, is outside of every pool, and an event is no data."""
    buffer = NetworkBuffer.unpooled(b"\0\0\0\0", DataType.END_OF_PARTITION)

    found = (bytes(buffer.view), buffer.size, buffer.is_buffer, buffer.data_type, buffer.is_compressed)
    buffer.recycle()

    assert found == (b"\0\0\0\0", 4, False, DataType.END_OF_PARTITION, False)


def test_freed_memory_is_poisoned_in_debug_mode() -> None:
    """A view that outlives its buffer shows rubbish, not the next owner's data."""
    buffer, recycler = make_buffer()
    view = buffer.view

    buffer.recycle()

    assert bytes(view) == b"\xdd" * 10
    assert len(recycler.segments) == 1


@given(moves=st.lists(st.booleans(), max_size=40))
def test_the_segment_goes_home_exactly_when_the_count_reaches_zero(moves: list[bool]) -> None:
    """Once, after any retains and releases; a further release is an error."""
    recycler = Home()
    lease = BufferLease(MemorySegment(memoryview(bytearray(1))), recycler)
    count = 1

    for is_retain in moves:
        if count == 0:
            with pytest.raises(BufferOwnershipError):
                (lease.retain if is_retain else lease.release)()
            continue
        (lease.retain if is_retain else lease.release)()
        count += 1 if is_retain else -1

    assert (lease.count, len(recycler.segments)) == (count, 1 if count == 0 else 0)


@pytest.mark.slow
def test_racing_holders_send_the_segment_home_once(tiny_switch_interval: None) -> None:
    """Eight threads that retain and recycle neither lose nor double a reference."""
    buffer, recycler = make_buffer()
    holders = [buffer.retain() for _ in range(8)]

    def work(holder: NetworkBuffer) -> None:
        for _ in range(2000):
            holder.retain()
            holder.recycle()
        holder.recycle()

    run_together(*(partial(work, holder) for holder in holders))

    assert recycler.segments == []
    buffer.recycle()
    assert len(recycler.segments) == 1


# ---------------------------------------------------------------- buffers that hold an object instead of its bytes


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


def consumer_of(content: BufferContent) -> tuple[ContentConsumer, Home]:
    home = Home()
    return ContentConsumer(MemorySegment(memoryview(bytearray(16))), home, content), home


def taken(content: BufferContent) -> tuple[NetworkBuffer, Home]:
    consumer, home = consumer_of(content)
    buffer = present(consumer.take())
    return buffer, home


def bytes_of(buffers: list[NetworkBuffer]) -> list[bytes]:
    found = [bytes(buffer.view) for buffer in buffers]
    for buffer in buffers:
        buffer.recycle()
    return found


# ---------------------------------------------------------------- the buffer


def test_a_content_is_handed_over_without_bytes_which_are_made_once_when_asked_for() -> None:
    """The size of the data buffer is an estimate until there are bytes, of which there may be more than the segment
    holds.
    """
    content = Content(b"x" * 50)

    buffer, _ = taken(content)

    assert (buffer.content, buffer.size, content.num_made) == (content, 100, 0)
    assert (buffer.data_type, buffer.is_buffer, buffer.is_compressed) == (DataType.DATA_BUFFER, True, False)
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
    assert consumer.take() is None
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


def test_a_consumer_builds_bytes_once() -> None:
    """A consumer of a content makes its bytes once, and stays open like any other."""
    consumer, home = consumer_of(Content(b"x" * 50))

    built = consumer.build()
    assert (bytes(built.view), built.content, consumer.is_finished, consumer.is_data_available) == (
        b"x" * 50,
        None,
        True,
        False,
    )
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
    read = present(copy.take())
    assert bytes_of([read]) == [b"x" * 50]
    copy.close()
    assert bytes_of(consumer.byte_buffers()) == [b"x" * 50]

    buffer = present(consumer.take())
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

"""``NetworkBuffer``: each holder counts exactly once."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.buffer.network_buffer import BufferLease, BufferRecycler, MemorySegment, NetworkBuffer
from netstack.errors import BufferOwnershipError
from netstack.wire.messages import DataType


class CollectingRecycler(BufferRecycler):
    """Remembers what came home."""

    def __init__(self) -> None:
        self.segments: list[MemorySegment] = []

    def recycle(self, segment: MemorySegment) -> None:
        self.segments.append(segment)


def make_buffer(
    content: bytes = b"0123456789", size: int = 10, offset: int = 0
) -> tuple[NetworkBuffer, CollectingRecycler]:
    recycler = CollectingRecycler()
    segment = MemorySegment(memoryview(bytearray(content)), 7)
    return NetworkBuffer(segment, recycler, size, DataType.DATA_BUFFER, offset=offset), recycler


def test_the_last_recycle_returns_the_segment() -> None:
    """The first of two holders recycles without effect; the second one returns the segment."""
    buffer, recycler = make_buffer()
    assert buffer.retain() is buffer

    buffer.recycle()
    after_first = len(recycler.segments)
    buffer.recycle()

    assert (after_first, [segment.index for segment in recycler.segments]) == (0, [7])


def test_a_second_recycle_is_refused_and_changes_nothing() -> None:
    """A second release is refused: it would hand one piece of memory to two tasks."""
    buffer, recycler = make_buffer()
    buffer.recycle()

    with pytest.raises(BufferOwnershipError, match="released twice"):
        buffer.recycle()

    assert len(recycler.segments) == 1


def test_a_recycled_buffer_cannot_be_used() -> None:
    """Reading, retaining and slicing a recycled buffer are errors."""
    buffer, _ = make_buffer()
    buffer.recycle()

    with pytest.raises(BufferOwnershipError, match="used after"):
        _ = buffer.view
    with pytest.raises(BufferOwnershipError, match="retained after"):
        buffer.retain()
    with pytest.raises(BufferOwnershipError, match="retained after"):
        buffer.slice(0, 1)


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


def test_a_lease_counts_its_holders() -> None:
    """The count and the one-line repr of a lease help to find a leak."""
    buffer, _ = make_buffer()
    before = buffer.lease.count

    buffer.retain()

    assert (before, buffer.lease.count) == (1, 2)
    assert "\n" not in repr(buffer)


@given(moves=st.lists(st.booleans(), max_size=40))
def test_the_segment_goes_home_exactly_when_the_count_reaches_zero(moves: list[bool]) -> None:
    """After any sequence of retains and releases the segment returns at zero, once, and a further release is an
    error.
    """
    recycler = CollectingRecycler()
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

    threads = [threading.Thread(target=work, args=(holder,)) for holder in holders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert recycler.segments == []
    buffer.recycle()
    assert len(recycler.segments) == 1

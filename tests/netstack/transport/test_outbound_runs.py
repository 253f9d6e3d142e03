"""``OutboundRun``: the bytes of as many buffers, and segments that go home exactly once."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.buffer.network_buffer import FREEING_RECYCLER, BufferRecycler, MemorySegment, NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.config import NetstackConfig
from netstack.ids import InputChannelID
from netstack.testing import EmbeddedChannel
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext
from netstack.transport.message_codec import MessageDecoder, MessageEncoder, OutboundBuffer, OutboundRun
from netstack.wire.messages import BufferResponse, BufferRun, DataType
from tests.netstack.buffer.pools import num_in_use
from tests.netstack.wire.samples import RECEIVER, HeapAllocator, HeapBuffer

CONFIG = NetstackConfig(segment_size_bytes=1024, network_memory_bytes=64 * 1024, read_buffer_bytes=4096)
MAX = 2**31 - 1


class CountingRecycler(BufferRecycler):
    """Remembers what came back, in which calls."""

    def __init__(self) -> None:
        self.returned: list[list[MemorySegment]] = []

    def recycle(self, segment: MemorySegment) -> None:
        self.returned.append([segment])

    def recycle_run(self, segments: Sequence[MemorySegment]) -> None:
        self.returned.append(list(segments))


def segments_of(num_segments: int, size_bytes: int = 8) -> list[MemorySegment]:
    return [MemorySegment(memoryview(bytearray([number % 256]) * size_bytes)) for number in range(num_segments)]


def written(*messages: object) -> bytes:
    channel = EmbeddedChannel(MessageEncoder(), config=CONFIG)
    channel.write_and_flush(list(messages))
    found = bytearray()
    while data := channel.read_outbound():
        assert isinstance(data, bytes)
        found += data
    channel.close()
    return bytes(found)


def one_by_one(run: OutboundRun) -> list[OutboundBuffer]:
    """Return the single buffers that the run stands for, over copies of its segments: memory that was given back may be
    poisoned.
    """
    found = []
    number, backlog = run.sequence_number, run.backlog + len(run.segments)
    for segment in run.segments:
        backlog -= 1
        buffer = NetworkBuffer.unpooled(bytes(segment.view), DataType.DATA_BUFFER)
        found.append(OutboundBuffer(run.receiver, run.subpartition, number, backlog, buffer))
        number = number + 1 if number < MAX else -MAX - 1
    return found


@given(
    first=st.one_of(st.integers(0, 100), st.integers(MAX - 12, MAX), st.integers(-MAX - 1, -MAX + 3), st.just(-3)),
    num_segments=st.integers(1, 12),
    backlog=st.integers(0, 300),
    subpartition=st.sampled_from([0, 7, MAX]),
)
def test_a_run_has_the_bytes_of_its_buffers(first: int, num_segments: int, backlog: int, subpartition: int) -> None:
    """A run has the bytes of its buffers wherever its numbers begin, wrap or pass zero."""
    run = OutboundRun(RECEIVER, subpartition, first, backlog, segments_of(num_segments), FREEING_RECYCLER)

    expected = written(*one_by_one(run))

    assert written(run) == expected


def test_runs_and_buffers_keep_their_order_in_one_gather_write() -> None:
    """Runs and buffers of one gather write keep their order."""
    first = OutboundRun(RECEIVER, 0, MAX, 4, segments_of(2), FREEING_RECYCLER)
    second = OutboundRun(RECEIVER, 1, 0, 0, segments_of(3), FREEING_RECYCLER)
    middle = OutboundRun(RECEIVER, 2, 9, 0, segments_of(1, 5), FREEING_RECYCLER)
    expected = b"".join(written(*one_by_one(run)) for run in (first, middle, second))

    assert written(first, *one_by_one(middle), second) == expected


def test_a_run_is_recycled_together_with_its_last_byte() -> None:
    """A run is recycled once, with its last byte and not before."""
    recycler, segments = CountingRecycler(), segments_of(3)
    channel = EmbeddedChannel(MessageEncoder(), config=CONFIG)

    channel.write_and_flush([OutboundRun(RECEIVER, 0, 0, 0, segments, recycler)])
    num_bytes = channel.pending_bytes
    channel.flush_outbound(num_bytes - 1)
    assert recycler.returned == []
    channel.flush_outbound(1)
    channel.close()

    assert recycler.returned == [segments]


def test_runs_that_cannot_be_sent_any_more_are_recycled() -> None:
    """Runs that are pending when the channel closes, or written to a closed one, are recycled once, with the buffers
    beside them.
    """
    pending, late = CountingRecycler(), CountingRecycler()
    first, second = segments_of(2), segments_of(3)
    buffer = NetworkBuffer(segments_of(1)[0], late, 8, DataType.DATA_BUFFER)
    channel = EmbeddedChannel(MessageEncoder(), config=CONFIG)

    channel.write([OutboundRun(RECEIVER, 0, 0, 0, first, pending)])
    channel.lose_connection()
    channel.write_and_flush([OutboundBuffer(RECEIVER, 0, 0, 0, buffer), OutboundRun(RECEIVER, 0, 2, 0, second, late)])

    assert pending.returned == [first]
    assert sorted(map(len, late.returned)) == [1, 3]


@pytest.mark.parametrize("is_run_broken", [True, False])
def test_a_header_that_cannot_be_built_recycles_everything_in_the_list(is_run_broken: bool) -> None:
    """All buffers before and after the broken header are recycled, and the writer gets the error."""
    recycler = CountingRecycler()
    good, broken = segments_of(2), segments_of(3)
    run = OutboundRun(RECEIVER, 0, 0, 0, good, recycler)
    buffer = NetworkBuffer(broken[0], recycler, 8, DataType.DATA_BUFFER)
    culprit = (
        OutboundRun(RECEIVER, 2**40, 0, 0, broken, recycler)
        if is_run_broken
        else OutboundBuffer(RECEIVER, 2**40, 0, 0, buffer)
    )
    channel = EmbeddedChannel(MessageEncoder(), config=CONFIG)

    with pytest.raises(Exception, match="format requires"):
        channel.write([run, culprit, run._replace(segments=segments_of(1))])

    assert sorted(map(len, recycler.returned)) == sorted([2, 3 if is_run_broken else 1, 1])
    assert channel.pending_bytes == 0


def test_segments_of_a_pool_go_home_and_count_for_their_subpartition() -> None:
    """The pool is available again once a run of the subpartition that had its maximum was written."""
    network = NetworkBufferPool(6, 8)
    pool = network.create_buffer_pool(
        owner="p", num_required=6, max_buffers=6, num_subpartitions=2, max_buffers_per_channel=3
    )
    segments = [pool.request_segment_blocking(1) for _ in range(3)]
    assert not pool.is_available

    written(OutboundRun(RECEIVER, 1, 0, 0, segments, pool.recycler(1)))

    pool.check_invariants()
    assert (pool.is_available, num_in_use(pool)) == (True, 0)
    pool.destroy()
    network.destroy()


# ---------------------------------------------------------------- the other end


class Closing(ChannelHandler):
    """Closes the channel with the first message, and gives its buffers back."""

    def __init__(self) -> None:
        self.messages: list[object] = []

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        self.messages.append(message)
        ctx.close()
        assert isinstance(message, BufferRun | BufferResponse)
        for buffer in message.buffers if isinstance(message, BufferRun) else [message.buffer]:
            assert buffer is not None
            buffer.recycle()


class RunAllocator(HeapAllocator):
    def allocate_run(self, receiver: InputChannelID, size_bytes: int, max_buffers: int) -> list[HeapBuffer]:
        found = [HeapBuffer(bytearray(size_bytes)) for _ in range(max_buffers)]
        self.allocated += found
        return found


def test_runs_behind_the_message_that_closed_the_channel_are_recycled() -> None:
    """Every buffer that was given out comes back once."""
    allocator, handler = RunAllocator(), Closing()
    stream = written(
        OutboundRun(RECEIVER, 0, 0, 0, segments_of(3), FREEING_RECYCLER),
        OutboundRun(RECEIVER, 1, 0, 0, segments_of(4), FREEING_RECYCLER),
    )
    channel = EmbeddedChannel(MessageDecoder(CONFIG, allocator), handler, config=CONFIG)

    channel.write_inbound(stream)

    assert len(handler.messages) == 1
    assert [buffer.num_recycled for buffer in allocator.allocated] == [1] * 7

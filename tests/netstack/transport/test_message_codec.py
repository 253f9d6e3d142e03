"""``MessageEncoder`` and ``MessageDecoder``: ownership of buffers, order of messages and errors."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.buffer.network_buffer import FREEING_RECYCLER, BufferRecycler, MemorySegment, NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.config import NetstackConfig
from netstack.errors import LocalProtocolError, RemoteProtocolError
from netstack.ids import InputChannelID
from netstack.testing import EmbeddedChannel
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext
from netstack.transport.message_codec import MessageDecoder, MessageEncoder, OutboundBuffer, OutboundRun, encode_buffer
from netstack.wire.message_bytes import HANDSHAKE_MESSAGE_IDS, SERVER_MESSAGE_IDS, encode
from netstack.wire.messages import AddCredit, BufferResponse, BufferRun, CloseRequest, DataType, Message, Ready
from tests.netstack.buffer.pools import num_in_use
from tests.netstack.wire.samples import (
    ALL_MESSAGES,
    CONTROL_MESSAGES,
    RECEIVER,
    HeapAllocator,
    HeapBuffer,
    frame_of,
    response,
)

CONFIG = NetstackConfig(segment_size_bytes=1024, network_memory_bytes=64 * 1024, read_buffer_bytes=4096)


class FakeBuffer:
    """A payload that counts its recycling."""

    def __init__(self, data: bytes = b"payload", data_type: DataType = DataType.DATA_BUFFER) -> None:
        self.view = memoryview(data)
        self.size = len(data)
        self.data_type = data_type
        self.is_compressed = False
        self.num_recycled = 0

    def recycle(self) -> None:
        self.num_recycled += 1


class Collector(ChannelHandler):
    """Keeps messages and errors."""

    def __init__(self) -> None:
        self.messages: list[object] = []
        self.errors: list[Exception] = []

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        self.messages.append(message)

    def exception_caught(self, ctx: ChannelHandlerContext, error: Exception) -> None:
        self.errors.append(error)


def make_channel(*more: ChannelHandler) -> tuple[EmbeddedChannel, Collector]:
    collector = Collector()
    return EmbeddedChannel(
        MessageEncoder(), MessageDecoder(CONFIG, HeapAllocator()), *more, collector, config=CONFIG
    ), collector


@pytest.mark.parametrize("message", CONTROL_MESSAGES)
def test_messages_are_written_as_their_frames(message: Message) -> None:
    """Each message is written as one frame."""
    channel, _ = make_channel()

    channel.write_and_flush(message)

    assert channel.read_outbound() == encode(message)
    assert channel.read_outbound() is None


def test_a_buffer_is_written_behind_its_header_and_recycled_with_its_last_byte() -> None:
    """A buffer is recycled exactly once, with its last byte: not when it was written, nor with one byte left."""
    channel, _ = make_channel()
    buffer = FakeBuffer()

    channel.write_and_flush([OutboundBuffer(RECEIVER, 4, 5, 6, buffer)])

    assert channel.read_outbound() == frame_of(response(b"payload"))
    channel.flush_outbound(47 + 6)
    assert buffer.num_recycled == 0
    channel.flush_outbound(1)
    channel.close()
    assert buffer.num_recycled == 1


def test_type_and_compression_of_a_buffer_travel_in_its_header() -> None:
    """The receiver reads the type and the compression that the sent buffer has."""
    channel, collector = make_channel()
    buffer = FakeBuffer(b"\0\0\0\0", DataType.END_OF_PARTITION)
    buffer.is_compressed = True

    channel.write_and_flush([OutboundBuffer(RECEIVER, 4, 5, 6, buffer)])
    channel.write_inbound(channel.read_outbound())

    assert collector.messages == [response(b"\0\0\0\0", data_type=DataType.END_OF_PARTITION, is_compressed=True)]


def test_a_buffer_that_cannot_be_sent_any_more_is_recycled() -> None:
    """A buffer that is pending when the channel closes, or written to a closed channel, is recycled once."""
    channel, _ = make_channel()
    pending, late = FakeBuffer(), FakeBuffer()

    channel.write([OutboundBuffer(RECEIVER, 0, 0, 0, pending)])
    channel.lose_connection()
    channel.write_and_flush([OutboundBuffer(RECEIVER, 0, 1, 0, late)])

    assert (pending.num_recycled, late.num_recycled) == (1, 1)


def test_the_header_of_a_buffer_has_the_bytes_of_flink() -> None:
    """A header has 47 bytes before the payload, whose size counts in the frame's length, and no partial sizes."""
    buffer = FakeBuffer(b"x" * 32768)
    buffer.is_compressed = True

    frame = encode_buffer(RECEIVER, 4, 5, 6, buffer, None)

    golden = f"0000802F BADC0FFE 00 {RECEIVER.hex()} 00000004 00000000 00000005 00000006 01 01 00008000"
    assert frame == bytes.fromhex(golden) + buffer.view


def test_a_buffer_whose_header_cannot_be_built_is_recycled() -> None:
    """The writer gave it away; the error still reaches the writer."""
    channel, _ = make_channel()
    buffer = FakeBuffer()

    with pytest.raises(Exception, match="format requires"):
        channel.write([OutboundBuffer(RECEIVER, 0, 2**40, 0, buffer)])

    assert buffer.num_recycled == 1
    assert channel.pending_bytes == 0


@pytest.mark.parametrize("message", [b"bytes", 7, response(b"x")])
def test_what_is_no_outbound_message_is_refused(message: object) -> None:
    """A bug of ours, and never on the wire."""
    channel, _ = make_channel()

    with pytest.raises(LocalProtocolError, match=f"{type(message).__name__} is not a message that can be written"):
        channel.write(message)


def test_a_message_with_a_bad_field_is_refused() -> None:
    """The codec's error reaches the writer."""
    channel, _ = make_channel()

    with pytest.raises(LocalProtocolError, match="not 16"):
        channel.write(AddCredit(InputChannelID(b""), 1))


def test_bytes_become_messages_in_order() -> None:
    """Messages come in order, whether the reads have 4096 bytes or one."""
    stream = b"".join(map(frame_of, ALL_MESSAGES)) * 20
    channel, collector = make_channel()
    other, other_collector = make_channel()

    channel.write_inbound(stream)
    for at in range(len(stream)):
        other.write_inbound(stream[at : at + 1])

    assert collector.messages == ALL_MESSAGES * 20
    assert other_collector.messages == ALL_MESSAGES * 20


def test_a_buffer_of_one_segment_is_accepted_and_a_larger_frame_refused() -> None:
    """The limit follows the configured segment size, with room for partial sizes."""
    channel, collector = make_channel()

    channel.write_inbound(frame_of(response(b"x" * 1024)))
    channel.write_inbound(frame_of(response(b"x" * 1024, partial_sizes=(1000, 24))))
    channel.write_inbound(frame_of(response(b"x" * 1025)))

    assert collector.messages == [response(b"x" * 1024), response(b"x" * 1024, partial_sizes=(1000, 24))]
    assert str(collector.errors[0]) == "a BufferResponse has a payload of 1025 bytes, expected at most 1024"


def test_only_accepted_messages_are_understood_until_more_are() -> None:
    """Before authentication only the handshake is accepted; the handler after the decoder decides when that changes."""
    channel = EmbeddedChannel(
        MessageDecoder(CONFIG, accepted_ids=HANDSHAKE_MESSAGE_IDS), collector := Collector(), config=CONFIG
    )

    channel.write_inbound(encode(Ready(1)))
    decoder = channel.pipeline.find(MessageDecoder)
    assert decoder is not None
    decoder.frames.accept(SERVER_MESSAGE_IDS)
    channel.write_inbound(encode(AddCredit(RECEIVER, 1)))
    channel.write_inbound(encode(Ready(1)))

    assert collector.messages == [Ready(1), AddCredit(RECEIVER, 1)]
    assert "message id 66 in a frame of 11 bytes is not understood here" in str(collector.errors[0])


def test_a_decode_error_reaches_the_handlers_behind_the_decoder_after_the_good_messages() -> None:
    """Messages before the broken frame are delivered first, like messages whose bytes come one by one."""
    channel, collector = make_channel()

    channel.write_inbound(encode(AddCredit(RECEIVER, 1)) + bytes(9))

    assert collector.messages == [AddCredit(RECEIVER, 1)]
    assert [type(error) for error in collector.errors] == [RemoteProtocolError]


def test_a_decode_error_that_nobody_deals_with_closes_the_channel() -> None:
    """A broken stream cannot be read on."""
    channel = EmbeddedChannel(MessageDecoder(CONFIG), config=CONFIG)

    channel.write_inbound(bytes(9))

    assert not channel.is_open
    with pytest.raises(RemoteProtocolError, match="magic"):
        channel.check_exception()


def test_nothing_is_delivered_after_a_handler_closed_the_channel() -> None:
    """Neither later messages of that read nor errors of broken frames after them are delivered."""

    class CloseAtRequest(ChannelHandler):
        def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
            if isinstance(message, CloseRequest):
                ctx.close()
            else:
                ctx.fire_channel_read(message)

    channel, collector = make_channel(CloseAtRequest())

    channel.write_inbound(encode(AddCredit(RECEIVER, 1)) + encode(CloseRequest()) + encode(AddCredit(RECEIVER, 2)))
    again, again_collector = make_channel(CloseAtRequest())
    again.write_inbound(encode(CloseRequest()) + bytes(9))

    assert collector.messages == [AddCredit(RECEIVER, 1)]
    assert (again_collector.messages, again_collector.errors) == ([], [])


def test_one_failing_message_does_not_stop_the_next() -> None:
    """The error of one message is delivered, then the read goes on."""

    class FailAtOne(ChannelHandler):
        def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
            if message == AddCredit(RECEIVER, 1):
                raise ValueError("one")
            ctx.fire_channel_read(message)

    channel, collector = make_channel(FailAtOne())

    channel.write_inbound(encode(AddCredit(RECEIVER, 1)) + encode(AddCredit(RECEIVER, 2)))

    assert collector.messages == [AddCredit(RECEIVER, 2)]
    assert [str(error) for error in collector.errors] == ["one"]
    assert "FrameDecoder open" in repr(channel.pipeline.find(MessageDecoder))


# ---------------------------------------------------------------- ``OutboundRun``


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
    """Return the buffers that the run stands for, over copies: memory that was given back may be poisoned."""
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
    """Pending when the channel closes, or written to a closed one; once, with the buffers beside them."""
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

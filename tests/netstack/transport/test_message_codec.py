"""``MessageEncoder`` and ``MessageDecoder``: ownership of buffers, order of messages and errors."""

import pytest

from netstack.config import NetstackConfig
from netstack.errors import LocalProtocolError, RemoteProtocolError
from netstack.ids import InputChannelID
from netstack.testing import EmbeddedChannel
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext
from netstack.transport.message_codec import MessageDecoder, MessageEncoder, OutboundBuffer, encode_buffer
from netstack.wire.message_bytes import HANDSHAKE_MESSAGE_IDS, SERVER_MESSAGE_IDS, encode
from netstack.wire.messages import AddCredit, CloseRequest, DataType, Message, Ready
from tests.netstack.wire.samples import ALL_MESSAGES, CONTROL_MESSAGES, RECEIVER, HeapAllocator, frame_of, response

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

"""The handlers that encode messages as frames and decode bytes into messages.

Side:       loop.  Hot path.
Invariants: a buffer handed to ``MessageEncoder`` is recycled exactly once: when its last byte was written, or when the
            write failed.  If the channel has a seal, frames are sealed in the order in which they leave: the channel's
            turn is held from ``sign`` on.
Source:     Flink ``NettyMessage.NettyMessageEncoder``, ``NettyMessageClientDecoderDelegate``.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from netstack.availability import run_all
from netstack.buffer.network_buffer import BufferRecycler, MemorySegment, NetworkBuffer, recycle_all, recycle_segments
from netstack.config import NetstackConfig
from netstack.errors import LocalProtocolError
from netstack.ids import InputChannelID
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext
from netstack.transport.outbound_buffer import OutboundFrame, View
from netstack.wire.frame_decoder import FrameDecoder, FrameSeal
from netstack.wire.message_bytes import (
    BUFFER_RESPONSE_HEADER_BYTES,
    BUFFER_RESPONSE_NUMBERS,
    NUMBERS_END,
    NUMBERS_START,
    PLAIN_HEADER,
    PLAIN_HEADER_START,
    encode,
)
from netstack.wire.messages import BufferAllocator, BufferResponse, BufferRun, DataType, PayloadBuffer, wrapped_number

_HEADER_BYTES = BUFFER_RESPONSE_HEADER_BYTES
_START = PLAIN_HEADER_START
_pack_header = PLAIN_HEADER.pack
_pack_numbers = BUFFER_RESPONSE_NUMBERS.pack
_DATA = DataType.DATA_BUFFER
_new_tuple = tuple.__new__  # half the cost of a named tuple's own constructor (bench: transport)


class OutboundBuffer(NamedTuple):
    """One buffer to send to ``receiver``; the receiver gets it as a ``BufferResponse``.

    Ownership: writing it hands ``buffer`` over.
    """

    receiver: InputChannelID
    subpartition: int
    sequence_number: int
    backlog: int
    buffer: PayloadBuffer


class OutboundRun(NamedTuple):
    """Several full segments of data to send to ``receiver``; each is a buffer of its own on the wire.

    Ownership: writing it hands the segments over; they are recycled to ``recycler``.
    """

    receiver: InputChannelID
    subpartition: int
    sequence_number: int  # of the first segment; numbers wrap at 2^31
    backlog: int  # behind the last segment
    segments: list[MemorySegment]
    recycler: BufferRecycler


class MessageEncoder(ChannelHandler):
    """Encodes a message, an ``OutboundBuffer``, or a list of ``OutboundBuffer``s and ``OutboundRun``s (one gather
    write).
    """

    def write(self, ctx: ChannelHandlerContext, message: object) -> None:
        """Encode ``message`` and pass the frame on.

        Raises:
            LocalProtocolError: ``message`` is of another type, or one of its fields is out of range.
        """
        frame = _frame_of_all(message) if type(message) is list else OutboundFrame((encode(message),), None)
        channel = ctx.channel
        if channel.seal is None:
            ctx.write(frame)
            return
        # From the signature on: frames must leave in the order of their numbers.
        with channel.turn:
            ctx.write(OutboundFrame(_sealed(frame.views, channel.seal), frame.on_written))


def encode_buffer(
    receiver: InputChannelID,
    subpartition: int,
    sequence_number: int,
    backlog: int,
    buffer: PayloadBuffer,
    seal: FrameSeal | None,
) -> bytes:
    """Make the frame of one buffer, for a direct write; the caller keeps ``buffer``, and holds the turn of the channel
    that has ``seal``.
    """
    view = buffer.view
    size = len(view)
    kind = buffer.data_type
    is_packed = buffer.is_compressed
    header = _pack_header(
        _HEADER_BYTES + size, _START, receiver, subpartition, sequence_number, backlog, kind, is_packed, size
    )
    # A copy in one piece: the write is one call of the kernel, and the buffer may go home though a rest still waits.
    return b"".join((header, view) if seal is None else (header, view, seal.sign(header, view)))


def _sealed(views: Sequence[View], seal: FrameSeal) -> list[View]:
    """Return ``views``, which are pairs of head and payload or one frame without payload, with a seal behind each
    frame.

    A seal is joined to the next head: one more buffer per frame would make the gather write slower than the copy of 16
    bytes.
    """
    if len(views) == 1:
        return [b"".join((views[0], seal.sign(views[0])))]
    sealed: list[View] = []
    before = b""
    for index in range(0, len(views), 2):
        head, payload = views[index], views[index + 1]
        sealed += (before + head, payload)
        before = seal.sign(head, payload)
    sealed.append(before)
    return sealed


def _frame_of_all(messages: list[OutboundBuffer | OutboundRun]) -> OutboundFrame:
    """Make one frame of all messages; the buffers are recycled together when its last byte was written."""
    views: list[View] = []
    try:
        for message in messages:
            if type(message) is OutboundRun:
                _add_run(message, views)
                continue
            assert type(message) is OutboundBuffer, "nothing else is gathered"
            receiver, subpartition, number, backlog, buffer = message
            view, kind, is_packed = buffer.view, buffer.data_type, buffer.is_compressed
            size = len(view)
            # As in ``encode_buffer``, without the Python call.  bench: transport.
            header = _pack_header(
                _HEADER_BYTES + size, _START, receiver, subpartition, number, backlog, kind, is_packed, size
            )
            views += (header, view)
    # This frame was to be their owner: without it nobody recycles them.
    except BaseException:
        _recycle_all(messages)
        raise
    if len(messages) == 1 and type(messages[0]) is OutboundBuffer:
        # Fast path: a single record waits for no other buffer, and is recycled alone.
        return _new_tuple(OutboundFrame, (views, messages[0].buffer.recycle))
    return OutboundFrame(views, partial(_recycle_all, messages))


def _add_run(run: OutboundRun, views: list[View]) -> None:
    """Append headers and payloads to ``views``; the headers differ only in sequence number and backlog."""
    receiver, subpartition, sequence_number, backlog, segments, _ = run
    num_segments = len(segments)
    size = len(segments[0].view)
    header = _pack_header(_HEADER_BYTES + size, _START, receiver, subpartition, 0, 0, _DATA, 0, size)
    before, behind = header[:NUMBERS_START], header[NUMBERS_END:]
    numbers: Iterable[int] = range(sequence_number, sequence_number + num_segments)
    if sequence_number + num_segments > 2**31:
        numbers = map(wrapped_number, numbers)
    backlog += num_segments
    for number, segment in zip(numbers, segments, strict=True):
        backlog -= 1
        views += (before + _pack_numbers(number, backlog) + behind, segment.view)


def _recycle_all(messages: list[OutboundBuffer | OutboundRun]) -> None:
    pooled: list[NetworkBuffer] = []
    others: list[Callable[[], object]] = []
    for message in messages:
        if type(message) is OutboundRun:
            others.append(partial(recycle_segments, message.segments, message.recycler))
            continue
        assert type(message) is OutboundBuffer, "nothing else is gathered"
        buffer = message[4]
        # Together: one lock round and one wake-up for a pool, not one for each buffer.
        if type(buffer) is NetworkBuffer:
            pooled.append(buffer)
        else:
            others.append(buffer.recycle)
    if others:
        run_all([partial(recycle_all, pooled), *others] if pooled else others)
    else:
        recycle_all(pooled)


class MessageDecoder(ChannelHandler):
    """Owns the read buffer of its channel; decodes the bytes read into messages."""

    def __init__(
        self,
        config: NetstackConfig,
        allocator: BufferAllocator | None = None,
        *,
        accepted_ids: frozenset[int] | None = None,
    ) -> None:
        """Make a decoder for data of up to one segment and events of any size that may be queued.

        Payloads go into the buffers of ``allocator``.
        """
        self.frames = FrameDecoder(
            allocator,
            max_data_frame_bytes=BUFFER_RESPONSE_HEADER_BYTES + config.segment_size_bytes,
            max_event_bytes=config.max_queued_event_bytes,
            staging_bytes=config.read_buffer_bytes,
            accepted_ids=accepted_ids,
        )

    def __repr__(self) -> str:
        return f"<MessageDecoder of {self.frames!r}>"

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        """Decode the bytes in the read buffer (``message`` is their number) and fire each message.

        Raises:
            RemoteProtocolError: a frame is broken; the good ones before it were fired.  The error goes to
                ``exception_caught`` of the handlers behind this one.
        """
        assert type(message) is int, "the transport tells how many bytes it read"
        decoder, channel, num_bytes = self.frames, ctx.channel, message
        while True:
            # Asked first: the messages below may end the handshake, and bytes behind its last one are not decoded yet.
            is_known = decoder.is_known
            messages = decoder.buffer_updated(num_bytes)
            for each in messages:
                if channel.is_open:
                    ctx.fire_channel_read(each)
                elif type(each) is BufferResponse and each.buffer is not None:
                    each.buffer.recycle()  # a handler closed the channel: later buffers have no receiver
                elif type(each) is BufferRun:
                    run_all([buffer.recycle for buffer in each.buffers])
            if is_known or not messages or decoder.failure is not None:
                break
            num_bytes = 0  # once more: the last message may have ended the handshake
        # Behind the good messages: their receivers get them though the peer broke off.
        if decoder.failure is not None and channel.is_open:
            raise decoder.failure

    def handler_removed(self, ctx: ChannelHandlerContext) -> None:
        """Recycle the buffer of an incomplete payload."""
        # The input channel does not know this buffer yet: it gets it with its last byte.
        self.frames.close()


def behind_decoder(handlers: Sequence[ChannelHandler], handler: ChannelHandler) -> tuple[ChannelHandler, ...]:
    """Return ``handlers`` with ``handler`` right behind their ``MessageDecoder``.

    Raises:
        LocalProtocolError: there is no decoder.
    """
    for index, each in enumerate(handlers, start=1):
        if isinstance(each, MessageDecoder):
            return (*handlers[:index], handler, *handlers[index:])
    raise LocalProtocolError(f"no MessageDecoder among {[type(each).__name__ for each in handlers]}")

"""Bytes from the socket to messages.

Side:       pure.  Hot path.
Invariants: ``0 <= start <= end <= capacity``; after each ``buffer_updated`` less than one frame is left over; the staging buffer never
            grows beyond the largest frame allowed.  After the first error every further byte is refused.
Units:      bytes.
Source:     Flink ``NettyMessageClientDecoderDelegate`` and Netty's ``LengthFieldBasedFrameDecoder``.  Payloads are not copied here: they
            are handed out as views, and the receiving channel copies them once into its own buffer.
"""

from netstack.errors import ConfigError, RemoteProtocolError
from netstack.ids import InputChannelID
from netstack.wire.codec import (
    BUFFER_RESPONSE_HEADER,
    BUFFER_RESPONSE_HEADER_BYTES,
    BUFFER_RESPONSE_ID,
    FRAME_BYTES,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    MAGIC,
    decode_body,
)
from netstack.wire.messages import BufferResponse, DataType, Message

_DATA_TYPES = tuple(DataType)
_NUM_DATA_TYPES = len(_DATA_TYPES)
_BYTES_PER_PARTIAL_SIZE = 4


class FrameDecoder:
    """Collects bytes until frames are complete.

    Ownership: the payload of a ``BufferResponse`` is a view into the staging buffer, valid until the next ``get_buffer()``.
    """

    __slots__ = ("_capacity", "_end", "_failure", "_max_data_frame_bytes", "_max_frame_bytes", "_needed", "_staging", "_start")

    def __init__(self, *, max_data_frame_bytes: int, max_frame_bytes: int = 1 << 20, staging_bytes: int = 1 << 19) -> None:
        if max_data_frame_bytes < BUFFER_RESPONSE_HEADER_BYTES:
            raise ConfigError(f"max_data_frame_bytes is {max_data_frame_bytes}, the least is {BUFFER_RESPONSE_HEADER_BYTES}")
        if staging_bytes < FRAME_HEADER_BYTES:
            raise ConfigError(f"staging_bytes is {staging_bytes}, the least is {FRAME_HEADER_BYTES}")
        self._max_data_frame_bytes = max_data_frame_bytes
        self._max_frame_bytes = max_frame_bytes
        self._staging = memoryview(bytearray(staging_bytes))
        self._capacity = staging_bytes
        self._start = 0  # first byte of the first incomplete frame
        self._end = 0  # first free byte
        self._needed = FRAME_HEADER_BYTES  # how long the incomplete frame is, as far as known
        self._failure: RemoteProtocolError | None = None

    def __repr__(self) -> str:
        state = "open" if self._failure is None else f"failed: {self._failure}"
        return f"<FrameDecoder {state}, {self._end - self._start} of {self._needed} bytes>"

    @property
    def failure(self) -> RemoteProtocolError | None:
        """The error that made this decoder refuse everything, or None."""
        return self._failure

    @property
    def num_buffered_bytes(self) -> int:
        """How many bytes of the incomplete frame have arrived."""
        return self._end - self._start

    def get_buffer(self) -> memoryview:
        """Where the next bytes go: at least one byte, room for the rest of the incomplete frame.  Ends the life of all payloads."""
        start, end = self._start, self._end
        if start == end:
            self._start = self._end = end = 0
        if self._needed > self._capacity:
            self._grow()
        elif start and end:
            # Less than one frame; a read of 512 KiB moves at most one buffer of 32 KiB.
            self._staging[: end - start] = self._staging[start:end]
            self._start, self._end = 0, end - start
        return self._staging[self._end :]

    def buffer_updated(self, num_bytes: int) -> list[Message]:
        """All messages that are complete now that ``num_bytes`` bytes were put into the last ``get_buffer()``.

        If a broken frame follows good ones, the good ones are returned and the error stands in ``failure``.

        Raises:
            RemoteProtocolError: the first frame that became readable is broken, or the decoder had failed before.
        """
        if self._failure is not None:
            raise self._failure
        assert 0 <= num_bytes <= self._capacity - self._end, "no more than the buffer takes"
        self._end += num_bytes
        messages: list[Message] = []
        try:
            self._decode(messages)
        except RemoteProtocolError as error:
            self._failure = error
            self._start = self._end = 0
            self._needed = FRAME_HEADER_BYTES
            if not messages:
                raise
        return messages

    def feed(self, data: bytes) -> list[Message]:
        """Decode ``data`` as if it came from a socket; for tests.  Payloads are copies, and so stay valid.

        Raises:
            RemoteProtocolError: as in ``buffer_updated``.
        """
        messages: list[Message] = []
        rest = memoryview(data)
        while rest:
            buffer = self.get_buffer()
            num_bytes = min(len(buffer), len(rest))
            buffer[:num_bytes] = rest[:num_bytes]
            rest = rest[num_bytes:]
            messages += map(_with_own_payload, self.buffer_updated(num_bytes))
            if self._failure is not None:
                break
        return messages

    def check_invariants(self) -> None:
        """Assert the invariants of this module."""
        assert 0 <= self._start <= self._end <= self._capacity == len(self._staging), repr(self)
        assert self._end - self._start < self._needed, f"a whole frame is left over in {self!r}"

    def _grow(self) -> None:
        num_bytes = self._end - self._start
        grown = memoryview(bytearray(self._needed))
        grown[:num_bytes] = self._staging[self._start : self._end]
        # The old buffer is not resized: payloads and the transport may still look at it.
        self._staging, self._capacity = grown, self._needed
        self._start, self._end = 0, num_bytes

    def _decode(self, messages: list[Message]) -> None:
        """Append every complete message.  ``_start`` moves even if a later frame raises."""
        staging, start, end = self._staging, self._start, self._end
        unpack_header, unpack_data = FRAME_HEADER.unpack_from, BUFFER_RESPONSE_HEADER.unpack_from
        append, max_data_frame_bytes = messages.append, self._max_data_frame_bytes
        while end - start >= FRAME_HEADER_BYTES:
            length, magic, message_id = unpack_header(staging, start)
            if message_id or magic != MAGIC or not BUFFER_RESPONSE_HEADER_BYTES <= length <= max_data_frame_bytes:
                self._check_frame(length, magic, message_id)
            if end - start < length:
                self._start, self._needed = start, length
                return
            if message_id == BUFFER_RESPONSE_ID:
                fields = unpack_data(staging, start)
                _, _, _, receiver, subpartition, num_partial, sequence_number, backlog, data_type, is_compressed, size_bytes = fields
                body = start + BUFFER_RESPONSE_HEADER_BYTES
                if num_partial or size_bytes != length - BUFFER_RESPONSE_HEADER_BYTES:
                    partial_sizes = _partial_sizes(staging[body : start + length], num_partial, size_bytes)
                    body += _BYTES_PER_PARTIAL_SIZE * num_partial
                else:
                    partial_sizes = ()
                if not 0 < data_type < _NUM_DATA_TYPES or is_compressed > 1 or backlog < 0:
                    raise _bad_field(data_type, is_compressed, backlog)
                append(
                    BufferResponse(
                        InputChannelID(receiver),
                        subpartition,
                        sequence_number,
                        backlog,
                        _DATA_TYPES[data_type],
                        is_compressed == 1,
                        partial_sizes,
                        staging[body : start + length],
                    )
                )
            else:
                append(decode_body(message_id, staging[start + FRAME_HEADER_BYTES : start + length]))
            start += length
        self._start, self._needed = start, FRAME_HEADER_BYTES

    def _check_frame(self, length: int, magic: int, message_id: int) -> None:
        if magic != MAGIC:
            raise RemoteProtocolError(f"network stream corrupted: received the magic number {magic:08X}, expected {MAGIC:08X}")
        limits = FRAME_BYTES.get(message_id)
        if limits is None:
            raise RemoteProtocolError(f"unknown message id {message_id} in a frame of {length} bytes")
        least, greatest = limits
        if greatest is None:
            greatest = self._max_data_frame_bytes if message_id == BUFFER_RESPONSE_ID else self._max_frame_bytes
        if not least <= length <= greatest:
            raise RemoteProtocolError(f"a frame with message id {message_id} has {length} bytes, expected {least} to {greatest}")


def _partial_sizes(body: memoryview, num_partial: int, size_bytes: int) -> tuple[int, ...]:
    expected = _BYTES_PER_PARTIAL_SIZE * num_partial + size_bytes
    if num_partial < 0 or size_bytes < 0 or expected != len(body):
        raise RemoteProtocolError(
            f"a BufferResponse announces {size_bytes} bytes and {num_partial} partial sizes, {len(body)} bytes follow its header"
        )
    sizes = tuple(int.from_bytes(body[at : at + 4], "big", signed=True) for at in range(0, _BYTES_PER_PARTIAL_SIZE * num_partial, 4))
    if min(sizes, default=0) < 0 or sum(sizes) != size_bytes:
        raise RemoteProtocolError(f"the {num_partial} partial sizes of a BufferResponse do not add up to its {size_bytes} bytes")
    return sizes


def _bad_field(data_type: int, is_compressed: int, backlog: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"a BufferResponse with data type {data_type}, compression flag {is_compressed}, backlog {backlog}")


def _with_own_payload(message: Message) -> Message:
    if isinstance(message, BufferResponse):
        return message._replace(payload=memoryview(bytes(message.payload)))
    return message

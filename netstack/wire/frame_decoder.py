"""Decodes the bytes of a socket into messages, and seals frames (``FrameSeal``): 16 bytes behind each frame, which show
that the peer sent it, unchanged and in this place.

Side:       pure.  Hot path.
Invariants: ``0 <= start <= end <= capacity``.  After each ``buffer_updated`` the staging buffer holds less than one
            frame without payload.  It never grows beyond the largest frame allowed, and has at most 512 bytes until the
            peer is known (``accept``).  After the first error the decoder refuses every byte.  The buffer of a payload
            is allocated when the header of its frame is complete, and written once: bytes that were read together with
            other frames are copied there, a large rest is read there by the socket itself.  On a sealed connection no
            message is returned before the seal of its frame was checked.  Consecutive complete frames of plain data
            with payloads of one size become one ``BufferRun``, if the allocator gives several buffers at once.
            A seal covers every byte of its frame, and the frame's number on the connection, which is not sent: a frame
            that is changed, repeated, dropped, moved or injected does not fit, nor does any frame behind it.  No number
            is used twice with one key; every connection and direction has a key of its own (``Handshake.seal_keys``).
Units:      bytes.
Source:     Flink ``NettyMessageClientDecoderDelegate``, ``BufferResponseDecoder`` and Netty's
            ``LengthFieldBasedFrameDecoder``.  A seal is the tag of AES-GCM (NIST SP 800-38D).  The header is the
            plaintext and the payload the additional data, so that one call covers both where they lie; the ciphertext
            is thrown away, because frames are not encrypted.
Why:        a seal takes 6.6 us per frame of 32 KiB and 1.3 us per frame of 64 bytes; HMAC-SHA256 takes 27 us for
            32 KiB, keyed BLAKE2b 53 us, and CRC-32, which stops no attacker, 10.8 us.  bench: transport.
"""

import hmac
from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar
from struct import Struct
from typing import Final, NoReturn, TypeAlias

from netstack.errors import RemoteProtocolError
from netstack.ids import INPUT_CHANNEL_ID_BYTES
from netstack.late import dataclass
from netstack.wire.message_bytes import (
    ALL_MESSAGE_IDS,
    BUFFER_RESPONSE_HEADER,
    BUFFER_RESPONSE_HEADER_BYTES,
    BUFFER_RESPONSE_ID,
    FRAME_BYTES,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    MAGIC,
    MAX_FRAME_BYTES,
    MAX_PARTIAL_SIZES,
    NUMBERS_END,
    NUMBERS_START,
    decode_body,
)
from netstack.wire.messages import BufferAllocator, BufferResponse, BufferRun, DataType, Message, PayloadBuffer

SEAL_BYTES: Final = 16
_NUMBER_BYTES: Final = 12


class FrameSeal:
    """Seals or checks the frames of one direction of one connection.

    Threading: none; the sender holds the channel's ``turn`` from ``sign`` until the frame is on its way.

    Args:
        key: 32 bytes, of this connection and direction alone.
        peer: the other end, for errors.
    """

    __slots__ = ("_encrypt", "_number", "_peer")

    def __init__(self, key: bytes, peer: str) -> None:
        # Here, as a program without connections needs none.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._encrypt = AESGCM(key).encrypt
        self._number = 0
        self._peer = peer

    def __repr__(self) -> str:
        return f"<FrameSeal for {self._peer}, {self._number} frames>"

    def sign(self, head: bytes | memoryview, payload: bytes | memoryview = b"") -> bytes:
        """Make the seal of the next frame.

        Args:
            head: the whole frame, without the payload if it is a ``BufferResponse``.
            payload: of a ``BufferResponse``.
        """
        number = self._number
        # Before the call: no number may be used twice with one key, even after an error (NIST SP 800-38D, section 8).
        self._number = number + 1
        return self._encrypt(number.to_bytes(_NUMBER_BYTES, "big"), head, payload)[-SEAL_BYTES:]

    def check(self, head: bytes | memoryview, payload: bytes | memoryview, seal: bytes | memoryview) -> None:
        """Check the seal of the next frame.

        Raises:
            RemoteProtocolError: it does not fit.
        """
        # In constant time: how long ``==`` takes tells how many bytes were right.
        if not hmac.compare_digest(self.sign(head, payload), seal):
            raise RemoteProtocolError(
                f"frame {self._number} from {self._peer} does not bear the peer's seal: it was corrupted, repeated, "
                "dropped, reordered or injected on the way"
            )


Decoded: TypeAlias = Message | BufferRun

_DATA_TYPES = tuple(DataType)
_NUM_DATA_TYPES = len(_DATA_TYPES)
_BYTES_PER_PARTIAL_SIZE = 4
_STRANGERS_STAGING_BYTES: Final = 512  # more than any message of the handshake has
_ID_OFFSET = FRAME_HEADER_BYTES - 1
_NO_SIZES: Final[tuple[int, ...]] = ()
_NO_PAYLOAD = memoryview(b"")
_NO_LENGTH = (1, 0)  # least and greatest length of a message that is not accepted
_LENGTH: Final = Struct(">I")
_unpack_frame_header = FRAME_HEADER.unpack_from
_unpack_data_header = BUFFER_RESPONSE_HEADER.unpack_from
# A header in three parts: bytes that are equal in a run, sequence number and backlog, bytes that are equal in a run.
_RUN_HEADER: Final = Struct(f">{NUMBERS_START}sii{BUFFER_RESPONSE_HEADER_BYTES - NUMBERS_END}s")
_unpack_receiver = Struct(
    f"> 9x {INPUT_CHANNEL_ID_BYTES}s i {NUMBERS_START - FRAME_HEADER_BYTES - INPUT_CHANNEL_ID_BYTES - 4}x"
).unpack
_PLAIN: Final = DataType.DATA_BUFFER
_RECEIVER_OFFSET: Final = FRAME_HEADER_BYTES  # behind length, magic number and id
_unpack_run_header = _RUN_HEADER.unpack_from
_new_tuple = tuple.__new__
_HTTP_STARTS = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ", b"HTTP")


@dataclass(eq=False, repr=False)
class FrameDecoder:
    """Collects bytes until frames are complete.

    Attributes:
        failure: the error after which this decoder refuses everything, or None; read only.

    Ownership: the decoder owns an allocated buffer until it returns its message; ``close`` recycles it.

    Args:
        allocator: gives the buffers of payloads; None: payloads are skipped.
        max_data_frame_bytes: limit of a ``BufferResponse`` without its partial sizes (four bytes each).
        max_event_bytes: limit of an event's payload, if it is more than that of a data frame's.
        max_frame_bytes: limit of any other frame.
        staging_bytes: initial size of the staging buffer, which is made at the first read.
        direct_read_bytes: the socket reads a rest of a payload of at least this size into its buffer.
        accepted_ids: the messages accepted until ``accept`` is called; None: all.
    """

    _allocator: BufferAllocator | None = None
    _: KW_ONLY
    max_data_frame_bytes: int
    max_event_bytes: int = 0
    max_frame_bytes: int = MAX_FRAME_BYTES
    staging_bytes: int = 1 << 19
    direct_read_bytes: int = 1 << 17
    accepted_ids: InitVar[frozenset[int] | None] = None

    def __post_init__(self, accepted_ids: frozenset[int] | None) -> None:
        assert self.max_data_frame_bytes >= BUFFER_RESPONSE_HEADER_BYTES, "NetstackConfig has a least segment"
        assert self.staging_bytes >= FRAME_HEADER_BYTES, "NetstackConfig has a least read buffer"
        self._allocate_run = None if self._allocator is None else self._allocator.allocate_run
        self.max_event_bytes = max(self.max_event_bytes, self.max_data_frame_bytes - BUFFER_RESPONSE_HEADER_BYTES)
        self.direct_read_bytes = max(1, self.direct_read_bytes)
        self._staging = _NO_PAYLOAD
        self._start = 0  # first byte of the first incomplete frame
        self._end = 0  # first free byte
        self._needed = FRAME_HEADER_BYTES  # bytes of the incomplete frame without which it cannot be decoded further
        self.failure: RemoteProtocolError | None = None
        # The message whose payload or seal is incomplete, its missing payload bytes, and where they go (empty if the
        # payload is skipped).
        self._pending: BufferResponse | None = None
        self._num_missing = 0
        self._rest = _NO_PAYLOAD
        # Of a sealed connection: the bytes that the seal of the pending message covers.
        self._head = b""
        self._payload = _NO_PAYLOAD
        self.accept(ALL_MESSAGE_IDS if accepted_ids is None else accepted_ids)
        self._is_direct = False  # the last ``get_buffer`` was ``_rest``

    def __repr__(self) -> str:
        state = "open" if self.failure is None else f"failed: {self.failure}"
        return (
            f"<FrameDecoder {state}, {self.num_buffered_bytes} bytes in hand, {self._num_missing} of a payload missing>"
        )

    @property
    def num_buffered_bytes(self) -> int:
        """Bytes of an incomplete frame in the staging buffer."""
        return self._end - self._start

    @property
    def is_mid_frame(self) -> bool:
        """Whether a frame is incomplete."""
        return self._pending is not None or self._end > self._start

    def accept(self, message_ids: frozenset[int], seal: FrameSeal | None = None, *, is_known: bool = True) -> None:
        """Accept the messages with these ids, and no others, from the next ``buffer_updated`` on.

        Args:
            message_ids: in a range that ``FRAME_BYTES`` knows.
            seal: checks the seals behind all later frames; None: there are none.
            is_known: False: the peer is a stranger, so there is little memory for it, and ``buffer_updated`` returns at
                most one message: the answer to it decides how the bytes behind it are read.
        """
        self._limits = {message_id: self._limits_of(message_id) for message_id in message_ids}
        self._seal = seal
        self._seal_bytes = 0 if seal is None else SEAL_BYTES
        self.is_known = is_known
        self._needed = FRAME_HEADER_BYTES

    def get_buffer(self) -> memoryview:
        """Return the memory that the next bytes are read into, at least one byte."""
        self._is_direct = len(self._rest) >= self.direct_read_bytes
        if self._is_direct:
            return self._rest
        start, end = self._start, self._end
        # Without a rest the next read has the whole buffer.
        if start == end:
            self._start = self._end = end = 0
        wanted = self.staging_bytes if self.is_known else _STRANGERS_STAGING_BYTES
        if max(self._needed, wanted) > len(self._staging):
            self._grow(max(self._needed, wanted))
        elif start and end:
            # Cheap: less than a frame without payload, so a few dozen bytes or a control message.
            self._staging[: end - start] = self._staging[start:end]
            self._start, self._end = 0, end - start
        return self._staging[self._end :]

    def buffer_updated(self, num_bytes: int) -> list[Decoded]:
        """Decode ``num_bytes`` bytes that were read into the last ``get_buffer()``; returns the messages completed by
        them.

        If a broken frame follows good ones, returns the good ones and keeps the error in ``failure``.

        Raises:
            RemoteProtocolError: the first new frame is broken, or the decoder had failed before.
        """
        if self.failure is not None:
            raise self.failure
        messages: list[Decoded] = []
        if self._is_direct:
            self._take(num_bytes, messages)
            return messages
        assert 0 <= num_bytes <= len(self._staging) - self._end, "no more than the buffer takes"
        self._end += num_bytes
        try:
            if self._pending is not None:
                self._take_from_staging(messages)
            if self._pending is None:
                self._decode(messages)
        except RemoteProtocolError as error:
            self.failure = error
            self._start = self._end = 0
            self._needed = FRAME_HEADER_BYTES
            if not messages:
                raise
        return messages

    def close(self) -> None:
        """Recycle the buffer of an incomplete payload, and drop the staging buffer; a second call does nothing."""
        # Now: the garbage collector comes late to a channel and its handlers.
        self._staging = _NO_PAYLOAD
        if self.failure is not None:
            self.failure.__traceback__ = None  # its frames hold the staging buffer, too
        self._start = self._end = 0
        pending, self._pending = self._pending, None
        self._rest = self._payload = _NO_PAYLOAD
        self._num_missing = 0
        if pending is not None and pending.buffer is not None:
            pending.buffer.recycle()

    def check_invariants(self) -> None:
        """Assert the invariants of this module."""
        assert 0 <= self._start <= self._end <= len(self._staging), repr(self)
        if self.is_known:
            assert self._end - self._start < self._needed, f"a whole frame is left over in {self!r}"
        assert self._num_missing >= 0, repr(self)
        assert (self._num_missing > 0) <= (self._pending is not None), repr(self)
        assert self._num_missing or self._seal is not None or self._pending is None, (
            f"{self!r} waits for a seal that will not come"
        )
        assert len(self._rest) in (0, self._num_missing), repr(self)

    # ---------------------------------------------------------------- payloads

    def _take(self, num_bytes: int, messages: list[Decoded]) -> None:
        """Count ``num_bytes`` more of the pending payload that are in its buffer (or skipped)."""
        self._num_missing -= num_bytes
        self._rest = self._rest[num_bytes:]
        if self._num_missing:
            return
        if self._seal is not None:
            start, behind = self._start, self._start + SEAL_BYTES
            if behind > self._end:
                self._needed = SEAL_BYTES
                return
            self._seal.check(self._head, self._payload, self._staging[start:behind])
            self._start = behind
            self._payload = _NO_PAYLOAD
        pending, self._pending = self._pending, None
        assert pending is not None, "only a payload under way misses bytes or its seal"
        messages.append(pending)

    def _take_from_staging(self, messages: list[Decoded]) -> None:
        start = self._start
        num_bytes = min(self._end - start, self._num_missing)
        if self._rest:
            self._rest[:num_bytes] = self._staging[start : start + num_bytes]
        self._start = start + num_bytes
        self._take(num_bytes, messages)

    # ---------------------------------------------------------------- frames

    def _grow(self, capacity: int) -> None:
        num_bytes = self._end - self._start
        grown = memoryview(bytearray(capacity))
        grown[:num_bytes] = self._staging[self._start : self._end]
        # A new buffer instead of a resized one: the transport may still hold a view of the old one.
        self._staging = grown
        self._start, self._end = 0, num_bytes

    def _decode(self, messages: list[Decoded]) -> None:
        """Append every complete message to ``messages``, and start the payload of an incomplete one."""
        staging, start, end = self._staging, self._start, self._end
        max_plain_data_frame_bytes = self.max_data_frame_bytes
        _, max_data_frame_bytes = self._limits.get(BUFFER_RESPONSE_ID, _NO_LENGTH)
        allocator, allocate_run, is_known, seal = self._allocator, self._allocate_run, self.is_known, self._seal
        while end - start >= FRAME_HEADER_BYTES and (is_known or not messages):
            if staging[start + _ID_OFFSET] != BUFFER_RESPONSE_ID or end - start < BUFFER_RESPONSE_HEADER_BYTES:
                length = self._decode_other(start, end, messages)
                if not length:
                    return
                start += length
                continue
            header = _unpack_data_header(staging, start)
            (
                length,
                magic,
                _,
                receiver,
                subpartition,
                num_partial,
                sequence_number,
                backlog,
                data_type,
                is_compressed,
                size_bytes,
            ) = header
            if magic != MAGIC or not BUFFER_RESPONSE_HEADER_BYTES <= length <= max_data_frame_bytes:
                self._refuse(length, magic, BUFFER_RESPONSE_ID)
            body, partial_sizes = start + BUFFER_RESPONSE_HEADER_BYTES, _NO_SIZES
            if (
                num_partial
                or size_bytes != length - BUFFER_RESPONSE_HEADER_BYTES
                or length > max_plain_data_frame_bytes
            ):
                self._check_sizes(num_partial, size_bytes, length - BUFFER_RESPONSE_HEADER_BYTES, data_type)
                body += _BYTES_PER_PARTIAL_SIZE * num_partial
                if end < body:
                    self._start, self._needed = start, body - start
                    return
                partial_sizes = _partial_sizes(staging[start + BUFFER_RESPONSE_HEADER_BYTES : body], size_bytes)
            stride, behind = length + self._seal_bytes, start + length
            following = start + stride + _RECEIVER_OFFSET
            if (
                end - start >= 2 * stride
                and staging[following : following + INPUT_CHANNEL_ID_BYTES] == receiver
                and data_type == _PLAIN
                and not (is_compressed or num_partial)
                and allocate_run is not None
            ):
                num_alike, run_bytes = self._decode_run(start, length, messages)
                if run_bytes:
                    start += run_bytes
                    continue
                if num_alike:
                    # No buffers now; without this, each frame would search all frames behind it again.
                    allocate_run = None
            is_whole = start + stride <= end
            if seal is not None and is_whole:
                seal.check(staging[start:body], staging[body:behind], staging[behind : behind + SEAL_BYTES])
            # Behind the seal: a frame that was changed on the way is reported as such, not as a mistake of the peer.
            if not 0 < data_type < _NUM_DATA_TYPES or is_compressed > 1 or backlog < 0 or subpartition < 0:
                raise RemoteProtocolError(
                    f"a BufferResponse with data type {data_type}, compression flag {is_compressed}, backlog {backlog},"
                    f" subpartition {subpartition}"
                )
            kind, is_packed = _DATA_TYPES[data_type], is_compressed == 1
            buffer = (
                None if allocator is None else allocator.allocate(receiver, size_bytes, kind, is_compressed=is_packed)
            )
            # As ``BufferResponse(...)``, without the Python call of its ``__new__``.  bench: transport.
            fields = (receiver, subpartition, sequence_number, backlog, kind, is_packed, partial_sizes, buffer)
            message: BufferResponse = _new_tuple(BufferResponse, fields)
            if not is_whole:
                self._start_payload(message, start, body, behind)
                return
            if buffer is not None:
                buffer.view[:] = staging[body:behind]
            messages.append(message)
            start += stride
        self._start, self._needed = start, FRAME_HEADER_BYTES
        if end - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(staging, start)
            if length < FRAME_HEADER_BYTES:  # waiting for the rest of the header would hold the connection for ever
                raise RemoteProtocolError(f"a frame of {length} bytes, the least is {FRAME_HEADER_BYTES}")

    def _decode_run(self, start: int, length: int, messages: list[Decoded]) -> tuple[int, int]:
        """Append one ``BufferRun`` for the complete frames from ``start`` on that are alike.

        Returns how many frames are alike (0 if there are not two with payloads), and the bytes of the frames that got a
        buffer.
        """
        staging, stride = self._staging, length + self._seal_bytes
        common, first_number, backlog, common_end = _unpack_run_header(staging, start)
        receiver, subpartition = _unpack_receiver(common)
        # Empty buffers are no run: each gives its credit back at once.
        if subpartition < 0 or length == BUFFER_RESPONSE_HEADER_BYTES:
            return 0, 0
        number, at, last = first_number, start, self._end - stride
        backlogs: list[int] = []
        while at <= last:
            before, sequence_number, backlog, behind = _unpack_run_header(staging, at)
            if before != common or behind != common_end or sequence_number != number or backlog < 0:
                break
            backlogs.append(backlog)
            at += stride
            number += 1
        if len(backlogs) < 2 or self._allocate_run is None:
            return 0, 0
        buffers = self._allocate_run(receiver, length - BUFFER_RESPONSE_HEADER_BYTES, len(backlogs))
        if not buffers:
            return len(backlogs), 0
        if self._seal is not None:
            self._check_run(self._seal, start, length, buffers)
        at = start
        for buffer in buffers:
            buffer.view[:] = staging[at + BUFFER_RESPONSE_HEADER_BYTES : at + length]
            at += stride
        # The backlog of the last frame that got a buffer: the frames behind it come one by one, with theirs.
        messages.append(BufferRun(receiver, subpartition, first_number, backlogs[len(buffers) - 1], buffers))
        return len(backlogs), at - start

    def _check_run(self, seal: FrameSeal, start: int, length: int, buffers: Sequence[PayloadBuffer]) -> None:
        """Check the seals of as many frames from ``start`` on as there are ``buffers``, which are recycled if one does
        not fit.
        """
        staging, at = self._staging, start
        try:
            for _ in buffers:
                body, behind = at + BUFFER_RESPONSE_HEADER_BYTES, at + length
                at = behind + SEAL_BYTES
                seal.check(staging[behind - length : body], staging[body:behind], staging[behind:at])
        except RemoteProtocolError:
            for buffer in buffers:
                buffer.recycle()
            raise

    def _decode_other(self, start: int, end: int, messages: list[Decoded]) -> int:
        """Decode a frame that is not data, or whose header is incomplete; returns its length if it was consumed, else
        0.
        """
        length: int
        length, magic, message_id = _unpack_frame_header(self._staging, start)
        least, greatest = self._limits.get(message_id, _NO_LENGTH)
        if magic != MAGIC or not least <= length <= greatest:
            self._refuse(length, magic, message_id)
        needed = BUFFER_RESPONSE_HEADER_BYTES if message_id == BUFFER_RESPONSE_ID else length + self._seal_bytes
        if end - start < needed:
            self._start, self._needed = start, needed
            return 0
        staging, behind = self._staging, start + length
        if self._seal is not None:
            self._seal.check(staging[start:behind], b"", staging[behind : behind + SEAL_BYTES])
        messages.append(decode_body(message_id, staging[start + FRAME_HEADER_BYTES : behind]))
        return length + self._seal_bytes

    def _start_payload(self, message: BufferResponse, start: int, body: int, behind: int) -> None:
        """Begin the payload of ``message``, whose frame is from ``start`` to ``behind``; the end of the payload, or
        only of its seal, has not arrived.
        """
        end = min(self._end, behind)
        self._pending, self._num_missing = message, behind - end
        view = _NO_PAYLOAD if message.buffer is None else message.buffer.view
        if self._seal is not None:
            self._head = bytes(self._staging[start:body])
            if message.buffer is None:
                # The seal covers a payload that is skipped, too.
                view = memoryview(bytearray(behind - body))
            self._payload = view
        num_here = end - body
        if view:
            view[:num_here] = self._staging[body:end]
        self._rest = view[num_here:]
        self._start = end
        self._needed = FRAME_HEADER_BYTES if self._num_missing else SEAL_BYTES

    def _refuse(self, length: int, magic: int, message_id: int) -> NoReturn:
        if magic != MAGIC:
            raise RemoteProtocolError(
                f"network stream corrupted: received the magic number {magic:08X}, expected "
                f"{MAGIC:08X}{_foreign_protocol(length)}"
            )
        if message_id not in FRAME_BYTES:
            raise RemoteProtocolError(f"unknown message id {message_id} in a frame of {length} bytes")
        if message_id not in self._limits:
            raise RemoteProtocolError(
                f"message id {message_id} in a frame of {length} bytes is not understood here, or not yet"
            )
        least, greatest = self._limits[message_id]
        raise RemoteProtocolError(
            f"a frame with message id {message_id} has {length} bytes, expected {least} to {greatest}"
        )

    def _limits_of(self, message_id: int) -> tuple[int, int]:
        least, greatest = FRAME_BYTES[message_id]
        if message_id == BUFFER_RESPONSE_ID:
            greatest_data = self.max_data_frame_bytes + _BYTES_PER_PARTIAL_SIZE * MAX_PARTIAL_SIZES
            return least, max(greatest_data, BUFFER_RESPONSE_HEADER_BYTES + self.max_event_bytes)
        return least, self.max_frame_bytes if greatest is None else min(greatest, self.max_frame_bytes)

    def _check_sizes(self, num_partial: int, size_bytes: int, num_body_bytes: int, data_type: int) -> None:
        if num_partial < 0 or size_bytes < 0 or _BYTES_PER_PARTIAL_SIZE * num_partial + size_bytes != num_body_bytes:
            raise RemoteProtocolError(
                f"a BufferResponse announces {size_bytes} bytes and {num_partial} partial sizes, {num_body_bytes} "
                "bytes follow its header"
            )
        is_event = 0 < data_type < _NUM_DATA_TYPES and not _DATA_TYPES[data_type].is_buffer
        greatest = self.max_event_bytes if is_event else self.max_data_frame_bytes - BUFFER_RESPONSE_HEADER_BYTES
        if size_bytes > greatest:
            raise RemoteProtocolError(
                f"a BufferResponse has a payload of {size_bytes} bytes, expected at most {greatest}"
            )


def _foreign_protocol(first_word: int) -> str:
    """Return the protocol that the first four bytes of a stream belong to, as the end of an error text;
    "" if unknown.
    """
    first = first_word.to_bytes(4, "big")
    if first[0] in (0x15, 0x16) and first[1] == 3:
        return "; the peer seems to speak TLS, which is not expected here"
    if first in _HTTP_STARTS:
        return "; the peer seems to speak HTTP"
    if first == b"SSH-":
        return "; the peer seems to speak SSH"
    return ""


def _partial_sizes(view: memoryview, size_bytes: int) -> tuple[int, ...]:
    if not view:
        return _NO_SIZES
    sizes: tuple[int, ...] = Struct(f">{len(view) // _BYTES_PER_PARTIAL_SIZE}i").unpack(view)
    if min(sizes, default=0) < 0 or sum(sizes) != size_bytes:
        raise RemoteProtocolError(
            f"the {len(sizes)} partial sizes of a BufferResponse do not add up to its {size_bytes} bytes"
        )
    return sizes

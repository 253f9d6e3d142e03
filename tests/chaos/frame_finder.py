"""Finds where frames begin in one direction of a connection: of a data port or of a WebSocket.

Side:   pure.
Units:  bytes.
Absent: checks.  A stream that is not understood counts each piece as a frame.
"""

from dataclasses import dataclass
from typing import Final

from netstack.wire.frame_decoder import SEAL_BYTES
from netstack.wire.message_bytes import FRAME_HEADER, FRAME_HEADER_BYTES, MAGIC

_UNSEALED_IDS: Final = frozenset({64, 65, 66, 67})  # of the handshake
_WORK_IDS: Final = frozenset({0, 6})  # BufferResponse, AddCredit
_DATA_OPCODES: Final = (1, 2)  # text, binary; not pings
_UPGRADE: Final = b"upgrade: websocket"
_HEAD_END: Final = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of one frame.

    ``start``: how many bytes of the frame came before.  ``is_work``: the frame carries records, credit or messages;
        others, such as the
    handshake and heartbeats, are on connections, too, that nobody uses any more.
    """

    data: bytes
    start: int
    is_work: bool = True


@dataclass
class FrameFinder:
    """Divides a stream; keeps the head of a frame until its length is known."""

    _kept: bytes = b""
    _left: int = 0  # of the present frame
    _start: int = 0
    _is_lost: bool = False
    is_work: bool = True  # the present frame

    def divide(self, data: bytes) -> list[Part]:
        """Return the parts of frames in the next bytes; together they are ``data``, less the bytes that are kept, plus
        the bytes that were kept before.
        """
        parts: list[Part] = []
        data, self._kept = self._kept + data, b""
        while data:
            if self._is_lost:
                parts.append(Part(data, 0))
                break
            if not self._left:
                length = self.length_of(data)
                if length is None:
                    self._kept = data
                    break
                self._is_lost = length <= 0
                if self._is_lost:
                    continue
                self._left, self._start = length, 0
            piece = data[: self._left]
            parts.append(Part(piece, self._start, self.is_work))
            self._left -= len(piece)
            self._start += len(piece)
            data = data[len(piece) :]
        return parts

    def length_of(self, head: bytes) -> int | None:
        """The length of the frame that begins here; None: more bytes are needed; 0: it is no frame."""
        raise NotImplementedError


class DataFrames(FrameFinder):
    """Frames of netstack with their seals."""

    def length_of(self, head: bytes) -> int | None:
        if len(head) < FRAME_HEADER_BYTES:
            return None
        length, magic, message_id = FRAME_HEADER.unpack_from(head)
        if magic != MAGIC:
            return 0
        self.is_work = message_id in _WORK_IDS
        return int(length) if message_id in _UNSEALED_IDS else int(length) + SEAL_BYTES


class WebSocketFrames(FrameFinder):
    """The head of an HTTP message, then frames of a WebSocket.

    Another message of HTTP, such as a file of a job, has no frames.
    """

    _has_head: bool = False

    def length_of(self, head: bytes) -> int | None:
        if not self._has_head:
            end = head.find(_HEAD_END)
            if end < 0:
                return None
            if _UPGRADE not in head[:end].lower():
                return 0
            self._has_head = True
            self.is_work = False
            return end + len(_HEAD_END)
        if len(head) < 2:
            return None
        self.is_work = head[0] & 0x0F in _DATA_OPCODES
        mask, length = 4 if head[1] & 0x80 else 0, head[1] & 0x7F
        more = {126: 2, 127: 8}.get(length, 0)
        if len(head) < 2 + more:
            return None
        return 2 + more + mask + (int.from_bytes(head[2 : 2 + more], "big") if more else length)

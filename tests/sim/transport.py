"""Two ends of one TCP connection without a kernel: bytes in flight that the simulator moves, cuts and loses.

Invariants: bytes arrive in order and at most once; what a transport still holds is copied only when the pretended
            kernel takes it, so that memory which is recycled too early arrives spoilt.
Source:     the contract of ``asyncio.Transport`` as uvloop keeps it with ``high=0``: ``pause_writing`` while anything
            is held, ``resume_writing`` once nothing is.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from netstack.transport.network_channel import NetworkChannel

_NOWHERE = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)  # some descriptor, of every pretended socket


class Pipe:
    """One direction: bytes that the sender's kernel took and the receiver has not read."""

    __slots__ = ("capacity", "data", "end", "is_unread")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.data = bytearray()
        self.end: str | None = None  # "eof" or "reset", once the data was read
        self.is_unread = False  # the receiver is gone: everything is dropped

    @property
    def num_free(self) -> int:
        return self.capacity - len(self.data)


class _Socket:
    """Takes every option."""

    def setsockopt(self, *_options: object) -> None:
        pass

    def fileno(self) -> int:
        return _NOWHERE

    def getpeername(self) -> tuple[str, int]:
        return "127.0.0.1", 1

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 2


class DirectSocket:
    """The way past the loop; ``on_frame`` hears of each frame first."""

    def __init__(self, transport: "SimTransport", on_frame: Callable[[bytes], None]) -> None:
        self._transport = transport
        self._on_frame = on_frame

    def send(self, data: bytes, _flags: int, /) -> int:
        self._on_frame(data)
        return self._transport.send(data)

    def close(self) -> None:
        pass


class SimTransport(asyncio.Transport):
    def __init__(
        self, name: str, peer: tuple[str, int], out: Pipe, inbound: Pipe, call_soon: Callable[..., object]
    ) -> None:
        super().__init__()
        self.name = name
        self.out = out
        self.inbound = inbound
        self.protocol: NetworkChannel | None = None
        self.is_lost = False
        self.num_sent_directly = 0
        self._reads = True
        self._peer = peer
        self._call_soon = call_soon
        self._held: deque[memoryview] = deque()
        self._num_held = 0
        self._is_paused = False
        self._is_closing = False
        self._wants_eof = False

    def __repr__(self) -> str:
        return (
            f"<SimTransport {self.name}: {self._num_held} held, {len(self.out.data)} out, {len(self.inbound.data)} in>"
        )

    # ---------------------------------------------------------------- what the channel calls

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self._peer, "socket": _Socket()}.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self._num_held

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return self._reads

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        assert not self._wants_eof, "nothing is written behind the end"
        if self._is_closing:
            return
        for data in list_of_data:
            if len(data):
                self._held.append(memoryview(data))
                self._num_held += len(data)
        self.take(self.out.num_free)
        if self._num_held and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def write_eof(self) -> None:
        self._wants_eof = True
        self._end_if_empty()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._end_if_empty()

    def abort(self) -> None:
        self._is_closing = True
        self._drop_held()
        self._lose_soon(None)

    # ---------------------------------------------------------------- what threads call

    def send(self, data: bytes) -> int:
        """Send past the loop, to the loop's wire; a part is taken if there is not room for all."""
        assert not self._num_held, "a frame goes past the loop while an earlier one is held"
        if self._is_closing or self.is_lost:
            raise BrokenPipeError(f"{self.name} is closed")
        num_bytes = len(data) if self.out.is_unread else min(len(data), self.out.num_free)
        if not num_bytes:
            raise BlockingIOError(f"{self.name} is full")
        if not self.out.is_unread:
            self.out.data += data[:num_bytes]
        self.num_sent_directly += 1
        return num_bytes

    # ---------------------------------------------------------------- what the simulator calls

    @property
    def _protocol(self) -> NetworkChannel:
        assert self.protocol is not None, "a transport is connected before it is used"
        return self.protocol

    @property
    def can_take(self) -> bool:
        """Whether the pretended kernel has room for something that is held."""
        return bool(self._num_held) and (self.out.num_free > 0 or self.out.is_unread)

    @property
    def can_deliver(self) -> bool:
        """Whether the channel has something to read, be it the end."""
        return not self.is_lost and self._reads and bool(self.inbound.data or self.inbound.end is not None)

    def take(self, max_bytes: int) -> int:
        """Move up to ``max_bytes`` held bytes to the wire; to nowhere if nobody reads there any more."""
        out = self.out
        num_left = self._num_held if out.is_unread else max(0, min(max_bytes, self._num_held, out.num_free))
        num_taken = num_left
        while num_left:
            view = self._held.popleft()
            if len(view) > num_left:
                self._held.appendleft(view[num_left:])
                view = view[:num_left]
            num_left -= len(view)
            if not out.is_unread:
                out.data += view
        self._num_held -= num_taken
        return num_taken

    def pump(self, max_bytes: int) -> int:
        """Call ``take``, and tell the channel when no more bytes are held."""
        num_taken = self.take(max_bytes)
        if not self._num_held:
            if self._is_paused:
                self._is_paused = False
                self._protocol.resume_writing()
            self._end_if_empty()
        return num_taken

    def deliver(self, rng: Random, max_bytes: int) -> int:
        """Let the channel read a piece of at most ``max_bytes``, or the end."""
        inbound, protocol = self.inbound, self._protocol
        if not inbound.data:
            end, inbound.end = inbound.end, None
            if end == "reset":
                self._lose_soon(ConnectionResetError("connection reset by peer") if rng.random() < 0.5 else None)
            elif not protocol.eof_received():
                self.close()
            return 0
        buffer = protocol.get_buffer(-1)
        num_bytes = min(max_bytes, len(inbound.data), len(buffer))
        buffer[:num_bytes] = inbound.data[:num_bytes]
        del inbound.data[:num_bytes]
        protocol.buffer_updated(num_bytes)
        return num_bytes

    def break_off(self, rng: Random) -> None:
        """Lose this direction: a part of the bytes under way still arrives, then the peer reads a reset."""
        self._drop_held()
        del self.out.data[rng.randint(0, len(self.out.data)) :]
        self.out.end = "reset"
        self._is_closing = True

    # ---------------------------------------------------------------- helpers

    def _drop_held(self) -> None:
        self._held.clear()
        self._num_held = 0

    def _end_if_empty(self) -> None:
        if self._num_held or self.is_lost:
            return
        if self._is_closing:
            self._lose_soon(None)
        elif self._wants_eof and self.out.end is None:
            self.out.end = "eof"

    def _lose_soon(self, error: Exception | None) -> None:
        if not self.is_lost:
            self.is_lost = self._is_closing = True
            self._call_soon(self._lose, error)

    def _lose(self, error: Exception | None) -> None:
        self._drop_held()
        self.inbound.is_unread = True
        self.inbound.data.clear()
        if self.out.end is None:
            self.out.end = "eof"
        self._protocol.connection_lost(error)

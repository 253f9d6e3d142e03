"""Entrances before the ports of other processes, whose bytes go the way that a ``LinkPlan`` says.

Side:       shared.  One thread with its loop passes the bytes on; the methods are for the test's thread.
Invariants: without a fault every byte passes, in order; a connection that ends on one side ends on the other.
"""

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

import uvloop

from tests.chaos.frame_finder import FrameFinder
from tests.chaos.link_plan import Direction, End, LinkFault, LinkPlan, Send, Wait

_READ_BYTES: Final = 64 * 1024
_CONNECT_S: Final = 10.0
_CLOSE_S: Final = 5.0
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, for 0 s


class _CutError(Exception):
    """The plan ends this connection."""


class Entrance:
    """One port that leads to another one.  Life cycle: made and closed by ``FaultProxy``.

    Args:
        make_finder: finds the frames of one direction of one connection.
    """

    def __init__(self, name: str, make_finder: Callable[[], FrameFinder], loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self.target_port = 0  # 0: nobody is there; written by the test's thread, read for each new connection
        self.num_bytes = 0  # written by the proxy's thread
        self._make_finder = make_finder
        self._loop = loop
        self._plan = LinkPlan()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    def __repr__(self) -> str:
        return f"<Entrance {self.name} {self.port} -> {self.target_port}, {self.num_bytes} bytes, {self._plan!r}>"

    @property
    def fired(self) -> list[tuple[LinkFault, float]]:
        """The faults that have happened, and when."""
        return self._plan.fired

    def arm(self, fault: LinkFault) -> None:
        """Let a fault happen; returns at once."""
        self._loop.call_soon_threadsafe(self._plan.arm, fault)

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = self._loop.create_task(self._serve(reader, writer), name=f"connection of {self.name}")
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, near_reader: asyncio.StreamReader, near_writer: asyncio.StreamWriter) -> None:
        writers = [near_writer]
        is_reset = False
        try:
            async with asyncio.timeout(_CONNECT_S):
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
            writers.append(far_writer)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump("to server", near_reader, far_writer))
                pumps.create_task(self._pump("to client", far_reader, near_writer))
        except* (_CutError, OSError) as errors:
            is_reset = any(each.args == (True,) for each in errors.exceptions if isinstance(each, _CutError))
        finally:
            for writer in writers:
                _end(writer, is_reset=is_reset)

    async def _pump(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        finder = self._make_finder()
        while data := await reader.read(_READ_BYTES):
            self.num_bytes += len(data)
            for part in finder.divide(data):
                for order in self._plan.orders(direction, part, time.monotonic()):
                    match order:
                        case Send(piece):
                            # Its peer reset the connection; uvloop raises RuntimeError on a write.
                            if writer.is_closing():
                                raise _CutError(False)
                            writer.write(piece)
                        case Wait(seconds):
                            await writer.drain()
                            await asyncio.sleep(seconds)
                        case End(is_reset):
                            await writer.drain()
                            raise _CutError(is_reset)
            await writer.drain()
        raise _CutError(False)


def _end(writer: asyncio.StreamWriter, *, is_reset: bool) -> None:
    if not is_reset:
        writer.close()  # after the written bytes
        return
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


class FaultProxy:
    """All entrances of a cluster.  Life cycle: a context manager."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)
        self._entrances: list[Entrance] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)
        self._loop.close()

    def open_entrance(self, name: str, make_finder: Callable[[], FrameFinder]) -> Entrance:
        """Open a new entrance; its ``target_port`` is to be set."""
        entrance = Entrance(name, make_finder, self._loop)
        asyncio.run_coroutine_threadsafe(entrance.open(), self._loop).result(_CLOSE_S)
        self._entrances.append(entrance)
        return entrance

    async def _close(self) -> None:
        for entrance in self._entrances:
            await entrance.close()
        await asyncio.sleep(0)  # the transports' own callbacks

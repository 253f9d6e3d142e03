"""An attacker who holds a port that clients dial: it passes bytes on to the real server and back, and adds or changes
some.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from netstack.ids import ConnectionID

Change = Callable[[bytes], bytes]


class Relay:
    """Passes on one connection; the test chooses what happens to the bytes of either direction."""

    def __init__(self) -> None:
        self.target: ConnectionID | None = None
        self.to_server: Change = bytes
        self.to_client: Change = bytes
        self.num_bytes_to_client = 0
        self._writers: list[asyncio.StreamWriter] = []

    def inject_to_server(self, data: bytes) -> None:
        """Write to the server, as the client."""
        self._writers[0].write(data)

    def inject_to_client(self, data: bytes) -> None:
        """Write to the client, as the server."""
        self._writers[1].write(data)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass everything on until one end closes."""
        assert self.target is not None, "the test sets it"
        onward_reader, onward = await asyncio.open_connection(self.target.host, self.target.port)
        self._writers = [onward, writer]
        await asyncio.gather(
            self._pump(reader, onward, is_to_server=True), self._pump(onward_reader, writer, is_to_server=False)
        )

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_to_server: bool) -> None:
        with suppress(ConnectionError):
            while received := await reader.read(1 << 16):
                changed = (self.to_server if is_to_server else self.to_client)(received)
                self.num_bytes_to_client += 0 if is_to_server else len(changed)
                writer.write(changed)
                await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def relaying() -> AsyncIterator[tuple[Relay, ConnectionID]]:
    """Run a relay; the block gets it and the address that it listens at."""
    relay, ended = Relay(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await relay.serve(reader, writer)
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield relay, ConnectionID(*server.sockets[0].getsockname())
        await ended.wait()
    finally:
        server.close()
        await server.wait_closed()

"""A server that serves whom it knows, and strangers that try everything else, over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace

from netstack.config import NetstackConfig, SecurityConfig
from netstack.ids import ConnectionID
from netstack.transport.network_channel import NetworkChannel, describe_address
from netstack.transport.server import NetworkServer, connect
from netstack.wire.message_bytes import encode
from netstack.wire.messages import AddCredit, BufferRun, Message
from tests.netstack.transport.sockets import CONFIG, Inbox, handlers
from tests.netstack.wire.samples import RECEIVER, FedDecoder
from tests.waiting import PATIENCE_S

SECRET = bytes(range(32))
SECURITY = replace(SecurityConfig.hmac(SECRET), failure_delay_s=0.02, handshake_timeout_s=PATIENCE_S)
HMAC_CONFIG = replace(CONFIG, security=SECURITY)


class Victim:
    """A server, and one connection to it that is in order and must stay so."""

    def __init__(
        self, config: NetstackConfig, inbox: Inbox, server: NetworkServer, address: ConnectionID, friend: NetworkChannel
    ) -> None:
        self.config = config
        self.inbox = inbox
        self.server = server
        self.address = address
        self.friend = friend

    @contextmanager
    def impatient(self, timeout_s: float) -> Iterator[None]:
        """Give clients that connect in this block ``timeout_s`` for the handshake."""
        security = self.server._security
        self.server._security = replace(security, handshake_timeout_s=timeout_s)
        yield
        self.server._security = security

    async def check_unharmed(self) -> None:
        """Check that the friend and a new friend are served, and that no stranger reached a handler."""
        self.friend.write_and_flush(AddCredit(RECEIVER, 7))
        assert await self.inbox.messages.get() == AddCredit(RECEIVER, 7)
        another = await connect(self.config, self.address, handlers(Inbox()), timeout_s=PATIENCE_S)
        another.write_and_flush(AddCredit(RECEIVER, 8))
        assert await self.inbox.messages.get() == AddCredit(RECEIVER, 8)
        another.close()
        await another.wait_closed()
        assert self.inbox.messages.empty()
        assert self.inbox.errors == []
        assert self.inbox.log.count("active") == 2


@asynccontextmanager
async def victim(security: SecurityConfig = SECURITY) -> AsyncIterator[Victim]:
    """Start a server with a friend; both are closed at the end."""
    config, inbox = replace(CONFIG, security=security), Inbox()
    server = NetworkServer(config, handlers(inbox))
    address = ConnectionID(*await server.start("127.0.0.1", 0))
    friend = await connect(config, address, handlers(Inbox()), timeout_s=PATIENCE_S)
    try:
        yield Victim(config, inbox, server, address, friend)
    finally:
        friend.close()
        await friend.wait_closed()
        await server.close()


class Stranger:
    """A raw connection that can speak the handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = FedDecoder(max_data_frame_bytes=4096)

    @property
    def authority(self) -> str:
        """The address that it dialled."""
        return describe_address(self.writer.get_extra_info("peername"))

    def send(self, *messages: Message | bytes) -> None:
        self.writer.write(b"".join(each if isinstance(each, bytes) else encode(each) for each in messages))

    async def receive(self) -> list[Message]:
        """Return the messages that arrive next; none at the end of the connection."""
        try:
            decoded = self._decoder.feed(await self.reader.read(4096))
        except ConnectionResetError:
            return []
        return [each for each in decoded if not isinstance(each, BufferRun)]  # without an allocator there are none

    async def rest(self) -> bytes:
        """Wait for the end; what came before it."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""

    async def is_cut(self) -> bool:
        """Wait for the end; whether not a single byte came before it."""
        return not await self.rest()

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@asynccontextmanager
async def stranger(address: ConnectionID) -> AsyncIterator[Stranger]:
    """Connect a stranger, which is closed at the end."""
    one = Stranger(*await asyncio.open_connection(address.host, address.port))
    try:
        yield one
    finally:
        await one.close()


@asynccontextmanager
async def impostor(answer: bytes | None) -> AsyncIterator[ConnectionID]:
    """Run a server that gives each client one ``answer`` (empty: it hangs up; None: the client's own bytes)."""
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            heard = await reader.read(4096)
            writer.write(heard if answer is None else answer)
            if answer != b"":
                await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield ConnectionID(*server.sockets[0].getsockname())
        await ended.wait()
    finally:
        server.close()
        await server.wait_closed()

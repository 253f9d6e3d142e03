"""Peers that remember their requests, and consumers over one connection manager."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.config import NetstackConfig, SecurityConfig
from netstack.connection_manager import ConnectionManager
from netstack.errors import NetstackError
from netstack.gate.channels.input_channel import PartitionStateChecker
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.single_input_gate import SingleInputGate
from netstack.ids import ConnectionID
from netstack.loop.eventloop import EventLoopThread
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext
from netstack.transport.message_codec import MessageDecoder, MessageEncoder
from netstack.transport.server import NetworkServer
from netstack.wire.messages import PartitionRequest
from tests.netstack.handlers.server_side import partition_id_of, receiver_of
from tests.waiting import PATIENCE_S

SEGMENT = 1024
CONFIG = NetstackConfig(
    segment_size_bytes=SEGMENT,
    network_memory_bytes=64 * SEGMENT,
    read_buffer_bytes=64 * SEGMENT,
    close_timeout_s=0.2,
    security=SecurityConfig.none(),
)


class Peer(ChannelHandler):
    """A server that remembers all requests and answers none; one for all its connections."""

    def __init__(self) -> None:
        self.received: list[object] = []
        self.contexts: list[ChannelHandlerContext] = []

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        self.contexts.append(ctx)
        ctx.fire_channel_active()

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        self.received.append(message)


async def serve(peer: Peer) -> tuple[NetworkServer, ConnectionID]:
    server = NetworkServer(CONFIG, lambda: (MessageEncoder(), MessageDecoder(CONFIG), peer))
    return server, ConnectionID(*await server.start("127.0.0.1", 0))


async def until(condition: Callable[[], bool]) -> None:
    """Turn by turn; no time is assumed, the deadline is for a broken build."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - other threads and sockets make it true, there is no event to wait for
            await asyncio.sleep(0)


class Consumer:
    """Gates with one channel each, over one manager on the running loop."""

    def __init__(self, config: NetstackConfig = CONFIG) -> None:
        self.loop = EventLoopThread.adopt(asyncio.get_running_loop(), "test")
        self.pool = NetworkBufferPool(config.num_segments, SEGMENT)
        self.manager = ConnectionManager(config, self.loop)
        self.gates: list[SingleInputGate] = []

    def gate(
        self,
        address: ConnectionID,
        number: int = 1,
        subpartition: int = 0,
        *,
        is_requested: bool = True,
        state_checker: PartitionStateChecker | None = None,
    ) -> SingleInputGate:
        gate = SingleInputGate(f"consumer {number}", state_checker=state_checker)
        client = self.manager.client(address)
        channel = RemoteInputChannel(gate, 0, partition_id_of(number), subpartition, receiver_of(number), client)
        channel.assign_exclusive_segments(self.pool, 2)
        gate.add_channel(channel)
        if is_requested:
            gate.request_partitions()
        self.gates.append(gate)
        return gate

    async def error_of(self, gate: SingleInputGate) -> NetstackError:
        found: list[NetstackError] = []

        def has_failed() -> bool:
            try:
                gate.poll_next()
            except NetstackError as error:
                found.append(error)
            return bool(found)

        await until(has_failed)
        return found[0]

    async def close(self) -> None:
        await self.manager.close()
        for gate in self.gates:
            gate.close()
        self.loop.close()
        assert self.pool.num_available == self.pool.num_total, "every segment is back"
        self.pool.destroy()


@contextlib.contextmanager
def no_listener() -> Iterator[ConnectionID]:
    """Return an address at which no server listens or will listen."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield ConnectionID("127.0.0.1", sock.getsockname()[1])


def requests(peer: Peer) -> list[bytes]:
    return [each.receiver for each in peer.received if isinstance(each, PartitionRequest)]

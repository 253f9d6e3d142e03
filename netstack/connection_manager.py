"""One TCP connection per peer, shared by all input channels that read from it.

Side:       shared.  Clients are used by task threads; connections live on the loop thread.
Invariants: at most one connection per ``ConnectionID``; concurrent requests wait for the same attempt; a failed attempt is not cached,
            the next request tries again; an idle connection is kept for reuse until the manager closes, a lost one is forgotten
            when the next connection is made.  However an attempt ends, everybody who waited for it hears of it.
Source:     Flink ``NettyConnectionManager``, ``PartitionRequestClientFactory``, ``NettyPartitionRequestClient``.
"""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

from netstack.buffer.wakeups import run_all
from netstack.channel.client import connect
from netstack.channel.message_codec import MessageDecoder, MessageEncoder
from netstack.channel.protocol import NetworkChannel
from netstack.config import NetstackConfig
from netstack.errors import ConnectError, NetstackError, ResourceClosedError
from netstack.eventloop import EventLoopThread
from netstack.gate.remote_channel import RemoteInputChannel
from netstack.handlers.request_client import CreditBasedPartitionRequestClientHandler
from netstack.ids import ConnectionID

Order = Callable[[CreditBasedPartitionRequestClientHandler], None]


class _Connection:
    """The connection to one peer, connected on demand.  Loop thread only."""

    def __init__(self, config: NetstackConfig, connection_id: ConnectionID) -> None:
        self._config = config
        self._id = connection_id
        self._channel: NetworkChannel | None = None
        self._handler = CreditBasedPartitionRequestClientHandler()
        self._attempt: asyncio.Task[tuple[NetworkChannel, CreditBasedPartitionRequestClientHandler]] | None = None
        self._waiting: list[RemoteInputChannel] = []

    def __repr__(self) -> str:
        state = "open" if self._is_open else "connecting" if self._attempt is not None else "idle"
        return f"<connection to {self._id} {state}>"

    @property
    def _is_open(self) -> bool:
        return self._channel is not None and self._channel.is_active

    @property
    def is_idle(self) -> bool:
        """Whether there is neither a connection, nor an attempt to make one, nor what is left of a lost one."""
        return self._attempt is None and (self._channel is None or self._handler.has_ended)

    def request(self, channel: RemoteInputChannel) -> None:
        """Send the channel's partition request, over a new connection if there is none."""
        if self._is_open:
            self._handler.request_subpartition(channel)
            return
        self._waiting.append(channel)
        if self._attempt is None:
            self._attempt = asyncio.get_running_loop().create_task(self._connect(), name=f"connect to {self._id}")
            # A callback and not the end of the task itself: a task that is cancelled before its first step runs nothing of its own.
            self._attempt.add_done_callback(self._on_attempt_done)

    def order(self, order: Order) -> None:
        """Give an order about a channel that was requested; without a connection there is nothing to tell."""
        if self._is_open:
            order(self._handler)

    async def _connect(self) -> tuple[NetworkChannel, CreditBasedPartitionRequestClientHandler]:
        if self._channel is not None:
            await self._channel.wait_closed()  # a closing one lingers, at most close_timeout_s
        handler = CreditBasedPartitionRequestClientHandler()
        config = self._config
        channel = await connect(
            config,
            self._id,
            lambda: (MessageEncoder(), MessageDecoder.of(config, handler), handler),
            timeout_s=config.connect_timeout_s,
        )
        return channel, handler

    def _on_attempt_done(self, attempt: asyncio.Task[tuple[NetworkChannel, CreditBasedPartitionRequestClientHandler]]) -> None:
        self._attempt = None
        waiting, self._waiting = self._waiting, []
        error = self._error_of(attempt)
        if error is not None:
            run_all([partial(each.on_error, error) for each in waiting])
            return
        self._channel, self._handler = attempt.result()
        run_all([partial(self._handler.request_subpartition, each) for each in waiting if not each.is_released])

    def _error_of(self, attempt: asyncio.Task[tuple[NetworkChannel, CreditBasedPartitionRequestClientHandler]]) -> NetstackError | None:
        if attempt.cancelled():
            return ResourceClosedError(f"the connection to {self._id} was closed before it was used")
        error = attempt.exception()
        if error is None or isinstance(error, NetstackError):
            return error
        wrapped = ConnectError(f"cannot connect to {self._id}: {type(error).__name__}: {error}")
        wrapped.__cause__ = error
        return wrapped

    async def close(self) -> None:
        """End the attempt or the connection; channels that still read get an error."""
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.gather(self._attempt, return_exceptions=True)
        if self._channel is None:
            return
        try:
            # Before the end of the connection reaches the handler, which would blame the peer.
            self._handler.fail_all(ResourceClosedError(f"the connection to {self._id} was closed by this side"))
        finally:
            self._channel.close()
            await self._channel.wait_closed()


class NetworkPartitionRequestClient:
    """The task side's handle on the connection to one peer.

    Threading: any thread; every call is one hop to the loop, calls of one thread keep their order.
    """

    __slots__ = ("_loop", "_manager", "connection_id")

    def __init__(self, manager: "ConnectionManager", loop: EventLoopThread, connection_id: ConnectionID) -> None:
        self._manager = manager
        self._loop = loop
        self.connection_id = connection_id

    def __repr__(self) -> str:
        return f"<PartitionRequestClient of {self.connection_id}>"

    def request_subpartition(self, channel: RemoteInputChannel, delay_ms: int = 0) -> None:
        """Ask the peer for the channel's subpartition; a failure arrives at the channel as its error."""
        try:
            self._loop.execute_threadsafe(self._manager.request, self.connection_id, channel)
        except ResourceClosedError as error:
            channel.on_error(error)

    def notify_credit_available(self, channel: RemoteInputChannel) -> None:
        """The channel has credit to announce."""
        self._order(lambda handler: handler.notify_credit_available(channel))

    def notify_new_buffer_size(self, channel: RemoteInputChannel, size_bytes: int) -> None:
        """The channel wants buffers of another size."""

    def resume_consumption(self, channel: RemoteInputChannel) -> None:
        """The channel goes on after a blocking event."""

    def send_task_event(self, channel: RemoteInputChannel, event: bytes) -> None:
        """An event for the producer of the channel's partition."""

    def acknowledge_all_records_processed(self, channel: RemoteInputChannel) -> None:
        """The task processed everything up to the channel's end of data."""
        self._order(lambda handler: handler.acknowledge_all_records_processed(channel))

    def cancel(self, channel: RemoteInputChannel) -> None:
        """The channel wants no more."""
        self._order(lambda handler: handler.cancel(channel))

    def _order(self, order: Order) -> None:
        # With the loop the connection went; tasks recycle and release what they hold after that, too.
        with contextlib.suppress(ResourceClosedError):
            self._loop.execute_threadsafe(self._manager.order, self.connection_id, order)


class ConnectionManager:
    """All outgoing connections of one process.

    Threading: ``client`` from any thread; everything else on the loop thread.
    """

    def __init__(self, config: NetstackConfig, loop: EventLoopThread) -> None:
        self._config = config
        self._loop = loop
        self._connections: dict[ConnectionID, _Connection] = {}
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<ConnectionManager {list(self._connections.values())}>"

    @property
    def num_connections(self) -> int:
        """How many peers it knows, the last ones that were lost included."""
        return len(self._connections)

    def client(self, connection_id: ConnectionID) -> NetworkPartitionRequestClient:
        """A handle on the (shared, lazily made) connection to that peer."""
        return NetworkPartitionRequestClient(self, self._loop, connection_id)

    def request(self, connection_id: ConnectionID, channel: RemoteInputChannel) -> None:
        """Loop thread: send a partition request."""
        if self._is_closed:
            channel.on_error(ResourceClosedError(f"no new connection to {connection_id}: the network stack was closed"))
            return
        connection = self._connections.get(connection_id)
        if connection is None:
            # Peers come back under other ports, and a lost connection still holds its read buffer.
            self._connections = {key: each for key, each in self._connections.items() if not each.is_idle}
            connection = self._connections[connection_id] = _Connection(self._config, connection_id)
        connection.request(channel)

    def order(self, connection_id: ConnectionID, order: Order) -> None:
        """Loop thread: give an order about a channel to its connection."""
        connection = self._connections.get(connection_id)
        if connection is not None:
            connection.order(order)

    async def close(self) -> None:
        """Loop thread: close every connection."""
        self._is_closed = True
        connections, self._connections = list(self._connections.values()), {}
        results = await asyncio.gather(*(connection.close() for connection in connections), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

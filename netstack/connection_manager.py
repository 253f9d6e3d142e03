"""One TCP connection per peer, shared by all input channels that read from it.

Side:       shared.  Clients are used by task threads; connections live on the loop thread.
Invariants: at most one connection per ``ConnectionID``.  Concurrent requests wait for one attempt; when it fails all of
            them get the error, and the next request tries again.  Requests and orders that come during an attempt are
            carried out after it, in their order.  A connection without channels is kept
            (``reuse_connections``, the default) or closed; an ended one is forgotten.  Attempts to different peers do
            not wait for each other (FLINK-15416).
Source:     Flink ``NettyConnectionManager``, ``PartitionRequestClientFactory``, ``NettyPartitionRequestClient``.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from netstack.availability import run_all
from netstack.config import NetstackConfig
from netstack.errors import AuthenticationError, ConnectError, NetstackError, ResourceClosedError
from netstack.flow.heartbeats import Backoff
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.handlers.partition_request_client_handler import CreditBasedPartitionRequestClientHandler
from netstack.ids import ConnectionID, InputChannelID
from netstack.late import dataclass
from netstack.log_lines import LogLines, as_netstack_error, shown_state
from netstack.loop.eventloop import EventLoopThread
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext
from netstack.transport.message_codec import MessageDecoder, MessageEncoder
from netstack.transport.network_channel import NetworkChannel
from netstack.transport.server import connect
from netstack.wire.message_bytes import CLIENT_MESSAGE_IDS
from netstack.wire.messages import ChannelOrder

_log = LogLines(__name__)
_NS_PER_US = 1000

_Attempt: TypeAlias = "asyncio.Task[tuple[NetworkChannel, CreditBasedPartitionRequestClientHandler]]"


def _client_handlers(
    config: NetstackConfig, handler: CreditBasedPartitionRequestClientHandler, on_news: Callable[[], None] | None
) -> tuple[ChannelHandler, ...]:
    """Make the pipeline of an outgoing connection, head to tail."""
    decoder = MessageDecoder(config, handler, accepted_ids=CLIENT_MESSAGE_IDS)
    return (MessageEncoder(), decoder, *(() if on_news is None else (NewsHandler(on_news),)), handler)


def backoff_s(config: NetstackConfig, num_failed: int) -> float:
    """Return the pause before the next attempt to connect, after ``num_failed`` failures in a row."""
    return Backoff(config.connect_backoff_ms, config.max_request_backoff_ms).delay(num_failed) / 1000


@dataclass(eq=False)
class BusyPoller:
    """Keeps one loop from sleeping for ``length_us`` after each arrival of data, unless another thread needs the core.

    Threading: the loop thread.
    Why: waking a sleeping loop takes two thread switches and, where its core has halted, a way through the hypervisor;
        the sender pays half of that (bench: latency).
    Invariants: between two polls the loop serves its sockets, timers and handed-over functions.  At most one poll is
        pending; none is after ``close`` or after the window's length without data.  A loop without data never polls.
    Life cycle: until ``close``; afterwards ``news`` does nothing.
    Source: the idea of Linux ``net.core.busy_poll`` and ``SO_BUSY_POLL``.  With uvloop each poll releases the
        interpreter's lock.

    Args:
        call_soon: calls a function in the loop's next turn; the loop does not sleep before such a turn.
        length_us: how long it polls.
        clock_ns: monotonic.
    """

    call_soon: Callable[[Callable[[], None]], object]
    length_us: int
    clock_ns: Callable[[], int] = time.monotonic_ns
    _end_ns: int = 0
    _is_held: bool = False
    _is_pending: bool = False
    _is_closed: bool = False
    num_looks: int = 0

    def __post_init__(self) -> None:
        assert self.length_us > 0, "without a length it never polls"

    def __repr__(self) -> str:
        state = shown_state("off", held=self._is_held, looking=self._is_pending)
        return f"<BusyPoller {state}, {self.num_looks} looks>"

    def news(self) -> None:
        """Poll from now on for ``length_us``: data arrived."""
        self._end_ns = self.clock_ns() + self.length_us * _NS_PER_US
        if not self._is_pending:
            self._look()

    def hold(self, *, is_held: bool) -> None:
        """Stop polling, so that other threads get the core and the interpreter's lock (True), or poll again after the
        next data (False).
        """
        self._is_held = is_held
        if is_held:
            self._end_ns = 0

    def close(self) -> None:
        """Stop polling."""
        self._is_closed = True

    def _look(self) -> None:
        self.num_looks += 1
        self._is_pending = not (self._is_closed or self._is_held) and self.clock_ns() < self._end_ns
        if self._is_pending:
            self.call_soon(self._look)


class NewsHandler(ChannelHandler):
    """Calls a function after each read of a connection, when its messages have been handled."""

    def __init__(self, on_news: Callable[[], None]) -> None:
        self._on_news = on_news

    def channel_read_complete(self, ctx: ChannelHandlerContext) -> None:
        """Pass the event on, then call the function: the handlers that wake tasks must come first."""
        ctx.fire_channel_read_complete()
        self._on_news()


class _Connection:
    """The connection to one peer, connected on demand.  Loop thread only."""

    def __init__(self, manager: "ConnectionManager", connection_id: ConnectionID) -> None:
        self.connection_id = connection_id
        self._manager = manager
        self._config = manager.config
        self._channel: NetworkChannel | None = None
        self._handler = CreditBasedPartitionRequestClientHandler(self._manager.loop.after_batch)
        self._attempt: _Attempt | None = None
        # Requests and orders during the attempt.
        self._early: list[tuple[RemoteInputChannel, Callable[[], None]]] = []
        self._users: set[InputChannelID] = set()  # channels that requested and did not cancel; Flink's reference count

    def __repr__(self) -> str:
        state = shown_state("idle", open=self._is_open, connecting=self._attempt is not None)
        return f"<connection to {self.connection_id} {state}, {len(self._users)} users>"

    @property
    def _is_open(self) -> bool:
        return self._channel is not None and self._channel.is_active

    @property
    def is_idle(self) -> bool:
        """Whether there is no connection, no attempt and no closing channel."""
        return self._attempt is None and (self._channel is None or self._handler.has_ended)

    # ---------------------------------------------------------------- orders of the channels

    def request(self, channel: RemoteInputChannel) -> None:
        """Send the channel's partition request, over a new connection if there is none."""
        self._users.add(channel.channel_id)
        if not self._is_open and self._attempt is None:
            self._attempt = asyncio.get_running_loop().create_task(
                self._connect(), name=f"connect to {self.connection_id}"
            )
            # A callback, not a ``finally`` in the task: a task that is cancelled before its first step runs no code of
            # its own.
            self._attempt.add_done_callback(self._on_attempt_done)
        self._carry_out(channel, lambda: self._handler.request_subpartition(channel))

    def cancel(self, channel: RemoteInputChannel) -> None:
        """Note that the channel reads no more; after the last one the connection is kept for the next
        job, or closed.
        """
        is_user = channel.channel_id in self._users
        self._users.discard(channel.channel_id)
        if is_user and not self._users and not self._config.reuse_connections:
            self._close_unused()
        else:
            self._carry_out(channel, lambda: self._handler.cancel(channel))
        self._forget_if_idle()

    def order(self, channel: RemoteInputChannel, message: ChannelOrder | None) -> None:
        """Carry out an order of a channel, after the current attempt if there is one; without connection and attempt it
        is dropped.
        """
        self._carry_out(channel, lambda: self._handler.order(channel, message))

    def _carry_out(self, channel: RemoteInputChannel, order: Callable[[], None]) -> None:
        if self._is_open:
            order()
        elif self._attempt is not None:
            self._early.append((channel, order))

    # ---------------------------------------------------------------- making the connection

    async def _connect(self) -> tuple[NetworkChannel, CreditBasedPartitionRequestClientHandler]:
        if self._channel is not None:
            await self._channel.wait_closed()  # waits for the old connection to close; ended by close_timeout_s
        config = self._config
        num_failed = 0
        while True:
            try:
                handler = CreditBasedPartitionRequestClientHandler(self._manager.loop.after_batch)
                handler.on_ended = self._forget_if_idle
                handlers = partial(_client_handlers, config, handler, self._manager.on_news)
                channel = await connect(config, self.connection_id, handlers, timeout_s=config.connect_timeout_s)
                return channel, handler
            except AuthenticationError:
                raise  # the secret or the certificate stays wrong
            except ConnectError as error:
                num_failed += 1
                if num_failed > config.connect_retries:
                    raise
                pause_s = backoff_s(config, num_failed)
                peer = str(self.connection_id)
                _log.warning("cannot connect, trying again", peer=peer, num_failed=num_failed, error=str(error))
            await asyncio.sleep(pause_s)

    def _on_attempt_done(self, attempt: _Attempt) -> None:
        self._attempt = None
        early = self._early
        self._early = []
        error = self._error_of(attempt)
        if error is not None:
            self._forget_if_idle()
            channels = dict.fromkeys(channel for channel, _ in early)  # an ordered set
            run_all([partial(each.on_error, error) for each in channels])
            return
        self._channel, self._handler = attempt.result()  # no wait: it is done
        run_all([order for channel, order in early if not channel.is_released])
        if not self._users and not self._config.reuse_connections:
            self._close_unused()

    def _error_of(self, attempt: _Attempt) -> NetstackError | None:
        if attempt.cancelled():
            return ResourceClosedError(f"the connection to {self.connection_id} was closed before it was used")
        error = attempt.exception()
        if error is None:
            return None
        return as_netstack_error(error, ConnectError, f"cannot connect to {self.connection_id}")

    # ---------------------------------------------------------------- its end

    def _forget_if_idle(self) -> None:
        if self.is_idle:
            self._manager.forget(self)

    def _close_unused(self) -> None:
        if self._is_open:
            self._handler.close_unused()

    async def close(self) -> None:
        """End the attempt or the connection; channels that still read get an error."""
        closed = ResourceClosedError(f"the connection to {self.connection_id} was closed by this side")
        attempt = self._attempt
        if attempt is not None:
            attempt.cancel()
            # waits for a cancelled attempt to connect; ended by connect_timeout_s at the latest
            await asyncio.wait((attempt,))
            # If the attempt had ended before, ``wait`` returned at once, and the callback is only scheduled: run it
            # now.
            if attempt.remove_done_callback(self._on_attempt_done):
                self._on_attempt_done(attempt)
        try:
            # Before the handler sees the end of the connection, which it would report as the peer's.
            self._handler.fail_all(closed)
        finally:
            if self._channel is not None:
                self._channel.close()
                await self._channel.wait_closed()  # waits for the connection to close; ended by close_timeout_s


@dataclass(eq=False, frozen=True, slots=True)
class NetworkPartitionRequestClient:
    """The ``PartitionRequestClient`` of one peer.

    Threading: any thread; every call is one hop to the loop, calls of one thread keep their order.
    """

    manager: "ConnectionManager"
    connection_id: ConnectionID

    def request_subpartition(self, channel: RemoteInputChannel) -> None:
        """Request the channel's subpartition; a failure becomes the channel's error."""
        try:
            self.manager.loop.execute_threadsafe(self.manager.request, self.connection_id, channel)
        except ResourceClosedError as error:
            channel.on_error(error)

    def order(self, channel: RemoteInputChannel, message: ChannelOrder | None) -> None:
        """Send ``message`` to the producer, after all earlier orders; None: announce the channel's credit."""
        # The loop was closed, and the connection with it; tasks may still recycle buffers and release channels.
        with contextlib.suppress(ResourceClosedError):
            self.manager.loop.execute_threadsafe(self.manager.order, self.connection_id, channel, message)

    def cancel(self, channel: RemoteInputChannel) -> None:
        """Tell the producer that the channel reads no more; the channel no longer uses the connection."""
        with contextlib.suppress(ResourceClosedError):
            self.manager.loop.execute_threadsafe(self.manager.cancel, self.connection_id, channel)


class ConnectionManager:
    """All outgoing connections of one process.

    Threading: ``client`` from any thread; everything else on the loop thread.

    Args:
        on_news: called on the loop thread after each read of a connection; None: no handler is added.
    """

    def __init__(
        self, config: NetstackConfig, loop: EventLoopThread, on_news: Callable[[], None] | None = None
    ) -> None:
        self.config = config
        self.loop = loop
        self.on_news = on_news
        self._connections: dict[ConnectionID, _Connection] = {}
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<ConnectionManager {list(self._connections.values())}>"

    @property
    def num_connections(self) -> int:
        """The number of connections and attempts."""
        return len(self._connections)

    def client(self, connection_id: ConnectionID) -> NetworkPartitionRequestClient:
        """Make a client of the shared connection to that peer, which the first request opens."""
        return NetworkPartitionRequestClient(self, connection_id)

    def request(self, connection_id: ConnectionID, channel: RemoteInputChannel) -> None:
        """Send a partition request, unless the channel was released meanwhile; loop thread."""
        if channel.is_released:
            return
        if self._is_closed:
            channel.on_error(ResourceClosedError(f"no new connection to {connection_id}: the network stack was closed"))
            return
        connection = self._connections.get(connection_id)
        if connection is None:
            connection = self._connections[connection_id] = _Connection(self, connection_id)
        connection.request(channel)

    def order(self, connection_id: ConnectionID, channel: RemoteInputChannel, message: ChannelOrder | None) -> None:
        """Hand an order of a channel to its connection; loop thread; see ``NetworkPartitionRequestClient.order``."""
        connection = self._connections.get(connection_id)
        if connection is not None:
            connection.order(channel, message)

    def cancel(self, connection_id: ConnectionID, channel: RemoteInputChannel) -> None:
        """Let go of a channel that no longer uses the connection; loop thread."""
        connection = self._connections.get(connection_id)
        if connection is not None:
            connection.cancel(channel)

    def forget(self, connection: _Connection) -> None:
        """Drop an ended connection: it still holds a read buffer, and peers return under other ports."""
        if self._connections.get(connection.connection_id) is connection:
            del self._connections[connection.connection_id]

    async def close(self) -> None:
        """Close every connection; loop thread."""
        self._is_closed = True
        connections = list(self._connections.values())
        self._connections = {}
        # waits for all connections to close; ended by close_timeout_s
        results = await asyncio.gather(*(connection.close() for connection in connections), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

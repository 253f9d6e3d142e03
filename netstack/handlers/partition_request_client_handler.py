"""Receives buffers for all input channels of one connection and announces their credit.

Side:       loop, except ``NetworkOfferedPartitionClient``, which any thread calls.  Hot path.
Invariants: a payload is written once, into a buffer of its channel.  One channel's error never touches the others
            (FLINK-17992).  An unknown receiver is cancelled once.  Orders leave in their order while the socket is
            writable; the credit of a channel is summed up when its announcement leaves.
Source:     Flink ``CreditBasedPartitionRequestClientHandler``.
"""

import asyncio
import contextlib
import errno
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final, ParamSpec, TypeAlias, assert_never, cast

from netstack.availability import AvailabilityFuture
from netstack.buffer.network_buffer import NetworkBuffer, recycle_all
from netstack.errors import (
    ConnectionLostError,
    LocalProtocolError,
    NetstackError,
    PartitionNotFoundError,
    ProducerFailedError,
    RemoteProtocolError,
    ResourceClosedError,
    TransportError,
)
from netstack.flow.admission import ReplyBudget
from netstack.gate.channels.channel_receiver import ChannelReceiver
from netstack.gate.channels.input_channel import Lifecycle
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.ids import InputChannelID
from netstack.late import dataclass
from netstack.log_lines import LogLines, as_netstack_error, caused_by, limited_log
from netstack.loop.eventloop import EventLoopThread, wall_clock_ms
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext
from netstack.wire import messages
from netstack.wire.messages import BufferResponse, BufferRun, ChannelOrder, DataType, ErrorCode, ErrorResponse
from netstack.wire.offer_messages import GateIdentity, OfferRefused, RefusalCode, SubpartitionOffer

P = ParamSpec("P")
_log = LogLines(__name__)


# Remembered cancels; a forgotten receiver is cancelled again.  As many as a server allows readers per connection
# (max_readers).
_MAX_CANCELLED: Final = 10_000
_CANCEL_BYTES: Final = 25
_LOOK_INTERVAL_S = 10.0  # how often a connection with an expired token is checked for open offers
_MS_PER_S = 1000
_RELEASED: Final = Lifecycle.RELEASED  # compared per buffer; ``is_released`` would be a call
_LOST: Final = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT})


class CreditBasedPartitionRequestClientHandler(ChannelHandler):
    """The last handler of the client's pipeline: owns the connection's map of input channels."""

    def __init__(self, after_batch: Callable[[Callable[[], None]], None] = lambda function: function()) -> None:
        """``after_batch`` runs a function once after all orders of the current batch of the loop."""
        self._after_batch = after_batch
        self._log = limited_log(__name__, time.monotonic)
        self._channels: dict[InputChannelID, RemoteInputChannel] = {}
        self._not_found: set[InputChannelID] = set()  # keys of _channels whose requests the server has forgotten
        self._cancelled: dict[InputChannelID, None] = {}  # oldest first
        # None stands for an announcement of credit; the channel is asked for the amount when it leaves.
        self._orders: deque[tuple[RemoteInputChannel, ChannelOrder | None]] = deque()
        # Channels that got data in the current read, and the futures that wake their tasks.
        self._wakeups: list[tuple[ChannelReceiver, AvailabilityFuture]] = []
        self._replies = ReplyBudget()
        self._ctx: ChannelHandlerContext | None = None
        self.on_ended: Callable[[], None] | None = None
        """Called when the connection is gone: once for each pipeline."""
        self.has_ended = False
        self._error: NetstackError | None = None  # the first error of the connection; later channels get it at once

    def __repr__(self) -> str:
        return (
            f"<ClientHandler {len(self._channels)} channels{'' if self._error is None else f', failed: {self._error}'}>"
        )

    def handler_added(self, ctx: ChannelHandlerContext) -> None:
        """Remember the place in the pipeline; called again for the next one if the handshake of the first came too
        late.
        """
        self._ctx = ctx
        self.has_ended = False

    def handler_removed(self, ctx: ChannelHandlerContext) -> None:
        """Drop the waiting orders, wake the tasks and call ``on_ended``: the connection is gone."""
        self._ctx = None
        self._orders.clear()
        self._wake()
        self.has_ended = True
        if self.on_ended is not None:
            self.on_ended()

    # ---------------------------------------------------------------- orders of the clients

    def request_subpartition(self, channel: RemoteInputChannel) -> None:
        """Send the channel's partition request, with its exclusive buffers as credit; again if the partition was not
        found.

        A request without an answer is not sent again: the server would take it for a second receiver with that id.
        """
        # The end of the connection told the channels that it knew then; a later one would wait for ever.
        if self._error is not None:
            channel.on_error(self._error)
            return
        if channel.channel_id in self._channels and channel.channel_id not in self._not_found:
            return
        self._channels[channel.channel_id] = channel
        self._not_found.discard(channel.channel_id)
        channel.wakeups = self._wakeups
        # A request makes the id known again: data behind a later end of the channel needs a cancel of its own.
        self._cancelled.pop(channel.channel_id, None)
        first, last, credit = channel.subpartition, channel.last_subpartition, channel.buffer_manager.initial_credit
        try:
            self._write(messages.PartitionRequest(channel.partition_id, first, last, channel.channel_id, credit))
        except Exception as error:  # noqa: BLE001 - the encoder or a handler refused it; nothing was sent
            self._forget(channel.channel_id)
            channel.on_error(as_netstack_error(error, TransportError, "sending the partition request failed"))

    def order(self, channel: RemoteInputChannel, message: ChannelOrder | None) -> None:
        """Send ``message`` when the socket is writable; None: announce the channel's credit."""
        if self._ctx is not None and channel.channel_id in self._channels:
            self._orders.append((channel, message))
            # Orders of one batch share one flush.
            self._after_batch(self._write_orders)

    def cancel(self, channel: RemoteInputChannel) -> None:
        """Cancel the channel's request; data that still arrives for it is dropped."""
        # A channel that failed is unknown here, and was cancelled then.
        if self._forget(channel.channel_id):
            self._cancel_once(channel.channel_id)

    def close_unused(self) -> None:
        """Close an unused connection with a ``CloseRequest``, so that the peer reads all orders first."""
        ctx = self._ctx
        if ctx is not None and ctx.channel.is_active:
            self._channels.clear()
            self._not_found.clear()
            ctx.write_and_flush(messages.CloseRequest())
            ctx.close()

    @property
    def num_channels(self) -> int:
        """The number of the connection's channels."""
        return len(self._channels)

    # ---------------------------------------------------------------- inbound

    def allocate(
        self, receiver: InputChannelID, size_bytes: int, data_type: DataType, *, is_compressed: bool
    ) -> NetworkBuffer | None:
        """Take a buffer of the receiving channel, for the decoder; None if the channel is unknown or has no buffer."""
        channel = self._channels.get(receiver)
        if channel is None:
            return None
        return channel.allocate(size_bytes, data_type, is_compressed=is_compressed)

    def allocate_run(self, receiver: InputChannelID, size_bytes: int, max_buffers: int) -> Sequence[NetworkBuffer]:
        """Take several buffers for plain data, for the decoder; fewer if the channel has less credit."""
        channel = self._channels.get(receiver)
        return () if channel is None else channel.allocate_run(size_bytes, max_buffers)

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        """Serve one message of the server."""
        # Fast path: almost all messages are data, and ``match`` would ask for one class after the other.
        if type(message) is BufferResponse:
            buffer_channel = self._channels.get(message[0])
            # The task releases its channel on its own thread; the order that removes it from this map may still be on
            # its way.
            if buffer_channel is None or buffer_channel.lifecycle is _RELEASED:
                self._refuse_data(message[0])
                if message.buffer is not None:
                    message.buffer.recycle()
                return
            try:
                buffer_channel.on_response(message)
            except Exception as error:  # noqa: BLE001 - one channel's error: its task and the sender are told, other channels continue
                self._fail_channel(buffer_channel, error)
            return
        if type(message) is BufferRun:
            self._on_run(message)
            return
        match message:
            case ErrorResponse():
                self._on_error_response(ctx, message)
            case messages.BacklogAnnouncement(receiver, backlog):
                channel = self._channels.get(receiver)
                if channel is not None and channel.lifecycle is not _RELEASED:
                    self._tell(channel, partial(channel.on_sender_backlog, backlog))
            case messages.Heartbeat():
                ctx.fire_channel_read(message)
            case _:
                self._on_other(message)

    def _on_other(self, message: object) -> None:
        raise RemoteProtocolError(f"a client does not serve {type(message).__name__}")

    def _refuse_data(self, receiver: InputChannelID) -> None:
        # Forgotten before the cancel: a later acknowledgement for it would reach the server after the cancel.
        is_ours = self._forget(receiver)
        self._cancel_once(receiver, is_answer=not is_ours)

    def _on_run(self, run: BufferRun) -> None:
        buffers = cast("Sequence[NetworkBuffer]", run.buffers)  # ``allocate_run`` made them
        channel = self._channels.get(run.receiver)
        if channel is None or channel.lifecycle is _RELEASED:
            self._refuse_data(run.receiver)
            recycle_all(buffers)
            return
        self._tell(channel, partial(channel.on_run, buffers, run.sequence_number, run.backlog))

    def _tell(self, channel: ChannelReceiver, call: Callable[[], None]) -> None:
        """Make a call of one channel; an error in it ends that channel alone."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - its task and the sender are told, other channels continue
            self._fail_channel(channel, error)

    def _on_error_response(self, ctx: ChannelHandlerContext, response: ErrorResponse) -> None:
        receiver = response.about if response.receiver is None else response.receiver
        if receiver is None:
            self._end(ctx, _error_of(response, ctx.channel.peer, "Fatal error"))
            return
        channel = self._channels.get(receiver)
        if channel is None:
            self._log.info("an error of a channel that has ended", peer=ctx.channel.peer, error=response.message)
            return
        error = _error_of(response, ctx.channel.peer, "Error")
        if isinstance(error, PartitionNotFoundError):
            # The server has forgotten the request; the channel decides whether to repeat it.
            self._not_found.add(channel.channel_id)
            self._tell(channel, partial(channel.on_failed_partition_request, error))
        else:
            # A cancel follows: the server keeps the reader until then, because older orders of ours may still arrive.
            self._fail_channel(channel, error)

    def channel_read_complete(self, ctx: ChannelHandlerContext) -> None:
        """Wake the tasks, once per read: earlier they would only wait for the channel's lock while the
        rest is queued.  No handler behind this one looks at reads, once the role of the peer is known.
        """
        self._wake()

    def _wake(self) -> None:
        wakeups = self._wakeups
        while wakeups:
            channel, pending = wakeups.pop()
            # By ``_tell``: a callback of one future may raise, and the tasks of the other channels must still wake.
            self._tell(channel, pending.complete)

    def channel_writability_changed(self, ctx: ChannelHandlerContext) -> None:
        """Send the orders that waited for the socket."""
        self._write_orders()
        ctx.fire_channel_writability_changed()

    def channel_inactive(self, ctx: ChannelHandlerContext) -> None:
        """Give every channel that still reads an error: the connection ended."""
        if self._channels:
            _log.warning(
                "connection ended while channels read from it", peer=ctx.channel.peer, num_channels=len(self._channels)
            )
        text = f"Connection unexpectedly closed by remote task manager '{ctx.channel.peer}'."
        self.fail_all(ConnectionLostError(f"{text} This might indicate that the remote task manager was lost."))
        ctx.fire_channel_inactive()

    def exception_caught(self, ctx: ChannelHandlerContext, error: Exception) -> None:
        """Fail all channels with an error that reaches this handler."""
        peer = ctx.channel.peer
        _log.warning("connection failed", peer=peer, error=str(error), kind=type(error).__name__)
        lost = _loss_of(error)
        if lost is not None:
            text = f"Lost connection to task manager '{peer}'. This indicates that the remote task manager was lost."
            self._end(ctx, caused_by(lost, ConnectionLostError(text)))
        else:
            self._end(ctx, as_netstack_error(error, TransportError, f"connection to {peer} failed"))

    def _end(self, ctx: ChannelHandlerContext, error: NetstackError) -> None:
        self.fail_all(error)
        ctx.close()

    def fail_all(self, error: NetstackError) -> None:
        """Fail every channel with ``error``; channels that come later fail with the first error of the connection."""
        # The first one counts, and channels that are requested from now on fail with it at once.
        if self._error is None:
            self._error = error
        channels, self._channels = list(self._channels.values()), {}
        self._not_found.clear()
        self._orders.clear()
        # Out of the table before the callbacks: a cancel that one of them orders finds no channel, and sends nothing.
        for channel in channels:
            _end(channel, error)

    # ---------------------------------------------------------------- helpers

    def _write_orders(self) -> None:
        ctx = self._ctx
        if ctx is None or not self._orders:
            return
        orders, channels = self._orders, self._channels
        has_written = False
        # The rest waits for ``channel_writability_changed``: a server that reads nothing would let our bytes pile up.
        while orders and ctx.channel.is_writable:
            channel, order = orders.popleft()
            # Its cancel may have left already: behind that the server does not know the receiver any more.
            if channel.channel_id not in channels or channel.lifecycle is _RELEASED:
                continue
            if order is not None:
                ctx.write(order)
                has_written = True
                continue
            # Asked for only now: credit that came since the order was queued leaves in this announcement, too.
            credit = channel.buffer_manager.take_unannounced()
            # None is left if the channel was blocked since and gave its credit back.
            if credit > 0:
                ctx.write(messages.AddCredit(channel.channel_id, credit))
                has_written = True
        if has_written:
            ctx.flush()

    def _write(self, message: messages.PartitionRequest | messages.CancelPartitionRequest) -> None:
        if self._ctx is not None and self._ctx.channel.is_active:
            self._ctx.write_and_flush(message)

    def _forget(self, receiver: InputChannelID) -> bool:
        """Remove the channel; returns whether it was known."""
        self._not_found.discard(receiver)
        return self._channels.pop(receiver, None) is not None

    def _cancel_once(self, receiver: InputChannelID, *, is_answer: bool = False) -> None:
        """Cancel a receiver once; ``is_answer``: because the server sent data for an unknown receiver, so the cancel is
        a reply.
        """
        cancelled, ctx = self._cancelled, self._ctx
        if receiver in cancelled or ctx is None:
            return
        cancelled[receiver] = None
        if len(cancelled) > _MAX_CANCELLED:
            del cancelled[next(iter(cancelled))]
        if not is_answer or self._replies.spend(_CANCEL_BYTES, is_writable=ctx.channel.is_writable):
            self._write(messages.CancelPartitionRequest(receiver))
        else:
            self._end(ctx, RemoteProtocolError(f"{ctx.channel.peer} sends to strangers and does not read our answers"))

    def _fail_channel(self, channel: ChannelReceiver, error: Exception) -> None:
        # This channel alone: the others share the connection, and read on (FLINK-17992).
        self._forget(channel.channel_id)
        self._cancel_once(channel.channel_id)
        _end(channel, as_netstack_error(error, TransportError, f"{channel!r} failed"))


def _end(channel: ChannelReceiver, error: NetstackError) -> None:
    try:
        channel.on_error(error)
    except Exception as second:  # noqa: BLE001 - the error is stored; a failing callback of the gate must not stop the other channels
        _log.error("a callback failed on the error of its channel", channel=repr(channel), exc_info=second)


def _loss_of(error: Exception) -> BaseException | None:
    """Find the operating system's error of a lost connection that ``error`` is or wraps, or None."""
    cause = error.__cause__ if isinstance(error, ConnectionLostError) else error
    if isinstance(cause, ConnectionError) or (isinstance(cause, OSError) and cause.errno in _LOST):
        return cause
    return None


def _error_of(response: ErrorResponse, peer: str, what: str) -> NetstackError:
    text = f"{what} at remote task manager '{peer}': {response.message}"
    match response.code:
        case ErrorCode.PARTITION_NOT_FOUND:
            return PartitionNotFoundError(text)
        case ErrorCode.PRODUCER_FAILED:
            return ProducerFailedError(text)
        case ErrorCode.PROTOCOL | ErrorCode.UNKNOWN_RECEIVER | ErrorCode.SUBPARTITION_TAKEN | ErrorCode.LIMIT_EXCEEDED:
            return LocalProtocolError(text)
        case ErrorCode.UNKNOWN | ErrorCode.INTERNAL | ErrorCode.UNKNOWN_TASK_EVENT_RECEIVER | ErrorCode.AUTHENTICATION:
            return TransportError(text)
        case _:
            assert_never(response.code)


TakeOffer: TypeAlias = Callable[[GateIdentity, SubpartitionOffer, "NetworkOfferedPartitionClient"], None]
"""Finds the gate of an offer, which requests the offered partition or refuses it; loop thread.  A bad offer is refused,
not raised.
"""


class OfferedPartitionsHandler(CreditBasedPartitionRequestClientHandler):
    """The last handler of a connection that a producer dialled: a request client that also receives offers.

    Invariants: a connection offers to one gate, that of its token.  After an accepted offer this handler is an ordinary
        client; an error of one offer does not touch the others of the connection.  When the token has expired, new
        offers are refused, accepted ones continue, and the connection closes after the last one.  A peer with a gate's
        token reaches no handler that serves partitions; a peer with the secret reaches none that takes offers:
        ``ConnectionRoles`` removes them, and itself, when the connection is active.
    """

    def __init__(
        self, loop: EventLoopThread, take_offer: TakeOffer, clock_ms: Callable[[], int] = wall_clock_ms
    ) -> None:
        super().__init__(loop.after_batch)
        self._clock_ms = clock_ms
        self._expiry: asyncio.TimerHandle | None = None
        self.identity: GateIdentity | None = None  # Set before the connection becomes active.
        self._loop = loop
        self._take_offer = take_offer
        self._log = limited_log(__name__, loop.loop.time)
        # Any thread appends, the loop thread takes.
        self._refusals: deque[tuple[SubpartitionOffer, RefusalCode, str]] = deque()

    def _on_other(self, message: object) -> None:
        if not isinstance(message, SubpartitionOffer) or self.identity is None:
            super()._on_other(message)
            return
        client = NetworkOfferedPartitionClient(self, self._loop)
        if self.identity.is_expired(self._clock_ms()):
            end = datetime.fromtimestamp(self.identity.expires_ms / _MS_PER_S, UTC).isoformat(timespec="seconds")
            text = f"the token for {self.identity} was good until {end}"
            client.refuse(message, RefusalCode.TOKEN_EXPIRED, text)
            return
        self._take_offer(self.identity, message, client)

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        """Start the timer of the token's expiry."""
        if self.identity is not None:
            self._expiry = self._end_later(self.identity.expires_ms - self._clock_ms())
        ctx.fire_channel_active()

    def handler_removed(self, ctx: ChannelHandlerContext) -> None:
        """Stop the timer of the token's expiry: the connection is gone."""
        if self._expiry is not None:
            self._expiry.cancel()
        super().handler_removed(ctx)

    def _end_later(self, delay_ms: int) -> asyncio.TimerHandle:
        return self._loop.loop.call_later(max(_LOOK_INTERVAL_S, delay_ms / _MS_PER_S), self._end_expired)

    def _end_expired(self) -> None:
        ctx = self._ctx
        identity = self.identity
        if ctx is None or identity is None:
            return
        left_ms = identity.expires_ms - self._clock_ms()
        # Accepted partitions are read to their end: the token was good when they were offered.  The timer ran by the
        # loop's clock, the token ends by the wall clock, which may have been set back meanwhile.
        if left_ms < 0 and not self.num_channels:
            ctx.close()
        else:
            self._expiry = self._end_later(left_ms)

    def will_refuse(self, offer: SubpartitionOffer, code: RefusalCode, reason: str) -> None:
        """Queue a refusal, which is sent by ``write_refusals`` or before the next cancel; any thread."""
        self._refusals.append((offer, code, reason))

    def write_refusals(self) -> None:
        """Send the queued refusals; loop thread."""
        while self._refusals:
            self._refuse(*self._refusals.popleft())

    def _cancel_once(self, receiver: InputChannelID, *, is_answer: bool = False) -> None:
        # Data for a channel that was just released cancels it before the refusal's own hop to the loop: the reason must
        # go first.
        self.write_refusals()
        super()._cancel_once(receiver, is_answer=is_answer)

    def _refuse(self, offer: SubpartitionOffer, code: RefusalCode, reason: str) -> None:
        ctx = self._ctx
        if ctx is None or not ctx.channel.is_active:
            return
        gate = str(self.identity)
        self._log.info("an offer was refused or queued", gate=gate, offer=str(offer), code=code.name, reason=reason)
        if self._replies.spend(len(reason), is_writable=ctx.channel.is_writable):
            ctx.write_and_flush(OfferRefused(offer.offer_id, offer.subtask, code, reason))
        else:
            ctx.close()


@dataclass(eq=False)
class NetworkOfferedPartitionClient:
    """The ``PartitionRequestClient`` of offered partitions: uses the connection of the offer and never makes another
    one.

    Threading: any thread; every call is one hop to the loop, calls of one thread keep their order.
    """

    handler: OfferedPartitionsHandler
    loop: EventLoopThread

    def request_subpartition(self, channel: RemoteInputChannel) -> None:
        """Request the offered subpartition; it exists already, so the request is never repeated."""
        self._order(self.handler.request_subpartition, channel)

    def order(self, channel: RemoteInputChannel, message: ChannelOrder | None) -> None:
        """Send ``message`` to the producer, after all earlier orders; None: announce the channel's credit."""
        self._order(self.handler.order, channel, message)

    def cancel(self, channel: RemoteInputChannel) -> None:
        """Tell the producer that the channel reads no more."""
        self._order(self.handler.cancel, channel)

    def refuse(self, offer: SubpartitionOffer, code: RefusalCode, reason: str) -> None:
        """Tell the producer that the gate takes nothing (more) from ``offer``, or nothing yet if ``code`` says so."""
        # Queued before the hop: a cancel that the loop sends until then takes the refusal along.
        self.handler.will_refuse(offer, code, reason)
        self._order(self.handler.write_refusals)

    def run_later(self, function: Callable[[], None]) -> None:
        """Run a function on the loop thread."""
        self._order(function)

    def _order(self, order: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        # The loop was closed, and the connection with it; tasks may still recycle buffers and release channels.
        with contextlib.suppress(ResourceClosedError):
            self.loop.execute_threadsafe(partial(order, *args, **kwargs))


@dataclass(eq=False)
class ConnectionRoles(ChannelHandler):
    """The handler right behind the authentication: keeps the handlers of the peer's role only.

    Args:
        of_consumers: the handlers that serve partitions.
        of_gates: the handler that takes offers.
    """

    of_consumers: Sequence[ChannelHandler]
    of_gates: OfferedPartitionsHandler

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        """Remove the handlers of the other role, then pass the event on."""
        # Before ``channel_active`` reaches the handler, which starts the timer of the token by it.
        self.of_gates.identity = ctx.channel.peer_gate
        # Before any message arrives: a holder of a token must never find a handler that serves partitions.
        for handler in (self.of_gates,) if ctx.channel.peer_gate is None else self.of_consumers:
            ctx.pipeline.remove(handler)
        ctx.pipeline.remove(self)
        ctx.fire_channel_active()

"""Receives the offers of producers that dialled this process's gates.

Side:       loop, except ``NetworkOfferedPartitionClient``, which any thread calls.
Invariants: a connection offers to one gate, that of its token.  After an accepted offer this handler is an ordinary
            client; an error of one offer does not touch the others of the connection.  When the token has expired, new
            offers are refused, accepted ones continue, and the connection closes after the last one.  A peer with a
            gate's token reaches no handler that serves partitions; a peer with the secret reaches none that takes
            offers: ``ConnectionRoles`` removes them, and itself, when the connection is active.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeAlias

from netstack.errors import ResourceClosedError
from netstack.handlers.partition_request_client_handler import CreditBasedPartitionRequestClientHandler
from netstack.ids import InputChannelID
from netstack.late import dataclass
from netstack.log_lines import limited_log
from netstack.loop.eventloop import EventLoopThread
from netstack.loop.loop_timers import wall_clock_ms
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext
from netstack.wire.messages import ChannelOrder
from netstack.wire.offer_messages import GateIdentity, OfferRefused, RefusalCode, SubpartitionOffer

if TYPE_CHECKING:
    from netstack.gate.channels.remote_input_channel import RemoteInputChannel


P = ParamSpec("P")

_LOOK_INTERVAL_S = 10.0  # how often a connection with an expired token is checked for open offers
_MS_PER_S = 1000


TakeOffer: TypeAlias = Callable[[GateIdentity, SubpartitionOffer, "NetworkOfferedPartitionClient"], None]
"""Finds the gate of an offer, which requests the offered partition or refuses it; loop thread.  A bad offer is refused,
not raised.
"""


class OfferedPartitionsHandler(CreditBasedPartitionRequestClientHandler):
    """The last handler of a connection that a producer dialled: a request client that also receives offers."""

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
        """The connection is gone."""
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

    def request_subpartition(self, channel: "RemoteInputChannel") -> None:
        """Request the offered subpartition; it exists already, so the request is never repeated."""
        self._order(self.handler.request_subpartition, channel)

    def order(self, channel: "RemoteInputChannel", message: ChannelOrder | None) -> None:
        """Send ``message`` to the producer, behind what was ordered before; None: announce the channel's credit."""
        self._order(self.handler.order, channel, message)

    def cancel(self, channel: "RemoteInputChannel") -> None:
        """The channel reads no more."""
        self._order(self.handler.cancel, channel)

    def refuse(self, offer: SubpartitionOffer, code: RefusalCode, reason: str) -> None:
        """The gate takes nothing (more) from ``offer``, or nothing yet if the code says so."""
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
    """The handler right behind the authentication.

    Args:
        of_consumers: the handlers that serve partitions.
        of_gates: the handler that takes offers.
    """

    of_consumers: Sequence[ChannelHandler]
    of_gates: OfferedPartitionsHandler

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        """Remove the handlers of the other role, then pass the event on."""
        self.of_gates.identity = ctx.channel.peer_gate
        for handler in (self.of_gates,) if ctx.channel.peer_gate is None else self.of_consumers:
            ctx.pipeline.remove(handler)
        ctx.pipeline.remove(self)
        ctx.fire_channel_active()

"""Offers partitions to a gate over a connection that the producer dialled, and tracks the offers.

Side:       loop.
Invariants: every message of the gate about an open offer goes on to the handlers behind, which serve it as any
            consumer's.  When the connection ends, the listener of every open offer is told.
"""

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING

from netstack.errors import ConnectionLostError, NetstackError
from netstack.flow.offer_book import Stage
from netstack.ids import InputChannelID, ResultPartitionID
from netstack.late import dataclass
from netstack.log_lines import caused_by
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext
from netstack.wire import messages
from netstack.wire.messages import ErrorCode, ErrorResponse
from netstack.wire.offer_messages import OfferRefused, RefusalCode, SubpartitionOffer, decode_held

if TYPE_CHECKING:
    from netstack.offering_network import OfferedPartition


class OfferRefusedError(NetstackError):
    """The gate refused an offer, or aborted an accepted one; ``code`` says why."""

    def __init__(self, code: RefusalCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(slots=True, eq=False)
class _Sent:
    """An open offer, who is told of it, and the receivers that asked for it: a gate that restarts asks again."""

    offer: SubpartitionOffer
    listener: "OfferedPartition"
    receivers: list[InputChannelID] = field(default_factory=list)


class OfferingHandler(ChannelHandler):
    """The handler in front of ``PartitionRequestServerHandler`` on a connection that a producer dialled."""

    def __init__(self) -> None:
        self._ctx: ChannelHandlerContext | None = None
        self._offers: dict[tuple[bytes, int], _Sent] = {}
        self._by_partition: dict[tuple[ResultPartitionID, int], _Sent] = {}
        self._by_receiver: dict[InputChannelID, _Sent] = {}

    def __repr__(self) -> str:
        return f"<OfferingHandler {len(self._offers)} offers>"

    @property
    def num_offers(self) -> int:
        """Open offers."""
        return len(self._offers)

    def handler_added(self, ctx: ChannelHandlerContext) -> None:
        """Remember the place in the pipeline."""
        self._ctx = ctx

    def offer(self, offer: SubpartitionOffer, listener: "OfferedPartition") -> None:
        """Send an offer; ``listener`` is told of its progress until ``forget``, or at once that the
        connection is lost.
        """
        ctx = self._ctx
        if ctx is None or not ctx.channel.is_active:
            listener.abort(ConnectionLostError("the connection to the gate ended before the offer was sent"))
            return
        sent = _Sent(offer, listener)
        self._offers[(offer.offer_id, offer.subtask)] = sent
        self._by_partition[(offer.result_partition, offer.subtask)] = sent
        ctx.write_and_flush(offer)

    def forget(self, offer: SubpartitionOffer) -> None:
        """Tell the listener of ``offer`` nothing more."""
        sent = self._offers.pop((offer.offer_id, offer.subtask), None)
        self._by_partition.pop((offer.result_partition, offer.subtask), None)
        for receiver in () if sent is None else sent.receivers:
            del self._by_receiver[receiver]

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        """Pass ``message`` on, then tell the listener of the offer that it concerns."""
        if isinstance(message, OfferRefused):
            self._on_refused(message)
            return
        if isinstance(message, messages.TaskEventRequest) and (num_records := decode_held(message.event)) is not None:
            self._tell(message.receiver, lambda listener, subtask: listener.held(subtask, num_records))
            return
        if isinstance(message, messages.PartitionRequest):
            sent = self._by_partition.get((message.partition, message.first_subpartition))
            # Not for the handlers behind: they would wait for the partition, and a place of the gate with them.
            if sent is None:
                ctx.write_and_flush(
                    ErrorResponse(ErrorCode.PRODUCER_FAILED, "the offer was withdrawn", message.receiver)
                )
                return
            if message.receiver not in self._by_receiver:
                self._by_receiver[message.receiver] = sent
                sent.receivers.append(message.receiver)
        ctx.fire_channel_read(message)
        match message:
            case messages.PartitionRequest():
                self._tell(message.receiver, lambda listener, subtask: listener.advanced(subtask, Stage.REQUESTED))
            case messages.AckAllUserRecordsProcessed(receiver):
                self._tell(receiver, lambda listener, subtask: listener.advanced(subtask, Stage.PROCESSED))
            case messages.CancelPartitionRequest(receiver):
                self._tell(receiver, _left)
            case _:
                pass

    def _tell(self, receiver: InputChannelID, call: Callable[["OfferedPartition", int], None]) -> None:
        """Call the listener of the open offer that ``receiver`` reads, with its subtask."""
        sent = self._by_receiver.get(receiver)
        if sent is not None:
            call(sent.listener, sent.offer.subtask)

    def _on_refused(self, message: OfferRefused) -> None:
        sent = self._offers.get((message.offer_id, message.subtask))
        if sent is None:
            return
        if message.code is RefusalCode.QUEUED:
            sent.listener.advanced(message.subtask, Stage.QUEUED)
        else:
            sent.listener.abort(OfferRefusedError(message.code, message.message))

    def channel_inactive(self, ctx: ChannelHandlerContext) -> None:
        """Tell every listener that its offer is lost."""
        self._fail_all(ConnectionLostError(f"the connection to the gate at {ctx.channel.peer} was lost"))
        ctx.fire_channel_inactive()

    def exception_caught(self, ctx: ChannelHandlerContext, error: Exception) -> None:
        """Tell every listener of an error of the connection."""
        text = f"the connection to the gate at {ctx.channel.peer} failed: {type(error).__name__}: {error}"
        self._fail_all(caused_by(error, ConnectionLostError(text)))
        ctx.fire_exception_caught(error)

    def handler_removed(self, ctx: ChannelHandlerContext) -> None:
        """The connection is gone."""
        self._ctx = None

    def _fail_all(self, error: NetstackError) -> None:
        offers = list(self._offers.values())
        self._offers = {}
        self._by_partition.clear()
        self._by_receiver.clear()
        for sent in offers:
            sent.listener.lost(sent.offer.subtask, error)


def _left(listener: "OfferedPartition", subtask: int) -> None:
    reason = f"subtask {subtask} of the gate stopped to read before it had processed everything"
    listener.left(subtask, OfferRefusedError(RefusalCode.GATE_ENDED, reason))

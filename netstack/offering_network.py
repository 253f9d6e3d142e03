"""The producer's side of gates: the connections that it dials and the partitions that it offers.

Side:       shared.  One thread of the caller writes an ``OfferedPartition`` and waits for it; connections live on the
            loop thread.
Invariants: one connection per gate and TaskManager, shared by all partitions and tokens, made on demand, and closed
            after ``IDLE_S`` without an offer, because a process outlives many gates.  If its token expires soon and a
            younger token is used, a new connection replaces it; the old one stays until its offers end.  Concurrent
            offers wait for one attempt.  A failed attempt is not cached, and does not fail offers with another token.
            Every wait checks the state first and after every wake-up.  Every message of the gate about an open offer
            goes on to the next handlers, which serve it as any consumer's; when the connection ends, every open offer
            is told.
Units:      seconds.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Final

from netstack.config import SecurityConfig, TlsConfig
from netstack.environment import NetworkEnvironment
from netstack.errors import ConnectionLostError, NetstackError, ResourceClosedError
from netstack.flow.offer_book import Stage
from netstack.handlers.partition_request_queue import PartitionRequestQueue
from netstack.handlers.partition_request_server_handler import PartitionRequestServerHandler
from netstack.ids import ConnectionID, InputChannelID, ResultPartitionID
from netstack.late import dataclass
from netstack.log_lines import caused_by
from netstack.loop.eventloop import EventLoopThread, wall_clock_ms
from netstack.partition.result_partition import ResultPartition
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext
from netstack.transport.message_codec import MessageDecoder, MessageEncoder
from netstack.transport.network_channel import NetworkChannel
from netstack.transport.server import connect
from netstack.wire import messages
from netstack.wire.message_bytes import OFFERING_MESSAGE_IDS
from netstack.wire.messages import ErrorCode, ErrorResponse
from netstack.wire.offer_messages import GateIdentity, OfferRefused, RefusalCode, SubpartitionOffer, decode_held

# Longer than the minute between two micro-batches; short, because a TaskManager accepts 1,024 connections.
IDLE_S: Final = 120.0
_LOOK_INTERVAL_S: Final = 10.0
# Gates refuse offers over a connection with an expired token; the clocks of two machines may differ by this much.
_EXPIRES_SOON_MS: Final = 300_000


class OfferRefusedError(NetstackError):
    """The gate refused an offer, or aborted an accepted one; ``code`` names the reason."""

    def __init__(self, code: RefusalCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(slots=True, eq=False)
class _Sent:
    """An open offer, its listener, and the receivers that asked for it: a gate that restarts asks again.

    Threading: the loop thread.
    """

    offer: SubpartitionOffer
    listener: "OfferedPartition"
    receivers: list[InputChannelID] = field(default_factory=list)


class OfferingHandler(ChannelHandler):
    """The handler in front of ``PartitionRequestServerHandler`` on a connection that a producer dialled.

    Threading: the loop thread.
    """

    def __init__(self) -> None:
        self._ctx: ChannelHandlerContext | None = None
        self._offers: dict[tuple[bytes, int], _Sent] = {}
        self._by_partition: dict[tuple[ResultPartitionID, int], _Sent] = {}
        self._by_receiver: dict[InputChannelID, _Sent] = {}

    def __repr__(self) -> str:
        return f"<OfferingHandler {len(self._offers)} offers>"

    @property
    def num_offers(self) -> int:
        """The number of open offers."""
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
        """Forget the context: the connection is gone."""
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


@dataclass(frozen=True, slots=True)
class GateAccess:
    """One gate and the token for it; the token is never part of a ``repr`` or a message."""

    gate: GateIdentity
    token: bytes

    def __repr__(self) -> str:
        return f"<GateAccess to {self.gate}>"


@dataclass(slots=True, eq=False)
class _Attempt:
    """A connection with one token, being made or ready."""

    access: GateAccess
    handler: OfferingHandler
    task: "asyncio.Task[NetworkChannel]"
    used_s: float

    @property
    def is_over(self) -> bool:
        """Whether the attempt failed, or its connection has ended."""
        if not self.task.done():
            return False
        # no wait: it is done
        return self.task.cancelled() or self.task.exception() is not None or not self.task.result().is_active


@dataclass(eq=False)
class OfferingNetwork:
    """The connections of one process to the gates that it offers partitions to.

    Threading: ``create_partition`` on any thread; everything else on the loop thread.

    Args:
        environment: has the partitions.
        loop: of ``environment``.
        clock: monotonic seconds, for idle connections.
        clock_ms: the wall clock, for tokens.
        tls: certificates for TaskManagers on other machines; the handshake with the token is then inside TLS.  None:
            loopback only.
    """

    environment: NetworkEnvironment
    loop: EventLoopThread
    clock: Callable[[], float] = time.monotonic
    clock_ms: Callable[[], int] = wall_clock_ms
    tls: TlsConfig | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self._attempts: dict[tuple[ConnectionID, bytes, str], _Attempt] = {}
        self._retired: list[_Attempt] = []  # replaced by younger ones, but with offers that have not ended
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<OfferingNetwork {len(self._attempts)} connections>"

    @property
    def num_connections(self) -> int:
        """The number of connections and attempts."""
        return len(self._attempts) + len(self._retired)

    async def offer(
        self,
        access: GateAccess,
        places: Sequence[tuple[ConnectionID, SubpartitionOffer]],
        offered: "OfferedPartition",
        timeout_s: float,
    ) -> None:
        """Offer a partition to subtasks of a gate; ``offered`` is told of the progress.

        A producer that waits for room at one subtask must not hold up another one that waits for it at a second: offer
        to the first subtask alone, and to the others when that has requested the partition.

        Raises:
            AuthenticationError: a TaskManager does not accept the token.
            ConnectError: a TaskManager cannot be reached within ``timeout_s``.
            ResourceClosedError: ``close`` was called, before or meanwhile.
        """
        # waits for connections to the gate; ended by the timeout of the offer
        handlers = await asyncio.gather(*(self._handler(access, address, timeout_s) for address, _ in places))
        for handler, (_, offer) in zip(handlers, places, strict=True):
            offered.over(handler, offer)
            handler.offer(offer, offered)

    async def _handler(self, access: GateAccess, address: ConnectionID, timeout_s: float) -> OfferingHandler:
        key = (address, access.gate.job_id, access.gate.name)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            self._check_open(access)
            attempt = self._attempts.get(key)
            if attempt is not None and self._is_outlived(attempt, access):
                self._retired.append(attempt)
                attempt = None
            if attempt is None or attempt.is_over:
                # Waiting for another token's attempt may have taken some of the time.
                handler = OfferingHandler()
                connecting = self._connect(access, address, max(0.0, deadline - loop.time()), handler)
                task = loop.create_task(connecting, name=f"offer to {address}")
                attempt = self._attempts[key] = _Attempt(access, handler, task, self.clock())
                self._look_later()
            attempt.used_s = self.clock()
            try:
                # waits for a connection to the gate; ended by the timeout of the offer that began it
                await asyncio.shield(attempt.task)
                self._check_open(access)  # else the connection is about to be closed
                return attempt.handler
            except asyncio.CancelledError:
                current = asyncio.current_task()
                assert current is not None, "a coroutine runs in a task"
                if not current.cancelling():  # only the attempt was cancelled, by close()
                    self._check_open(access)
                raise
            except NetstackError:
                if self._attempts.get(key) is attempt:
                    del self._attempts[key]
                if attempt.access == access:  # else it was made with another token: try with this one
                    raise

    def _check_open(self, access: GateAccess) -> None:
        if self._is_closed:
            raise ResourceClosedError(
                f"no partition can be offered to {access.gate}: the connections of producers were closed"
            )

    def _is_outlived(self, attempt: _Attempt, access: GateAccess) -> bool:
        """Whether the token of ``attempt`` expires soon and that of ``access`` does not."""
        expires_ms = attempt.access.gate.expires_ms
        return expires_ms < access.gate.expires_ms and expires_ms - _EXPIRES_SOON_MS < self.clock_ms()

    def close_idle(self) -> None:
        """Close connections without an offer for ``IDLE_S``, and forget ended ones."""
        now_s = self.clock()
        for key, attempt in list(self._attempts.items()):
            if self._has_ended(attempt, now_s):
                del self._attempts[key]
        self._retired = [attempt for attempt in self._retired if not self._has_ended(attempt, now_s)]

    def _has_ended(self, attempt: _Attempt, now_s: float) -> bool:
        """Whether the attempt can be forgotten; closes its connection if it is idle."""
        if not attempt.task.done():
            return False
        if attempt.is_over:
            return True
        if attempt.handler.num_offers:
            attempt.used_s = now_s
        if now_s - attempt.used_s < IDLE_S:
            return False
        attempt.task.result().close()  # no wait: it is done
        return True

    def _look_later(self) -> None:
        if self._timer is None and self.num_connections and not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_INTERVAL_S, self._look)

    def _look(self) -> None:
        self._timer = None
        self.close_idle()
        self._look_later()

    async def _connect(
        self, access: GateAccess, address: ConnectionID, timeout_s: float, handler: OfferingHandler
    ) -> NetworkChannel:
        environment = self.environment
        security = (
            SecurityConfig.hmac(access.token) if self.tls is None else SecurityConfig.mutual_tls(self.tls, access.token)
        )
        config = replace(environment.config, security=security)

        def handlers() -> tuple[ChannelHandler, ...]:
            queue = PartitionRequestQueue(config, self.loop)
            server = PartitionRequestServerHandler(config, self.loop, environment.partition_manager, queue)
            decoder = MessageDecoder(config, accepted_ids=OFFERING_MESSAGE_IDS)
            return (MessageEncoder(), decoder, handler, server, queue)

        return await connect(config, address, handlers, timeout_s, access.gate)

    async def close(self) -> None:
        """Close every connection; open offers fail."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = [attempt.task for attempt in [*self._attempts.values(), *self._retired]]
        self._attempts = {}
        self._retired = []
        for task in tasks:
            task.cancel()
        # waits for cancelled attempts to connect; ended by their timeouts at the latest
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, NetworkChannel):
                result.close()
                await result.wait_closed()  # waits for the connection to close; ended by close_timeout_s


class OfferedPartition:
    """A partition that is offered to every subtask of a gate.

    Threading: one thread of the caller writes and waits; the loop thread calls what ``OfferingHandler`` tells.
    Ownership: owns the partition; ``close`` closes it.
    Invariants: a subtask goes OFFERED (-> QUEUED) -> REQUESTED -> PROCESSED -> ENDED and never back.  The first failure
        is kept.  An offer cannot fail once all subtasks have ended.
    """

    def __init__(self, partition: ResultPartition, num_subtasks: int) -> None:
        self.partition = partition
        self._changed = threading.Condition()
        self.failure: Exception | None = None  # Why the offer failed; guarded by _changed, read anywhere.
        # Guarded by _changed, written by the loop thread alone.
        self._stages = [Stage.OFFERED] * num_subtasks
        self._held = [0] * num_subtasks
        self._sent: list[tuple[OfferingHandler, SubpartitionOffer]] = []  # Loop thread only.

    def __repr__(self) -> str:
        failed = "" if self.failure is None else f", failed: {self.failure}"
        return f"<OfferedPartition {[stage.name for stage in self._stages]}{failed}, {self.partition!r}>"

    def late_subtasks(self, stage: Stage) -> list[int]:
        """List the subtasks that have not reached ``stage``; any thread."""
        with self._changed:
            return [subtask for subtask, reached in enumerate(self._stages) if reached < stage]

    def wait_for(self, stage: Stage, timeout_s: float | None, num_first: int | None = None) -> bool:
        """Wait until the first ``num_first`` subtasks, or all, have reached ``stage``; False if that takes longer than
        ``timeout_s``.

        Raises:
            NetstackError: the offer failed.
        """
        is_reached = self._wait(lambda: min(self._stages[:num_first]) >= stage, timeout_s)
        if self.failure is not None:
            raise self.failure
        return is_reached

    def _wait(self, is_reached: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until ``is_reached`` or the offer failed; returns whether it is reached."""
        with self._changed:
            # waits for the gate; ended by its answer, an error, or a connection without heartbeats
            self._changed.wait_for(lambda: self.failure is not None or is_reached(), timeout_s)
            return is_reached()

    def num_held(self) -> list[int]:
        """How many of its records each subtask will never need again; any thread."""
        with self._changed:
            return self._held.copy()

    def wait_until_held(self, num_records: Sequence[int], timeout_s: float) -> bool:
        """Wait until each subtask holds at least so many of its records for good; False if that takes longer than
        ``timeout_s``.

        Raises:
            NetstackError: the offer failed.
        """
        is_held = self._wait(
            lambda: all(held >= wanted for held, wanted in zip(self._held, num_records, strict=True)), timeout_s
        )
        if not is_held and self.failure is not None:
            raise self.failure
        return is_held

    def abort(self, error: Exception) -> None:
        """Fail the partition with ``error``, which the gate is told; any thread, any number of times."""
        self._fail(error)
        if self.failure is None:  # every subtask has its end
            self.partition.fail(error)

    # ---------------------------------------------------------------- loop thread

    def over(self, handler: OfferingHandler, offer: SubpartitionOffer) -> None:
        """Remember an offer that is about to be sent over the connection of ``handler``."""
        self._sent.append((handler, offer))

    def withdraw(self) -> None:
        """Stop listening to the offers; the connections stay."""
        for handler, offer in self._sent:
            handler.forget(offer)
        self._sent.clear()

    def advanced(self, subtask: int, stage: Stage) -> None:
        """Note that a subtask of the gate has reached ``stage``; an earlier stage than its own changes nothing."""
        with self._changed:
            self._stages[subtask] = max(self._stages[subtask], stage)
            self._changed.notify_all()

    def held(self, subtask: int, num_records: int) -> None:
        """Note that a subtask will never again need the first ``num_records`` of its records."""
        with self._changed:
            self._held[subtask] = max(self._held[subtask], num_records)
            self._changed.notify_all()

    def left(self, subtask: int, error: NetstackError) -> None:
        """End a subtask that stopped reading after it had processed every record; otherwise the offer failed."""
        if self._stages[subtask] >= Stage.PROCESSED:
            self.advanced(subtask, Stage.ENDED)
        else:
            self._fail(error)

    def lost(self, subtask: int, error: NetstackError) -> None:
        """Fail the offer because the connection to a subtask is lost, unless that subtask had ended.

        PROCESSED is not enough: the producer cannot know whether the subtask counted the partition.
        """
        if self._stages[subtask] is not Stage.ENDED:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Note that the offer failed; a later failure does not replace the first one, and none counts after the end;
        any thread.
        """
        with self._changed:
            if self.failure is None and min(self._stages) is not Stage.ENDED:
                self.failure = error
            failure = self.failure
            self._changed.notify_all()
        if failure is not None and not self.partition.is_released:
            self.partition.fail(failure)  # wakes a blocked writer

"""Receives buffers for all input channels of one connection and announces their credit.

Side:       loop.  Hot path.
Invariants: a payload is written once, into a buffer of its channel; one channel's error never touches the others; an unknown receiver
            is told to stop once.
Source:     Flink ``CreditBasedPartitionRequestClientHandler``.
Absent:     floating buffers (``BacklogAnnouncement`` is remembered only), ``NewBufferSize``.
"""

from collections import deque
from functools import partial
from typing import assert_never

import structlog

from netstack.buffer.segment import NetworkBuffer
from netstack.buffer.wakeups import run_all
from netstack.channel.handler import ChannelHandler, ChannelHandlerContext
from netstack.errors import (
    ConnectionLostError,
    LocalProtocolError,
    NetstackError,
    PartitionNotFoundError,
    ProducerFailedError,
    RemoteProtocolError,
    TransportError,
)
from netstack.gate.remote_channel import RemoteInputChannel
from netstack.ids import InputChannelID
from netstack.wire.messages import (
    AckAllUserRecordsProcessed,
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
    CancelPartitionRequest,
    DataType,
    ErrorCode,
    ErrorResponse,
    PartitionRequest,
)

_log = structlog.get_logger(__name__)


class CreditBasedPartitionRequestClientHandler(ChannelHandler):
    """The last handler of the client's pipeline: owns the connection's map of input channels."""

    def __init__(self) -> None:
        self._channels: dict[InputChannelID, RemoteInputChannel] = {}
        self._cancelled: deque[InputChannelID] = deque(maxlen=1024)  # told to stop; bounded, an older one would just be told again
        self._with_credit: deque[RemoteInputChannel] = deque()
        self._ctx: ChannelHandlerContext | None = None
        self.has_ended = False
        self._error: NetstackError | None = None  # the first error of the connection; later channels get it at once

    def __repr__(self) -> str:
        return f"<ClientHandler {len(self._channels)} channels{'' if self._error is None else f', failed: {self._error}'}>"

    def handler_added(self, ctx: ChannelHandlerContext) -> None:
        """Remember the place in the pipeline."""
        self._ctx = ctx

    def handler_removed(self, ctx: ChannelHandlerContext) -> None:
        """The connection is gone."""
        self._ctx = None
        self.has_ended = True

    # ---------------------------------------------------------------- orders of the clients

    def request_subpartition(self, channel: RemoteInputChannel) -> None:
        """Ask for the channel's subpartition, with all its exclusive buffers as credit."""
        if self._error is not None:
            channel.on_error(self._error)
            return
        self._channels[channel.channel_id] = channel
        index = channel.subpartition
        try:
            self._write(PartitionRequest(channel.partition_id, index, index, channel.channel_id, channel.initial_credit))
        except LocalProtocolError as error:  # the encoder refused it; nothing of it is on its way
            self._channels.pop(channel.channel_id, None)
            channel.on_error(error)

    def notify_credit_available(self, channel: RemoteInputChannel) -> None:
        """The channel recycled buffers; announce them as soon as the socket takes it."""
        self._with_credit.append(channel)
        self._write_credits()

    def acknowledge_all_records_processed(self, channel: RemoteInputChannel) -> None:
        """Tell the producer that everything up to the end of data was processed."""
        if channel.channel_id in self._channels:
            self._write(AckAllUserRecordsProcessed(channel.channel_id))

    def cancel(self, channel: RemoteInputChannel) -> None:
        """Stop the channel's flow; data still under way is dropped when it arrives."""
        if self._channels.pop(channel.channel_id, None) is not None:
            self._cancel_once(channel.channel_id)

    @property
    def num_channels(self) -> int:
        """How many channels the connection carries."""
        return len(self._channels)

    # ---------------------------------------------------------------- inbound

    def allocate(self, receiver: InputChannelID, size_bytes: int, data_type: DataType, *, is_compressed: bool) -> NetworkBuffer | None:
        """For the decoder: a buffer of the channel that the payload is for; None if there is no such channel, or it has none."""
        channel = self._channels.get(receiver)
        return None if channel is None else channel.allocate(size_bytes, data_type, is_compressed=is_compressed)

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        """Serve one message of the server."""
        match message:
            case BufferResponse():
                self._on_buffer(message)
            case ErrorResponse():
                self._on_error_response(ctx, message)
            case BacklogAnnouncement(receiver, backlog):
                channel = self._channels.get(receiver)
                if channel is not None:
                    channel.on_sender_backlog(backlog)
            case _:
                raise RemoteProtocolError(f"a client does not serve {type(message).__name__}")

    def _on_buffer(self, response: BufferResponse) -> None:
        channel = self._channels.get(response.receiver)
        if channel is None or channel.is_released:
            # Forgotten at once: an acknowledgement of it that is still under way to us would reach the server after the cancel.
            self._channels.pop(response.receiver, None)
            self._cancel_once(response.receiver)
            if response.buffer is not None:
                response.buffer.recycle()
            return
        try:
            channel.on_response(response)
        except NetstackError as error:
            # The error of one channel: tell its task and the sender, leave the connection alone.
            self._fail_channel(channel, error)

    def _on_error_response(self, ctx: ChannelHandlerContext, response: ErrorResponse) -> None:
        error = _error_of(response, ctx.channel.peer)
        if response.receiver is None:
            self.fail_all(error)
            ctx.close()
            return
        channel = self._channels.pop(response.receiver, None)
        if channel is not None:
            # The server keeps the reader until it hears that nothing more of ours is under way.
            self._cancel_once(response.receiver)
            channel.on_error(error)

    def channel_writability_changed(self, ctx: ChannelHandlerContext) -> None:
        """Credits may have waited for the socket."""
        self._write_credits()
        ctx.fire_channel_writability_changed()

    def channel_inactive(self, ctx: ChannelHandlerContext) -> None:
        """The connection ended: every channel that still reads learns it."""
        self.fail_all(
            ConnectionLostError(
                f"connection unexpectedly closed by the remote task manager at {ctx.channel.peer}; it may have been lost or stopped"
            )
        )
        ctx.fire_channel_inactive()

    def exception_caught(self, ctx: ChannelHandlerContext, error: Exception) -> None:
        """Whatever reaches this place concerns all channels."""
        _log.warning("connection failed", peer=ctx.channel.peer, error=str(error), kind=type(error).__name__)
        if not isinstance(error, NetstackError):
            wrapped = TransportError(f"connection to {ctx.channel.peer} failed: {type(error).__name__}: {error}")
            wrapped.__cause__ = error
            error = wrapped
        self.fail_all(error)
        ctx.close()

    def fail_all(self, error: NetstackError) -> None:
        """End every channel with ``error``, and every later one too."""
        if self._error is None:
            self._error = error
        channels, self._channels = list(self._channels.values()), {}
        self._with_credit.clear()
        run_all([partial(channel.on_error, error) for channel in channels])

    # ---------------------------------------------------------------- helpers

    def _write(self, message: PartitionRequest | AckAllUserRecordsProcessed | CancelPartitionRequest) -> None:
        if self._ctx is not None and self._ctx.channel.is_active:
            self._ctx.write_and_flush(message)

    def _write_credits(self) -> None:
        ctx = self._ctx
        if ctx is None or not self._with_credit:
            return
        waiting = self._with_credit
        has_written = False
        while waiting and ctx.channel.is_writable:
            channel = waiting.popleft()
            if channel.is_released or channel.channel_id not in self._channels:
                continue
            credit = channel.take_unannounced_credit()
            if credit > 0:
                ctx.write(AddCredit(channel.channel_id, credit))
                has_written = True
        if has_written:
            ctx.flush()

    def _cancel_once(self, receiver: InputChannelID) -> None:
        if receiver not in self._cancelled:
            self._cancelled.append(receiver)
            self._write(CancelPartitionRequest(receiver))

    def _fail_channel(self, channel: RemoteInputChannel, error: NetstackError) -> None:
        self._channels.pop(channel.channel_id, None)
        self._cancel_once(channel.channel_id)
        channel.on_error(error)


def _error_of(response: ErrorResponse, peer: str) -> NetstackError:
    text = f"{response.message} (reported by {peer})"
    match response.code:
        case ErrorCode.PARTITION_NOT_FOUND:
            return PartitionNotFoundError(text)
        case ErrorCode.PRODUCER_FAILED:
            return ProducerFailedError(text)
        case ErrorCode.PROTOCOL | ErrorCode.UNKNOWN_RECEIVER | ErrorCode.SUBPARTITION_TAKEN | ErrorCode.LIMIT_EXCEEDED:
            return LocalProtocolError(text)
        case ErrorCode.UNKNOWN | ErrorCode.INTERNAL | ErrorCode.UNKNOWN_TASK_EVENT_RECEIVER | ErrorCode.AUTHENTICATION:
            return TransportError(f"fatal error at the remote task manager: {text}")
        case _:
            assert_never(response.code)

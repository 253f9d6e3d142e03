"""Understands what consumers ask of this TaskManager.

Side:   loop.
Source: Flink ``PartitionRequestServerHandler``, with the producer-side listener for partitions that are not registered yet (1.18+):
        a request waits ``partition_request_timeout_s`` for its partition, then is answered with PartitionNotFound.
Errors: scoped.  What concerns one receiver is answered to that receiver and the connection goes on; an unknown receiver or a broken
        frame is answered without receiver, and the connection closes.
Absent: task events, ``ResumeConsumption``, ``NewBufferSize``: refused with an error, never ignored.
"""

import contextlib

import structlog

from netstack.channel.handler import ChannelHandler, ChannelHandlerContext
from netstack.config import NetstackConfig
from netstack.errors import LocalProtocolError, NetstackError, PartitionNotFoundError, RemoteProtocolError, ResourceClosedError
from netstack.eventloop import EventLoopThread
from netstack.handlers.request_queue import PartitionRequestQueue
from netstack.handlers.view_reader import CreditBasedSequenceNumberingViewReader
from netstack.ids import ResultPartitionID
from netstack.partition.manager import ResultPartitionManager
from netstack.wire.messages import (
    AckAllUserRecordsProcessed,
    AddCredit,
    CancelPartitionRequest,
    CloseRequest,
    ErrorCode,
    ErrorResponse,
    PartitionRequest,
)

_log = structlog.get_logger(__name__)


class PartitionRequestServerHandler(ChannelHandler):
    """Turns requests into calls of the queue behind it."""

    def __init__(
        self, config: NetstackConfig, loop: EventLoopThread, manager: ResultPartitionManager, queue: PartitionRequestQueue
    ) -> None:
        self._timeout_s = config.partition_request_timeout_s
        self._loop = loop
        self._manager = manager
        self._queue = queue

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        """Serve one message."""
        match message:
            case AddCredit(receiver, credit):
                self._queue.add_credit(receiver, credit)
            case PartitionRequest():
                self._serve_request(ctx, message)
            case CancelPartitionRequest(receiver):
                self._queue.cancel(receiver)
            case AckAllUserRecordsProcessed(receiver):
                reader = self._queue.reader(receiver)
                if reader is None:
                    raise RemoteProtocolError(f"an acknowledgement of the unknown receiver {receiver.hex()}")
                reader.acknowledge_all_data_processed()
            case CloseRequest():
                self._queue.release_all()
                ctx.close()
            case _:
                raise RemoteProtocolError(f"a server does not serve {type(message).__name__}")

    def exception_caught(self, ctx: ChannelHandlerContext, error: Exception) -> None:
        """Log what the peer did wrong; the queue answers and closes."""
        _log.warning("connection failed", peer=ctx.channel.peer, error=str(error), kind=type(error).__name__)
        ctx.fire_exception_caught(error)

    def _serve_request(self, ctx: ChannelHandlerContext, request: PartitionRequest) -> None:
        reader = CreditBasedSequenceNumberingViewReader(request.receiver, request.credit, self._queue)
        self._queue.add_reader(reader)
        try:
            if request.first_subpartition != request.last_subpartition:
                raise LocalProtocolError(
                    f"subpartitions {request.first_subpartition} to {request.last_subpartition} of one request: ranges are not served"
                )
            self._open_view(ctx, request, reader)
        except NetstackError as error:
            self._refuse(ctx, request, error)

    def _open_view(self, ctx: ChannelHandlerContext, request: PartitionRequest, reader: CreditBasedSequenceNumberingViewReader) -> None:
        def on_partition() -> None:
            # A loop that was closed serves nobody; the registration goes on without it.
            with contextlib.suppress(ResourceClosedError):
                self._loop.execute_threadsafe(self._on_partition_registered, ctx, request, reader)

        view = self._manager.create_view_or_listen(request.partition, request.first_subpartition, reader, on_partition)
        if view is not None:
            reader.set_view(view)
            self._queue.enqueue_available_reader(reader)
            return
        timer = self._loop.loop.call_later(self._timeout_s, self._on_timeout, ctx, request, reader)

        def stop_waiting() -> None:
            timer.cancel()
            self._manager.cancel_listener(request.partition, on_partition)

        reader.on_release = stop_waiting

    def _on_partition_registered(
        self, ctx: ChannelHandlerContext, request: PartitionRequest, reader: CreditBasedSequenceNumberingViewReader
    ) -> None:
        if reader.is_released:
            return
        if reader.on_release is not None:
            reader.on_release()
            reader.on_release = None
        try:
            self._open_view(ctx, request, reader)
        except NetstackError as error:
            self._refuse(ctx, request, error)

    def _on_timeout(self, ctx: ChannelHandlerContext, request: PartitionRequest, reader: CreditBasedSequenceNumberingViewReader) -> None:
        if not reader.is_released:
            self._refuse(ctx, request, _not_registered(request.partition, self._timeout_s))

    def _refuse(self, ctx: ChannelHandlerContext, request: PartitionRequest, error: NetstackError) -> None:
        _log.warning("partition request refused", peer=ctx.channel.peer, partition=str(request.partition), error=str(error))
        self._queue.cancel(request.receiver)
        # After the manager's shutdown no partition is to be found; that is no mistake of the consumer.
        is_gone = isinstance(error, PartitionNotFoundError | ResourceClosedError)
        code = ErrorCode.PARTITION_NOT_FOUND if is_gone else ErrorCode.SUBPARTITION_TAKEN
        ctx.write_and_flush(ErrorResponse(code, str(error), request.receiver))


def _not_registered(partition: ResultPartitionID, timeout_s: float) -> PartitionNotFoundError:
    return PartitionNotFoundError(f"partition {partition} was not registered at its producer within {timeout_s:g} s")

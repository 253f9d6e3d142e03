"""Sends the buffers of all readers of one connection, in strict turns, as credit and writability allow.

Side:       loop.  ``notify_reader_non_empty_threadsafe`` is the one door for other threads.  Hot path.
Invariants: a reader stands in the ready queue at most once; data buffers sent to a receiver never exceed the credit it granted; one pass
            hands at most ``max_write_batch_bytes`` to the transport (a fast peer never pauses a writer, which would starve its own loop).
Source:     Flink ``PartitionRequestQueue``.  Flink writes one message per completion callback; here one gather write takes as many
            buffers as the high watermark allows, still one buffer per reader and turn.
Absent:     backlog announcements, ``ResumeConsumption``, ``NewBufferSize``.
"""

import contextlib

from netstack.buffer.wakeups import run_all
from netstack.channel.handler import ChannelHandler, ChannelHandlerContext
from netstack.channel.message_codec import OutboundBuffer
from netstack.config import NetstackConfig
from netstack.errors import NetstackError, ProducerFailedError, RemoteProtocolError, ResourceClosedError
from netstack.eventloop import EventLoopThread
from netstack.flow.ready_queue import ReadyQueue
from netstack.handlers.view_reader import CreditBasedSequenceNumberingViewReader
from netstack.ids import InputChannelID
from netstack.wire.codec import BUFFER_RESPONSE_HEADER_BYTES
from netstack.wire.messages import ErrorCode, ErrorResponse


class PartitionRequestQueue(ChannelHandler):
    """The last handler of the server's pipeline: owns every reader of its connection."""

    def __init__(self, config: NetstackConfig, loop: EventLoopThread) -> None:
        self._max_batch_bytes = config.max_write_batch_bytes
        self._loop = loop
        self._readers: dict[InputChannelID, CreditBasedSequenceNumberingViewReader] = {}
        self._ready: ReadyQueue[CreditBasedSequenceNumberingViewReader] = ReadyQueue()
        self._ctx: ChannelHandlerContext | None = None
        self._is_writing = False
        self._is_continuation_scheduled = False
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<PartitionRequestQueue {len(self._readers)} readers, {len(self._ready)} ready>"

    def handler_added(self, ctx: ChannelHandlerContext) -> None:
        """Remember the place in the pipeline."""
        self._ctx = ctx

    # ---------------------------------------------------------------- readers

    def add_reader(self, reader: CreditBasedSequenceNumberingViewReader) -> None:
        """Take over a new reader.

        Raises:
            RemoteProtocolError: the receiver id is in use on this connection.
        """
        if reader.receiver in self._readers:
            raise RemoteProtocolError(f"receiver {reader.receiver.hex()} has requested a subpartition on this connection already")
        self._readers[reader.receiver] = reader

    def reader(self, receiver: InputChannelID) -> CreditBasedSequenceNumberingViewReader | None:
        """The reader of ``receiver``, if there is one."""
        return self._readers.get(receiver)

    def notify_reader_non_empty_threadsafe(self, reader: CreditBasedSequenceNumberingViewReader) -> None:
        """Some thread made data available; hop to the loop."""
        # A loop that was closed sends nothing more, and its producers clean up without it.
        with contextlib.suppress(ResourceClosedError):
            self._loop.execute_threadsafe(self.enqueue_available_reader, reader)

    def enqueue_available_reader(self, reader: CreditBasedSequenceNumberingViewReader) -> None:
        """Give ``reader`` its place in the queue if it may send, and start to write if the queue was empty."""
        if reader.is_released or self._is_closed or reader in self._ready or not reader.is_available():
            return
        if self._ready.add(reader) and not self._is_continuation_scheduled:
            self._write_available()

    def add_credit(self, receiver: InputChannelID, credit: int) -> None:
        """The receiver granted more; after its producer failed that goes nowhere: the grant was under way when it was told.

        Raises:
            RemoteProtocolError: no such receiver, or the credit is out of range.
        """
        reader = self._readers.get(receiver)
        if reader is None:
            raise RemoteProtocolError(f"credit for the unknown receiver {receiver.hex()}")
        if reader.is_released:
            return
        reader.credit.grant(credit)
        self.enqueue_available_reader(reader)

    def cancel(self, receiver: InputChannelID) -> None:
        """The receiver wants no more; unknown receivers are tolerated, they may just have ended."""
        reader = self._readers.pop(receiver, None)
        if reader is not None:
            self._ready.discard(reader)
            reader.release()

    def release_all(self) -> None:
        """Release every reader; nothing is sent any more."""
        self._is_closed = True
        self._ready.clear()
        readers, self._readers = list(self._readers.values()), {}
        run_all([reader.release for reader in readers])

    # ---------------------------------------------------------------- writing

    def _write_available(self) -> None:
        ctx = self._ctx
        if ctx is None or self._is_writing or self._is_closed:
            return
        self._is_writing = True
        try:
            self._write_batch(ctx)
        except Exception as error:  # noqa: BLE001 - a pass is often a function of the loop, which would only log: all readers would hang
            ctx.catch(error)
        finally:
            self._is_writing = False

    def _write_batch(self, ctx: ChannelHandlerContext) -> None:
        channel, ready = ctx.channel, self._ready
        budget = self._max_batch_bytes
        while budget > 0:
            if not channel.is_writable:
                ctx.flush()
                if not channel.is_writable:
                    return  # channel_writability_changed comes back here
            reader = ready.pop()
            if reader is None:
                break
            budget -= self._write_next(ctx, reader)
        ctx.flush()
        if len(ready) and not self._is_continuation_scheduled:
            self._is_continuation_scheduled = True
            self._loop.execute_threadsafe(self._continue)

    def _continue(self) -> None:
        self._is_continuation_scheduled = False
        self._write_available()

    def _write_next(self, ctx: ChannelHandlerContext, reader: CreditBasedSequenceNumberingViewReader) -> int:
        next_one = reader.next_buffer()
        if next_one is None:
            cause = reader.failure_cause
            if cause is not None:
                # It stays known until the receiver cancels it: what the receiver sent before it heard of the failure is no mistake.
                reader.release()
                ctx.write(ErrorResponse(ErrorCode.PRODUCER_FAILED, _describe(cause), reader.receiver))
            return 0
        if reader.is_available():
            self._ready.add(reader)
        buffer = next_one.buffer
        # The buffer's size is read first: once written it may be recycled at any moment.
        size = buffer.size
        ctx.write(OutboundBuffer(reader.receiver, 0, next_one.sequence_number, next_one.backlog, buffer))
        return size + BUFFER_RESPONSE_HEADER_BYTES

    # ---------------------------------------------------------------- events of the channel

    def channel_writability_changed(self, ctx: ChannelHandlerContext) -> None:
        """Go on writing once the transport took enough."""
        if ctx.channel.is_writable:
            self._write_available()
        ctx.fire_channel_writability_changed()

    def channel_inactive(self, ctx: ChannelHandlerContext) -> None:
        """The connection ended: every subpartition it read is consumed."""
        self.release_all()
        ctx.fire_channel_inactive()

    def exception_caught(self, ctx: ChannelHandlerContext, error: Exception) -> None:
        """Tell the peer why, then close: an error that reaches this place concerns the whole connection."""
        self.release_all()
        code = ErrorCode.PROTOCOL if isinstance(error, RemoteProtocolError) else ErrorCode.INTERNAL
        ctx.write_and_flush(ErrorResponse(code, _describe(error), None))
        ctx.close()


def _describe(error: BaseException) -> str:
    if isinstance(error, ProducerFailedError | NetstackError):
        return str(error)
    return f"{type(error).__name__}: {error}"

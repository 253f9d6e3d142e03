"""Sends the buffers of all readers of one connection, in strict turns, as credit and writability allow.

Side:       loop.
Invariants: a reader is in the ready queue at most once.  Data buffers sent to a receiver never exceed its credit.  One
            pass hands at most ``max_write_batch_bytes`` to the transport, because a peer that reads fast would
            otherwise never let the loop do other work.  Replies to a peer that does not read are bounded; announcements
            of backlogs wait until the peer reads.
Source:     Flink ``PartitionRequestQueue``.  Flink writes one message per completion callback.  Here a gather write
            takes up to ``max_gather_bytes``: one buffer per reader and turn while several are ready, or a run of whole
            segments of a single reader.  Writability is checked before each gather write.
Errors:     an error of one receiver ends at most that receiver's reader.  A wrong message in a good frame is answered
            without receiver, and the connection stays open (Flink 2.3).  A broken stream is answered, and the
            connection closes.
"""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from netstack.availability import run_all
from netstack.config import NetstackConfig
from netstack.errors import NetstackError, ProducerFailedError, RemoteProtocolError, ResourceClosedError
from netstack.flow.admission import RateLimit, ReplyBudget
from netstack.handlers.view_reader import SEVERAL, CreditBasedSequenceNumberingViewReader, ViewReaderStatistics
from netstack.ids import InputChannelID
from netstack.log_lines import LogLines, limited_log
from netstack.loop.eventloop import EventLoopThread
from netstack.partition.result_subpartition import ResultSubpartitionView
from netstack.transport.direct_writer import MAX_DIRECT_BYTES, DirectWriter
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext
from netstack.transport.message_codec import OutboundBuffer, OutboundRun, encode_buffer
from netstack.wire.frame_decoder import FrameSeal
from netstack.wire.message_bytes import BUFFER_RESPONSE_HEADER_BYTES
from netstack.wire.messages import (
    MAX_SEQUENCE_NUMBER,
    BacklogAnnouncement,
    DataType,
    ErrorCode,
    ErrorResponse,
    wrapped_number,
)

_log = LogLines(__name__)

_NONE = DataType.NONE
_new_tuple = tuple.__new__


class PartitionRequestQueue(ChannelHandler):
    """The last handler of the server's pipeline: owns every reader of its connection."""

    def __init__(self, config: NetstackConfig, loop: EventLoopThread) -> None:
        self._max_batch_bytes = config.max_write_batch_bytes
        self._max_gather_bytes = config.max_gather_bytes
        self._max_run_bytes = min(config.max_run_bytes, config.max_write_batch_bytes)
        self._segment_bytes = config.segment_size_bytes
        self._loop = loop
        self._readers: dict[InputChannelID, CreditBasedSequenceNumberingViewReader] = {}
        # In the order of their turns, each at most once.
        self._ready: OrderedDict[CreditBasedSequenceNumberingViewReader, None] = OrderedDict()
        self._ctx: ChannelHandlerContext | None = None
        self._turn = threading.RLock()  # the channel's after ``handler_added``
        self._direct: DirectWriter | None = None  # Both written by the loop thread, before a reader can be notified.
        self._seal: FrameSeal | None = None  # the channel's
        self._gather: list[OutboundBuffer | OutboundRun] = []  # of the current gather write, not yet written
        self._is_writing = False
        self._is_continuation_scheduled = False
        # While messages of one read are served; readers that become ready are written after the last one.
        self._is_reading = False
        self._is_closed = False
        # Their backlogs wait until the channel is writable.
        self._unannounced: dict[CreditBasedSequenceNumberingViewReader, None] = {}
        self._max_readers = config.max_readers
        self._replies = ReplyBudget()
        self._late_replies = ReplyBudget(config.max_waiting_requests)
        self._log = limited_log(__name__, loop.loop.time)
        self._cancels = RateLimit(config.max_cancels_per_s, loop.loop.time)

    def __repr__(self) -> str:
        return f"<PartitionRequestQueue {len(self._readers)} readers, {len(self._ready)} ready>"

    def handler_added(self, ctx: ChannelHandlerContext) -> None:
        """Remember the place in the pipeline."""
        self._ctx = ctx
        self._turn = ctx.channel.turn

    # ---------------------------------------------------------------- readers

    def add_reader(self, reader: CreditBasedSequenceNumberingViewReader) -> None:
        """Add a reader, which this owns from now on.

        Raises:
            RemoteProtocolError: the receiver id is in use on this connection.
        """
        if reader.receiver in self._readers:
            raise RemoteProtocolError(
                f"receiver {reader.receiver.hex()} has requested a subpartition on this connection already"
            )
        self._readers[reader.receiver] = reader
        if self._direct is None and self._ctx is not None:
            self._direct, self._seal = self._ctx.channel.direct_writer(), self._ctx.channel.seal

    @property
    def is_full(self) -> bool:
        """Whether the connection has ``max_readers`` readers."""
        return len(self._readers) >= self._max_readers

    def reader(self, receiver: InputChannelID) -> CreditBasedSequenceNumberingViewReader | None:
        """Return the reader of ``receiver``, or None."""
        return self._readers.get(receiver)

    def notify_reader_non_empty_threadsafe(self, reader: CreditBasedSequenceNumberingViewReader) -> None:
        """Note that data became available; any thread.

        Over an idle connection the calling thread sends one small buffer itself; otherwise the call hops to the loop.
        """
        direct = self._direct
        if direct is not None and direct.try_begin() and self._send_directly(direct, reader):
            return
        # The loop was closed: nothing is sent any more, and producers release their partitions without it.
        with contextlib.suppress(ResourceClosedError):
            self._loop.execute_threadsafe(self.enqueue_available_reader, reader)

    def _send_directly(self, direct: DirectWriter, reader: CreditBasedSequenceNumberingViewReader) -> bool:
        """Send the one small buffer of ``reader`` and give back the turn, which the caller took; False: the loop must
        send.
        """
        try:
            # Queued readers go first; their credit must not be spent here.  With the turn held, no reader can be queued
            # meanwhile.
            if self._ready or self._is_closed:
                return False
            little = reader.next_little(MAX_DIRECT_BYTES)
            if little is None:  # more than one small buffer, or none (the partition was released)
                return False
            buffer, backlog, _, sequence_number = little
            if sequence_number > MAX_SEQUENCE_NUMBER:
                sequence_number = wrapped_number(sequence_number)
            reader.last_sequence_number = sequence_number
            direct.write(
                encode_buffer(reader.receiver, reader.subpartition, sequence_number, backlog, buffer, self._seal)
            )
        finally:
            direct.end()
        buffer.recycle()
        return True

    def enqueue_available_reader(self, reader: CreditBasedSequenceNumberingViewReader) -> None:
        """Queue ``reader`` if it may send, and start writing if the queue was empty."""
        if reader.is_released or self._is_closed or reader in self._ready:
            return
        try:
            with self._turn:  # without it, a direct write could spend the credit between the check and the queue
                is_available, backlog = reader.availability()
                is_first = is_available and not self._ready
                if is_available:
                    self._ready[reader] = None
        except Exception as error:  # noqa: BLE001 - a view that cannot be read fails this receiver only
            self._fail_reader(reader, error)
            return
        if is_available:
            if is_first and not self._is_continuation_scheduled and not self._is_reading:
                # After the batch: all readers that it makes ready share one pass of writes.
                self._loop.after_batch(self._write_available)
        elif backlog > 0 and reader.needs_backlog_announcement:
            ctx = self._ctx
            if ctx is not None and ctx.channel.is_writable:
                self._tell(BacklogAnnouncement(reader.receiver, backlog))
            else:
                self._unannounced[reader] = None

    def statistics(self) -> list[ViewReaderStatistics]:
        """Make one row per reader of the connection; loop thread."""
        return [reader.statistics(is_queued=reader in self._ready) for reader in self._readers.values()]

    # ---------------------------------------------------------------- orders of the receivers

    def add_credit(self, receiver: InputChannelID, credit: int) -> None:
        """Add credit that the receiver granted; ignored after its producer failed.

        Credit out of range ends this receiver's reader; the other readers of the connection continue.
        """
        reader = self._readers.get(receiver)
        if reader is None:
            self._refuse_unknown(receiver, "credit")
            return
        if reader.is_released:
            return
        try:
            # Without the turn: the loop alone writes ``granted``.  A direct write that reads the old value leaves the
            # buffer to the loop.
            reader.credit.grant(credit)
        except RemoteProtocolError as error:
            self._end_reader(reader)
            self.reply(ErrorResponse(ErrorCode.PROTOCOL, describe_error(error), receiver))
            return
        self.enqueue_available_reader(reader)

    def resume_consumption(self, receiver: InputChannelID) -> None:
        """Let the reader go on: its receiver is ready for data after a blocking event."""
        reader = self._open_reader(receiver, "a resumption")
        if reader is None:
            return
        with self._turn:  # it may take credit back, which a direct write must not be spending
            has_resumed = self._obeys(receiver, reader.resume_consumption)
        if has_resumed:
            self.enqueue_available_reader(reader)

    def acknowledge_all_data_processed(self, receiver: InputChannelID) -> None:
        """Tell the producer that the receiver has processed every record before its end of data."""
        reader = self._open_reader(receiver, "an acknowledgement")
        if reader is not None:
            self._obeys(receiver, reader.acknowledge_all_data_processed)

    def tell_producer(self, receiver: InputChannelID, order: Callable[[ResultSubpartitionView], None]) -> None:
        """Hand an order to the view of the receiver's reader; ignored without one, because consumers tell all their
        producers.
        """
        reader = self._readers.get(receiver)
        view = None if reader is None else reader.open_view
        if view is not None:
            self._obeys(receiver, partial(order, view))

    def _obeys(self, receiver: InputChannelID, order: Callable[[], None]) -> bool:
        """Carry out ``order``; if it fails, tell the peer and return False.  The reader stays as it was."""
        try:
            order()
        except Exception as error:  # noqa: BLE001 - a wrong order, or an error of the producer
            code = ErrorCode.PROTOCOL if isinstance(error, NetstackError) else ErrorCode.INTERNAL
            self.reply(ErrorResponse(code, describe_error(error), None, about=receiver))
            return False
        return True

    def cancel(self, receiver: InputChannelID) -> None:
        """End the reader of a receiver that reads no more; an unknown receiver is ignored, because its reader may just
        have ended.

        Raises:
            RemoteProtocolError: the peer cancels more readers that are still sending than ``max_cancels_per_s`` allows.
        """
        reader = self._readers.get(receiver)
        self.remove_reader(receiver)
        # A cancel behind the end of the partition confirms it, and costs the peer nothing.
        if (reader is None or not reader.has_ended) and not self._cancels.take():
            raise RemoteProtocolError(f"too many cancelled requests on this connection: {self._cancels!r}")

    def remove_reader(self, receiver: InputChannelID) -> None:
        """Remove and release the reader of ``receiver``, if there is one."""
        reader = self._readers.pop(receiver, None)
        # Whether it stands in line or not: a reader without credit or data holds its subpartition as well.
        if reader is not None:
            self._ready.pop(reader, None)
            self._unannounced.pop(reader, None)
            # A direct write may be polling its view just now.
            with self._turn:
                reader.release()

    def _open_reader(self, receiver: InputChannelID, what: str) -> CreditBasedSequenceNumberingViewReader | None:
        """Return the reader for the order ``what``; None if it has ended (the order was on its way) or is unknown (the
        peer is told that).
        """
        reader = self._readers.get(receiver)
        if reader is None or not (reader.has_view or reader.is_released):
            self._refuse_unknown(receiver, what)
            return None
        return None if reader.is_released else reader

    def _refuse_unknown(self, receiver: InputChannelID, what: str) -> None:
        text = f"{what} of the unknown receiver {receiver.hex()}"
        self.reply(ErrorResponse(ErrorCode.UNKNOWN_RECEIVER, text, None, about=receiver))

    def _end_reader(self, reader: CreditBasedSequenceNumberingViewReader) -> None:
        """Release a reader before its error is sent; its id stays known until the receiver cancels, for orders still on
        their way.
        """
        self._ready.pop(reader, None)
        try:
            with self._turn:
                reader.release()
        finally:
            self._write_gathered()  # its earlier buffers must leave before the error

    def _fail_reader(self, reader: CreditBasedSequenceNumberingViewReader, error: Exception) -> None:
        """Tell the receiver that its subpartition could not be read; the other readers continue."""
        self._log.warning("a subpartition cannot be read", reader=repr(reader), exc_info=error)
        try:
            self._end_reader(reader)
        except Exception as second:  # noqa: BLE001 - a broken reader may fail in its release, too
            _log.warning("a reader that failed cannot be released", reader=repr(reader), exc_info=second)
        self._tell(ErrorResponse(ErrorCode.INTERNAL, describe_error(error), reader.receiver))

    def release_all(self) -> None:
        """Release every reader."""
        with self._turn:  # a direct write that has begun ends first; later ones see that this is closed
            self._is_closed = True
        self._ready.clear()
        self._unannounced.clear()
        readers, self._readers = list(self._readers.values()), {}
        run_all([reader.release for reader in readers])

    # ---------------------------------------------------------------- writing

    def reply(self, message: ErrorResponse, *, is_late: bool = False) -> None:
        """Send an error as reply to a message of the peer; close the connection of a peer that does not read its
        replies.

        ``is_late``: the reply to a request that waited.  Many of them may time out at once through no fault of the
            peer.
        """
        ctx = self._ctx
        if ctx is None or self._is_closed:
            return
        self._log.warning(
            "answered with an error", peer=ctx.channel.peer, code=message.code.name, error=message.message[:200]
        )
        num_bytes = BUFFER_RESPONSE_HEADER_BYTES + len(message.message.encode("utf-8", "replace"))
        replies = self._late_replies if is_late else self._replies
        if replies.spend(num_bytes, is_writable=ctx.channel.is_writable):
            ctx.write_and_flush(message)
            return
        _log.warning(
            "closing the connection of a peer that does not read our answers",
            peer=ctx.channel.peer,
            replies=repr(replies),
        )
        self.release_all()
        ctx.close()

    def _tell(self, message: ErrorResponse | BacklogAnnouncement) -> None:
        """Send news of a reader or its producer; the peer cannot cause more of them, so they need no limit."""
        if self._ctx is not None and not self._is_closed:
            self._ctx.write_and_flush(message)

    def _write_available(self) -> None:
        ctx = self._ctx
        # ``_is_writing``: a flush of the pass below made the channel writable; the pass itself goes on.
        if ctx is None or self._is_writing or self._is_closed:
            return
        self._is_writing = True
        try:
            with self._turn:
                # The turn is held for all of it: a direct write between two frames would poll a reader that is queued
                # here.
                self._write_batch(ctx)
        except Exception as error:  # noqa: BLE001 - the loop would only log it, and all readers of the connection would hang
            ctx.catch(error)
        finally:
            self._is_writing = False

    def _write_batch(self, ctx: ChannelHandlerContext) -> None:
        channel, ready = ctx.channel, self._ready
        # A single reader gets a smaller budget, so that its receiver starts sooner (``NetstackConfig.max_run_bytes``).
        budget = self._max_batch_bytes if len(ready) > 1 else self._max_run_bytes
        while budget > 0 and ready:
            if not channel.is_writable:
                # The kernel may take at once what fills the channel; if it does, this pass goes on.
                ctx.flush()
                if not channel.is_writable:
                    return  # channel_writability_changed continues
            budget -= self._write_gather(min(budget, self._max_gather_bytes))
            ctx.flush()
        if ready and not self._is_continuation_scheduled:
            self._is_continuation_scheduled = True
            # At the end of the loop's queue: other connections have their turn first.
            self._loop.execute_threadsafe(self._continue)

    def _write_gather(self, max_bytes: int) -> int:
        """Poll readers in their turns until one gather write is full; returns its bytes."""
        ready = self._ready
        num_bytes = 0
        try:
            while num_bytes < max_bytes and ready:
                reader, _ = ready.popitem(last=False)
                if not ready and reader.subpartition != SEVERAL:
                    # The only ready reader: take several of its turns at once.
                    run_bytes = self._poll_run(reader, max_bytes - num_bytes)
                    if run_bytes is not None:
                        num_bytes += run_bytes
                        continue
                num_bytes += self._poll(reader)
        finally:
            self._write_gathered()
        return num_bytes

    def _write_gathered(self) -> None:
        if self._gather and self._ctx is not None:
            gather, self._gather = self._gather, []
            self._ctx.write(gather)

    def _continue(self) -> None:
        self._is_continuation_scheduled = False
        self._write_available()

    def _poll(self, reader: CreditBasedSequenceNumberingViewReader) -> int:
        """Add the next buffer of one reader to the gather write; returns its bytes."""
        subpartition = reader.subpartition
        try:
            if subpartition == SEVERAL:
                subpartition = reader.peek_next_subpartition()
            next_one = reader.next_buffer()
        except Exception as error:  # noqa: BLE001 - a failing disk or overspent credit fails this receiver only
            self._fail_reader(reader, error)
            return 0
        if next_one is None:
            cause = reader.failure_cause
            if cause is not None:
                # Its id stays known until the receiver cancels: orders sent before the receiver heard of the failure
                # are not errors.
                self._end_reader(reader)
                self._tell(ErrorResponse(ErrorCode.PRODUCER_FAILED, describe_error(cause), reader.receiver))
            return 0
        buffer, backlog, next_data_type, sequence_number = next_one
        credit = reader.credit
        if next_data_type is not _NONE and (credit.granted > credit.spent or next_data_type.is_event):
            # Without credit for an event only, which needs none: there may never be a grant that would bring it.
            self._ready[reader] = None
        if sequence_number > MAX_SEQUENCE_NUMBER:
            sequence_number = wrapped_number(sequence_number)
        reader.last_sequence_number = sequence_number
        # The size is read before the write: a written buffer may be recycled at any moment.
        size = buffer.size
        # As ``OutboundBuffer(...)``, without the Python call of its ``__new__``.  bench: transport.
        self._gather.append(
            _new_tuple(OutboundBuffer, (reader.receiver, subpartition, sequence_number, backlog, buffer))
        )
        return size + BUFFER_RESPONSE_HEADER_BYTES

    def _poll_run(self, reader: CreditBasedSequenceNumberingViewReader, max_bytes: int) -> int | None:
        """Add a run of whole segments of one reader to the gather write; returns its bytes, None: use ``_poll``."""
        frame_bytes = self._segment_bytes + BUFFER_RESPONSE_HEADER_BYTES
        try:
            # Rounded up: a rest of the budget below one frame must still move something.
            run = reader.next_run(-(-max_bytes // frame_bytes))
        except Exception as error:  # noqa: BLE001 - fails this receiver only, as in ``_poll``
            self._fail_reader(reader, error)
            return 0
        if run is None:
            return None
        segments, recycler, backlog, next_data_type, sequence_number = run
        credit = reader.credit
        if next_data_type is not _NONE and (credit.granted > credit.spent or next_data_type.is_event):
            self._ready[reader] = None
        first = wrapped_number(sequence_number)
        reader.last_sequence_number = wrapped_number(sequence_number + len(segments) - 1)
        self._gather.append(OutboundRun(reader.receiver, reader.subpartition, first, backlog, segments, recycler))
        return len(segments) * frame_bytes

    # ---------------------------------------------------------------- events of the channel

    def start_read(self) -> None:
        """Begin a read: its messages follow, until ``channel_read_complete``."""
        self._is_reading = True

    def channel_read_complete(self, ctx: ChannelHandlerContext) -> None:
        """Write the readers that the messages of this read made ready.  No handler behind this one looks at reads."""
        if self._is_reading:
            self._is_reading = False
            if self._ready and not self._is_continuation_scheduled:
                self._write_available()

    def channel_writability_changed(self, ctx: ChannelHandlerContext) -> None:
        """Continue writing when the channel is writable again."""
        # Readers that became ready while the channel was full stand in line, and no other event begins a pass.
        if ctx.channel.is_writable:
            # Each is looked at anew: its backlog may be gone, or its receiver has granted credit.
            unannounced, self._unannounced = self._unannounced, {}
            for reader in unannounced:
                self.enqueue_available_reader(reader)
            self._write_available()
        ctx.fire_channel_writability_changed()

    def channel_inactive(self, ctx: ChannelHandlerContext) -> None:
        """Release every reader, which consumes its subpartition: the connection ended."""
        self.release_all()
        ctx.fire_channel_inactive()

    def exception_caught(self, ctx: ChannelHandlerContext, error: Exception) -> None:
        """Send the error to the peer and close: an error that reaches this handler concerns the whole connection."""
        # First, so that no reader writes behind the error; ``reply`` would say nothing any more.
        self.release_all()
        code = ErrorCode.PROTOCOL if isinstance(error, RemoteProtocolError) else ErrorCode.INTERNAL
        ctx.write_and_flush(ErrorResponse(code, describe_error(error), None))
        ctx.close()


def describe_error(error: BaseException) -> str:
    """Write ``error`` as text for a peer; exceptions of other packages are shown with their class."""
    if isinstance(error, ProducerFailedError | NetstackError):
        return str(error)
    return f"{type(error).__name__}: {error}"

"""Sends the buffers of all readers of one connection, in strict turns, as credit and writability allow.

Side:       loop.  ``notify_reader_non_empty_threadsafe`` is the one door for other threads.  Hot path.
            A thread that notifies sends a little by itself if the connection is at rest (``DirectWriter``): of all that stands here it
            touches nothing but the reader, and that only while it has the channel's turn, as everything here that polls or releases.
Invariants: a reader stands in the ready queue at most once; data buffers sent to a receiver never exceed the credit it granted; one pass
            hands at most ``max_write_batch_bytes`` to the transport (a fast peer never pauses a writer, which would starve its own loop);
            answers to a peer that does not read are bounded, and an announcement of a backlog waits until it reads.
Errors:     what concerns one receiver ends that receiver's reader or nothing; a mistake in what the peer says is answered without
            receiver, and the connection goes on (Flink 2.3); a broken stream is answered and ends the connection.
Source:     Flink ``PartitionRequestQueue``.  Flink writes one message per completion callback; here a gather write takes up to
            ``max_gather_bytes``, one buffer per reader and turn while several are ready; a reader that is alone takes a run of whole
            segments as so many turns.  The channel is asked whether it is writable before each gather write.
"""

import contextlib
import threading
from collections.abc import Callable
from functools import partial

import structlog

from netstack.channel.direct_writer import MAX_DIRECT_BYTES, DirectWriter
from netstack.channel.handler import ChannelHandler, ChannelHandlerContext
from netstack.channel.limits import RateLimit, ReplyBudget
from netstack.channel.message_codec import OutboundBuffer, OutboundRun, encode_buffer
from netstack.config import NetstackConfig
from netstack.errors import NetstackError, ProducerFailedError, RemoteProtocolError, ResourceClosedError
from netstack.eventloop import EventLoopThread
from netstack.flow.ready_queue import ReadyQueue
from netstack.handlers.view_reader import SEVERAL, CreditBasedSequenceNumberingViewReader, ViewReaderStatistics
from netstack.ids import InputChannelID
from netstack.wakeups import run_all
from netstack.wire.codec import BUFFER_RESPONSE_HEADER_BYTES
from netstack.wire.messages import BacklogAnnouncement, DataType, ErrorCode, ErrorResponse

_log = structlog.get_logger(__name__)

# Sequence numbers are signed 32-bit integers that wrap, as Java's do.
_MAX_SEQUENCE_NUMBER = 2**31 - 1
_MIN_SEQUENCE_NUMBER = -(2**31)
_SEQUENCE_MODULUS = 2**32
_NONE = DataType.NONE
_new_tuple = tuple.__new__
_LOGS_PER_S = 1.0  # of the answers to one peer


class PartitionRequestQueue(ChannelHandler):
    """The last handler of the server's pipeline: owns every reader of its connection."""

    def __init__(self, config: NetstackConfig, loop: EventLoopThread) -> None:
        self._max_batch_bytes = config.max_write_batch_bytes
        self._max_gather_bytes = config.max_gather_bytes
        self._max_run_bytes = min(config.max_run_bytes, config.max_write_batch_bytes)
        self._segment_bytes = config.segment_size_bytes
        self._loop = loop
        self._readers: dict[InputChannelID, CreditBasedSequenceNumberingViewReader] = {}
        self._ready: ReadyQueue[CreditBasedSequenceNumberingViewReader] = ReadyQueue()
        self._ctx: ChannelHandlerContext | None = None
        self._turn = threading.RLock()  # from ``handler_added`` on the channel's
        self._direct: DirectWriter | None = None  # Written by the loop thread, before a reader can be notified.
        self._gather: list[OutboundBuffer | OutboundRun] = []  # the turns of the present gather write, not yet written
        self._is_writing = False
        self._is_continuation_scheduled = False
        self._is_reading = False  # messages of the peer are being served: what they make ready is written after the last one
        self._is_closed = False
        self._unannounced: dict[CreditBasedSequenceNumberingViewReader, None] = {}  # whose backlog is told when the socket takes more
        self._max_readers = config.max_readers
        self._replies = ReplyBudget()
        self._late_replies = ReplyBudget(config.max_waiting_requests)
        self._logs = RateLimit(_LOGS_PER_S, loop.loop.time)
        self._cancels = RateLimit(config.max_cancels_per_s, loop.loop.time)

    def __repr__(self) -> str:
        return f"<PartitionRequestQueue {len(self._readers)} readers, {len(self._ready)} ready>"

    def handler_added(self, ctx: ChannelHandlerContext) -> None:
        """Remember the place in the pipeline."""
        self._ctx = ctx
        self._turn = ctx.channel.turn

    # ---------------------------------------------------------------- readers

    def add_reader(self, reader: CreditBasedSequenceNumberingViewReader) -> None:
        """Take over a new reader.

        Raises:
            RemoteProtocolError: the receiver id is in use on this connection.
        """
        if reader.receiver in self._readers:
            raise RemoteProtocolError(f"receiver {reader.receiver.hex()} has requested a subpartition on this connection already")
        self._readers[reader.receiver] = reader
        if self._direct is None and self._ctx is not None:
            self._direct = self._ctx.channel.direct_writer()

    @property
    def is_full(self) -> bool:
        """Whether there are ``max_readers`` of them."""
        return len(self._readers) >= self._max_readers

    def reader(self, receiver: InputChannelID) -> CreditBasedSequenceNumberingViewReader | None:
        """The reader of ``receiver``, if there is one."""
        return self._readers.get(receiver)

    def notify_reader_non_empty_threadsafe(self, reader: CreditBasedSequenceNumberingViewReader) -> None:
        """Some thread made data available: it sends it, if that is little and nothing is in its way, or hops to the loop."""
        direct = self._direct
        if direct is not None and direct.try_begin() and self._send_directly(direct, reader):
            return
        # A loop that was closed sends nothing more, and its producers clean up without it.
        with contextlib.suppress(ResourceClosedError):
            self._loop.execute_threadsafe(self.enqueue_available_reader, reader)

    def _send_directly(self, direct: DirectWriter, reader: CreditBasedSequenceNumberingViewReader) -> bool:
        """Whoever has the turn, and gives it back: whether all that ``reader`` has to send was sent.  If not, the loop has to look."""
        try:
            # Readers that are ready come first, and have the credit that they were seen with.  One cannot become ready now.
            if len(self._ready) or self._is_closed:
                return False
            little = reader.next_little(MAX_DIRECT_BYTES)
            if little is None:  # there is more, or nothing any more: its partition was released
                return False
            buffer, backlog, _, sequence_number = little
            if sequence_number > _MAX_SEQUENCE_NUMBER:
                sequence_number = _wrapped(sequence_number)
            reader.last_sequence_number = sequence_number
            direct.write(encode_buffer(reader.receiver, reader.subpartition, sequence_number, backlog, buffer))
        finally:
            direct.end()
        buffer.recycle()
        return True

    def enqueue_available_reader(self, reader: CreditBasedSequenceNumberingViewReader) -> None:
        """Give ``reader`` its place in the queue if it may send, and start to write if the queue was empty."""
        if reader.is_released or self._is_closed or reader in self._ready:
            return
        try:
            with self._turn:  # nobody spends the credit between the look and the place in the queue, nor as long as it is in the queue
                is_available, backlog = reader.availability()
                is_first = is_available and self._ready.add(reader)
        except Exception as error:  # noqa: BLE001 - what cannot be read (a view of several reads ahead) is this receiver's misfortune
            self._fail_reader(reader, error)
            return
        if is_available:
            if is_first and not self._is_continuation_scheduled and not self._is_reading:
                # All readers that the present pass of the loop brings share its writes.
                self._loop.after_batch(self._write_available)
        elif backlog > 0 and reader.needs_backlog_announcement:
            self._announce(reader, backlog)

    def _announce(self, reader: CreditBasedSequenceNumberingViewReader, backlog: int) -> None:
        ctx = self._ctx
        if ctx is not None and ctx.channel.is_writable:
            self._tell(BacklogAnnouncement(reader.receiver, backlog))
        else:
            self._unannounced[reader] = None

    def statistics(self) -> list[ViewReaderStatistics]:
        """One row per reader of the connection; loop thread."""
        return [reader.statistics(is_queued=reader in self._ready) for reader in self._readers.values()]

    # ---------------------------------------------------------------- orders of the receivers

    def add_credit(self, receiver: InputChannelID, credit: int) -> None:
        """The receiver granted more; after its producer failed that goes nowhere: the grant was under way when it was told.

        Credit out of range ends the flow to this receiver; the other readers of the connection go on.
        """
        reader = self._readers.get(receiver)
        if reader is None:
            self._refuse_unknown(receiver, "credit")
            return
        if reader.is_released:
            return
        try:
            reader.credit.grant(credit)
        except RemoteProtocolError as error:
            self._end_reader(reader)
            self.reply(ErrorResponse(ErrorCode.PROTOCOL, describe_error(error), receiver))
            return
        self.enqueue_available_reader(reader)

    def resume_consumption(self, receiver: InputChannelID) -> None:
        """The receiver can go on after a blocking event."""
        reader = self._open_reader(receiver, "a resumption")
        if reader is None:
            return
        with self._turn:  # credit may be taken back
            has_resumed = self._obeys(receiver, reader.resume_consumption)
        if has_resumed:
            self.enqueue_available_reader(reader)

    def acknowledge_all_data_processed(self, receiver: InputChannelID) -> None:
        """The receiver has processed everything up to the end of data."""
        reader = self._open_reader(receiver, "an acknowledgement")
        if reader is not None:
            self._obeys(receiver, reader.acknowledge_all_data_processed)

    def notify_new_buffer_size(self, receiver: InputChannelID, size_bytes: int) -> None:
        """The receiver wants buffers of another size; a consumer says so to all its producers, ready or not, so nobody need be there."""
        reader = self._readers.get(receiver)
        if reader is not None:
            self._obeys(receiver, partial(reader.notify_new_buffer_size, size_bytes))

    def notify_required_segment_id(self, receiver: InputChannelID, subpartition: int, segment: int) -> None:
        """The receiver wants one of its subpartitions to go on with this segment; too early is no mistake, as for buffer sizes."""
        reader = self._readers.get(receiver)
        if reader is not None:
            self._obeys(receiver, partial(reader.notify_required_segment_id, subpartition, segment))

    def _obeys(self, receiver: InputChannelID, order: Callable[[], None]) -> bool:
        """Whether the reader could carry out ``order``; if not, the peer is told, and everything goes on as it was."""
        try:
            order()
        except Exception as error:  # noqa: BLE001 - an order that makes no sense, or the producer's own trouble with it
            code = ErrorCode.PROTOCOL if isinstance(error, NetstackError) else ErrorCode.INTERNAL
            self.reply(ErrorResponse(code, describe_error(error), None, about=receiver))
            return False
        return True

    def cancel(self, receiver: InputChannelID) -> None:
        """The receiver wants no more; unknown receivers are tolerated, they may just have ended.

        Raises:
            RemoteProtocolError: the peer cancels faster than ``max_cancels_per_s``; those that got all they asked for do not count.
        """
        reader = self._readers.get(receiver)
        self.remove_reader(receiver)
        if (reader is None or not reader.has_ended) and not self._cancels.take():
            raise RemoteProtocolError(f"too many cancelled requests on this connection: {self._cancels!r}")

    def remove_reader(self, receiver: InputChannelID) -> None:
        """Forget and release the reader of ``receiver``, if there is one."""
        reader = self._readers.pop(receiver, None)
        if reader is not None:
            self._ready.discard(reader)
            self._unannounced.pop(reader, None)
            with self._turn:
                reader.release()

    def _open_reader(self, receiver: InputChannelID, what: str) -> CreditBasedSequenceNumberingViewReader | None:
        """The reader that ``what`` is for; None if it ended (no mistake: they crossed on the way) or there is none (told to the peer)."""
        reader = self._readers.get(receiver)
        if reader is None or not (reader.has_view or reader.is_released):
            self._refuse_unknown(receiver, what)
            return None
        return None if reader.is_released else reader

    def _refuse_unknown(self, receiver: InputChannelID, what: str) -> None:
        text = f"{what} of the unknown receiver {receiver.hex()}"
        self.reply(ErrorResponse(ErrorCode.UNKNOWN_RECEIVER, text, None, about=receiver))

    def _end_reader(self, reader: CreditBasedSequenceNumberingViewReader) -> None:
        """End one reader before its error is told; its id stays known until the receiver cancels, for what is still under way."""
        self._ready.discard(reader)
        try:
            with self._turn:
                reader.release()
        finally:
            self._write_gathered()  # what it sent before goes before

    def _fail_reader(self, reader: CreditBasedSequenceNumberingViewReader, error: Exception) -> None:
        """Its subpartition could not be read: the receiver is told, the other readers go on."""
        if self._logs.take():
            _log.warning("a subpartition cannot be read", reader=repr(reader), exc_info=error)
        try:
            self._end_reader(reader)
        except Exception as second:  # noqa: BLE001 - what is broken may not let itself be closed either
            _log.warning("a reader that failed cannot be released", reader=repr(reader), exc_info=second)
        self._tell(ErrorResponse(ErrorCode.INTERNAL, describe_error(error), reader.receiver))

    def release_all(self) -> None:
        """Release every reader; nothing is sent any more."""
        with self._turn:
            self._is_closed = True
        self._ready.clear()
        self._unannounced.clear()
        readers, self._readers = list(self._readers.values()), {}
        run_all([reader.release for reader in readers])

    # ---------------------------------------------------------------- writing

    def reply(self, message: ErrorResponse, *, is_late: bool = False) -> None:
        """Answer what the peer said or asked for; one that makes us answer and does not read is cut off.

        ``is_late``: to a request that waited; all of them may be answered at once, when the peer cannot help it.
        """
        ctx = self._ctx
        if ctx is None or self._is_closed:
            return
        if self._logs.take():
            _log.warning("answered with an error", peer=ctx.channel.peer, code=message.code.name, error=message.message[:200])
        num_bytes = BUFFER_RESPONSE_HEADER_BYTES + len(message.message.encode("utf-8", "replace"))
        replies = self._late_replies if is_late else self._replies
        if replies.spend(num_bytes, is_writable=ctx.channel.is_writable):
            ctx.write_and_flush(message)
            return
        _log.warning("closing the connection of a peer that does not read our answers", peer=ctx.channel.peer, replies=repr(replies))
        self.release_all()
        ctx.close()

    def _tell(self, message: ErrorResponse | BacklogAnnouncement) -> None:
        """Tell a receiver what happened on our side: once per reader or notification of its producer, whatever the peer does."""
        if self._ctx is not None and not self._is_closed:
            self._ctx.write_and_flush(message)

    def _write_available(self) -> None:
        ctx = self._ctx
        if ctx is None or self._is_writing or self._is_closed:
            return
        self._is_writing = True
        try:
            with self._turn:
                self._write_batch(ctx)
        except Exception as error:  # noqa: BLE001 - a pass is often a function of the loop, which would only log: all readers would hang
            ctx.catch(error)
        finally:
            self._is_writing = False

    def _write_batch(self, ctx: ChannelHandlerContext) -> None:
        channel, ready = ctx.channel, self._ready
        budget = self._max_batch_bytes if len(ready) > 1 else self._max_run_bytes
        while budget > 0 and len(ready):
            if not channel.is_writable:
                ctx.flush()
                if not channel.is_writable:
                    return  # channel_writability_changed comes back here
            budget -= self._write_gather(min(budget, self._max_gather_bytes))
            ctx.flush()
        if len(ready) and not self._is_continuation_scheduled:
            self._is_continuation_scheduled = True
            self._loop.execute_threadsafe(self._continue)

    def _write_gather(self, max_bytes: int) -> int:
        """Give readers their turns until one gather write is full; returns its bytes."""
        ready = self._ready
        num_bytes = 0
        try:
            while num_bytes < max_bytes:
                reader = ready.pop()
                if reader is None:
                    break
                if len(ready) == 0 and reader.subpartition != SEVERAL:
                    # Nobody else has a turn: take several of its turns at once.
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
        """The turn of one reader: its next buffer joins the gather write; returns its bytes."""
        subpartition = reader.subpartition
        try:
            if subpartition == SEVERAL:
                subpartition = reader.peek_next_subpartition()
            next_one = reader.next_buffer()
        except Exception as error:  # noqa: BLE001 - a disk that fails, credit overspent: the trouble of one receiver
            self._fail_reader(reader, error)
            return 0
        if next_one is None:
            cause = reader.failure_cause
            if cause is not None:
                # It stays known until the receiver cancels it: what the receiver sent before it heard of the failure is no mistake.
                self._end_reader(reader)
                self._tell(ErrorResponse(ErrorCode.PRODUCER_FAILED, describe_error(cause), reader.receiver))
            return 0
        buffer, backlog, next_data_type, sequence_number = next_one
        credit = reader.credit
        if next_data_type is not _NONE and (credit.granted > credit.spent or next_data_type.is_event):
            self._ready.add(reader)
        if sequence_number > _MAX_SEQUENCE_NUMBER:
            sequence_number = _wrapped(sequence_number)
        reader.last_sequence_number = sequence_number
        # The buffer's size is read first: once written it may be recycled at any moment.
        size = buffer.size
        # What ``OutboundBuffer(...)`` does, without its call.  bench: transport.
        self._gather.append(_new_tuple(OutboundBuffer, (reader.receiver, subpartition, sequence_number, backlog, buffer, ())))
        return size + BUFFER_RESPONSE_HEADER_BYTES

    def _poll_run(self, reader: CreditBasedSequenceNumberingViewReader, max_bytes: int) -> int | None:
        """Several turns of one reader, if whole segments wait there; returns their bytes, None if ``_poll`` has to look."""
        frame_bytes = self._segment_bytes + BUFFER_RESPONSE_HEADER_BYTES
        try:
            run = reader.next_run(-(-max_bytes // frame_bytes))
        except Exception as error:  # noqa: BLE001 - the trouble of one receiver, as in ``_poll``
            self._fail_reader(reader, error)
            return 0
        if run is None:
            return None
        segments, recycler, backlog, next_data_type, sequence_number = run
        credit = reader.credit
        if next_data_type is not _NONE and (credit.granted > credit.spent or next_data_type.is_event):
            self._ready.add(reader)
        first = _wrapped(sequence_number)
        reader.last_sequence_number = _wrapped(sequence_number + len(segments) - 1)
        self._gather.append(OutboundRun(reader.receiver, reader.subpartition, first, backlog, segments, recycler))
        return len(segments) * frame_bytes

    # ---------------------------------------------------------------- events of the channel

    def start_read(self) -> None:
        """Messages of the peer follow, up to ``channel_read_complete``."""
        self._is_reading = True

    def channel_read_complete(self, ctx: ChannelHandlerContext) -> None:
        """Write what the messages of one read made ready."""
        if self._is_reading:
            self._is_reading = False
            if len(self._ready) and not self._is_continuation_scheduled:
                self._write_available()
        ctx.fire_channel_read_complete()

    def channel_writability_changed(self, ctx: ChannelHandlerContext) -> None:
        """Go on writing once the transport took enough."""
        if ctx.channel.is_writable:
            unannounced, self._unannounced = self._unannounced, {}
            for reader in unannounced:
                self.enqueue_available_reader(reader)
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
        ctx.write_and_flush(ErrorResponse(code, describe_error(error), None))
        ctx.close()


def _wrapped(sequence_number: int) -> int:
    return (sequence_number - _MIN_SEQUENCE_NUMBER) % _SEQUENCE_MODULUS + _MIN_SEQUENCE_NUMBER


def describe_error(error: BaseException) -> str:
    """What a peer is told of ``error``: foreign exceptions say their kind."""
    if isinstance(error, ProducerFailedError | NetstackError):
        return str(error)
    return f"{type(error).__name__}: {error}"

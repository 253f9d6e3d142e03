"""Serves the messages of consumers.

Side:       loop.
Source:     Flink ``PartitionRequestServerHandler`` with the listener for partitions that are not registered yet
            (1.18+): a request waits ``partition_request_timeout_s`` for its partition, then the reply is
            PartitionNotFound.
Errors:     as in Flink 2.3.  A broken frame or a message that no server serves: an error without receiver, and the
            connection closes.  A wrong message in a good frame (unknown receiver, subpartition taken or out of range):
            an error without receiver, and the connection stays open; our mark in it names the receiver, so that our own
            client fails only that channel.  A partition that is not registered in time, or a task event without
            subscriber: an error for that receiver.  Stricter than Flink: a receiver id in use ends the connection,
            overflowing credit ends that receiver's reader.
"""

import contextlib
from collections.abc import Callable
from functools import partial

from netstack.config import NetstackConfig
from netstack.errors import LocalProtocolError, PartitionNotFoundError, RemoteProtocolError, ResourceClosedError
from netstack.handlers.partition_request_queue import PartitionRequestQueue, describe_error
from netstack.handlers.view_reader import CreditBasedSequenceNumberingViewReader
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.loop.eventloop import EventLoopThread, RunningTimer
from netstack.partition.result_partition_manager import ResultPartitionManager
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext
from netstack.wire import messages
from netstack.wire.events import deserialize_event
from netstack.wire.messages import ErrorCode, ErrorResponse, PartitionRequest

_log = LogLines(__name__)


@dataclass(eq=False)
class PartitionRequestServerHandler(ChannelHandler):
    """Turns messages into calls of the ``PartitionRequestQueue`` behind it."""

    config: NetstackConfig
    loop: EventLoopThread
    manager: ResultPartitionManager
    queue: PartitionRequestQueue
    _num_waiting: int = 0

    def __repr__(self) -> str:
        return f"<PartitionRequestServerHandler {self._num_waiting} requests wait for their partition>"

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        """Serve one message."""
        match message:
            case messages.AddCredit(receiver, credit):
                # The announcements of one read share one pass of writes.
                self.queue.start_read()
                self.queue.add_credit(receiver, credit)
            case PartitionRequest():
                self._serve_request(message)
            case messages.ResumeConsumption(receiver):
                self.queue.resume_consumption(receiver)
            case messages.NewBufferSize(receiver, size_bytes):
                self.queue.tell_producer(receiver, lambda view: view.notify_new_buffer_size(size_bytes))
            case messages.CancelPartitionRequest(receiver):
                self.queue.cancel(receiver)
            case messages.AckAllUserRecordsProcessed(receiver):
                self.queue.acknowledge_all_data_processed(receiver)
            case messages.TaskEventRequest():
                self._publish(message)
            case messages.SegmentId():
                pass  # only tiered storage, which is not served here, has segments to choose from
            case messages.CloseRequest():
                self.queue.release_all()
                ctx.close()
            case messages.Heartbeat():
                ctx.fire_channel_read(message)
            case _:
                raise RemoteProtocolError(f"a server does not serve {type(message).__name__}")

    def exception_caught(self, ctx: ChannelHandlerContext, error: Exception) -> None:
        """Log the error; the queue replies and closes."""
        _log.warning("connection failed", peer=ctx.channel.peer, error=str(error), kind=type(error).__name__)
        ctx.fire_exception_caught(error)

    # ---------------------------------------------------------------- partition requests

    def _serve_request(self, request: PartitionRequest) -> None:
        # A receiver that is known is a repetition, which ``add_reader`` refuses in another way.
        if self.queue.is_full and self.queue.reader(request.receiver) is None:
            text = f"this connection has {self.config.max_readers} readers already (max_readers)"
            self.queue.reply(ErrorResponse(ErrorCode.LIMIT_EXCEEDED, text, request.receiver))
            return
        reader = CreditBasedSequenceNumberingViewReader(request, self.queue)
        self.queue.add_reader(reader)
        self._try_to_open(reader)

    def _try_to_open(self, reader: CreditBasedSequenceNumberingViewReader) -> None:
        try:
            self._open_view(reader)
        except Exception as error:  # noqa: BLE001 - a view that cannot be made fails one receiver only (FLINK-9057)
            self._refuse(reader.request, error)

    def _open_view(self, reader: CreditBasedSequenceNumberingViewReader) -> None:
        request = reader.request
        partition = request.partition

        # Called on the registering thread, perhaps before this function ends; readers are the loop's, so it only hops.
        def on_partition() -> None:
            # The loop was closed and serves nobody; the registering thread continues.
            with contextlib.suppress(ResourceClosedError):
                self.loop.execute_threadsafe(self._try_again, reader)

        view = self.manager.create_view_or_listen(
            partition, request.first_subpartition, reader, on_partition, last=request.last_subpartition
        )
        if view is not None:
            reader.set_view(view)
            # What the producer told before found a reader without a view.
            self.queue.enqueue_available_reader(reader)
            return
        if self._num_waiting == (max_waiting := self.config.max_waiting_requests):
            self.manager.cancel_listener(partition, on_partition)
            self.queue.remove_reader(request.receiver)
            text = f"{max_waiting} requests of this connection wait for their partition already (max_waiting_requests)"
            self.queue.reply(ErrorResponse(ErrorCode.LIMIT_EXCEEDED, text, request.receiver))
            return
        timeout_s = self.config.partition_request_timeout_s
        timer = RunningTimer(self.loop.loop, timeout_s, partial(self._on_timeout, reader, on_partition))
        self._num_waiting += 1

        def stop_waiting() -> None:
            self._num_waiting -= 1
            timer.cancel()
            self.manager.cancel_listener(partition, on_partition)

        # In time even if ``on_partition`` was called meanwhile: ``_try_again`` runs in a later pass of this thread.
        reader.on_release = stop_waiting

    def _try_again(self, reader: CreditBasedSequenceNumberingViewReader) -> None:
        # Its receiver cancelled, or the connection ended, while the hop was on its way.
        if reader.is_released:
            return
        # Before the next try, which may have to wait again and needs the place.
        if reader.on_release is not None:
            reader.on_release()
            reader.on_release = None
        self._try_to_open(reader)

    def _on_timeout(self, reader: CreditBasedSequenceNumberingViewReader, on_partition: Callable[[], None]) -> None:
        partition = reader.request.partition
        # Before the wait ends: behind it a partition that has come would be neither announced nor waited for.
        is_announced = self.manager.is_announced(partition)
        # The partition has come on another thread, and ``_try_again`` is queued; a second try would find it taken.
        if not self.manager.cancel_listener(partition, on_partition):
            return
        if is_announced:  # its producer is being deployed
            self._try_again(reader)
            return
        timeout_s = self.config.partition_request_timeout_s
        text = f"partition {partition} was not registered at its producer within {timeout_s:g} s"
        self._refuse(reader.request, PartitionNotFoundError(text), is_late=True)

    def _refuse(self, request: PartitionRequest, error: Exception, *, is_late: bool = False) -> None:
        receiver = request.receiver
        self.queue.remove_reader(receiver)
        # After the manager's shutdown every partition is missing; the consumer did nothing wrong.
        if isinstance(error, PartitionNotFoundError | ResourceClosedError):
            self.queue.reply(ErrorResponse(ErrorCode.PARTITION_NOT_FOUND, str(error), receiver), is_late=is_late)
            return
        code = ErrorCode.SUBPARTITION_TAKEN if isinstance(error, LocalProtocolError) else ErrorCode.INTERNAL
        self.queue.reply(ErrorResponse(code, describe_error(error), None, about=receiver))

    # ---------------------------------------------------------------- task events

    def _publish(self, request: messages.TaskEventRequest) -> None:
        event = deserialize_event(memoryview(request.event))
        try:
            is_published = self.manager.task_events.publish(request.partition, event)
        except Exception as error:  # noqa: BLE001 - a handler of the producing task failed: the sender of the event is told
            self.queue.reply(ErrorResponse(ErrorCode.INTERNAL, describe_error(error), None, about=request.receiver))
            return
        if not is_published:
            text = f"Task event receiver not found. Partition {request.partition} takes no events here."
            self.queue.reply(ErrorResponse(ErrorCode.UNKNOWN_TASK_EVENT_RECEIVER, text, request.receiver))

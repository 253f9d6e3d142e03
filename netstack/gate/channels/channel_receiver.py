"""The receiving half of a remote channel: buffers from the connection, until the task polls them.

Side:       shared.  The loop thread receives; the task thread pops from ``received``; a release drains it on any
            thread.
Hot path:   per buffer: one lock round to allocate, one to queue.
Invariants: the loop appends to ``received`` under the lock, so that a checkpoint that starts on the task thread sees
            every buffer either as queued or as still to come; the task pops without it.  The gate is told when an
            append made the length one: any other append put its buffer behind an element whose poll will see that there
            is more.  Numbers rise by one from buffer to buffer and wrap behind 2^31 - 1.
Units:      credit in buffers; sizes in bytes.
Lock order: the channel's lock is a leaf: gate, pools, buffers and the channel state writer are called after it.
Source:     Flink ``RemoteInputChannel.onBuffer``, ``onEmptyBuffer``, ``onSenderBacklog``;
            ``CreditBasedPartitionRequestClientHandler``.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Final

from netstack.availability import AvailabilityFuture, run_all
from netstack.buffer.network_buffer import FREEING_RECYCLER, MemorySegment, NetworkBuffer, recycle_all
from netstack.config import NetstackConfig
from netstack.errors import NetstackError, RemoteProtocolError
from netstack.gate.channels.buffer_manager import BufferManager
from netstack.gate.channels.input_channel import (
    InputChannel,
    Lifecycle,
    PartitionRequestClient,
    PrioritizedDeque,
    SequenceBuffer,
    barrier_of,
)
from netstack.ids import InputChannelID
from netstack.late import dataclass
from netstack.wire.events import EventAnnouncement, serialize_event
from netstack.wire.messages import MAX_SEQUENCE_NUMBER, BufferResponse, DataType, wrapped_number

_PRIORITY: Final = DataType.PRIORITIZED_EVENT_BUFFER
_TIMEOUTABLE: Final = DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER
_RELEASED: Final = Lifecycle.RELEASED
_NO_BACKLOG: Final = -1  # only the last of several parts knows it


@dataclass(eq=False, repr=False)
class ChannelReceiver(InputChannel):
    """The loop's side of a remote channel: puts arriving payloads into buffers, checks them and queues them.

    Threading: the loop thread calls the methods.  The task's side, which is derived from it, shares what is received,
               ``is_blocked`` and the lock.
    Life cycle: that of the channel: after its release nothing is taken in.
    Ownership: a buffer that is handed in belongs to the channel until it is polled.

    Args:
        client: takes the orders to the producer.
        config: how many events may wait for the task, and how many bytes of them, though a single one may be larger:
            they need no credit, so nothing else bounds them.
    """

    # Outside the dictionary: with more than 30 attributes in it every read of one is slower.
    __slots__ = (
        "_num_event_bytes_received", "_num_events_received", "_num_unended", "expected_sequence_number",
        "max_buffer_bytes", "num_bytes_received", "received", "sender_backlog", "wakeups",
    )  # fmt: skip

    channel_id: InputChannelID
    client: PartitionRequestClient
    config: NetstackConfig = field(default_factory=NetstackConfig, kw_only=True)

    def __post_init__(self, last: int | None) -> None:
        super().__post_init__(last)
        self.buffer_manager = BufferManager(self._lock, self._announce_credit)
        self.max_buffer_bytes = 0  # Written before the request.
        # Where the loop puts what wakes the task, until all that one read of the socket brought is queued; None: it is
        # woken at once.
        self.wakeups: list[tuple[ChannelReceiver, AvailabilityFuture]] | None = None  # Written by the loop thread.
        # Written by the loop thread; read anywhere, one message stale is fine.
        self.sender_backlog = 0
        self.expected_sequence_number = 0
        self.num_bytes_received = 0
        self._num_unended = self.num_subpartitions
        self._num_events_received = self._num_event_bytes_received = 0
        # Appended under _lock; popped by the task thread and the release, each popleft is atomic.
        self.received: PrioritizedDeque[SequenceBuffer] = PrioritizedDeque()
        self._queued = self.received.rest

    @property
    def has_ended(self) -> bool:
        """Whether the end of the partition was received; with several subpartitions, the end of the last one."""
        return self._num_unended <= 0

    @abstractmethod
    def _announce_credit(self) -> None:
        """Tell the sender of the unannounced credit: an announcement is due."""

    # ---------------------------------------------------------------- room

    def allocate(self, size_bytes: int, data_type: DataType, *, is_compressed: bool) -> NetworkBuffer | None:
        """Make room for a payload that is about to arrive: for data one of the channel's buffers, whose credit is
        spent.

        None after the release, or if the sender has no credit or the payload does not fit: ``on_response`` then says
        what is wrong.
        """
        if data_type.is_buffer:
            if size_bytes > self.max_buffer_bytes:
                return None
            return self.buffer_manager.request_buffer(size_bytes, data_type, is_compressed=is_compressed)
        # Events take no buffer of the pools: a barrier must get through when none is free.
        return NetworkBuffer(MemorySegment(memoryview(bytearray(size_bytes))), FREEING_RECYCLER, size_bytes, data_type)

    def allocate_run(self, size_bytes: int, max_buffers: int) -> list[NetworkBuffer]:
        """Make room for several plain data buffers that have arrived, whose credit is spent; fewer with less credit,
        none after the release.
        """
        if size_bytes > self.max_buffer_bytes:
            return []
        return self.buffer_manager.request_buffers(size_bytes, max_buffers)

    # ---------------------------------------------------------------- messages

    def on_response(self, response: BufferResponse) -> None:
        """Take in one message of the sender and its buffer; nothing after the release.

        Raises:
            RemoteProtocolError: the sequence number is wrong, the sender overdrew its credit, or the message
                contradicts itself.
        """
        _, _, sequence_number, backlog, _, _, partial_sizes, buffer = response
        if buffer is None:
            if self.lifecycle is not _RELEASED:
                manager = self.buffer_manager
                with self._lock:
                    text = f"{manager.num_spent + 1} buffers sent, {manager.num_granted} credits granted"
                raise RemoteProtocolError(f"channel {self.index} of {self.partition_id}: no buffer available: {text}")
            return
        assert isinstance(buffer, NetworkBuffer), "what this channel allocated comes back"
        # One part is the buffer itself: Flink's sort-merge partitions write events and single buffers so.
        if partial_sizes and partial_sizes != (buffer.size,):
            error = self._on_partial_buffers(buffer, response)
        elif buffer.size or not buffer.is_buffer:
            error = self.on_buffer(buffer, sequence_number, backlog)
        else:
            error = self.on_empty_buffer(sequence_number, backlog)
            # After the error is set: a broken channel announces no credit.  The sender paid for nothing; it gets its
            # credit back.
            buffer.recycle()
        if error is not None:
            raise error

    def on_run(self, buffers: Sequence[NetworkBuffer], sequence_number: int, backlog: int) -> None:
        """Take in several data buffers with bytes in them, the first one with that number; nothing after the release.

        Raises:
            RemoteProtocolError: the sequence number is wrong.
        """
        num_buffers = len(buffers)
        end = sequence_number + num_buffers
        if end > MAX_SEQUENCE_NUMBER:  # the numbers wrap in this run or behind it
            for position, buffer in enumerate(buffers):
                error = self.on_buffer(buffer, wrapped_number(sequence_number + position), backlog)
                if error is not None:
                    recycle_all(buffers[position + 1 :])
                    raise error
            return
        rest = self.received.rest
        is_missing = is_first = is_pending = False
        with self._lock:
            is_taken = sequence_number == self.expected_sequence_number and self.lifecycle is not _RELEASED
            if is_taken:
                self.expected_sequence_number = end
                self.num_bytes_received += num_buffers * buffers[0].size
                is_pending = self._in_flight.is_pending
                # References of their own: the task may recycle a buffer before the writer has it.
                if is_pending:
                    for buffer in buffers:
                        self._in_flight.note_buffer_locked(buffer)
                rest.extend(zip(buffers, range(sequence_number, end), strict=True))
                # No older buffer is left: the task may have polled the last one before this run was queued behind it.
                is_first = len(rest) <= num_buffers
                is_missing = self.buffer_manager.require_locked(backlog)
        if not is_taken:
            error = self._refuse(buffers[0], sequence_number)
            recycle_all(buffers[1:])  # after the error is set: a broken channel announces no credit
            if error is not None:
                raise error
            return
        self.sender_backlog = backlog
        if is_first:
            self._tell_gate()
        if is_missing:
            self.buffer_manager.request_floating()
        if is_pending:
            self._in_flight.hand_over()

    def _tell_gate(self) -> None:
        """Tell the gate that there is data after there was none; waiting threads are woken now, or at the end of the
        present read.
        """
        self.last_activity_ns = self.clock_ns()
        pending = self.gate.enqueue_channel(self)
        if pending is not None:
            if self.wakeups is None:
                pending.complete()
            else:
                self.wakeups.append((self, pending))

    def on_sender_backlog(self, backlog: int) -> None:
        """Get floating buffers for the ``backlog`` buffers that the sender has queued (-1: it does not tell)."""
        if backlog < 0:
            return
        self.sender_backlog = backlog
        with self._lock:
            is_missing = self.buffer_manager.require_locked(backlog)
        if is_missing:
            self.buffer_manager.request_floating()

    def on_buffer(self, buffer: NetworkBuffer, sequence_number: int, backlog: int) -> NetstackError | None:
        """Queue ``buffer``, which is the channel's from now on; returns the error that the channel got from it."""
        if not buffer.is_buffer:
            return self._receive_event(buffer, sequence_number, backlog)
        is_missing = is_first = is_pending = False
        rest = self.received.rest
        with self._lock:
            is_taken = sequence_number == self.expected_sequence_number and self.lifecycle is not _RELEASED
            if is_taken:
                # ``wrapped_number``, written out: this runs per buffer.
                self.expected_sequence_number = (
                    sequence_number + 1 if sequence_number != MAX_SEQUENCE_NUMBER else -MAX_SEQUENCE_NUMBER - 1
                )
                self.num_bytes_received += buffer.size
                is_pending = self._in_flight.is_pending
                if is_pending:
                    self._in_flight.note_buffer_locked(buffer)
                rest.append((buffer, sequence_number))
                is_first = len(rest) == 1
                if backlog >= 0:
                    is_missing = self.buffer_manager.require_locked(backlog)
        if not is_taken:
            return self._refuse(buffer, sequence_number)
        if is_first:
            self._tell_gate()
        if backlog >= 0:
            self.sender_backlog = backlog
        if is_missing:
            self.buffer_manager.request_floating()
        if is_pending:
            self._in_flight.hand_over()
        return None

    def _receive_event(self, buffer: NetworkBuffer, sequence_number: int, backlog: int) -> NetstackError | None:
        data_type = buffer.data_type
        try:
            # Decoded before the lock: a broken event raises, and changes nothing.
            barrier = barrier_of(buffer)
            if data_type.is_blocking_upstream and backlog > 0:
                raise RemoteProtocolError(
                    f"{data_type.name} blocks the sender, but says that {backlog} buffers can be polled behind it"
                )
            if data_type is _TIMEOUTABLE and barrier is None:
                raise RemoteProtocolError(f"{data_type.name} is not a checkpoint barrier")
            self._check_room_for_event(buffer.size)
        except RemoteProtocolError as error:
            return self._break(buffer, error)
        surplus: list[NetworkBuffer] = []
        is_missing = is_first = is_first_priority = False
        received = self.received
        with self._lock:
            is_taken = sequence_number == self.expected_sequence_number and self.lifecycle is not _RELEASED
            if is_taken:
                self.expected_sequence_number = wrapped_number(sequence_number + 1)
                self.num_bytes_received += buffer.size
                self._num_events_received += 1
                self._num_event_bytes_received += buffer.size
                if data_type.is_blocking_upstream:
                    self.is_blocked = True
                # The sender waits behind its barrier: meanwhile its buffers may bring the barrier of another channel.
                if self.is_blocked and self.buffer_manager.initial_credit == 0:
                    surplus = self.buffer_manager.forget_credit_locked()
                elif backlog >= 0:
                    is_missing = self.buffer_manager.require_locked(backlog)
                if barrier is not None:
                    self._in_flight.note_barrier_locked(barrier.checkpoint_id, sequence_number)
                if data_type is _PRIORITY:
                    received.priority.append((buffer, sequence_number))
                else:
                    received.rest.append((buffer, sequence_number))
                    is_first = len(received.rest) == 1
                if data_type is _TIMEOUTABLE and barrier is not None:
                    # The task hears of the barrier in front of the data, so that it can let it overtake when its time
                    # is over.
                    data = serialize_event(EventAnnouncement(sequence_number, barrier))
                    announcement = NetworkBuffer.unpooled(data, _PRIORITY)
                    # The task will count it as read, like a received one.
                    self.num_bytes_received += announcement.size
                    self._num_events_received += 1
                    self._num_event_bytes_received += announcement.size
                    received.priority.append((announcement, sequence_number))
                is_first_priority = data_type in (_PRIORITY, _TIMEOUTABLE) and len(received.priority) == 1
                if data_type is DataType.END_OF_PARTITION:
                    self._num_unended -= 1
        if not is_taken:
            return self._refuse(buffer, sequence_number)
        if backlog >= 0:
            self.sender_backlog = backlog
        calls: list[Callable[[], None]] = [each.recycle for each in surplus]
        if is_first_priority:
            calls.append(lambda: self.gate.notify_priority_event(self, sequence_number))
        if is_first:
            self.last_activity_ns = self.clock_ns()
            calls.append(lambda: self.gate.notify_channel_non_empty(self))
        if is_missing:
            calls.append(self.buffer_manager.request_floating)
        run_all(calls)
        return None

    def _check_room_for_event(self, num_bytes: int) -> None:
        """Stop a sender of many events before they fill the memory: events need no credit."""
        config = self.config
        # The task's counts may be one poll old: then the limit is reached a little early, never late.
        num_queued = self._num_events_received - self.num_events_in
        num_bytes_queued = self._num_event_bytes_received - self.num_event_bytes_in
        if num_queued >= config.max_queued_events:
            limit = f"at most {config.max_queued_events} may (max_queued_events)"
        elif num_queued and num_bytes_queued + num_bytes > config.max_queued_event_bytes:
            most = config.max_queued_event_bytes
            limit = f"with {num_bytes} more they are more than {most} bytes (max_queued_event_bytes)"
        else:
            return
        queued = f"{num_queued} events ({num_bytes_queued} bytes) wait for the task"
        raise RemoteProtocolError(f"channel {self.index} of {self.partition_id}: {queued}, {limit}")

    def on_empty_buffer(self, sequence_number: int, backlog: int) -> NetstackError | None:
        """Count a data buffer without bytes; returns the error that the channel got from it."""
        with self._lock:
            is_taken = sequence_number == self.expected_sequence_number and self.lifecycle is not _RELEASED
            if is_taken:
                self.expected_sequence_number = wrapped_number(sequence_number + 1)
        if not is_taken:
            return self._refuse(None, sequence_number)
        self.on_sender_backlog(backlog)
        return None

    def _on_partial_buffers(self, buffer: NetworkBuffer, response: BufferResponse) -> NetstackError | None:
        """Queue the buffers of one message, each compressed by itself, one by one, under successive numbers."""
        sizes = response.partial_sizes
        if sum(sizes) != buffer.size or min(sizes) < 1 or not buffer.is_buffer:
            return self._break(
                buffer, RemoteProtocolError(f"partial buffers of {sizes} bytes do not make up {buffer!r}")
            )
        error = None
        position = 0
        number = response.sequence_number
        for index, size in enumerate(sizes, start=1):
            backlog = response.backlog if index == len(sizes) else _NO_BACKLOG
            # After an error no slice is made: its bytes go home with ``buffer``.
            error = error or self.on_buffer(buffer.slice(position, size), number, backlog)
            position += size
            number = wrapped_number(number + 1)
        buffer.recycle()
        return error

    def _refuse(self, buffer: NetworkBuffer | None, sequence_number: int) -> NetstackError | None:
        """Recycle a buffer that came after the release, or out of order, which is an error."""
        if self.lifecycle is _RELEASED:
            if buffer is not None:
                buffer.recycle()
            return None
        text = (
            f"buffer reordering: expected sequence number {self.expected_sequence_number}, but received "
            f"{sequence_number}"
        )
        return self._break(buffer, RemoteProtocolError(f"channel {self.index} of {self.partition_id}: {text}"))

    def _break(self, buffer: NetworkBuffer | None, error: NetstackError) -> NetstackError:
        self.on_error(error)  # first: a broken channel announces no credit
        if buffer is not None:
            buffer.recycle()
        return error

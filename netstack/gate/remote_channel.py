"""Receives a subpartition of another process, into buffers of its own.

Side:       shared.  The loop receives, the task thread polls, any thread recycles and releases.
Hot path:   per buffer: one lock round to allocate, one to queue, none to poll.
Invariants: those of ``BufferManager`` for credit and buffers.
            The loop appends to ``_received`` under the lock, so that a checkpoint that starts on the task thread sees every buffer either
            as queued or as still to come; the task pops without it.  The gate is told when an append made the length one: an append
            that did not was behind an element whose poll will see that there is more.
Units:      credit in buffers; sizes in bytes.
Lock order: ``InputChannel._lock``, shared with the buffer manager, is a leaf: client, gate, pools, buffers and the channel state writer
            are called after it (FLINK-9676).
Source:     Flink ``RemoteInputChannel``.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from netstack.availability import AvailabilityFuture
from netstack.buffer.buffer_recycler import FREEING_RECYCLER
from netstack.buffer.memory_segment import MemorySegment
from netstack.buffer.network_buffer import NetworkBuffer, recycle_all
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.config import MAX_QUEUED_EVENT_BYTES, MAX_QUEUED_EVENTS
from netstack.errors import (
    LocalProtocolError,
    NetstackError,
    PartitionNotFoundError,
    RemoteProtocolError,
    ResourceBrokenError,
    ResourceClosedError,
)
from netstack.gate.buffer_manager import BufferManager, FloatingBufferPool
from netstack.gate.in_flight_recorder import InFlightRecorder, SequenceBuffer
from netstack.gate.input_channel import BufferAndAvailability, ChannelGate, ChannelStatistics, InputChannel
from netstack.gate.partition_request_client import PartitionRequestClient
from netstack.gate.prioritized_deque import PrioritizedDeque
from netstack.gate.request_backoff import RequestBackoff
from netstack.gate.sequence_numbers import MAX_SEQUENCE_NUMBER, next_sequence_number
from netstack.ids import InputChannelID, ResultPartitionID
from netstack.partition.channel_state import NO_CHANNEL_STATE, ChannelStateWriter, InputChannelInfo
from netstack.wakeups import run_all
from netstack.wire.events import CheckpointBarrier, Event, EventAnnouncement, deserialize_event, serialize_event
from netstack.wire.messages import BufferResponse, DataType

_PRIORITY: Final = DataType.PRIORITIZED_EVENT_BUFFER
_NONE: Final = DataType.NONE
_TIMEOUTABLE: Final = DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER
_BARRIER_TYPE: Final = b"\0\0\0\1"  # an event's first bytes, if it is a checkpoint barrier
_NUMBER_OFFSET: Final = MAX_SEQUENCE_NUMBER + 1
_NUM_NUMBERS: Final = 2 * _NUMBER_OFFSET
_new: Final = tuple.__new__  # half the cost of a named tuple's own constructor (bench: transport)


class RemoteInputChannel(InputChannel):
    """A channel behind a connection.

    Ownership: what it received belongs to it until it is polled; all is given back after ``release`` and the recycling of every buffer.

    Args:
        backoff: what happens when the producer does not know the partition and is asked again; default: nothing is asked again.
        channel_info: what ``state_writer`` calls this channel.
        max_queued_events: how many events may wait for the task; they need no credit, so nothing else bounds them.
        max_queued_event_bytes: likewise; a single one may be larger.
    """

    def __init__(
        self,
        gate: ChannelGate,
        index: int,
        channel_id: InputChannelID,
        partition_id: ResultPartitionID,
        subpartition: int,
        client: PartitionRequestClient,
        *,
        last: int | None = None,
        backoff: RequestBackoff | None = None,
        state_writer: ChannelStateWriter = NO_CHANNEL_STATE,
        channel_info: InputChannelInfo | None = None,
        max_queued_events: int = MAX_QUEUED_EVENTS,
        max_queued_event_bytes: int = MAX_QUEUED_EVENT_BYTES,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(gate, index, partition_id, subpartition, last=last, backoff=backoff, clock_ns=clock_ns)
        self.channel_id = channel_id
        # Where the loop puts what wakes the task, until all that one read of the socket brought is queued; None: it is woken at once.
        self.wakeups: list[tuple[RemoteInputChannel, AvailabilityFuture]] | None = None  # Written by the loop thread.
        self.sender_backlog = 0  # Written by the loop thread; read anywhere, one message stale is fine.
        self.buffer_manager = BufferManager(self._lock, self._announce_credit)
        self._client = client
        self._max_queued_events = max_queued_events
        self._max_queued_event_bytes = max_queued_event_bytes
        self._is_requested = False  # Written by the task thread.
        # Written by the loop thread.
        self._expected_sequence_number = 0
        self._has_ended = False
        self._num_unended = self.num_subpartitions
        self._is_blocked = False  # Also cleared by the task, when the sender can do nothing but wait for that.
        self._num_bytes_received = 0
        self._num_events_received = self._num_event_bytes_received = 0
        self._max_buffer_bytes = 0  # Written before the request.
        # Appended under _lock; popped by the task thread and the release, each popleft is atomic.
        self._received: PrioritizedDeque[SequenceBuffer] = PrioritizedDeque()
        info = InputChannelInfo(0, index) if channel_info is None else channel_info
        self._in_flight = InFlightRecorder(self._lock, state_writer, info)

    @property
    def initial_credit(self) -> int:
        """The number of exclusive buffers: what the sender may send before it hears from us."""
        return self.buffer_manager.initial_credit

    # ---------------------------------------------------------------- set-up and requests

    def assign_exclusive_segments(self, pool: NetworkBufferPool, num_segments: int, timeout_s: float | None = None) -> None:
        """Take the channel's own segments, once, before the request; their number is the initial credit.

        Those that others still use are waited for, ``timeout_s`` at most (None: what the pool was made with).

        Raises:
            InsufficientNetworkBuffersError: the pool does not have so many; nothing was taken.
        """
        if num_segments < 0:
            raise ValueError(f"channel {self.index} cannot have {num_segments} exclusive segments")
        self._max_buffer_bytes = pool.segment_size_bytes
        self.buffer_manager.assign_exclusive(pool, num_segments, f"{self.gate.owner} (input channel {self.index})", timeout_s)

    def set_floating_pool(self, pool: FloatingBufferPool) -> None:
        """From where more buffers come when the sender has a backlog; before the request."""
        self.buffer_manager.set_floating_pool(pool)

    def request_subpartition(self) -> None:
        """Send the partition request with the initial credit; the second call does nothing."""
        if self._is_requested or self.is_released:
            return
        if not self.buffer_manager.is_assigned:
            raise LocalProtocolError(f"channel {self.index} is requested without exclusive segments")
        self._is_requested = True
        self._client.request_subpartition(self)
        if self.is_released:  # meanwhile; its release may not have known that there is something to cancel
            self._client.cancel(self)

    def on_failed_partition_request(self, error: PartitionNotFoundError | None = None) -> None:
        """The producer does not know the partition: the gate finds out whether to ask once more.  Never blocks (FLINK-13249).

        ``error`` is what the task will see if not.
        """
        self._not_found = error
        self.gate.trigger_partition_state_check(self)

    def retrigger_subpartition_request(self) -> None:
        """Ask for the subpartition once more, unless the back-off is at its end.

        Raises:
            LocalProtocolError: it was never asked for.
        """
        if not self._is_requested:
            raise LocalProtocolError(f"channel {self.index} is requested once more before it was requested")
        if self.is_released:
            return
        delay_ms = self._backoff.next_delay_ms()
        if delay_ms is None:
            self.fail_partition_request()
        else:
            self._client.request_subpartition(self, delay_ms)

    # ---------------------------------------------------------------- task thread

    def next_buffer(self) -> BufferAndAvailability | None:
        """The oldest received buffer, priority events first.

        Raises:
            NetstackError: the error of the connection, the sender or the protocol that hit this channel.
        """
        if self._error is not None:
            raise self._error
        priority, rest = self._received.priority, self._received.rest
        try:
            buffer, sequence_number = (priority or rest).popleft()
        except IndexError:
            if not self._is_requested and not self.is_released:
                raise LocalProtocolError(f"channel {self.index} is polled before it was requested") from None
            return None
        self.num_bytes_in += buffer.size
        self.num_buffers_in += 1
        try:
            next_data_type = (priority or rest)[0][0].data_type if priority or rest else _NONE
        except IndexError:  # a release took it just now
            next_data_type = _NONE
        return _new(BufferAndAvailability, (buffer, 0, next_data_type, sequence_number))

    @property
    def next_is_data(self) -> bool:
        """Whether the next poll is known to find data: no event, no error.  Task thread."""
        received = self._received
        try:
            return self._error is None and not received.priority and received.rest[0][0].is_buffer
        except IndexError:  # there is nothing, or a release took it just now
            return False

    def next_data(self, max_buffers: int) -> tuple[list[NetworkBuffer], bool]:
        """The oldest data buffers up to the next event; see ``InputChannel``."""
        received = self._received
        rest = received.rest
        found: list[NetworkBuffer] = []
        if self._error is not None or received.priority:
            return found, True
        num_bytes = 0
        try:
            while len(found) < max_buffers and rest[0][0].is_buffer:
                buffer = rest.popleft()[0]
                found.append(buffer)
                num_bytes += buffer.size
        except IndexError:  # there is no more, or a release took it just now
            pass
        if self.is_released:  # it may have taken what was looked at; what was popped in its place may be an event
            recycle_all([buffer for buffer in found if not buffer.is_buffer])
            found = [buffer for buffer in found if buffer.is_buffer]
        self.num_bytes_in += num_bytes
        self.num_buffers_in += len(found)
        return found, bool(rest or received.priority)

    def resume_consumption(self) -> None:
        """Let the producer go on after a blocking event; without exclusive buffers both sides start again with no credit.

        Raises:
            ResourceClosedError: the channel was released.
        """
        self._check_usable()
        self._is_blocked = False
        self._client.resume_consumption(self)

    def acknowledge_all_records_processed(self) -> None:
        """Tell the producer that everything up to the end of data was processed."""
        if self._is_requested and not self.is_released:
            self._client.acknowledge_all_records_processed(self)

    def send_task_event(self, event: Event) -> None:
        """Bring ``event`` to the producer; if it does not listen, that is the channel's error, later.

        Raises:
            ResourceClosedError: the channel was released.
        """
        self._check_usable()
        self._client.send_task_event(self, serialize_event(event))

    def announce_buffer_size(self, size_bytes: int) -> None:
        """Ask the producer for buffers of this size from now on.

        Raises:
            ResourceClosedError: the channel was released.
        """
        self._check_usable()
        self._client.notify_new_buffer_size(self, size_bytes)

    def _check_usable(self) -> None:
        if self.is_released:
            raise ResourceClosedError(f"channel {self.index} of {self.gate.owner} was released")
        if not self._is_requested:
            raise LocalProtocolError(f"channel {self.index} is used before it was requested")

    # ---------------------------------------------------------------- checkpoints

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None:
        """Persist what is queued before the barrier, and until the barrier has arrived what comes; task thread.

        Raises:
            CheckpointSubsumedError: a later checkpoint's barrier is here already.
        """
        with self._lock:
            self._in_flight.start_locked(barrier.checkpoint_id, self._received.rest)
        self._in_flight.hand_over()

    def set_channel_state_writer(self, writer: ChannelStateWriter, info: InputChannelInfo) -> None:
        """Hand what arrives before a barrier that is waited for to ``writer``; before the request."""
        self._in_flight = InFlightRecorder(self._lock, writer, info)

    def checkpoint_stopped(self, checkpoint_id: int) -> None:
        """Persist nothing more for it; task thread."""
        with self._lock:
            self._in_flight.stop_locked(checkpoint_id)

    def in_flight_buffers(self) -> list[NetworkBuffer]:
        """The data that is queued before the last barrier, or all; the caller recycles it."""
        with self._lock:
            return self._in_flight.in_flight_locked(self._received.rest)

    def convert_to_priority_event(self, sequence_number: int) -> None:
        """Let the announced barrier with that number overtake the data before it; task thread.

        Raises:
            LocalProtocolError: it is not queued, or not the last barrier.
        """
        with self._lock:
            if not self._in_flight.is_last_barrier_locked(sequence_number):
                last = self._in_flight.last_barrier
                raise LocalProtocolError(f"channel {self.index}: {sequence_number} is not the last barrier, that is {last}")
            rest = self._received.rest
            found = next((each for each in rest if each[1] == sequence_number), None)
            if found is None or found[0].is_buffer:
                raise LocalProtocolError(f"channel {self.index}: there is no event {sequence_number} that could get priority")
            rest.remove(found)
            # The barrier as it is, only its mark and place change: whoever handles it decides later that it is unaligned now.
            overtaking = NetworkBuffer.unpooled(bytes(found[0].view), _PRIORITY)
            self._received.priority.append((overtaking, sequence_number))
            is_first = len(self._received.priority) == 1
        found[0].recycle()
        if is_first:
            self.gate.notify_priority_event_force(self)  # its number was seen when it was announced

    # ---------------------------------------------------------------- loop thread

    def allocate(self, size_bytes: int, data_type: DataType, *, is_compressed: bool) -> NetworkBuffer | None:
        """Room for a payload that is about to arrive: for data one of the channel's buffers, the credit is spent.

        None after the release, or if the sender has no credit or the payload does not fit: ``on_response`` then says what is wrong.
        """
        if data_type.is_buffer:
            if size_bytes > self._max_buffer_bytes:
                return None
            return self.buffer_manager.request_buffer(size_bytes, data_type, is_compressed=is_compressed)
        return NetworkBuffer(MemorySegment(memoryview(bytearray(size_bytes))), FREEING_RECYCLER, size_bytes, data_type)

    def request_buffer(self) -> NetworkBuffer | None:
        """A buffer for one data buffer of the sender, its credit is spent; None without credit, or after the release."""
        return self.allocate(self.buffer_manager.segment_size_bytes, DataType.DATA_BUFFER, is_compressed=False)

    def on_response(self, response: BufferResponse) -> None:
        """Take in one message of the sender and its buffer; nothing after the release.

        Raises:
            RemoteProtocolError: the sequence number is wrong, the sender overdrew its credit, or the message contradicts itself.
        """
        _, _, sequence_number, backlog, _, _, partial_sizes, buffer = response
        if buffer is None:
            self._check_released_without_buffer()
            return
        assert isinstance(buffer, NetworkBuffer), "what this channel allocated comes back"
        # One part is the buffer itself: Flink's sort-merge partitions write events and single buffers so.
        if partial_sizes and partial_sizes != (buffer.size,):
            error = self._on_partial_buffers(buffer, response)
        elif buffer.size or not buffer.is_buffer:
            error = self._receive(buffer, sequence_number, backlog)
        else:
            error = self._receive_empty(sequence_number, backlog)
            # After the error is set: a broken channel announces no credit.  The sender paid for nothing; it gets its credit back.
            buffer.recycle()
        if error is not None:
            raise error

    def allocate_run(self, size_bytes: int, max_buffers: int) -> list[NetworkBuffer]:
        """Room for several plain data buffers that have arrived, their credit is spent; fewer with less credit, none after the release."""
        return [] if size_bytes > self._max_buffer_bytes else self.buffer_manager.request_buffers(size_bytes, max_buffers)

    def on_run(self, buffers: Sequence[NetworkBuffer], sequence_number: int, backlog: int) -> None:
        """Take in several data buffers with bytes in them, the first one with that number; nothing after the release.

        Raises:
            RemoteProtocolError: the sequence number is wrong.
        """
        num_buffers = len(buffers)
        end = sequence_number + num_buffers
        if end > MAX_SEQUENCE_NUMBER:  # the numbers wrap in this run or behind it
            for position, buffer in enumerate(buffers):
                number = (sequence_number + position + _NUMBER_OFFSET) % _NUM_NUMBERS - _NUMBER_OFFSET
                error = self._receive(buffer, number, backlog)
                if error is not None:
                    recycle_all(buffers[position + 1 :])
                    raise error
            return
        rest = self._received.rest
        is_missing = is_first = is_pending = False
        with self._lock:
            is_taken = sequence_number == self._expected_sequence_number and not self.is_released
            if is_taken:
                self._expected_sequence_number = end
                self._num_bytes_received += num_buffers * buffers[0].size
                is_pending = self._in_flight.persister.is_pending
                if is_pending:
                    for buffer in buffers:
                        self._in_flight.note_buffer_locked(buffer)
                rest.extend(zip(buffers, range(sequence_number, end), strict=True))
                # None is left that was there before: the task may have polled it without a look at what came behind it.
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
        """There is data after there was none; who waits is woken now, or with the end of the present read."""
        self.last_activity_ns = self._clock_ns()
        pending = self.gate.enqueue_channel(self)
        if pending is not None:
            if self.wakeups is None:
                pending.complete()
            else:
                self.wakeups.append((self, pending))

    def on_buffer(self, buffer: NetworkBuffer, sequence_number: int, backlog: int) -> None:
        """Queue ``buffer``, which belongs to the channel from now on; a wrong sequence number surfaces at the next poll."""
        self._receive(buffer, sequence_number, backlog)

    def on_empty_buffer(self, sequence_number: int, backlog: int) -> None:
        """Count a data buffer without bytes."""
        self._receive_empty(sequence_number, backlog)

    def on_sender_backlog(self, backlog: int) -> None:
        """The sender has ``backlog`` buffers queued (-1: it does not say): get floating buffers for them."""
        if backlog < 0:
            return
        self.sender_backlog = backlog
        with self._lock:
            is_missing = self.buffer_manager.require_locked(backlog)
        if is_missing:
            self.buffer_manager.request_floating()

    def _receive(self, buffer: NetworkBuffer, sequence_number: int, backlog: int) -> NetstackError | None:
        """Queue ``buffer``; returns the error that the channel got from it, if any."""
        if not buffer.is_buffer:
            return self._receive_event(buffer, sequence_number, backlog)
        is_missing = is_first = is_pending = False
        rest = self._received.rest
        with self._lock:
            is_taken = sequence_number == self._expected_sequence_number and not self.is_released
            if is_taken:
                self._expected_sequence_number = sequence_number + 1 if sequence_number != MAX_SEQUENCE_NUMBER else -MAX_SEQUENCE_NUMBER - 1
                self._num_bytes_received += buffer.size
                is_pending = self._in_flight.persister.is_pending
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
            barrier = _barrier_of(buffer)
            if data_type.is_blocking_upstream and backlog > 0:
                raise RemoteProtocolError(f"{data_type.name} blocks the sender, but says that {backlog} buffers can be polled behind it")
            if data_type is _TIMEOUTABLE and barrier is None:
                raise RemoteProtocolError(f"{data_type.name} is not a checkpoint barrier")
            self._check_room_for_event(buffer.size)
        except RemoteProtocolError as error:
            return self._break(buffer, error)
        surplus: list[NetworkBuffer] = []
        is_missing = is_first = is_first_priority = False
        received = self._received
        with self._lock:
            is_taken = sequence_number == self._expected_sequence_number and not self.is_released
            if is_taken:
                self._expected_sequence_number = next_sequence_number(sequence_number)
                self._num_bytes_received += buffer.size
                self._num_events_received += 1
                self._num_event_bytes_received += buffer.size
                if data_type.is_blocking_upstream:
                    self._is_blocked = True
                if self._is_blocked and self.initial_credit == 0:
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
                    announcement = _announcement(barrier, sequence_number)
                    self._num_bytes_received += announcement.size
                    self._num_events_received += 1
                    self._num_event_bytes_received += announcement.size
                    received.priority.append((announcement, sequence_number))
                is_first_priority = (data_type is _PRIORITY or data_type is _TIMEOUTABLE) and len(received.priority) == 1
                if data_type is DataType.END_OF_PARTITION:
                    self._num_unended -= 1
                self._has_ended = self._num_unended <= 0
        if not is_taken:
            return self._refuse(buffer, sequence_number)
        if backlog >= 0:
            self.sender_backlog = backlog
        calls: list[Callable[[], None]] = [each.recycle for each in surplus]
        if is_first_priority:
            calls.append(lambda: self.gate.notify_priority_event(self, sequence_number))
        if is_first:
            self.last_activity_ns = self._clock_ns()
            calls.append(lambda: self.gate.notify_channel_non_empty(self))
        if is_missing:
            calls.append(self.buffer_manager.request_floating)
        run_all(calls)
        return None

    def _check_room_for_event(self, num_bytes: int) -> None:
        """Events need no credit; a sender of many is stopped before they fill the memory."""
        num_queued = self._num_events_received - self.num_events_in
        num_bytes_queued = self._num_event_bytes_received - self.num_event_bytes_in
        if num_queued >= self._max_queued_events:
            limit = f"at most {self._max_queued_events} may (max_queued_events)"
        elif num_queued and num_bytes_queued + num_bytes > self._max_queued_event_bytes:
            limit = f"with {num_bytes} more they are more than {self._max_queued_event_bytes} bytes (max_queued_event_bytes)"
        else:
            return
        queued = f"{num_queued} events ({num_bytes_queued} bytes) wait for the task"
        raise RemoteProtocolError(f"channel {self.index} of {self.partition_id}: {queued}, {limit}")

    def _receive_empty(self, sequence_number: int, backlog: int) -> NetstackError | None:
        with self._lock:
            if self.is_released:
                return None
            is_expected = sequence_number == self._expected_sequence_number
            if is_expected:
                self._expected_sequence_number = next_sequence_number(sequence_number)
        if not is_expected:
            return self._refuse(None, sequence_number)
        self.on_sender_backlog(backlog)
        return None

    def _on_partial_buffers(self, buffer: NetworkBuffer, response: BufferResponse) -> NetstackError | None:
        """One message with several buffers, each compressed by itself: they are queued one by one, under one number."""
        sizes = response.partial_sizes
        if sum(sizes) != buffer.size or min(sizes) < 1 or not buffer.is_buffer:
            return self._break(buffer, RemoteProtocolError(f"partial buffers of {sizes} bytes do not make up {buffer!r}"))
        error = None
        position = 0
        for size in sizes[:-1]:
            error = error or self._receive_part(buffer.slice(position, size), response.sequence_number)
            position += size
        error = error or self._receive(buffer.slice(position, sizes[-1]), response.sequence_number, response.backlog)
        buffer.recycle()
        return error

    def _receive_part(self, part: NetworkBuffer, sequence_number: int) -> NetstackError | None:
        """Queue ``part`` without moving on to the next number."""
        error = self._receive(part, sequence_number, -1)
        if error is None:
            self._expected_sequence_number = sequence_number
        return error

    def _refuse(self, buffer: NetworkBuffer | None, sequence_number: int) -> NetstackError | None:
        """A buffer came after the release, or out of order."""
        if self.is_released:
            if buffer is not None:
                buffer.recycle()
            return None
        text = f"buffer reordering: expected sequence number {self._expected_sequence_number}, but received {sequence_number}"
        return self._break(buffer, RemoteProtocolError(f"channel {self.index} of {self.partition_id}: {text}"))

    def _break(self, buffer: NetworkBuffer | None, error: NetstackError) -> NetstackError:
        self.on_error(error)  # first: a broken channel announces no credit
        if buffer is not None:
            buffer.recycle()
        return error

    def _check_released_without_buffer(self) -> None:
        if not self.is_released:
            manager = self.buffer_manager
            with self._lock:
                text = f"{manager.num_spent + 1} buffers sent, {manager.num_granted} credits granted"
            raise RemoteProtocolError(f"channel {self.index} of {self.partition_id}: no buffer available: {text}")

    def on_error(self, error: NetstackError) -> None:
        """Let the next poll raise ``error``; one that comes after the end of the partition was received has nothing left to spoil."""
        if not self._has_ended:
            super().on_error(error)

    def take_unannounced_credit(self) -> int:
        """The credit to announce now; from this moment it counts as granted."""
        return self.buffer_manager.take_unannounced()

    def _announce_credit(self) -> None:
        """The unannounced credit rose from zero; whoever recycled a buffer must not suffer from it (FLINK-9755)."""
        if self._error is not None or self.is_released:
            return
        if not self._is_requested:
            self.on_error(LocalProtocolError(f"channel {self.index} has credit to announce before it was requested"))
            return
        try:
            self._client.notify_credit_available(self)
        except Exception as cause:  # noqa: BLE001 - a consumer that nobody tells of its credit would wait for ever
            error = ResourceBrokenError(f"channel {self.index} cannot announce credit: {type(cause).__name__}: {cause}")
            error.__cause__ = cause
            self.on_error(error)

    # ---------------------------------------------------------------- end

    def release(self) -> None:
        """Cancel the flow and give everything back; buffers the task still holds follow when it recycles them."""
        with self._lock:
            if self.is_released:
                return
            self.is_released = True
            garbage = self._in_flight.drop_locked()
            self._drain_locked(garbage)
        # The manager first: what is recycled after it goes home instead of becoming credit.
        calls: list[Callable[[], None]] = [self.buffer_manager.release, *(buffer.recycle for buffer in garbage)]
        if self._is_requested:
            calls.append(lambda: self._client.cancel(self))
        run_all(calls)

    def _drain_locked(self, garbage: list[NetworkBuffer]) -> None:
        received = self._received
        while True:
            try:
                garbage.append((received.priority or received.rest).popleft()[0])
            except IndexError:  # the task may be popping, too (FLINK-17823): each buffer is found by one of the two
                return

    # ---------------------------------------------------------------- numbers

    @property
    def num_queued_buffers(self) -> int:
        """How many received buffers wait to be polled, events included."""
        return len(self._received)

    @property
    def queue_size_bytes(self) -> int:
        """How many bytes they hold."""
        return 0 if self.is_released else max(0, self._num_bytes_received - self.num_bytes_in)

    @property
    def num_buffers_in_use(self) -> int:
        """What is queued here and what the sender has queued."""
        return len(self._received) + max(0, self.buffer_manager.num_required - self.initial_credit)

    @property
    def num_credits_granted(self) -> int:
        """The initial credit plus everything announced."""
        return self.buffer_manager.num_granted

    @property
    def num_credits_available(self) -> int:
        """How many data buffers the sender may still send."""
        return self.buffer_manager.num_credits_available

    @property
    def unannounced_credit(self) -> int:
        """How many buffers became free that the sender was not told about."""
        return self.buffer_manager.num_unannounced

    def statistics(self) -> ChannelStatistics:
        """One row of a dump; any thread."""
        manager = self.buffer_manager
        return ChannelStatistics(
            index=self.index,
            kind="remote",
            partition=f"{self.partition_id}/{self.subpartition}",
            state=self._state(),
            num_bytes_in=self.num_bytes_in,
            num_buffers_in=self.num_buffers_in,
            num_queued_buffers=len(self._received),
            queue_size_bytes=self.queue_size_bytes,
            num_credits_available=manager.num_credits_available,
            num_credits_granted=manager.num_granted,
            num_unannounced=manager.num_unannounced,
            num_required_buffers=manager.num_required,
            num_exclusive_available=manager.num_exclusive_available,
            num_floating_available=manager.num_floating_available,
            sender_backlog=self.sender_backlog,
            is_blocked=self._is_blocked,
            last_activity_ns=self.last_activity_ns,
        )

    def check_invariants(self) -> None:
        """Assert the invariants of this module and of its buffer manager."""
        self.buffer_manager.check_invariants()
        with self._lock:
            if self.is_released:
                return
            assert all(not each[0].is_buffer for each in self._received.priority), "data has no priority"
            self._in_flight.check_invariants_locked()

    def _describe(self) -> str:
        return f"{len(self._received)} queued, {self.buffer_manager!r}"


def _barrier_of(buffer: NetworkBuffer) -> CheckpointBarrier | None:
    """The checkpoint barrier in an event buffer; other events are left to the gate."""
    view = buffer.view
    if bytes(view[:4]) != _BARRIER_TYPE:
        return None
    event: Event = deserialize_event(view)
    assert isinstance(event, CheckpointBarrier), "that is what its type says"
    return event


def _announcement(barrier: CheckpointBarrier, sequence_number: int) -> NetworkBuffer:
    return NetworkBuffer.unpooled(serialize_event(EventAnnouncement(sequence_number, barrier)), _PRIORITY)

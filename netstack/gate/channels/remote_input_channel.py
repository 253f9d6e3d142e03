"""Receives a subpartition of another process, into buffers of its own.

Side:       shared.  The task thread polls, any thread recycles and releases; the loop's thread has the
            ``ChannelReceiver``.
Hot path:   per buffer: no lock to poll.
Invariants: those of ``BufferManager`` for credit and buffers, those of ``ChannelReceiver`` for what is queued.
Units:      credit in buffers; sizes in bytes.
Lock order: ``InputChannel._lock``, shared with the buffer manager, is a leaf: client, gate, pools, buffers and the
            channel state writer are called after it (FLINK-9676).
Source:     Flink ``RemoteInputChannel``.
"""

from collections.abc import Callable
from typing import Final

from netstack.availability import run_all
from netstack.buffer.network_buffer import NetworkBuffer, recycle_all
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import LocalProtocolError, NetstackError, PartitionNotFoundError, ResourceBrokenError
from netstack.gate.channels.channel_receiver import ChannelReceiver
from netstack.gate.channels.input_channel import BufferAndAvailability, ChannelStatistics, Lifecycle
from netstack.log_lines import caused_by
from netstack.wire.events import Event, serialize_event
from netstack.wire.messages import (
    AckAllUserRecordsProcessed,
    DataType,
    NewBufferSize,
    ResumeConsumption,
    TaskEventRequest,
)

_PRIORITY: Final = DataType.PRIORITIZED_EVENT_BUFFER
_NONE: Final = DataType.NONE
_CREATED: Final = Lifecycle.CREATED
_REQUESTED: Final = Lifecycle.REQUESTED
_RELEASED: Final = Lifecycle.RELEASED
_new: Final = tuple.__new__  # half the cost of a named tuple's own constructor (bench: transport)


class RemoteInputChannel(ChannelReceiver):
    """A channel behind a connection: what its task polls, and the orders to its producer.

    It has four parts, all under the channel's one lock.  Its base: the queue, its numbers and events; the loop thread
    works with it.  ``buffer_manager``: buffers and credit; any thread recycles.  The ``InFlightRecorder``: what an
    unaligned checkpoint persists; the loop notes, the task starts and stops.  What stands here is the task's, but for
    the life cycle: any thread releases it.

    Ownership: what it received belongs to it until it is polled; all is given back after ``release`` and the recycling
               of every buffer.
    """

    # ---------------------------------------------------------------- set-up and requests

    def assign_exclusive_segments(self, pool: NetworkBufferPool, num_segments: int, timeout_s: float = 0.0) -> None:
        """Take the channel's own segments, once, before the request; their number is the initial credit.

        Those that others still use are waited for, ``timeout_s`` at most.

        Raises:
            InsufficientNetworkBuffersError: the pool does not have so many; nothing was taken.
        """
        if num_segments < 0:
            raise ValueError(f"channel {self.index} cannot have {num_segments} exclusive segments")
        self.max_buffer_bytes = pool.segment_size_bytes
        self.buffer_manager.assign_exclusive(
            pool, num_segments, f"{self.gate.owner} (input channel {self.index})", timeout_s
        )

    def request_subpartition(self) -> None:
        """Send the partition request with the initial credit; the second call does nothing."""
        if self.lifecycle is _CREATED and not self.buffer_manager.is_assigned:
            raise LocalProtocolError(f"channel {self.index} is requested without exclusive segments")
        super().request_subpartition()

    def _request(self) -> None:
        self.client.request_subpartition(self)
        if self.is_released:  # meanwhile; its release may not have known that there is something to cancel
            self.client.cancel(self)

    def on_failed_partition_request(self, error: PartitionNotFoundError | None = None) -> None:
        """Hear that the producer does not know the partition: the gate finds out whether to ask once more.

        Never blocks (FLINK-13249).

        ``error``: the one that the task will see if there is no further request.
        """
        self._not_found = error
        self.gate.trigger_partition_state_check(self)

    # ---------------------------------------------------------------- task thread

    def next_buffer(self) -> BufferAndAvailability | None:
        """Take the oldest received buffer, priority events first.

        Raises:
            NetstackError: the error of the connection, the sender or the protocol that hit this channel.
        """
        if self._error is not None:
            raise self._error
        priority, rest = self.received.priority, self.received.rest
        try:
            # No look before the pop: a release may take the element in between.
            buffer, sequence_number = (priority or rest).popleft()
        except IndexError:
            if self.lifecycle is _CREATED:
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
        received = self.received
        try:
            return self._error is None and not received.priority and received.rest[0][0].is_buffer
        except IndexError:  # there is nothing, or a release took it just now
            return False

    @property
    def next_is_event(self) -> bool:
        """Whether the next poll is known to find an event or an error.  Task thread."""
        received = self.received
        try:
            return self._error is not None or bool(received.priority) or not received.rest[0][0].is_buffer
        except IndexError:  # there is nothing, or a release took it just now
            return False

    def next_data(self, max_buffers: int) -> tuple[list[NetworkBuffer], bool]:
        """Take the oldest data buffers up to the next event; see ``InputChannel``."""
        received = self.received
        rest = received.rest
        found: list[NetworkBuffer] = []
        # Without the lock: an error or event that comes just now queues the channel, and the next poll finds it.
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
        # The release may have taken what was looked at; what was popped in its place may be an event.
        if self.lifecycle is _RELEASED:
            recycle_all([buffer for buffer in found if not buffer.is_buffer])
            found = [buffer for buffer in found if buffer.is_buffer]
        self.num_bytes_in += num_bytes
        self.num_buffers_in += len(found)
        return found, bool(rest or received.priority)

    def resume_consumption(self) -> None:
        """Let the producer go on after a blocking event; without exclusive buffers both sides start again with no
        credit.

        Raises:
            ResourceClosedError: the channel was released.
        """
        self._check_usable()
        # Before the order: the producer may answer at once, and the loop marks the channel at its next blocking event.
        self.is_blocked = False
        self.client.order(self, ResumeConsumption(self.channel_id))

    def acknowledge_all_records_processed(self) -> None:
        """Tell the producer that everything up to the end of data was processed."""
        # A channel that was released has left, and counts as processed at the producer.
        if self.lifecycle is _REQUESTED:
            self.client.order(self, AckAllUserRecordsProcessed(self.channel_id))

    def send_task_event(self, event: Event) -> None:
        """Bring ``event`` to the producer; if it does not listen, that is the channel's error, later.

        Raises:
            ResourceClosedError: the channel was released.
        """
        self._check_usable()
        self.client.order(self, TaskEventRequest(serialize_event(event), self.partition_id, self.channel_id))

    def announce_buffer_size(self, size_bytes: int) -> None:
        """Ask the producer for buffers of this size from now on.

        Raises:
            ResourceClosedError: the channel was released.
        """
        self._check_usable()
        self.client.order(self, NewBufferSize(self.channel_id, size_bytes))

    def _check_usable(self) -> None:
        self._check_open()
        if self.lifecycle is _CREATED:
            raise LocalProtocolError(f"channel {self.index} is used before it was requested")

    # ---------------------------------------------------------------- checkpoints

    def convert_to_priority_event(self, sequence_number: int) -> None:
        """Let the announced barrier with that number overtake the data before it; task thread.

        Raises:
            LocalProtocolError: it is not queued, or not the last barrier.
        """
        with self._lock:
            if not self._in_flight.is_last_barrier_locked(sequence_number):
                last = self._in_flight.last_barrier
                raise LocalProtocolError(
                    f"channel {self.index}: {sequence_number} is not the last barrier, that is {last}"
                )
            rest = self.received.rest
            # Under the lock: the loop appends, and a deque must not grow while it is searched.
            found = next((each for each in rest if each[1] == sequence_number), None)
            if found is None or found[0].is_buffer:
                raise LocalProtocolError(
                    f"channel {self.index}: there is no event {sequence_number} that could get priority"
                )
            rest.remove(found)
            # The barrier stays as it is, only its mark and place change: its handler decides later that it is unaligned
            # now.
            overtaking = NetworkBuffer.unpooled(bytes(found[0].view), _PRIORITY)
            self.received.priority.append((overtaking, sequence_number))
            is_first = len(self.received.priority) == 1
        found[0].recycle()
        if is_first:
            self.gate.notify_priority_event_force(self)  # its number was seen when it was announced

    def on_error(self, error: NetstackError) -> None:
        """Let the next poll raise ``error``; an error after the end of the partition has nothing left to spoil."""
        if not self.has_ended:
            super().on_error(error)

    def _announce_credit(self) -> None:
        """Tell the sender of the unannounced credit; a failure must not hit the thread that recycled a buffer
        (FLINK-9755).
        """
        if self._error is not None or self.lifecycle is _RELEASED:
            return
        if self.lifecycle is _CREATED:
            self.on_error(LocalProtocolError(f"channel {self.index} has credit to announce before it was requested"))
            return
        try:
            self.client.order(self, None)
        except Exception as cause:  # noqa: BLE001 - a consumer that nobody tells of its credit would wait for ever
            text = f"channel {self.index} cannot announce credit: {type(cause).__name__}: {cause}"
            self.on_error(caused_by(cause, ResourceBrokenError(text)))

    # ---------------------------------------------------------------- end

    def release(self) -> None:
        """Cancel the flow and give everything back; buffers the task still holds follow when it recycles them."""
        with self._lock:
            was_requested = self.lifecycle is _REQUESTED
            if not self._enter_locked(_RELEASED):
                return
            # In the lock round that sets the state: the loop notes and queues nothing behind it.
            garbage = self._in_flight.drop_locked()
            self._drain_locked(garbage)
        # The manager first: what is recycled after it goes home instead of becoming credit.
        calls: list[Callable[[], None]] = [self.buffer_manager.release, *(buffer.recycle for buffer in garbage)]
        if was_requested:
            calls.append(lambda: self.client.cancel(self))
        run_all(calls)

    def _drain_locked(self, garbage: list[NetworkBuffer]) -> None:
        received = self.received
        while True:
            try:
                garbage.append((received.priority or received.rest).popleft()[0])
            except IndexError:  # the task may be popping, too (FLINK-17823): each buffer is found by one of the two
                return

    # ---------------------------------------------------------------- numbers

    @property
    def num_queued_buffers(self) -> int:
        """How many received buffers wait to be polled, events included."""
        return len(self.received)

    @property
    def queue_size_bytes(self) -> int:
        """How many bytes the received buffers hold."""
        # Two threads write the two counts: read between their updates, the difference may be below 0.
        return 0 if self.is_released else max(0, self.num_bytes_received - self.num_bytes_in)

    def statistics(self) -> ChannelStatistics:
        """Make one row of a dump; any thread."""
        manager = self.buffer_manager
        return self._statistics(
            "remote",
            queue_size_bytes=self.queue_size_bytes,
            num_credits_available=manager.num_credits_available,
            num_credits_granted=manager.num_granted,
            sender_backlog=self.sender_backlog,
            num_required=manager.num_required,
            is_waiting=manager.is_waiting,
        )

    def check_invariants(self) -> None:
        """Assert the invariants of this module and of its buffer manager."""
        self.buffer_manager.check_invariants()
        with self._lock:
            if self.is_released:
                return
            assert all(not each[0].is_buffer for each in self.received.priority), "data has no priority"
            self._in_flight.check_invariants_locked()

    def _describe(self) -> str:
        return f"{len(self.received)} queued, {self.buffer_manager!r}"

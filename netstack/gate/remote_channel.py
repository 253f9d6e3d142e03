"""Receives a subpartition of another process, into buffers of its own.

Side:       shared.  The loop receives, the task thread polls, any thread recycles and releases.
Hot path:   per buffer.
Invariants: granted == spent + available, where *granted* is the initial credit plus everything announced, *spent* the data buffers
            received, and *available* what the sender may still send; every available credit has a free segment behind it:
            available + unannounced == free segments.
            ``received`` is appended by the loop and popped by the task.  The gate is told when an append made the length one: an append
            that did not was behind an element whose poll will see that there is more.
Units:      credit in buffers, one exclusive segment each.
Lock order: ``InputChannel._lock`` is a leaf: client, gate, pool and buffers are called after it (FLINK-9676).
Source:     Flink ``RemoteInputChannel`` and the exclusive half of its ``BufferManager``.
Absent:     floating buffers (the sender's backlog is only remembered), compressed and partial buffers, priority events.
"""

from collections import deque

from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.buffer.segment import FREEING_RECYCLER, MemorySegment, NetworkBuffer
from netstack.errors import LocalProtocolError, NetstackError, PartitionNotFoundError, RemoteProtocolError
from netstack.gate.input_channel import BufferAndAvailability, ChannelGate, InputChannel
from netstack.gate.partition_request_client import PartitionRequestClient
from netstack.ids import InputChannelID, ResultPartitionID
from netstack.wire.messages import BufferResponse, DataType


class RemoteInputChannel(InputChannel):
    """A channel behind a connection.

    Ownership: the exclusive segments belong to the network pool; they are back there after ``release`` and the recycling of every buffer.
    """

    def __init__(
        self,
        gate: ChannelGate,
        index: int,
        channel_id: InputChannelID,
        partition_id: ResultPartitionID,
        subpartition: int,
        client: PartitionRequestClient,
    ) -> None:
        super().__init__(gate, index, partition_id, subpartition)
        self.channel_id = channel_id
        self.initial_credit = 0
        self.sender_backlog = 0  # Written by the loop thread; read anywhere, one message stale is fine.
        self._client = client
        self._pool: NetworkBufferPool | None = None
        self._is_requested = False  # Written by the task thread.
        self._next_polled = 0  # Written by the task thread.
        self._received: deque[NetworkBuffer] = deque()  # append, popleft and len are each atomic
        # Written by the loop thread.
        self._expected_sequence_number = 0
        self._has_ended = False
        # Guarded by _lock.
        self._free: list[MemorySegment] = []
        self._num_granted = 0
        self._num_spent = 0
        self._num_unannounced = 0

    # ---------------------------------------------------------------- task thread

    def assign_exclusive_segments(self, pool: NetworkBufferPool, num_segments: int) -> None:
        """Take the channel's own segments, once, before the request; their number is the initial credit.

        Raises:
            InsufficientNetworkBuffersError: the pool does not have so many; nothing was taken.
        """
        if self._pool is not None:
            raise LocalProtocolError(f"channel {self.index} has its exclusive segments already")
        if num_segments < 1:
            raise ValueError(f"channel {self.index} needs at least one exclusive segment, got {num_segments}")
        segments = pool.request_unpooled(f"{self.gate.owner} (input channel {self.index})", num_segments)
        with self._lock:
            self._pool = pool
            self._free = segments
            self.initial_credit = self._num_granted = num_segments

    def request_subpartition(self) -> None:
        """Send the partition request with the initial credit; the second call does nothing."""
        if self._is_requested or self._is_released:
            return
        if self.initial_credit == 0:
            raise LocalProtocolError(f"channel {self.index} is requested without exclusive segments")
        self._is_requested = True
        self._client.request_subpartition(self)
        if self._is_released:  # meanwhile; its release may not have known that there is something to cancel
            self._client.cancel(self)

    def next_buffer(self) -> BufferAndAvailability | None:
        """The oldest received buffer.

        Raises:
            NetstackError: the error of the connection, the sender or the protocol that hit this channel.
        """
        if self._error is not None:
            raise self._error
        received = self._received
        try:
            buffer = received.popleft()
        except IndexError:
            if not self._is_requested and not self._is_released:
                raise LocalProtocolError(f"channel {self.index} is polled before it was requested") from None
            return None
        self._count(buffer)
        try:
            next_data_type = received[0].data_type
        except IndexError:  # a release may empty it at any time
            next_data_type = DataType.NONE
        sequence_number = self._next_polled
        self._next_polled = sequence_number + 1
        return BufferAndAvailability(buffer, 0, next_data_type, sequence_number)

    def resume_consumption(self) -> None:
        """Let the producer go on after a blocking event was polled."""
        if self._is_requested and not self._is_released:
            self._client.resume_consumption(self)

    def send_task_event(self, event: bytes) -> None:
        """Bring a serialized event to the producer."""
        if self._is_requested and not self._is_released:
            self._client.send_task_event(self, event)

    def announce_buffer_size(self, size_bytes: int) -> None:
        """Ask the producer for buffers of this size from now on."""
        if self._is_requested and not self._is_released:
            self._client.notify_new_buffer_size(self, size_bytes)

    def acknowledge_all_records_processed(self) -> None:
        """Tell the producer that everything up to the end of data was processed."""
        if self._is_requested and not self._is_released:
            self._client.acknowledge_all_records_processed(self)

    # ---------------------------------------------------------------- loop thread

    def allocate(self, size_bytes: int, data_type: DataType, *, is_compressed: bool) -> NetworkBuffer | None:
        """Room for a payload that is about to arrive: for data one of the channel's buffers, the credit is spent.

        None after the release, or if the sender has no credit or the payload does not fit: ``on_response`` then says what is wrong.
        """
        if not data_type.is_buffer:
            return NetworkBuffer(MemorySegment(memoryview(bytearray(size_bytes))), FREEING_RECYCLER, size_bytes, data_type)
        if self._pool is None or size_bytes > self._pool.segment_size_bytes:
            return None
        segment = self._take_segment()
        return None if segment is None else NetworkBuffer(segment, self, size_bytes, data_type, is_compressed=is_compressed)

    def on_response(self, response: BufferResponse) -> None:
        """Take in one message of the sender and its buffer; nothing after the release.

        Raises:
            RemoteProtocolError: the sequence number is wrong, the sender overdrew its credit, or the payload is nothing we can take.
        """
        buffer = response.buffer
        if buffer is None:
            if not self._is_released:
                with self._lock:
                    text = f"{self._num_spent + 1} buffers sent, {self._num_granted} credits granted"
                raise RemoteProtocolError(f"channel {self.index} of {self.partition_id}: no buffer available: {text}")
            return
        assert isinstance(buffer, NetworkBuffer), "what this channel allocated comes back"
        try:
            self._check(response)
        except RemoteProtocolError as error:
            self.on_error(error)  # first: a broken channel announces no credit
            buffer.recycle()
            raise
        if buffer.size or not response.data_type.is_buffer:
            self.on_buffer(buffer, response.sequence_number, response.backlog)
            return
        self.on_empty_buffer(response.sequence_number, response.backlog)
        buffer.recycle()  # the sender paid a credit for nothing; it gets it back

    def _check(self, response: BufferResponse) -> None:
        error = self._sequence_error(response.sequence_number)
        if error is not None:
            raise error
        if response.is_compressed or response.partial_sizes:
            raise RemoteProtocolError(f"channel {self.index}: compressed and partial buffers are not understood")

    def request_buffer(self) -> NetworkBuffer | None:
        """An exclusive buffer for one data buffer of the sender, its credit is spent; None without credit, or after the release."""
        segment = self._take_segment()
        return None if segment is None else NetworkBuffer(segment, self, len(segment.view), DataType.DATA_BUFFER)

    def _take_segment(self) -> MemorySegment | None:
        with self._lock:
            if self._is_released or self._num_spent == self._num_granted:
                return None
            self._num_spent += 1
            return self._free.pop()

    def on_buffer(self, buffer: NetworkBuffer, sequence_number: int, backlog: int) -> None:
        """Queue ``buffer``, which belongs to the channel from now on; a wrong sequence number surfaces at the next poll."""
        error = self._sequence_error(sequence_number)
        if error is not None:
            self.on_error(error)  # first: a broken channel announces no credit
            buffer.recycle()
            return
        self._expected_sequence_number += 1
        self._has_ended = buffer.data_type is DataType.END_OF_PARTITION
        received = self._received
        received.append(buffer)
        is_first = len(received) == 1
        if backlog >= 0:
            self.sender_backlog = backlog
        if self._is_released:  # looked at after the append: either the release drained our buffer, or we do
            self._drain()
        elif is_first:
            self.gate.notify_channel_non_empty(self)

    def on_empty_buffer(self, sequence_number: int, backlog: int) -> None:
        """Count a data buffer without bytes."""
        error = self._sequence_error(sequence_number)
        if error is not None:
            self.on_error(error)
            return
        self._expected_sequence_number += 1
        self.on_sender_backlog(backlog)

    def on_sender_backlog(self, backlog: int) -> None:
        """Remember how many buffers the sender has queued."""
        if backlog >= 0:
            self.sender_backlog = backlog

    def on_error(self, error: NetstackError) -> None:
        """Let the next poll raise ``error``; one that comes after the end of the partition was received has nothing left to spoil."""
        if not self._has_ended:
            super().on_error(error)

    def take_unannounced_credit(self) -> int:
        """The credit to announce now; from this moment it counts as granted."""
        with self._lock:
            credit, self._num_unannounced = self._num_unannounced, 0
            self._num_granted += credit
            return credit

    def _sequence_error(self, sequence_number: int) -> RemoteProtocolError | None:
        expected = self._expected_sequence_number
        if sequence_number == expected:
            return None
        text = f"buffer reordering: expected sequence number {expected}, but received {sequence_number}"
        return RemoteProtocolError(f"channel {self.index} of {self.partition_id}: {text}")

    def on_failed_partition_request(self, error: PartitionNotFoundError | None = None) -> None:
        """The producer does not know the partition; without anybody who could ask for the producer's state this is the end."""
        self.on_error(error or PartitionNotFoundError(f"partition {self.partition_id} was not found at its producer"))

    def retrigger_subpartition_request(self) -> None:
        """Ask for the subpartition once more."""
        self._client.request_subpartition(self)

    # ---------------------------------------------------------------- any thread

    def recycle(self, segment: MemorySegment) -> None:
        """Take an exclusive segment back: one more credit for the sender, or home to the network pool after the release."""
        with self._lock:
            is_released = self._is_released
            if not is_released:
                self._free.append(segment)
                self._num_unannounced += 1
            is_first = self._num_unannounced == 1 and self._error is None
        if is_released:
            self._return_segments([segment])
        elif is_first:
            self._client.notify_credit_available(self)

    def release(self) -> None:
        """Cancel the flow and give everything back; buffers the task still holds follow when it recycles them."""
        with self._lock:
            if self._is_released:
                return
            self._is_released = True
            segments, self._free = self._free, []
            self._num_unannounced = 0
        self._drain()
        self._return_segments(segments)
        if self._is_requested:
            self._client.cancel(self)

    def _drain(self) -> None:
        received = self._received
        while True:
            try:
                buffer = received.popleft()
            except IndexError:
                return
            buffer.recycle()

    def _return_segments(self, segments: list[MemorySegment]) -> None:
        if self._pool is not None and segments:
            self._pool.recycle_unpooled(segments)

    # ---------------------------------------------------------------- numbers

    @property
    def num_queued_buffers(self) -> int:
        """How many received buffers wait to be polled, events included."""
        return len(self._received)

    @property
    def num_credits_granted(self) -> int:
        """The initial credit plus everything announced."""
        return self._num_granted

    @property
    def num_credits_available(self) -> int:
        """How many data buffers the sender may still send."""
        with self._lock:
            return self._num_granted - self._num_spent

    @property
    def unannounced_credit(self) -> int:
        """How many recycled buffers the sender was not told about."""
        return self._num_unannounced

    def check_invariants(self) -> None:
        """Assert the invariants of this module."""
        with self._lock:
            if self._is_released:
                assert not self._free, "a released channel keeps no segment"
                return
            available = self._num_granted - self._num_spent
            assert available >= 0, f"{self._num_spent} buffers sent, {self._num_granted} credits granted"
            assert available + self._num_unannounced == len(self._free), (
                f"{available} credits available, {self._num_unannounced} unannounced, {len(self._free)} free segments"
            )
            assert len(self._free) <= self.initial_credit, "more segments came back than went out"

    def _describe(self) -> str:
        return f"{len(self._received)} queued, {self._num_granted - self._num_spent} credits available"

"""Reads a subpartition of the same process, without the network.

Side:       shared.  Polled by the task thread; told by the producer's thread.
Invariants: the view is opened once; a view that arrives after the release is released at once.
Lock order: ``InputChannel._lock`` is a leaf: manager, view and gate are called outside it (FLINK-12510).
Source:     Flink ``LocalInputChannel``.  A partition that is not registered yet is waited for through the manager instead of retried
            by timer; the wait is a registration, no thread sleeps, and releasing the channel ends it.
"""

from netstack.errors import LocalProtocolError, NetstackError, ProducerFailedError
from netstack.gate.input_channel import BufferAndAvailability, ChannelGate, InputChannel
from netstack.ids import ResultPartitionID
from netstack.partition.manager import ResultPartitionManager
from netstack.partition.view import ResultSubpartitionView


class LocalInputChannel(InputChannel):
    """A channel that reads its producer's view directly; buffers are the producer's own and go back to its pool."""

    def __init__(
        self,
        gate: ChannelGate,
        index: int,
        partition_id: ResultPartitionID,
        subpartition: int,
        manager: ResultPartitionManager,
    ) -> None:
        super().__init__(gate, index, partition_id, subpartition)
        self._manager = manager
        self._view: ResultSubpartitionView | None = None  # Guarded by _lock for writes.
        self._is_requested = False  # Written by the task thread.

    def request_subpartition(self) -> None:
        """Open the view, now or when the partition is registered; the second call does nothing."""
        if self._is_requested:
            return
        self._is_requested = True
        self._open_view()

    def _open_view(self) -> None:
        """Runs on the task thread, and again on the thread that registers the partition."""
        if self._is_released:
            return
        try:
            view = self._manager.create_view_or_listen(self.partition_id, self.subpartition, self, self._open_view)
        except NetstackError as error:
            self.on_error(error)
            return
        if view is None:
            if self._is_released:  # meanwhile; its release may have come before our registration
                self._manager.cancel_listener(self.partition_id, self._open_view)
            return
        with self._lock:
            is_late = self._is_released
            if not is_late:
                self._view = view
        if is_late:
            view.release()
        elif view.is_released or view.has_data(1):
            self.gate.notify_channel_non_empty(self)  # a notification that came before the view was set found nothing to poll

    def notify_data_available(self) -> None:
        """The subpartition became readable, or was released."""
        self.gate.notify_channel_non_empty(self)

    def notify_priority_event(self, sequence_number: int) -> None:
        """The head of the subpartition is a priority event."""
        self.gate.notify_channel_non_empty(self)

    def next_buffer(self) -> BufferAndAvailability | None:
        """The next buffer of the view.

        Raises:
            ProducerFailedError: the producer released its partition; the cause is its failure.
            NetstackError: the view could not be opened.
        """
        if self._error is not None:
            raise self._error
        view = self._view
        if view is None:
            if not self._is_requested and not self._is_released:
                raise LocalProtocolError(f"channel {self.index} is polled before it was requested")
            return None
        found = view.next_buffer()
        if found is None:
            if view.is_released and not self._is_released:
                raise self._producer_failed(view)
            return None
        self._count(found.buffer)
        return found

    def resume_consumption(self) -> None:
        """Let the producer go on after a blocking event was polled."""

    def send_task_event(self, event: bytes) -> None:
        """Bring a serialized event to the producer."""

    def announce_buffer_size(self, size_bytes: int) -> None:
        """Ask the producer for buffers of this size from now on."""

    def acknowledge_all_records_processed(self) -> None:
        """Tell the producer that everything up to the end of data was processed."""
        view = self._view
        if view is not None and not self._is_released:
            view.acknowledge_all_data_processed()

    def release(self) -> None:
        """Mark the subpartition consumed, or stop waiting for it."""
        with self._lock:
            if self._is_released:
                return
            self._is_released = True
            view = self._view
        if view is not None:
            view.release()
        else:
            self._manager.cancel_listener(self.partition_id, self._open_view)

    def _describe(self) -> str:
        return "waits for its partition" if self._view is None else "open"

    def _producer_failed(self, view: ResultSubpartitionView) -> ProducerFailedError:
        cause = view.failure_cause
        error = ProducerFailedError(str(cause) if cause is not None else f"partition {self.partition_id} was released by its producer")
        error.__cause__ = cause
        return error

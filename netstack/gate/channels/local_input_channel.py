"""Reads a subpartition of this process, without the network.

Side:       shared.  Polled by the task thread; told by the producer's thread.
Hot path:   per buffer.
Invariants: the view is opened once; a view that arrives after the release is released at once.
Units:      timeouts in milliseconds.
Lock order: ``InputChannel._lock`` is a leaf: manager, view and gate are called outside it (FLINK-12510).
Source:     Flink ``LocalInputChannel``.  The manager tells when a partition that is missing is registered; the channel
            waits as long as for a remote one, and no thread sleeps.  A channel with a back-off of its own asks for it
            again and again, as in Flink.
"""

from dataclasses import field
from typing import Final

from netstack.buffer.buffer_builder import ContentBuffer
from netstack.errors import LocalProtocolError, NetstackError, PartitionNotFoundError, ProducerFailedError
from netstack.gate.channels.input_channel import (
    BufferAndAvailability,
    ChannelStatistics,
    InputChannel,
    Lifecycle,
    barrier_of,
)
from netstack.late import dataclass
from netstack.log_lines import caused_by
from netstack.partition.result_partition_manager import ResultPartitionManager
from netstack.partition.result_subpartition import ResultSubpartitionView
from netstack.wire.events import Event

_CREATED: Final = Lifecycle.CREATED
_REQUESTED: Final = Lifecycle.REQUESTED
_RELEASED: Final = Lifecycle.RELEASED


@dataclass(eq=False, repr=False)
class LocalInputChannel(InputChannel):
    """A channel that reads its producer's view directly; buffers are the producer's own and go back to its pool.

    Args:
        wait_timeout_ms: how long to wait for the partition before its producer is looked after; None waits until the
            release.
    """

    takes_contents = True

    manager: ResultPartitionManager
    wait_timeout_ms: float | None = field(default=None, kw_only=True)

    def __post_init__(self, last: int | None) -> None:
        super().__post_init__(last)
        self._view: ResultSubpartitionView | None = None  # Guarded by _lock for writes.
        self._told_priority: int | None = None  # Written before the gate is told; read once the view is there.

    # ---------------------------------------------------------------- opening the view

    def _request(self) -> None:
        """Open the view, now or when the partition is registered.

        Runs on the task thread, and again on the thread that registers the partition or that of the timers.
        """
        if self.is_released or self._view is not None:
            return
        try:
            view = self.manager.create_view_or_listen(
                self.partition_id,
                self.subpartition,
                self,
                self._request,
                last=self.last_subpartition,
                timeout_ms=self.wait_timeout_ms,
                on_timeout=self._on_wait_timeout,
            )
        except NetstackError as error:
            self.on_error(error)
            return
        if view is None:
            if self.is_released:  # meanwhile; its release may have come before our registration
                self.manager.cancel_listener(self.partition_id, self._request)
            return
        with self._lock:
            is_late = self.is_released
            if not is_late:
                self._view = view
        if is_late:
            view.release()
            return
        # Notifications that came before the view was set found nothing to poll; the gate knows of a priority event that
        # was polled since.
        if self._told_priority is not None:
            self.gate.notify_priority_event(self, self._told_priority)
        if view.is_released or view.has_data(1):
            self.gate.notify_channel_non_empty(self)

    def _on_wait_timeout(self) -> None:
        waited = f"partition {self.partition_id} was not registered in this process within {self.wait_timeout_ms} ms"
        self._not_found = PartitionNotFoundError(waited)
        self.gate.trigger_partition_state_check(self)

    # ---------------------------------------------------------------- told by the producer

    def notify_data_available(self) -> None:
        """Hear that the subpartition became readable, or was released."""
        self.last_activity_ns = self.clock_ns()
        self.gate.notify_channel_non_empty(self)

    def notify_priority_event(self, sequence_number: int) -> None:
        """Hear that a priority event is at the head of the subpartition."""
        self._told_priority = sequence_number
        self.gate.notify_priority_event(self, sequence_number)

    # ---------------------------------------------------------------- task thread

    def next_buffer(self) -> BufferAndAvailability | None:
        """Poll the next buffer of the view.

        Raises:
            ProducerFailedError: the producer released its partition; the cause is its failure.
            NetstackError: the view could not be opened.
        """
        if self._error is not None:
            raise self._error
        view = self._view
        if view is None:
            if self.lifecycle is _CREATED:
                raise LocalProtocolError(f"channel {self.index} is polled before it was requested")
            return None
        found = view.next_buffer()
        if found is None:
            # Not after our own release, which ends the view as well.
            if view.is_released and self.lifecycle is _REQUESTED:
                cause = view.failure_cause
                text = f"partition {self.partition_id} was released by its producer" if cause is None else str(cause)
                raise caused_by(cause, ProducerFailedError(text))
            return None
        buffer = found.buffer
        self.num_bytes_in += buffer.size
        self.num_buffers_in += 1
        if not buffer.is_buffer:
            self.is_blocked = self.is_blocked or buffer.data_type.is_blocking_upstream
            barrier = barrier_of(buffer)
            if barrier is not None:
                self._in_flight.on_barrier(barrier.checkpoint_id)
        # Polled before its barrier: the producer has kept nothing of it for the checkpoint.
        elif self._in_flight.is_pending:
            # An object is made bytes before the task gets it: the task may change its records.
            kept = buffer.byte_buffers() if isinstance(buffer, ContentBuffer) else [buffer.retain()]
            self._in_flight.hand_over_polled(kept)
        return found

    @property
    def next_is_event(self) -> bool:
        """Whether the next poll is known to find an event or an error.  Task thread."""
        view = self._view
        return self._error is not None or (view is not None and (view.is_released or view.has_data(0)))

    def resume_consumption(self) -> None:
        """Let the producer go on; it tells this channel if there is something to poll.

        Raises:
            ResourceClosedError: the channel was released.
        """
        self.is_blocked = False
        self._check_open()
        if self._view is None:
            raise LocalProtocolError(f"channel {self.index} is resumed before it was opened")
        self._view.resume_consumption()

    def acknowledge_all_records_processed(self) -> None:
        """Tell the producer that everything up to the end of data was processed."""
        view = self._view
        if view is not None and not self.is_released:
            view.acknowledge_all_data_processed()

    def send_task_event(self, event: Event) -> None:
        """Bring ``event`` to the producer.

        Raises:
            ResourceClosedError: the channel was released.
            PartitionNotFoundError: the producer is not (or no longer) there.
        """
        self._check_open()
        if not self.manager.task_events.publish(self.partition_id, event):
            raise PartitionNotFoundError(
                f"nobody takes events for partition {self.partition_id}, its producer could not be found"
            )

    def announce_buffer_size(self, size_bytes: int) -> None:
        """Ask the producer for buffers of this size from now on; nothing happens while there is no producer.

        Raises:
            ResourceClosedError: the channel was released.
        """
        self._check_open()
        view = self._view
        if view is not None:
            view.notify_new_buffer_size(size_bytes)

    # ---------------------------------------------------------------- end and numbers

    def release(self) -> None:
        """Mark the subpartition consumed, or stop waiting for it."""
        with self._lock:
            if not self._enter_locked(_RELEASED):
                return
            view = self._view
        if view is not None:
            view.release()
            return
        self.manager.cancel_listener(self.partition_id, self._request)

    @property
    def num_queued_buffers(self) -> int:
        """How many elements the producer's queue holds."""
        view = self._view
        return 0 if view is None or self.is_released else view.num_queued_buffers

    def statistics(self) -> ChannelStatistics:
        """Make one row of a dump; any thread."""
        view = self._view
        backlog = 0 if view is None or self.is_released else view.backlog
        return self._statistics("local", sender_backlog=backlog)

    def _describe(self) -> str:
        return "waits for its partition" if self._view is None else "open"

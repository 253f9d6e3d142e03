"""``CheckpointedInputGate``: a gate that reports its barriers to the task's barrier handler.

Side:       task.
Hot path:   per buffer.
Invariants: the handler sees every barrier, announcement, cancellation and end of partition before the caller gets it.
            A channel's end of data is acknowledged when it is polled, because all data before it has been processed by
            then.  Buffers that a poll for priority events finds are kept for the next poll and are part of the
            in-flight data.  An event comes alone, never in a batch, and the caller processes a whole batch before the
            next poll: so no barrier is seen before the data in front of it was processed, unless it overtakes.
Source:     Flink ``CheckpointedInputGate``.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field

from flowlet.checkpoint.task.barrier_orders import (
    BarrierAnnounced,
    BarrierReceived,
    CancellationReceived,
    Channel,
    ChannelFinished,
)
from flowlet.checkpoint.task.checkpoint_barrier_handler import CheckpointBarrierHandler
from flowlet.errors import MailboxClosedError
from flowlet.mailbox.mailbox_processor import MailboxExecutor
from flowlet.mailbox.task_mailbox import MailOptions
from netstack.availability import AVAILABLE, AvailabilityFuture
from netstack.errors import RemoteProtocolError
from netstack.gate.gate_channels import BufferOrEvent
from netstack.gate.single_input_gate import SingleInputGate
from netstack.late import dataclass
from netstack.wire.events import (
    CancelCheckpointMarker,
    CheckpointBarrier,
    EndOfData,
    EndOfOutputChannelState,
    EndOfPartition,
    EventAnnouncement,
)


@dataclass(eq=False, slots=True)
class CheckpointedInputGate:
    """Reads a gate, and hands its barriers and ends to the barrier handler.

    Threading: the task thread, except ``available_future``.
    Life cycle: read until ``close``.

    Args:
        gate: the gate to read.
        handler: of the task; several gates share it.
        channels: gate and channel index of each of the gate's channels.
        executor: of the lowest priority, so that a snapshot does not run inside an operator that yields.
    """

    _gate: SingleInputGate
    _handler: CheckpointBarrierHandler
    _channels: Sequence[Channel]
    _executor: MailboxExecutor
    _kept: deque[BufferOrEvent] = field(init=False, default_factory=deque)
    _has_polled: Callable[[int], bool] = field(init=False, default=lambda _channel_index: False)
    _is_closed: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        if len(self._channels) != self._gate.num_channels:
            raise ValueError(
                f"{len(self._channels)} names for the {self._gate.num_channels} channels of {self._gate!r}"
            )
        self._watch_priority()

    def __repr__(self) -> str:
        return f"<CheckpointedInputGate of {self._gate!r}, {self._handler!r}>"

    @property
    def num_channels(self) -> int:
        """The number of channels."""
        return self._gate.num_channels

    @property
    def is_finished(self) -> bool:
        """Whether the caller has seen the end of partition of every channel."""
        return not self._kept and self._gate.is_finished

    def available_future(self) -> AvailabilityFuture:
        """Return the future that is done when a poll may find something, or the gate is finished or closed."""
        return AVAILABLE if self._kept else self._gate.available_future()

    @property
    def next_is_data(self) -> bool:
        """Whether the next poll certainly finds data, and no event or error."""
        return not self._kept and self._gate.next_is_data

    @property
    def next_is_event(self) -> bool:
        """Whether the next poll certainly finds an event or an error, and no data."""
        if self._kept:
            return self._kept[0].event is not None
        return self._gate.next_is_event

    # ---------------------------------------------------------------- polling

    def poll_next(self) -> BufferOrEvent | None:
        """Return the next buffer or event, or None; never blocks.  The caller may ignore events of checkpoints.

        Raises:
            NetstackError: from the gate.
            Exception: from the synchronous part of a snapshot.
        """
        # More of them wait, whatever the gate said when this one was polled.
        if self._kept:
            found = self._kept.popleft()
            if self._kept:
                found = found._replace(more_available=True)
        else:
            polled = self._gate.poll_next()
            if polled is None:
                return None
            found = polled
        # Before the caller gets it: the snapshot must not have what is behind the barrier.
        self._notify_handler(found)
        return found

    def poll_many(self, max_items: int) -> list[BufferOrEvent]:
        """Return up to ``max_items`` buffers, or a single event; empty if there is nothing.  Never blocks.

        The caller must use ``reads_ahead``: a checkpoint that starts before the batch is processed must know about it.

        Raises:
            NetstackError: from the gate.
            Exception: from the synchronous part of a snapshot.
        """
        if self._kept:
            kept = self.poll_next()
            return [] if kept is None else [kept]
        found = self._gate.poll_many(max_items)
        # Fast path: an event comes alone, so outside of an alignment a batch has nothing to tell.
        if self._handler.is_aligning or len(found) == 1:
            for each in found:
                self._notify_handler(each)
        return found

    def reads_ahead(self, has_polled: Callable[[int], bool]) -> None:
        """Register a function that tells, by channel index, whether polled data of that channel is not
        processed yet.
        """
        self._has_polled = has_polled

    def kept_in_flight(self, channel_index: int) -> list[bytes]:
        """Return the kept data of a channel: polled, but not handed over, so that the channel does not count it as in
        flight.
        """
        # The channel has counted these buffers as polled, and does not write them into the checkpoint itself.
        kept = (each.buffer for each in self._kept if each.channel_index == channel_index)
        return [bytes(buffer.view) for buffer in kept if buffer is not None]

    def _notify_handler(self, found: BufferOrEvent) -> None:
        event = found.event
        if event is None:
            if self._handler.is_aligning:
                self._handler.add_processed_bytes(found.size)
            return
        index = found.channel_index
        channel, handle = self._channels[index], self._handler.handle
        match event:
            case CheckpointBarrier():
                handle(BarrierReceived(channel, event))
            case EventAnnouncement(sequence_number, announced):
                if not isinstance(announced, CheckpointBarrier):
                    raise RemoteProtocolError(f"channel {channel}: {announced} is announced, only barriers can be")
                handle(BarrierAnnounced(channel, announced, sequence_number))
            case CancelCheckpointMarker(checkpoint_id):
                handle(CancellationReceived(channel, checkpoint_id))
            # All data before it was processed: the caller processes a batch before it polls again.
            case EndOfData():
                self._gate.acknowledge_all_records_processed(index)
            case EndOfPartition():
                handle(ChannelFinished(channel))
            case EndOfOutputChannelState():
                self._gate.resume_consumption(index)
            case _:
                return

    # ---------------------------------------------------------------- priority events, outside of the default action

    def _watch_priority(self) -> None:
        self._gate.priority_event_available_future().add_done_callback(self._post)

    def _post(self) -> None:
        """Post the mail; called on any thread."""
        try:
            # By mail: the thread that brings the barrier must not touch operators.
            self._executor.execute(
                self._process_priority_events, "process priority events of %r", self._gate, options=MailOptions.URGENT
            )
        except MailboxClosedError:
            return  # the task has ended

    def _process_priority_events(self) -> None:
        """Poll the priority events that are still queued, then wait for more; runs as a mail."""
        if self._is_closed:
            return
        # Asked again: the default action may have polled the event since the mail was posted.
        has_priority = self._gate.priority_event_available_future().is_done
        while has_priority:
            found = self._gate.poll_next()
            if found is None:
                break
            # Else it is ordinary: taken out of its turn, it must wait here for the default action.
            if self._may_overtake(found):
                self._notify_handler(found)
            else:
                self._kept.append(found)  # the mail was late: the priority event was polled before
            has_priority = found.more_priority_events
        # Last: events that came meanwhile were polled above, and the future of the next one is another one.
        self._watch_priority()

    def _may_overtake(self, found: BufferOrEvent) -> bool:
        """Whether an event is, or may be, a priority event.

        This gate prioritized an aligned barrier itself; the barrier must wait if it is behind data that its checkpoint
        does not keep.
        """
        match found.event:
            case EventAnnouncement():
                return True
            case CheckpointBarrier(checkpoint_id=checkpoint_id, options=options):
                if options.is_unaligned or self._handler.machine.lets_overtake(checkpoint_id):
                    return True
                index = found.channel_index  # with polled data that is not processed yet?
                return not (self._has_polled(index) or any(kept.channel_index == index for kept in self._kept))
            case _:
                return False

    def acknowledge_all_records_processed(self, channel_index: int) -> None:
        """Do nothing: ``_notify_handler`` has acknowledged the end of data."""

    def close(self) -> None:
        """Recycle kept buffers and close the gate, but not the handler."""
        # First: a mail that waits must not poll a closed gate.
        self._is_closed = True
        # Buffers of the network's memory: the gate no longer knows of them.
        kept, self._kept = self._kept, deque()
        for each in kept:
            if each.buffer is not None:
                each.buffer.recycle()
        self._gate.close()

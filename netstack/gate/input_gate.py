"""What a task sees of its input, whether it is one gate or several, and what both kinds of gates are made of.

A poll gives ``BufferOrEvent``s.  ``InputQueue`` has the inputs that have data, in the order of their turns, and the
futures that say whether there are any.  ``BufferTransformer`` turns what the channels hold into what the task sees.

Side:       shared.  The task thread takes inputs out of the queue; any thread puts them in.
Hot path:   per buffer; gates work with the ``_queue`` of ``InputQueue`` themselves, under its ``_lock``.
Invariants: an input stands in the queue at most once, and knows whether it does, and whether with priority; the future
            is done exactly when the queue is not empty, the priority future exactly when an input is queued with
            priority, and both as their gate says when it has ended.
Units:      sizes in bytes, timeouts in seconds; usages are fractions.
Lock order: ``InputQueue._lock`` is a leaf: inputs are polled and futures completed outside it (FLINK-18595,
            FLINK-22946).
Source:     Flink ``BufferOrEvent``, ``InputGate`` (both ``AvailabilityHelper``s),
            ``PullingAsyncDataInput.EndOfDataStatus``.  ``SingleInputGate``: ``setup``, ``requestPartitions``,
            ``close``, ``inputChannelsWithData``, ``transformBuffer``, ``transformEvent``, ``decompressBufferIfNeeded``.
            ``UnionInputGate.inputGatesWithData``.  ``InputBuffersMetrics``: ``inputQueueLength``, ``inputQueueSize``,
            ``inPoolUsage``, ``inputExclusiveBuffersUsage``, ``inputFloatingBuffersUsage``; local channels have no input
            buffers and do not count there.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from netstack.availability import AvailabilityFuture, AvailabilityHelper, run_all
from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.network_buffer import NetworkBuffer, recycle_all
from netstack.errors import NetstackError, RemoteProtocolError
from netstack.gate.channels.input_channel import InputChannel, PrioritizedDeque
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.late import dataclass
from netstack.wire.events import EndOfData, Event, StopMode, deserialize_event


class BufferOrEvent(NamedTuple):
    """What a poll found: data, which the caller recycles, or an event."""

    channel_index: int
    buffer: NetworkBuffer | None
    event: Event | None
    more_available: bool
    more_priority_events: bool = False
    size: int = 0  # bytes of the buffer, or of the event as it travelled


class GateLifecycle(Enum):
    """A gate only moves on.

    That every channel has ended is counted, and is no state: a gate may be closed before and after.
    """

    SET_UP = auto()
    """Channels are added."""
    REQUESTED = auto()
    """Channels have asked for their data and are polled; those with unknown producers are replaced."""
    CLOSED = auto()
    """Every channel is released."""


NEXT: Final = {
    GateLifecycle.SET_UP: frozenset({GateLifecycle.REQUESTED, GateLifecycle.CLOSED}),
    GateLifecycle.REQUESTED: frozenset({GateLifecycle.CLOSED}),
    GateLifecycle.CLOSED: frozenset[GateLifecycle](),
}


@dataclass(frozen=True, slots=True)
class GateStatistics:
    """The numbers of one gate, over all its channels; events count as buffers too."""

    num_bytes_in_local: int
    num_bytes_in_remote: int
    num_buffers_in: int
    num_queued_buffers: int
    num_credits_granted: int
    num_channels: int
    num_channels_finished: int
    num_buffers_in_local: int = 0
    queue_size_bytes: int = 0
    num_exclusive_buffers: int = 0
    num_exclusive_used: int = 0
    num_floating_buffers: int = 0
    num_floating_used: int = 0

    @property
    def exclusive_usage(self) -> float:
        """How much of the exclusive buffers is in use: holds data, here or in the task's hands."""
        return self.num_exclusive_used / self.num_exclusive_buffers if self.num_exclusive_buffers else 0.0

    @property
    def floating_usage(self) -> float:
        """How much of the floating buffers is in use."""
        return self.num_floating_used / self.num_floating_buffers if self.num_floating_buffers else 0.0

    @property
    def in_pool_usage(self) -> float:
        """How much of all of them is in use."""
        total = self.num_exclusive_buffers + self.num_floating_buffers
        return (self.num_exclusive_used + self.num_floating_used) / total if total else 0.0


def gate_statistics(
    channels: Sequence[InputChannel], pool: LocalBufferPool | None, num_finished: int
) -> GateStatistics:
    """Add up what ``channels`` and the gate's ``pool`` of floating buffers say."""
    remote = [channel for channel in channels if isinstance(channel, RemoteInputChannel)]
    num_bytes_in_remote = sum(channel.num_bytes_in for channel in remote)
    num_buffers_in = sum(channel.num_buffers_in for channel in channels)
    managers = [channel.buffer_manager for channel in remote if not channel.is_released]
    num_exclusive = sum(manager.initial_credit for manager in managers)
    num_floating_free = sum(manager.num_floating_available for manager in managers)
    return GateStatistics(
        num_bytes_in_local=sum(channel.num_bytes_in for channel in channels) - num_bytes_in_remote,
        num_bytes_in_remote=num_bytes_in_remote,
        num_buffers_in=num_buffers_in,
        num_queued_buffers=sum(channel.num_queued_buffers for channel in channels),
        num_credits_granted=sum(channel.num_credits_granted for channel in remote),
        num_channels=len(channels),
        num_channels_finished=num_finished,
        num_buffers_in_local=num_buffers_in - sum(channel.num_buffers_in for channel in remote),
        queue_size_bytes=sum(channel.queue_size_bytes for channel in remote),
        num_exclusive_buffers=num_exclusive,
        num_exclusive_used=num_exclusive - sum(manager.num_exclusive_available for manager in managers),
        num_floating_buffers=0 if pool is None else pool.num_buffers,
        num_floating_used=0 if pool is None else max(0, pool.best_effort_used - num_floating_free),
    )


class EndOfDataStatus(Enum):
    """What the ends of data seen so far ask for."""

    NOT_END_OF_DATA = auto()
    DRAINED = auto()
    """Every channel ended its data, and all want windows and timers fired."""
    STOPPED = auto()
    """Every channel ended its data, at least one without draining."""


class InputGate(Protocol):
    """What a task does with its input, whether it is one gate or several.

    One implementer: ``CheckpointedInputGate`` stands on a floor above.
    """

    @property
    def num_channels(self) -> int:
        """How many channels it has; they are told apart by their index."""

    @property
    def is_finished(self) -> bool:
        """Whether every channel reached the end of its partition."""

    @property
    def end_of_data_status(self) -> EndOfDataStatus:
        """Whether every channel reached the end of its data, and how."""

    def available_future(self) -> AvailabilityFuture:
        """Done if a poll may find something, or the gate is finished or closed."""

    def priority_event_available_future(self) -> AvailabilityFuture:
        """Done while a priority event can be polled."""

    def poll_next(self) -> BufferOrEvent | None:
        """The next buffer or event, or None; never blocks."""

    def get_next(self, timeout_s: float | None = None) -> BufferOrEvent | None:
        """The next buffer or event; blocks.  None at the end; raises TimeoutError after ``timeout_s``."""

    def request_partitions(self) -> None:
        """Ask for the data."""

    def resume_consumption(self, channel_index: int) -> None:
        """Let the producer behind a channel go on after a blocking event."""

    def acknowledge_all_records_processed(self, channel_index: int) -> None:
        """Tell the producer behind a channel that everything up to its end of data was processed."""

    def send_task_event(self, event: Event) -> None:
        """Bring ``event`` to all producers."""

    def close(self) -> None:
        """Release every channel and wake whoever waits."""


class BatchInputGate(InputGate, Protocol):
    """A gate that yields several buffers at once.

    One implementer of what it adds: ``InputQueue``, on which the gate of channels and the union of gates rest.
    """

    def poll_many(self, max_items: int) -> list[BufferOrEvent]:
        """What so many ``poll_next`` would find at most, but an event comes alone; never blocks."""

    def poll_data(self, max_buffers: int) -> list[BufferOrEvent]:
        """``poll_many``, but nothing if an event, or an error, is next; never blocks."""


def wait_for_next(
    gate: "InputGate | InputQueue[Any]", timeout_s: float | None, clock_ns: Callable[[], int]
) -> BufferOrEvent | None:
    """Poll ``gate`` until it yields something; None if it is finished.  The thread sleeps in between.

    Raises:
        TimeoutError: nothing came within ``timeout_s``.
    """
    deadline_ns = None if timeout_s is None else clock_ns() + int(timeout_s * 1e9)
    while True:
        found = gate.poll_next()
        if found is not None or gate.is_finished:
            return found
        remaining_s = None if deadline_ns is None else (deadline_ns - clock_ns()) / 1e9
        if remaining_s is not None and remaining_s <= 0:
            raise TimeoutError(f"nothing came within {timeout_s:g} s: {gate!r}")
        signal = threading.Lock()  # the cheapest one-shot signal
        signal.acquire()  # no wait: the lock is new
        available, wake = gate.available_future(), signal.release
        available.add_done_callback(wake)
        try:
            # waits for data of the gate; ended by data, an error, or close
            signal.acquire(timeout=-1 if remaining_s is None else remaining_s)
        finally:
            available.remove_done_callback(wake)


_new: Final = tuple.__new__  # half the cost of a named tuple's own constructor (bench: transport)


class Decompressor(Protocol):
    """Restores compressed buffers."""

    def decompress(self, buffer: NetworkBuffer) -> NetworkBuffer:
        """The original in place of ``buffer``: one reference in, one out; in case of an error none."""


class BufferTransformer:
    """One gate's events, compressed buffers and ends of data.

    Threading: the task thread alone; no lock.
    Ownership: takes the reference of each buffer that is handed in, also if it raises; items carry it to the task.
    """

    def __init__(self, owner: str, decompressor: Decompressor | None) -> None:
        self._owner = owner
        self._decompressor = decompressor
        self._num_ended = 0  # channels whose data has ended
        self._should_drain = True

    def __repr__(self) -> str:
        return f"<BufferTransformer {self._num_ended} channels ended their data>"

    def end_of_data_status(self, num_channels: int) -> EndOfDataStatus:
        """Whether so many channels reached the end of their data, and whether all of them want to drain."""
        if self._num_ended < num_channels or not num_channels:
            return EndOfDataStatus.NOT_END_OF_DATA
        return EndOfDataStatus.DRAINED if self._should_drain else EndOfDataStatus.STOPPED

    def transform_event(self, channel: InputChannel, buffer: NetworkBuffer) -> Event | None:
        """What the task sees of an event, if it sees anything: one end of several subpartitions is
        not the channel's.
        """
        channel.num_events_in += 1
        channel.num_event_bytes_in += buffer.size
        if channel.num_subpartitions > 1 and not channel.concerns_all(buffer.data_type):
            buffer.recycle()
            return None
        try:
            event = deserialize_event(buffer.view)
        finally:
            buffer.recycle()
        if isinstance(event, EndOfData):
            self._num_ended += 1
            self._should_drain = self._should_drain and event.mode is StopMode.DRAIN
        return event

    def transform_buffers(
        self,
        found: Sequence[tuple[InputChannel, Sequence[NetworkBuffer]]],
        *,
        more_available: bool,
        more_priority_events: bool,
    ) -> list[BufferOrEvent]:
        """One item for each buffer, restored if it was compressed; the last one says ``more_available``.

        A buffer that cannot be restored is its channel's error, for the next poll.
        """
        items: list[BufferOrEvent] = []
        for channel, buffers in found:
            index, num_before = channel.index, len(items)
            try:
                for each in buffers:
                    buffer = self.decompress(channel, each) if each.is_compressed else each
                    items.append(_new(BufferOrEvent, (index, buffer, None, True, more_priority_events, buffer.size)))
            except NetstackError as error:  # of this buffer: what was found before it, and elsewhere, is not lost
                recycle_all(buffers[len(items) - num_before + 1 :])
                channel.fail(error)
                more_available = True
        if items and not more_available:
            last = items[-1]
            items[-1] = _new(BufferOrEvent, (*last[:3], False, *last[4:]))
        return items

    def decompress(self, channel: InputChannel, buffer: NetworkBuffer) -> NetworkBuffer:
        """The original in place of a compressed ``buffer``.

        Raises:
            NetstackError: compression is off here, or the bytes are none that were compressed.
        """
        if self._decompressor is None:
            buffer.recycle()
            raise RemoteProtocolError(
                f"channel {channel.index} of {self._owner}: a compressed buffer, but compression is off here"
            )
        return self._decompressor.decompress(buffer)


class QueuedInput(Protocol):
    """A channel, or a gate of a union."""

    is_queued: bool  # Guarded by the queue's lock.
    is_prioritized: bool  # Guarded by the queue's lock.


T = TypeVar("T", bound=QueuedInput)


class InputQueue(ABC, Generic[T]):
    """Base of the gates: a gate of channels, and a union of gates.

    Threading: methods that end in ``_locked`` need ``_lock``, the others must not have it; the task thread polls.

    Args:
        clock_ns: the monotonic clock for timeouts.
    """

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._queue: PrioritizedDeque[T] = PrioritizedDeque()
        self._availability = AvailabilityHelper()
        self._priority_availability = AvailabilityHelper()

    @property
    @abstractmethod
    def is_finished(self) -> bool:
        """Whether every input reached its end."""

    @abstractmethod
    def poll_next(self) -> BufferOrEvent | None:
        """The next buffer or event, inputs taking turns; None if there is none now.  Never blocks."""

    @abstractmethod
    def poll_data(self, max_buffers: int) -> list[BufferOrEvent]:
        """Data of the inputs whose turn it is; nothing if the first one has something else.  Never blocks."""

    def poll_many(self, max_items: int) -> list[BufferOrEvent]:
        """Up to ``max_items`` items, as ``poll_next`` would give them; an event comes alone.

        Empty if there is nothing.  Never blocks.

        An input yields several buffers in a row only if it is the only one that has data.  A checkpoint that starts
        before the caller is through with all of them does not know of the rest: they were polled.

        Raises:
            ResourceClosedError: the gate was closed.
            NetstackError: the error of the input whose turn it was; it is raised again at its next turn.
        """
        found = self.poll_data(max_items)
        if not found:
            single = self.poll_next()
            return [] if single is None else [single]
        return found

    def get_next(self, timeout_s: float | None = None) -> BufferOrEvent | None:
        """The next buffer or event; blocks until there is one.  None if the gate is finished.

        Raises:
            TimeoutError: nothing came within ``timeout_s``.
            ResourceClosedError: the gate was closed, before or meanwhile.
            NetstackError: the error of a channel.
        """
        return wait_for_next(self, timeout_s, self._clock_ns)

    def get_many(self, max_items: int, timeout_s: float | None = None) -> list[BufferOrEvent]:
        """``poll_many``, but blocks until there is something.  Empty if the gate is finished.

        Raises as ``get_next``.
        """
        found = self.poll_many(max_items)
        if not found:
            single = self.get_next(timeout_s)
            if single is not None:
                found.append(single)
        return found

    def available_future(self) -> AvailabilityFuture:
        """Done if a poll may find something (or the gate is finished or closed), else completed when it may."""
        with self._lock:
            return self._availability.future

    def priority_event_available_future(self) -> AvailabilityFuture:
        """Done while a priority event can be polled (or the gate is closed), else completed when one comes."""
        with self._lock:
            return self._priority_availability.future

    def _enqueue_locked(self, each: T, *, has_priority: bool) -> None:
        """Put ``each`` where it belongs; it may be queued already."""
        queue = self._queue
        if not each.is_queued:
            each.is_queued = True
            each.is_prioritized = has_priority
            (queue.priority if has_priority else queue.rest).append(each)
        elif has_priority and not each.is_prioritized:
            queue.rest.remove(each)
            queue.priority.append(each)
            each.is_prioritized = True

    def _remove_locked(self, each: T) -> None:
        """Take ``each`` out, if it is queued."""
        if each.is_queued:
            self._queue.get_and_remove(lambda other: other is each)
            each.is_queued = each.is_prioritized = False

    def _clear_locked(self) -> None:
        for each in self._queue:
            each.is_queued = each.is_prioritized = False
        self._queue.clear()

    def _become_available_locked(self, *, with_priority: bool) -> list[AvailabilityFuture]:
        """The futures to complete after the lock: of priority events, if ``with_priority``, and of data."""
        found = [self._priority_availability.unavailable_to_reset_available()] if with_priority else []
        found.append(self._availability.unavailable_to_reset_available())
        return [future for future in found if future is not None]

    def _make_available(self, *, with_priority: bool = False) -> None:
        """Wake who waits for data, and with priority who waits for a priority event."""
        with self._lock:
            futures = self._become_available_locked(with_priority=with_priority)
        run_all([future.complete for future in futures])

    def _check_queue(self, inputs: Sequence[T], *, has_ended: bool, is_closed: bool) -> None:
        """Assert the invariants of this module; ``has_ended``: the future stays done, ``is_closed``: so does that of
        priority events.
        """
        with self._lock:
            queued = list(self._queue)
            assert len({id(each) for each in queued}) == len(queued), "an input is queued twice"
            assert all(each.is_queued for each in queued), "a queued input does not know it"
            assert all(each.is_prioritized for each in self._queue.priority), "a prioritized input does not know it"
            assert sum(each.is_queued for each in inputs) == len(queued), "an input believes it is queued"
            is_available = bool(queued) or has_ended
            assert self._availability.is_available == is_available, (
                f"{len(queued)} inputs have data, but {self._availability.future!r}"
            )
            has_priority = bool(self._queue.priority) or is_closed
            assert self._priority_availability.is_available == has_priority, (
                f"priority: {self._priority_availability.future!r}"
            )

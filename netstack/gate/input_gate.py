"""What a task sees of its input, whether it is one gate or several.

What a task gets from a poll of its input.

The life of an input gate.

The numbers of one gate.

Side:   shared.
Units:  sizes in bytes.  bytes, buffers; usages are fractions.  sizes in bytes, timeouts in seconds.
Source: Flink ``BufferOrEvent``.  Flink ``SingleInputGate``: ``setup``, ``requestPartitions``, ``close``.  Flink
        ``InputBuffersMetrics``: ``inputQueueLength``, ``inputQueueSize``, ``inPoolUsage``,
        ``inputExclusiveBuffersUsage``, ``inputFloatingBuffersUsage``.  Local channels have no input buffers and do not
        count there.  Flink ``InputGate``, ``PullingAsyncDataInput.EndOfDataStatus``.
"""

import threading
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

from netstack.availability import AvailabilityFuture
from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.gate.channels.input_channel import InputChannel
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.late import dataclass
from netstack.wire.events import Event


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
    """A gate that yields several buffers at once."""

    def poll_many(self, max_items: int) -> list[BufferOrEvent]:
        """What so many ``poll_next`` would find at most, but an event comes alone; never blocks."""

    def poll_data(self, max_buffers: int) -> list[BufferOrEvent]:
        """``poll_many``, but nothing if an event, or an error, is next; never blocks."""


def wait_for_next(gate: InputGate, timeout_s: float | None, clock_ns: Callable[[], int]) -> BufferOrEvent | None:
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


def wait_for_many(
    gate: BatchInputGate, max_items: int, timeout_s: float | None, clock_ns: Callable[[], int]
) -> list[BufferOrEvent]:
    """Poll up to ``max_items`` items, and wait for the first one.

    Empty if ``gate`` is finished.  Raises as ``wait_for_next``.
    """
    found = gate.poll_many(max_items)
    if not found:
        single = wait_for_next(gate, timeout_s, clock_ns)
        if single is not None:
            found.append(single)
    return found

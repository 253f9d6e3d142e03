"""The channels of one gate: how they are set up, requested and replaced, what all of them are told, and what a task and
the statistics see of them.

Side:       shared.  The task thread sets up and requests; any thread updates, retriggers, closes.
Invariants: channel n has index n; after the close no channel is added.
Lock order: channels are requested, told and released outside of ``GateChannels._channels_lock`` (FLINK-12510,
            FLINK-19391).  They are set up under it, which takes no lock; an ``OfferedInputGate`` takes its book lock
            under it.
Source:     Flink ``SingleInputGate``: ``setup``, ``requestPartitions``, ``updateInputChannel``,
            ``retriggerPartitionRequest``, ``triggerPartitionStateCheck``; ``UnknownInputChannel``, which stands in the
            place of a channel whose producer is not known yet.  The thread that learns of the producer makes the
            channel that replaces it.
            ``BufferOrEvent``, ``PullingAsyncDataInput.EndOfDataStatus``; ``InputBuffersMetrics``: ``inputQueueLength``,
            ``inputQueueSize``.
Absent:     ``UnionInputGate``: a task with several inputs reads its gates itself.  How much of a gate's buffers is in
            use (``inPoolUsage``): tasks report sums.
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Final, NamedTuple

from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.network_buffer import BufferDecompressor, NetworkBuffer
from netstack.errors import LocalProtocolError, PartitionNotFoundError, ResourceClosedError, TransportError
from netstack.gate.channels.input_channel import (
    BufferAndAvailability,
    ChannelStatistics,
    InputChannel,
    Lifecycle,
    PartitionStateChecker,
)
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.ids import ResultPartitionID
from netstack.late import dataclass
from netstack.log_lines import as_netstack_error
from netstack.partition.channel_state import ChannelStateWriter, DecompressedInput, InputChannelInfo
from netstack.wire.events import CheckpointBarrier, Event


class BufferOrEvent(NamedTuple):
    """The result of a poll: data, which the caller recycles, or an event."""

    channel_index: int
    buffer: NetworkBuffer | None
    event: Event | None
    more_available: bool
    more_priority_events: bool = False
    size: int = 0  # bytes of the buffer, or of the event as it travelled


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


def gate_statistics(channels: Sequence[InputChannel], num_finished: int) -> GateStatistics:
    """Add up the figures of ``channels``."""
    remote = [channel for channel in channels if isinstance(channel, RemoteInputChannel)]
    num_bytes_in_remote = sum(channel.num_bytes_in for channel in remote)
    num_buffers_in = sum(channel.num_buffers_in for channel in channels)
    return GateStatistics(
        num_bytes_in_local=sum(channel.num_bytes_in for channel in channels) - num_bytes_in_remote,
        num_bytes_in_remote=num_bytes_in_remote,
        num_buffers_in=num_buffers_in,
        num_queued_buffers=sum(channel.num_queued_buffers for channel in channels),
        num_credits_granted=sum(channel.buffer_manager.num_granted for channel in remote),
        num_channels=len(channels),
        num_channels_finished=num_finished,
        num_buffers_in_local=num_buffers_in - sum(channel.num_buffers_in for channel in remote),
        queue_size_bytes=sum(channel.queue_size_bytes for channel in remote),
    )


class EndOfDataStatus(Enum):
    """The consequence of the ends of data that the gate has seen so far."""

    NOT_END_OF_DATA = auto()
    DRAINED = auto()
    """Every channel ended its data, and all want windows and timers fired."""
    STOPPED = auto()
    """Every channel ended its data, at least one without draining."""


class UnknownInputChannel(InputChannel):
    """A channel whose producer is not known yet.

    The gate puts a local or remote channel in its place later.  Until then requests and events wait at the gate or are
    forgotten, and nothing can be read.
    """

    def request_subpartition(self) -> None:
        """Do nothing: the gate requests the channel that replaces this one."""

    def _request(self) -> None:
        """Never called: ``request_subpartition`` does nothing."""

    def retrigger_subpartition_request(self) -> None:
        """Do nothing: there is no request to send again."""

    def next_buffer(self) -> BufferAndAvailability | None:
        """Return None after the release; a channel without a producer is not polled before.

        Raises:
            LocalProtocolError: the channel is not released.
        """
        if self._error is not None:
            raise self._error
        if self.is_released:
            return None
        raise LocalProtocolError(f"channel {self.index} is polled before its producer is known")

    def resume_consumption(self) -> None:
        """Refuse: nothing was polled.

        Raises:
            LocalProtocolError: always.
        """
        raise LocalProtocolError(f"channel {self.index} is resumed before its producer is known")

    def acknowledge_all_records_processed(self) -> None:
        """Refuse: nothing was polled.

        Raises:
            LocalProtocolError: always.
        """
        raise LocalProtocolError(f"channel {self.index} is acknowledged before its producer is known")

    def send_task_event(self, event: Event) -> None:
        """Do nothing: the gate keeps the event for the channel that replaces this one."""

    def announce_buffer_size(self, size_bytes: int) -> None:
        """Do nothing: the producer starts with its own size, and hears of the next one."""

    def release(self) -> None:
        """Mark the channel as released; it holds no buffers to give back."""
        with self._lock:
            self._enter_locked(_RELEASED)

    def statistics(self) -> ChannelStatistics:
        """Make one row of a dump."""
        return self._statistics("unknown")

    def _describe(self) -> str:
        return "its producer is not known yet"


_CREATED: Final = Lifecycle.CREATED
_REQUESTED: Final = Lifecycle.REQUESTED
_RELEASED: Final = Lifecycle.RELEASED


class GateChannels:
    """The base of a gate: its set-up, its life cycle, and the calls that reach all channels.

    Which channels have data is the gate's own.

    Life cycle: ``Lifecycle``: ``add_channel`` ... -> ``request_partitions`` -> ``close``.
    State, written under ``_channels_lock``: ``_by_index``, which is replaced or grows, so that any thread reads it
        bare; ``_lifecycle``, which read bare may be one step behind; ``_num_unknown``, ``_pending_events``,
        ``_starting`` and ``_channel_state``.
    """

    def __init__(
        self, owner: str, state_checker: PartitionStateChecker | None, decompressor: BufferDecompressor | None
    ) -> None:
        self.owner = owner
        self._state_checker = state_checker
        self._decompressor = decompressor
        self._buffer_pool: LocalBufferPool | None = None  # of floating buffers
        self._channels_lock = threading.Lock()
        self._by_index: list[InputChannel] = []
        self._lifecycle = _CREATED
        self._num_unknown = 0
        self._pending_events: list[Event] = []  # for producers that are not known yet (FLINK-1496)
        # Channels that came late and were not requested yet, with the events for them: any thread sees these channels,
        # and an event must neither come before the request, nor overtake one that was sent before it.
        self._starting: dict[InputChannel, list[Event]] = {}
        # Where data in flight is kept, and the gate's index there.
        self._channel_state: tuple[ChannelStateWriter, int] | None = None

    @property
    def channels(self) -> Sequence[InputChannel]:
        """The channels, by index."""
        return self._by_index

    @property
    def num_channels(self) -> int:
        """The number of channels."""
        return len(self._by_index)

    @property
    def unfinished_channels(self) -> list[int]:
        """The indexes of the channels that have not reached the end of their partition."""
        return [channel.index for channel in self._by_index if not channel.is_released]

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._lifecycle is _RELEASED

    def _check_open(self) -> None:
        if self._lifecycle is _RELEASED:
            raise ResourceClosedError(f"the input gate of {self.owner} was closed")

    def _enter_locked(self, lifecycle: Lifecycle) -> bool:
        """Go on to ``lifecycle``; False, and nothing changes, if no step leads there from the present state."""
        # Only onward: a request that comes behind the close must not open the gate again.
        is_step = lifecycle > self._lifecycle
        if is_step:
            self._lifecycle = lifecycle
        return is_step

    # ---------------------------------------------------------------- set-up

    def set_buffer_pool(self, pool: LocalBufferPool) -> None:
        """Give the gate its floating buffers, once, before the request; the gate destroys the pool when it is closed.

        Raises:
            LocalProtocolError: it has a pool already.
        """
        if self._buffer_pool is not None:
            raise LocalProtocolError(f"{self.owner}: the gate has its floating buffers already")
        self._buffer_pool = pool
        for channel in self._by_index:
            self._set_up(channel)

    def set_channel_state_writer(self, writer: ChannelStateWriter, gate_index: int) -> None:
        """Let every channel, also one that comes later, keep its data in flight with ``writer``; before the request.

        Raises:
            LocalProtocolError: the partitions were requested already.
        """
        if self._decompressor is not None:
            writer = DecompressedInput(writer, self._decompressor.decompress)
        with self._channels_lock:
            is_late = self._lifecycle is _REQUESTED
            if not is_late:
                self._channel_state = (writer, gate_index)
                # Within the lock: a channel that is added meanwhile gets the writer here or by ``_put_locked``.
                for channel in self._by_index:
                    channel.set_channel_state_writer(writer, InputChannelInfo(gate_index, channel.index))
        if is_late:
            raise LocalProtocolError(f"{self.owner}: where data in flight is kept must be known before the request")

    def add_channel(self, channel: InputChannel) -> None:
        """Add the next channel; its index must be the number of channels so far.

        Raises:
            LocalProtocolError: the index is another one, or the partitions were requested, or the gate was closed.
        """
        with self._channels_lock:
            num_channels = len(self._by_index)
            lifecycle = self._lifecycle
            if lifecycle is _CREATED and channel.index == num_channels:
                self._num_unknown += isinstance(channel, UnknownInputChannel)
                self._put_locked(channel)
                return
        state = {_CREATED: "", _REQUESTED: " after the request"}.get(lifecycle, " after the close")
        raise LocalProtocolError(f"{self.owner}: channel {channel.index} is added as number {num_channels}{state}")

    def _put_locked(self, channel: InputChannel) -> None:
        """Set ``channel`` up and put it at its index: at the end, or in the place of another channel."""
        # Before it is in the list: a thread that finds it there finds its pool and its writer, too.
        self._set_up(channel)
        if channel.index == len(self._by_index):
            self._by_index.append(channel)
        else:
            self._by_index[channel.index] = channel

    def _set_up(self, channel: InputChannel) -> None:
        if self._buffer_pool is not None and isinstance(channel, RemoteInputChannel):
            channel.buffer_manager.pool = self._buffer_pool
        if self._channel_state is not None:
            writer, gate_index = self._channel_state
            channel.set_channel_state_writer(writer, InputChannelInfo(gate_index, channel.index))

    # ---------------------------------------------------------------- requests

    def _begin_requests(self) -> list[InputChannel] | None:
        """Add no more channels; returns the channels, which the caller lets ask for their data; None from the second
        call on.

        Raises:
            ResourceClosedError: the gate was closed.
        """
        with self._channels_lock:
            # Together with the list: an update knows who requests what it brings (FLINK-10747).
            is_first = self._enter_locked(_REQUESTED)
            channels = list(self._by_index)
        if not is_first:
            self._check_open()
            return None
        return channels

    def _start(self, channel: InputChannel) -> None:
        """Request a channel, then bring it the events that were sent before that."""
        try:
            channel.request_subpartition()  # Outside the lock: does nothing if a close has released it meanwhile.
            # Its producer may have ended since: then it needs no events, and another thread than this one sent them.
            with suppress(ResourceClosedError):
                while events := self._taken_events(channel):
                    for event in events:
                        channel.send_task_event(event)
        except PartitionNotFoundError as error:
            channel.on_error(error)  # as if it had been found out by its request: the other channels go on
        finally:
            with self._channels_lock:
                self._starting.pop(channel, None)

    def _taken_events(self, channel: InputChannel) -> list[Event] | None:
        """The next events for a channel that starts; none: from now on ``send_task_event`` brings them."""
        with self._channels_lock:
            events = self._starting.pop(channel, None)
            if events:
                self._starting[channel] = []
            return events

    def update_channel(self, channel: InputChannel) -> bool:
        """Put ``channel`` in the place of the unknown one with its index: its producer is known now.  Any thread.

        False (and ``channel`` is released) if the gate was closed, or that channel was known already.
        """
        with self._channels_lock:
            index = channel.index
            lifecycle = self._lifecycle
            former = self._by_index[index] if index < len(self._by_index) else None
            is_wanted = lifecycle is not _RELEASED and isinstance(former, UnknownInputChannel)
            # In the lock round that puts the channel there: each event is either in this copy, or comes to it.
            if is_wanted:
                self._starting[channel] = list(self._pending_events)
                self._put_locked(channel)
                self._num_unknown -= 1
                if not self._num_unknown:
                    self._pending_events.clear()
        # Released by this thread: no close will find it in the list.
        if not is_wanted:
            channel.release()
            return False
        if lifecycle is _REQUESTED:
            self._start(channel)
        return True

    def retrigger_partition_request(self, partition_id: ResultPartitionID, subpartition: int) -> None:
        """Ask for a partition once more, with the channel's back-off; nothing happens after the close.  Any thread."""
        if self._lifecycle is _RELEASED:
            return
        # A copy: an update may exchange a channel meanwhile, and requests the new one itself.
        for channel in list(self._by_index):
            if channel.partition_id == partition_id and channel.subpartition == subpartition:
                channel.retrigger_subpartition_request()

    def trigger_partition_state_check(self, channel: InputChannel) -> None:
        """Find out whether the producer of a partition that was not found is alive; any thread, never blocks."""
        if self._state_checker is None:
            channel.fail_partition_request()
            return
        try:
            self._state_checker.check(channel.partition_id, channel.on_producer_state)
        except Exception as error:  # noqa: BLE001 - the checker is foreign; whoever calls this only logs, and the channel would hang
            what = f"the producer of partition {channel.partition_id} cannot be checked"
            channel.on_error(as_netstack_error(error, TransportError, what))

    # ---------------------------------------------------------------- orders to the producers

    def acknowledge_all_records_processed(self, channel_index: int) -> None:
        """Tell the producer behind a channel that everything up to its end of data was processed."""
        self._by_index[channel_index].acknowledge_all_records_processed()

    def send_task_event(self, event: Event) -> None:
        """Bring ``event`` to the producers of all channels; producers that are not known yet get it later.

        Raises:
            ResourceClosedError: the gate was closed, or a channel has ended.
            PartitionNotFoundError: a producer in this process is gone.
        """
        self._check_open()
        with self._channels_lock:
            # With the notes below in one lock round: a channel that was requested gets the event here, any other one in
            # ``_start``.
            channels = [channel for channel in self._by_index if channel not in self._starting]
            for events in self._starting.values():
                events.append(event)
            if self._num_unknown:
                self._pending_events.append(event)
        for channel in channels:
            channel.send_task_event(event)

    def announce_buffer_size(self, size_bytes: int) -> None:
        """Ask all producers for buffers of this size from now on; channels that have ended are passed over
        (FLINK-24738).
        """
        for channel in list(self._by_index):
            try:
                # Bare: one that starts begins with its producer's own size, as one does that comes a moment later.
                if not channel.is_released and channel not in self._starting:
                    channel.announce_buffer_size(size_bytes)
            except ResourceClosedError:  # released between the two lines
                continue

    # ---------------------------------------------------------------- checkpoints

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None:
        """Persist the in-flight data of every channel; task thread.

        Raises:
            CheckpointSubsumedError: a later checkpoint's barrier has arrived on a channel.
        """
        for channel in self._by_index:
            channel.checkpoint_started(barrier)

    def checkpoint_stopped(self, checkpoint_id: int) -> None:
        """Persist nothing more for a checkpoint; task thread."""
        for channel in self._by_index:
            channel.checkpoint_stopped(checkpoint_id)

    def convert_to_priority_event(self, channel_index: int, sequence_number: int) -> None:
        """Let an announced barrier overtake the data before it; task thread.

        Raises:
            LocalProtocolError: it is not queued in that channel.
        """
        self._by_index[channel_index].convert_to_priority_event(sequence_number)

    # ---------------------------------------------------------------- end and numbers

    def _close_channels(self) -> list[InputChannel] | None:
        """Take no more channels; returns the channels, which the caller releases; None from the second call on.  Any
        thread.
        """
        with self._channels_lock:  # an update that comes later sees that the gate is closed
            return list(self._by_index) if self._enter_locked(_RELEASED) else None

    def channel_statistics(self) -> list[ChannelStatistics]:
        """Make one row per channel, for a dump; any thread."""
        return [channel.statistics() for channel in list(self._by_index)]

"""The channels of one gate: how they are set up, requested and replaced, and what all of them are told.

Holds the place of a channel whose producer is not known yet.

Lock order: ``GateChannels.lock``: channels are requested, told and released outside it (FLINK-12510, FLINK-19391).
            They are set up under it, which takes no lock; an ``OfferedInputGate`` takes its book lock under it.

Side:       shared.  The task thread sets up and requests; any thread updates, retriggers, closes.
Source:     Flink ``UnknownInputChannel``.  What it becomes is made by whoever knows the producer:
            ``SingleInputGate.update_channel``.  Flink ``SingleInputGate``: ``setup``, ``requestPartitions``,
            ``updateInputChannel``, ``retriggerPartitionRequest``, ``triggerPartitionStateCheck``.
Invariants: channel n has index n; after the close no channel is added.
"""

import threading
from typing import Final

from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.errors import LocalProtocolError, NetstackError, ResourceClosedError, TransportError
from netstack.gate.channels.input_channel import (
    BufferAndAvailability,
    ChannelLifecycle,
    ChannelStatistics,
    InputChannel,
)
from netstack.gate.channels.partition_request_client import PartitionStateChecker
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.input_gate import NEXT, GateLifecycle
from netstack.ids import ResultPartitionID
from netstack.partition.channel_state import ChannelStateWriter, InputChannelInfo
from netstack.wire.events import CheckpointBarrier, Event


class UnknownInputChannel(InputChannel):
    """A channel without a producer: it can be requested and told things, all that waits or is forgotten; it cannot be
    read.
    """

    def request_subpartition(self) -> None:
        """Nothing yet: the gate requests what replaces it."""

    def retrigger_subpartition_request(self) -> None:
        """Nothing to ask again."""

    def next_buffer(self) -> BufferAndAvailability | None:
        """Never.

        Raises:
            LocalProtocolError: as long as it is not released.
        """
        if self._error is not None:
            raise self._error
        if self.is_released:
            return None
        raise LocalProtocolError(f"channel {self.index} is polled before its producer is known")

    def resume_consumption(self) -> None:
        """Never: nothing was polled.

        Raises:
            LocalProtocolError: always.
        """
        raise LocalProtocolError(f"channel {self.index} is resumed before its producer is known")

    def acknowledge_all_records_processed(self) -> None:
        """Never: nothing was polled.

        Raises:
            LocalProtocolError: always.
        """
        raise LocalProtocolError(f"channel {self.index} is acknowledged before its producer is known")

    def send_task_event(self, event: Event) -> None:
        """Nothing yet: the gate keeps the event for what replaces the channel."""

    def announce_buffer_size(self, size_bytes: int) -> None:
        """Nothing: the producer starts with its own size, and hears of the next one."""

    def checkpoint_started(self, barrier: CheckpointBarrier) -> None:
        """Nothing came, nothing is persisted."""

    def checkpoint_stopped(self, checkpoint_id: int) -> None:
        """Nothing was started."""

    def set_channel_state_writer(self, writer: ChannelStateWriter, info: InputChannelInfo) -> None:
        """Nothing: the gate tells what replaces the channel."""

    def release(self) -> None:
        """It has nothing to give back."""
        with self._lock:
            self._enter_locked(ChannelLifecycle.RELEASED)

    def statistics(self) -> ChannelStatistics:
        """One row of a dump."""
        return ChannelStatistics(
            index=self.index,
            kind="unknown",
            partition=f"{self.partition_id}/{self.subpartition}",
            state=self._state(),
            num_bytes_in=0,
            num_buffers_in=0,
            num_queued_buffers=0,
            queue_size_bytes=0,
            num_credits_available=0,
            num_credits_granted=0,
            num_unannounced=0,
            num_required_buffers=0,
            num_exclusive_available=0,
            num_floating_available=0,
            sender_backlog=0,
            is_blocked=False,
            last_activity_ns=0,
        )

    def _describe(self) -> str:
        return "its producer is not known yet"


_SET_UP: Final = GateLifecycle.SET_UP
_REQUESTED: Final = GateLifecycle.REQUESTED
_CLOSED: Final = GateLifecycle.CLOSED


class GateChannels:
    """The set-up and the life cycle of a gate; which channels have data is the gate's own.

    Life cycle: ``GateLifecycle``: ``add`` ... -> ``begin_requests`` -> ``close``.
    Ownership: the channels, until the close gives them to the caller for their release.

    Attributes:
        by_index: the channels; the list is replaced or grows, so any thread reads it bare.  Written under ``lock``.
        lifecycle: written under ``lock``; a bare read may be one step behind.
        buffer_pool: the floating buffers of the gate, None before they are given.
    """

    def __init__(self, owner: str, state_checker: PartitionStateChecker | None) -> None:
        self._owner = owner
        self._state_checker = state_checker
        self.buffer_pool: LocalBufferPool | None = None
        self.lock = threading.Lock()
        self.by_index: list[InputChannel] = []
        self.lifecycle = _SET_UP
        # Guarded by lock.
        self._num_unknown = 0
        self._pending_events: list[Event] = []  # for producers that are not known yet (FLINK-1496)
        # Where data in flight is kept, and the gate's index there.
        self._channel_state: tuple[ChannelStateWriter, int] | None = None

    def __repr__(self) -> str:
        return (
            f"<GateChannels {self.lifecycle.name.lower()}, {len(self.by_index)} channels, {self._num_unknown} unknown>"
        )

    def check_open(self) -> None:
        """Do nothing but for a gate that was closed.

        Raises:
            ResourceClosedError: it was.
        """
        if self.lifecycle is _CLOSED:
            raise ResourceClosedError(f"the input gate of {self._owner} was closed")

    def _enter_locked(self, lifecycle: GateLifecycle) -> bool:
        """Go on to ``lifecycle``; False, and nothing changes, if no step leads there from the present state."""
        is_step = lifecycle in NEXT[self.lifecycle]
        if is_step:
            self.lifecycle = lifecycle
        return is_step

    # ---------------------------------------------------------------- set-up

    def set_buffer_pool(self, pool: LocalBufferPool) -> None:
        """See ``SingleInputGate``."""
        if self.buffer_pool is not None:
            raise LocalProtocolError(f"{self._owner}: the gate has its floating buffers already")
        self.buffer_pool = pool
        for channel in self.by_index:
            self._set_up(channel)

    def set_channel_state_writer(self, writer: ChannelStateWriter, gate_index: int) -> None:
        """See ``SingleInputGate``."""
        with self.lock:
            is_late = self.lifecycle is _REQUESTED
            if not is_late:
                self._channel_state = (writer, gate_index)
                for channel in self.by_index:
                    channel.set_channel_state_writer(writer, InputChannelInfo(gate_index, channel.index))
        if is_late:
            raise LocalProtocolError(f"{self._owner}: where data in flight is kept must be known before the request")

    def add(self, channel: InputChannel) -> None:
        """See ``SingleInputGate.add_channel``."""
        with self.lock:
            num_channels, lifecycle = len(self.by_index), self.lifecycle
            if lifecycle is _SET_UP and channel.index == num_channels:
                self._num_unknown += isinstance(channel, UnknownInputChannel)
                self.put_locked(channel)
                return
        state = {_SET_UP: "", _REQUESTED: " after the request"}.get(lifecycle, " after the close")
        raise LocalProtocolError(f"{self._owner}: channel {channel.index} is added as number {num_channels}{state}")

    def put_locked(self, channel: InputChannel) -> None:
        """Set ``channel`` up, and give it the place of its index: a new one at the end, or that of another channel."""
        self._set_up(channel)
        if channel.index == len(self.by_index):
            self.by_index.append(channel)
        else:
            self.by_index[channel.index] = channel

    def _set_up(self, channel: InputChannel) -> None:
        if self.buffer_pool is not None and isinstance(channel, RemoteInputChannel):
            channel.set_floating_pool(self.buffer_pool)
        if self._channel_state is not None:
            writer, gate_index = self._channel_state
            channel.set_channel_state_writer(writer, InputChannelInfo(gate_index, channel.index))

    # ---------------------------------------------------------------- requests

    def begin_requests(self) -> list[InputChannel] | None:
        """Add no more channels.  The caller lets those that it gets ask for their data; a second call returns None.

        Raises:
            ResourceClosedError: the gate was closed.
        """
        with self.lock:
            # Together with the list: an update knows who requests what it brings (FLINK-10747).
            is_first = self._enter_locked(_REQUESTED)
            channels = list(self.by_index)
        if not is_first:
            self.check_open()
            return None
        return channels

    def update(self, channel: InputChannel) -> bool:
        """See ``SingleInputGate.update_channel``."""
        with self.lock:
            index, lifecycle = channel.index, self.lifecycle
            is_wanted = (
                lifecycle is not _CLOSED
                and index < len(self.by_index)
                and isinstance(self.by_index[index], UnknownInputChannel)
            )
            events = list(self._pending_events)
            if is_wanted:
                self.put_locked(channel)
                self._num_unknown -= 1
                if not self._num_unknown:
                    self._pending_events.clear()
        if not is_wanted:
            channel.release()
            return False
        if lifecycle is _REQUESTED:
            channel.request_subpartition()
        for event in events:
            channel.send_task_event(event)
        return True

    def retrigger(self, partition_id: ResultPartitionID, subpartition: int) -> None:
        """See ``SingleInputGate.retrigger_partition_request``."""
        if self.lifecycle is _CLOSED:
            return
        for channel in list(self.by_index):
            if channel.partition_id == partition_id and channel.subpartition == subpartition:
                channel.retrigger_subpartition_request()

    def check_producer(self, channel: InputChannel) -> None:
        """See ``SingleInputGate.trigger_partition_state_check``."""
        if self._state_checker is None:
            channel.fail_partition_request()
            return
        try:
            self._state_checker.check(channel.partition_id, channel.on_producer_state)
        except Exception as error:  # noqa: BLE001 - the checker is foreign; whoever calls this only logs, and the channel would hang
            if isinstance(error, NetstackError):
                channel.on_error(error)
                return
            failed = TransportError(
                f"the producer of partition {channel.partition_id} cannot be checked: {type(error).__name__}: {error}"
            )
            failed.__cause__ = error
            channel.on_error(failed)

    # ---------------------------------------------------------------- orders to all

    def send_task_event(self, event: Event) -> None:
        """See ``SingleInputGate``."""
        self.check_open()
        with self.lock:
            channels = list(self.by_index)
            if self._num_unknown:
                self._pending_events.append(event)
        for channel in channels:
            channel.send_task_event(event)

    def announce_buffer_size(self, size_bytes: int) -> None:
        """See ``SingleInputGate``."""
        for channel in list(self.by_index):
            try:
                if not channel.is_released:
                    channel.announce_buffer_size(size_bytes)
            except ResourceClosedError:  # released between the two lines
                continue

    def start_checkpoint(self, barrier: CheckpointBarrier) -> None:
        """See ``SingleInputGate.checkpoint_started``."""
        for channel in self.by_index:
            channel.checkpoint_started(barrier)

    def stop_checkpoint(self, checkpoint_id: int) -> None:
        """See ``SingleInputGate.checkpoint_stopped``."""
        for channel in self.by_index:
            channel.checkpoint_stopped(checkpoint_id)

    # ---------------------------------------------------------------- end

    def close(self) -> list[InputChannel] | None:
        """Take no more channels.  The caller releases those that it gets; a second call returns None.  Any thread."""
        with self.lock:  # an update that comes later sees that the gate is closed
            return list(self.by_index) if self._enter_locked(_CLOSED) else None

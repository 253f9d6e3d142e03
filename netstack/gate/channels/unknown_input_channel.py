"""Holds the place of a channel whose producer is not known yet.

Side:       shared.
Source:     Flink ``UnknownInputChannel``.  What it becomes is made by whoever knows the producer:
            ``SingleInputGate.update_channel``.
"""

from netstack.errors import LocalProtocolError
from netstack.gate.channels.channel_lifecycle import ChannelLifecycle
from netstack.gate.channels.channel_statistics import ChannelStatistics
from netstack.gate.channels.input_channel import BufferAndAvailability, InputChannel
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

"""The numbers of one gate.

Side:       shared.  Read by anybody; nothing is counted twice for it, every number is read where it is kept, and may be
            one pass stale.
Units:      bytes, buffers; usages are fractions.
Source:     Flink ``InputBuffersMetrics``: ``inputQueueLength``, ``inputQueueSize``, ``inPoolUsage``,
            ``inputExclusiveBuffersUsage``, ``inputFloatingBuffersUsage``.  Local channels have no input buffers and do
            not count there.
"""

from collections.abc import Sequence

from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.gate.channels.input_channel import InputChannel
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.late import dataclass


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

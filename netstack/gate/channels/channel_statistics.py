"""The numbers of one channel.

Side:   pure.
Units:  bytes, buffers, nanoseconds.
"""

from netstack.late import dataclass


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """One channel in a dump; what a local channel does not have is 0."""

    index: int
    kind: str
    partition: str
    state: str
    num_bytes_in: int
    num_buffers_in: int
    num_queued_buffers: int
    queue_size_bytes: int
    num_credits_available: int
    num_credits_granted: int
    num_unannounced: int
    num_required_buffers: int
    num_exclusive_available: int
    num_floating_available: int
    sender_backlog: int
    is_blocked: bool
    last_activity_ns: int
    """When the channel was last found to have data after it had none, on the gate's monotonic clock."""

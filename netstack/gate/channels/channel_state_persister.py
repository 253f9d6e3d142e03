"""Which of the buffers that arrive on a channel belong to an unaligned checkpoint.

Side:       pure.
Invariants: buffers are persisted exactly while a checkpoint was started whose barrier has not arrived on this channel.
Source:     Flink ``ChannelStatePersister``.
"""

from enum import Enum, auto

from netstack.errors import CheckpointSubsumedError


class _Status(Enum):
    COMPLETED = auto()
    BARRIER_PENDING = auto()
    BARRIER_RECEIVED = auto()


class ChannelStatePersister:
    """The state of one channel; its owner's lock guards it.

    Attributes:
        is_pending: whether data that arrives now belongs to checkpoint ``last_seen_barrier``.
    """

    __slots__ = ("_status", "is_pending", "last_seen_barrier")

    def __init__(self) -> None:
        self._status = _Status.COMPLETED
        self.is_pending = False
        self.last_seen_barrier = -1

    def __repr__(self) -> str:
        return f"<ChannelStatePersister {self._status.name.lower()}, last barrier {self.last_seen_barrier}>"

    @property
    def has_barrier_received(self) -> bool:
        """Whether the barrier of a checkpoint that is not stopped has arrived."""
        return self._status is _Status.BARRIER_RECEIVED

    def start(self, checkpoint_id: int) -> None:
        """The task started a checkpoint.

        Raises:
            CheckpointSubsumedError: the barrier of a later one has arrived already.
        """
        if self.has_barrier_received and self.last_seen_barrier > checkpoint_id:
            raise CheckpointSubsumedError(
                f"the barrier of checkpoint {self.last_seen_barrier} arrived before checkpoint {checkpoint_id} was "
                "started"
            )
        if self.last_seen_barrier < checkpoint_id:
            # Also if an older barrier arrived that the task did not look at: only the newer one counts now.
            self._go_to(_Status.BARRIER_PENDING)
            self.last_seen_barrier = checkpoint_id

    def stop(self, checkpoint_id: int) -> None:
        """The checkpoint is complete or aborted; a later one that was started goes on."""
        if checkpoint_id >= self.last_seen_barrier:
            self._go_to(_Status.COMPLETED)
            self.last_seen_barrier = checkpoint_id

    def on_barrier(self, checkpoint_id: int) -> bool:
        """A barrier arrived; whether it counts: it is new, or the one that was waited for."""
        least = self.last_seen_barrier + (self._status is _Status.COMPLETED)
        if checkpoint_id < least:
            return False
        self._go_to(_Status.BARRIER_RECEIVED)
        self.last_seen_barrier = checkpoint_id
        return True

    def _go_to(self, status: _Status) -> None:
        self._status, self.is_pending = status, status is _Status.BARRIER_PENDING

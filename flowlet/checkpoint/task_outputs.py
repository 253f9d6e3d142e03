"""``TaskOutputs``: sends events of checkpoints to the outputs of a task.

Side:       task.
Invariants: records emitted before an event precede it in the partitions, because pending chunks are flushed first.
Source:     Flink ``RecordWriterOutput.broadcastEvent``, ``OperatorChain.broadcastEvent``, ``alignedBarrierTimeout``,
            ``abortCheckpoint``.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from netstack.late import dataclass
from netstack.partition.result_partition import ResultPartition
from netstack.wire.events import CheckpointBarrier, Event


@dataclass(frozen=True, slots=True)
class CheckpointedOutput:
    """One partition.

    Barriers stay aligned on a pointwise edge, whose in-flight data cannot be redistributed when parallelism changes.
    """

    partition: ResultPartition
    supports_unaligned: bool = True


class TaskOutputs:
    """All partitions of one task, if any; ``flush_pending`` writes the pending chunks of the record writers."""

    def __init__(self, outputs: Sequence[CheckpointedOutput], flush_pending: Callable[[], None]) -> None:
        self._outputs = tuple(outputs)
        self._flush_pending = flush_pending

    def broadcast_event(self, event: Event, *, is_priority: bool = False) -> None:
        """Send ``event`` on every channel of every partition; with priority it overtakes queued data.

        Raises:
            NetstackError: a partition was released or finished.
        """
        self._flush_pending()
        for output in self._outputs:
            event_here, is_priority_here = event, is_priority
            if (
                isinstance(event, CheckpointBarrier)
                and not output.supports_unaligned
                and event.options.needs_channel_state
            ):
                event_here, is_priority_here = replace(event, options=event.options.with_unaligned_unsupported()), False
            output.partition.broadcast_event(event_here, is_priority=is_priority_here)

    def aligned_barrier_timeout(self, checkpoint_id: int) -> None:
        """Let queued barriers of the checkpoint overtake the data before them."""
        for output in self._outputs:
            # Ignored by partitions that got a barrier without a timeout.
            output.partition.aligned_barrier_timeout(checkpoint_id)

    def abort_checkpoint(self, checkpoint_id: int, cause: BaseException) -> None:
        """Stop keeping data in front of the barriers of the checkpoint."""
        for output in self._outputs:
            output.partition.abort_checkpoint(checkpoint_id, cause)

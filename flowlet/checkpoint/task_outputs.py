"""The outputs of a task, as checkpoints see them.

Side:       task.
Invariants: what was emitted before an event is in the partitions before it: pending chunks are written first.
Source:     Flink ``RecordWriterOutput.broadcastEvent``, ``OperatorChain.broadcastEvent``, ``alignedBarrierTimeout``, ``abortCheckpoint``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from netstack.partition.result_partition import ResultPartition
from netstack.wire.events import CheckpointBarrier, Event


@dataclass(frozen=True, slots=True)
class CheckpointedOutput:
    """One partition; barriers stay aligned where a pointwise edge could not give in-flight data to another parallelism."""

    partition: ResultPartition
    supports_unaligned: bool = True


class TaskOutputs:
    """All partitions of one task.

    Args:
        outputs: may be none.
        flush_pending: writes the chunks that record writers hold back.
    """

    def __init__(self, outputs: Sequence[CheckpointedOutput], flush_pending: Callable[[], None]) -> None:
        self._outputs = tuple(outputs)
        self._flush_pending = flush_pending

    def broadcast_event(self, event: Event, *, is_priority: bool = False) -> None:
        """Send ``event`` on every channel of every partition; with priority it overtakes what is queued there.

        Raises:
            NetstackError: a partition was released or finished.
        """
        self._flush_pending()
        for output in self._outputs:
            event_here, is_priority_here = event, is_priority
            if isinstance(event, CheckpointBarrier) and not output.supports_unaligned and event.options.needs_channel_state:
                event_here, is_priority_here = replace(event, options=event.options.with_unaligned_unsupported()), False
            output.partition.broadcast_event(event_here, is_priority=is_priority_here)

    def aligned_barrier_timeout(self, checkpoint_id: int) -> None:
        """Let barriers that still stand in a queue overtake the data before them."""
        for output in self._outputs:
            output.partition.aligned_barrier_timeout(checkpoint_id)  # nothing where the barrier was sent as one that cannot time out

    def abort_checkpoint(self, checkpoint_id: int, cause: BaseException) -> None:
        """The data before the barriers is not wanted any more."""
        for output in self._outputs:
            output.partition.abort_checkpoint(checkpoint_id, cause)

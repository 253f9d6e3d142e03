"""``CheckpointResponder``: receives a subtask's acknowledgements, and counts them.

Side:       shared.  Any thread.
Source:     Flink ``CheckpointResponder``.
Absent:     files: ``TaskCheckpointing`` of a TaskManager writes them, and tells the JobManager.
"""

import threading
from dataclasses import field, replace
from typing import Protocol

from flowlet.checkpoint.barrier_orders import CheckpointError
from flowlet.checkpoint.snapshots import CheckpointMetrics, SubtaskState
from netstack.late import dataclass


@dataclass(frozen=True, slots=True)
class CheckpointStatistics:
    """Counts of a subtask's checkpoints so far."""

    num_acknowledged: int = 0
    num_declined: int = 0
    last_checkpoint_id: int = -1  # the last acknowledged one
    last: CheckpointMetrics = field(default_factory=CheckpointMetrics)  # of the last acknowledged one


class CheckpointCounts:
    """Counts the checkpoints of a subtask.  Threading: any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Guarded by _lock for writes; replaced as a whole, so it is read bare.
        self._statistics = CheckpointStatistics()

    @property
    def statistics(self) -> CheckpointStatistics:
        """The counts so far."""
        return self._statistics

    def acknowledged(self, checkpoint_id: int, metrics: CheckpointMetrics) -> None:
        """Count an acknowledgement and keep its metrics."""
        with self._lock:
            before = self._statistics
            self._statistics = replace(
                before, num_acknowledged=before.num_acknowledged + 1, last_checkpoint_id=checkpoint_id, last=metrics
            )

    def declined(self) -> None:
        """Count a decline."""
        with self._lock:
            self._statistics = replace(self._statistics, num_declined=self._statistics.num_declined + 1)


class CheckpointResponder(Protocol):
    """The coordinator, for one subtask; counts an acknowledgement when it is sure, which may be later than the call.

    Threading: any thread; must not block.
    One implementer: ``TaskCheckpointing`` stands on a floor above.
    """

    @property
    def statistics(self) -> CheckpointStatistics:
        """The counts so far."""

    def acknowledge_checkpoint(self, checkpoint_id: int, metrics: CheckpointMetrics, state: SubtaskState) -> None:
        """The subtask's part of the checkpoint is complete; the caller does not use ``state`` any more."""

    def decline_checkpoint(self, checkpoint_id: int, error: CheckpointError) -> None:
        """The subtask could not take its part of the checkpoint."""

"""A checkpoint coordinator in memory, for tests of tasks."""

from dataclasses import replace
from itertools import chain

from flowlet.checkpoint.task.barrier_orders import CheckpointError
from flowlet.checkpoint.task.operator_snapshots import CheckpointStatistics
from flowlet.checkpoint.task.snapshots import SubtaskState
from flowlet.messages.control_messages import CheckpointDurations


class RecordingResponder:
    """The way of one subtask to the coordinator: keeps and counts what it reports."""

    def __init__(self) -> None:
        self.statistics = CheckpointStatistics()
        self.acknowledged: list[tuple[int, CheckpointDurations, SubtaskState]] = []
        self.declined: list[CheckpointError] = []

    def acknowledge_checkpoint(self, checkpoint_id: int, metrics: CheckpointDurations, state: SubtaskState) -> None:
        number = self.statistics.num_acknowledged + 1
        self.statistics = replace(
            self.statistics, num_acknowledged=number, last_checkpoint_id=checkpoint_id, last=metrics
        )
        self.acknowledged.append((checkpoint_id, metrics, state))

    def decline_checkpoint(self, checkpoint_id: int, error: CheckpointError) -> None:
        assert error.checkpoint_id == checkpoint_id
        self.statistics = replace(self.statistics, num_declined=self.statistics.num_declined + 1)
        self.declined.append(error)

    @property
    def acknowledged_ids(self) -> list[int]:
        return [checkpoint_id for checkpoint_id, _, _ in self.acknowledged]


class InMemoryCheckpointStore:
    """Keeps what all subtasks report, on whatever threads; each attempt uses a ``responder_of`` of its own."""

    def __init__(self) -> None:
        self._responders: list[tuple[tuple[str, int], RecordingResponder]] = []

    def responder_of(self, vertex_id: str, subtask: int) -> RecordingResponder:
        responder = RecordingResponder()
        self._responders.append(((vertex_id, subtask), responder))
        return responder

    def acknowledgement(
        self, checkpoint_id: int, vertex_id: str, subtask: int
    ) -> tuple[CheckpointDurations, SubtaskState]:
        """Return what a subtask acknowledged; fails if it did not."""
        reports = [each.acknowledged for key, each in self._responders if key == (vertex_id, subtask)]
        return next((metrics, state) for each, metrics, state in chain(*reports) if each == checkpoint_id)

    def state_of(self, checkpoint_id: int, vertex_id: str, subtask: int) -> SubtaskState:
        return self.acknowledgement(checkpoint_id, vertex_id, subtask)[1]

    def num_acknowledged(self, checkpoint_id: int) -> int:
        """Return how many subtasks acknowledged a checkpoint."""
        return len({key for key, each in self._responders if checkpoint_id in each.acknowledged_ids})

    def declined_by(self, checkpoint_id: int) -> list[tuple[str, int]]:
        """Return the subtasks that declined a checkpoint."""
        return [
            key
            for key, responder in self._responders
            if any(error.checkpoint_id == checkpoint_id for error in responder.declined)
        ]

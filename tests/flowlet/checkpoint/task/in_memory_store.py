"""A checkpoint coordinator in memory, for tests of tasks."""

import threading
from dataclasses import replace
from typing import Protocol

from flowlet.checkpoint.task.barrier_orders import CheckpointError
from flowlet.checkpoint.task.operator_snapshots import CheckpointStatistics
from flowlet.checkpoint.task.snapshots import (
    SubtaskState,
)
from flowlet.messages.control_messages import CheckpointDurations
from netstack.late import dataclass


class Uncounted(Protocol):
    """A responder that does not count."""

    def acknowledge_checkpoint(self, checkpoint_id: int, metrics: CheckpointDurations, state: SubtaskState) -> None: ...

    def decline_checkpoint(self, checkpoint_id: int, error: CheckpointError) -> None: ...


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """One subtask's part of a checkpoint."""

    metrics: CheckpointDurations
    state: SubtaskState


class MeasuringResponder:
    """Counts and measures checkpoints, and passes them on."""

    def __init__(self, responder: Uncounted) -> None:
        self._responder = responder
        self.statistics = CheckpointStatistics()

    def acknowledge_checkpoint(self, checkpoint_id: int, metrics: CheckpointDurations, state: SubtaskState) -> None:
        """Count the acknowledgement and keep its metrics."""
        number = self.statistics.num_acknowledged + 1
        self.statistics = replace(
            self.statistics, num_acknowledged=number, last_checkpoint_id=checkpoint_id, last=metrics
        )
        self._responder.acknowledge_checkpoint(checkpoint_id, metrics, state)

    def decline_checkpoint(self, checkpoint_id: int, error: CheckpointError) -> None:
        """Count the decline."""
        self.statistics = replace(self.statistics, num_declined=self.statistics.num_declined + 1)
        self._responder.decline_checkpoint(checkpoint_id, error)


class InMemoryCheckpointStore:
    """Keeps the acknowledgements of all subtasks; each subtask uses its ``responder_of``."""

    def __init__(self, *, max_retained: int = 16) -> None:
        self._max_retained = max_retained
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._acknowledged: dict[int, dict[tuple[str, int], Acknowledgement]] = {}
        self._declined: dict[int, dict[tuple[str, int], CheckpointError]] = {}

    def __repr__(self) -> str:
        return f"<InMemoryCheckpointStore of {sorted(self._acknowledged)}>"

    def responder_of(self, vertex_id: str, subtask: int) -> MeasuringResponder:
        """Return the responder of one subtask."""
        return MeasuringResponder(_SubtaskResponder(self, (vertex_id, subtask)))

    def acknowledgement(self, checkpoint_id: int, vertex_id: str, subtask: int) -> Acknowledgement | None:
        """Return a subtask's acknowledgement, or None."""
        with self._lock:
            return self._acknowledged.get(checkpoint_id, {}).get((vertex_id, subtask))

    def declines(self, checkpoint_id: int) -> dict[tuple[str, int], CheckpointError]:
        """Return why a checkpoint was declined, by vertex and subtask."""
        with self._lock:
            return dict(self._declined.get(checkpoint_id, {}))

    def state_of(self, checkpoint_id: int, vertex_id: str, subtask: int) -> SubtaskState:
        """Return the state that a subtask restores. Raises KeyError: it did not acknowledge that checkpoint."""
        found = self.acknowledgement(checkpoint_id, vertex_id, subtask)
        if found is None:
            raise KeyError(f"checkpoint {checkpoint_id} holds nothing of subtask {subtask} of {vertex_id}")
        return found.state

    def num_acknowledged(self, checkpoint_id: int) -> int:
        """How many subtasks acknowledged a checkpoint."""
        with self._lock:
            return len(self._acknowledged.get(checkpoint_id, {}))

    def discard(self, checkpoint_id: int) -> None:
        """Drop a checkpoint.

        A later acknowledgement is kept again, until ``max_retained`` newer checkpoints push it out.
        """
        with self._lock:
            self._acknowledged.pop(checkpoint_id, None)
            self._declined.pop(checkpoint_id, None)

    def _acknowledge(self, key: tuple[str, int], checkpoint_id: int, found: Acknowledgement) -> None:
        with self._lock:
            self._acknowledged.setdefault(checkpoint_id, {}).setdefault(key, found)
            while len(self._acknowledged) > self._max_retained:
                del self._acknowledged[min(self._acknowledged)]

    def _decline(self, key: tuple[str, int], checkpoint_id: int, error: CheckpointError) -> None:
        with self._lock:
            self._declined.setdefault(checkpoint_id, {}).setdefault(key, error)
            while len(self._declined) > self._max_retained:
                del self._declined[min(self._declined)]


class _SubtaskResponder:
    __slots__ = ("_key", "_store")

    def __init__(self, store: InMemoryCheckpointStore, key: tuple[str, int]) -> None:
        self._store = store
        self._key = key

    def acknowledge_checkpoint(self, checkpoint_id: int, metrics: CheckpointDurations, state: SubtaskState) -> None:
        """Keep the acknowledgement."""
        self._store._acknowledge(self._key, checkpoint_id, Acknowledgement(metrics, state))

    def decline_checkpoint(self, checkpoint_id: int, error: CheckpointError) -> None:
        """Keep the decline."""
        self._store._decline(self._key, checkpoint_id, error)

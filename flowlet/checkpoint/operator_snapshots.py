"""The operators of a chain, as checkpoints see them.

Side:       task.
Invariants: operators are asked head first before the barrier, and tail first for their state, as in Flink; an operator that keeps nothing
            is not in the snapshot.
Source:     Flink ``RegularOperatorChain.prepareSnapshotPreBarrier``, ``snapshotState``, ``notifyCheckpointComplete``.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from flowlet.checkpoint.snapshots import CheckpointMetadata, OperatorSnapshot
from flowlet.operators.base import StreamOperator
from netstack.wire.events import CheckpointOptions


class OperatorSnapshots:
    """A chain of operators; it satisfies ``CheckpointableChain``.

    Args:
        operators: head first, by an id that stays the same when the job is restarted.
        is_closed: whether an operator was closed.
    """

    def __init__(self, operators: Sequence[tuple[str, StreamOperator]], is_closed: Callable[[], bool]) -> None:
        self._operators = tuple(operators)
        self._is_closed = is_closed

    @property
    def is_closed(self) -> bool:
        """Whether no snapshot can be had any more."""
        return self._is_closed()

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Let every operator emit what belongs before the barrier."""
        for _, operator in self._operators:
            operator.prepare_snapshot_pre_barrier(checkpoint_id)

    def snapshot_state(self, metadata: CheckpointMetadata, options: CheckpointOptions) -> Mapping[str, OperatorSnapshot]:
        """What each operator keeps: a value, or a callable that makes it on another thread."""
        snapshots = {}
        for operator_id, operator in reversed(self._operators):
            state = operator.snapshot_state(metadata.checkpoint_id)
            if state is not None:
                snapshots[operator_id] = OperatorSnapshot(state if callable(state) else partial(_identity, state))
        return snapshots

    def restore(self, states: Mapping[str, object]) -> None:
        """Give every operator its state back, None if it has none."""
        for operator_id, operator in self._operators:
            operator.initialize_state(states.get(operator_id))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Tell every operator."""
        for _, operator in self._operators:
            operator.notify_checkpoint_complete(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Tell every operator."""
        for _, operator in self._operators:
            operator.notify_checkpoint_aborted(checkpoint_id)

    def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
        """Nothing: operators keep no files that a newer checkpoint could make useless."""


def _identity(state: object) -> object:
    return state

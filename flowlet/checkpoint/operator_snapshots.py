"""The operators of a chain, as checkpoints see them.

Side:       task.
Invariants: operators are asked head first before the barrier, and tail first for their state, as in Flink; an operator that keeps nothing
            is not in the snapshot.  Timers belong to the state of their operator; they are copied in the synchronous part.
Source:     Flink ``RegularOperatorChain.prepareSnapshotPreBarrier``, ``snapshotState``, ``notifyCheckpointComplete``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from flowlet.chain.stream_operator import StreamOperator
from flowlet.checkpoint.snapshots import CheckpointMetadata, OperatorSnapshot, OperatorState
from flowlet.timers.time_api import InternalTimeServiceManager
from netstack.wire.events import CheckpointOptions

_NOTHING = OperatorState()


@dataclass(frozen=True, slots=True)
class SnapshotOperator:
    """One operator; ``operator_id`` stays the same when the job is restarted."""

    operator_id: str
    operator: StreamOperator
    timers: InternalTimeServiceManager | None = None


class OperatorSnapshots:
    """A chain of operators; it satisfies ``CheckpointableChain``.

    Args:
        operators: head first.
        is_closed: whether an operator was closed.
    """

    def __init__(self, operators: Sequence[SnapshotOperator], is_closed: Callable[[], bool]) -> None:
        self._operators = tuple(operators)
        self._is_closed = is_closed

    @property
    def is_closed(self) -> bool:
        """Whether no snapshot can be had any more."""
        return self._is_closed()

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Let every operator emit what belongs before the barrier."""
        for each in self._operators:
            each.operator.prepare_snapshot_pre_barrier(checkpoint_id)

    def snapshot_state(self, metadata: CheckpointMetadata, options: CheckpointOptions) -> Mapping[str, OperatorSnapshot]:
        """What each operator keeps: a value, or a callable that makes it on another thread."""
        snapshots = {}
        for each in reversed(self._operators):
            own = each.operator.snapshot_state(metadata.checkpoint_id)
            timers = {} if each.timers is None else each.timers.snapshot()
            if own is not None or timers:
                snapshots[each.operator_id] = OperatorSnapshot(partial(_finish, own, timers))
        return snapshots

    def restore(self, states: Mapping[str, object]) -> None:
        """Give every operator its state and timers back, tail first; None if it has none.  Before the operators are opened."""
        for each in reversed(self._operators):
            state = states.get(each.operator_id, _NOTHING)
            assert isinstance(state, OperatorState), f"the state of {each.operator!r} is no OperatorState, but {state!r}"
            if each.timers is not None:
                each.timers.restore(state.timers)
            each.operator.initialize_state(state.own)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Tell every operator."""
        for each in self._operators:
            each.operator.notify_checkpoint_complete(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Tell every operator."""
        for each in self._operators:
            each.operator.notify_checkpoint_aborted(checkpoint_id)

    def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
        """Nothing: operators keep no files that a newer checkpoint could make useless."""


def _finish(own: object, timers: Mapping[int, Mapping[str, object]]) -> OperatorState:
    return OperatorState(own() if callable(own) else own, timers)

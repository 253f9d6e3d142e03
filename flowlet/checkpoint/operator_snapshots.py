"""``OperatorSnapshots``: takes and restores the state of a chain of operators.

Side:       task.
Invariants: as in Flink, operators prepare for the barrier head first and are asked for their state tail first.  An
            operator without state is not in the snapshot.  Timers and keyed state are part of their operator's state
            and are copied in the synchronous part.
Source:     Flink ``RegularOperatorChain.prepareSnapshotPreBarrier``, ``snapshotState``, ``notifyCheckpointComplete``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from flowlet.chain.stream_operator import StreamOperator
from flowlet.checkpoint.snapshots import CheckpointMetadata, OperatorSnapshotFuture, OperatorState
from flowlet.errors import FlowletError
from flowlet.state.state_backends import KeyedStateBackend, OperatorStateBackend
from flowlet.state.state_snapshots import IncrementalSnapshot, KeyedStateSnapshot, OperatorStateSnapshot
from flowlet.timers.keyed_timer_service_manager import KeyedTimerServiceManager
from netstack.late import dataclass
from netstack.wire.events import CheckpointOptions

_NOTHING = OperatorState()


@dataclass(frozen=True, slots=True)
class SnapshotOperator:
    """One operator; ``operator_id`` is the same after a restart of the job."""

    operator_id: str
    operator: StreamOperator
    timers: KeyedTimerServiceManager | None = None
    keyed_state: KeyedStateBackend | None = None
    operator_state: OperatorStateBackend | None = None


class OperatorSnapshots:
    """The operators of a task, head first; every call is on the task thread.

    ``check_cancelled``: raises TaskCancelled if the task was cancelled, so that no other function of the chain is
        called then.
    """

    def __init__(
        self,
        operators: Sequence[SnapshotOperator],
        is_closed: Callable[[], bool],
        check_cancelled: Callable[[], None] = lambda: None,
    ) -> None:
        self._operators = tuple(operators)
        self._is_closed = is_closed
        self._check_cancelled = check_cancelled

    @property
    def is_closed(self) -> bool:
        """Whether no snapshot can be taken any more."""
        return self._is_closed()

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Let every operator emit records that belong before the barrier."""
        for each in self._operators:
            self._check_cancelled()
            each.operator.prepare_snapshot_pre_barrier(checkpoint_id)

    def snapshot_state(
        self, metadata: CheckpointMetadata, options: CheckpointOptions
    ) -> Mapping[str, OperatorSnapshotFuture]:
        """Each operator's state: a value, or a callable that makes it on another thread.

        Raises:
            FlowletError: a state cannot be written, for example a value of another type than declared; names the
                operator.
            Exception: whatever a user function raises.
        """
        snapshots = {}
        # It names no file that a checkpoint of the job may remove, and every back end reads it.
        is_full = options.type.is_savepoint
        for each in reversed(self._operators):
            self._check_cancelled()
            each.operator.snapshot_functions(metadata.checkpoint_id, metadata.timestamp_ms)
            own = each.operator.snapshot_state(metadata.checkpoint_id)
            timers = {} if each.timers is None else each.timers.snapshot()
            with _naming(each.operator.name):
                keyed = (
                    None
                    if each.keyed_state is None
                    else each.keyed_state.snapshot(metadata.checkpoint_id, is_full=is_full)
                )
                by_subtask = None if each.operator_state is None else each.operator_state.snapshot()
            if own is not None or timers or keyed is not None or by_subtask is not None:
                finish = partial(
                    _finish, each.operator.name, own, timers, each.operator.state_version, keyed, by_subtask
                )
                snapshots[each.operator_id] = OperatorSnapshotFuture(
                    finish, partial(_discard, each.keyed_state, metadata.checkpoint_id)
                )
        return snapshots

    def restore(self, states: Mapping[str, object]) -> None:
        """Restore state and timers of every operator, tail first (None: it has none); before the operators are opened.

        Raises:
            StateRestoreError: an operator's state has another version than the operator reads, or another number of key
                groups.
        """
        for each in reversed(self._operators):
            state = states.get(each.operator_id, _NOTHING)
            assert isinstance(state, OperatorState), (
                f"the state of {each.operator!r} is no OperatorState, but {state!r}"
            )
            state.check_version(each.operator.name, each.operator.state_version)
            if each.timers is not None:
                each.timers.restore(state.timers)
            if each.keyed_state is not None and state.keyed is not None:
                for part in state.keyed if isinstance(state.keyed, Sequence) else (state.keyed,):
                    each.keyed_state.restore(part)
            if each.operator_state is not None and state.by_subtask is not None:
                each.operator_state.restore(state.by_subtask)
            each.operator.initialize_state(state.own)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Tell every operator."""
        for each in self._operators:
            self._check_cancelled()
            if each.keyed_state is not None:
                each.keyed_state.notify_checkpoint_complete(checkpoint_id)
            each.operator.notify_checkpoint_complete(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Tell every operator."""
        for each in self._operators:
            self._check_cancelled()
            each.operator.notify_checkpoint_aborted(checkpoint_id)


def _discard(keyed_state: KeyedStateBackend | None, checkpoint_id: int) -> None:
    if keyed_state is not None:
        keyed_state.discard_snapshot(checkpoint_id)


@contextmanager
def _naming(operator: str) -> Iterator[None]:
    """Let an error that names a state name its operator, too: two operators may have states of one name."""
    try:
        yield
    except FlowletError as error:
        if type(error) is not FlowletError:
            raise  # it says more
        raise FlowletError(f"operator {operator!r}: {error}") from error.__cause__


def _finish(
    operator: str,
    own: object,
    timers: Mapping[int, Mapping[str, object]],
    version: int,
    keyed: Callable[[], KeyedStateSnapshot | IncrementalSnapshot] | None,
    by_subtask: Callable[[], OperatorStateSnapshot] | None,
) -> OperatorState:
    with _naming(operator):
        return OperatorState(
            own() if callable(own) else own,
            timers,
            version,
            None if keyed is None else keyed(),
            None if by_subtask is None else by_subtask(),
        )

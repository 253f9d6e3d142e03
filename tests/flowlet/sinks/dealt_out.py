"""Snapshots of the subtasks of an operator, dealt out to another number of subtasks as a restore does it."""

from collections.abc import Sequence

from flowlet.chain.stream_operator import StreamOperator
from flowlet.checkpoint.task.snapshots import OperatorState
from flowlet.checkpoint.task.state_assignment import assigned_states
from flowlet.serde.pickles.record_pickle import dumps_value, loads_value
from flowlet.state.state_snapshots import StateShare
from flowlet.testing.operator_harness import OperatorSnapshot


def dealt_out(
    snapshots: Sequence[OperatorSnapshot], parallelism: int, operator: StreamOperator
) -> list[OperatorSnapshot]:
    """Return the snapshots with which ``parallelism`` subtasks begin."""
    states = {subtask: {"id": _state_of(each)} for subtask, each in enumerate(snapshots)}
    shares = [StateShare(each, parallelism, 128, len(snapshots)) for each in range(parallelism)]
    found = [assigned_states({"id": operator}, ["id"], states, share) for share in shares]
    return [_snapshot_of(each.get("id", OperatorState())) for each in found]


def _state_of(snapshot: OperatorSnapshot) -> OperatorState:
    own, timers, keyed, by_subtask = loads_value(snapshot.payload[4:])
    return OperatorState(own, timers, keyed=keyed, by_subtask=by_subtask)


def _snapshot_of(state: OperatorState) -> OperatorSnapshot:
    data = dumps_value((state.own, state.timers, state.keyed, state.by_subtask))
    return OperatorSnapshot(len(data).to_bytes(4, "big") + data)

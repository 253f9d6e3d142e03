"""From the states of a vertex's former subtasks to those of one subtask now.

Side:       pure.
Invariants: each key, timer and element of split state is in exactly one subtask's share, whatever the former and the
            new parallelism are.  The states are not changed.
Source:     Flink ``StateAssignmentOperation``, ``RoundRobinOperatorStateRepartitioner``.
Rules:      state is matched by operator, not by vertex, so that operators may be chained otherwise than before.  An
            operator with the parallelism that it had, of which no subtask has finished, takes over what its own subtask
            had, and union state of all (``StateShare.is_the_same``).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from flowlet.checkpoint.task.snapshots import OperatorState
from flowlet.errors import StateRestoreError
from flowlet.state.state_snapshots import (
    IncrementalSnapshot,
    KeyedStateSnapshot,
    OperatorStateRows,
    OperatorStateSnapshot,
    Redistribution,
    StateShare,
)

if TYPE_CHECKING:
    from flowlet.chain.stream_operator import StreamOperator


def assigned_states(
    operators: "Mapping[str, StreamOperator]",
    former_ids: Iterable[str],
    states: Mapping[int, Mapping[str, OperatorState]],
    share: StateShare,
) -> dict[str, OperatorState]:
    """Assign the state of one vertex of a checkpoint to the operators of one subtask; returns it by operator id,
    without operators that have none.

    Args:
        operators: those of the subtask's chain, by id in hex.
        former_ids: of the operators of the vertex, in hex.
        states: of its subtasks, by subtask; those that are none of the new subtask's may be left out.
        share: the subtask and the vertex.

    Raises:
        StateRestoreError: an operator's state has another version, its keyed state has another number of key groups
            (``IncrementalSnapshot``: its back end refuses it), or it cannot be divided; the message names the operator.
    """
    found = {}
    # By operator: chains may be other ones now.
    for operator_id in set(former_ids) & operators.keys():
        parts = [states.get(each, {}).get(operator_id) for each in range(share.former_parallelism)]
        state = _state_of(operators[operator_id], parts, share)
        if state is not None:
            found[operator_id] = state
    return found


def is_by_key(states: Mapping[str, OperatorState]) -> bool:
    """Whether all state of a subtask goes by its key: then only subtasks that have some of its key groups need it."""
    return bool(states) and all(
        each.by_subtask is None and (each.own is None or getattr(each.own, "is_by_key", False))
        for each in states.values()
    )


def _state_of(
    operator: "StreamOperator", parts: Sequence[OperatorState | None], share: StateShare
) -> OperatorState | None:
    kept = [each for each in parts if each is not None]
    for each in kept:
        # Before it is divided: the operator itself divides its state.
        each.check_version(operator.name, operator.state_version)
    by_subtask = _by_subtask([None if each is None else each.by_subtask for each in parts], share)
    # Fast path, and more: state that cannot be divided stays where it is.
    if share.is_the_same:
        own = parts[share.subtask]
        return None if own is None and by_subtask is None else replace(own or OperatorState(), by_subtask=by_subtask)
    groups = share.key_groups
    state = OperatorState(
        operator.redistribute([None if each is None else each.own for each in parts], share),
        {group: services for part in kept for group, services in part.timers.items() if group in groups},
        operator.state_version,
        _keyed(operator, [each.keyed for each in kept], share),
        by_subtask,
    )
    is_empty = state.own is None and state.keyed is None and state.by_subtask is None and not state.timers
    return None if is_empty else state


def _keyed(
    operator: "StreamOperator", found: Iterable[object], share: StateShare
) -> tuple[KeyedStateSnapshot | IncrementalSnapshot, ...] | None:
    """Find the former subtasks' snapshots that may have some of this one's key groups.

    The back end takes its own key groups of an incremental snapshot.  It refuses snapshots of other versions, and
    snapshots that describe a state in different ways.
    """
    groups = share.key_groups
    parts: list[KeyedStateSnapshot | IncrementalSnapshot] = []
    for each in found:
        if isinstance(each, KeyedStateSnapshot):
            if each.max_parallelism != share.max_parallelism:
                raise StateRestoreError(
                    f"the keyed state of operator {operator.name!r} has {each.max_parallelism} key groups, the "
                    f"operator has {share.max_parallelism}: set its max parallelism to {each.max_parallelism}"
                )
            # Filtered here: each key is in one subtask's share alone.
            own = {group: states for group, states in each.groups.items() if group in groups}
            parts.append(replace(each, groups=own))
        elif isinstance(each, IncrementalSnapshot) and (
            each.first_key_group < groups.stop and groups.start < each.end_key_group
        ):
            parts.append(each)
    return tuple(parts) or None


def _by_subtask(parts: Sequence[OperatorStateSnapshot | None], share: StateShare) -> OperatorStateSnapshot | None:
    names = {name: None for part in parts if part is not None for name in part.states}
    rows = {name: _rows([None if part is None else part.states.get(name) for part in parts], share) for name in names}
    states = {name: each for name, each in rows.items() if each is not None}
    return OperatorStateSnapshot(states) if states else None


def _rows(parts: Sequence[OperatorStateRows | None], share: StateShare) -> OperatorStateRows | None:
    """Return one state's elements of this subtask."""
    kept = [each for each in parts if each is not None]
    everything: list[Any] = [element for each in kept for element in each.elements]
    match kept[0].redistribution:
        case Redistribution.UNION:
            return replace(kept[0], elements=tuple(everything))
        case Redistribution.SPLIT:
            return (
                parts[share.subtask] if share.is_the_same else replace(kept[0], elements=tuple(share.dealt(everything)))
            )
        # One of them: all are equal, and a sum of them would have each element several times.
        case Redistribution.BROADCAST:
            own = parts[share.subtask % len(parts)]
            # A finished subtask left none; all parts are equal, so any other part will do.
            return kept[share.subtask % len(kept)] if own is None else own

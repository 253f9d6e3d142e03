"""``OperatorSnapshots``."""

import pickle
from collections.abc import Mapping
from typing import Any, cast

import pytest

from flowlet.chain.stream_operator import OperatorContext, StreamOperator
from flowlet.checkpoint.task.operator_snapshots import OperatorSnapshots
from flowlet.checkpoint.task.snapshots import OperatorSnapshotFuture, OperatorState
from flowlet.datastream.state import ListStateDescriptor, ValueStateDescriptor
from flowlet.errors import StateRestoreError
from flowlet.state.heap_keyed_state_backend import HeapKeyedStateBackend
from flowlet.state.state_backends import OperatorStateBackend
from flowlet.testing.manual_processing_time_service import TestProcessingTimeService
from flowlet.timers.keyed_timer_service import KeyContext, KeyedTimerServiceManager, Timer, never
from netstack.wire.events import CheckpointBarrier

NUMBERS = ListStateDescriptor("numbers")


class Noting(StreamOperator):
    def __init__(self, name: str, state: object, log: list[tuple[str, str]]) -> None:
        self.name = name
        self.state = state
        self.log = log

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        self.log.append((self.name, f"prepare {checkpoint_id}"))

    def snapshot_state(self, checkpoint_id: int) -> object | None:
        self.log.append((self.name, f"snapshot {checkpoint_id}"))
        return self.state

    def initialize_state(self, state: object | None) -> None:
        self.state = state

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.log.append((self.name, f"complete {checkpoint_id}"))

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.log.append((self.name, f"aborted {checkpoint_id}"))


def stored(parts: Mapping[str, OperatorSnapshotFuture]) -> dict[str, OperatorState]:
    """Return the states as they come back from a storage."""
    states = {operator_id: part.finish() for operator_id, part in parts.items()}
    return cast("dict[str, OperatorState]", pickle.loads(pickle.dumps(states)))


def member(operator: StreamOperator, **services: Any) -> StreamOperator:
    """Return an operator of a chain, whose id is its name."""
    operator.ctx = OperatorContext("task", 0, 1, 128, operator.name, operator_id=operator.name.encode(), **services)
    return operator


def test_state_is_a_value_or_made_later_and_comes_back() -> None:
    """An operator that keeps nothing is not in the snapshot, and gets None."""
    log: list[tuple[str, str]] = []
    operators = [Noting("head", {"a": 1}, log), Noting("middle", None, log), Noting("tail", lambda: [1, 2], log)]
    chain = OperatorSnapshots([member(operator) for operator in operators], lambda: False)

    chain.prepare_snapshot_pre_barrier(7)
    states = stored(chain.snapshot_state(CheckpointBarrier(7, 0)))
    chain.restore(states)

    assert states == {b"head".hex(): OperatorState({"a": 1}), b"tail".hex(): OperatorState([1, 2])}
    assert [operator.state for operator in operators] == [{"a": 1}, None, [1, 2]]
    prepared = [("head", "prepare 7"), ("middle", "prepare 7"), ("tail", "prepare 7")]
    assert log == [*prepared, ("tail", "snapshot 7"), ("middle", "snapshot 7"), ("head", "snapshot 7")]
    assert not chain.is_closed()


def test_state_of_another_version_is_refused() -> None:
    """The error has the operator's name and both versions; an operator that kept nothing has no version."""

    class Newer(Noting):
        state_version = 2

    def states_of(operator: StreamOperator) -> dict[str, OperatorState]:
        chain = OperatorSnapshots([member(operator)], lambda: False)
        return stored(chain.snapshot_state(CheckpointBarrier(7, 0)))

    newer, older = Newer("count", None, []), Noting("count", [3], [])
    restored = OperatorSnapshots([member(newer)], lambda: False)

    with pytest.raises(StateRestoreError, match="operator 'count' has version 1, this flowlet reads version 2"):
        restored.restore(states_of(older))
    assert newer.state is None

    restored.restore(states_of(Noting("count", None, [])))
    newer.state = [4]
    restored.restore(states_of(newer))
    assert newer.state == [4]


def test_keyed_state_is_taken_with_the_barrier_and_comes_back() -> None:
    """It is taken even if the operator has no other state; later writes are not in the snapshot."""

    def chain_of() -> tuple[OperatorSnapshots, KeyContext, HeapKeyedStateBackend]:
        key_context = KeyContext()
        states = HeapKeyedStateBackend(key_context, lambda: 0, range(128), 128)
        operator = member(Noting("count", None, []), keyed_state=states)
        return OperatorSnapshots([operator], lambda: False), key_context, states

    chain, key_context, states = chain_of()
    assert chain.snapshot_state(CheckpointBarrier(6, 0)) == {}
    key_context.current_key = "k"
    state = states.state(ValueStateDescriptor("n"), ValueStateDescriptor)
    state.update(1)
    parts = chain.snapshot_state(CheckpointBarrier(7, 0))
    state.update(2)

    restored, key_context, states = chain_of()
    restored.restore(stored(parts))
    key_context.current_key = "k"
    assert states.state(ValueStateDescriptor("n"), ValueStateDescriptor).value() == 1


def test_operator_state_is_taken_after_the_functions_have_put_it_there_and_comes_back() -> None:
    """The functions know the checkpoint's id; it is taken even if the operator has no other state."""

    class Puts(Noting):
        def snapshot_functions(self, checkpoint_id: int, timestamp_ms: int) -> None:
            self.states.get_list_state(NUMBERS).update([checkpoint_id, timestamp_ms])

        states: OperatorStateBackend

    operator = Puts("count", None, [])
    operator.states = OperatorStateBackend()
    chain = OperatorSnapshots([member(operator, operator_state=operator.states)], lambda: False)

    parts = chain.snapshot_state(CheckpointBarrier(7, 80))
    operator.states.get_list_state(NUMBERS).clear()
    states = OperatorStateBackend()
    restored = OperatorSnapshots([member(Noting("count", None, []), operator_state=states)], lambda: False)
    restored.restore(stored(parts))

    assert list(states.get_list_state(NUMBERS)) == [7, 80]


def test_every_operator_is_notified() -> None:
    log: list[tuple[str, str]] = []
    chain = OperatorSnapshots([member(Noting("head", None, log)), member(Noting("tail", None, log))], lambda: True)

    chain.notify_checkpoint_complete(1)
    chain.notify_checkpoint_aborted(2)

    assert log == [("head", "complete 1"), ("tail", "complete 1"), ("head", "aborted 2"), ("tail", "aborted 2")]
    assert chain.is_closed()


def test_timers_belong_to_the_state_of_their_operator() -> None:
    """Timers are stored as the synchronous part finds them, come back before the operator is opened, and fire once."""
    fired: list[tuple[object, int]] = []
    before = keyed_timers()
    before.timer_service("user", Firing(fired)).register_event_time_timer(None, 10)
    before.timer_service("user", Firing(fired)).register_processing_time_timer(None, 20)
    operator = Noting("keyed", None, [])
    chain = OperatorSnapshots([member(operator, timers=before)], lambda: False)

    parts = chain.snapshot_state(CheckpointBarrier(7, 0))
    before.timer_service("user", Firing(fired)).register_event_time_timer(None, 11)
    after = keyed_timers()
    OperatorSnapshots([member(operator, timers=after)], lambda: False).restore(stored(parts))
    after.timer_service("user", Firing(fired))
    after.try_advance_watermark(100, never)

    assert fired == [("k", 10)]


class Firing:
    def __init__(self, fired: list[tuple[object, int]]) -> None:
        self.fired = fired

    def on_event_time(self, timer: Timer) -> None:
        self.fired.append((timer.key, timer.timestamp))

    def on_processing_time(self, timer: Timer) -> None:
        raise AssertionError("the clock stands still")


def keyed_timers() -> KeyedTimerServiceManager:
    context = KeyContext()
    context.current_key = "k"
    return KeyedTimerServiceManager(context, TestProcessingTimeService(), range(128), 128)

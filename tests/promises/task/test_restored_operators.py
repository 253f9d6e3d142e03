"""The state of a task's operators in a checkpoint, and the state that another task restores from it.

Source: Flink ``StreamTaskStateInitializerImplTest``, ``StreamOperatorSnapshotRestoreTest``.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from flowlet.checkpoint.task.snapshots import OperatorState
from flowlet.datastream import KeyedProcessFunction
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.errors import StateRestoreError
from flowlet.records import Chunk, Watermark
from flowlet.testing import operator_of
from netstack.wire.events import CheckpointBarrier, CheckpointOptions
from tests.flowlet.task.checkpointed_tasks import Remembering, Rig
from tests.flowlet.task.local_network import LocalNetwork
from tests.flowlet.task.local_tasks import Tasks, send, step_until_idle


class Counting(KeyedProcessFunction):
    """Counts the records of each key, and sets a timer at the time of each."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        timestamp = ctx.timestamp()
        assert timestamp is not None
        ctx.timer_service().register_event_time_timer(timestamp)
        yield value, count

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key(), f"timer {timestamp}"


def test_keyed_state_and_timers_are_those_at_the_barrier(network: LocalNetwork, tasks: Tasks) -> None:
    """State and timers are those at the barrier, not those when the asynchronous part runs; another task goes on with
    them, and each timer fires once.
    """
    before, after = Rig(network), Rig(network)
    first, second = network.partition(), network.partition()
    task = tasks.restored(before.task(operator_of(Counting(), lambda value: value), producers=[first]))
    send(first, Chunk(["a", "b", "a"], [1, 2, 3]))
    first.broadcast_event(CheckpointBarrier(1, 0, CheckpointOptions()))
    send(first, Chunk(["a", "c"], [4, 5]))
    step_until_idle(task)
    before.run_async()
    assert before.read() == [("a", 1), ("b", 1), ("a", 2), ("a", 3), ("c", 1)]

    operator = operator_of(Counting(), lambda value: value)
    task = tasks.restored(after.task(operator, producers=[second], restored=before.stored(1)))
    send(second, Chunk(["a", "c"], [8, 9]), Watermark(7), Watermark(10))
    step_until_idle(task)

    restored = [("a", "timer 1"), ("b", "timer 2"), ("a", "timer 3")]
    assert after.reader.read_values() == [("a", 3), ("c", 1), *restored, ("a", "timer 8"), ("c", "timer 9")]
    for rig in (before, after):
        rig.reader.view.release()


class Keeps(Remembering):
    """Keeps the state that it is given."""

    def __init__(self, operator_id: bytes, state: object) -> None:
        super().__init__()
        self.operator_id = operator_id
        self.state = state

    def snapshot_state(self, checkpoint_id: int) -> object:
        return self.state


class Newer(Keeps):
    state_version = 2


def snapshot_of(rig: Rig, tasks: Tasks, *operators: Keeps) -> Mapping[str, OperatorState]:
    """The states of a checkpoint."""
    producer = rig.network.partition()
    task = tasks.restored(rig.task(*operators, producers=[producer]))
    producer.broadcast_event(CheckpointBarrier(1, 0, CheckpointOptions()))
    step_until_idle(task)
    rig.run_async()
    rig.reader.view.release()
    return rig.stored(1)


def restored_of(
    network: LocalNetwork, tasks: Tasks, states: Mapping[str, OperatorState], *operators: Keeps
) -> list[object]:
    """Return the state that the operators of a new task get."""
    rig = Rig(network)
    try:
        tasks.restored(rig.task(*operators, producers=[network.partition()], restored=states))
    finally:
        rig.reader.view.release()
    return [each.restored for each in operators]


HEAD, MIDDLE, TAIL = b"h" * 16, b"m" * 16, b"t" * 16


def test_state_is_a_value_or_made_later_and_comes_back(network: LocalNetwork, tasks: Tasks) -> None:
    """An operator that keeps no state is not in the checkpoint, and gets None."""
    made = [1]

    states = snapshot_of(
        Rig(network), tasks, Keeps(HEAD, {"a": 1}), Keeps(MIDDLE, None), Keeps(TAIL, lambda: [*made, 2])
    )

    assert states == {HEAD.hex(): OperatorState({"a": 1}), TAIL.hex(): OperatorState([1, 2])}
    operators = Keeps(HEAD, None), Keeps(MIDDLE, None), Keeps(TAIL, None)
    assert restored_of(network, tasks, {**states, MIDDLE.hex(): OperatorState()}, *operators) == [
        {"a": 1},
        None,
        [1, 2],
    ]


def test_state_of_another_version_is_refused(network: LocalNetwork, tasks: Tasks) -> None:
    """The error gives the name and both versions; an operator that kept nothing has no version."""
    older = snapshot_of(Rig(network), tasks, Keeps(HEAD, [3]))
    newer = snapshot_of(Rig(network), tasks, Newer(HEAD, [4]))
    nothing = snapshot_of(Rig(network), tasks, Keeps(HEAD, None))
    refused = Newer(HEAD, None)

    with pytest.raises(StateRestoreError, match="operator 'remembering' has version 1, this flowlet reads version 2"):
        restored_of(network, tasks, older, refused)

    assert refused.restored == "nothing was called"
    assert restored_of(network, tasks, nothing, Newer(HEAD, None)) == [None]
    assert restored_of(network, tasks, newer, Newer(HEAD, None)) == [[4]]

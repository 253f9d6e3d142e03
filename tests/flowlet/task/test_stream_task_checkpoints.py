"""Source: Flink ``StreamTaskTest``, ``StreamTaskFinalCheckpointsTest``, as far as it takes a whole task: the parts have
their own tests.
"""

import pytest

from flowlet.checkpoint.task.snapshots import OperatorState
from flowlet.graph.partitioner import Broadcast, Forward, Partitioner, Rebalance, Rescale
from flowlet.records import Chunk
from flowlet.task.source_stream_task import create_stream_task
from netstack.wire.events import Alignment, CheckpointBarrier, CheckpointOptions, EndOfData, StopMode, deserialize_event
from tests.flowlet.task.checkpointed_tasks import VERTEX, Remembering, Rig, checkpointing, trigger
from tests.flowlet.task.local_network import LocalNetwork, edge
from tests.flowlet.task.local_tasks import Tasks, chain, send, source, step_until_idle


@pytest.fixture
def rig(network: LocalNetwork) -> Rig:
    return Rig(network)


def test_a_task_aligns_its_gates_snapshots_and_passes_the_barrier_on(
    network: LocalNetwork, tasks: Tasks, rig: Rig
) -> None:
    """Records behind the first barrier are not in the snapshot, and leave the task behind the barrier."""
    operator, first, second = Remembering(), network.partition(), network.partition()
    task = tasks.restored(rig.task(operator, producers=[first, second]))
    barrier = CheckpointBarrier(1, 0, CheckpointOptions())
    send(first, Chunk(["a"]))
    first.broadcast_event(barrier)
    send(first, Chunk(["behind"]))
    step_until_idle(task)
    assert operator.values == ["a"]

    send(second, Chunk(["b"]))
    second.broadcast_event(barrier)
    step_until_idle(task)
    rig.run_async()

    assert rig.state_of(1) == 2
    assert operator.values == ["a", "b", "behind"]
    assert rig.read() == ["a", "b", "behind"]
    assert rig.reader.events == [barrier]


def test_a_source_is_triggered_by_a_mail(network: LocalNetwork, tasks: Tasks, rig: Rig) -> None:
    operator = Remembering()
    task = tasks.restored(rig.task(source(["a"], ["b"]), operator, producers=[]))
    task.mailbox_processor.run_mailbox_step()

    begun = trigger(task, 7)
    task.mailbox_processor.run_mailbox_step()
    rig.run_async()

    assert begun.result(timeout=0)
    assert rig.state_of(7) == 1
    assert rig.read() == ["a"]
    assert [event.checkpoint_id for event in rig.reader.events if isinstance(event, CheckpointBarrier)] == [7]


def test_state_is_given_back_before_an_operator_opens(network: LocalNetwork, tasks: Tasks, rig: Rig) -> None:
    operator = Remembering()

    states = {Remembering.operator_id.hex(): OperatorState(5)}
    task = tasks.restored(rig.task(operator, producers=[network.partition()], restored=states))

    assert operator.restored == 5
    assert task.environment.checkpointing is not None
    assert task.environment.checkpointing.restored == {}, "the old state is not kept beside the new one"
    assert operator.calls == ["initialize", "open"]


def test_notifications_reach_every_operator_once_and_only_while_they_run(
    network: LocalNetwork, tasks: Tasks, rig: Rig
) -> None:
    """Ignored before the start; repeated ids are skipped."""
    head, tail = Remembering(), Remembering()
    task = rig.task(head, tail, producers=[network.partition()])
    assert task.checkpoints is not None
    task.checkpoints.notify_checkpoint_complete_async(1)
    tasks.restored(task)
    task.checkpoints.notify_checkpoint_complete_async(2)
    task.checkpoints.notify_checkpoint_complete_async(2)
    task.checkpoints.notify_checkpoint_aborted_async(3)

    step_until_idle(task)

    assert head.notified == tail.notified == [("complete", 1), ("complete", 2), ("aborted", 3)]


def test_the_end_of_data_behind_a_barrier_is_passed_on_once(network: LocalNetwork, tasks: Tasks, rig: Rig) -> None:
    operator, producer = Remembering(), network.partition()
    task = tasks.restored(rig.task(operator, producers=[producer]))
    barrier = CheckpointBarrier(1, 0, CheckpointOptions())
    producer.broadcast_event(barrier)
    producer.notify_end_of_data(StopMode.DRAIN)

    step_until_idle(task)
    rig.run_async()
    rig.read()

    assert operator.calls[-1] == "finish"
    assert rig.reader.events == [barrier, EndOfData(StopMode.DRAIN)]
    assert not rig.store.state_of(1, VERTEX, 0).is_finished


@pytest.mark.parametrize(
    ("partitioner", "alignment"),
    [
        (Forward(), Alignment.FORCED_ALIGNED),
        (Rescale(), Alignment.FORCED_ALIGNED),
        (Rebalance(), Alignment.UNALIGNED),
        (Broadcast(), Alignment.FORCED_ALIGNED),
    ],
)
def test_an_unaligned_barrier_stays_behind_the_data_of_pointwise_and_broadcast_edges(
    network: LocalNetwork, tasks: Tasks, rig: Rig, partitioner: Partitioner, alignment: Alignment
) -> None:
    """The edge's data in flight could not be given to another parallelism; on other edges the barrier overtakes the
    data.
    """
    environment = network.environment("source", outputs=[edge(rig.partition, partitioner)])
    environment.checkpointing = checkpointing(rig.store)
    task = tasks.restored(create_stream_task(environment, chain(source(["a"]))))
    task.mailbox_processor.run_mailbox_step()

    begun = trigger(task, 7, CheckpointOptions(alignment=Alignment.UNALIGNED))
    task.mailbox_processor.run_mailbox_step()
    first = rig.reader.view.next_buffer()
    assert first is not None
    is_behind = first.buffer.is_buffer
    event = None if is_behind else deserialize_event(first.buffer.view)
    first.buffer.recycle()
    rig.reader.read()

    assert begun.result(timeout=0)
    [barrier] = rig.reader.events if event is None else [event]
    assert isinstance(barrier, CheckpointBarrier)
    assert barrier.options.alignment is alignment
    assert is_behind is (alignment is Alignment.FORCED_ALIGNED)

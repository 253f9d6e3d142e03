"""Source: Flink ``StreamTaskTest``, ``StreamTaskFinalCheckpointsTest``, as far as it takes a whole task: the parts have
their own tests.
"""

from collections.abc import Callable

import pytest

from flowlet.checkpoint.channel_state_writer import InMemoryChannelStateWriter
from flowlet.checkpoint.responder import InMemoryCheckpointStore
from flowlet.checkpoint.snapshots import CheckpointMetadata, OperatorState
from flowlet.graph.partitioner import Broadcast, Forward, Partitioner, Rebalance, Rescale
from flowlet.operators.source_operator import SourceOperator
from flowlet.records import Chunk
from flowlet.task.create_stream_task import StreamTask, create_stream_task
from flowlet.task.task_environment import Checkpointing
from netstack.partition.result_partition import ResultPartition
from netstack.wire.events import Alignment, CheckpointBarrier, CheckpointOptions, EndOfData, StopMode, deserialize_event
from tests.flowlet.checkpoint.doubles import ManualTimers
from tests.flowlet.task.local_network import LocalNetwork, Recorder, edge
from tests.flowlet.task.local_tasks import Tasks, chain, send, source, step_until_idle

VERTEX = "2" * 32


class Remembering(Recorder):
    """Keeps how many records it saw."""

    operator_id = b"remembering oper"

    def __init__(self) -> None:
        super().__init__("remembering")
        self.restored: object = "nothing was called"
        self.notified: list[tuple[str, int]] = []

    def initialize_state(self, state: object | None) -> None:
        self._note("initialize")
        self.restored = state

    def snapshot_state(self, checkpoint_id: int) -> object:
        return len(self.values)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.notified.append(("complete", checkpoint_id))

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.notified.append(("aborted", checkpoint_id))


class Rig:
    """A task with a store in memory; asynchronous parts run when the test says so."""

    def __init__(self, network: LocalNetwork) -> None:
        self.network = network
        self.store = InMemoryCheckpointStore()
        self.pool: list[Callable[[], None]] = []
        self.partition = network.partition()
        self.reader = network.reader(self.partition)

    def checkpointing(self, **restored: object) -> Checkpointing:
        responder = self.store.responder_of(VERTEX, 0)
        operator_id = Remembering.operator_id.hex()
        states = {operator_id: OperatorState(restored["state"])} if restored else {}
        return Checkpointing(responder, self.pool.append, ManualTimers(), InMemoryChannelStateWriter(), restored=states)

    def task(
        self, *operators: Remembering | SourceOperator, producers: list[ResultPartition], **restored: object
    ) -> StreamTask:
        gates = [self.network.gate(producer) for producer in producers]
        outputs = [edge(self.partition, source=len(operators) - 1)]
        environment = self.network.environment("joint", gates=gates, outputs=outputs)
        environment.checkpointing = self.checkpointing(**restored)
        return create_stream_task(environment, chain(*operators))

    def run_async(self) -> None:
        while self.pool:
            self.pool.pop(0)()

    def read(self) -> list[object]:
        """The records that came out; a barrier stops the view, as it would stop a channel."""
        values = self.reader.read_values()
        self.reader.view.resume_consumption()
        return values + self.reader.read_values()

    def state_of(self, checkpoint_id: int) -> object:
        found = self.store.state_of(checkpoint_id, VERTEX, 0).operators[Remembering.operator_id.hex()]
        assert isinstance(found, OperatorState)
        return found.own


@pytest.fixture
def rig(network: LocalNetwork) -> Rig:
    return Rig(network)


def test_a_task_aligns_its_gates_snapshots_and_passes_the_barrier_on(
    network: LocalNetwork, tasks: Tasks, rig: Rig
) -> None:
    """What came behind the first barrier is not in the snapshot, and comes behind the barrier."""
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
    rig.reader.view.release()


def test_a_source_is_triggered_by_a_mail(network: LocalNetwork, tasks: Tasks, rig: Rig) -> None:
    operator = Remembering()
    task = tasks.restored(rig.task(source(["a"], ["b"]), operator, producers=[]))
    task.mailbox_processor.run_mailbox_step()
    assert task.checkpoints is not None

    begun = task.checkpoints.trigger_checkpoint_async(CheckpointMetadata(7, 0, 0), CheckpointOptions())
    task.mailbox_processor.run_mailbox_step()
    rig.run_async()

    assert begun.result(timeout=0)
    assert rig.state_of(7) == 1
    assert rig.read() == ["a"]
    assert [event.checkpoint_id for event in rig.reader.events if isinstance(event, CheckpointBarrier)] == [7]
    rig.reader.view.release()


def test_state_is_given_back_before_an_operator_opens(network: LocalNetwork, tasks: Tasks, rig: Rig) -> None:
    operator = Remembering()

    task = tasks.restored(rig.task(operator, producers=[network.partition()], state=5))

    assert operator.restored == 5
    assert task.environment.checkpointing is not None
    assert task.environment.checkpointing.restored == {}, "the old state is not kept beside the new one"
    assert operator.calls == ["initialize", "open"]
    rig.reader.view.release()


def test_notifications_reach_operators_once_and_only_while_they_run(
    network: LocalNetwork, tasks: Tasks, rig: Rig
) -> None:
    """Ignored before the start; repeated ids are skipped."""
    operator = Remembering()
    task = rig.task(operator, producers=[network.partition()])
    assert task.checkpoints is not None
    task.checkpoints.notify_checkpoint_complete_async(1)
    tasks.restored(task)
    task.checkpoints.notify_checkpoint_complete_async(2)
    task.checkpoints.notify_checkpoint_complete_async(2)
    task.checkpoints.notify_checkpoint_aborted_async(3)

    step_until_idle(task)

    assert operator.notified == [("complete", 1), ("complete", 2), ("aborted", 3)]
    rig.reader.view.release()


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
    rig.reader.view.release()


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
    """Its data in flight could not be given to another parallelism; on other edges the barrier overtakes the data."""
    environment = network.environment("source", outputs=[edge(rig.partition, partitioner)])
    environment.checkpointing = rig.checkpointing()
    task = tasks.restored(create_stream_task(environment, chain(source(["a"]))))
    task.mailbox_processor.run_mailbox_step()
    assert task.checkpoints is not None

    begun = task.checkpoints.trigger_checkpoint_async(
        CheckpointMetadata(7, 0, 0), CheckpointOptions(alignment=Alignment.UNALIGNED)
    )
    task.mailbox_processor.run_mailbox_step()
    rig.run_async()
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
    rig.reader.view.release()

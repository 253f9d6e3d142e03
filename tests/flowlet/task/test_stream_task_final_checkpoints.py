"""A task that has come to its end takes part in checkpoints until one is complete that holds the end.

Source: Flink ``StreamTaskFinalCheckpointsTest``, ``SourceStreamTaskStoppingTest``.
"""

import pytest

from flowlet.chain.stream_operator import StreamOperator
from flowlet.checkpoint.task.barrier_orders import CheckpointError
from flowlet.messages.execution_state import ExecutionState
from flowlet.operators.source_operator import SourceOperator
from flowlet.operators.source_reader import Source, SourceReader
from flowlet.records import Chunk
from flowlet.task.source_stream_task import create_stream_task
from flowlet.task.stream_task import StreamTask
from netstack.gate.single_input_gate import SingleInputGate
from netstack.partition.result_partition import ResultPartition
from netstack.wire.events import (
    CheckpointBarrier,
    CheckpointOptions,
    EndOfData,
    EndOfPartition,
    Event,
    SavepointFormat,
    SnapshotType,
    StopMode,
)
from tests.flowlet.checkpoint.task.in_memory_store import InMemoryCheckpointStore
from tests.flowlet.task.checkpointed_tasks import VERTEX, checkpointing, complete, trigger
from tests.flowlet.task.local_network import LocalNetwork, Recorder, SubpartitionReader, Thread, edge
from tests.flowlet.task.local_tasks import Tasks, chain, source, step_until_idle
from tests.waiting import spin_until

SUSPEND = CheckpointOptions(SnapshotType.SAVEPOINT_SUSPEND, SavepointFormat.NATIVE)
TERMINATE = CheckpointOptions(SnapshotType.SAVEPOINT_TERMINATE, SavepointFormat.NATIVE)


class Idle(Source):
    """Has nothing, and never ends by itself."""

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        return self

    def poll_chunk(self) -> Chunk:
        return Chunk([])

    def close(self) -> None:
        pass


class Rig:
    """A task with ``num_outputs`` partitions whose asynchronous parts run at once."""

    def __init__(self, network: LocalNetwork, *, num_outputs: int = 1, are_taken_after_finish: bool = True) -> None:
        self.network = network
        self.store = InMemoryCheckpointStore()
        self.operator = Recorder()
        self.partitions = [network.partition() for _ in range(num_outputs)]
        self.readers = [network.reader(partition) for partition in self.partitions]
        self._config = checkpointing(self.store, are_taken_after_finish=are_taken_after_finish)

    def source(self, head: SourceOperator) -> StreamTask:
        return self._task([], head, self.operator)

    def reading(self, producers: list[ResultPartition]) -> StreamTask:
        return self._task([self.network.gate(*producers)], self.operator)

    def _task(self, gates: list[SingleInputGate], *operators: StreamOperator) -> StreamTask:
        outputs = [edge(partition, source=len(operators) - 1) for partition in self.partitions]
        environment = self.network.environment("task", gates=gates, outputs=outputs)
        environment.checkpointing = self._config
        return create_stream_task(environment, chain(*operators))


def end(*producers: ResultPartition) -> None:
    for producer in producers:
        producer.notify_end_of_data(StopMode.DRAIN)
        producer.finish()


def read_to_the_end_of_data(rig: Rig) -> None:
    """Read all data, and say that it was processed."""
    for reader in rig.readers:
        spin_until(lambda reader=reader: any(isinstance(event, EndOfData) for event in drained(reader)))  # type: ignore[misc]
        reader.view.acknowledge_all_data_processed()


def at_its_end(rig: Rig, task: StreamTask) -> Thread:
    """Run a task until only the final checkpoint is left to wait for."""
    thread = Thread(task.invoke)
    read_to_the_end_of_data(rig)
    spin_until(lambda: task.waiting_for == "the final checkpoint")
    return thread


def drained(reader: SubpartitionReader) -> list[Event]:
    """Return all events so far; barriers stop no channel here."""
    while True:
        num_before = len(reader.events)
        reader.read()
        if not any(isinstance(event, CheckpointBarrier) for event in reader.events[num_before:]):
            return reader.events
        reader.view.resume_consumption()


def summary(events: list[Event]) -> list[object]:
    return [event.checkpoint_id if isinstance(event, CheckpointBarrier) else event for event in events]


def test_checkpoints_before_while_and_after_the_inputs_end(network: LocalNetwork, tasks: Tasks) -> None:
    """``testTriggeringCheckpointWithFinishedChannels``: each partition got three barriers and one end of data, and no
    end of partition.
    """
    rig = Rig(network, num_outputs=2)
    producers = [network.partition() for _ in range(3)]
    task = tasks.restored(rig.reading(producers))

    trigger(task, 2)
    step_until_idle(task)
    for checkpoint_id, ended in ((4, producers[:1]), (6, producers[1:])):
        end(*ended)
        step_until_idle(task)
        trigger(task, checkpoint_id)
        step_until_idle(task)

    for reader in rig.readers:
        assert reader.view.num_queued_buffers == 4 + 1, "besides the last watermark"
        assert summary(drained(reader)) == [2, 4, EndOfData(StopMode.DRAIN), 6]
    assert [rig.store.state_of(each, VERTEX, 0).is_finished for each in (2, 4, 6)] == [False, False, True]


def test_a_task_ends_only_when_a_checkpoint_of_its_end_is_complete(network: LocalNetwork) -> None:
    """``testWaitingForFinalCheckpoint``: one that was taken before the end does not count, one that is only
    acknowledged neither.
    """
    rig = Rig(network)
    task = rig.source(source(["a"]))
    thread = at_its_end(rig, task)

    complete(task, 1)
    trigger(task, 2)
    spin_until(lambda: rig.store.num_acknowledged(2) == 1)
    spin_until(lambda: task.waiting_for == "the final checkpoint")
    assert not any(isinstance(event, EndOfPartition) for event in drained(rig.readers[0]))
    complete(task, 2)

    thread.result()
    assert summary(drained(rig.readers[0])) == [EndOfData(StopMode.DRAIN), 2, EndOfPartition()]
    assert rig.store.state_of(2, VERTEX, 0).is_finished


def test_a_task_does_not_wait_where_nobody_takes_checkpoints_of_ended_tasks(network: LocalNetwork) -> None:
    """``testNotWaitingForAllRecordsProcessedIfCheckpointNotEnabled``, and the option is off."""
    rig = Rig(network, are_taken_after_finish=False)
    thread = Thread(rig.source(source(["a"])).invoke)

    read_to_the_end_of_data(rig)

    thread.result()
    assert drained(rig.readers[0])[-1] == EndOfPartition()


def test_a_task_that_waits_can_be_cancelled(network: LocalNetwork) -> None:
    """The checkpoint for which the task waits may never be complete."""
    rig = Rig(network)
    task = rig.source(source(["a"]))
    thread = at_its_end(rig, task)

    task.cancel()

    with pytest.raises(BaseException, match="was cancelled"):
        thread.result()


def test_a_savepoint_that_stops_the_job_while_the_task_waits(network: LocalNetwork) -> None:
    """``testWaitingForPendingCheckpointsOnFinished`` and stop-with-savepoint: from now on only the savepoint lets it
    go.
    """
    rig = Rig(network)
    task = rig.source(source(["a"]))
    thread = at_its_end(rig, task)

    trigger(task, 3)
    trigger(task, 4, TERMINATE)
    spin_until(lambda: rig.store.num_acknowledged(4) == 1)
    complete(task, 3)
    spin_until(lambda: task.waiting_for == "the final checkpoint" and not task.mailbox.has_mail)
    complete(task, 4)

    thread.result()
    assert summary(drained(rig.readers[0])) == [EndOfData(StopMode.DRAIN), 3, 4, EndOfPartition()]


@pytest.mark.parametrize(
    ("options", "mode", "finishes"),
    [(SUSPEND, StopMode.NO_DRAIN, 0), (TERMINATE, StopMode.DRAIN, 1)],
    ids=["suspend", "terminate"],
)
def test_a_source_stops_before_the_savepoint_that_stops_it(
    network: LocalNetwork, options: CheckpointOptions, mode: StopMode, finishes: int
) -> None:
    """``testStopWithSavepointNoDrain`` and ``...WithDrain``: end of data, then the barrier; also where final
    checkpoints are off.
    """
    rig = Rig(network, are_taken_after_finish=False)
    task = rig.source(SourceOperator(Idle()))
    thread = Thread(task.invoke)
    spin_until(lambda: task.state is ExecutionState.RUNNING)

    trigger(task, 7, options)
    read_to_the_end_of_data(rig)
    spin_until(lambda: task.waiting_for == "the final checkpoint")
    complete(task, 7)

    thread.result()
    assert summary(drained(rig.readers[0])) == [EndOfData(mode), 7, EndOfPartition()]
    assert rig.operator.calls.count("finish") == finishes
    assert rig.store.state_of(7, VERTEX, 0).is_finished == bool(finishes)


def test_a_savepoint_that_comes_to_nothing_fails_the_task_that_stopped_for_it(network: LocalNetwork) -> None:
    """The data has ended: it cannot go on as if nothing had happened."""
    rig = Rig(network)
    task = rig.source(SourceOperator(Idle()))
    thread = Thread(task.invoke)
    spin_until(lambda: task.state is ExecutionState.RUNNING)
    trigger(task, 5, SUSPEND)
    read_to_the_end_of_data(rig)
    spin_until(lambda: task.waiting_for == "the final checkpoint")
    assert task.checkpoints is not None

    task.checkpoints.notify_checkpoint_aborted_async(5)

    with pytest.raises(CheckpointError, match="cannot stop with this savepoint"):
        thread.result()

"""A subtask whose operators had finished: it emits its end, takes part in checkpoints, and runs none of them.

Source: Flink ``StreamTaskFinalCheckpointsTest.testOperatorSkipLifeCycleIfFinishedOnRestore`` and its neighbours.
"""

from typing import Any

import pytest

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.stream_operator import StreamOperator
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.errors import StateRestoreError
from flowlet.operators.source_operator import SourceOperator
from flowlet.records import MAX_WATERMARK, Chunk, Watermark
from flowlet.task.source_stream_task import create_stream_task
from flowlet.task.stream_task import StreamTask
from flowlet.task.task_environment import OutputEdge
from flowlet.tm.task_deployment import finished_chain
from netstack.partition.result_partition import ResultPartition
from netstack.wire.events import EndOfData, EndOfPartition, StopMode
from tests.flowlet.checkpoint.task.in_memory_store import InMemoryCheckpointStore
from tests.flowlet.task.checkpointed_tasks import VERTEX, checkpointing, complete, trigger
from tests.flowlet.task.local_network import LocalNetwork, Recorder, Thread, edge
from tests.flowlet.task.local_tasks import Noting, Tasks, chain, send, source, step_until_idle
from tests.waiting import spin_until


class Rig:
    def __init__(self, network: LocalNetwork) -> None:
        self.network = network
        self.store = InMemoryCheckpointStore()
        self.partition = network.partition()
        self.reader = network.reader(self.partition)

    def task(
        self,
        chained: list[ChainedOperator],
        *,
        gates: list[list[ResultPartition]],
        outputs: list[OutputEdge] | None = None,
    ) -> StreamTask:
        made = [self.network.gate(*producers) for producers in gates]
        last = len(chained) - 1
        environment = self.network.environment(
            "task", gates=made, outputs=outputs or [edge(self.partition, source=last)]
        )
        environment.gate_inputs = list(range(1, len(made) + 1))
        environment.checkpointing = checkpointing(self.store)
        return create_stream_task(environment, finished_chain(chained))

    def end_after_checkpoint(self, task: StreamTask, thread: Thread) -> list[Any]:
        """Read the records of the task, and complete a checkpoint of its end; return all records."""
        found: list[Any] = []

        def has_end_of_data() -> bool:
            found.extend(self.reader.read())
            return any(isinstance(event, EndOfData) for event in self.reader.events)

        spin_until(has_end_of_data)
        self.reader.view.acknowledge_all_data_processed()
        spin_until(lambda: task.waiting_for == "the final checkpoint")
        trigger(task, 8)
        spin_until(lambda: self.store.num_acknowledged(8) == 1)
        self.reader.read()
        self.reader.view.resume_consumption()  # it stops behind the barrier
        complete(task, 8)
        thread.result()
        self.reader.read()
        state = self.store.state_of(8, VERTEX, 0)
        assert (state.is_finished, dict(state.operators)) == (True, {})
        return found


@pytest.fixture
def rig(network: LocalNetwork) -> Rig:
    return Rig(network)


def end(producer: ResultPartition) -> None:
    producer.notify_end_of_data(StopMode.DRAIN)
    producer.finish()


@pytest.mark.parametrize("strategy", [None, WatermarkStrategy.for_monotonous_timestamps()])
def test_a_source_that_had_finished_reads_nothing(rig: Rig, strategy: WatermarkStrategy | None) -> None:
    recorder, head = Recorder(), SourceOperator(source(["a"]).source, strategy=strategy)
    task = rig.task(chain(head, recorder), gates=[])

    emitted = rig.end_after_checkpoint(task, Thread(task.invoke))

    assert [each for each in emitted if not isinstance(each, EndOfData)] == [MAX_WATERMARK]
    assert [event for event in rig.reader.events if isinstance(event, EndOfData | EndOfPartition)] == [
        EndOfData(StopMode.DRAIN),
        EndOfPartition(),
    ]
    assert recorder.calls == []


@pytest.mark.parametrize("num_inputs", [1, 2])
def test_a_task_whose_inputs_had_finished_waits_for_them_and_passes_on_the_end(
    network: LocalNetwork, rig: Rig, num_inputs: int
) -> None:
    producers = [network.partition() for _ in range(num_inputs)]
    recorder, noting = Recorder(), Noting()
    operators = chain(recorder, Recorder("second")) if num_inputs == 1 else chain(noting)
    task = rig.task(operators, gates=[[producer] for producer in producers])
    thread = Thread(task.invoke)
    for producer in producers:
        send(producer, MAX_WATERMARK)
        end(producer)

    emitted = rig.end_after_checkpoint(task, thread)

    assert [each for each in emitted if isinstance(each, Watermark | Chunk)] == [MAX_WATERMARK]
    assert (recorder.calls, noting.seen) == ([], [])


@pytest.mark.parametrize("num_inputs", [1, 2])
def test_a_record_for_operators_that_had_finished_fails_the_task(
    network: LocalNetwork, tasks: Tasks, rig: Rig, num_inputs: int
) -> None:
    """The record would be lost in silence."""
    producers = [network.partition() for _ in range(num_inputs)]
    operator: StreamOperator = Recorder("counting") if num_inputs == 1 else Noting()
    task = tasks.restored(rig.task(chain(operator), gates=[[producer] for producer in producers]))
    send(producers[-1], Chunk(["too late"]))

    with pytest.raises(
        StateRestoreError, match="had finished when its checkpoint was taken, but a producer has sent it 1 more"
    ):
        step_until_idle(task)
    task.cancel()


def test_names_ids_and_edges_stay(rig: Rig) -> None:
    operator = Recorder("main")
    operator.operator_id = b"i" * 16
    before = [
        ChainedOperator(source(["a"])),
        ChainedOperator(operator, 0, "late", len),
        ChainedOperator(Recorder("third"), 0),
    ]

    after = finished_chain(before)

    assert [(item.parent, item.tag, item.operator.name) for item in after] == [
        (item.parent, item.tag, item.operator.name) for item in before
    ]
    assert after[1].operator.operator_id == b"i" * 16

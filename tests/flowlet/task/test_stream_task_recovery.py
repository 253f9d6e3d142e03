"""A task processes the data in flight of its checkpoint before it reads anything, and runs only then."""

from collections.abc import Sequence

import pytest

from flowlet.chain import record_slices
from flowlet.chain.stream_operator import StreamOperator
from flowlet.checkpoint.task.snapshots import RecoveredStream
from flowlet.errors import FlowletError, TaskCancelled
from flowlet.messages.execution_state import ExecutionState
from flowlet.records import Chunk, StreamElement, Watermark
from flowlet.task.source_stream_task import create_stream_task
from flowlet.task.stream_task import StreamTask
from flowlet.task.task_environment import OutputEdge
from netstack.partition.result_partition import ResultPartition
from tests.flowlet.checkpoint.task.in_memory_store import InMemoryCheckpointStore
from tests.flowlet.task.checkpointed_tasks import checkpointing
from tests.flowlet.task.local_network import LocalNetwork, Recorder, edge
from tests.flowlet.task.local_tasks import Noting, Tasks, chain, send, serialized, source, step_until_idle


def stream(gate: int, *elements: StreamElement) -> RecoveredStream:
    return RecoveredStream(gate, 0, tuple(map(serialized, elements)))


def recovering(
    network: LocalNetwork,
    head: StreamOperator,
    producers: list[ResultPartition],
    *streams: RecoveredStream,
    outputs: Sequence[OutputEdge] = (),
) -> StreamTask:
    """Return a task with one gate per producer, each for an input of its own if the head has several."""
    environment = network.environment("counter", gates=[network.gate(each) for each in producers], outputs=outputs)
    if isinstance(head, Noting):
        environment.gate_inputs = [1, 2]
    environment.checkpointing = checkpointing(InMemoryCheckpointStore(), in_flight=streams)
    return create_stream_task(environment, chain(head))


def test_it_runs_when_all_data_in_flight_is_processed(network: LocalNetwork, tasks: Tasks) -> None:
    """Eight pieces are processed at a time, so that a cancellation or a timer need not wait for all; new data of
    producers waits.
    """
    head, producer = Recorder(), network.partition()
    task = recovering(network, head, [producer], stream(0, *[Chunk([number]) for number in range(10)], Watermark(7)))
    told: list[ExecutionState] = []
    task.on_running = lambda: told.append(task.state)
    tasks.restored(task)
    send(producer, Chunk(["new"]))
    assert task.environment.checkpointing is not None
    assert task.environment.checkpointing.in_flight == (), "it is not kept beside the one that is processed"

    task.mailbox_processor.run_mailbox_step()

    assert head.values == list(range(8))
    assert (task.state, told) == (ExecutionState.INITIALIZING, [])
    task.mailbox_processor.run_mailbox_step()
    assert head.values == list(range(10))
    assert (task.state, told) == (ExecutionState.RUNNING, [ExecutionState.RUNNING])
    step_until_idle(task)
    assert head.values == [*range(10), "new"]
    assert task.metrics().current_input_watermark == 7


def test_each_input_gets_its_own(network: LocalNetwork, tasks: Tasks) -> None:
    head = Noting()
    producers = [network.partition(), network.partition()]
    task = tasks.restored(recovering(network, head, producers, stream(0, Chunk(["a"])), stream(1, Chunk(["b"]))))

    step_until_idle(task)

    assert head.seen == [(1, "a"), (2, "b")]


def test_a_cancelled_one_does_not_go_on(network: LocalNetwork, tasks: Tasks) -> None:
    head = Recorder()
    task = tasks.restored(
        recovering(network, head, [network.partition()], stream(0, *[Chunk([number]) for number in range(20)]))
    )
    task.mailbox_processor.run_mailbox_step()

    task.cancel()

    with pytest.raises(TaskCancelled):
        task.mailbox_processor.run_mailbox_step()
    assert head.values == list(range(8))


def test_a_task_without_room_for_output_waits(network: LocalNetwork, tasks: Tasks) -> None:
    head, partition = Recorder(), network.partition(max_buffers=2)
    in_flight = stream(0, *[Chunk(["x" * 600])] * 30)
    reader = network.reader(partition)
    task = tasks.restored(recovering(network, head, [network.partition()], in_flight, outputs=[edge(partition)]))

    step_until_idle(task)

    assert len(head.values) < 30
    assert "a free buffer" in str(task.waiting_for)
    while task.state is ExecutionState.INITIALIZING:
        reader.read()
        step_until_idle(task)
    assert len(head.values) == 30


def test_a_task_without_outputs_goes_on_after_a_slow_record(
    network: LocalNetwork, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a slow record a task looks at its outputs before the next one; without outputs nothing ends that."""
    monkeypatch.setattr(record_slices, "SLOW_NS", 0)
    head = Recorder()
    task = recovering(network, head, [network.partition()], stream(0, *[Chunk([number]) for number in range(4)]))
    tasks.restored(task)

    for _ in range(10):
        task.mailbox_processor.run_mailbox_step()

    assert (head.values, task.state) == (list(range(4)), ExecutionState.RUNNING)


def test_a_task_without_inputs_has_none(network: LocalNetwork, tasks: Tasks) -> None:
    with pytest.raises(FlowletError, match="a channel of gate 0 has data in flight, but the task has no inputs"):
        tasks.restored(recovering(network, source(["a"]), [], stream(0, Chunk([1]))))

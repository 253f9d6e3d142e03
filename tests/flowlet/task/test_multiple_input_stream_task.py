"""Source: Flink ``TwoInputStreamTaskTest``, ``MultipleInputStreamTaskTest``."""

from typing import Any

import pytest

from flowlet.records import MAX_WATERMARK, Chunk, CompletionMark, LatencyMarker, Watermark
from flowlet.task.one_input_stream_task import GateFedStreamTask
from flowlet.task.source_stream_task import create_stream_task
from flowlet.task.stream_task import StreamTask
from netstack.partition.result_partition import ResultPartition
from netstack.wire.events import EndOfData, StopMode
from tests.flowlet.task.local_network import SEGMENT_BYTES, LocalNetwork, edge
from tests.flowlet.task.local_tasks import Noting, Tasks, chain, run, send, source, step_until_idle


def fed_task(
    network: LocalNetwork, operator: Noting, gate_inputs: list[int], *, outputs: Any = ()
) -> tuple[StreamTask, list[ResultPartition]]:
    """Return a task with one gate of one channel per entry."""
    producers = [network.partition(owner=f"producer {number}") for number in range(len(gate_inputs))]
    environment = network.environment("joint", gates=[network.gate(each) for each in producers], outputs=outputs)
    environment.gate_inputs = gate_inputs
    return create_stream_task(environment, chain(operator)), producers


def test_each_gate_feeds_its_input_and_ends_it(network: LocalNetwork, tasks: Tasks) -> None:
    """Two gates of the first input are a union: it ends once, with the second of them."""
    operator = Noting()
    task, producers = fed_task(network, operator, [1, 2, 1])
    tasks.restored(task)
    send(producers[0], Chunk(["a"]))
    send(producers[1], Chunk(["b"]), LatencyMarker(1, bytes(16), 0))
    send(producers[2], Chunk(["c"]))
    step_until_idle(task)
    assert sorted(operator.seen) == [(1, "a"), (1, "c"), (2, "b")]
    operator.seen.clear()

    for producer in producers:
        producer.notify_end_of_data(StopMode.DRAIN)
        step_until_idle(task)

    assert operator.seen == ["end 2", MAX_WATERMARK, "end 1", "finish"]


def test_watermarks_of_the_inputs_become_one(network: LocalNetwork, tasks: Tasks) -> None:
    operator = Noting()
    task, producers = fed_task(network, operator, [1, 2])
    tasks.restored(task)

    for number, timestamp in ((0, 5), (1, 3), (1, 9)):
        send(producers[number], Watermark(timestamp))
        step_until_idle(task)

    assert operator.seen == [Watermark(3), Watermark(5)]
    assert task.metrics().current_input_watermark == 5


def test_without_draining_no_input_is_ended(network: LocalNetwork, tasks: Tasks) -> None:
    """The mode of the input that stopped first is passed on, whichever it is."""
    operator, downstream = Noting(), network.partition()
    reader = network.reader(downstream)
    task, producers = fed_task(network, operator, [1, 2], outputs=[edge(downstream)])
    tasks.restored(task)

    producers[0].notify_end_of_data(StopMode.NO_DRAIN)
    step_until_idle(task)
    producers[1].notify_end_of_data(StopMode.DRAIN)
    step_until_idle(task)
    reader.read()

    assert "finish" not in operator.seen
    assert reader.events == [EndOfData(StopMode.NO_DRAIN)]


def test_a_busy_input_does_not_starve_the_other(network: LocalNetwork, tasks: Tasks) -> None:
    operator = Noting()
    task, producers = fed_task(network, operator, [1, 2])
    tasks.restored(task)
    for _ in range(12):
        send(producers[0], Chunk(["x" * (SEGMENT_BYTES * 3 // 4)]))  # one buffer each
    send(producers[1], Chunk(["other"]))

    step_until_idle(task)

    assert len(operator.seen) == 13
    assert operator.seen[-1] != (2, "other")


def test_two_tasks_feed_a_third_to_the_end(network: LocalNetwork, tasks: Tasks) -> None:
    operator = Noting(3)
    task, producers = fed_task(network, operator, [1, 2, 3])
    sources = [
        tasks.source(source([number] * 5), outputs=[edge(producer)]) for number, producer in enumerate(producers)
    ]

    run(*sources, task)

    assert sorted(item for item in operator.seen if isinstance(item, tuple)) == [
        (number + 1, number) for number in range(3) for _ in range(5)
    ]
    assert operator.seen[-1] == "finish"
    assert isinstance(task, GateFedStreamTask)


def test_an_input_without_a_gate_is_refused(network: LocalNetwork) -> None:
    with pytest.raises(ValueError, match="has 3 inputs, but the gates are for"):
        fed_task(network, Noting(3), [1, 2])


def test_a_task_takes_63_inputs_and_not_one_more() -> None:
    """MultipleInputSelectionHandlerTest: rejected when the task is made, before anything runs."""
    with LocalNetwork(num_segments=256) as network:

        def make(num_inputs: int) -> GateFedStreamTask:
            gates = [network.gate(network.partition(max_buffers=2)) for _ in range(num_inputs)]
            environment = network.environment("many", gates=gates)
            environment.gate_inputs = list(range(1, num_inputs + 1))
            return GateFedStreamTask(environment, chain(Noting(num_inputs)))

        make(63)
        with pytest.raises(ValueError, match="1 to 63 inputs, got 64"):
            make(64)


def test_a_mark_passes_when_it_has_come_on_all_channels_of_all_inputs(network: LocalNetwork, tasks: Tasks) -> None:
    """A channel that ends holds it back no longer."""
    operator = Noting()
    task, producers = fed_task(network, operator, [1, 2, 1])
    tasks.restored(task)
    for number in (0, 1):
        send(producers[number], Chunk([number]), CompletionMark(1))
    step_until_idle(task)
    assert network.marks == []

    producers[2].notify_end_of_data(StopMode.DRAIN)
    step_until_idle(task)
    assert network.marks == [1]

    send(producers[0], CompletionMark(2))
    send(producers[1], CompletionMark(2))
    step_until_idle(task)
    assert network.marks == [1, 2]

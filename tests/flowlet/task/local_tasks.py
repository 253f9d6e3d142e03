"""Makes, runs and single-steps tasks over a local network."""

import threading
from collections.abc import Callable
from typing import Any

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.stream_operator import MultipleInputStreamOperator, StreamOperator
from flowlet.messages.execution_state import ExecutionState
from flowlet.operators.source_operator import SourceOperator
from flowlet.records import Chunk, StreamElement, Watermark
from flowlet.serde.element_serializer import StreamElementSerializer
from flowlet.task.source_stream_task import create_stream_task
from flowlet.task.stream_task import StreamTask
from flowlet.task.task_environment import OutputEdge
from netstack.gate.single_input_gate import SingleInputGate
from netstack.partition.result_partition import ResultPartition
from tests.flowlet.task.local_network import LocalNetwork, ScriptedSource, Thread
from tests.waiting import PATIENCE_S


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def chain(*operators: StreamOperator) -> list[ChainedOperator]:
    return [ChainedOperator(operator, index - 1) for index, operator in enumerate(operators)]


def source(*script: object) -> SourceOperator:
    return SourceOperator(ScriptedSource(*script))  # type: ignore[arg-type]  # checked by the source itself


class Noting(MultipleInputStreamOperator):
    """Notes its elements, and their inputs."""

    def __init__(self, num_inputs: int = 2) -> None:
        self.name = "noting"
        self.num_inputs = num_inputs
        self.seen: list[Any] = []

    def process_input_chunk(self, input_id: int, chunk: Chunk) -> None:
        self.seen += [(input_id, value) for value in chunk.values]
        self.output.collect(chunk)

    def process_watermark(self, watermark: Watermark) -> None:
        self.seen.append(watermark)
        super().process_watermark(watermark)

    def end_input(self, input_id: int) -> None:
        self.seen.append(f"end {input_id}")

    def finish(self) -> None:
        self.seen.append("finish")


class Tasks:
    """Makes tasks over one local network."""

    def __init__(self, network: LocalNetwork) -> None:
        self.network = network
        self.clock = Clock()

    def task(
        self,
        name: str,
        *operators: StreamOperator,
        gates: list[SingleInputGate] | None = None,
        outputs: list[OutputEdge],
    ) -> StreamTask:
        environment = self.network.environment(name, gates=gates or [], outputs=outputs)
        return create_stream_task(environment, chain(*operators))

    def source(self, *operators: StreamOperator, outputs: list[OutputEdge] | None = None) -> StreamTask:
        return self.task("source", *operators, outputs=outputs or [])

    def sink(self, *operators: StreamOperator, producers: list[ResultPartition]) -> StreamTask:
        return self.task("sink", *operators, gates=[self.network.gate(*producers)], outputs=[])

    def restored(self, task: StreamTask) -> StreamTask:
        """Ready to be single-stepped on the test's thread."""
        assert task._lifecycle.try_advance(ExecutionState.INITIALIZING)
        task._restore()
        return task

    def finish(self, task: StreamTask) -> None:
        """Run the steps that follow the task's loop."""
        task._after_loop()


def run(*tasks: StreamTask) -> None:
    """Each on a thread of its own, to the end."""
    threads = [Thread(task.invoke, task.name) for task in tasks]
    for thread in threads:
        thread.result()


def run_in_mail(task: StreamTask, work: Callable[[], object]) -> None:
    """Have the thread of a task do something, and wait until it has."""
    is_done = threading.Event()

    def run() -> None:
        work()
        is_done.set()

    task.mailbox_processor.executor().execute(run, "work")
    assert is_done.wait(PATIENCE_S)


def is_parked(task: StreamTask) -> bool:
    return "parked" in repr(task.mailbox)


def step_until_idle(task: StreamTask) -> None:
    while task.mailbox_processor.run_mailbox_step():
        pass


def serialized(element: StreamElement) -> bytes:
    return bytes(StreamElementSerializer().serialize(element))


def send(partition: ResultPartition, *elements: StreamElement) -> None:
    """Write the elements to the first subpartition, readable at once."""
    for element in elements:
        partition.emit_record(serialized(element), 0)
    partition.flush_all()

"""Makes, runs and single-steps tasks over a local network."""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.stream_operator import MultipleInputStreamOperator, StreamOperator
from flowlet.errors import TaskCancelled
from flowlet.mailbox.mailbox_processor import TaskTimings
from flowlet.messages.execution_state import ExecutionState
from flowlet.operators.source_operator import SourceOperator
from flowlet.records import Chunk, StreamElement, Watermark
from flowlet.serde.element_serializer import StreamElementSerializer
from flowlet.task.one_input_stream_task import GateFedStreamTask
from flowlet.task.source_stream_task import SourceStreamTask, create_stream_task
from flowlet.task.stream_task import StreamTask
from flowlet.task.task_environment import OutputEdge, TaskEnvironment
from netstack.gate.single_input_gate import SingleInputGate
from netstack.partition.result_partition import ResultPartition
from tests.flowlet.task.local_network import LocalNetwork, ScriptedSource, Thread
from tests.waiting import PATIENCE_S, spin_until

AnyTask = TypeVar("AnyTask", bound=StreamTask)


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def advance_ms(self, duration_ms: int) -> None:
        self.now_ns += duration_ms * 1_000_000


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

    def source(self, *operators: StreamOperator, outputs: list[OutputEdge] | None = None) -> SourceStreamTask:
        task = self.task("source", *operators, outputs=outputs or [])
        assert isinstance(task, SourceStreamTask)
        return task

    def sink(self, *operators: StreamOperator, producers: list[ResultPartition]) -> GateFedStreamTask:
        task = self.task("sink", *operators, gates=[self.network.gate(*producers)], outputs=[])
        assert isinstance(task, GateFedStreamTask)
        return task

    def timed(self, environment: TaskEnvironment, *operators: StreamOperator) -> StreamTask:
        """Return a task for which time passes only when the test moves ``clock``."""
        timings = TaskTimings(self.clock)
        if environment.gates:
            return GateFedStreamTask(environment, chain(*operators), timings=timings)
        return SourceStreamTask(environment, chain(*operators), timings=timings)

    def restored(self, task: AnyTask) -> AnyTask:
        """Ready to be single-stepped on the test's thread."""
        assert task._lifecycle.try_advance(ExecutionState.INITIALIZING)
        task._restore()
        return task

    def finish(self, task: StreamTask) -> None:
        """Run the steps that follow the task's loop."""
        task._after_loop()


def run(*tasks: StreamTask) -> list[Thread]:
    """Each on a thread of its own, to the end; return the threads."""
    threads = [Thread(task.invoke, task.name) for task in tasks]
    for thread in threads:
        thread.result()
    return threads


def parked(task: StreamTask) -> Thread:
    """Run a task on a thread of its own until it waits; return the thread."""
    thread = Thread(task.invoke)
    spin_until(lambda: is_parked(task))
    return thread


def cancel(task: StreamTask, thread: Thread) -> None:
    """Cancel a task that runs, and see it end so."""
    task.cancel()
    with pytest.raises(TaskCancelled):
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

"""Partitions and gates inside one process, without a loop and without sockets."""

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from flowlet.chain.stream_operator import StreamOperator
from flowlet.graph.partitioner import Forward, Partitioner
from flowlet.messages.control_messages import FromTask, MarkPassed
from flowlet.operators.source_reader import Source, SourceReader
from flowlet.records import Chunk, StreamElement, Watermark, WatermarkStatus
from flowlet.serde.element_serializer import ElementDeserializer
from flowlet.task.task_environment import OutputEdge, TaskEnvironment
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.gate.channels.local_input_channel import LocalInputChannel
from netstack.gate.single_input_gate import SingleInputGate
from netstack.ids import ResultPartitionID, execution_attempt_id, intermediate_partition_id
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_partition_manager import ResultPartitionManager
from netstack.wire.events import Event, deserialize_event
from tests.waiting import PATIENCE_S

SEGMENT_BYTES = 1024


class ManualTimer:
    """Timers that fire when the test says so."""

    def __init__(self) -> None:
        self.armed: list[Callable[[], None]] = []

    def schedule(self, delay_s: float, callback: Callable[[], None]) -> "ManualTimer":
        self.armed.append(callback)
        return self

    def cancel(self) -> None:
        self.armed.clear()

    def fire(self) -> None:
        self.armed.pop(0)()


class SubpartitionReader:
    """Reads all available data of one subpartition, on the test's thread."""

    def __init__(self, manager: ResultPartitionManager, partition: ResultPartition, subpartition: int) -> None:
        self.num_notifications = 0
        self.events: list[Event] = []
        self.raw = bytearray()
        self._deserializer = ElementDeserializer(name="test")
        self.view = manager.create_subpartition_view(partition.partition_id, subpartition, self)

    def notify_data_available(self) -> None:
        self.num_notifications += 1

    def notify_priority_event(self, sequence_number: int) -> None:
        self.num_notifications += 1

    def read(self) -> list[StreamElement]:
        elements: list[StreamElement] = []
        while (item := self.view.next_buffer()) is not None:
            try:
                if item.buffer.is_buffer:
                    self.raw += item.buffer.view
                    elements += self._deserializer.feed(item.buffer.view)
                else:
                    self.events.append(deserialize_event(item.buffer.view))
            finally:
                item.buffer.recycle()
        return elements

    def read_values(self) -> list[object]:
        return [value for element in self.read() if isinstance(element, Chunk) for value in element.values]


class LocalNetwork:
    """One pool and one manager; at the end everything must have been given back."""

    def __init__(self, num_segments: int = 64) -> None:
        self.pool = NetworkBufferPool(num_segments, SEGMENT_BYTES)
        self.manager = ResultPartitionManager()
        self.timer = ManualTimer()
        self.marks: list[int] = []  # that have passed tasks, in order
        self.partitions: list[ResultPartition] = []
        self.gates: list[SingleInputGate] = []

    def __enter__(self) -> "LocalNetwork":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for partition in self.partitions:
            partition.release()
            partition.close()
        for gate in self.gates:
            gate.close()
        if error is None:
            assert self.pool.num_available == self.pool.num_total, f"buffers left behind: {self.pool!r}"
            assert len(self.manager) == 0, "partitions left behind"
        self.manager.shutdown()
        self.pool.destroy()

    def partition(self, num_subpartitions: int = 1, max_buffers: int = 16, owner: str = "producer") -> ResultPartition:
        number = len(self.partitions)
        identifier = ResultPartitionID(
            intermediate_partition_id(b"d" * 16, number), execution_attempt_id(b"g" * 16, b"v" * 16, number, 0)
        )
        pool = self.pool.create_buffer_pool(owner=owner, num_required=num_subpartitions + 1, max_buffers=max_buffers)
        partition = ResultPartition(identifier, num_subpartitions, pool, owner)
        self.manager.register(partition)
        self.partitions.append(partition)
        return partition

    def gate(self, *sources: ResultPartition, subpartition: int = 0) -> SingleInputGate:
        gate = SingleInputGate("consumer")
        for index, source in enumerate(sources):
            gate.add_channel(LocalInputChannel(gate, index, source.partition_id, subpartition, self.manager))
        self.gates.append(gate)
        return gate

    def reader(self, partition: ResultPartition, subpartition: int = 0) -> SubpartitionReader:
        return SubpartitionReader(self.manager, partition, subpartition)

    def _sent(self, message: FromTask) -> None:
        if isinstance(message, MarkPassed):
            self.marks.append(message.number)

    def environment(
        self,
        name: str,
        *,
        gates: Sequence[SingleInputGate] = (),
        outputs: Sequence[OutputEdge] = (),
        subtask: int = 0,
        parallelism: int = 1,
    ) -> TaskEnvironment:
        return TaskEnvironment(
            job_id="1" * 32,
            job_name="test job",
            vertex_id="2" * 32,
            task_name=name,
            subtask=subtask,
            parallelism=parallelism,
            max_parallelism=128,
            attempt=execution_attempt_id(b"g" * 16, b"v" * 16, subtask, 3),
            gates=list(gates),
            outputs=list(outputs),
            schedule_timer=self.timer.schedule,
            send=self._sent,
        )


def edge(
    partition: ResultPartition, partitioner: Partitioner | None = None, *, source: int = 0, buffer_timeout_ms: int = 0
) -> OutputEdge:
    return OutputEdge(source, partition, Forward() if partitioner is None else partitioner, buffer_timeout_ms)


class ScriptedSource(Source):
    """Gives chunks, runs callables, raises exceptions, in the order of the script."""

    def __init__(self, *script: list[object] | Chunk | Callable[[], object] | BaseException) -> None:
        self.script = script

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        return _ScriptedReader(self.script)


class _ScriptedReader:
    def __init__(self, script: Sequence[list[object] | Chunk | Callable[[], object] | BaseException]) -> None:
        self._script = iter(script)

    def poll_chunk(self) -> Chunk | None:
        step = next(self._script, None)
        if isinstance(step, BaseException):
            raise step
        if callable(step):
            step()
            return Chunk([])
        return Chunk(list(step)) if isinstance(step, list) else step

    def close(self) -> None:
        pass


class Recorder(StreamOperator):
    """Passes everything on, and notes each element with its thread."""

    def __init__(self, name: str = "recorder", on_chunk: Callable[[Chunk], None] = lambda chunk: None) -> None:
        self.name = name
        self.values: list[Any] = []
        self.controls: list[Watermark | WatermarkStatus] = []
        self.calls: list[str] = []
        self.threads: set[int] = set()
        self.on_chunk = on_chunk
        self.on_open: Callable[[], None] = lambda: None
        self.on_close: Callable[[], None] = lambda: None

    def _note(self, call: str) -> None:
        self.calls.append(call)
        self.threads.add(threading.get_ident())

    def open(self) -> None:
        self._note("open")
        self.on_open()

    def process_chunk(self, chunk: Chunk) -> None:
        self._note("chunk")
        self.values += chunk.values
        self.on_chunk(chunk)
        self.output.collect(chunk)

    def process_watermark(self, watermark: Watermark) -> None:
        self._note("watermark")
        self.controls.append(watermark)
        self.output.emit_control(watermark)

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        self._note("status")
        self.controls.append(status)
        self.output.emit_control(status)

    def finish(self) -> None:
        self._note("finish")

    def close(self) -> None:
        self._note("close")
        self.on_close()


class Thread(threading.Thread):
    """Runs a call and keeps its error."""

    def __init__(self, call: Callable[[], object], name: str = "task") -> None:
        super().__init__(name=name)
        self._call = call
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 - raised by result()
            self.error = error

    def result(self) -> None:
        """Wait for the end; raise the error of the call."""
        self.join(PATIENCE_S)
        assert not self.is_alive(), f"{self.name} hangs"
        if self.error is not None:
            raise self.error

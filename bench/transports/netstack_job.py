"""The network stack as a job has it: records of 32 KiB are copied into buffers, and an ``InputProcessor`` polls,
decodes and recycles.

Side:  any; the main thread is the task thread.
"""

import threading
from collections.abc import Callable

from bench.transports.calls import counted
from bench.transports.common import BUFFER_BYTES, PayloadSource, Setting, Stop, Verifier
from bench.transports.netstack_side import open_gate, open_partition
from flowlet.chain.stream_operator import InputStatus
from flowlet.io.input_processor import InputProcessor
from flowlet.records import Chunk, ControlElement
from flowlet.serde.element_serializer import StreamElementSerializer
from flowlet.task.one_input_stream_task import MAX_BUFFERS_PER_ACTION
from netstack.wire.events import StopMode


class _CheckingHead:
    """The operator: looks at every record."""

    def __init__(self, verifier: Verifier) -> None:
        self._check = verifier.check

    def process_chunk(self, chunk: Chunk) -> None:
        """Check records of as many bytes as a buffer has."""
        for value in chunk.values:
            self._check(memoryview(value))

    def process_some(self, chunk: Chunk) -> int:
        """Take all records."""
        self.process_chunk(chunk)
        return len(chunk)

    def process_control(self, element: ControlElement) -> None:
        """Ignore the only control element: the last watermark, at the end."""


def produce(setting: Setting, source: PayloadSource, stop: Stop, listening: Callable[[int], None]) -> None:
    """Emit serialized records, channels in turns; the pool parks the thread when it is empty."""
    with open_partition(setting, listening) as (loop, partition), counted(setting, "producer", loop):
        payload = bytes(source.new_buffer())
        element = bytearray(StreamElementSerializer().serialize(Chunk([payload])))
        # The labels are put into the serialized record: serializing is not measured here.
        start = element.index(payload)
        view = memoryview(element)
        record = [view[start : start + BUFFER_BYTES]]
        while not stop.is_set:
            channel = source.next_channel()
            source.label_in_place(record, channel)
            partition.emit_record(view, channel)
        partition.notify_end_of_data(StopMode.DRAIN)
        partition.finish()


def consume(setting: Setting, port: int, verifier: Verifier) -> None:
    """Read to the end of every channel as the default action of a task does, parked while there is nothing."""
    with open_gate(setting, port) as (loop, gate), counted(setting, "consumer", loop):
        processor = InputProcessor([gate], _CheckingHead(verifier), "bench consumer")
        gate.request_partitions()
        signal = threading.Lock()
        signal.acquire()
        while (status := processor.process_input(MAX_BUFFERS_PER_ACTION, _never)) is not InputStatus.END_OF_INPUT:
            if status is InputStatus.NOTHING_AVAILABLE:
                gate.available_future().add_done_callback(signal.release)
                signal.acquire()
        processor.close()


def _never() -> bool:
    return False

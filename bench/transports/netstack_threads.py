"""The network stack as tasks use it: a producing task thread, the two loops, a consuming task thread.

Side:  any; the main thread is the task thread.
"""

from collections.abc import Callable

from bench.transports.calls import counted
from bench.transports.common import PayloadSource, Setting, Stop, Verifier
from bench.transports.netstack_side import open_gate, open_partition


def produce(setting: Setting, source: PayloadSource, stop: Stop, listening: Callable[[int], None]) -> None:
    """Emit whole buffers, channels in turns; the pool parks the thread when it is empty."""
    buffer, label_next = source.new_buffer(), source.label_next
    record = memoryview(buffer)
    with open_partition(setting, listening) as (loop, partition), counted(setting, "producer", loop):
        emit_record = partition.emit_record
        while not stop.is_set:
            emit_record(record, label_next(buffer))
        partition.finish()


def consume(setting: Setting, port: int, verifier: Verifier) -> None:
    """Read to the end of every channel, parked while there is nothing."""
    check = verifier.check
    with open_gate(setting, port) as (loop, gate), counted(setting, "consumer", loop):
        gate.request_partitions()
        get_next = gate.get_next
        while (found := get_next()) is not None:
            if found.buffer is not None:
                check(found.buffer.view)
                found.buffer.recycle()

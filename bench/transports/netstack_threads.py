"""The network stack as tasks use it: a producing task thread, the two loops, a consuming task thread.

Side:  any; the main thread is the task thread.
"""

from collections.abc import Callable

from bench.transports.calls import counted
from bench.transports.common import PayloadSource, Setting, Stop, Verifier
from bench.transports.netstack_side import new_emitter, open_gate, open_partition
from netstack.buffer.network_buffer import recycle_all

BUFFERS_PER_POLL = 16


def produce(setting: Setting, source: PayloadSource, stop: Stop, listening: Callable[[int], None]) -> None:
    """Emit whole buffers, channels in turns; the pool parks the thread when it is empty."""
    with open_partition(setting, listening) as (loop, partition), counted(setting, "producer", loop):
        emit = new_emitter(setting, partition, source).emit
        while not stop.is_set:
            emit()
        partition.finish()


def consume(setting: Setting, port: int, verifier: Verifier) -> None:
    """Read to the end of every channel, parked while there is nothing."""
    check = verifier.check
    with open_gate(setting, port) as (loop, gate), counted(setting, "consumer", loop):
        gate.request_partitions()
        get_many = gate.get_many
        while found := get_many(BUFFERS_PER_POLL):
            buffers = [item.buffer for item in found if item.buffer is not None]
            for buffer in buffers:
                check(buffer.view)
            recycle_all(buffers)

"""The network stack alone: producer and consumer are callbacks on their loops, no task threads.

Side:  any; everything but set-up and end runs on the loop thread.
"""

from collections.abc import Callable
from concurrent.futures import Future

from bench.transports.calls import counted
from bench.transports.common import PayloadSource, Setting, Stop, Verifier
from bench.transports.netstack_side import new_emitter, open_gate, open_partition
from netstack.buffer.network_buffer import recycle_all
from netstack.gate.single_input_gate import SingleInputGate
from netstack.loop.eventloop import EventLoopThread
from netstack.partition.result_partition import ResultPartition

BUFFERS_PER_PASS = 16


class _LoopProducer:
    """Emits while buffers are free, a few per pass of the loop."""

    def __init__(self, loop: EventLoopThread, partition: ResultPartition, emit: Callable[[], int], stop: Stop) -> None:
        self.done: Future[None] = Future()
        self._loop = loop
        self._partition = partition
        self._emit_turn = emit
        self._stop = stop

    def step(self) -> None:
        """Make one pass; errors end the run."""
        try:
            self._emit()
        except BaseException as error:  # noqa: BLE001 - the loop would only log it
            self.done.set_exception(error)

    def _emit(self) -> None:
        partition, emit_turn = self._partition, self._emit_turn
        num_emitted = 0
        while num_emitted < BUFFERS_PER_PASS:
            if self._stop.is_set:
                partition.finish()
                self.done.set_result(None)
                return
            if not partition.buffer_pool.is_available:
                partition.buffer_pool.available_future().add_done_callback(self._step_soon)
                return
            num_emitted += emit_turn()
        self._loop.loop.call_soon(self.step)

    def _step_soon(self) -> None:
        self._loop.execute_threadsafe(self.step)


class _LoopConsumer:
    """Polls whenever the gate says that there is something."""

    def __init__(self, loop: EventLoopThread, gate: SingleInputGate, verifier: Verifier) -> None:
        self.done: Future[None] = Future()
        self._loop = loop
        self._gate = gate
        self._verifier = verifier

    def step(self) -> None:
        """Poll until there is nothing; errors end the run."""
        try:
            self._gate.request_partitions()  # does nothing from the second time on
            self._poll()
        except BaseException as error:  # noqa: BLE001 - the loop would only log it
            self.done.set_exception(error)

    def _poll(self) -> None:
        poll_many, check = self._gate.poll_many, self._verifier.check
        while found := poll_many(BUFFERS_PER_PASS):
            buffers = [item.buffer for item in found if item.buffer is not None]
            for buffer in buffers:
                check(buffer.view)
            recycle_all(buffers)
            if not found[-1].more_available:
                break
        if self._gate.is_finished:
            self.done.set_result(None)
        else:
            self._gate.available_future().add_done_callback(self._step_soon)

    def _step_soon(self) -> None:
        if self._loop.is_current_thread():
            self.step()  # the end of a read: everything that it brought is in the gate
        else:
            self._loop.execute_threadsafe(self.step)


def produce(setting: Setting, source: PayloadSource, stop: Stop, listening: Callable[[int], None]) -> None:
    """Emit whole buffers, channels in turns."""
    with open_partition(setting, listening) as (loop, partition):
        producer = _LoopProducer(loop, partition, new_emitter(setting, partition, source).emit, stop)
        with counted(setting, "producer", loop):
            loop.execute_threadsafe(producer.step)
            producer.done.result()


def consume(setting: Setting, port: int, verifier: Verifier) -> None:
    """Read to the end of every channel."""
    with open_gate(setting, port) as (loop, gate):
        consumer = _LoopConsumer(loop, gate, verifier)
        with counted(setting, "consumer", loop):
            loop.execute_threadsafe(consumer.step)
            consumer.done.result()

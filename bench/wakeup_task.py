"""The tools of the wakeup bench: a task that notes when its default action runs, and a producer that lets it park in
between.

Side:  any.  ``python -m bench.wakeup_task NUM_RECORDS PAUSE_US`` is the producer as a process of its own: it prints its
       port, and writes once its standard input ends.
"""

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.stream_operator import StreamOperator
from flowlet.errors import TaskCancelled
from flowlet.graph.partitioner import Forward
from flowlet.io.create_record_writer import create_record_writer
from flowlet.io.record_writer import RecordWriterOptions
from flowlet.mailbox.mailbox_processor import MailboxProcessor
from flowlet.records import Chunk
from flowlet.task.one_input_stream_task import GateFedStreamTask
from flowlet.task.task_environment import TaskEnvironment
from flowlet.tm.latency.latency_policy import DEFAULT_SWITCH_INTERVAL_MS, apply_switch_interval
from flowlet.tm.process.process_model import GarbageCollectorTuning
from netstack import (
    ChannelSpec,
    ConnectionID,
    NetstackConfig,
    ResultPartition,
    ResultPartitionID,
    SecurityConfig,
    StandaloneNetwork,
    wait_consumed,
)
from netstack.ids import execution_attempt_id, intermediate_partition_id
from netstack.loop.eventloop import LoopTimer
from netstack.wire.events import StopMode

JOB: Final = b"bench wakeup...."
PARTITION: Final = ResultPartitionID(
    intermediate_partition_id(JOB, 0), execution_attempt_id(JOB, b"the producer....", 0, 0)
)
TIMEOUT_S: Final = 30.0
Sample = tuple[int, int, int, int]  # ns: sent, at the gate, default action; and how often the task had parked


@contextmanager
def task_manager_settings() -> Iterator[None]:
    """Set switch interval and garbage collector as in a TaskManager."""
    interval_s, collector = sys.getswitchinterval(), GarbageCollectorTuning()
    apply_switch_interval(DEFAULT_SWITCH_INTERVAL_MS)
    collector.freeze()
    try:
        yield
    finally:
        collector.thaw()
        sys.setswitchinterval(interval_s)


def network(name: str) -> StandaloneNetwork:
    """Return the network stack of one process."""
    return StandaloneNetwork(NetstackConfig(security=SecurityConfig.hmac(bytes(32))), name)


class _NoteArrivals(StreamOperator):
    """Gives each record of the stream to the task that runs it."""

    def __init__(self) -> None:
        self.name = "note arrivals"
        self.task: ProbedTask | None = None

    def process_chunk(self, chunk: Chunk) -> None:
        """Note records: (number, monotonic ns when it was sent)."""
        assert self.task is not None
        for number, sent_ns in chunk.values:
            self.task.note(number, sent_ns)


class ProbedTask(GateFedStreamTask):
    """A stream task that notes when its default action runs, and what made it run.

    Threading: ``start``, ``join``, ``stop`` and their results belong to the thread that made it.
    """

    def __init__(self, network: StandaloneNetwork, connection: ConnectionID | None, subpartition: int = 0) -> None:
        operator = _NoteArrivals()
        gate = network.environment.create_input_gate("wakeup", [ChannelSpec(PARTITION, subpartition, connection)])
        environment = TaskEnvironment(
            job_id="1" * 32,
            job_name="wakeup",
            vertex_id="2" * 32,
            task_name="woken",
            subtask=subpartition,
            parallelism=subpartition + 1,
            max_parallelism=128,
            attempt=execution_attempt_id(JOB, b"the consumer....", subpartition, 0),
            gates=[gate],
            outputs=[],
            schedule_timer=lambda delay_s, callback: LoopTimer(network.event_loop, delay_s, callback),
        )
        super().__init__(environment, [ChainedOperator(operator, -1)])
        operator.task = self
        self.samples: list[Sample] = []  # Written by the task thread.
        self.num_actions = 0  # Written by the task thread.
        self.thread = threading.Thread(target=self._run, name=self.name)
        self._channel = gate.channels[0]
        self._at_gate_ns = self._action_ns = 0
        self._error: BaseException | None = None  # Written by the task thread.

    def _run_default_action(self, controller: MailboxProcessor) -> None:
        # Read now: the next record would overwrite it once this one is polled.
        self._at_gate_ns = self._channel.last_activity_ns
        self._action_ns = time.monotonic_ns()
        self.num_actions += 1
        super()._run_default_action(controller)

    def note(self, number: int, sent_ns: int) -> None:
        """Note one record; task thread."""
        assert number == len(self.samples), f"record {number} arrived as number {len(self.samples)}"
        self.samples.append((sent_ns, self._at_gate_ns, self._action_ns, self.mailbox.statistics().num_parks))

    def _run(self) -> None:
        try:
            self.invoke()
        except BaseException as error:  # noqa: BLE001 - raised by join
            self._error = error

    def start(self) -> None:
        """Run it on its thread, and wait until it has nothing to do.

        Raises:
            TimeoutError: it does not come to rest.
        """
        self.thread.start()
        deadline = time.monotonic() + TIMEOUT_S
        while not self.mailbox.statistics().num_parks:
            if time.monotonic() > deadline or not self.thread.is_alive():
                raise TimeoutError(f"not suspended within {TIMEOUT_S} s: {self!r}")
            time.sleep(0.001)

    def join(self) -> None:
        """Wait for its end.

        Raises:
            TimeoutError: it does not end.
            BaseException: what the task ended with.
        """
        self.thread.join(TIMEOUT_S)
        if self.thread.is_alive():
            raise TimeoutError(f"runs after {TIMEOUT_S} s: {self!r}")
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Cancel it, unless it has ended, and wait for its end; errors of a task that failed are not raised again."""
        self.cancel()
        if self.thread.ident is not None:
            self.thread.join(TIMEOUT_S)

    @property
    def was_cancelled(self) -> bool:
        """Whether it ended because of ``stop``."""
        return isinstance(self._error, TaskCancelled)


def produce(partition: ResultPartition, num_records: int, pause_s: float) -> None:
    """Send records one by one, each flushed at once and followed by a pause; then end the partition.

    Raises:
        TimeoutError: the consumer does not read to the end.
    """
    writer = create_record_writer(partition, Forward(), RecordWriterOptions(0))
    for number in range(num_records):
        time.sleep(pause_s)
        writer.collect(Chunk([(number, time.monotonic_ns())]))
        writer.flush_pending()
    partition.notify_end_of_data(StopMode.DRAIN)
    is_processed = threading.Event()
    partition.all_data_processed.add_done_callback(is_processed.set)
    if not is_processed.wait(TIMEOUT_S):
        raise TimeoutError(f"not processed within {TIMEOUT_S} s: {partition!r}")
    partition.finish()
    partition.close()
    if not wait_consumed(partition, TIMEOUT_S):
        raise TimeoutError(f"not consumed within {TIMEOUT_S} s: {partition!r}")


def main(arguments: Sequence[str]) -> None:
    """Run the producer as a process of its own."""
    num_records, pause_us = map(int, arguments)
    with task_manager_settings(), network("producer") as stack:
        address = stack.serve()
        partition = stack.create_partition(PARTITION)
        print(f"listening on port {address.port}", flush=True)
        sys.stdin.read()
        try:
            produce(partition, num_records, pause_us / 1e6)
        finally:
            partition.close()


if __name__ == "__main__":
    main(sys.argv[1:])

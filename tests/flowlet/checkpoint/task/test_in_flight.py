"""Whole tasks over real channels, local ones and such over TCP: what an unaligned checkpoint keeps is exactly what was
under way.

For each channel: what the operator had processed, then the data of the channel in the task's snapshot, then the data of
the subpartition in the producer's snapshot are together what the producer sent before its barrier; likewise for the
output of the task.

Source: Flink ``UnalignedCheckpointITCase``, ``RemoteInputChannelTest`` and ``LocalInputChannelTest`` (in-flight data),
``StreamTaskNetworkInputTest`` (``testSnapshotWithPartialRecord``); FLINK-20645.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

import pytest

from flowlet.checkpoint.task.channel_state_writer import InMemoryChannelStateWriter
from flowlet.checkpoint.task.single_checkpoint_barrier_handler import BarrierMode
from flowlet.checkpoint.task.snapshots import ChannelStateSnapshot, OperatorState, SubtaskState
from flowlet.columns import CodedColumn, Columns, Shape
from flowlet.graph.partitioner import Global
from flowlet.io import input_processor
from flowlet.io.input_processor import InputProcessor
from flowlet.io.key_dictionary import ChannelCodes, KeyDictionary
from flowlet.keys.key_columns import ChannelTable
from flowlet.records import Chunk
from flowlet.serde.element_serializer import ElementDeserializer, StreamElementSerializer
from flowlet.task.one_input_stream_task import GateFedStreamTask
from flowlet.task.source_stream_task import create_stream_task
from flowlet.task.stream_task import StreamTask
from flowlet.task.task_environment import Checkpointing
from netstack.environment import ChannelSpec
from netstack.gate.channels.local_input_channel import LocalInputChannel
from netstack.gate.single_input_gate import SingleInputGate
from netstack.ids import ResultPartitionID, execution_attempt_id, intermediate_partition_id
from netstack.partition.result_partition import ResultPartition
from netstack.wire.events import CheckpointBarrier, deserialize_event
from tests.flowlet.checkpoint.task.barriers import timeoutable, unaligned
from tests.flowlet.checkpoint.task.in_memory_store import InMemoryCheckpointStore
from tests.flowlet.task.local_network import LocalNetwork, Recorder, edge
from tests.flowlet.task.local_tasks import Tasks, chain
from tests.netstack.gate.manual_timers import ManualTimers
from tests.netstack.test_environment import Node, small_config, start_node
from tests.waiting import PATIENCE_S, spin_until

NUM_CHANNELS = 3
NUM_RECORDS = 8
NUM_CREDITS = 2  # of a remote channel
NUM_CREDITS_OF_RUNS = 6  # where several buffers are polled at once
MAX_RECORD_BYTES = 2_500  # of segments of 1,024 bytes: many buffers end within a record
Barrier = Callable[[int], CheckpointBarrier]


class Keeping(Recorder):
    """Keeps everything, by sender."""

    operator_id = b"keeps all it saw"

    def snapshot_state(self, checkpoint_id: int) -> object:
        return tuple(self.values)


class Producer:
    """A task with one output, of which only that is real."""

    def __init__(self, number: int, partition: ResultPartition) -> None:
        self.number = number
        self.partition = partition
        self.sent: list[str] = []
        self.num_bytes = 0
        self.num_before = -1  # how many records stand before the barrier
        self._writer = InMemoryChannelStateWriter()
        self._serializer = StreamElementSerializer()
        self._dictionary = KeyDictionary(ChannelTable(max_parallelism=1, num_channels=1), 1)
        self._codes = ChannelCodes(self._dictionary, 0)
        partition.set_channel_state_writer(self._writer, 0)

    @property
    def can_send(self) -> bool:
        return len(self.sent) < NUM_RECORDS

    def send(self, rng: random.Random) -> None:
        """Send a new record or an earlier one, as it is or by its code, which needs the earlier text."""
        record = f"{self.number}:{len(self.sent)}:".ljust(rng.randrange(MAX_RECORD_BYTES), "x")
        if self.sent and rng.random() < 0.5:
            record = rng.choice(self.sent)
        self.sent.append(record)
        chunk = Chunk([record])
        if rng.random() < 0.8:
            codes = CodedColumn(self._dictionary.encode([record]), self._dictionary.table)
            chunk = Chunk.of_columns(Columns(1, (codes,), Shape.SCALAR))
        data = self._serializer.serialize_chunk(chunk, self._codes)
        self._codes.commit()
        self.num_bytes += len(data)
        self.partition.emit_record(data, 0)
        self.partition.flush_all()

    def barrier(self, barrier: CheckpointBarrier) -> None:
        self.num_before = len(self.sent)
        self._writer.start(barrier.checkpoint_id)
        self._writer.finish_input(barrier.checkpoint_id)
        self.partition.broadcast_event(barrier, is_priority=barrier.options.is_unaligned)
        self._writer.finish_output(barrier.checkpoint_id)

    def in_flight(self, checkpoint_id: int) -> bytes:
        kept: ChannelStateSnapshot = self._writer.take_result(checkpoint_id).result(timeout=PATIENCE_S)
        assert not kept.inputs
        return b"".join(kept.outputs.get((0, 0), ()))


class Consumer:
    """Reads the output of the task, without a task."""

    def __init__(self, network: LocalNetwork, partition: ResultPartition) -> None:
        self.before = bytearray()
        self.all = bytearray()
        self.has_barrier = False
        self.view = network.manager.create_subpartition_view(partition.partition_id, 0, self)

    def notify_data_available(self) -> None:
        pass

    def notify_priority_event(self, sequence_number: int) -> None:
        pass

    def read(self) -> bool:
        found = self.view.next_buffer()
        if found is None:
            return False
        if found.buffer.is_buffer:
            self.all += found.buffer.view
            if not self.has_barrier:
                self.before += found.buffer.view
        else:
            event = deserialize_event(found.buffer.view)
            if isinstance(event, CheckpointBarrier):
                self.has_barrier = True
                if event.options.needs_alignment:
                    self.view.resume_consumption()
        found.buffer.recycle()
        return True


class Rig:
    """Producers, one task, and a reader of its output."""

    def __init__(
        self,
        network: LocalNetwork,
        producers: list[Producer],
        gates: list[SingleInputGate],
        mode: BarrierMode,
        num_credits: int = NUM_CREDITS,
    ) -> None:
        self.producers = producers
        self._num_credits = num_credits
        self.channels = [channel for gate in gates for channel in gate.channels]
        self.operator = Keeping()
        self.store = InMemoryCheckpointStore()
        self.timers = ManualTimers()
        self.pool: list[Callable[[], None]] = []
        partition = network.partition(max_buffers=64)
        self.consumer = Consumer(network, partition)
        environment = network.environment("task", gates=gates, outputs=[edge(partition, Global())])
        writer, responder = InMemoryChannelStateWriter(), self.store.responder_of("v", 0)
        environment.checkpointing = Checkpointing(responder, self.pool.append, writer, mode)
        environment.schedule_timer = self.timers.call_later
        task = Tasks(network).restored(create_stream_task(environment, chain(self.operator)))
        assert isinstance(task, GateFedStreamTask)
        self.task = task

    def step(self) -> bool:
        return self.task.mailbox_processor.run_mailbox_step()

    def let_arrive(self, producer: Producer) -> None:
        """Wait until as much of the producer's data is here as there is room for; a local channel has it at once."""
        channel = self.channels[producer.number]
        if producer.num_before >= 0 or isinstance(channel, LocalInputChannel):
            return

        def has_arrived() -> bool:
            num_buffers = channel.num_queued_buffers + self._num_polled(producer.number)
            return (
                num_buffers >= self._num_credits
                or channel.num_bytes_in + channel.statistics().queue_size_bytes == producer.num_bytes
            )

        spin_until(has_arrived)

    def _num_polled(self, channel: int) -> int:
        """How many buffers of a channel the task has polled and not processed."""
        ((processor, _),) = self.task._readers
        return sum(processor._run_first_channel + item.channel_index == channel for item in processor._run)

    def run_until(self, condition: Callable[[], bool]) -> None:
        def step() -> bool:
            while self.step() or self.consumer.read():
                pass
            while self.pool:
                self.pool.pop(0)()
            return condition()

        spin_until(step)

    def state(self) -> SubtaskState:
        return self.store.state_of(1, "v", 0)


@contextmanager
def local_rig(mode: BarrierMode) -> Iterator[Rig]:
    with LocalNetwork(num_segments=512) as network:
        producers = [Producer(number, network.partition(max_buffers=64)) for number in range(NUM_CHANNELS)]
        # Two gates, so that their indexes count.
        gates = [
            network.gate(producers[0].partition),
            network.gate(*(producer.partition for producer in producers[1:])),
        ]
        rig = Rig(network, producers, gates, mode)
        yield rig
        rig.consumer.view.release()


@contextmanager
def remote_rig(mode: BarrierMode, num_credits: int = NUM_CREDITS) -> Iterator[Rig]:
    with ExitStack() as stack:
        # Each producer could have all its records in flight; the consumer has few buffers, so that they are everywhere.
        sender = start_node("producer", use_uvloop=True, config=small_config(exclusive_buffers_per_channel=60))
        stack.callback(sender.close)
        receiver = start_node(
            "consumer", use_uvloop=True, config=small_config(exclusive_buffers_per_channel=num_credits)
        )
        stack.callback(receiver.close)
        network = stack.enter_context(LocalNetwork(num_segments=128))
        producers = [Producer(number, _remote_partition(sender, number)) for number in range(NUM_CHANNELS)]
        specs = [ChannelSpec(producer.partition.partition_id, 0, sender.address) for producer in producers]
        gates = [receiver.environment.create_input_gate("task", part) for part in (specs[:1], specs[1:])]
        for gate in gates:
            stack.callback(gate.close)
        for producer in producers:
            stack.callback(producer.partition.close)
        rig = Rig(network, producers, gates, mode, num_credits)
        yield rig
        rig.consumer.view.release()


def _remote_partition(node: Node, number: int) -> ResultPartition:
    identifier = ResultPartitionID(
        intermediate_partition_id(b"d" * 16, number), execution_attempt_id(b"g" * 16, b"v" * 16, number, 0)
    )
    return node.environment.create_result_partition(f"producer {number}", identifier, 1)


def play(rig: Rig, barrier: CheckpointBarrier, rng: random.Random) -> None:
    """Let all parts act in random order, until all was sent and the checkpoint is complete."""
    waiting = list(rig.producers)  # to send their barrier

    def send() -> None:
        able = [producer for producer in rig.producers if producer.can_send]
        if able:
            rng.choice(able).send(rng)

    def send_barrier() -> None:
        if waiting and rng.random() < 0.4:
            waiting.pop(rng.randrange(len(waiting))).barrier(barrier)

    def time_out() -> None:
        if barrier.options.is_timeoutable and rng.random() < 0.2:
            rng.choice(rig.producers).partition.aligned_barrier_timeout(1)
            if rig.timers.num_due:
                rig.timers.ring()

    def arrive() -> None:
        rig.let_arrive(rng.choice(rig.producers))

    actions = [send, send, send, arrive, arrive, rig.step, rig.step, send_barrier, rig.consumer.read, time_out]
    while waiting or any(producer.can_send for producer in rig.producers):
        rng.choice(actions)()
    rig.run_until(lambda: rig.store.num_acknowledged(1) == 1)
    rig.run_until(lambda: len(rig.operator.values) == NUM_CHANNELS * NUM_RECORDS)


def records_in(data: bytes) -> list[str]:
    """Return the records in the bytes; fail if a record is cut."""
    deserializer = ElementDeserializer()
    elements = deserializer.feed(memoryview(data))
    assert not deserializer.has_partial
    return [value for element in elements if isinstance(element, Chunk) for value in element.values]


def check(rig: Rig) -> int:
    """Check that no record is lost or there twice; return how many bytes were in flight."""
    state = rig.state()
    kept = state.operators[Keeping.operator_id.hex()]
    assert isinstance(kept, OperatorState)
    assert isinstance(kept.own, tuple)
    processed = list(kept.own)
    for producer, channel in zip(rig.producers, [(0, 0), (1, 0), (1, 1)], strict=True):
        in_flight = b"".join(state.channels.inputs.get(channel, ())) + producer.in_flight(1)
        before = [record for record in processed if record.startswith(f"{producer.number}:")]
        assert before + records_in(in_flight) == producer.sent[: producer.num_before], f"channel {channel}"
        assert [record for record in rig.operator.values if record.startswith(f"{producer.number}:")] == producer.sent
    output = b"".join(state.channels.outputs.get((0, 0), ()))
    assert records_in(bytes(rig.consumer.before) + output) == processed
    while rig.consumer.read():
        pass
    assert records_in(bytes(rig.consumer.all)) == rig.operator.values
    return state.channels.num_bytes


CASES = [
    (BarrierMode.UNALIGNED, unaligned),
    (BarrierMode.ALTERNATING, timeoutable),
    (BarrierMode.ALTERNATING, unaligned),
]
NAMES = ["unaligned", "timeouts", "alternating"]


def play_all(
    make_rig: Callable[[BarrierMode], AbstractContextManager[Rig]], mode: BarrierMode, make: Barrier, seeds: range
) -> None:
    """Each seed is a game of its own; together they must have had something in flight in the task's snapshot."""
    num_bytes = 0
    for seed in seeds:
        with make_rig(mode) as rig:
            play(rig, make(1), random.Random(seed))
            num_bytes += check(rig)
    assert num_bytes > 0, "nothing was ever in flight: this shows nothing"


@pytest.mark.parametrize(("mode", "make"), CASES, ids=NAMES)
def test_local_channels_lose_nothing_and_keep_nothing_twice(mode: BarrierMode, make: Barrier) -> None:
    """The channels are tried with seeds 0 to 3."""
    play_all(local_rig, mode, make, range(4))


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "make"), CASES, ids=NAMES)
def test_local_channels_in_many_orders(mode: BarrierMode, make: Barrier) -> None:
    """The channels are tried with seeds 4 to 49."""
    play_all(local_rig, mode, make, range(4, 50))


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "make"), CASES, ids=NAMES)
def test_remote_channels_lose_nothing_and_keep_nothing_twice(mode: BarrierMode, make: Barrier) -> None:
    """The channels are over TCP, with seeds 0 to 19; the loops' threads add interleavings of their own."""
    play_all(remote_rig, mode, make, range(20))


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "make"), CASES, ids=NAMES)
def test_runs_that_are_not_processed_are_in_flight(
    monkeypatch: pytest.MonkeyPatch, mode: BarrierMode, make: Barrier
) -> None:
    """Several buffers are polled at once, seeds 0 to 11, and more if none was: the checkpoint finds those behind the
    first one.
    """
    num_left: list[int] = []
    in_flight = InputProcessor.in_flight

    def observed(self: InputProcessor, gate_position: int, channel_index: int) -> Iterator[bytes]:
        num_left.append(len(self._run))
        return in_flight(self, gate_position, channel_index)

    monkeypatch.setattr(InputProcessor, "in_flight", observed)
    monkeypatch.setattr(input_processor, "_POLLS_AFTER_NO_RUN", 0)
    # Else a run ends where another gate has data.
    monkeypatch.setattr(input_processor, "_has_next", lambda _gate: False)
    monkeypatch.setattr(StreamTask, "_should_stop", lambda _task: True)

    for first in range(0, 120, 12):  # on a busy machine a loop's thread may bring one buffer at a time for long
        play_all(partial(remote_rig, num_credits=NUM_CREDITS_OF_RUNS), mode, make, range(first, first + 12))
        if any(num_left):
            break

    assert any(num_left), "no checkpoint found the rest of a run: this shows nothing"

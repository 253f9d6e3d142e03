"""Checkpoints over real partitions, gates and local channels: two producers, one task that reads both and writes on,
one reader.

Source: Flink ``UnalignedCheckpointsTest``, ``CheckpointedInputGateTest.testPersisting``; FLINK-20645: the snapshot
        holds exactly the data
that barriers overtook.
"""

from collections.abc import Callable

import pytest

from flowlet.checkpoint.task.checkpoint_barrier_handler import CheckpointBarrierHandler
from flowlet.checkpoint.task.checkpointed_input_gate import CheckpointedInputGate
from flowlet.checkpoint.task.single_checkpoint_barrier_handler import SingleCheckpointBarrierHandler
from flowlet.checkpoint.task.snapshots import ChannelStateSnapshot
from flowlet.task.checkpoint_wiring import TaskOutputs
from netstack.gate.channels.local_input_channel import LocalInputChannel
from netstack.gate.single_input_gate import SingleInputGate
from netstack.partition.channel_state import InputChannelInfo
from netstack.wire.events import (
    Alignment,
    CancelCheckpointMarker,
    CheckpointBarrier,
    Event,
    EventAnnouncement,
    deserialize_event,
)
from tests.flowlet.checkpoint.task.barriers import aligned, timeoutable, unaligned
from tests.flowlet.checkpoint.task.doubles import CheckpointedTask
from tests.flowlet.task.local_network import LocalNetwork


class Task(CheckpointedTask):
    """Reads both producers and copies every buffer to its own partition."""

    def __init__(self, network: LocalNetwork, *, supports_unaligned: bool = True) -> None:
        self.partition = network.partition()
        super().__init__(outputs=TaskOutputs([(self.partition, supports_unaligned)], self._flush))
        self.seen: list[bytes | Event] = []
        self.num_flushes = 0
        self.producers = [network.partition(), network.partition()]
        for partition in (*self.producers, self.partition):
            partition.set_channel_state_writer(self.writer)
        raw = SingleInputGate("task")
        network.gates.append(raw)
        for index, producer in enumerate(self.producers):
            channel = LocalInputChannel(raw, index, producer.partition_id, 0, network.manager)
            channel.set_channel_state_writer(self.writer, InputChannelInfo(0, index))
            raw.add_channel(channel)
        machine = SingleCheckpointBarrierHandler(2)
        self.handler = CheckpointBarrierHandler(
            machine, [raw], self.checkpoints, self.timers.call_later, wall_ms=self.clock.wall_ms
        )
        self.checkpoints.attach([raw], self.handler)
        self.gate = CheckpointedInputGate(raw, self.handler, [(0, 0), (0, 1)], self.mailbox.executor)
        raw.request_partitions()
        self.reader = network.reader(self.partition)

    def _flush(self) -> None:
        self.num_flushes += 1

    def send(self, producer: int, *records: bytes) -> None:
        for record in records:
            self.producers[producer].emit_record(record, 0)
            self.producers[producer].flush_all()

    def barrier(self, producer: int, barrier: CheckpointBarrier) -> None:
        self.producers[producer].broadcast_event(barrier, is_priority=barrier.options.is_unaligned)

    def run(self) -> None:
        """Mails first, then all input."""
        self.mailbox.run()
        while (item := self.gate.poll_next()) is not None:
            if item.buffer is not None:
                data = bytes(item.buffer.view)
                item.buffer.recycle()
                self.seen.append(data)
                self.partition.emit_record(data, 0)
            elif item.event is not None:
                self.seen.append(item.event)
        self.run_pool()

    @property
    def channels(self) -> ChannelStateSnapshot:
        """The data in flight of the only checkpoint."""
        ((_, _, state),) = self.responder.acknowledged
        return state.channels

    def outcome(self) -> tuple[bytes, list[Event]]:
        """Return everything that the task's own partition holds."""
        self.partition.flush_all()
        data, events = bytearray(), []
        while (item := self.reader.view.next_buffer()) is not None:
            if item.buffer.is_buffer:
                data += item.buffer.view
            else:
                events.append(deserialize_event(item.buffer.view))
            item.buffer.recycle()
        return bytes(data), events


def test_an_aligned_barrier_stops_its_channel_and_overtakes_nothing(network: LocalNetwork) -> None:
    """Data behind the first barrier is read after the snapshot; nothing in flight is kept."""
    task = Task(network)
    task.send(0, b"a")
    task.barrier(0, aligned(1))
    task.send(0, b"after")
    task.run()
    assert task.seen == [b"a", aligned(1)]

    task.send(1, b"b")
    task.barrier(1, aligned(1))
    task.run()

    assert task.seen == [b"a", aligned(1), b"b", aligned(1), b"after"]
    assert task.channels.num_bytes == 0
    assert task.num_flushes == 1
    assert task.outcome() == (b"ab", [aligned(1)])
    task.reader.view.resume_consumption()
    assert task.outcome() == (b"after", [])


def test_an_unaligned_barrier_leaves_exactly_what_it_overtook_in_the_snapshot(network: LocalNetwork) -> None:
    """The snapshot has the data in the producer's queue before its barrier (kept there), on the other channel until its
    barrier (kept by the task), and in the output.
    """
    task = Task(network)
    task.partition.emit_record(b"out", 0)
    task.send(0, b"overtaken")
    task.barrier(0, unaligned(1))
    task.send(0, b"after")
    task.send(1, b"late")
    task.run()
    assert task.responder.acknowledged == [], "the other barrier is missing"
    task.barrier(1, unaligned(1))
    task.send(1, b"after")
    task.run()

    kept = task.channels
    assert kept.inputs == {(0, 1): (b"late",)}
    assert kept.outputs[(0, 0)] == (b"out",)
    data, events = task.outcome()
    assert events == [unaligned(1)]
    assert sorted(data) == sorted(b"out" + b"overtaken" + b"after" + b"late" + b"after")


def test_a_barrier_that_times_out_in_our_queue_overtakes_there(network: LocalNetwork) -> None:
    """The barrier is in time at the inputs and stuck in the output: then the overtaken data is in the snapshot."""
    task = Task(network)
    task.send(0, b"x")
    for producer in (0, 1):
        task.barrier(producer, timeoutable(1, task.clock.ms))
    task.run()
    assert task.responder.acknowledged == [], "nobody knows yet what will be in flight"

    task.timers.ring()

    assert task.channels.outputs == {(0, 0): (b"x",)}
    assert task.outcome() == (b"x", [unaligned(1, task.clock.ms)])


def test_a_barrier_that_is_consumed_in_time_has_nothing_in_flight(network: LocalNetwork) -> None:
    task = Task(network)
    for producer in (0, 1):
        task.barrier(producer, timeoutable(1, task.clock.ms))
    task.run()

    assert task.outcome() == (b"", [timeoutable(1, task.clock.ms)])

    assert task.channels.num_bytes == 0


@pytest.mark.parametrize("make", [unaligned, timeoutable])
def test_a_pointwise_edge_gets_an_aligned_barrier(
    network: LocalNetwork, make: Callable[[int], CheckpointBarrier]
) -> None:
    """FORCED_ALIGNED: the barrier stays behind the data, and never times out."""
    task = Task(network, supports_unaligned=False)
    task.clock.ms = 0
    task.partition.emit_record(b"out", 0)
    for producer in (0, 1):
        task.barrier(producer, make(1))
    task.run()
    for _ in range(task.timers.num_due):
        task.timers.ring()

    data, (event,) = task.outcome()

    assert data == b"out"
    assert isinstance(event, CheckpointBarrier)
    assert event.options.alignment is Alignment.FORCED_ALIGNED
    assert task.responder.acknowledged_ids == [1]


def test_a_cancelled_checkpoint_is_passed_on(network: LocalNetwork) -> None:
    """Blocked channels are released, the next tasks hear of it, and no data in flight is waited for."""
    task = Task(network)
    task.barrier(0, unaligned(1))
    task.run()
    task.producers[1].broadcast_event(CancelCheckpointMarker(1))
    task.send(0, b"a")
    task.run()

    assert task.seen[-1] == b"a"
    assert task.outcome() == (b"a", [unaligned(1), CancelCheckpointMarker(1)])
    assert task.writer.open_checkpoints == []
    assert [error.checkpoint_id for error in task.responder.declined] == [1]


def test_local_channels_announce_nothing(network: LocalNetwork) -> None:
    """The producers of local channels time out by themselves; an announcement comes over the network only."""
    task = Task(network)
    task.barrier(0, timeoutable(1, task.clock.ms))

    task.run()

    assert not any(isinstance(each, EventAnnouncement) for each in task.seen)

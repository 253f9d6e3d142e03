"""``LocalInputChannel``: a partition of the consumer's own process, read without the network."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import (
    CheckpointSubsumedError,
    LocalProtocolError,
    PartitionNotFoundError,
    ProducerFailedError,
    ResourceClosedError,
)
from netstack.gate.channels.input_channel import InputChannel, ProducerState, RequestBackoff
from netstack.gate.channels.local_input_channel import LocalInputChannel
from netstack.gate.gate_channels import BufferOrEvent
from netstack.gate.single_input_gate import SingleInputGate
from netstack.partition.channel_state import InputChannelInfo
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_partition_manager import ResultPartitionManager
from netstack.wire.events import Alignment, CheckpointBarrier, CheckpointOptions, EndOfData, Event, OtherEvent, StopMode
from netstack.wire.messages import DataType
from tests.netstack.buffer.test_network_buffer import Content
from tests.netstack.gate.doubles import RecordingGate
from tests.netstack.gate.manual_timers import ManualTimers
from tests.netstack.gate.state_writer import RecordingStateWriter
from tests.netstack.partition.doubles import partition_id_of
from tests.netstack.present import present
from tests.netstack.threads import run_together
from tests.waiting import PATIENCE_S

UNALIGNED = CheckpointBarrier(1, 2, CheckpointOptions(alignment=Alignment.UNALIGNED))


class Fixture:
    def __init__(self) -> None:
        self.network = NetworkBufferPool(16, 64)
        self.manager = ResultPartitionManager()
        self.gate = RecordingGate()
        pool = self.network.create_buffer_pool(owner="producer", num_required=2, max_buffers=8)
        self.partition = ResultPartition(partition_id_of(), 1, pool, "producer")
        self.channel = LocalInputChannel(self.gate, 0, partition_id_of(), 0, self.manager)

    def open(self) -> None:
        """Register the partition, and request it."""
        self.manager.register(self.partition)
        self.channel.request_subpartition()

    def poll(self) -> tuple[DataType, bytes, bool]:
        found = present(self.channel.next_buffer())
        buffer, has_more = found.buffer, found.next_data_type is not DataType.NONE
        facts = (buffer.data_type, bytes(buffer.view), has_more)
        buffer.recycle()
        return facts


@pytest.fixture
def it() -> Iterator[Fixture]:
    fixture = Fixture()
    yield fixture
    fixture.channel.release()
    fixture.partition.close()
    fixture.manager.shutdown()
    fixture.network.destroy()
    assert fixture.network.num_available == 16


@pytest.mark.parametrize("is_early", [True, False])
def test_data_is_read_from_the_producers_buffers(it: Fixture, is_early: bool) -> None:
    """Buffers come in order, whether the partition or the request came first."""
    if is_early:
        it.channel.request_subpartition()
        it.manager.register(it.partition)
    else:
        it.open()
    it.channel.request_subpartition()

    it.partition.emit_record(b"abc", 0)
    it.partition.broadcast_event(EndOfData(StopMode.DRAIN))

    assert it.gate.notified == [it.channel]
    assert it.poll() == (DataType.DATA_BUFFER, b"abc", True)
    assert it.poll()[0] is DataType.END_OF_DATA
    assert (it.channel.next_buffer(), it.channel.num_buffers_in, it.channel.num_bytes_in) == (None, 2, 8)


def test_the_next_poll_is_known_to_find_an_event_only_if_it_does(it: Fixture) -> None:
    """A reader without room for data still takes an event, and hears that the producer failed."""
    seen = [it.channel.next_is_event]
    it.open()
    seen.append(it.channel.next_is_event)
    it.partition.emit_record(b"abc", 0)
    it.partition.broadcast_event(EndOfData(StopMode.DRAIN))
    seen.append(it.channel.next_is_event)
    it.poll()
    seen.append(it.channel.next_is_event)
    it.poll()
    seen.append(it.channel.next_is_event)

    it.partition.fail(ValueError("broken"))

    assert [*seen, it.channel.next_is_event] == [False, False, False, True, False, True]


def test_data_that_was_there_before_the_view_is_announced_after_it(it: Fixture) -> None:
    """A notification that comes while the view is being opened finds nothing; another one follows."""
    it.manager.register(it.partition)
    it.partition.broadcast_event(EndOfData(StopMode.DRAIN))
    polled = []

    class PollingGate(RecordingGate):
        def notify_channel_non_empty(self, channel: object) -> None:
            polled.append(it.channel.next_buffer())

    it.channel.gate = PollingGate()
    it.channel.request_subpartition()

    assert polled[0] is None
    found = present(polled[1])
    found[0].recycle()


def test_a_channel_that_waits_has_nothing(it: Fixture) -> None:
    """No error, no view; acknowledging does nothing."""
    it.channel.request_subpartition()

    it.channel.acknowledge_all_records_processed()

    assert (it.channel.next_buffer(), it.channel.statistics().state) == (None, "open")


def test_a_failed_producer_is_an_error_at_the_next_poll(it: Fixture) -> None:
    """Every poll raises the producer's failure with its cause, and the gate is notified."""
    it.open()

    error = ValueError("the dog ate it")
    it.partition.fail(error)

    assert it.gate.notified == [it.channel]
    for _ in range(2):
        with pytest.raises(ProducerFailedError, match="ValueError: the dog ate it") as caught:
            it.channel.next_buffer()
        assert isinstance(caught.value.__cause__, ProducerFailedError)
        assert caught.value.__cause__.__cause__ is error


def test_a_view_that_cannot_be_opened_is_the_channels_error(it: Fixture) -> None:
    """The channel fails if its view cannot be opened; the producer that registers does not."""
    other = LocalInputChannel(it.gate, 1, partition_id_of(), 0, it.manager)
    it.channel.request_subpartition()
    other.request_subpartition()

    it.manager.register(it.partition)

    with pytest.raises(LocalProtocolError, match="read by somebody else"):
        other.next_buffer()
    assert it.channel.next_buffer() is None
    other.release()


def test_shutdown_reaches_a_waiting_channel(it: Fixture) -> None:
    """A channel whose partition cannot come any more fails."""
    it.channel.request_subpartition()

    it.manager.shutdown()

    with pytest.raises(ResourceClosedError, match="manager was shut down"):
        it.channel.next_buffer()
    assert it.gate.notified == [it.channel]


def test_the_acknowledgement_reaches_the_partition(it: Fixture) -> None:
    """The acknowledgement reaches the partition directly."""
    it.open()

    it.channel.acknowledge_all_records_processed()

    assert it.partition.all_data_processed.is_done


def test_release_consumes_the_subpartition(it: Fixture) -> None:
    """Once; then the channel has no data and no error, whatever the producer does."""
    it.open()
    it.partition.emit_record(b"abc", 0)
    it.partition.finish()
    it.partition.close()

    it.channel.release()
    it.channel.release()

    assert (it.partition.is_released, it.partition.failure_cause, it.channel.next_buffer()) == (True, None, None)
    it.channel.acknowledge_all_records_processed()


def test_a_released_channel_does_not_open_a_view(it: Fixture) -> None:
    """A released channel stops waiting; another channel can read the subpartition."""
    timers = ManualTimers()
    manager = ResultPartitionManager(timers=timers)
    channel = LocalInputChannel(it.gate, 0, partition_id_of(), 0, manager, wait_timeout_ms=1000)
    channel.request_subpartition()
    num_waits = [timers.num_due]
    channel.release()
    num_waits.append(timers.num_due)

    manager.register(it.partition)

    assert num_waits == [1, 0]
    other = LocalInputChannel(it.gate, 1, partition_id_of(), 0, manager)
    other.request_subpartition()
    assert other.next_buffer() is None
    other.release()
    manager.shutdown()


def test_a_view_that_comes_too_late_is_released_at_once(it: Fixture) -> None:
    """The canceler came while the manager made the view."""
    manager = it.manager
    manager.register(it.partition)
    original = manager.create_view_or_listen

    def release_meanwhile(*args: Any, **options: Any) -> object:
        view = original(*args, **options)
        it.channel.release()
        return view

    manager.create_view_or_listen = release_meanwhile  # type: ignore[assignment,method-assign]  # a forced interleaving
    it.channel.request_subpartition()
    it.partition.finish()
    it.partition.close()

    assert (it.partition.is_released, it.partition.failure_cause) == (True, None)


@pytest.mark.slow
def test_hist_12510_registering_requesting_and_releasing_race(tiny_switch_interval: None) -> None:
    """In any order, a partition that is closed ends up released, and no wait or buffer is left (FLINK-12510)."""
    for _ in range(150):
        it = Fixture()
        timers = ManualTimers()
        manager = ResultPartitionManager(timers=timers)
        channel = LocalInputChannel(it.gate, 0, partition_id_of(), 0, manager, wait_timeout_ms=1000)
        run_together(partial(manager.register, it.partition), channel.request_subpartition, channel.release)

        assert timers.num_due == 0, "the manager waits for a channel that was released"
        it.partition.close()
        assert it.partition.is_released
        it.network.destroy()
        assert it.network.num_available == 16


# ---------------------------------------------------------------- waiting and retrying


def local(it: Fixture, **options: Any) -> LocalInputChannel:
    """Return another channel for the fixture's subpartition; the fixture's own channel was never requested."""
    it.channel.release()
    it.channel = LocalInputChannel(it.gate, 0, partition_id_of(), 0, it.manager, **options)
    return it.channel


def test_the_wait_for_a_partition_ends_like_a_remote_one(it: Fixture) -> None:
    """Then the producer's state is checked, and the wait is repeated or fails with the reason."""
    timers = ManualTimers()
    it.manager = ResultPartitionManager(timers=timers)
    channel = local(it, wait_timeout_ms=10_000.0, backoff=RequestBackoff(10_000, 10_000))

    channel.request_subpartition()
    timers.ring()
    checked = list(it.gate.checked)
    channel.on_producer_state(ProducerState.READY)
    timers.ring()
    channel.on_producer_state(ProducerState.READY)

    assert (checked, len(it.gate.checked), timers.delays_ms, timers.num_due) == ([channel], 2, [10_000.0, 10_000.0], 0)
    with pytest.raises(PartitionNotFoundError, match=r"was not registered in this process within 10000\.0 ms"):
        channel.next_buffer()


def test_a_wait_that_is_repeated_finds_the_partition(it: Fixture) -> None:
    """The second wait is a registration like the first."""
    timers = ManualTimers()
    manager = it.manager = ResultPartitionManager(timers=timers)
    channel = local(it, wait_timeout_ms=10.0, backoff=RequestBackoff(100, 10))
    channel.request_subpartition()
    timers.ring()
    channel.on_producer_state(ProducerState.READY)

    manager.register(it.partition)
    it.partition.emit_record(b"abc", 0)
    it.partition.flush_all()

    assert it.poll() == (DataType.DATA_BUFFER, b"abc", False)
    assert timers.num_due == 0


def test_a_view_that_is_open_is_not_opened_again(it: Fixture) -> None:
    """A late answer about the producer: the partition came by itself meanwhile."""
    channel = local(it, backoff=RequestBackoff(100, 10))
    it.open()

    channel.on_producer_state(ProducerState.READY)

    assert channel.next_buffer() is None


# ---------------------------------------------------------------- orders to the producer


def test_resuming_queues_the_channel_again(it: Fixture) -> None:
    """testEnqueueAvailableChannelWhenResuming: data behind a barrier is read once the producer may go on."""
    it.open()
    it.partition.broadcast_event(CheckpointBarrier(1, 2))
    it.partition.emit_record(b"behind", 0)
    it.partition.flush_all()
    barrier, blocked = it.poll(), it.channel.next_buffer()
    rows = [it.channel.statistics()]
    notified = len(it.gate.notified)

    it.channel.resume_consumption()
    rows.append(it.channel.statistics())

    assert (barrier[0], barrier[2], blocked) == (DataType.ALIGNED_CHECKPOINT_BARRIER, False, None)
    assert (len(it.gate.notified), it.poll()) == (notified + 1, (DataType.DATA_BUFFER, b"behind", False))
    assert [(row.is_blocked, row.kind, row.num_queued_buffers) for row in rows] == [
        (True, "local", 1),
        (False, "local", 1),
    ]


def test_a_channel_that_was_not_opened_takes_no_orders(it: Fixture) -> None:
    """A buffer size is forgotten, since nobody is there yet."""
    it.channel.announce_buffer_size(512)

    with pytest.raises(LocalProtocolError, match="resumed before it was opened"):
        it.channel.resume_consumption()


def test_a_buffer_size_reaches_the_producer(it: Fixture) -> None:
    """LocalInputChannelTest: testAnnounceBufferSize."""
    it.open()

    it.channel.announce_buffer_size(17)
    it.partition.emit_record(bytes(10), 0)
    it.partition.emit_record(bytes(20), 0)
    it.partition.flush_all()

    assert [len(it.poll()[1]) for _ in range(2)] == [17, 13]


def test_task_events_reach_the_producer(it: Fixture) -> None:
    """Task events reach the producer through the dispatcher of the process; without a producer that is an error."""
    found: list[Event] = []
    event = OtherEvent("my.Event", b"payload")
    with pytest.raises(PartitionNotFoundError, match="its producer could not be found"):
        it.channel.send_task_event(event)
    it.manager.register(it.partition)
    it.manager.task_events.subscribe(it.partition.partition_id, "my.Event", found.append)

    it.channel.send_task_event(event)

    assert found == [event]


# ---------------------------------------------------------------- checkpoints


def test_what_is_polled_before_the_barrier_is_persisted(it: Fixture) -> None:
    """testCheckpointingInflightData: from the start until the barrier is polled, not before, not after."""
    writer = RecordingStateWriter()
    channel = local(it)
    channel.set_channel_state_writer(writer, InputChannelInfo(0, 0))
    it.open()
    for size in (1, 2):
        it.partition.emit_record(bytes(size), 0)
        it.partition.flush_all()
        it.poll()
        if size == 1:
            channel.checkpoint_started(UNALIGNED)
    it.partition.broadcast_event(UNALIGNED)
    it.poll()
    it.partition.emit_record(bytes(3), 0)
    it.partition.flush_all()
    it.poll()
    channel.checkpoint_stopped(1)

    assert [(checkpoint, sizes) for checkpoint, _, sizes in writer.persisted] == [(1, [2])]
    writer.recycle()


def test_a_checkpoint_whose_successor_has_come_is_refused(it: Fixture) -> None:
    """Nothing is kept for the older one, and the newer one goes on."""
    writer = RecordingStateWriter()
    channel = local(it)
    channel.set_channel_state_writer(writer, InputChannelInfo(0, 0))
    it.open()
    it.partition.broadcast_event(CheckpointBarrier(7, 2, CheckpointOptions()))
    it.poll()

    with pytest.raises(
        CheckpointSubsumedError, match="barrier of checkpoint 7 arrived before checkpoint 6 was started"
    ):
        channel.checkpoint_started(CheckpointBarrier(6, 1, CheckpointOptions()))
    channel.resume_consumption()
    it.partition.emit_record(b"behind", 0)
    it.partition.flush_all()
    it.poll()

    assert writer.persisted == []


def test_priority_events_are_told_to_the_gate(it: Fixture) -> None:
    """LocalInputChannelTest: testReceivingUnalignedBarrier...: with the number under which they will be polled."""
    it.open()
    it.partition.emit_record(b"overtaken", 0)

    it.partition.broadcast_event(UNALIGNED, is_priority=True)
    found = present(it.channel.next_buffer())

    assert (it.gate.priority, found.sequence_number, found.buffer.data_type) == (
        [0],
        0,
        DataType.PRIORITIZED_EVENT_BUFFER,
    )
    found.buffer.recycle()


class ImpatientGate(SingleInputGate):
    """A gate whose task polls at once when a priority event is announced."""

    polled: list[BufferOrEvent | None]

    def notify_priority_event(self, channel: InputChannel, sequence_number: int) -> None:
        super().notify_priority_event(channel, sequence_number)
        self.polled.append(self.poll_next())


def test_a_priority_event_that_is_announced_before_the_view_is_there_keeps_its_priority(it: Fixture) -> None:
    """The task polls while the view is being opened: the barrier keeps its place."""
    gate = ImpatientGate("reduce (1/2)")
    gate.polled = []
    gate.add_channel(LocalInputChannel(gate, 0, partition_id_of(), 0, it.manager))
    gate.request_partitions()
    it.partition.broadcast_event(UNALIGNED, is_priority=True)

    it.manager.register(it.partition)

    assert [found if found is None else found.event for found in gate.polled] == [None, UNALIGNED]
    assert not gate.priority_event_available_future().is_done
    gate.check_invariants()
    gate.close()


def test_many_channels_are_read_at_once(tiny_switch_interval: None) -> None:
    """testConcurrentConsumeMultiplePartitions: 8 producers, 8 consumers with a gate each, 8 channels each."""
    num, num_buffers = 8, 16
    network = NetworkBufferPool(num * (num + 1) * 2, 64)
    manager = ResultPartitionManager()
    partitions = []
    for number in range(num):
        pool = network.create_buffer_pool(owner="producer", num_required=num + 1, max_buffers=2 * num)
        partition = ResultPartition(partition_id_of(number), num, pool, f"producer {number}")
        manager.register(partition)
        partitions.append(partition)
    counts = [0] * num

    def produce(partition: ResultPartition) -> None:
        for number in range(num_buffers * num):
            partition.emit_record(bytes(64), number % num)
        partition.finish()

    def consume(subpartition: int) -> None:
        gate = SingleInputGate(f"consumer {subpartition}")
        for index in range(num):
            gate.add_channel(LocalInputChannel(gate, index, partition_id_of(index), subpartition, manager))
        gate.request_partitions()
        while (found := gate.get_next(PATIENCE_S)) is not None:
            if found.buffer is not None:
                counts[subpartition] += 1
                found.buffer.recycle()
        assert gate.is_finished, "nothing came within the deadline"
        gate.close()

    run_together(
        *(partial(produce, partition) for partition in partitions),
        *(partial(consume, subpartition) for subpartition in range(num)),
    )

    assert counts == [num * num_buffers] * num
    for partition in partitions:
        partition.close()
    network.destroy()
    assert network.num_available == network.num_total


@pytest.mark.parametrize("is_pending", [False, True])
def test_a_content_is_handed_over_and_its_bytes_are_persisted(it: Fixture, is_pending: bool) -> None:
    """The bytes are persisted in buffers as large as others are; outside of a checkpoint no bytes are made."""
    writer = RecordingStateWriter()
    channel = local(it)
    channel.set_channel_state_writer(writer, InputChannelInfo(0, 0))
    it.open()
    content = Content(bytes(40 * 1024))
    if is_pending:
        channel.checkpoint_started(UNALIGNED)

    assert it.partition.emit_content(content, 0)
    it.partition.flush_all()
    found = present(channel.next_buffer())

    assert found.buffer.content is content
    found.buffer.recycle()
    assert content.num_made == is_pending
    assert [(checkpoint, sizes) for checkpoint, _, sizes in writer.persisted] == (
        [(1, [32 * 1024, 8 * 1024])] if is_pending else []
    )
    assert b"".join(bytes(buffer.view) for buffer in writer.kept) == (content.data if is_pending else b"")
    writer.recycle()
    channel.checkpoint_stopped(1)

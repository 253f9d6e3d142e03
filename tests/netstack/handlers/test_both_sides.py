"""Server and client handlers with real partitions and gates, joined by bytes: what one says the other understands."""

import contextlib

import pytest

from netstack.buffer.network_buffer import recycle_all
from netstack.config import MAX_QUEUED_EVENTS
from netstack.errors import NetstackError, ProducerFailedError, RemoteProtocolError
from netstack.gate.channels.input_channel import InputChannel, ProducerState, RequestBackoff
from netstack.gate.channels.local_input_channel import LocalInputChannel
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.gate_channels import BufferOrEvent, EndOfDataStatus
from netstack.gate.single_input_gate import SingleInputGate
from netstack.ids import ResultPartitionID
from netstack.wire.events import CheckpointBarrier, EndOfData, EndOfPartition, Event, OtherEvent, StopMode
from netstack.wire.message_bytes import SERVER_MESSAGE_IDS, encode
from netstack.wire.messages import BufferResponse, ErrorCode, ErrorResponse, PartitionRequest
from tests.netstack.handlers.client_side import EXCLUSIVE, Client, ScriptedStateChecker
from tests.netstack.handlers.server_side import CONFIG, SEGMENT, ServerSide, fill, partition_id_of, receiver_of
from tests.netstack.wire.samples import FedDecoder

EVENT = OtherEvent("org.example.Superstep", b"\7")


class BothSides:
    """One connection; ``pump`` carries bytes both ways, in small cuts, until no more move."""

    def __init__(self) -> None:
        self.server = ServerSide()
        self.client = Client()
        self._decoder = FedDecoder(None, max_data_frame_bytes=4 * SEGMENT, accepted_ids=SERVER_MESSAGE_IDS)

    def pump(self) -> None:
        is_moving = True
        while is_moving:
            orders = b"".join(encode(message) for message in self.client.sent())
            for message in self._decoder.feed(orders):
                self.server.receive(message)
            self.server.loop.run_pending()
            self.server.channel.flush_outbound()
            data = self.server.channel.read_all_outbound()
            for start in range(0, len(data), 700):
                self.client.connection.write_inbound(data[start : start + 700])
            self.client.connection.flush_outbound()
            is_moving = bool(orders or data)

    def read(self, gate: SingleInputGate) -> list[BufferOrEvent]:
        """Read until no more comes; buffers are recycled at once."""
        found: list[BufferOrEvent] = []
        while True:
            self.pump()
            one = gate.poll_next()
            if one is None:
                return found
            if one.buffer is not None:
                one.buffer.recycle()
            found.append(one)

    def read_others(self, gate: SingleInputGate) -> list[BufferOrEvent]:
        """Read everything from the channels that did not fail."""
        found: list[BufferOrEvent] = []
        for _ in range(10):
            with contextlib.suppress(RemoteProtocolError):
                found += gate.poll_many(1)
        recycle_all([each.buffer for each in found if each.buffer is not None])
        return found


@pytest.fixture
def both() -> BothSides:
    return BothSides()


def events(found: list[BufferOrEvent]) -> list[Event]:
    return [each.event for each in found if each.event is not None]


@pytest.mark.parametrize(("num_exclusive", "num_floating"), [(2, 0), (1, 0), (2, 8), (1, 1), (0, 1), (0, 8)])
def test_everything_arrives_whatever_buffers_the_receiver_has(
    both: BothSides, num_exclusive: int, num_floating: int
) -> None:
    """More data than credit reaches a receiver with few or only floating buffers (FLINK-16641)."""
    partition = both.server.partition(1)
    gate = both.client.open_gate(1, num_exclusive=num_exclusive, num_floating=num_floating)
    fill(partition, 20)
    partition.finish()

    found = both.read(gate)

    assert sum(each.buffer is not None for each in found) == 20
    assert events(found) == [EndOfPartition()]
    assert gate.is_finished


@pytest.mark.parametrize(("num_exclusive", "num_floating"), [(2, 4), (0, 2)])
def test_a_barrier_blocks_until_the_consumer_resumes(both: BothSides, num_exclusive: int, num_floating: int) -> None:
    """No buffer behind it passes before; then all do, also if both sides begin again without credit."""
    partition = both.server.partition(1)
    gate = both.client.open_gate(1, num_exclusive=num_exclusive, num_floating=num_floating)
    barrier = CheckpointBarrier(7, 1000)
    for _ in range(3):
        fill(partition, 4)
        partition.broadcast_event(barrier)
    partition.finish()

    for _ in range(3):
        found = both.read(gate)
        assert sum(each.buffer is not None for each in found) == 4
        assert events(found) == [barrier]
        assert both.server.queue.statistics()[0].is_blocked
        gate.resume_consumption(0)

    assert events(both.read(gate)) == [EndOfPartition()]


def test_a_blocking_event_reports_no_backlog(both: BothSides) -> None:
    """Buffers behind a barrier cannot be polled, and Flink's receiver fails on such a report."""
    partition = both.server.partition(1)
    both.server.receive(PartitionRequest(partition_id_of(1), 0, 0, receiver_of(1), 20))
    fill(partition, 2)
    partition.broadcast_event(CheckpointBarrier(7, 1000))
    fill(partition, 5)

    responses = [each for each in both.server.sent() if isinstance(each, BufferResponse)]

    assert responses[-1].data_type.is_blocking_upstream
    assert responses[-1].backlog == 0
    assert sum(each.data_type.is_buffer for each in responses) == 2


def test_a_priority_event_overtakes_what_waits_for_credit(both: BothSides) -> None:
    """An unaligned barrier needs no credit and no turn behind the data."""
    partition = both.server.partition(1)
    gate = both.client.open_gate(1)
    fill(partition, 6)
    both.pump()

    partition.broadcast_event(CheckpointBarrier(7, 1000).as_unaligned(), is_priority=True)
    both.pump()
    first = gate.poll_next()

    assert first is not None
    assert isinstance(first.event, CheckpointBarrier)
    assert sum(each.buffer is not None for each in both.read(gate)) == 6


def test_a_task_event_goes_upstream(both: BothSides) -> None:
    """A task event goes from the gate to the subscribers in the producer's process."""
    both.server.partition(1)
    gate = both.client.open_gate(1)
    seen: list[Event] = []
    both.server.manager.task_events.subscribe(partition_id_of(1), EVENT.class_name, seen.append)
    both.pump()

    gate.send_task_event(EVENT)
    both.pump()

    assert seen == [EVENT]


def test_a_buffer_size_that_the_consumer_announces_is_kept_by_the_producer(both: BothSides) -> None:
    """An announced size makes the producer's next buffers smaller; it is ignored before the partition is there."""
    gate = both.client.open_gate(1, num_floating=8)
    gate.announce_buffer_size(300)
    both.pump()
    partition = both.server.partition(1)
    both.pump()

    gate.announce_buffer_size(400)
    both.pump()
    for _ in range(12):
        partition.emit_record(bytes(100), 0)
    partition.finish()
    sizes = []
    while True:
        both.pump()
        one = gate.poll_next()
        if one is None:
            break
        if one.buffer is not None:
            sizes.append(one.buffer.size)
            one.buffer.recycle()

    assert sum(sizes) == 1200
    assert max(sizes) == 400


def test_a_request_is_repeated_until_the_partition_is_there(both: BothSides) -> None:
    """After a refusal the producer's state is asked; the request keeps its id."""
    checker = ScriptedStateChecker(ProducerState.READY, ProducerState.READY)
    gate = both.client.open_gate(1, state_checker=checker, backoff=RequestBackoff(30_000, 10_000))
    both.pump()
    for _ in range(2):
        both.server.loop.advance(CONFIG.partition_request_timeout_s)
        both.pump()

    fill(both.server.partition(1), 3)

    assert sum(each.buffer is not None for each in both.read(gate)) == 3
    assert checker.asked == [partition_id_of(1)] * 2


def test_a_request_for_a_taken_subpartition_fails_that_channel_only(both: BothSides) -> None:
    """The other channels of the connection read on, although the error on the wire names no receiver, as in Flink."""
    partition = both.server.partition(1)
    good = both.client.open_gate(1)
    other = SingleInputGate("second consumer")
    channel = RemoteInputChannel(other, 0, partition_id_of(1), 0, receiver_of(2), both.client)
    channel.assign_exclusive_segments(both.client.pool, EXCLUSIVE)
    other.add_channel(channel)
    other.request_partitions()
    both.client.gates.append(other)

    both.pump()
    fill(partition, 3)

    with pytest.raises(NetstackError, match="read by somebody else"):
        other.poll_next()
    assert sum(each.buffer is not None for each in both.read(good)) == 3


def test_a_failed_producer_is_the_error_of_its_consumer_only(both: BothSides) -> None:
    """Earlier data is read first; then the consumer's error has the cause, in words."""
    failing, healthy = both.server.partition(1), both.server.partition(2)
    gates = [both.client.open_gate(number) for number in (1, 2)]
    both.pump()

    failing.fail(ValueError("out of cheese"))
    fill(healthy, 3)
    both.pump()

    with pytest.raises(ProducerFailedError, match="out of cheese"):
        gates[0].poll_next()
    assert sum(each.buffer is not None for each in both.read(gates[1])) == 3


def test_sequence_numbers_wrap_on_both_sides(both: BothSides) -> None:
    """Sequence numbers go on after the greatest signed 32-bit integer, sent and expected as in Java."""
    partition = both.server.partition(1)
    _, [channel] = both.client.open_channels(1)
    partition._subpartitions[0]._sequence_number = 2**31 - 2  # type: ignore[attr-defined]  # as if that many had been sent
    channel.expected_sequence_number = 2**31 - 2
    fill(partition, 6)
    partition.finish()

    found = both.read(both.client.gates[0])

    assert sum(each.buffer is not None for each in found) == 6
    assert events(found) == [EndOfPartition()]


def test_a_producer_of_nothing_but_events_ends_its_own_channel_only(both: BothSides) -> None:
    """The number of unread events is bounded: beyond it their producer is told to stop."""
    flood, calm = both.server.partition(1), both.server.partition(2)
    gate, [channel, other] = both.client.open_channels(1, 2)
    both.pump()

    for _ in range(MAX_QUEUED_EVENTS + 10):
        flood.broadcast_event(EVENT)
        both.pump()
    fill(calm, 1)
    calm.finish()
    both.pump()

    assert (channel.num_queued_buffers, other.num_queued_buffers) == (MAX_QUEUED_EVENTS, 2)
    assert flood._subpartitions[0].is_released, "the consumer has cancelled it"
    with pytest.raises(RemoteProtocolError, match=rf"channel 0 of .*: {MAX_QUEUED_EVENTS} events .*max_queued_events"):
        gate.poll_next()
    assert events(both.read_others(gate)) == [EndOfPartition()]


def test_events_that_are_read_make_room_for_others(both: BothSides) -> None:
    """The bound is of what waits, not of what came."""
    partition = both.server.partition(1)
    gate = both.client.open_gate(1)

    found = []
    for _ in range(4):
        for _ in range(MAX_QUEUED_EVENTS // 2):
            partition.broadcast_event(EVENT)
        found += both.read(gate)
    partition.finish()

    assert events(found + both.read(gate)) == [EVENT] * (2 * MAX_QUEUED_EVENTS) + [EndOfPartition()]


@pytest.mark.parametrize("is_local", [False, True])
def test_a_channel_of_several_subpartitions_ends_with_the_last_of_them(both: BothSides, is_local: bool) -> None:
    """SingleInputGate.waitAndGetNextData: the ends of the others are counted, and the task sees one."""
    partition = both.server.partition(1, num_subpartitions=3)
    gate = SingleInputGate("consumer")
    channel: InputChannel
    if is_local:
        channel = LocalInputChannel(gate, 0, partition_id_of(1), 1, both.server.manager, last=2)
    else:
        channel = RemoteInputChannel(gate, 0, partition_id_of(1), 1, receiver_of(1), both.client, last=2)
        channel.assign_exclusive_segments(both.client.pool, EXCLUSIVE)
    gate.add_channel(channel)
    gate.request_partitions()
    both.client.gates.append(gate)
    for index in (1, 2):
        fill(partition, 3, index)
    partition.notify_end_of_data(StopMode.DRAIN)
    partition.finish()

    found = both.read(gate)

    assert [each.buffer is None for each in found] == [False] * 6 + [True] * 2
    assert events(found) == [EndOfData(StopMode.DRAIN), EndOfPartition()]
    assert (gate.is_finished, gate.end_of_data_status) == (True, EndOfDataStatus.DRAINED)
    assert not partition._subpartitions[0].is_released, "nobody asked for it"


def test_an_error_behind_the_first_end_of_several_is_told(both: BothSides) -> None:
    """The channel has not ended before the last of its subpartitions has."""
    partition = both.server.partition(1, num_subpartitions=2)
    gate = both.client.open_gate(1, last=1)
    partition._subpartitions[0].finish()
    both.pump()

    partition.fail(RuntimeError("late"))

    with pytest.raises(ProducerFailedError, match="late"):
        both.read(gate)


def test_a_refused_range_leaves_everything_for_its_rightful_readers(both: BothSides) -> None:
    """The other subpartitions of the range can be read, byte for byte."""
    partition = both.server.partition(1, num_subpartitions=3)
    for index in range(3):
        fill(partition, 2, index)
    partition.finish()
    name: ResultPartitionID = partition_id_of(1)

    both.server.receive(PartitionRequest(name, 1, 1, receiver_of(1), 20))
    both.server.receive(PartitionRequest(name, 0, 2, receiver_of(2), 20))
    both.server.receive(PartitionRequest(name, 0, 0, receiver_of(3), 20))
    both.server.receive(PartitionRequest(name, 2, 2, receiver_of(4), 20))
    sent = both.server.sent()

    errors = [each for each in sent if isinstance(each, ErrorResponse)]
    assert [(each.code, each.about) for each in errors] == [(ErrorCode.SUBPARTITION_TAKEN, receiver_of(2))]
    data = [each.receiver for each in sent if isinstance(each, BufferResponse) and each.data_type.is_buffer]
    assert sorted(data) == sorted([receiver_of(1), receiver_of(3), receiver_of(4)] * 2)

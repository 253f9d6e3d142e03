"""``RemoteInputChannel``: requests that are repeated, orders to the producer, partial buffers, numbers."""

import threading
from collections.abc import Iterator

import pytest

from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import (
    LocalProtocolError,
    PartitionNotFoundError,
    ProducerFailedError,
    RemoteProtocolError,
    ResourceClosedError,
)
from netstack.gate.channels.input_channel import ProducerState, RequestBackoff
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.single_input_gate import SingleInputGate
from netstack.ids import input_channel_id
from netstack.testing.embedded_event_loop import ManualClock
from netstack.wire.events import CheckpointBarrier, EndOfData, OtherEvent, StopMode, serialize_event
from netstack.wire.messages import BufferResponse, DataType
from tests.netstack.gate.doubles import RecordingClient, RecordingGate, data, event, remote_channel, room_of
from tests.netstack.gate.manual_timers import ManualStateChecker
from tests.netstack.partition.doubles import partition_id_of
from tests.waiting import PATIENCE_S

SEGMENT = 64


class Fixture:
    def __init__(self) -> None:
        self.network = NetworkBufferPool(8, SEGMENT)
        self.client = RecordingClient()
        self.channels: list[RemoteInputChannel] = []

    def channel(
        self,
        backoff: RequestBackoff | None = None,
        gate: RecordingGate | SingleInputGate | None = None,
        *,
        is_requested: bool = True,
    ) -> RemoteInputChannel:
        channel = RemoteInputChannel(
            RecordingGate() if gate is None else gate,
            0,
            partition_id_of(),
            0,
            input_channel_id(1, 0),
            self.client,
            backoff=backoff or RequestBackoff(),
        )
        channel.assign_exclusive_segments(self.network, 2)
        self.channels.append(channel)
        if is_requested:
            channel.request_subpartition()
        return channel

    def end(self) -> None:
        for channel in self.channels:
            channel.release()
        self.network.destroy()
        assert self.network.num_available == 8


@pytest.fixture
def it() -> Iterator[Fixture]:
    fixture = Fixture()
    yield fixture
    fixture.end()


# ---------------------------------------------------------------- requests


def test_a_request_is_repeated_until_the_producer_has_waited_long_enough(it: Fixture) -> None:
    """RemoteInputChannelTest: testPartitionRequestExponentialBackoff: 500, 1000, 1500, 2000, and that is the end."""
    backoff = RequestBackoff(1000, 500)
    channel = it.channel(backoff)
    seen = []

    for _ in range(4):
        channel.retrigger_subpartition_request()
        seen.append(backoff.waited_ms)

    assert seen == [500, 1000, 1500, 2000]
    with pytest.raises(PartitionNotFoundError, match="was not found at its producer"):
        channel.next_buffer()


def test_a_request_is_repeated_once(it: Fixture) -> None:
    """RemoteInputChannelTest: testPartitionRequestSingleBackoff: 500, then the error."""
    channel = it.channel(RequestBackoff(500, 500))

    channel.retrigger_subpartition_request()
    before = channel.next_buffer()
    channel.retrigger_subpartition_request()

    assert before is None
    with pytest.raises(PartitionNotFoundError):
        channel.next_buffer()


def test_without_a_backoff_the_first_failure_is_the_last(it: Fixture) -> None:
    """RemoteInputChannelTest: testPartitionRequestNoBackoff, testPartitionNotFoundExceptionWhileRetriggeringRequest."""
    channel = it.channel()

    channel.retrigger_subpartition_request()

    with pytest.raises(PartitionNotFoundError, match=str(partition_id_of())):
        channel.next_buffer()
    assert it.client.orders == [("request", 0)]


def test_what_was_not_requested_is_not_repeated(it: Fixture) -> None:
    """RemoteInputChannelTest: testRetriggerWithoutPartitionRequest; after the release it is nothing."""
    channel = it.channel(is_requested=False)

    with pytest.raises(LocalProtocolError, match="once more before it was requested"):
        channel.retrigger_subpartition_request()
    requested = it.channel()
    requested.release()
    requested.retrigger_subpartition_request()

    assert it.client.orders == [("request", 0), ("cancel", 0)]


def test_a_failed_request_asks_for_the_state_of_the_producer(it: Fixture) -> None:
    """RemoteInputChannelTest: testOnFailedPartitionRequest: ready means once more, failed and unknown are errors."""
    checker = ManualStateChecker()
    gates = [SingleInputGate(f"reduce {number}", state_checker=checker) for number in range(3)]
    channels = [it.channel(RequestBackoff(1000, 500), gate) for gate in gates]
    it.client.orders.clear()

    for channel in channels:
        channel.on_failed_partition_request(PartitionNotFoundError("says the producer"))
    asked = [partition_id for partition_id, _ in checker.asked]
    for state in ProducerState:
        checker.answer(state)

    assert (asked, it.client.orders) == ([partition_id_of()] * 3, [("request", 0)])
    assert channels[0].next_buffer() is None
    with pytest.raises(ProducerFailedError, match="failed or was cancelled"):
        channels[1].next_buffer()
    with pytest.raises(PartitionNotFoundError, match="says the producer"):
        channels[2].next_buffer()
    for gate in gates:
        gate.close()


def test_without_a_checker_a_failed_request_is_the_error(it: Fixture) -> None:
    """The error has the producer's own words."""
    gate = SingleInputGate("reduce")
    channel = it.channel(gate=gate)

    channel.on_failed_partition_request(PartitionNotFoundError("says the producer"))

    with pytest.raises(PartitionNotFoundError, match="says the producer"):
        channel.next_buffer()


def test_a_failed_request_never_blocks_the_network_thread() -> None:
    """RemoteInputChannelTest: testOnFailedPartitionRequestDoesNotBlockNetworkThreads (FLINK-13249): while the gate
    still requests.
    """
    network = NetworkBufferPool(4, SEGMENT)
    checker = ManualStateChecker()
    gate = SingleInputGate("reduce", state_checker=checker)
    is_requesting, may_go_on = threading.Event(), threading.Event()

    class BlockingClient(RecordingClient):
        def request_subpartition(self, channel: RemoteInputChannel) -> None:
            is_requesting.set()
            assert may_go_on.wait(PATIENCE_S), "the network thread is blocked"

    channel = remote_channel(gate, BlockingClient(), network, is_requested=False)
    gate.add_channel(channel)
    thread = threading.Thread(target=gate.request_partitions)
    thread.start()
    assert is_requesting.wait(PATIENCE_S)

    channel.on_failed_partition_request()
    gate.retrigger_partition_request(partition_id_of(7), 0)
    may_go_on.set()
    thread.join(PATIENCE_S)

    assert (len(checker.asked), thread.is_alive()) == (1, False)
    gate.close()
    network.destroy()


def test_an_error_before_the_request_is_seen_at_the_poll(it: Fixture) -> None:
    """RemoteInputChannelTest: testProducerFailedException, testPartitionConnectionException."""
    channel = it.channel(is_requested=False)

    channel.on_error(ProducerFailedError("expected"))
    channel.request_subpartition()

    with pytest.raises(ProducerFailedError, match="expected"):
        channel.next_buffer()


# ---------------------------------------------------------------- orders


def test_orders_go_to_the_producer(it: Fixture) -> None:
    """Resumptions, buffer sizes and task events go to the producer."""
    channel = it.channel()
    task_event = OtherEvent("my.Event", b"payload")

    channel.resume_consumption()
    channel.announce_buffer_size(512)
    channel.send_task_event(task_event)

    assert it.client.orders[1:] == [("resume", 0), ("size", 0), ("task event", 0)]
    assert (it.client.sizes, it.client.task_events) == ([512], [serialize_event(task_event)])


def test_a_released_channel_takes_no_orders(it: Fixture) -> None:
    """RemoteInputChannelTest: testUnblockReleasedChannel, testReleasedChannelAnnounceBufferSize."""
    channel = it.channel()
    channel.release()

    for order in (
        channel.resume_consumption,
        lambda: channel.announce_buffer_size(10),
        lambda: channel.send_task_event(OtherEvent("x", b"")),
    ):
        with pytest.raises(ResourceClosedError, match=r"channel 0 of reduce \(1/2\) was released"):
            order()

    assert it.client.orders == [("request", 0), ("cancel", 0)]


def test_orders_before_the_request_are_bugs(it: Fixture) -> None:
    """A channel that was not requested has no producer to send an order to."""
    with pytest.raises(LocalProtocolError, match="used before it was requested"):
        it.channel(is_requested=False).announce_buffer_size(10)


# ---------------------------------------------------------------- partial and compressed buffers


def response(channel: RemoteInputChannel, content: bytes, sizes: tuple[int, ...], number: int = 0) -> BufferResponse:
    buffer = channel.allocate(len(content), DataType.DATA_BUFFER, is_compressed=True)
    assert buffer is not None
    buffer.view[:] = content
    return BufferResponse(channel.channel_id, 0, number, 4, DataType.DATA_BUFFER, True, sizes, buffer)


def test_partial_buffers_are_queued_one_by_one(it: Fixture) -> None:
    """Partial buffers get consecutive numbers, as Flink's client counts, for one credit, which returns when the last
    part is recycled.
    """
    channel = it.channel()

    channel.on_response(response(channel, b"aabccc", (2, 1, 3)))
    channel.on_response(data(channel, 3, b"next"))
    found = [one for _ in range(4) if (one := channel.next_buffer()) is not None]
    facts = [(bytes(one.buffer.view), one.buffer.is_compressed, one.sequence_number) for one in found]
    credit = []
    for one in found[:3]:
        credit.append(channel.buffer_manager.num_unannounced)
        one.buffer.recycle()
    credit.append(channel.buffer_manager.num_unannounced)
    found[3].buffer.recycle()

    assert facts == [(b"aa", True, 0), (b"b", True, 1), (b"ccc", True, 2), (b"next", False, 3)]
    assert (credit, channel.sender_backlog) == ([0, 0, 0, 1], 0)
    channel.check_invariants()


def test_the_numbers_of_parts_wrap(it: Fixture) -> None:
    channel = it.channel()
    channel.expected_sequence_number = 2**31 - 2

    channel.on_response(response(channel, b"aabccc", (2, 1, 3), number=2**31 - 2))
    found = [one for _ in range(3) if (one := channel.next_buffer()) is not None]

    assert [one.sequence_number for one in found] == [2**31 - 2, 2**31 - 1, -(2**31)]
    assert channel.expected_sequence_number == -(2**31) + 1
    for one in found:
        one.buffer.recycle()


@pytest.mark.parametrize("sizes", [(2, 2), (7,), (7, -1), (6, 0)])
def test_partial_buffers_must_add_up(it: Fixture, sizes: tuple[int, ...]) -> None:
    """A buffer whose partial sizes do not add up is recycled and not queued."""
    channel = it.channel()

    with pytest.raises(RemoteProtocolError, match="do not make up"):
        channel.on_response(response(channel, b"aabccc", sizes))

    assert channel.num_queued_buffers == 0
    channel.check_invariants()


def test_a_single_part_is_the_buffer_itself(it: Fixture) -> None:
    """A single part needs no slice, even of an event: Flink's blocking partitions send the end of data like this."""
    channel = it.channel()

    channel.on_response(response(channel, b"aabccc", (6,)))
    channel.on_response(event(channel, 1, EndOfData(StopMode.DRAIN))._replace(partial_sizes=(5,)))
    found = [one for _ in range(2) if (one := channel.next_buffer()) is not None]

    assert [(one.buffer.data_type, one.buffer.size, one.sequence_number) for one in found] == [
        (DataType.DATA_BUFFER, 6, 0),
        (DataType.END_OF_DATA, 5, 1),
    ]
    for one in found:
        one.buffer.recycle()
    channel.check_invariants()


def test_partial_buffers_out_of_order_are_refused_once(it: Fixture) -> None:
    """The refusal recycles all parts."""
    channel = it.channel()

    with pytest.raises(RemoteProtocolError, match="expected sequence number 0, but received 3"):
        channel.on_response(response(channel, b"aabccc", (2, 1, 3), number=3))

    assert (channel.num_queued_buffers, channel.buffer_manager.num_available_buffers) == (0, 2)


# ---------------------------------------------------------------- numbers


def test_a_reordered_buffer_is_the_error_of_the_next_poll(it: Fixture) -> None:
    """RemoteInputChannelTest: testExceptionOnReordering: 0 then 29: the first stays unrecycled until the release."""
    channel = it.channel()
    first, second = room_of(channel), room_of(channel)
    assert first is not None
    assert second is not None

    channel.on_buffer(first, 0, -1)
    channel.on_buffer(second, 29, -1)

    with pytest.raises(RemoteProtocolError, match="buffer reordering: expected sequence number 1, but received 29"):
        channel.next_buffer()
    assert (first.lease.count, second.lease.count) == (1, 0)
    channel.release()
    assert first.lease.count == 0


def test_a_channel_describes_itself_in_one_row() -> None:
    """The row of a channel has credits, unannounced ones, backlog, queue, blocked, and last activity on a clock of its
    own.
    """
    network = NetworkBufferPool(16, SEGMENT)
    clock = ManualClock(5)
    channel = RemoteInputChannel(
        RecordingGate(), 4, partition_id_of(), 3, input_channel_id(1, 0), RecordingClient(), clock_ns=clock.now_ns
    )
    channel.assign_exclusive_segments(network, 2)
    channel.request_subpartition()
    channel.on_response(data(channel, 0, b"12345", backlog=6))
    clock.advance(10)
    channel.on_response(event(channel, 1, CheckpointBarrier(1, 2)))
    found = channel.next_buffer()
    assert found is not None
    found.buffer.recycle()

    row = channel.statistics()

    assert (row.index, row.kind, row.state, row.is_blocked, row.last_activity_ns) == (4, "remote", "open", True, 5)
    assert row.partition == f"{partition_id_of()}/3"
    assert (row.num_credits_available, row.num_credits_granted, row.sender_backlog) == (1, 2, 0)
    assert (row.num_bytes_in, row.num_buffers_in, row.num_queued_buffers, row.queue_size_bytes) == (5, 1, 1, 34)
    channel.resume_consumption()
    assert not channel.statistics().is_blocked
    channel.on_error(ProducerFailedError("x"))
    states = [channel.statistics().state]
    channel.release()
    assert [*states, channel.statistics().state] == ["failed", "released"]
    network.destroy()

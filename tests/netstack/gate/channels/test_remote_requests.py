"""``RemoteInputChannel``: requests that are repeated, orders to the producer, partial buffers, numbers."""

import threading

import pytest

from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import LocalProtocolError, PartitionNotFoundError, ProducerFailedError, RemoteProtocolError
from netstack.gate.channels.input_channel import ProducerState, RequestBackoff
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.single_input_gate import SingleInputGate
from netstack.ids import input_channel_id
from netstack.testing.embedded_event_loop import ManualClock
from netstack.wire.events import CheckpointBarrier, EndOfData, OtherEvent, StopMode, serialize_event
from netstack.wire.messages import BufferResponse, DataType
from tests.netstack.gate.doubles import RecordingClient, RecordingGate, data, event, remote_channel
from tests.netstack.gate.manual_timers import ManualStateChecker
from tests.netstack.partition.doubles import partition_id_of
from tests.netstack.present import present
from tests.netstack.rigs import Ending
from tests.waiting import PATIENCE_S

SEGMENT = 64


class Fixture(Ending):
    def __init__(self) -> None:
        super().__init__()
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

    def give_back(self) -> None:
        for channel in self.channels:
            channel.release()
        self.network.destroy()
        assert self.network.num_available == 8


@pytest.fixture
def it() -> Fixture:
    return Fixture()


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("backoff", "waited_ms"),
    [
        pytest.param(RequestBackoff(1000, 500), [500, 1000, 1500, 2000], id="testPartitionRequestExponentialBackoff"),
        pytest.param(RequestBackoff(500, 500), [500, 1000], id="testPartitionRequestSingleBackoff"),
        pytest.param(RequestBackoff(), [0], id="testPartitionRequestNoBackoff"),
    ],
)
def test_a_request_is_repeated_until_the_producer_has_waited_long_enough(
    it: Fixture, backoff: RequestBackoff, waited_ms: list[float]
) -> None:
    """RemoteInputChannelTest: the last failure is the error of the channel."""
    channel = it.channel(backoff)
    seen = []

    for _ in waited_ms:
        assert channel.next_buffer() is None
        channel.retrigger_subpartition_request()
        seen.append(backoff.waited_ms)

    assert seen == waited_ms
    with pytest.raises(PartitionNotFoundError, match=f"{partition_id_of()}.* was not found at its producer"):
        channel.next_buffer()
    assert it.client.orders == [("request", 0)] * len(waited_ms)


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
    """TestOnFailedPartitionRequestDoesNotBlockNetworkThreads (FLINK-13249): while the gate still requests."""
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
    """Resumptions, buffer sizes, task events and acknowledgements go to the producer."""
    channel = it.channel()
    task_event = OtherEvent("my.Event", b"payload")

    channel.resume_consumption()
    channel.announce_buffer_size(512)
    channel.send_task_event(task_event)
    channel.acknowledge_all_records_processed()

    assert it.client.orders[1:] == [("resume", 0), ("size", 0), ("task event", 0), ("acknowledge", 0)]
    assert (it.client.sizes, it.client.task_events) == ([512], [serialize_event(task_event)])


def test_orders_before_the_request_are_bugs(it: Fixture) -> None:
    """A channel that was not requested has no producer to send an order to."""
    with pytest.raises(LocalProtocolError, match="used before it was requested"):
        it.channel(is_requested=False).announce_buffer_size(10)


# ---------------------------------------------------------------- partial and compressed buffers


def response(channel: RemoteInputChannel, content: bytes, sizes: tuple[int, ...], number: int = 0) -> BufferResponse:
    buffer = present(channel.allocate(len(content), DataType.DATA_BUFFER, is_compressed=True))
    buffer.view[:] = content
    return BufferResponse(channel.channel_id, 0, number, 4, DataType.DATA_BUFFER, True, sizes, buffer)


def test_partial_buffers_are_queued_one_by_one(it: Fixture) -> None:
    """They have consecutive numbers and one credit, which returns when the last part is recycled."""
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


def test_a_channel_describes_itself_in_one_row() -> None:
    """The last activity is on a clock of its own."""
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
    present(channel.next_buffer()).buffer.recycle()

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

"""``RemoteInputChannel``: exact credit, order, and segments that always come back."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.buffer.network_buffer import NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.config import NetstackConfig
from netstack.errors import (
    ConnectionLostError,
    InsufficientNetworkBuffersError,
    LocalProtocolError,
    RemoteProtocolError,
)
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.ids import input_channel_id
from netstack.wire.events import EndOfData, EndOfPartition, StopMode
from netstack.wire.messages import BufferResponse, DataType
from tests.netstack.gate.doubles import RecordingClient, RecordingGate, data, event, remote_channel, room_of
from tests.netstack.partition.doubles import partition_id_of
from tests.netstack.present import present
from tests.netstack.rigs import Ending
from tests.waiting import PATIENCE_S

SEGMENT = 64


class Fixture(Ending):
    def __init__(self, num_segments: int = 2) -> None:
        super().__init__()
        self.network = NetworkBufferPool(8, SEGMENT)
        self.gate = RecordingGate()
        self.client = RecordingClient()
        self.channel = remote_channel(self.gate, self.client, self.network, num_segments=num_segments)

    def poll(self) -> NetworkBuffer:
        return present(self.channel.next_buffer()).buffer

    def give_back(self) -> None:
        self.channel.check_invariants()
        self.channel.release()
        self.channel.check_invariants()
        self.network.check_invariants()
        assert self.network.num_available == 8, "a segment did not come home"
        self.network.destroy()


@pytest.fixture
def it() -> Fixture:
    return Fixture()


# ---------------------------------------------------------------- set-up


def test_the_initial_credit_is_the_number_of_exclusive_segments(it: Fixture) -> None:
    """The request is sent once, with the number of exclusive segments as its credit."""
    it.channel.request_subpartition()

    manager = it.channel.buffer_manager
    assert (manager.initial_credit, manager.num_credits_available, it.network.num_available) == (2, 2, 6)
    assert it.client.orders == [("request", 0)]


def test_segments_are_assigned_once(it: Fixture) -> None:
    """The second time is a bug."""
    with pytest.raises(LocalProtocolError, match="has its exclusive segments already"):
        it.channel.assign_exclusive_segments(it.network, 1)


def test_too_little_memory_names_the_owner(it: Fixture) -> None:
    """A failed assignment takes no segments, and the channel can still be released."""
    channel = RemoteInputChannel(it.gate, 4, partition_id_of(), 0, input_channel_id(4, 0), it.client)

    with pytest.raises(
        InsufficientNetworkBuffersError, match=r"required 7, but only .* \(reduce \(1/2\) \(input channel 4\)\)"
    ):
        channel.assign_exclusive_segments(it.network, 7)
    with pytest.raises(ValueError, match="cannot have -1 exclusive segments"):
        channel.assign_exclusive_segments(it.network, -1)
    with pytest.raises(LocalProtocolError, match="without exclusive segments"):
        channel.request_subpartition()
    channel.release()

    assert it.network.num_available == 6
    assert it.client.orders == [("request", 0)], "what was not requested is not cancelled"


# ---------------------------------------------------------------- events, which need no credit


def flooded(it: Fixture, sizes: list[int], *, max_events: int = 3, max_bytes: int = 100) -> tuple[int, str]:
    """Return how many events of these sizes a channel takes, and its error after that."""
    channel = RemoteInputChannel(
        it.gate,
        1,
        partition_id_of(),
        0,
        input_channel_id(1, 0),
        it.client,
        config=NetstackConfig(max_queued_events=max_events, max_queued_event_bytes=max_bytes),
    )
    channel.assign_exclusive_segments(it.network, 1)
    channel.request_subpartition()
    error = ""
    for number, size in enumerate(sizes):
        buffer = present(channel.allocate(size, DataType.EVENT_BUFFER, is_compressed=False))
        buffer.view[:] = b"\0\0\0\7" + bytes(size - 4)
        try:
            channel.on_response(
                BufferResponse(channel.channel_id, 0, number, 0, DataType.EVENT_BUFFER, False, (), buffer)
            )
        except RemoteProtocolError as caught:
            error = str(caught)
            break
    num_taken = channel.num_queued_buffers
    channel.release()
    return num_taken, error


def test_queued_events_are_bounded_in_number_and_bytes(it: Fixture) -> None:
    """The error names the channel, the numbers and the options; one event is taken whatever its size."""
    num_many, too_many = flooded(it, [4] * 5)
    num_large, too_large = flooded(it, [60, 40, 4])

    assert (num_many, num_large) == (3, 2)
    assert "channel 1 of " in too_many
    assert "3 events (12 bytes) wait for the task, at most 3 may (max_queued_events)" in too_many
    assert (
        "2 events (100 bytes) wait for the task, with 4 more they are more than 100 bytes (max_queued_event_bytes)"
        in too_large
    )
    assert flooded(it, [500]) == (1, "")
    assert flooded(it, [4] * 3) == (3, "")


# ---------------------------------------------------------------- receiving


def test_buffers_arrive_in_order(it: Fixture) -> None:
    """Buffers arrive in order, and the gate is notified once."""
    it.channel.on_response(data(it.channel, 0, b"abc"))
    it.channel.on_response(data(it.channel, 1, b"de", backlog=5))

    first = it.channel.next_buffer()
    second = it.channel.next_buffer()

    assert first is not None
    assert second is not None
    assert (bytes(first.buffer.view), first.next_data_type, bytes(second.buffer.view), second.next_data_type) == (
        b"abc",
        DataType.DATA_BUFFER,
        b"de",
        DataType.NONE,
    )
    assert (it.gate.notified, it.channel.sender_backlog, it.channel.next_buffer()) == ([it.channel], 5, None)
    assert (it.channel.num_bytes_in, it.channel.num_buffers_in) == (5, 2)
    first.buffer.recycle()
    second.buffer.recycle()


def test_the_gate_is_told_again_once_the_channel_was_empty(it: Fixture) -> None:
    """The gate is notified every time an empty channel gets data."""
    it.channel.on_response(data(it.channel, 0))
    it.poll().recycle()

    it.channel.on_response(data(it.channel, 1))

    assert len(it.gate.notified) == 2


def test_events_need_no_credit(it: Fixture) -> None:
    """Events arrive even if every segment is in use."""
    for number in range(2):
        it.channel.on_response(data(it.channel, number))

    it.channel.on_response(event(it.channel, 2, EndOfData(StopMode.DRAIN)))

    assert (it.channel.num_queued_buffers, it.channel.buffer_manager.num_credits_available) == (3, 0)


def test_a_sender_that_overdraws_is_refused(it: Fixture) -> None:
    """The numbers are in the text; also if a recycled buffer is free whose credit was not announced."""
    for number in range(2):
        it.channel.on_response(data(it.channel, number))
    it.poll().recycle()

    with pytest.raises(RemoteProtocolError, match="3 buffers sent, 2 credits granted"):
        it.channel.on_response(data(it.channel, 2))

    assert room_of(it.channel) is None


def test_a_wrong_sequence_number_surfaces_at_the_next_poll(it: Fixture) -> None:
    """A wrong sequence number raises nothing on the loop; the poll names both numbers, and no segment is lost."""
    first, second = room_of(it.channel), room_of(it.channel)
    assert first is not None
    assert second is not None
    it.channel.on_buffer(first, 0, -1)

    it.channel.on_buffer(second, 29, -1)

    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="buffer reordering: expected sequence number 1, but received 29"):
            it.channel.next_buffer()
    assert it.client.orders == [("request", 0)], "a broken channel announces no credit"
    assert (first.lease.count, second.lease.count) == (1, 0)
    it.channel.release()
    assert first.lease.count == 0


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_response_out_of_order_is_refused_at_once(it: Fixture, is_empty: bool) -> None:
    """The buffer of the refused response is recycled without becoming announced credit."""
    with pytest.raises(RemoteProtocolError, match="expected sequence number 0, but received 1"):
        it.channel.on_response(data(it.channel, 1, b"" if is_empty else b"x"))

    assert it.client.orders == [("request", 0)]


def test_an_empty_buffer_gives_its_credit_back(it: Fixture) -> None:
    """An empty buffer counts in the sequence, is not polled, and becomes credit."""
    it.channel.on_response(data(it.channel, 0, b"", backlog=3))
    it.channel.on_response(data(it.channel, 1, b"x"))

    assert (it.channel.buffer_manager.num_unannounced, it.channel.sender_backlog, it.channel.num_queued_buffers) == (
        1,
        0,
        1,
    )
    assert it.client.orders == [("request", 0), ("credit", 0)]


def test_an_empty_buffer_out_of_order_is_an_error(it: Fixture) -> None:
    """An empty buffer out of order is an error like any other."""
    it.channel.on_empty_buffer(5, 0)

    with pytest.raises(RemoteProtocolError, match="expected sequence number 0, but received 5"):
        it.channel.next_buffer()


def test_a_payload_that_does_not_fit_is_refused(it: Fixture) -> None:
    """No buffer is spent on it."""
    with pytest.raises(RemoteProtocolError, match="no buffer available"):
        it.channel.on_response(data(it.channel, 0, bytes(SEGMENT + 1)))

    it.channel.on_response(data(it.channel, 0, bytes(SEGMENT)))
    assert it.channel.num_queued_buffers == 1


def test_a_backlog_announcement_is_remembered(it: Fixture) -> None:
    """A backlog announcement counts, except -1, which announces nothing."""
    it.channel.on_sender_backlog(7)
    it.channel.on_sender_backlog(-1)

    assert it.channel.sender_backlog == 7


# ---------------------------------------------------------------- credit


def test_recycled_buffers_are_announced_as_one_sum(it: Fixture) -> None:
    """Only the first recycle orders an announcement, which takes all buffers that were recycled until it is sent."""
    for number in range(2):
        it.channel.on_response(data(it.channel, number))
    buffers = [it.poll(), it.poll()]

    for buffer in buffers:
        buffer.recycle()
    taken = (it.channel.buffer_manager.take_unannounced(), it.channel.buffer_manager.take_unannounced())

    assert (it.client.orders, taken) == ([("request", 0), ("credit", 0)], (2, 0))
    assert (it.channel.buffer_manager.num_granted, it.channel.buffer_manager.num_credits_available) == (4, 2)
    it.channel.on_response(data(it.channel, 2))
    it.poll().recycle()
    assert it.client.orders[2:] == [("credit", 0)], "and the next one orders again"


def test_after_the_release_recycled_segments_go_home(it: Fixture) -> None:
    """No credit any more; the pool gets them, whenever the task lets go."""
    it.channel.on_response(data(it.channel, 0))
    buffer = it.poll()

    it.channel.release()
    held = it.network.num_available
    buffer.recycle()

    assert (held, it.network.num_available, it.channel.buffer_manager.take_unannounced()) == (7, 8, 0)
    assert it.client.orders == [("request", 0), ("cancel", 0)]


STEPS = st.lists(st.sampled_from(["receive", "event", "poll", "recycle", "announce"]), max_size=60)


@given(steps=STEPS, num_segments=st.integers(1, 4))
def test_granted_is_spent_plus_available(steps: list[str], num_segments: int) -> None:
    """A sender that keeps to its credit is never refused, and no order to announce gets lost."""
    it = Fixture(num_segments)
    credit, number = it.channel.buffer_manager.initial_credit, 0
    held: list[NetworkBuffer] = []

    for step in steps:
        match step:
            case "receive" if credit > 0:
                it.channel.on_response(data(it.channel, number))
                credit, number = credit - 1, number + 1
            case "event":
                it.channel.on_response(event(it.channel, number, EndOfData(StopMode.DRAIN)))
                number += 1
            case "poll":
                found = it.channel.next_buffer()
                if found is not None:
                    held.append(found[0])
            case "recycle" if held:
                held.pop(0).recycle()
            case "announce" if it.client.orders[-1][0] == "credit":
                it.client.orders.clear()
                it.client.orders.append(("announced", 0))
                credit += it.channel.buffer_manager.take_unannounced()
            case _:
                pass
        it.channel.check_invariants()
        assert it.channel.buffer_manager.num_credits_available == credit
        has_order = it.client.orders[-1] == ("credit", 0)
        assert it.channel.buffer_manager.num_unannounced == 0 or has_order or credit > num_segments // 2, (
            "a sender that runs low is told"
        )
    for buffer in held:
        buffer.recycle()
    it.close()


# ---------------------------------------------------------------- errors and ends


def test_the_first_error_wins_and_goes_before_data(it: Fixture) -> None:
    """Every poll raises the first error, and the gate is notified."""
    it.channel.on_response(data(it.channel, 0))

    it.channel.on_error(ConnectionLostError("first"))
    it.channel.on_error(ConnectionLostError("second"))

    for _ in range(2):
        with pytest.raises(ConnectionLostError, match="first"):
            it.channel.next_buffer()
    assert len(it.gate.notified) == 2


def test_a_connection_lost_after_the_end_spoils_nothing(it: Fixture) -> None:
    """The task reads a channel to the end even if the connection is lost after everything has arrived."""
    it.channel.on_response(data(it.channel, 0))
    it.channel.on_response(event(it.channel, 1, EndOfPartition()))

    it.channel.on_error(ConnectionLostError("the producer went home"))

    first, last = it.poll(), it.poll()
    assert (first.data_type, last.data_type) == (DataType.DATA_BUFFER, DataType.END_OF_PARTITION)
    first.recycle()


def test_a_released_channel_takes_nothing_and_says_nothing(it: Fixture) -> None:
    """Every late call of the loop is harmless (FLINK-24738)."""
    it.channel.on_response(data(it.channel, 0))
    it.channel.release()
    it.channel.release()
    notified = len(it.gate.notified)

    it.channel.on_response(data(it.channel, 1))
    it.channel.on_response(event(it.channel, 1, EndOfPartition()))
    it.channel.on_empty_buffer(2, 0)
    it.channel.on_sender_backlog(3)
    it.channel.on_error(ConnectionLostError("late"))
    it.channel.acknowledge_all_records_processed()
    it.channel.request_subpartition()

    assert (room_of(it.channel), it.channel.next_buffer(), it.channel.num_queued_buffers) == (None, None, 0)
    assert len(it.gate.notified) == notified
    assert it.client.orders == [("request", 0), ("cancel", 0)]


def test_a_buffer_on_its_way_during_the_release_goes_home(it: Fixture) -> None:
    """The loop had taken a segment before the release and delivers it after."""
    buffer = present(room_of(it.channel))
    it.channel.release()

    it.channel.on_buffer(buffer, 0, -1)

    assert it.network.num_available == 8


def test_a_release_during_the_request_is_cancelled(it: Fixture) -> None:
    """A producer whose request was sent after the channel's own cancel is told to stop again."""

    class ReleasingClient(RecordingClient):
        def request_subpartition(self, channel: RemoteInputChannel) -> None:
            channel.release()
            super().request_subpartition(channel)

    client = ReleasingClient()
    remote_channel(it.gate, client, it.network, index=1)

    assert client.orders == [("cancel", 1), ("request", 1), ("cancel", 1)]


def test_what_was_released_before_the_request_is_not_requested(it: Fixture) -> None:
    """A channel that was released before its request sends neither a request nor a cancel."""
    client = RecordingClient()
    channel = remote_channel(it.gate, client, it.network, index=1, is_requested=False)
    channel.release()

    channel.request_subpartition()

    assert (channel.is_released, client.orders) == (True, [])


@pytest.mark.slow
def test_hist_17823_receiving_polling_and_releasing_race(tiny_switch_interval: None) -> None:
    """testConcurrentGetNextBufferAndRelease, testConcurrentOnBufferAndRelease: every segment comes home, once."""
    for _ in range(150):
        it = Fixture(4)
        is_over = threading.Event()

        def receive(it: Fixture = it) -> None:
            number = 0
            while not it.channel.is_released and number < 200:
                it.channel.buffer_manager.take_unannounced()
                if it.channel.buffer_manager.num_credits_available > 0:
                    it.channel.on_response(data(it.channel, number))
                    number += 1

        def poll(it: Fixture = it, is_over: threading.Event = is_over) -> None:
            while not is_over.is_set():
                found = it.channel.next_buffer()
                if found is not None:
                    found.buffer.recycle()

        threads = [threading.Thread(target=receive), threading.Thread(target=poll)]
        for thread in threads:
            thread.start()
        while it.channel.num_buffers_in < 5 and threads[0].is_alive():
            is_over.wait(0)
        it.channel.release()
        threads[0].join(PATIENCE_S)
        is_over.set()
        threads[1].join(PATIENCE_S)

        it.close()


@pytest.mark.slow
def test_no_credit_is_lost_between_loop_and_task(tiny_switch_interval: None) -> None:
    """The loop announces only when ordered: a thousand buffers pass through two segments."""
    it = Fixture(2)
    ordered = threading.Event()
    it.client.credit = lambda channel: ordered.set()  # type: ignore[method-assign]  # wakes the loop below
    got: list[bytes] = []

    def loop() -> None:
        credit = it.channel.buffer_manager.initial_credit
        for number in range(1000):
            if credit == 0:
                assert ordered.wait(PATIENCE_S), f"no order came: {it.channel!r}"
                ordered.clear()
                credit += it.channel.buffer_manager.take_unannounced()
                assert credit > 0
            it.channel.on_response(data(it.channel, number, b"%d" % number))
            credit -= 1

    thread = threading.Thread(target=loop)
    thread.start()
    while len(got) < 1000:
        found = it.channel.next_buffer()
        if found is not None:
            got.append(bytes(found.buffer.view))
            found.buffer.recycle()
    thread.join(PATIENCE_S)

    assert got == [b"%d" % number for number in range(1000)]


def test_a_response_without_segments_is_never_taken() -> None:
    """A channel that was never given memory refuses data instead of failing in some other way."""
    channel = RemoteInputChannel(RecordingGate(), 0, partition_id_of(), 0, input_channel_id(0, 0), RecordingClient())

    with pytest.raises(RemoteProtocolError, match="1 buffers sent, 0 credits granted"):
        channel.on_response(BufferResponse(channel.channel_id, 0, 0, 0, DataType.DATA_BUFFER, False, (), None))


def test_the_next_poll_is_known_to_find_data_only_if_it_does(it: Fixture) -> None:
    """The loop, when it works in the task's place, leaves events and errors to the task."""
    channel = it.channel
    seen = [channel.next_is_data]
    channel.on_response(data(channel, 0))
    seen.append(channel.next_is_data)
    channel.on_response(event(channel, 1, EndOfData(StopMode.DRAIN)))
    seen.append(channel.next_is_data)

    present(channel.next_buffer()).buffer.recycle()
    seen.append(channel.next_is_data)
    channel.on_error(LocalProtocolError("broken"))
    seen.append(channel.next_is_data)

    assert seen == [False, True, True, False, False]


def test_the_next_poll_is_known_to_find_an_event_only_if_it_does(it: Fixture) -> None:
    """A reader without room for data still takes an event, and hears of an error."""
    channel = it.channel
    seen = [channel.next_is_event]
    channel.on_response(data(channel, 0))
    channel.on_response(event(channel, 1, EndOfData(StopMode.DRAIN)))
    seen.append(channel.next_is_event)

    present(channel.next_buffer()).buffer.recycle()
    seen.append(channel.next_is_event)
    assert channel.next_buffer() is not None
    seen.append(channel.next_is_event)
    channel.on_error(LocalProtocolError("broken"))
    seen.append(channel.next_is_event)

    assert seen == [False, False, True, False, True]

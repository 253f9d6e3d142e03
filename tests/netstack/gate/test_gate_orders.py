"""``SingleInputGate``: priority, updates of unknown channels, orders to producers, buffer sizes, the end of the data, blocking reads."""

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from netstack.buffer.buffer_compressor import BufferCompressor
from netstack.buffer.buffer_debloater import BufferDebloater
from netstack.buffer.buffer_decompressor import BufferDecompressor
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import ConnectError, LocalProtocolError, RemoteProtocolError, ResourceClosedError, TransportError
from netstack.gate.input_channel import InputChannel, ProducerState
from netstack.gate.input_gate import BufferOrEvent, EndOfDataStatus, SingleInputGate
from netstack.gate.local_channel import LocalInputChannel
from netstack.gate.remote_channel import RemoteInputChannel
from netstack.gate.request_backoff import RequestBackoff
from netstack.gate.unknown_channel import UnknownInputChannel
from netstack.ids import ResultPartitionID, input_channel_id
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_partition_manager import ResultPartitionManager
from netstack.testing.manual_clock import ManualClock
from netstack.wire.events import (
    Alignment,
    CheckpointBarrier,
    CheckpointOptions,
    EndOfData,
    EndOfPartition,
    Event,
    OtherEvent,
    StopMode,
    event_data_type,
    serialize_event,
)
from netstack.wire.messages import BufferResponse, DataType
from tests.netstack.gate.doubles import RecordingClient, data, event, remote_channel
from tests.netstack.gate.manual_timers import ManualTimers
from tests.netstack.partition.doubles import partition_id_of
from tests.waiting import PATIENCE_S

SEGMENT = 64
UNALIGNED = CheckpointBarrier(1, 123, CheckpointOptions(alignment=Alignment.UNALIGNED))


class Fixture:
    """A gate of remote channels."""

    def __init__(self, num_remote: int = 2, gate: SingleInputGate | None = None, num_segments: int = 4) -> None:
        self.network = NetworkBufferPool(64, SEGMENT)
        self.client = RecordingClient()
        self.gate = SingleInputGate("reduce (1/2)") if gate is None else gate
        self.numbers: dict[int, int] = {}
        for index in range(num_remote):
            self.gate.add_channel(self.remote(index, num_segments=num_segments))

    def remote(self, index: int, num_segments: int = 4) -> RemoteInputChannel:
        return remote_channel(self.gate, self.client, self.network, index=index, num_segments=num_segments, is_requested=False)

    def receive(self, index: int, content: bytes = b"data", backlog: int = 0) -> None:
        self._receive(index, lambda channel, number: data(channel, number, content, backlog))

    def receive_event(self, index: int, what: Event) -> None:
        self._receive(index, lambda channel, number: event(channel, number, what))

    def receive_priority(self, index: int, what: Event = UNALIGNED) -> None:
        buffer = NetworkBuffer.unpooled(serialize_event(what), event_data_type(what, has_priority=True))
        self._receive(index, lambda channel, number: BufferResponse(channel.channel_id, 0, number, 0, buffer.data_type, False, (), buffer))

    def _receive(self, index: int, response: Callable[[RemoteInputChannel, int], BufferResponse]) -> None:
        channel = self.gate.channels[index]
        assert isinstance(channel, RemoteInputChannel)
        number = self.numbers.get(index, 0)
        channel.on_response(response(channel, number))
        self.numbers[index] = number + 1

    def poll(self) -> BufferOrEvent:
        found = self.gate.poll_next()
        assert found is not None, f"nothing in {self.gate!r}"
        if found.buffer is not None:
            found.buffer.recycle()
        self.gate.check_invariants()
        return found

    def end(self) -> None:
        self.gate.check_invariants()
        self.gate.close()
        self.gate.check_invariants()
        self.network.check_invariants()
        self.network.destroy()
        assert self.network.num_available == self.network.num_total, f"leaked: {self.network!r}"


@pytest.fixture
def it() -> Iterator[Fixture]:
    fixture = Fixture()
    fixture.gate.request_partitions()
    yield fixture
    fixture.end()


def kinds(found: list[BufferOrEvent]) -> list[tuple[int, bool, bool, bool]]:
    """Channel, whether it is an event, more, more with priority."""
    return [(one.channel_index, one.event is not None, one.more_available, one.more_priority_events) for one in found]


# ---------------------------------------------------------------- priority


def test_a_channel_with_a_priority_event_goes_first(it: Fixture) -> None:
    """It is moved before the others that wait, and afterwards takes its turn among them."""
    it.receive(0, b"0")
    it.receive(1, b"1")
    it.receive_priority(1)
    states = [it.gate.priority_event_available_future().is_done]

    found = [it.poll()]
    states.append(it.gate.priority_event_available_future().is_done)
    found += [it.poll(), it.poll()]

    assert kinds(found) == [(1, True, True, False), (0, False, True, False), (1, False, False, False)]
    assert (states, found[0].event) == ([True, False], UNALIGNED)


def test_priority_events_of_several_channels(it: Fixture) -> None:
    """Each says whether there are more of them."""
    told: list[str] = []
    it.gate.priority_event_available_future().add_done_callback(lambda: told.append("priority"))
    it.gate.available_future().add_done_callback(lambda: told.append("data"))
    it.receive_priority(0)
    it.receive_priority(1)
    it.receive_priority(1, CheckpointBarrier(2, 124, UNALIGNED.options))

    found = [it.poll() for _ in range(3)]

    assert told == ["priority", "data"]
    assert kinds(found) == [(0, True, True, True), (1, True, True, True), (1, True, False, False)]


def test_a_late_priority_notification_is_outdated(it: Fixture) -> None:
    """A45, F22: it carries the number of an event that was polled already; a forced one counts, and finds nothing."""
    channel = it.gate.channels[0]
    it.receive_priority(0)
    it.poll()

    it.gate.notify_priority_event(channel, 0)
    outdated = it.gate.priority_event_available_future().is_done
    it.gate.notify_priority_event_force(channel)
    forced = it.gate.priority_event_available_future().is_done

    assert (outdated, forced, it.gate.poll_next()) == (False, True, None)
    assert not it.gate.priority_event_available_future().is_done
    it.gate.check_invariants()


def _late_notifications(it: Fixture) -> list[Callable[[], None]]:
    """What the loop is about to say of priority events, when the task is faster."""
    late: list[Callable[[], None]] = []
    notify = it.gate.notify_priority_event
    it.gate.notify_priority_event = lambda channel, number: late.append(partial(notify, channel, number))  # type: ignore[method-assign,assignment]  # forced
    return late


def test_a_priority_event_that_was_polled_as_an_ordinary_one_is_remembered(it: Fixture) -> None:
    """The channel had its turn because of its data, and the loop comes with its news afterwards: there are none."""
    late = _late_notifications(it)
    it.receive(0)
    it.receive_priority(0)
    found = [it.poll()]

    late.pop()()

    assert not it.gate.priority_event_available_future().is_done
    found.append(it.poll())
    assert kinds(found) == [(0, True, True, False), (0, False, False, False)]


@pytest.mark.parametrize("is_first_prioritized", [False, True])
def test_a_priority_event_that_is_told_of_while_it_is_polled_leaves_nothing_behind(it: Fixture, is_first_prioritized: bool) -> None:
    """The notification comes between the poll of the channel and the look at the queue: the event is in hand already."""
    late = _late_notifications(it)
    channel = it.gate.channels[0]
    original = channel.next_buffer

    def next_buffer() -> object:
        polled = original()
        while late:
            late.pop()()
        return polled

    it.receive(0)
    it.receive_priority(0)
    if is_first_prioritized:
        it.gate.notify_priority_event_force(channel)
    channel.next_buffer = next_buffer  # type: ignore[method-assign,assignment]  # a forced interleaving

    found = [it.poll()]

    assert not it.gate.priority_event_available_future().is_done
    found.append(it.poll())
    assert kinds(found) == [(0, True, True, False), (0, False, False, False)]


def test_a_later_priority_event_that_is_told_of_while_one_is_polled_counts(it: Fixture) -> None:
    """As above, but the news are about the next one."""
    late = _late_notifications(it)
    channel = it.gate.channels[0]
    original = channel.next_buffer

    def next_buffer() -> object:
        polled = original()
        if it.numbers[0] == 2:
            it.receive_priority(0, CheckpointBarrier(2, 124, UNALIGNED.options))
            while late:
                late.pop()()
        return polled

    it.receive(0)
    it.receive_priority(0)
    channel.next_buffer = next_buffer  # type: ignore[method-assign,assignment]  # a forced interleaving

    found = [it.poll()]

    assert it.gate.priority_event_available_future().is_done
    found += [it.poll(), it.poll()]
    assert kinds(found) == [(0, True, True, True), (0, True, True, False), (0, False, False, False)]


def test_outdated_numbers_are_told_apart_across_the_wrap(it: Fixture) -> None:
    """F22: after 2^31 - 1 comes -2^31."""
    channel = it.gate.channels[0]
    seen = []
    for last, number in ((2**31 - 1, -(2**31)), (-(2**31), 2**31 - 1), (-5, -6), (-6, -5), (7, 7)):
        channel.last_priority_sequence_number = last
        it.gate.notify_priority_event(channel, number)
        seen.append(it.gate.priority_event_available_future().is_done)
        assert it.gate.poll_next() is None

    assert seen == [True, False, False, True, False]


def test_a_double_notification_queues_once(it: Fixture) -> None:
    """A45: with and without priority, in every order."""
    channel = it.gate.channels[0]
    for _ in range(2):
        it.gate.notify_channel_non_empty(channel)
        it.gate.notify_priority_event_force(channel)
        it.gate.notify_priority_event_force(channel)
        it.gate.notify_channel_non_empty(channel)
        it.gate.check_invariants()

    assert it.gate.poll_next() is None
    it.gate.check_invariants()


def test_a_priority_event_during_the_poll_is_not_lost(it: Fixture) -> None:
    """It came while its channel was polled, which had been queued again as ordinary: it is found by that poll, and no other is promised."""
    channel = it.gate.channels[0]
    original = channel.next_buffer

    def receive_after() -> object:
        if it.numbers[0] == 1:
            it.gate.notify_channel_non_empty(channel)
            it.receive_priority(0)
        return original()

    channel.next_buffer = receive_after  # type: ignore[method-assign,assignment]  # a forced interleaving
    it.receive(0)

    found = [it.poll(), it.poll()]

    assert kinds(found) == [(0, True, True, False), (0, False, False, False)]


def test_close_completes_both_futures(it: Fixture) -> None:
    """Whoever waits for priority events only wakes up, too."""
    priority = it.gate.priority_event_available_future()

    it.gate.close()

    assert (priority.is_done, it.gate.available_future().is_done) == (True, True)


# ---------------------------------------------------------------- the end of the data


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ((StopMode.DRAIN, StopMode.NO_DRAIN), EndOfDataStatus.STOPPED),
        ((StopMode.NO_DRAIN, StopMode.DRAIN), EndOfDataStatus.STOPPED),
        ((StopMode.DRAIN, StopMode.DRAIN), EndOfDataStatus.DRAINED),
    ],
)
def test_the_drain_flag(it: Fixture, modes: tuple[StopMode, StopMode], expected: EndOfDataStatus) -> None:
    """SingleInputGateTest: testDrainFlagComputation: only all of them together drain."""
    seen = []
    for index, mode in enumerate(modes):
        seen.append(it.gate.end_of_data_status)
        it.receive_event(index, EndOfData(mode))
        it.poll()

    assert (seen, it.gate.end_of_data_status) == ([EndOfDataStatus.NOT_END_OF_DATA] * 2, expected)


def test_hist_22368_an_ended_channel_does_not_stay_in_the_queue(it: Fixture) -> None:
    """A notification that slipped in before the release: the task would be woken for a channel that has nothing to say."""
    channel = it.gate.channels[1]
    original = channel.release
    it.receive_event(1, EndOfPartition())

    def notify_first() -> None:
        it.gate.notify_channel_non_empty(channel)
        it.gate.notify_priority_event_force(channel)
        original()

    channel.release = notify_first  # type: ignore[method-assign]  # a forced interleaving

    found = it.poll()

    assert (found.more_available, it.gate.available_future().is_done, it.gate.unfinished_channels) == (False, False, [0])
    assert channel.is_queued is False


def test_unfinished_channels() -> None:
    """SingleInputGateTest: testGetUnfinishedChannels: [0, 1, 2], then without 1, then 0, then none."""
    it = Fixture(3)
    it.gate.request_partitions()
    seen = [it.gate.unfinished_channels]
    for index in (1, 0, 2):
        it.receive_event(index, EndOfPartition())
        it.poll()
        seen.append(it.gate.unfinished_channels)

    assert seen == [[0, 1, 2], [0, 2], [2], []]
    with pytest.raises(LocalProtocolError, match="finished, there is nothing to resume"):
        it.gate.resume_consumption(0)
    it.end()


# ---------------------------------------------------------------- blocking reads


def test_a_blocking_read_waits_for_data(it: Fixture) -> None:
    """SingleInputGateTest: testBasicGetNextLogic: it sleeps until something comes, and ends with the gate."""
    found: list[BufferOrEvent | None] = []

    def read() -> None:
        while (one := it.gate.get_next(PATIENCE_S)) is not None:
            if one.buffer is not None:
                one.buffer.recycle()
            found.append(one)

    thread = threading.Thread(target=read)
    thread.start()
    it.receive(0)
    for index in range(2):
        it.receive_event(index, EndOfPartition())
    thread.join(PATIENCE_S)

    assert not thread.is_alive()
    assert sorted((one.channel_index, one.event is not None) for one in found if one is not None) == [(0, False), (0, True), (1, True)]


def test_a_blocking_read_gives_up_after_its_time() -> None:
    """On the gate's clock: 0 s is a poll; a time that is over is over, however often the gate was woken."""
    clock = ManualClock()

    def now_ns() -> int:
        clock.advance(400_000_000)
        return clock.now_ns()

    it = Fixture(gate=SingleInputGate("reduce", clock_ns=now_ns))
    it.gate.request_partitions()
    it.gate.notify_channel_non_empty(it.gate.channels[0])

    assert it.gate.get_next(0) is None
    assert it.gate.get_next(0.3) is None
    it.end()


def test_closing_ends_a_blocking_read(it: Fixture) -> None:
    """SingleInputGateTest: testReleaseWhilePollingChannel's cousin: the reader wakes up with the error."""
    errors: list[str] = []
    is_waiting = threading.Event()
    original = it.gate.available_future

    def note() -> object:
        is_waiting.set()
        return original()

    it.gate.available_future = note  # type: ignore[method-assign,assignment]  # to know that the reader waits

    def read() -> None:
        try:
            it.gate.get_next()
        except ResourceClosedError as error:
            errors.append(str(error))

    thread = threading.Thread(target=read)
    thread.start()
    assert is_waiting.wait(PATIENCE_S)
    it.gate.close()
    thread.join(PATIENCE_S)

    assert (thread.is_alive(), errors) == (False, ["the input gate of reduce (1/2) was closed"])


# ---------------------------------------------------------------- unknown channels


def unknown(gate: SingleInputGate, index: int) -> UnknownInputChannel:
    return UnknownInputChannel(gate, index, partition_id_of(index), 0)


def test_an_unknown_channel_is_replaced_before_the_request() -> None:
    """SingleInputGateTest: testUpdateInputChannel, testUpdateUnknownInputChannel: the request then goes to the new one, once."""
    it = Fixture(1)
    it.gate.add_channel(unknown(it.gate, 1))

    is_taken = it.gate.update_channel(it.remote(1))
    is_taken_again = it.gate.update_channel(it.remote(1))
    it.gate.request_partitions()

    assert (is_taken, is_taken_again, it.client.orders) == (True, False, [("request", 0), ("request", 1)])
    it.end()


def test_an_unknown_channel_is_replaced_after_the_request() -> None:
    """SingleInputGateTest: testUpdateInputChannel: remote and local; each is requested at once, and read."""
    it = Fixture(0)
    manager = ResultPartitionManager()
    pool = it.network.create_buffer_pool(owner="producer", num_required=2, max_buffers=4)
    partition = ResultPartition(partition_id_of(1), 1, pool, "producer")
    manager.register(partition)
    for index in range(3):
        it.gate.add_channel(unknown(it.gate, index))
    it.gate.request_partitions()

    it.gate.update_channel(it.remote(0))
    it.gate.update_channel(LocalInputChannel(it.gate, 1, partition.partition_id, 0, manager))
    it.receive(0)
    partition.emit_record(b"local", 0)
    partition.flush_all()

    assert [it.poll().channel_index for _ in range(2)] == [0, 1]
    assert [row.kind for row in it.gate.channel_statistics()] == ["remote", "local", "unknown"]
    partition.finish()
    it.gate.close()
    partition.close()
    it.end()


def test_an_update_gives_the_new_channel_the_floating_buffers() -> None:
    """It lives on them if it has none of its own."""
    it = Fixture(0)
    it.gate.add_channel(unknown(it.gate, 0))
    it.gate.set_buffer_pool(it.network.create_buffer_pool(owner="gate", num_required=2, max_buffers=2))
    it.gate.request_partitions()
    channel = it.remote(0, num_segments=0)

    it.gate.update_channel(channel)
    channel.on_sender_backlog(5)

    assert channel.unannounced_credit == 2
    with pytest.raises(LocalProtocolError, match="has its floating buffers already"):
        it.gate.set_buffer_pool(it.network.create_buffer_pool(owner="gate", num_required=1, max_buffers=1))
    it.end()


def test_an_update_after_the_close_is_released() -> None:
    """Its buffers go home; also if the close came in the middle."""
    it = Fixture(0)
    it.gate.add_channel(unknown(it.gate, 0))
    it.gate.request_partitions()
    in_the_middle = it.remote(0)
    original = in_the_middle.request_subpartition

    def close_first() -> None:
        it.gate.close()
        original()

    in_the_middle.request_subpartition = close_first  # type: ignore[method-assign]  # a forced interleaving

    is_taken = it.gate.update_channel(in_the_middle)
    late = it.remote(0)
    is_late_taken = it.gate.update_channel(late)

    assert (is_taken, in_the_middle.is_released, is_late_taken, late.is_released) == (True, True, False, True)
    it.end()


def test_hist_1496_events_for_unknown_producers_are_kept() -> None:
    """SingleInputGateTest: testBackwardsEventWithUninitializedChannel: known ones get it now, the others once they are known."""
    it = Fixture(1)
    it.gate.add_channel(unknown(it.gate, 1))
    it.gate.add_channel(unknown(it.gate, 2))
    it.gate.request_partitions()
    events: list[Event] = [OtherEvent("first", b""), OtherEvent("second", b"")]

    for one in events:
        it.gate.send_task_event(one)
    sent_before = list(it.client.orders)
    it.gate.update_channel(it.remote(1))
    it.gate.send_task_event(OtherEvent("third", b""))
    it.gate.update_channel(it.remote(2))
    count = [sum(order == ("task event", index) for order in it.client.orders) for index in range(3)]

    assert sent_before == [("request", 0), ("task event", 0), ("task event", 0)]
    assert count == [3, 3, 3]
    assert it.client.task_events[-3:] == [serialize_event(one) for one in (*events, OtherEvent("third", b""))]
    it.end()


@pytest.mark.slow
def test_hist_10747_19391_an_update_races_with_the_request_and_the_poll(tiny_switch_interval: None) -> None:
    """Whoever comes first: the new channel is requested exactly once, and nobody waits for the other one's lock."""
    for _ in range(150):
        it = Fixture(1)
        it.gate.add_channel(unknown(it.gate, 1))
        channel = it.remote(1)

        def poll(it: Fixture = it) -> None:
            for _ in range(20):
                it.gate.poll_next()

        threads = [
            threading.Thread(target=it.gate.request_partitions),
            threading.Thread(target=it.gate.update_channel, args=(channel,)),
            threading.Thread(target=poll),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a deadlock"

        assert sorted(it.client.orders) == [("request", 0), ("request", 1)]
        it.end()


def test_a_request_is_retriggered_by_its_partition() -> None:
    """SingleInputGateTest: testRequestBackoffConfiguration, F18: the one channel that reads it; nothing after the close."""
    it = Fixture(0)
    channels = [
        RemoteInputChannel(
            it.gate, index, input_channel_id(index, 0), partition_id_of(index), 0, it.client, backoff=RequestBackoff(100, 300)
        )
        for index in range(2)
    ]
    for channel in channels:
        channel.assign_exclusive_segments(it.network, 1)
        it.gate.add_channel(channel)
    it.gate.request_partitions()

    it.gate.retrigger_partition_request(partition_id_of(1), 0)
    it.gate.retrigger_partition_request(partition_id_of(1), 5)
    it.gate.retrigger_partition_request(partition_id_of(9), 0)
    backoffs = [channel.current_backoff_ms for channel in channels]
    it.gate.close()
    it.gate.retrigger_partition_request(partition_id_of(0), 0)

    assert (backoffs, it.client.orders[:3], it.client.delays_ms) == (
        [0, 100],
        [("request", 0), ("request", 1), ("request", 1)],
        [0, 0, 100],
    )
    it.end()


# ---------------------------------------------------------------- orders


def test_orders_go_to_their_channel(it: Fixture) -> None:
    """Resume and acknowledgement to one, buffer sizes and task events to all."""
    it.gate.resume_consumption(1)
    it.gate.acknowledge_all_records_processed(0)
    it.gate.announce_buffer_size(300)
    it.gate.send_task_event(OtherEvent("x", b""))

    assert it.client.orders[2:] == [
        ("resume", 1),
        ("acknowledge", 0),
        ("size", 0),
        ("size", 1),
        ("task event", 0),
        ("task event", 1),
    ]
    it.gate.close()
    with pytest.raises(ResourceClosedError, match="was closed"):
        it.gate.resume_consumption(1)
    with pytest.raises(ResourceClosedError, match="was closed"):
        it.gate.send_task_event(OtherEvent("x", b""))


def test_hist_24738_ended_channels_hear_of_no_buffer_size(it: Fixture) -> None:
    """Released before, or just now: the others hear of it."""
    it.receive_event(0, EndOfPartition())
    it.poll()
    it.gate.announce_buffer_size(300)
    channel = it.gate.channels[1]
    original = channel.announce_buffer_size

    def release_first(size_bytes: int) -> None:
        channel.release()
        original(size_bytes)

    channel.announce_buffer_size = release_first  # type: ignore[method-assign]  # a forced interleaving
    it.gate.announce_buffer_size(400)

    assert it.client.sizes == [300]


def test_buffers_are_debloated() -> None:
    """256 bytes in 10 ms, a target of 1 ms, 1 buffer in use: 25 bytes; announced once, then it is close enough."""
    clock = ManualClock()
    debloater = BufferDebloater(max_bytes=SEGMENT, min_bytes=16, target_ms=1, num_samples=1)
    it = Fixture(gate=SingleInputGate("reduce", debloater=debloater, clock_ns=clock.now_ns))
    it.gate.request_partitions()
    assert it.gate.throughput is not None
    it.gate.throughput.resume(0)
    for _ in range(2):
        it.receive(0, bytes(SEGMENT))
        it.receive(1, bytes(SEGMENT))
    for _ in range(4):
        it.poll()
    clock.advance(10_000_000)
    in_use = [it.gate.num_buffers_in_use]
    it.gate.trigger_debloating()
    it.gate.trigger_debloating()
    it.receive(0, b"x", backlog=3)
    in_use.append(it.gate.num_buffers_in_use)
    it.gate.close()
    it.gate.trigger_debloating()

    assert (it.client.sizes, in_use) == ([25, 25], [1, 4])
    it.end()


def test_without_a_debloater_nothing_is_measured(it: Fixture) -> None:
    """And nothing announced."""
    it.gate.trigger_debloating()

    assert (it.gate.throughput, it.client.sizes) == (None, [])


# ---------------------------------------------------------------- compression


def compressed(it: Fixture, content: bytes) -> None:
    """A compressed buffer arrives on channel 0."""
    smaller = BufferCompressor().compress(NetworkBuffer.unpooled(content, DataType.DATA_BUFFER))
    assert smaller.is_compressed
    channel = it.gate.channels[0]
    assert isinstance(channel, RemoteInputChannel)
    buffer = channel.allocate(smaller.size, DataType.DATA_BUFFER, is_compressed=True)
    assert buffer is not None
    buffer.view[:] = smaller.view
    channel.on_response(BufferResponse(channel.channel_id, 0, 0, 0, DataType.DATA_BUFFER, True, (), buffer))


def test_compressed_buffers_are_restored() -> None:
    """SingleInputGateTest: testGetCompressedBuffer: the task sees the original, the credit is back at once."""
    it = Fixture(gate=SingleInputGate("reduce", decompressor=BufferDecompressor(SEGMENT)))
    it.gate.request_partitions()
    compressed(it, b"a" * SEGMENT)

    found = it.gate.poll_next()

    assert found is not None
    assert found.buffer is not None
    assert (bytes(found.buffer.view), found.size, found.buffer.is_compressed) == (b"a" * SEGMENT, SEGMENT, False)
    found.buffer.recycle()
    it.end()


def test_compressed_buffers_without_a_decompressor_are_an_error(it: Fixture) -> None:
    """Their memory is not lost."""
    compressed(it, b"a" * SEGMENT)

    with pytest.raises(RemoteProtocolError, match="a compressed buffer, but compression is off here"):
        it.gate.poll_next()


# ---------------------------------------------------------------- checkpoints and numbers


def test_checkpoints_reach_every_channel(it: Fixture) -> None:
    """Start and stop."""
    calls: list[tuple[str, int, object]] = []
    for channel in it.gate.channels:
        watch(channel, calls)

    it.gate.checkpoint_started(UNALIGNED)
    it.gate.checkpoint_stopped(1)

    assert calls == [("started", 0, UNALIGNED), ("started", 1, UNALIGNED), ("stopped", 0, 1), ("stopped", 1, 1)]


def watch(channel: InputChannel, calls: list[tuple[str, int, object]]) -> None:
    def started(barrier: CheckpointBarrier) -> None:
        calls.append(("started", channel.index, barrier))

    def stopped(checkpoint_id: int) -> None:
        calls.append(("stopped", channel.index, checkpoint_id))

    channel.checkpoint_started = started  # type: ignore[method-assign]  # a recorder
    channel.checkpoint_stopped = stopped  # type: ignore[method-assign]  # a recorder


def test_the_gate_says_how_much_of_its_buffers_is_used() -> None:
    """InputBuffersMetricsTest: testCalculateTotalBuffersSize, testExclusiveBuffersUsage, testFloatingBuffersUsage."""
    it = Fixture(2, num_segments=2)
    it.gate.set_buffer_pool(it.network.create_buffer_pool(owner="gate", num_required=8, max_buffers=8))
    it.gate.request_partitions()
    fresh = it.gate.statistics()
    it.receive(0, b"12345", backlog=3)
    channel = it.gate.channels[0]
    assert isinstance(channel, RemoteInputChannel)
    channel.take_unannounced_credit()
    one_exclusive = it.gate.statistics()
    it.receive(0, b"678", backlog=2)

    used = it.gate.statistics()

    assert (fresh.num_exclusive_buffers, fresh.num_floating_buffers) == (4, 8)
    assert (fresh.exclusive_usage, fresh.floating_usage, fresh.in_pool_usage) == (0.0, 0.0, 0.0)
    assert (one_exclusive.num_exclusive_used, one_exclusive.num_floating_used, one_exclusive.exclusive_usage) == (1, 0, 0.25)
    assert (used.num_exclusive_used, used.num_floating_used) == (1, 1)
    assert (used.floating_usage, used.in_pool_usage) == (1 / 8, 2 / 12)
    assert (used.num_queued_buffers, used.queue_size_bytes) == (2, 8)
    it.end()


def test_a_gate_of_local_channels_has_no_buffers_to_use() -> None:
    """InputBuffersMetricsTest: local channels do not count; nothing is divided by zero."""
    gate = SingleInputGate("reduce")

    numbers = gate.statistics()

    assert (numbers.exclusive_usage, numbers.floating_usage, numbers.in_pool_usage) == (0.0, 0.0, 0.0)
    gate.close()


def test_setup_takes_the_exclusive_buffers_of_every_channel() -> None:
    """SingleInputGateTest: testRequestBuffersWithRemoteInputChannel: 2 each, 8 floating ones for both, and all of them back at the end."""
    network, client = NetworkBufferPool(16, SEGMENT), RecordingClient()
    gate = SingleInputGate("reduce")
    for index in range(2):
        gate.add_channel(remote_channel(gate, client, network, index=index, num_segments=2, is_requested=False))
    pool = network.create_buffer_pool(owner="gate", num_required=1, max_buffers=8)
    gate.set_buffer_pool(pool)

    assert (network.num_available + pool.num_available, pool.num_buffers) == (12, 8)
    gate.close()
    assert (network.num_available, pool.is_destroyed) == (16, True)
    network.destroy()


def test_a_release_while_the_channel_is_polled() -> None:
    """SingleInputGateTest: testReleaseWhilePollingChannel (FLINK-17823): the close finds the channel in the task's hands."""
    it = Fixture(1)
    it.gate.request_partitions()
    channel = it.gate.channels[0]
    original = channel.next_buffer

    def close_after() -> object:
        found = original()
        it.gate.close()
        return found

    channel.next_buffer = close_after  # type: ignore[method-assign,assignment]  # a forced interleaving
    it.receive(0)
    it.receive(0)

    found = it.gate.poll_next()

    assert found is not None
    assert found.buffer is not None
    found.buffer.recycle()
    it.end()


@pytest.mark.parametrize(("raised", "expected"), [(OSError("nobody there"), TransportError), (ConnectError("nobody there"), ConnectError)])
def test_a_check_of_the_producer_that_fails_is_the_error_of_the_channel(raised: Exception, expected: type[Exception]) -> None:
    """The thread that finds the partition missing is a timer's or the loop's, which would only log it."""

    class FailingChecker:
        def check(self, partition_id: ResultPartitionID, on_result: Callable[[ProducerState], None]) -> None:
            raise raised

    gate = SingleInputGate("reduce (1/2)", state_checker=FailingChecker())
    timers = ManualTimers()
    manager = ResultPartitionManager(timers=timers)
    gate.add_channel(LocalInputChannel(gate, 0, partition_id_of(), 0, manager, wait_timeout_ms=10, timers=timers))
    gate.request_partitions()

    timers.ring()

    with pytest.raises(expected, match="nobody there"):
        gate.poll_next()
    gate.close()
    manager.shutdown()

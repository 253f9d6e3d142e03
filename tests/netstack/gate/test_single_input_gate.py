"""``SingleInputGate``: strict turns, exact availability, one error at a time."""

import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.availability import AvailabilityFuture
from netstack.buffer.network_buffer import BufferDecompressor, NetworkBuffer
from netstack.errors import ConnectionLostError, LocalProtocolError, RemoteProtocolError, ResourceClosedError
from netstack.gate.channels.local_input_channel import LocalInputChannel
from netstack.gate.gate_channels import BufferOrEvent, EndOfDataStatus, GateStatistics
from netstack.gate.single_input_gate import SingleInputGate
from netstack.partition.result_partition import ResultPartition
from netstack.testing.embedded_event_loop import ManualClock
from netstack.wire.events import EndOfData, EndOfPartition, StopMode
from netstack.wire.messages import BufferResponse, DataType
from tests.netstack.gate.doubles import RecordingClient, remote_channel
from tests.netstack.gate.remote_gate import SEGMENT, RemoteGate, compressed, requested_gate
from tests.netstack.partition.doubles import partition_id_of
from tests.waiting import PATIENCE_S

# ---------------------------------------------------------------- set-up


def test_partitions_are_requested_once_in_order(it: RemoteGate) -> None:
    """SingleInputGateTest: testPartitionRequestLogic, testSetupLogic: the second call does nothing."""
    it.gate.request_partitions()

    assert it.client.orders == [("request", 0), ("request", 1)]


def test_channels_are_added_in_order_and_before_the_request(it: RemoteGate) -> None:
    """An index that does not fit, or a channel that comes late, is a bug."""
    gate = SingleInputGate("odd")
    channel = LocalInputChannel(gate, 1, partition_id_of(), 0, it.manager)

    with pytest.raises(LocalProtocolError, match="odd: channel 1 is added as number 0"):
        gate.add_channel(channel)
    with pytest.raises(LocalProtocolError, match="channel 2 is added as number 2 after the request"):
        it.gate.add_channel(LocalInputChannel(it.gate, 2, partition_id_of(), 0, it.manager))

    gate.close()
    late = LocalInputChannel(gate, 0, partition_id_of(), 0, it.manager)
    with pytest.raises(LocalProtocolError, match="odd: channel 0 is added as number 0 after the close"):
        gate.add_channel(late)

    assert (gate.num_channels, late.is_released) == (0, False)
    channel.release()
    late.release()


def test_a_gate_only_moves_on(it: RemoteGate) -> None:
    """A gate requests and closes once, and never requests after the close."""
    gate = SingleInputGate("odd")
    client = RecordingClient()
    gate.add_channel(remote_channel(gate, client, it.network, is_requested=False))
    gate.close()
    gate.close()

    with pytest.raises(ResourceClosedError, match="the input gate of odd was closed"):
        gate.request_partitions()

    assert (gate.is_closed, gate.is_finished, client.orders) == (True, False, [])
    gate.check_invariants()


def test_a_gate_without_channels_is_finished_once_requested() -> None:
    """The finished gate is available, so that its task sees the end."""
    gate = SingleInputGate("empty")
    before = (gate.is_finished, gate.available_future().is_done)

    gate.request_partitions()

    assert (before, gate.is_finished, gate.available_future().is_done) == ((False, False), True, True)


# ---------------------------------------------------------------- availability


def test_availability_follows_the_queue(it: RemoteGate) -> None:
    """testIsAvailable: pending while there is nothing, done while there is something, a fresh future after it."""
    first = it.gate.available_future()
    told: list[str] = []
    first.add_done_callback(lambda: told.append("data"))
    before = (first.is_done, it.gate.poll_next())

    it.receive(0)
    it.receive(0)
    states = [it.gate.available_future().is_done]
    for _ in range(2):
        it.poll()
        states.append(it.gate.available_future().is_done)

    assert (before, first.is_done, told, states) == ((False, None), True, ["data"], [True, True, False])


def test_a_callback_may_poll(it: RemoteGate) -> None:
    """No lock is held while futures are completed, so that a callback may poll."""
    found: list[BufferOrEvent] = []
    it.gate.available_future().add_done_callback(lambda: found.append(it.poll()))

    it.receive(1)

    assert [one.channel_index for one in found] == [1]


def test_more_available_tells_whether_to_poll_on(it: RemoteGate) -> None:
    """SingleInputGateTest: testIsMoreAvailableReadingFromSingleInputChannel: data of any channel counts."""
    it.receive(0)
    it.receive(0)
    it.receive(1)

    assert [it.poll().more_available for _ in range(3)] == [True, True, False]


def test_a_notification_during_the_poll_is_not_lost(it: RemoteGate) -> None:
    """The channel was taken out before it was polled, so it is queued again."""
    channel = it.channel(0)
    original = channel.next_buffer

    def receive_after() -> object:
        found = original()
        if it.numbers[0] == 1:
            it.receive(0, b"late")
        return found

    channel.next_buffer = receive_after  # type: ignore[method-assign,assignment]  # a forced interleaving
    it.receive(0, b"early")

    assert (it.poll().more_available, it.poll().channel_index, it.gate.poll_next()) == (True, 0, None)


# ---------------------------------------------------------------- fairness


@pytest.mark.parametrize("is_prefilled", [True, False])
@pytest.mark.parametrize("kind", ["remote", "local", "mixed"])
def test_hist_5169_channels_take_turns(kind: str, is_prefilled: bool) -> None:
    """Local, remote and mixed, prefilled or not: no channel is more than one buffer ahead of another with data."""
    num_remote, num_local = {"remote": (6, 0), "local": (0, 6), "mixed": (3, 3)}[kind]
    it = requested_gate(num_remote, num_local)

    def feed() -> None:
        for index in range(num_remote):
            it.receive(index)
        for partition in it.partitions:
            partition.emit_record(bytes(SEGMENT), 0)
            partition.flush_all()

    for _ in range(4 if is_prefilled else 1):
        feed()
    counts: Counter[int] = Counter(dict.fromkeys(range(6), 0))
    for turn in range(24):
        counts[it.poll().channel_index] += 1
        assert max(counts.values()) - min(counts.values()) <= 1
        if not is_prefilled and turn % 6 == 5 and turn < 23:
            feed()

    assert set(counts.values()) == {4}


# ---------------------------------------------------------------- events and ends


def test_two_channels_are_read_to_their_ends(it: RemoteGate) -> None:
    """testGetNext...: in order, each channel is released at its end, the finished gate stays available."""
    for index in range(2):
        it.receive(index, b"%d" % index)
        it.receive_event(index, EndOfData(StopMode.DRAIN))
        it.receive_event(index, EndOfPartition())

    found = [it.poll() for _ in range(5)]
    is_early = it.gate.is_finished
    last = it.poll()

    assert [(one.channel_index, one.event) for one in found] == [
        (0, None),
        (1, None),
        (0, EndOfData(StopMode.DRAIN)),
        (1, EndOfData(StopMode.DRAIN)),
        (0, EndOfPartition()),
    ]
    assert (is_early, last, it.gate.is_finished) == (
        False,
        BufferOrEvent(1, None, EndOfPartition(), False, False, 4),
        True,
    )
    assert [channel.is_released for channel in it.gate.channels] == [True, True]
    assert it.client.orders[-2:] == [("cancel", 0), ("cancel", 1)]
    assert (it.gate.poll_next(), it.gate.available_future().is_done) == (None, True)


def test_a_notification_after_the_end_is_nothing(it: RemoteGate) -> None:
    """testNotifyAfterEndOfPartition: before and after the last channel nothing is queued (FLINK-8750)."""
    it.receive_event(0, EndOfPartition())
    it.poll()

    it.gate.notify_channel_non_empty(it.channel(0))
    after_first = (it.gate.poll_next(), it.gate.available_future().is_done)
    it.receive_event(1, EndOfPartition())
    it.poll()
    it.gate.notify_channel_non_empty(it.channel(1))

    assert (after_first, it.gate.poll_next(), it.gate.available_future().is_done) == ((None, False), None, True)


def test_a_channel_that_is_queued_again_while_it_ends_yields_nothing(it: RemoteGate) -> None:
    """The late notification slipped in between poll and release; the finished gate stays available."""
    channel = it.channel(1)
    it.receive_event(0, EndOfPartition())
    it.poll()
    it.receive_event(1, EndOfPartition())
    original = channel.release

    def notify_first() -> None:
        it.gate.notify_channel_non_empty(channel)
        original()

    channel.release = notify_first  # type: ignore[method-assign]  # a forced interleaving

    found = it.gate.poll_next()

    assert found == BufferOrEvent(1, None, EndOfPartition(), False, False, 4)
    assert (it.gate.poll_next(), it.gate.available_future().is_done, it.gate.is_finished) == (None, True, True)


def test_a_broken_event_is_the_peers_error(it: RemoteGate) -> None:
    """A broken event is not taken for data, and its buffer is not leaked."""
    channel = it.channel(0)
    channel.on_response(
        BufferResponse(
            channel.channel_id,
            0,
            0,
            0,
            DataType.EVENT_BUFFER,
            False,
            (),
            NetworkBuffer.unpooled(b"\0\0\1\0", DataType.EVENT_BUFFER),
        )
    )

    with pytest.raises(RemoteProtocolError, match="unknown event type 256"):
        it.gate.poll_next()


# ---------------------------------------------------------------- errors and close


def test_a_channels_error_is_raised_when_its_turn_comes(it: RemoteGate) -> None:
    """A channel's error is raised at each of its turns, and the others are read in their turns."""
    it.receive(0)
    it.channel(1).on_error(ConnectionLostError("gone"))
    it.receive(0)

    first = it.poll()
    with pytest.raises(ConnectionLostError, match="gone"):
        it.gate.poll_next()
    it.gate.check_invariants()
    second = it.poll()
    with pytest.raises(ConnectionLostError, match="gone"):
        it.gate.poll_next()

    assert (first.channel_index, second.channel_index, it.gate.available_future().is_done) == (0, 0, True)


def test_close_releases_everything_and_wakes_the_task(it: RemoteGate) -> None:
    """Every channel is released in any state, any number of times; buffers in use return when they are recycled."""
    it.receive(0)
    it.receive(1)
    held = it.gate.poll_next()
    it.poll()
    future = it.gate.available_future()

    it.gate.close()
    it.gate.close()

    assert held is not None
    assert held.buffer is not None
    assert (future.is_done, it.network.num_available) == (True, 127)
    held.buffer.recycle()
    for call in (it.gate.poll_next, it.gate.request_partitions):
        with pytest.raises(ResourceClosedError, match=r"input gate of reduce \(1/2\) was closed"):
            call()
    it.channel(0).on_error(ConnectionLostError("late"))
    it.gate.notify_channel_non_empty(it.channel(0))
    it.gate.check_invariants()


def test_statistics_add_up() -> None:
    """The statistics count bytes by kind of channel, buffers with events, queued buffers and granted credit."""
    it = requested_gate(1, 1)
    it.receive(0, b"12345")
    it.receive(0, b"67")
    it.partitions[0].emit_record(b"abc", 0)
    it.partitions[0].finish()
    for _ in range(4):
        it.poll()
    it.channel(0).buffer_manager.take_unannounced()
    it.receive(0, b"queued")

    assert it.gate.statistics() == GateStatistics(
        num_bytes_in_local=3 + 4,
        num_bytes_in_remote=7,
        num_buffers_in=4,
        num_queued_buffers=1,
        num_credits_granted=6,
        num_channels=2,
        num_channels_finished=1,
        num_buffers_in_local=2,
        queue_size_bytes=6,
    )


# ---------------------------------------------------------------- laws and threads


@given(steps=st.lists(st.tuples(st.sampled_from(["receive", "spurious", "poll"]), st.integers(0, 2)), max_size=50))
def test_available_means_that_somebody_has_something_to_say(steps: list[tuple[str, int]]) -> None:
    """In any order, every buffer is found once, in the order of its channel, and an unavailable gate has none."""
    it = requested_gate(3)
    sent: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    got: dict[int, list[bytes]] = {0: [], 1: [], 2: []}

    def poll() -> bool:
        found = it.gate.poll_next()
        if found is None or found.buffer is None:
            return False
        got[found.channel_index].append(bytes(found.buffer.view))
        found.buffer.recycle()
        it.channel(found.channel_index).buffer_manager.take_unannounced()
        return True

    for step, index in steps:
        if step == "receive" and it.channel(index).buffer_manager.num_credits_available > 0:
            content = b"%d" % len(sent[index])
            sent[index].append(content)
            it.receive(index, content)
        elif step == "spurious":
            it.gate.notify_channel_non_empty(it.channel(index))
        elif step == "poll":
            poll()
        it.gate.check_invariants()
        assert it.gate.available_future().is_done or sent == got
    while poll():
        pass

    assert got == sent
    it.close()


def test_whoever_waited_in_vain_leaves_nothing_behind(it: RemoteGate, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that looks at its gate from time to time, while nothing comes."""
    left: list[object] = []
    future = it.gate.available_future()
    monkeypatch.setattr(AvailabilityFuture, "add_done_callback", lambda _, callback: left.append(callback))
    monkeypatch.setattr(AvailabilityFuture, "remove_done_callback", lambda _, callback: left.remove(callback))

    with pytest.raises(TimeoutError):
        it.gate.get_next(0.0001)

    assert it.gate.available_future() is future
    assert left == []


def test_unfinished_channels() -> None:
    """SingleInputGateTest: testGetUnfinishedChannels: [0, 1, 2], then without 1, then 0, then none."""
    it = requested_gate(3)
    seen = [it.gate.unfinished_channels]
    for index in (1, 0, 2):
        it.receive_event(index, EndOfPartition())
        it.poll()
        seen.append(it.gate.unfinished_channels)

    assert seen == [[0, 1, 2], [0, 2], [2], []]
    with pytest.raises(LocalProtocolError, match="finished, there is nothing to resume"):
        it.gate.resume_consumption(0)


# ---------------------------------------------------------------- ends of data and compressed buffers


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ((StopMode.DRAIN, StopMode.NO_DRAIN), EndOfDataStatus.STOPPED),
        ((StopMode.NO_DRAIN, StopMode.DRAIN), EndOfDataStatus.STOPPED),
        ((StopMode.DRAIN, StopMode.DRAIN), EndOfDataStatus.DRAINED),
    ],
)
def test_the_drain_flag(it: RemoteGate, modes: tuple[StopMode, StopMode], expected: EndOfDataStatus) -> None:
    """SingleInputGateTest: testDrainFlagComputation: only all of them together drain."""
    seen = []
    for index, mode in enumerate(modes):
        seen.append(it.gate.end_of_data_status)
        it.receive_event(index, EndOfData(mode))
        it.poll()

    assert (seen, it.gate.end_of_data_status) == ([EndOfDataStatus.NOT_END_OF_DATA] * 2, expected)


def test_compressed_buffers_are_restored() -> None:
    """SingleInputGateTest: testGetCompressedBuffer: the task sees the original, the credit is back at once."""
    it = RemoteGate(gate=SingleInputGate("reduce", decompressor=BufferDecompressor(SEGMENT)))
    it.gate.request_partitions()
    it.receive_compressed(0, compressed(b"a" * SEGMENT))

    found = it.gate.poll_next()

    assert found is not None
    assert found.buffer is not None
    assert (bytes(found.buffer.view), found.size, found.buffer.is_compressed) == (b"a" * SEGMENT, SEGMENT, False)
    found.buffer.recycle()


def test_compressed_buffers_without_a_decompressor_are_an_error(it: RemoteGate) -> None:
    """A compressed buffer is an error without a decompressor, and is recycled."""
    it.receive_compressed(0, compressed(b"a" * SEGMENT))

    with pytest.raises(RemoteProtocolError, match="a compressed buffer, but compression is off here"):
        it.gate.poll_next()


# ---------------------------------------------------------------- blocking reads


def test_a_blocking_read_waits_for_data(it: RemoteGate) -> None:
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
    assert sorted((one.channel_index, one.event is not None) for one in found if one is not None) == [
        (0, False),
        (0, True),
        (1, True),
    ]


def test_a_blocking_read_gives_up_after_its_time() -> None:
    """A timeout counts on the gate's clock, however often the gate is woken; 0 s is a poll."""
    clock = ManualClock()

    def now_ns() -> int:
        clock.advance(400_000_000)
        return clock.now_ns()

    it = RemoteGate(gate=SingleInputGate("reduce", clock_ns=now_ns))
    it.gate.request_partitions()
    it.gate.notify_channel_non_empty(it.gate.channels[0])

    for timeout_s in (0, 0.3):
        with pytest.raises(TimeoutError, match=f"nothing came within {timeout_s:g} s"):
            it.gate.get_next(timeout_s)


def test_closing_ends_a_blocking_read(it: RemoteGate) -> None:
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


# ---------------------------------------------------------------- threads


@pytest.mark.slow
def test_a_task_that_sleeps_on_the_future_misses_nothing(tiny_switch_interval: None) -> None:
    """Three producing threads, one task that parks while the gate is not available: all arrives, in order, to the
    end.
    """
    it = requested_gate(0, 3)

    def produce(partition: ResultPartition) -> None:
        for number in range(300):
            partition.emit_record(b"%04d" % number, 0)
            if number % 3 == 0:
                partition.flush_all()
        partition.finish()

    threads = [threading.Thread(target=produce, args=(partition,)) for partition in it.partitions]
    for thread in threads:
        thread.start()
    got = [bytearray() for _ in it.partitions]
    while not it.gate.is_finished:
        found = it.gate.poll_next()
        if found is None:
            parked = threading.Event()
            it.gate.available_future().add_done_callback(parked.set)
            assert parked.wait(PATIENCE_S), f"never woken: {it.gate!r}"
        elif found.buffer is not None:
            got[found.channel_index].extend(found.buffer.view)
            found.buffer.recycle()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert got == [b"".join(b"%04d" % number for number in range(300))] * 3


@pytest.mark.slow
def test_close_races_with_polling_and_receiving(tiny_switch_interval: None) -> None:
    """A canceler closes while the loop receives and the task polls: the task gets the error, all segments are home
    (FLINK-18595).
    """
    for _ in range(60):
        it = requested_gate(2, 1)
        errors: list[Exception] = []

        def receive(it: RemoteGate = it) -> None:
            for turn in range(100):
                index = turn % 2
                it.channel(index).buffer_manager.take_unannounced()
                if it.channel(index).buffer_manager.num_credits_available > 0:
                    it.receive(index)

        def poll(it: RemoteGate = it, errors: list[Exception] = errors) -> None:
            try:
                while True:
                    found = it.gate.poll_next()
                    if found is not None and found.buffer is not None:
                        found.buffer.recycle()
            except ResourceClosedError as error:
                errors.append(error)

        threads = [threading.Thread(target=receive), threading.Thread(target=poll)]
        for thread in threads:
            thread.start()
        it.partitions[0].emit_record(b"abc", 0)
        it.partitions[0].flush_all()
        it.gate.close()
        for thread in threads:
            thread.join(PATIENCE_S)

        assert not any(thread.is_alive() for thread in threads)
        assert len(errors) == 1
        it.close()

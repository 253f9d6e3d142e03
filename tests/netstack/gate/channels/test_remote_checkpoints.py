"""``RemoteInputChannel``: priority events, announced barriers, and the data that an unaligned checkpoint persists."""

import pytest

from netstack.buffer.network_buffer import NetworkBuffer
from netstack.errors import CheckpointSubsumedError, LocalProtocolError, RemoteProtocolError
from netstack.gate.single_input_gate import SingleInputGate
from netstack.partition.channel_state import InputChannelInfo
from netstack.wire.events import (
    Alignment,
    CheckpointBarrier,
    CheckpointOptions,
    EndOfData,
    Event,
    EventAnnouncement,
    StopMode,
    deserialize_event,
    event_data_type,
    serialize_event,
)
from netstack.wire.messages import DataType
from tests.netstack.gate.channels import run_channel
from tests.netstack.gate.channels.run_channel import MAX, UNALIGNED
from tests.netstack.gate.doubles import RecordingGate, is_unlocked
from tests.netstack.partition.doubles import recycled_sizes
from tests.netstack.present import present

WITH_TIMEOUT = CheckpointBarrier(1, 123, CheckpointOptions(alignment=Alignment.ALIGNED, aligned_timeout_ms=10))


class Fixture(run_channel.Fixture):
    """A channel, and a sender that counts its buffers."""

    def __init__(self, gate: SingleInputGate | None = None, first: int = 0) -> None:
        super().__init__(gate=gate, first=first)
        self.number = first

    def send(self, *sizes: int) -> None:
        for size in sizes:
            buffer = present(self.channel.allocate(size, DataType.DATA_BUFFER, is_compressed=False))
            self._send(buffer)

    def send_barrier(self, barrier: CheckpointBarrier) -> None:
        data_type = event_data_type(barrier, has_priority=barrier.options.is_unaligned)
        self._send(NetworkBuffer.unpooled(serialize_event(barrier), data_type))

    def send_around(self, barrier: CheckpointBarrier) -> None:
        """Send data of 1 and 2 bytes, the barrier, and data of 3 and 4 bytes."""
        self.send(1, 2)
        self.send_barrier(barrier)
        self.send(3, 4)

    def _send(self, buffer: NetworkBuffer) -> None:
        self.channel.on_buffer(buffer, self.number, 0)
        self.number = -MAX - 1 if self.number == MAX else self.number + 1

    def poll_numbers(self, count: int) -> list[int]:
        found = []
        for _ in range(count):
            one = present(self.channel.next_buffer())
            one.buffer.recycle()
            found.append(one.sequence_number)
        return found

    def in_flight(self) -> list[int]:
        return recycled_sizes(self.channel._in_flight.in_flight_locked(self.channel.received.rest))


@pytest.fixture
def it() -> Fixture:
    return Fixture()


# ---------------------------------------------------------------- sequence numbers


def test_data_flows_across_the_wrap() -> None:
    """A connection that lives for 2^31 buffers does not break."""
    it = Fixture(first=MAX - 1)

    it.send(1, 2, 3, 4)

    assert it.poll_numbers(4) == [MAX - 1, MAX, -MAX - 1, -MAX]


# ---------------------------------------------------------------- priority and announcements


def test_priority_events_come_first(it: Fixture) -> None:
    """RemoteInputChannelTest: testPrioritySequenceNumbers: 2, 0, 1, 3, 4."""
    it.send_around(UNALIGNED)

    assert it.poll_numbers(5) == [2, 0, 1, 3, 4]
    assert isinstance(it.gate, RecordingGate)
    assert (it.gate.priority, it.notified) == ([2], 1)


def test_a_timeoutable_barrier_is_announced(it: Fixture) -> None:
    """testRequiresAnnouncement: the announcement overtakes the data, the barrier keeps its place."""
    it.send_around(WITH_TIMEOUT)

    announcement = present(it.channel.next_buffer())
    event = deserialize_event(announcement.buffer.view)
    first_data = it.poll_numbers(2)
    barrier = present(it.channel.next_buffer())

    assert event == EventAnnouncement(2, WITH_TIMEOUT)
    assert (announcement.sequence_number, announcement.buffer.data_type) == (2, DataType.PRIORITIZED_EVENT_BUFFER)
    assert announcement.next_data_type is DataType.DATA_BUFFER
    assert (first_data, barrier.sequence_number, barrier.buffer.data_type) == (
        [0, 1],
        2,
        DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER,
    )
    assert it.poll_numbers(2) == [3, 4]
    assert isinstance(it.gate, RecordingGate)
    assert it.gate.priority == [2]


def test_only_the_first_priority_event_is_news(it: Fixture) -> None:
    """The poll of the first one tells that there is another."""
    it.send_barrier(UNALIGNED)
    it.send_barrier(CheckpointBarrier(2, 124, CheckpointOptions(alignment=Alignment.UNALIGNED)))

    found = present(it.channel.next_buffer())

    assert found.next_data_type is DataType.PRIORITIZED_EVENT_BUFFER
    assert [found.sequence_number, *it.poll_numbers(1)] == [0, 1]
    assert isinstance(it.gate, RecordingGate)
    assert it.gate.priority == [0]


def test_an_announced_barrier_is_converted() -> None:
    """testGateNotifiedOnBarrierConversion: the gate is notified although it saw the number already."""
    gate = SingleInputGate("reduce (1/2)")
    it = Fixture(gate)
    it.send(1)
    it.send_barrier(WITH_TIMEOUT)
    found = present(gate.poll_next())
    before = gate.priority_event_available_future().is_done

    gate.convert_to_priority_event(0, 1)
    gate.check_invariants()
    after = gate.priority_event_available_future().is_done
    barrier = gate.poll_next()

    assert (found.event, before, after) == (EventAnnouncement(1, WITH_TIMEOUT), False, True)
    assert barrier is not None
    assert (barrier.event, barrier.more_priority_events, barrier.more_available) == (WITH_TIMEOUT, False, True)
    gate.close()


def test_only_the_last_barrier_can_be_converted(it: Fixture) -> None:
    """A conversion of another barrier, or of one that was polled already, is an error of the caller."""
    it.send_around(WITH_TIMEOUT)

    with pytest.raises(LocalProtocolError, match="1 is not the last barrier"):
        it.channel.convert_to_priority_event(1)
    it.poll_numbers(4)
    with pytest.raises(LocalProtocolError, match="no event 2 that could get priority"):
        it.channel.convert_to_priority_event(2)


def test_priority_is_seen_by_the_gate() -> None:
    """RemoteInputChannelTest: testNotifyOnPriority: an ordinary barrier makes data available, a priority one both."""
    gate = SingleInputGate("reduce (1/2)")
    it = Fixture(gate)
    seen = []

    for barrier in (CheckpointBarrier(1, 123), UNALIGNED):
        it.send_barrier(barrier)
        seen.append((gate.available_future().is_done, gate.priority_event_available_future().is_done))
        gate.check_invariants()

    assert seen == [(True, False), (True, True)]
    gate.close()


@pytest.mark.parametrize(
    ("event", "data_type", "backlog", "text"),
    [
        (CheckpointBarrier(1, 2), DataType.ALIGNED_CHECKPOINT_BARRIER, 3, "blocks the sender, but says that 3 buffers"),
        (
            EventAnnouncement(1, UNALIGNED),
            DataType.TIMEOUTABLE_ALIGNED_CHECKPOINT_BARRIER,
            0,
            "is not a checkpoint barrier",
        ),
    ],
)
def test_events_that_contradict_themselves_are_refused(
    it: Fixture, event: Event, data_type: DataType, backlog: int, text: str
) -> None:
    """An event that contradicts its data type or its backlog is an error of the channel."""
    it.channel.on_buffer(NetworkBuffer.unpooled(serialize_event(event), data_type), 0, backlog)

    with pytest.raises(RemoteProtocolError, match=text):
        it.channel.next_buffer()


def test_a_broken_barrier_is_refused(it: Fixture) -> None:
    """A broken barrier is found on the loop, and no data is persisted for it."""
    it.channel.on_buffer(NetworkBuffer.unpooled(b"\0\0\0\1\0", DataType.ALIGNED_CHECKPOINT_BARRIER), 0, 0)

    with pytest.raises(RemoteProtocolError, match="Checkpoint"):
        it.channel.next_buffer()


# ---------------------------------------------------------------- in-flight data


@pytest.mark.parametrize(
    ("num_polled", "expected"),
    [(0, [1, 2]), (1, [1, 2]), (2, [2])],
    ids=["nothing was polled", "its announcement was polled", "a buffer was polled, too"],
)
@pytest.mark.parametrize("barrier", [UNALIGNED, WITH_TIMEOUT], ids=["unaligned", "with a timeout"])
def test_what_is_queued_before_the_barrier_is_in_flight(
    it: Fixture, barrier: CheckpointBarrier, num_polled: int, expected: list[int]
) -> None:
    """RemoteInputChannelTest: testGetInflightBuffers, ...BeforeProcessingAnnouncement, ...AfterPollingBuffer,
    ...AfterProcessingAnnouncement, ...AndBuffer.
    """
    it.send_around(barrier)

    numbers = it.poll_numbers(num_polled)

    assert (numbers, it.in_flight()) == ([2, 0][:num_polled], expected)


def test_events_between_the_data_are_passed_over(it: Fixture) -> None:
    """RemoteInputChannelTest: getInflightBuffers: only data is persisted, also after an event."""
    it.send(1)
    it.receive_event(1, EndOfData(StopMode.DRAIN))
    it.number += 1
    it.send(2)

    assert it.in_flight() == [1, 2]


def test_without_a_barrier_everything_is_in_flight() -> None:
    """RemoteInputChannelTest: testGetAllInflightBuffers, across the wrap of the numbers."""
    it = Fixture(first=MAX - 2)

    it.send(1, 2, 3, 4)

    assert it.in_flight() == [1, 2, 3, 4]


@pytest.mark.parametrize("offset", range(13))
def test_in_flight_data_is_found_across_the_wrap(offset: int) -> None:
    """RemoteInputChannelTest: testGetInflightBuffersOverflow."""
    first = MAX - 10 + offset
    it = Fixture(first=first if first <= MAX else first - 2**32)

    it.send_around(UNALIGNED)

    assert it.in_flight() == [1, 2]


def test_a_checkpoint_that_starts_before_its_barrier_persists_until_it_comes(it: Fixture) -> None:
    """Queued data is persisted, then the data that arrives, in order; no events, and no data after the barrier."""
    it.send(1, 2)
    it.channel.checkpoint_started(UNALIGNED)
    it.send(3)
    it.send_barrier(CheckpointBarrier(0, 1))
    it.send(4)
    it.send_barrier(UNALIGNED)
    it.send(5)

    assert it.writer.persisted == [
        (1, InputChannelInfo(3, 0), [1, 2]),
        (1, InputChannelInfo(3, 0), [3]),
        (1, InputChannelInfo(3, 0), [4]),
    ]


def test_a_checkpoint_that_starts_after_its_barrier_persists_what_it_overtook(it: Fixture) -> None:
    """Exactly the data that the barrier overtook is persisted; the next checkpoint starts anew."""
    it.send_around(UNALIGNED)
    it.channel.checkpoint_started(UNALIGNED)
    it.send(5)
    it.channel.checkpoint_stopped(1)
    it.poll_numbers(5)
    it.channel.checkpoint_started(CheckpointBarrier(2, 200, UNALIGNED.options))
    it.channel.checkpoint_stopped(2)
    it.send(6)

    assert [(checkpoint, sizes) for checkpoint, _, sizes in it.writer.persisted] == [(1, [1, 2]), (2, [5])]


def test_a_newer_barrier_subsumes_an_older_checkpoint(it: Fixture) -> None:
    """The buffers of a subsumed checkpoint are forgotten."""
    it.send_barrier(CheckpointBarrier(5, 1, UNALIGNED.options))

    with pytest.raises(CheckpointSubsumedError, match="checkpoint 4 is not known any more, checkpoint 5 came"):
        it.channel.checkpoint_started(CheckpointBarrier(4, 1, UNALIGNED.options))

    it.send(1)
    it.channel.checkpoint_started(CheckpointBarrier(6, 1, UNALIGNED.options))
    it.send(2)
    assert [(checkpoint, sizes) for checkpoint, _, sizes in it.writer.persisted] == [(6, [1]), (6, [2])], (
        "an obsolete barrier ends nothing"
    )


def test_a_late_abort_of_an_older_checkpoint_stops_nothing(it: Fixture) -> None:
    """ChannelStatePersisterTest: the newer one, which has been started, goes on until its barrier comes."""
    it.channel.checkpoint_started(CheckpointBarrier(2, 1, UNALIGNED.options))
    it.send(1)

    it.channel.checkpoint_stopped(1)
    it.send(2)
    it.send_barrier(CheckpointBarrier(2, 1, UNALIGNED.options))
    it.send(3)

    assert [(checkpoint, sizes) for checkpoint, _, sizes in it.writer.persisted] == [(2, [1]), (2, [2])]


def test_a_late_barrier_of_a_stopped_checkpoint_ends_no_other(it: Fixture) -> None:
    """ChannelStatePersisterTest.testLateBarrier...: the next one still waits for its own barrier."""
    it.channel.checkpoint_started(UNALIGNED)
    it.channel.checkpoint_stopped(1)
    it.channel.checkpoint_started(CheckpointBarrier(2, 1, UNALIGNED.options))

    it.send_barrier(UNALIGNED)
    it.send(1)
    it.send_barrier(CheckpointBarrier(2, 1, UNALIGNED.options))
    it.send(2)

    assert [(checkpoint, sizes) for checkpoint, _, sizes in it.writer.persisted] == [(2, [1])]


def test_the_first_barrier_of_a_checkpoint_counts(it: Fixture) -> None:
    """A second barrier of a checkpoint does not bring the data between both into it."""
    it.send(1)
    it.send_barrier(UNALIGNED)
    it.send(2)
    it.send_barrier(UNALIGNED)

    assert it.in_flight() == [1]


def test_an_error_of_the_writer_loses_no_buffer(it: Fixture) -> None:
    """RemoteInputChannelTest: testExceptionOnPersisting: the buffer is queued, once, and recycled with the channel."""
    it.writer.error = OSError("disk full")
    it.channel.checkpoint_started(UNALIGNED)

    with pytest.raises(OSError, match="disk full"):
        it.send(1)

    assert it.channel.num_queued_buffers == 1
    it.writer.error = None


def test_another_threads_writing_takes_ours_along(it: Fixture) -> None:
    """A thread that hands over takes along what another one leaves, in order, without a lock."""
    it.send(1)
    unlocked = []

    def arrive_meanwhile() -> None:
        unlocked.append(is_unlocked(it.channel))
        it.writer.on_add = None
        it.send(2)
        assert len(it.writer.persisted) == 0

    it.writer.on_add = arrive_meanwhile
    it.channel.checkpoint_started(UNALIGNED)

    assert ([sizes for _, _, sizes in it.writer.persisted], unlocked) == ([[1], [2]], [True])


def test_a_channel_that_announces_nothing_converts_nothing() -> None:
    """Local channels convert no barrier: the queue of their producer does."""
    it = Fixture()

    with pytest.raises(LocalProtocolError, match="not the last barrier, that is None"):
        it.channel.convert_to_priority_event(0)


# ---------------------------------------------------------------- numbers


def test_the_size_of_the_queue_is_known(it: Fixture) -> None:
    """RemoteInputChannelTest: testSizeOfQueuedBuffers: data and events, down to 0 when all is polled."""
    size_of_barrier = len(serialize_event(UNALIGNED))
    seen = [it.channel.queue_size_bytes]
    for size in (1, 2):
        it.send(size)
        seen.append(it.channel.queue_size_bytes)
    it.send_barrier(UNALIGNED)
    seen.append(it.channel.queue_size_bytes)
    for _ in range(3):
        it.poll_numbers(1)
        seen.append(it.channel.queue_size_bytes)

    assert seen == [0, 1, 3, 3 + size_of_barrier, 3, 2, 0]


def test_the_announcement_counts_in_the_queue_and_out(it: Fixture) -> None:
    """The size never goes below 0."""
    it.send_barrier(WITH_TIMEOUT)
    before = it.channel.queue_size_bytes
    it.poll_numbers(2)

    assert before == len(serialize_event(WITH_TIMEOUT)) + len(serialize_event(EventAnnouncement(0, WITH_TIMEOUT)))
    assert it.channel.queue_size_bytes == 0

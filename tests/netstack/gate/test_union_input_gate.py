"""``UnionInputGate``: several gates as one."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.availability import AvailabilityFuture
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import ConnectionLostError, ResourceClosedError
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.gate_channels import UnknownInputChannel
from netstack.gate.input_gate import BatchInputGate, BufferOrEvent, EndOfDataStatus
from netstack.gate.single_input_gate import SingleInputGate
from netstack.gate.union_input_gate import UnionInputGate
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
from netstack.wire.messages import BufferResponse
from tests.netstack.gate.doubles import RecordingClient, data, event, remote_channel
from tests.netstack.partition.doubles import partition_id_of
from tests.waiting import PATIENCE_S

SEGMENT = 64
UNALIGNED = CheckpointBarrier(1, 123, CheckpointOptions(alignment=Alignment.UNALIGNED))


class Fixture:
    """A union of gates with the given numbers of channels; a channel is addressed by its index in the union."""

    def __init__(self, *sizes: int, gates: Sequence[SingleInputGate] = ()) -> None:
        self.network = NetworkBufferPool(256, SEGMENT)
        self.client = RecordingClient()
        self.gates = list(gates) or [SingleInputGate(f"gate {number}") for number in range(len(sizes))]
        self.channels: list[RemoteInputChannel] = []
        for gate, size in zip(self.gates, sizes, strict=True):
            for index in range(size):
                channel = remote_channel(
                    gate, self.client, self.network, index=index, num_segments=8, is_requested=False
                )
                gate.add_channel(channel)
                self.channels.append(channel)
        self.union = UnionInputGate(self.gates)
        self.numbers: Counter[int] = Counter()
        self.union.request_partitions()

    def receive(self, index: int, content: bytes = b"data") -> None:
        self._receive(index, data(self.channels[index], self.numbers[index], content))

    def receive_event(self, index: int, what: Event) -> None:
        self._receive(index, event(self.channels[index], self.numbers[index], what))

    def receive_priority(self, index: int) -> None:
        channel = self.channels[index]
        buffer = NetworkBuffer.unpooled(serialize_event(UNALIGNED), event_data_type(UNALIGNED, has_priority=True))
        self._receive(
            index, BufferResponse(channel.channel_id, 0, self.numbers[index], 0, buffer.data_type, False, (), buffer)
        )

    def _receive(self, index: int, response: BufferResponse) -> None:
        self.channels[index].receiver.on_response(response)
        self.numbers[index] += 1

    def poll(self) -> BufferOrEvent:
        found = self.union.poll_next()
        assert found is not None, f"nothing in {self.union!r}"
        if found.buffer is not None:
            found.buffer.recycle()
        self.union.check_invariants()
        return found

    def end(self) -> None:
        self.union.close()
        self.network.destroy()
        assert self.network.num_available == 256


@pytest.fixture
def it() -> Iterator[Fixture]:
    fixture = Fixture(3, 5)
    yield fixture
    fixture.end()


def test_all_gates_are_read_to_their_ends(it: Fixture) -> None:
    """UnionInputGateTest: testBasicGetNextLogic: 3 + 5 channels, data and the end of each, under shifted indexes."""
    for index in range(8):
        it.receive(index)
        it.receive_event(index, EndOfPartition())

    found = [it.poll() for _ in range(16)]

    assert Counter((one.channel_index, one.event is None) for one in found) == Counter(
        [(index, is_data) for index in range(8) for is_data in (True, False)]
    )
    assert [one.more_available for one in found] == [True] * 15 + [False]
    assert (it.union.is_finished, it.union.poll_next(), it.union.available_future().is_done) == (True, None, True)
    assert it.union.num_channels == 8
    it.union.check_invariants()


def test_the_drain_flag() -> None:
    """UnionInputGateTest: testDrainFlagComputation: DRAIN + NO_DRAIN and DRAIN + DRAIN: stopped, once all four came."""
    it = Fixture(2, 2)
    seen = []
    for index, mode in enumerate((StopMode.DRAIN, StopMode.NO_DRAIN, StopMode.DRAIN, StopMode.DRAIN)):
        it.receive_event(index, EndOfData(mode))
        it.poll()
        seen.append(it.union.end_of_data_status)

    assert seen == [EndOfDataStatus.NOT_END_OF_DATA] * 3 + [EndOfDataStatus.STOPPED]
    it.end()


def test_all_gates_drain_together() -> None:
    """The other outcome."""
    it = Fixture(1, 1)
    for index in range(2):
        it.receive_event(index, EndOfData(StopMode.DRAIN))
        it.poll()

    assert it.union.end_of_data_status is EndOfDataStatus.DRAINED
    it.end()


def test_availability_follows_the_gates(it: Fixture) -> None:
    """UnionInputGateTest: testIsAvailable: pending, done with data of any gate, pending after the last poll."""
    first = it.union.available_future()
    told: list[str] = []
    first.add_done_callback(lambda: told.append("data"))
    before = (first.is_done, it.union.poll_next())

    it.receive(4)
    it.receive(1)
    states = [it.union.available_future().is_done]
    more = []
    for _ in range(2):
        more.append(it.poll().more_available)
        states.append(it.union.available_future().is_done)

    assert (before, told, states, more) == ((False, None), ["data"], [True, True, False], [True, False])


def test_a_finished_union_stays_available() -> None:
    """UnionInputGateTest: testIsAvailableAfterFinished: a gate that is finished alone does not wake the task again and
    again.
    """
    it = Fixture(1, 1)
    states = []
    for index in range(2):
        it.receive_event(index, EndOfPartition())
        it.poll()
        states.append((it.union.is_finished, it.union.available_future().is_done))

    assert (states, it.union.poll_next(), it.union.get_next(0)) == ([(False, False), (True, True)], None, None)
    it.union.check_invariants()
    it.end()


def test_an_update_of_a_gate_is_seen(it: Fixture) -> None:
    """UnionInputGateTest: testUpdateInputChannel: a channel that was unknown when the union was made."""
    gate = SingleInputGate("with an unknown channel")
    gate.add_channel(UnknownInputChannel(gate, 0, partition_id_of(0), 0))
    union = UnionInputGate([gate, SingleInputGate("empty")])
    union.request_partitions()
    channel = remote_channel(gate, it.client, it.network, num_segments=2, is_requested=False)

    gate.update_channel(channel)
    channel.receiver.on_response(data(channel, 0))
    found = union.poll_next()

    assert found is not None
    assert found.buffer is not None
    assert (found.channel_index, bytes(found.buffer.view)) == (0, b"data")
    found.buffer.recycle()
    union.close()


def test_indexes_are_shifted(it: Fixture) -> None:
    """UnionInputGateTest: testGetChannelWithShiftedGateIndexes: what is said to channel 4 of the union goes to channel
    1 of its gate.
    """
    it.client.orders.clear()

    it.union.resume_consumption(4)
    it.union.acknowledge_all_records_processed(2)
    it.union.send_task_event(OtherEvent("x", b""))

    assert it.client.orders[:2] == [("resume", 1), ("acknowledge", 2)]
    assert [order for order, _ in it.client.orders[2:]] == ["task event"] * 8


def test_a_gate_that_has_nothing_after_all(it: Fixture) -> None:
    """UnionInputGateTest: testEmptyPull: it was queued without reason; the next one that has data is polled."""
    it.gates[0].notify_channel_non_empty(it.channels[0])
    states = [it.union.available_future().is_done]

    found = it.union.poll_next()
    states.append(it.union.available_future().is_done)
    it.gates[0].notify_channel_non_empty(it.channels[0])
    it.receive(7)

    assert (states, found, it.poll().channel_index) == ([True, False], None, 7)


def test_gates_take_turns(it: Fixture) -> None:
    """InputGateFairnessTest's rule between gates: 3 channels on one side do not lose against 5 on the other."""
    for _ in range(2):
        for index in range(8):
            it.receive(index)

    gates = [it.poll().channel_index >= 3 for _ in range(12)]

    assert gates == [False, True] * 6


def test_priority_goes_first(it: Fixture) -> None:
    """A gate with a priority event is moved before the others."""
    it.receive(0)
    it.receive(3)
    it.receive_priority(5)
    states = [it.union.priority_event_available_future().is_done]

    found = [it.poll() for _ in range(3)]
    states.append(it.union.priority_event_available_future().is_done)
    it.receive_priority(1)
    states.append(it.union.priority_event_available_future().is_done)
    again = it.poll()

    assert [(one.channel_index, one.event is not None) for one in found] == [(5, True), (0, False), (3, False)]
    assert (states, again.channel_index, again.event) == ([True, False, True], 1, UNALIGNED)


def test_priority_events_of_a_gate_that_still_has_data_are_noticed(it: Fixture) -> None:
    """The gate stands in the queue with its data, and comes to the front with its next priority event."""
    it.receive(0)
    it.receive(0)
    it.receive(4)
    it.receive_priority(0)
    it.poll()
    before = it.union.priority_event_available_future()

    it.receive_priority(0)
    it.receive_priority(0)
    is_told = before.is_done
    found = [it.poll() for _ in range(2)]

    assert (is_told, [one.event for one in found], found[0].more_priority_events) == (
        True,
        [UNALIGNED, UNALIGNED],
        True,
    )


class LateFuture(AvailabilityFuture):
    """Is done when ``real`` is, but its callbacks run when the test says so."""

    __slots__ = ("late", "real")

    def __init__(self, real: AvailabilityFuture, late: list[Callable[[], None]]) -> None:
        super().__init__()
        self.real = real
        self.late = late

    @property
    def is_done(self) -> bool:
        return self.real.is_done

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        self.real.add_done_callback(partial(self.late.append, callback))


class LateGate(SingleInputGate):
    """Tells of priority events when the test says so."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.late: list[Callable[[], None]] = []

    def priority_event_available_future(self) -> AvailabilityFuture:
        return LateFuture(super().priority_event_available_future(), self.late)


def test_late_news_of_a_priority_event_promise_none() -> None:
    """The gate had its turn because of its data: the event is in hand when the thread that brought it tells of it."""
    gate = LateGate("late")
    it = Fixture(1, gates=[gate])
    it.receive(0)
    it.receive_priority(0)
    found = [it.poll()]

    gate.late.pop()()

    assert (found[0].event, it.union.priority_event_available_future().is_done) == (UNALIGNED, False)
    it.poll()
    it.receive_priority(0)
    gate.late.pop()()
    assert (it.union.priority_event_available_future().is_done, it.poll().event) == (True, UNALIGNED)
    it.end()


def test_more_priority_events_are_told(it: Fixture) -> None:
    """Of the same gate and of another one."""
    for index in (0, 1, 6):
        it.receive_priority(index)

    found = [it.poll() for _ in range(3)]

    assert [one.more_priority_events for one in found] == [True, True, False]
    assert sorted(one.channel_index for one in found) == [0, 1, 6]


def many(it: Fixture, max_items: int = 8) -> list[tuple[int, bool, bool]]:
    """What ``poll_many`` finds: whose it is, whether it is data, and whether there is more."""
    items = it.union.poll_many(max_items)
    for each in items:
        if each.buffer is not None:
            each.buffer.recycle()
    it.union.check_invariants()
    return [(each.channel_index, each.buffer is not None, each.more_available) for each in items]


def test_a_gate_that_is_alone_yields_several(it: Fixture) -> None:
    """``poll_many``: as many as asked for; each channel by its index in the union."""
    for _ in range(5):
        it.receive(4)

    found = [many(it, 3), many(it, 3), many(it, 3)]

    assert found == [[(4, True, True)] * 3, [(4, True, True), (4, True, False)], []]
    assert not it.union.available_future().is_done


def test_several_gates_yield_one_each_per_turn(it: Fixture) -> None:
    """``poll_many``: what so many polls would find, until one is alone."""
    for _ in range(2):
        for index in (0, 1, 5):
            it.receive(index)

    found = [[index for index, _, _ in many(it)] for _ in range(4)]

    assert found == [[0, 5], [1, 5], [0, 1], []]


def test_who_does_not_fit_into_a_turn_is_first_in_the_next_one(it: Fixture) -> None:
    """``poll_many``: one item, two gates."""
    it.receive(0)
    it.receive(5)

    assert [many(it, 1), many(it, 1)] == [[(0, True, True)], [(5, True, False)]]


@pytest.mark.parametrize("first", [0, 5])
def test_an_event_comes_alone_and_in_its_turn(it: Fixture, first: int) -> None:
    """``poll_many``: data of another gate is handed out before or behind it, not with it."""
    other = 5 - first
    it.receive(first)
    it.receive_event(other, OtherEvent("org.example.Superstep", b""))
    it.receive(other)
    it.receive(first)

    found = [many(it), many(it), many(it), many(it)]

    assert found == [[(first, True, True)], [(other, False, True)], [(first, True, True), (other, True, False)], []]


def test_a_gate_that_has_more_behind_one_that_has_not_is_available(it: Fixture) -> None:
    """``poll_many``: the first of the turn is empty now, the second is not."""
    it.receive(5)
    it.receive(0)
    it.receive(0)

    assert many(it, 2) == [(5, True, True), (0, True, True)]
    assert it.union.available_future().is_done
    assert many(it, 2) == [(0, True, False)]


def test_a_priority_event_comes_before_all_data(it: Fixture) -> None:
    """``poll_many``: of whichever gate, alone."""
    it.receive(0)
    it.receive(5)
    it.receive_priority(4)

    assert [many(it), many(it)] == [[(4, False, True)], [(0, True, True), (5, True, False)]]


def test_a_priority_event_that_arrives_during_the_poll_is_announced_by_it(
    it: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``poll_many``: its gate was taken out to be polled; it stands in the queue once, with priority."""
    gate = it.gates[1]
    original = gate.poll_data

    def receive_after(max_buffers: int) -> list[BufferOrEvent]:
        found = original(max_buffers)
        monkeypatch.undo()
        it.receive_priority(5)
        return found

    monkeypatch.setattr(gate, "poll_data", receive_after)
    it.receive(0)
    it.receive(5)
    items = it.union.poll_many(8)
    for each in items:
        assert each.buffer is not None
        each.buffer.recycle()

    assert [(each.channel_index, each.more_priority_events, each.more_available) for each in items] == [
        (0, True, True),
        (5, True, True),
    ]
    assert many(it) == [(5, False, False)]


def test_get_many_returns_what_is_there_or_gives_up(it: Fixture) -> None:
    """It does not wait for more than there is, and not longer than it may."""
    it.receive(0)
    it.receive(0)
    found = it.union.get_many(8, 0)
    for each in found:
        assert each.buffer is not None
        each.buffer.recycle()

    assert len(found) == 2
    with pytest.raises(TimeoutError):
        it.union.get_many(8, 0)


def test_an_error_surfaces_again_and_again(it: Fixture) -> None:
    """As in a single gate; the others are read in their turns."""
    it.channels[1].on_error(ConnectionLostError("gone"))
    it.receive(6)
    found = []

    for _ in range(3):
        try:
            found.append(it.poll().channel_index)
        except ConnectionLostError:
            found.append(-1)
        it.union.check_invariants()

    assert found == [-1, 6, -1]


def test_closing_wakes_a_reader(it: Fixture) -> None:
    """It gets the error of the closed gate."""
    errors: list[str] = []
    is_waiting = threading.Event()
    original = it.union.available_future

    def note() -> AvailabilityFuture:
        is_waiting.set()
        return original()

    it.union.available_future = note  # type: ignore[method-assign]  # to know that the reader waits

    def read() -> None:
        try:
            it.union.get_next(PATIENCE_S)
        except ResourceClosedError as error:
            errors.append(str(error))

    thread = threading.Thread(target=read)
    thread.start()
    assert is_waiting.wait(PATIENCE_S)
    it.union.close()
    thread.join(PATIENCE_S)

    assert (thread.is_alive(), len(errors)) == (False, 1)


def test_a_union_needs_gates() -> None:
    """And is a gate itself, so a union of unions is one, too."""
    with pytest.raises(ValueError, match="a union of no gates"):
        UnionInputGate([])
    it = Fixture(1, 2)
    outer: BatchInputGate = UnionInputGate([it.union])
    it.receive(2)
    found = outer.poll_next()
    assert found is not None
    assert found.buffer is not None
    assert found.channel_index == 2
    found.buffer.recycle()
    it.end()


STEPS = ["receive", "priority", "event", "spurious", "poll", "many"]


@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 4)), max_size=40))
def test_everything_is_found_and_nothing_is_available_without_reason(steps: list[tuple[str, int]]) -> None:
    """In any order: an unavailable union has nothing, an available one is either surprised or finds it."""
    it = Fixture(2, 3)
    num_sent = num_found = 0
    for step, index in steps:
        if step in ("receive", "priority") and it.channels[index].num_credits_available:
            (it.receive if step == "receive" else it.receive_priority)(index)
            num_sent += 1
        elif step == "event":
            it.receive_event(index, OtherEvent("org.example.Superstep", b""))
            num_sent += 1
        elif step == "spurious":
            it.gates[index >= 2].notify_channel_non_empty(it.channels[index])
        elif step == "many":
            items = many(it, index + 1)
            assert len(items) <= index + 1
            assert len(items) <= 1 or all(is_data for _, is_data, _ in items), "an event comes alone"
            num_found += len(items)
        else:
            found = it.union.poll_next()
            if found is not None:
                num_found += 1
                if found.buffer is not None:
                    found.buffer.recycle()
        it.union.check_invariants()
        assert it.union.available_future().is_done or num_found == num_sent
    while it.union.available_future().is_done:
        found = it.union.poll_next()
        if found is not None:
            num_found += 1
            if found.buffer is not None:
                found.buffer.recycle()

    assert num_found == num_sent
    it.end()

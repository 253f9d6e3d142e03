"""``RemoteInputChannel`` and ``BufferManager`` take several buffers at once like single ones, whatever happens in
between.
"""

import random
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import SupportsIndex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.buffer.network_buffer import NetworkBuffer, recycle_all
from netstack.errors import RemoteProtocolError
from netstack.gate.channels.input_channel import Lifecycle, SequenceBuffer
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.single_input_gate import SingleInputGate
from netstack.wire.events import EndOfData, StopMode
from netstack.wire.messages import DataType
from tests.netstack.gate.channels.run_channel import MAX, SEGMENT, UNALIGNED, Fixture
from tests.netstack.present import present
from tests.waiting import PATIENCE_S


@pytest.fixture
def it() -> Fixture:
    return Fixture()


# ---------------------------------------------------------------- receiving


def test_a_run_is_queued_under_consecutive_numbers(it: Fixture) -> None:
    """The gate is notified once, the backlog is known, and the bytes are counted."""
    it.receive(0, 3, backlog=2)
    it.receive(3, 2, backlog=1)

    assert (it.numbers(), it.notified, it.channel.sender_backlog) == ([0, 1, 2, 3, 4], 1, 1)
    assert it.channel.queue_size_bytes == 20
    assert it.take() == 5
    assert (it.channel.num_bytes_in, it.channel.num_buffers_in, it.channel.queue_size_bytes) == (20, 5, 0)


@pytest.mark.parametrize("first", [MAX - 3, MAX - 2, MAX - 1, MAX, -MAX - 1, -2])
def test_numbers_wrap_in_a_run_and_behind_it(first: int) -> None:
    """The number after 2^31 - 1 is -2^31, in a run and after it."""
    it = Fixture(first=first)
    expected = [(first + position + MAX + 1) % (2 * MAX + 2) - MAX - 1 for position in range(6)]

    it.receive(first, 4)
    it.receive(expected[4], 1)
    it.receive(expected[5], 1)

    assert (it.numbers(), it.notified) == (expected, 1)
    assert it.take() == 6


@pytest.mark.parametrize(("first", "sent"), [(5, 6), (5, 4), (MAX - 1, MAX), (MAX, -MAX)])
@pytest.mark.parametrize("num_buffers", [1, 3])
def test_a_wrong_number_breaks_the_channel_and_announces_no_credit(first: int, sent: int, num_buffers: int) -> None:
    """No buffer of the run is queued; all are recycled, but a broken channel announces no credit for more data."""
    it = Fixture(3, first=first)

    with pytest.raises(RemoteProtocolError, match=f"expected sequence number {first}, but received {sent}"):
        it.receive(sent, num_buffers)

    assert it.client.orders == [("request", 0)]
    assert (it.numbers(), it.channel.buffer_manager.num_available_buffers) == ([], 3)
    with pytest.raises(RemoteProtocolError, match="buffer reordering"):
        it.channel.next_buffer()
    it.channel.release()


@pytest.mark.parametrize("first", [0, MAX - 1])
def test_a_run_for_a_released_channel_goes_home(first: int) -> None:
    """A run for a released channel is recycled without an error, and no buffer is given out after that."""
    it = Fixture(first=first)
    buffers = it.buffers(3)
    it.channel.release()

    it.channel.on_run(buffers, first, 0)

    assert it.channel.allocate_run(4, 2) == []


def test_a_payload_that_does_not_fit_gets_no_buffers(it: Fixture) -> None:
    """A run gets no buffers for a payload larger than a segment, exactly like a single buffer."""
    assert it.channel.allocate_run(SEGMENT + 1, 2) == []
    assert it.channel.buffer_manager.num_credits_available == 8


def receive_all(is_run: bool, script: Sequence[tuple[int, int, int]]) -> object:
    """Return the state of a channel after each step: receive a run, poll some buffers, hold some."""
    it = Fixture()
    held: list[NetworkBuffer] = []
    number, states = 0, []
    for num_buffers, backlog, num_polled in script:
        num_buffers = min(num_buffers, it.channel.buffer_manager.num_credits_available)
        if is_run and num_buffers:
            it.receive(number, num_buffers, backlog)
        elif not is_run:
            found = [it.channel.allocate(4, DataType.DATA_BUFFER, is_compressed=False) for _ in range(num_buffers)]
            for position, buffer in enumerate(found):
                assert buffer is not None
                it.channel.on_buffer(buffer, number + position, backlog)
        number += num_buffers
        it.channel.check_invariants()
        polled, _ = it.channel.next_data(num_polled)
        held += polled
        if len(held) > 3:
            recycle_all(held)  # the order in which they come back decides who is offered what
            held.clear()
        it.channel.buffer_manager.take_unannounced()
        manager = it.channel.buffer_manager
        it.channel.check_invariants()
        credit = (manager.num_granted, manager.num_spent, manager.num_required, manager.is_waiting)
        free = (len(manager._exclusive), len(manager._floating), it.pool.num_available)
        states.append((it.numbers(), it.notified, credit, free, it.channel.sender_backlog))
    recycle_all(held)
    it.close()
    return states


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 12), st.integers(1, 8)), max_size=12))
def test_runs_lead_where_single_buffers_lead(script: list[tuple[int, int, int]]) -> None:
    """Queue, notifications, credit, and the requests for floating buffers are equal after each step."""
    assert receive_all(True, script) == receive_all(False, script)


def test_a_run_that_arrives_during_a_checkpoint_is_persisted(it: Fixture) -> None:
    """Each buffer of the run is persisted once, in order, until the barrier, whether or not it was polled."""
    it.receive(0, 2)
    assert it.take(1) == 1

    it.channel.checkpoint_started(UNALIGNED)
    it.receive(2, 3)
    it.channel.on_buffer(NetworkBuffer.unpooled(b"end", DataType.DATA_BUFFER), 5, 0)
    it.channel.checkpoint_stopped(1)
    it.receive(6, 2)

    assert [(checkpoint, sizes) for checkpoint, _, sizes in it.writer.persisted] == [
        (1, [4]),
        (1, [4]),
        (1, [4]),
        (1, [4]),
        (1, [3]),
    ]
    assert it.take() == 7


def test_a_run_that_wraps_during_a_checkpoint_is_persisted() -> None:
    """Each buffer of such a run is persisted by itself: the run is received buffer by buffer."""
    it = Fixture(first=MAX)
    it.channel.checkpoint_started(UNALIGNED)

    it.receive(MAX, 3)

    assert [sizes for _, _, sizes in it.writer.persisted] == [[4], [4], [4]]


# ---------------------------------------------------------------- polling


def test_data_is_polled_up_to_the_next_event(it: Fixture) -> None:
    """The event stays, and data behind it, too."""
    it.receive(0, 3)
    it.receive_event(3, EndOfData(StopMode.DRAIN))
    it.receive(4, 2)

    first, second = it.channel.next_data(2), it.channel.next_data(5)
    third = it.channel.next_data(5)

    assert [(len(found), is_more) for found, is_more in (first, second, third)] == [(2, True), (1, True), (0, True)]
    recycle_all([*first[0], *second[0]])
    found = present(it.channel.next_buffer())
    assert (found.sequence_number, found.buffer.data_type) == (3, DataType.END_OF_DATA)
    assert it.take() == 2
    assert it.channel.next_data(1) == ([], False)


def test_an_error_and_a_priority_event_come_first(it: Fixture) -> None:
    """``next_data`` gives no data before an error or a priority event, so that ``next_buffer`` finds it."""
    it.receive(0, 2)
    priority = NetworkBuffer.unpooled(b"\0\0\0\7", DataType.PRIORITIZED_EVENT_BUFFER)
    it.channel.on_buffer(priority, 2, 0)

    assert it.channel.next_data(5) == ([], True)
    found = present(it.channel.next_buffer())
    assert found.sequence_number == 2
    it.channel.on_error(RemoteProtocolError("broken"))
    assert it.channel.next_data(5) == ([], True)
    with pytest.raises(RemoteProtocolError, match="broken"):
        it.channel.next_buffer()


class PolledRun(list[NetworkBuffer]):
    """Buffers of a run; the task polls so many of the older ones while the channel takes these in."""

    def __init__(self, it: Fixture, num_buffers: int, num_to_poll: int) -> None:
        super().__init__(it.buffers(num_buffers))
        self._channel = it.channel
        self._num_to_poll = num_to_poll
        self.polled: list[NetworkBuffer] = []

    def __iter__(self) -> Iterator[NetworkBuffer]:
        for position, buffer in enumerate(super().__iter__()):
            yield buffer
            if position == 0 and self._num_to_poll:
                self.polled += self._channel.next_data(self._num_to_poll)[0]


@pytest.mark.parametrize(
    ("num_before", "num_polled", "expected"), [(0, 0, 1), (1, 0, 0), (2, 0, 0), (2, 1, 0), (1, 1, 1), (2, 2, 1)]
)
def test_the_gate_is_told_if_nothing_is_left_of_what_was_there_before(
    it: Fixture, num_before: int, num_polled: int, expected: int
) -> None:
    """The gate is notified only if no older buffer is left: the thread that took the last older one may not have seen
    the new ones, while a thread that still has an older one before it will see them.
    """
    if num_before:
        it.receive(0, num_before)
    before = it.notified

    run = PolledRun(it, 3, num_polled)

    it.channel.on_run(run, num_before, 0)

    assert it.notified - before == expected
    assert len(run.polled) == num_polled
    recycle_all(run.polled)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("tiny_switch_interval")
def test_no_wake_up_is_lost_between_loop_and_task(seed: int) -> None:
    """A task that sleeps only on the gate's future gets every run of another thread, in order."""
    it = Fixture(gate=SingleInputGate("reduce"))
    gate, rng, num_total = it.gate, random.Random(seed), 8_000
    assert isinstance(gate, SingleInputGate)
    is_over = threading.Event()

    def receive() -> None:
        number = 0
        while number < num_total and not is_over.is_set():
            it.channel.buffer_manager.take_unannounced()
            buffers = it.channel.allocate_run(4, min(rng.randint(1, 8), num_total - number))
            for position, buffer in enumerate(buffers):
                buffer.view[:] = (number + position).to_bytes(4, "big")
            if buffers:
                it.channel.on_run(buffers, number, 0)
                number += len(buffers)

    loop = threading.Thread(target=receive, daemon=True)
    loop.start()
    seen: list[int] = []
    try:
        while len(seen) < num_total:
            found = gate.get_many(5, PATIENCE_S)
            assert found, f"a wake-up was lost after {len(seen)} buffers"
            buffers = [each.buffer for each in found if each.buffer is not None]
            seen += [int.from_bytes(buffer.view, "big") for buffer in buffers]
            recycle_all(buffers)
    finally:
        is_over.set()
        loop.join(PATIENCE_S)

    assert seen == list(range(num_total))
    gate.check_invariants()
    gate.close()


# ---------------------------------------------------------------- buffers and credit


def test_a_run_takes_floating_buffers_first(it: Fixture) -> None:
    """A run takes floating buffers first, and marks them as plain data, whatever they held before."""
    held = it.buffers(7)
    it.channel.on_sender_backlog(4)
    it.channel.buffer_manager.take_unannounced()
    assert len(it.channel.buffer_manager._floating) == 4

    found = it.channel.allocate_run(3, 5)

    assert (len(it.channel.buffer_manager._floating), len(it.channel.buffer_manager._exclusive)) == (0, 0)
    assert {(buffer.size, buffer.data_type, buffer.is_compressed) for buffer in found} == {
        (3, DataType.DATA_BUFFER, False)
    }
    assert it.channel.allocate_run(3, 1) == []
    recycle_all(found + held)


def test_a_run_is_cut_at_the_credit_that_was_announced(it: Fixture) -> None:
    """A run takes only buffers whose credit was announced to the sender."""
    held = it.buffers(8)
    recycle_all(held[:3])
    assert it.channel.buffer_manager.num_unannounced == 3

    assert it.channel.allocate_run(4, 5) == []
    assert it.channel.buffer_manager.take_unannounced() == 3
    found = it.channel.allocate_run(4, 5)

    assert len(found) == 3
    recycle_all(found + held[3:])


def test_the_run_that_spends_the_last_credit_announces_what_was_saved_up(it: Fixture) -> None:
    """The run that spends the last credit announces all saved credit once; before, an incomplete lump waits."""
    held = it.buffers(3)
    recycle_all(held)
    assert it.client.orders == [("request", 0)]

    held = it.buffers(4)
    assert it.client.orders == [("request", 0)], "one is left"
    held += it.buffers(1)

    assert it.client.orders == [("request", 0), ("credit", 0)]
    recycle_all(held)
    assert it.client.orders == [("request", 0), ("credit", 0)]
    assert it.channel.buffer_manager.take_unannounced() == 8


def test_a_run_that_comes_back_is_one_announcement(it: Fixture) -> None:
    """A returning run is one announcement as soon as it makes a lump, half of the initial credit."""
    held = it.buffers(6)

    recycle_all(held[:3])
    assert it.client.orders == [("request", 0)]
    recycle_all(held[3:])

    assert it.client.orders == [("request", 0), ("credit", 0)]
    assert it.channel.buffer_manager.take_unannounced() == 6


def test_exclusive_segments_that_come_back_replace_floating_ones(it: Fixture) -> None:
    """Each returning exclusive segment replaces a floating one that is not required any more."""
    held = it.buffers(7)
    it.channel.on_sender_backlog(3)
    it.channel.buffer_manager.take_unannounced()
    floating = len(it.channel.buffer_manager._floating)
    it.channel.on_sender_backlog(0)

    recycle_all(held)

    manager = it.channel.buffer_manager
    assert (floating, len(manager._exclusive), len(manager._floating)) == (4, 8, 0)
    assert it.pool.num_available > 0
    it.channel.check_invariants()


def test_a_run_that_comes_back_after_the_release_goes_home(it: Fixture) -> None:
    """A run that is recycled after the release of its channel goes back to the pool and is no credit any more."""
    held = it.buffers(6)
    it.channel.release()
    before = it.network.num_available

    recycle_all(held)

    assert it.network.num_available == before + 6
    assert it.client.orders == [("request", 0), ("cancel", 0)]


# ---------------------------------------------------------------- forced in the queue


class InterruptedDeque(deque[SequenceBuffer]):
    """Something happens between a look at its first element and what follows."""

    def __init__(self, elements: Sequence[SequenceBuffer], channel: RemoteInputChannel) -> None:
        super().__init__(elements)
        self.channel = channel
        self.garbage: list[NetworkBuffer] = []
        self.num_looks = 0
        self.release_at = -1

    def __getitem__(self, index: SupportsIndex) -> SequenceBuffer:  # type: ignore[override]  # nobody slices a deque
        found = super().__getitem__(index)
        if self.num_looks == self.release_at:
            # A release has begun, and is as far as its first element.
            self.channel.lifecycle = Lifecycle.RELEASED
            self.garbage.append(self.popleft()[0])
        self.num_looks += 1
        return found


@pytest.mark.parametrize("release_at", range(6))
def test_a_release_that_takes_what_was_looked_at_makes_no_data_of_events(it: Fixture, release_at: int) -> None:
    """FLINK-17823: each buffer is found by one of the two; an event is not handed out as data."""
    it.receive(0, 2)
    it.receive_event(2, EndOfData(StopMode.DRAIN))
    it.receive(3, 1)
    it.receive_event(4, EndOfData(StopMode.DRAIN))
    it.receive(5, 1)
    rest = InterruptedDeque(it.channel.received.rest, it.channel)
    it.channel.received.rest = rest
    rest.release_at = release_at

    found, _ = it.channel.next_data(10)

    assert all(buffer.is_buffer for buffer in found)
    it.channel.lifecycle = Lifecycle.REQUESTED
    recycle_all([*found, *rest.garbage])


class LateDeque(deque[SequenceBuffer]):
    """A queue to which more is added right after one of the looks at its end."""

    def __init__(self, elements: Sequence[SequenceBuffer], it: Fixture, number: int) -> None:
        super().__init__(elements)
        self.it = it
        self.number = number
        self.is_armed = True

    def __getitem__(self, index: SupportsIndex) -> SequenceBuffer:  # type: ignore[override]  # as above
        try:
            return super().__getitem__(index)
        except IndexError:
            if self.is_armed:
                self.is_armed = False
                self.it.receive(self.number, 2)
            raise

    def extend(self, elements: object) -> None:
        super().extend(elements)  # type: ignore[arg-type]  # it is what the channel says


def test_a_run_that_arrives_while_the_last_buffer_is_polled_is_found() -> None:
    """The gate is notified or the task sees it, and the queue holds the channel once."""
    it = Fixture(gate=SingleInputGate("reduce"))
    gate = it.gate
    assert isinstance(gate, SingleInputGate)
    it.receive(0, 2)
    it.channel.received.rest = LateDeque(it.channel.received.rest, it, 2)

    first = gate.poll_many(10)
    gate.check_invariants()
    assert gate.available_future().is_done
    second = gate.poll_many(10)

    assert (len(first), len(second), first[-1].more_available, second[-1].more_available) == (2, 2, True, False)
    recycle_all([each.buffer for each in first + second if each.buffer is not None])
    gate.check_invariants()
    gate.close()

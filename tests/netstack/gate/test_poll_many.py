"""``SingleInputGate.poll_many`` and ``get_many``: turns stay strict, an event comes alone, nothing is lost beside an
error.
"""

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.availability import run_all
from netstack.buffer.network_buffer import BufferDecompressor, NetworkBuffer
from netstack.errors import ConnectionLostError, RemoteProtocolError, ResourceClosedError
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.gate_channels import BufferOrEvent
from netstack.gate.single_input_gate import SingleInputGate
from netstack.wire.events import EndOfData, EndOfPartition, Event, StopMode
from tests.netstack.gate.remote_gate import SEGMENT, UNALIGNED, RemoteGate, compressed
from tests.waiting import PATIENCE_S


class Fixture(RemoteGate):
    """A gate of remote channels with eight buffers each, and local ones behind them."""

    def __init__(self, num_remote: int = 3, num_local: int = 0, *, gate: SingleInputGate | None = None) -> None:
        super().__init__(num_remote, num_local, gate=gate, num_segments=8)
        self.gate.request_partitions()

    def receive_run(self, index: int, num_buffers: int = 1) -> None:
        """Receive buffers that say which of their channel they are."""
        number, buffers = self.numbers[index], self.channel(index).allocate_run(2, num_buffers)
        assert len(buffers) == num_buffers
        for position, buffer in enumerate(buffers):
            buffer.view[:] = bytes([index, number + position])
        self.channel(index).on_run(buffers, number, 0)
        self.numbers[index] += num_buffers

    def poll_many(self, max_items: int = 8) -> list[tuple[int, int] | Event | None]:
        """Return channel and number of each buffer, or the event."""
        return self.describe(self.gate.poll_many(max_items))

    def describe(self, items: list[BufferOrEvent]) -> list[tuple[int, int] | Event | None]:
        found: list[tuple[int, int] | Event | None] = []
        for item in items:
            if item.buffer is None:
                found.append(item.event)
            else:
                found.append((item.channel_index, item.buffer.view[1]))
                item.buffer.recycle()
        self.gate.check_invariants()
        assert not items or items[-1].more_available == (
            self.gate.available_future().is_done and not self.gate.is_finished
        )
        return found


@pytest.fixture
def it() -> Fixture:
    return Fixture()


# ---------------------------------------------------------------- turns


@pytest.mark.parametrize(
    ("received", "max_items", "polled"),
    [
        pytest.param(
            [(1, 5)], 3, [[(1, 0), (1, 1), (1, 2)], [(1, 3), (1, 4)], []], id="a channel that is alone yields several"
        ),
        pytest.param(
            [(2, 3), (0, 4), (1, 1)],
            8,
            [[(2, 0), (0, 0), (1, 0)], [(2, 1), (0, 1)], [(2, 2), (0, 2)], [(0, 3)]],
            id="several yield one each, in the order in which they got data",
        ),
        pytest.param(
            [(0, 2), (1, 2), (2, 2)],
            2,
            [[(0, 0), (1, 0)], [(2, 0), (0, 1)], [(1, 1), (2, 1)]],
            id="who does not fit into a turn is first in the next one",
        ),
        pytest.param([(0, 2), (1, 1)], 1, [[(0, 0)], [(1, 0)], [(0, 1)], []], id="one item is a turn of one channel"),
    ],
)
def test_turns(
    it: Fixture, received: list[tuple[int, int]], max_items: int, polled: list[list[tuple[int, int]]]
) -> None:
    """The items of each poll, as channel and number, after each channel has received so many buffers."""
    for index, num_buffers in received:
        it.receive_run(index, num_buffers)

    assert [it.poll_many(max_items) for _ in polled] == polled


def test_items_say_whether_more_is_there(it: Fixture) -> None:
    """Every item except the last says that more follows it in the list."""
    it.receive_run(0, 3)

    items = it.gate.poll_many(8)

    assert [(item.more_available, item.more_priority_events, item.size) for item in items] == [(True, False, 2)] * 2 + [
        (False, False, 2)
    ]
    it.describe(items)


@given(
    script=st.lists(
        st.tuples(st.just("receive"), st.integers(0, 2), st.integers(1, 4))
        | st.tuples(st.just("poll"), st.integers(1, 6), st.just(0)),
        max_size=30,
    )
)
def test_no_channel_is_overtaken_twice(script: list[tuple[str, int, int]]) -> None:
    """While it has data; nothing is lost, and each channel's order is kept."""
    it = Fixture()
    pending, seen = Counter[int](), list[tuple[int, int]]()
    waiting = dict[int, Counter[int]]()  # for each channel with data: how often the others came since its last turn
    for what, first, second in script:
        if what == "receive":
            num_buffers = min(second, 8 - pending[first])
            if num_buffers > 0 and it.channel(first).buffer_manager.num_credits_available >= num_buffers:
                it.receive_run(first, num_buffers)
                pending[first] += num_buffers
                waiting.setdefault(first, Counter())
        else:
            for found in it.poll_many(first):
                assert isinstance(found, tuple)
                seen.append(found)
                pending[found[0]] -= 1
                waiting[found[0]] = Counter()
                for index, others in list(waiting.items()):
                    if index != found[0]:
                        others[found[0]] += 1
                        assert others[found[0]] <= 1 or not pending[index], f"{index} was overtaken: {seen}"
                if not pending[found[0]]:
                    del waiting[found[0]]
            for channel in map(it.channel, range(3)):
                channel.buffer_manager.take_unannounced()
    while found_last := it.poll_many():
        seen += [each for each in found_last if isinstance(each, tuple)]

    for index in range(3):
        assert [number for channel, number in seen if channel == index] == list(range(it.numbers[index]))
    it.close()


# ---------------------------------------------------------------- events


def test_an_event_comes_alone(it: Fixture) -> None:
    """An event is the only item: no data of its own or another channel comes with it."""
    end = EndOfData(StopMode.DRAIN)
    it.receive_run(0, 2)
    it.receive_event(0, end)
    it.receive_run(0, 2)

    assert [it.poll_many() for _ in range(4)] == [[(0, 0), (0, 1)], [end], [(0, 3), (0, 4)], []]


def test_an_event_ends_the_turns_and_keeps_its_own(it: Fixture) -> None:
    """Data that was found before the event is handed out first; channels after it in the queue follow the event."""
    end = EndOfData(StopMode.DRAIN)
    it.receive_run(0, 2)
    it.receive_event(1, end)
    it.receive_run(2, 1)

    assert [it.poll_many() for _ in range(4)] == [[(0, 0)], [end], [(2, 0), (0, 1)], []]


def test_a_priority_event_comes_before_all_data(it: Fixture) -> None:
    """All data waits for the priority event: of its own channel and of others."""
    it.receive_run(0, 2)
    it.receive_run(1, 1)
    it.receive_priority(1)

    assert [it.poll_many() for _ in range(3)] == [[UNALIGNED], [(0, 0), (1, 0)], [(0, 1)]]


def test_a_priority_event_that_arrives_during_the_poll_is_announced_by_it(
    it: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel that gets a priority event while it is polled stands in the queue once, with priority."""
    it.receive_run(0, 2)
    it.receive_run(1, 2)
    interrupt(monkeypatch, it.channel(0), lambda: it.receive_priority(1))

    items = it.gate.poll_many(8)

    assert [(item.channel_index, item.more_priority_events) for item in items] == [(0, True)]
    assert it.gate.priority_event_available_future().is_done
    it.describe(items)
    assert [it.poll_many() for _ in range(3)] == [[UNALIGNED], [(0, 1), (1, 0)], [(1, 1)]]


def test_the_end_of_all_partitions_finishes_the_gate() -> None:
    """Ends come one event at a time; then the gate is finished for ever."""
    it = Fixture(1)
    it.receive_run(0, 1)
    it.receive_event(0, EndOfPartition())

    assert [it.poll_many(), it.poll_many(), it.poll_many()] == [[(0, 0)], [EndOfPartition()], []]
    assert (it.gate.is_finished, it.gate.available_future().is_done, it.gate.get_many(3)) == (True, True, [])


def test_local_channels_come_one_by_one() -> None:
    """Local channels yield single items, in turns with the others."""
    it = Fixture(1, 1)
    it.partitions[0].emit_record(b"\1\0", 0)
    it.partitions[0].flush(0)
    it.receive_run(0, 3)

    assert [it.poll_many() for _ in range(3)] == [[(1, 0)], [(0, 0), (0, 1), (0, 2)], []]


# ---------------------------------------------------------------- errors and closing


def interrupt(monkeypatch: pytest.MonkeyPatch, channel: RemoteInputChannel, call: Callable[[], object]) -> None:
    """Make ``call`` happen while ``channel`` is polled, after it was looked at."""
    original = channel.next_data

    def next_data(max_buffers: int) -> tuple[list[NetworkBuffer], bool]:
        found = original(max_buffers)
        monkeypatch.undo()
        call()
        return found

    monkeypatch.setattr(channel, "next_data", next_data)


def test_an_error_keeps_its_turn_and_takes_nothing_with_it(it: Fixture) -> None:
    """Data before it is handed out; it is raised at each turn of its channel, and the others go on."""
    it.receive_run(0, 1)
    it.channel(1).on_error(ConnectionLostError("gone"))
    it.receive_run(2, 2)

    assert it.poll_many() == [(0, 0)]
    with pytest.raises(ConnectionLostError, match="gone"):
        it.poll_many()
    assert it.poll_many() == [(2, 0)]
    with pytest.raises(ConnectionLostError, match="gone"):
        it.poll_many()
    assert it.poll_many() == [(2, 1)]


def test_an_error_that_comes_during_the_poll_is_raised_next(it: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The channel is queued once, and the future is done."""
    it.receive_run(0, 2)
    interrupt(monkeypatch, it.channel(0), lambda: it.channel(0).on_error(ConnectionLostError("gone")))

    assert it.poll_many() == [(0, 0), (0, 1)]
    with pytest.raises(ConnectionLostError, match="gone"):
        it.poll_many()


def test_data_that_arrives_during_the_poll_is_found_by_the_next_one(
    it: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data that arrives during the poll, in the polled or in an empty channel, is found by the next one."""
    it.receive_run(0, 1)
    interrupt(monkeypatch, it.channel(0), lambda: run_all([partial(it.receive_run, index) for index in (0, 2)]))

    assert [it.poll_many(), it.poll_many(), it.poll_many()] == [[(0, 0)], [(0, 1), (2, 0)], []]


def test_a_close_during_the_poll_leaves_the_caller_what_was_found(it: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """No found buffer is put back into the queue; the next poll says that the gate is closed."""
    it.receive_run(0, 2)
    it.receive_run(1, 2)
    interrupt(monkeypatch, it.channel(0), it.gate.close)

    items = it.gate.poll_many(8)

    assert [item.channel_index for item in items] == [0]
    for item in items:
        assert item.buffer is not None
        item.buffer.recycle()
    it.gate.check_invariants()
    for poll in (it.gate.poll_many, it.gate.get_many):
        with pytest.raises(ResourceClosedError):
            poll(8)


def test_compressed_buffers_among_others_are_restored() -> None:
    """A restored buffer has the size and bytes of the original."""
    decompressor = BufferDecompressor(SEGMENT)
    it = Fixture(gate=SingleInputGate("reduce", decompressor=decompressor))
    it.receive_run(0, 1)
    it.receive_compressed(0, compressed(b"\7\7" * 32))

    items = it.gate.poll_many(8)

    assert [(item.size, item.buffer is not None and item.buffer.view[1]) for item in items] == [(2, 0), (64, 7)]
    it.describe(items)


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_broken_compressed_buffer_takes_no_other_one_with_it(has_ended: bool) -> None:
    """Data before it and of other channels is handed out, data after it is given back."""
    it = Fixture(gate=SingleInputGate("reduce", decompressor=BufferDecompressor(SEGMENT)))
    it.receive_run(0, 2)
    it.receive_compressed(0, b"no such thing as a block")
    it.receive_run(0, 2)
    if has_ended:
        it.receive_event(0, EndOfPartition())

    assert it.poll_many() == [(0, 0), (0, 1)]
    with pytest.raises(RemoteProtocolError, match="a compressed buffer"):
        it.poll_many()


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_broken_compressed_buffer_does_not_keep_the_other_channels(is_alone: bool) -> None:
    """Their data is handed out first; if there is none, the error is raised at once."""
    it = Fixture()
    it.receive_compressed(0, compressed(b"a" * SEGMENT))
    if not is_alone:
        it.receive_run(1, 1)
        assert it.poll_many() == [(1, 0)]

    with pytest.raises(RemoteProtocolError, match="compression is off here"):
        it.poll_many()


# ---------------------------------------------------------------- blocking


def test_get_many_waits_for_the_first_one(it: Fixture) -> None:
    """``get_many`` waits for the first item, and returns with the items that are there."""
    found: list[BufferOrEvent] = []
    waiter = threading.Thread(target=lambda: found.extend(it.gate.get_many(8, PATIENCE_S)))
    waiter.start()

    it.receive_run(1, 1)
    waiter.join(PATIENCE_S)

    assert it.describe(found) == [(1, 0)]


def test_get_many_gives_up_after_its_time(it: Fixture) -> None:
    with pytest.raises(TimeoutError):
        it.gate.get_many(8, 0)

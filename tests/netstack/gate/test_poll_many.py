"""``SingleInputGate.poll_many`` and ``get_many``: turns stay strict, an event comes alone, nothing is lost beside an
error.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.availability import run_all
from netstack.buffer.network_buffer import BufferCompressor, BufferDecompressor, NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import ConnectionLostError, RemoteProtocolError, ResourceClosedError
from netstack.gate.channels.local_input_channel import LocalInputChannel
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.gate_channels import BufferOrEvent
from netstack.gate.single_input_gate import SingleInputGate
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_partition_manager import ResultPartitionManager
from netstack.wire.events import (
    Alignment,
    CheckpointBarrier,
    CheckpointOptions,
    EndOfData,
    EndOfPartition,
    Event,
    StopMode,
    event_data_type,
    serialize_event,
)
from netstack.wire.messages import BufferResponse, DataType
from tests.netstack.gate.doubles import RecordingClient, event, remote_channel
from tests.netstack.partition.doubles import partition_id_of
from tests.waiting import PATIENCE_S

SEGMENT = 64
UNALIGNED = CheckpointBarrier(1, 123, CheckpointOptions(alignment=Alignment.UNALIGNED))


class Fixture:
    """A gate of remote channels with eight buffers each, and local ones behind them."""

    def __init__(self, num_remote: int = 3, num_local: int = 0, *, gate: SingleInputGate | None = None) -> None:
        self.network = NetworkBufferPool(64, SEGMENT)
        self.client = RecordingClient()
        self.manager = ResultPartitionManager()
        self.gate = SingleInputGate("reduce (1/2)") if gate is None else gate
        self.remote: list[RemoteInputChannel] = []
        self.partitions: list[ResultPartition] = []
        self.next_numbers: Counter[int] = Counter()
        for index in range(num_remote):
            channel = remote_channel(
                self.gate, self.client, self.network, index=index, num_segments=8, is_requested=False
            )
            self.remote.append(channel)
            self.gate.add_channel(channel)
        for index in range(num_remote, num_remote + num_local):
            pool = self.network.create_buffer_pool(owner="producer", num_required=2, max_buffers=8)
            partition = ResultPartition(partition_id_of(index), 1, pool, "producer")
            self.manager.register(partition)
            self.partitions.append(partition)
            self.gate.add_channel(LocalInputChannel(self.gate, index, partition.partition_id, 0, self.manager))
        self.gate.request_partitions()

    def receive(self, index: int, num_buffers: int = 1) -> None:
        """Receive buffers that say which of their channel they are."""
        channel, number = self.remote[index], self.next_numbers[index]
        buffers = channel.allocate_run(2, num_buffers)
        assert len(buffers) == num_buffers
        for position, buffer in enumerate(buffers):
            buffer.view[:] = bytes([index, number + position])
        channel.on_run(buffers, number, 0)
        self.next_numbers[index] += num_buffers

    def receive_event(self, index: int, what: Event, *, has_priority: bool = False) -> None:
        channel, number = self.remote[index], self.next_numbers[index]
        if has_priority:
            buffer = NetworkBuffer.unpooled(serialize_event(what), event_data_type(what, has_priority=True))
            channel.on_response(BufferResponse(channel.channel_id, 0, number, 0, buffer.data_type, False, (), buffer))
        else:
            channel.on_response(event(channel, number, what))
        self.next_numbers[index] += 1

    def receive_compressed(self, index: int, data: bytes) -> None:
        channel, number = self.remote[index], self.next_numbers[index]
        buffer = channel.allocate(len(data), DataType.DATA_BUFFER, is_compressed=True)
        assert buffer is not None
        buffer.view[:] = data
        channel.on_response(BufferResponse(channel.channel_id, 0, number, 0, DataType.DATA_BUFFER, True, (), buffer))
        self.next_numbers[index] += 1

    def poll(self, max_items: int = 8) -> list[tuple[int, int] | Event | None]:
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

    def end(self) -> None:
        self.gate.check_invariants()
        self.gate.close()
        self.gate.check_invariants()
        for partition in self.partitions:
            partition.close()
        assert self.network.num_available == self.network.num_total, f"leaked: {self.network!r}"
        self.network.destroy()


@pytest.fixture
def it() -> Iterator[Fixture]:
    fixture = Fixture()
    yield fixture
    fixture.end()


# ---------------------------------------------------------------- turns


def test_a_channel_that_is_alone_yields_several(it: Fixture) -> None:
    """The only channel with data yields up to as many items as asked for, and the future says exactly whether it has
    more.
    """
    it.receive(1, 5)

    assert it.poll(3) == [(1, 0), (1, 1), (1, 2)]
    assert it.gate.available_future().is_done
    assert it.poll(3) == [(1, 3), (1, 4)]
    assert not it.gate.available_future().is_done
    assert it.poll(3) == []


def test_several_channels_yield_one_each_per_turn(it: Fixture) -> None:
    """Channels yield one item each per turn, in the order in which they got data, until only one has some."""
    it.receive(2, 3)
    it.receive(0, 4)
    it.receive(1, 1)

    assert it.poll() == [(2, 0), (0, 0), (1, 0)]
    assert it.poll() == [(2, 1), (0, 1)]
    assert it.poll() == [(2, 2), (0, 2)]
    assert it.poll() == [(0, 3)]


def test_who_does_not_fit_into_a_turn_is_first_in_the_next_one(it: Fixture) -> None:
    """A channel that does not fit into a turn is not passed over."""
    for index in range(3):
        it.receive(index, 2)

    assert [it.poll(2) for _ in range(3)] == [[(0, 0), (1, 0)], [(2, 0), (0, 1)], [(1, 1), (2, 1)]]


def test_one_item_is_a_turn_of_one_channel(it: Fixture) -> None:
    """A poll for one item takes one turn of one channel, like ``poll_next``."""
    it.receive(0, 2)
    it.receive(1, 1)

    assert [it.poll(1) for _ in range(4)] == [[(0, 0)], [(1, 0)], [(0, 1)], []]


def test_items_say_whether_more_is_there(it: Fixture) -> None:
    """Every item except the last says that more follows it in the list."""
    it.receive(0, 3)

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
    """While a channel has data no other one is polled twice more often; nothing is lost, each
    channel's order is kept.
    """
    it = Fixture()
    pending, seen = Counter[int](), list[tuple[int, int]]()
    waiting = dict[int, Counter[int]]()  # for each channel with data: how often the others came since its last turn
    for what, first, second in script:
        if what == "receive":
            num_buffers = min(second, 8 - pending[first])
            if num_buffers > 0 and it.remote[first].buffer_manager.num_credits_available >= num_buffers:
                it.receive(first, num_buffers)
                pending[first] += num_buffers
                waiting.setdefault(first, Counter())
        else:
            for found in it.poll(first):
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
            for channel in it.remote:
                channel.buffer_manager.take_unannounced()
    while found_last := it.poll():
        seen += [each for each in found_last if isinstance(each, tuple)]

    for index in range(3):
        assert [number for channel, number in seen if channel == index] == list(range(it.next_numbers[index]))
    it.end()


# ---------------------------------------------------------------- events


def test_an_event_comes_alone(it: Fixture) -> None:
    """An event is the only item: no data of its own or another channel comes with it."""
    end = EndOfData(StopMode.DRAIN)
    it.receive(0, 2)
    it.receive_event(0, end)
    it.receive(0, 2)

    assert [it.poll() for _ in range(4)] == [[(0, 0), (0, 1)], [end], [(0, 3), (0, 4)], []]


def test_an_event_ends_the_turns_and_keeps_its_own(it: Fixture) -> None:
    """Data that was found before the event is handed out first; channels after it in the queue follow the event."""
    end = EndOfData(StopMode.DRAIN)
    it.receive(0, 2)
    it.receive_event(1, end)
    it.receive(2, 1)

    assert [it.poll() for _ in range(4)] == [[(0, 0)], [end], [(2, 0), (0, 1)], []]


def test_a_priority_event_comes_before_all_data(it: Fixture) -> None:
    """All data waits for the priority event: of its own channel and of others."""
    it.receive(0, 2)
    it.receive(1, 1)
    it.receive_event(1, UNALIGNED, has_priority=True)

    assert [it.poll() for _ in range(3)] == [[UNALIGNED], [(0, 0), (1, 0)], [(0, 1)]]


def test_a_priority_event_that_arrives_during_the_poll_is_announced_by_it(
    it: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel that gets a priority event while it is polled stands in the queue once, with priority."""
    it.receive(0, 2)
    it.receive(1, 2)
    interrupt(monkeypatch, it.remote[0], lambda: it.receive_event(1, UNALIGNED, has_priority=True))

    items = it.gate.poll_many(8)

    assert [(item.channel_index, item.more_priority_events) for item in items] == [(0, True)]
    assert it.gate.priority_event_available_future().is_done
    it.describe(items)
    assert [it.poll() for _ in range(3)] == [[UNALIGNED], [(0, 1), (1, 0)], [(1, 1)]]


def test_the_end_of_all_partitions_finishes_the_gate() -> None:
    """Ends come one event at a time; then the gate is finished for ever."""
    it = Fixture(1)
    it.receive(0, 1)
    it.receive_event(0, EndOfPartition())

    assert [it.poll(), it.poll(), it.poll()] == [[(0, 0)], [EndOfPartition()], []]
    assert (it.gate.is_finished, it.gate.available_future().is_done, it.gate.get_many(3)) == (True, True, [])
    it.end()


def test_local_channels_come_one_by_one() -> None:
    """Local channels yield single items, in turns with the others."""
    it = Fixture(1, 1)
    it.partitions[0].emit_record(b"\1\0", 0)
    it.partitions[0].flush(0)
    it.receive(0, 3)

    assert [it.poll() for _ in range(3)] == [[(1, 0)], [(0, 0), (0, 1), (0, 2)], []]
    it.end()


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
    """Data that was found before the error is handed out; then the error is raised at each turn of its channel, and the
    other channels go on.
    """
    it.receive(0, 1)
    it.remote[1].on_error(ConnectionLostError("gone"))
    it.receive(2, 2)

    assert it.poll() == [(0, 0)]
    with pytest.raises(ConnectionLostError, match="gone"):
        it.poll()
    assert it.poll() == [(2, 0)]
    with pytest.raises(ConnectionLostError, match="gone"):
        it.poll()
    assert it.poll() == [(2, 1)]


def test_an_error_that_comes_during_the_poll_is_raised_next(it: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The channel is queued once, and the future is done."""
    it.receive(0, 2)
    interrupt(monkeypatch, it.remote[0], lambda: it.remote[0].on_error(ConnectionLostError("gone")))

    assert it.poll() == [(0, 0), (0, 1)]
    with pytest.raises(ConnectionLostError, match="gone"):
        it.poll()


def test_data_that_arrives_during_the_poll_is_found_by_the_next_one(
    it: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data that arrives during the poll, in the polled or in an empty channel, is found by the next one."""
    it.receive(0, 1)
    interrupt(monkeypatch, it.remote[0], lambda: run_all([partial(it.receive, index) for index in (0, 2)]))

    assert [it.poll(), it.poll(), it.poll()] == [[(0, 0)], [(0, 1), (2, 0)], []]


def test_a_close_during_the_poll_leaves_the_caller_what_was_found(it: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """No found buffer is put back into the queue; the next poll says that the gate is closed."""
    it.receive(0, 2)
    it.receive(1, 2)
    interrupt(monkeypatch, it.remote[0], it.gate.close)

    items = it.gate.poll_many(8)

    assert [item.channel_index for item in items] == [0]
    for item in items:
        assert item.buffer is not None
        item.buffer.recycle()
    it.gate.check_invariants()
    for poll in (it.gate.poll_many, it.gate.get_many):
        with pytest.raises(ResourceClosedError):
            poll(8)


def compressed(content: bytes) -> bytes:
    smaller = BufferCompressor().compress(NetworkBuffer.unpooled(content, DataType.DATA_BUFFER))
    assert smaller.is_compressed
    return bytes(smaller.view)


def test_compressed_buffers_among_others_are_restored() -> None:
    """A restored buffer has the size and bytes of the original."""
    decompressor = BufferDecompressor(SEGMENT)
    it = Fixture(gate=SingleInputGate("reduce", decompressor=decompressor))
    it.receive(0, 1)
    it.receive_compressed(0, compressed(b"\7\7" * 32))

    items = it.gate.poll_many(8)

    assert [(item.size, item.buffer is not None and item.buffer.view[1]) for item in items] == [(2, 0), (64, 7)]
    it.describe(items)
    it.end()


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_broken_compressed_buffer_takes_no_other_one_with_it(has_ended: bool) -> None:
    """Buffers before the broken one, and the data of other channels, are handed out; buffers after it are given back,
    and its channel fails.
    """
    it = Fixture(gate=SingleInputGate("reduce", decompressor=BufferDecompressor(SEGMENT)))
    it.receive(0, 2)
    it.receive_compressed(0, b"no such thing as a block")
    it.receive(0, 2)
    if has_ended:
        it.receive_event(0, EndOfPartition())

    assert it.poll() == [(0, 0), (0, 1)]
    with pytest.raises(RemoteProtocolError, match="a compressed buffer"):
        it.poll()
    it.end()


def test_a_broken_compressed_buffer_does_not_keep_the_other_channels() -> None:
    """Another channel's data is handed out although it was found in the turn of the broken buffer."""
    it = Fixture()
    it.receive_compressed(0, compressed(b"a" * SEGMENT))
    it.receive(1, 1)

    assert it.poll() == [(1, 0)]
    with pytest.raises(RemoteProtocolError, match="compression is off here"):
        it.poll()
    it.end()


def test_a_broken_compressed_buffer_alone_is_raised_at_once() -> None:
    """The error is raised at once if there is no data to hand out."""
    it = Fixture()
    it.receive_compressed(0, compressed(b"a" * SEGMENT))

    with pytest.raises(RemoteProtocolError, match="compression is off here"):
        it.poll()
    it.end()


# ---------------------------------------------------------------- blocking


def test_get_many_waits_for_the_first_one(it: Fixture) -> None:
    """``get_many`` waits for the first item, and returns with the items that are there."""
    found: list[BufferOrEvent] = []
    waiter = threading.Thread(target=lambda: found.extend(it.gate.get_many(8, PATIENCE_S)))
    waiter.start()

    it.receive(1, 1)
    waiter.join(PATIENCE_S)

    assert it.describe(found) == [(1, 0)]


def test_get_many_gives_up_after_its_time(it: Fixture) -> None:
    with pytest.raises(TimeoutError):
        it.gate.get_many(8, 0)

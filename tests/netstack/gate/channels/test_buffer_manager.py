"""``BufferManager`` in its channel: exclusive and floating buffers, and the credit that they are (the walks of
RemoteInputChannelTest).
"""

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.buffer.network_buffer import NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import LocalProtocolError, RemoteProtocolError, ResourceBrokenError
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.wire.events import Alignment, CheckpointBarrier, CheckpointOptions
from netstack.wire.messages import DataType
from tests.netstack.buffer.pools import num_in_use
from tests.netstack.gate.doubles import (
    RecordingClient,
    RecordingGate,
    data,
    event,
    is_unlocked,
    remote_channel,
    room_of,
)
from tests.netstack.present import present
from tests.netstack.rigs import Ending
from tests.netstack.threads import run_together

SEGMENT = 32
ALIGNED_BARRIER = CheckpointBarrier(1, 123, CheckpointOptions(alignment=Alignment.ALIGNED))


class Fixture(Ending):
    """Channels with exclusive buffers, and one pool of floating ones."""

    def __init__(self, num_total: int, num_floating: int, *exclusive: int) -> None:
        super().__init__()
        self.network = NetworkBufferPool(num_total, SEGMENT)
        self.gate = RecordingGate()
        self.client = RecordingClient()
        self.pool = self.network.create_buffer_pool(owner="gate", num_required=num_floating, max_buffers=num_floating)
        self.channels: list[RemoteInputChannel] = []
        for index, num_segments in enumerate(exclusive):
            channel = remote_channel(
                self.gate, self.client, self.network, index=index, num_segments=num_segments, is_requested=False
            )
            channel.buffer_manager.pool = self.pool
            channel.request_subpartition()
            self.channels.append(channel)

    @property
    def channel(self) -> RemoteInputChannel:
        return self.channels[0]

    def exclusive(self) -> NetworkBuffer:
        return present(room_of(self.channel))

    def floating(self) -> NetworkBuffer:
        return present(self.pool.request_buffer_nowait())

    def state(self, index: int = 0) -> tuple[int, int, bool]:
        """Return available and required buffers, and whether the channel stands in line."""
        channel = self.channels[index]
        channel.check_invariants()
        manager = channel.buffer_manager
        return manager.num_available_buffers, manager.num_required, manager.is_waiting

    def give_back(self) -> None:
        for channel in self.channels:
            channel.check_invariants()
            channel.release()
            channel.check_invariants()
        self.pool.destroy()
        self.network.check_invariants()
        self.network.destroy()
        assert self.network.num_available == self.network.num_total, f"leaked: {self.network!r}"


@pytest.fixture
def walk() -> Fixture:
    """A channel with 2 exclusive and 14 floating buffers, as in Flink's test."""
    return Fixture(16, 14, 2)


# ---------------------------------------------------------------- the credit walk


def test_fewer_buffers_than_required(walk: Fixture) -> None:
    """Credit walk, testAvailableBuffersLessThanRequiredBuffers; FLINK-8747 is its last but one step."""
    exclusive = walk.exclusive()
    floating = [walk.floating(), walk.floating()]
    channel = walk.channel

    channel.on_sender_backlog(14)
    assert (walk.state(), walk.pool.num_available) == ((13, 16, True), 0)
    channel.on_sender_backlog(16)
    assert (walk.state(), walk.pool.num_available) == ((13, 18, True), 0), (
        "it stands in line already and asks for nothing"
    )
    exclusive.recycle()
    assert (walk.state(), walk.pool.num_available) == ((14, 18, True), 0), (
        "an exclusive buffer comes back to its channel"
    )
    floating.pop().recycle()
    assert (walk.state(), walk.pool.num_available) == ((15, 18, True), 0), (
        "the offer is taken, and the channel stands in line again"
    )
    channel.on_sender_backlog(13)
    assert (walk.state(), walk.pool.num_available) == ((15, 15, True), 0), "only the number of required buffers changes"
    floating.pop().recycle()
    assert (walk.state(), walk.pool.num_available) == ((15, 15, False), 1), (
        "an offer that is not needed stays in the pool"
    )
    channel.on_sender_backlog(15)
    assert (walk.state(), walk.pool.num_available) == ((16, 17, True), 0), (
        "it takes what is there, and stands in line once more"
    )


def test_as_many_buffers_as_required(walk: Fixture) -> None:
    """Credit walk, testAvailableBuffersEqualToRequiredBuffers: an exclusive buffer replaces a floating one."""
    exclusive, floating = walk.exclusive(), walk.floating()

    walk.channel.on_sender_backlog(12)
    assert (walk.state(), walk.pool.num_available) == ((14, 14, False), 0)
    unannounced = walk.channel.buffer_manager.num_unannounced
    floating.recycle()
    assert (walk.state(), walk.pool.num_available) == ((14, 14, False), 1)
    exclusive.recycle()
    assert (walk.state(), walk.pool.num_available) == ((14, 14, False), 2)
    assert walk.channel.buffer_manager.num_unannounced == unannounced, "the exchange is no credit"


def test_more_buffers_than_required(walk: Fixture) -> None:
    """Credit walk, testAvailableBuffersMoreThanRequiredBuffers: nothing is taken away, but nothing is added."""
    exclusive, floating = walk.exclusive(), walk.floating()

    walk.channel.on_sender_backlog(12)
    walk.channel.on_sender_backlog(10)
    assert (walk.state(), walk.pool.num_available) == ((14, 12, False), 0)
    exclusive.recycle()
    assert (walk.state(), walk.pool.num_available) == ((14, 12, False), 1)
    floating.recycle()
    assert (walk.state(), walk.pool.num_available) == ((14, 12, False), 2)


def test_floating_buffers_are_spread_over_the_channels_that_wait() -> None:
    """testFairDistributionFloatingBuffers: 3 floating buffers for 3 channels, one each, one credit each."""
    it = Fixture(12, 3, 2, 2, 2)
    floating = [it.floating() for _ in range(3)]
    for channel in it.channels:
        channel.on_sender_backlog(8)
    before = [it.state(index) for index in range(3)]

    for buffer in floating:
        buffer.recycle()

    assert before == [(2, 10, True)] * 3
    assert [it.state(index) for index in range(3)] == [(3, 10, True)] * 3
    assert [channel.buffer_manager.num_unannounced for channel in it.channels] == [1, 1, 1]


def test_taking_a_buffer_lowers_what_is_required() -> None:
    """testRequestBuffer: with 2 exclusive buffers 4, 3, 2, 1, 0, without any 2, 1, 0; floating ones go first."""
    it = Fixture(12, 8, 2, 0)
    taken: list[NetworkBuffer] = []
    found = []
    for channel in it.channels:
        channel.on_sender_backlog(2)
        channel.buffer_manager.take_unannounced()
        seen = [channel.buffer_manager.num_required]
        while (buffer := room_of(channel)) is not None:
            taken.append(buffer)
            seen.append(channel.buffer_manager.num_required)
        found.append(seen)

    assert found == [[4, 3, 2, 1, 0], [2, 1, 0]]
    assert [buffer.lease.recycler is it.pool for buffer in taken] == [True, True, False, False, True, True]
    for buffer in taken:
        buffer.recycle()


def test_credit_is_announced_with_one_order() -> None:
    """Floating and exclusive buffers add up to one announcement, which the first one orders."""
    it = Fixture(12, 8, 2)
    it.channel.on_sender_backlog(3)
    it.channel.on_sender_backlog(5)

    assert (it.client.orders[1:], it.channel.buffer_manager.take_unannounced()) == ([("credit", 0)], 5)
    assert (it.channel.buffer_manager.num_granted, it.channel.buffer_manager.num_credits_available) == (7, 7)


def test_floating_buffers_arrive_as_what_the_sender_says() -> None:
    """A floating buffer has size, kind and compression of the message, and returns to the gate's pool."""
    it = Fixture(4, 2, 1)
    it.channel.on_sender_backlog(1)
    it.channel.buffer_manager.take_unannounced()

    buffer = present(it.channel.allocate(7, DataType.DATA_BUFFER_WITH_CLEAR_END, is_compressed=True))

    assert (buffer.size, buffer.data_type, buffer.is_buffer, buffer.is_compressed) == (
        7,
        DataType.DATA_BUFFER_WITH_CLEAR_END,
        True,
        True,
    )
    buffer.recycle()
    assert it.pool.num_available == 2


def test_hist_8747_an_offer_that_is_not_needed_does_not_keep_the_channel_out_of_the_line() -> None:
    """A channel that asked, needed less when the offer came, and later needs more asks again."""
    it = Fixture(4, 1, 2)
    held = it.floating()
    it.channel.on_sender_backlog(1)
    it.channel.on_sender_backlog(0)

    held.recycle()
    before = (it.state(), it.pool.num_available)
    it.channel.on_sender_backlog(2)

    assert (before, it.state(), it.pool.num_available) == (((2, 2, False), 1), (3, 4, True), 0)


# ---------------------------------------------------------------- no exclusive buffers


def test_a_blocked_channel_without_exclusive_buffers_gives_its_floating_ones_back() -> None:
    """testOnUpstreamBlockedAndResumed: 4 and 2, after the barrier 4 and 0, after the next backlog 6 and 4."""
    it = Fixture(16, 12, 2, 0)
    available, unannounced = [], []

    def look() -> None:
        for channel in it.channels:
            channel.check_invariants()
        available.append([channel.buffer_manager.num_available_buffers for channel in it.channels])
        unannounced.append([channel.buffer_manager.num_unannounced for channel in it.channels])

    for channel in it.channels:
        channel.on_sender_backlog(2)
    look()
    for channel in it.channels:
        channel.on_response(event(channel, 0, ALIGNED_BARRIER))
    look()
    for channel in it.channels:
        channel.resume_consumption()
    look()
    for channel in it.channels:
        channel.on_sender_backlog(4)
    look()

    assert available == [[4, 2], [4, 0], [4, 0], [6, 4]]
    assert unannounced == [[2, 2], [2, 0], [2, 0], [4, 4]]
    assert it.client.orders[-3:] == [("resume", 0), ("resume", 1), ("credit", 1)]


def test_hist_16641_a_channel_without_exclusive_buffers_gets_credit_from_an_announced_backlog() -> None:
    """Then every data buffer announces the next ones."""
    it = Fixture(4, 2, 0)
    channel = it.channel
    refused = room_of(channel)

    channel.on_sender_backlog(5)
    granted = channel.buffer_manager.take_unannounced()
    channel.on_response(data(channel, 0, b"x", backlog=4))
    channel.on_response(data(channel, 1, b"y", backlog=3))
    polled = [channel.next_buffer(), channel.next_buffer()]
    orders = list(it.client.orders)
    for found in polled:
        assert found is not None
        found.buffer.recycle()

    assert (refused, granted, orders) == (None, 2, [("request", 0), ("credit", 0)])
    assert (it.client.orders[2:], channel.buffer_manager.take_unannounced()) == ([("credit", 0)], 2), (
        "the pool's offers are credit again"
    )


def test_hist_16404_a_blocked_channel_does_not_hoard_the_only_floating_buffer() -> None:
    """It goes to a second channel without buffers of its own (FLINK-8523, too)."""
    it = Fixture(3, 1, 0, 0)
    first, second = it.channels
    first.on_sender_backlog(1)
    second.on_sender_backlog(1)
    starved = second.buffer_manager.num_unannounced

    first.on_response(event(first, 0, ALIGNED_BARRIER))

    assert (starved, first.buffer_manager.num_unannounced, second.buffer_manager.num_unannounced) == (0, 0, 1)
    assert it.client.orders[-1] == ("credit", 1)


def test_a_buffer_between_the_barrier_and_the_resume_is_not_credit_twice() -> None:
    """A sender forgets its credit when it resumes: buffers that are under way then count on neither side."""
    it = Fixture(4, 2, 0)
    channel = it.channel
    channel.on_sender_backlog(2)
    channel.buffer_manager.take_unannounced()  # the announcement is on its way

    channel.on_response(event(channel, 0, ALIGNED_BARRIER))
    channel.resume_consumption()

    manager = channel.buffer_manager
    assert (manager.num_credits_available, manager.num_unannounced, num_in_use(it.pool)) == (0, 0, 0)
    with pytest.raises(RemoteProtocolError, match="1 buffers sent, 0 credits granted"):
        channel.on_response(data(channel, 1))


# ---------------------------------------------------------------- failures


def test_hist_9755_an_error_while_credit_is_announced_is_the_channels_error() -> None:
    """testFailureInNotifyBufferAvailable: the task gets the error, and the recycling thread does not."""
    it = Fixture(4, 1, 0, 0)
    failing, successful = it.channels

    def break_down(channel: RemoteInputChannel) -> None:
        if channel is failing:
            raise OSError("no connection")

    it.client.credit = break_down  # type: ignore[method-assign]  # a connection that broke
    held = it.floating()
    failing.on_sender_backlog(1)
    successful.on_sender_backlog(1)

    held.recycle()

    with pytest.raises(ResourceBrokenError, match="cannot announce credit: OSError: no connection"):
        failing.next_buffer()
    assert (it.pool.num_available, successful.buffer_manager.num_unannounced) == (0, 0), (
        "the buffer is the failed channel's"
    )
    failing.release()
    assert successful.buffer_manager.num_unannounced == 1, "and on its release goes to the next one in line"


def test_credit_before_the_request_is_a_bug() -> None:
    """RemoteInputChannelTest: testFailureInNotifyBufferAvailable's channel that was never requested."""
    it = Fixture(4, 1, 0)
    channel = remote_channel(it.gate, it.client, it.network, index=7, num_segments=0, is_requested=False)
    channel.buffer_manager.pool = it.pool

    channel.on_sender_backlog(1)

    with pytest.raises(LocalProtocolError, match="channel 7 has credit to announce before it was requested"):
        channel.next_buffer()
    channel.release()


def test_a_destroyed_pool_leaves_the_exclusive_buffers() -> None:
    """Destroyed before the backlog comes, or while the channel stands in its line."""
    it = Fixture(8, 1, 2, 2)
    first, second = it.channels
    held = it.floating()
    first.on_sender_backlog(1)
    assert it.state() == (2, 3, True)

    it.pool.destroy()
    second.on_sender_backlog(1)

    assert [it.state(index) for index in range(2)] == [(2, 3, False), (2, 3, False)]
    held.recycle()


def test_a_floating_buffer_that_is_needed_is_not_given_back() -> None:
    """A floating buffer is kept while the returning exclusive one makes exactly enough: no pool would replace it."""
    it = Fixture(8, 2, 2)
    held = it.exclusive()
    it.channel.on_sender_backlog(2)
    before = it.state()
    it.pool.destroy()

    held.recycle()

    assert (before, it.state()) == ((3, 4, True), (4, 4, False))


def test_a_released_channel_wants_nothing() -> None:
    """testConcurrentNotifyBufferAvailableAndRelease, one after the other: its place in the line goes on."""
    it = Fixture(8, 1, 2, 2)
    held = it.floating()
    for channel in it.channels:
        channel.on_sender_backlog(1)

    it.channels[0].release()
    held.recycle()
    it.channels[0].on_sender_backlog(9)

    assert (it.channels[0].buffer_manager.num_unannounced, it.channels[1].buffer_manager.num_unannounced) == (0, 1)
    manager = it.channels[0].buffer_manager
    assert (manager.num_available_buffers, manager.num_required, manager.is_waiting) == (0, 11, False)


def test_hist_12852_too_few_buffers_are_said_at_once() -> None:
    """When the gate is set up, instead of waiting for data."""
    it = Fixture(4, 1, 2)

    with pytest.raises(Exception, match=r"reduce \(1/2\) \(input channel 9\)"):
        remote_channel(it.gate, it.client, it.network, index=9, num_segments=2)


# ---------------------------------------------------------------- laws and threads


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["backlog", "receive", "recycle", "announce", "barrier"]), st.integers(0, 6)),
        max_size=60,
    )
)
def test_every_credit_has_a_buffer_behind_it(steps: list[tuple[str, int]]) -> None:
    """Available + unannounced == free, and a channel that needs more stands in line."""
    it = Fixture(8, 4, 2, 0)
    numbers = [0, 0]
    held: list[NetworkBuffer] = []
    for step, number in steps:
        channel = it.channels[number % 2]
        match step:
            case "backlog":
                channel.on_sender_backlog(number)
            case "receive" if channel.buffer_manager.num_credits_available:
                channel.on_response(data(channel, numbers[number % 2], b"x", backlog=number))
                numbers[number % 2] += 1
                found = present(channel.next_buffer())
                held.append(found.buffer)
            case "recycle" if held:
                held.pop(number % len(held)).recycle()
            case "announce":
                channel.buffer_manager.take_unannounced()
            case "barrier":
                channel.on_response(event(channel, numbers[number % 2], ALIGNED_BARRIER))
                numbers[number % 2] += 1
                found = present(channel.next_buffer())
                found.buffer.recycle()
                channel.resume_consumption()
            case _:
                pass
        for each in it.channels:
            each.check_invariants()
        it.pool.check_invariants()
    for buffer in held:
        buffer.recycle()
    it.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["backlog", "recycle", "both"])
def test_backlog_recycling_and_release_race(kind: str, tiny_switch_interval: None) -> None:
    """testConcurrentOnSenderBacklogAndRelease, ...AndRecycle, testConcurrentRecycleAndRelease: nothing is lost."""
    for _ in range(60):
        it = Fixture(24, 16, 4)
        channel = it.channel
        exclusive = [it.exclusive() for _ in range(4)]
        floating = [it.floating() for _ in range(8)]

        def backlog(channel: RemoteInputChannel = channel) -> None:
            for number in range(24):
                channel.on_sender_backlog(number)

        def recycle(buffers: list[NetworkBuffer]) -> None:
            for buffer in buffers:
                buffer.recycle()

        calls: list[Callable[[], object]] = [partial(recycle, exclusive), partial(recycle, floating)]
        if kind != "recycle":
            calls.append(backlog)
        if kind != "both":
            calls.append(channel.release)
        run_together(*calls)

        channel.check_invariants()
        it.close()


@pytest.mark.slow
def test_hist_18595_9676_recycling_and_releasing_two_channels_crosswise_never_deadlocks(
    tiny_switch_interval: None,
) -> None:
    """The buffers of each go to the other one's line."""
    for _ in range(100):
        it = Fixture(24, 8, 2, 2)
        first, second = it.channels
        for channel in it.channels:
            channel.on_sender_backlog(6)
            channel.buffer_manager.take_unannounced()
        buffers = [[taken for _ in range(3) if (taken := room_of(channel)) is not None] for channel in it.channels]

        def work(channel: RemoteInputChannel, others: list[NetworkBuffer]) -> None:
            for buffer in others:
                buffer.recycle()
            channel.release()

        run_together(partial(work, first, buffers[1]), partial(work, second, buffers[0]))

        it.close()


def test_hist_22946_the_pool_is_asked_outside_the_channels_lock() -> None:
    """FLINK-9676, FLINK-22946: requests, offers, surplus buffers and orders run without the channel's lock."""
    it = Fixture(16, 14, 2)
    seen: list[bool] = []

    class WatchedPool:
        def request_buffer_nowait(self) -> NetworkBuffer | None:
            seen.append(is_unlocked(it.channel))
            return it.pool.request_buffer_nowait()

        def add_buffer_listener(self, listener: object) -> bool:
            seen.append(is_unlocked(it.channel))
            return it.pool.add_buffer_listener(it.channel.buffer_manager)

    it.client.credit = lambda channel: seen.append(is_unlocked(it.channel))  # type: ignore[method-assign]  # looks at the lock
    it.channel.buffer_manager.pool = WatchedPool()  # type: ignore[assignment]  # as above
    exclusive = it.exclusive()
    it.channel.on_sender_backlog(20)
    it.channel.on_sender_backlog(2)
    exclusive.recycle()

    assert len(seen) > 14
    assert all(seen)


# ---------------------------------------------------------------- when credit is announced


def test_credit_is_announced_in_lumps_of_half_the_initial_credit() -> None:
    """While the sender has credit, new credit is announced in lumps of at least four, half of its initial eight."""
    it = Fixture(9, 1, 8)
    held = [it.exclusive() for _ in range(4)]
    it.client.orders.clear()

    for buffer in held[:3]:
        buffer.recycle()
    assert (it.client.orders, it.channel.buffer_manager.num_unannounced) == ([], 3)
    it.channel.check_invariants()
    held[3].recycle()

    assert it.client.orders == [("credit", 0)]
    assert it.channel.buffer_manager.take_unannounced() == 4
    it.exclusive().recycle()
    assert it.client.orders == [("credit", 0)], "seven left"


def test_a_sender_without_credit_is_told_of_every_new_one() -> None:
    """The buffer that uses the last credit announces what was saved up; so does each one after that."""
    it = Fixture(9, 1, 8)
    held = [it.exclusive() for _ in range(7)]
    it.client.orders.clear()
    for buffer in held[:3]:
        buffer.recycle()
    assert it.client.orders == []

    held.append(it.exclusive())

    assert it.client.orders == [("credit", 0)]
    assert it.channel.buffer_manager.take_unannounced() == 3
    held += [it.exclusive() for _ in range(3)]
    for buffer in held[3:5]:
        buffer.recycle()
        assert it.channel.buffer_manager.take_unannounced() == 1
        held.append(it.exclusive())
    assert it.client.orders == [("credit", 0)] * 3
    for buffer in held[5:]:
        buffer.recycle()

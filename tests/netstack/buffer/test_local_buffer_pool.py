"""``LocalBufferPool``: available means served; with the scenarios of Flink's ``LocalBufferPoolTest``, and the history
of its bugs.
"""

import sys

import pytest

from netstack.buffer.buffer_builder import BufferBuilder
from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.network_buffer import MemorySegment, NetworkBuffer, recycle_all
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import ResourceClosedError
from netstack.wire.messages import DataType
from tests.netstack.buffer.pools import (
    NUM_BUFFERS,
    SEGMENT,
    Worker,
    buffers_of,
    builder_of,
    create,
    num_in_use,
    num_overdraft,
    recycle,
    set_num_buffers,
    take,
)
from tests.netstack.present import present
from tests.waiting import PATIENCE_S, spin_until

# ---------------------------------------------------------------- requests and availability


def test_availability_follows_the_free_segments(bounded: LocalBufferPool) -> None:
    """Done while a request would be served; the last one taken starts a new future."""
    done = bounded.available_future()
    segments = [take(bounded) for _ in range(3)]
    pending = bounded.available_future()
    told: list[str] = []
    pending.add_done_callback(lambda: told.append("there is one"))
    bounded.check_invariants()
    states = (done.is_done, pending.is_done, bounded.is_available, list(told))

    bounded.recycle(segments.pop())

    assert states == (True, False, False, [])
    assert (pending.is_done, bounded.is_available, told) == (True, True, ["there is one"])
    bounded.check_invariants()
    recycle(bounded, segments)


def test_hist_29298_a_callback_may_take_the_segment_itself(bounded: LocalBufferPool) -> None:
    """The callback runs outside the lock; the pool asks for the next one by itself (FLINK-29298)."""
    segments = [take(bounded) for _ in range(3)]
    bounded.available_future().add_done_callback(lambda: segments.append(take(bounded)))

    bounded.recycle(segments.pop(0))

    assert (len(segments), bounded.is_available) == (3, False)
    bounded.recycle(segments.pop())
    assert bounded.is_available, "and again"
    recycle(bounded, segments)


def test_hist_9755_a_broken_callback_does_not_lose_the_segment(bounded: LocalBufferPool) -> None:
    """FLINK-9755: the recycling thread gets the callback's error; the pool is sound."""
    segments = [take(bounded) for _ in range(3)]

    def broken() -> None:
        raise RuntimeError("callback")

    bounded.available_future().add_done_callback(broken)

    with pytest.raises(RuntimeError, match="callback"):
        bounded.recycle(segments.pop())

    bounded.check_invariants()
    assert bounded.num_available == 1
    recycle(bounded, segments)


def test_a_destroyed_pool_serves_nothing_and_takes_everything_back(
    network: NetworkBufferPool, bounded: LocalBufferPool
) -> None:
    """LocalBufferPoolTest recycle after destroy: free segments go home at once, the others when they are recycled."""
    segment = take(bounded)

    bounded.destroy()
    bounded.destroy()
    before = network.num_total - network.num_available
    bounded.recycle(segment)

    assert (before, network.num_total - network.num_available, bounded.num_requested) == (1, 0, 0)
    bounded.check_invariants()
    for request in (
        bounded.request_segment_nowait,
        bounded.request_buffer_nowait,
        lambda: builder_of(bounded),
        bounded.request_builder_blocking,
    ):
        with pytest.raises(ResourceClosedError):
            request()


def test_buffers_and_builders_come_from_the_pool_and_go_back(
    network: NetworkBufferPool, bounded: LocalBufferPool
) -> None:
    """Buffers and builders have whole segments, which their last holder recycles."""
    buffer, builder = bounded.request_buffer_nowait(), builder_of(bounded)
    assert buffer is not None
    assert builder is not None

    facts = (buffer.size, buffer.is_buffer, builder.capacity_bytes, bounded.num_requested)
    buffer.recycle()
    builder.close()

    assert facts == (SEGMENT, True, SEGMENT, 3)
    assert network.num_total - network.num_available == bounded.num_available
    taken = [take(bounded) for _ in range(3)]
    assert (bounded.request_buffer_nowait(), builder_of(bounded)) == (None, None)
    recycle(bounded, taken)


# ---------------------------------------------------------------- size


def test_more_than_available_is_none(network: NetworkBufferPool, pool: LocalBufferPool) -> None:
    """LocalBufferPoolTest request more than available: one is held in advance all the time, the 1025th is None."""
    set_num_buffers(pool, NUM_BUFFERS)
    taken, used = [], []

    for _ in range(NUM_BUFFERS):
        taken.append(take(pool))
        used.append(network.num_total - network.num_available)

    assert used == [min(index + 1, NUM_BUFFERS) for index in range(1, NUM_BUFFERS + 1)]
    assert pool.request_buffer_nowait() is None
    recycle(pool, taken)


@pytest.mark.parametrize(
    ("large", "small", "max_overdraft", "requested", "overdraft_after", "ordinary_after", "available_after"),
    [
        pytest.param(7, 5, 2, 5, 0, 5, 0, id="as many as the small size"),
        pytest.param(6, 4, 2, 2, 0, 3, 1, id="less than the small size"),
        pytest.param(7, 5, 2, 7, 2, 5, 0, id="surplus equals the overdraft"),
        pytest.param(9, 5, 3, 9, 4, 5, 0, id="surplus above the overdraft"),
        pytest.param(7, 5, 4, 7, 2, 5, 0, id="surplus below the overdraft"),
        pytest.param(7, 5, 6, 9, 4, 5, 0, id="with overdraft in use"),
    ],
)
def test_decrease_size(
    network: NetworkBufferPool,
    large: int,
    small: int,
    max_overdraft: int,
    requested: int,
    overdraft_after: int,
    ordinary_after: int,
    available_after: int,
) -> None:
    """LocalBufferPoolTest decrease size: segments above the new size count as overdraft, even beyond its limit."""
    pool = network.create_buffer_pool(owner="pool", num_required=4, max_buffers=10, max_overdraft_buffers=max_overdraft)
    set_num_buffers(pool, large)
    taken = [take(pool) for _ in range(requested)]

    set_num_buffers(pool, small)

    ordinary = min(pool.num_requested, pool.num_buffers)
    assert (num_overdraft(pool), ordinary, pool.num_available) == (overdraft_after, ordinary_after, available_after)
    assert (pool.num_buffers, pool.is_available) == (small, available_after > 0)
    pool.check_invariants()
    recycle(pool, taken)
    pool.check_invariants()


@pytest.mark.parametrize(
    ("max_buffers", "small", "large", "overdraft_after", "available_after"),
    [(100, 5, 6, 1, 0), (100, 5, 7, 0, 0), (100, 5, 8, 0, 1), (10, 8, 10, 0, 0)],
)
def test_increase_size(
    network: NetworkBufferPool, max_buffers: int, small: int, large: int, overdraft_after: int, available_after: int
) -> None:
    """Increase size: overdraft becomes ordinary first; only further room makes the pool available."""
    pool = create(network, small, max_buffers, max_overdraft_buffers=2)
    set_num_buffers(pool, small)
    taken = [take(pool) for _ in range(small)]
    assert not pool.is_available
    taken += [take(pool), take(pool)]
    assert (pool.request_segment_nowait(), num_overdraft(pool), pool.is_available) == (None, 2, False)

    set_num_buffers(pool, large)

    assert (pool.num_buffers, num_overdraft(pool), pool.num_available) == (large, overdraft_after, available_after)
    assert (pool.is_available, pool.available_future().is_done) == (available_after > 0, available_after > 0)
    pool.check_invariants()
    recycle(pool, taken)


@pytest.mark.parametrize("max_overdraft", [5, 0])
def test_request_on_recycle(network: NetworkBufferPool, max_overdraft: int) -> None:
    """Request buffer on recycle with and without overdraft: one recycles, the other blocks for its share; both end."""
    first = create(network, 512, 2048, max_overdraft_buffers=max_overdraft)
    taken = [take(first) for _ in range(1023)]
    second = create(network, 512, 512, max_overdraft_buffers=max_overdraft)
    builders: list[BufferBuilder] = []
    worker = Worker(lambda: builders.extend(second.request_builder_blocking() for _ in range(512)))

    recycle(first, taken)
    first.destroy()
    worker.join()

    assert (worker.error, len(builders)) == (None, 512)
    for builder in builders:
        builder.close()


def test_surplus_goes_home_with_every_recycle(network: NetworkBufferPool, pool: LocalBufferPool) -> None:
    """LocalBufferPoolTest recycle excess buffers after recycling: used ones stay until then."""
    set_num_buffers(pool, NUM_BUFFERS)
    taken = [take(pool) for _ in range(NUM_BUFFERS)]

    set_num_buffers(pool, NUM_BUFFERS // 2)
    used = [network.num_total - network.num_available]
    for _ in range(1, NUM_BUFFERS // 2):
        pool.recycle(taken.pop())
        used.append(network.num_total - network.num_available)

    assert used == list(range(NUM_BUFFERS, NUM_BUFFERS // 2, -1))
    recycle(pool, taken)
    assert network.num_total - network.num_available == NUM_BUFFERS // 2


def test_free_surplus_goes_home_with_the_new_size(pool: LocalBufferPool) -> None:
    """LocalBufferPoolTest recycle excess buffers after changing the number: at once."""
    set_num_buffers(pool, NUM_BUFFERS)
    recycle(pool, [take(pool) for _ in range(NUM_BUFFERS)])
    before = pool.num_available

    set_num_buffers(pool, NUM_BUFFERS // 2)

    assert (before, pool.num_available) == (NUM_BUFFERS, NUM_BUFFERS // 2)


def test_a_bounded_pool_through_all_its_sizes(network: NetworkBufferPool) -> None:
    """LocalBufferPoolTest bounded buffer: 1, 2, 3 (which is 2), and 1 again."""
    pool = network.create_buffer_pool(owner="bounded", num_required=1, max_buffers=2)
    assert pool.max_buffers == 2

    for size, expected in ((1, 1), (2, 2), (3, 2), (1, 1)):
        set_num_buffers(pool, size)
        taken = []
        while (segment := pool.request_segment_nowait()) is not None:
            taken.append(segment)
        counts = [len(taken), pool.num_available]
        recycle(pool, taken)
        counts.append(pool.num_available)
        assert (size, counts) == (size, [expected, 0, expected])
        pool.check_invariants()


def test_availability_through_the_life_of_a_pool(pool: LocalBufferPool) -> None:
    """LocalBufferPoolTest is available or not: with each size and each request."""
    assert pool.is_available
    builder = pool.request_builder_blocking()
    future = pool.available_future()
    assert not future.is_done

    set_num_buffers(pool, 5)
    assert (future.is_done, pool.is_available) == (True, True)
    taken = []
    for _ in range(4):
        assert pool.is_available
        taken.append(take(pool))
    assert not pool.is_available
    pool.recycle(taken.pop())
    assert pool.is_available
    recycle(pool, taken)
    assert pool.is_available
    set_num_buffers(pool, 2)
    assert pool.is_available
    segment = take(pool)
    assert not pool.is_available
    pool.recycle(segment)
    assert pool.is_available
    set_num_buffers(pool, 1)
    assert not pool.available_future().is_done

    builder.close()
    assert (pool.is_available, pool.available_future().is_done) == (True, True)


def test_hist_20547_availability_is_consistent_after_a_failed_fetch(network: NetworkBufferPool) -> None:
    """LocalBufferPoolTest consistent availability (FLINK-20547): the network pool had nothing in between."""
    pool = network.create_buffer_pool(owner="pool", num_required=1, max_buffers=2)
    others = network.request_unpooled("all the rest", NUM_BUFFERS - 1)
    segment = take(pool)

    set_num_buffers(pool, 2)
    pool.check_invariants()
    pool.recycle(segment)
    pool.check_invariants()

    assert pool.is_available
    network.recycle_unpooled(others)


# ---------------------------------------------------------------- maximum per channel, overdraft


def test_max_buffers_per_channel_and_availability(network: NetworkBufferPool) -> None:
    """Max per channel: a full channel makes the pool unavailable, it is not refused (FLINK-27522)."""
    pool = create(network, 1, None, num_subpartitions=3, max_buffers_per_channel=2)
    set_num_buffers(pool, 10)

    def is_available() -> bool:
        assert pool.available_future().is_done == pool.is_available
        pool.check_invariants()
        return pool.is_available

    assert is_available()
    of_0, of_1 = pool.request_builder_blocking(0), pool.request_builder_blocking(1)
    assert is_available()
    second_of_0 = pool.request_builder_blocking(0)
    assert not is_available()
    third_of_0 = pool.request_builder_blocking(0)
    of_2, second_of_2 = pool.request_builder_blocking(2), builder_of(pool, 2)
    assert second_of_2 is not None
    assert not is_available()

    states = []
    for builder in (of_1, of_2, second_of_0, of_0, third_of_0, second_of_2):
        builder.close()
        states.append(is_available())
    assert states == [False, False, False, True, True, True]


def test_a_full_channel_wakes_whoever_waits_for_availability(network: NetworkBufferPool) -> None:
    """The future of a pool that has free segments completes when the last full channel has room."""
    pool = create(network, 4, 4, num_subpartitions=2, max_buffers_per_channel=1)
    builders = [pool.request_builder_blocking(0), pool.request_builder_blocking(1)]
    future, told = pool.available_future(), []
    future.add_done_callback(lambda: told.append(pool.is_available))

    builders[0].close()
    before = list(told)
    builders[1].close()

    assert (before, told) == ([], [True])
    pool.check_invariants()


OVERDRAFT_CASES = [(4, 3, 2, 1), (4, 3, 2, 2), (4, 3, 3, 2)]
OVERDRAFT_CASES += [(8, 5, 2, 1), (8, 5, 2, 2), (8, 5, 3, 2), (12, 10, 2, 1), (12, 10, 2, 2), (12, 10, 3, 2)]


@pytest.mark.parametrize("max_overdraft", [0, 1, 2])
@pytest.mark.parametrize(("size", "max_per_channel", "num_channels", "num_used_channels"), OVERDRAFT_CASES)
def test_overdraft_and_availability(
    network: NetworkBufferPool,
    size: int,
    max_per_channel: int,
    num_channels: int,
    num_used_channels: int,
    max_overdraft: int,
) -> None:
    """Overdraft buffer and availability: exactly so many beyond the size, and the pool is unavailable meanwhile."""
    pool = create(
        network,
        1,
        None,
        num_subpartitions=num_channels,
        max_buffers_per_channel=max_per_channel,
        max_overdraft_buffers=max_overdraft,
    )
    set_num_buffers(pool, size)
    ordinary: dict[int, list[BufferBuilder]] = {channel: [] for channel in range(num_used_channels)}

    def check(num_beyond: int, num_used: int, *, is_available: bool) -> None:
        assert (num_overdraft(pool), num_in_use(pool), pool.is_available) == (num_beyond, num_used, is_available)
        pool.check_invariants()

    for index in range(size):
        builder = present(builder_of(pool, index % num_used_channels))
        ordinary[index % num_used_channels].append(builder)
        check(0, index + 1, is_available=index + 1 < size and index < num_used_channels * (max_per_channel - 1))
    overdraft = []
    for index in range(max_overdraft):
        builder = present(builder_of(pool, index % num_used_channels))
        overdraft.append(builder)
        check(index + 1, size + index + 1, is_available=False)
    for channel in range(num_channels):
        assert builder_of(pool, channel) is None
    check(max_overdraft, size + max_overdraft, is_available=False)

    for builder in overdraft:
        builder.close()
    check(0, size, is_available=False)
    num_used = size
    for builders in ordinary.values():
        for builder in builders:
            builder.close()
        num_used -= len(builders)
        check(0, num_used, is_available=True)
    assert (pool.num_buffers, num_in_use(pool), pool.num_available) == (size, 0, size)


@pytest.mark.parametrize(("max_per_channel", "max_overdraft"), [(0, 0), (1, -1)])
def test_senseless_limits_are_refused(network: NetworkBufferPool, max_per_channel: int, max_overdraft: int) -> None:
    """A pool with senseless limits is refused, and no segment stays reserved for it."""
    with pytest.raises(ValueError, match="at most"):
        create(network, 1, 1, max_buffers_per_channel=max_per_channel, max_overdraft_buffers=max_overdraft)

    assert (network.num_reserved, len(network._pools)) == (0, 0)


# ---------------------------------------------------------------- many at once


def test_buffers_that_are_recycled_together_are_all_free_before_anybody_is_told(bounded: LocalBufferPool) -> None:
    """Buffers that are recycled together cause one wake-up, and the woken thread finds all of them."""
    buffers = buffers_of(bounded, 3)
    seen: list[int] = []
    bounded.available_future().add_done_callback(lambda: seen.append(bounded.num_available))

    recycle_all(buffers)

    assert seen == [3]
    bounded.check_invariants()


def test_together_home_from_two_pools_and_from_none(network: NetworkBufferPool, bounded: LocalBufferPool) -> None:
    """Each segment returns to its own pool; the surplus of a pool that shrank goes to the network pool."""
    other = create(network, 1, 2, num_subpartitions=1, max_buffers_per_channel=1)
    builder = other.request_builder_blocking(0)
    counted = builder.create_buffer_consumer().build()
    buffers = [*buffers_of(bounded, 3), counted, NetworkBuffer.unpooled(b"event", DataType.EVENT_BUFFER)]
    builder.close()
    set_num_buffers(bounded, 2)

    recycle_all(buffers)

    assert (bounded.num_available, other.is_available) == (2, False), (
        "the consumer of the other pool's buffer holds it still"
    )
    bounded.check_invariants()
    other.check_invariants()
    bounded.destroy()
    other.destroy()
    counted_lease = counted.lease
    counted_lease.release()


@pytest.mark.parametrize("num_buffers", [1, 2])
def test_the_last_buffers_that_come_home_together_unmap_a_destroyed_pool(num_buffers: int) -> None:
    """The network pool unmaps its memory once the last buffers are recycled, even if no pool waits for them."""
    network = NetworkBufferPool(4, 64)
    pool = network.create_buffer_pool(owner="p", num_required=1, max_buffers=2)
    buffers = buffers_of(pool, num_buffers)
    segment = buffers[0].lease.segment
    network.destroy()

    recycle_all(buffers)

    assert network.num_available == 4
    with pytest.raises(ValueError, match="released memoryview"):
        len(segment.view)


# ---------------------------------------------------------------- history, and orders of events


def test_hist_16972_available_pools_share_no_segment() -> None:
    """FLINK-16972: an available pool serves a request, even if there are fewer segments than all pools want."""
    network = NetworkBufferPool(6, 16)
    pools = [network.create_buffer_pool(owner=str(index), num_required=1, max_buffers=None) for index in range(3)]
    held: list[tuple[LocalBufferPool, MemorySegment]] = []

    while any(pool.is_available for pool in pools):
        for pool in [each for each in pools if each.is_available]:
            segment = pool.request_segment_nowait()
            assert segment is not None, "available means served"
            held.append((pool, segment))
    assert len(held) == 6
    for pool, segment in held:
        pool.recycle(segment)
        assert pool.is_available
        pool.check_invariants()
    network.destroy()


def test_hist_13245_a_subpartition_is_counted_down_once(network: NetworkBufferPool) -> None:
    """FLINK-13245, FLINK-22424: two counts down would make a full subpartition look free."""
    pool = create(network, 4, 4, num_subpartitions=1, max_buffers_per_channel=2)
    builders = [pool.request_builder_blocking(0) for _ in range(3)]
    consumer = builders[0].create_buffer_consumer()
    builders[0].append_and_commit(b"abc")
    buffer = consumer.build()

    builders[0].close()
    builders[0].close()
    consumer.close()
    consumer.close()
    assert num_in_use(pool) == 3
    buffer.recycle()

    assert (pool.is_available, num_in_use(pool)) == (False, 2)
    builders[1].close()
    assert pool.is_available
    builders[2].close()
    pool.check_invariants()


def test_a_pool_that_has_a_free_segment_leaves_its_place_in_line_to_others() -> None:
    """Its own segment came back meanwhile: what is offered goes to the next."""
    network = NetworkBufferPool(6, 16)
    user = network.create_buffer_pool(owner="user", num_required=1, max_buffers=None)
    of_user = [take(user) for _ in range(6)]
    first, second = (network.create_buffer_pool(owner="waiting", num_required=1, max_buffers=None) for _ in range(2))
    user.recycle(of_user.pop())
    user.recycle(of_user.pop())
    of_first, of_second = take(first), take(second)
    assert list(network._waiting) == [first, second]

    first.recycle(of_first)
    user.recycle(of_user.pop())

    assert (first.num_available, second.num_available) == (1, 1)
    second.recycle(of_second)
    recycle(user, of_user)
    network.check_invariants()
    network.destroy()


def test_a_segment_that_comes_while_the_pool_shrinks_again_goes_home(
    network: NetworkBufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that arrives after its pool was made smaller again goes back to the network pool."""
    pool = network.create_buffer_pool(owner="pool", num_required=1, max_buffers=None)
    set_num_buffers(pool, 1)
    segment = take(pool)
    fetch = network.take_or_wait

    def shrink_after_fetch(pool: LocalBufferPool) -> MemorySegment | None:
        fetched = fetch(pool)
        pool.num_buffers = 1
        return fetched

    with monkeypatch.context() as patch:
        patch.setattr(network, "take_or_wait", shrink_after_fetch)
        set_num_buffers(pool, 2)

    assert (pool.num_requested, pool.num_available, network.num_total - network.num_available) == (1, 0, 1)
    pool.check_invariants()
    pool.recycle(segment)


@pytest.mark.slow
def test_concurrent_requests_and_recycles(
    pool: LocalBufferPool, network: NetworkBufferPool, tiny_switch_interval: None
) -> None:
    """LocalBufferPoolTest concurrent request recycle: 128 tasks; each has its own segment at any time."""
    num_tasks, num_requests = 128, 64
    set_num_buffers(pool, num_tasks)

    def work() -> None:
        for _ in range(num_requests):
            buffer = pool.request_buffer_nowait()
            assert buffer is not None, "as many segments as tasks"
            buffer.recycle()

    workers = [Worker(work) for _ in range(num_tasks)]
    for worker in workers:
        worker.join()

    assert [worker.error for worker in workers] == [None] * num_tasks
    pool.check_invariants()


def test_a_broken_callback_does_not_keep_a_thread_that_parks_for_the_segment(network: NetworkBufferPool) -> None:
    """The callback comes first, where a full channel has room again while another segment is free."""
    pool = create(network, 3, 3, num_subpartitions=1, max_buffers_per_channel=1)
    of_channel, other, last = take(pool, 0), take(pool), take(pool)
    workers = [Worker(lambda: pool.recycle(pool.request_segment_blocking())) for _ in range(2)]
    spin_until(lambda: "2 threads wait" in repr(pool))

    def broken() -> None:
        raise RuntimeError("callback")

    pool.available_future().add_done_callback(broken)
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(PATIENCE_S)
    try:
        pool.recycle(other)
        with pytest.raises(RuntimeError, match="callback"):
            pool.recycle(of_channel, 0)
    finally:
        sys.setswitchinterval(interval_s)

    for worker in workers:
        worker.join()
    assert [worker.error for worker in workers] == [None, None]
    pool.recycle(last)
    pool.check_invariants()

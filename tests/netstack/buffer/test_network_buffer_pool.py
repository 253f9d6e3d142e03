"""``NetworkBufferPool``: promises are kept, and every segment comes back.

With the scenarios of Flink's ``BufferPoolFactoryTest`` and ``NetworkBufferPoolTest``.
"""

import random
from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.buffer.buffer_builder import BufferBuilder
from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.network_buffer import MemorySegment, NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool, NetworkBufferPoolState
from netstack.errors import InsufficientNetworkBuffersError, ResourceClosedError
from tests.netstack.buffer.pools import (
    NUM_BUFFERS,
    Worker,
    builder_of,
    create,
    drain,
    num_in_use,
    recycle,
    set_num_buffers,
    take,
)
from tests.netstack.present import present
from tests.waiting import PATIENCE_S, spin_until

SIZE = 64


@pytest.fixture
def ten() -> Iterator[NetworkBufferPool]:
    """A network pool of ten segments; a test that does not return all of them fails."""
    pool = NetworkBufferPool(10, SIZE)
    yield pool
    pool.check_invariants()
    pool.destroy()
    assert pool.num_available == pool.num_total, f"leaked: {pool!r}"


def sizes(*pools: LocalBufferPool) -> list[int]:
    return [pool.num_buffers for pool in pools]


# ---------------------------------------------------------------- promises and sizes


def test_segments_have_the_size_and_do_not_overlap(ten: NetworkBufferPool) -> None:
    """A write to one segment changes no other segment."""
    segments = ten.request_unpooled("test", 10)

    for segment in segments:
        segment.view[:] = bytes([segment.index + 1]) * SIZE

    assert {bytes(segment.view) for segment in segments} == {bytes([index + 1]) * SIZE for index in range(10)}
    ten.recycle_unpooled(segments)


def test_hist_14872_a_pool_gets_its_guarantee_whatever_the_others_took(ten: NetworkBufferPool) -> None:
    """A greedy pool stops where the guarantee of another one begins."""
    greedy = ten.create_buffer_pool(owner="greedy", num_required=1, max_buffers=100)
    modest = ten.create_buffer_pool(owner="modest", num_required=4, max_buffers=4)

    taken = drain(greedy)
    got = drain(modest)

    assert (len(taken), len(got)) == (6, 4)
    recycle(greedy, taken)
    recycle(modest, got)


def test_a_pool_never_exceeds_its_maximum(ten: NetworkBufferPool) -> None:
    """A pool does not grow beyond its maximum, even if there is memory."""
    pool = ten.create_buffer_pool(owner="small", num_required=1, max_buffers=3)

    segments = drain(pool)

    assert (len(segments), pool.num_requested, ten.num_available) == (3, 3, 7)
    recycle(pool, segments)


def test_an_idle_pool_keeps_what_fits_its_size_and_gives_it_back_when_it_shrinks(ten: NetworkBufferPool) -> None:
    """A pool keeps its free segments for its next request; as soon as other pools are created, they get the surplus."""
    pool = ten.create_buffer_pool(owner="pool", num_required=2, max_buffers=8)
    segments = drain(pool)
    assert ten.num_available == 2

    recycle(pool, segments)
    before = (pool.num_requested, ten.num_available)
    other = ten.create_buffer_pool(owner="other", num_required=4, max_buffers=8)

    assert before == (8, 2)
    assert (pool.num_buffers, pool.num_requested, pool.num_available, other.num_buffers) == (4, 4, 4, 6)


def test_a_promise_that_cannot_be_kept_is_refused(ten: NetworkBufferPool) -> None:
    """BufferPoolFactoryTest require more than possible: the error names the pool; no segment stays reserved."""
    with pytest.raises(InsufficientNetworkBuffersError, match="required 11, but only 10 available"):
        create(ten, 11)
    ten.create_buffer_pool(owner="first", num_required=7, max_buffers=7)

    with pytest.raises(InsufficientNetworkBuffersError, match=r"required 4, but only 3 available \(map \(2/4\)\)"):
        ten.create_buffer_pool(owner="map (2/4)", num_required=4, max_buffers=9)

    assert ten.num_reserved == 7


def test_unpooled_segments_are_all_or_nothing(ten: NetworkBufferPool) -> None:
    """A request for eleven of ten segments is refused, and so is one for a segment that is guaranteed to a pool."""
    pool = ten.create_buffer_pool(owner="pool", num_required=3, max_buffers=3)

    with pytest.raises(InsufficientNetworkBuffersError, match="required 8, but only 7 available"):
        ten.request_unpooled("gate", 8)
    with pytest.raises(ValueError, match="gate requests -1 segments"):
        ten.request_unpooled("gate", -1)
    assert ten.request_unpooled("gate", 0) == []
    segments = ten.request_unpooled("gate", 7)
    got = drain(pool)

    assert (len(segments), ten.num_reserved, len(got)) == (7, 10, 3)
    ten.recycle_unpooled(segments)
    recycle(pool, got)


def test_unpooled_segments_that_others_use_beyond_their_guarantee_are_missing(ten: NetworkBufferPool) -> None:
    """The promise would be possible, the memory is in use: refused now, granted once it is back."""
    pool = ten.create_buffer_pool(owner="pool", num_required=1, max_buffers=10)
    used = drain(pool)

    with pytest.raises(InsufficientNetworkBuffersError, match=r"Timeout .* only 0 came"):
        ten.request_unpooled("gate", 1)
    recycle(pool, used)

    ten.recycle_unpooled(ten.request_unpooled("gate", 9))


def test_segments_of_a_destroyed_pool_can_be_promised_while_they_are_on_their_way_home(ten: NetworkBufferPool) -> None:
    """A task that starts again must not fail because of its predecessor's last buffers."""
    pool = ten.create_buffer_pool(owner="pool", num_required=2, max_buffers=6)
    used = drain(pool)

    pool.destroy()
    following = ten.create_buffer_pool(owner="next", num_required=5, max_buffers=5)
    first = drain(following)
    recycle(pool, used)
    rest = drain(following)

    assert (len(first), len(rest)) == (4, 1)
    recycle(following, first + rest)


def test_hist_24035_a_waiting_pool_is_handed_what_another_one_frees(ten: NetworkBufferPool) -> None:
    """No pool polls; the segment comes to it and completes its future (FLINK-24035)."""
    first = ten.create_buffer_pool(owner="first", num_required=1, max_buffers=10)
    used = drain(first)
    second = ten.create_buffer_pool(owner="second", num_required=1, max_buffers=1)
    future = second.available_future()
    assert not second.is_available
    assert not future.is_done

    first.recycle(used.pop())

    assert (second.is_available, future.is_done, first.is_available) == (True, True, False), (
        "the first one is above its size"
    )
    first.recycle(used.pop())
    assert first.is_available
    recycle(first, used)


def test_guarantees_are_served_before_the_others_in_line(ten: NetworkBufferPool) -> None:
    """A pool that lacks part of its guarantee is served first, even if it asked last."""
    user = ten.create_buffer_pool(owner="user", num_required=1, max_buffers=9)
    used = drain(user)
    patient = ten.create_buffer_pool(owner="patient", num_required=1, max_buffers=None)
    held = drain(patient)
    assert (len(used), len(held), patient.num_buffers) == (9, 1, 5)
    late = ten.create_buffer_pool(owner="late", num_required=1, max_buffers=1)

    user.recycle(used.pop())

    assert (late.is_available, patient.is_available) == (True, False)
    user.recycle(used.pop())
    assert patient.is_available
    recycle(user, used)
    recycle(patient, held)


# ---------------------------------------------------------------- BufferPoolFactoryTest


def test_an_overprovisioned_pool_gives_back_on_recycle(network: NetworkBufferPool) -> None:
    """Overprovisioned: the first pool has more than its new size; each recycle is eagerly fetched by the second."""
    num_first = NUM_BUFFERS // 2 + 1
    num_second = NUM_BUFFERS - num_first
    first = create(network, num_second, NUM_BUFFERS)
    of_first = [take(first) for _ in range(num_first)]
    assert (num_in_use(first), first.num_buffers) == (num_first, NUM_BUFFERS)

    second = create(network, num_first, NUM_BUFFERS)
    assert sizes(first, second) == [num_second, num_first]
    assert first.request_segment_nowait() is None
    of_second = [take(second) for _ in range(num_second)]
    assert second.request_segment_nowait() is None

    first.recycle(of_first.pop())
    assert (network.num_available, first.num_requested, second.num_requested) == (0, num_first - 1, num_second + 1)
    assert (second.is_available, first.is_available) == (True, False)
    recycle(first, of_first)
    recycle(second, of_second)


@pytest.mark.parametrize(
    ("total", "pools", "expected"),
    [
        pytest.param(1024, [(1, None), (1, None)], [[1024], [512, 512]], id="uniform distribution"),
        pytest.param(1024, [(512, None), (512, None)], [[1024], [512, 512]], id="uniform distribution all buffers"),
        pytest.param(1024, [(1, 1024), (1, 1024)], [[1024], [512, 512]], id="uniform distribution bounded 1"),
        pytest.param(1024, [(1, 10), (1, 10)], [[10], [10, 10]], id="uniform distribution bounded 2"),
        pytest.param(3, [(1, 10)] * 3, [[3], [1, 2], [1, 1, 1]], id="uniform distribution bounded 3"),
        pytest.param(1024, [(1, 1), (1, 2)], [[1], [1, 2]], id="bounded pools"),
        pytest.param(1024, [(1, None), (24, 24)], [[1024], [1000, 24]], id="single managed pool gets all except fixed"),
        pytest.param(
            1024,
            [(1, 10), (1, 10), (1, None), (1, None)],
            [[10], [10, 10], [9, 10, 1005], [5, 5, 507, 507]],
            id="buffer redistribution mixed 1",
        ),
    ],
)
def test_redistribution(total: int, pools: list[tuple[int, int | None]], expected: list[list[int]]) -> None:
    """BufferPoolFactoryTest: the sizes after each new pool, in the order of creation."""
    network = NetworkBufferPool(total, 16)
    created: list[LocalBufferPool] = []
    found = []

    for num_required, max_buffers in pools:
        created.append(create(network, num_required, max_buffers))
        found.append(sizes(*created))
        network.check_invariants()

    assert found == expected
    network.destroy()


def test_unpooled_segments_shrink_the_pools() -> None:
    """Uniform distribution bounded 4: 10 segments, one pool, 2 and 2 and 2 taken, and all the way back."""
    network = NetworkBufferPool(10, 16)
    first = create(network, 1, 10)
    found: list[list[int]] = [sizes(first)]
    taken = [network.request_unpooled("gate", 2)]
    found.append(sizes(first))
    second = create(network, 1, 10)
    found.append(sizes(first, second))
    for _ in range(2):
        taken.append(network.request_unpooled("gate", 2))
        found.append(sizes(first, second))
    available = [network.num_available]
    while taken:
        network.recycle_unpooled(taken.pop(0))
        found.append(sizes(first, second))
        available.append(network.num_available)
    first.destroy()

    assert found == [[10], [8], [4, 4], [3, 3], [2, 2], [3, 3], [4, 4], [5, 5]]
    assert (available, network.num_available, second.num_buffers) == ([2, 4, 6, 8], 9, 10)
    network.destroy()


def test_everything_is_distributed() -> None:
    """All distributed: random pools, 200 rounds with printed seeds; no segment is left over while one can be used."""
    for seed in range(200):
        rng = random.Random(seed)
        network = NetworkBufferPool(256, 1)
        pools: list[LocalBufferPool] = []
        wanted = 0
        for _ in range(8):
            num_required = rng.randint(1, 7)
            max_buffers = None if rng.random() < 0.5 else num_required + rng.randint(0, 9)
            pools.append(create(network, num_required, max_buffers))
            wanted = min(256, wanted + (256 if max_buffers is None else max_buffers))
            assert sum(sizes(*pools)) == wanted, f"seed {seed}"
            assert all(pool.num_required <= pool.num_buffers <= (pool.max_buffers or 256) for pool in pools), (
                f"seed {seed}"
            )
        network.destroy()


# ---------------------------------------------------------------- NetworkBufferPoolTest


def test_destroy_all_pools(ten: NetworkBufferPool) -> None:
    """Destroy all: even segments that are in use come back, and a new pool can have all of them."""
    fixed, bounded, unbounded = create(ten, 2, 2), create(ten, 1, 1), create(ten, 5)
    taken: list[tuple[LocalBufferPool, MemorySegment]] = []
    for pool in (fixed, bounded, unbounded):
        while (segment := pool.request_segment_nowait()) is not None:
            taken.append((pool, segment))
    assert len(taken) == 10

    ten.destroy_all_pools()

    assert (ten.is_destroyed, len(ten._pools), ten.num_available) == (False, 0, 0)
    assert all(pool.is_destroyed for pool in (fixed, bounded, unbounded))
    for pool, segment in taken:
        pool.recycle(segment)
        with pytest.raises(ResourceClosedError):
            pool.request_buffer_nowait()
    assert ten.num_available == 10
    assert create(ten, 10).num_buffers == 10


def test_the_insufficient_message_says_what_is_needed_what_is_there_and_what_to_set() -> None:
    """NetworkBufferPoolTest insufficient message."""
    network = NetworkBufferPool(10, 128)
    create(network, 6)

    with pytest.raises(InsufficientNetworkBuffersError) as caught:
        network.request_unpooled("reduce (1/2) (input channel 0)", 5)

    assert str(caught.value) == (
        "Insufficient number of network buffers: required 5, but only 4 available (reduce (1/2) (input channel 0)). "
        "The total number of "
        "network buffers is currently set to 10 of 128 bytes each. You can increase this number by setting "
        "--network-memory "
        "(NetstackConfig.network_memory_bytes) above 1280 bytes"
    )
    network.destroy()


def test_usage_and_its_warnings() -> None:
    """Segments usage: 50 segments of 128 B; one warning for each value from 100 % on, one when it is normal again."""
    network = NetworkBufferPool(50, 128)
    assert network.usage_warning() is None
    first = create(network, 10, 20)
    assert network.usage_warning() is None
    create(network, 5)
    assert network.usage_warning() is None
    create(network, 10, 30)
    assert network.usage_warning() == (
        "Memory usage [120%] is too high to satisfy all of the requests. This can severely impact network throughput. "
        "Please consider "
        "increasing available network memory, or decreasing configured size of network buffer pools. "
        "(totalMemory=6.250kb (6400 bytes), requestedMemory=7.500kb (7680 bytes), missingMemory=1.250kb (1280 bytes))"
    )
    assert network.usage_warning() is None
    last = create(network, 10, 20)
    warning = present(network.usage_warning())
    assert warning.startswith("Memory usage [160%]")
    last.destroy()
    first.destroy()
    assert network.usage_warning() == ("Memory usage [80%] went back to normal")
    assert network.usage_warning() is None
    network.destroy()


def test_small_amounts_are_told_in_bytes() -> None:
    """NetworkBufferPoolTest: no unit below a kilobyte."""
    network = NetworkBufferPool(2, 64)
    create(network, 2, 4)

    assert "(totalMemory=128 bytes, requestedMemory=256 bytes, missingMemory=128 bytes)" in (
        network.usage_warning() or ""
    )
    network.destroy()


@pytest.mark.parametrize(("num_segments", "size"), [(0, 8), (1, 0)])
def test_a_pool_of_nothing_is_refused(num_segments: int, size: int) -> None:
    """A network pool without segments, or of empty ones, is refused."""
    with pytest.raises(ValueError, match="make no pool"):
        NetworkBufferPool(num_segments, size)


def test_a_pool_that_is_created_while_everything_ends_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forced interleaving: the end comes between the promise and the pool."""
    network = NetworkBufferPool(4, 8)
    redistribute = network._redistribute_locked

    def end_meanwhile() -> list[LocalBufferPool]:
        network._state = NetworkBufferPoolState.DESTROYED
        return redistribute()

    monkeypatch.setattr(network, "_redistribute_locked", end_meanwhile)
    with pytest.raises(ResourceClosedError):
        create(network, 2)

    assert (len(network._pools), network.num_available) == (0, 4)


def test_a_request_waits_for_what_is_promised_but_in_use(ten: NetworkBufferPool) -> None:
    """Request memory segments with buffers taken: a pool holds all; its surplus goes to the request."""
    pool = create(ten, 5, 10)
    used = [take(pool) for _ in range(10)]
    segments: list[MemorySegment] = []
    worker = Worker(lambda: segments.extend(ten.request_unpooled("gate", 5, PATIENCE_S)))
    spin_until(lambda: len(ten._claims) == 1)

    recycle(pool, used)
    worker.join()

    assert (worker.error, len(segments), pool.num_buffers) == (None, 5, 5)
    ten.recycle_unpooled(segments)


def test_a_waiting_request_ends_with_the_network_pool(ten: NetworkBufferPool) -> None:
    """NetworkBufferPoolTest request memory segments interruptible: destroy ends the wait with an error that says so."""
    pool = create(ten, 1)
    segment = take(pool)
    pool.destroy()
    worker = Worker(lambda: ten.request_unpooled("gate", 10, PATIENCE_S))
    spin_until(lambda: len(ten._claims) == 1)

    ten.destroy()
    worker.join()

    assert isinstance(worker.error, ResourceClosedError)
    assert "destroyed while gate waited" in str(worker.error)
    pool.recycle(segment)
    ten.check_invariants()
    assert ten.num_available == 10


@pytest.mark.parametrize("number", [1, 2])
def test_a_broken_wait_leaves_the_books_as_they_were(
    ten: NetworkBufferPool, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Request memory segments interruptible 2: an exception inside; afterwards everything can be promised again."""
    pool = create(ten, 1)
    segment = take(pool)
    pool.destroy()

    num_calls = 0

    def interrupt(grants: object) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == number:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ten, "hand_out", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ten.request_unpooled("gate", 10, PATIENCE_S)

    assert (ten.num_reserved, len(ten._claims)) == (0, 0)
    pool.recycle(segment)
    ten.check_invariants()
    assert create(ten, 10, 10).num_buffers == 10


def test_a_request_times_out(ten: NetworkBufferPool) -> None:
    """The error says so; received segments are returned, and no guarantee stays reserved."""
    pool = create(ten, 1, 10)
    used = [take(pool) for _ in range(9)]

    with pytest.raises(
        InsufficientNetworkBuffersError, match=r"^Timeout triggered when gate .* only 1 came within 0.01 s"
    ):
        ten.request_unpooled("gate", 2, 0.01)

    assert (ten.num_reserved, pool.num_buffers) == (1, 10)
    recycle(pool, used)


def test_blocking_requests_from_several_local_pools() -> None:
    """Blocking request from multi local buffer pool: all end once the memory is back, none stays available."""
    network = NetworkBufferPool(20, 128)
    pools = [create(network, 5, 10) for _ in range(2)]
    exclusive = network.request_unpooled("gate", 10)
    builders: list[BufferBuilder] = []

    def request(pool: LocalBufferPool) -> None:
        for _ in range(10):
            builders.append(pool.request_builder_blocking())

    workers = [Worker(partial(request, pool)) for pool in pools]
    spin_until(lambda: len(builders) == 10 and all(pool.num_parked for pool in pools))
    futures = [pool.available_future() for pool in pools]
    states = [future.is_done for future in futures]
    network.recycle_unpooled(exclusive)
    for worker in workers:
        worker.join()

    assert (states, [future.is_done for future in futures]) == ([False, False], [True, True])
    assert [worker.error for worker in workers] == [None, None]
    assert (len(builders), network.num_available, [pool.is_available for pool in pools]) == (20, 0, [False, False])
    for builder in builders:
        builder.close()
    network.check_invariants()
    network.destroy()


def test_a_broken_listener_elsewhere_fails_the_creation_but_keeps_nothing() -> None:
    """The caller learns of it, and may try again."""
    network = NetworkBufferPool(4, 8)
    other = create(network, 1, 1)
    segment = take(other)

    class Broken:
        def notify_buffer_available(self, buffer: NetworkBuffer) -> bool:
            raise RuntimeError("broken listener")

        def notify_buffer_destroyed(self) -> None:
            raise RuntimeError("broken listener")

    other.add_buffer_listener(Broken())
    network._pools[0].max_buffers = None

    with pytest.raises(RuntimeError, match="broken listener"):
        create(network, 1)

    assert (len(network._pools), network.num_reserved) == (1, 1)
    network.check_invariants()
    other.recycle(segment)
    other.add_buffer_listener(Broken())
    taken = [take(other) for _ in range(4)]
    other.add_buffer_listener(Broken())
    with pytest.raises(RuntimeError, match="broken listener"):
        network.destroy()
    recycle(other, taken)
    assert network.num_available == 4


# ---------------------------------------------------------------- ends


def test_destroy_ends_the_pools_and_refuses_new_ones() -> None:
    """Create pool after destroy: the memory is unmapped only after the last segments came back."""
    network = NetworkBufferPool(4, SIZE)
    pool = network.create_buffer_pool(owner="pool", num_required=1, max_buffers=2)
    used, exclusive = drain(pool), network.request_unpooled("gate", 1)

    network.destroy()
    network.destroy()

    assert (pool.is_destroyed, network.is_destroyed) == (True, True)
    with pytest.raises(ResourceClosedError):
        network.create_buffer_pool(owner="late", num_required=1, max_buffers=1)
    with pytest.raises(ResourceClosedError):
        network.request_unpooled("late", 1)
    segment = used[0]
    segment.view[0] = 1
    recycle(pool, used)
    network.recycle_unpooled(exclusive)
    assert network.num_available == 4
    with pytest.raises(ValueError, match="released memoryview"):
        _ = segment.view[0]


def test_a_view_that_somebody_kept_does_not_break_the_end() -> None:
    """The mapping then lives as long as that view."""
    network = NetworkBufferPool(1, SIZE)
    segments = network.request_unpooled("gate", 1)
    segments[0].view[0] = 42
    kept = segments[0].view[:1]

    network.recycle_unpooled(segments)
    network.destroy()

    assert kept[0] == 42


@pytest.mark.parametrize(("required", "at_most"), [(0, 5), (3, 2)])
def test_senseless_sizes_are_refused(ten: NetworkBufferPool, required: int, at_most: int) -> None:
    """A pool has at least one guaranteed segment and no maximum below its guarantee."""
    with pytest.raises(ValueError, match="1 <= num_required <= max_buffers"):
        ten.create_buffer_pool(owner="odd", num_required=required, max_buffers=at_most)


# ---------------------------------------------------------------- history


@given(order=st.lists(st.integers(0, 2), min_size=12, max_size=60), required=st.tuples(*[st.integers(1, 4)] * 3))
def test_hist_31386_14872_every_guarantee_can_be_drawn_in_any_order(
    order: list[int], required: tuple[int, ...]
) -> None:
    """FLINK-31386, FLINK-14872: in any order of requests, no pool takes segments that are guaranteed to another."""
    network = NetworkBufferPool(sum(required), 8)
    pools = [create(network, number) for number in required]
    held: list[list[MemorySegment]] = [[], [], []]

    for index in [*order, *[number for number in range(3) for _ in range(4)]]:
        segment = pools[index].request_segment_nowait()
        assert segment is not None or len(held[index]) >= required[index], "a guarantee that could not be drawn"
        if segment is not None:
            held[index].append(segment)
        network.check_invariants()

    assert [len(each) for each in held] == list(required)
    for pool, segments in zip(pools, held, strict=True):
        recycle(pool, segments)
    network.destroy()


def test_hist_31386_a_later_guarantee_is_kept_while_the_others_use_more_than_theirs(ten: NetworkBufferPool) -> None:
    """FLINK-31386: a pool that over-allocated before gives its surplus to the one that starts, not to itself."""
    greedy = [create(ten, 1), create(ten, 1)]
    held = [[take(pool) for _ in range(5)] for pool in greedy]
    late = create(ten, 6, 6)

    for pool, segments in zip(greedy, held, strict=True):
        for _ in range(3):
            pool.recycle(segments.pop())
            assert pool.request_segment_nowait() is None, "it is above its size"
    taken = [take(late) for _ in range(6)]

    assert late.num_requested == 6
    recycle(late, taken)
    for pool, segments in zip(greedy, held, strict=True):
        recycle(pool, segments)


@pytest.mark.parametrize("num_subpartitions", [1, 2, 7])
def test_hist_15030_the_minimum_suffices_while_every_subpartition_has_an_open_buffer(num_subpartitions: int) -> None:
    """FLINK-15030: subpartitions + 1 buffers suffice, although an open buffer cannot be read."""
    network = NetworkBufferPool(num_subpartitions + 1, 8)
    pool = create(network, num_subpartitions + 1, None, num_subpartitions=num_subpartitions, max_buffers_per_channel=10)
    builders = [pool.request_builder_blocking(index) for index in range(num_subpartitions)]

    for round_number in range(3 * num_subpartitions):
        index = round_number % num_subpartitions
        following = present(builder_of(pool, index))
        builders[index].close()  # the reader takes what is finished, because a further buffer came
        builders[index] = following
    assert pool.is_available

    for builder in builders:
        builder.close()
    network.destroy()


def test_a_repr_is_one_line_that_names_the_owner() -> None:
    """The repr names the owner of the memory in one line, before and after the end."""
    network = NetworkBufferPool(4, 8)
    pool = network.create_buffer_pool(owner="map (1/2)", num_required=2, max_buffers=None)
    before = repr(network), repr(pool)
    network.destroy()

    assert not any("\n" in text for text in (*before, repr(network), repr(pool)))
    assert "map (1/2)" in before[1]
    assert "map (1/2)" in repr(pool)


def test_a_place_in_line_ends_when_the_pool_gets_its_segment_another_way() -> None:
    """A pool that shrinks while it waits, gets a free segment and grows again ends up with one segment, not two."""
    network = NetworkBufferPool(4, 8)
    user = create(network, 1)
    used = [take(user) for _ in range(4)]
    pool = create(network, 1)
    user.recycle(used.pop())
    segment = take(pool)
    assert list(network._waiting) == [pool]
    set_num_buffers(pool, 1)
    user.recycle(used.pop())

    set_num_buffers(pool, 2)

    assert (list(network._waiting), pool.num_available, pool.is_available) == ([], 1, True)
    network.check_invariants()
    pool.recycle(segment)
    recycle(user, used)
    network.destroy()

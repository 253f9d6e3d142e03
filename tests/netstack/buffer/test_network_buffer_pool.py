"""``NetworkBufferPool``: promises are kept, and every segment comes back."""

import threading
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, invariant, multiple, rule

from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.memory_segment import MemorySegment
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import InsufficientNetworkBuffersError, ResourceClosedError
from tests.waiting import PATIENCE_S

SEGMENT = 64


@pytest.fixture
def network() -> Iterator[NetworkBufferPool]:
    """Ten segments; a test that does not bring all of them back fails."""
    pool = NetworkBufferPool(10, SEGMENT)
    yield pool
    pool.check_invariants()
    pool.destroy()
    assert pool.num_available == pool.num_total, f"leaked: {pool!r}"


def drain(pool: LocalBufferPool) -> list[MemorySegment]:
    segments = []
    while (segment := pool.request_segment_nowait()) is not None:
        segments.append(segment)
    return segments


def recycle(pool: LocalBufferPool, segments: list[MemorySegment]) -> None:
    for segment in segments:
        pool.recycle(segment)


def test_segments_have_the_size_and_do_not_overlap(network: NetworkBufferPool) -> None:
    """What is written to one is not seen in another."""
    segments = network.request_unpooled("test", 10)

    for segment in segments:
        segment.view[:] = bytes([segment.index + 1]) * SEGMENT

    assert {bytes(segment.view) for segment in segments} == {bytes([index + 1]) * SEGMENT for index in range(10)}
    network.recycle_unpooled(segments)


def test_hist_14872_a_pool_gets_its_guarantee_whatever_the_others_took(network: NetworkBufferPool) -> None:
    """A greedy pool stops where somebody else's guarantee begins."""
    greedy = network.create_buffer_pool(owner="greedy", num_required=1, max_buffers=100)
    modest = network.create_buffer_pool(owner="modest", num_required=4, max_buffers=4)

    taken = drain(greedy)
    got = drain(modest)

    assert (len(taken), len(got)) == (6, 4)
    recycle(greedy, taken)
    recycle(modest, got)
    greedy.destroy()
    modest.destroy()


def test_a_pool_never_exceeds_its_maximum(network: NetworkBufferPool) -> None:
    """Even if the memory is there."""
    pool = network.create_buffer_pool(owner="small", num_required=1, max_buffers=3)

    segments = drain(pool)

    assert (len(segments), pool.num_requested, network.num_available) == (3, 3, 7)
    recycle(pool, segments)
    pool.destroy()


def test_an_idle_pool_keeps_what_fits_its_size_and_gives_it_back_when_it_shrinks(network: NetworkBufferPool) -> None:
    """What was warm stays at hand; as soon as others come, the free surplus is theirs."""
    pool = network.create_buffer_pool(owner="pool", num_required=2, max_buffers=8)
    segments = drain(pool)
    assert network.num_available == 2

    recycle(pool, segments)
    before = (pool.num_requested, network.num_available)
    other = network.create_buffer_pool(owner="other", num_required=4, max_buffers=8)

    assert before == (8, 2)
    assert (pool.num_buffers, pool.num_requested, pool.num_available, other.num_buffers) == (4, 4, 4, 6)
    pool.destroy()
    other.destroy()


def test_a_promise_that_cannot_be_kept_is_refused(network: NetworkBufferPool) -> None:
    """The error says who needs how much, how much is left, and which option to raise; nothing is kept."""
    pool = network.create_buffer_pool(owner="first", num_required=7, max_buffers=7)

    with pytest.raises(InsufficientNetworkBuffersError) as caught:
        network.create_buffer_pool(owner="map (2/4)", num_required=4, max_buffers=9)

    text = str(caught.value)
    assert text.startswith(
        "Insufficient number of network buffers: required 4, but only 3 available (map (2/4)). The total number of network"
    )
    assert "buffers is currently set to 10 of 64 bytes each" in text
    assert "--network-memory (NetstackConfig.network_memory_bytes) above 640 bytes" in text
    assert network.num_reserved == 7
    pool.destroy()


def test_unpooled_segments_are_all_or_nothing(network: NetworkBufferPool) -> None:
    """Eleven of ten are refused, and so is one that is promised to a pool."""
    pool = network.create_buffer_pool(owner="pool", num_required=3, max_buffers=3)

    with pytest.raises(InsufficientNetworkBuffersError, match="required 8, but only 7 available"):
        network.request_unpooled("gate", 8)
    segments = network.request_unpooled("gate", 7)
    got = drain(pool)

    assert (len(segments), network.num_reserved, len(got)) == (7, 10, 3)
    network.recycle_unpooled(segments)
    recycle(pool, got)
    pool.destroy()


def test_unpooled_segments_that_others_use_beyond_their_guarantee_are_missing(network: NetworkBufferPool) -> None:
    """The promise would be possible, the memory is in use: refused now, granted once it is back."""
    pool = network.create_buffer_pool(owner="pool", num_required=1, max_buffers=10)
    used = drain(pool)

    with pytest.raises(InsufficientNetworkBuffersError, match=r"Timeout .* only 0 came"):
        network.request_unpooled("gate", 1)
    recycle(pool, used)

    network.recycle_unpooled(network.request_unpooled("gate", 9))
    pool.destroy()


def test_segments_of_a_destroyed_pool_can_be_promised_while_they_are_on_their_way_home(network: NetworkBufferPool) -> None:
    """A task that is started again must not fail because the last buffers of its predecessor are still in a transport."""
    pool = network.create_buffer_pool(owner="pool", num_required=2, max_buffers=6)
    used = drain(pool)

    pool.destroy()
    following = network.create_buffer_pool(owner="next", num_required=5, max_buffers=5)
    first = drain(following)
    recycle(pool, used)
    rest = drain(following)

    assert (len(first), len(rest)) == (4, 1)
    recycle(following, first + rest)
    following.destroy()


def test_hist_24035_a_waiting_pool_is_handed_what_another_one_frees(network: NetworkBufferPool) -> None:
    """No pool polls; the segment comes to it and completes its future (FLINK-24035)."""
    first = network.create_buffer_pool(owner="first", num_required=1, max_buffers=10)
    used = drain(first)
    second = network.create_buffer_pool(owner="second", num_required=1, max_buffers=1)
    future = second.available_future()
    assert not second.is_available
    assert not future.is_done

    first.recycle(used.pop())

    assert (second.is_available, future.is_done, first.is_available) == (True, True, False), "the first one is above its size"
    first.recycle(used.pop())
    assert first.is_available
    recycle(first, used)
    first.destroy()
    second.destroy()


def test_guarantees_are_served_before_the_others_in_line(network: NetworkBufferPool) -> None:
    """Who lacks part of his guarantee comes first, although he came last."""
    user = network.create_buffer_pool(owner="user", num_required=1, max_buffers=9)
    used = drain(user)
    patient = network.create_buffer_pool(owner="patient", num_required=1, max_buffers=None)
    held = drain(patient)
    assert (len(used), len(held), patient.num_buffers) == (9, 1, 5)
    late = network.create_buffer_pool(owner="late", num_required=1, max_buffers=1)

    user.recycle(used.pop())

    assert (late.is_available, patient.is_available) == (True, False)
    user.recycle(used.pop())
    assert patient.is_available
    recycle(user, used)
    recycle(patient, held)
    for pool in (user, patient, late):
        pool.destroy()


def test_hist_16972_availability_of_several_pools_is_not_one_segment_counted_twice(network: NetworkBufferPool) -> None:
    """Every pool that says it is available serves a request (FLINK-16972)."""
    pools = [network.create_buffer_pool(owner=str(index), num_required=1, max_buffers=10) for index in range(10)]

    segments = [pool.request_segment_nowait() for pool in pools]

    assert None not in segments
    assert not any(pool.is_available for pool in pools)
    for pool, segment in zip(pools, segments, strict=True):
        assert segment is not None
        pool.recycle(segment)
        pool.destroy()


def test_destroy_ends_the_pools_and_refuses_new_ones() -> None:
    """Twice is as good as once; segments come home later, and only then the memory is unmapped."""
    network = NetworkBufferPool(4, SEGMENT)
    pool = network.create_buffer_pool(owner="pool", num_required=1, max_buffers=2)
    used, exclusive = drain(pool), network.request_unpooled("gate", 1)

    network.destroy()
    network.destroy()

    assert (pool.is_destroyed, network.is_destroyed) == (True, True)
    with pytest.raises(ResourceClosedError):
        network.create_buffer_pool(owner="late", num_required=1, max_buffers=1)
    with pytest.raises(ResourceClosedError):
        network.request_unpooled("late", 1)
    used[0].view[0] = 1
    recycle(pool, used)
    network.recycle_unpooled(exclusive)
    assert network.num_available == 4
    with pytest.raises(ValueError, match="released memoryview"):
        _ = used[0].view[0]


def test_a_view_that_somebody_kept_does_not_break_the_end() -> None:
    """The mapping then lives as long as that view."""
    network = NetworkBufferPool(1, SEGMENT)
    segments = network.request_unpooled("gate", 1)
    segments[0].view[0] = 42
    kept = segments[0].view[:1]

    network.recycle_unpooled(segments)
    network.destroy()

    assert kept[0] == 42


@pytest.mark.parametrize(("required", "at_most"), [(0, 5), (3, 2)])
def test_senseless_sizes_are_refused(network: NetworkBufferPool, required: int, at_most: int) -> None:
    """A pool has at least one guaranteed segment and no maximum below its guarantee."""
    with pytest.raises(ValueError, match="1 <= num_required <= max_buffers"):
        network.create_buffer_pool(owner="odd", num_required=required, max_buffers=at_most)


Held = tuple[LocalBufferPool, MemorySegment, int]
PER_CHANNEL = 2


class KeepingListener:
    """Takes every buffer; the machine gives them back."""

    def __init__(self, machine: "PoolMachine") -> None:
        self.machine = machine

    def notify_buffer_available(self, buffer: NetworkBuffer) -> bool:
        self.machine.num_waiting -= 1
        self.machine.listened.append(buffer)
        return True

    def notify_buffer_destroyed(self) -> None:
        self.machine.num_waiting -= 1


class PoolMachine(RuleBasedStateMachine):
    """Any order of creating, sizing, taking, listening, recycling and destroying keeps the books and the promises."""

    pools: Bundle[LocalBufferPool] = Bundle("pools")
    held: Bundle[Held] = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.network = NetworkBufferPool(8, 8)
        self.alive: set[LocalBufferPool] = set()
        self.num_held = 0
        self.num_waiting = 0
        self.listened: list[NetworkBuffer] = []
        self.exclusive: list[MemorySegment] = []

    @rule(target=pools, required=st.integers(1, 3), extra=st.none() | st.integers(0, 6), overdraft=st.integers(0, 2))
    def create(self, required: int, extra: int | None, overdraft: int) -> LocalBufferPool | MultipleResults[LocalBufferPool]:
        try:
            pool = self.network.create_buffer_pool(
                owner="p",
                num_required=required,
                max_buffers=None if extra is None else required + extra,
                num_subpartitions=2,
                max_buffers_per_channel=PER_CHANNEL,
                max_overdraft_buffers=overdraft,
            )
        except InsufficientNetworkBuffersError:
            assert self.network.num_total - self.network.num_reserved < required
            return multiple()
        self.alive.add(pool)
        return pool

    @rule(target=held, pool=pools, subpartition=st.integers(-1, 1))
    def take(self, pool: LocalBufferPool, subpartition: int) -> Held | MultipleResults[Held]:
        if pool not in self.alive:
            with pytest.raises(ResourceClosedError):
                pool.request_segment_nowait(subpartition)
            return multiple()
        could, was_free = pool.is_available, pool.num_available > 0
        segment = pool.request_segment_nowait(subpartition)
        assert segment is not None or not could
        assert segment is not None or not was_free
        if segment is None:
            assert pool.num_requested >= min(pool.num_required, pool.num_buffers) or self.network.num_available == 0
            return multiple()
        self.num_held += 1
        return (pool, segment, subpartition)

    @rule(item=consumes(held))
    def recycle(self, item: Held) -> None:
        item[0].recycler(item[2]).recycle(item[1])
        self.num_held -= 1

    @rule(pool=pools, size=st.integers(1, 10))
    def resize(self, pool: LocalBufferPool, size: int) -> None:
        pool.set_num_buffers(max(size, pool.num_required))

    @rule(pool=pools, number=st.integers(1, 3))
    def reserve(self, pool: LocalBufferPool, number: int) -> None:
        if pool not in self.alive or number > pool.num_required:
            return
        try:
            pool.reserve_segments(number)
        except InsufficientNetworkBuffersError:
            assert self.network.num_available < number
        else:
            assert pool.num_requested >= number

    @rule(pool=pools)
    def listen(self, pool: LocalBufferPool) -> None:
        could = pool in self.alive and pool.num_available == 0
        self.num_waiting += 1
        assert pool.add_buffer_listener(KeepingListener(self)) == could
        self.num_waiting -= not could

    @rule()
    def recycle_what_listeners_took(self) -> None:
        while self.listened:
            self.listened.pop().recycle()

    @rule(pool=consumes(pools))
    def destroy(self, pool: LocalBufferPool) -> None:
        pool.destroy()
        self.alive.discard(pool)

    @rule(number=st.integers(1, 3))
    def take_unpooled(self, number: int) -> None:
        try:
            self.exclusive += self.network.request_unpooled("gate", number)
        except InsufficientNetworkBuffersError:
            return

    @rule()
    def return_unpooled(self) -> None:
        segments, self.exclusive = self.exclusive, []
        self.network.recycle_unpooled(segments)

    @invariant()
    def books_are_balanced(self) -> None:
        self.network.check_invariants()
        for pool in self.alive:
            pool.check_invariants()
        free = self.network.num_available + sum(pool.num_available for pool in self.alive)
        assert free + self.num_held + len(self.listened) + len(self.exclusive) == 8
        assert self.num_waiting == sum(pool.statistics().num_listeners for pool in self.alive)

    @invariant()
    def sizes_share_what_is_there(self) -> None:
        assert all(pool.num_buffers >= pool.num_required for pool in self.alive)
        assert all(pool.num_overdraft == 0 or pool.num_available == 0 for pool in self.alive)

    def teardown(self) -> None:
        self.network.destroy()


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=50, stateful_step_count=40)


@pytest.mark.slow
def test_racing_pools_starve_nobody(tiny_switch_interval: None) -> None:
    """Six writers on six pools and eight segments, blocking requests: all end and nothing is lost."""
    network = NetworkBufferPool(8, 8)
    pools = [network.create_buffer_pool(owner=str(index), num_required=1, max_buffers=4) for index in range(6)]

    def work(pool: LocalBufferPool) -> None:
        for _ in range(400):
            builders = [pool.request_builder_blocking()]
            extra = pool.request_builder_nowait()
            if extra is not None:
                builders.append(extra)
            for builder in builders:
                builder.close()

    threads = [threading.Thread(target=work, args=(pool,)) for pool in pools]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert not any(thread.is_alive() for thread in threads)
    network.check_invariants()
    network.destroy()
    assert network.num_available == 8

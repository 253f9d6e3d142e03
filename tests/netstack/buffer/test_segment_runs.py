"""Several segments at once are taken from a pool and given back like single ones, but in one lock round."""

import itertools
import random
import threading
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.network_buffer import FREEING_RECYCLER, MemorySegment, NetworkBuffer, recycle_all, recycle_segments
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import BufferOwnershipError, ResourceClosedError
from netstack.wire.messages import DataType
from tests.netstack.buffer.interleaving import ScheduledLock, Scheduler, schedule_locks
from tests.netstack.buffer.pools import Home, num_in_use, num_overdraft, set_num_buffers
from tests.netstack.rigs import Ending
from tests.waiting import PATIENCE_S

MAX_PER_CHANNEL = 3
NUM_SEEDS = 300


class Fixture(Ending):
    """A pool of eight segments; with or without a maximum for each of its two subpartitions."""

    def __init__(self, num_segments: int = 8, max_per_channel: int | None = None, *, max_overdraft: int = 0) -> None:
        super().__init__()
        self.network = NetworkBufferPool(num_segments, 16)
        self.pool = self.network.create_buffer_pool(
            owner="p",
            num_required=2,
            max_buffers=num_segments,
            num_subpartitions=2,
            max_buffers_per_channel=max_per_channel,
            max_overdraft_buffers=max_overdraft,
        )

    def fill(self) -> None:
        """Let the pool hold all segments, free."""
        segments = [self.pool.request_segment_blocking() for _ in range(self.pool.num_buffers)]
        self.pool.recycle_run(segments, -1)
        self.pool.check_invariants()

    def give_back(self) -> None:
        self.pool.check_invariants()
        self.pool.destroy()
        self.network.check_invariants()
        assert self.network.num_available == self.network.num_total, f"leaked: {self.network!r}"
        self.network.destroy()


@pytest.fixture
def it() -> Fixture:
    fixture = Fixture()
    fixture.fill()
    return fixture


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize(("max_segments", "expected"), [(1, 1), (2, 2), (7, 7), (8, 7), (100, 7)])
def test_as_many_as_are_free_but_for_the_last_one(it: Fixture, max_segments: int, expected: int) -> None:
    """One request leaves the last free segment, so that the pool stays available; a second request takes it."""
    segments = it.pool.request_segments_blocking(max_segments)

    assert (len(segments), it.pool.is_available) == (expected, True)
    assert len({id(segment) for segment in segments}) == expected
    it.pool.check_invariants()
    it.pool.recycle_run(segments, -1)


def test_the_last_one_is_given_to_who_asks_for_it(it: Fixture) -> None:
    """The last segment is given to a second request, and then the pool is not available."""
    segments = it.pool.request_segments_blocking(8)

    segments += it.pool.request_segments_blocking(8)

    assert (len(segments), it.pool.is_available) == (8, False)
    it.pool.check_invariants()
    it.pool.recycle_run(segments, -1)
    assert it.pool.is_available


@pytest.mark.parametrize("num_held", range(5))
def test_the_maximum_of_a_subpartition_is_not_reached_by_more_than_one(num_held: int) -> None:
    """The first segment is given at the maximum; others are not if they would reach it."""
    it = Fixture(8, MAX_PER_CHANNEL)
    it.fill()
    held = [it.pool.request_segment_blocking(1) for _ in range(num_held)]

    segments = it.pool.request_segments_blocking(8, 1)

    assert len(segments) == max(1, MAX_PER_CHANNEL - 1 - num_held)
    assert it.pool.is_available == (num_held + len(segments) < MAX_PER_CHANNEL)
    it.pool.check_invariants()
    others = it.pool.request_segments_blocking(2, 0)
    assert len(others) == 2, "another subpartition has its own count"
    recycle_segments(others, it.pool.recycler(0))
    recycle_segments(segments + held, it.pool.recycler(1))


def test_an_overdraft_is_one_segment() -> None:
    """A request beyond the size of the pool gets one segment."""
    it = Fixture(4, max_overdraft=2)
    other = it.network.create_buffer_pool(owner="other", num_required=1, max_buffers=1)
    set_num_buffers(it.pool, 2)
    held = it.pool.request_segments_blocking(2)
    held += it.pool.request_segments_blocking(2)

    overdraft = it.pool.request_segments_blocking(2)

    assert (len(held), len(overdraft), num_overdraft(it.pool)) == (2, 1, 1)
    it.pool.recycle_run(held + overdraft, -1)
    other.destroy()


def test_who_had_to_wait_takes_what_came_together() -> None:
    """A request that had to wait takes the segments that came together, except the last."""
    it = Fixture(4)
    it.fill()
    held = it.pool.request_segments_blocking(4) + it.pool.request_segments_blocking(1)
    found: list[MemorySegment] = []
    waiter = threading.Thread(target=lambda: found.extend(it.pool.request_segments_blocking(4)))
    waiter.start()
    while not it.pool.hard_blocked_ns:
        pass

    it.pool.recycle_run(held, -1)
    waiter.join(PATIENCE_S)

    assert len(found) == 3
    it.pool.recycle_run(found, -1)


def test_a_destroyed_pool_gives_nothing() -> None:
    """A destroyed pool gives no segments, neither at once nor to waiting threads."""
    it = Fixture(2)
    held = [it.pool.request_segment_blocking() for _ in range(2)]
    it.pool.destroy()

    with pytest.raises(ResourceClosedError):
        it.pool.request_segments_blocking(2)

    it.pool.recycle_run(held, -1)


# ---------------------------------------------------------------- recycling


class Listener:
    """Keeps the first ``num_wanted`` buffers that it is offered."""

    def __init__(self, num_wanted: int) -> None:
        self.num_wanted = num_wanted
        self.found: list[NetworkBuffer] = []

    def notify_buffer_available(self, buffer: NetworkBuffer) -> bool:
        if len(self.found) == self.num_wanted:
            return False
        self.found.append(buffer)
        return True

    def notify_buffer_destroyed(self) -> None:
        raise AssertionError("nobody destroys the pool while somebody listens")


def state_after(
    is_run: bool, counts: tuple[int, int], num_returned: int, num_listeners: int, num_buffers: int, num_free: int
) -> object:
    """Return the state of a pool after so many segments of subpartition 1 came back, together or one by one."""
    it = Fixture(10, MAX_PER_CHANNEL)
    pool = it.pool
    it.fill()
    held = [[pool.request_segment_blocking(index) for _ in range(count)] for index, count in enumerate(counts)]
    blockers = [pool.request_segment_blocking() for _ in range(pool.num_available - num_free)]
    set_num_buffers(pool, num_buffers)
    listener = Listener(1)
    if not pool.num_available:
        for _ in range(num_listeners):
            assert pool.add_buffer_listener(listener)
    future = pool.available_future()
    returned = held[1][:num_returned]
    if is_run:
        pool.recycle_run(returned, 1)
    else:
        for segment in returned:
            pool.recycler(1).recycle(segment)
    pool.check_invariants()
    found = (
        pool.is_available,
        pool.num_available,
        pool.num_requested,
        len(listener.found),
        future.is_done,
        len(pool._listeners),
    )
    recycle_segments(held[0], pool.recycler(0))
    recycle_segments(held[1][num_returned:], pool.recycler(1))
    pool.recycle_run(blockers, -1)
    recycle_all(listener.found)
    it.close()
    return found


@given(
    counts=st.tuples(st.integers(0, 4), st.integers(1, 5)),
    num_returned=st.integers(1, 5),
    num_listeners=st.integers(0, 2),
    num_buffers=st.integers(2, 10),
    num_free=st.integers(0, 1),
)
def test_a_run_comes_back_as_one_by_one(
    counts: tuple[int, int], num_returned: int, num_listeners: int, num_buffers: int, num_free: int
) -> None:
    """Availability, future, counts, surplus and served listeners are equal."""
    num_returned = min(num_returned, counts[1])

    together, singly = (
        state_after(is_run, counts, num_returned, num_listeners, num_buffers, num_free) for is_run in (True, False)
    )

    assert together == singly


def test_a_run_wakes_as_many_threads_as_it_has_segments() -> None:
    """A run of three segments wakes three waiting threads."""
    it = Fixture(3)
    it.fill()
    held = it.pool.request_segments_blocking(3) + it.pool.request_segments_blocking(1)
    found: list[MemorySegment] = []
    waiters = [threading.Thread(target=lambda: found.append(it.pool.request_segment_blocking())) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    while it.pool.num_parked < 3:
        pass

    it.pool.recycle_run(held, -1)
    for waiter in waiters:
        waiter.join(PATIENCE_S)

    assert len(found) == 3
    it.pool.recycle_run(found, -1)


def test_a_run_beside_a_free_segment_wakes_as_many_threads_as_segments_are_free() -> None:
    """Also for one that was free before, and whose thread has not taken it yet."""
    it = Fixture(4)
    it.fill()
    held = it.pool.request_segments_blocking(4)
    assert it.pool.num_available == 1
    gates = [threading.Lock() for _ in range(4)]
    for gate in gates:
        gate.acquire()
    it.pool._parked.line.extend(gates)

    it.pool.recycle_run(held[:2], -1)

    assert [gate.locked() for gate in gates] == [False, False, False, True]
    it.pool._parked.line.clear()
    it.pool.recycle_run(held[2:], -1)


def test_buffers_of_many_recyclers_find_their_homes() -> None:
    """In every order, of pools, subpartitions and none; a second recycle is an error."""
    one, two = Fixture(8, MAX_PER_CHANNEL), Fixture(8)
    one.fill()
    two.fill()
    for seed in range(50):
        rng, foreign = random.Random(seed), Home()
        buffers = []
        for pool, index in itertools.product((one.pool, two.pool), (-1, 0, 1)):
            segments = [pool.request_segment_blocking(index) for _ in range(rng.randint(0, 2))]
            buffers += [NetworkBuffer(segment, pool.recycler(index), 16, DataType.DATA_BUFFER) for segment in segments]
        num_foreign = rng.randint(0, 2)
        for _ in range(num_foreign):
            buffers.append(NetworkBuffer(MemorySegment(memoryview(bytearray(16))), foreign, 16, DataType.DATA_BUFFER))
            buffers.append(NetworkBuffer.unpooled(b"x", DataType.DATA_BUFFER))
        rng.shuffle(buffers)
        shared = buffers[0].retain() if buffers else None

        recycle_all(buffers)
        if shared is not None:
            shared.recycle()
            with pytest.raises(BufferOwnershipError):
                recycle_all([shared])

        assert len(foreign.segments) == num_foreign
        for it in (one, two):
            it.pool.check_invariants()
            assert num_in_use(it.pool) == 0, seed


def test_a_buffer_that_was_recycled_does_not_keep_the_others(it: Fixture) -> None:
    """The error is raised once the others are home."""
    buffers = [it.pool.request_buffer_nowait() for _ in range(3)]
    assert all(buffers)
    found = [buffer for buffer in buffers if buffer is not None]
    found[1].recycle()

    with pytest.raises(BufferOwnershipError):
        recycle_all(found)

    assert num_in_use(it.pool) == 0


def test_segments_of_nobody_are_forgotten() -> None:
    """A recycler without a home gets them one by one."""
    foreign = Home()
    segments = [MemorySegment(memoryview(bytearray(4))) for _ in range(3)]

    recycle_segments(segments, foreign)
    recycle_segments(segments, FREEING_RECYCLER)

    assert foreign.segments == segments


# ---------------------------------------------------------------- every order of events


def take_and_return(pool: LocalBufferPool, rng: random.Random, num_times: int, index: int) -> None:
    for _ in range(num_times):
        segments = pool.request_segments_blocking(rng.randint(1, 4), index)
        recycle_segments(segments, pool.recycler(index))


def hand_over(pool: LocalBufferPool, handed: list[list[MemorySegment]], num_segments: int) -> None:
    """Request segments, which another thread recycles."""
    while num_segments:
        segments = pool.request_segments_blocking(num_segments)
        num_segments -= len(segments)
        handed.append(segments)


def recycle_handed(
    pool: LocalBufferPool, handed: list[list[MemorySegment]], lock: ScheduledLock, num_segments: int
) -> None:
    while num_segments:
        with lock:
            segments = handed.pop() if handed else []
        if segments:
            pool.recycle_run(segments, -1)
            num_segments -= len(segments)


def resize(pool: LocalBufferPool, rng: random.Random, num_times: int) -> None:
    for _ in range(num_times):
        set_num_buffers(pool, rng.randint(pool.num_required, 5))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_runs_under_every_order_of_events(monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    """Writers of runs, a recycler of runs and a resized pool lose no segment, and no writer waits for ever."""
    schedule_locks(monkeypatch)
    for seed in range(part, NUM_SEEDS, 3):
        rng = random.Random(seed)
        it = Fixture(5, rng.choice([None, MAX_PER_CHANNEL]))
        lock, handed = ScheduledLock(), list[list[MemorySegment]]()
        programs: list[Callable[[], object]] = [
            partial(take_and_return, it.pool, rng, 4, 0),
            partial(take_and_return, it.pool, rng, 4, 1),
            partial(hand_over, it.pool, handed, 5),
            partial(recycle_handed, it.pool, handed, lock, 5),
            partial(resize, it.pool, rng, 2),
        ]
        try:
            Scheduler(seed).run(programs)
            it.close()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise

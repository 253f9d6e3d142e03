"""``LocalBufferPool``: available means served, and a parked writer always wakes up."""

import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from netstack.buffer.buffer_builder import BufferBuilder
from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.memory_segment import MemorySegment
from netstack.buffer.network_buffer import NetworkBuffer, recycle_all
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import BufferOwnershipError, ResourceClosedError
from netstack.wire.messages import DataType
from tests.waiting import PATIENCE_S, spin_until


@pytest.fixture
def network() -> Iterator[NetworkBufferPool]:
    pool = NetworkBufferPool(8, 32)
    yield pool
    pool.check_invariants()
    pool.destroy()
    assert pool.num_available == pool.num_total, f"leaked: {pool!r}"


@pytest.fixture
def pool(network: NetworkBufferPool) -> LocalBufferPool:
    """Two guaranteed, three at most."""
    return network.create_buffer_pool(owner="map (1/2)", num_required=2, max_buffers=3)


def take(pool: LocalBufferPool) -> MemorySegment:
    segment = pool.request_segment_nowait()
    assert segment is not None
    return segment


class Blocked:
    """A thread inside ``request_builder_blocking``; made only once the pool says that it is parked."""

    def __init__(self, pool: LocalBufferPool) -> None:
        self.pool = pool
        self.result: BufferBuilder | None = None
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run)
        before = repr(pool)
        self.thread.start()
        spin_until(lambda: "wait for a buffer" in repr(pool) and repr(pool) != before and pool.statistics().num_parked > 0)

    def _run(self) -> None:
        try:
            self.result = self.pool.request_builder_blocking()
        except ResourceClosedError as error:
            self.error = error

    def join(self) -> None:
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), "the writer never woke up"


def test_more_than_the_maximum_is_none(pool: LocalBufferPool) -> None:
    """Three are served, the fourth is not; one that comes back is served again."""
    segments = [take(pool) for _ in range(3)]

    assert pool.request_segment_nowait() is None
    pool.recycle(segments.pop())
    segments.append(take(pool))

    for segment in segments:
        pool.recycle(segment)


def test_availability_follows_the_free_segments(pool: LocalBufferPool) -> None:
    """The future is done while a request would be served; the last one taken starts a new one, which the next recycle completes."""
    done = pool.available_future()
    segments = [take(pool) for _ in range(3)]
    pending = pool.available_future()
    told: list[str] = []
    pending.add_done_callback(lambda: told.append("there is one"))
    pool.check_invariants()
    states = (done.is_done, pending.is_done, pool.is_available, list(told))

    pool.recycle(segments.pop())

    assert states == (True, False, False, [])
    assert (pending.is_done, pool.is_available, told) == (True, True, ["there is one"])
    pool.check_invariants()
    for segment in segments:
        pool.recycle(segment)


def test_hist_29298_a_callback_may_take_the_segment_itself(pool: LocalBufferPool) -> None:
    """The callback runs outside the lock; the pool asks for the next one by itself (FLINK-29298)."""
    segments = [take(pool) for _ in range(3)]
    pool.available_future().add_done_callback(lambda: segments.append(take(pool)))

    pool.recycle(segments.pop(0))

    assert (len(segments), pool.is_available) == (3, False)
    pool.recycle(segments.pop())
    assert pool.is_available, "and again"
    for segment in segments:
        pool.recycle(segment)


def test_hist_9755_a_broken_callback_does_not_lose_the_segment(pool: LocalBufferPool) -> None:
    """Its error reaches whoever recycled; the pool is sound (FLINK-9755)."""
    segments = [take(pool) for _ in range(3)]

    def broken() -> None:
        raise RuntimeError("callback")

    pool.available_future().add_done_callback(broken)

    with pytest.raises(RuntimeError, match="callback"):
        pool.recycle(segments.pop())

    pool.check_invariants()
    assert pool.num_available == 1
    for segment in segments:
        pool.recycle(segment)


def test_a_parked_writer_gets_the_recycled_segment(pool: LocalBufferPool) -> None:
    """It sleeps until then, says so, and its wait is counted."""
    segments = [take(pool) for _ in range(3)]
    writer = Blocked(pool)
    text, blocked = repr(pool), pool.hard_blocked_ns

    pool.recycle(segments.pop())
    writer.join()

    assert "map (1/2)" in text
    assert "1 threads wait for a buffer" in text
    assert 0 < blocked <= pool.hard_blocked_ns
    assert pool.hard_blocked_ns == pool.hard_blocked_ns, "the clock stands still when nobody waits"
    assert "wait for a buffer" not in repr(pool)
    assert writer.result is not None
    writer.result.close()
    for segment in segments:
        pool.recycle(segment)


def test_every_parked_writer_is_served(pool: LocalBufferPool) -> None:
    """One recycled segment wakes one of them."""
    segments = [take(pool) for _ in range(3)]
    writers = [Blocked(pool)]
    writers.append(Blocked(pool))

    for _ in range(2):
        pool.recycle(segments.pop())
    for writer in writers:
        writer.join()

    for writer in writers:
        assert writer.result is not None
        writer.result.close()
    pool.recycle(segments.pop())


def test_the_spare_segment_goes_to_the_next_parked_writer(network: NetworkBufferPool) -> None:
    """Memory that comes from outside wakes all who can be served, without waiting for a time slice."""
    everything = network.request_unpooled("other", 6)
    pool = network.create_buffer_pool(owner="pool", num_required=1, max_buffers=8)
    mine = [take(pool), take(pool)]
    writers = [Blocked(pool), Blocked(pool)]

    network.recycle_unpooled(everything)
    for writer in writers:
        writer.join()

    for writer in writers:
        assert writer.result is not None
        writer.result.close()
    for segment in mine:
        pool.recycle(segment)


def test_destroy_wakes_a_parked_writer_with_an_error(pool: LocalBufferPool) -> None:
    """Nobody sleeps in a pool that is gone."""
    segments = [take(pool) for _ in range(3)]
    pending = pool.available_future()
    writer = Blocked(pool)

    pool.destroy()
    writer.join()

    assert str(writer.error) == "the buffer pool of map (1/2) was destroyed"
    assert (pending.is_done, pool.available_future().is_done) == (True, True)
    for segment in segments:
        pool.recycle(segment)


def test_a_destroyed_pool_serves_nothing_and_takes_everything_back(network: NetworkBufferPool, pool: LocalBufferPool) -> None:
    """Free segments go home at once, the others when they are recycled; twice destroyed is destroyed."""
    segment = take(pool)

    pool.destroy()
    pool.destroy()
    before = network.num_available
    pool.recycle(segment)

    assert (before, network.num_available, pool.num_requested) == (7, 8, 0)
    pool.check_invariants()
    for request in (pool.request_segment_nowait, pool.request_buffer_nowait, pool.request_builder_nowait, pool.request_builder_blocking):
        with pytest.raises(ResourceClosedError):
            request()


def test_buffers_and_builders_come_from_the_pool_and_go_back(network: NetworkBufferPool, pool: LocalBufferPool) -> None:
    """Whole segments, recycled by their last holder."""
    buffer, builder = pool.request_buffer_nowait(), pool.request_builder_nowait()
    assert buffer is not None
    assert builder is not None

    facts = (buffer.size, buffer.is_buffer, builder.capacity_bytes, builder.recycler is pool, pool.num_requested)
    buffer.recycle()
    builder.close()

    assert facts == (32, True, 32, True, 3)
    assert network.num_available + pool.num_available == 8
    taken = [take(pool) for _ in range(3)]
    assert (pool.request_buffer_nowait(), pool.request_builder_nowait()) == (None, None)
    for segment in taken:
        pool.recycle(segment)


def test_hist_19964_a_segment_that_meets_a_destroyed_pool_is_not_lost(network: NetworkBufferPool) -> None:
    """It is on its way from another pool's recycle when the waiting pool ends (FLINK-19964)."""
    user = network.create_buffer_pool(owner="user", num_required=1, max_buffers=8)
    used = [take(user) for _ in range(8)]
    waiting = network.create_buffer_pool(owner="waiting", num_required=1, max_buffers=1)
    account = waiting._account
    offers: list[bool] = []
    original = waiting.offer

    def destroy_first(segment: MemorySegment, wakeups: list[Callable[[], object]]) -> bool:
        waiting.destroy()
        offers.append(original(segment, wakeups))
        return offers[-1]

    waiting.offer = destroy_first  # type: ignore[method-assign]  # a forced interleaving between grant and offer
    user.recycle(used.pop())

    assert (offers, account.num_requested) == ([False], 0)
    for segment in used:
        user.recycle(segment)
    network.check_invariants()


@pytest.mark.slow
def test_a_writer_and_two_recyclers_never_lose_a_wakeup(
    network: NetworkBufferPool, pool: LocalBufferPool, tiny_switch_interval: None
) -> None:
    """Every blocking request is served although the segments come back from other threads, well within the time of one park slice each."""
    assert sys.getswitchinterval() < 1e-5
    handed: list[BufferBuilder] = []
    is_over = threading.Event()

    def recycle_some() -> None:
        while not (is_over.is_set() and not handed):
            try:
                handed.pop().close()
            except IndexError:
                is_over.wait(0)

    recyclers = [threading.Thread(target=recycle_some) for _ in range(2)]
    for thread in recyclers:
        thread.start()
    for _ in range(3000):
        handed.append(pool.request_builder_blocking())
    is_over.set()
    for thread in recyclers:
        thread.join(PATIENCE_S)

    pool.check_invariants()
    assert pool.num_available == pool.num_requested


@pytest.mark.slow
def test_destroy_races_with_parked_writers(network: NetworkBufferPool, tiny_switch_interval: None) -> None:
    """Whatever comes first, every writer ends and every segment is back."""
    for _ in range(150):
        pool = network.create_buffer_pool(owner="short-lived", num_required=1, max_buffers=1)
        ends: list[str] = []

        def write(pool: LocalBufferPool = pool, ends: list[str] = ends) -> None:
            try:
                for _ in range(50):
                    pool.request_builder_blocking().close()
            except ResourceClosedError:
                ends.append("destroyed")
            else:
                ends.append("done")

        threads = [threading.Thread(target=write) for _ in range(3)]
        for thread in threads:
            thread.start()
        pool.destroy()
        for thread in threads:
            thread.join(PATIENCE_S)

        assert len(ends) == 3
        assert network.num_available == 8


def test_a_parked_writer_looks_around_by_itself(network: NetworkBufferPool, pool: LocalBufferPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every wait has a deadline: even a wake-up that was really lost costs one time slice, not for ever."""
    monkeypatch.setattr("netstack.buffer.parked_threads.PARK_SLICE_S", 0.001)
    segments = [take(pool) for _ in range(3)]
    writer = Blocked(pool)
    assert network.ledger is not None
    network.ledger.give_back(segments[-1].index)
    with pool._lock:
        pool._free.append(segments.pop())  # without telling anybody

    writer.join()

    assert writer.result is not None
    writer.result.close()
    for segment in segments:
        pool.recycle(segment)


# ---------------------------------------------------------------- many at once


def buffers_of(pool: LocalBufferPool, number: int) -> list[NetworkBuffer]:
    found = [pool.request_buffer_nowait() for _ in range(number)]
    assert None not in found
    return [buffer for buffer in found if buffer is not None]


def test_buffers_that_are_recycled_together_are_all_free_before_anybody_is_told(pool: LocalBufferPool) -> None:
    """One wake-up, and whoever comes finds all of them."""
    buffers = buffers_of(pool, 3)
    seen: list[int] = []
    pool.available_future().add_done_callback(lambda: seen.append(pool.num_available))

    recycle_all(buffers)

    assert seen == [3]
    pool.check_invariants()
    pool.destroy()


def test_every_parked_writer_gets_one_of_the_buffers_that_come_together(pool: LocalBufferPool) -> None:
    """As if they had come one by one."""
    buffers = buffers_of(pool, 3)
    writers = [Blocked(pool) for _ in range(3)]

    recycle_all(buffers)

    for writer in writers:
        writer.join()
        assert writer.result is not None
        writer.result.close()
    pool.destroy()


def test_together_home_from_two_pools_and_from_none(network: NetworkBufferPool, pool: LocalBufferPool) -> None:
    """Each segment goes where it belongs; surplus of a pool that shrank goes on to the network pool."""
    other = network.create_buffer_pool(owner="other", num_required=1, max_buffers=2, num_subpartitions=1, max_buffers_per_channel=1)
    builder = other.request_builder_blocking(0)
    counted = builder.create_buffer_consumer().build()
    buffers = [*buffers_of(pool, 3), counted, NetworkBuffer.unpooled(b"event", DataType.EVENT_BUFFER)]
    builder.close()
    pool.set_num_buffers(2)

    recycle_all(buffers)

    assert (pool.num_available, other.is_available) == (2, False), "the consumer of the other pool's buffer holds it still"
    pool.check_invariants()
    other.check_invariants()
    pool.destroy()
    other.destroy()
    counted_lease = counted.lease
    counted_lease.release()


def test_one_that_was_recycled_already_does_not_keep_the_others(pool: LocalBufferPool) -> None:
    """They are home when the error comes."""
    first, second, third = buffers_of(pool, 3)
    second.recycle()

    with pytest.raises(BufferOwnershipError, match="released twice"):
        recycle_all([first, second, third])

    assert pool.num_available == 3
    pool.destroy()


@pytest.mark.parametrize("num_buffers", [1, 2])
def test_the_last_buffers_that_come_home_together_unmap_a_destroyed_pool(num_buffers: int) -> None:
    """Nobody else stands in line for them, and yet the network pool has to hear of it."""
    network = NetworkBufferPool(4, 64)
    pool = network.create_buffer_pool(owner="p", num_required=1, max_buffers=2)
    buffers = buffers_of(pool, num_buffers)
    segment = buffers[0].lease.segment
    network.destroy()

    recycle_all(buffers)

    assert network.num_available == 4
    with pytest.raises(ValueError, match="released memoryview"):
        len(segment.view)

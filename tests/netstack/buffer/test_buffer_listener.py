"""``BufferListener``: a listener that waits for a buffer of a pool is called once, outside every lock."""

import sys
import threading
from collections.abc import Callable
from functools import partial

import pytest

from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import ResourceClosedError
from tests.netstack.buffer.pools import (
    NUM_BUFFERS,
    Blocked,
    Listener,
    Worker,
    builder_of,
    recycle,
    set_num_buffers,
    take,
)
from tests.waiting import PATIENCE_S


def test_pending_listeners_get_the_recycled_buffer_one_after_the_other(pool: LocalBufferPool) -> None:
    """LocalBufferPoolTest listeners get buffers one by one: each recycles at once, so the next one has it too."""
    first, second = Listener(recycles=True), Listener(recycles=True)
    buffer = pool.request_buffer_nowait()
    assert buffer is not None
    assert pool.request_buffer_nowait() is None
    assert (pool.add_buffer_listener(first), pool.add_buffer_listener(second)) == (True, True)

    buffer.recycle()

    assert (first.num_calls, second.num_calls) == (1, 1)
    assert (pool.add_buffer_listener(first), pool.add_buffer_listener(second)) == (False, False)
    pool.check_invariants()


def test_a_listener_that_keeps_the_buffer_ends_the_round(pool: LocalBufferPool) -> None:
    """The second one waits for the next buffer; the pool is not available in between."""
    first, second = Listener(), Listener()
    segment = take(pool)
    pool.add_buffer_listener(first)
    pool.add_buffer_listener(second)

    pool.recycle(segment)
    after_first = (len(first.buffers), second.num_calls, pool.is_available, len(pool._listeners))
    first.recycle()

    assert after_first == (1, 0, False, 1)
    assert (first.num_calls, len(second.buffers), pool.is_available) == (1, 1, False)
    second.recycle()
    assert pool.is_available


def test_a_listener_that_refuses_passes_the_buffer_on(pool: LocalBufferPool) -> None:
    """A buffer that a listener refuses goes to the next listener, and in the end to the pool."""
    refusing, taking = Listener(takes=False), Listener()
    segment = take(pool)
    pool.add_buffer_listener(refusing)
    pool.add_buffer_listener(taking)
    pool.recycle(segment)
    calls = (refusing.num_calls, len(taking.buffers))
    pool.add_buffer_listener(Listener(takes=False))

    taking.recycle()

    assert (calls, pool.num_available, pool.is_available) == ((1, 1), 1, True)
    pool.check_invariants()


def test_listeners_are_told_of_the_end_once(pool: LocalBufferPool) -> None:
    """LocalBufferPoolTest cancel pending requests after destroy: a listener that comes too late is not kept, either."""
    listener = Listener()
    segment = take(pool)
    pool.add_buffer_listener(listener)

    pool.destroy()
    pool.recycle(segment)

    assert (listener.num_destroyed, listener.num_calls) == (1, 0)
    assert not pool.add_buffer_listener(listener)
    pool.check_invariants()


def test_hist_24035_listeners_hear_of_segments_that_the_network_pool_hands_out(network: NetworkBufferPool) -> None:
    """One by one, also of a pool that was created without segments (FLINK-24035)."""
    others = network.request_unpooled("all but the guarantee", NUM_BUFFERS - 2)
    user = network.create_buffer_pool(owner="user", num_required=1, max_buffers=2)
    taken = [take(user), take(user)]
    pool = network.create_buffer_pool(owner="gate", num_required=1, max_buffers=8)
    listeners = [Listener() for _ in range(3)]
    assert [pool.num_requested, *(pool.add_buffer_listener(listener) for listener in listeners)] == [
        0,
        True,
        True,
        True,
    ]

    recycle(user, taken)
    first = [len(listener.buffers) for listener in listeners]
    network.recycle_unpooled(others)

    assert first == [1, 0, 0]
    assert [len(listener.buffers) for listener in listeners] == [1, 1, 1]
    assert pool.is_available, "and it holds one in advance again"
    for listener in listeners:
        listener.recycle()
    pool.check_invariants()
    user.destroy()
    pool.destroy()


def test_hist_24035_many_listeners_are_served_without_recursion(network: NetworkBufferPool) -> None:
    """A gate of a thousand channels: each may be waiting."""
    pool = network.create_buffer_pool(owner="gate", num_required=1, max_buffers=1)
    segment = take(pool)
    keeping = [Listener() for _ in range(NUM_BUFFERS - 1)]
    for listener in keeping:
        pool.add_buffer_listener(listener)
    growing = network._pools[0]
    growing.max_buffers = None

    set_num_buffers(pool, NUM_BUFFERS)

    assert sum(len(listener.buffers) for listener in keeping) == NUM_BUFFERS - 1
    for listener in keeping:
        listener.recycle()
    pool.recycle(segment)
    pool.destroy()


def test_hist_9755_a_broken_listener_costs_no_segment(pool: LocalBufferPool) -> None:
    """FLINK-9755: the recycling thread gets the listener's error, and the next listener gets the buffer."""

    class Broken(Listener):
        def notify_buffer_available(self, buffer: NetworkBuffer) -> bool:
            raise RuntimeError("broken listener")

    healthy = Listener()
    segment = take(pool)
    pool.add_buffer_listener(Broken())
    pool.add_buffer_listener(healthy)

    with pytest.raises(RuntimeError, match="broken listener"):
        pool.recycle(segment)

    assert len(healthy.buffers) == 1
    healthy.recycle()
    pool.check_invariants()


def test_hist_9676_listeners_are_called_without_any_lock(network: NetworkBufferPool, pool: LocalBufferPool) -> None:
    """FLINK-9676: what a listener does to its pools cannot block on us."""
    seen: list[bool] = []

    class Curious(Listener):
        def notify_buffer_available(self, buffer: NetworkBuffer) -> bool:
            seen.append(pool._lock.locked() or network._lock.locked())
            return super().notify_buffer_available(buffer)

        def notify_buffer_destroyed(self) -> None:
            seen.append(pool._lock.locked() or network._lock.locked())

    listener = Curious()
    segment = take(pool)
    pool.add_buffer_listener(listener)
    pool.recycle(segment)
    pool.add_buffer_listener(Curious())
    pool.destroy()

    assert seen == [False, False]
    listener.recycle()


@pytest.mark.slow
def test_hist_18595_listeners_overdraft_and_resizing_race_without_a_loss(tiny_switch_interval: None) -> None:
    """Every wait ends and every segment comes home, while pools come and go."""
    network = NetworkBufferPool(24, 16)
    pools = [
        network.create_buffer_pool(owner=str(index), num_required=2, max_buffers=None, max_overdraft_buffers=2)
        for index in range(3)
    ]

    def write(pool: LocalBufferPool) -> None:
        for _ in range(300):
            builders = [pool.request_builder_blocking()]
            extra = builder_of(pool)
            if extra is not None:
                builders.append(extra)
            for builder in builders:
                builder.close()

    def listen(pool: LocalBufferPool) -> None:
        for _ in range(300):
            pool.add_buffer_listener(Listener(recycles=True))

    def churn() -> None:
        for index in range(60):
            short = network.create_buffer_pool(owner="short", num_required=1 + index % 3, max_buffers=8)
            builder = short.request_builder_blocking()
            segments = network.request_unpooled("gate", 2, PATIENCE_S)
            set_num_buffers(pools[index % 3], 2 + index % 5)
            short.destroy()
            builder.close()
            network.recycle_unpooled(segments)

    workers = [Worker(partial(work, pool)) for pool in pools for work in (write, write, listen)]
    workers.append(Worker(churn))
    for worker in workers:
        worker.join()

    assert [worker.error for worker in workers] == [None] * len(workers)
    network.check_invariants()
    for pool in pools:
        pool.check_invariants()
    network.destroy()
    assert network.num_available == 24


# ---------------------------------------------------------------- threads that wait for a segment


def test_a_parked_writer_gets_the_recycled_segment(bounded: LocalBufferPool) -> None:
    """A writer sleeps until a segment is recycled; the pool counts it as parked, and the time that it waits."""
    segments = [take(bounded) for _ in range(3)]
    writer = Blocked(bounded)
    num_parked, blocked = bounded.num_parked, bounded.hard_blocked_ns

    bounded.recycle(segments.pop())
    writer.finish()

    assert (num_parked, bounded.num_parked) == (1, 0)
    assert 0 < blocked <= bounded.hard_blocked_ns
    assert bounded.hard_blocked_ns == bounded.hard_blocked_ns, "the clock stands still when nobody waits"
    recycle(bounded, segments)


def test_every_parked_writer_is_served(bounded: LocalBufferPool) -> None:
    """Each recycled segment wakes one parked writer."""
    segments = [take(bounded) for _ in range(3)]
    writers = [Blocked(bounded), Blocked(bounded)]

    for _ in range(2):
        bounded.recycle(segments.pop())
    for writer in writers:
        writer.finish()

    bounded.recycle(segments.pop())


def test_the_spare_segment_goes_to_the_next_parked_writer() -> None:
    """A segment from the network pool wakes every writer that can be served, without waiting for a time slice."""
    network = NetworkBufferPool(8, 32)
    everything = network.request_unpooled("other", 6)
    pool = network.create_buffer_pool(owner="pool", num_required=1, max_buffers=8)
    mine = [take(pool), take(pool)]
    writers = [Blocked(pool), Blocked(pool)]

    network.recycle_unpooled(everything)
    for writer in writers:
        writer.finish()

    recycle(pool, mine)
    network.check_invariants()
    network.destroy()
    assert network.num_available == 8


def test_destroy_wakes_a_parked_writer_with_an_error(bounded: LocalBufferPool) -> None:
    """No writer goes on sleeping in a destroyed pool."""
    segments = [take(bounded) for _ in range(3)]
    pending = bounded.available_future()
    writer = Blocked(bounded)

    bounded.destroy()
    writer.join()

    assert str(writer.error) == "the buffer pool of map (1/2) was destroyed"
    assert (pending.is_done, bounded.available_future().is_done) == (True, True)
    recycle(bounded, segments)


@pytest.mark.slow
def test_a_writer_and_two_recyclers_never_lose_a_wakeup(
    network: NetworkBufferPool, bounded: LocalBufferPool, tiny_switch_interval: None
) -> None:
    """Segments come back from other threads, well within one park slice each."""
    assert sys.getswitchinterval() < 1e-5
    handed: list[Callable[[], object]] = []  # closes a builder
    is_over = threading.Event()

    def recycle_some() -> None:
        while not (is_over.is_set() and not handed):
            try:
                handed.pop()()
            except IndexError:
                is_over.wait(0)

    recyclers = [threading.Thread(target=recycle_some) for _ in range(2)]
    for thread in recyclers:
        thread.start()
    for _ in range(3000):
        handed.append(bounded.request_builder_blocking().close)
    is_over.set()
    for thread in recyclers:
        thread.join(PATIENCE_S)

    bounded.check_invariants()
    assert bounded.num_available == bounded.num_requested


@pytest.mark.slow
def test_destroy_races_with_parked_writers(network: NetworkBufferPool, tiny_switch_interval: None) -> None:
    """In every order, each writer ends and each segment is back."""
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
        assert network.num_total - network.num_available == 0


def test_a_parked_writer_looks_around_by_itself(
    network: NetworkBufferPool, bounded: LocalBufferPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every wait has a deadline: even a wake-up that was really lost costs one time slice, not for ever."""
    monkeypatch.setattr("netstack.buffer.local_buffer_pool.PARK_SLICE_S", 0.001)
    segments = [take(bounded) for _ in range(3)]
    writer = Blocked(bounded)
    assert network.ledger is not None
    network.ledger.give_back(segments[-1].index)
    with bounded._lock:
        bounded._free.append(segments.pop())  # without telling anybody

    writer.finish()

    recycle(bounded, segments)

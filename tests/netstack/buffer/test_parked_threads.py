"""``ParkedThreads``: a thread that waits for a segment always wakes up."""

import sys
import threading

import pytest

from netstack.buffer.buffer_builder import BufferBuilder
from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.network_buffer import recycle_all
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import ResourceClosedError
from tests.netstack.buffer.pools import Blocked, buffers_of, take
from tests.waiting import PATIENCE_S


def test_a_parked_writer_gets_the_recycled_segment(bounded: LocalBufferPool) -> None:
    """A writer sleeps until a segment is recycled; the pool counts it as parked, and the time that it waits."""
    segments = [take(bounded) for _ in range(3)]
    writer = Blocked(bounded)
    num_parked, blocked = bounded.num_parked, bounded.hard_blocked_ns

    bounded.recycle(segments.pop())
    writer.join()

    assert (num_parked, bounded.num_parked) == (1, 0)
    assert 0 < blocked <= bounded.hard_blocked_ns
    assert bounded.hard_blocked_ns == bounded.hard_blocked_ns, "the clock stands still when nobody waits"
    assert writer.result is not None
    writer.result.close()
    for segment in segments:
        bounded.recycle(segment)


def test_every_parked_writer_is_served(bounded: LocalBufferPool) -> None:
    """Each recycled segment wakes one parked writer."""
    segments = [take(bounded) for _ in range(3)]
    writers = [Blocked(bounded)]
    writers.append(Blocked(bounded))

    for _ in range(2):
        bounded.recycle(segments.pop())
    for writer in writers:
        writer.join()

    for writer in writers:
        assert writer.result is not None
        writer.result.close()
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
        writer.join()

    for writer in writers:
        assert writer.result is not None
        writer.result.close()
    for segment in mine:
        pool.recycle(segment)
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
    for segment in segments:
        bounded.recycle(segment)


@pytest.mark.slow
def test_a_writer_and_two_recyclers_never_lose_a_wakeup(
    network: NetworkBufferPool, bounded: LocalBufferPool, tiny_switch_interval: None
) -> None:
    """Every blocking request is served although the segments come back from other threads, well within the time of one
    park slice each.
    """
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
        handed.append(bounded.request_builder_blocking())
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

    writer.join()

    assert writer.result is not None
    writer.result.close()
    for segment in segments:
        bounded.recycle(segment)


def test_every_parked_writer_gets_one_of_the_buffers_that_come_together(bounded: LocalBufferPool) -> None:
    """Buffers that are recycled together wake as many writers as buffers that are recycled one by one."""
    buffers = buffers_of(bounded, 3)
    writers = [Blocked(bounded) for _ in range(3)]

    recycle_all(buffers)

    for writer in writers:
        writer.join()
        assert writer.result is not None
        writer.result.close()
    bounded.destroy()

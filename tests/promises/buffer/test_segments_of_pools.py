"""Segments belong to the network: a pool that ends, waits or has too many gives them to the pools to which they were
promised.
"""

from collections.abc import Iterator

import pytest

from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.network_buffer import MemorySegment, recycle_segments
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from tests.netstack.buffer.pools import num_overdraft

NUM_SEGMENTS = 8


@pytest.fixture
def network() -> Iterator[NetworkBufferPool]:
    """Yield a network, all of whose segments are back in the end."""
    network = NetworkBufferPool(NUM_SEGMENTS, 32)
    yield network
    network.check_invariants()
    network.destroy()
    assert network.num_available == network.num_total, f"leaked: {network!r}"


def take(pool: LocalBufferPool, number: int) -> list[MemorySegment]:
    """Take so many segments, which are there."""
    segments = [pool.request_segment_nowait() for _ in range(number)]
    found = [segment for segment in segments if segment is not None]
    assert len(found) == number
    return found


def test_hist_29298_the_last_buffer_taken_in_the_callback_is_asked_for_again(network: NetworkBufferPool) -> None:
    """A pool asks again when a listener took its last buffer (FLINK-29298): before, the pool stood in no line for the
    next one.
    """
    user = network.create_buffer_pool(owner="user", num_required=1, max_buffers=None)
    pool = network.create_buffer_pool(owner="pool", num_required=1, max_buffers=None)
    mine = take(pool, NUM_SEGMENTS // 2)
    theirs = take(user, NUM_SEGMENTS // 2)
    user.destroy()
    pool.available_future().add_done_callback(lambda: mine.extend(take(pool, 1)))

    found = []
    for _ in range(3):
        user.recycle(theirs.pop())
        found.append((len(mine) - NUM_SEGMENTS // 2, pool.is_available))
        pool.check_invariants()

    assert found == [(1, False), (1, True), (1, True)]
    user.recycle_run(theirs, -1)
    pool.recycle_run(mine, -1)


def test_overdraft_never_takes_what_others_were_promised(network: NetworkBufferPool) -> None:
    """Overdraft takes only segments that are really left over (FLINK-31386, FLINK-14872); the other pool gets all of
    its share.
    """
    pool = network.create_buffer_pool(owner="pool", num_required=2, max_buffers=2, max_overdraft_buffers=NUM_SEGMENTS)
    other = network.create_buffer_pool(owner="other", num_required=5, max_buffers=5)

    mine = take(pool, 3)

    assert (num_overdraft(pool), pool.request_segment_nowait()) == (1, None)
    theirs = take(other, 5)
    pool.recycle_run(mine, -1)
    other.recycle_run(theirs, -1)


def test_hist_19964_a_segment_that_meets_a_destroyed_pool_is_not_lost(network: NetworkBufferPool) -> None:
    """The first of two waiting pools is served, and its listener destroys the second one, whose segment is on its way
    already: no segment is lost.
    """
    user = network.create_buffer_pool(owner="user", num_required=1, max_buffers=NUM_SEGMENTS)
    used = take(user, NUM_SEGMENTS)
    served = network.create_buffer_pool(owner="served", num_required=1, max_buffers=1)
    ended = network.create_buffer_pool(owner="ended", num_required=1, max_buffers=1)
    served.available_future().add_done_callback(ended.destroy)

    user.recycle_run([used.pop(), used.pop()], -1)

    assert ended.is_destroyed
    assert network.num_available + served.num_available + user.num_available == 2
    user.recycle_run(used, -1)


def test_a_segment_that_comes_home_late_passes_a_destroyed_pool(network: NetworkBufferPool) -> None:
    """A late segment passes a destroyed pool, one by one or as a run (FLINK-19964)."""
    pool = network.create_buffer_pool(owner="pool", num_required=1, max_buffers=NUM_SEGMENTS)
    used = take(pool, 3)
    pool.destroy()

    pool.recycle(used.pop())
    pool.recycle_run(used, -1)

    assert network.num_available == NUM_SEGMENTS


def test_a_run_that_ends_a_maximum_makes_the_pool_available(network: NetworkBufferPool) -> None:
    """The pool goes from above the maximum to below it in one step; its listener is told once it is below, not at
    it.
    """
    pool = network.create_buffer_pool(
        owner="pool", num_required=2, max_buffers=NUM_SEGMENTS, num_subpartitions=2, max_buffers_per_channel=3
    )
    pool.recycle_run(take(pool, NUM_SEGMENTS), -1)
    held = [pool.request_segment_blocking(0) for _ in range(5)]
    future = pool.available_future()

    recycle_segments(held[:2], pool.recycler(0))
    assert (future.is_done, pool.is_available) == (False, False), "three are out, that is the maximum"
    recycle_segments(held[2:], pool.recycler(0))

    assert (future.is_done, pool.is_available) == (True, True)
    pool.check_invariants()

"""``NETSTACK_DEBUG=1``: errors of buffer ownership name the code that made them."""

import gc
from collections.abc import Iterator

import pytest

from netstack.buffer.network_buffer import (
    BufferLease,
    BufferRecycler,
    MemorySegment,
    NetworkBuffer,
    SegmentLedger,
    callers,
    describe,
)
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import BufferOwnershipError
from netstack.wire.messages import DataType
from tests.netstack.present import present


@pytest.fixture
def network() -> Iterator[NetworkBufferPool]:
    pool = NetworkBufferPool(4, 32)
    yield pool
    pool.destroy()
    assert pool.num_available == 4


def forget_a_buffer(network: NetworkBufferPool) -> None:
    pool = network.create_buffer_pool(owner="forgetful (1/1)", num_required=1, max_buffers=1)
    assert pool.request_buffer_nowait() is not None


def the_second_owner(buffer: NetworkBuffer) -> None:
    buffer.recycle()


def test_hist_20654_a_double_release_names_everybody_who_held_the_buffer(network: NetworkBufferPool) -> None:
    """FLINK-20654: an exception path recycled once more; the third task got memory that was in use."""
    pool = network.create_buffer_pool(owner="map (1/2)", num_required=1, max_buffers=1)
    buffer = present(pool.request_buffer_nowait())

    buffer.recycle()
    with pytest.raises(BufferOwnershipError, match="released twice") as caught:
        the_second_owner(buffer)

    text = str(caught.value)
    assert text.count("taken on MainThread") == 1
    assert text.count("released on MainThread") == 1
    assert "test_hist_20654" in text
    assert (pool.num_requested, pool.num_available) == (1, 1), "nothing came back twice"


def test_hist_20654_a_segment_that_is_recycled_twice_is_refused_by_its_pool(network: NetworkBufferPool) -> None:
    """FLINK-20654: a raw segment is checked like a buffer, before its memory can be handed out twice."""
    pool = network.create_buffer_pool(owner="map (1/2)", num_required=2, max_buffers=2)
    segment = present(pool.request_segment_nowait())
    pool.recycle(segment)

    with pytest.raises(
        BufferOwnershipError, match=r"segment \d is recycled twice: now by .*, before by .*test_hist_20654"
    ):
        pool.recycle(segment)

    assert pool.num_available == pool.num_requested
    pool.check_invariants()


def test_a_run_that_is_recycled_twice_changes_no_count(network: NetworkBufferPool) -> None:
    """A subpartition that has its maximum still has it: the run is refused before anything is counted."""
    pool = network.create_buffer_pool(
        owner="map (1/2)", num_required=4, max_buffers=4, num_subpartitions=1, max_buffers_per_channel=2
    )
    held = [pool.request_segment_blocking(0) for _ in range(2)]
    returned = pool.request_segment_blocking()
    pool.recycle(returned)

    with pytest.raises(BufferOwnershipError, match="recycled twice"):
        pool.recycle_run([returned], 0)

    assert not pool.is_available
    pool.check_invariants()
    pool.recycle_run(held, 0)
    assert pool.is_available


def test_unpooled_segments_are_watched_too(network: NetworkBufferPool) -> None:
    """An exclusive segment that comes back twice would be given to two channels."""
    segments = network.request_unpooled("reduce (1/1) (input channel 0)", 1)
    assert network.ledger is not None
    with pytest.raises(BufferOwnershipError, match=r"but reduce \(1/1\) \(input channel 0\) has it, by"):
        network.ledger.take(segments[0].index, "another")

    network.recycle_unpooled(segments)
    with pytest.raises(BufferOwnershipError, match="is recycled twice"):
        network.recycle_unpooled(segments)

    network.check_invariants()


def test_use_after_release_names_who_released() -> None:
    """The reader's error says where the memory went."""
    network = NetworkBufferPool(1, 32)
    pool = network.create_buffer_pool(owner="map", num_required=1, max_buffers=1)
    buffer = present(pool.request_buffer_nowait())
    buffer.retain()
    the_second_owner(buffer)
    the_second_owner(buffer)

    with pytest.raises(BufferOwnershipError, match="is used after its release") as caught:
        _ = buffer.view

    assert str(caught.value).count("the_second_owner") == 2
    assert "retained on MainThread" in str(caught.value)
    network.destroy()


def test_a_forgotten_buffer_is_an_error_at_the_end_of_its_pool() -> None:
    """``destroy`` does all its work, then names the function that took the buffer."""
    network = NetworkBufferPool(4, 32)
    forget_a_buffer(network)
    gc.collect()

    with pytest.raises(BufferOwnershipError, match="dropped without being recycled: segment 0") as caught:
        network.destroy()

    assert "forget_a_buffer" in str(caught.value)
    assert (network.is_destroyed, len(network._pools)) == (True, 0)
    network.destroy()


def test_a_buffer_that_is_still_held_is_no_leak() -> None:
    """A buffer that is recycled after the end of its pool, for example by a transport, is no error."""
    network = NetworkBufferPool(4, 32)
    pool = network.create_buffer_pool(owner="map", num_required=1, max_buffers=1)
    buffer = present(pool.request_buffer_nowait())

    network.destroy()
    buffer.recycle()

    assert network.num_available == 4


def test_memory_outside_of_the_arena_may_be_forgotten() -> None:
    """Events take no segment, so a forgotten one is no leak."""
    lease = BufferLease(MemorySegment(memoryview(b"event")), NetworkBufferPoolLess())
    del lease
    gc.collect()


class NetworkBufferPoolLess(BufferRecycler):
    def recycle(self, segment: MemorySegment) -> None:
        raise AssertionError("nobody recycled it")


def test_a_segment_is_never_out_twice() -> None:
    """The error names both owners."""
    ledger = SegmentLedger()
    ledger.take(3, "first")

    with pytest.raises(BufferOwnershipError, match="segment 3 is given to second, but first has it, by "):
        ledger.take(3, "second")


def test_an_abandoned_buffer_cannot_be_used() -> None:
    """A buffer that a listener refused belongs to its pool: the listener can no longer recycle it."""
    buffer = NetworkBuffer.unpooled(b"abc", DataType.DATA_BUFFER)
    buffer.lease.abandon()

    with pytest.raises(BufferOwnershipError, match="released twice"):
        buffer.recycle()


def test_callers_are_told_from_the_inside_out() -> None:
    """Callers are listed by function, file and line, without the buffer classes themselves."""
    text = describe(callers())

    assert text.startswith("test_callers_are_told_from_the_inside_out (test_segment_ledger.py:")
    assert text.count(" < ") == 3


def test_nothing_of_it_exists_without_debug_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """No ledger, no trail: a test of a constant is all that it costs."""
    monkeypatch.setattr("netstack.buffer.network_buffer._DEBUG", False)
    monkeypatch.setattr("netstack.buffer.network_buffer_pool.is_debug", lambda: False)
    network = NetworkBufferPool(2, 32)
    pool = network.create_buffer_pool(owner="map", num_required=1, max_buffers=2)
    buffer = present(pool.request_buffer_nowait())

    buffer.view[:] = b"x" * 32
    view = buffer.view
    buffer.recycle()

    assert (network.ledger, hasattr(buffer.lease, "_trail"), bytes(view)) == (None, False, b"x" * 32)
    with pytest.raises(BufferOwnershipError, match=r"<MemorySegment \d> is released twice$"):
        buffer.recycle()
    del view
    network.recycle_unpooled(network.request_unpooled("gate", 1))
    network.destroy()

"""Helpers that the tests of the pools share."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from netstack.buffer.buffer_builder import BufferBuilder
from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.network_buffer import BufferRecycler, MemorySegment, NetworkBuffer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import ResourceClosedError
from tests.waiting import PATIENCE_S, spin_until

SEGMENT = 16  # bytes
NUM_BUFFERS = 1024


def create(
    network: NetworkBufferPool, num_required: int = 1, max_buffers: int | None = None, **limits: int
) -> LocalBufferPool:
    """Create a pool whose owner does not matter."""
    return network.create_buffer_pool(owner="pool", num_required=num_required, max_buffers=max_buffers, **limits)


def take(pool: LocalBufferPool, subpartition: int = -1) -> MemorySegment:
    """Take a segment; there must be a free one."""
    segment = pool.request_segment_nowait(subpartition)
    assert segment is not None
    return segment


def builder_of(pool: LocalBufferPool, subpartition: int = -1) -> BufferBuilder | None:
    """Return a builder on a free segment, or None."""
    segment = pool.request_segment_nowait(subpartition)
    return None if segment is None else BufferBuilder(segment, pool.recycler(subpartition))


def num_in_use(pool: LocalBufferPool) -> int:
    """Return the number of the pool's segments that are in use."""
    return max(0, pool.num_requested - pool.num_available)


def num_overdraft(pool: LocalBufferPool) -> int:
    """Return the number of segments that the pool holds beyond its present size."""
    return max(0, pool.num_requested - pool.num_buffers)


def set_num_buffers(pool: LocalBufferPool, num_buffers: int) -> None:
    """Let the pool hold so many at most (never less than its guarantee, nor more than others leave) until the next
    redistribution, as if it had been that one.
    """
    network = pool._parent
    with network._lock:
        others = sum(each.num_buffers - each.num_required for each in network._pools if each is not pool)
        most = pool.num_required + pool.capacity(network.num_total - network.num_reserved - others)
        pool.num_buffers = min(max(num_buffers, pool.num_required), most)
    pool.adjust()


def recycle(pool: LocalBufferPool, segments: list[MemorySegment]) -> None:
    """Give all of them back."""
    for segment in segments:
        pool.recycle(segment)
    segments.clear()


class Home(BufferRecycler):
    """Keeps the segments that came home."""

    def __init__(self) -> None:
        self.segments: list[MemorySegment] = []

    @property
    def count(self) -> int:
        return len(self.segments)

    def recycle(self, segment: MemorySegment) -> None:
        self.segments.append(segment)


class Worker:
    """A thread whose error is looked at after ``join``."""

    def __init__(self, work: Callable[[], object]) -> None:
        executor = ThreadPoolExecutor(1)
        self._future = executor.submit(work)
        executor.shutdown(wait=False)
        self.error: BaseException | None = None

    def join(self) -> None:
        self.error = self._future.exception(PATIENCE_S)


class Listener:
    """Remembers its calls; ``takes`` and ``recycles`` say what it does with a buffer."""

    def __init__(self, *, takes: bool = True, recycles: bool = False) -> None:
        self.takes = takes
        self.recycles = recycles
        self.buffers: list[NetworkBuffer] = []
        self.num_calls = 0
        self.num_destroyed = 0

    def notify_buffer_available(self, buffer: NetworkBuffer) -> bool:
        self.num_calls += 1
        if not self.takes:
            return False
        if self.recycles:
            buffer.recycle()
        else:
            self.buffers.append(buffer)
        return True

    def notify_buffer_destroyed(self) -> None:
        self.num_destroyed += 1

    def recycle(self) -> None:
        while self.buffers:
            self.buffers.pop().recycle()


class Blocked:
    """A thread inside ``request_builder_blocking``; made only once it stands in the line of the pool."""

    def __init__(self, pool: LocalBufferPool) -> None:
        self.pool = pool
        self.result: BufferBuilder | None = None
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run)
        num_before = pool.num_parked
        self.thread.start()
        spin_until(lambda: pool.num_parked > num_before)

    def _run(self) -> None:
        try:
            self.result = self.pool.request_builder_blocking()
        except ResourceClosedError as error:
            self.error = error

    def join(self) -> None:
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive(), "the writer never woke up"

    def finish(self) -> None:
        """It must have got a builder, which is closed."""
        self.join()
        assert self.result is not None
        self.result.close()


def buffers_of(pool: LocalBufferPool, number: int) -> list[NetworkBuffer]:
    """Return ``num_buffers`` whole buffers."""
    found = [pool.request_buffer_nowait() for _ in range(number)]
    assert None not in found
    return [buffer for buffer in found if buffer is not None]


def drain(pool: LocalBufferPool) -> list[MemorySegment]:
    """Return all segments that the pool serves now."""
    segments = []
    while (segment := pool.request_segment_nowait()) is not None:
        segments.append(segment)
    return segments

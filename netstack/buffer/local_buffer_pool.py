"""One task output's bounded share of the network memory.

Side:       shared.  One task thread requests; any thread recycles.
Hot path:   two lock rounds per buffer and direction.
Invariants: available exactly when a segment lies in ``_free``, so that a non-blocking request then succeeds (FLINK-16972);
            an empty pool stands in the line of the network pool, so a freed segment reaches it whoever frees it.
Units:      segments; ``hard_blocked_ns`` in nanoseconds.
Lock order: ``LocalBufferPool._lock`` before ``NetworkBufferPool._lock``; futures, parked threads and other pools after both.
Source:     Flink ``LocalBufferPool``.
Absent:     overdraft buffers, a maximum per subpartition, resizing.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from netstack.availability import AvailabilityFuture, AvailabilityHelper
from netstack.buffer.builder import BufferBuilder
from netstack.buffer.segment import MemorySegment, NetworkBuffer
from netstack.buffer.wakeups import run_all
from netstack.errors import ResourceClosedError
from netstack.wire.messages import DataType

if TYPE_CHECKING:
    from netstack.buffer.network_buffer_pool import NetworkBufferPool

PARK_SLICE_S: Final = 1.0  # a parked thread looks around this often, even if a wake-up were lost


class PoolAccount:
    """What the network pool knows about one local pool.  Every field but ``pool`` is guarded by the network pool's lock."""

    __slots__ = ("is_closed", "is_waiting", "max_buffers", "num_requested", "num_required", "pool")

    def __init__(self, num_required: int, max_buffers: int) -> None:
        self.num_required = num_required
        self.max_buffers = max_buffers
        self.num_requested = 0  # Read bare by the local pool: one pass stale is fine, it only decides who keeps a spare segment.
        self.is_waiting = False
        self.is_closed = False
        self.pool: LocalBufferPool | None = None  # Written once, before anybody can wait.

    def offer(self, segment: MemorySegment, wakeups: list[Callable[[], None]]) -> bool:
        """Hand the pool a segment it stood in line for."""
        assert self.pool is not None, "only a complete pool stands in line"
        return self.pool.offer(segment, wakeups)


class LocalBufferPool:
    """Hands out segments and takes them back.

    Threading: any thread; several may block at once.
    Life cycle: ``destroy`` wakes everybody; segments still in use go home when they are recycled.
    """

    def __init__(self, parent: "NetworkBufferPool", account: PoolAccount, owner: str) -> None:
        self._parent = parent
        self._account = account
        self.owner = owner
        self._lock = threading.Lock()
        # All below guarded by _lock.
        self._free: list[MemorySegment] = []
        self._availability = AvailabilityHelper()
        self._parked: deque[threading.Lock] = deque()
        self._is_destroyed = False
        self._blocked_ns = 0
        self._blocked_since_ns: dict[int, int] = {}  # thread id -> when it parked
        account.pool = self
        first = parent.take_or_wait(account)
        if first is not None:
            wakeups: list[Callable[[], None]] = []
            if not self.offer(first, wakeups):
                parent.give_back(account, (first,))
            run_all(wakeups)

    def __repr__(self) -> str:
        state = "destroyed, " if self._is_destroyed else ""
        parked = f", {len(self._blocked_since_ns)} threads wait for a buffer" if self._blocked_since_ns else ""
        account = self._account
        return (
            f"<LocalBufferPool of {self.owner}: {state}{account.num_requested} requested ({account.num_required} guaranteed, "
            f"at most {account.max_buffers}), {len(self._free)} free{parked}>"
        )

    @property
    def num_requested(self) -> int:
        """How many segments this pool holds, free or in use."""
        return self._account.num_requested

    @property
    def num_available(self) -> int:
        """How many of them are free."""
        return len(self._free)

    @property
    def max_buffers(self) -> int:
        """How many it may ever hold."""
        return self._account.max_buffers

    @property
    def is_destroyed(self) -> bool:
        """Whether ``destroy`` was called."""
        return self._is_destroyed

    @property
    def is_available(self) -> bool:
        """Whether a request would be served at once."""
        return bool(self._free)

    def available_future(self) -> AvailabilityFuture:
        """Done while a segment is free (or the pool is destroyed), else completed when one comes."""
        with self._lock:
            return self._availability.future

    @property
    def hard_blocked_ns(self) -> int:
        """How long threads were parked in ``request_builder_blocking`` so far, the present wait included."""
        with self._lock:
            now = time.perf_counter_ns()
            return self._blocked_ns + sum(now - since for since in self._blocked_since_ns.values())

    # ---------------------------------------------------------------- requests

    def request_segment_nowait(self) -> MemorySegment | None:
        """A segment, which must be recycled here, or None.

        Raises:
            ResourceClosedError: the pool was destroyed.
        """
        with self._lock:
            return self._take_locked()

    def request_buffer_nowait(self) -> NetworkBuffer | None:
        """A data buffer over a whole segment, or None.

        Raises:
            ResourceClosedError: the pool was destroyed.
        """
        segment = self.request_segment_nowait()
        return None if segment is None else NetworkBuffer(segment, self, len(segment.view), DataType.DATA_BUFFER)

    def request_builder_nowait(self) -> BufferBuilder | None:
        """A builder on a free segment, or None.

        Raises:
            ResourceClosedError: the pool was destroyed.
        """
        segment = self.request_segment_nowait()
        return None if segment is None else BufferBuilder(segment, self)

    def request_builder_blocking(self) -> BufferBuilder:
        """A builder on a segment; parks the thread until there is one.

        Raises:
            ResourceClosedError: the pool was destroyed, before or meanwhile.
        """
        with self._lock:
            segment = self._take_locked()
        if segment is None:
            segment = self._wait_for_segment()
        return BufferBuilder(segment, self)

    # ---------------------------------------------------------------- recycling

    def recycle(self, segment: MemorySegment) -> None:
        """Take a segment back, from any thread, at any time."""
        wakeups: list[Callable[[], None]] = []
        if not self.offer(segment, wakeups):
            self._parent.give_back(self._account, (segment,))
            return
        for wakeup in wakeups:  # never more than one parked thread and one future, and releasing a parked thread cannot fail
            wakeup()

    def offer(self, segment: MemorySegment, wakeups: list[Callable[[], None]]) -> bool:
        """Keep ``segment`` and note whom to wake, or say False if the network pool should have it."""
        account = self._account
        with self._lock:
            if self._is_destroyed or (self._free and account.num_requested > account.num_required):
                return False
            self._free.append(segment)
            if self._parked:
                wakeups.append(self._parked.popleft().release)
            pending = self._availability.unavailable_to_reset_available()
            if pending is not None:
                wakeups.append(pending.complete)
            return True

    def destroy(self) -> None:
        """Wake every waiter with an error and give the free segments back; the second call does nothing."""
        with self._lock:
            if self._is_destroyed:
                return
            self._is_destroyed = True
            segments, self._free = self._free, []
            wakeups: list[Callable[[], None]] = [parked.release for parked in self._parked]
            self._parked.clear()
            pending = self._availability.unavailable_to_reset_available()
            if pending is not None:
                wakeups.append(pending.complete)
        run_all([lambda: self._parent.close_account(self._account, segments), *wakeups])

    def check_invariants(self) -> None:
        """Assert the invariants of this module."""
        with self._lock:
            if self._is_destroyed:
                assert not self._free, "a destroyed pool keeps nothing"
                assert self._availability.is_available, "nobody waits for a destroyed pool"
                return
            assert self._availability.is_available == bool(self._free), f"{len(self._free)} free, but {self._availability.future!r}"
            assert self._free or self._account.is_waiting, "an empty pool stands in line"

    # ---------------------------------------------------------------- helpers

    def _take_locked(self) -> MemorySegment | None:
        if self._is_destroyed:
            raise ResourceClosedError(f"the buffer pool of {self.owner} was destroyed")
        if not self._free:
            return None
        segment = self._free.pop()
        if not self._free:
            spare = self._parent.take_or_wait(self._account)
            if spare is not None:
                self._free.append(spare)
            else:
                self._availability.reset_unavailable()
        return segment

    def _wait_for_segment(self) -> MemorySegment:
        gate = threading.Lock()
        gate.acquire()
        me = threading.get_ident()
        with self._lock:
            self._blocked_since_ns[me] = time.perf_counter_ns()
        try:
            while True:
                with self._lock:
                    segment = self._take_locked()
                    if segment is None:
                        self._parked.append(gate)
                        neighbour = None
                    else:
                        # The spare segment that came with ours may be the neighbour's.
                        neighbour = self._parked.popleft() if self._free and self._parked else None
                if neighbour is not None:
                    neighbour.release()
                if segment is not None:
                    return segment
                if not gate.acquire(timeout=PARK_SLICE_S):
                    self._unpark(gate)
        finally:
            with self._lock:
                self._blocked_ns += time.perf_counter_ns() - self._blocked_since_ns.pop(me)

    def _unpark(self, gate: threading.Lock) -> None:
        """After a slice without news: leave the line; if somebody called us just now, take the call."""
        with self._lock:
            if gate in self._parked:
                self._parked.remove(gate)
                return
        gate.acquire()

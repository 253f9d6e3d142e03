"""All network memory of a process, and its division among pools and unpooled requests.

Side:       shared.
Invariants: every segment is in exactly one place: free here, held by one local pool, or handed out unpooled.
            ``num_reserved`` (what was promised to pools that live and to unpooled requests) never exceeds the total.  A
            pool gets its guarantee in any case, and more, up to its present size, only while the free segments cover
            every promise that was not drawn yet: pools that wait for each other's guarantee cannot happen (FLINK-14872,
            FLINK-31386).  A pool below its size that found nothing waits in ``_waiting``, a blocked request in
            ``_claims``; both are handed segments as soon as some may go to them.
Units:      sizes in segments unless a name says bytes.
Lock order: ``LocalBufferPool._lock`` before ``NetworkBufferPool._lock``; the latter is a leaf.  Pools are called after
    it.
Source:     Flink ``NetworkBufferPool``, with its ``redistributeBuffers``.  Its two locks, and the future that every
            pool listens to, are one lock and one line here.
"""

import mmap
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, unique
from typing import Final

from netstack.availability import run_all
from netstack.buffer.local_buffer_pool import AccountState, LocalBufferPool
from netstack.buffer.network_buffer import MemorySegment, SegmentLedger
from netstack.config import is_debug
from netstack.errors import InsufficientNetworkBuffersError, ResourceClosedError

USAGE_WARNING_PERCENT: Final = 100  # Flink's USAGE_WARNING_THRESHOLD
Grants = list[tuple[LocalBufferPool, MemorySegment]]


@unique
class NetworkBufferPoolState(Enum):
    """The life of the pool: ``OPEN`` -- destroy --> ``DESTROYED`` -- the last segment is back --> ``UNMAPPED``."""

    OPEN = "open"
    DESTROYED = "destroyed"
    UNMAPPED = "unmapped"


_OPEN: Final = NetworkBufferPoolState.OPEN
_WAITING: Final = AccountState.WAITING
_CLOSED: Final = AccountState.CLOSED


def _readable(num_bytes: int) -> str:
    """Write a number of bytes as Flink's ``MemorySize.toHumanReadableString`` does."""
    for exponent, unit in ((4, "tb"), (3, "gb"), (2, "mb"), (1, "kb")):
        if num_bytes > 1024**exponent:
            return f"{num_bytes / 1024**exponent:.3f}{unit} ({num_bytes} bytes)"
    return f"{num_bytes} bytes"


class _Claim:
    """An unpooled request that waits for the rest of its segments.

    All guarded by the network pool's lock, except ``gate``.
    """

    __slots__ = ("gate", "is_closed", "num_missing", "segments")

    def __init__(self, num_missing: int) -> None:
        self.num_missing = num_missing
        self.segments: list[MemorySegment] = []
        self.is_closed = False
        self.gate = threading.Lock()  # released once it is complete or closed
        self.gate.acquire()  # no wait: the lock is new


class NetworkBufferPool:
    """The segments of this process: hands them to local pools, and unpooled ones to every other caller.

    Threading: any thread.
    Life cycle: ``NetworkBufferPoolState``; ``destroy`` ends every local pool.
    State, all guarded by ``_lock``, and who uses it:
        free segments: ``_free``.  Everybody.
        promises: ``_pools`` with the numbers in each, ``_num_guaranteed``, ``_num_owed``, ``_num_unpooled``,
            ``_num_outstanding``.  Pools that come, go, grow and shrink.
        lines: ``_waiting`` (pools below their size), ``_claims`` (blocked requests).  Threads that find no segment, and
            threads that bring one.
    ``_map``, ``_view`` and ``_segments`` are used without the lock: when they are made, and by the thread that unmaps.
    """

    def __init__(self, num_segments: int, segment_size_bytes: int) -> None:
        if num_segments < 1 or segment_size_bytes < 1:
            raise ValueError(f"{num_segments} segments of {segment_size_bytes} bytes make no pool")
        self.segment_size_bytes = segment_size_bytes
        self.num_total = num_segments
        self.ledger = SegmentLedger() if is_debug() else None
        # One anonymous mapping, cut into segments.  Pages are touched when they are first used.
        self._map = mmap.mmap(-1, num_segments * segment_size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = memoryview(self._map)
        starts = range(0, num_segments * segment_size_bytes, segment_size_bytes)
        views = [self._view[start : start + segment_size_bytes] for start in starts]
        self._segments = [MemorySegment(view, index, self.ledger) for index, view in enumerate(views)]
        self._lock = threading.Lock()
        # All below guarded by _lock.  Last in, first out: warm memory first, and untouched pages stay untouched.
        self._free = self._segments[::-1]
        self._pools: list[LocalBufferPool] = []  # of pools that are not destroyed, in the order of their creation
        self._waiting: deque[LocalBufferPool] = deque()
        self._claims: deque[_Claim] = deque()
        self._num_guaranteed = 0  # sum of num_required over _pools
        self._num_owed = 0  # the part of all promises that was not drawn
        self._num_unpooled = 0  # promised to unpooled requests, drawn or not
        self._num_outstanding = 0  # held by buffers of destroyed pools
        self._last_usage_percent = -1
        self._state = _OPEN  # A bare read may be one moment stale.

    def __repr__(self) -> str:
        state = "destroyed " if self.is_destroyed else ""
        return (
            f"<NetworkBufferPool {state}{self.num_available} of {self.num_total} segments free, "
            f"{self.num_reserved} reserved>"
        )

    @property
    def num_available(self) -> int:
        """How many segments are at home, in nobody's hands."""
        return len(self._free)

    @property
    def num_reserved(self) -> int:
        """How many segments are promised: the guarantees of the pools and the unpooled ones."""
        return self._num_guaranteed + self._num_unpooled

    @property
    def is_destroyed(self) -> bool:
        """Whether ``destroy`` was called."""
        return self._state is not _OPEN

    # ---------------------------------------------------------------- pools

    def create_buffer_pool(
        self,
        *,
        owner: str,
        num_required: int,
        max_buffers: int | None,
        num_subpartitions: int = 0,
        max_buffers_per_channel: int | None = None,
        max_overdraft_buffers: int = 0,
    ) -> LocalBufferPool:
        """Make a pool that can always have ``num_required`` segments, and its share of the others up to ``max_buffers``
        (None: no limit).

        Args:
            owner: who it is for; named in errors.
            num_required: the guarantee.
            max_buffers: how far it may grow.
            num_subpartitions: how many ``max_buffers_per_channel`` counts for.
            max_buffers_per_channel: as soon as one subpartition has so many, the pool says that it is unavailable; it
                refuses nothing.
            max_overdraft_buffers: how many it may have beyond its size, so that a started record can be finished.

        Raises:
            InsufficientNetworkBuffersError: that many cannot be guaranteed.
            ResourceClosedError: this pool was destroyed.
        """
        if num_required < 1 or (max_buffers is not None and max_buffers < num_required):
            raise ValueError(
                f"{owner}: a pool needs 1 <= num_required <= max_buffers, got {num_required} and {max_buffers}"
            )
        if max_overdraft_buffers < 0 or (max_buffers_per_channel is not None and max_buffers_per_channel < 1):
            text = f"{max_buffers_per_channel} buffers per channel and {max_overdraft_buffers} overdraft buffers"
            raise ValueError(f"{owner}: a pool cannot have at most {text}")
        pool = LocalBufferPool(
            self,
            owner,
            num_required,
            max_buffers,
            num_subpartitions=num_subpartitions,
            max_buffers_per_channel=max_buffers_per_channel,
            max_overdraft_buffers=max_overdraft_buffers,
        )
        with self._lock:
            self._reserve_locked(owner, num_required)
            self._pools.append(pool)
            self._num_guaranteed += num_required
            resized = self._redistribute_locked()
        try:
            pool.adjust()
            self._settle([], resized)
            with self._lock:
                self._check_open_locked()  # or destroyed meanwhile, by another thread
        except BaseException:
            pool.destroy()
            raise
        return pool

    def take_or_wait(self, pool: LocalBufferPool) -> MemorySegment | None:
        """Take one more segment for a pool below its size; None if there is none for it, and the pool then stands in
        line for the next one; None, too, if the pool has its size.
        """
        with self._lock:
            if pool.state is _CLOSED or pool.num_requested >= pool.num_buffers:
                return None
            if self._may_take_locked(pool):
                if pool.state is _WAITING:
                    # It stands in line from an earlier vain request.
                    pool.state = AccountState.OPEN
                    self._waiting.remove(pool)
                return self._take_locked(pool)
            if pool.state is not _WAITING:
                pool.state = _WAITING
                # In the lock round of the vain look: a segment that comes home from here on finds the pool in line.
                self._waiting.append(pool)
            return None

    @property
    def num_unpromised(self) -> int:
        """How many free segments no pool was promised; a guess while others request and recycle."""
        return max(0, len(self._free) - self._num_owed)

    def take_overdraft(self, pool: LocalBufferPool, max_overdraft_buffers: int) -> MemorySegment | None:
        """Take one segment for a pool beyond its size; None if no unpromised one is free, or the pool has its
        overdraft.
        """
        with self._lock:
            # Only a segment that no guarantee needs: else the pool that was promised it could wait for ever.
            num_overdraft = pool.num_requested - pool.num_buffers
            if pool.state is _CLOSED or num_overdraft >= max_overdraft_buffers or len(self._free) <= self._num_owed:
                return None
            return self._take_locked(pool)

    def take_back(self, pool: LocalBufferPool, segments: Sequence[MemorySegment]) -> Grants:
        """Take back segments that a pool cannot use; the pool's lock may be held.  The caller gives the result to
        ``hand_out`` when it has released that lock.
        """
        with self._lock:
            self._give_back_locked(pool, segments)
            return self._grant_locked()

    def hand_out(self, grants: Grants) -> None:
        """Bring segments to the pools that stood in line for them; the caller holds no lock."""
        wakeups: list[Callable[[], object]] = []
        while grants:
            # A pool that shrank or was destroyed since then refuses; the next one in line gets its segment.
            refused = [(pool, segment) for pool, segment in grants if not pool.offer(segment, wakeups)]
            if not refused:
                break
            with self._lock:
                for pool, segment in refused:
                    self._give_back_locked(pool, (segment,))
                grants = self._grant_locked()
        if self._state is not _OPEN:
            self._unmap_if_complete()
        run_all(wakeups)

    def close_pool(self, pool: LocalBufferPool, segments: Sequence[MemorySegment]) -> None:
        """Close a pool for ``LocalBufferPool.destroy``: ``segments`` come back now, the others as their buffers are
        recycled.
        """
        with self._lock:
            assert pool.state is not _CLOSED, "a pool is closed once"
            self._pools.remove(pool)
            if pool.state is _WAITING:
                self._waiting.remove(pool)
            pool.state = _CLOSED
            self._num_guaranteed -= pool.num_required
            self._num_owed -= max(0, pool.num_required - pool.num_requested)
            # Before its free segments come back: each of these counts one down.
            self._num_outstanding += pool.num_requested
            self._give_back_locked(pool, segments)
            # Its guarantee is free now: the other pools may grow.
            resized = self._redistribute_locked()
            grants = self._grant_locked()
        self._settle(grants, resized)

    # ---------------------------------------------------------------- unpooled segments

    def request_unpooled(self, owner: str, num_segments: int, timeout_s: float = 0.0) -> list[MemorySegment]:
        """Exactly ``num_segments`` segments for good (the exclusive ones of an input channel), or none.

        They are promised at once or refused at once; what is promised but still in use elsewhere is waited for.

        Args:
            owner: who it is for; named in errors.
            num_segments: how many.
            timeout_s: how long to wait for them.

        Raises:
            InsufficientNetworkBuffersError: that many cannot be promised, or did not come in time.
            ResourceClosedError: this pool was destroyed, before or meanwhile.
        """
        if num_segments < 0:
            raise ValueError(f"{owner} requests {num_segments} segments")
        claim = _Claim(num_segments)
        with self._lock:
            self._reserve_locked(owner, num_segments)
            self._num_unpooled += num_segments
            resized = self._redistribute_locked()
        try:
            self._settle([], resized)
            # Behind the adjustment: pools that have become smaller give their free segments back first.
            self._fulfil(claim, owner, timeout_s)
        except BaseException:
            with self._lock:
                if claim in self._claims:
                    self._claims.remove(claim)
                # Some may have come before the time was over.
                self._free.extend(claim.segments)
                self._num_unpooled -= num_segments
                self._num_owed -= claim.num_missing
                resized = self._redistribute_locked()
                grants = self._grant_locked()
            self._settle(grants, resized)
            raise
        if self.ledger is not None:
            for segment in claim.segments:
                self.ledger.take(segment.index, owner)
        return claim.segments

    def recycle_unpooled(self, segments: Sequence[MemorySegment]) -> None:
        """Take segments of ``request_unpooled`` back; any thread, any number, also after ``destroy``."""
        if self.ledger is not None:
            for segment in segments:
                self.ledger.give_back(segment.index)
        with self._lock:
            # Before the redistribution: the promise ends with the segments, and the pools get their share of it.
            self._num_unpooled -= len(segments)
            assert self._num_unpooled >= 0, "more unpooled segments came back than were given out"
            self._free.extend(segments)
            resized = self._redistribute_locked()
            grants = self._grant_locked()
        self._settle(grants, resized)

    # ---------------------------------------------------------------- numbers

    def usage_warning(self) -> str | None:
        """Return a line to log about how many segments the pools would like to have, in percent of the total: once for
        each value that is too high, and once when it is normal again; None otherwise.

        A bounded pool would like to have its maximum, an unbounded one twice its guarantee.
        """
        with self._lock:
            num_requested = sum(
                2 * pool.num_required if pool.max_buffers is None else pool.max_buffers for pool in self._pools
            )
            usage = 100 * num_requested // self.num_total
            before = self._last_usage_percent
            self._last_usage_percent = usage
        if usage >= USAGE_WARNING_PERCENT and usage != before:
            total = self.num_total * self.segment_size_bytes
            requested = num_requested * self.segment_size_bytes
            return (
                f"Memory usage [{usage}%] is too high to satisfy all of the requests. This can severely impact network "
                "throughput. Please consider increasing available network memory, or decreasing configured size of "
                f"network buffer pools. (totalMemory={_readable(total)}, requestedMemory={_readable(requested)}, "
                f"missingMemory={_readable(requested - total)})"
            )
        if usage < USAGE_WARNING_PERCENT <= before:
            return f"Memory usage [{usage}%] went back to normal"
        return None

    # ---------------------------------------------------------------- end

    def destroy(self) -> None:
        """End every local pool and wake all threads that wait there or here; the second call does nothing.

        The mapping is closed when the last segment is back, now or later.

        Raises:
            BufferOwnershipError: in debug mode, after all is done: buffers were dropped instead of recycling them.
        """
        with self._lock:
            if self._state is not _OPEN:
                return
            self._state = NetworkBufferPoolState.DESTROYED
            # A thread that waits without a free segment in sight has nothing else that wakes it.
            for claim in self._claims:
                claim.is_closed = True
                claim.gate.release()
            self._claims.clear()
        # Outside the lock: a pool that ends takes it to give its segments back.
        run_all([self.destroy_all_pools, self._unmap_if_complete])
        if self.ledger is not None:
            self.ledger.check_lost()

    def destroy_all_pools(self) -> None:
        """End every local pool; this one goes on."""
        with self._lock:
            # A copy: each pool leaves the list when it ends.
            pools = list(self._pools)
        run_all([pool.destroy for pool in pools])

    def check_invariants(self) -> None:
        """Assert the invariants of this module."""
        with self._lock:
            held = sum(pool.num_requested for pool in self._pools)
            claimed = sum(claim.num_missing for claim in self._claims)
            owed = claimed + sum(max(0, pool.num_required - pool.num_requested) for pool in self._pools)
            indexes = {segment.index for segment in self._free}
            assert len(indexes) == len(self._free), "a segment is in the pool twice"
            num_placed = len(self._free) + held + self._num_unpooled - claimed + self._num_outstanding
            assert num_placed == self.num_total, "a segment is lost"
            assert owed == self._num_owed, f"{self._num_owed} segments owed by count, {owed} by sum"
            assert self.num_reserved <= self.num_total, "more is promised than there is"
            assert self._num_guaranteed == sum(pool.num_required for pool in self._pools), (
                "the guarantees are miscounted"
            )
            assert not any(self._may_take_locked(pool) for pool in self._waiting), "a pool waits for what it may have"
            assert not (self._free and self._claims), "a request waits for what it may have"
            for pool in self._pools:
                assert pool.num_buffers >= pool.num_required, "a pool is smaller than its guarantee"
            num_distributed = sum(pool.num_buffers for pool in self._pools)
            assert num_distributed + self._num_unpooled <= self.num_total, "more is distributed than there is"

    # ---------------------------------------------------------------- helpers

    def _check_open_locked(self) -> None:
        if self._state is not _OPEN:
            raise ResourceClosedError("the network buffer pool was destroyed")

    def _reserve_locked(self, owner: str, num_wanted: int) -> None:
        self._check_open_locked()
        num_left = self.num_total - self.num_reserved
        if num_wanted > num_left:
            raise InsufficientNetworkBuffersError(
                f"Insufficient number of network buffers: required {num_wanted}, but only {num_left} available "
                f"({owner}). {self._advice()}"
            )
        self._num_owed += num_wanted

    def _advice(self) -> str:
        return (
            f"The total number of network buffers is currently set to {self.num_total} of {self.segment_size_bytes} "
            "bytes each. You can increase this number by setting --network-memory "
            f"(NetstackConfig.network_memory_bytes) above {self.num_total * self.segment_size_bytes} bytes"
        )

    def _redistribute_locked(self) -> list[LocalBufferPool]:
        """Give every pool its share of the unpromised segments, in proportion to the number that it can use; returns
        the pools whose size changed.
        """
        if self._state is not _OPEN:
            return []
        num_available = self.num_total - self.num_reserved
        capacities = [(pool, pool.capacity(num_available)) for pool in self._pools]
        total_capacity = sum(capacity for _, capacity in capacities)
        num_to_distribute = min(num_available, total_capacity)
        resized = []
        parts_used = num_distributed = 0
        for pool, capacity in capacities:
            # Shares of the running sum, as in Flink: rounded one by one they would not add up to the whole.
            parts_used += capacity
            share = num_to_distribute * parts_used // total_capacity - num_distributed if total_capacity else 0
            num_distributed += share
            num_buffers = pool.num_required + share
            if num_buffers != pool.num_buffers:
                pool.num_buffers = num_buffers
                resized.append(pool)
        return resized

    def _settle(self, grants: Grants, resized: Sequence[LocalBufferPool]) -> None:
        """Bring granted segments to the pools in line, and let every pool whose size changed adjust itself; no lock is
        held.
        """
        run_all([lambda: self.hand_out(grants), *(pool.adjust for pool in resized)])

    def _may_take_locked(self, pool: LocalBufferPool) -> bool:
        num_free = len(self._free)
        if pool.num_requested < pool.num_required:
            # Within the guarantee any free segment will do: promises never exceed the total.
            return num_free > 0
        # Beyond the guarantee only a segment that no other one is waiting for.
        return pool.num_requested < pool.num_buffers and num_free > self._num_owed

    def _take_locked(self, pool: LocalBufferPool) -> MemorySegment:
        if pool.num_requested < pool.num_required:
            self._num_owed -= 1
        pool.num_requested += 1
        return self._free.pop()

    def _give_back_locked(self, pool: LocalBufferPool, segments: Sequence[MemorySegment]) -> None:
        for segment in segments:
            pool.num_requested -= 1
            if pool.state is _CLOSED:
                self._num_outstanding -= 1
            elif pool.num_requested < pool.num_required:
                self._num_owed += 1
            self._free.append(segment)

    def _grant_locked(self) -> Grants:
        """Serve claims and the line in the order of arrival; segments that are owed to a guarantee are kept for it, so
        nobody comes too late.
        """
        while self._free and self._claims:
            claim = self._claims[0]
            self._num_owed -= 1
            claim.segments.append(self._free.pop())
            claim.num_missing -= 1
            if claim.num_missing == 0:
                self._claims.popleft()
                claim.gate.release()
        grants = []
        while self._free and self._waiting:
            # Not only the first in line: it may ask for more than its guarantee, and one behind it for a guaranteed
            # one.
            pool = next((each for each in self._waiting if self._may_take_locked(each)), None)
            if pool is None:
                break
            self._waiting.remove(pool)
            pool.state = AccountState.OPEN
            grants.append((pool, self._take_locked(pool)))
        return grants

    def _fulfil(self, claim: _Claim, owner: str, limit_s: float) -> None:
        """Wait for all segments of ``claim``; after an error the claim stands in no line any more."""
        with self._lock:
            if claim.num_missing == 0:
                return
            if self._state is not _OPEN:
                raise ResourceClosedError(f"a buffer pool was destroyed before {owner} requested network buffers")
            self._claims.append(claim)
            grants = self._grant_locked()
        self.hand_out(grants)
        if limit_s > 0:
            claim.gate.acquire(timeout=limit_s)
        with self._lock:
            if claim.num_missing == 0:
                return
            num_came = len(claim.segments)
            if claim in self._claims:
                self._claims.remove(claim)  # from now on nothing more comes
        if claim.is_closed:
            raise ResourceClosedError(f"a buffer pool was destroyed while {owner} waited for network buffers")
        raise InsufficientNetworkBuffersError(
            f"Timeout triggered when {owner} requested {num_came + claim.num_missing} network buffers: they are "
            f"promised, but others still use them, and only {num_came} came within {limit_s} s "
            f"(NetstackConfig.request_buffers_timeout_s). {self._advice()}"
        )

    def _unmap_if_complete(self) -> None:
        with self._lock:
            if self._state is not NetworkBufferPoolState.DESTROYED or len(self._free) < self.num_total:
                return
            # Under the lock: of two threads that bring last segments, one unmaps.
            self._state = NetworkBufferPoolState.UNMAPPED
        for segment in self._segments:
            segment.view.release()
        self._view.release()
        # A view of memory that was recycled may still exist; then the mapping goes with the last such view.
        with suppress(BufferError):
            self._map.close()

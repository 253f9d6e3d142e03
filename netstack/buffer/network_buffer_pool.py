"""All network memory of a process, and who may have how much of it.

Side:       shared.
Invariants: every segment is in exactly one place: free here, held by one local pool, or handed out unpooled.
            ``num_reserved`` (what was promised) never exceeds the total: a pool gets its guarantee in any case, and more only while the
            free segments cover every guarantee that was not drawn yet.
            A pool that found nothing waits in ``_waiting``, and is handed a segment as soon as one may go to it.
Units:      sizes in segments unless a name says bytes.
Lock order: ``LocalBufferPool._lock`` before ``NetworkBufferPool._lock``; the latter is a leaf.  Pools are called after it.
Source:     Flink ``NetworkBufferPool``.  Flink computes pool sizes anew whenever a pool comes or goes (``redistributeBuffers``); here the
            same promise is kept at each request, so that nothing has to be computed and no pool has to shrink.
Absent:     an even share of what is beyond the guarantees (first come, first served up to ``max_buffers``), a blocking unpooled request.
"""

import mmap
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from netstack.buffer.local_buffer_pool import LocalBufferPool, PoolAccount
from netstack.buffer.segment import MemorySegment
from netstack.buffer.wakeups import run_all
from netstack.errors import InsufficientNetworkBuffersError, ResourceClosedError


class NetworkBufferPool:
    """One anonymous mapping, cut into segments.  Pages are touched when they are first used.

    Threading: any thread.
    Life cycle: ``destroy`` ends every local pool; the mapping goes when the last segment is back.
    """

    def __init__(self, num_segments: int, segment_size_bytes: int) -> None:
        if num_segments < 1 or segment_size_bytes < 1:
            raise ValueError(f"{num_segments} segments of {segment_size_bytes} bytes make no pool")
        self.segment_size_bytes = segment_size_bytes
        self._num_total = num_segments
        self._arena = mmap.mmap(-1, num_segments * segment_size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._arena_view = memoryview(self._arena)
        self._segments = [
            MemorySegment(self._arena_view[index * segment_size_bytes : (index + 1) * segment_size_bytes], index)
            for index in range(num_segments)
        ]
        self._lock = threading.Lock()
        # All below guarded by _lock.  Last in, first out: warm memory first, and untouched pages stay untouched.
        self._free = self._segments[::-1]
        self._accounts: list[PoolAccount] = []  # of pools that are not destroyed
        self._waiting: deque[PoolAccount] = deque()
        self._num_guaranteed = 0  # sum of num_required over _accounts
        self._num_owed = 0  # the part of _num_guaranteed that was not drawn
        self._num_unpooled = 0
        self._num_outstanding = 0  # held by buffers of destroyed pools
        self._is_destroyed = False
        self._is_unmapped = False

    def __repr__(self) -> str:
        state = "destroyed " if self._is_destroyed else ""
        return f"<NetworkBufferPool {state}{self.num_available} of {self._num_total} segments free, {self.num_reserved} reserved>"

    @property
    def num_total(self) -> int:
        """How many segments there are."""
        return self._num_total

    @property
    def num_available(self) -> int:
        """How many segments lie here, in nobody's hands."""
        return len(self._free)

    @property
    def num_reserved(self) -> int:
        """How many segments are promised: guarantees, unpooled ones, and those still in use by buffers of destroyed pools."""
        return self._num_guaranteed + self._num_unpooled + self._num_outstanding

    @property
    def is_destroyed(self) -> bool:
        """Whether ``destroy`` was called."""
        return self._is_destroyed

    # ---------------------------------------------------------------- pools

    def create_buffer_pool(self, *, owner: str, num_required: int, max_buffers: int) -> LocalBufferPool:
        """A pool that can always have ``num_required`` segments, and up to ``max_buffers`` while others can spare them.

        Raises:
            InsufficientNetworkBuffersError: that many cannot be guaranteed.
            ResourceClosedError: this pool was destroyed.
        """
        if not 1 <= num_required <= max_buffers:
            raise ValueError(f"{owner}: a pool needs 1 <= num_required <= max_buffers, got {num_required} and {max_buffers}")
        with self._lock:
            self._check_open_locked()
            num_left = self._num_total - self.num_reserved
            if num_required > num_left:
                raise self._insufficient_locked(owner, num_required, num_left)
            account = PoolAccount(num_required, max_buffers)
            self._accounts.append(account)
            self._num_guaranteed += num_required
            self._num_owed += num_required
        pool = LocalBufferPool(self, account, owner)
        if self._is_destroyed:  # meanwhile, by another thread that could not see the pool yet
            pool.destroy()
            raise ResourceClosedError("the network buffer pool was destroyed")
        return pool

    def take_or_wait(self, account: PoolAccount) -> MemorySegment | None:
        """For ``LocalBufferPool``: one more segment; None puts the pool into the line for the next one that it may have."""
        with self._lock:
            if account.is_closed:
                return None
            if self._may_take_locked(account):
                return self._take_locked(account)
            if not account.is_waiting:
                account.is_waiting = True
                self._waiting.append(account)
            return None

    def give_back(self, account: PoolAccount, segments: Sequence[MemorySegment]) -> None:
        """For ``LocalBufferPool``: it has no use for these segments."""
        with self._lock:
            self._give_back_locked(account, segments)
            grants = self._grant_locked()
        self._hand_out(grants)

    def close_account(self, account: PoolAccount, segments: Sequence[MemorySegment]) -> None:
        """For ``LocalBufferPool.destroy``: these segments come back now, the others as their buffers are recycled."""
        with self._lock:
            assert not account.is_closed, "an account is closed once"
            account.is_closed = True
            self._accounts.remove(account)
            if account.is_waiting:
                account.is_waiting = False
                self._waiting.remove(account)
            self._num_guaranteed -= account.num_required
            self._num_owed -= max(0, account.num_required - account.num_requested)
            self._num_outstanding += account.num_requested
            self._give_back_locked(account, segments)
            grants = self._grant_locked()
        self._hand_out(grants)

    # ---------------------------------------------------------------- unpooled segments

    def request_unpooled(self, owner: str, num_segments: int) -> list[MemorySegment]:
        """Exactly ``num_segments`` segments for good (the exclusive ones of an input channel), or none.

        Raises:
            InsufficientNetworkBuffersError: so many are not free, or only because somebody has not drawn his guarantee yet.
            ResourceClosedError: this pool was destroyed.
        """
        with self._lock:
            self._check_open_locked()
            num_left = max(0, min(self._num_total - self.num_reserved, len(self._free) - self._num_owed))
            if num_segments > num_left:
                raise self._insufficient_locked(owner, num_segments, num_left)
            self._num_unpooled += num_segments
            return [self._free.pop() for _ in range(num_segments)]

    def recycle_unpooled(self, segments: Sequence[MemorySegment]) -> None:
        """Take segments of ``request_unpooled`` back; any thread, any number, also after ``destroy``."""
        with self._lock:
            self._num_unpooled -= len(segments)
            assert self._num_unpooled >= 0, "more unpooled segments came back than were given out"
            self._free.extend(segments)
            grants = self._grant_locked()
        self._hand_out(grants)

    # ---------------------------------------------------------------- end

    def destroy(self) -> None:
        """End every local pool and wake whoever waits there; the second call does nothing.

        The mapping is closed when the last segment is back, now or later.
        """
        with self._lock:
            if self._is_destroyed:
                return
            self._is_destroyed = True
            pools = [account.pool for account in self._accounts if account.pool is not None]
        run_all([pool.destroy for pool in pools])
        self._unmap_if_complete()

    def check_invariants(self) -> None:
        """Assert the invariants of this module."""
        with self._lock:
            held = sum(account.num_requested for account in self._accounts)
            owed = sum(max(0, account.num_required - account.num_requested) for account in self._accounts)
            indexes = {segment.index for segment in self._free}
            assert len(indexes) == len(self._free), "a segment is in the pool twice"
            assert len(self._free) + held + self._num_unpooled + self._num_outstanding == self._num_total, "a segment is lost"
            assert owed == self._num_owed, f"{self._num_owed} segments owed by count, {owed} by sum"
            assert self.num_reserved - self._num_outstanding <= self._num_total, "more is promised than there is"
            assert not any(self._may_take_locked(account) for account in self._waiting), "a pool waits for what it may have"

    # ---------------------------------------------------------------- helpers

    def _check_open_locked(self) -> None:
        if self._is_destroyed:
            raise ResourceClosedError("the network buffer pool was destroyed")

    def _may_take_locked(self, account: PoolAccount) -> bool:
        num_free = len(self._free)
        if account.num_requested < account.num_required:
            return num_free > 0
        return account.num_requested < account.max_buffers and num_free > self._num_owed

    def _take_locked(self, account: PoolAccount) -> MemorySegment:
        if account.num_requested < account.num_required:
            self._num_owed -= 1
        account.num_requested += 1
        return self._free.pop()

    def _give_back_locked(self, account: PoolAccount, segments: Sequence[MemorySegment]) -> None:
        for segment in segments:
            account.num_requested -= 1
            if account.is_closed:
                self._num_outstanding -= 1
            elif account.num_requested < account.num_required:
                self._num_owed += 1
            self._free.append(segment)

    def _grant_locked(self) -> list[tuple[PoolAccount, MemorySegment]]:
        """Serve the line in the order of arrival; what is owed to a guarantee is kept for it, so it does not matter who came first."""
        grants = []
        while self._free and self._waiting:
            account = next((each for each in self._waiting if self._may_take_locked(each)), None)
            if account is None:
                break
            self._waiting.remove(account)
            account.is_waiting = False
            grants.append((account, self._take_locked(account)))
        return grants

    def _hand_out(self, grants: list[tuple[PoolAccount, MemorySegment]]) -> None:
        wakeups: list[Callable[[], None]] = []
        while grants:
            refused = [(account, segment) for account, segment in grants if not account.offer(segment, wakeups)]
            if not refused:
                break
            with self._lock:
                for account, segment in refused:
                    self._give_back_locked(account, (segment,))
                grants = self._grant_locked()
        if self._is_destroyed:
            self._unmap_if_complete()
        run_all(wakeups)

    def _unmap_if_complete(self) -> None:
        with self._lock:
            if self._is_unmapped or len(self._free) < self._num_total:
                return
            self._is_unmapped = True
        for segment in self._segments:
            segment.view.release()
        self._arena_view.release()
        # Somebody may still look at memory that he recycled; then the mapping goes with his last view instead of now.
        with suppress(BufferError):
            self._arena.close()

    def _insufficient_locked(self, owner: str, num_wanted: int, num_left: int) -> InsufficientNetworkBuffersError:
        return InsufficientNetworkBuffersError(
            f"{owner} needs {num_wanted} network buffers, but only {num_left} of {self._num_total} are left "
            f"({self.num_reserved} reserved, {len(self._free)} unused, {self.segment_size_bytes} bytes each): raise --network-memory "
            f"(NetstackConfig.network_memory_bytes) above its {self._num_total * self.segment_size_bytes} bytes"
        )

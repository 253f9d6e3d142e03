"""One task output's or input gate's bounded share of the network memory.

Side:       shared.  One task thread requests; any thread recycles.
Hot path:   at most two lock rounds per buffer and direction; one while the pool holds what it needs.
Invariants: available exactly when a segment lies in ``_free`` and no subpartition has its maximum, so that a
            non-blocking request then succeeds (FLINK-16972).  A pool that is empty and below its size waits in the
            network pool's queue, and gets a segment when one is freed anywhere.  A pool above its size (overdraft, or
            shrunk) has no free segment, and gives back what is recycled.
Units:      segments; ``hard_blocked_ns`` in nanoseconds.
Lock order: ``LocalBufferPool._lock`` before ``NetworkBufferPool._lock``; futures, parked threads, listeners and other
    pools after both.
Source:     Flink ``LocalBufferPool``.  Unlike there a blocked thread takes every segment that comes, even while another
            subpartition has its maximum, overdraft is granted only from segments that nobody was promised, and several
            threads may wait at once.  Their time is that of its ``hardBackPressuredTimeMsPerSecond``.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, InitVar
from enum import Enum, unique
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from netstack.availability import AvailabilityFuture, AvailabilityHelper, run_all
from netstack.buffer.buffer_builder import BufferBuilder
from netstack.buffer.network_buffer import BufferListener, BufferRecycler, MemorySegment, NetworkBuffer
from netstack.errors import ResourceClosedError
from netstack.late import dataclass
from netstack.wire.messages import DataType

if TYPE_CHECKING:
    from netstack.buffer.network_buffer_pool import NetworkBufferPool

NO_SUBPARTITION: Final = -1  # a request that counts for no subpartition's maximum
PARK_SLICE_S: Final = 1.0  # a parked thread looks around this often, even if a wake-up were lost


@unique
class AccountState(Enum):
    """The state of a local pool's account with the network pool.

    ``WAITING``: the pool found no segment although it is below its size, so it stands in line for the next one::

        OPEN <-- it found nothing, it got one --> WAITING
          `------ the pool is destroyed ------> CLOSED <-----'
    """

    OPEN = "open"
    WAITING = "waiting"
    CLOSED = "closed"


class BlockingObserver(Protocol):
    """An observer of threads that park for want of a buffer.  Called on the parking thread, outside every lock."""

    def mark_start(self) -> None:
        """Note that the calling thread parks now."""

    def mark_end(self) -> None:
        """Note that the calling thread goes on, with a buffer or with an error."""


class ParkedThreads:
    """The parked threads of one pool, in the order of arrival, and how long they have been parked.

    Threading: guarded by the lock of the pool: ``*_locked`` and ``line`` need it, ``begin``, ``wait`` and ``end`` take
        it and are the waiting thread's.
    """

    __slots__ = ("_lock", "_since_ns", "_total_ns", "line", "observer")

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        # A thread waits for its own lock; the thread that takes this lock out of the line releases it.
        self.line: deque[threading.Lock] = deque()
        self.observer: BlockingObserver | None = None  # Written by the owner of the pool before its first request.
        self._total_ns = 0  # sum of the waits that are over
        self._since_ns: dict[int, int] = {}  # thread id -> when it parked

    def begin(self) -> threading.Lock:
        """Note that the calling thread has to wait; returns the lock with which it stands in the line."""
        gate = threading.Lock()
        gate.acquire()  # no wait: the lock is new
        # Before the wait: the time that is told includes all of it.
        if self.observer is not None:
            self.observer.mark_start()
        with self._lock:
            self._since_ns[threading.get_ident()] = time.perf_counter_ns()
        return gate

    def wait(self, gate: threading.Lock) -> None:
        """Park until the thread is taken out of the line, or for a slice."""
        # waits for a free buffer of the task's pool; ended by a consumer that reads, or by cancel
        if gate.acquire(timeout=PARK_SLICE_S):
            return
        with self._lock:
            # Looked at under the lock: a thread that was taken out just now has a segment coming, and must not lose the
            # wake-up.
            if gate in self.line:
                self.line.remove(gate)
                return
        gate.acquire()  # waits for the thread that took this one out of the line; ended by its next statement

    def end(self) -> None:
        """Note that the calling thread goes on."""
        with self._lock:
            self._total_ns += time.perf_counter_ns() - self._since_ns.pop(threading.get_ident())
        if self.observer is not None:
            self.observer.mark_end()

    def wake_more_locked(self, num_before: int, num_free: int, wakeups: list[Callable[[], object]]) -> None:
        """Let as many of the ``num_before`` threads go on as there are free segments."""
        while self.line and num_before - len(self.line) < num_free:
            wakeups.append(self.line.popleft().release)

    def wake_all_locked(self) -> list[Callable[[], object]]:
        """Let every thread in the line go on; returns the calls that wake them."""
        wakeups: list[Callable[[], object]] = [gate.release for gate in self.line]
        self.line.clear()
        return wakeups

    def total_ns_locked(self) -> int:
        """How long threads waited so far, the present waits included."""
        now = time.perf_counter_ns()
        return self._total_ns + sum(now - since for since in self._since_ns.values())


class SubpartitionRecycler(BufferRecycler):
    """Brings segments home that count for one subpartition."""

    __slots__ = ("_pool", "subpartition")

    def __init__(self, pool: "LocalBufferPool", subpartition: int) -> None:
        self._pool = pool
        self.subpartition = subpartition

    @property
    def home(self) -> "LocalBufferPool":
        """The pool, which takes the segments of all its subpartitions back at once."""
        return self._pool

    def recycle(self, segment: MemorySegment) -> None:
        """Take ``segment`` back; any thread."""
        self._pool.recycle(segment, self.subpartition)

    def recycle_run(self, segments: Sequence[MemorySegment]) -> None:
        """Take ``segments`` back, in one lock round; any thread."""
        self._pool.recycle_runs(((self.subpartition, segments),))


@dataclass(eq=False, repr=False)
class LocalBufferPool(BufferRecycler):
    """Hands out segments and takes them back.

    Threading: any thread; several may block at once.
    Life cycle: ``destroy`` wakes everybody; segments still in use go home when they are recycled.
    State, guarded by ``_lock`` unless it says otherwise, and who uses it:
        segments: ``_free``, ``_availability``.  Every request and every recycler.
        account: ``num_required``, ``max_buffers``, ``num_buffers`` (the present size), ``num_requested``, ``state``.
            The network pool keeps these, under its own lock; ``num_requested`` and ``num_buffers`` are read bare here:
            the first can only be too high by a segment that is on its way, a change of the second is followed by
            ``adjust``.
        limits of subpartitions: ``_counts``, ``_num_full``.  Requests and recyclers that name a subpartition; inline,
            so that no buffer pays for a call.
        who waits: ``_listeners`` (channels that want a floating buffer), ``_parked`` (threads).  Who brings a segment
            serves them first.
        overdraft: none of its own; it is what the pool has beyond its size.
    """

    _parent: "NetworkBufferPool"
    owner: str
    num_required: int
    max_buffers: int | None
    _: KW_ONLY
    num_subpartitions: InitVar[int] = 0
    max_buffers_per_channel: InitVar[int | None] = None
    max_overdraft_buffers: int = 0

    def __post_init__(self, num_subpartitions: int, max_buffers_per_channel: int | None) -> None:
        self.num_buffers = self.num_required
        self.num_requested = 0
        self.state = AccountState.OPEN
        self._ledger = self._parent.ledger
        self.segment_size_bytes = self._parent.segment_size_bytes
        self._max_per_channel = 0 if max_buffers_per_channel is None else max_buffers_per_channel
        num_counted = num_subpartitions if self._max_per_channel else 0
        self._recyclers = [SubpartitionRecycler(self, index) for index in range(num_counted)]
        self._lock = threading.Lock()
        # All below guarded by _lock.
        self._free: list[MemorySegment] = []
        self._counts = [0] * num_counted  # segments in use, per subpartition
        self._num_full = 0  # subpartitions that have their maximum
        self._availability = AvailabilityHelper()
        self._listeners: deque[BufferListener] = deque()
        self._parked = ParkedThreads(self._lock)
        self.is_destroyed = False  # A bare read may be one moment stale.

    def __repr__(self) -> str:
        state = "destroyed, " if self.is_destroyed else ""
        parked = f", {self.num_parked} threads wait for a buffer" if self.num_parked else ""
        full = (
            f", {self._num_full} subpartitions have their maximum of {self._max_per_channel}" if self._num_full else ""
        )
        return (
            f"<LocalBufferPool of {self.owner}: {state}{self.num_requested} requested ({self.num_required} "
            f"guaranteed, {self.num_buffers} now, at most {self.max_buffers}), "
            f"{len(self._free)} free{full}{parked}>"
        )

    @property
    def num_available(self) -> int:
        """The number of free segments."""
        return len(self._free)

    @property
    def is_available(self) -> bool:
        """Whether a request would be served at once, and no subpartition has its maximum."""
        return bool(self._free) and not self._num_full

    @property
    def num_obtainable(self) -> int:
        """How many requests would be served at once, overdraft included; a guess while others request and recycle."""
        num_missing = self.num_buffers + self.max_overdraft_buffers - self.num_requested
        return len(self._free) + max(0, min(num_missing, self._parent.num_unpromised))

    def capacity(self, num_available: int) -> int:
        """How many of ``num_available`` segments the pool could use beyond its guarantee."""
        return num_available if self.max_buffers is None else min(num_available, self.max_buffers - self.num_required)

    def available_future(self) -> AvailabilityFuture:
        """Return the future that is done while the pool is available or destroyed, or when it becomes so."""
        with self._lock:
            return self._availability.future

    def observe_blocking(self, observer: BlockingObserver) -> None:
        """Tell ``observer`` whenever a thread is parked for want of a buffer; called before the first request."""
        self._parked.observer = observer

    @property
    def hard_blocked_ns(self) -> int:
        """How long threads were parked in ``request_builder_blocking`` so far, the present wait included."""
        with self._lock:
            return self._parked.total_ns_locked()

    @property
    def num_parked(self) -> int:
        """How many threads wait in line."""
        return len(self._parked.line)

    # ---------------------------------------------------------------- requests

    def request_segment_nowait(self, subpartition: int = NO_SUBPARTITION) -> MemorySegment | None:
        """Take a segment, which must be recycled here (or by ``recycler(subpartition)``); None if there is none.

        Raises:
            ResourceClosedError: the pool was destroyed.
        """
        with self._lock:
            return self._take_locked(subpartition)

    def request_buffer_nowait(self) -> NetworkBuffer | None:
        """Take a data buffer over a whole segment; None if there is no segment.

        Raises:
            ResourceClosedError: the pool was destroyed.
        """
        segment = self.request_segment_nowait()
        return None if segment is None else NetworkBuffer(segment, self, len(segment.view), DataType.DATA_BUFFER)

    def request_builder_blocking(self, subpartition: int = NO_SUBPARTITION) -> BufferBuilder:
        """Make a builder on a segment; parks the thread until there is one.

        Args:
            subpartition: whose maximum it counts for; it is not refused beyond that, but the pool is unavailable then.

        Raises:
            ResourceClosedError: the pool was destroyed, before or meanwhile.
        """
        return BufferBuilder(self.request_segment_blocking(subpartition), self.recycler(subpartition))

    def request_segment_blocking(self, subpartition: int = NO_SUBPARTITION) -> MemorySegment:
        """Take a segment, which ``recycler(subpartition)`` takes back; parks the thread until there is one.

        Raises:
            ResourceClosedError: the pool was destroyed, before or meanwhile.
        """
        with self._lock:
            segment = self._take_locked(subpartition)
        return self._wait_for_segment(subpartition) if segment is None else segment

    def request_segments_blocking(self, max_segments: int, subpartition: int = NO_SUBPARTITION) -> list[MemorySegment]:
        """Take between one and ``max_segments``, as many as are free now; parks the thread until there is one.

        Beyond the first they are within the maximum of ``subpartition``; see ``request_segment_blocking``.

        Raises:
            ResourceClosedError: the pool was destroyed, before or meanwhile.
        """
        with self._lock:
            segment = self._take_locked(subpartition)
            if segment is not None:
                return self._take_more_locked([segment], max_segments, subpartition)
        segments = [self._wait_for_segment(subpartition)]
        with self._lock:
            return self._take_more_locked(segments, max_segments, subpartition)

    def _take_more_locked(
        self, segments: list[MemorySegment], max_segments: int, subpartition: int
    ) -> list[MemorySegment]:
        """Add the free segments to ``segments``, except the last one."""
        free = self._free
        # One stays, so that the pool stays available; the next request takes it, and fetches another one.
        num_more = min(max_segments, len(free)) - 1
        if subpartition >= 0 and self._counts:
            num_more = min(num_more, self._max_per_channel - 1 - self._counts[subpartition])
            if num_more > 0:
                self._counts[subpartition] += num_more
        if num_more > 0:
            more = free[-num_more:]
            del free[-num_more:]
            if self._ledger is not None:
                for segment in more:
                    self._ledger.take(segment.index, self.owner)
            segments += more
        return segments

    def recycler(self, subpartition: int) -> "LocalBufferPool | SubpartitionRecycler":
        """Return the recycler that takes back buffers which were requested for ``subpartition``."""
        return self._recyclers[subpartition] if subpartition >= 0 and self._recyclers else self

    # ---------------------------------------------------------------- listeners

    def add_buffer_listener(self, listener: BufferListener) -> bool:
        """Give ``listener`` the next buffer; False (nothing is kept) if one is free or the pool is destroyed."""
        with self._lock:
            if self._free or self.is_destroyed:
                return False
            self._listeners.append(listener)
            return True

    def _serve(self, listener: BufferListener | None, segment: MemorySegment) -> None:
        """Offer ``segment`` to one listener after the other, and further ones as they come; no lock is held."""
        wakeups: list[Callable[[], object]] = []
        while listener is not None:
            if self._ledger is not None:
                self._ledger.take(segment.index, self.owner)
            buffer = NetworkBuffer(segment, self, len(segment.view), DataType.DATA_BUFFER)
            try:
                is_taken = listener.notify_buffer_available(buffer)
            except BaseException:
                buffer.recycle()
                raise
            # The listener did not need it: the buffer ends without sending the segment home.
            if not is_taken:
                buffer.lease.abandon()
                if self._ledger is not None:
                    self._ledger.give_back(segment.index)
            with self._lock:
                if is_taken:
                    fetched = self._fetch_locked()
                    if fetched is None:
                        return
                    segment = fetched
                is_kept, listener = self._store_locked(segment, wakeups)
                grants = [] if is_kept else self._parent.take_back(self, (segment,))
            self._parent.hand_out(grants)
        run_all(wakeups)

    # ---------------------------------------------------------------- recycling

    def recycle(self, segment: MemorySegment, subpartition: int = NO_SUBPARTITION) -> None:
        """Take one segment back; ``subpartition``: the one that it was requested for."""
        if self._ledger is None:  # Fast path, half the time: another one is free, nobody waits, and no limit is met.
            with self._lock:
                is_plain = (
                    self._free
                    and not self._listeners
                    and not self._parked.line
                    and self.num_requested <= self.num_buffers
                    and (subpartition < 0 or self._counts[subpartition] < self._max_per_channel)
                )
                if is_plain:
                    if subpartition >= 0:
                        self._counts[subpartition] -= 1
                    self._free.append(segment)
                    return
        self.recycle_runs(((subpartition, (segment,)),))

    def recycle_run(self, segments: Sequence[MemorySegment], subpartition: int = NO_SUBPARTITION) -> None:
        """Take back the segments of one subpartition."""
        self.recycle_runs(((subpartition, segments),))

    def recycle_runs(self, runs: Sequence[tuple[int, Sequence[MemorySegment]]]) -> None:
        """Take segments back, from any thread, at any time, in one lock round; a woken thread finds all of them."""
        segments = runs[0][1] if len(runs) == 1 else [segment for _, run in runs for segment in run]
        if self._ledger is not None:  # before anything changes: the ledger refuses segments that were recycled already
            for segment in segments:
                self._ledger.give_back(segment.index)
        calls: list[Callable[[], object]] = []
        wakeups: list[Callable[[], object]] = []
        with self._lock:
            num_parked = len(self._parked.line)
            for subpartition, run in runs:
                if subpartition >= 0:
                    self._uncount_locked(subpartition, len(run), wakeups)
            free = self._free
            is_waited_for = self._listeners or self._parked.line
            if free and not is_waited_for and self.num_requested <= self.num_buffers and not self.is_destroyed:
                # Another segment is free already: one more changes no future, and there is nobody to wake.
                free.extend(segments)
            else:
                for segment in segments:
                    is_kept, listener = self._store_locked(segment, wakeups)
                    if not is_kept:
                        # Taken back under the lock: otherwise two threads could both give one back for one surplus.
                        # Handed out even if nobody stands in line: the last one unmaps the arena of a destroyed
                        # network pool.
                        calls.append(partial(self._parent.hand_out, self._parent.take_back(self, (segment,))))
                    elif listener is not None:
                        calls.append(partial(self._serve, listener, segment))
            if len(segments) > 1:  # A single segment wakes one thread: a second thread would find nothing.
                self._parked.wake_more_locked(num_parked, len(self._free), wakeups)
        if calls or wakeups:
            # All of them: a callback of a future, or a listener, may raise, and the thread that parks for the segment
            # must be woken nevertheless.
            run_all(calls + wakeups)

    def offer(self, segment: MemorySegment, wakeups: list[Callable[[], object]]) -> bool:
        """Take a segment that this pool stood in line for; False if other pools should have it."""
        with self._lock:
            # It has found a segment since it stood in line; a pool without one needs this more.
            if self._free and self.num_requested > self.num_required:
                return False
            is_kept, listener = self._store_locked(segment, wakeups)
        # Later: the network pool still goes through its line, and listeners are called outside every lock.
        if listener is not None:
            wakeups.append(lambda: self._serve(listener, segment))
        return is_kept

    def _store_locked(
        self, segment: MemorySegment, wakeups: list[Callable[[], object]]
    ) -> tuple[bool, BufferListener | None]:
        """Keep ``segment`` if this pool can use it; returns whether it stays, and the listener that gets it.

        Without a listener the segment is free now, and ``wakeups`` gets the calls that tell waiters.
        """
        # Not kept, but not dropped: the caller gives it back, else it would be lost to the process.
        if self.is_destroyed or self.num_requested > self.num_buffers:
            return False, None
        if self._listeners:
            return True, self._listeners.popleft()
        self._free.append(segment)
        if self._parked.line:
            wakeups.append(self._parked.line.popleft().release)
        self._announce_locked(wakeups)
        return True, None

    def _uncount_locked(self, subpartition: int, num_segments: int, wakeups: list[Callable[[], object]]) -> None:
        count = self._counts[subpartition]
        self._counts[subpartition] = count - num_segments
        # Only when it falls below its maximum just now: another subpartition may still be full.
        if count >= self._max_per_channel > count - num_segments:
            self._num_full -= 1
            if self._free:  # the recycled segment itself may go to another pool
                self._announce_locked(wakeups)

    def _announce_locked(self, wakeups: list[Callable[[], object]]) -> None:
        if not self._num_full:
            pending = self._availability.unavailable_to_reset_available()
            if pending is not None:
                wakeups.append(pending.complete)

    # ---------------------------------------------------------------- size

    def adjust(self) -> None:
        """Adjust to a size that may have changed: give back free segments beyond it, or fetch one."""
        wakeups: list[Callable[[], object]] = []
        listener = None
        with self._lock:
            if self.is_destroyed:
                return
            free = self._free
            # Within the lock round of the look: two threads that adjust would give the surplus back twice.
            num_excess = max(0, min(len(free), self.num_requested - self.num_buffers))
            excess = [free.pop() for _ in range(num_excess)]
            grants = self._parent.take_back(self, excess) if excess else []
            segment = self._fetch_locked()
            if segment is not None:
                is_kept, listener = self._store_locked(segment, wakeups)
                if not is_kept:  # it shrank again
                    grants += self._parent.take_back(self, (segment,))
            elif not free:
                self._availability.reset_unavailable()
        calls: list[Callable[[], object]] = [lambda: self._parent.hand_out(grants), *wakeups]
        if segment is not None and listener is not None:
            fetched = segment
            calls.append(lambda: self._serve(listener, fetched))
        run_all(calls)

    # ---------------------------------------------------------------- end

    def destroy(self) -> None:
        """Wake every waiter with an error and give the free segments back; the second call does nothing."""
        with self._lock:
            if self.is_destroyed:
                return
            self.is_destroyed = True
            segments = self._free
            self._free = []
            calls = self._parked.wake_all_locked()
            # A destroyed pool counts as available: a task that waits for it tries, and gets the error.
            pending = self._availability.unavailable_to_reset_available()
            if pending is not None:
                calls.append(pending.complete)
            calls += [listener.notify_buffer_destroyed for listener in self._listeners]
            self._listeners.clear()
        run_all([lambda: self._parent.close_pool(self, segments), *calls])

    def check_invariants(self) -> None:
        """Assert the invariants of this module."""
        with self._lock:
            if self.is_destroyed:
                assert not self._free, "a destroyed pool keeps nothing"
                assert not self._listeners, "a destroyed pool has no listeners"
                assert self._availability.is_available, "nobody waits for a destroyed pool"
                return
            is_available = bool(self._free) and not self._num_full
            assert self._availability.is_available == is_available, (
                f"{len(self._free)} free, but {self._availability.future!r}"
            )
            is_at_size = self.num_requested >= self.num_buffers
            assert self._free or self.state is AccountState.WAITING or is_at_size, "an empty pool stands in line"
            assert not self._free or self.num_requested <= self.num_buffers, (
                "a pool above its size keeps a free segment"
            )
            assert not (self._free and self._listeners), "a listener waits beside a free segment"
            assert self._num_full == sum(count >= self._max_per_channel for count in self._counts), (
                "full subpartitions are miscounted"
            )

    # ---------------------------------------------------------------- helpers

    def _take_locked(self, subpartition: int) -> MemorySegment | None:
        if self.is_destroyed:
            raise ResourceClosedError(f"the buffer pool of {self.owner} was destroyed")
        free = self._free
        if free:
            segment = free.pop()
            if not free:
                # One in advance: the pool says that it is available only while a segment is here.
                spare = self._parent.take_or_wait(self)
                if spare is not None:
                    free.append(spare)
                else:
                    self._availability.reset_unavailable()
        else:
            if not self.max_overdraft_buffers:
                return None
            overdraft = self._parent.take_overdraft(self, self.max_overdraft_buffers)
            if overdraft is None:
                return None
            segment = overdraft
        if subpartition >= 0 and self._counts:
            count = self._counts[subpartition] = self._counts[subpartition] + 1
            if count == self._max_per_channel:
                self._num_full += 1
                self._availability.reset_unavailable()
        if self._ledger is not None:
            self._ledger.take(segment.index, self.owner)
        return segment

    def _fetch_locked(self) -> MemorySegment | None:
        """Take a segment of the network pool if this pool is empty and below its size; None: it stands in line."""
        return None if self._free or self.is_destroyed else self._parent.take_or_wait(self)

    def _wait_for_segment(self, subpartition: int) -> MemorySegment:
        parked = self._parked
        gate = parked.begin()
        try:
            while True:
                with self._lock:
                    segment = self._take_locked(subpartition)
                    neighbour = None
                    if segment is None:
                        # In the lock round of the vain look: the next segment finds this thread in the line.
                        parked.line.append(gate)
                    elif self._free and parked.line:
                        # The spare segment that came with ours may be the neighbour's.
                        neighbour = parked.line.popleft()
                if neighbour is not None:
                    neighbour.release()
                if segment is not None:
                    return segment
                parked.wait(gate)
        finally:
            parked.end()

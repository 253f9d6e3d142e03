"""The buffers that one remote channel can receive into; each free one is a credit.

Side:       shared.  The loop takes; any thread recycles; the gate's pool offers from any thread.
Hot path:   per buffer: one lock round to take, one to recycle.
Invariants: granted == spent + available, where *granted* is the initial credit plus everything announced, *spent* the
            data buffers received, and *available* what the sender may still send.  Behind every credit, announced or
            not, lies a free buffer: available + unannounced == free exclusive + free floating.  While there is
            unannounced credit, either its announcement is under way, or the sender still has some and half of the
            initial credit has not come together yet.  Announcing every buffer would cost a message and two wake-ups
            each, and the sender would never have more than a few buffers to write at a time: what TCP calls the silly
            window syndrome (RFC 813).  If fewer are free than are required, and the channel did not have enough of its
            own when it last heard of a backlog, it stands in the pool's line, or is asking the pool just now
            (FLINK-8747).
Units:      buffers; one credit each.
Lock order: the channel's lock, which is shared with it, is a leaf: pool, network pool and channel are called after it
    (FLINK-9676).
Source:     Flink ``BufferManager`` and its ``AvailableBufferQueue``.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from netstack.availability import run_all
from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.network_buffer import BufferLease, BufferRecycler, MemorySegment, NetworkBuffer, recycle_all
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import LocalProtocolError, ResourceClosedError
from netstack.log_lines import shown_state
from netstack.wire.messages import DataType

# A channel with at least so many exclusive buffers asks for floating ones only while less than a quarter of its own are
# free: each trip of a floating buffer through the pool costs as much as all else that is done to it (bench: transport).
# Flink, with its two, asks in any case.
_MIN_FOR_CONTENT: Final = 4
# With so little initial credit the sender is told of every new one, at once: what Flink does in any case.
_MAX_FOR_EACH: Final = 4
_DATA: Final = DataType.DATA_BUFFER


class BufferManager(BufferRecycler):
    """Exclusive and floating buffers of one channel.

    Threading: as the methods say.
    Life cycle: ``assign_exclusive`` -> ... -> ``release``; whatever is recycled later goes straight home.
    Ownership: free buffers are its own; exclusive segments belong to the network pool, floating buffers to the gate's
               pool.
    """

    def __init__(self, lock: threading.Lock, on_credit: Callable[[], None]) -> None:
        self._lock = lock
        self._on_credit = on_credit  # called when an announcement is due, outside the lock
        self.initial_credit = 0  # Written before the request.
        self._network_pool: NetworkBufferPool | None = None
        self.pool: LocalBufferPool | None = None  # of the floating buffers; set before the request
        # All below guarded by _lock; bare reads are for statistics.
        self._exclusive: list[MemorySegment] = []
        self._floating: list[NetworkBuffer] = []
        self.num_required = 0
        self.is_waiting = False
        self.num_granted = 0
        self.num_spent = 0
        self.num_unannounced = 0
        self._is_announcing = False  # ``on_credit`` was or is about to be called, and nobody has taken the credit yet
        self._lump = 1  # so much credit is announced at once while the sender has some
        self._is_content = False  # had enough of its own buffers when the sender last spoke of its backlog
        self._is_released = False

    def __repr__(self) -> str:
        state = shown_state("open", released=self._is_released, waiting=self.is_waiting)
        return f"<BufferManager {state}, {self.num_available_buffers} of {self.num_required} buffers>"

    # ---------------------------------------------------------------- set-up

    def assign_exclusive(
        self, network_pool: NetworkBufferPool, num_segments: int, owner: str, timeout_s: float = 0.0
    ) -> None:
        """Take the exclusive segments, all or none, once; none are wanted if the channel shall live on floating
        buffers.

        Raises:
            InsufficientNetworkBuffersError: the pool does not have so many.
        """
        if self._network_pool is not None:
            raise LocalProtocolError(f"{owner} has its exclusive segments already")
        segments = network_pool.request_unpooled(owner, num_segments, timeout_s) if num_segments else []
        with self._lock:
            self._network_pool = network_pool
            self._exclusive = segments
            self.initial_credit = self.num_granted = num_segments
            self._lump = 1 if num_segments <= _MAX_FOR_EACH else num_segments // 2

    @property
    def is_assigned(self) -> bool:
        """Whether ``assign_exclusive`` was called."""
        return self._network_pool is not None

    # ---------------------------------------------------------------- loop thread

    def request_buffer(self, size_bytes: int, data_type: DataType, *, is_compressed: bool) -> NetworkBuffer | None:
        """Take a buffer for data of the sender, floating ones first; its credit is spent.

        None without credit, or after the release.
        """
        segment = buffer = None
        with self._lock:
            if self.num_spent == self.num_granted:
                return None
            self.num_spent += 1
            self.num_required -= 1
            # Floating ones first: once they are read, other channels may have them.
            if self._floating:
                buffer = self._floating.pop()
            else:
                segment = self._exclusive.pop()
            # Credit below a lump waits until the sender has none: this buffer may have spent its last one.
            is_due = self.num_unannounced > 0 and self._is_due_locked()
        if is_due:
            self._on_credit()
        if segment is not None:
            lease = BufferLease(segment, self)
            return NetworkBuffer.of_lease(lease, 0, size_bytes, data_type, is_buffer=True, is_compressed=is_compressed)
        assert buffer is not None, "one of the two was there"
        buffer.size = size_bytes
        buffer.data_type = data_type
        buffer.is_compressed = is_compressed
        return buffer

    def request_buffers(self, size_bytes: int, max_buffers: int) -> list[NetworkBuffer]:
        """Take several buffers for plain data, floating ones first; their credit is spent.

        Fewer if there is less credit.
        """
        with self._lock:
            num_buffers = min(max_buffers, self.num_granted - self.num_spent)
            if num_buffers <= 0:
                return []
            self.num_spent += num_buffers
            self.num_required -= num_buffers
            floating = self._floating
            exclusive = self._exclusive
            # As in ``request_buffer``: floating ones go back to the gate's pool when they are read.
            num_floating = min(num_buffers, len(floating))
            buffers = floating[len(floating) - num_floating :]
            del floating[len(floating) - num_floating :]
            first = len(exclusive) - (num_buffers - num_floating)
            segments = exclusive[first:]
            del exclusive[first:]
            is_due = self.num_unannounced > 0 and self._is_due_locked()
        if is_due:
            self._on_credit()
        for buffer in buffers:
            buffer.size = size_bytes
            buffer.data_type = _DATA
            buffer.is_compressed = False
        of_lease = NetworkBuffer.of_lease
        for segment in segments:
            buffers.append(of_lease(BufferLease(segment, self), 0, size_bytes, _DATA, is_buffer=True))
        return buffers

    def require_locked(self, backlog: int) -> bool:
        """Note that the sender has ``backlog`` buffers more; returns whether ``request_floating`` must be called, after
        the lock.
        """
        initial_credit = self.initial_credit
        self.num_required = backlog + initial_credit
        self._is_content = initial_credit >= _MIN_FOR_CONTENT and 4 * len(self._exclusive) >= initial_credit
        # A channel without enough of its own stands in line from here on, or its sender waits for ever.
        return not self._is_content and self._num_missing_locked() > 0

    def request_floating(self) -> None:
        """Get the missing buffers from the gate's pool, or stand in its line; the credit is announced."""
        if self._collect_floating():
            self._on_credit()

    def take_unannounced(self) -> int:
        """Take the credit to announce now; from this moment it counts as granted."""
        with self._lock:
            credit = self.num_unannounced
            self.num_unannounced = 0
            self.num_granted += credit
            # In this lock round: credit that comes behind it needs an announcement of its own.
            self._is_announcing = False
            return credit

    def forget_credit_locked(self) -> list[NetworkBuffer]:
        """Give back all credit of a blocked channel without exclusive buffers; the caller recycles the buffers, after
        the lock.

        Others need them: a blocked channel hoards buffers that would bring the barrier of another one (FLINK-16404).
        """
        buffers = self._floating
        self._floating = []
        self.num_required = 0
        self.num_unannounced = 0
        self.num_granted = self.num_spent
        self._is_announcing = False
        return buffers

    # ---------------------------------------------------------------- any thread

    def recycle(self, segment: MemorySegment) -> None:
        """``recycle_run`` for one segment."""
        is_due = False
        with self._lock:
            # Fast path: without a floating buffer there is none to exchange for the segment.
            is_plain = not self._floating and not self._is_released
            if is_plain:
                self._exclusive.append(segment)
                self.num_unannounced += 1
                is_due = self._is_due_locked()
        if not is_plain:
            self.recycle_run((segment,))
        elif is_due:
            self._on_credit()

    def recycle_run(self, segments: Sequence[MemorySegment]) -> None:
        """Take exclusive segments back: each is a credit, or in exchange for a floating buffer that others need more;
        home after the release.  One lock round, and one announcement at most.
        """
        surplus: list[NetworkBuffer] = []
        is_due = False
        with self._lock:
            is_released = self._is_released
            if not is_released:
                exclusive = self._exclusive
                floating = self._floating
                for segment in segments:
                    exclusive.append(segment)
                    # The own segment stays, the borrowed buffer goes: other channels may need that one.
                    if floating and len(exclusive) + len(floating) > self.num_required:
                        surplus.append(floating.pop())
                    else:
                        self.num_unannounced += 1
                is_due = self.num_unannounced > 0 and self._is_due_locked()
        if is_released and self._network_pool is not None:
            self._network_pool.recycle_unpooled(segments)
        elif surplus:
            # Never under the lock (FLINK-22946).
            run_all([*([self._on_credit] if is_due else []), partial(recycle_all, surplus)])
        elif is_due:
            self._on_credit()

    def notify_buffer_available(self, buffer: NetworkBuffer) -> bool:
        """Hear that the pool offers ``buffer``; returns whether the channel takes it, which then is a credit more."""
        # The pool has taken it out of its line, whatever the answer: it has to ask anew.
        with self._lock:
            self.is_waiting = False
            if self._num_missing_locked() <= 0:
                return False
            is_due = self._add_floating_locked(buffer)
            is_more_missing = self._num_missing_locked() > 0
        if is_more_missing:
            is_due = self._collect_floating() or is_due
        if is_due:
            self._on_credit()
        return True

    def notify_buffer_destroyed(self) -> None:
        """Hear that no floating buffers will come any more."""
        with self._lock:
            # The pool has taken the channel out of its line: it has to ask again for more.
            self.is_waiting = False
            self.pool = None

    def release(self) -> None:
        """Give every free buffer back; the second call does nothing."""
        with self._lock:
            self._is_released = True
            floating = self.forget_credit_locked()
            segments = self._exclusive
            self._exclusive = []
        calls: list[Callable[[], None]] = [buffer.recycle for buffer in floating]
        if segments and self._network_pool is not None:
            calls.append(partial(self._network_pool.recycle_unpooled, segments))
        run_all(calls)

    # ---------------------------------------------------------------- numbers

    @property
    def num_available_buffers(self) -> int:
        """How many free buffers the channel has, exclusive and floating."""
        return len(self._exclusive) + len(self._floating)  # Without the lock: each length is one read; for people.

    @property
    def num_credits_available(self) -> int:
        """How many data buffers the sender may still send."""
        with self._lock:
            return self.num_granted - self.num_spent

    def check_invariants(self) -> None:
        """Assert the invariants of this module."""
        with self._lock:
            num_free = len(self._exclusive) + len(self._floating)
            if self._is_released:
                assert num_free == 0, "a released channel keeps no buffer"
                return
            available = self.num_granted - self.num_spent
            assert available >= 0, f"{self.num_spent} buffers sent, {self.num_granted} credits granted"
            assert available + self.num_unannounced == num_free, (
                f"{available} credits available, {self.num_unannounced} unannounced, {len(self._exclusive)} exclusive "
                f"and {len(self._floating)} floating buffers free"
            )
            is_due = self.num_unannounced >= self._lump or (self.num_unannounced and not available)
            assert not is_due or self._is_announcing, f"{self.num_unannounced} credits that nobody announces"
            assert len(self._exclusive) <= self.initial_credit, "more segments came back than went out"
            assert self._is_content or self._num_missing_locked() <= 0, (
                f"{num_free} of {self.num_required} buffers, but the channel waits for none"
            )

    # ---------------------------------------------------------------- helpers

    def _num_missing_locked(self) -> int:
        """Return the number of floating buffers to ask for now; 0 while the channel stands in line."""
        if self.is_waiting or self.pool is None or self._is_released:
            return 0
        return self.num_required - len(self._exclusive) - len(self._floating)

    def _add_floating_locked(self, buffer: NetworkBuffer) -> bool:
        """Take ``buffer``; returns whether there is credit to announce now."""
        self._floating.append(buffer)
        self.num_unannounced += 1
        return self._is_due_locked()

    def _is_due_locked(self) -> bool:
        """Whether the sender should hear of its new credit now: it has none, or a lump of it is due, and no other
        thread is announcing it already.
        """
        # A sender without credit hears of each one: it could wait for ever for a lump that never comes together.
        if self._is_announcing or (self.num_unannounced < self._lump and self.num_granted > self.num_spent):
            return False
        self._is_announcing = True
        return True

    def _collect_floating(self) -> bool:
        """Ask for buffers until there are enough or the pool is empty, and then stand in line, once; returns whether
        there is credit to announce.
        """
        has_credit = False
        while True:
            with self._lock:
                num_missing = self._num_missing_locked()
                pool = self.pool
            if num_missing <= 0 or pool is None:
                return has_credit
            found = self._request(pool, num_missing)
            with self._lock:
                # Asked again under the lock: what was recycled meanwhile may do, and the channel may be released.
                while found and self._num_missing_locked() > 0:
                    has_credit = self._add_floating_locked(found.pop()) or has_credit
                is_dry = self._num_missing_locked() > 0
                self.is_waiting = self.is_waiting or is_dry  # before the pool knows, it may call at once
            for surplus in found:
                surplus.recycle()
            if not is_dry or pool.add_buffer_listener(self):
                return has_credit
            with self._lock:
                self.is_waiting = False

    def _request(self, pool: LocalBufferPool, num_buffers: int) -> list[NetworkBuffer]:
        found: list[NetworkBuffer] = []
        try:
            while len(found) < num_buffers:
                buffer = pool.request_buffer_nowait()
                if buffer is None:
                    break
                found.append(buffer)
        except ResourceClosedError:
            self.notify_buffer_destroyed()
        return found

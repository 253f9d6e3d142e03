"""Limits on what peers can cause: how many connections a server keeps, and the work and memory of one peer.

Side:       pure.
Invariants: at most ``max_connections`` in all, ``max_unauthenticated`` without authentication, and
            ``max_unauthenticated_per_host`` of these from one address other than loopback.  An authenticated connection
            is never cut for an unauthenticated one.  Replies that wait for a peer that does not read are bounded in
            number and bytes (GHSA-8r5v-vm4m-4g25: replies pile up while the window is closed); repeated actions of a
            peer are bounded per second (CVE-2023-44487: rapid reset).
Units:      bytes; actions per second; clocks in seconds.
Absent:     bans: on loopback all peers share the address, and a local user could lock our own processes out.
"""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from netstack.config import is_loopback
from netstack.late import dataclass

# More than a peer that reads its replies can cause; not measured.
MAX_WAITING_REPLIES: Final = 1000
MAX_WAITING_REPLY_BYTES: Final = 1024 * 1024
# An expected reply names a partition, in text.
_EXPECTED_REPLY_BYTES: Final = 1024
# A job with thousands of channels may be cancelled at once: the bucket holds as much as this time refills.
_BURST_S: Final = 10.0


class ReplyBudget:
    """Counts the replies that were written while the channel was not writable.

    Args:
        num_expected: further replies that may be due at once although the peer did nothing wrong: to requests that time
            out together.
    """

    def __init__(self, num_expected: int = 0) -> None:
        self._max_messages = MAX_WAITING_REPLIES + num_expected
        self._max_bytes = MAX_WAITING_REPLY_BYTES + num_expected * _EXPECTED_REPLY_BYTES
        self._num_messages = 0
        self._num_bytes = 0

    def __repr__(self) -> str:
        return f"<ReplyBudget {self._num_messages} messages and {self._num_bytes} bytes wait>"

    def spend(self, num_bytes: int, *, is_writable: bool) -> bool:
        """Count one reply of about ``num_bytes``; False if too many wait.  A writable channel resets the count."""
        # A writable channel has little left to send, less than its high watermark: the peer reads.
        if is_writable:
            self._num_messages = self._num_bytes = 0
            return True
        self._num_messages += 1
        self._num_bytes += num_bytes
        return self._num_messages <= self._max_messages and self._num_bytes <= self._max_bytes


class RateLimit:
    """A token bucket that refills by ``per_second`` and holds ten seconds' worth."""

    def __init__(self, per_second: float, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._capacity = per_second * _BURST_S
        self._clock = clock
        self._tokens = self._capacity
        self._updated_s = clock()

    def __repr__(self) -> str:
        return f"<RateLimit {self._per_second:g}/s, {self._tokens:g} left>"

    def take(self) -> bool:
        """Take one token; False if there is none."""
        # Refilled when it is asked: no peer needs a timer.
        now_s = self._clock()
        self._tokens = min(self._capacity, self._tokens + (now_s - self._updated_s) * self._per_second)
        self._updated_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class AdmissionStatistics:
    """Counters of one server."""

    num_connections: int
    num_unauthenticated: int
    num_evicted: int
    num_refused: int


class Admission(Generic[C]):
    """Counts the connections of one server; ``C`` is a hashable stand-in for a connection.

    Threading: none; its owner calls it on the loop thread.
    """

    def __init__(self, *, max_connections: int, max_unauthenticated: int, max_unauthenticated_per_host: int) -> None:
        self._max_connections = max_connections
        self._max_unauthenticated = max_unauthenticated
        self._max_unauthenticated_per_host = max_unauthenticated_per_host
        self._hosts: dict[C, str] = {}  # of every connection
        self._unauthenticated: dict[C, None] = {}  # an ordered set, the oldest first
        self._num_evicted = self._num_refused = 0

    def __repr__(self) -> str:
        return f"<Admission {len(self._hosts)} connections, {len(self._unauthenticated)} unauthenticated>"

    def statistics(self) -> AdmissionStatistics:
        """Return the numbers of connections now, and of cuts and refusals since the start."""
        return AdmissionStatistics(len(self._hosts), len(self._unauthenticated), self._num_evicted, self._num_refused)

    def arrive(self, connection: C, host: str) -> list[C] | None:
        """Count a new connection from ``host``; returns the connections to cut for it, which are no longer counted; or
        None: cut this one.
        """
        evicted = self._evict_for(host)
        # Before the count below: the place of a connection that is cut is free for the new one.
        for each in evicted:
            self.leave(each)
        self._num_evicted += len(evicted)
        if len(self._hosts) >= self._max_connections:
            self._num_refused += 1
            return None
        self._hosts[connection] = host
        self._unauthenticated[connection] = None
        return evicted

    def authenticate(self, connection: C) -> None:
        """Mark a connection as authenticated; one that is not counted any more stays uncounted."""
        self._unauthenticated.pop(connection, None)

    def is_authenticated(self, connection: C) -> bool:
        """Whether the connection is authenticated and still counted."""
        # A connection that was cut is in neither table: without the first question it would pass as authenticated.
        return connection in self._hosts and connection not in self._unauthenticated

    def leave(self, connection: C) -> None:
        """Forget a connection that ended; a second call does nothing."""
        self._hosts.pop(connection, None)
        self._unauthenticated.pop(connection, None)

    def check_invariants(self) -> None:
        """Assert the invariants of this module."""
        assert self._unauthenticated.keys() <= self._hosts.keys(), repr(self)
        assert len(self._hosts) <= self._max_connections, repr(self)
        assert len(self._unauthenticated) <= self._max_unauthenticated, repr(self)

    def _evict_for(self, host: str) -> list[C]:
        waiting = self._unauthenticated
        # All peers on loopback have one address: there a limit per host would let one local user shut out all others.
        if not is_loopback(host):
            of_host = [each for each in waiting if self._hosts[each] == host]
            if len(of_host) >= self._max_unauthenticated_per_host:
                # One of its own: a host that opens many connections costs other hosts no place.
                return of_host[:1]
        if waiting and (len(waiting) >= self._max_unauthenticated or len(self._hosts) >= self._max_connections):
            # The oldest: an honest peer proves itself within milliseconds, so it is rarely the one that has waited
            # longest.
            return [next(iter(waiting))]
        return []

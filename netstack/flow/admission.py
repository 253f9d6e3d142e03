"""Decides which connections a server keeps when there are too many.

Side:       pure.
Invariants: at most ``max_connections`` in all, ``max_unauthenticated`` without authentication, and
            ``max_unauthenticated_per_host`` of these from one address other than loopback.  An authenticated connection
            is never cut for an unauthenticated one.
Absent:     bans: on loopback all peers share the address, and a local user could lock our own processes out.
"""

from typing import Generic, TypeVar

from netstack.late import dataclass
from netstack.security import is_loopback

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

    __slots__ = (
        "_hosts",
        "_max_connections",
        "_max_unauthenticated",
        "_max_unauthenticated_per_host",
        "_num_evicted",
        "_num_refused",
        "_unauthenticated",
    )

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
        """Connections now, and cuts and refusals since the start."""
        return AdmissionStatistics(len(self._hosts), len(self._unauthenticated), self._num_evicted, self._num_refused)

    def arrive(self, connection: C, host: str) -> list[C] | None:
        """Count a new connection from ``host``; returns the connections to cut for it, no longer counted, or None: cut
        this one.
        """
        evicted = self._evict_for(host)
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
        """Mark a connection as authenticated; one that is not counted any more stays so."""
        self._unauthenticated.pop(connection, None)

    def is_authenticated(self, connection: C) -> bool:
        """Whether the connection is authenticated and still counted."""
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
        if not is_loopback(host):
            of_host = [each for each in waiting if self._hosts[each] == host]
            if len(of_host) >= self._max_unauthenticated_per_host:
                return of_host[:1]
        if waiting and (len(waiting) >= self._max_unauthenticated or len(self._hosts) >= self._max_connections):
            return [next(iter(waiting))]
        return []

"""Locks that notice what would be a deadlock between threads, although there is one thread only.

Invariants: (group B of the historical bugs) nobody acquires a lock that is held already: that thread would wait for
            itself; locks are nested in one order everywhere: the graph "held while acquired", by
            where a lock is made, has no cycle.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

Site = tuple[str, int]


class WatchedLock:
    """Stands in for ``threading.Lock``."""

    __slots__ = ("_is_held", "site")

    held: list["WatchedLock"] = []
    nested: dict[Site, set[Site]] = {}  # of all worlds of this process

    def __init__(self) -> None:
        frame = sys._getframe(1)
        self.site = (frame.f_code.co_filename.rpartition("/")[2], frame.f_lineno)
        self._is_held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._is_held:
            if not blocking:
                return False
            raise AssertionError(f"deadlock: the lock made at {self.site} is acquired by whoever holds it")
        held = WatchedLock.held
        for other in held:
            WatchedLock.nested.setdefault(other.site, set()).add(self.site)
        held.append(self)
        self._is_held = True
        return True

    def release(self) -> None:
        self._is_held = False
        WatchedLock.held.remove(self)

    def locked(self) -> bool:
        return self._is_held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_error: object) -> None:
        self.release()


@contextmanager
def watched_locks() -> Iterator[None]:
    before = threading.Lock
    threading.Lock = WatchedLock  # type: ignore[assignment]
    WatchedLock.held = []
    try:
        yield
    finally:
        threading.Lock = before


def check_order() -> None:
    """The nesting seen so far has no cycle."""
    nested = WatchedLock.nested
    done: set[Site] = set()
    for start in sorted(nested):
        _visit(start, [], nested, done)


def _visit(site: Site, path: list[Site], nested: dict[Site, set[Site]], done: set[Site]) -> None:
    if site in path:
        raise AssertionError(f"locks are nested in both orders: {[*path[path.index(site) :], site]}")
    if site in done:
        return
    for inner in sorted(nested.get(site, ())):
        _visit(inner, [*path, site], nested, done)
    done.add(site)

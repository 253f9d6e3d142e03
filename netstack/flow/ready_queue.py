"""The queue of readers of one connection: each sends in its turn.

Side:       pure.
Invariants: an entry is in the queue at most once.
Source:     Flink ``PartitionRequestQueue.availableReaders`` with the reader's ``isRegisteredAsAvailable`` flag.
"""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadyQueue(Generic[T]):
    """A FIFO queue without duplicates; entries must be hashable.

    Threading: none; its owner calls it on the loop thread.
    """

    __slots__ = ("_members", "_queue")

    def __init__(self) -> None:
        self._queue: deque[T] = deque()
        self._members: set[T] = set()

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, entry: T) -> bool:
        return entry in self._members

    def __repr__(self) -> str:
        return f"<ReadyQueue of {len(self._members)}>"

    def add(self, entry: T) -> bool:
        """Append ``entry`` unless it is queued already; returns True if the queue was empty before."""
        if entry in self._members:
            return False
        was_empty = not self._members
        self._members.add(entry)
        self._queue.append(entry)
        return was_empty

    def pop(self) -> T | None:
        """The entry whose turn it is, or None."""
        if not self._members:
            return None
        entry = self._queue.popleft()
        self._members.discard(entry)
        return entry

    def discard(self, entry: T) -> None:
        """Remove ``entry``, if it is queued."""
        if entry in self._members:
            self._members.discard(entry)
            self._queue.remove(entry)

    def clear(self) -> None:
        """Remove every entry."""
        self._queue.clear()
        self._members.clear()

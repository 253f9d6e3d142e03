"""Who sends next: strict turns between the readers of one connection.

Side:       pure.
Invariants: an entry stands in the queue at most once.
Source:     Flink ``PartitionRequestQueue.availableReaders`` with the reader's ``isRegisteredAsAvailable`` flag.
"""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadyQueue(Generic[T]):
    """First in, first out, each entry at most once.  Entries are compared by identity through their hash."""

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
        """Append ``entry`` unless it is already queued; True if the queue was empty before."""
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
        """Take ``entry`` out, wherever it stands."""
        if entry in self._members:
            self._members.discard(entry)
            self._queue.remove(entry)

    def clear(self) -> None:
        """Take everything out."""
        self._queue.clear()
        self._members.clear()

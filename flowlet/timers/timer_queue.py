"""The timers of one time domain, soonest first.

Hot path, per timer: one dictionary access and one heap operation to register, the same to fire.
Side:       task.
Invariants: a timer is in the queue once, however often it was added.  The heap holds all live timers, and hardly more
            deleted ones.
Units:      timestamps in milliseconds.
Source:     Flink ``TimerHeapInternalTimer``, ``HeapPriorityQueueSet``, ``KeyGroupedInternalPriorityQueue``.  Flink
            keeps one set per key group; here the key groups are computed when a snapshot is taken.
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final

from flowlet.keys.exact_keys import exact_key, key_group
from netstack.late import dataclass

# A smaller heap is not worth a search for deleted timers.  Not measured.
_MIN_COMPACTION: Final = 64

_Identity = tuple[int, Any, Any]


@dataclass(frozen=True, slots=True)
class Timer:
    """One timer of one key; ``namespace`` is hashable, for example a window, or None."""

    timestamp: int
    key: Any
    namespace: Any


class TimerQueue:
    """A heap of timers without duplicates; timers of the same timestamp come out in the order in
    which they were added.
    """

    __slots__ = ("_heap", "_live", "_order")

    def __init__(self) -> None:
        self._live: dict[_Identity, Timer] = {}
        self._heap: list[tuple[int, int, _Identity, Timer]] = []
        self._order = count()

    def __repr__(self) -> str:
        return f"<TimerQueue of {len(self)}, next {self.next_timestamp()}>"

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Timer]:
        return iter(list(self._live.values()))

    def add(self, timer: Timer) -> bool:
        """Add a timer; False if it was there already.

        Raises KeyTypeError if its key is of a type that cannot be a key.
        """
        identity = (timer.timestamp, exact_key(timer.key), timer.namespace)
        if identity in self._live:
            return False
        self._live[identity] = timer
        # The number decides between equal timestamps: identities need not be comparable.
        heappush(self._heap, (timer.timestamp, next(self._order), identity, timer))
        return True

    def remove(self, timer: Timer) -> bool:
        """Remove a timer; False if it was not there."""
        if self._live.pop((timer.timestamp, exact_key(timer.key), timer.namespace), None) is None:
            return False
        if len(self._heap) > 2 * len(self._live) + _MIN_COMPACTION:
            self._heap = [entry for entry in self._heap if self._live.get(entry[2]) is entry[3]]
            heapify(self._heap)
        return True

    def next_timestamp(self) -> int | None:
        """The timestamp of the next timer; None if there is none."""
        heap = self._heap
        while heap:
            timestamp, _, identity, timer = heap[0]
            if self._live.get(identity) is timer:
                return timestamp
            heappop(heap)
        return None

    def pop_until(self, timestamp: int) -> Timer | None:
        """Remove and return the next timer if its timestamp is at most ``timestamp``."""
        due = self.next_timestamp()
        if due is None or due > timestamp:
            return None
        _, _, identity, timer = heappop(self._heap)
        del self._live[identity]
        return timer

    def by_key_group(self, max_parallelism: int) -> dict[int, list[Timer]]:
        """All timers by the key group of their key."""
        groups: dict[int, list[Timer]] = {}
        for timer in self._live.values():
            groups.setdefault(key_group(timer.key, max_parallelism), []).append(timer)
        return groups

    def extend(self, timers: Iterable[Timer]) -> None:
        """Add all timers."""
        for timer in timers:
            self.add(timer)

    def check_invariants(self) -> None:
        """Assert the invariants of the module header."""
        live = [entry for entry in self._heap if self._live.get(entry[2]) is entry[3]]
        assert len(live) == len(self._live), "a live timer is not in the heap"
        assert len(self._heap) <= 2 * len(self._live) + _MIN_COMPACTION + 1, "too many deleted timers in the heap"

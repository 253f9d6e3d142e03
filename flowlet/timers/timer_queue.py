"""The timers of one time domain, soonest first.

Hot path, per timer: one dictionary access and one heap operation to register, the same to fire.

Side:       task.
Invariants: a timer is in the queue once, whatever how often it was added; the heap holds every live timer and at most as many deleted ones
            as live ones, and a few.
Units:      timestamps in milliseconds.
Source:     Flink ``TimerHeapInternalTimer``, ``HeapPriorityQueueSet``, ``KeyGroupedInternalPriorityQueue``.  Flink keeps one set for
            each key group all the time; here the groups are found when a snapshot is taken.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final

from flowlet.keys.exact_keys import exact_key
from flowlet.keys.key_groups import key_group

# Below this many entries it is not worth looking for deleted ones.  Not measured.
_MIN_COMPACTION: Final = 64

_Identity = tuple[int, Any, Any]


@dataclass(frozen=True, slots=True)
class Timer:
    """One timer of one key.  ``namespace`` is hashable, such as a window, or None."""

    timestamp: int
    key: Any
    namespace: Any


class TimerQueue:
    """A heap of timers without duplicates; those of one timestamp come out in the order in which they were added."""

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
        """Whether it was not there yet.

        Raises:
            KeyTypeError: its key cannot be a key.
        """
        identity = (timer.timestamp, exact_key(timer.key), timer.namespace)
        if identity in self._live:
            return False
        self._live[identity] = timer
        # No two numbers are equal: identities are never compared.
        heappush(self._heap, (timer.timestamp, next(self._order), identity, timer))
        return True

    def remove(self, timer: Timer) -> bool:
        """Whether it was there."""
        if self._live.pop((timer.timestamp, exact_key(timer.key), timer.namespace), None) is None:
            return False
        if len(self._heap) > 2 * len(self._live) + _MIN_COMPACTION:
            self._heap = [entry for entry in self._heap if self._live.get(entry[2]) is entry[3]]
            heapify(self._heap)
        return True

    def next_timestamp(self) -> int | None:
        """When the next timer is due; None when there is none."""
        heap = self._heap
        while heap:
            timestamp, _, identity, timer = heap[0]
            if self._live.get(identity) is timer:
                return timestamp
            heappop(heap)
        return None

    def pop_until(self, timestamp: int) -> Timer | None:
        """Take out the next timer if it is due at ``timestamp``."""
        due = self.next_timestamp()
        if due is None or due > timestamp:
            return None
        _, _, identity, timer = heappop(self._heap)
        del self._live[identity]
        return timer

    def by_key_group(self, max_parallelism: int) -> dict[int, list[Timer]]:
        """All timers by the group of their key; groups without one are left out."""
        groups: dict[int, list[Timer]] = {}
        for timer in self._live.values():
            groups.setdefault(key_group(timer.key, max_parallelism), []).append(timer)
        return groups

    def extend(self, timers: Iterable[Timer]) -> None:
        """Add all of them."""
        for timer in timers:
            self.add(timer)

    def check_invariants(self) -> None:
        """Assert the invariants of the module header."""
        live = [entry for entry in self._heap if self._live.get(entry[2]) is entry[3]]
        assert len(live) == len(self._live), "a live timer is not in the heap"
        assert len(self._heap) <= 2 * len(self._live) + _MIN_COMPACTION + 1, "too many deleted timers in the heap"

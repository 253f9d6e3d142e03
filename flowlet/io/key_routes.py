"""From keys to channels by dictionary.

Hot path.  Per record one dictionary probe.

Side:       pure.
Invariants: the dictionary is bounded.
Source:     hot-path measurements: key -> bound append 61-69 ns, any object-per-channel form 71-118 ns; every dictionary is slow once it
            leaves the cache, from about 16,384 entries; hashing a column takes about 70 ns per key, whatever the cardinality, and a miss
            about 1 us.
"""

from collections.abc import Callable
from typing import Any

MAX_ROUTES = 16_384

Route = tuple[Callable[[Any], None], Callable[[Any], None]]


class Routes(dict[Any, Route]):
    """Exact key -> bound ``append`` of the list of its channel, and that of the list of its keys; bounded, emptied when full."""

    __slots__ = ("_appends", "_channel_of", "num_misses")

    def __init__(self, appends: list[Route], channel_of: Callable[[Any], int]) -> None:
        super().__init__()
        self._appends = appends
        self._channel_of = channel_of
        self.num_misses = 0

    def __missing__(self, key: Any) -> Route:
        """For keys that are their own exact key."""
        return self.add(key, key)

    def add(self, exact: Any, key: Any) -> Route:
        """Learn the route of ``key``."""
        append = self._appends[self._channel_of(key)]
        if len(self) >= MAX_ROUTES:
            self.clear()
        self.num_misses += 1
        self[exact] = append
        return append

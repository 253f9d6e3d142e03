"""Maps keys to channels by dictionary.

Hot path.  One dictionary probe per record.
Side:       pure.
Source:     hot-path measurements: key -> bound append costs 61-69 ns, key -> channel object 71-118 ns.  Every
            dictionary is slow once it leaves the cache, from about 16,384 entries.  Hashing a column costs about 70 ns
            per key, a miss about 1 us.
"""

from collections.abc import Callable
from typing import Any

MAX_ROUTES = 16_384

Route = tuple[Callable[[Any], None], Callable[[Any], None]]


class Routes(dict[Any, Route]):
    """Exact key -> the bound ``append`` of its channel's records, and of its channel's keys; bounded, emptied when
    full.
    """

    __slots__ = ("_appends", "_channel_of", "num_misses")

    def __init__(self, appends: list[Route], channel_of: Callable[[Any], int]) -> None:
        super().__init__()
        self._appends = appends
        self._channel_of = channel_of
        self.num_misses = 0

    def __missing__(self, key: Any) -> Route:
        """Add the route of a key that is its own exact key."""
        return self.add(key, key)

    def add(self, exact: Any, key: Any) -> Route:
        """Add and return the route of ``key``."""
        append = self._appends[self._channel_of(key)]
        if len(self) >= MAX_ROUTES:
            self.clear()
        self.num_misses += 1
        self[exact] = append
        return append

"""From keys to channels by dictionary, and when not.

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
# When more than one in so many keys is not in the dictionary, hashing the whole column is the cheaper way (see Source).
_TOLERATED_MISSES = 16
# Fewer keys say nothing about the cardinality.  Not measured.
_MIN_JUDGED_KEYS = 256
# How many chunks go past the dictionary before it gets another chance; doubled with every failure.  A chance at 10^6 keys costs 600 ns per
# key, the way past 100: with 256 chunks between two of them it is 2 %.
_MIN_DETOUR = 4
_MAX_DETOUR = 256


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


class Detour:
    """Decides chunk by chunk whether keys go through the dictionary, by how many of them it did not know lately.

    Args:
        is_patient: a dictionary that still has room may learn; it is judged when it is full.  After it has failed, and until it does
            well, every chunk is judged.
    """

    __slots__ = ("_is_patient", "_length", "_num_left", "_patience")

    def __init__(self, *, is_patient: bool = False) -> None:
        self._patience = is_patient
        self._is_patient = is_patient
        self._length = _MIN_DETOUR
        self._num_left = 0

    def __repr__(self) -> str:
        return f"<Detour for {self._num_left} chunks, the next one for {self._length}>"

    def is_taken(self) -> bool:
        """Whether the next chunk goes past the dictionary."""
        if not self._num_left:
            return False
        self._num_left -= 1
        return True

    @property
    def is_on_trial(self) -> bool:
        """Whether it failed last, so that the next chunk is a trial."""
        return self._length > _MIN_DETOUR

    def judge(self, num_keys: int, num_misses: int, *, is_full: bool) -> None:
        """A chunk went through the dictionary."""
        if num_keys < _MIN_JUDGED_KEYS:
            return
        if num_misses * _TOLERATED_MISSES <= num_keys:
            self._length = _MIN_DETOUR
            self._is_patient = self._patience
            return
        if self._is_patient and not is_full:
            return
        self._is_patient = False
        self._num_left = self._length
        self._length = min(2 * self._length, _MAX_DETOUR)

    def give_up(self) -> None:
        """The keys have no way past the dictionary."""
        self._num_left = 0

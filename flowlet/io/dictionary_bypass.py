"""Decides when keys bypass a dictionary: when so many of them are new that looking them up costs more than it saves.

Hot path, per chunk.
Side:       pure.
Invariants: every bypass ends; then the dictionary gets another chance.
Units:      lengths in chunks.
"""

from enum import Enum

# If more than one key in this many is missing in the dictionary, hashing the whole column is cheaper (hot-path
# measurements).
_TOLERATED_MISSES = 16
# Fewer keys say nothing about the number of distinct keys.  Not measured.
_MIN_JUDGED_KEYS = 256
# How many chunks bypass the dictionary before its next chance; doubled after each failure.  With 10^6 distinct keys a
# chance costs 600 ns per key and the bypass 100, so one chance in 256 chunks costs 2 %.
_MIN_BYPASS = 4
_MAX_BYPASS = 256


class BypassState(Enum):
    """What happens to the next chunk: it goes through the dictionary, or past it."""

    LEARNING = "learning"
    """Through the dictionary, whose misses do not count before it is full."""
    JUDGED = "judged"
    """Through the dictionary, whose misses count."""
    BYPASSING = "bypassing"
    """Past the dictionary."""


class DictionaryBypass:
    """Decides chunk by chunk whether keys go through a dictionary, from its recent misses.

    ``is_patient``: misses do not count until the dictionary is full.  After a failure they count at once, until it does
        well again.
    """

    __slots__ = ("_first_state", "_length", "_num_left", "_state")

    def __init__(self, *, is_patient: bool = False) -> None:
        self._first_state = self._state = BypassState.LEARNING if is_patient else BypassState.JUDGED
        self._length = _MIN_BYPASS  # length of the next bypass
        self._num_left = 0  # chunks left of the present bypass

    def __repr__(self) -> str:
        return f"<DictionaryBypass {self._state.value}, {self._num_left} chunks left, the next one for {self._length}>"

    def is_taken(self) -> bool:
        """Whether the next chunk bypasses the dictionary."""
        if self._state is not BypassState.BYPASSING:
            return False
        self._num_left -= 1
        if not self._num_left:
            self._state = BypassState.JUDGED
        return True

    def judge(self, num_keys: int, num_misses: int, *, is_full: bool) -> None:
        """Judge the dictionary by the misses of a chunk that went through it."""
        if num_keys < _MIN_JUDGED_KEYS:
            return
        if num_misses * _TOLERATED_MISSES <= num_keys:
            self._length = _MIN_BYPASS
            self._state = self._first_state
        elif self._state is not BypassState.LEARNING or is_full:
            self._state = BypassState.BYPASSING
            self._num_left = self._length
            self._length = min(2 * self._length, _MAX_BYPASS)

    def give_up(self) -> None:
        """End the bypass: keys of this kind can only go through the dictionary."""
        if self._state is BypassState.BYPASSING:
            self._state, self._num_left = BypassState.JUDGED, 0

"""When keys go past a dictionary: too many of them are new, so that looking them up costs more than it saves.

Hot path, per chunk.

Side:       pure.
Invariants: a bypass has a last chunk; then the dictionary gets another chance.
Units:      lengths in chunks.
"""

from enum import Enum

# When more than one in so many keys is not in the dictionary, hashing the whole column is the cheaper way (see Source).
_TOLERATED_MISSES = 16
# Fewer keys say nothing about the cardinality.  Not measured.
_MIN_JUDGED_KEYS = 256
# How many chunks go past the dictionary before it gets another chance; doubled with every failure.  A chance at 10^6 keys costs 600 ns per
# key, the way past 100: with 256 chunks between two of them it is 2 %.
_MIN_BYPASS = 4
_MAX_BYPASS = 256


class BypassState(Enum):
    """What happens to the next chunk."""

    LEARNING = "learning"
    """It goes through the dictionary, which is not judged before it is full."""
    JUDGED = "judged"
    """It goes through the dictionary, which is judged by it."""
    BYPASSING = "bypassing"
    """It goes past the dictionary."""


class DictionaryBypass:
    """Decides chunk by chunk whether keys go through a dictionary, by how many of them it did not know lately.

    Args:
        is_patient: the dictionary may learn until it is full.  After a failure, and until it does well again, every chunk is judged.
    """

    __slots__ = ("_first_state", "_length", "_num_left", "_state")

    def __init__(self, *, is_patient: bool = False) -> None:
        self._first_state = self._state = BypassState.LEARNING if is_patient else BypassState.JUDGED
        self._length = _MIN_BYPASS  # of the next bypass
        self._num_left = 0  # chunks of the present bypass

    def __repr__(self) -> str:
        return f"<DictionaryBypass {self._state.value}, {self._num_left} chunks left, the next one for {self._length}>"

    def is_taken(self) -> bool:
        """Whether the next chunk goes past the dictionary."""
        if self._state is not BypassState.BYPASSING:
            return False
        self._num_left -= 1
        if not self._num_left:
            self._state = BypassState.JUDGED
        return True

    def judge(self, num_keys: int, num_misses: int, *, is_full: bool) -> None:
        """Judge the dictionary by a chunk that went through it."""
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
        """End the bypass: these keys have no way past the dictionary."""
        if self._state is BypassState.BYPASSING:
            self._state, self._num_left = BypassState.JUDGED, 0

"""Limits on the work and memory that one peer can cause.

Side:       pure.
Invariants: replies that wait for a peer that does not read are bounded in number and bytes (GHSA-8r5v-vm4m-4g25:
            replies pile up while the window is closed); repeated actions of a peer are bounded per second
            (CVE-2023-44487: rapid reset).
Units:      bytes; actions per second; clocks in seconds.
"""

from collections.abc import Callable
from typing import Final

# More than a peer that reads its replies can cause; not measured.
MAX_WAITING_REPLIES: Final = 1000
MAX_WAITING_REPLY_BYTES: Final = 1024 * 1024
# An expected reply names a partition, in text.
_EXPECTED_REPLY_BYTES: Final = 1024
# A job with thousands of channels may be cancelled at once: the bucket holds as much as this time refills.
_BURST_S: Final = 10.0


class ReplyBudget:
    """Counts the replies that were written while the channel was not writable.

    Args:
        num_expected: further replies that may be due at once although the peer did nothing wrong: to requests that time
            out together.
    """

    __slots__ = ("_max_bytes", "_max_messages", "_num_bytes", "_num_messages")

    def __init__(self, num_expected: int = 0) -> None:
        self._max_messages = MAX_WAITING_REPLIES + num_expected
        self._max_bytes = MAX_WAITING_REPLY_BYTES + num_expected * _EXPECTED_REPLY_BYTES
        self._num_messages = 0
        self._num_bytes = 0

    def __repr__(self) -> str:
        return f"<ReplyBudget {self._num_messages} messages and {self._num_bytes} bytes wait>"

    def spend(self, num_bytes: int, *, is_writable: bool) -> bool:
        """Count one reply of about ``num_bytes``; False if too many wait.  A writable channel resets the count."""
        if is_writable:
            self._num_messages = self._num_bytes = 0
            return True
        self._num_messages += 1
        self._num_bytes += num_bytes
        return self._num_messages <= self._max_messages and self._num_bytes <= self._max_bytes


class RateLimit:
    """A token bucket that refills by ``per_second`` and holds ten seconds' worth."""

    __slots__ = ("_capacity", "_clock", "_per_second", "_tokens", "_updated_s")

    def __init__(self, per_second: float, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._capacity = per_second * _BURST_S
        self._clock = clock
        self._tokens = self._capacity
        self._updated_s = clock()

    def __repr__(self) -> str:
        return f"<RateLimit {self._per_second:g}/s, {self._tokens:g} left>"

    def take(self) -> bool:
        """Take one token; False if there is none."""
        now_s = self._clock()
        self._tokens = min(self._capacity, self._tokens + (now_s - self._updated_s) * self._per_second)
        self._updated_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

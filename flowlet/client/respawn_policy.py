"""Decides whether a TaskManager that died gets a successor, and after how long.

Side:       pure.
Units:      seconds, of any clock that only goes forward.
"""

from collections import deque
from typing import Final

_FIRST_DELAY_S: Final = 0.1  # a job that has failed with it often closes the cluster within that time
_MAX_DELAY_S: Final = 5.0
_MAX_DEATHS: Final = 5  # within the window; a child that cannot run dies each time, within two seconds or so
_WINDOW_S: Final = 60.0


class RespawnPolicy:
    """The deaths of one cluster's children within the last minute; each one doubles the delay, and the sixth is the
    last.

    Threading: one thread.
    """

    def __init__(self) -> None:
        self._deaths: deque[float] = deque()

    def __repr__(self) -> str:
        return f"<RespawnPolicy {len(self._deaths)} recent deaths>"

    def child_died(self, now_s: float) -> float | None:
        """After how many seconds the successor starts; None: there is none, because too many died within a minute."""
        while self._deaths and self._deaths[0] <= now_s - _WINDOW_S:
            self._deaths.popleft()
        self._deaths.append(now_s)
        if len(self._deaths) > _MAX_DEATHS:
            return None
        return float(min(_MAX_DELAY_S, _FIRST_DELAY_S * 2 ** (len(self._deaths) - 1)))

    def describe_limit(self) -> str:
        """Why there is no successor, for people."""
        return f"{len(self._deaths)} TaskManagers died within {_WINDOW_S:g} s, so no more are started"

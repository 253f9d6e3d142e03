"""Decides when a connection needs a heartbeat, and when its peer counts as lost.

Side:       pure; the clock is an argument.
Invariants: any received byte is a sign of life.  Time in which this end did not look (its loop was busy, its process was stopped) is no
            silence of the peer: nothing could be read then.  So a look adds at most ``look_s`` to the silence.
            Two quiet looks follow each other only if a heartbeat left at the first, so that the peer never waits longer than it asked for.
Units:      seconds.
"""

from enum import Enum, auto


class Verdict(Enum):
    """What to do after a look at a connection."""

    NOTHING = auto()
    SEND = auto()
    """This end was quiet: send a heartbeat."""
    CUT = auto()
    """The peer was silent for too long."""


class Heartbeats:
    """One connection's silence, in both directions.

    Args:
        interval_s: how often this end wants a sign of life; it sends as often until the peer has told what it wants.
        timeout_s: the silence after which the peer is lost.
        now_s: the connection became ready.
    """

    __slots__ = ("_interval_s", "_looked_s", "_num_bytes_in", "_num_bytes_out", "_sending_s", "_timeout_s", "silent_s")

    def __init__(self, interval_s: float, timeout_s: float, now_s: float) -> None:
        self._interval_s = self._sending_s = interval_s
        self._timeout_s = timeout_s
        self._looked_s = now_s
        self._num_bytes_in = self._num_bytes_out = 0
        self.silent_s = 0.0
        """How long nothing was received."""

    def __repr__(self) -> str:
        return f"<Heartbeats every {self._sending_s:g} s, the peer is silent for {self.silent_s:.1f} of {self._timeout_s:g} s>"

    @property
    def look_s(self) -> float:
        """The time from one look to the next."""
        return min(self._interval_s, self._sending_s) / 2

    def peer_wants(self, interval_s: float) -> bool:
        """The peer asked for a sign of life this often; returns whether that changes ``look_s``."""
        before_s, self._sending_s = self.look_s, interval_s
        return self.look_s != before_s

    def look(self, now_s: float, num_bytes_in: int, num_bytes_out: int) -> Verdict:
        """Compare the bytes received and sent so far with those of the last look."""
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        was_heard, self._num_bytes_in = num_bytes_in != self._num_bytes_in, num_bytes_in
        was_quiet, self._num_bytes_out = num_bytes_out == self._num_bytes_out, num_bytes_out
        self.silent_s = 0.0 if was_heard else self.silent_s + min(passed_s, self.look_s)
        if self.silent_s >= self._timeout_s:
            return Verdict.CUT
        return Verdict.SEND if was_quiet else Verdict.NOTHING

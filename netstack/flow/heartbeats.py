"""Decisions by time: whether a peer was silent for too long (``Silence``), and how long to wait before another try
(``Backoff``).

Side:       pure.
Units:      seconds; of a ``Backoff`` the unit of the delays that it was given.
Invariants: any received byte is a sign of life.  Time in which this end did not look (its loop was busy, its process
            was stopped) is no silence of the peer: nothing could be read then.  So a look adds at most ``look_s`` to
            the silence (``Silence``).  Two quiet looks follow each other only if a heartbeat left at the first, so that
            the peer never waits longer than it asked for.
"""

from collections.abc import Callable, Iterator
from enum import Enum, auto
from itertools import count
from typing import Final

from netstack.late import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delays before one try after another: ``first``, each later one ``factor`` times as long, at most ``longest``.

    ``jitter``: the share of a delay that may be taken off at random, so that those who failed together do not come
    back together.
    """

    first: float
    longest: float
    factor: float = 2
    jitter: float = 0.0

    def delay(self, num_failures: int, chance: float = 0.0) -> float:
        """Return the delay after ``num_failures``, at least one; ``chance``, up to 1: how much of the jitter counts."""
        try:
            delay = min(self.first * self.factor ** (num_failures - 1), self.longest)
        except OverflowError:
            # No float is as large as 2 ** 1024: a retry that never gives up gets there.
            delay = self.longest
        return delay * (1 - self.jitter * chance)

    def delays(self, chance: Callable[[], float] = float) -> Iterator[float]:
        """Give the delay after each failure, without end."""
        return (self.delay(num_failures, chance()) for num_failures in count(1))


_ROUNDING_S: Final = 1e-6  # the looks of a whole timeout may add up to a little less


class Verdict(Enum):
    """The consequence of one look at a connection."""

    NOTHING = auto()
    SEND = auto()
    """This end was quiet: send a heartbeat."""
    CUT = auto()
    """The peer was silent for too long."""


class Silence:
    """How long a peer has been silent, as this end sees it when it looks.

    The waiting end wakes up ``NUM_LOOKS`` times per timeout.  A timer that fires late says that this end stood still: a
    function held its interpreter, or its process was stopped.  Bytes that the peer sent meanwhile are still in the
    socket, so a late look adds no more silence than one in time.

    Args:
        timeout_s: the silence after which the peer is lost.
        now_s: the peer was heard.
        look_s: the time from one look to the next; None: a fifth of ``timeout_s``.
    """

    NUM_LOOKS: Final = 5  # a stall hides at most a fifth of a real silence

    def __init__(self, timeout_s: float, now_s: float, look_s: float | None = None) -> None:
        self._timeout_s = timeout_s
        self._looked_s = now_s
        self.look_s = timeout_s / self.NUM_LOOKS if look_s is None else look_s
        self.silent_s = 0.0
        """How long nothing was received."""

    def __repr__(self) -> str:
        return f"<Silence of {self.silent_s:.1f} of {self._timeout_s:g} s>"

    @property
    def next_look_s(self) -> float:
        """The time until the next look, which comes sooner if the peer is lost sooner."""
        return max(0.0, min(self.look_s, self._timeout_s - self.silent_s))

    def heard(self, now_s: float) -> None:
        """Begin the silence anew: the peer was heard."""
        # From this look, not from the byte, whose moment is not known: a silence is noticed at most one look too late.
        self._looked_s, self.silent_s = now_s, 0.0

    def look(self, now_s: float) -> bool:
        """Add the time since the last look, in which the peer was not heard; returns whether the peer is lost."""
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        # No more for a late look: what the peer sent while this end stood still may be unread in the socket.
        self.silent_s += min(passed_s, self.look_s)
        return self.silent_s >= self._timeout_s - _ROUNDING_S


class Heartbeats:
    """One connection's silence, in both directions.

    Args:
        interval_s: how often this end wants a sign of life; it sends as often until the peer has told what it wants.
        timeout_s: the silence after which the peer is lost.
        now_s: the connection became ready.
    """

    def __init__(self, interval_s: float, timeout_s: float, now_s: float) -> None:
        self._interval_s = self._sending_s = interval_s
        self._timeout_s = timeout_s
        self._silence = Silence(timeout_s, now_s, self.look_s)
        self._num_bytes_in = self._num_bytes_out = 0

    def __repr__(self) -> str:
        return (
            f"<Heartbeats every {self._sending_s:g} s, the peer is silent for {self.silent_s:.1f} of "
            f"{self._timeout_s:g} s>"
        )

    @property
    def silent_s(self) -> float:
        """How long nothing was received."""
        return self._silence.silent_s

    @property
    def look_s(self) -> float:
        """The time from one look to the next."""
        # Half: the bytes of a heartbeat make the next look not quiet, so one leaves at every second look.
        return min(self._interval_s, self._sending_s) / 2

    def peer_wants(self, interval_s: float) -> bool:
        """Note how often the peer asked for a sign of life; returns whether that changes ``look_s``."""
        self._sending_s = interval_s
        before_s, self._silence.look_s = self._silence.look_s, self.look_s
        return self.look_s != before_s

    def look(self, now_s: float, num_bytes_in: int, num_bytes_out: int) -> Verdict:
        """Compare the bytes received and sent so far with those of the last look."""
        was_heard, self._num_bytes_in = num_bytes_in != self._num_bytes_in, num_bytes_in
        was_quiet, self._num_bytes_out = num_bytes_out == self._num_bytes_out, num_bytes_out
        if was_heard:
            self._silence.heard(now_s)
        # A look that has heard the peer adds no silence, however late it is.
        elif self._silence.look(now_s):
            return Verdict.CUT
        return Verdict.SEND if was_quiet else Verdict.NOTHING

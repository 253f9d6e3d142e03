"""``Duration`` and ``Time``, lengths of time, and ``Instant``, a point in time, as PyFlink names them.

Side:   pure.
Units:  a ``Duration`` counts nanoseconds, a ``Time`` milliseconds, an ``Instant`` seconds since 1970 and nanoseconds.
Source: PyFlink ``pyflink.common.time``.
"""

from dataclasses import dataclass

__all__ = ["Duration", "Instant", "Time"]

_NANOS_PER_MILLI = 1_000_000
_NANOS_PER_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True, repr=False)
class Duration:
    """A length of time in nanoseconds; made by one of the ``of_`` methods."""

    nanos: int

    @staticmethod
    def of_days(days: int) -> "Duration":
        """A length in days of 24 hours."""
        return Duration.of_hours(24 * days)

    @staticmethod
    def of_hours(hours: int) -> "Duration":
        """A length in hours."""
        return Duration.of_minutes(60 * hours)

    @staticmethod
    def of_minutes(minutes: int) -> "Duration":
        """A length in minutes."""
        return Duration.of_seconds(60 * minutes)

    @staticmethod
    def of_seconds(seconds: int) -> "Duration":
        """A length in seconds."""
        return Duration.of_millis(1000 * seconds)

    @staticmethod
    def of_millis(millis: int) -> "Duration":
        """A length in milliseconds."""
        return Duration(_NANOS_PER_MILLI * millis)

    @staticmethod
    def of_nanos(nanos: int) -> "Duration":
        """A length in nanoseconds."""
        return Duration(nanos)

    def to_millis(self) -> int:
        """The length in whole milliseconds, rounded down."""
        return self.nanos // _NANOS_PER_MILLI

    def __repr__(self) -> str:
        return f"Duration.of_nanos({self.nanos})"


class Instant:
    """A point in time: ``seconds`` since 1970 in UTC, and ``nanos`` of that second, 0 to 999,999,999; immutable."""

    __slots__ = ("nanos", "seconds")

    seconds: int
    nanos: int

    def __init__(self, seconds: int, nanos: int) -> None:
        if not 0 <= nanos < _NANOS_PER_SECOND:
            raise ValueError(f"an instant has 0 to 999999999 nanoseconds of its second, got {nanos}")
        object.__setattr__(self, "seconds", seconds)
        object.__setattr__(self, "nanos", nanos)

    @staticmethod
    def of_epoch_milli(epoch_milli: int) -> "Instant":
        """A point in time in milliseconds since 1970."""
        seconds, millis = divmod(epoch_milli, 1000)
        return Instant(seconds, millis * _NANOS_PER_MILLI)

    def to_epoch_milli(self) -> int:
        """Milliseconds since 1970, rounded down."""
        return 1000 * self.seconds + self.nanos // _NANOS_PER_MILLI

    def __setattr__(self, key: str, value: object) -> None:
        raise AttributeError(f"an instant does not change: make another one with the {key} you want")

    def __reduce__(self) -> "tuple[type[Instant], tuple[int, int]]":
        return Instant, (self.seconds, self.nanos)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Instant) and (self.seconds, self.nanos) == (other.seconds, other.nanos)

    def __hash__(self) -> int:
        return hash((self.seconds, self.nanos))

    def __repr__(self) -> str:
        return f"Instant<{self.seconds}, {self.nanos}>"


class Time:
    """A length of time in milliseconds."""

    __slots__ = ("_milliseconds",)

    def __init__(self, milliseconds: int) -> None:
        self._milliseconds = milliseconds

    def to_milliseconds(self) -> int:
        """The length in milliseconds."""
        return self._milliseconds

    @staticmethod
    def milliseconds(milliseconds: int) -> "Time":
        """A length in milliseconds."""
        return Time(milliseconds)

    @staticmethod
    def seconds(seconds: int) -> "Time":
        """A length in seconds."""
        return Time(1000 * seconds)

    @staticmethod
    def minutes(minutes: int) -> "Time":
        """A length in minutes."""
        return Time.seconds(60 * minutes)

    @staticmethod
    def hours(hours: int) -> "Time":
        """A length in hours."""
        return Time.minutes(60 * hours)

    @staticmethod
    def days(days: int) -> "Time":
        """A length in days of 24 hours."""
        return Time.hours(24 * days)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Time) and self._milliseconds == other._milliseconds

    def __hash__(self) -> int:
        return hash(self._milliseconds)

    def __str__(self) -> str:
        return f"{self._milliseconds} ms"

"""``Duration`` and ``Time``: lengths of time as PyFlink names them.

Side:   pure.
Units:  a ``Duration`` counts nanoseconds, a ``Time`` milliseconds.
Source: PyFlink ``pyflink.common.time``.
Absent: ``Instant``.
"""

from dataclasses import dataclass

__all__ = ["Duration", "Time"]

_NANOS_PER_MILLI = 1_000_000


@dataclass(frozen=True, slots=True, repr=False)
class Duration:
    """A length of time, exact to the nanosecond; made by one of the ``of_`` methods."""

    nanos: int

    @staticmethod
    def of_days(days: int) -> "Duration":
        """So many times 24 hours."""
        return Duration.of_hours(24 * days)

    @staticmethod
    def of_hours(hours: int) -> "Duration":
        """So many hours."""
        return Duration.of_minutes(60 * hours)

    @staticmethod
    def of_minutes(minutes: int) -> "Duration":
        """So many minutes."""
        return Duration.of_seconds(60 * minutes)

    @staticmethod
    def of_seconds(seconds: int) -> "Duration":
        """So many seconds."""
        return Duration.of_millis(1000 * seconds)

    @staticmethod
    def of_millis(millis: int) -> "Duration":
        """So many milliseconds."""
        return Duration(_NANOS_PER_MILLI * millis)

    @staticmethod
    def of_nanos(nanos: int) -> "Duration":
        """So many nanoseconds."""
        return Duration(nanos)

    def to_millis(self) -> int:
        """The length in whole milliseconds, rounded down."""
        return self.nanos // _NANOS_PER_MILLI

    def __repr__(self) -> str:
        return f"Duration.of_nanos({self.nanos})"


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
        """So many milliseconds."""
        return Time(milliseconds)

    @staticmethod
    def seconds(seconds: int) -> "Time":
        """So many seconds."""
        return Time(1000 * seconds)

    @staticmethod
    def minutes(minutes: int) -> "Time":
        """So many minutes."""
        return Time.seconds(60 * minutes)

    @staticmethod
    def hours(hours: int) -> "Time":
        """So many hours."""
        return Time.minutes(60 * hours)

    @staticmethod
    def days(days: int) -> "Time":
        """So many times 24 hours."""
        return Time.hours(24 * days)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Time) and self._milliseconds == other._milliseconds

    def __hash__(self) -> int:
        return hash(self._milliseconds)

    def __str__(self) -> str:
        return f"{self._milliseconds} ms"

"""``Duration`` and ``Time``, lengths of time, and ``Instant``, a point in time, as PyFlink names them.

Whatever takes a length of time takes a ``Duration``, a ``Time`` or a ``timedelta``; ``duration_of`` and ``millis_of``
check it for all.

Side:   pure.
Units:  a ``Duration`` counts nanoseconds, a ``Time`` milliseconds, an ``Instant`` seconds since 1970 and nanoseconds.
Source: PyFlink ``pyflink.common.time``.
"""

from datetime import timedelta
from typing import Any

from flowlet.common.checks import is_whole_number
from flowlet.errors import JobGraphError
from netstack.late import dataclass

__all__ = ["Duration", "Instant", "Length", "Time", "duration_of", "millis_of"]

_NANOS_PER_MILLI = 1_000_000
_NANOS_PER_SECOND = 1_000_000_000
_NANOS_PER_MINUTE = 60 * _NANOS_PER_SECOND
_NANOS_PER_HOUR = 60 * _NANOS_PER_MINUTE
_NANOS_PER_DAY = 24 * _NANOS_PER_HOUR


@dataclass(frozen=True, slots=True, repr=False)
class Duration:
    """A length of time in nanoseconds; made by one of the ``of_`` methods."""

    nanos: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "nanos", _whole(self.nanos, "Duration", "nanoseconds"))

    @staticmethod
    def of_days(days: int) -> "Duration":
        """Make a length in days of 24 hours."""
        return Duration(_product(days, "days", _NANOS_PER_DAY))

    @staticmethod
    def of_hours(hours: int) -> "Duration":
        """Make a length in hours."""
        return Duration(_product(hours, "hours", _NANOS_PER_HOUR))

    @staticmethod
    def of_minutes(minutes: int) -> "Duration":
        """Make a length in minutes."""
        return Duration(_product(minutes, "minutes", _NANOS_PER_MINUTE))

    @staticmethod
    def of_seconds(seconds: int) -> "Duration":
        """Make a length in seconds."""
        return Duration(_product(seconds, "seconds", _NANOS_PER_SECOND))

    @staticmethod
    def of_millis(millis: int) -> "Duration":
        """Make a length in milliseconds."""
        return Duration(_product(millis, "millis", _NANOS_PER_MILLI))

    @staticmethod
    def of_nanos(nanos: int) -> "Duration":
        """Make a length in nanoseconds."""
        return Duration(nanos)

    def to_millis(self) -> int:
        """Return the length in whole milliseconds, rounded down."""
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
        """Make a point in time in milliseconds since 1970."""
        seconds, millis = divmod(epoch_milli, 1000)
        return Instant(seconds, millis * _NANOS_PER_MILLI)

    def to_epoch_milli(self) -> int:
        """Return the milliseconds since 1970, rounded down."""
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
        self._milliseconds = _whole(milliseconds, "Time", "milliseconds")

    def to_milliseconds(self) -> int:
        """Return the length in milliseconds."""
        return self._milliseconds

    @staticmethod
    def milliseconds(milliseconds: int) -> "Time":
        """Make a length in milliseconds."""
        return Time(milliseconds)

    @staticmethod
    def seconds(seconds: int) -> "Time":
        """Make a length in seconds."""
        return Time(_product(seconds, "seconds", _NANOS_PER_SECOND // _NANOS_PER_MILLI))

    @staticmethod
    def minutes(minutes: int) -> "Time":
        """Make a length in minutes."""
        return Time(_product(minutes, "minutes", _NANOS_PER_MINUTE // _NANOS_PER_MILLI))

    @staticmethod
    def hours(hours: int) -> "Time":
        """Make a length in hours."""
        return Time(_product(hours, "hours", _NANOS_PER_HOUR // _NANOS_PER_MILLI))

    @staticmethod
    def days(days: int) -> "Time":
        """Make a length in days of 24 hours."""
        return Time(_product(days, "days", _NANOS_PER_DAY // _NANOS_PER_MILLI))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Time) and self._milliseconds == other._milliseconds

    def __hash__(self) -> int:
        return hash(self._milliseconds)

    def __str__(self) -> str:
        return f"{self._milliseconds} ms"

    def __repr__(self) -> str:
        return f"Time.milliseconds({self._milliseconds})"


Length = Duration | Time | timedelta
"""What a size, a gap, a delay or an interval is given as."""


def duration_of(length: Any, what: str, *, at_least_nanos: int | None = None) -> Duration:
    """Return a length of time that a user gave.

    Args:
        length: as the user gave it.
        what: the method and perhaps its argument, for errors.
        at_least_nanos: its lowest value; None: it may be negative.

    Raises:
        JobGraphError: it is none, or less.
    """
    match length:
        case Duration():
            duration = length
        case Time():
            duration = Duration.of_millis(length.to_milliseconds())
        case timedelta():
            duration = Duration(length // timedelta(microseconds=1) * 1_000)
        case _:
            raise JobGraphError(f"{what} needs a Duration such as Duration.of_seconds(5), got {length!r}")
    if at_least_nanos is not None and duration.nanos < at_least_nanos:
        raise JobGraphError(f"{what} needs a duration of at least {at_least_nanos} ns, got {length!r}")
    return duration


def millis_of(length: Any, what: str, *, takes_number: bool = False, at_least_ms: int | None = None) -> int:
    """Return the milliseconds of a length of time that a user gave, rounded down.

    Args:
        length: as the user gave it.
        what: the method and perhaps its argument, for errors.
        takes_number: whether a whole number is one, too, in milliseconds: where PyFlink takes numbers.
        at_least_ms: its lowest value; None: it may be negative.

    Raises:
        JobGraphError: it is none, or less.
    """
    millis = int(length) if takes_number and is_whole_number(length) else duration_of(length, what).to_millis()
    if at_least_ms is not None and millis < at_least_ms:
        raise JobGraphError(f"{what} needs {at_least_ms} ms or more, got {length!r}")
    return millis


def _product(number: Any, unit: str, factor: int) -> Any:
    """Multiply the number by the factor; checked first, because a text times a factor is a long text."""
    if not isinstance(number, int | float) or isinstance(number, bool):
        raise JobGraphError(f"a length of time is a number of {unit}, got {number!r}")
    return number * factor


def _whole(number: Any, what: str, units: str) -> int:
    if isinstance(number, float) and number.is_integer():
        return int(number)  # of Time.seconds(0.5), for example
    if not is_whole_number(number):
        raise JobGraphError(f"a {what} is a whole number of {units}, got {number!r}")
    return int(number)

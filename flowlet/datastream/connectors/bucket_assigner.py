"""``BucketAssigner``: into which folder of a file sink a record goes.

Side:   pure.
Source: PyFlink ``BucketAssigner``; Flink ``BasePathBucketAssigner``, ``DateTimeBucketAssigner``; of
        ``DateTimeFormatter`` the letters that are in ``_LETTERS``.  Your own assigners are not in PyFlink.
"""

import datetime
import itertools
import zoneinfo
from abc import ABC, abstractmethod
from typing import Any, Final

from flowlet.errors import JobGraphError

__all__ = ["BucketAssigner", "BucketContext"]

_LETTERS: Final = {"y": "year", "M": "month", "d": "day", "H": "hour", "m": "minute", "s": "second", "S": "microsecond"}
_YEARS: Final = 4  # digits


class BucketContext(ABC):
    """The record whose bucket is asked for; valid during one call of ``get_bucket_id``."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """What the clock shows, in milliseconds since the epoch."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The watermark, in milliseconds."""

    @abstractmethod
    def timestamp(self) -> int | None:
        """The timestamp of the record, in milliseconds; None: it has none."""


class BucketAssigner:
    """Says for each record into which bucket, a folder below the base path, it goes; your own has ``get_bucket_id``."""

    def get_bucket_id(self, value: Any, context: BucketContext) -> str:
        """The path of the folder below the base path; empty for the base path itself."""
        raise NotImplementedError(f"{type(self).__name__} has no get_bucket_id()")

    @staticmethod
    def base_path_bucket_assigner() -> "BucketAssigner":
        """All files go into the base path."""
        return BasePathBucketAssigner()

    @staticmethod
    def date_time_bucket_assigner(
        format_str: str = "yyyy-MM-dd--HH", timezone_id: str | None = None
    ) -> "BucketAssigner":
        """A folder per hour, or as the format says, by the clock of the machine.

        Args:
            format_str: letters of Java's ``DateTimeFormatter`` for years to fractions of seconds; ``'text in quotes'``.
            timezone_id: such as ``Europe/Berlin``; None: that of the machine.

        Raises:
            JobGraphError: the format has another letter, or the time zone is unknown.
        """
        return DateTimeBucketAssigner(format_str, timezone_id)


class BasePathBucketAssigner(BucketAssigner):
    """All files go into the base path."""

    def get_bucket_id(self, value: Any, context: BucketContext) -> str:
        """Empty."""
        return ""


class DateTimeBucketAssigner(BucketAssigner):
    """A folder per hour, or as the format says."""

    def __init__(self, format_str: str, timezone_id: str | None) -> None:
        self._parts = _parts_of(format_str)
        self._zone: datetime.tzinfo | None = None
        if timezone_id is not None:
            try:
                self._zone = zoneinfo.ZoneInfo(timezone_id)
            except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError, TypeError) as error:
                raise JobGraphError(f"date_time_bucket_assigner: the time zone {timezone_id!r} is unknown") from error

    def get_bucket_id(self, value: Any, context: BucketContext) -> str:
        """The folder of the present hour, or as the format says."""
        return self.bucket_at(context.current_processing_time())

    def bucket_at(self, now_ms: int) -> str:
        """The folder at a time in milliseconds since the epoch."""
        at = datetime.datetime.fromtimestamp(now_ms / 1_000, self._zone)
        return "".join(text if letter is None else _digits(at, letter, len(text)) for letter, text in self._parts)


def _parts_of(pattern: Any) -> list[tuple[str | None, str]]:
    """Runs of a letter with that letter, and texts with None."""
    if not isinstance(pattern, str) or not pattern:
        raise JobGraphError(f"date_time_bucket_assigner() needs a format such as 'yyyy-MM-dd--HH', got {pattern!r}")
    found: list[tuple[str | None, str]] = []
    quoted = pattern.split("'")
    if len(quoted) % 2 == 0:
        raise JobGraphError(f"date_time_bucket_assigner: the format {pattern!r} has a quote without its end")
    for index, piece in enumerate(quoted):
        if index % 2:
            found.append((None, piece or "'"))
            continue
        for letter, run in itertools.groupby(piece):
            if letter.isalpha() and letter not in _LETTERS:
                known = ", ".join(_LETTERS)
                raise JobGraphError(
                    f"date_time_bucket_assigner: the format {pattern!r} has the letter {letter!r}; known are {known}, "
                    "and 'text in quotes'"
                )
            found.append((letter if letter in _LETTERS else None, "".join(run)))
    return found


def _digits(at: datetime.datetime, letter: str, width: int) -> str:
    value: int = getattr(at, _LETTERS[letter])
    if letter == "S":
        return f"{value:06}".ljust(width, "0")[:width]
    if letter == "y" and width < _YEARS:
        value %= 100
    return f"{value:0{width}}"

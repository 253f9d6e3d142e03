"""Serializers of local dates and times, which refer to no time zone; exact to the microsecond.

Side:   pure.
Source: Flink ``LocalDateSerializer``, ``LocalTimeSerializer``, ``LocalDateTimeSerializer``.
"""

import datetime
from typing import Any, Final

from flowlet.common.typeinfo import LocalTimeTypeInfo
from flowlet.errors import SerdeError
from flowlet.serde.data_view import DataInput, DataOutput
from flowlet.serde.type_serializer import TypeSerializer, ValueMismatchError, mismatch, preview
from flowlet.serde.types.basic_serializers import ImmutableSerializer

_MIN_BYTE: Final = -(2**7)
_MIN_SHORT: Final = -(2**15)
_MIN_INT: Final = -(2**31)


class LocalDateSerializer(ImmutableSerializer):
    """``datetime.date``, or None: i32 year, i8 month, i8 day."""

    __slots__ = ()
    min_size_bytes = 6

    def serialize(self, value: Any, output: DataOutput) -> None:
        """None is the smallest number in all fields."""
        if value is None:
            output.write_int(_MIN_INT)
            output.write_short(_MIN_SHORT)
            return
        # A datetime is an instance of date, too, but its time would be lost.
        if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
            raise mismatch(value, "LocalDate")
        _write_date(value, output)

    def deserialize(self, source: DataInput) -> datetime.date | None:
        """The reverse of ``serialize``."""
        year = source.read_int()
        if year == _MIN_INT:
            source.read_short()
            return None
        return datetime.date(year, source.read_byte(), source.read_byte())


class LocalTimeSerializer(ImmutableSerializer):
    """``datetime.time`` without a zone, or None: i8 hour, i8 minute, i8 second, i32 nanoseconds."""

    __slots__ = ()
    min_size_bytes = 7

    def serialize(self, value: Any, output: DataOutput) -> None:
        """None is the smallest number in all fields."""
        if value is None:
            output.write_byte(_MIN_BYTE)
            output.write_short(_MIN_SHORT)
            output.write_int(_MIN_INT)
            return
        if not isinstance(value, datetime.time):
            raise mismatch(value, "LocalTime")
        _refuse_zone(value, "LocalTime")
        _write_time(value, output)

    def deserialize(self, source: DataInput) -> datetime.time | None:
        """Refuses fractions of a microsecond, which a ``time`` cannot hold."""
        hour = source.read_byte()
        if hour == _MIN_BYTE:
            source.read_short()
            source.read_int()
            return None
        minute, second, nanos = source.read_byte(), source.read_byte(), source.read_int()
        if nanos % 1000:
            raise SerdeError(f"{nanos} nanoseconds are no whole microseconds")
        return datetime.time(hour, minute, second, nanos // 1000)


class LocalDateTimeSerializer(ImmutableSerializer):
    """``datetime.datetime`` without a zone, or None: a date, then a time."""

    __slots__ = ()
    _DATE = LocalDateSerializer()
    _TIME = LocalTimeSerializer()
    min_size_bytes = 13

    def serialize(self, value: Any, output: DataOutput) -> None:
        """For None both parts are None."""
        if value is None:
            self._DATE.serialize(None, output)
            self._TIME.serialize(None, output)
            return
        if not isinstance(value, datetime.datetime):
            raise mismatch(value, "LocalDateTime")
        _refuse_zone(value, "LocalDateTime")
        _write_date(value, output)
        _write_time(value.time(), output)

    def deserialize(self, source: DataInput) -> datetime.datetime | None:
        """Refuses a value of which only one part is None."""
        date, time = self._DATE.deserialize(source), self._TIME.deserialize(source)
        if date is None and time is None:
            return None
        if date is None or time is None:
            raise SerdeError("a date and time of which one part is missing")
        return datetime.datetime.combine(date, time)


def _write_date(value: datetime.date, output: DataOutput) -> None:
    output.write_int(value.year)
    output.write_byte(value.month)
    output.write_byte(value.day)


def _write_time(value: datetime.time, output: DataOutput) -> None:
    output.write_byte(value.hour)
    output.write_byte(value.minute)
    output.write_byte(value.second)
    output.write_int(1000 * value.microsecond)


def _refuse_zone(value: datetime.time | datetime.datetime, name: str) -> None:
    if value.tzinfo is not None:
        raise ValueMismatchError(f"{preview(value)} has a time zone, which {name} does not keep")


LOCAL_TIME_SERIALIZERS: Final[dict[LocalTimeTypeInfo.TimeType, TypeSerializer]] = {
    LocalTimeTypeInfo.TimeType.LOCAL_DATE: LocalDateSerializer(),
    LocalTimeTypeInfo.TimeType.LOCAL_TIME: LocalTimeSerializer(),
    LocalTimeTypeInfo.TimeType.LOCAL_DATE_TIME: LocalDateTimeSerializer(),
}

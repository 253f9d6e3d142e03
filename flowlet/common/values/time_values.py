"""Forms of the plain types of dates, times and points in time.

Side:   pure.
Rules:  a time with an offset other than that of UTC is refused, because its type has no zone; one in UTC loses its
        zone.  An ``Instant`` is a text in UTC, and any offset is read.  ``converted``: times lose parts that the type
        cannot hold.
Source: Flink ``JsonRowDeserializationSchema``, which takes times in UTC only; RFC 3339.  Java ``Timestamp.toString``.
"""

import datetime
import re
import struct
from dataclasses import replace
from typing import Any, Final

from flowlet.common.time import Instant
from flowlet.common.typeinfo import LocalTimeTypeInfo, TypeInformation, Types
from flowlet.common.values.field_values import FieldForm, is_missing, misfit, of_class

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_SECOND: Final = datetime.timedelta(seconds=1)
_NO_OFFSET: Final = datetime.timedelta(0)
_CUT_FRACTION: Final = re.compile(r"[.,][0-9]{6}0*[1-9]")
_INSTANT_BYTES: Final = struct.Struct(">qi")
_INSTANT: Final = re.compile(
    r"([0-9-]{10}[Tt ][0-9:]{5,8})(?:[.,]([0-9]{1,9}))?(Z|z|[+-][0-9]{2}:?[0-9]{2}(?::?[0-9]{2})?)"
)


def unzoned(value: Any, wanted: str) -> Any:
    """Return a ``time`` or ``datetime`` without its zone, which must be UTC if it has one.  ValueError: it has another
    one.
    """
    if value.tzinfo is None:
        return value
    if value.utcoffset() != _NO_OFFSET:
        raise ValueError(
            f"{value.isoformat()} has an offset from UTC, which {wanted} cannot hold: convert it in map(), or use "
            "INSTANT"
        )
    return value.replace(tzinfo=None)


def _checked_date(value: Any) -> datetime.date:
    if type(value) is datetime.date:
        return value
    if not isinstance(value, datetime.date) or is_missing(value):
        raise misfit(value, "date")
    if isinstance(value, datetime.datetime) and (
        value.tzinfo is not None or value != datetime.datetime(*value.timetuple()[:3])  # noqa: DTZ001
    ):
        raise ValueError(f"{value.isoformat()} has a time or a zone, which a date cannot hold: use value.date()")
    return datetime.date(value.year, value.month, value.day)


def _checked_time(value: Any) -> datetime.time:
    if not isinstance(value, datetime.time):
        raise misfit(value, "time")
    return value if value.tzinfo is None else unzoned(value, "a time")


def _checked_timestamp(value: Any) -> datetime.datetime:
    if type(value) is not datetime.datetime:
        if not isinstance(value, datetime.datetime) or is_missing(value):
            raise misfit(value, "timestamp")
        if getattr(value, "nanosecond", 0):
            raise ValueError(f"{value.isoformat()} has nanoseconds, a timestamp has microseconds: round it in map()")
    return value if value.tzinfo is None else unzoned(value, "a timestamp")


def _uncut(text: str, size: int) -> str:
    """Return a text.  ValueError: it has digits below microseconds, which Python would drop; ``size``: of a text
    without them.
    """
    if len(text) > size and _CUT_FRACTION.search(text):
        raise ValueError(f"{text} has a fraction below microseconds, which would be lost")
    return text


_checked_instant: Final = of_class(Instant, "INSTANT", lambda value: value, kept=Instant, error=misfit)
_to_instant: Final = of_class(Instant, "an Instant", lambda value: value, kept=Instant)


def _instant_text(value: Instant) -> str:
    try:
        moment = (_EPOCH + _SECOND * value.seconds).replace(tzinfo=None)
    except OverflowError:
        raise ValueError(f"{value!r} is not in the years 1 to 9999, which a text can hold") from None
    return f"{moment.isoformat()}{f'.{value.nanos:09}' if value.nanos else ''}Z"


def _parsed_instant(text: str) -> Instant:
    found = _INSTANT.fullmatch(text)
    if found is None:
        raise ValueError(f"a point in time with an offset is expected, such as 2024-02-29T12:30:15Z, got {text!r}")
    moment, fraction, offset = found.groups()
    seconds = (datetime.datetime.fromisoformat(moment + offset.upper()) - _EPOCH) // _SECOND
    return Instant(seconds, int((fraction or "").ljust(9, "0")))


def _plain_date(value: Any) -> datetime.date:
    return datetime.date(value.year, value.month, value.day)


def _plain_time(value: Any) -> datetime.time:
    return datetime.time(value.hour, value.minute, value.second, value.microsecond // 1000 * 1000)


def _plain_timestamp(value: Any) -> datetime.datetime:
    plain: datetime.datetime = value.replace(tzinfo=None, microsecond=value.microsecond // 1000 * 1000)
    return plain


def _without_zone(value: Any) -> Any:
    return value if value.tzinfo is None else value.replace(tzinfo=None)


def _java_text_of_instant(value: Instant) -> str:
    moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=value.seconds)  # noqa: DTZ001  # its text has its own zone
    text = moment.isoformat(timespec="seconds")
    nanos = f"{value.nanos:09}"
    while nanos.endswith("000"):
        nanos = nanos[:-3]
    return f"{text}.{nanos}Z" if nanos else f"{text}Z"


def _java_text_of_timestamp(value: datetime.datetime) -> str:
    fraction = f"{value.microsecond:06}".rstrip("0") or "0"
    return f"{value.replace(microsecond=0, tzinfo=None).isoformat(' ')}.{fraction}"


_to_date: Final = of_class(datetime.date, "a datetime.date", _plain_date, kept=datetime.date)
_to_time: Final = of_class(datetime.time, "a datetime.time", _plain_time)
_to_timestamp: Final = of_class(datetime.datetime, "a datetime.datetime", _plain_timestamp)
_to_local_time: Final = of_class(datetime.time, "a datetime.time", _without_zone)
_to_local_timestamp: Final = of_class(datetime.datetime, "a datetime.datetime", _without_zone)


LOCAL_DATE, LOCAL_TIME, LOCAL_DATE_TIME = map(LocalTimeTypeInfo, LocalTimeTypeInfo.TimeType)
_DATE: Final = FieldForm(
    _checked_date,
    datetime.date.isoformat,
    datetime.date.fromisoformat,
    _to_date,
    is_nullable=True,
    changes=True,
    arrow="date32",
)
_TIME: Final = FieldForm(
    _checked_time,
    datetime.time.isoformat,
    lambda text: unzoned(datetime.time.fromisoformat(_uncut(text, 15)), "a time"),
    _to_local_time,
    is_nullable=True,
    changes=True,
    arrow="time64[us]",
)
_TIMESTAMP: Final = FieldForm(
    _checked_timestamp,
    datetime.datetime.isoformat,
    lambda text: unzoned(datetime.datetime.fromisoformat(_uncut(text, 26)), "a timestamp"),
    _to_local_timestamp,
    is_nullable=True,
    changes=True,
    arrow="timestamp[us]",
)
TIME_FORMS: Final[dict[TypeInformation, FieldForm]] = {
    Types.SQL_DATE(): replace(_DATE, exact=datetime.date, changes=False),
    Types.SQL_TIME(): replace(
        _TIME,
        converted=_to_time,
        collected=lambda value: _to_time(value).replace(microsecond=0),
        classes=(datetime.time,),
        java_text=lambda value: value.isoformat(timespec="seconds"),
    ),
    Types.SQL_TIMESTAMP(): replace(
        _TIMESTAMP, converted=_to_timestamp, classes=(datetime.datetime,), java_text=_java_text_of_timestamp
    ),
    Types.INSTANT(): FieldForm(
        _checked_instant,
        _instant_text,
        _parsed_instant,
        _to_instant,
        exact=Instant,
        is_nullable=True,
        classes=(object,),
        java_text=_java_text_of_instant,
        to_bytes=lambda value: _INSTANT_BYTES.pack(value.seconds, value.nanos),
        from_bytes=lambda data: Instant(*_INSTANT_BYTES.unpack(data)),
    ),
    LOCAL_DATE: _DATE,
    LOCAL_TIME: _TIME,
    LOCAL_DATE_TIME: _TIMESTAMP,
}

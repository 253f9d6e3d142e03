"""``FieldForm``: values of the plain declared types, checked, and as texts and back; CSV and JSON have one rule for
both.

Side:   pure.
Rules:  a value that is not of its type, or does not fit into it, is a ValueError that shows the value and the type:
        nothing wraps around, is cut off, or becomes infinite.  A time with an offset other than that of UTC is refused,
        because its type has no zone; one in UTC loses its zone.  An ``Instant`` is a text in UTC, and any offset is
        read.  Texts of numbers have the digits 0 to 9, and no ``_``.  Scalars of numpy count as Python's values; NaT
        and NA of pandas are no values.
Source: Flink ``JsonRowDeserializationSchema``, which takes times in UTC only; RFC 3339.
"""

import base64
import binascii
import ctypes
import datetime
import decimal
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from flowlet.common.time import Instant
from flowlet.common.typeinfo import (
    INTEGER_BITS,
    BasicType,
    BasicTypeInfo,
    DateTypeInfo,
    LocalTimeTypeInfo,
    TimestampTypeInfo,
    TimeTypeInfo,
    TypeInformation,
    Types,
    integer_limits,
)
from netstack.late import dataclass

Convert = Callable[[Any], Any]
R = TypeVar("R")

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_SECOND: Final = datetime.timedelta(seconds=1)
_NO_OFFSET: Final = datetime.timedelta(0)
# The least float that does not fit into 32 bits: half a step above the largest one that does (IEEE 754, round half to
# even).
FLOAT32_LIMIT: Final = 2.0**128 - 2.0**103
_INFINITE: Final = frozenset({"inf", "infinity"})
_CUT_FRACTION: Final = re.compile(r"[.,][0-9]{6}0*[1-9]")
_INSTANT: Final = re.compile(
    r"([0-9-]{10}[Tt ][0-9:]{5,8})(?:[.,]([0-9]{1,9}))?(Z|z|[+-][0-9]{2}:?[0-9]{2}(?::?[0-9]{2})?)"
)
_BOOLEANS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class FieldForm:
    """The functions by which the formats convert one plain type; all three raise ValueError.

    Attributes:
        checked: a value of a record, as Python's own value of the type.
        text: of a checked value.
        parsed: the value of a text.
        is_text: whether every text is a value, also an empty one.
    """

    checked: Convert
    text: Callable[[Any], str]
    parsed: Callable[[str], Any]
    is_text: bool = False


def field_form(type_info: TypeInformation) -> FieldForm | None:
    """Return the form of a plain type: a number, text, boolean, date, time, point in time, or bytes; None: it has
    parts, or is unknown.
    """
    return row_of(_FORMS, type_info)


def row_of(table: Mapping[TypeInformation, R], type_info: TypeInformation) -> R | None:
    """Return the row of a type, or of the basic type that it is; None: there is none, or it is a user's type without a
    hash.
    """
    try:
        found = table.get(type_info)
    except TypeError:
        found = None
    if found is None and isinstance(type_info, BasicTypeInfo):
        is_instant = type_info.basic_type is BasicType.INSTANT
        found = table.get(Types.INSTANT() if is_instant else BasicTypeInfo(type_info.basic_type))
    return found


def known_form(type_info: TypeInformation) -> FieldForm:
    """Return the form of a type that is known to be plain."""
    form = field_form(type_info)
    assert form is not None, "the caller has checked the type"
    return form


def plain_list(value: Any, *, allows_none: bool) -> Sequence[Any]:
    """Return the elements of a list, tuple, ``array.array`` or array of numpy.  ValueError: it is none,
    or has a None.
    """
    plain: Sequence[Any] = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(plain, list | tuple):
        raise misfit(value, "list")
    if not allows_none and None in plain:
        raise misfit(None, "element of an array of primitives")
    return plain


def is_bytes(type_info: TypeInformation) -> bool:
    """Whether values of the type are ``bytes``: a list, or an array of primitives, of BYTE."""
    return row_of(_FORMS, type_info) is _BYTES


def misfit(value: Any, wanted: str) -> ValueError:
    """Make the error for a value that is no ``wanted``."""
    text = repr(value)
    shown = text if len(text) <= 80 else f"{text[:77]}..."  # fits into a line
    return ValueError(f"{shown} of type {type(value).__name__} is no {wanted}")


def is_missing(value: Any) -> bool:
    """Whether ``value`` is NaT or NA of pandas or numpy, which are no values; neither package is imported for that."""
    name = type(value).__name__
    return name in {"NaTType", "NAType"} or (name in {"datetime64", "timedelta64"} and str(value) == "NaT")


def is_time(type_info: TypeInformation) -> bool:
    """Whether the type is a date, a time or a timestamp, which have no zone."""
    return isinstance(type_info, DateTypeInfo | TimeTypeInfo | TimestampTypeInfo | LocalTimeTypeInfo)


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


def _from_numpy(value: Any) -> Any:
    """Return the value of a scalar of numpy as Python's; any other value itself."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0 else value


# ---------------------------------------------------------------- texts and booleans


def _checked_text(value: Any) -> str:
    if type(value) is str:
        return value
    if not isinstance(value, str):
        raise misfit(value, "STRING")
    return str.__str__(value)


def _checked_character(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 1:
        raise misfit(value, "CHAR")
    return str.__str__(value)


def _checked_boolean(value: Any) -> bool:
    if type(value) is bool:
        return value
    plain = _from_numpy(value)
    if type(plain) is not bool:
        raise misfit(value, "BOOLEAN")
    return plain


def _parsed_boolean(text: str) -> bool:
    found = _BOOLEANS.get(text.lower())
    if found is None:
        raise ValueError(f"true or false is expected, got {text!r}")
    return found


# ---------------------------------------------------------------- numbers


def _integer_form(kind: BasicType) -> FieldForm:
    bits = INTEGER_BITS.get(kind)
    low, high = integer_limits(BasicTypeInfo(kind)) or (-math.inf, math.inf)

    def checked(value: Any) -> int:
        plain = value if type(value) is int else _from_numpy(value)
        if not isinstance(plain, int) or isinstance(plain, bool):
            raise misfit(value, kind.name)
        if not low <= plain <= high:
            raise ValueError(f"{plain} does not fit into the {bits} bits of {kind.name}")
        return int(plain)

    def parsed(text: str) -> int:
        number = int(_digits(text))
        if not low <= number <= high:
            raise ValueError(f"{number} does not fit into the {bits} bits of {kind.name}")
        return number

    return FieldForm(checked, str, parsed)


def _digits(text: str) -> str:
    """Return the text of a number.  ValueError: it has an underscore or a character beyond ASCII, which Python's own
    functions take.
    """
    if "_" in text or not text.isascii():
        raise ValueError(f"a number is expected, got {text!r}")
    return text


def checked_double(value: Any) -> float:
    """Return a float; of an int only if that is a float without being rounded."""
    if type(value) is float:
        return value
    plain = _from_numpy(value)
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        raise misfit(value, "DOUBLE")
    try:
        number = float(plain)
    except OverflowError:
        raise ValueError(f"{plain} does not fit into DOUBLE") from None
    if isinstance(plain, int) and number != plain:
        raise ValueError(f"{plain} does not fit into DOUBLE without being rounded")
    return number


def checked_float(value: Any) -> float:
    """Check a value as ``checked_double`` does, and that 32 bits can hold a number of its size."""
    number = value if type(value) is float else checked_double(value)
    if -FLOAT32_LIMIT < number < FLOAT32_LIMIT or number - number != 0:  # or it is NaN or infinite itself
        return number
    raise ValueError(f"{number!r} does not fit into the 32 bits of FLOAT")


def rounded_float(value: Any) -> float:
    """Check a value as ``checked_float`` does, and round it to 32 bits."""
    return ctypes.c_float(checked_float(value)).value


def parsed_double(text: str) -> float:
    """Parse a number, which is infinite only if the text says so."""
    number = float(_digits(text))
    if math.isinf(number) and text.lower().lstrip("+-") not in _INFINITE:
        raise ValueError(f"{text} does not fit into DOUBLE")
    return number


def _checked_decimal(value: Any) -> decimal.Decimal:
    if isinstance(value, int) and not isinstance(value, bool):
        return decimal.Decimal(value)
    if not isinstance(value, decimal.Decimal):
        raise misfit(value, "BIG_DEC")
    if not value.is_finite():
        raise ValueError(f"{value} is no number, which BIG_DEC cannot hold")
    return value


def parsed_decimal(text: str) -> decimal.Decimal:
    """Parse a number, with all its digits."""
    try:
        return _checked_decimal(decimal.Decimal(_digits(text)))
    except decimal.InvalidOperation:
        raise ValueError(f"a decimal is expected, got {text!r}") from None


# ---------------------------------------------------------------- dates and times


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


def _parsed_time(text: str) -> datetime.time:
    return unzoned(datetime.time.fromisoformat(_uncut(text, 15)), "a time")  # type: ignore[no-any-return]  # as above


def _parsed_timestamp(text: str) -> datetime.datetime:
    return unzoned(datetime.datetime.fromisoformat(_uncut(text, 26)), "a timestamp")  # type: ignore[no-any-return]  # as above


def _uncut(text: str, size: int) -> str:
    """Return a text.  ValueError: it has digits below microseconds, which Python would drop; ``size``: of a text
    without them.
    """
    if len(text) > size and _CUT_FRACTION.search(text):
        raise ValueError(f"{text} has a fraction below microseconds, which would be lost")
    return text


def _checked_instant(value: Any) -> Instant:
    if not isinstance(value, Instant):
        raise misfit(value, "INSTANT")
    return value


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


# ---------------------------------------------------------------- bytes


def _checked_bytes(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if not isinstance(value, bytes | bytearray | memoryview):
        raise misfit(value, "bytes")
    return bytes(value)


def _parsed_bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"bytes in base64 are expected, got {text!r}") from error


_DATE: Final = FieldForm(_checked_date, datetime.date.isoformat, datetime.date.fromisoformat)
_TIME: Final = FieldForm(_checked_time, datetime.time.isoformat, _parsed_time)
_TIMESTAMP: Final = FieldForm(_checked_timestamp, datetime.datetime.isoformat, _parsed_timestamp)
_BYTES: Final = FieldForm(_checked_bytes, lambda value: base64.b64encode(value).decode(), _parsed_bytes)
_LOCAL: Final = LocalTimeTypeInfo.TimeType
_FORMS: Final[dict[TypeInformation, FieldForm]] = {
    Types.STRING(): FieldForm(_checked_text, str, str, is_text=True),
    Types.CHAR(): FieldForm(_checked_character, str, _checked_character, is_text=True),
    Types.BOOLEAN(): FieldForm(_checked_boolean, lambda value: "true" if value else "false", _parsed_boolean),
    **{BasicTypeInfo(kind): _integer_form(kind) for kind in (*INTEGER_BITS, BasicType.BIG_INT)},
    Types.FLOAT(): FieldForm(checked_float, repr, lambda text: rounded_float(parsed_double(text))),
    Types.DOUBLE(): FieldForm(checked_double, repr, parsed_double),
    Types.BIG_DEC(): FieldForm(_checked_decimal, str, parsed_decimal),
    Types.INSTANT(): FieldForm(_checked_instant, _instant_text, _parsed_instant),
    Types.SQL_DATE(): _DATE,
    Types.SQL_TIME(): _TIME,
    Types.SQL_TIMESTAMP(): _TIMESTAMP,
    LocalTimeTypeInfo(_LOCAL.LOCAL_DATE): _DATE,
    LocalTimeTypeInfo(_LOCAL.LOCAL_TIME): _TIME,
    LocalTimeTypeInfo(_LOCAL.LOCAL_DATE_TIME): _TIMESTAMP,
    Types.LIST(Types.BYTE()): _BYTES,
    Types.PRIMITIVE_ARRAY(Types.BYTE()): _BYTES,
}

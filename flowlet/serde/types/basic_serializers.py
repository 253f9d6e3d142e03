"""Serializers of numbers, texts, dates and times, also local ones, which refer to no time zone; and of any object
without a declared type.

Side:       pure.
Invariants: all values but such objects are immutable.  A value that Flink's format cannot hold (a time with
            microseconds, a point in time with a zone) is refused, never changed, except that FLOAT is rounded to 32
            bits.  Local dates and times are exact to the microsecond.  Pickles are opened only if they come from an
            authenticated peer of the same cluster, or from the task's own state.
Units:      dates and times in UTC; milliseconds since 1970 or since midnight.
Format:     of objects: i32 size, then the bytes of ``record_pickle.dumps_value``.
Source:     Flink ``StringValue``, ``IntSerializer`` and its siblings, ``BigIntSerializer``, ``BigDecSerializer``,
            ``InstantSerializer``, ``SqlDateSerializer``, ``SqlTimeSerializer``, ``SqlTimestampSerializer``,
            ``LocalDateSerializer``, ``LocalTimeSerializer``, ``LocalDateTimeSerializer``.  PyFlink
            ``PickledBytesTypeInfo``: a byte array to Flink.
"""

import copy
import datetime
import decimal
from collections.abc import Callable
from itertools import chain
from typing import Any, Final

from flowlet.common.time import Instant
from flowlet.common.typeinfo import BasicType, LocalTimeTypeInfo
from flowlet.errors import SerdeError
from flowlet.serde.data_view import DataInput, DataOutput
from flowlet.serde.pickles.record_pickle import dumps_value, loads_value
from flowlet.serde.type_serializer import TypeSerializer, ValueMismatchError, mismatch, preview

_MILLIS_PER_DAY: Final = 86_400_000
_EPOCH: Final = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - compared with values that have no zone
_EPOCH_ORDINAL: Final = _EPOCH.toordinal()
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
_NULL_MILLIS: Final = -(2**63)
# Flink's scale is an i32.  Without the limit, ``10 ** scale`` of a larger one would exhaust the memory.
_MAX_SCALE: Final = 2**31 - 1
# About 9,800 digits.  Converting between binary and decimal digits takes time with the square of their number.
_MAX_UNSCALED_BYTES: Final = 4096


class ImmutableSerializer(TypeSerializer):
    """Base class for immutable values, which need no copies."""

    __slots__ = ()
    is_immutable = True


class IntegerSerializer(ImmutableSerializer):
    """``int`` of 8, 16, 32 or 64 bits."""

    __slots__ = ("_name", "_num_bytes", "_range")

    def __init__(self, basic_type: BasicType, num_bytes: int) -> None:
        self._name = basic_type.value
        self._num_bytes = num_bytes
        bound = 1 << (8 * num_bytes - 1)
        self._range = range(-bound, bound)

    @property
    def min_size_bytes(self) -> int:
        """1, 2, 4 or 8."""
        return self._num_bytes

    def serialize(self, value: Any, output: DataOutput) -> None:
        """Big-endian, with a sign."""
        if not isinstance(value, int) or isinstance(value, bool):
            raise mismatch(value, self._name)
        if value not in self._range:
            raise ValueMismatchError(
                f"{preview(value)} does not fit into the {8 * self._num_bytes} bits of {self._name}"
            )
        output.write(value.to_bytes(self._num_bytes, "big", signed=True))

    def deserialize(self, source: DataInput) -> int:
        """Big-endian, with a sign."""
        return int.from_bytes(source.read_view(self._num_bytes), "big", signed=True)

    def __repr__(self) -> str:
        return f"{self._name}Serializer"


class BooleanSerializer(ImmutableSerializer):
    """``bool``, one byte."""

    __slots__ = ()

    def serialize(self, value: Any, output: DataOutput) -> None:
        """0 or 1."""
        if not isinstance(value, bool):
            raise mismatch(value, "Boolean")
        output.write_boolean(value=value)

    def deserialize(self, source: DataInput) -> bool:
        """0 or 1; anything else is corrupt."""
        return source.read_boolean()


class FloatingSerializer(ImmutableSerializer):
    """``float`` (or a whole ``int``) of 32 or 64 bits; deserialized as a ``float``."""

    __slots__ = ("_is_double",)

    def __init__(self, *, is_double: bool) -> None:
        self._is_double = is_double

    @property
    def min_size_bytes(self) -> int:
        """4 or 8."""
        return 8 if self._is_double else 4

    def serialize(self, value: Any, output: DataOutput) -> None:
        """IEEE 754, big-endian."""
        name = "Double" if self._is_double else "Float"
        if not isinstance(value, float | int) or isinstance(value, bool):
            raise mismatch(value, name)
        try:
            (output.write_double if self._is_double else output.write_float)(float(value))
        except OverflowError:
            raise ValueMismatchError(
                f"{preview(value)} does not fit into the {8 * self.min_size_bytes} bits of {name}"
            ) from None

    def deserialize(self, source: DataInput) -> float:
        """IEEE 754, big-endian."""
        return source.read_double() if self._is_double else source.read_float()

    def __repr__(self) -> str:
        return "DoubleSerializer" if self._is_double else "FloatSerializer"


class CharSerializer(ImmutableSerializer):
    """``str`` of one character that is one UTF-16 code unit."""

    __slots__ = ()
    min_size_bytes = 2

    def serialize(self, value: Any, output: DataOutput) -> None:
        """The code unit."""
        if not isinstance(value, str):
            raise mismatch(value, "Char")
        if len(value) != 1 or ord(value) > 0xFFFF:
            raise ValueMismatchError(f"{preview(value)} is not one character of 16 bits")
        output.write_char(ord(value))

    def deserialize(self, source: DataInput) -> str:
        """The code unit."""
        return chr(source.read_char())


class StringSerializer(ImmutableSerializer):
    """``str``, or None: the number of UTF-16 code units plus one, then each unit, all as varints; 0 is None."""

    __slots__ = ()

    def serialize(self, value: Any, output: DataOutput) -> None:
        """A pure ASCII text is copied as it is: the varint of each unit is its one byte."""
        if value is None:
            output.write_varint(0)
            return
        if not isinstance(value, str):
            raise mismatch(value, "String")
        if value.isascii():
            output.write_varint(len(value) + 1)
            output.write(value.encode("ascii"))
            return
        raw = _utf_16(value)
        output.write_varint(len(raw) // 2 + 1)
        for index in range(0, len(raw), 2):
            output.write_varint(raw[index] << 8 | raw[index + 1])

    def deserialize(self, source: DataInput) -> str | None:
        """Refuses units of more than 16 bits."""
        num_units = source.read_varint() - 1
        if num_units < 0:
            return None
        if num_units > source.remaining:
            raise SerdeError(f"a text of {num_units} characters in the {source.remaining} bytes that are left")
        start = source.position
        raw = source.read(num_units)
        if raw.isascii():
            return raw.decode("ascii")
        source.position = start
        units = bytearray()
        for _ in range(num_units):
            unit = source.read_varint()
            if unit > 0xFFFF:
                raise SerdeError(f"a text with a character unit of {unit}")
            units += unit.to_bytes(2, "big")
        return units.decode("utf-16-be", "surrogatepass")


def _utf_16(value: str) -> bytes:
    try:
        return value.encode("utf-16-be")
    except UnicodeEncodeError:  # lone surrogates
        raw = value.encode("utf-16-be", "surrogatepass")
    if raw.decode("utf-16-be", "surrogatepass") != value:
        raise ValueMismatchError(
            f"{preview(value)} has two lone surrogates side by side, which in UTF-16 are one character"
        )
    return raw


class BigIntegerSerializer(ImmutableSerializer):
    """``int`` of any size, or None."""

    __slots__ = ()
    min_size_bytes = 4

    def serialize(self, value: Any, output: DataOutput) -> None:
        """Size and bytes, or a code for None, 0, 1 and 10."""
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise mismatch(value, "BigInteger")
        write_big_integer(value, output)

    def deserialize(self, source: DataInput) -> int | None:
        """What ``serialize`` wrote."""
        return read_big_integer(source)


class BigDecimalSerializer(ImmutableSerializer):
    """``decimal.Decimal``, finite, of some 9,800 digits at most, or None: the digits as a big
    integer, then the scale.
    """

    __slots__ = ()
    min_size_bytes = 4

    def serialize(self, value: Any, output: DataOutput) -> None:
        """Keeps trailing zeros.  Refuses -0, because Java's zero has no sign."""
        if value is None:
            write_big_integer(None, output)
            return
        if not isinstance(value, decimal.Decimal):
            raise mismatch(value, "BigDecimal")
        sign, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int) or (sign and not value) or abs(exponent) > _MAX_SCALE:
            raise ValueMismatchError(
                f"{preview(value)} is no BigDecimal: it is not finite, is minus zero, or has too large an exponent"
            )
        unscaled = int(decimal.Decimal((sign, digits, 0))) if len(digits) < 3 * _MAX_UNSCALED_BYTES else None
        if unscaled is None or unscaled.bit_length() >= 8 * _MAX_UNSCALED_BYTES:
            raise ValueMismatchError(f"{preview(value)} has {len(digits)} digits, more than a BigDecimal may have here")
        write_big_integer(unscaled, output)
        output.write_int(-exponent)

    def deserialize(self, source: DataInput) -> decimal.Decimal | None:
        """Keeps all digits, whatever the precision of the decimal context."""
        unscaled = read_big_integer(source, _MAX_UNSCALED_BYTES)
        if unscaled is None:
            return None
        digits = decimal.Decimal(unscaled).as_tuple().digits
        return decimal.Decimal((int(unscaled < 0), digits, -source.read_int()))


_BIG_CONSTANTS: Final[dict[int | None, int]] = {None: 0, 0: 1, 1: 2, 10: 3}
_BIG_CODES: Final = {code: value for value, code in _BIG_CONSTANTS.items()}
_BIG_SIZE_OFFSET: Final = 4


def write_big_integer(value: int | None, output: DataOutput) -> None:
    """Write an int of any size: its code, or its size plus 4 and its fewest bytes."""
    code = _BIG_CONSTANTS.get(value)
    if code is not None:
        output.write_int(code)
        return
    assert value is not None, "None has a code"
    # One bit more than the number has, for the sign; without it 128 would be read as -128.
    raw = value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True)
    output.write_int(len(raw) + _BIG_SIZE_OFFSET)
    output.write(raw)


def read_big_integer(source: DataInput, max_bytes: int | None = None) -> int | None:
    """Read an int that ``write_big_integer`` wrote.  Raises SerdeError: it has more than ``max_bytes``."""
    size = source.read_int()
    if size in _BIG_CODES:
        return _BIG_CODES[size]
    if max_bytes is not None and size - _BIG_SIZE_OFFSET > max_bytes:
        raise SerdeError(f"a number of {size - _BIG_SIZE_OFFSET} bytes, allowed are {max_bytes}")
    return int.from_bytes(source.read_view(size - _BIG_SIZE_OFFSET), "big", signed=True)


class InstantSerializer(ImmutableSerializer):
    """``Instant``, or None: i64 seconds, i32 nanoseconds."""

    __slots__ = ()
    _NULL = (-(2**63), -(2**31))
    min_size_bytes = 12

    def serialize(self, value: Any, output: DataOutput) -> None:
        """None is the smallest number in both fields."""
        if value is not None and not isinstance(value, Instant):
            raise mismatch(value, "Instant")
        seconds, nanos = self._NULL if value is None else (value.seconds, value.nanos)
        output.write_long(seconds)
        output.write_int(nanos)

    def deserialize(self, source: DataInput) -> Instant | None:
        """The reverse of ``serialize``."""
        parts = source.read_long(), source.read_int()
        return None if parts == self._NULL else Instant(*parts)


class MillisSerializer(ImmutableSerializer):
    """A date or a time of day as i64 milliseconds, or None."""

    __slots__ = ("_class", "_from_millis", "_name", "_to_millis")
    min_size_bytes = 8

    def __init__(
        self, name: str, kind: type, to_millis: Callable[[Any], int], from_millis: Callable[[int], Any]
    ) -> None:
        self._name = name
        self._class = kind
        self._to_millis = to_millis
        self._from_millis = from_millis

    def serialize(self, value: Any, output: DataOutput) -> None:
        """None is the smallest number."""
        # A datetime is an instance of date, too, but its time would be lost.
        if value is not None and (not isinstance(value, self._class) or isinstance(value, datetime.datetime)):
            raise mismatch(value, self._name)
        output.write_long(_NULL_MILLIS if value is None else self._to_millis(value))

    def deserialize(self, source: DataInput) -> Any:
        """Refuses numbers that are no date or time."""
        millis = source.read_long()
        return None if millis == _NULL_MILLIS else self._from_millis(millis)

    def __repr__(self) -> str:
        return f"{self._name}Serializer"


class TimestampSerializer(ImmutableSerializer):
    """``datetime.datetime`` without a zone, or None: i64 milliseconds, i32 nanoseconds of the second."""

    __slots__ = ()
    min_size_bytes = 12

    def serialize(self, value: Any, output: DataOutput) -> None:
        """The milliseconds of the second are in both fields, as in Java."""
        if value is None:
            output.write_long(_NULL_MILLIS)
            output.write_int(0)
            return
        if not isinstance(value, datetime.datetime):
            raise mismatch(value, "SqlTimestamp")
        if value.tzinfo is not None:
            raise ValueMismatchError(
                f"{preview(value)} has a time zone, which SqlTimestamp does not keep: convert it, or use "
                "Types.INSTANT()"
            )
        output.write_long((value - _EPOCH) // _MICROSECOND // 1000)
        output.write_int(1000 * value.microsecond)

    def deserialize(self, source: DataInput) -> datetime.datetime | None:
        """Refuses fractions of a microsecond, which a ``datetime`` cannot hold."""
        millis, nanos = source.read_long(), source.read_int()
        if millis == _NULL_MILLIS:
            return None
        if nanos % 1000 or nanos // 1_000_000 != millis % 1000:
            raise SerdeError(
                f"{nanos} nanoseconds of the second do not go with {millis} milliseconds, or are no whole microseconds"
            )
        return _EPOCH + datetime.timedelta(milliseconds=millis, microseconds=nanos // 1000 % 1000)


def _date_to_millis(value: datetime.date) -> int:
    return (value.toordinal() - _EPOCH_ORDINAL) * _MILLIS_PER_DAY


def _date_from_millis(millis: int) -> datetime.date:
    return datetime.date.fromordinal(millis // _MILLIS_PER_DAY + _EPOCH_ORDINAL)


def _time_to_millis(value: datetime.time) -> int:
    millis, rest = divmod(value.microsecond, 1000)
    if value.tzinfo is not None or rest:
        raise ValueMismatchError(
            f"{preview(value)} has a time zone or parts of a millisecond, which SqlTime does not keep"
        )
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + millis


def _time_from_millis(millis: int) -> datetime.time:
    seconds, fraction = divmod(millis, 1000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return datetime.time(hour, minute, second, 1000 * fraction)


BASIC_SERIALIZERS: Final[dict[BasicType, TypeSerializer]] = {
    BasicType.STRING: StringSerializer(),
    BasicType.BYTE: IntegerSerializer(BasicType.BYTE, 1),
    BasicType.BOOLEAN: BooleanSerializer(),
    BasicType.SHORT: IntegerSerializer(BasicType.SHORT, 2),
    BasicType.INT: IntegerSerializer(BasicType.INT, 4),
    BasicType.LONG: IntegerSerializer(BasicType.LONG, 8),
    BasicType.FLOAT: FloatingSerializer(is_double=False),
    BasicType.DOUBLE: FloatingSerializer(is_double=True),
    BasicType.CHAR: CharSerializer(),
    BasicType.BIG_INT: BigIntegerSerializer(),
    BasicType.BIG_DEC: BigDecimalSerializer(),
    BasicType.INSTANT: InstantSerializer(),
}
SQL_DATE_SERIALIZER: Final = MillisSerializer("SqlDate", datetime.date, _date_to_millis, _date_from_millis)
SQL_TIME_SERIALIZER: Final = MillisSerializer("SqlTime", datetime.time, _time_to_millis, _time_from_millis)
SQL_TIMESTAMP_SERIALIZER: Final = TimestampSerializer()


# Exact types only: an instance of a subclass may have mutable attributes.
_ATOMS: Final = frozenset({int, str, float, bool, bytes, type(None), complex})


class PickledSerializer(TypeSerializer):
    """Any object that can be pickled.

    Hot path: ``copy_all`` runs between chained operators unless objects are reused.  It looks once at the types of a
    whole list of atoms, or of tuples of atoms, and then copies nothing.
    """

    __slots__ = ()
    min_size_bytes = 4

    def serialize(self, value: Any, output: DataOutput) -> None:
        """Functions and classes of the main module are pickled by value."""
        try:
            data = dumps_value(value)
        except SerdeError as error:
            raise ValueMismatchError(f"{preview(value)} cannot be pickled: {error}") from error
        output.write_int(len(data))
        output.write(data)

    def deserialize(self, source: DataInput) -> Any:
        """Unpickle; runs whatever code the value's class defines for it."""
        data = source.read_view(source.read_count("bytes", min_bytes_each=1))
        try:
            return loads_value(data)
        except SerdeError:
            raise
        except Exception as error:
            raise SerdeError(f"a pickle cannot be read: {type(error).__name__}: {error}") from error

    def copy_all(self, values: list[Any]) -> list[Any]:
        """``copy`` of each value; only the list is new if the types show that no value can change."""
        types = set(map(type, values))
        if types <= _ATOMS or (types == {tuple} and _ATOMS.issuperset(map(type, chain.from_iterable(values)))):
            return values[:]
        return [self.copy(value) for value in values]

    def _copy(self, value: Any) -> Any:
        if type(value) in _ATOMS or (type(value) is tuple and _ATOMS.issuperset(map(type, value))):
            return value
        try:
            return copy.deepcopy(value)
        except Exception as error:
            reason = f"cannot be copied ({type(error).__name__}: {error}): enable object reuse, or pass something else"
            raise ValueMismatchError(f"{preview(value)} {reason}") from error


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

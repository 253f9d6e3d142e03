"""The bytes of values that have no column form: big integers, decimals, points in time, times of day, record batches.

Side:       pure.
Invariants: reading takes exactly the bytes that writing gave.  A value that the bytes cannot hold is refused, never
            changed.
Format:     numbers big-endian.  Of an ``int`` of any size: i32 code for 0, 1 and 10, or i32 size plus 4, and its fewest
            bytes.  Of a ``decimal.Decimal``: its digits as such an int, then the i32 scale.  Of an ``Instant``: i64
            seconds, i32 nanoseconds.  Of a ``datetime.time``: i8 hour, i8 minute, i8 second, i32 nanoseconds.  Of a
            ``pyarrow.RecordBatch``: i32 size, then ``message_of_batch``.
Source:     Flink ``BigIntSerializer``, ``BigDecSerializer``, ``InstantSerializer``, ``LocalTimeSerializer``.
Absent:     None, which columns keep apart (NULLS).
"""

import datetime
import decimal
import struct
from collections.abc import Callable
from typing import Any, Final

from flowlet.common.time import Instant
from flowlet.common.typeinfo import (
    ArrowTypeInfo,
    BasicType,
    BasicTypeInfo,
    LocalTimeTypeInfo,
    TimeTypeInfo,
    TypeInformation,
)
from flowlet.errors import SerdeError
from flowlet.serde.type_serializer import ValueMismatchError, mismatch, preview
from netstack.late import dataclass

# Flink's scale is an i32.  Without the limit, ``10 ** scale`` of a larger one would exhaust the memory.
_MAX_SCALE: Final = 2**31 - 1
# About 9,800 digits.  Converting between binary and decimal digits takes time with the square of their number.
_MAX_UNSCALED_BYTES: Final = 4096
_BIG_CODES: Final = {0: 1, 1: 2, 10: 3}
_BIG_VALUES: Final = {code: value for value, code in _BIG_CODES.items()}
_BIG_SIZE_OFFSET: Final = 4
_INT: Final = struct.Struct(">i")
_INSTANT: Final = struct.Struct(">qi")
_TIME: Final = struct.Struct(">bbbi")


class ByteReader:
    """Reads values one after the other.  A failed read does not move ``position``."""

    __slots__ = ("_view", "position")

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self.position = 0

    @property
    def remaining(self) -> int:
        """How many bytes are left."""
        return len(self._view) - self.position

    def take(self, num_bytes: int) -> memoryview:
        """The next bytes, without a copy.  Raises SerdeError: fewer are left."""
        start = self.position
        if not 0 <= num_bytes <= self.remaining:
            raise SerdeError(f"{num_bytes} bytes are expected, {self.remaining} are left")
        self.position = start + num_bytes
        return self._view[start : self.position]

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        """The next numbers.  Raises SerdeError: too few bytes are left."""
        return layout.unpack(self.take(layout.size))


@dataclass(frozen=True, slots=True)
class ValueForm:
    """The bytes of the values of one type.

    ``name``: for messages.  ``min_size_bytes``: of a value; a count that cannot fit into the bytes is refused.
    ``write`` raises ValueMismatchError: the value is not of the type.  ``read`` may raise anything for corrupt bytes.
    """

    name: str
    min_size_bytes: int
    write: Callable[[Any], bytes]
    read: Callable[[ByteReader], Any]


def _write_big_integer(value: Any) -> bytes:
    if not isinstance(value, int) or isinstance(value, bool):
        raise mismatch(value, "BigInteger")
    return _big_integer_bytes(value)


def _big_integer_bytes(value: int) -> bytes:
    code = _BIG_CODES.get(value)
    if code is not None:
        return _INT.pack(code)
    # One bit more than the number has, for the sign; without it 128 would be read as -128.
    raw = value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True)
    return _INT.pack(len(raw) + _BIG_SIZE_OFFSET) + raw


def _read_big_integer(source: ByteReader, max_bytes: int | None = None) -> int:
    (size,) = source.unpack(_INT)
    if size in _BIG_VALUES:
        return _BIG_VALUES[size]
    num_bytes = size - _BIG_SIZE_OFFSET
    if max_bytes is not None and num_bytes > max_bytes:
        raise SerdeError(f"a number of {num_bytes} bytes, allowed are {max_bytes}")
    return int.from_bytes(source.take(num_bytes), "big", signed=True)


def _write_decimal(value: Any) -> bytes:
    """Keeps trailing zeros.  Refuses -0, because Java's zero has no sign."""
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
    return _big_integer_bytes(unscaled) + _INT.pack(-exponent)


def _read_decimal(source: ByteReader) -> decimal.Decimal:
    """Keeps all digits, whatever the precision of the decimal context."""
    unscaled = _read_big_integer(source, _MAX_UNSCALED_BYTES)
    digits = decimal.Decimal(unscaled).as_tuple().digits
    (scale,) = source.unpack(_INT)
    return decimal.Decimal((int(unscaled < 0), digits, -scale))


def _write_instant(value: Any) -> bytes:
    if not isinstance(value, Instant):
        raise mismatch(value, "Instant")
    return _INSTANT.pack(value.seconds, value.nanos)


def _write_time(value: Any) -> bytes:
    if not isinstance(value, datetime.time):
        raise mismatch(value, "LocalTime")
    if value.tzinfo is not None:
        raise ValueMismatchError(f"{preview(value)} has a time zone, which LocalTime does not keep")
    return _TIME.pack(value.hour, value.minute, value.second, 1000 * value.microsecond)


def _read_time(source: ByteReader) -> datetime.time:
    hour, minute, second, nanos = source.unpack(_TIME)
    if nanos % 1000:
        raise SerdeError(f"{nanos} nanoseconds are no whole microseconds")
    return datetime.time(hour, minute, second, nanos // 1000)


_BASIC: Final = {
    BasicType.BIG_INT: ValueForm("BigIntegerSerializer", 4, _write_big_integer, _read_big_integer),
    BasicType.BIG_DEC: ValueForm("BigDecimalSerializer", 4, _write_decimal, _read_decimal),
    BasicType.INSTANT: ValueForm(
        "InstantSerializer", 12, _write_instant, lambda source: Instant(*source.unpack(_INSTANT))
    ),
}
_LOCAL_TIME: Final = ValueForm("LocalTimeSerializer", 7, _write_time, _read_time)


def value_form(type_info: TypeInformation) -> ValueForm:
    """The form of the values of a type.  Raises TypeError: they have columns, or the type is unknown."""
    match type_info:
        case BasicTypeInfo(basic_type=basic_type):
            return _BASIC[basic_type]
        case TimeTypeInfo() | LocalTimeTypeInfo(time_type=LocalTimeTypeInfo.TimeType.LOCAL_TIME):
            return _LOCAL_TIME  # exact to the microsecond
        case ArrowTypeInfo(schema=schema):
            return _batch_form(schema)
        case _:
            raise TypeError(f"no column of {type_info!r}")


def _batch_form(schema: Any) -> ValueForm:
    # Imported here: most programs have no Arrow, and the import takes longer than all of ours.
    from pyarrow import py_buffer

    from flowlet.serde.arrow_serializer import batch_of_message, message_of_batch

    def write(value: Any) -> bytes:
        message: bytes = message_of_batch(value, schema).to_pybytes()
        return _INT.pack(len(message)) + message

    def read(source: ByteReader) -> Any:
        (size,) = source.unpack(_INT)
        return batch_of_message(py_buffer(bytes(source.take(size))), schema)

    fields = ", ".join(f"{field.name}: {field.type}" for field in schema)
    return ValueForm(f"ArrowSerializer({fields})", 4, write, read)

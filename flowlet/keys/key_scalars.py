"""Keys that hold no other key: the exact key of each, and its hash.

Hot path, on misses of the caches above it.

Side:       pure.
Invariants: ``exact_x(a) == exact_x(b)`` exactly when ``a`` and ``b`` are one key; then ``hash_x`` gives one number for
            both, in every process and on every version of Python.  Values of one ``exact`` function never equal those
            of another.
Rules:      a date and time with a time zone is its instant, whatever the zone; it never equals one without a time zone.
            ``fold`` counts only where it changes the instant.  Decimals are compared by value, so ``1.0`` is ``1.00``;
            all their NaNs are one key.  A numpy scalar is the value that ``item()`` gives, and its NaT is None.
Units:      hashes are ints of any size, of which the low 32 bits count.  Instants and durations are hashed as
            microseconds, dates as days, both since 1970, so that columns of numbers have equal hashes.
Source:     Java's ``hashCode`` of ``String``, ``Integer``, ``Long``, ``BigInteger``, ``Boolean``, ``Double``, ``UUID``
            and ``Arrays.hashCode(byte[])``.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import pathlib
import struct
import sys
from typing import Any, Final

from netstack.late import numpy as np

# Above this many characters numpy is quicker than a loop.  Not measured closely: both take about 3 us.
_LONG_STR: Final = 64
_POLYNOMIAL_BLOCK: Final = 4096


@functools.cache
def _powers() -> np.ndarray[Any, np.dtype[Any]]:
    """The powers of 31, modulo 2**32."""
    return np.array([pow(31, exponent, 1 << 32) for exponent in range(_POLYNOMIAL_BLOCK)], np.uint32)


_UTF16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
_UINT32_MASK: Final = (1 << 32) - 1
_UINT64_MASK: Final = (1 << 64) - 1
_CANONICAL_NAN: Final = 0x7FF8 << 48  # Double.doubleToLongBits
_pack_double = struct.Struct(">d").pack

_EPOCH: Final = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - of instants without a time zone
_EPOCH_UTC: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY: Final = _EPOCH.toordinal()
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
_MICROSECONDS_PER_SECOND: Final = 1_000_000
# Rounds nothing away.  Of Python's defaults only ``capitals`` shows in a text.
_EXACT_DECIMALS: Final = decimal.Context(
    prec=decimal.MAX_PREC, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, capitals=1, clamp=0, flags=[], traps=[]
)
_NAN: Final = "NaN"
_FINER_UNITS: Final = frozenset({"ns", "ps", "fs", "as"})  # of numpy, than Python has


# ---------------------------------------------------------------- texts and bytes


def hash_str(key: str) -> int:
    """Java's ``String.hashCode``, over UTF-16 units."""
    if len(key) > _LONG_STR:
        return _polynomial(np.frombuffer(key.encode(_UTF16, "surrogatepass"), np.uint16))
    code = 0
    # Reduced once at the end: at most 64 * 5 + 16 bits.
    for unit in key.encode() if key.isascii() else memoryview(key.encode(_UTF16, "surrogatepass")).cast("H"):
        code = code * 31 + unit
    return code


def _polynomial(units: np.ndarray[Any, np.dtype[Any]], code: int = 0) -> int:
    """``code * 31**n + sum(unit[i] * 31**(n - 1 - i))`` modulo 2**32, in blocks."""
    all_powers = _powers()
    for start in range(0, len(units), _POLYNOMIAL_BLOCK):
        block = units[start : start + _POLYNOMIAL_BLOCK].astype(np.uint32)
        powers = all_powers[len(block) - 1 :: -1] if len(block) < _POLYNOMIAL_BLOCK else all_powers[::-1]
        total = int((block * powers).sum(dtype=np.uint32))
        code = (code * pow(31, len(block), 1 << 32) + total) & _UINT32_MASK
    return code


def hash_bytes(key: bytes) -> int:
    """Java's ``Arrays.hashCode``, over signed bytes."""
    return _polynomial(np.frombuffer(key, np.int8), 1)


def exact_path(key: pathlib.PurePath) -> Any:
    """The exact key of a path: its text; in small letters for Windows, where capitals do not count."""
    if isinstance(key, pathlib.PureWindowsPath):
        return pathlib.PureWindowsPath, str(key).lower()
    return pathlib.PurePosixPath, str(key)


# ---------------------------------------------------------------- numbers


def hash_int(key: int) -> int:
    """Java's ``Integer``, ``Long`` or ``BigInteger.hashCode``, by size."""
    bits = key.bit_length() if key >= 0 else (~key).bit_length()
    if bits < 32:
        return key
    if bits < 64:
        key &= _UINT64_MASK
        return key ^ key >> 32
    magnitude, code = abs(key), 0
    for shift in range((magnitude.bit_length() - 1) // 32 * 32, -1, -32):
        code = code * 31 + (magnitude >> shift & _UINT32_MASK)
    return code if key >= 0 else -code


def double_bits(key: float) -> int:
    """The bits of a double; all NaNs have those of one NaN."""
    return _CANONICAL_NAN if key != key else int.from_bytes(_pack_double(key), "big")


def hash_double_bits(bits: int) -> int:
    """Java's ``Double.hashCode``."""
    return bits ^ bits >> 32


def hash_decimal(exact: decimal.Decimal | str) -> int:
    """The hash of a decimal, from the second part of its exact key: that of its text without trailing zeros."""
    if isinstance(exact, str):
        return hash_str(exact)
    # A zero has a sign and an exponent, which do not count.
    return hash_str(_EXACT_DECIMALS.to_sci_string(_EXACT_DECIMALS.normalize(exact)) if exact else "0")


def exact_decimal(key: decimal.Decimal) -> Any:
    """The exact key of a decimal: its value; one text stands for all NaNs, since a NaN equals not even itself."""
    return decimal.Decimal, _NAN if key.is_nan() else decimal.Decimal(key)


def hash_uuid(bits: int) -> int:
    """Java's ``UUID.hashCode``."""
    folded = bits >> 64 ^ bits & _UINT64_MASK
    return folded >> 32 ^ folded


# ---------------------------------------------------------------- dates and times


def hash_date(key: datetime.date) -> int:
    """The hash of a date: that of the number of days since 1970."""
    return hash_int(key.toordinal() - _EPOCH_DAY)


def exact_date(key: datetime.date) -> datetime.date:
    """The exact key of a date: the date itself, since a plain date equals only dates."""
    return key if type(key) is datetime.date else datetime.date(key.year, key.month, key.day)


def hash_datetime(exact: datetime.datetime) -> int:
    """The hash of a datetime without a time zone: that of the number of microseconds since 1970."""
    return hash_int((exact - _EPOCH) // _MICROSECOND)


def exact_datetime(key: datetime.datetime) -> Any:
    """The exact key of a datetime: itself without a time zone, since it equals no value with one; else its instant."""
    if type(key) is not datetime.datetime:
        if key != key:
            return None  # NaT of pandas: a missing value
        # A Timestamp of pandas is as exact as its nanoseconds.
        nanosecond = getattr(key, "nanosecond", 0)
        date = datetime.date(key.year, key.month, key.day)
        time = datetime.time(key.hour, key.minute, key.second, key.microsecond, key.tzinfo, fold=key.fold)
        plain = exact_datetime(datetime.datetime.combine(date, time))
        return (datetime.datetime, plain, nanosecond) if nanosecond else plain
    if key.tzinfo is None:
        return key
    # Not by ==, which looks at the local parts alone where both have one zone.
    return key.replace(tzinfo=None) if key.utcoffset() is None else (datetime.datetime, key - _EPOCH_UTC)


def microseconds_of(key: datetime.time) -> int:
    """The number of microseconds since midnight."""
    return ((key.hour * 60 + key.minute) * 60 + key.second) * _MICROSECONDS_PER_SECOND + key.microsecond


def exact_time(key: datetime.time) -> Any:
    """The exact key of a time: with a known offset its microseconds in UTC, which may lie before or after the day; else
    the time without a time zone.
    """
    offset = key.utcoffset()
    if offset is not None:
        return datetime.time, microseconds_of(key) - offset // _MICROSECOND
    if type(key) is datetime.time and key.tzinfo is None:
        return key
    return datetime.time(key.hour, key.minute, key.second, key.microsecond)


def hash_timedelta(exact: datetime.timedelta) -> int:
    """The hash of a duration: that of its number of microseconds."""
    return hash_int(exact // _MICROSECOND)


def exact_timedelta(key: datetime.timedelta) -> Any:
    """The exact key of a duration: the duration itself, since a plain one equals only durations."""
    if type(key) is datetime.timedelta:
        return key
    nanoseconds = getattr(key, "nanoseconds", 0)  # of pandas
    plain = datetime.timedelta(key.days, key.seconds, key.microseconds)
    return (datetime.timedelta, plain, nanoseconds) if nanoseconds else plain


# ---------------------------------------------------------------- numpy


def value_of_numpy(key: np.generic[Any]) -> Any:
    """The value that a numpy scalar stands for.

    Returns:
        A value of Python; the scalar itself where Python has none like it.
    """
    value = key.item()
    if isinstance(value, np.generic):  # a long double is its own item
        return key
    if type(value) is not int or not isinstance(key, np.datetime64 | np.timedelta64):
        return value
    # Finer than a microsecond, or in no unit at all: item() gives the bare count, whose meaning depends on the unit.
    if np.datetime_data(key.dtype)[0] in _FINER_UNITS:
        coarse = key.astype(np.dtype(f"{key.dtype.kind}8[us]"))
        if coarse == key:
            value = coarse.item()
    return key if type(value) is int else value

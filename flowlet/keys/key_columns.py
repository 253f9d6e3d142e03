"""Key groups of a whole column of keys at once, or of many exact keys (``exact_key``).

Hot path.  A list of plain keys, a numpy array or an Arrow array is hashed without a loop in Python where its type
allows it.  A numpy array of texts or bytes is made a list first.  ``KeyWindow`` looks integers up that lie close
together: two comparisons, a subtraction and a lookup per chunk, 1 ns per key (``bench shuffle-columnar``); most keys
that are numbers are dense, and hashing one takes 6 ns.

Side:       pure.
Invariants: every result equals that of ``exact_keys`` for each key that the column's ``tolist`` (numpy) or
            ``to_pylist`` (Arrow) gives; of numpy's instants and durations, for each scalar: in some units ``tolist``
            gives bare counts.  A null is None.  The table of a window has at most ``MAX_PLACES`` entries; the work of
            filling tables is at most an eighth of the keys that were looked at.
Rules:      a window grows around new keys, or begins anew with them if the former and the new ones do not fit into one.
Units:      hashes are signed 32-bit integers; key groups and subtasks count from 0.
Source:     Flink ``KeyGroupRangeAssignment``, ``MathUtils.murmurHash``; MurmurHash3 x86_32 of 4 bytes with seed 0 (its
            reference code).
Absent:     fast ways for other keys than numbers, texts, bytes, dates and instants, for integers beyond 64 bits, and
            for lists with keys of several types: these are hashed one by one.
"""

import datetime
import struct
import sys
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.columns.short_text_column import PACKED16_BYTES, Packed16Array
from flowlet.keys.exact_keys import ExactKey, exact_key_hash, group_of_hash, key_hash

Int64Array = NDArray[np.int64]

MAX_PLACES: Final = 1 << 16  # entries of 2 or 8 bytes: they stay in the second cache
_PRICE: Final = 8  # keys that must have come for each entry that is filled
_MAX_BUDGET: Final = 4 * _PRICE * MAX_PLACES
_MARGIN: Final = 255  # windows begin and end at multiples of one more, so that they do not grow key by key


class KeyWindow:
    """A table for the integers of a range that moves with the keys, and the place of each key in it."""

    __slots__ = ("_budget", "_first", "_last", "table")

    def __init__(self) -> None:
        self._first = 0
        self._last = -1
        self._budget = _PRICE * MAX_PLACES
        self.table: NDArray[Any] = np.empty(0, np.intp)

    def __repr__(self) -> str:
        return f"<KeyWindow from {self._first} to {self._last}>"

    def places(self, keys: Int64Array, function: Callable[[Int64Array], NDArray[Any]]) -> NDArray[np.intp] | None:
        """The place of each key in ``table``; None if not all are in the window, and it does not move.

        There is at least one key.  ``function`` fills the table: it gives a value for each key of an array.  All calls
        must pass one function; its value for a key holds until the owner writes into ``table``.
        """
        low, high = int(keys.min()), int(keys.max())
        self._budget = min(self._budget + len(keys), _MAX_BUDGET)
        if (low < self._first or high > self._last) and not self._try_move(low, high, function):
            return None
        return keys - self._first

    def _try_move(self, low: int, high: int, function: Callable[[Int64Array], NDArray[Any]]) -> bool:
        first, last = low & ~_MARGIN, high | _MARGIN
        if last - first >= MAX_PLACES:
            return False
        if self._first <= self._last and max(last, self._last) - min(first, self._first) < MAX_PLACES:
            first, last = min(first, self._first), max(last, self._last)
        size = last - first + 1
        if _PRICE * size > self._budget:
            return False
        self._budget -= _PRICE * size
        self._first, self._last = first, last
        self.table = function(first + np.arange(size))
        return True


Int32Array = NDArray[np.int32]

_INT32: Final = np.iinfo(np.int32)
_INT64_SIGN: Final = np.uint64(1 << 63)
_HIGH_WORD: Final = np.uint64(32)
_CANONICAL_NAN: Final = np.uint64(0x7FF8 << 48)  # Double.doubleToLongBits
# Longer texts are hashed alone: they are worth a call each.
_MAX_UNITS: Final = 4096
# The number of units that are hashed at once.  Tables of 512 KiB together; not measured closely.
_BLOCK_UNITS: Final = 1 << 16
_MODULUS: Final = 1 << 32
# The number of numbers that are hashed at once: 6 ns per key; 8 ns with 65,536.
_BLOCK_KEYS: Final = 1 << 13
_DAYS: Final = np.dtype("datetime64[D]")
_INSTANTS: Final = np.dtype("datetime64[us]")
# The range of Python's datetime; beyond it numpy's instants are keys of their own (``key_scalars``).
_FIRST_INSTANT: Final = np.datetime64("0001-01-01", "us")
_LAST_INSTANT: Final = np.datetime64("9999-12-31T23:59:59.999999", "us")
_NULL_HASH: Final = key_hash(None)
_time_zone_of = attrgetter("tzinfo")


def _powers(base: int, size: int) -> NDArray[np.uint32]:
    """The powers of ``base`` from 0 on, modulo 2**32."""
    powers = np.ones(1, np.uint32)
    while len(powers) < size:
        powers = np.concatenate((powers, powers * np.uint32(pow(base, len(powers), _MODULUS))))
    return powers[:size]


_POWERS: Final = _powers(31, _BLOCK_UNITS)
_INVERSE_POWERS: Final = _powers(pow(31, -1, _MODULUS), _BLOCK_UNITS)
# Not "utf-16", which writes a byte order mark.
_UTF16: Final = np.dtype("<u2"), "utf-16-le"


def column_key_groups(column: Any, max_parallelism: int) -> Int32Array:
    """The key group of each key.

    Raises:
        KeyTypeError: see ``column_hashes``.
    """
    return groups_of_hashes(column_hashes(column), max_parallelism)


class ChannelTable:
    """The channel of each key group, looked up for whole columns of keys.

    Args:
        max_parallelism: the number of key groups.
        num_channels: the consumer's parallelism.
    """

    __slots__ = ("_channel_of_group", "_max_parallelism", "_window")

    def __init__(self, max_parallelism: int, num_channels: int) -> None:
        self._max_parallelism = max_parallelism
        self._window = KeyWindow()
        groups = np.arange(max_parallelism, dtype=np.int64)
        self._channel_of_group = (groups * num_channels // max_parallelism).astype(np.uint16)

    def __repr__(self) -> str:
        return f"<ChannelTable of {self._max_parallelism} key groups>"

    def of_hashes(self, hashes: Int32Array) -> NDArray[np.uint16]:
        """The channel of each key, from its hash."""
        return self._channel_of_group.take(groups_of_hashes(hashes, self._max_parallelism))

    def of_exact(self, exact: Any) -> int:
        """The channel of the key that ``exact`` stands for."""
        return int(self._channel_of_group[group_of_hash(exact_key_hash(exact), self._max_parallelism)])

    def of_keys(self, column: Any) -> NDArray[np.uint16]:
        """The channel of each key.

        Raises:
            KeyTypeError: see ``column_hashes``.
        """
        if not isinstance(column, np.ndarray) or column.dtype != np.int64 or column.ndim != 1 or not len(column):
            return self.of_hashes(column_hashes(column))
        places = self._window.places(column, self._of_int64)
        return self._of_int64(column) if places is None else self._window.table.take(places)

    def _of_int64(self, keys: NDArray[np.int64]) -> NDArray[np.uint16]:
        # Block by block, so that intermediate arrays stay in the processor's cache.
        channels = np.empty(len(keys), np.uint16)
        for start in range(0, len(keys), _BLOCK_KEYS):
            part = slice(start, start + _BLOCK_KEYS)
            channels[part] = self.of_hashes(_hash_signed(keys[part]))
        return channels


def groups_of_hashes(hashes: Int32Array, max_parallelism: int) -> Int32Array:
    """The key group of each key, from its hash."""
    mixed = np.abs(_murmur(hashes).view(np.int32))
    # -2**31 has no positive counterpart in 32 bits; Flink makes it 0.
    np.maximum(mixed, np.int32(0), out=mixed)
    if max_parallelism & (max_parallelism - 1) == 0:
        return mixed & np.int32(max_parallelism - 1)  # a remainder takes four times as long
    return mixed % np.int32(max_parallelism)


def column_hashes(column: Any) -> Int32Array:
    """The hash of each key.

    Args:
        column: a sequence of keys, a one-dimensional numpy array, or an Arrow array (chunked or not).  A numpy
            array of texts or bytes is hashed through a list.

    Raises:
        KeyTypeError: a key is of a type without a hash that is equal in every process.
        ValueError: the numpy array has another number of dimensions.
    """
    if isinstance(column, np.ndarray):
        return _hash_numpy(column)
    if isinstance(column, Sequence):
        hashes = try_hashes(column)
        return _one_by_one(column) if hashes is None else hashes
    return _hash_arrow(column)


def try_hashes(keys: Sequence[Any]) -> Int32Array | None:
    """The hash of each key, if no loop in Python is needed; else None.

    So it is for keys that are all of one type: str, bytes, bool, float, date, datetime without a time zone, or int of
    at most 64 bits.
    """
    kinds = set(map(type, keys))
    if len(kinds) != 1:
        return None
    kind = kinds.pop()
    hasher = _OF_LISTS.get(kind)
    if hasher is None or (kind is datetime.datetime and list(map(_time_zone_of, keys)).count(None) != len(keys)):
        return None
    try:
        return hasher(keys)
    except OverflowError:  # an int of more than 64 bits
        return None


def _one_by_one(keys: Sequence[Any]) -> Int32Array:
    return np.fromiter(map(key_hash, keys), np.int32, len(keys))


def _murmur(hashes: Int32Array) -> NDArray[np.uint32]:
    mixed = hashes.view(np.uint32) * np.uint32(0xCC9E2D51)
    mixed = _rotate_left(mixed, 15)
    mixed *= np.uint32(0x1B873593)
    mixed = _rotate_left(mixed, 13)
    mixed *= np.uint32(5)
    mixed += np.uint32(0xE6546B64)
    mixed ^= np.uint32(4)  # the number of bytes
    mixed ^= mixed >> np.uint32(16)
    mixed *= np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(13)
    mixed *= np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    return mixed


def _rotate_left(values: NDArray[np.uint32], by: int) -> NDArray[np.uint32]:
    rotated = values << np.uint32(by)
    rotated |= values >> np.uint32(32 - by)
    return rotated


# ---------------------------------------------------------------- numbers


def _fold(bits: NDArray[np.uint64]) -> Int32Array:
    """``Long.hashCode`` of 64 bits."""
    return (bits ^ bits >> _HIGH_WORD).astype(np.uint32).view(np.int32)


def _hash_signed(keys: NDArray[Any]) -> Int32Array:
    if keys.dtype.itemsize <= _INT32.bits // 8:
        return keys.astype(np.int32)
    wide = keys.astype(np.int64, copy=False)
    narrow = wide.astype(np.int32)
    is_narrow = narrow == wide
    if is_narrow.all():
        return narrow
    return np.where(is_narrow, narrow, _fold(wide.view(np.uint64)))


def _hash_unsigned(keys: NDArray[Any]) -> Int32Array:
    wide = keys.astype(np.uint64)
    hashes = _hash_signed(wide.view(np.int64))
    is_big = wide >= _INT64_SIGN
    if is_big.any():
        # A Java BigInteger of two words.
        high, low = (wide >> _HIGH_WORD).astype(np.uint32), wide.astype(np.uint32)
        hashes = np.where(is_big, (high * np.uint32(31) + low).view(np.int32), hashes)
    return hashes


def _hash_bools(keys: NDArray[Any]) -> Int32Array:
    return np.where(keys, np.int32(1231), np.int32(1237))


def _hash_floats(keys: NDArray[Any]) -> Int32Array:
    wide = keys.astype(np.float64)
    bits = wide.view(np.uint64)
    return _fold(np.where(np.isnan(wide), _CANONICAL_NAN, bits))


# ---------------------------------------------------------------- dates and times


def _hash_counts(times: NDArray[Any]) -> Int32Array:
    """The hashes of dates or instants, by their number of days or microseconds."""
    return _hash_signed(times.view(np.int64))


# ---------------------------------------------------------------- texts and bytes


def _hash_segments(units: NDArray[Any], lengths: NDArray[np.int64], initial: int = 0) -> Int32Array:
    """The polynomials in 31 over runs of ``units`` that follow each other, each run behind ``initial``; no run is
    longer than a block.
    """
    if units.size > _BLOCK_UNITS:
        half = len(lengths) // 2
        middle = int(lengths[:half].sum())
        parts = (
            _hash_segments(units[:middle], lengths[:half], initial),
            _hash_segments(units[middle:], lengths[half:], initial),
        )
        return np.concatenate(parts)
    hashes = _POWERS[lengths] * np.uint32(initial)
    filled = np.flatnonzero(lengths)
    if filled.size:
        ends = np.cumsum(lengths)
        hashes[filled] += _polynomials(units, (ends - lengths)[filled], ends[filled])
    return hashes.view(np.int32)


def _polynomials(units: NDArray[Any], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint32]:
    """The polynomials in 31 over the runs from each start up to its end; units between an end and the next start must
    be 0.

    31 has an inverse modulo 2**32, so ``sum(u[i] * 31**(end - 1 - i))`` is ``31**(end - 1) * sum(u[i] * 31**-i)``: one
    row of factors serves all runs.
    """
    # A narrow signed unit wraps to its two's complement, as Java's bytes do.
    products = units.astype(np.uint32)
    products *= _INVERSE_POWERS[: units.size]
    return np.add.reduceat(products, starts, dtype=np.uint32) * _POWERS[ends - 1]


def _hash_str_list(keys: Sequence[str]) -> Int32Array:
    text = "\0".join(keys) + "\0"
    units: NDArray[Any]
    if text.isascii():
        units = np.frombuffer(text.encode(), np.uint8)
    else:
        dtype, encoding = _UTF16
        units = np.frombuffer(text.encode(encoding, "surrogatepass"), dtype)
    if units.size > _BLOCK_UNITS:
        half = len(keys) // 2
        return np.concatenate((_hash_str_list(keys[:half]), _hash_str_list(keys[half:]))) if half else _one_by_one(keys)
    # Counting zeros costs less than asking each key for its length.
    ends = np.flatnonzero(units == 0)
    if len(ends) != len(keys):
        return _one_by_one(keys)  # a key with a NUL
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1] + 1
    # An empty key is a run of a zero, whose polynomial is 0 whatever the factor.
    return _polynomials(units, starts, ends).view(np.int32)


def _hash_bytes_list(keys: Sequence[bytes]) -> Int32Array:
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    if lengths.max() > _MAX_UNITS:
        return _one_by_one(keys)
    return _hash_segments(np.frombuffer(b"".join(keys), np.int8), lengths, 1)


# Short texts: fixed arithmetic on two integers for each, 10 ns; by characters it takes 60.  Several characters at a
# time in one integer (SIMD within a register: Warren, Hacker's Delight).
_SHIFTS: Final = tuple(map(np.uint64, (8, 16, 32)))
_MASKS: Final = tuple(map(np.uint64, (0x00FF00FF00FF00FF, 0x0000FFFF0000FFFF, 0x00000000FFFFFFFF)))
_FEW_POWERS: Final = tuple(np.uint64(31**count) for count in (1, 2, 4))
_HALF_POWER: Final = np.uint64(31**8)
# Each text is hashed as if it had 16 characters; this factor takes the surplus powers away again.
_SURPLUS: Final = np.array(
    [pow(31, length - PACKED16_BYTES, _MODULUS) for length in range(PACKED16_BYTES + 1)], np.uint32
)


def short_text_hashes(packed16: Packed16Array) -> Int32Array:
    """The hash of each text."""
    sums = packed16 if sys.byteorder == "little" else packed16.byteswap()
    # Neighbours are added up: characters, then pairs, then fours; the earlier one is in the lower bits.
    for shift, mask, power in zip(_SHIFTS, _MASKS, _FEW_POWERS, strict=True):
        later = sums >> shift
        later &= mask
        sums = sums & mask
        sums *= power
        sums += later
    whole = sums[:, 0] * _HALF_POWER
    whole += sums[:, 1]
    lengths = np.char.str_len(packed16.view(f"S{PACKED16_BYTES}")[:, 0])
    return (whole.astype(np.uint32) * _SURPLUS.take(lengths)).view(np.int32)


_OF_LISTS: Final[dict[type, Callable[[Sequence[Any]], Int32Array]]] = {
    str: _hash_str_list,
    bytes: _hash_bytes_list,
    int: lambda keys: _hash_signed(np.fromiter(keys, np.int64, len(keys))),
    float: lambda keys: _hash_floats(np.fromiter(keys, np.float64, len(keys))),
    bool: lambda keys: _hash_bools(np.fromiter(keys, np.bool_, len(keys))),
    datetime.date: lambda keys: _hash_counts(np.array(keys, _DAYS)),
    datetime.datetime: lambda keys: _hash_counts(np.array(keys, _INSTANTS)),
}


# ---------------------------------------------------------------- numpy


def _hash_numpy(column: NDArray[Any]) -> Int32Array:
    if column.ndim != 1:
        raise ValueError(f"a column of keys has one dimension, got an array of shape {column.shape}")
    native = column.astype(column.dtype.newbyteorder("="), copy=False)
    match column.dtype.kind:
        case "i":
            return _hash_signed(native)
        case "u":
            return _hash_unsigned(native)
        case "b":
            return _hash_bools(native)
        case "f" if column.dtype.itemsize <= np.dtype(np.float64).itemsize:
            return _hash_floats(native)
        # So no NaT, either.
        case "M" if native.dtype == _INSTANTS and ((native >= _FIRST_INSTANT) & (native <= _LAST_INSTANT)).all():
            return _hash_counts(native)
        case "M" | "m":
            return column_hashes(list(column))
        case _:
            return column_hashes(column.tolist())


# ---------------------------------------------------------------- Arrow


def _hash_arrow(column: Any) -> Int32Array:
    import pyarrow  # here, because it takes longer than this whole package, and jobs without Arrow do without it

    if isinstance(column, pyarrow.ChunkedArray):
        return np.concatenate([np.empty(0, np.int32), *map(_hash_arrow, column.chunks)])
    if not isinstance(column, pyarrow.Array):
        raise TypeError(
            f"a column of keys is a sequence, a numpy array or an Arrow array, got a {type(column).__name__}"
        )
    kinds, kind = pyarrow.types, column.type
    hashes: Int32Array
    if kinds.is_dictionary(kind):  # which has nulls of its own, and among its names
        of_names = np.append(_hash_arrow(column.dictionary), np.int32(_NULL_HASH))
        indices = column.indices.cast("int64").fill_null(len(column.dictionary))
        hashes = of_names.take(indices.to_numpy(zero_copy_only=False))
        return hashes
    if column.null_count:
        hashes = np.full(len(column), _NULL_HASH, np.int32)
        hashes[column.is_valid().to_numpy(zero_copy_only=False)] = _hash_arrow(column.drop_null())
        return hashes
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind):
        return _hash_numpy(column.to_numpy(zero_copy_only=False))
    if kinds.is_string(kind) or kinds.is_binary(kind):
        return _hash_arrow_text(column, np.int32)
    if kinds.is_large_string(kind) or kinds.is_large_binary(kind):
        return _hash_arrow_text(column, np.int64)
    if kinds.is_date32(kind):
        return _hash_arrow(column.view(pyarrow.int32()))
    if kinds.is_timestamp(kind) and kind.unit != "ns":
        return _hash_arrow(column.cast(pyarrow.timestamp("us", kind.tz)).view(pyarrow.int64()))
    return column_hashes(column.to_pylist())


def _hash_arrow_text(column: Any, offset_type: type[np.int32] | type[np.int64]) -> Int32Array:
    _, offsets, data = column.buffers()
    if not len(column) or data is None:
        return column_hashes(column.to_pylist())
    bounds = np.frombuffer(offsets, offset_type)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    units, lengths = np.frombuffer(data, np.int8)[bounds[0] : bounds[-1]], np.diff(bounds)
    is_bytes = "binary" in str(column.type)
    if lengths.max() > _MAX_UNITS or not (is_bytes or (units >= 0).all()):  # too long, or a text that is not ASCII
        return column_hashes(column.to_pylist())
    return _hash_segments(units, lengths, 1 if is_bytes else 0)


def exact_key_groups(exact: Sequence[Any], max_parallelism: int) -> Int32Array:
    """The key group of each exact key; without a loop in Python if all are of one plain type."""
    hashes = None if any(type(each) is tuple for each in exact) else try_hashes(exact)
    if hashes is None:
        hashes = np.fromiter(map(exact_key_hash, exact), np.int32, len(exact))
    return groups_of_hashes(hashes, max_parallelism)


def key_for(exact: Any) -> Any:
    """A key whose exact key is ``exact``."""
    if _is_key(exact):
        return exact
    match exact:
        case (kind, bool(value)) if kind is bool:
            return value
        case (kind, int(bits)) if kind is float:
            return float(struct.unpack(">d", bits.to_bytes(8, "big"))[0])
        case _:
            return ExactKey(exact)


def _is_key(exact: Any) -> bool:
    """Whether an exact key is a user's key itself: no key contains a type."""
    if type(exact) is tuple:
        return all(map(_is_key, exact))
    return not isinstance(exact, type)

"""From a key to its key group and subtask; and from a key to what a dictionary can tell apart.

Hot path, on misses of the caches above it: ``key_group`` of a 10-character str takes about 1 us.

Side:       pure.
Invariants: a hash is the same in every process and run (Python's ``hash`` of a str is not); ``exact_key(a) == exact_key(b)`` exactly when
            ``a`` and ``b`` are the same key; the same key has one hash.
Rules:      1, 1.0 and True are three keys, and so are 0.0 and -0.0; all NaNs are one key.  An instance of a subclass (``StrEnum``, a named
            tuple) is the same key as the plain value that it holds.
Source:     Flink ``KeyGroupRangeAssignment``, ``MathUtils.murmurHash``.  The hashes are those of Java's ``String``, ``Integer`` (an int of
            32 bits), ``Long``, ``BigInteger`` (beyond 64 bits), ``Boolean``, ``Double``, ``Arrays.hashCode(byte[])`` and of Flink's
            ``Tuple``.
"""

import itertools
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import mmh3
import numpy as np

from flowlet.errors import KeyTypeError

LOWER_BOUND_MAX_PARALLELISM: Final = 1 << 7
UPPER_BOUND_MAX_PARALLELISM: Final = 1 << 15
_INT32_MIN: Final = -(1 << 31)
_UINT32_MASK: Final = (1 << 32) - 1
_UINT64_MASK: Final = (1 << 64) - 1
# Above this many characters numpy is quicker than a loop.  Not measured closely: both take about 3 us.
_LONG_STR: Final = 64
_POLYNOMIAL_BLOCK: Final = 4096
_POWERS: Final = np.array([pow(31, exponent, 1 << 32) for exponent in range(_POLYNOMIAL_BLOCK)], np.uint32)
_UTF16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"
_PLAIN_TYPES: Final = frozenset((str, int, bytes))
_CANONICAL_NAN: Final = 0x7FF8 << 48  # Double.doubleToLongBits
_pack_int32 = struct.Struct("<i").pack
_pack_double = struct.Struct(">d").pack
_murmur = mmh3.hash


def key_group(key: Any, max_parallelism: int) -> int:
    """The key group of a key: 0 <= group < max_parallelism.

    Raises:
        KeyTypeError: the key has no hash that is the same in every process.
    """
    mixed = _murmur(_pack_int32(key_hash(key)), 0)
    if mixed < 0:
        # -2**31 has no positive counterpart in 32 bits; Flink makes it 0.
        mixed = 0 if mixed == _INT32_MIN else -mixed
    return mixed % max_parallelism


def operator_index(group: int, max_parallelism: int, parallelism: int) -> int:
    """The subtask that owns a key group."""
    return group * parallelism // max_parallelism


def key_group_range(max_parallelism: int, parallelism: int, subtask: int) -> range:
    """The key groups that a subtask owns."""
    start = (subtask * max_parallelism + parallelism - 1) // parallelism
    return range(start, ((subtask + 1) * max_parallelism - 1) // parallelism + 1)


def default_max_parallelism(parallelism: int) -> int:
    """The number of key groups for an operator whose user did not choose one: 1.5 times the parallelism, rounded up to a power of two."""
    wanted = parallelism + parallelism // 2
    return min(max(1 << (wanted - 1).bit_length(), LOWER_BOUND_MAX_PARALLELISM), UPPER_BOUND_MAX_PARALLELISM)


def key_hash(key: Any) -> int:
    """The 32-bit signed hash of a key, the same in every process.

    Raises:
        KeyTypeError: the key, or a part of it, is of a type without such a hash.
    """
    hasher = _HASHERS.get(type(key))
    if hasher is None:
        hasher = _of_base_type(_HASHERS, key)
    code = hasher(key) & _UINT32_MASK
    return code - (1 << 32) if code >> 31 else code


def exact_key(key: Any) -> Any:
    """A hashable stand-in that equals another key's exactly if both are the same key; str, int and bytes are their own.

    Raises:
        KeyTypeError: the key, or a part of it, is of a type that cannot be a key.
    """
    kind = type(key)
    if kind in _PLAIN_TYPES:
        return key
    exact = _EXACT.get(kind)
    if exact is None:
        exact = _of_base_type(_EXACT, key)
    return exact(key)


def exact_keys(keys: list[Any]) -> list[Any]:
    """``exact_key`` of each key; ``keys`` itself if nothing changes (11 ns per key if all are of one plain type).

    Raises:
        KeyTypeError: see ``exact_key``.
    """
    if are_plain(keys):
        return keys
    if set(map(type, keys)) == {tuple} and are_plain(list(itertools.chain.from_iterable(keys))):
        return keys
    return [exact_key(key) for key in keys]


def are_plain(keys: Sequence[Any]) -> bool:
    """Whether every key is exactly a str, int or bytes, so that equal keys are the same key."""
    types = list(map(type, keys))
    if not types:
        return True
    first = types[0]
    if first in _PLAIN_TYPES and types.count(first) == len(types):
        return True
    return _PLAIN_TYPES.issuperset(types)


def _hash_str(key: str) -> int:
    if len(key) > _LONG_STR:
        return _polynomial(np.frombuffer(key.encode(_UTF16, "surrogatepass"), np.uint16))
    code = 0
    # Reduced once at the end: at most 64 * 5 + 16 bits.
    for unit in key.encode() if key.isascii() else memoryview(key.encode(_UTF16, "surrogatepass")).cast("H"):
        code = code * 31 + unit
    return code


def _polynomial(units: "np.ndarray[Any, np.dtype[Any]]", code: int = 0) -> int:
    """``code * 31**n + sum(unit[i] * 31**(n - 1 - i))`` modulo 2**32, in blocks."""
    for start in range(0, len(units), _POLYNOMIAL_BLOCK):
        block = units[start : start + _POLYNOMIAL_BLOCK].astype(np.uint32)
        powers = _POWERS[len(block) - 1 :: -1] if len(block) < _POLYNOMIAL_BLOCK else _POWERS[::-1]
        total = int((block * powers).sum(dtype=np.uint32))
        code = (code * pow(31, len(block), 1 << 32) + total) & _UINT32_MASK
    return code


def _hash_bytes(key: bytes) -> int:
    return _polynomial(np.frombuffer(key, np.int8), 1)


def _hash_int(key: int) -> int:
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


def _double_bits(key: float) -> int:
    return _CANONICAL_NAN if key != key else int.from_bytes(_pack_double(key), "big")


def _hash_float(key: float) -> int:
    bits = _double_bits(key)
    return bits ^ bits >> 32


def _hash_bool(key: bool) -> int:  # noqa: FBT001 - the key
    return 1231 if key else 1237


def _hash_tuple(key: tuple[Any, ...]) -> int:
    code = 0
    for field in key:
        code = (code * 31 + (0 if field is None else key_hash(field))) & _UINT32_MASK
    return code


# No user's key contains a type, so these pairs can never equal a tuple that is a key.
def _exact_float(key: float) -> Any:
    return float, _double_bits(key)


def _exact_bool(key: bool) -> Any:  # noqa: FBT001 - the key
    return bool, bool(key)


def _exact_tuple(key: tuple[Any, ...]) -> Any:
    return tuple([None if field is None else exact_key(field) for field in key])


_HASHERS: Final[dict[type, Callable[[Any], int]]] = {
    str: _hash_str,
    int: _hash_int,
    bool: _hash_bool,
    float: _hash_float,
    bytes: _hash_bytes,
    tuple: _hash_tuple,
}
_EXACT: Final[dict[type, Callable[[Any], Any]]] = {
    # Of subclasses: their own __eq__ and __hash__ must not decide.
    str: lambda key: str.__str__(key),
    int: lambda key: int.__index__(key),
    bytes: lambda key: bytes.__getitem__(key, slice(None)),
    bool: _exact_bool,
    float: _exact_float,
    tuple: _exact_tuple,
}
_INSTEAD: Final = {
    "NoneType": "a value of its own for records without a key, such as ''",
    "list": "tuple(key)",
    "Row": "tuple(key)",
    "dict": "tuple(sorted(key.items()))",
    "set": "tuple(sorted(key))",
    "frozenset": "tuple(sorted(key))",
    "bytearray": "bytes(key)",
    "memoryview": "bytes(key)",
    "ndarray": "key.tobytes()",
    "generic": "key.item()",
    "datetime": "key.isoformat()",
    "date": "key.isoformat()",
    "time": "key.isoformat()",
    "timedelta": "key.total_seconds()",
    "UUID": "str(key)",
    "Decimal": "str(key.normalize())",
    "Fraction": "(key.numerator, key.denominator)",
    "complex": "(key.real, key.imag)",
    "Enum": "key.name",
}


def _of_base_type(table: "dict[type, Callable[[Any], Any]]", key: Any) -> Callable[[Any], Any]:
    for base in type(key).__mro__:
        if base in table:
            return table[base]
    raise KeyTypeError(
        f"a value of type {type(key).__name__} cannot be a key: nothing about it is sure to be the same in every process; "
        f"use {_instead(type(key).__mro__)}"
    )


def _instead(bases: Iterable[type]) -> str:
    names = (base.__name__ for base in bases)
    return next((_INSTEAD[name] for name in names if name in _INSTEAD), "a tuple of the fields that identify it") + (
        " (a key is a str, int, float, bool, bytes or a tuple of these)"
    )

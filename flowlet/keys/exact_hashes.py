"""From the stand-in of a key (``exact_key``) to the key group of the key, for state that keeps stand-ins alone.

Side:       pure.
Invariants: ``exact_key_hash(exact_key(key)) == key_hash(key)`` for every key.
"""

import datetime
import decimal
import fractions
import pathlib
import struct
import uuid
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final

import numpy as np

from flowlet.common.types import Row
from flowlet.keys.exact_keys import key_hash
from flowlet.keys.key_columns import Int32Array, groups_of_hashes, try_hashes
from flowlet.keys.key_scalars import hash_decimal, hash_float, hash_int, hash_str, hash_timedelta, hash_uuid

_MASK: Final = (1 << 32) - 1
_NAN: Final = decimal.Decimal("NaN")


def exact_key_groups(exact: Sequence[Any], max_parallelism: int) -> Int32Array:
    """The key group of each key, of which ``exact`` has the stand-ins; without a loop in Python for keys of one plain
    type.
    """
    hashes = None if any(type(each) is tuple for each in exact) else try_hashes(exact)
    if hashes is None:
        hashes = np.fromiter(map(exact_key_hash, exact), np.int32, len(exact))
    return groups_of_hashes(hashes, max_parallelism)


def exact_key_hash(exact: Any) -> int:
    """The hash of the key that ``exact`` stands for: 32 bits, signed."""
    code = _hash(exact) & _MASK
    return code - (1 << 32) if code >> 31 else code


def _hash(exact: Any) -> int:
    if type(exact) is not tuple:
        return key_hash(exact)
    marker = exact[0] if exact else None
    if not isinstance(marker, type):  # no key contains a type, so what begins with one is no tuple
        return _of_fields(exact)
    special = _OF_MARKERS.get(marker)
    # The others are times of numpy, by their text.
    return hash_str(exact[1]) if special is None else special(*exact[1:])


def _of_fields(fields: Sequence[Any], code: int = 0) -> int:
    for field in fields:
        code = (code * 31 + exact_key_hash(field)) & _MASK
    return code


def _of_double(bits: int) -> int:
    (value,) = struct.unpack(">d", bits.to_bytes(8, "big"))
    return hash_float(value)


def _of_datetime(value: Any, _: int = 0) -> int:
    """In UTC, by the time since 1970; or an instant of pandas, whose nanoseconds do not count."""
    return hash_timedelta(value) if isinstance(value, datetime.timedelta) else _hash(value)


def _of_time(microseconds: int) -> int:
    return hash_int(microseconds)


def _of_content(name: str, parts: Sequence[Any]) -> int:
    return _of_fields(parts, hash_str(name))


_OF_MARKERS: Final[dict[type, Callable[..., int]]] = {
    bool: key_hash,
    float: _of_double,
    complex: lambda real, imaginary: 31 * _of_double(real) + _of_double(imaginary),
    decimal.Decimal: lambda value: hash_decimal(value if isinstance(value, decimal.Decimal) else _NAN),
    fractions.Fraction: lambda numerator, denominator: 31 * hash_int(numerator) + hash_int(denominator),
    uuid.UUID: lambda bits: hash_uuid(uuid.UUID(int=bits)),
    pathlib.PurePosixPath: hash_str,
    pathlib.PureWindowsPath: hash_str,
    datetime.datetime: _of_datetime,
    datetime.time: _of_time,
    datetime.timedelta: lambda plain, _: hash_timedelta(plain),
    list: lambda fields: _of_fields(fields, 1),
    frozenset: lambda elements: sum(map(exact_key_hash, elements)),
    Row: lambda _, __, fields: _of_fields(fields),
    Enum: lambda name, identity: hash_str(name) * 31 + key_hash(identity),
    object: _of_content,
}

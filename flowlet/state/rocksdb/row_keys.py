"""The keys of rows in RocksDB.

Side:       pure.
Invariants: two keys have the same bytes exactly if they are the same key (``exact_keys``), in every process.  No key's
            bytes with their length are the beginning of another key's.
Format:     key group (u16), number of the state (u16), size of the key (u32), the key; in a map, the key of the map
            follows.  A key is a letter for its type and its content; parts of tuples and sets have their sizes in front
            (u32).
Source:     Flink ``CompositeKeySerializationUtils``.
"""

import datetime
import decimal
import struct
from types import NoneType
from typing import Any, Final

from flowlet.errors import KeyTypeError

HEAD: Final = struct.Struct(">HHI")
PREFIX: Final = struct.Struct(">HH")
MAX_STATES: Final = 1 << 16
_SIZE: Final = struct.Struct(">I")
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
WITH_KEYS: Final = 1
"""What a row begins with that holds the keys, too; a pickle begins with another byte (``record_pickle``)."""
WITH_KEYS_PREFIX: Final = bytes([WITH_KEYS])
PLAIN: Final = frozenset({str, int, bytes, NoneType})
"""Keys of these types are their own exact keys, and can be read back from their bytes."""


def key_bytes(exact: Any) -> bytes:
    """The bytes of an exact key.  Raises KeyTypeError: it is of a type that no exact key has."""
    match exact:
        case bool():
            return b"?1" if exact else b"?0"
        case str():
            return b"s" + exact.encode("utf-8", "surrogatepass")
        case int():
            return b"i" + exact.to_bytes((exact.bit_length() + 8) // 8, "big", signed=True)
        case bytes():
            return b"b" + exact
        case None:
            return b"n"
        case tuple():
            return b"t" + _joined([key_bytes(part) for part in exact])
        case _:
            return _rarer_key_bytes(exact)


def _rarer_key_bytes(exact: Any) -> bytes:
    match exact:
        case type():
            return b"c" + f"{exact.__module__}.{exact.__qualname__}".encode()
        case frozenset():
            return b"f" + _joined(sorted(map(key_bytes, exact)))
        case datetime.datetime():
            return b"D" + exact.replace(fold=0).isoformat().encode()
        case datetime.date():
            return b"d" + exact.isoformat().encode()
        case datetime.time():
            return b"h" + exact.replace(fold=0).isoformat().encode()
        case datetime.timedelta():
            return b"u" + key_bytes(exact // _MICROSECOND)
        case decimal.Decimal():
            # Equal decimals are one key, and may have other digits.
            return b"m" + (str(exact).encode() if exact.is_infinite() else key_bytes(exact.as_integer_ratio()))
        case _:
            pass
    raise KeyTypeError(
        f"a key of type {type(exact).__name__} cannot be kept in RocksDB; use the state back end 'hashmap'"
    )


def _joined(parts: list[bytes]) -> bytes:
    return b"".join([piece for part in parts for piece in (_SIZE.pack(len(part)), part)])


def plain_key(content: bytes) -> Any:
    """The key of one of the types ``PLAIN``, from its bytes."""
    match content[:1]:
        case b"s":
            return content[1:].decode("utf-8", "surrogatepass")
        case b"i":
            return int.from_bytes(content[1:], "big", signed=True)
        case b"b":
            return content[1:]
        case _:
            return None


def row_prefix(key_group: int, state_id: int, content: bytes) -> bytes:
    """What all rows of a key of the stream begin with, from the bytes of the key."""
    return HEAD.pack(key_group, state_id, len(content)) + content


def taken_apart(row: bytes) -> tuple[int, int, bytes, bytes]:
    """Key group, number of the state, bytes of the key, and of the key of the map (none: empty)."""
    key_group, state_id, size = HEAD.unpack_from(row)
    end = HEAD.size + size
    return key_group, state_id, row[HEAD.size : end], row[end:]

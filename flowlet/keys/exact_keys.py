"""Exact keys: the stand-ins of keys that a dictionary can tell apart; their hashes, key groups and bytes.

``NamespacedKey``: a key of the stream together with a namespace, such as a window, under which state is kept.
``ExactKey``: stands for a key if only its exact key is known.

Hot path, on misses of the caches above it: ``key_group`` of a 10-character str takes about 1 us.

Side:       pure.
Invariants: ``exact_key(a) == exact_key(b)`` exactly when ``a`` and ``b`` are one key.  A key has one hash and one form
            in bytes, which do not depend on the process, the run or the version of Python (Python's ``hash`` of a str
            does).  The key group of a ``NamespacedKey`` is that of the key alone, so that it moves with the key; its
            exact key equals another one's exactly if both keys and both namespaces do.
Rules:      1, 1.0 and True are three keys, and so are 0.0 and -0.0; all NaNs are one key.  An instance of a subclass of
            str, int, float, bytes, tuple, date, ... (``StrEnum``, ``IntEnum``, a named tuple) is one key with the plain
            value that it holds: Python's ``==`` says so, too, in every process.  It is a key of its class only where
            the class has an ``__eq__`` of its own and holds more.  An ``Enum`` goes by class and name, a ``Flag`` by
            class and value; lists, tuples, Rows (kind and names count) and frozensets by their elements, and a list is
            no tuple; dates, times, decimals and numpy's scalars as ``key_scalars`` says; instances of other classes by
            their content (``key_content``), whose parts obey these rules, too.
Source:     The hashes are those of Java's ``String``, ``Integer`` (an int of 32 bits), ``Long``, ``BigInteger`` (beyond
            64 bits), ``Boolean``, ``Double``, ``Arrays.hashCode(byte[])``, ``UUID``, ``List``, ``Set``, of null (0) and
            of Flink's ``Tuple``.  Key groups: Flink ``KeyGroupRangeAssignment``, ``MathUtils.murmurHash``.  Namespaces:
            Flink ``InternalKvState.setCurrentNamespace``, where they are a part of every access of a state.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import functools
import itertools
import pathlib
import struct
import sys
import uuid
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, Flag
from operator import attrgetter
from types import NoneType
from typing import Any, Final, NoReturn
from weakref import WeakKeyDictionary

import mmh3

from flowlet.common.types import Row, field_names_of
from flowlet.errors import KeyTypeError
from flowlet.keys import key_scalars as scalars
from flowlet.keys.key_content import content_of, qualified_name, refusal
from netstack.late import dataclass
from netstack.late import numpy as np


class NamespacedKey:
    """A key and a namespace; must not change.

    Args:
        key: the user's key.
        namespace: a value that can be a key, too.
    """

    __slots__ = ("exact", "key", "namespace")

    def __init__(self, key: Any, namespace: Any) -> None:
        self.key = key
        self.namespace = namespace
        self.exact: Any = None  # Set at the first use, by ``exact_key``.

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamespacedKey) and self.key == other.key and self.namespace == other.namespace

    def __hash__(self) -> int:
        return hash((self.key, self.namespace))

    def __reduce__(self) -> Any:
        return NamespacedKey, (self.key, self.namespace)

    def __repr__(self) -> str:
        return f"NamespacedKey({self.key!r}, {self.namespace!r})"


@dataclass(frozen=True, slots=True)
class ExactKey:
    """Stands for a key if only its exact key is known."""

    exact: Any


_UINT32_MASK: Final = (1 << 32) - 1
PLAIN_TYPES: Final = frozenset((str, int, bytes))
# Types whose values are their own stand-ins: no value equals one of another type, and equal values are one key.
_OWN_STAND_INS: Final = PLAIN_TYPES | {NoneType, datetime.date, datetime.timedelta}
_time_zone_of = attrgetter("tzinfo")


def key_hash(key: Any) -> int:
    """The 32-bit signed hash of a key, equal in every process.

    Raises:
        KeyTypeError: the key, or a part of it, is of a type without such a hash.
    """
    try:
        return exact_key_hash(key if type(key) in _OWN_STAND_INS else exact_key(key))
    except RecursionError:
        raise _too_deep(key) from None


def exact_key_hash(exact: Any) -> int:
    """The hash of the key that ``exact`` stands for: 32 bits, signed."""
    code = _HASHES[type(exact)](exact) & _UINT32_MASK
    return code - (1 << 32) if code >> 31 else code


def exact_key(key: Any) -> Any:
    """The exact key of a key: a hashable stand-in; two stand-ins are equal exactly if both values are one key.

    Values of str, int and bytes, None and dates are their own stand-ins.

    Raises:
        KeyTypeError: the key, or a part of it, is of a type that cannot be a key.
    """
    kind = type(key)
    if kind in _OWN_STAND_INS:
        return key
    exact_of = _KNOWN.get(kind) or _form_of(key)
    try:
        return exact_of(key)
    except RecursionError:
        raise _too_deep(key) from None


def exact_keys(keys: list[Any]) -> list[Any]:
    """``exact_key`` of each key; ``keys`` itself if nothing changes (11 ns per key if all are of one plain type).

    Raises:
        KeyTypeError: see ``exact_key``.
    """
    if are_plain(keys):
        return keys
    kinds = set(map(type, keys))
    if kinds <= _OWN_STAND_INS:
        return keys
    if len(kinds) > 1:
        return [exact_key(key) for key in keys]
    kind = kinds.pop()
    if kind is tuple:
        return _exact_tuples(keys)
    if kind is datetime.datetime and list(map(_time_zone_of, keys)).count(None) == len(keys):
        return keys
    return list(map(_KNOWN.get(kind) or _form_of(keys[0]), keys))


def _exact_tuples(keys: list[tuple[Any, ...]]) -> list[Any]:
    """The exact keys of tuples, made field by field if all are of one length: 550 ns per (str, float); tuple by tuple
    it takes 1,700.
    """
    if _OWN_STAND_INS.issuperset(map(type, itertools.chain.from_iterable(keys))):
        return keys
    if len(set(map(len, keys))) > 1:
        return list(map(_exact_tuple, keys))
    try:
        return list(zip(*[exact_keys(list(field)) for field in zip(*keys, strict=True)], strict=True))
    except RecursionError:
        raise _too_deep(keys[0]) from None


def are_plain(keys: Sequence[Any]) -> bool:
    """Whether every key is exactly a str, int or bytes, so that equal values are one key."""
    types = list(map(type, keys))
    if not types:
        return True
    first = types[0]
    if first in PLAIN_TYPES and types.count(first) == len(types):
        return True
    return PLAIN_TYPES.issuperset(types)


# ---------------------------------------------------------------- keys that hold keys
# No user's key contains a type, so a stand-in that begins with a type never equals a tuple that is a key.


def _exact_tuple(key: Iterable[Any]) -> Any:
    fields = tuple(key)
    return fields if _OWN_STAND_INS.issuperset(map(type, fields)) else tuple([exact_key(field) for field in fields])


def _exact_row(key: Row) -> Any:
    names = field_names_of(key)
    return Row, key.get_row_kind().value, None if names is None else tuple(names), _exact_tuple(key)


def _exact_namespaced(key: NamespacedKey) -> Any:
    exact = key.exact
    if exact is None:
        exact = key.exact = (NamespacedKey, exact_key(key.key), exact_key(key.namespace))
    return exact


def _exact_numpy(key: Any) -> Any:
    value = scalars.value_of_numpy(key)
    if value is not key:
        return exact_key(value)
    if not isinstance(key, np.datetime64 | np.timedelta64):
        raise refusal(type(key), "its size depends on the machine")
    return type(key), str(key)  # a time that no value of Python holds


_Form = Callable[[Any], Any]  # makes the stand-ins of the keys of one class; does not keep the class alive


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Takes the place of a form, for a class whose instances cannot be keys."""

    message: str

    def __call__(self, _: Any) -> NoReturn:
        raise KeyTypeError(self.message)


_KNOWN: Final[dict[type, _Form]] = {
    NoneType: lambda _: None,
    str: str.__str__,
    int: int.__index__,
    bool: lambda key: (bool, bool(key)),
    float: lambda key: (float, scalars.double_bits(key)),
    bytes: lambda key: bytes.__getitem__(key, slice(None)),
    tuple: _exact_tuple,
    list: lambda key: (list, _exact_tuple(key)),
    frozenset: lambda key: (frozenset, frozenset(map(exact_key, key))),
    Row: _exact_row,
    datetime.datetime: scalars.exact_datetime,
    datetime.date: scalars.exact_date,
    datetime.time: scalars.exact_time,
    datetime.timedelta: scalars.exact_timedelta,
    decimal.Decimal: scalars.exact_decimal,
    uuid.UUID: lambda key: (uuid.UUID, key.int),
    complex: lambda key: (complex, scalars.double_bits(key.real), scalars.double_bits(key.imag)),
    fractions.Fraction: lambda key: (fractions.Fraction, key.numerator, key.denominator),
    pathlib.PurePosixPath: scalars.exact_path,
    pathlib.PureWindowsPath: scalars.exact_path,
    NamespacedKey: _exact_namespaced,
    ExactKey: lambda key: key.exact,
}
# Types whose subclasses are always plain values, whatever attributes they hold: pandas keeps cached results in the
# attributes of its instants and durations.
_NEVER_MORE: Final = {list, Row, datetime.datetime, datetime.timedelta}


# ---------------------------------------------------------------- hashes, of stand-ins


def _hash_tuple(exact: tuple[Any, ...]) -> int:
    marker = exact[0] if exact else None
    if not isinstance(marker, type):
        return _hash_fields(exact)
    special = _HASHES_OF_MARKED.get(marker)
    # The others are times of numpy, by their text.
    return scalars.hash_str(exact[1]) if special is None else special(*exact[1:])


def _hash_fields(fields: Iterable[Any], code: int = 0) -> int:
    for field in fields:
        code = (code * 31 + exact_key_hash(field)) & _UINT32_MASK
    return code


_hash_name = functools.lru_cache(maxsize=1024)(scalars.hash_str)
_HASHES: Final[dict[type, Callable[[Any], int]]] = {
    NoneType: lambda _: 0,
    str: scalars.hash_str,
    int: scalars.hash_int,
    bytes: scalars.hash_bytes,
    tuple: _hash_tuple,
    datetime.datetime: scalars.hash_datetime,
    datetime.date: scalars.hash_date,
    datetime.time: lambda exact: scalars.hash_int(scalars.microseconds_of(exact)),
    datetime.timedelta: scalars.hash_timedelta,
}
# By the type that a stand-in begins with; of its other parts.
_HASHES_OF_MARKED: Final[dict[type, Callable[..., int]]] = {
    bool: lambda exact: 1231 if exact else 1237,
    float: scalars.hash_double_bits,
    complex: lambda real, imaginary: 31 * scalars.hash_double_bits(real) + scalars.hash_double_bits(imaginary),
    decimal.Decimal: scalars.hash_decimal,
    fractions.Fraction: lambda numerator, denominator: 31 * scalars.hash_int(numerator) + scalars.hash_int(denominator),
    uuid.UUID: scalars.hash_uuid,
    pathlib.PurePosixPath: scalars.hash_str,
    pathlib.PureWindowsPath: scalars.hash_str,
    # In UTC, the time since 1970; or an instant of pandas, whose nanoseconds do not count.
    datetime.datetime: lambda exact, _=0: exact_key_hash(exact),
    datetime.time: scalars.hash_int,
    datetime.timedelta: lambda plain, _: scalars.hash_timedelta(plain),
    list: lambda fields: _hash_fields(fields, 1),
    frozenset: lambda elements: sum(map(exact_key_hash, elements)),
    Row: lambda _kind, _names, fields: _hash_fields(fields),
    Enum: lambda name, identity: _hash_name(name) * 31 + key_hash(identity),
    object: lambda name, parts: _hash_fields(parts, _hash_name(name)),
    NamespacedKey: lambda key, _: exact_key_hash(key),
}


# ---------------------------------------------------------------- keys of other classes


# Classes of users come and go with their jobs.
_FORMS: Final[WeakKeyDictionary[type, _Form]] = WeakKeyDictionary()


def _form_of(key: Any) -> _Form:
    cls = type(key)
    form = _FORMS.get(cls)
    if form is None:
        form = _new_form(key, cls)
        if isinstance(form, _Refusal):
            _FORMS[cls] = form
        else:
            # setdefault: another thread may have refused the class meanwhile.  It looked at this key first, and its
            # look changed the key, so this thread saw no change.
            form = _FORMS.setdefault(cls, form)
    return form


def _new_form(key: Any, cls: type) -> _Form:
    if "numpy" in sys.modules and np.generic not in _KNOWN:  # without numpy there are none of its scalars
        _NEVER_MORE.add(np.generic)
        _KNOWN[np.generic] = _exact_numpy  # last: another thread that finds it has the rest, too
    for base in cls.__mro__:
        if base is Flag or base is Enum:
            name = qualified_name(cls)
            identity = attrgetter("_value_" if base is Flag else "_name_")
            return lambda key: (Enum, name, identity(key))
        if base in _KNOWN:
            form = _KNOWN[base]
            return form if base in _NEVER_MORE or cls.__eq__ is base.__eq__ else _form_unless_more(cls, base, form)
    return _form_of_content(key, cls)


def _form_unless_more(cls: type, base: type, form: _Form) -> _Form:
    """The form of the plain value, except for instances with attributes, at which the class's own ``__eq__`` may look:
    their form is their content.
    """
    has_slots = any(vars(derived).get("__slots__") for derived in cls.__mro__[: cls.__mro__.index(base)])
    if not has_slots and not cls.__dictoffset__:
        return form
    content: _Form | None = None  # made for the first instance with attributes

    def exact(key: Any) -> Any:
        nonlocal content
        if not has_slots and not vars(key):
            return form(key)
        if content is None:
            content = _form_of_content(key, type(key))
        return content(key)

    return exact


def _form_of_content(key: Any, cls: type) -> _Form:
    parts_of, is_pickled = content_of(cls)
    form = _form_by(parts_of, qualified_name(cls))
    if is_pickled and _is_changed_by_hashing(key, form):
        # For good: later instances may hold their hash already, so that a test of them would find no change.
        reason = "it keeps its hash, which is another one in every process: leave that out in __getstate__"
        return _Refusal(str(refusal(cls, reason)))
    return form


def _is_changed_by_hashing(key: Any, form: _Form) -> bool:
    """Whether a class stores Python's hash in its instances, which for texts differs from process to process."""
    before = form(key)
    try:
        hash(key)
    except Exception as error:
        raise refusal(type(key), f"its hash fails ({type(error).__name__}: {error})") from error
    return bool(form(key) != before)


def _form_by(parts_of: Callable[[Any], tuple[Any, ...]], name: str) -> _Form:
    def exact(key: Any) -> Any:
        try:
            return object, name, _exact_tuple(parts_of(key))
        except KeyTypeError as error:
            of_part = f"a value of type {type(key).__name__} cannot be a key, because of a part of it: {error}"
            raise KeyTypeError(of_part) from error
        except Exception as error:  # of the user's class
            raise refusal(type(key), f"it cannot be taken apart ({type(error).__name__}: {error})") from error

    return exact


def _too_deep(key: Any) -> KeyTypeError:
    return KeyTypeError(
        f"a value of type {type(key).__name__} cannot be a key: it is nested too deeply, or holds itself"
    )


_INT32_MIN: Final = -(1 << 31)
_pack_int32 = struct.Struct("<i").pack
_murmur = mmh3.hash


def key_group(key: Any, max_parallelism: int) -> int:
    """The key group of a key: 0 <= group < max_parallelism.

    Raises:
        KeyTypeError: the key has no hash that is equal in every process.
    """
    return group_of_hash(key_hash(key), max_parallelism)


def group_of_hash(code: int, max_parallelism: int) -> int:
    """The key group of keys with this hash."""
    mixed = _murmur(_pack_int32(code), 0)
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


# ---------------------------------------------------------------- bytes
# The keys of rows in RocksDB, and so of checkpoints; BATCH mode sorts keys by them that are neither integers nor texts.
# A letter for the type, then the content; parts of tuples and sets have their sizes in front.

READABLE_TYPES: Final = PLAIN_TYPES | {NoneType}
"""Keys of these types are their own exact keys, and can be read back from their bytes."""
_SIZE: Final = struct.Struct(">I")
_MICROSECOND: Final = datetime.timedelta(microseconds=1)


def key_bytes(exact: Any) -> bytes:
    """The bytes of an exact key.  Raises KeyTypeError: it is of a type that no exact key has."""
    kind = type(exact)
    if isinstance(exact, str):
        return b"s" + exact.encode("utf-8", "surrogatepass")
    if isinstance(exact, int) and kind is not bool:
        return b"i" + exact.to_bytes((exact.bit_length() + 8) // 8, "big", signed=True)
    if isinstance(exact, tuple):
        return b"t" + _joined([key_bytes(part) for part in exact])
    if isinstance(exact, type):
        return b"c" + f"{exact.__module__}.{exact.__qualname__}".encode()
    if kind not in _RARER_BYTES:
        raise KeyTypeError(f"a key of type {kind.__name__} cannot be kept in RocksDB; use the state back end 'hashmap'")
    return _RARER_BYTES[kind](exact)


def _decimal_bytes(exact: decimal.Decimal) -> bytes:
    """The bytes of the value as a fraction: equal decimals are one key, and may differ in their digits."""
    return b"m" + (str(exact).encode() if exact.is_infinite() else key_bytes(exact.as_integer_ratio()))


_RARER_BYTES: Final[dict[type, Callable[[Any], bytes]]] = {
    NoneType: lambda _: b"n",
    bool: lambda exact: b"?1" if exact else b"?0",
    bytes: lambda exact: b"b" + exact,
    frozenset: lambda exact: b"f" + _joined(sorted(map(key_bytes, exact))),
    datetime.datetime: lambda exact: b"D" + exact.replace(fold=0).isoformat().encode(),
    datetime.date: lambda exact: b"d" + exact.isoformat().encode(),
    datetime.time: lambda exact: b"h" + exact.replace(fold=0).isoformat().encode(),
    datetime.timedelta: lambda exact: b"u" + key_bytes(exact // _MICROSECOND),
    decimal.Decimal: _decimal_bytes,
}


def _joined(parts: list[bytes]) -> bytes:
    return b"".join([piece for part in parts for piece in (_SIZE.pack(len(part)), part)])


def plain_key(content: bytes) -> Any:
    """The key of one of the types ``READABLE_TYPES``, from its bytes."""
    match content[:1]:
        case b"s":
            return content[1:].decode("utf-8", "surrogatepass")
        case b"i":
            return int.from_bytes(content[1:], "big", signed=True)
        case b"b":
            return content[1:]
        case _:
            return None

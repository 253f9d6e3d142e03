"""From a key to its hash, to its key group, and to what a dictionary can tell apart.

``NamespacedKey``: a key of the stream together with a namespace, such as a window, under which state is kept.
``ExactKey``: a key of which only the stand-in is known.

Hot path, on misses of the caches above it: ``key_group`` of a 10-character str takes about 1 us.

Side:       pure.
Invariants: a hash is the same in every process, run and version of Python (Python's ``hash`` of a str is not);
            ``exact_key(a) == exact_key(b)`` exactly when ``a`` and ``b`` are the same key; the same key has one hash.
            The key group of a ``NamespacedKey`` is that of the key alone, so that it moves with the key; its exact key
            equals another one's exactly if both keys and both namespaces do.
Rules:      1, 1.0 and True are three keys, and so are 0.0 and -0.0; all NaNs are one key.  An instance of a subclass of
            str, int, float, bytes, tuple, date, ... (``StrEnum``, ``IntEnum``, a named tuple) is the same key as the
            plain value that it holds: Python's ``==`` says so, too, in every process.  It is a key of its class only
            where that has an ``__eq__`` of its own and holds more.  An ``Enum`` goes by class and name, a ``Flag`` by
            class and value; lists, tuples, Rows (kind and names count) and frozensets by what they hold, and a list is
            no tuple; dates, times, decimals and numpy's scalars as ``key_scalars`` says; instances of other classes by
            their content (``key_content``), whose parts obey the same rules.
Source:     The hashes are those of Java's ``String``, ``Integer`` (an int of 32 bits), ``Long``, ``BigInteger`` (beyond
            64 bits), ``Boolean``, ``Double``, ``Arrays.hashCode(byte[])``, ``UUID``, ``List``, ``Set``, of null (0) and
            of Flink's ``Tuple``.  Key groups: Flink ``KeyGroupRangeAssignment``, ``MathUtils.murmurHash``.  Namespaces:
            Flink ``InternalKvState.setCurrentNamespace``, where they are a part of every access of a state.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
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
    """A key and a namespace; nobody changes it.

    Args:
        key: as the user knows it.
        namespace: something that can be a key, too.
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
    """A key of which only the stand-in and the hash are known.

    Args:
        exact: what ``exact_key`` gave for the key.
        code: its ``key_hash``.
    """

    exact: Any
    code: int


_UINT32_MASK: Final = (1 << 32) - 1
PLAIN_TYPES: Final = frozenset((str, int, bytes))
# Whose values are their own stand-ins: none of them equals one of another type, and equal ones are the same key.
_OWN_STAND_INS: Final = PLAIN_TYPES | {NoneType, datetime.date, datetime.timedelta}
_time_zone_of = attrgetter("tzinfo")


def key_hash(key: Any) -> int:
    """The 32-bit signed hash of a key, the same in every process.

    Raises:
        KeyTypeError: the key, or a part of it, is of a type without such a hash.
    """
    hash_of = _HASHES.get(type(key)) or _form_of(key).hash
    try:
        code = hash_of(key) & _UINT32_MASK
    except RecursionError:
        raise _too_deep(key) from None
    return code - (1 << 32) if code >> 31 else code


def exact_key(key: Any) -> Any:
    """A hashable stand-in that equals another key's exactly if both are the same key; str, int, bytes, None and dates
    are their own.

    Raises:
        KeyTypeError: the key, or a part of it, is of a type that cannot be a key.
    """
    kind = type(key)
    if kind in _OWN_STAND_INS:
        return key
    exact_of = _EXACT.get(kind) or _form_of(key).exact
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
    form = _KNOWN.get(kind) or _form_of(keys[0])
    return list(map(form.exact, keys))


def _exact_tuples(keys: list[tuple[Any, ...]]) -> list[Any]:
    """Field by field, where all have as many: 550 ns per (str, float), and 1,700 tuple by tuple."""
    if _OWN_STAND_INS.issuperset(map(type, itertools.chain.from_iterable(keys))):
        return keys
    if len(set(map(len, keys))) > 1:
        return list(map(_exact_tuple, keys))
    try:
        return list(zip(*[exact_keys(list(field)) for field in zip(*keys, strict=True)], strict=True))
    except RecursionError:
        raise _too_deep(keys[0]) from None


def are_plain(keys: Sequence[Any]) -> bool:
    """Whether every key is exactly a str, int or bytes, so that equal keys are the same key."""
    types = list(map(type, keys))
    if not types:
        return True
    first = types[0]
    if first in PLAIN_TYPES and types.count(first) == len(types):
        return True
    return PLAIN_TYPES.issuperset(types)


# ---------------------------------------------------------------- keys that hold keys
# No user's key contains a type, so what begins with one can never equal a tuple that is a key.


def _hash_tuple(key: Iterable[Any], code: int = 0) -> int:
    for field in key:
        code = (code * 31 + key_hash(field)) & _UINT32_MASK
    return code


def _exact_tuple(key: Iterable[Any]) -> Any:
    fields = tuple(key)
    return fields if _OWN_STAND_INS.issuperset(map(type, fields)) else tuple([exact_key(field) for field in fields])


def _hash_frozenset(key: frozenset[Any]) -> int:
    # Elements that Python tells apart may be the same key, such as two NaNs.
    return sum({exact_key(element): key_hash(element) for element in key}.values())


def _exact_row(key: Row) -> Any:
    names = field_names_of(key)
    return Row, key.get_row_kind().value, None if names is None else tuple(names), _exact_tuple(key)


def _exact_namespaced(key: NamespacedKey) -> Any:
    exact = key.exact
    if exact is None:
        exact = key.exact = (NamespacedKey, exact_key(key.key), exact_key(key.namespace))
    return exact


def _numpy_value(key: Any) -> Any:
    """The value of Python that is the same key; the key itself, if it is a time that no such value holds."""
    value = scalars.value_of_numpy(key)
    if value is key and not isinstance(key, np.datetime64 | np.timedelta64):
        raise refusal(type(key), "its size depends on the machine")
    return value


def _hash_numpy(key: Any) -> int:
    value = _numpy_value(key)
    return scalars.hash_str(str(key)) if value is key else key_hash(value)


def _exact_numpy(key: Any) -> Any:
    value = _numpy_value(key)
    return (type(key), str(key)) if value is key else exact_key(value)


@dataclass(frozen=True, slots=True)
class _Form:
    """What is done with the keys of one class; it does not keep the class alive."""

    exact: Callable[[Any], Any]
    hash: Callable[[Any], int]
    is_refused: bool = False


_PATH: Final = _Form(scalars.exact_path, lambda key: scalars.hash_str(scalars.exact_path(key)[1]))
_KNOWN: Final[dict[type, _Form]] = {
    NoneType: _Form(lambda _: None, lambda _: 0),
    str: _Form(str.__str__, scalars.hash_str),
    int: _Form(int.__index__, scalars.hash_int),
    bool: _Form(lambda key: (bool, bool(key)), lambda key: 1231 if key else 1237),
    float: _Form(lambda key: (float, scalars.double_bits(key)), scalars.hash_float),
    bytes: _Form(lambda key: bytes.__getitem__(key, slice(None)), scalars.hash_bytes),
    tuple: _Form(_exact_tuple, _hash_tuple),
    list: _Form(lambda key: (list, _exact_tuple(key)), lambda key: _hash_tuple(key, 1)),
    frozenset: _Form(lambda key: (frozenset, frozenset(map(exact_key, key))), _hash_frozenset),
    Row: _Form(_exact_row, _hash_tuple),
    datetime.datetime: _Form(scalars.exact_datetime, scalars.hash_datetime),
    datetime.date: _Form(scalars.exact_date, scalars.hash_date),
    datetime.time: _Form(scalars.exact_time, scalars.hash_time),
    datetime.timedelta: _Form(scalars.exact_timedelta, scalars.hash_timedelta),
    decimal.Decimal: _Form(scalars.exact_decimal, scalars.hash_decimal),
    uuid.UUID: _Form(lambda key: (uuid.UUID, key.int), scalars.hash_uuid),
    complex: _Form(
        lambda key: (complex, scalars.double_bits(key.real), scalars.double_bits(key.imag)), scalars.hash_complex
    ),
    fractions.Fraction: _Form(lambda key: (fractions.Fraction, key.numerator, key.denominator), scalars.hash_fraction),
    pathlib.PurePosixPath: _PATH,
    pathlib.PureWindowsPath: _PATH,
    NamespacedKey: _Form(_exact_namespaced, lambda key: key_hash(key.key)),
    ExactKey: _Form(lambda key: key.exact, lambda key: key.code),
}
# Of these classes themselves, one look-up less: each key of a record goes through here.
_HASHES: Final = {kind: form.hash for kind, form in _KNOWN.items()}
_EXACT: Final = {kind: form.exact for kind, form in _KNOWN.items()}
# Whose subclasses are nothing else, whatever they hold: pandas keeps what it was asked for in the attributes of its
# instants and durations.
_NEVER_MORE: Final = {list, Row, datetime.datetime, datetime.timedelta}


# ---------------------------------------------------------------- keys of other classes


# Classes of users come and go with their jobs.
_FORMS: Final[WeakKeyDictionary[type, _Form]] = WeakKeyDictionary()


def _form_of(key: Any) -> _Form:
    cls = type(key)
    form = _FORMS.get(cls)
    if form is None:
        form = _new_form(key, cls)
        if form.is_refused:
            _FORMS[cls] = form
        else:
            # Another thread may have refused the class meanwhile: its look at the same key came first, and changed the
            # key.
            form = _FORMS.setdefault(cls, form)
    return form


def _learn_numpy() -> None:
    """Know numpy's scalars, once the program has numpy: without it there are none."""
    if "numpy" in sys.modules and np.generic not in _KNOWN:
        _NEVER_MORE.add(np.generic)
        _KNOWN[np.generic] = _Form(_exact_numpy, _hash_numpy)  # last: another thread that finds it has the rest, too


def _new_form(key: Any, cls: type) -> _Form:
    _learn_numpy()
    for base in cls.__mro__:
        if base is Flag or base is Enum:
            return _form_of_enum(cls, attrgetter("_value_" if base is Flag else "_name_"))
        if base in _KNOWN:
            form = _KNOWN[base]
            return form if base in _NEVER_MORE or cls.__eq__ is base.__eq__ else _form_unless_more(cls, base, form)
    return _form_of_content(key, cls)


def _form_of_enum(cls: type, identity: Callable[[Any], Any]) -> _Form:
    name = qualified_name(cls)
    code = scalars.hash_str(name) * 31
    return _Form(lambda key: (Enum, name, identity(key)), lambda key: code + key_hash(identity(key)))


def _form_unless_more(cls: type, base: type, form: _Form) -> _Form:
    """That of the plain value, but not for instances with attributes: the class's own ``__eq__`` may look at them."""
    has_slots = any(vars(derived).get("__slots__") for derived in cls.__mro__[: cls.__mro__.index(base)])
    if not has_slots and not cls.__dictoffset__:
        return form
    content: _Form | None = None  # made for the first instance with attributes

    def chosen(key: Any) -> _Form:
        nonlocal content
        if not has_slots and not vars(key):
            return form
        if content is None:
            content = _form_of_content(key, type(key))
        return content

    return _Form(lambda key: chosen(key).exact(key), lambda key: chosen(key).hash(key))


def _form_of_content(key: Any, cls: type) -> _Form:
    content = content_of(cls)
    form = _form_by(content.parts_of, qualified_name(cls))
    if content.is_pickled and _is_changed_by_hashing(key, form):
        # For good: an instance that keeps its hash already shows it no more.
        reason = "it keeps its hash, which is another one in every process: leave that out in __getstate__"
        return _refused(str(refusal(cls, reason)))
    return form


def _is_changed_by_hashing(key: Any, form: _Form) -> bool:
    """Whether a class keeps Python's hash of its instances, which is the hash of a text mostly."""
    before = form.exact(key)
    try:
        hash(key)
    except Exception as error:
        raise refusal(type(key), f"its hash fails ({type(error).__name__}: {error})") from error
    return bool(form.exact(key) != before)


def _refused(message: str) -> _Form:
    def refuse(_: Any) -> NoReturn:
        raise KeyTypeError(message)

    return _Form(refuse, refuse, is_refused=True)


def _form_by(parts_of: Callable[[Any], tuple[Any, ...]], name: str) -> _Form:
    code = scalars.hash_str(name)

    def exact(key: Any) -> Any:
        try:
            return object, name, _exact_tuple(parts_of(key))
        except Exception as error:
            raise _because_of(key, error) from error

    def hashed(key: Any) -> int:
        try:
            return _hash_tuple(parts_of(key), code)
        except Exception as error:
            raise _because_of(key, error) from error

    return _Form(exact, hashed)


def _because_of(key: Any, error: Exception) -> KeyTypeError:
    """What a part is refused for, or what the user's class raised."""
    if isinstance(error, KeyTypeError):
        return KeyTypeError(f"a value of type {type(key).__name__} cannot be a key, because of a part of it: {error}")
    return refusal(type(key), f"it cannot be taken apart ({type(error).__name__}: {error})")


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

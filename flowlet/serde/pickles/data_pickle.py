"""Pickles of values, and of plain values alone where the sender is not to be trusted with more.

Side:       pure.
Invariants: under ``plain_values_alone`` nothing is imported and nothing is called but the constructors in ``_PLAIN``, which make values;
            nothing that was there before is changed, and no more memory is taken than some MiB and what the values need.  What comes
            out is nested ``MAX_NESTING`` deep at most, and nothing deeper than some MiB of C's stack can bear is hashed on the way.
Hot path:   C reads whatever it can do no harm with; where it could, Python reads: about 0.7 us per value.
Source:     ``pickle.Unpickler.find_class``, "Restricting Globals" in Python's documentation.
"""

import io
import pickle
import re
import struct
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Final

from flowlet.common.types import Row, RowKind, _restore
from flowlet.errors import SerdeError

MAX_NESTING: Final = 100  # many times what a declared type has

# Nothing here looks anything up by a name that it is given (as ``getattr`` would, or numpy's scalars of dtype object).
_PLAIN: Final = frozenset(
    {
        ("builtins", "bytearray"),
        ("builtins", "complex"),
        ("builtins", "frozenset"),
        ("builtins", "set"),
        ("collections", "OrderedDict"),
        ("datetime", "date"),
        ("datetime", "datetime"),
        ("datetime", "time"),
        ("datetime", "timedelta"),
        ("datetime", "timezone"),
        ("decimal", "Decimal"),
        ("flowlet.common.time", "Instant"),
        ("flowlet.common.types", "RowKind"),
        ("flowlet.common.types", "_restore"),
        ("uuid", "UUID"),
    }
)
# Shared by the whole process, and with attributes: BUILD could change them for everybody.
_SHARED: Final = frozenset({("flowlet.common.types", "RowKind"), ("uuid", "UUID")})
# The same, but nothing is done with it but to call it.
_CALLED: Final = frozenset({("builtins", "bytearray"), ("flowlet.common.time", "Instant"), ("flowlet.common.types", "_restore")})
# What C's unpickler takes for the place of a value in its memo, which it makes as large: LONG_BINPUT from 2^20 on, PUT of seven digits.
_LARGE_PLACE: Final = re.compile(rb"r(?s:..)(?:[\x10-\xff]|(?s:.)[^\0])|p[\s+]*[0-9_]{7}")
_SIZE: Final = struct.Struct("<Q")
# ``hash`` of a tuple calls itself in C and asks nobody: 8 MiB of stack end at some 130,000 levels, a thread may have less.
_MAX_TUPLES: Final = 20_000
_HASHED: Final = frozenset({tuple, Row})  # by hashing what they hold
_FLAT: Final = (1, None)
_CONTAINERS: Final = frozenset({list, tuple, dict, set, frozenset, OrderedDict, Row})
_are_plain_alone: ContextVar[bool] = ContextVar("plain_values_alone", default=False)


class _NeedsCareError(Exception):
    """It names what C's unpickler would let it change."""


def _plain(module: str, name: str, find: Callable[[str, str], Any]) -> Any:
    if (module, name) not in _PLAIN:
        raise SerdeError(f"{module}.{name} is no plain value, and this sender may send nothing else")
    if (module, name) in _CALLED:
        # BUILD could change attributes of the thing itself for everybody, and those of the partial for this load alone.
        return partial(_bytearray_of if name == "bytearray" else _row_of if name == "_restore" else find(module, name))
    return find(module, name)


def _row_of(fields: list[str] | None, values: list[Any], row_kind: RowKind) -> Row:
    """With a list of its own: what is nested in it cannot be changed any more, so no row holds itself."""
    return _restore(fields, list(values), row_kind)


def _bytearray_of(*arguments: Any) -> bytearray:
    """Not of a number, which would be its size."""
    if arguments and isinstance(arguments[0], int):
        raise SerdeError(f"a bytearray of {arguments[0]} bytes that were not sent")
    return bytearray(*arguments)


class _FastUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _SHARED:
            raise _NeedsCareError
        return _plain(module, name, super().find_class)


class _CarefulUnpickler(pickle._Unpickler):  # the one whose steps can be looked at
    """Its memo is a dict, it builds nothing but UUIDs, and what it hashes is not nested deeply."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._depths: dict[int, tuple[int, object]] = {}  # by id, of what can be hashed and holds more of that; and it, to keep the id

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        return _plain(module, name, super().find_class)

    def load_build(self) -> None:
        instance = self.stack[-2]  # type: ignore[attr-defined]  # of the implementation in Python
        if type(instance) is not uuid.UUID:
            raise SerdeError(f"the state of a {type(instance).__name__}, which is no part of a plain value")
        pickle._Unpickler.load_build(self)  # type: ignore[attr-defined]

    dispatch[pickle.BUILD[0]] = load_build

    def load_bytearray8(self) -> None:
        [size] = _SIZE.unpack(self.read(_SIZE.size))  # type: ignore[attr-defined]
        data = bytearray(self.read(size))  # type: ignore[attr-defined]
        if len(data) != size:
            raise SerdeError(f"a bytearray of {size} bytes, {len(data)} of which were sent")
        self.append(data)  # type: ignore[attr-defined]

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8

    def measure(self, built: Any, nested: list[Any]) -> None:
        """``built`` holds ``nested``, among others."""
        depth = 1 + max([self._depths.get(id(each), _FLAT)[0] for each in nested])
        if depth > MAX_NESTING:
            raise _nested_error()
        self._depths[id(built)] = depth, built


def _measured(load: Callable[[Any], None]) -> Callable[[Any], None]:
    """The same step, which then looks at what it has made."""

    def load_and_measure(unpickler: Any) -> None:
        load(unpickler)
        built = unpickler.stack[-1]
        if type(built) in _HASHED:
            nested = [each for each in built if type(each) in _HASHED]
            if nested:
                unpickler.measure(built, nested)

    return load_and_measure


for _opcode in (*pickle.TUPLE, *pickle.TUPLE1, *pickle.TUPLE2, *pickle.TUPLE3, *pickle.REDUCE):
    _CarefulUnpickler.dispatch[_opcode] = _measured(_CarefulUnpickler.dispatch[_opcode])


def _load_plain(payload: bytes | memoryview) -> Any:
    data = bytes(payload)
    value = _load(data)
    if _is_nested_beyond(value, MAX_NESTING, len(data)):
        raise _nested_error()
    return value


def _load(data: bytes) -> Any:
    if _LARGE_PLACE.search(data) is None and _num_tuples(data) <= _MAX_TUPLES:
        try:
            return _FastUnpickler(io.BytesIO(data)).load()
        except _NeedsCareError:
            pass
    return _CarefulUnpickler(io.BytesIO(data)).load()


def _num_tuples(data: bytes) -> int:
    """No fewer than there are instructions that make a tuple: so deep may one be nested in others.  Text may look like them."""
    if len(data) <= _MAX_TUPLES:
        return len(data)
    of_any_size = min(data.count(pickle.MARK), data.count(pickle.TUPLE))
    return of_any_size + data.count(pickle.TUPLE1) + data.count(pickle.TUPLE2) + data.count(pickle.TUPLE3)


def _is_nested_beyond(value: Any, most: int, num_bytes: int) -> bool:
    """Whether containers stand in one another more than ``most`` deep.  Level by level: the steps are C's, and few."""
    level = _containers([value])
    for _ in range(most):
        if not level:
            return False
        if sum(map(len, level)) > num_bytes:  # more than was sent: the same ones occur again and again
            level = list({id(each): each for each in level}.values())
        level = _containers(chain.from_iterable(map(_parts_of, level)))
    return bool(level)


def _containers(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if type(value) in _CONTAINERS]


def _parts_of(container: Any) -> Iterable[Any]:
    return chain(container, container.values()) if isinstance(container, dict) else container


def _nested_error() -> SerdeError:
    return SerdeError(f"values are nested more than {MAX_NESTING} deep, which this sender may not send")


@contextmanager
def plain_values_alone() -> Iterator[None]:
    """What ``load_values`` reads inside, on this thread, may hold plain values and nothing else."""
    token = _are_plain_alone.set(True)
    try:
        yield
    finally:
        _are_plain_alone.reset(token)


def are_plain_values_alone() -> bool:
    """Whether ``plain_values_alone`` holds here: a class may not be read either."""
    return _are_plain_alone.get()


def load_values(payload: bytes | memoryview) -> Any:
    """What was pickled.

    Raises:
        SerdeError: it holds something that it may not hold.
        Exception: whatever rebuilding the values raises.
    """
    if _are_plain_alone.get():
        return _load_plain(payload)
    return pickle.loads(payload)  # noqa: S301 - from an authenticated peer of the same cluster

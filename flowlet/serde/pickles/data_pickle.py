"""Reads pickles; from senders that are not trusted, only plain values.

Side:       pure.
Invariants: under ``plain_values_alone`` nothing is imported, nothing is called but the constructors in ``_PLAIN``, and no existing object
            is changed.  Reading takes no more memory than some MiB plus what the values need.  Values are nested at most
            ``MAX_NESTING`` deep, and nothing is hashed that could overflow C's stack.
Hot path:   C's unpickler reads what it can read safely, Python's the rest, at about 0.7 us per value.
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

MAX_NESTING: Final = 100  # declared types are nested far less

# None of these looks something up by a name in its arguments (as ``getattr``, or numpy's scalars of dtype object, would).
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
# These are shared by the whole process and have attributes, which BUILD could change for everybody.
_SHARED: Final = frozenset({("flowlet.common.types", "RowKind"), ("uuid", "UUID")})
# So are these, but a plain value only ever calls them: find_class returns a partial instead.
_CALLED: Final = frozenset({("builtins", "bytearray"), ("flowlet.common.time", "Instant"), ("flowlet.common.types", "_restore")})
# C's unpickler makes its memo as large as the largest place it is given: LONG_BINPUT from 2^20 on, PUT of seven digits.
_LARGE_PLACE: Final = re.compile(rb"r(?s:..)(?:[\x10-\xff]|(?s:.)[^\0])|p[\s+]*[0-9_]{7}")
_SIZE: Final = struct.Struct("<Q")
# ``hash`` of nested tuples recurses in C without a check: 8 MiB of stack end at some 130,000 levels, and a thread may have less.
_MAX_TUPLES: Final = 20_000
_HASHED: Final = frozenset({tuple, Row})  # their hash is made of the hashes of what they hold
_FLAT: Final = (1, None)
_CONTAINERS: Final = frozenset({list, tuple, dict, set, frozenset, OrderedDict, Row})
_are_plain_alone: ContextVar[bool] = ContextVar("plain_values_alone", default=False)


class _NeedsCareError(Exception):
    """The pickle names a shared object, which C's unpickler would let it change."""


def _plain(module: str, name: str, find: Callable[[str, str], Any]) -> Any:
    if (module, name) not in _PLAIN:
        raise SerdeError(f"{module}.{name} is no plain value, and this sender may send nothing else")
    if (module, name) in _CALLED:
        # BUILD could change attributes of the object for everybody, but those of a partial only for this load.
        return partial(_bytearray_of if name == "bytearray" else _row_of if name == "_restore" else find(module, name))
    return find(module, name)


def _row_of(fields: list[str] | None, values: list[Any], row_kind: RowKind) -> Row:
    """A row with a list of its own: the pickle could otherwise put the row into its own list."""
    return _restore(fields, list(values), row_kind)


def _bytearray_of(*arguments: Any) -> bytearray:
    """Refuses a number, which would be a size: a few bytes of pickle could allocate any amount."""
    if arguments and isinstance(arguments[0], int):
        raise SerdeError(f"a bytearray of {arguments[0]} bytes that were not sent")
    return bytearray(*arguments)


class _FastUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _SHARED:
            raise _NeedsCareError
        return _plain(module, name, super().find_class)


class _CarefulUnpickler(pickle._Unpickler):  # Python's implementation: single instructions can be overridden
    """Keeps its memo in a dict, sets the state of UUIDs only, and limits how deep hashed values are nested."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._depths: dict[int, tuple[int, object]] = {}  # by id: depth of a hashed value; the value, so that its id is not reused

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
        """Record the depth of ``built``, which holds ``nested`` among others; raise if it is too deep."""
        depth = 1 + max([self._depths.get(id(each), _FLAT)[0] for each in nested])
        if depth > MAX_NESTING:
            raise _nested_error()
        self._depths[id(built)] = depth, built


def _measured(load: Callable[[Any], None]) -> Callable[[Any], None]:
    """The same instruction, which then measures what it has made."""

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
    """At least the number of instructions that make a tuple, which limits their nesting; text in the pickle may add to it."""
    if len(data) <= _MAX_TUPLES:
        return len(data)
    of_any_size = min(data.count(pickle.MARK), data.count(pickle.TUPLE))
    return of_any_size + data.count(pickle.TUPLE1) + data.count(pickle.TUPLE2) + data.count(pickle.TUPLE3)


def _is_nested_beyond(value: Any, most: int, num_bytes: int) -> bool:
    """Whether containers are nested more than ``most`` deep.  It goes level by level, so that few steps are in Python."""
    level = _containers([value])
    for _ in range(most):
        if not level:
            return False
        if sum(map(len, level)) > num_bytes:  # more parts than bytes: the same containers occur repeatedly
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
    """Inside the block, on this thread, ``load_values`` and ``class_of`` accept only plain values."""
    token = _are_plain_alone.set(True)
    try:
        yield
    finally:
        _are_plain_alone.reset(token)


def are_plain_values_alone() -> bool:
    """Whether this thread is inside ``plain_values_alone``."""
    return _are_plain_alone.get()


def load_values(payload: bytes | memoryview) -> Any:
    """Unpickle values.

    Raises:
        SerdeError: the pickle holds something that its sender may not send.
        Exception: whatever rebuilding the values raises.
    """
    if _are_plain_alone.get():
        return _load_plain(payload)
    return pickle.loads(payload)  # noqa: S301 - from an authenticated peer of the same cluster

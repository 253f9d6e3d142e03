"""Pickles of values, and of plain values alone where the sender is not to be trusted with more.

Side:       pure.
Invariants: under ``plain_values_alone`` nothing is imported and nothing is called but the constructors in ``_PLAIN``, which make values;
            nothing that was there before is changed, and no more memory is taken than some MiB and what the values need.
Hot path:   C reads whatever it can do no harm with; where it could, Python reads: about 0.7 us per value.
Source:     ``pickle.Unpickler.find_class``, "Restricting Globals" in Python's documentation.
"""

import io
import pickle
import re
import struct
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, ClassVar, Final

from flowlet.errors import SerdeError

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
_are_plain_alone: ContextVar[bool] = ContextVar("plain_values_alone", default=False)


class _NeedsCareError(Exception):
    """It names what C's unpickler would let it change."""


def _plain(module: str, name: str, find: Callable[[str, str], Any]) -> Any:
    if (module, name) not in _PLAIN:
        raise SerdeError(f"{module}.{name} is no plain value, and this sender may send nothing else")
    if (module, name) in _CALLED:
        # BUILD could change attributes of the thing itself for everybody, and those of the partial for this load alone.
        return partial(_bytearray_of if name == "bytearray" else find(module, name))
    return find(module, name)


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
    """Its memo is a dict, and it builds nothing but UUIDs."""

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


def _load_plain(payload: memoryview) -> Any:
    if _LARGE_PLACE.search(payload) is None:
        try:
            return _FastUnpickler(io.BytesIO(payload)).load()
        except _NeedsCareError:
            pass
    return _CarefulUnpickler(io.BytesIO(payload)).load()


@contextmanager
def plain_values_alone() -> Iterator[None]:
    """What ``load_values`` reads inside, on this thread, may hold plain values and nothing else."""
    token = _are_plain_alone.set(True)
    try:
        yield
    finally:
        _are_plain_alone.reset(token)


def load_values(payload: memoryview) -> Any:
    """What was pickled.

    Raises:
        SerdeError: it holds something that it may not hold.
        Exception: whatever rebuilding the values raises.
    """
    if _are_plain_alone.get():
        return _load_plain(payload)
    return pickle.loads(payload)  # noqa: S301 - from an authenticated peer of the same cluster

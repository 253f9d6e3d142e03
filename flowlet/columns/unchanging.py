"""Values that nobody can change, told by their types.

A record that cannot change may wait for its chunk and travel in columns.  A record that can change is serialized when
it is emitted.

Hot path: ``are_unchanging`` makes one pass in C over the types of a list, two over those of tuples.

Side:   pure.
Rules:  exact types, for a subclass may do anything; but a member of an ``Enum`` cannot change, and neither can a frozen
        dataclass or a named tuple of values that cannot.  (``object.__setattr__`` changes a frozen dataclass; its
        author asked for it.)
"""

import abc
import dataclasses
import datetime
import decimal
import enum
import uuid
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from types import NoneType
from typing import Any, Final, Generic

UNCHANGING: Final = frozenset(
    {str, int, float, bool, bytes, complex, NoneType, decimal.Decimal, uuid.UUID}
    | {datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone}
)
_MAX_DEPTH: Final = 20  # of tuples in tuples; deeper ones count as changing, so that no stack overflows


def is_unchanging(value: Any, depth: int = _MAX_DEPTH) -> bool:
    """Whether neither the value nor anything in it can change."""
    kind = type(value)
    if kind in UNCHANGING:
        return True
    parts = _parts(value, kind)
    return parts is not None and depth > 0 and all(is_unchanging(part, depth - 1) for part in parts)


def are_unchanging(values: list[Any]) -> bool:
    """Whether ``is_unchanging`` holds for each value."""
    kinds = set(map(type, values))
    if kinds <= UNCHANGING:
        return True
    if kinds == {tuple} and UNCHANGING.issuperset(map(type, chain.from_iterable(values))):
        return True
    return all(map(is_unchanging, values))


def _parts(value: Any, kind: Any) -> Iterable[Any] | None:
    """What the value holds, all of it; None if it can change by itself."""
    if kind is tuple or kind is frozenset:
        parts: Iterable[Any] = value
        return parts
    form: Callable[[Any], Iterable[Any]] | None = _form_of(kind)
    return None if form is None else form(value)


@lru_cache(maxsize=1024)
def _form_of(kind: Any) -> Callable[[Any], Iterable[Any]] | None:
    """What gives the parts of an instance of a class whose instances cannot change by themselves; None for any other
    class.
    """
    if issubclass(kind, enum.Enum):
        return _no_parts
    if issubclass(kind, tuple) and kind.__bases__ == (tuple,) and hasattr(kind, "_fields") and not kind.__dictoffset__:
        return tuple.__iter__
    if all(map(_is_frozen, kind.__mro__)) and "__dataclass_params__" in vars(kind):
        if kind.__dictoffset__:
            return _attributes
        names = [field.name for field in dataclasses.fields(kind)]
        return (
            _slots_of(names)
            if {name for base in kind.__mro__ for name in vars(base).get("__slots__", ())} <= set(names)
            else None
        )
    return None


def _is_frozen(base: type) -> bool:
    """Whether the class itself, not one that it inherits from, keeps its instances from being changed, or adds nothing
    to them.
    """
    if base in (object, abc.ABC, Generic):
        return True
    params = vars(base).get("__dataclass_params__")
    return params is not None and bool(params.frozen)


def _no_parts(_: Any) -> tuple[Any, ...]:
    return ()


def _attributes(value: Any) -> Iterable[Any]:
    attributes: dict[str, Any] = vars(value)
    return attributes.values()


def _slots_of(names: list[str]) -> Any:
    if not names:
        return _no_parts
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda value: (get(value),)

"""What a key of a user's class consists of, by which it is the same key in every process; and why other keys are
refused.

Side:       pure.
Invariants: equal contents mean the same key, whatever the class's own ``__eq__`` says; a content says nothing about
            where an object lies in memory, and nothing that Python's ``hash`` of a text decides.
Rules:      the content is the fields that count for ``==`` (dataclasses, attrs, msgspec), else what pickle would write,
            without what ``cached_property`` keeps.  A class goes by its qualified name, since processes have different
            objects for it.  Refused: what compares by identity; what has no hash, since it may change.
Absent:     a class whose ``__reduce__`` says something else on another run (the order of a set, a hash that it keeps)
            is not found out, except where taking its hash changes what pickle would write
            (``flowlet.keys.exact_keys``).
"""

import copyreg
import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any, Final

from flowlet.columns.column import values_of
from flowlet.errors import KeyTypeError
from flowlet.former_names import first_name

Parts = tuple[Any, ...]
PartsOf = Callable[[Any], Parts]

_PROTOCOL: Final = 2  # of pickle: the first that knows slots; later ones take the same parts
_NUM_REDUCED: Final = 5
# Of functions: a class method's class, a built-in function's module.
_OWNERS: Final = (type, types.ModuleType, types.NoneType)
_INSTEAD: Final = {
    "dict": "tuple(sorted(key.items()))",
    "set": "frozenset(key)",
    "bytearray": "bytes(key)",
    "memoryview": "bytes(key)",
    "ndarray": "key.tobytes(), or tuple(key.tolist())",
    "longdouble": "float(key)",
    "clongdouble": "complex(key)",
    "type": "key.__qualname__",
    "function": "key.__qualname__",
}
_BY_DEFAULT: Final = "a tuple of the fields that identify it, or a frozen dataclass"


def refusal(cls: type, reason: str) -> KeyTypeError:
    """The error for a key of this class, with advice."""
    advice = next((_INSTEAD[base.__name__] for base in cls.__mro__ if base.__name__ in _INSTEAD), _BY_DEFAULT)
    return KeyTypeError(f"a value of type {cls.__name__} cannot be a key: {reason}; use {advice}")


def qualified_name(named: Any) -> str:
    """Name a class or function, in the same way in every process, and our own in every version."""
    return first_name(named.__module__, named.__qualname__)


def content_of(cls: type) -> tuple[PartsOf, bool]:
    """How an instance of a class is taken apart into keys; and whether pickle does it so, since the class does not name
    its fields.

    Raises:
        KeyTypeError: its instances are not sure to be the same key in every process; the message says why.
    """
    if cls.__hash__ is None:
        raise refusal(cls, "it has no hash, since it may change")
    for name in ("__eq__", "__hash__"):
        if getattr(cls, name) is getattr(object, name):
            raise refusal(
                cls,
                f"without an {name} of its own it goes by its place in memory, which is another one in every process",
            )
    names = _compared_fields(cls)
    return (_reduced_by(cls), True) if names is None else (values_of(names), False)


def _compared_fields(cls: type) -> list[str] | None:
    """The names of the fields that count for ``==``; None: the class does not say."""
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls) if field.compare]
    if hasattr(cls, "__attrs_attrs__"):
        return [attribute.name for attribute in cls.__attrs_attrs__ if attribute.eq]
    if hasattr(cls, "__struct_fields__") and hasattr(cls, "__struct_config__"):
        config: Any = cls.__struct_config__
        if not (config.frozen and config.eq):
            raise refusal(cls, "it has no hash, since it may change: make it frozen=True")
        return list(cls.__struct_fields__)
    return None


# ---------------------------------------------------------------- as pickle takes things apart


def _reduced_by(cls: type) -> PartsOf:
    reduce = copyreg.dispatch_table.get(cls)
    cached = {
        name
        for base in cls.__mro__
        for name, value in vars(base).items()
        if isinstance(value, functools.cached_property)
    }

    def parts(key: Any) -> Parts:
        reduced = key.__reduce_ex__(_PROTOCOL) if reduce is None else reduce(key)
        if isinstance(reduced, str):
            return (reduced,)  # a global of that name
        make, args, state, items, pairs = (*reduced, *[None] * (_NUM_REDUCED - len(reduced)))[:_NUM_REDUCED]
        if pairs is not None:
            raise refusal(dict, "its items are in no fixed order")
        return _named(make), tuple(map(_named, args)), _state(state, cached), None if items is None else tuple(items)

    return parts


def _named(part: Any) -> Any:
    """The name of a class or function, which are no keys; any other part as it is, also a method of an instance."""
    is_function = (
        callable(part) and hasattr(part, "__qualname__") and isinstance(getattr(part, "__self__", None), _OWNERS)
    )
    return qualified_name(part) if is_function else part


def _state(state: Any, cached: set[str]) -> Any:
    """Attributes in the order of their names; a state of any other form as it is."""
    match state:
        case dict():
            attributes = state
        case (dict() | None, dict()):  # attributes, and slots
            attributes = {**(state[0] or {}), **state[1]}
        case _:
            return state
    if not all(isinstance(name, str) for name in attributes):
        return state
    return tuple(sorted((name, value) for name, value in attributes.items() if name not in cached))

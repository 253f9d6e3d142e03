"""The content of a key of a user's class, which is equal in every process; and the reasons why other keys are refused.

Side:       pure.
Invariants: instances with equal contents are one key, whatever the class's own ``__eq__`` says.  A content depends
            neither on the place of an object in memory nor on Python's ``hash`` of a text.
Rules:      the content is the fields that count for ``==`` (dataclasses, attrs, msgspec), else the parts that pickle
            would write, without the values that ``cached_property`` keeps.  A class goes by its qualified name, since
            processes have different objects for it.  Refused: instances that compare by identity; instances without a
            hash, since they may change.
Absent:     a class whose ``__reduce__`` gives other parts on another run (the order of a set, a hash that it keeps) is
            not detected, unless taking its hash changes the parts that pickle would write
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

_PROTOCOL: Final = 2  # of pickle: the first that knows slots; later ones take no other parts
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
    """The name of a class or function, equal in every process; for our own equal in every version, too."""
    return first_name(named.__module__, named.__qualname__)


def content_of(cls: type) -> tuple[PartsOf, bool]:
    """The function that takes an instance of a class apart into keys; and whether it takes pickle's parts, because the
    class does not name its fields.

    Raises:
        KeyTypeError: an instance might not be one key in every process; the message says why.
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
    """The names of the fields that count for ``==``; None: the class does not declare them."""
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


# ---------------------------------------------------------------- the parts that pickle takes


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
    """The name of a class or function, which cannot be keys; any other part itself, even a method of an instance."""
    is_function = (
        callable(part) and hasattr(part, "__qualname__") and isinstance(getattr(part, "__self__", None), _OWNERS)
    )
    return qualified_name(part) if is_function else part


def _state(state: Any, cached: set[str]) -> Any:
    """The attributes, without cached ones, in the order of their names; a state of any other form itself."""
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

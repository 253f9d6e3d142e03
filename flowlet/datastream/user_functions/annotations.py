"""The types that functions declare with their annotations.

Side:   pure.
Rules:  an annotation changes no record: it names columns' types (``to_arrow``), is shown by ``get_type()``, and
        contradicts a wrong ``output_type``.  What cannot be resolved or understood is ignored, never an error.
Source: none in PyFlink, whose functions of streams may have annotations, which it does not read.
"""

import collections.abc
import datetime
import decimal
import types
import typing
from collections.abc import Callable
from typing import Any, Final

from flowlet.common.time import Instant
from flowlet.common.typeinfo import (
    BasicArrayTypeInfo,
    BasicType,
    BasicTypeInfo,
    DateTypeInfo,
    InferredTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    ObjectArrayTypeInfo,
    PickledBytesTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    TimestampTypeInfo,
    TimeTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
)
from flowlet.common.types import Row

_PLAIN: Final[dict[Any, Callable[[], TypeInformation]]] = {
    str: Types.STRING,
    bool: Types.BOOLEAN,
    int: Types.LONG,
    float: Types.DOUBLE,
    bytes: lambda: Types.PRIMITIVE_ARRAY(Types.BYTE()),
    decimal.Decimal: Types.BIG_DEC,
    Instant: Types.INSTANT,
    datetime.date: Types.SQL_DATE,
    datetime.time: Types.SQL_TIME,
    datetime.datetime: Types.SQL_TIMESTAMP,
}
_NUMBERS: Final = frozenset({bool, int, float, decimal.Decimal})
# The classes of values that a type takes, among those that annotations are understood to name.
_TAKEN: Final[dict[BasicType, frozenset[Any]]] = {
    BasicType.STRING: frozenset({str}),
    BasicType.CHAR: frozenset({str}),
    BasicType.INSTANT: frozenset({Instant}),
    BasicType.BIG_DEC: _NUMBERS | {str},
}
_CONTAINERS: Final = frozenset({tuple, list, dict, Row})
_ITERABLES: Final = (
    list,
    tuple,
    set,
    frozenset,
    collections.abc.Iterable,
    collections.abc.Iterator,
    collections.abc.Generator,
)


def annotated_result(function: Any, method: str, *, is_iterated: bool = False) -> Any:
    """The annotation of a function's results: of the callable, or of the object's method; None if it has none that can
    be resolved.

    ``is_iterated``: the function returns an iterable of them.
    """
    called = getattr(function, method, None) or function
    if not isinstance(called, types.FunctionType | types.MethodType):
        called = vars(type(called)).get("__call__", None)
    try:
        found = typing.get_type_hints(called).get("return")
    except Exception:  # noqa: BLE001  # a name that exists for type checkers alone, or anything that an annotation may raise
        return None
    return _element_of(found) if is_iterated else found


def inferred_type(annotation: Any) -> TypeInformation:
    """The type of values with an annotation; any Python object where it is not understood."""
    inner = _inferred(annotation)
    return inner if isinstance(inner, PickledBytesTypeInfo) else InferredTypeInfo(inner)


def contradiction(annotation: Any, declared: TypeInformation) -> str | None:
    """Why no value with this annotation is of the declared type; None: some are, or nobody knows."""
    members = _members_of(annotation)
    if not members:
        return None
    found = [_contradiction(member, declared) for member in members]
    return None if None in found else found[0]


def _element_of(annotation: Any) -> Any:
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin not in _ITERABLES or not arguments or (origin is tuple and arguments[-1] is not ...):
        return None
    return arguments[0]


def _members_of(annotation: Any) -> list[Any]:
    """The members of a union but None; of another annotation itself."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [member for member in typing.get_args(annotation) if member is not type(None)]
    return [] if annotation is None or annotation is type(None) else [annotation]


def _inferred(annotation: Any) -> TypeInformation:
    members = _members_of(annotation)
    if len(members) != 1:
        return PickledBytesTypeInfo()
    member, arguments = members[0], typing.get_args(members[0])
    if isinstance(member, collections.abc.Hashable) and member in _PLAIN:
        return _PLAIN[member]()
    match typing.get_origin(member):
        case origin if origin is tuple and arguments and ... not in arguments:
            return TupleTypeInfo([_inferred(each) for each in arguments])
        case origin if origin is list and arguments:
            return ListTypeInfo(_inferred(arguments[0]))
        case origin if origin is dict and arguments:
            return MapTypeInfo(_inferred(arguments[0]), _inferred(arguments[1]))
        case _:
            return PickledBytesTypeInfo()


def _contradiction(member: Any, declared: TypeInformation) -> str | None:
    kind = typing.get_origin(member) or member
    if not isinstance(kind, type) or (kind not in _PLAIN and kind not in _CONTAINERS):
        return None
    arguments = typing.get_args(member)
    if arguments and getattr(arguments[0], "__name__", "") == "OutputTag":  # by name: this package is below that class
        return None  # a process function yields it with a record of a side output
    if not _takes(declared, kind):
        return f"{_name_of(member)} is not {declared!r}"
    if isinstance(declared, TupleTypeInfo) and arguments and ... not in arguments:
        return _field_contradiction(member, list(arguments), declared)
    if isinstance(declared, ListTypeInfo) and arguments:
        return contradiction(arguments[0], declared.elem_type)
    return None


def _field_contradiction(member: Any, arguments: list[Any], declared: TupleTypeInfo) -> str | None:
    fields = declared.get_field_types()
    if len(arguments) < len(fields):
        return f"{_name_of(member)} has {len(arguments)} fields, {declared!r} has {len(fields)}"
    reasons = [contradiction(each, field) for each, field in zip(arguments, fields, strict=False)]
    return next((f"field {index}: {reason}" for index, reason in enumerate(reasons) if reason is not None), None)


def _takes(declared: TypeInformation, kind: type) -> bool:
    """Whether values of this class can be of the declared type."""
    match declared:
        case BasicTypeInfo():
            return kind in _TAKEN.get(declared.basic_type, _NUMBERS)
        case TupleTypeInfo():
            return kind is tuple
        case RowTypeInfo():
            return kind is Row
        case MapTypeInfo():
            return kind is dict
        case PrimitiveArrayTypeInfo() | ListTypeInfo() if declared.elem_type == Types.BYTE():
            return kind is bytes
        case ListTypeInfo() | PrimitiveArrayTypeInfo() | BasicArrayTypeInfo() | ObjectArrayTypeInfo():
            return kind is list
        case DateTypeInfo():
            return kind in (datetime.date, datetime.datetime)
        case TimeTypeInfo():
            return kind is datetime.time
        case TimestampTypeInfo():
            return kind in (datetime.datetime, datetime.date)
        case _:
            return True


def _name_of(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else repr(annotation)

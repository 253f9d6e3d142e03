"""Checks of the API's arguments while a program is built, and the types that functions declare.

Types come from generic base classes, such as ``AsyncFunction[int, str]``, and from the annotations of functions.

Side:   pure.
Rules:  a base class without brackets takes any records: for type checkers each variable has the default ``Any``, which
        ``typing`` knows only from Python 3.13 on.  An annotation changes no record: it names columns' types
        (``to_arrow``), is shown by ``get_type()``, and contradicts a wrong ``output_type``.  An annotation that cannot
        be resolved or understood is ignored, never an error.  Every function raises JobGraphError if its demands are
        not met; the message names the call, the argument and what to pass instead.
Source: PyFlink ``pyflink.datastream.functions``, where these classes are generic.  PyFlink's functions of streams may
        have annotations, but it does not read them.
"""

import collections.abc
import datetime
import decimal
import inspect
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from flowlet.common.checks import check_kind
from flowlet.common.time import Instant
from flowlet.common.typeinfo import (
    ARRAY_TYPES,
    BasicType,
    BasicTypeInfo,
    DateTypeInfo,
    InferredTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
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
from flowlet.datastream.user_functions.function import Function
from flowlet.datastream.user_functions.record_functions import FlatMapFunction
from flowlet.errors import JobGraphError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    IN = TypeVar("IN", default=Any)
    IN1 = TypeVar("IN1", default=Any)
    IN2 = TypeVar("IN2", default=Any)
    OUT = TypeVar("OUT", default=Any)
    KEY = TypeVar("KEY", default=Any)
    T = TypeVar("T", default=Any)
    W = TypeVar("W", default=Any)
    W2 = TypeVar("W2", default=Any)
else:
    from typing import TypeVar

    IN, IN1, IN2, OUT, KEY, T, W, W2 = map(TypeVar, ("IN", "IN1", "IN2", "OUT", "KEY", "T", "W", "W2"))

__all__ = ["IN", "IN1", "IN2", "KEY", "OUT", "W2", "T", "W"]


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
# The classes of values that other types take; a type that is not here takes any class.
_CLASSES: Final[dict[type[TypeInformation], tuple[type, ...]]] = {
    TupleTypeInfo: (tuple,),
    RowTypeInfo: (Row,),
    MapTypeInfo: (dict,),
    DateTypeInfo: (datetime.date, datetime.datetime),
    TimeTypeInfo: (datetime.time,),
    TimestampTypeInfo: (datetime.datetime, datetime.date),
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
    """The annotation of a function's results: of the callable, or of the object's method.

    None: there is no annotation, or it cannot be resolved.  ``is_iterated``: the function returns an iterable of
    results.
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
    """The type of values with this annotation; any Python object where it is not understood."""
    inner = _inferred(annotation)
    return inner if isinstance(inner, PickledBytesTypeInfo) else InferredTypeInfo(inner)


def contradiction(annotation: Any, declared: TypeInformation) -> str | None:
    """Why no value with this annotation is of the declared type; None: some are, or it is not known."""
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
    """The members of a union, without None; for another annotation, the annotation itself."""
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
    if isinstance(declared, BasicTypeInfo):
        return kind in _TAKEN.get(declared.basic_type, _NUMBERS)
    if isinstance(declared, ARRAY_TYPES):
        is_bytes = isinstance(declared, PrimitiveArrayTypeInfo | ListTypeInfo) and declared.elem_type == Types.BYTE()
        return kind is (bytes if is_bytes else list)
    return kind in _CLASSES.get(type(declared), (kind,))


def _name_of(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else repr(annotation)


def checked_function(func: Any, function_class: type[Function], method: str, num_arguments: int) -> Any:
    """The function itself, which must be callable with this many records.

    It must not be a class, a coroutine function, a function of another class, or a generator function where one result
    is expected.
    """
    check_is_object(func, method)
    if isinstance(func, function_class):
        return func
    if not callable(func):
        raise JobGraphError(
            f"{method}() needs a callable or a {function_class.__name__}, got {func!r} of type {type(func).__name__}"
        )
    if inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(getattr(func, "__call__", None)):  # noqa: B004  # its kind is asked
        raise JobGraphError(
            f"{method}() needs an ordinary function, got the coroutine function {name_of(func)}; write it with def"
        )
    if inspect.isgeneratorfunction(func) and function_class is not FlatMapFunction:
        raise JobGraphError(
            f"{method}() needs one result per call, but {name_of(func)} is a generator function; return it, or use "
            "flat_map()"
        )
    _check_arguments(func, method, num_arguments)
    return func


def check_is_object(func: Any, method: str) -> None:
    """Check that a function is no class.  Raises JobGraphError: it is one."""
    if isinstance(func, type) and issubclass(func, Function):
        raise JobGraphError(
            f"{method}() needs a function object, got the class {func.__name__}; write {func.__name__}()"
        )


def checked_batch_function(func: Any) -> Any:
    """The function of ``map_batches`` itself; may be an object with ``map_batch``, or a generator function."""
    if hasattr(func, "map_batch") and not isinstance(func, type):
        return func
    if not callable(func) or isinstance(func, Function):
        kind = type(func).__name__
        raise JobGraphError(
            f"map_batches() needs a callable or an object with map_batch(batch), got {func!r} of type {kind}"
        )
    return checked_function(func, FlatMapFunction, "map_batches", 1)


def checked_object(func: Any, method: str, *function_classes: type[Function]) -> Any:
    """The function itself; it must be an object of one of the classes, not a class."""
    check_is_object(func, method)
    if not isinstance(func, function_classes):
        wanted = " or ".join(dict.fromkeys(each.__name__ for each in function_classes))
        raise JobGraphError(f"{method}() needs a {wanted} here, got {func!r} of type {type(func).__name__}")
    return func


def result_type(
    output_type: TypeInformation | None, func: Any, method: str, *, is_iterated: bool = False
) -> TypeInformation:
    """The declared type of a function's results; without one, the type of their annotation, which converts no record.

    ``is_iterated``: the function returns or yields several.  The annotation must not contradict the declared type.
    """
    annotation = annotated_result(func, method, is_iterated=is_iterated)
    if output_type is None:
        return inferred_type(annotation)
    declared = declared_type(output_type)
    reason = contradiction(annotation, declared)
    if reason is not None:
        results = "results of another one" if is_iterated else "another one"
        raise JobGraphError(
            f"{method}() declares the type {declared!r}, but {name_of(func)} returns {results} by its annotation: "
            f"{reason}"
        )
    return declared


def declared_type(output_type: TypeInformation | list[TypeInformation] | None) -> TypeInformation:
    """The declared type of an operator's results: type information, or a list of it, for rows; None means any Python
    object.
    """
    if output_type is None:
        return PickledBytesTypeInfo()
    if isinstance(output_type, list):
        return RowTypeInfo(output_type)
    check_kind(output_type, TypeInformation, "a type is declared with type information such as Types.STRING()")
    return output_type


def name_of(func: Any) -> str:
    """The name of a function in messages."""
    return str(getattr(func, "__qualname__", None) or repr(func))


def _check_arguments(func: Any, method: str, num_arguments: int) -> None:
    try:
        signature = inspect.signature(func)
    except (TypeError, ValueError):
        return  # the signature of some built-in functions is unknown
    try:
        signature.bind(*[None] * num_arguments)
    except TypeError as error:
        records = "one record" if num_arguments == 1 else f"{num_arguments} records"
        raise JobGraphError(
            f"{method}() calls its function with {records}, but {name_of(func)}{signature} does not take that: {error}"
        ) from None


def check_type_information(type_info: TypeInformation | None, method: str) -> None:
    """Check that ``type_info`` is a declared type, or None.  Raises JobGraphError: it is neither."""
    check_kind(type_info, TypeInformation | None, f"{method}() needs type information such as Types.STRING()")

"""Checks the arguments of the API while a program is built.

Side:  pure.
Rules: every function raises JobGraphError if its demands are not met.  The message names the call, what it got and what
       to pass instead.
"""

import inspect
from typing import Any

from flowlet.common.typeinfo import PickledBytesTypeInfo, RowTypeInfo, TypeInformation
from flowlet.datastream.user_functions.annotations import annotated_result, contradiction, inferred_type
from flowlet.datastream.user_functions.function import Function
from flowlet.datastream.user_functions.record_functions import FlatMapFunction
from flowlet.errors import JobGraphError


def checked_function(func: Any, function_class: type[Function], method: str, num_arguments: int) -> Any:
    """The function itself, which must be callable with this many records.

    It must not be a class, a coroutine function, a function of another class, or a generator function where one result
    is expected.
    """
    if isinstance(func, type) and issubclass(func, Function):
        raise JobGraphError(
            f"{method}() needs a function object, got the class {func.__name__}; write {func.__name__}()"
        )
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
    if isinstance(func, type) and issubclass(func, Function):
        raise JobGraphError(
            f"{method}() needs a function object, got the class {func.__name__}; write {func.__name__}()"
        )
    if not isinstance(func, function_classes):
        wanted = " or ".join(dict.fromkeys(each.__name__ for each in function_classes))
        raise JobGraphError(f"{method}() needs a {wanted} here, got {func!r} of type {type(func).__name__}")
    return func


def result_type(
    output_type: TypeInformation | None, func: Any, method: str, *, is_iterated: bool = False
) -> TypeInformation:
    """The declared type of a function's results; without one, what their annotation says, which converts nothing.

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
    if not isinstance(output_type, TypeInformation):
        raise JobGraphError(f"a type is declared with type information such as Types.STRING(), got {output_type!r}")
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


def check_type_information(type_info: TypeInformation, method: str) -> None:
    """``type_info`` must be a declared type."""
    if not isinstance(type_info, TypeInformation):
        raise JobGraphError(f"{method}() needs type information such as Types.STRING(), got {type_info!r}")

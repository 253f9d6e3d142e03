"""How the user's window function is called: with or without key, context and results.

Side:   task.
Source: PyFlink ``InternalIterableWindowFunction``, ``InternalSingleValueProcessWindowFunction`` and their like.
"""

from collections.abc import Callable, Iterable
from typing import Any

from flowlet.datastream.user_functions.window_functions import ProcessAllWindowFunction, ProcessWindowFunction
from flowlet.datastream.window.window_spec import WindowSpec
from flowlet.windows.window_contexts import FunctionContext

# Gets the key and the records, or what they were combined to.
WindowCall = Callable[[Any, Any, list[Any]], Iterable[Any] | None]


def has_context(spec: WindowSpec) -> bool:
    """Whether the function is called by ``process``, with a context."""
    return hasattr(spec.function, "process")


def window_call_of(spec: WindowSpec, context: FunctionContext) -> WindowCall:
    """What to call with the key, the window and what it holds; ``context``: of the window, set by the caller."""
    function = spec.function
    if function is None:
        return _pass_through
    if has_context(spec):
        process = function.process
        if spec.is_keyed:
            return lambda key, _window, elements: process(key, context, elements)
        return lambda _key, _window, elements: process(context, elements)
    apply = function.apply
    if spec.is_keyed:
        return lambda key, window, elements: apply(key, window, elements)
    return lambda _key, window, elements: apply(window, elements)


def clears(spec: WindowSpec) -> bool:
    """Whether the function wants to know when a window ends."""
    if not has_context(spec):
        return False
    own = getattr(type(spec.function), "clear", None)
    return own not in (None, ProcessWindowFunction.clear, ProcessAllWindowFunction.clear)


def _pass_through(_key: Any, _window: Any, elements: list[Any]) -> Iterable[Any]:
    return elements

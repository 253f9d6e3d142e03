"""How users' code is found, opened, called and blamed.

Side:       task.
Invariants: an error message about a record can itself never fail; nothing is counted per record to know which one failed.
Source:     PyFlink's function objects (``MapFunction.map`` and so on), Flink ``StreamingRuntimeContext``, ``FunctionUtils``.
Absent:     coroutine functions; state and metrics in the runtime context.
"""

import reprlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, cast

from flowlet.common.not_yet import missing_attribute
from flowlet.errors import JobGraphError, UserFunctionError
from flowlet.operators.base import OperatorContext, StreamOperator

MAX_PREVIEW_CHARACTERS = 200


class RuntimeContext:
    """What ``open`` is given; the names are PyFlink's."""

    def __init__(self, ctx: OperatorContext) -> None:
        self._ctx = ctx

    def get_task_name(self) -> str:
        """The name of the task."""
        return self._ctx.task_name

    def get_task_name_with_subtasks(self) -> str:
        """The name of the task with the subtask's number, counted from 1, as in ``Map (3/4)``."""
        return f"{self._ctx.task_name} ({self._ctx.subtask + 1}/{self._ctx.parallelism})"

    def get_number_of_parallel_subtasks(self) -> int:
        """The parallelism of the task."""
        return self._ctx.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        """The number of key groups."""
        return self._ctx.max_parallelism

    def get_index_of_this_subtask(self) -> int:
        """Which subtask this is, counted from 0."""
        return self._ctx.subtask

    def get_attempt_number(self) -> int:
        """How often the subtask was started before."""
        return self._ctx.attempt

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_attribute(self, name)


class UserFunction:
    """A function object with methods of given names, or, where one is enough, any other callable.

    Only objects with the method are opened and closed: a plain callable that happens to have a ``close`` is nobody's to close.

    Args:
        function: an object with the methods, or a callable.
        method: such as ``map``.
        more: others that it must have.

    Raises:
        JobGraphError: it is neither.
    """

    def __init__(self, function: Any, method: str, *more: str) -> None:
        self._function = function
        self._method = method
        has_all = all(self.method(name) is not None for name in (method, *more))
        if not has_all and (more or not callable(function)):
            methods = " and ".join(f"{name}()" for name in (method, *more))
            expected = f"an object with the methods {methods}" if more else f"a function of one record or an object with a method {methods}"
            raise JobGraphError(f"expected {expected}, got {preview(function)} of type {type(function).__name__}")

    def __repr__(self) -> str:
        return f"<UserFunction {preview(self._function)}>"

    @property
    def call(self) -> Callable[..., Any]:
        """What to call with the record."""
        return cast("Callable[..., Any]", self.method(self._method) or self._function)

    def method(self, name: str) -> Callable[..., Any] | None:
        """The object's method of that name; None if it has none."""
        # A class is a callable here: its instances have the method, it has not.
        found = None if isinstance(self._function, type) else getattr(self._function, name, None)
        return found if callable(found) else None

    def open(self, ctx: OperatorContext) -> None:
        """Call the object's ``open``, if it has one."""
        self._run("open", RuntimeContext(ctx), ctx=ctx)

    def close(self, ctx: OperatorContext) -> None:
        """Call the object's ``close``, if it has one."""
        self._run("close", ctx=ctx)

    def _run(self, name: str, *args: Any, ctx: OperatorContext) -> None:
        step = None if self.method(self._method) is None else self.method(name)
        if step is not None:
            try:
                step(*args)
            except Exception as error:
                error.add_note(f"raised by {name}()")
                raise UserFunctionError(ctx.operator_name, ctx.subtask, None) from error


class UserFunctionOperator(StreamOperator):
    """An operator around one user function, or several.

    Subclasses call ``_add`` in their constructor and bind ``call`` of what it returns in ``open``: bound methods are not pickled.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._functions: list[UserFunction] = []
        self._num_open = 0

    def open(self) -> None:
        """Open the functions."""
        for function in self._functions:
            # Counted first: what a failing open() took must be given back too.
            self._num_open += 1
            function.open(self.ctx)

    def close(self) -> None:
        """Close the functions that were opened."""
        while self._num_open:
            self._num_open -= 1
            self._functions[self._num_open].close(self.ctx)

    def _add(self, function: Any, method: str, *more: str) -> UserFunction:
        added = UserFunction(function, method, *more)
        self._functions.append(added)
        return added

    def _failure(self, values: list[Any], position: Iterator[Any]) -> UserFunctionError:
        """The error about the record that ``position``, a list iterator over ``values``, gave last."""
        return UserFunctionError(self.name, self.ctx.subtask, preview(last_of(values, position)))


def last_of(values: list[Any], position: Iterator[Any]) -> Any:
    """The record that a list iterator over ``values`` gave last; it gave at least one."""
    return values[len(values) - position.__length_hint__() - 1]  # type: ignore[attr-defined]  # list iterators have it


class _PreviewRepr(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxtuple = self.maxlist = self.maxdict = self.maxset = self.maxfrozenset = self.maxdeque = self.maxarray = 10
        self.maxstring = self.maxother = 120
        self.maxlong = 60

    def repr_bytes(self, value: bytes, level: int) -> str:
        return repr(value[: self.maxstring]) + ("..." if len(value) > self.maxstring else "")

    def repr_instance(self, value: Any, level: int) -> str:
        text = str.__str__(repr(value))
        return text if len(text) <= self.maxother else text[: self.maxother - 3] + "..."


_preview_repr = _PreviewRepr()


def preview(record: object) -> str:
    """The ``repr`` of a record in one line of at most 200 characters, which any text encoding can hold; never raises."""
    try:
        text = _preview_repr.repr(record)
        text = text.encode("utf-8", "backslashreplace").decode().replace("\r", "\\r").replace("\n", "\\n")
    except Exception as error:  # noqa: BLE001 - a user's __repr__ must not hide the failure that is being reported
        text = f"<a {_type_name(record)} whose repr raised {_type_name(error)}>"
    return text if len(text) <= MAX_PREVIEW_CHARACTERS else text[: MAX_PREVIEW_CHARACTERS - 3] + "..."


def _type_name(value: object) -> str:
    # Not value.__class__, nor an attribute found through the metaclass: users can make both raise.
    name: str = type.__dict__["__name__"].__get__(type(value))
    return name.encode("utf-8", "backslashreplace").decode()

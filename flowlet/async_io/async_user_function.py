"""A user's async function: called on the loop, opened and closed where its methods want to run.

Side:       task.
Source:     PyFlink ``AsyncFunction``.  ``open``, ``close`` and ``timeout`` may be coroutine functions, too.  They then
            run on the loop of the calls, where client libraries must make and close their sessions.
"""

import inspect
from collections.abc import Callable
from typing import Any

from flowlet.async_io.async_calls import AsyncFunctionCall, CallRunner
from flowlet.chain.preview import preview
from flowlet.chain.stream_operator import OperatorContext
from flowlet.errors import JobGraphError, UserFunctionError
from flowlet.mailbox.mailbox_future import Signal
from flowlet.operators.user_function import Checkpoints, RuntimeContext


class AsyncUserFunction:
    """An object with a coroutine method ``async_invoke(value)``, or a coroutine function.

    Raises JobGraphError if it is neither.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self.checkpoints = Checkpoints(function)
        self._is_object = callable(getattr(function, "async_invoke", None)) and not isinstance(function, type)
        if not self._is_object and not inspect.iscoroutinefunction(function):
            raise JobGraphError(
                "expected a coroutine function of one record or an object with 'async def async_invoke', got "
                f"{preview(function)} "
                f"of type {type(function).__name__}"
            )

    def __repr__(self) -> str:
        return f"<AsyncUserFunction {preview(self._function)}>"

    @property
    def invoke(self) -> AsyncFunctionCall:
        """The function to call with a record."""
        call: AsyncFunctionCall = self._function.async_invoke if self._is_object else self._function
        return call

    @property
    def timeout(self) -> Callable[[Any], Any] | None:
        """The function to call with a record that timed out; None if the user defined none."""
        found = self._method("timeout")
        return found if callable(found) else None

    def open(self, ctx: OperatorContext, calls: CallRunner) -> None:
        """Call the object's ``initialize_state`` and ``open``, if it has them.

        Raises UserFunctionError if one fails.
        """
        self.checkpoints.initialize(ctx)
        # A coroutine may take long; mails are taken meanwhile, so that the task can be cancelled.
        wait = None if ctx.executor is None else ctx.executor.yield_until
        self._run("open", ctx, calls, RuntimeContext(ctx), wait=wait)

    def close(self, ctx: OperatorContext, calls: CallRunner) -> None:
        """Call the object's ``close``, if it has one.  Raises UserFunctionError if it fails."""
        self._run("close", ctx, calls)

    def wrong_result(self, result: object) -> RuntimeError:
        """The error for a result that has no records: what PyFlink says, and what it was."""
        kind = "cannot be none" if result is None else "should be of list type"
        got = "" if result is None else f", got {preview(result)} of type {type(result).__name__}"
        return RuntimeError(
            f"The result of AsyncFunction {kind}, please check the methods 'async_invoke' and 'timeout' of class "
            f"'{self._class_name}'{got}."
        )

    def failed_at(self, record: str) -> str:
        """What PyFlink says about an error at a record."""
        return f"Error happens inside the class '{self._class_name}' during handling input '{record}'"

    @property
    def _class_name(self) -> str:
        return str(type(self._function) if self._is_object else getattr(self._function, "__qualname__", self._function))

    def _method(self, name: str) -> Any:
        return getattr(self._function, name, None) if self._is_object else None

    def _run(
        self,
        name: str,
        ctx: OperatorContext,
        calls: CallRunner,
        *args: Any,
        wait: Callable[[Signal], None] | None = None,
    ) -> None:
        step = self._method(name)
        if not callable(step):
            return
        try:
            if inspect.iscoroutinefunction(step):
                calls.run(step, *args, wait=wait)
            else:
                step(*args)
        except Exception as error:
            error.add_note(f"raised by {name}()")
            if isinstance(error, RuntimeError) and "event loop" in str(error) and not inspect.iscoroutinefunction(step):
                error.add_note(f"write 'async def {name}': it then runs on the loop of the calls")
            raise UserFunctionError(ctx.operator_name, ctx.subtask, None) from error

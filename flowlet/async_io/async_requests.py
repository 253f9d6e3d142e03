"""Calls of an async operator that are on their way, and the next attempt of one that failed.

Decides whether an asynchronous call is tried again.

A user's async function: called on the loop, opened and closed where its methods want to run.

Side:       task.
Invariants: the user's predicates are not called when no attempt is left.  a request has a running call, or a timer for
            its next attempt, never both.  One outcome counts per request. The timer of a batch is cancelled with its
            last request.
Units:      milliseconds; attempts count from 1.  milliseconds.
Source:     Flink ``AsyncWaitOperator.RetryableResultHandlerDelegator``.  PyFlink ``AsyncFunction``.  ``open``,
            ``close`` and ``timeout`` may be coroutine functions, too.  They then run on the loop of the calls, where
            client libraries must make and close their sessions.  Flink ``AsyncWaitOperator.ResultHandler`` and
            ``RetryableResultHandlerDelegator``.  The timeout covers all attempts together.  Records that arrived
            together share one timer.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from functools import partial
from typing import Any

from flowlet.async_io.async_calls import AsyncCall, AsyncCalls, Failed
from flowlet.async_io.async_queue import PendingRecord
from flowlet.chain.record_shape import unpickled
from flowlet.chain.stream_operator import OperatorContext
from flowlet.errors import JobGraphError, UserFunctionError
from flowlet.operators.user_function import UserFunction, run_step
from flowlet.serde.type_serializer import preview
from netstack.late import dataclass
from netstack.loop.loop_timers import Cancellable


def retry_delay_ms(strategy: Any, outcome: list[Any] | Failed, num_attempts: int) -> int | None:
    """How long to wait before a call is tried again after its outcome; None: it is not.

    Args:
        strategy: an ``AsyncRetryStrategy`` or an object like it.
        outcome: the results, or the error; only an ``Exception`` is tried again.
        num_attempts: how often the call was tried.
    """
    error = outcome.error if isinstance(outcome, Failed) else None
    if error is not None and not isinstance(error, Exception):
        return None
    if not strategy.can_retry(num_attempts):
        return None
    predicates = strategy.get_retry_predicate()
    predicate = predicates.result_predicate() if error is None else predicates.exception_predicate()
    if predicate is None or not predicate(outcome if error is None else error):
        return None
    return max(0, int(strategy.get_backoff_time_millis(num_attempts)))


class AsyncUserFunction(UserFunction):
    """An object with a coroutine method ``async_invoke(value)``, or a coroutine function.

    ``calls``: runs its coroutines; set by the operator, before ``open``.

    Raises JobGraphError if it is neither.
    """

    calls: AsyncCalls

    def __init__(self, function: Any) -> None:
        is_object = callable(getattr(function, "async_invoke", None)) and not isinstance(function, type)
        if not is_object and not inspect.iscoroutinefunction(function):
            raise JobGraphError(
                "expected a coroutine function of one record or an object with 'async def async_invoke', got "
                f"{preview(function)} "
                f"of type {type(function).__name__}"
            )
        super().__init__(function, "async_invoke")
        self._class_name = str(type(function) if is_object else getattr(function, "__qualname__", function))

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

    def run(self, name: str, *args: Any, ctx: OperatorContext) -> None:
        """Call the object's method of that name, if it has one; a coroutine method runs on the loop of the calls."""
        step = self.step(name)
        if inspect.iscoroutinefunction(step):
            # ``open`` may take long; mails are taken meanwhile, so that the task can be cancelled.
            takes_mails = name == "open" and ctx.executor is not None
            wait = ctx.mailbox_executor.yield_until if takes_mails else None
            run_step(ctx, partial(self.calls.run, step, wait=wait), *args, name=name)
            return
        try:
            super().run(name, *args, ctx=ctx)
        except UserFunctionError as error:
            cause = error.__cause__
            if isinstance(cause, RuntimeError) and "event loop" in str(cause):
                cause.add_note(f"write 'async def {name}': it then runs on the loop of the calls")
            raise


class _Deadline:
    """The timer of a batch."""

    __slots__ = ("num_left", "requests", "timer")

    def __init__(self, requests: Sequence[PendingRecord]) -> None:
        self.requests = requests
        self.num_left = len(requests)
        self.timer: Cancellable | None = None


@dataclass(eq=False)
class AsyncRequests:
    """Requests the results of records.

    Threading: task thread; its timers run there, too.
    Life cycle: runs from the start; ``stop`` once.

    Args:
        ctx: the operator's, for its clock and for error messages.
        function: the function to call.
        calls: runs it.
        timeout_ms: for all attempts of a record together; 0: none.
        retry: None: the first outcome counts.
        complete: gets the results of a record.
        on_timer: called after a timer completed records.
    """

    ctx: OperatorContext
    function: AsyncUserFunction
    calls: AsyncCalls
    timeout_ms: int
    retry: Any
    complete: Callable[[PendingRecord, list[Any]], None]
    on_timer: Callable[[], None]
    num_retries: int = field(init=False, default=0)
    num_timeouts: int = field(init=False, default=0)
    _deadlines: dict[_Deadline, None] = field(init=False, default_factory=dict)
    # Requests that wait for their next attempt, longest wait first.
    _waiting: dict[PendingRecord, None] = field(init=False, default_factory=dict)

    def __repr__(self) -> str:
        return f"<AsyncRequests of {self.ctx.operator_name!r}, {len(self._waiting)} wait for another attempt>"

    def check_invariants(self) -> None:
        """Assert the invariants of the module header."""
        assert all(request.timer is not None and request.call is None for request in self._waiting), (
            "waits beside a call"
        )
        for deadline in self._deadlines:
            assert 0 < deadline.num_left <= len(deadline.requests), "a timer without requests"
            assert deadline.num_left == sum(request.results is None for request in deadline.requests), (
                "a timer has lost count"
            )

    def begin(self, requests: Sequence[PendingRecord]) -> None:
        """Start the first attempt for each record."""
        if self.timeout_ms > 0:
            self._set_deadline(_Deadline(requests))
        self._attempt(requests)

    def process_outcomes(self) -> None:
        """Process the outcomes that arrived since the last time.

        Raises UserFunctionError if a call failed and is not tried again.
        """
        for call, outcome in self.calls.take_outcomes():
            request: PendingRecord = call.owner
            if request.call is call:
                request.call = None
                self._use_outcome(request, outcome)

    def stop(self) -> None:
        """Cancel all timers and interrupt all calls; returns when they have ended.

        Raises FlowletError if some do not end.
        """
        for request in self._waiting:
            _cancel(request)
        self._waiting = {}
        for deadline in self._deadlines:
            _cancel(deadline)
        self._deadlines = {}
        self.calls.cancel_all()

    # -- attempts

    def _attempt(self, requests: Sequence[PendingRecord]) -> None:
        invoke = self.function.call
        for request in requests:
            request.num_attempts += 1
            request.call = AsyncCall(invoke, request.value, request)
        self.calls.start([request.call for request in requests if request.call is not None])

    def _use_outcome(self, request: PendingRecord, outcome: Any) -> None:
        if isinstance(outcome, Iterable):
            outcome = unpickled(outcome if isinstance(outcome, list) else list(outcome))
        if not isinstance(outcome, Failed | list):
            raise self._failure(request) from self.function.wrong_result(outcome)
        delay_ms = self._delay_before_retry(request, outcome)
        if delay_ms is not None:
            clock = self.ctx.processing_time_service
            self._waiting[request] = None
            request.timer = clock.register_timer(clock.current_time_ms() + delay_ms, lambda _: self._try_again(request))
            return
        if isinstance(outcome, Failed):
            outcome.error.add_note(self.function.failed_at(preview(request.value)))
            raise self._failure(request) from outcome.error
        self._finish(request, outcome)

    def _delay_before_retry(self, request: PendingRecord, outcome: list[Any] | Failed) -> int | None:
        if self.retry is None or request.is_timed_out:
            return None
        try:
            return retry_delay_ms(self.retry, outcome, request.num_attempts)
        except Exception as error:
            error.add_note("raised by the retry strategy")
            raise self._failure(request) from error

    def _try_again(self, request: PendingRecord) -> None:
        if request in self._waiting:
            del self._waiting[request]
            _cancel(request)
            self.num_retries += 1
            self._attempt([request])

    def _finish(self, request: PendingRecord, results: list[Any]) -> None:
        deadline = request.deadline
        if deadline is not None:
            request.deadline = None  # it knows all records of its batch
            deadline.num_left -= 1
            if not deadline.num_left:
                del self._deadlines[deadline]
                _cancel(deadline)
        self.complete(request, results)

    # -- deadlines

    def _set_deadline(self, deadline: _Deadline) -> None:
        clock = self.ctx.processing_time_service
        for request in deadline.requests:
            request.deadline = deadline
        self._deadlines[deadline] = None
        deadline.timer = clock.register_timer(
            clock.current_time_ms() + self.timeout_ms, lambda _: self._time_out(deadline)
        )

    def _time_out(self, deadline: _Deadline) -> None:
        if deadline not in self._deadlines:
            return  # cancelled after the timer had fired
        self.process_outcomes()  # a result that is there already is in time
        for request in deadline.requests:
            if request.results is None:
                self._time_out_request(request)
        self.on_timer()

    def _time_out_request(self, request: PendingRecord) -> None:
        self.num_timeouts += 1
        request.is_timed_out = True
        if request.call is not None:
            self.calls.cancel(request.call)
            request.call = None
        if request in self._waiting:
            del self._waiting[request]
            _cancel(request)
        timeout = self.function.step("timeout")
        if timeout is None:
            raise self._failure(request) from TimeoutError(f"no result within {self.timeout_ms} ms")
        if inspect.iscoroutinefunction(timeout):
            request.call = AsyncCall(timeout, request.value, request)
            self.calls.start([request.call])
            return
        try:
            results = timeout(request.value)
        except Exception as error:
            error.add_note(f"raised by timeout(), after {self.timeout_ms} ms without a result")
            raise self._failure(request) from error
        self._use_outcome(request, results)

    def _failure(self, request: PendingRecord) -> UserFunctionError:
        return UserFunctionError(self.ctx.operator_name, self.ctx.subtask, preview(request.value))


def _cancel(timed: _Deadline | PendingRecord) -> None:
    timer, timed.timer = timed.timer, None
    if timer is not None:
        timer.cancel()

"""The calls of one async operator: attempts, timeouts, and which outcome counts.

Side:       task.
Invariants: a request has a running call, or a timer for its next attempt, never both.  One outcome counts per request.
            The timer of a batch is cancelled with its last request.
Units:      milliseconds.
Source:     Flink ``AsyncWaitOperator.ResultHandler`` and ``RetryableResultHandlerDelegator``.  The timeout covers all
            attempts together.  Records that arrived together share one timer.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flowlet.async_io.async_calls import AsyncCall, CallRunner, Failed
from flowlet.async_io.async_queue import PendingRecord
from flowlet.async_io.async_retry import RetryPolicy
from flowlet.async_io.async_user_function import AsyncUserFunction
from flowlet.chain.preview import preview
from flowlet.chain.record_copies import unpickled
from flowlet.chain.stream_operator import OperatorContext
from flowlet.errors import UserFunctionError
from flowlet.timers.time_api import TimerHandle


class _Deadline:
    """The timer of a batch."""

    __slots__ = ("num_left", "requests", "timer")

    def __init__(self, requests: Sequence["_Request"]) -> None:
        self.requests = requests
        self.num_left = len(requests)
        self.timer: TimerHandle | None = None


class _Request:
    """A record that waits for its results, through all attempts."""

    __slots__ = ("call", "deadline", "is_timed_out", "num_attempts", "record", "retry_timer")

    def __init__(self, record: PendingRecord) -> None:
        self.record = record
        self.num_attempts = 0
        self.is_timed_out = False  # then the running call, if any, is that of ``timeout``
        self.call: AsyncCall | None = None  # the call whose outcome counts
        self.retry_timer: TimerHandle | None = None  # set while it waits for its next attempt
        self.deadline: _Deadline | None = None


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

    def __init__(
        self,
        ctx: OperatorContext,
        function: AsyncUserFunction,
        calls: CallRunner,
        *,
        timeout_ms: int,
        retry: RetryPolicy | None,
        complete: Callable[[PendingRecord, list[Any]], None],
        on_timer: Callable[[], None],
    ) -> None:
        self._ctx = ctx
        self._function = function
        self._calls = calls
        self._timeout_ms = timeout_ms
        self._retry = retry
        self._complete = complete
        self._on_timer = on_timer
        self._deadlines: dict[_Deadline, None] = {}
        self._waiting: dict[_Request, None] = {}  # requests that wait for their next attempt, longest wait first
        self.num_retries = 0
        self.num_timeouts = 0

    def __repr__(self) -> str:
        return f"<AsyncRequests of {self._ctx.operator_name!r}, {len(self._waiting)} wait for another attempt>"

    def check_invariants(self) -> None:
        """Assert the invariants of the module header."""
        assert all(request.retry_timer is not None and request.call is None for request in self._waiting), (
            "waits beside a call"
        )
        for deadline in self._deadlines:
            assert 0 < deadline.num_left <= len(deadline.requests), "a timer without requests"
            assert deadline.num_left == sum(request.record.results is None for request in deadline.requests), (
                "a timer has lost count"
            )

    def begin(self, records: Sequence[PendingRecord]) -> None:
        """Start the first attempt for each record."""
        requests = [_Request(record) for record in records]
        if self._timeout_ms > 0:
            self._set_deadline(_Deadline(requests))
        self._attempt(requests)

    def process_outcomes(self) -> None:
        """Process the outcomes that arrived since the last time.

        Raises UserFunctionError if a call failed and is not tried again.
        """
        for call, outcome in self._calls.take_outcomes():
            request: _Request = call.owner
            if request.call is call:
                request.call = None
                self._use_outcome(request, outcome)

    def stop(self) -> None:
        """Cancel all timers and interrupt all calls; returns when they have ended.

        Raises FlowletError if some do not end.
        """
        for request in self._waiting:
            _cancel_retry(request)
        self._waiting = {}
        for deadline in self._deadlines:
            _cancel(deadline)
        self._deadlines = {}
        self._calls.cancel_all()

    # -- attempts

    def _attempt(self, requests: Sequence[_Request]) -> None:
        invoke = self._function.invoke
        for request in requests:
            request.num_attempts += 1
            request.call = AsyncCall(invoke, request.record.value, request)
        self._calls.start([request.call for request in requests if request.call is not None])

    def _use_outcome(self, request: _Request, outcome: Any) -> None:
        if isinstance(outcome, Iterable):
            outcome = unpickled(outcome if isinstance(outcome, list) else list(outcome))
        if not isinstance(outcome, Failed | list):
            raise self._failure(request) from self._function.wrong_result(outcome)
        delay_ms = self._delay_before_retry(request, outcome)
        if delay_ms is not None:
            clock = self._ctx.processing_time_service
            self._waiting[request] = None
            request.retry_timer = clock.register_timer(
                clock.current_time_ms() + delay_ms, lambda _: self._try_again(request)
            )
            return
        if isinstance(outcome, Failed):
            outcome.error.add_note(self._function.failed_at(preview(request.record.value)))
            raise self._failure(request) from outcome.error
        self._finish(request, outcome)

    def _delay_before_retry(self, request: _Request, outcome: list[Any] | Failed) -> int | None:
        if self._retry is None or request.is_timed_out:
            return None
        try:
            if isinstance(outcome, Failed):
                return self._retry.delay_after_error(outcome.error, request.num_attempts)
            return self._retry.delay_after_result(outcome, request.num_attempts)
        except Exception as error:
            error.add_note("raised by the retry strategy")
            raise self._failure(request) from error

    def _try_again(self, request: _Request) -> None:
        if request in self._waiting:
            del self._waiting[request]
            _cancel_retry(request)
            self.num_retries += 1
            self._attempt([request])

    def _finish(self, request: _Request, results: list[Any]) -> None:
        deadline = request.deadline
        if deadline is not None:
            deadline.num_left -= 1
            if not deadline.num_left:
                del self._deadlines[deadline]
                _cancel(deadline)
        self._complete(request.record, results)

    # -- deadlines

    def _set_deadline(self, deadline: _Deadline) -> None:
        clock = self._ctx.processing_time_service
        for request in deadline.requests:
            request.deadline = deadline
        self._deadlines[deadline] = None
        deadline.timer = clock.register_timer(
            clock.current_time_ms() + self._timeout_ms, lambda _: self._time_out(deadline)
        )

    def _time_out(self, deadline: _Deadline) -> None:
        if deadline not in self._deadlines:
            return  # cancelled after the timer had fired
        self.process_outcomes()  # a result that is there already is in time
        for request in deadline.requests:
            if request.record.results is None:
                self._time_out_request(request)
        self._on_timer()

    def _time_out_request(self, request: _Request) -> None:
        self.num_timeouts += 1
        request.is_timed_out = True
        if request.call is not None:
            self._calls.cancel(request.call)
            request.call = None
        if request in self._waiting:
            del self._waiting[request]
            _cancel_retry(request)
        timeout = self._function.timeout
        if timeout is None:
            raise self._failure(request) from TimeoutError(f"no result within {self._timeout_ms} ms")
        if inspect.iscoroutinefunction(timeout):
            request.call = AsyncCall(timeout, request.record.value, request)
            self._calls.start([request.call])
            return
        try:
            results = timeout(request.record.value)
        except Exception as error:
            error.add_note(f"raised by timeout(), after {self._timeout_ms} ms without a result")
            raise self._failure(request) from error
        self._use_outcome(request, results)

    def _failure(self, request: _Request) -> UserFunctionError:
        return UserFunctionError(self._ctx.operator_name, self._ctx.subtask, preview(request.record.value))


def _cancel_retry(request: _Request) -> None:
    timer, request.retry_timer = request.retry_timer, None
    if timer is not None:
        timer.cancel()


def _cancel(deadline: _Deadline) -> None:
    timer, deadline.timer = deadline.timer, None
    if timer is not None:
        timer.cancel()

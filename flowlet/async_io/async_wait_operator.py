"""Calls a coroutine for every record and emits the results, without waiting for one call before the next.

``AsyncRequests``: the calls in progress, and the next attempts of calls that failed.  ``AsyncUserFunction``: called on
the loop; opened and closed on the loop if these methods are coroutine functions, else on the task's thread.

Side:       task.  Coroutines run on the shared loop; all code here runs on input or as a mail of this operator.
Invariants: calls run for at most ``capacity`` records.  Records are emitted on the task's thread only.  No user code
            runs after ``close``.  A request has a running call, or a timer for its next attempt, never both; one
            outcome counts.  The timer of a batch is cancelled with its last request.  The user's predicates are not
            called when no attempt is left.
Waits:      an element that finds no place waits in the queue, and so in the snapshots.  Until it has a place,
            ``available_future`` keeps the task from reading on; meanwhile the task takes every mail at once.  In Flink
            the task waits inside the operator, and mails of the operators before it, checkpoints among them, wait with
            it.  Records that timers emit are not held back in this way: once ``MAX_WAITING`` elements wait for a place,
            they wait outside the queue, as in Flink.
Units:      milliseconds; attempts count from 1.
Source:     Flink ``AsyncWaitOperator``, its ``ResultHandler`` and ``RetryableResultHandlerDelegator``; PyFlink
            ``AsyncFunction``.  A status waits its turn like a watermark: in Flink it overtakes records, and the
            watermarks among them are then dropped.  A timeout counts from the start of the first call, as there, and
            covers all attempts; the wait for a place does not count.  Records that arrived together share one timer.
            ``open``, ``close`` and ``timeout`` may be coroutine functions, too.  They then run on the loop of the
            calls, where client libraries must make and close their sessions.
Absent:     attempts and timeouts do not survive a restart, as in Flink: all records of a snapshot start again.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import field
from functools import partial
from typing import Any, Final

from flowlet.async_io.async_calls import AsyncCall, AsyncCalls, Failed
from flowlet.async_io.async_queue import AsyncQueue, Control, PendingRecord
from flowlet.chain.record_shape import unpickled
from flowlet.chain.stream_operator import OperatorContext
from flowlet.errors import JobGraphError, MailboxClosedError, UserFunctionError
from flowlet.operators.user_function import UserFunction, UserFunctionOperator, run_step
from flowlet.records import Chunk, CompletionMark, Watermark, WatermarkStatus
from flowlet.serde.type_serializer import preview
from flowlet.state.state_snapshots import StateShare
from netstack.availability import AVAILABLE, AvailabilityFuture
from netstack.late import dataclass
from netstack.loop.eventloop import Cancellable

# The number of elements that may wait for a place; further records wait outside the queue.  It is more than a chunk
# has, so only a function that makes very many records of one, or timers that emit more than the calls take, reach the
# limit.  Not measured; 13 MB and the records.
MAX_WAITING: Final = 65_536


@dataclass(frozen=True, slots=True)
class AsyncWaitStatistics:
    """Counts since ``open``, and the number of elements inside."""

    num_in_queue: int
    num_retries: int
    num_timeouts: int


class AsyncWaitOperator(UserFunctionOperator):
    """The operator of ``ordered_wait`` and ``unordered_wait``; task thread only.

    Restored records are called again in ``open``.

    Args:
        function: an object with a coroutine method ``async_invoke(value)``, or a coroutine function; returns a list.
        timeout_ms: for all attempts of one record together; 0: none.
        capacity: places for records and watermarks; while all are taken, further elements wait in the queue, and the
            task reads no input.
        is_ordered: whether results keep the order of the records.
        retry_strategy: PyFlink's ``AsyncRetryStrategy``; None: the first outcome counts.
        name: of the operator.
        create_calls: makes the ``AsyncCalls``, given the function to call when outcomes wait; tests replace it.

    Raises:
        JobGraphError: the function is not asynchronous.
    """

    waits = True  # it waits while MAX_WAITING elements have no place
    holds_records = True

    def __init__(
        self,
        function: Any,
        *,
        timeout_ms: int,
        capacity: int,
        is_ordered: bool,
        retry_strategy: Any = None,
        name: str = "async wait operator",
        create_calls: Callable[[Callable[[], None]], AsyncCalls] = AsyncCalls,
    ) -> None:
        super().__init__(name)
        self.function = AsyncUserFunction(function)
        self._functions.append(self.function)
        self.timeout_ms = timeout_ms
        self.retry = retry_strategy
        self.create_calls = create_calls  # tests may replace it before open
        self.queue = AsyncQueue(capacity, is_ordered=is_ordered)
        self._room: AvailabilityFuture | None = None  # set while elements wait for a place
        self._drained: tuple[int, AvailabilityFuture] | None = None  # ``num_left`` at which the future is to be done
        self._restored: Sequence[Chunk | Control] = ()
        self._requests: AsyncRequests | None = None  # set while it is open
        self._has_stopped = False  # results stay in the queue, and so in the savepoint that stops the job
        self._resources: ExitStack | None = None  # acquired by ``open``, released in reverse order

    def statistics(self) -> AsyncWaitStatistics:
        """The present counts; task thread."""
        requests = self._requests
        if requests is None:
            return AsyncWaitStatistics(len(self.queue), 0, 0)
        return AsyncWaitStatistics(len(self.queue), requests.num_retries, requests.num_timeouts)

    def check_invariants(self) -> None:
        """Assert the invariants of queue and requests."""
        self.queue.check_invariants()
        if self._requests is not None:
            self._requests.check_invariants()

    # -- life

    def initialize_state(self, state: object | None) -> None:
        """Keep the elements of the snapshot for ``open``."""
        if state is not None:
            assert isinstance(state, list), f"a snapshot of {self.name!r} is a list, this is a {type(state).__name__}"
            self._restored = state

    def open(self) -> None:
        """Open the function, then call it for every restored record.

        Raises:
            UserFunctionError: the function's ``open`` failed, or a call for a restored record.
        """
        resources = self._resources = ExitStack()
        calls = self.function.calls = self.create_calls(self._notify)
        resources.callback(calls.close)
        # Before the call: after an open() that fails, close() must release its resources, too.
        resources.callback(super().close)
        super().open()
        self._requests = AsyncRequests(self, calls)
        resources.callback(self._requests.stop)
        restored, self._restored = self._restored, ()
        for element in restored:
            if isinstance(element, Chunk):
                self.process_chunk(element)
            else:
                self._process_control(element)

    def available_future(self) -> AvailabilityFuture:
        """The future that is done while no element waits for a place."""
        return AVAILABLE if self._room is None else self._room

    def drained_future(self) -> AvailabilityFuture:
        """The future that is done when as many elements have left as are inside now."""
        queue = self.queue
        if not len(queue):
            return AVAILABLE
        future = AvailabilityFuture()
        self._drained = (queue.num_left + len(queue), future)
        return future

    def end_input(self, input_id: int) -> None:
        """Wait for all results.

        Retries go on with their delays, as in PyFlink; Flink's Java tries once more, at once.
        """
        self._drain()

    def finish(self) -> None:
        """Wait for the results of elements that came after ``end_input``."""
        self._drain()

    def close(self) -> None:
        """Interrupt the calls, close the function, release the loop.

        Raises:
            UserFunctionError: the function's ``close`` failed.
            FlowletError: calls do not end.
        """
        resources, self._resources = self._resources, None
        if resources is not None:
            resources.close()
        self._requests = None

    def stop_emitting(self) -> None:
        """Keep all elements inside, even if their results come later."""
        self._has_stopped = True

    def snapshot_state(self, checkpoint_id: int) -> object | None:
        """All elements inside, in order of arrival."""
        return self.queue.elements() or None

    def redistribute(self, states: Sequence[object | None], share: StateShare) -> object | None:
        """The records of whole former subtasks, in their order.

        Watermarks between them are left out: the watermarks of one former subtask do not hold for the records of
        another one, and new ones follow.
        """
        found: list[Chunk | Control] = []
        for state in share.dealt(states):
            found += [each for each in state if isinstance(each, Chunk)] if isinstance(state, list) else []
        return found or None

    def _drain(self) -> None:
        assert self._requests is not None, "the operator is open"
        while len(self.queue):
            self.ctx.mailbox_executor.yield_()

    # -- input

    def process_chunk(self, chunk: Chunk) -> None:
        """Start calls for the records that find a place.

        Raises UserFunctionError if a call for an earlier record failed.
        """
        self._process(chunk.values, chunk.timestamps)

    def process_record(self, record: Any, timestamp: int | None) -> None:
        """Start a call for one record, if it finds a place."""
        self._process((record,), None if timestamp is None else (timestamp,))

    def _process(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        assert self._requests is not None, "the operator is open"
        self._wait_for_room()
        records = self.queue.put_records(values, timestamps)
        if records:
            self._requests.begin(records)
        if self._room is None and self.queue.num_waiting:
            self._room = AvailabilityFuture()

    def process_watermark(self, watermark: Watermark) -> None:
        """Pass the watermark on behind the results of the records before it."""
        self._process_control(watermark)

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        """Pass the status on behind the results of the records before it."""
        self._process_control(status)

    def process_mark(self, mark: CompletionMark) -> None:
        """Pass the mark on behind the results of the records before it."""
        self._process_control(mark)

    def _process_control(self, control: Control) -> None:
        self._wait_for_room()
        self.queue.put_control(control)
        if self._room is None and self.queue.num_waiting:
            self._room = AvailabilityFuture()
        self.emit_completed()

    def _wait_for_room(self) -> None:
        while self.queue.num_waiting >= MAX_WAITING:
            self.ctx.mailbox_executor.yield_()

    # -- results

    def _notify(self) -> None:
        """Post a mail, because outcomes wait; loop thread."""
        # If the mailbox is closed, the task needs no results.
        with suppress(MailboxClosedError):
            self.ctx.mailbox_executor.execute(self._use_outcomes, "results of %s", self.name)

    def _use_outcomes(self) -> None:
        if self._requests is not None:
            self._requests.process_outcomes()
            self.emit_completed()

    def emit_completed(self) -> None:
        """Emit the elements that may leave now."""
        queue = self.queue
        while not self._has_stopped:
            element = queue.next_element()
            # Before the results are emitted, which may take time.
            has_started = queue.num_waiting > 0 and self._start_waiting()
            match element:
                case None:
                    if not has_started:
                        break
                    # A control element that has found a place may leave at once.
                case Chunk():
                    self.output.collect(element)
                case _:
                    self.output.emit_control(element)
        if self._drained is not None and queue.num_left >= self._drained[0]:
            _, drained = self._drained
            self._drained = None
            drained.complete()

    def _start_waiting(self) -> bool:
        """Give free places to the elements that wait for one, and start their calls; returns whether there were free
        places.
        """
        assert self._requests is not None, "the operator is open"
        queue = self.queue
        num_waiting = queue.num_waiting
        records = queue.fill_places()
        if records:
            self._requests.begin(records)
        if self._room is not None and not queue.num_waiting:
            room, self._room = self._room, None
            room.complete()
        return queue.num_waiting < num_waiting


def retry_delay_ms(strategy: Any, outcome: list[Any] | Failed, num_attempts: int) -> int | None:
    """How long to wait before a call is tried again after its outcome; None: it is not tried again.

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
        """The error for a result that is no list of records: PyFlink's text, and the result."""
        kind = "cannot be none" if result is None else "should be of list type"
        got = "" if result is None else f", got {preview(result)} of type {type(result).__name__}"
        return RuntimeError(
            f"The result of AsyncFunction {kind}, please check the methods 'async_invoke' and 'timeout' of class "
            f"'{self._class_name}'{got}."
        )

    def failed_at(self, record: str) -> str:
        """PyFlink's text about an error at a record."""
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
        operator: the operator of the records.
        calls: runs the operator's function.
    """

    operator: AsyncWaitOperator
    calls: AsyncCalls
    num_retries: int = field(init=False, default=0)
    num_timeouts: int = field(init=False, default=0)
    _deadlines: dict[_Deadline, None] = field(init=False, default_factory=dict)
    # Requests that wait for their next attempt, longest wait first.
    _waiting: dict[PendingRecord, None] = field(init=False, default_factory=dict)

    def __repr__(self) -> str:
        return f"<AsyncRequests of {self.operator.ctx.operator_name!r}, {len(self._waiting)} wait for another attempt>"

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
        if self.operator.timeout_ms > 0:
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
        invoke = self.operator.function.call
        for request in requests:
            request.num_attempts += 1
            request.call = AsyncCall(invoke, request.value, request)
        self.calls.start([request.call for request in requests if request.call is not None])

    def _use_outcome(self, request: PendingRecord, outcome: Any) -> None:
        if isinstance(outcome, Iterable):
            outcome = unpickled(outcome if isinstance(outcome, list) else list(outcome))
        if not isinstance(outcome, Failed | list):
            raise self._failure(request) from self.operator.function.wrong_result(outcome)
        delay_ms = self._delay_before_retry(request, outcome)
        if delay_ms is not None:
            clock = self.operator.ctx.processing_time_service
            self._waiting[request] = None
            request.timer = clock.register_timer(clock.current_time_ms() + delay_ms, lambda _: self._try_again(request))
            return
        if isinstance(outcome, Failed):
            outcome.error.add_note(self.operator.function.failed_at(preview(request.value)))
            raise self._failure(request) from outcome.error
        self._finish(request, outcome)

    def _delay_before_retry(self, request: PendingRecord, outcome: list[Any] | Failed) -> int | None:
        if self.operator.retry is None or request.is_timed_out:
            return None
        try:
            return retry_delay_ms(self.operator.retry, outcome, request.num_attempts)
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
            request.deadline = None  # which refers to all records of its batch
            deadline.num_left -= 1
            if not deadline.num_left:
                del self._deadlines[deadline]
                _cancel(deadline)
        self.operator.queue.complete(request, results)

    # -- deadlines

    def _set_deadline(self, deadline: _Deadline) -> None:
        clock = self.operator.ctx.processing_time_service
        for request in deadline.requests:
            request.deadline = deadline
        self._deadlines[deadline] = None
        deadline.timer = clock.register_timer(
            clock.current_time_ms() + self.operator.timeout_ms, lambda _: self._time_out(deadline)
        )

    def _time_out(self, deadline: _Deadline) -> None:
        if deadline not in self._deadlines:
            return  # cancelled after the timer had fired
        self.process_outcomes()  # a result that has arrived already is in time
        for request in deadline.requests:
            if request.results is None:
                self._time_out_request(request)
        self.operator.emit_completed()

    def _time_out_request(self, request: PendingRecord) -> None:
        self.num_timeouts += 1
        request.is_timed_out = True
        if request.call is not None:
            self.calls.cancel(request.call)
            request.call = None
        if request in self._waiting:
            del self._waiting[request]
            _cancel(request)
        timeout = self.operator.function.step("timeout")
        if timeout is None:
            raise self._failure(request) from TimeoutError(f"no result within {self.operator.timeout_ms} ms")
        if inspect.iscoroutinefunction(timeout):
            request.call = AsyncCall(timeout, request.value, request)
            self.calls.start([request.call])
            return
        try:
            results = timeout(request.value)
        except Exception as error:
            error.add_note(f"raised by timeout(), after {self.operator.timeout_ms} ms without a result")
            raise self._failure(request) from error
        self._use_outcome(request, results)

    def _failure(self, request: PendingRecord) -> UserFunctionError:
        return UserFunctionError(self.operator.ctx.operator_name, self.operator.ctx.subtask, preview(request.value))


def _cancel(timed: _Deadline | PendingRecord) -> None:
    if timed.timer is not None:
        timed.timer.cancel()
        timed.timer = None

"""Calls a coroutine for every record and emits the results, without waiting for one call before the next.

Side:       task.  Coroutines run on the shared loop; all code here runs on input or as a mail of this operator.
Invariants: at most ``capacity`` records and control elements are inside.  Records are emitted on the task's thread only.  No user code
            runs after ``close``.
Units:      milliseconds.
Source:     Flink ``AsyncWaitOperator``.  A chunk enters in batches, as places become free.  A status waits its turn like a watermark: in
            Flink it overtakes records, and the watermarks among them are then dropped.
Absent:     attempts and timeouts do not survive a restart, as in Flink: all records of a snapshot start again.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, assert_never

from flowlet.async_io.async_calls import AsyncCalls, CallRunner
from flowlet.async_io.async_queue import AsyncQueue, Control, create_async_queue
from flowlet.async_io.async_requests import AsyncRequests
from flowlet.async_io.async_retry import RetryPolicy
from flowlet.async_io.async_user_function import AsyncUserFunction
from flowlet.chain.state_share import StateShare
from flowlet.chain.stream_operator import StreamOperator
from flowlet.errors import MailboxClosedError
from flowlet.records import Chunk, CompletionMark, Watermark, WatermarkStatus


@dataclass(frozen=True, slots=True)
class AsyncWaitStatistics:
    """Counts since ``open``, and the number of elements inside."""

    num_in_queue: int
    num_retries: int
    num_timeouts: int


class AsyncWaitOperator(StreamOperator):
    """The operator of ``ordered_wait`` and ``unordered_wait``; task thread only.  Restored records are called again in ``open``.

    Args:
        function: an object with a coroutine method ``async_invoke(value)``, or a coroutine function; returns a list.
        timeout_ms: for all attempts of one record together; 0: none.
        capacity: places for records and watermarks; while all are taken, new input waits, and this operator's mails run.
        is_ordered: whether results keep the order of the records.
        retry_strategy: PyFlink's ``AsyncRetryStrategy``; None: the first outcome counts.
        name: of the operator.
        create_calls: makes the ``CallRunner``, given what to call when outcomes wait; tests replace it.

    Raises:
        JobGraphError: the function is not asynchronous.
    """

    waits = True  # it waits while all places are taken

    def __init__(
        self,
        function: Any,
        *,
        timeout_ms: int,
        capacity: int,
        is_ordered: bool,
        retry_strategy: Any = None,
        name: str = "async wait operator",
        create_calls: Callable[[Callable[[], None]], CallRunner] = AsyncCalls,
    ) -> None:
        self.name = name
        self._function = AsyncUserFunction(function)
        self._timeout_ms = timeout_ms
        self._retry = None if retry_strategy is None else RetryPolicy(retry_strategy)
        self.create_calls = create_calls  # tests may replace it before open
        self._queue: AsyncQueue = create_async_queue(capacity, is_ordered=is_ordered)
        self._restored: Sequence[Chunk | Control] = ()
        self._requests: AsyncRequests | None = None  # set while it is open
        self._has_stopped = False  # results stay in the queue, and so in the savepoint that stops the job
        self._resources: ExitStack | None = None  # what ``open`` acquired, released in reverse order

    def statistics(self) -> AsyncWaitStatistics:
        """The present counts; task thread."""
        requests = self._requests
        if requests is None:
            return AsyncWaitStatistics(len(self._queue), 0, 0)
        return AsyncWaitStatistics(len(self._queue), requests.num_retries, requests.num_timeouts)

    def check_invariants(self) -> None:
        """Assert the invariants of queue and requests."""
        self._queue.check_invariants()
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
        calls = self.create_calls(self._notify)
        resources.callback(calls.close)
        # Before the call: close() must also release what a failing open() acquired.
        resources.callback(self._function.close, self.ctx, calls)
        self._function.open(self.ctx, calls)
        self._requests = AsyncRequests(
            self.ctx,
            self._function,
            calls,
            timeout_ms=self._timeout_ms,
            retry=self._retry,
            complete=self._queue.complete,
            on_timer=self._emit_completed,
        )
        resources.callback(self._requests.stop)
        restored, self._restored = self._restored, ()
        for element in restored:
            if isinstance(element, Chunk):
                self.process_chunk(element)
            else:
                self._process_control(element)

    def end_input(self, input_id: int) -> None:
        """Wait for all results.  Retries go on with their delays, as in PyFlink; Flink's Java tries once more, at once."""
        self._drain()

    def finish(self) -> None:
        """As ``end_input``, for elements that came after it."""
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
        """Keep the elements inside, also those whose results come now."""
        self._has_stopped = True

    def snapshot_functions(self, checkpoint_id: int, timestamp_ms: int) -> None:
        """Let the function put what it keeps into its states."""
        self._function.checkpoints.snapshot(self.ctx, checkpoint_id, timestamp_ms)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Tell the function, if it wants to know."""
        self._function.checkpoints.completed(self.ctx, checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Tell the function, if it wants to know."""
        self._function.checkpoints.aborted(self.ctx, checkpoint_id)

    def snapshot_state(self, checkpoint_id: int) -> object | None:
        """All elements inside, in order of arrival."""
        return self._queue.elements() or None

    def redistribute(self, states: Sequence[object | None], share: StateShare) -> object | None:
        """The records of whole former subtasks, in their order.

        Watermarks between them are left out: those of one former subtask say nothing about the records of another, and new ones follow.
        """
        found: list[Chunk | Control] = []
        for state in share.dealt(states):
            found += [each for each in state if isinstance(each, Chunk)] if isinstance(state, list) else []
        return found or None

    def _drain(self) -> None:
        assert self._requests is not None, "the operator is open"
        while len(self._queue):
            self.ctx.mailbox_executor.yield_()

    # -- input

    def process_chunk(self, chunk: Chunk) -> None:
        """Start a call for every record.  Raises UserFunctionError if a call for one of these or earlier records failed."""
        assert self._requests is not None, "the operator is open"
        values, timestamps = chunk.values, chunk.timestamps
        start = 0
        while start < len(values):
            self._wait_for_room()
            batch = slice(start, start + self._queue.num_free)
            self._requests.begin(self._queue.put_records(values[batch], None if timestamps is None else timestamps[batch]))
            start = batch.stop

    def process_record(self, record: Any, timestamp: int | None) -> None:
        """Start a call for one record."""
        assert self._requests is not None, "the operator is open"
        self._wait_for_room()
        self._requests.begin(self._queue.put_records((record,), None if timestamp is None else (timestamp,)))

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
        self._queue.put_control(control)
        self._emit_completed()

    def _wait_for_room(self) -> None:
        while not self._queue.num_free:
            self.ctx.mailbox_executor.yield_()

    # -- results

    def _notify(self) -> None:
        """Outcomes wait; loop thread."""
        # If the mailbox is closed, the task needs no results.
        with suppress(MailboxClosedError):
            self.ctx.mailbox_executor.execute(self._use_outcomes, "results of %s", self.name)

    def _use_outcomes(self) -> None:
        if self._requests is not None:
            self._requests.process_outcomes()
            self._emit_completed()

    def _emit_completed(self) -> None:
        while not self._has_stopped and (element := self._queue.next_element()) is not None:
            match element:
                case Chunk():
                    self.output.collect(element)
                case Watermark():
                    self.output.emit_watermark(element)
                case WatermarkStatus():
                    self.output.emit_watermark_status(element)
                case CompletionMark():
                    self.output.emit_mark(element)
                case _:
                    assert_never(element)

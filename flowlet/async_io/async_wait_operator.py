"""Calls a coroutine for every record and emits the results, without waiting for one call before the next.

Side:       task.  Coroutines run on the shared loop; all code here runs on input or as a mail of this operator.
Invariants: calls run for at most ``capacity`` records.  Records are emitted on the task's thread only.  No user code
            runs after ``close``.
Waits:      an element that finds no place waits in the queue, and so in the snapshots.  Until it has a place,
            ``available_future`` keeps the task from reading on; meanwhile the task takes every mail at once.  In Flink
            the task waits inside the operator, and mails of the operators before it, checkpoints among them, wait with
            it.  Records that timers emit are not held back so: they wait outside, as in Flink, once ``MAX_WAITING``
            elements wait for a place.
Units:      milliseconds.
Source:     Flink ``AsyncWaitOperator``.  A status waits its turn like a watermark: in Flink it overtakes records, and
            the watermarks among them are then dropped.  A timeout counts from the start of the first call, as there:
            what waits for a place has not started.
Absent:     attempts and timeouts do not survive a restart, as in Flink: all records of a snapshot start again.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final

from flowlet.async_io.async_calls import AsyncCalls
from flowlet.async_io.async_queue import AsyncQueue, Control
from flowlet.async_io.async_requests import AsyncRequests, AsyncUserFunction
from flowlet.errors import MailboxClosedError
from flowlet.operators.user_function import UserFunctionOperator
from flowlet.records import Chunk, CompletionMark, Watermark, WatermarkStatus
from flowlet.state.state_snapshots import StateShare
from netstack.availability import AVAILABLE, AvailabilityFuture
from netstack.late import dataclass

# So many elements may wait for a place before a record waits outside the queue.  More than a chunk has, so that only a
# record of which a function makes very many, or timers that emit more than the calls take, come so far.  Not measured;
# 10 MB and the records.
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
        create_calls: makes the ``AsyncCalls``, given what to call when outcomes wait; tests replace it.

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
        self._function = AsyncUserFunction(function)
        self._functions.append(self._function)
        self._timeout_ms = timeout_ms
        self._retry = retry_strategy
        self.create_calls = create_calls  # tests may replace it before open
        self._queue = AsyncQueue(capacity, is_ordered=is_ordered)
        self._room: AvailabilityFuture | None = None  # set while elements wait for a place
        self._drained: tuple[int, AvailabilityFuture] | None = None  # to be done when so many elements have left
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
        calls = self._function.calls = self.create_calls(self._notify)
        resources.callback(calls.close)
        # Before the call: close() must also release what a failing open() acquired.
        resources.callback(super().close)
        super().open()
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

    def available_future(self) -> AvailabilityFuture:
        """Done while no element waits for a place."""
        return AVAILABLE if self._room is None else self._room

    def drained_future(self) -> AvailabilityFuture:
        """Done when as many elements have left as are inside now."""
        queue = self._queue
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

    def snapshot_state(self, checkpoint_id: int) -> object | None:
        """All elements inside, in order of arrival."""
        return self._queue.elements() or None

    def redistribute(self, states: Sequence[object | None], share: StateShare) -> object | None:
        """The records of whole former subtasks, in their order.

        Watermarks between them are left out: those of one former subtask say nothing about the records of another, and
        new ones follow.
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
        records = self._queue.put_records(values, timestamps)
        if records:
            self._requests.begin(records)
        if self._room is None and self._queue.num_waiting:
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
        self._queue.put_control(control)
        if self._room is None and self._queue.num_waiting:
            self._room = AvailabilityFuture()
        self._emit_completed()

    def _wait_for_room(self) -> None:
        while self._queue.num_waiting >= MAX_WAITING:
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
        queue = self._queue
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
            (_, drained), self._drained = self._drained, None
            drained.complete()

    def _start_waiting(self) -> bool:
        """Give free places to the elements that wait for one, and start their calls; returns whether there were free
        places.
        """
        assert self._requests is not None, "the operator is open"
        queue = self._queue
        num_waiting = queue.num_waiting
        records = queue.fill_places()
        if records:
            self._requests.begin(records)
        if self._room is not None and not queue.num_waiting:
            room, self._room = self._room, None
            room.complete()
        return queue.num_waiting < num_waiting

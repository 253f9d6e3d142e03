"""The services of a task for one operator, run step by step: mailbox (``MailboxHarness``), clock, timers, coroutines;
``ProcessResources`` finds threads and file descriptors that code under test left behind.

Side:       any.
Invariants: nothing runs and no time passes unless the test says so; the loop never parks the thread.  Time moves only
            when the test moves it, or while the operator waits for a timer.  Coroutines use the manual clock, so that
            ``asyncio.sleep`` and timeouts take no time, and each run has one order of outcomes; while a coroutine waits
            for a thread or a socket (``wait_for_others``), the clock stands still.
Units:      nanoseconds of the manual clock.
Source:     Flink ``MailboxStepper`` and the mailbox parts of ``StreamTaskMailboxTestHarness``; ``MockEnvironment``,
            ``StreamMockEnvironment``; ``AbstractStreamOperatorTestHarness`` for the services.
Absent:     operators and their inputs: see the operator harnesses.  Memory; and threads and descriptors of other code
            that runs meanwhile are reported, too.
"""

import asyncio
import concurrent.futures
import contextvars
import gc
import math
import os
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Any, Final, Protocol, Self, TypeVar, TypeVarTuple, Unpack

from flowlet.async_io.async_calls import AsyncCalls, SharedAsyncLoop
from flowlet.chain.stream_operator import OperatorContext
from flowlet.keys.exact_keys import key_group_range
from flowlet.mailbox.mailbox_processor import DefaultAction, MailboxExecutor, MailboxProcessor, TaskTimings, WaitKind
from flowlet.mailbox.task_mailbox import MIN_PRIORITY, Mail, TaskMailbox, run_directly
from flowlet.state.heap_keyed_state_backend import HeapKeyedStateBackend
from flowlet.state.state_backends import KeyedStateBackend, OperatorStateBackend
from flowlet.task.operator_services import LatencyStats
from flowlet.testing.manual_processing_time_service import MailedProcessingTimeService
from flowlet.timers.keyed_timer_service import KeyContext, KeyedTimerServiceManager
from netstack.availability import AvailabilityFuture
from netstack.late import dataclass
from netstack.loop.eventloop import EventLoopThread
from netstack.testing.embedded_event_loop import ManualClock

_GRACE_S: Final = 1.0  # how long threads may take to end; there is no wait if none is left
_PAUSE_S: Final = 0.002
_DESCRIPTORS: Final = "/proc/self/fd"


@dataclass(frozen=True, slots=True)
class ProcessResources:
    """Threads and file descriptors at one moment.

    Example::

        before = ProcessResources.now()
        ...
        assert not before.left_behind()
    """

    threads: frozenset[threading.Thread]
    descriptors: frozenset[tuple[str, str]]

    @staticmethod
    def now() -> "ProcessResources":
        """The present threads and descriptors; descriptors only if the system shows them (Linux)."""
        return ProcessResources(frozenset(threading.enumerate()), frozenset(_descriptors()))

    def left_behind(self) -> list[str]:
        """The threads and descriptors that are new since then, in words; waits a moment for threads that are ending."""
        if self._more_now():
            gc.collect()
        deadline = time.monotonic() + _GRACE_S
        while frozenset(threading.enumerate()) - self.threads and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
        return self._more_now()

    def _more_now(self) -> list[str]:
        now = ProcessResources.now()
        threads = [f"the thread {thread.name!r}" for thread in now.threads - self.threads]
        return sorted(threads) + sorted(
            f"the descriptor {number} of {target}" for number, target in now.descriptors - self.descriptors
        )


def _descriptors() -> list[tuple[str, str]]:
    found = []
    try:
        numbers = os.listdir(_DESCRIPTORS)
    except OSError:
        return []
    for number in numbers:
        try:
            found.append((number, os.readlink(f"{_DESCRIPTORS}/{number}")))
        except OSError:  # the descriptor of the listing itself
            continue
    return found


_MAX_STEPS: Final = 100_000  # only a mail that posts itself for ever needs more


class StreamTaskActionExecutor(Protocol):
    """Runs the action of a mail; the user's own.  One implementer: the test that gives it."""

    def call(self, action: Callable[[], object]) -> object:
        """Run the action now, on this thread; raises its exception."""


def suspend(controller: MailboxProcessor) -> None:
    """Suspend the default action, which has no input: for tests of mails."""
    controller.suspend_default_action(WaitKind.IDLE, "the test")


def wait_for_ever() -> None:
    """Raise AssertionError: the operator waits for a mail, and the test has named no other action for that."""
    raise AssertionError("the operator waits for a mail, but nothing in the test puts one")


class SteppedMailbox(TaskMailbox):
    """A mailbox whose thread never sleeps: instead it calls ``when_parked`` until the wait is over.

    ``when_parked`` must put a mail, end the wait in another way, or raise.
    """

    def __init__(self, when_parked: Callable[[], None] = wait_for_ever) -> None:
        super().__init__("harness")
        self.when_parked = when_parked

    def take(self, priority: int = MIN_PRIORITY, *, is_lending: bool = False) -> Mail:
        """Take the next mail; call ``when_parked`` while there is none."""
        while (mail := self.try_take(priority)) is None:
            self.when_parked()
        return mail

    def take_until(self, signal: AvailabilityFuture, priority: int = MIN_PRIORITY) -> Mail | None:
        """Take the next mail, or None once ``signal`` is done; call ``when_parked`` while there is neither."""
        while not signal.is_done:
            if (mail := self.try_take(priority)) is not None:
                return mail
            self.when_parked()
        return None


class MailboxHarness:
    """A mailbox, its loop and a clock.

    Example::

        with MailboxHarness() as harness:
            thing = Thing(harness.executor(priority=1))
            thing.start()
            assert harness.pending == ["start the thing"]
            harness.run_until_idle()

    Threading: the thread that created it; other threads may put mails.
    Life cycle: usable at once, until ``close``, or in ``with``, which fails if mails are pending at its end.

    Args:
        default_action: called by ``step`` when there is no mail; by default it suspends itself.
        when_parked: called when code under test waits for a mail; by default an error.
    """

    def __init__(
        self,
        default_action: DefaultAction = suspend,
        *,
        action_executor: StreamTaskActionExecutor | None = None,
        when_parked: Callable[[], None] = wait_for_ever,
    ) -> None:
        self.clock = ManualClock()
        self.timings = TaskTimings(self.clock.now_ns)
        self.timings.mark_start()
        self.mailbox = SteppedMailbox(when_parked)
        self.mailbox.bind_to_current_thread()
        run_action = run_directly if action_executor is None else action_executor.call
        self.processor = MailboxProcessor(default_action, self.mailbox, self.timings, run_action=run_action)

    def __repr__(self) -> str:
        return f"<MailboxHarness {self.processor!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        left = self.pending
        self.close()
        if error is None and left:
            raise AssertionError(f"the test ended before these mails ran: {left}")

    def executor(self, priority: int = MIN_PRIORITY) -> MailboxExecutor:
        """An executor whose mails run in this loop."""
        return self.processor.executor(priority)

    @property
    def pending(self) -> list[str]:
        """The pending mails as text, in the order in which they would run."""
        return [repr(mail) for mail in self.mailbox.pending_mails()]

    def step(self) -> bool:
        """Run one mail, or else the default action once; False if there was neither.

        Raises:
            BaseException: from the mail or the default action.
        """
        return self.processor.run_mailbox_step()

    def run_until_idle(self, max_steps: int = _MAX_STEPS) -> int:
        """Step until there is nothing to do; return the number of steps.

        Raises:
            AssertionError: there is something to do after ``max_steps``.
            BaseException: as ``step``.
        """
        for number in range(max_steps):
            if not self.step():
                return number
        raise AssertionError(f"still not idle after {max_steps} steps, pending: {self.pending[:10]}")

    def close(self) -> None:
        """Close the mailbox, which cancels pending mails; idempotent."""
        self.processor.close()


_OPERATOR_ID: Final = bytes(range(16))
_PRIORITY: Final = 1  # as the head of a chain
_MAX_WAITS: Final = 100_000
_PATIENCE_S: Final = 10.0  # for coroutines that wait for threads or sockets


@dataclass(frozen=True, slots=True)
class SubtaskPlace:
    """The subtask as which the operator runs."""

    subtask: int = 0
    parallelism: int = 1
    max_parallelism: int = 128
    attempt: int = 0
    restored_checkpoint_id: int | None = None  # None: it does not go on from a checkpoint
    has_checkpoints: bool = True

    @property
    def key_groups(self) -> range:
        """The key groups of this subtask."""
        return key_group_range(self.max_parallelism, self.parallelism, self.subtask)


class HarnessEnvironment:
    """The services of one operator.

    Threading: the thread that created it.  Life cycle: usable at once, until ``close``.
    """

    def __init__(self, operator_name: str, place: SubtaskPlace, now_ms: int) -> None:
        self.mails = MailboxHarness(when_parked=self._make_progress)
        self.executor = self.mails.executor(_PRIORITY)
        self.clock = MailedProcessingTimeService(now_ms, self.executor)
        self._loop: SteppedEventLoop | None = None
        # When each is done; no timers: they end after ``quiesce``, too.
        self._delays: list[tuple[int, AvailabilityFuture]] = []
        key_context = KeyContext()
        self.timers = KeyedTimerServiceManager(
            key_context,
            self.clock,
            place.key_groups,
            place.max_parallelism,
            should_interrupt=lambda: self.executor.should_interrupt,
            clock_ns=lambda: 0,  # the results of a test must not depend on the speed of the machine
        )
        self.keyed_state: KeyedStateBackend = HeapKeyedStateBackend(
            key_context, self.clock.current_time_ms, place.key_groups, place.max_parallelism
        )
        self.operator_state = OperatorStateBackend(place.subtask)
        self.ctx = OperatorContext(
            task_name="harness",
            operator_name=operator_name,
            operator_id=_OPERATOR_ID,
            key_context=key_context,
            executor=self.executor,
            clock=self.clock,
            timers=self.timers,
            keyed_state=self.keyed_state,
            operator_state=self.operator_state,
            report_latency=LatencyStats(_OPERATOR_ID, place.subtask).report,
            delay=self._delay,
            **asdict(place),
        )

    def __repr__(self) -> str:
        return f"<HarnessEnvironment {self.clock!r}, {self.mails!r}>"

    def create_calls(self, on_outcomes: Callable[[], None]) -> AsyncCalls:
        """A runner of coroutines on this thread."""
        loop = self._loop = self._loop or SteppedEventLoop(self.clock.current_time_ms)
        return AsyncCalls(on_outcomes, SharedAsyncLoop(lambda _: SteppedLoopThread(loop, self._wait_until)))

    # -- steps

    def run_mails(self) -> int:
        """Run due timers, coroutines and mails until nothing is left to do; return how many mails ran."""
        before = self.mails.processor.num_mails_processed
        for _ in range(_MAX_WAITS):
            self.clock.advance(0)
            if self._loop is not None:
                self._loop.run_until_idle()
            if not self.mails.pending:
                return self.mails.processor.num_mails_processed - before
            self.mails.run_until_idle()
        raise AssertionError(f"timers and mails create each other without end, pending: {self.mails.pending[:10]}")

    def set_time(self, now_ms: int) -> None:
        """Move the clock and run everything that is due then: in one step, as in Flink.

        If there are coroutines, the clock moves from one timer to the next.
        """
        if self._loop is not None:
            self.run_mails()  # calls that were started before must begin at the old time
        while self._loop is not None and (due_ms := self._next_due_ms()) is not None and due_ms < now_ms:
            self._step_to(due_ms)
        self._step_to(now_ms)

    def _step_to(self, now_ms: int) -> None:
        self.clock.set_time(max(now_ms, self.clock.current_time_ms()) if self._loop is not None else now_ms)
        self.run_mails()

    def _next_due_ms(self) -> int | None:
        """The time of the next timer or sleeping coroutine."""
        dues_ms = [*self.clock.active_timers()[:1], *(due_ms for due_ms, _ in self._delays)]
        if self._loop is not None and (wakes_ms := self._loop.next_timer_ms()) is not None:
            dues_ms.append(wakes_ms)
        return min(dues_ms, default=None)

    def _wait_until(self, is_over: Callable[[], bool]) -> None:
        for _ in range(_MAX_WAITS):
            if self._loop is not None:
                self._loop.run_until_idle()
            if is_over():
                return
            self._make_progress()
        raise AssertionError(f"the operator still waits after {_MAX_WAITS} steps: {self!r}")

    def _make_progress(self) -> None:
        """Help a waiting operator on: run coroutines, else move time to the next timer, else wait for other threads."""
        loop = self._loop
        if loop is not None:
            loop.run_until_idle()
            if self.mails.pending:
                return
        due_ms = self._next_due_ms()
        if due_ms is not None:
            self.clock.set_time(max(due_ms, self.clock.current_time_ms()))
            self._end_delays()
        elif loop is None or not loop.wait_for_others(_PATIENCE_S):
            raise AssertionError(
                "the operator waits for a mail, but there is no timer and no coroutine that could put one"
            )

    def _delay(self, duration_ms: int) -> AvailabilityFuture:
        future = AvailabilityFuture()
        self._delays.append((self.clock.current_time_ms() + duration_ms, future))
        return future

    def _end_delays(self) -> None:
        now_ms = self.clock.current_time_ms()
        waiting = self._delays
        self._delays = [each for each in waiting if each[0] > now_ms]
        for due_ms, future in waiting:
            if due_ms <= now_ms:
                future.complete()

    # -- end

    def quiesce(self) -> None:
        """Stop all timers and run the pending mails, as a task does before an operator finishes."""
        self.clock.quiesce()
        self.mails.processor.run_all_mails()

    def close(self) -> None:
        """Close timers, mailbox and loop; idempotent."""
        self.timers.close()
        self.clock.shut_down()
        self.mails.close()
        if self._loop is not None:
            self._loop.close()


_Args = TypeVarTuple("_Args")
T = TypeVar("T")

_MAX_ROUNDS: Final = 100_000  # only a coroutine that never ends and never waits needs more


class SteppedEventLoop(asyncio.SelectorEventLoop):
    """An event loop that runs only in steps, by the manual clock ``now_ms``."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        # Time counts from here, because floats hold milliseconds of small numbers more exactly.
        self._start_ms = now_ms()
        self._readiness = selectors.DefaultSelector()
        self._has_more = False  # whether something was scheduled for the next round
        self._timer_handles: list[asyncio.TimerHandle] = []
        super().__init__(self._readiness)
        self.set_debug(False)  # debug mode would report slow callbacks by this clock

    def time(self) -> float:
        """The manual clock, in seconds since the loop was created."""
        return (self._now_ms() - self._start_ms) / 1_000

    def call_soon(
        self, callback: Callable[[Unpack[_Args]], object], *args: *_Args, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Schedule a callback, and note that there is more to run."""
        self._has_more = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Args]], object],
        *args: *_Args,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Schedule a timer, and keep its handle for ``next_timer_ms``."""
        handle = super().call_at(when, callback, *args, context=context)
        self._timer_handles.append(handle)
        return handle

    def next_timer_ms(self) -> int | None:
        """The clock time at which the next timer fires; None if there is none."""
        now_ms = self._now_ms()
        self._timer_handles = [
            handle for handle in self._timer_handles if not handle.cancelled() and self._due_ms(handle) > now_ms
        ]
        return min(map(self._due_ms, self._timer_handles), default=None)

    def _due_ms(self, handle: asyncio.TimerHandle) -> int:
        return self._start_ms + math.ceil(round(handle.when() * 1_000, 6))

    def run_until_idle(self) -> None:
        """Run all callbacks that are ready, and all that become ready by them."""
        for _ in range(_MAX_ROUNDS):
            self._has_more = False
            # One round: stop is queued behind everything that is ready.
            super().call_soon(self.stop)
            self.run_forever()
            if not self._has_more:
                return
        raise AssertionError(f"coroutines still do not wait for anything after {_MAX_ROUNDS} rounds")

    def wait_for_others(self, timeout_s: float) -> bool:
        """Wait until a thread or a socket wakes the loop; False after ``timeout_s``."""
        return bool(self._readiness.select(timeout_s))


class SteppedLoopThread(EventLoopThread):
    """Stands in for the thread of ``AsyncCalls``: everything runs on the test's thread.

    ``wait_until`` steps the loop, and time, until a condition holds.  No mail runs meanwhile.
    """

    def __init__(self, loop: SteppedEventLoop, wait_until: Callable[[Callable[[], bool]], None]) -> None:
        super().__init__(loop, "stepped")
        self._wait_until = wait_until

    def execute_threadsafe(self, function: Callable[[*_Args], None], *args: *_Args) -> None:
        """Call the function at once."""
        function(*args)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Step until the coroutine has ended."""
        task = self.loop.create_task(coroutine)
        self._wait_until(task.done)
        future = concurrent.futures.Future[T]()
        future.set_result(task.result())  # no wait: it is done
        return future

    def close(self, timeout_s: float = 0) -> None:
        """Do nothing: the harness closes the loop."""

"""Drives an async operator step by step: calls end, time passes and mails run when the test says so."""

from collections.abc import Callable, Sequence
from typing import Any

from flowlet.async_io.async_calls import AsyncCall, AsyncCalls, AsyncFunctionCall, Failed
from flowlet.async_io.async_wait_operator import AsyncWaitOperator
from flowlet.chain.stream_operator import OperatorContext, Output
from flowlet.mailbox.mailbox_processor import MailboxExecutor
from flowlet.mailbox.task_mailbox import MIN_PRIORITY, Mail, TaskMailbox
from flowlet.records import Chunk
from flowlet.testing.manual_processing_time_service import ManualTimer, TestProcessingTimeService
from netstack.availability import AvailabilityFuture
from tests.flowlet.operators.harness import RecordingOutput, set_up


class ScriptedMailbox(TaskMailbox):
    """Takes the next step where the thread would park; it never parks."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Callable[[], None]] = []

    def take(self, priority: int = MIN_PRIORITY, *, is_lending: bool = False) -> Mail:
        while (mail := self.try_take(priority)) is None:
            assert self.steps, "the operator waits for ever"
            self.steps.pop(0)()
        return mail


class Clock(TestProcessingTimeService):
    """Stands still between two calls of ``advance``; keeps all timers, also those that fired or were called off."""

    def __init__(self) -> None:
        super().__init__()
        self.registered: list[ManualTimer] = []

    def register_timer(self, timestamp_ms: int, callback: Callable[[int], object]) -> ManualTimer:
        self.registered.append(super().register_timer(timestamp_ms, callback))
        return self.registered[-1]


class ScriptedCalls(AsyncCalls):
    """Calls that run until the test ends them."""

    def __init__(self, on_outcomes: Callable[[], None]) -> None:
        self.on_outcomes = on_outcomes
        self.running: list[AsyncCall] = []
        self.started: list[Any] = []
        self.cancelled: list[Any] = []
        self.outcomes: list[tuple[AsyncCall, Any]] = []
        self.events: list[str] = []
        self.on_start: Callable[[Sequence[AsyncCall]], None] = lambda calls: None
        self.is_notified = False

    def start(self, calls: Sequence[AsyncCall]) -> None:
        self.running += calls
        self.started += [call.value for call in calls]
        self.on_start(calls)

    def cancel(self, call: AsyncCall) -> None:
        self.cancelled.append(call.value)
        self.running.remove(call)

    def end(self, value: Any, outcome: Any) -> None:
        """The call for a record comes to its end."""
        call = next(call for call in self.running if call.value == value)
        self.running.remove(call)
        self.outcomes.append((call, Failed(outcome) if isinstance(outcome, BaseException) else outcome))
        if not self.is_notified:
            self.is_notified = True
            self.on_outcomes()

    def take_outcomes(self) -> list[tuple[AsyncCall, Any]]:
        self.is_notified = False
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    def run(
        self, function: AsyncFunctionCall, *args: Any, wait: Callable[[AvailabilityFuture], None] | None = None
    ) -> Any:
        raise NotImplementedError("tests of these use the real loop")

    def cancel_all(self) -> None:
        self.events.append("cancel all")
        self.running = []

    def close(self) -> None:
        self.events.append("close")


class Doubler:
    """An async function whose body never runs: the test gives its result."""

    async def async_invoke(self, value: Any) -> list[Any]:
        raise NotImplementedError

    def timeout(self, value: Any) -> list[Any]:
        raise TimeoutError(f"too late: {value}")


class AsyncHarness:
    """An async operator with a mailbox, a clock and scripted calls, all on the test's thread."""

    def __init__(
        self,
        function: Any = None,
        *,
        timeout_ms: int = 0,
        capacity: int = 10,
        is_ordered: bool = True,
        retry_strategy: Any = None,
        state: Any = None,
        create_calls: Callable[[Callable[[], None]], AsyncCalls] | None = None,
        output: Output | None = None,
        mailbox: ScriptedMailbox | None = None,
        priority: int = 1,
        is_open: bool = True,
    ) -> None:
        self.operator = AsyncWaitOperator(
            Doubler() if function is None else function,
            timeout_ms=timeout_ms,
            capacity=capacity,
            is_ordered=is_ordered,
            retry_strategy=retry_strategy,
            create_calls=self._script_calls if create_calls is None else create_calls,
        )
        self.mailbox = ScriptedMailbox() if mailbox is None else mailbox
        self.mailbox.bind_to_current_thread()
        self.executor = MailboxExecutor(self.mailbox, priority)
        self.clock = Clock()
        self.recorded = RecordingOutput()
        self.on_start: Callable[[Sequence[AsyncCall]], None] = lambda calls: None
        ctx = OperatorContext("task", 2, 4, 128, "look up", executor=self.executor, clock=self.clock)
        set_up(self.operator, ctx, self.recorded if output is None else output)
        self.operator.initialize_state(state)
        if is_open:
            self.operator.open()

    def _script_calls(self, on_outcomes: Callable[[], None]) -> ScriptedCalls:
        self.calls = ScriptedCalls(on_outcomes)
        self.calls.on_start = self.on_start
        return self.calls

    def process(self, *values: Any, timestamps: list[int] | None = None) -> None:
        self.operator.process_chunk(Chunk(list(values), timestamps))
        self.operator.check_invariants()

    def end(self, value: Any, outcome: Any) -> None:
        """A call ends and the mails about it run."""
        self.calls.end(value, outcome)
        self.run_mails()

    def run_mails(self) -> None:
        while self.executor.try_yield():
            self.operator.check_invariants()

    def advance(self, by_ms: int) -> None:
        self.clock.advance(by_ms)
        self.operator.check_invariants()

    def when_parked(self, *actions: Callable[[], None]) -> None:
        """Run one of the actions each time the operator waits for a mail and there is none."""
        self.mailbox.steps += actions

    @property
    def elements(self) -> list[Any]:
        """Values one by one, control elements as they are."""
        found: list[Any] = []
        for element in self.recorded.elements:
            found += element.values if isinstance(element, Chunk) else [element]
        return found

    def close(self) -> None:
        self.operator.close()

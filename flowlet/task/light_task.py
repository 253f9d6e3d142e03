"""Light tasks run where their data arrives: on the loop, in the place of their parked thread.

Side:       task, on the loop's thread; the task's own thread is parked meanwhile.
Why:        a record that comes alone waits for the task's thread to wake up, and beside a CPU-bound task for the interpreter's lock once
            more (bench: latency).
Rules:      data only: events, mails, errors, the life cycle and whatever may wait are the own thread's.  So a task that writes to the
            network, has several gates, or has an operator that waits for its mails never runs here.
            A task that takes longer than ``BUDGET_NS`` goes back to its own thread, for twice as long as the last time; but if it was
            quick on the loop for as long as that, that time is forgotten: whoever kept the loop from its core is not the task.
Units:      nanoseconds of a monotonic clock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from flowlet.chain.stream_operator import StreamOperator
from flowlet.mailbox.mailbox_processor import MailboxController, MailboxProcessor, Suspension

BUDGET_NS: Final = 1_000_000  # the loop's other work, and the network, wait for no more.  Not measured.
_FIRST_PAUSE_NS: Final = 1_000_000_000
_MAX_PAUSE_NS: Final = 1_000_000_000_000


class PeekableGate(Protocol):
    """A gate that knows whether its next element is data."""

    @property
    def next_is_data(self) -> bool:
        """Whether the next poll is known to find data: no event, no error."""


@dataclass(frozen=True, slots=True)
class LightInput:
    """What the task does: process the next buffer; wait for input; say whether a mail or something else wants its own thread."""

    process_one: Callable[[], object]
    wait: Callable[[MailboxController], None]
    has_mail: Callable[[], bool]


class LightTask:
    """Runs one task in slices.

    Threading: ``try_run`` on the loop's thread does something; on any other it refuses.
    """

    def __init__(
        self,
        processor: MailboxProcessor,
        gate: PeekableGate,
        work: LightInput,
        is_loop_thread: Callable[[], bool],
        clock_ns: Callable[[], int],
    ) -> None:
        self._processor = processor
        self._gate = gate
        self._work = work
        self._is_loop_thread = is_loop_thread
        self._clock_ns = clock_ns
        self._end_ns = 0  # Loop thread only: of the present slice.
        self._is_heavy_until_ns = 0  # Loop thread only.
        self._pause_ns = 0  # Loop thread only: how long it went back for the last time.

    def __repr__(self) -> str:
        return f"<LightTask, the last time {self._pause_ns / 1e9:g} s on its own thread>"

    def try_run(self, suspension: Suspension) -> bool:
        """Process what has arrived, instead of resuming ``suspension``; False if that is its own thread's work."""
        if not self._is_loop_thread():
            return False
        now_ns = self._clock_ns()
        if now_ns < self._is_heavy_until_ns:
            return False
        self._end_ns = now_ns + BUDGET_NS
        return self._processor.try_run_parked(suspension, self._run, now_ns)

    def _run(self, controller: MailboxController) -> None:
        gate, work, clock_ns, end_ns = self._gate, self._work, self._clock_ns, self._end_ns
        if not gate.next_is_data:
            return  # an event, or an error: its own thread goes on
        while True:
            work.process_one()
            now_ns = clock_ns()
            if now_ns > end_ns:
                self._go_back(now_ns)
                return
            if work.has_mail():
                return
            if not gate.next_is_data:
                break
        work.wait(controller)

    def _go_back(self, now_ns: int) -> None:
        quick_ns = now_ns - self._is_heavy_until_ns
        self._pause_ns = _FIRST_PAUSE_NS if quick_ns >= self._pause_ns else min(2 * self._pause_ns, _MAX_PAUSE_NS)
        self._is_heavy_until_ns = now_ns + self._pause_ns


def can_be_light(operators: Sequence[StreamOperator], *, num_gates: int, num_outputs: int) -> bool:
    """Whether nothing the task does with data waits for anything."""
    return num_gates == 1 and not num_outputs and not any(operator.waits for operator in operators)

"""Runs light tasks where their data arrives: on the loop, in the place of their parked thread.

Side:       task, on the loop's thread while the task's own thread is parked.
Why:        a record that comes alone would wait for the task's thread to wake up, and beside a CPU-bound task also for
            the interpreter's lock (bench: latency).
Rules:      only data is processed here.  Events, mails, errors, the life cycle and all that may wait are left to the
            task's own thread.  So a task never runs here if it writes to the network, has several gates, or has an
            operator that waits for mails.  A task that takes longer than ``BUDGET_NS`` returns to its own thread, for
            twice as long as the last time.  If it was quick for that long, that time starts again at its minimum: then
            something else kept the loop from its core.  A task of which one call took longer than ``SLOW_NS`` stays on
            its own thread for good, and so does its vertex in later attempts in this process (``SlowVertices``): it
            waits for something or keeps the interpreter's lock, and stood in the network's way.
Units:      nanoseconds of a monotonic clock.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from flowlet.chain.stream_operator import StreamOperator
from flowlet.mailbox.mailbox_processor import MailboxController, MailboxProcessor, Suspension
from netstack.late import dataclass

BUDGET_NS: Final = 1_000_000  # how long a task may delay the loop's other work, and the network.  Not measured.
# Far more than the kernel takes the core from the loop, also beside busy tasks.  Not measured.
SLOW_NS: Final = 50_000_000
_FIRST_PAUSE_NS: Final = 1_000_000_000
_MAX_PAUSE_NS: Final = 1_000_000_000_000
_NEVER_NS: Final = 2**63
_MAX_SLOW_VERTICES: Final = 10_000


class PeekableGate(Protocol):
    """A gate that can tell whether its next element is data."""

    @property
    def next_is_data(self) -> bool:
        """Whether the next poll surely returns data: no event, no error."""


@dataclass(frozen=True, slots=True)
class LightInput:
    """What the task provides: process the next buffer; wait for input; whether a mail, or anything else, needs its own
    thread.
    """

    process_one: Callable[[], object]
    wait: Callable[[MailboxController], None]
    has_mail: Callable[[], bool]


class SlowVertices:
    """The vertices of this process that stood in the network's way once, by job; a restarted job would do it again.

    Threading: the loop adds, task threads read; single operations of a dictionary.
    """

    def __init__(self) -> None:
        self._vertices: dict[tuple[str, str], None] = {}  # the oldest first

    def __repr__(self) -> str:
        return f"<SlowVertices {len(self._vertices)}>"

    def __contains__(self, vertex: tuple[str, str]) -> bool:
        return vertex in self._vertices

    def add(self, vertex: tuple[str, str]) -> None:
        """Remember a vertex, and forget the oldest one if there are too many."""
        if len(self._vertices) >= _MAX_SLOW_VERTICES:
            del self._vertices[next(iter(self._vertices))]
        self._vertices[vertex] = None


SLOW_VERTICES: Final = SlowVertices()


class LightTask:
    """Runs one task in slices; ``try_run`` works on the loop's thread and returns False on any other."""

    def __init__(
        self,
        processor: MailboxProcessor,
        gate: PeekableGate,
        work: LightInput,
        is_loop_thread: Callable[[], bool],
        clock_ns: Callable[[], int],
        on_slow: Callable[[], None] = lambda: None,
    ) -> None:
        self._processor = processor
        self._gate = gate
        self._work = work
        self._is_loop_thread = is_loop_thread
        self._clock_ns = clock_ns
        self._on_slow = on_slow
        self._end_ns = 0  # Loop thread only: the end of the present slice.
        self._is_heavy_until_ns = 0  # Loop thread only: until then the task stays on its own thread.
        self._pause_ns = 0  # Loop thread only: how long it last stayed there.

    def __repr__(self) -> str:
        if self._is_heavy_until_ns == _NEVER_NS:
            return "<LightTask, on its own thread for good>"
        return f"<LightTask, the last time {self._pause_ns / 1e9:g} s on its own thread>"

    def try_run(self, suspension: Suspension) -> bool:
        """Process the data that arrived, instead of resuming ``suspension``; False if the task's
        own thread must do it.
        """
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
            return  # an event or an error is next: left to the task's own thread
        now_ns = end_ns - BUDGET_NS
        while True:
            work.process_one()
            began_ns, now_ns = now_ns, clock_ns()
            if now_ns > end_ns:
                self._go_back(began_ns, now_ns)
                return
            if work.has_mail():
                return
            if not gate.next_is_data:
                break
        work.wait(controller)

    def _go_back(self, began_ns: int, now_ns: int) -> None:
        if now_ns - began_ns > SLOW_NS:
            self._is_heavy_until_ns = _NEVER_NS
            self._on_slow()
            return
        quick_ns = now_ns - self._is_heavy_until_ns
        self._pause_ns = _FIRST_PAUSE_NS if quick_ns >= self._pause_ns else min(2 * self._pause_ns, _MAX_PAUSE_NS)
        self._is_heavy_until_ns = now_ns + self._pause_ns


def can_be_light(operators: Sequence[StreamOperator], *, num_gates: int, num_outputs: int) -> bool:
    """Whether no operator or output of the task may wait while it processes data."""
    return num_gates == 1 and not num_outputs and not any(operator.waits for operator in operators)

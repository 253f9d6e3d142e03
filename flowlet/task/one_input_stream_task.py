"""A task whose chain is fed from its gates.

Side:   task.
Source: Flink ``OneInputStreamTask``.
"""

from flowlet.operators.chain import ChainedOperator
from flowlet.task.input_processor import InputProcessor, InputStatus
from flowlet.task.mailbox_processor import MailboxController, Suspension
from flowlet.task.stream_task_base import StreamTask
from flowlet.task.task_environment import TaskEnvironment
from flowlet.task.task_timings import TaskTimings, WaitKind
from netstack.wire.events import StopMode

# A mail, a cancel or a flush waits for no more than this many buffers.  Not measured.
MAX_BUFFERS_PER_ACTION = 8


class OneInputStreamTask(StreamTask):
    """Reads all gates into one chain; several gates are a union."""

    def __init__(self, environment: TaskEnvironment, chain: list[ChainedOperator], *, timings: TaskTimings | None = None) -> None:
        super().__init__(environment, chain, timings=timings)
        self._input = InputProcessor(environment.gates, self._chain, self.name)
        self._input_suspension: Suspension | None = None  # Written by the task thread, read by whoever completes a gate's future.

    def _process_input(self) -> InputStatus:
        return self._input.process_input(MAX_BUFFERS_PER_ACTION, self._should_stop)

    def _wait_for_input(self, controller: MailboxController) -> None:
        # Published before the futures are looked at: a future that completes in between is seen done there, or finds the suspension here.
        self._input_suspension = controller.suspend_default_action(WaitKind.IDLE, self._input.waiting_for)
        self._input.watch(self._resume_input)

    def _resume_input(self) -> None:
        suspension = self._input_suspension
        if suspension is not None:
            suspension.resume()

    def _stop_mode(self) -> StopMode:
        return self._input.stop_mode

    def _advance_to_end_of_event_time(self) -> None:
        self._input.advance_to_end_of_event_time()

    def _current_input_watermark(self) -> int:
        return self._input.current_watermark

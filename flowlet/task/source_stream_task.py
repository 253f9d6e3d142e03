"""A task whose chain begins with a source.

Side:   task.
Source: Flink ``SourceOperatorStreamTask``.
Absent: waiting for a source that has nothing just now: it is asked again at once (no source of this kind exists yet).
"""

import msgspec

from flowlet.operators.chain import ChainedOperator
from flowlet.operators.source import SourceOperator
from flowlet.records import MAX_WATERMARK
from flowlet.rpc.messages import TaskMetrics
from flowlet.task.input_selection import InputStatus
from flowlet.task.mailbox_processor import MailboxController
from flowlet.task.stream_task_base import StreamTask
from flowlet.task.task_environment import TaskEnvironment
from flowlet.task.task_timings import TaskTimings


class SourceStreamTask(StreamTask):
    """Asks its source for one chunk per default action: the next call may block, so what the last one gave must be on its way."""

    def __init__(self, environment: TaskEnvironment, chain: list[ChainedOperator], *, timings: TaskTimings | None = None) -> None:
        super().__init__(environment, chain, timings=timings)
        head = chain[0].operator
        if not isinstance(head, SourceOperator):
            raise TypeError(f"{self.name}: the head of the chain is no source: {head!r}")
        self._source = head

    def metrics(self) -> TaskMetrics:
        """The counters, with how far the source is; any thread."""
        return msgspec.structs.replace(super().metrics(), source_progress=self._source.progress)

    def _process_input(self) -> InputStatus:
        return InputStatus.MORE_AVAILABLE if self._source.emit_next() else InputStatus.END_OF_DATA

    def _wait_for_input(self, controller: MailboxController) -> None:
        raise AssertionError("a source is never waited for")

    def _advance_to_end_of_event_time(self) -> None:
        self._chain.process_watermark(MAX_WATERMARK)

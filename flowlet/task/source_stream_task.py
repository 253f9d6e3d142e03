"""A task whose chain begins with a source.

Side:   task.
Source: Flink ``SourceOperatorStreamTask``.
Rules:  a source that has nothing just now is waited for if it can say when to ask again, and else asked again at once.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.graph.execution_state import ExecutionState
from flowlet.io.multiple_input_selection_handler import InputStatus
from flowlet.mailbox.mailbox_processor import MailboxController, Suspension
from flowlet.mailbox.task_timings import TaskTimings, WaitKind
from flowlet.operators.source_operator import SourceOperator
from flowlet.records import MAX_WATERMARK
from flowlet.rpc.control_messages import TaskMetrics
from flowlet.splits.enumerator import SourceSplit
from flowlet.task.stream_task import StreamTask
from flowlet.task.task_environment import TaskEnvironment
from netstack.wire.events import StopMode

# What is written together may have 16,000 records per channel (see ``record_writer``), a chunk has 1,000 or 2,000.  16 of 1,000 pairs
# take 5 ms; a mail does not wait for them.
MAX_POLLS_PER_ACTION = 16


class SourceStreamTask(StreamTask):
    """Asks its source for one chunk per default action: the next call may block, so what the last one gave must be on its way.

    Where the reader says that it never does, for some more.
    """

    def __init__(self, environment: TaskEnvironment, chain: list[ChainedOperator], *, timings: TaskTimings | None = None) -> None:
        super().__init__(environment, chain, timings=timings)
        head = chain[0].operator
        if not isinstance(head, SourceOperator):
            raise TypeError(f"{self.name}: the head of the chain is no source: {head!r}")
        self._source = head
        self._stopped: StopMode | None = None  # Task thread only.
        self._suspension: Suspension | None = None  # Task thread only; the last wait for the source.
        if self.checkpoints is not None:
            self.checkpoints.attach_source(self._stop)

    def metrics(self) -> TaskMetrics:
        """The counters, with how far the source is; any thread."""
        return msgspec.structs.replace(
            super().metrics(), source_progress=self._source.progress, watermark_alignment_drift_ms=self._source.alignment_drift_ms
        )

    def cancel(self) -> None:
        """As ``StreamTask``; producers outside the cluster hear of it now, not when user code has returned.  Any thread."""
        gate = self.environment.offered_gate
        if gate is not None:
            gate.refuse_open("its job was cancelled or has failed")
        super().cancel()

    def _closers(self, *, mailbox: bool = True) -> Iterator[Callable[[], None]]:
        gate = self.environment.offered_gate
        if gate is not None:
            reason = {ExecutionState.CANCELED: "its job was cancelled or has failed", ExecutionState.FAILED: "its task has failed"}
            yield lambda: gate.close_with(reason.get(self.state, "it has come to its end"))
        yield from super()._closers(mailbox=mailbox)

    def _process_input(self) -> InputStatus:
        if self._stopped is not None:
            return InputStatus.STOPPED if self._stopped is StopMode.NO_DRAIN else InputStatus.END_OF_DATA
        for _ in range(MAX_POLLS_PER_ACTION):
            if not self._source.emit_next():
                return InputStatus.END_OF_DATA
            if not self._source.may_go_on or self._should_stop():
                break
        return InputStatus.MORE_AVAILABLE if self._source.wait_future() is None else InputStatus.NOTHING_AVAILABLE

    def _wait_for_input(self, controller: MailboxController) -> None:
        future = self._source.wait_future()
        assert future is not None, "it has nothing, and says when it will"
        awaited = (
            "the other sources of its alignment group"
            if self._source.is_held_back
            else f"the source {self._source.name!r} to have something"
        )
        suspension = controller.suspend_default_action(WaitKind.IDLE, awaited)
        self._suspension = suspension
        future.add_done_callback(suspension.resume)

    def stop(self) -> None:
        """End the source without draining: nothing is finished, no last watermark is sent.  Any thread, any number of times."""
        self.mailbox_processor.send_control_mail(lambda: self._stop(StopMode.NO_DRAIN), "stop the source")

    def allow_watermark(self, max_allowed_ms: int) -> None:
        """Say how far the sources of the alignment group may be.  Any thread, any time."""
        self.mailbox_processor.send_control_mail(lambda: self._source.allow_watermark(max_allowed_ms), "watermark alignment")

    def add_splits(self, splits: Sequence[SourceSplit], waiting_bytes: int) -> None:
        """Give the source splits that it asked for, and say how much is left for all its readers.  Any thread, any time."""
        self.mailbox_processor.send_control_mail(lambda: self._source.add_splits(splits, waiting_bytes), "splits of the source")

    def no_more_splits(self) -> None:
        """Tell the source that it asked for splits in vain.  Any thread, any time."""
        self.mailbox_processor.send_control_mail(self._source.no_more_splits, "no more splits of the source")

    def _stop(self, mode: StopMode) -> None:
        self._stopped = mode
        if self._suspension is not None:
            self._suspension.resume()

    def _advance_to_end_of_event_time(self) -> None:
        self._chain.process_watermark(MAX_WATERMARK)

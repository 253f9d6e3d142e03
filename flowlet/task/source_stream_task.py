"""A task whose head is a source; and ``create_stream_task``, which makes the task for a chain.

Side:   task.
Source: Flink ``SourceOperatorStreamTask``; ``JobVertex.getInvokableClass``, which chooses a subclass of ``StreamTask``.
Rules:  if a source has no data and gives a future, the task waits for it; without a future it polls again at once.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import assert_never

import msgspec

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.stream_operator import InputStatus
from flowlet.errors import MailboxClosedError
from flowlet.mailbox.mailbox_processor import MailboxProcessor, Suspension, TaskTimings, WaitKind
from flowlet.messages import control_messages as messages
from flowlet.messages.execution_state import ExecutionState
from flowlet.operators.source_operator import SourceOperator
from flowlet.records import MAX_WATERMARK, CompletionMark
from flowlet.task.stream_task import StreamTask
from flowlet.task.task_environment import TaskEnvironment
from netstack.availability import AvailabilityFuture
from netstack.wire.events import StopMode

# Chunks have 1,000 or 2,000 records; up to 16,000 records per channel are written together (see ``record_writer``).  16
# chunks of 1,000 pairs take 5 ms; a mail does not wait for all of them.
MAX_POLLS_PER_ACTION = 16


class SourceStreamTask(StreamTask):
    """Polls its source once per default action: the next poll may block, and the records of the last poll must not wait
    for it.

    If the reader never waits (``never_waits``), a default action has several polls.
    """

    def __init__(
        self, environment: TaskEnvironment, chain: list[ChainedOperator], *, timings: TaskTimings | None = None
    ) -> None:
        super().__init__(environment, chain, timings=timings)
        head = chain[0].operator
        if not isinstance(head, SourceOperator):
            raise TypeError(f"{self.name}: the head of the chain is no source: {head!r}")
        self._source = head
        head.slices = self._new_slices()
        self._stopped: StopMode | None = None  # Task thread only.
        self._suspension: Suspension | None = None  # Task thread only: the last wait for the source, or for operators.
        self._awaited: AvailabilityFuture | None = None  # Task thread only: done when the source has something.
        self._is_at_end_of_event_time = False  # Task thread only.
        if self.checkpoints is not None:
            self.checkpoints.attach_source(self._stop)

    def metrics(self) -> messages.TaskMetrics:
        """The counters of the task and of the source; any thread."""
        return msgspec.structs.replace(
            super().metrics(),
            source_progress=self._source.progress,
            watermark_alignment_drift_ms=self._source.alignment_drift_ms,
        )

    def cancel(self) -> None:
        """Cancel the task; producers outside the cluster are told at once, even while user code runs.

        Any thread.
        """
        gate = self.environment.offered_gate
        # First: user code may run for long, and producers outside would offer and send for nothing.
        if gate is not None:
            gate.refuse_open("its job was cancelled or has failed")
        super().cancel()

    def _closers(self, *, mailbox: bool = True) -> Iterator[Callable[[], None]]:
        gate = self.environment.offered_gate
        if gate is not None:
            reason = {
                ExecutionState.CANCELED: "its job was cancelled or has failed",
                ExecutionState.FAILED: "its task has failed",
            }
            yield lambda: gate.close_with(reason.get(self.state, "it has come to its end"))
        yield from super()._closers(mailbox=mailbox)

    def _process_input(self) -> InputStatus:
        if self._stopped is not None:
            return self._end_stopped(self._stopped)
        for _ in range(MAX_POLLS_PER_ACTION):
            if not self._source.emit_next(self._should_stop):
                return InputStatus.END_OF_DATA
            if not self._source.may_go_on or self._should_stop() or (self._holders and self._is_full):
                break
        self._awaited = self._source.wait_future()
        return InputStatus.MORE_AVAILABLE if self._awaited is None else InputStatus.NOTHING_AVAILABLE

    @property
    def _has_event(self) -> bool:
        # A source that has ended goes on waiting for results if it is to stop with all of them.
        return self._stopped is StopMode.NO_DRAIN or (self._stopped is not None and not self._is_draining)

    def _resume_for_events(self, suspension: Suspension) -> None:
        self._suspension = suspension

    @property
    def _ended_by_itself(self) -> bool:
        return self._stopped is None

    def _process_events(self) -> InputStatus:
        # Stopping without draining waits for no timer; all other input is read after the timers.
        return self._process_input() if self._stopped is StopMode.NO_DRAIN else InputStatus.MORE_AVAILABLE

    def _end_stopped(self, mode: StopMode) -> InputStatus:
        self._source.hold()  # before the end of data: the elements that its function has emitted are in its state
        if mode is StopMode.NO_DRAIN:
            return InputStatus.STOPPED  # elements that were read and not processed are in the savepoint
        if self._source.slices.waiting:
            self._source.emit_next(self._should_stop)
            return InputStatus.MORE_AVAILABLE
        return InputStatus.END_OF_DATA

    def _wait_for_input(self, controller: MailboxProcessor) -> None:
        future = self._awaited
        assert future is not None, "a source without data gives a future"
        awaited = (
            "the other sources of its alignment group"
            if self._source.is_held_back
            else f"the source {self._source.name!r} to have something"
        )
        suspension = controller.suspend_default_action(WaitKind.IDLE, awaited)
        self._suspension = suspension
        future.add_done_callback(suspension.resume)

    def stop(self) -> None:
        """End the source without draining: operators do not finish, no last watermark is sent.

        Any thread, any number of times.
        """
        self.mailbox_processor.send_control_mail(lambda: self._stop(StopMode.NO_DRAIN), "stop the source")

    def carry_out(self, order: messages.SourceOrder) -> None:
        """Carry out an order of the JobManager by a mail.  Any thread, any time."""
        source = self._source
        match order:
            case messages.AllowSourceWatermark(max_allowed=max_allowed):
                self.mailbox_processor.send_control_mail(
                    lambda: source.allow_watermark(max_allowed), "watermark alignment"
                )
            # In the order of the triggers of checkpoints, which have this priority, too.  If a mail overtook a trigger,
            # one checkpoint would have its split in this task's state and in the enumerator's: after a restart it would
            # be read twice.  Not after the source was stopped: these splits are in the enumerator's state in the
            # savepoint that stops it.
            case messages.AddSplits(splits=splits, waiting_bytes=waiting_bytes):
                self._mail(lambda: source.add_splits(splits, waiting_bytes), "splits of the source")
            case messages.NoMoreSplits():
                self._mail(source.no_more_splits, "no more splits of the source")
            # Of the lowest priority, so that it never runs while an operator that waits in the middle of a chunk runs
            # mails.  Not behind the end of data: consumers accept no more then, and operators may still hold records.
            case messages.EmitMark(number=number):
                mark = CompletionMark(number)
                self._mail(lambda: source.emit_mark(mark), "emit completion mark %s", number, needs_data=True)
            case messages.MarkCompleted(number=number):
                what = "completion mark %s has passed the job"
                self._mail(lambda: source.mark_completed(number), what, number, needs_data=True)
            case _:
                assert_never(order)

    def _mail(self, action: Callable[[], None], description: str, *args: object, needs_data: bool = False) -> None:
        """Let the task's thread run an action, unless the source is stopped by then.

        ``needs_data``: nor after the end of data was sent.
        """

        def run() -> None:
            if self._stopped is None and (self._has_data or not needs_data):
                action()

        with suppress(MailboxClosedError):
            self.mailbox_processor.executor().execute(run, description, *args)

    def _stop(self, mode: StopMode) -> None:
        self._stopped = mode
        if self._suspension is not None:
            self._suspension.resume()

    def _advance_to_end_of_event_time(self) -> None:
        if not self._is_at_end_of_event_time:
            self._is_at_end_of_event_time = True
            self._chain.process_control(MAX_WATERMARK)


def create_stream_task(environment: TaskEnvironment, chain: list[ChainedOperator]) -> StreamTask:
    """A ``SourceStreamTask`` if the head is a source, else a task that reads the environment's gates."""
    head = chain[0].operator
    if isinstance(head, SourceOperator):
        return SourceStreamTask(environment, chain)
    # Imported here: a task that begins with a source needs no module that reads from the network.
    from flowlet.task.one_input_stream_task import GateFedStreamTask

    return GateFedStreamTask(environment, chain)

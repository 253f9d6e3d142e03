"""One subtask: its chain, its inputs and outputs, and the thread that runs them.

Side:       task.  ``cancel``, ``abandon``, ``metrics``, ``state`` and ``repr`` from any thread.
Invariants: all code that touches operators runs on the thread that called ``invoke``.  A pending chunk never outlives
            the default action or mail that produced it.  End of partition is sent only after all consumers acknowledged
            the end of data.  In all cases operators are closed, partitions are finished or failed, gates are closed,
            and the first error is raised; where the thread cannot do it, by ``abandon``.
Source:     Flink ``StreamTask`` (processInput, endData, afterInvoke, cleanUp), ``SourceStreamTask``,
            ``OneInputStreamTask``.
Absent:     a way to interrupt user code: a cancelled task ends when its user code returns.  The owner of the thread
            watches the time that this takes.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from flowlet.chain.operator_chain import ChainedOperator, OperatorChain, errors_of, raise_first
from flowlet.chain.record_slices import SLOW_NS, Caution, RecordSlices
from flowlet.chain.stream_operator import EdgeOutput, InputStatus, StreamOperator
from flowlet.checkpoint.task.channel_state_writer import InMemoryChannelStateWriter
from flowlet.checkpoint.task.operator_snapshots import OperatorSnapshots
from flowlet.checkpoint.task.snapshots import RecoveredStream
from flowlet.checkpoint.task.task_checkpoints import TaskCheckpoints
from flowlet.errors import FlowletError, TaskCancelled
from flowlet.io.output_flusher import OutputFlushers
from flowlet.mailbox.mailbox_processor import MailboxProcessor, Suspension, TaskTimings, WaitKind
from flowlet.mailbox.task_mailbox import MAX_PRIORITY, MIN_PRIORITY, Attention, TaskMailbox
from flowlet.messages.control_messages import MarkPassed, TaskMetrics
from flowlet.messages.execution_state import ExecutionState
from flowlet.records import Chunk
from flowlet.task.checkpoint_wiring import MailedCall, TaskOutputs, supports_unaligned
from flowlet.task.operator_services import EdgeFunctions, OperatorServices, operator_metrics
from flowlet.task.task_environment import OutputEdge, TaskEnvironment, TaskLifecycle
from netstack.availability import AvailabilityFuture
from netstack.errors import ProducerFailedError
from netstack.loop.forks import end_stranded_child
from netstack.wire.events import StopMode

if TYPE_CHECKING:
    from flowlet.checkpoint.task.input_recovery import InputRecovery
    from flowlet.io.record_writer import RecordWriter

_NS_PER_MS = 1_000_000
_ALARM_MS = 10  # for outputs that are flushed at the end of each default action, which may take long
_PRINT_MS = 100  # of a task without outputs, which may print; the usual buffer timeout
_LEAST_ROOM = 8  # buffers for the bytes of a small slice, besides one that each channel may begin; not measured
_LOOP_ROUNDS = 2  # of the loop: callbacks of the first round may schedule others
_MAX_LOOP_ROUND_S = 0.1
_MAX_RECOVERED_PIECES = 8  # a mail waits for at most as many, of 32 KiB mostly; as for buffers, not measured


class _Phase(Enum):
    """The present work of the default action."""

    RECOVERING = auto()  # process data that was in flight in the checkpoint that the task begins with
    PROCESSING = auto()  # read input, run the chain
    DRAINING = auto()  # data has ended; wait until no operator holds records
    AWAITING_END_OF_INPUT = auto()  # data has ended; wait for the end of every partition
    AWAITING_ACKNOWLEDGEMENT = auto()  # wait until the consumers have processed all data
    AWAITING_CHECKPOINT = auto()  # wait for a complete checkpoint that includes the end
    DONE = auto()


class StreamTask(ABC):
    """Runs one chain of operators.

    Threading: made on any thread; ``invoke`` once, on the task's thread; the members named in the module header
               anywhere.
    Life cycle: CREATED -> INITIALIZING -> RUNNING -> FINISHED, or CANCELING -> CANCELED, or FAILED.

    Args:
        environment: names, gates, partitions.
        chain: the operators, head first.
        timings: the stopwatches; tests replace them.
    """

    def __init__(
        self, environment: TaskEnvironment, chain: list[ChainedOperator], *, timings: TaskTimings | None = None
    ) -> None:
        self.environment = environment
        self.name = environment.task_name_with_subtask
        self.mailbox = TaskMailbox(self.name)
        self.on_running: Callable[[], None] = lambda: None
        self._lifecycle = TaskLifecycle()
        self._timings = TaskTimings() if timings is None else timings
        self.mailbox_processor = MailboxProcessor(
            self._run_default_action,
            self.mailbox,
            self._timings,
            run_action=self._run_mail_action,
            after_long=self._let_loop_run,
        )
        self._partitions = [output.partition for output in environment.outputs]
        for partition in self._partitions:
            partition.buffer_pool.observe_blocking(self._timings.hard_back_pressure)
        self._caution = Caution.at_start() if self._partitions else Caution()
        self._waits_since_ns = 0  # Task thread only: since when the task waits for room in an output; 0: it does not.
        # Task thread only: how long it had waited in the middle of writes when the last default action ended.
        self._hard_waits_ns = 0
        self._flushers = OutputFlushers(
            [(output.partition, output.buffer_timeout_ms) for output in environment.outputs],
            environment.schedule_timer,
            self._report_flush_error,
            self._call_for_results,
            _alarm_ms(environment.outputs),
        )
        self._may_hold_results = False  # Task thread only: whether results may wait for the end of a default action.
        # Written by the task thread; read by the loop: whether the default action processes input.
        self._is_acting = False
        # Set by the loop, cleared by the task thread: whether the mail that flushes results waits.
        self._is_called_for_results = False
        self._attention = Attention()
        self._writers = [
            self._create_writer(output, chain[output.source_operator].operator.name) for output in environment.outputs
        ]
        self._services = OperatorServices(
            environment, chain, self.mailbox_processor, self._timings, self.mailbox.interrupts, self._attention
        )
        edge_outputs: dict[tuple[int, str | None], list[EdgeOutput]] = {}
        for edge, writer in zip(environment.outputs, self._writers, strict=True):
            edge_outputs.setdefault((edge.source_operator, edge.tag), []).append(writer)
        self._chain = OperatorChain(chain, edge_outputs, self._services.context)
        self._timers = [ctx.timers for ctx in self._chain.contexts if ctx.timers is not None]
        self._attention.flushes.append(self._flush_results)
        self._edge_functions = EdgeFunctions(chain, environment.outputs, self._chain.contexts)
        self._chain.on_mark_passed = lambda number: environment.send(MarkPassed(environment.attempt, number))
        self._holders = [operator for operator in self._chain.operators if operator.holds_records]
        self._drains: Iterator[tuple[StreamOperator, AvailabilityFuture]] = iter(())  # Task thread only, as the next.
        self._drain: tuple[StreamOperator, AvailabilityFuture] | None = None  # the wait of the phase DRAINING
        self._suspension_for_operators: Suspension | None = None  # the last wait for operators
        self._phase = _Phase.PROCESSING  # Written by the task thread.
        self._has_reported_end = False  # Written by the task thread.
        # Task thread only: the data in flight of the restored checkpoint that is not processed yet.
        self._recovery: InputRecovery | None = None
        # Task thread only: the inputs of operators behind the head that the restored checkpoint has data in flight for.
        self._inner_inputs: dict[int, Callable[[Chunk], int]] = {}
        self._is_closed = False  # Written by the task thread: whether operators were, or are being, closed.
        self._snapshots = OperatorSnapshots(self._chain.operators, lambda: self._is_closed, self._attention.check)
        self.checkpoints = self._create_checkpoints()  # None: the job has no checkpoints

    def __repr__(self) -> str:
        # A wait for a buffer inside a write happens in the pool; the partitions report it.
        return (
            f"<{type(self).__name__} {self.name} {self.state}, {self._phase.name}, waiting for {self.waiting_for}, "
            f"{self.mailbox!r}, "
            f"gates {self.environment.gates!r}, outputs {self._partitions!r}>"
        )

    @property
    def state(self) -> ExecutionState:
        """The state of the attempt; any thread."""
        return self._lifecycle.state

    @property
    def waiting_for(self) -> str | None:
        """The reason why the task is parked, in words for people; None while it works.  Any thread."""
        return self.mailbox_processor.waiting_for

    # -- the life of the task

    def invoke(self) -> None:
        """Run the task to its end on the calling thread.

        Raises:
            TaskCancelled: ``cancel`` was called.
            UserFunctionError: an operator failed.
            NetstackError: an input or output failed; ProducerFailedError if the producer did.
        """
        if not self._lifecycle.try_advance(ExecutionState.INITIALIZING):
            if self.state is ExecutionState.CANCELED:
                raise TaskCancelled(f"{self.name} was cancelled before it started")
            raise RuntimeError(f"{self.name} was started twice: {self.state}")
        try:
            self._restore()
            self.mailbox_processor.run_mailbox_loop()
            self._after_loop()
        except BaseException as error:
            end_stranded_child()
            failure = self._clean_up_after(error)
            if failure is error:
                raise
            raise failure from error
        self._timings.mark_end()
        if self._lifecycle.end(ExecutionState.FINISHED) is ExecutionState.CANCELED:
            raise TaskCancelled(f"{self.name} was cancelled while it ended")

    def cancel(self) -> None:
        """Make ``invoke`` raise TaskCancelled as soon as user code returns.

        Any thread, any state, any number of times.
        """
        # One step decides: of this thread and the task's, one alone closes what the task has.
        before = self._lifecycle.cancel()
        if before is ExecutionState.CREATED:
            # No thread uses outputs and gates, and none will.
            raise_first(errors_of((*self._failers(self._cancel_cause()), *self._closers(mailbox=False))))
        elif before in (ExecutionState.INITIALIZING, ExecutionState.RUNNING):
            # Before the mail, which ends the loop of the head: the loops behind it must not take its last records.
            self._attention.cancel()
            # The mail ends every wait in the mailbox; the failed partitions end a wait for a buffer.
            self.mailbox_processor.send_control_mail(self._raise_cancelled, "cancel the task")
            raise_first(errors_of(self._failers(self._cancel_cause())))

    def abandon(self) -> None:
        """End a task that ``invoke`` did not end: it was never called, or its thread has died in it.

        In place of that thread: functions of the user are closed here.  Nothing happens to a task that has ended.

        Raises the first error, with notes about the others, after everything was released.
        """
        if self.state.is_terminal:
            return
        errors = errors_of([self.cancel])
        # A task that was never invoked is CANCELED by now, and all that it had is closed.
        if self.state is ExecutionState.CANCELING:
            self._lifecycle.end(ExecutionState.FAILED)
            # Without the mailbox, which belongs to the dead thread.
            errors += errors_of((self._chain.close, *self._closers(mailbox=False)))
        raise_first(errors)

    def _restore(self) -> None:
        self.mailbox.bind_to_current_thread()
        config = self.environment.checkpointing
        if config is not None:
            self._snapshots.restore(config.restored)
            self._recovery = self._create_recovery(list(config.in_flight)) if config.in_flight else None
            # The operators have the state now, and change it: a second reference would keep the old state for as long
            # as the task runs.
            self.environment.checkpointing = replace(config, restored={}, in_flight=())
        self._edge_functions.open()
        self._chain.open()
        # Also in a task that only prints: its sink has registered the flush of its text.
        self._may_hold_results = bool(self._writers) or len(self._attention.flushes) > 1
        for gate in self.environment.gates:
            gate.request_partitions()
        self._timings.mark_start()
        if self._recovery is not None:
            self._phase = _Phase.RECOVERING
        else:
            self._start_running()

    def _start_running(self) -> None:
        if not self._lifecycle.try_advance(ExecutionState.RUNNING):
            self._raise_cancelled()
        self.on_running()

    def _after_loop(self) -> None:
        # Accepted mails run before the consumers hear of the end (FLINK-39481, FLINK-24846).
        self.mailbox_processor.quiesce_when_empty()
        self._flush_pending()
        # A failing close fails the task while its consumers still wait, so that they hear of it.
        self._is_closed = True
        for ctx in self._chain.contexts:
            ctx.metrics.sample()  # the gauges once more, before the operators close
        self._chain.close()
        self._edge_functions.close()
        # Behind the close: a consumer that has seen the end would take a task that fails now for finished.
        for partition in self._partitions:
            partition.finish()
        raise_first(errors_of(self._closers()))

    def _clean_up_after(self, error: BaseException) -> BaseException:
        """Release all resources; returns the error to raise: the given one, or TaskCancelled if the task was being
        cancelled.
        """
        end = self._lifecycle.end(ExecutionState.FAILED)
        self._timings.mark_end()
        is_cancelled = end is ExecutionState.CANCELED
        cause = self._cancel_cause() if is_cancelled or not isinstance(error, Exception) else error
        # Partitions first: consumers must not wait for a slow close() of the user.
        late_errors = [*errors_of(self._failers(cause)), *errors_of((self._chain.close, *self._closers()))]
        failure = error
        if is_cancelled and not isinstance(error, TaskCancelled):
            failure = TaskCancelled(f"{self.name} was cancelled")
        for late in late_errors:
            failure.add_note(f"while cleaning up after it: {type(late).__name__}: {late}")
        return failure

    def _failers(self, cause: Exception) -> Iterator[Callable[[], None]]:
        for partition in self._partitions:
            yield lambda partition=partition: partition.fail(cause)  # type: ignore[misc]  # mypy cannot infer a lambda with a default

    def _closers(self, *, mailbox: bool = True) -> Iterator[Callable[[], None]]:
        yield self._edge_functions.close
        if self._recovery is not None:
            yield self._recovery.close
        if self.checkpoints is not None:
            yield self.checkpoints.close
        yield self._services.close
        yield self._flushers.close
        for partition in self._partitions:
            yield partition.close
        for gate in self.environment.gates:
            yield gate.close
        if mailbox:
            yield self.mailbox_processor.close

    def _raise_cancelled(self) -> None:
        raise TaskCancelled(f"{self.name} was cancelled")

    def _cancel_cause(self) -> ProducerFailedError:
        return ProducerFailedError(f"{self.name} was cancelled")

    # -- the default action

    @abstractmethod
    def _process_input(self) -> InputStatus:
        """Process a bounded piece of input."""

    def _process_events(self) -> InputStatus:
        """Process the next element if it is a barrier or another event, but no record: timers that mails have
        interrupted must fire before records.
        """
        return InputStatus.MORE_AVAILABLE

    @abstractmethod
    def _wait_for_input(self, controller: MailboxProcessor) -> None:
        """Suspend the default action until there is input."""

    @abstractmethod
    def _advance_to_end_of_event_time(self) -> None:
        """Send ``MAX_WATERMARK`` through the chain, unless it was sent."""

    def _run_default_action(self, controller: MailboxProcessor) -> None:
        match self._phase:
            case _Phase.RECOVERING:
                self._recover(controller)
            case _Phase.PROCESSING:
                self._process(controller)
            case _Phase.DRAINING:
                self._await_drained(controller)
            case _Phase.AWAITING_END_OF_INPUT:
                self._await_end_of_input(controller)
            case _Phase.AWAITING_ACKNOWLEDGEMENT:
                self._await_acknowledgement(controller)
            case _Phase.AWAITING_CHECKPOINT:
                self._await_final_checkpoint(controller)
            case _Phase.DONE:
                controller.all_actions_completed()

    def _recover(self, controller: MailboxProcessor) -> None:
        # The task is RUNNING only afterwards, so no checkpoint is triggered before: it would lack the data that is left
        # here.
        assert self._recovery is not None, "of this phase"
        if self._wait_for_output(controller):
            return
        if self._has_interrupted_timers():
            return  # the mail that fires the rest of them waits
        if self._partitions:
            self._look_at_room()
        has_more = self._recovery.process(_MAX_RECOVERED_PIECES, self._should_stop)
        self._flush_pending()
        if not has_more:
            self._recovery = None
            self._phase = _Phase.PROCESSING
            self._start_running()

    def _create_recovery(self, streams: list[RecoveredStream]) -> "InputRecovery":
        """The object that processes data in flight.  Here for a task without inputs, in which only operators behind the
        head have such data.
        """
        for stream in streams:
            if stream.operator == 0:
                self._no_gate(stream.gate)
        from flowlet.checkpoint.task.input_recovery import InputRecovery  # here, as few tasks begin with data in flight

        return InputRecovery(streams, self._no_gate, self.name, self.environment.limits, self._inner_input)

    def _no_gate(self, gate: int) -> NoReturn:
        raise FlowletError(f"{self.name}: a channel of gate {gate} has data in flight, but the task has no inputs")

    def _inner_input(self, index: int) -> Callable[[Chunk], int]:
        if index not in self._inner_inputs:
            self._inner_inputs[index] = self._chain.input_of(index)
        return self._inner_inputs[index]

    def _process(self, controller: MailboxProcessor) -> None:
        if self._wait_for_output(controller) or (self._holders and self._wait_for_room(controller)):
            return
        if self._partitions:
            self._look_at_room()
        # Before the alarm is armed: an alarm that goes off just now must find the task at work, else it would not be
        # armed again.
        self._is_acting = True
        if self._may_hold_results:
            self._flushers.arm_alarm()
        status = self._process_events() if self._has_interrupted_timers() else self._process_input()
        self._is_acting = False
        self._flush_pending()
        match status:
            case InputStatus.MORE_AVAILABLE:
                return
            case InputStatus.NOTHING_AVAILABLE:
                self._wait_for_input(controller)
            case InputStatus.END_OF_DATA | InputStatus.END_OF_INPUT if self._holders:
                self._start_draining()
            case InputStatus.END_OF_DATA | InputStatus.END_OF_INPUT:
                self._end_data(StopMode.DRAIN)
            case InputStatus.STOPPED:
                self._end_data(StopMode.NO_DRAIN)

    def _let_loop_run(self) -> None:
        """Wait until the loop has done its due work, such as heartbeats.

        A function that keeps the interpreter's lock lends it to other threads only between two calls.  The loop gives
        the lock back around every callback, so without this wait one heartbeat took several calls of the function,
        however long they are.
        """
        for _ in range(_LOOP_ROUNDS):
            is_done = threading.Event()
            self.environment.schedule_timer(0, is_done.set)
            is_done.wait(_MAX_LOOP_ROUND_S)

    def _look_at_room(self) -> None:
        """Limit the records of the next default action to the room in the outputs, if consumers or slices were slow
        before; behind it mails have their turn.
        """
        caution, hard_waits_ns = self._caution, self._timings.hard_back_pressure.ended_ns
        if hard_waits_ns - self._hard_waits_ns > SLOW_NS:
            caution.begin(is_too_much=True)
        elif self._waits_since_ns and self._timings.now_ns() - self._waits_since_ns > SLOW_NS:
            caution.begin(grows=True)
        self._hard_waits_ns, self._waits_since_ns = hard_waits_ns, 0
        if caution.num_left > 0 >= caution.num_left_now:
            obtainable = [partition.buffer_pool.num_obtainable - _LEAST_ROOM for partition in self._partitions]
            spare = [
                number - partition.num_subpartitions
                for number, partition in zip(obtainable, self._partitions, strict=True)
            ]
            num_buffers_out = sum(partition.num_buffers_out for partition in self._partitions)
            caution.look_at_room(min(obtainable), min(spare), num_buffers_out)

    def _new_slices(self) -> RecordSlices[Any]:
        """The slices for records that wait in front of the chain."""
        timings = self._timings
        return RecordSlices(
            timings.working_ns, cpu_ns=timings.cpu_ns, cuts=self._chain.cuts_chunks, caution=self._caution
        )

    @property
    def _is_full(self) -> bool:
        """Whether an operator has no room for more records."""
        return not all(operator.available_future().is_done for operator in self._holders)

    def _wait_for_room(self, controller: MailboxProcessor) -> bool:
        """Suspend the default action if an operator has no room, unless there is input that needs no room, such as a
        barrier; returns whether it was suspended.
        """
        for operator in self._holders:
            future = operator.available_future()
            if not future.is_done:
                return self._wait_beside_events(controller, future, f"room in operator {operator.name!r}")
        return False

    def _wait_beside_events(self, controller: MailboxProcessor, future: AvailabilityFuture, waiting_for: str) -> bool:
        if self._has_event:
            return False
        suspension = self._suspension_for_operators = controller.suspend_default_action(WaitKind.BUSY, waiting_for)
        self._resume_for_events(suspension)
        future.add_done_callback(suspension.resume)
        return True

    @property
    @abstractmethod
    def _has_event(self) -> bool:
        """Whether ``_process_input`` has work for which operators need no room."""

    @abstractmethod
    def _resume_for_events(self, suspension: Suspension) -> None:
        """Have the suspension resumed when ``_has_event`` becomes true, or more often."""

    def _start_draining(self) -> None:
        # While the operators wait for their last results, the task takes mails, and so checkpoints.  So it waits before
        # any operator finishes: a checkpoint must not hold some operators after ``finish`` and others before.
        if self.checkpoints is not None:
            self.checkpoints.draining_began(self._resume_draining)
        self._phase = _Phase.DRAINING
        self._drains = self._drain_operators()
        self._drain = next(self._drains, None)

    def _resume_draining(self) -> None:
        if self._suspension_for_operators is not None:
            self._suspension_for_operators.resume()

    def _drain_operators(self) -> Iterator[tuple[StreamOperator, AvailabilityFuture]]:
        """Yield the futures to wait for, one after another: for the records of each operator, then for the records of
        windows that end with the input.
        """
        for operator in self._holders:
            yield operator, operator.drained_future()
        if self._ended_by_itself:
            self._advance_to_end_of_event_time()
            self._complete_watermark()
            self._flush_pending()
            for operator in self._holders:
                yield operator, operator.drained_future()

    @property
    def _ended_by_itself(self) -> bool:
        """Whether the input has ended by itself; False if a savepoint stops the task, whose input goes on after a
        restore.
        """
        return True

    def _await_drained(self, controller: MailboxProcessor) -> None:
        if self.checkpoints is not None and self.checkpoints.stops_without_drain:
            self._end_data(StopMode.NO_DRAIN)
            return
        while self._drain is not None and self._drain[1].is_done:
            self._drain = next(self._drains, None)
        if self._drain is None:
            self._end_data(StopMode.DRAIN)
            return
        operator, future = self._drain
        if self._wait_beside_events(controller, future, f"the last results of operator {operator.name!r}"):
            return
        if self._process_input() is InputStatus.STOPPED:
            self._end_data(StopMode.NO_DRAIN)

    def _end_data(self, mode: StopMode) -> None:
        if mode is StopMode.NO_DRAIN:
            # Operators may still have work in progress, such as asynchronous calls.  It stays in the operators, and in
            # the savepoint that follows.  Else each result would start one more call, and the mails would have no end.
            self._chain.stop_emitting()
            for timers in self._timers:
                timers.leave_rest()
        else:
            self._complete_watermark()  # not by ``run_all_mails`` alone: each of the timers' mails posts the next one
        self.mailbox_processor.run_all_mails()
        if mode is StopMode.DRAIN:
            self._advance_to_end_of_event_time()
            self._complete_watermark()
            self._chain.finish(self._before_finish)
        else:
            for index in range(len(self._chain.operators)):
                self._before_finish(index)
        if self.checkpoints is not None:
            self.checkpoints.end_of_data_received(mode)
        self._flush_pending()
        for partition in self._partitions:
            partition.notify_end_of_data(mode)
        if mode is StopMode.NO_DRAIN:
            # The consumers accept no more.
            for writer in self._writers:
                writer.stop()
        self._phase = _Phase.AWAITING_END_OF_INPUT
        if self.checkpoints is not None:
            self.checkpoints.end_of_data_sent()

    def _complete_watermark(self) -> None:
        """Run mails until all timers up to the last watermark have fired: mails have interrupted them."""
        executor = self.mailbox_processor.executor()
        while self._has_interrupted_timers():
            executor.yield_()

    def _has_interrupted_timers(self) -> bool:
        for timers in self._timers:  # noqa: SIM110 - any() takes four times as long, and each default action asks
            if timers.is_interrupted:
                return True
        return False

    def _before_finish(self, index: int) -> None:
        # A timer that has just fired may be about to put its mail; that mail still runs (Flink
        # quiesceTimeServiceAndFinishOperator).
        self.mailbox_processor.executor().yield_until(self._services.clocks[index].quiesce())
        self.mailbox_processor.run_all_mails()

    def _await_end_of_input(self, controller: MailboxProcessor) -> None:
        if not all(gate.is_finished for gate in self.environment.gates):
            status = self._process_input()
            if status is InputStatus.NOTHING_AVAILABLE:
                self._wait_for_input(controller)
            return
        self._phase = _Phase.AWAITING_ACKNOWLEDGEMENT

    def _await_acknowledgement(self, controller: MailboxProcessor) -> None:
        # Each of them: the end of the partition follows, and ends the channel of a consumer that still processes data.
        for partition in self._partitions:
            if partition.partition_type.is_blocking:
                continue  # its consumers begin when this task has finished
            future = partition.all_data_processed
            if not future.is_done:
                self._wait(
                    controller,
                    future,
                    WaitKind.IDLE,
                    f"the consumers of partition {partition.partition_id} to process all data",
                )
                return
        self._phase = _Phase.AWAITING_CHECKPOINT

    def _await_final_checkpoint(self, controller: MailboxProcessor) -> None:
        # Flink ``StreamTask.afterInvoke``: a sink may commit its last records only with a checkpoint.
        config, checkpoints = self.environment.checkpointing, self.checkpoints
        if (
            config is not None
            and checkpoints is not None
            and checkpoints.waits_for_final_checkpoint(is_wanted=config.are_taken_after_finish and config.are_periodic)
        ):
            if not self._has_reported_end:
                self._has_reported_end = True
                config.report_end()
            self._wait(controller, checkpoints.final_checkpoint, WaitKind.IDLE, "the final checkpoint")
            return
        self._phase = _Phase.DONE

    def _wait_for_output(self, controller: MailboxProcessor) -> bool:
        """Suspend the default action if an output has no buffer; returns whether it was suspended."""
        for partition in self._partitions:
            if partition.buffer_pool.is_available:
                continue
            future = partition.buffer_pool.available_future()
            # The future of a released partition is done, although it never becomes available: writing raises the
            # reason.
            if not future.is_done:
                self._waits_since_ns = self._waits_since_ns or self._timings.now_ns()
                self._wait(
                    controller, future, WaitKind.BACK_PRESSURED, f"a free buffer for partition {partition.partition_id}"
                )
                return True
        return False

    def _wait(self, controller: MailboxProcessor, future: AvailabilityFuture, kind: WaitKind, waiting_for: str) -> None:
        # A future that is done already resumes at once.
        future.add_done_callback(controller.suspend_default_action(kind, waiting_for).resume)

    def _should_stop(self) -> bool:
        """Whether the default action should return between two pieces of work: a mail waits, such as the call for the
        results so far, or the outputs have no buffers, or may have none.
        """
        caution = self._caution
        if self.mailbox.has_mail or caution.num_left > 0 >= caution.num_left_now:
            return True
        for partition in self._partitions:  # noqa: SIM110 - any() takes four times as long, and each buffer asks
            if not partition.buffer_pool.is_available:
                return True
        return False

    # -- outputs

    def _run_mail_action(self, action: Callable[[], object]) -> None:
        """Run the action of a mail; as after the default action, no record that it emitted stays in a record writer.

        Ours: Flink's writers hold no pending records.  Timers and asynchronous results are emitted by mails, even while
        an operator yields inside a long default action: their records must not wait for its end.
        """
        action()
        self._flush_pending()

    def _flush_pending(self) -> None:
        for writer in self._writers:
            writer.flush_pending()

    def _flush_results(self) -> None:
        """Let consumers see the records that wait in the record writers, and those that were written."""
        for writer in self._writers:
            writer.flush_now()

    def _call_for_results(self) -> bool:
        """Call, on the loop, for the results of the default action in progress, which have waited long enough; returns
        whether there may be more.
        """
        if not self._is_acting:
            return False
        self._attention.call_for_results()
        if not self._is_called_for_results:
            self._is_called_for_results = True
            self.mailbox_processor.send_control_mail(self._flush_results_by_mail, "pass on results")
        return True

    def _flush_results_by_mail(self) -> None:
        self._is_called_for_results = False
        self._flush_results()

    def _report_flush_error(self, error: Exception) -> None:
        def raise_error() -> None:
            raise error

        self.mailbox_processor.send_control_mail(raise_error, "an output could not be flushed")

    def _create_checkpoints(self) -> TaskCheckpoints | None:
        environment = self.environment
        config = environment.checkpointing
        if config is None:
            return None
        outputs = [(edge.partition, supports_unaligned(edge.partitioner)) for edge in environment.outputs]
        for index, partition in enumerate(self._partitions):
            partition.set_channel_state_writer(config.channel_state, index)
        main = self.mailbox_processor.executor(MIN_PRIORITY)
        return TaskCheckpoints(
            self.name,
            self._snapshots,
            TaskOutputs(outputs, self._flush_pending),
            config.channel_state,
            config.responder,
            config.execute_async,
            partial(MailedCall, environment.schedule_timer, main, "an aligned checkpoint timed out"),
            main,
            self.mailbox_processor.executor(MAX_PRIORITY),
            # Operators are open and not closed yet.
            lambda: self.state is ExecutionState.RUNNING and not self._is_closed,
            self._keep_in_flight_input,
            config.max_concurrent,
        )

    def _keep_in_flight_input(self, writer: InMemoryChannelStateWriter, checkpoint_id: int) -> None:
        """Add data that left the input channels but was not processed to an unaligned checkpoint."""
        return  # a task without inputs has no such data

    @property
    def _is_draining(self) -> bool:
        return self._phase is _Phase.DRAINING

    @property
    def _has_data(self) -> bool:
        """Whether the end of data has not been sent yet."""
        return self._phase in (_Phase.RECOVERING, _Phase.PROCESSING, _Phase.DRAINING)

    def _create_writer(self, output: OutputEdge, operator: str) -> "RecordWriter":
        # Imported here: a task whose chain ends in sinks has no outputs.
        from flowlet.io.create_record_writer import create_record_writer
        from flowlet.io.record_writer import RecordWriterOptions
        from flowlet.serde.element_serializer import StreamElementSerializer

        options = RecordWriterOptions(
            output.buffer_timeout_ms,
            self.environment.subtask,
            self._flushers.arm_of(output.buffer_timeout_ms),
            serializer=StreamElementSerializer(max_element_bytes=self.environment.limits.max_element_bytes),
            operator=operator,
            attention=self._attention,
        )
        return create_record_writer(output.partition, output.partitioner, options)

    # -- metrics

    def metrics(self) -> TaskMetrics:
        """Counters since the start; any thread, cheap."""
        timings = self._timings.snapshot()
        gates = [gate.statistics() for gate in self.environment.all_gates]
        partitions = [partition.statistics() for partition in self._partitions]
        return TaskMetrics(
            **(self._timings.rates() | ({} if self.checkpoints is None else self.checkpoints.metrics())),
            num_records_in=self._chain.num_records_in,
            num_records_out=self._chain.num_records_out,
            num_bytes_in_local=sum(gate.num_bytes_in_local for gate in gates),
            num_bytes_in_remote=sum(gate.num_bytes_in_remote for gate in gates),
            num_buffers_in=sum(gate.num_buffers_in for gate in gates),
            num_bytes_out=sum(partition.num_bytes_out for partition in partitions),
            num_buffers_out=sum(partition.num_buffers_out for partition in partitions),
            num_credits_granted=sum(gate.num_credits_granted for gate in gates),
            accumulated_idle_ms=timings.idle_ns // _NS_PER_MS,
            accumulated_busy_ms=timings.busy_ns // _NS_PER_MS,
            accumulated_back_pressured_ms=timings.back_pressured_ns // _NS_PER_MS,
            accumulated_soft_back_pressured_ms=timings.soft_back_pressured_ns // _NS_PER_MS,
            accumulated_hard_back_pressured_ms=timings.hard_back_pressured_ns // _NS_PER_MS,
            current_input_watermark=self._current_input_watermark(),
            waiting_for=self.waiting_for,
            operators=operator_metrics(self._chain, self._services.latencies),
            watermark_held_back_by=self._watermark_held_back_by(),
        )

    def _watermark_held_back_by(self) -> list[str]:
        return []

    def _current_input_watermark(self) -> int:
        return TaskMetrics().current_input_watermark


def _alarm_ms(outputs: Sequence[OutputEdge]) -> int | None:
    """The time after which results of a default action are due; None: the timeouts of the outputs say it."""
    timeouts_ms = [output.buffer_timeout_ms for output in outputs]
    if 0 in timeouts_ms:
        return _ALARM_MS
    return None if timeouts_ms else _PRINT_MS

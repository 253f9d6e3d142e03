"""The base classes of operators, and the services that a task gives them.

Side:       task.  An operator is made in the user's program, pickled, and then runs on the one thread of its task.
Invariants: ``setup``, then ``initialize_state``, then ``open`` are called before all other methods, and none after
            ``close``.  A chunk that was passed on does not change.  The combined watermark of several inputs only
            rises; it is the smallest of the inputs that are neither idle nor finished; the operator is idle exactly
            when no input is active and not all have finished, and emits that status once.
Source:     Flink ``StreamOperator``, ``Input``, ``OneInputStreamOperator``, ``AbstractStreamOperator``, ``Output``,
            ``MailboxExecutorFactory``; ``TwoInputStreamOperator``, ``MultipleInputStreamOperator``, ``AbstractInput``;
            at most 63 inputs.  The watermarks and statuses of inputs are combined like those of the channels of one
            input: in Flink's ``CombinedWatermarkStatus`` an input that has finished beside an idle one pushes the
            watermark to infinity (FLINK-38477).
Absent:     Flink's ``InputSelectable``: no operator here chooses its inputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from flowlet.chain.loop_code import LoopCode
from flowlet.errors import StateRestoreError, TaskCancelled
from flowlet.mailbox.mailbox_processor import MailboxExecutor
from flowlet.mailbox.task_mailbox import Attention, Interrupts
from flowlet.metrics.metricbase import MetricRegistry
from flowlet.records import Chunk, CompletionMark, ControlElement, LatencyMarker, Watermark, WatermarkStatus
from flowlet.state.state_backends import KeyedStateBackend, OperatorStateBackend
from flowlet.state.state_snapshots import StateShare
from flowlet.timers.keyed_timer_service import (
    KeyContext,
    KeyedTimerService,
    KeyedTimerServiceManager,
    ProcessingTimeService,
    Triggerable,
)
from flowlet.typed.record_conversion import DeclaredOutput
from flowlet.watermarks.combined_watermarks import StatusWatermarkValve
from netstack.availability import AVAILABLE, AvailabilityFuture
from netstack.late import dataclass

if TYPE_CHECKING:
    from flowlet.chain.operator_output import OperatorOutput

Service = TypeVar("Service")


class EdgeOutput(Protocol):
    """The way to one consumer: the next operator, or the record writer of one output of the task."""

    def collect(self, chunk: Chunk) -> None:
        """Take over a chunk."""

    def emit_control(self, element: ControlElement) -> None:
        """Pass a watermark, status or completion mark to every consumer, side outputs included; a latency marker to one
        consumer.
        """


class Output(EdgeOutput, Protocol):
    """Takes the elements that an operator outside of a chain emits; ``collect`` is the main output."""

    def collect_side(self, tag_id: str, chunk: Chunk) -> None:
        """Take over a chunk for the side output ``tag_id``."""


class Input(Protocol):
    """One input of an operator, fed by the chain or the task."""

    def process_chunk(self, chunk: Chunk) -> object:
        """Process records, in stream order."""

    def process_some(self, chunk: Chunk) -> int:
        """Process records until a mail waits; returns how many, 0 if a mail came before the first."""

    def process_control(self, element: ControlElement) -> None:
        """Process a control element: the input's event time advanced, or it became idle or active, or a marker came."""


@dataclass(slots=True)
class OperatorCounters:
    """Counts of one operator.  Written by the task thread per chunk; read anywhere, one chunk stale is fine."""

    num_records_in: int = 0
    num_records_out: int = 0
    num_records_from_the_future: int = 0  # their timestamps were too far ahead to raise the watermark
    # Late: all windows of the record were over, or the records of the other input that it could join were removed.
    num_late_records_dropped: int = 0
    num_unassigned_records_dropped: int = 0  # the window assigner gave them no window
    num_null_records_dropped: int = 0  # messages without a value
    num_unparsable_records_dropped: int = 0  # messages that the schema left out because they do not fit
    num_schema_records_dropped: int = 0  # messages in which the schema found no record, such as comments
    num_unparsable_fields_nulled: int = 0  # fields of records that became None because they do not fit
    num_lost_committables: int = 0  # of a sink, that its committer has given up


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """The identity of an operator's subtask, and the services of its task.

    ``attempt`` counts restarts from 0.  ``operator_id`` (16 bytes) survives a restart of the job.  A task provides the
    services from ``setup`` on; without a task, using one raises RuntimeError.
    """

    task_name: str
    subtask: int
    parallelism: int
    max_parallelism: int
    operator_name: str
    attempt: int = 0
    counters: OperatorCounters = field(default_factory=OperatorCounters)
    operator_id: bytes = bytes(16)
    key_context: KeyContext = field(default_factory=KeyContext)
    executor: MailboxExecutor | None = None
    clock: ProcessingTimeService | None = None
    timers: KeyedTimerServiceManager | None = None
    keyed_state: KeyedStateBackend | None = None
    operator_state: OperatorStateBackend | None = None
    restored_checkpoint_id: int | None = None  # None: the job does not go on from a checkpoint
    # Records a latency marker that arrived at a time.
    report_latency: Callable[[LatencyMarker, int], None] | None = None
    # Tells the JobManager an aligned source's watermark; None: it does not listen.
    report_watermark: Callable[[int], None] | None = None
    # Asks the JobManager for splits of the source; None: no JobManager has any.
    request_splits: Callable[[], None] | None = None
    job_id: str = "0" * 32
    has_checkpoints: bool = False  # whether the job takes checkpoints, and one more at the end of each task
    # Makes a future that is done after the given milliseconds, also before ``open`` and after ``finish``.
    delay: Callable[[int], AvailabilityFuture] | None = None
    is_cancelled: Callable[[], bool] = lambda: False  # whether the task is being cancelled
    interrupts: Interrupts = field(default_factory=Interrupts)  # not empty: the head returns between two records
    attention: Attention = field(default_factory=Attention)  # not empty: every operator ends between two records
    metrics: MetricRegistry = field(default_factory=MetricRegistry)  # of the operator's functions
    job_parameters: Mapping[str, str] = field(default_factory=dict)  # the user's, for all functions of the job
    # The paths here of files that travelled with the job, by name.
    cached_files: Mapping[str, str] = field(default_factory=dict)

    @property
    def mailbox_executor(self) -> MailboxExecutor:
        """The executor that puts mails of this operator's priority.

        Its ``yield_`` runs only mails of this operator and of operators behind it.
        """
        return self._provided(self.executor, "mailbox")

    @property
    def processing_time_service(self) -> ProcessingTimeService:
        """The clock, and timers that fire as mails of this operator."""
        return self._provided(self.clock, "clock")

    @property
    def keyed_state_backend(self) -> KeyedStateBackend:
        """The operator's keyed state.  States belong to the key in ``key_context``."""
        return self._provided(self.keyed_state, "keyed state")

    @property
    def operator_state_backend(self) -> OperatorStateBackend:
        """The operator's state of this subtask."""
        return self._provided(self.operator_state, "operator state")

    def pause(self, duration_ms: int) -> None:
        """Wait, and run mails of this operator and operators behind it meanwhile.

        It also works where no timers fire: in ``open``, and after ``finish``.

        Raises:
            TaskCancelled: the task was cancelled meanwhile.
        """
        future = self._provided(self.delay, "clock")(duration_ms)
        self.mailbox_executor.yield_until(future)

    def check_cancelled(self) -> None:
        """Raise TaskCancelled if the task is being cancelled.

        Code that waits outside of the mailbox, such as for a broker, calls it between two slices of its wait.
        ``pause`` would run mails, among them the next commit or checkpoint, in the middle of the caller's work.
        """
        if self.is_cancelled():
            raise TaskCancelled(f"{self.task_name} was cancelled")

    def timer_service(self, name: str, triggerable: Triggerable, *, is_batch: bool = False) -> KeyedTimerService:
        """The timer service of a name: one object for all calls.  Timers belong to the key in ``key_context``."""
        return self._provided(self.timers, "timers").timer_service(name, triggerable, is_batch=is_batch)

    def _provided(self, service: Service | None, what: str) -> Service:
        if service is None:
            raise RuntimeError(f"operator {self.operator_name!r} has no {what}: it is not run by a task")
        return service


class StreamOperator:
    """Processes chunks.

    Threading: after unpickling, task thread only.
    Life cycle: made and pickled without ``ctx`` and ``output`` -> ``setup`` -> ``initialize_state`` -> ``open`` -> any
        number of ``process_*``, ``snapshot_state`` and ``notify_*`` -> ``end_input`` of each input and ``finish``, if
        the input ended by itself and is drained -> ``close``, always, once ``open`` was called.
    Ownership: ``process_chunk`` takes over the chunk; ``output.collect`` gives it away.
    """

    name: str
    uid: str = ""  # the user's name for it, for people; empty: it has none
    operator_id: bytes = b""  # 16 bytes that survive a restart of the job; empty: derived from the task's
    # Whether a chain gives it chunks (of records that cannot change) instead of single records.
    takes_chunks: bool = False
    # Whether it gets single records in spite of ``takes_chunks`` behind a ``key_by``, where none can change either.
    takes_keyed_records: bool = False
    # Whether a call of the user's function takes a whole chunk, so that none may be cut in front.
    takes_batches: ClassVar[bool] = False
    state_version: ClassVar[int] = 1  # of the snapshot; raise it with each change of its fields
    waits: ClassVar[bool] = False  # whether it may run mails while it processes a record
    # Whether records wait in it, so that the task asks ``available_future`` and ``drained_future``.
    holds_records: ClassVar[bool] = False
    takes_late_data: ClassVar[bool] = False  # whether its producers may send it records behind their end of data
    # In BATCH mode, for each input: the key selector by which its records are sorted, or None; empty: no input is
    # sorted.
    sorted_inputs: Sequence[Any] = ()
    # In BATCH mode: the inputs, from 0, that are read when all others have ended.
    inputs_read_last: Sequence[int] = ()
    # Whether ``end_keys`` must follow each single key, or may follow several, whose records come input by input; None:
    # it must if the operator has timers, keyed state or several sorted inputs.
    ends_keys_singly: ClassVar[bool | None] = None
    declared_outputs: Mapping[str | None, DeclaredOutput] = {}  # by side output; whose records are converted
    # Whether it has work to do if it is restored from a checkpoint taken after ``finish``.
    runs_after_finish: bool = False
    ctx: OperatorContext  # set by setup
    output: "OperatorOutput"  # set by setup

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def setup(self, ctx: OperatorContext, output: "OperatorOutput") -> None:
        """Connect the operator to its task; called once, before all other methods."""
        self.ctx = ctx
        self.output = output

    def inputs(self) -> Sequence[Input]:
        """The inputs; input ``i`` in Flink's count is ``inputs()[i - 1]``."""
        return (self,)

    # -- life

    def open(self) -> None:
        """Prepare for the first record."""

    def available_future(self) -> AvailabilityFuture:
        """The future that is done while the operator has room; until then the task takes mails and reads no input."""
        return AVAILABLE

    def drained_future(self) -> AvailabilityFuture:
        """The future that is done when the records that are inside now have left.

        Before the task ends its data, it takes mails until then.
        """
        return AVAILABLE

    def end_input(self, input_id: int) -> None:
        """Note that input ``input_id`` (from 1) has ended and is drained: no more records follow."""

    def end_keys(self) -> None:
        """Fire the timers of the keys so far, then drop their state: with sorted inputs, their records have ended."""
        if self.ctx.timers is not None:
            self.ctx.timers.end_keys()
        if self.ctx.keyed_state is not None:
            self.ctx.keyed_state.forget_keys()

    def finish(self) -> None:
        """Emit the last records; all inputs have ended."""

    def close(self) -> None:
        """Release the resources that ``open`` acquired; also called after a failure."""

    def restored_after_finish(self) -> "StreamOperator":
        """The operator that takes its place if it is restored from a checkpoint taken after ``finish``; called only if
        ``runs_after_finish``.
        """
        raise NotImplementedError(f"{type(self).__name__} does nothing after its end")

    # -- elements

    def process_chunk(self, chunk: Chunk) -> object:
        """Process records, in stream order.

        Raises UserFunctionError, which names operator and record, if a user function fails.
        """
        raise TypeError(f"operator {self.name!r}, a {type(self).__name__}, takes no input")

    def process_some(self, chunk: Chunk) -> int:
        """Process records as the head of a chain until ``ctx.interrupts`` is not empty; returns how many, perhaps none.

        Raises as ``process_chunk``.  The caller keeps the rest, and gives it again before any other element.
        """
        self.process_chunk(chunk)
        return len(chunk)

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Generate the statements that process one record, in the loop of the chain.

        Args:
            code: the loop.
            record: name of the variable with the record.
            timestamp: name of the variable with its timestamp; None: it has none.
            key: name of the variable with its key, if the operator is keyed and heads the chain.
        """
        if self.waits:
            # Records emitted before must not wait as long as this one.
            code.line(f"{code.bind(code.drain, 'drain')}()")
        code.line(f"{code.bind(self.process_record, 'process')}({record}, {timestamp})")

    def process_record(self, record: Any, timestamp: int | None) -> None:
        """Process one record."""
        self.process_chunk(Chunk([record], None if timestamp is None else [timestamp]))

    def process_control(self, element: ControlElement) -> None:
        """Process a control element, by the method for its kind."""
        match element:
            case Watermark():
                self.process_watermark(element)
            case WatermarkStatus():
                self.process_watermark_status(element)
            case LatencyMarker():
                self.process_latency_marker(element)
            case CompletionMark():
                self.process_mark(element)

    def process_watermark(self, watermark: Watermark) -> None:
        """Fire the timers up to the watermark, then pass it on."""
        if self.ctx.timers is None:
            self.output.emit_control(watermark)
        else:
            self.ctx.timers.pass_watermark(watermark, self.output)

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        """Pass a status on: the input became idle or active."""
        if self.ctx.timers is None:
            self.output.emit_control(status)
        else:
            self.ctx.timers.pass_status(status, self.output)

    def process_latency_marker(self, marker: LatencyMarker) -> None:
        """Report a latency marker and pass it on; users' functions never see it."""
        if self.ctx.report_latency is not None:
            self.ctx.report_latency(marker, self.ctx.processing_time_service.current_time_ms())
        self.output.emit_control(marker)

    def process_mark(self, mark: CompletionMark) -> None:
        """Pass a completion mark on.  An operator that holds records emits them first; state (sums, timers) stays."""
        self.output.emit_control(mark)

    # -- checkpoints

    def initialize_state(self, state: object | None) -> None:
        """Restore the result of ``snapshot_state``; None at the first start."""

    def redistribute(self, states: Sequence[object | None], share: StateShare) -> object | None:
        """The state with which this subtask begins, if the operator had another number of subtasks; called before
        ``initialize_state``.

        Args:
            states: the results of ``snapshot_state``, by former subtask; None: the subtask had no state, or none for
                this subtask.
            share: the number of this subtask, and the former and present parallelism.

        Raises:
            StateRestoreError: the operator's state cannot be divided otherwise.
        """
        if all(each is None for each in states):
            return None
        raise StateRestoreError(
            f"the state of operator {self.name!r} was kept by {share.former_parallelism} subtasks and cannot be "
            "divided among "
            f"{share.parallelism}; set its parallelism to {share.former_parallelism}"
        )

    def stop_emitting(self) -> None:
        """Keep work in progress for the snapshot that follows: the task stops without finishing its operators."""

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Emit the records that must precede the barrier of a checkpoint."""

    def snapshot_functions(self, checkpoint_id: int, timestamp_ms: int) -> None:
        """Let the user's functions save their data in their states, which are copied next.

        ``timestamp_ms``: the time at which the checkpoint was triggered.
        """

    def snapshot_state(self, checkpoint_id: int) -> object | None:
        """The state to keep: a value that no longer changes, or a callable that another thread calls to make it; None:
        no state.
        """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Note that the checkpoint is complete.  Ids rise; some are never reported."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Note that the checkpoint will never complete."""


@dataclass(frozen=True, slots=True)
class OperatorInput:
    """One input of an operator with several: the operator's methods, bound to the number of the input."""

    process_chunk: Callable[[Chunk], object]
    process_some: Callable[[Chunk], int]
    process_control: Callable[[ControlElement], None]


class MultipleInputStreamOperator(StreamOperator, ABC):
    """An operator with ``num_inputs`` inputs, counted from 1."""

    num_inputs: int

    @abstractmethod
    def process_input_chunk(self, input_id: int, chunk: Chunk) -> object:
        """Process records of one input, in its order."""

    def process_input_some(self, input_id: int, chunk: Chunk) -> int:
        """Process records of one input as ``StreamOperator.process_some`` does."""
        self.process_input_chunk(input_id, chunk)
        return len(chunk)

    def inputs(self) -> Sequence[Input]:
        """The inputs, one object for each, which all calls return."""
        if not hasattr(self, "_inputs"):
            self._inputs = tuple(
                [
                    OperatorInput(
                        partial(self.process_input_chunk, number),
                        partial(self.process_input_some, number),
                        partial(self.process_input_control, number),
                    )
                    for number in range(1, self.num_inputs + 1)
                ]
            )
            self._valve = StatusWatermarkValve(self.num_inputs)
        return self._inputs

    @property
    def combined_watermark(self) -> StatusWatermarkValve:
        """The watermarks of all inputs together; read only."""
        self.inputs()
        return self._valve

    def process_input_control(self, input_id: int, element: ControlElement) -> None:
        """Process a control element of one input.

        Watermarks and statuses of all inputs are combined; an idle input does not hold back the others.
        """
        elements: Sequence[ControlElement] = (element,)
        if isinstance(element, Watermark):
            elements = self._valve.input_watermark(input_id - 1, element)
        elif isinstance(element, WatermarkStatus):
            elements = self._valve.input_status(input_id - 1, element)
        for each in elements:
            self.process_control(each)


class InputStatus(Enum):
    """The state that a call of ``process_input`` leaves behind."""

    MORE_AVAILABLE = auto()
    NOTHING_AVAILABLE = auto()
    END_OF_DATA = auto()  # reported once: all channels had their end of data, and are to be drained
    STOPPED = auto()  # as END_OF_DATA, but without draining
    END_OF_INPUT = auto()  # all partitions ended

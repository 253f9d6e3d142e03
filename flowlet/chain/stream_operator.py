"""What an operator is, and what it is given.

Side:       task.  An operator is made in the user's program, pickled, and then lives on the one thread of its task.
Invariants: ``setup`` before ``initialize_state`` before ``open`` before anything else; nothing after ``close``; a chunk that is passed on
            is not touched again.
Source:     Flink ``StreamOperator``, ``Input``, ``OneInputStreamOperator``, ``AbstractStreamOperator``,
            ``Output``, ``MailboxExecutorFactory``.
Absent:     keyed state backends.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from flowlet.chain.loop_code import LoopCode
from flowlet.mailbox.mailbox_executor import MailboxExecutor
from flowlet.records import Chunk, LatencyMarker, Watermark, WatermarkStatus
from flowlet.timers.time_api import (
    InternalTimerService,
    InternalTimeServiceManager,
    KeyContext,
    LatencyReporter,
    ProcessingTimeService,
    Triggerable,
)


class EdgeOutput(Protocol):
    """The way to one consumer: the next operator, or the record writer of one output of the task."""

    def collect(self, chunk: Chunk) -> None:
        """Take over a chunk."""

    def emit_watermark(self, watermark: Watermark) -> None:
        """Pass a watermark to every consumer, those of side outputs too."""

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """Pass a status to every consumer, those of side outputs too."""

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        """Pass a latency marker to one consumer."""


class Output(EdgeOutput, Protocol):
    """Where an operator sends what it makes; ``collect`` is its main output."""

    def collect_side(self, tag_id: str, chunk: Chunk) -> None:
        """Take over a chunk of the side output ``tag_id``; dropped where nobody reads it."""


class Input(Protocol):
    """One input of an operator: what a chain, or a task, feeds."""

    def process_chunk(self, chunk: Chunk) -> None:
        """Records, in stream order."""

    def process_watermark(self, watermark: Watermark) -> None:
        """The input's event time advanced."""

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        """The input became idle or active."""

    def process_latency_marker(self, marker: LatencyMarker) -> None:
        """A latency marker came in."""


@dataclass(slots=True)
class OperatorCounters:
    """Records that went through one operator; written by the task thread per chunk, read anywhere, one chunk stale is fine."""

    num_records_in: int = 0
    num_records_out: int = 0
    num_records_from_the_future: int = 0  # whose timestamps did not raise the watermark


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """Which subtask of which operator this is, and what the task does for it.

    ``attempt`` counts the restarts, from 0.  ``operator_id`` (16 bytes) stays the same when a job is restarted.  ``chain_index`` is 0 for
    the head.  The services are there from ``setup`` on where a task runs the operator; where none does, asking for one raises.
    """

    task_name: str
    subtask: int
    parallelism: int
    max_parallelism: int
    operator_name: str
    attempt: int = 0
    counters: OperatorCounters = field(default_factory=OperatorCounters)
    operator_id: bytes = bytes(16)
    chain_index: int = 0
    key_context: KeyContext = field(default_factory=KeyContext)
    executor: MailboxExecutor | None = None
    clock: ProcessingTimeService | None = None
    timers: InternalTimeServiceManager | None = None
    latency: LatencyReporter | None = None
    report_watermark: Callable[[int], None] | None = None  # tells the JobManager where an aligned source is; None: nobody listens
    request_splits: Callable[[], None] | None = None  # asks the JobManager for splits of the source; None: nobody has any

    @property
    def mailbox_executor(self) -> MailboxExecutor:
        """Puts mails of this operator's priority: its ``yield_`` runs its own mails and those of operators behind it, none before it."""
        if self.executor is None:
            raise RuntimeError(f"operator {self.operator_name!r} has no mailbox: no task runs it")
        return self.executor

    @property
    def processing_time_service(self) -> ProcessingTimeService:
        """The clock, and timers that fire as mails of this operator."""
        if self.clock is None:
            raise RuntimeError(f"operator {self.operator_name!r} has no clock: no task runs it")
        return self.clock

    def timer_service(self, name: str, triggerable: Triggerable) -> InternalTimerService:
        """The timers of one name, of the key in ``key_context``; the same service for the same name."""
        if self.timers is None:
            raise RuntimeError(f"operator {self.operator_name!r} has no timers: no task runs it")
        return self.timers.timer_service(name, triggerable)


class StreamOperator:
    """Turns chunks into chunks.

    Threading: after unpickling, the task thread only.
    Life cycle: made and pickled without ``ctx`` and ``output`` -> ``setup`` -> ``initialize_state`` -> ``open`` -> any number of
        ``process_*``, ``snapshot_state`` and ``notify_*`` -> ``end_input`` of each input and ``finish`` (only if the input ended by itself
        and is to be drained) -> ``close`` (always, once ``open`` was called).
    Ownership: ``process_chunk`` takes over the chunk, and ``output.collect`` gives one away.
    """

    name: str
    operator_id: bytes = b""  # 16 bytes that stay the same when the job is restarted; empty: made from the task's
    takes_chunks: bool = False  # whether it is given records in chunks, which cannot change, when it is chained
    waits: ClassVar[bool] = False  # whether processing a record may wait for mails of its own
    ctx: OperatorContext  # from setup on
    output: Output  # from setup on

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def setup(self, ctx: OperatorContext, output: Output) -> None:
        """Tell the operator where it is and where its results go."""
        self.ctx = ctx
        self.output = output

    def inputs(self) -> Sequence[Input]:
        """What is fed; input ``i`` of the operator is ``inputs()[i - 1]``, as Flink counts them."""
        return (self,)

    # -- life

    def open(self) -> None:
        """Prepare; nothing is processed before."""

    def end_input(self, input_id: int) -> None:
        """Input ``input_id`` (from 1) brings no more records; only when what is left is to be drained."""

    def finish(self) -> None:
        """All inputs ended: emit what is left."""

    def close(self) -> None:
        """Give back what ``open`` took; also after a failure."""

    # -- elements

    def set_key_context(self, record: object) -> None:
        """Make the key of ``record`` the current one; nothing for an operator without keys."""

    def process_chunk(self, chunk: Chunk) -> None:
        """Process records, in stream order.

        Raises:
            UserFunctionError: the user's function failed; names operator, subtask and record.
        """
        raise TypeError(f"operator {self.name!r}, a {type(self).__name__}, takes no input")

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Write the statements that process one record into the loop of the chain.

        Args:
            code: the loop.
            record: the variable that holds the record.
            timestamp: the variable with its timestamp; None: it has none.
            key: the variable with its key, if the operator is keyed and heads the chain.
        """
        if self.waits:
            # What was emitted must not wait with it.
            code.line(f"{code.bind(code.drain, 'drain')}()")
        code.line(f"{code.bind(self.process_record, 'process')}({record}, {timestamp})")

    def process_record(self, record: Any, timestamp: int | None) -> None:
        """Process one record."""
        self.process_chunk(Chunk([record], None if timestamp is None else [timestamp]))

    def process_watermark(self, watermark: Watermark) -> None:
        """The input's event time advanced: fire timers, then pass it on."""
        if self.ctx.timers is None:
            self.output.emit_watermark(watermark)
        else:
            self.ctx.timers.pass_watermark(watermark, self.output)

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        """The input became idle or active."""
        if self.ctx.timers is None:
            self.output.emit_watermark_status(status)
        else:
            self.ctx.timers.pass_status(status, self.output)

    def process_latency_marker(self, marker: LatencyMarker) -> None:
        """A latency marker came in; users' code does not see it."""
        if self.ctx.latency is not None:
            self.ctx.latency.report(marker, self.ctx.processing_time_service.current_time_ms())
        self.output.emit_latency_marker(marker)

    # -- checkpoints

    def initialize_state(self, state: object | None) -> None:
        """Take back what ``snapshot_state`` returned; None at the first start."""

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Emit what must go before the barrier of a checkpoint."""

    def snapshot_state(self, checkpoint_id: int) -> object | None:
        """What must be kept: a value that nobody changes any more, or a callable that makes it later on another thread; None: nothing."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """A checkpoint is kept for good; ids rise, some are left out."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """A checkpoint will never complete."""

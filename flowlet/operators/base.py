"""What an operator is, and what it is given.

Side:       task.  An operator is made in the user's program, pickled, and then lives on the one thread of its task.
Invariants: ``setup`` before ``open`` before anything else; nothing after ``close``; a chunk that is passed on is not touched again.
Source:     Flink ``StreamOperator``, ``OneInputStreamOperator``, ``Output``, ``StreamingRuntimeContext``.
Absent:     keyed state backends, timers, side outputs, latency markers, two-input operators.
"""

from dataclasses import dataclass, field
from typing import Protocol

from flowlet.records import Chunk, Watermark, WatermarkStatus


class Output(Protocol):
    """Where an operator sends what it makes."""

    def collect(self, chunk: Chunk) -> None:
        """Take over a chunk."""

    def emit_watermark(self, watermark: Watermark) -> None:
        """Pass a watermark to every consumer."""

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """Pass a status to every consumer."""


@dataclass(slots=True)
class OperatorCounters:
    """Records that went through one operator; written by the task thread per chunk, read anywhere, one chunk stale is fine."""

    num_records_in: int = 0
    num_records_out: int = 0


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """Which subtask of which operator this is.

    ``attempt`` counts the restarts, from 0.
    """

    task_name: str
    subtask: int
    parallelism: int
    max_parallelism: int
    operator_name: str
    attempt: int = 0
    counters: OperatorCounters = field(default_factory=OperatorCounters)


class StreamOperator:
    """Turns chunks into chunks.

    Threading: after unpickling, the task thread only.
    Life cycle: made and pickled without ``ctx`` and ``output`` -> ``setup`` -> ``open`` -> any number of ``process_*`` -> ``finish`` (only
        if the input ended by itself) -> ``close`` (always, once ``open`` was called).
    Ownership: ``process_chunk`` takes over the chunk, and ``output.collect`` gives one away.
    """

    name: str
    ctx: OperatorContext  # from setup on
    output: Output  # from setup on

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def setup(self, ctx: OperatorContext, output: Output) -> None:
        """Tell the operator where it is and where its results go."""
        self.ctx = ctx
        self.output = output

    def open(self) -> None:
        """Prepare; nothing is processed before."""

    def process_chunk(self, chunk: Chunk) -> None:
        """Process records, in stream order.

        Raises:
            UserFunctionError: the user's function failed; names operator, subtask and record.
        """
        raise TypeError(f"operator {self.name!r}, a {type(self).__name__}, takes no input")

    def process_watermark(self, watermark: Watermark) -> None:
        """The input's event time advanced."""
        self.output.emit_watermark(watermark)

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        """The input became idle or active."""
        self.output.emit_watermark_status(status)

    def finish(self) -> None:
        """The input ended: emit what is left."""

    def close(self) -> None:
        """Give back what ``open`` took; also after a failure."""

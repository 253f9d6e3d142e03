"""``FunctionSink``: calls a ``SinkFunction``, or a function of one value, with every record.

Hot path.  Per record one call of the user's function, and one store of its timestamp if the function takes a context.

Side:       task.
Invariants: a function that is told of complete checkpoints hears of the final one before its subtask ends; if the
            subtask is restored from that one, the function is initialized again, and gets no records.
Source:     Flink ``StreamSink``.
"""

from typing import Any, Final

from flowlet.chain.loop_code import Blame, LoopCode
from flowlet.chain.stream_operator import StreamOperator
from flowlet.datastream.functions import SinkContext, SinkFunction
from flowlet.datastream.sinks.two_phase_commit_sink_function import TwoPhaseCommitSinkFunction
from flowlet.datastream.user_functions.function import CheckpointedFunction, CheckpointListener
from flowlet.errors import StateRestoreError
from flowlet.operators.user_function import RecordOperator
from flowlet.records import MIN_TIMESTAMP, Watermark
from flowlet.timers.time_api import ProcessingTimeService

_END: Final = 2**63 - 1  # as the number of a checkpoint: the end of a job without any


class InvokeContext(SinkContext):
    """What ``invoke`` is given besides its record; one object for all records."""

    __slots__ = ("_clock", "record_timestamp", "watermark")

    def __init__(self, clock: ProcessingTimeService | None) -> None:
        self._clock = clock
        self.record_timestamp: int | None = None
        self.watermark = MIN_TIMESTAMP

    def timestamp(self) -> int | None:
        """Of the record; None: it has none."""
        return self.record_timestamp

    def current_watermark(self) -> int:
        """The last watermark that reached the sink."""
        return self.watermark

    def current_processing_time(self) -> int:
        """What the clock shows."""
        assert self._clock is not None, "run by a task"
        return self._clock.current_time_ms()


class FunctionSink(RecordOperator):
    """Calls a function of one value, or the ``invoke(value, context)`` of an object, with every record."""

    def __init__(self, function: Any, *, name: str = "Sink: Unnamed") -> None:
        super().__init__(name)
        self._user = function
        self._function = self._add(function, "invoke")
        # Such a function may have to commit what the final checkpoint holds.
        self.runs_after_finish = isinstance(function, CheckpointedFunction) and isinstance(function, CheckpointListener)
        self._has_finished = False

    def restored_after_finish(self) -> StreamOperator:
        """Itself; no records come."""
        self._has_finished = True
        return self

    def open(self) -> None:
        """Open the function."""
        self._context = InvokeContext(self.ctx.clock)
        super().open()

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Call the function."""
        blame = Blame(self.name, self.ctx.subtask, record)
        if self._has_finished:
            code.line(f"{code.bind(self._refuse, 'refuse')}()")
        if self._function.method("invoke") is None:
            code.line(f"{code.bind(self._function.call, 'invoke')}({record})", blame)
            return
        context = code.bind(self._context, "context")
        code.line(f"{context}.record_timestamp = {timestamp}")
        code.line(f"{code.bind(self._function.call, 'invoke')}({record}, {context})", blame)

    def process_watermark(self, watermark: Watermark) -> None:
        """Remember it for the function, then pass it on."""
        self._context.watermark = watermark.timestamp
        super().process_watermark(watermark)

    def finish(self) -> None:
        """Let the function write out what waits; without checkpoints the end is one."""
        if self._has_finished:
            return
        if isinstance(self._user, SinkFunction):
            self._function.run("finish", ctx=self.ctx)
        if isinstance(self._user, TwoPhaseCommitSinkFunction) and not self.ctx.has_checkpoints:
            self._function.checkpoints.snapshot(self.ctx, _END, self.ctx.processing_time_service.current_time_ms())
            self._function.checkpoints.completed(self.ctx, _END)

    def _refuse(self) -> None:
        raise StateRestoreError(
            f"operator {self.name!r} had finished when its checkpoint was taken, but a producer sends it more records"
        )

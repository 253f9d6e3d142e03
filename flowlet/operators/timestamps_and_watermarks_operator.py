"""Gives records their event time, and watermarks to the stream.

Hot path; see ``event_time``.

Side:       task.
Units:      timestamps and intervals in milliseconds.
Source:     Flink ``TimestampsAndWatermarksOperator``.  What the input says about event time is dropped, but for its
            end.
"""

from flowlet.chain.loop_code import LoopCode
from flowlet.chain.operator_output import OperatorOutput, output_for
from flowlet.chain.stream_operator import OperatorContext, Output, StreamOperator
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.mailbox.task_mailbox import Attention
from flowlet.operators.event_time_stream import (
    EventTimeStream,
    WatermarkEmitter,
    idleness_clock,
    is_by_column,
    without_watermarks,
)
from flowlet.operators.source_operator import DEFAULT_AUTO_WATERMARK_INTERVAL_MS
from flowlet.records import MAX_TIMESTAMP, MAX_WATERMARK, Chunk, Watermark, WatermarkStatus
from flowlet.timers.time_api import TimerHandle


class TimestampsAndWatermarksOperator(StreamOperator):
    """Applies a ``WatermarkStrategy``, but for its alignment, which is for sources.

    Args:
        strategy: of the user.
        auto_watermark_interval_ms: how often the generator is asked; 0: only at the end.
        emits_watermarks: False for a bounded job in batch mode, which needs timestamps only.
        name: for people.
    """

    takes_chunks: bool  # of columns that have the timestamps
    out: OperatorOutput  # from setup on
    _stream: EventTimeStream  # from open on, as what follows
    _emitter: "_EmitterBetweenRecords"

    def __init__(
        self,
        strategy: WatermarkStrategy,
        *,
        auto_watermark_interval_ms: int = DEFAULT_AUTO_WATERMARK_INTERVAL_MS,
        emits_watermarks: bool = True,
        name: str = "Timestamps/Watermarks",
    ) -> None:
        self.name = name
        self._strategy = strategy if emits_watermarks else without_watermarks(strategy)
        self.takes_chunks = is_by_column(strategy)
        self.auto_watermark_interval_ms = auto_watermark_interval_ms
        self._emits_watermarks = emits_watermarks
        self._timer: TimerHandle | None = None

    def setup(self, ctx: OperatorContext, output: Output) -> None:
        """Tell the operator where it is and where its results go."""
        super().setup(ctx, output)
        self.out = output_for(output, self.name, ctx.counters)
        self.output = self.out

    def open(self) -> None:
        """Make the generator and start the periodic timer."""
        service = self.ctx.processing_time_service
        self._emitter = _EmitterBetweenRecords(self.output, self.ctx.attention)
        self._stream = EventTimeStream(
            self._strategy, self.ctx, self.out, self._emitter, self._emitter, idleness_clock(service)
        )
        interval_ms = self.auto_watermark_interval_ms if self._emits_watermarks else 0
        if interval_ms > 0:
            self._timer = service.schedule_with_fixed_delay(
                self._on_periodic_timer, initial_delay_ms=interval_ms, period_ms=interval_ms
            )

    def process_chunk(self, chunk: Chunk) -> None:
        """Set the timestamps, show them to the generator, pass the records on."""
        self._stream.process_chunk(chunk)

    def process_some(self, chunk: Chunk) -> int:
        """As ``process_chunk``, until a mail waits."""
        return self._stream.process_chunk(chunk, self.ctx.interrupts)

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """The same for one record."""
        count = code.counts.get(id(self))
        self._stream.write_record(
            code, record, timestamp, lambda assigned: self.out.write(code, record, assigned, count=count)
        )

    def process_watermark(self, watermark: Watermark) -> None:
        """The end of the input's event time is the end of ours; anything else is not what the strategy says."""
        if watermark == MAX_WATERMARK:
            self._emitter.emit_watermark(MAX_TIMESTAMP)
            self._emitter.flush_last()

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        """The strategy alone says whether the stream is idle."""

    def finish(self) -> None:
        """Emit what the generator still knows."""
        self._emit_periodic()

    def close(self) -> None:
        """Stop the periodic timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _on_periodic_timer(self, timestamp_ms: int) -> None:
        self._emit_periodic()

    def _emit_periodic(self) -> None:
        self._stream.ask()
        self._emitter.flush_last()


class _EmitterBetweenRecords(WatermarkEmitter):
    """Emits what a generator says at a record: the others that a function has made with it follow, and cannot wait for
    timers.
    """

    __slots__ = ("_attention",)

    def __init__(self, output: Output, attention: Attention) -> None:
        super().__init__(output)
        self._attention = attention

    def flush(self) -> None:
        """Emit what the generator said; its timers all fire."""
        before, self._attention.has_records_behind = self._attention.has_records_behind, True
        try:
            super().flush()
        finally:
            self._attention.has_records_behind = before

    def flush_last(self) -> None:
        """Emit what the generator said, where no records follow: timers may be put off."""
        super().flush()

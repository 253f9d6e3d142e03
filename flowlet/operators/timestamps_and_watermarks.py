"""Gives records their event time, and watermarks to the stream.

Hot path, per chunk: one call of the user's assigner per record if there is one, one ``max``, one call of the generator.

Side:       task.
Invariants: a record goes out before any watermark that it caused; watermarks rise strictly; no watermark goes out while the stream is idle;
            a status goes out only when it changes; a chunk is split only where a generator emits inside it.
Units:      timestamps and intervals in milliseconds.
Source:     Flink ``TimestampsAndWatermarksOperator``.  What the input says about event time is dropped, but for its end.
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, Final

from flowlet.common.watermark_generator import WatermarkGenerator
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.errors import UserFunctionError
from flowlet.operators.base import Output, StreamOperator
from flowlet.operators.time_services import ProcessingTimeService, RelativeClock, TimerHandle
from flowlet.operators.user_function import last_of, preview
from flowlet.records import ACTIVE, IDLE, MAX_TIMESTAMP, MAX_WATERMARK, MIN_TIMESTAMP, Chunk, Watermark, WatermarkStatus

# Flink's pipeline.auto-watermark-interval.
DEFAULT_AUTO_WATERMARK_INTERVAL_MS: Final = 200


class WatermarkEmitter:
    """What a generator talks to: keeps the order of things, and drops what is no news.

    Threading: task thread.

    Args:
        output: of the operator.
    """

    __slots__ = ("_is_idle", "_output", "_pending", "last_watermark")

    def __init__(self, output: Output) -> None:
        self._output = output
        self._is_idle = False
        self._pending: list[Watermark | WatermarkStatus] = []
        self.last_watermark = MIN_TIMESTAMP

    @property
    def has_pending(self) -> bool:
        """Whether ``flush`` would emit something."""
        return bool(self._pending)

    def emit_watermark(self, timestamp: int) -> None:
        """See ``WatermarkOutput``."""
        if timestamp <= self.last_watermark:
            return
        self.last_watermark = timestamp
        self.mark_active()
        self._pending.append(Watermark(timestamp))

    def mark_idle(self) -> None:
        """See ``WatermarkOutput``."""
        if not self._is_idle:
            self._is_idle = True
            self._pending.append(IDLE)

    def mark_active(self) -> None:
        """See ``WatermarkOutput``."""
        if self._is_idle:
            self._is_idle = False
            self._pending.append(ACTIVE)

    def flush(self) -> None:
        """Emit what was said since the last time."""
        pending, self._pending = self._pending, []
        for element in pending:
            if isinstance(element, Watermark):
                self._output.emit_watermark(element)
            else:
                self._output.emit_watermark_status(element)


class TimestampsAndWatermarksOperator(StreamOperator):
    """Applies a ``WatermarkStrategy``.

    Args:
        strategy: of the user.
        auto_watermark_interval_ms: how often the generator is asked; 0: only at the end.
        emits_watermarks: False for a bounded job in batch mode, which needs timestamps only.
        name: for people.
    """

    _generator: WatermarkGenerator  # from open on, as what follows
    _emitter: WatermarkEmitter

    def __init__(
        self,
        strategy: WatermarkStrategy,
        *,
        auto_watermark_interval_ms: int = DEFAULT_AUTO_WATERMARK_INTERVAL_MS,
        emits_watermarks: bool = True,
        name: str = "Timestamps/Watermarks",
    ) -> None:
        self.name = name
        self._strategy = strategy if emits_watermarks else _without_watermarks(strategy)
        self.auto_watermark_interval_ms = auto_watermark_interval_ms
        self._emits_watermarks = emits_watermarks
        self._max_skew_ms = None if strategy.max_future_skew is None else strategy.max_future_skew.to_millis()
        self._timer: TimerHandle | None = None
        self.num_records_from_the_future = 0  # beyond the skew; written per chunk by the task thread, read anywhere.

    def open(self) -> None:
        """Make the generator and start the periodic timer."""
        service = self.ctx.processing_time_service
        self._emitter = WatermarkEmitter(self.output)
        self._generator = self._strategy.create_generator(_idleness_clock(service))
        interval_ms = self.auto_watermark_interval_ms if self._emits_watermarks else 0
        if interval_ms > 0:
            self._timer = service.schedule_with_fixed_delay(self._on_periodic_timer, initial_delay_ms=interval_ms, period_ms=interval_ms)

    def process_chunk(self, chunk: Chunk) -> None:
        """Set the timestamps, show them to the generator, pass the records on."""
        timestamps = self._assign(chunk)
        if self._generator.needs_events:
            self._process_by_event(chunk.values, timestamps)
            return
        if timestamps is None:
            self._generator.on_largest_timestamp(MIN_TIMESTAMP)
        elif (largest := self._largest(timestamps)) is not None:
            self._generator.on_largest_timestamp(largest)
        self.output.collect(Chunk(chunk.values, timestamps))

    def process_watermark(self, watermark: Watermark) -> None:
        """The end of the input's event time is the end of ours; anything else is not what the strategy says."""
        if watermark == MAX_WATERMARK:
            self._emitter.emit_watermark(MAX_TIMESTAMP)
            self._emitter.flush()

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
        try:
            self._generator.on_periodic_emit(self._emitter)
        except Exception as error:
            error.add_note("raised by on_periodic_emit()")
            raise UserFunctionError(self.name, self.ctx.subtask, None) from error
        self._emitter.flush()

    def _assign(self, chunk: Chunk) -> list[int] | None:
        assigner = self._strategy.timestamp_assigner
        if assigner is None:
            return chunk.timestamps
        values = chunk.values
        records = iter(values)
        extract = assigner.extract_timestamp
        try:
            if chunk.timestamps is None:
                timestamps = [extract(record, MIN_TIMESTAMP) for record in records]
            else:
                # strict would ask ``records`` once more, and its position would say nothing about the record that failed
                timestamps = [extract(record, old) for old, record in zip(chunk.timestamps, records, strict=False)]
        except Exception as error:
            raise UserFunctionError(self.name, self.ctx.subtask, preview(last_of(values, records))) from error
        if not _are_timestamps(timestamps):
            self._complain_about(values, timestamps)
        return timestamps

    def _complain_about(self, values: list[Any], timestamps: list[Any]) -> None:
        value, timestamp = next(pair for pair in zip(values, timestamps, strict=True) if not _are_timestamps([pair[1]]))
        advice = TypeError(
            f"extract_timestamp must return milliseconds since the epoch as an int of 64 bits, got {preview(timestamp)} of type "
            f"{type(timestamp).__name__}"
        )
        raise UserFunctionError(self.name, self.ctx.subtask, preview(value)) from advice

    def _largest(self, timestamps: list[int]) -> int | None:
        """The largest timestamp that may raise the watermark."""
        largest = max(timestamps, default=None)
        if largest is None or self._max_skew_ms is None:
            return largest
        limit = self.ctx.processing_time_service.current_time_ms() + self._max_skew_ms
        if largest <= limit:
            return largest
        sane = [timestamp for timestamp in timestamps if timestamp <= limit]
        self.num_records_from_the_future += len(timestamps) - len(sane)
        return max(sane, default=MIN_TIMESTAMP)

    def _process_by_event(self, values: list[Any], timestamps: list[int] | None) -> None:
        emitter, on_event = self._emitter, self._generator.on_event
        limit = MAX_TIMESTAMP
        if self._max_skew_ms is not None:
            limit = self.ctx.processing_time_service.current_time_ms() + self._max_skew_ms
        start = 0
        for index, timestamp in enumerate(repeat(MIN_TIMESTAMP, len(values)) if timestamps is None else timestamps):
            if timestamp > limit:
                self.num_records_from_the_future += 1
                continue
            try:
                on_event(values[index], timestamp, emitter)
            except Exception as error:
                raise UserFunctionError(self.name, self.ctx.subtask, preview(values[index])) from error
            if emitter.has_pending:
                self._collect(values, timestamps, start, index + 1)
                start = index + 1
                emitter.flush()
        self._collect(values, timestamps, start, len(values))

    def _collect(self, values: list[Any], timestamps: list[int] | None, start: int, stop: int) -> None:
        if start < stop:
            self.output.collect(Chunk(values[start:stop], None if timestamps is None else timestamps[start:stop]))


def _idleness_clock(service: ProcessingTimeService) -> Callable[[], int]:
    # A service without such a clock is a test's, which moves its time by hand.
    return service.relative_time_ns if isinstance(service, RelativeClock) else lambda: service.current_time_ms() * 1_000_000


def _are_timestamps(timestamps: Sequence[Any]) -> bool:
    """Whether all are plain ints of 64 bits."""
    if not timestamps:
        return True
    return set(map(type, timestamps)) == {int} and min(timestamps) >= MIN_TIMESTAMP and max(timestamps) <= MAX_TIMESTAMP


def _without_watermarks(strategy: WatermarkStrategy) -> WatermarkStrategy:
    assigner = strategy.timestamp_assigner
    plain = WatermarkStrategy.no_watermarks()
    return plain if assigner is None else plain.with_timestamp_assigner(assigner)

"""Timestamps and watermarks of one stream of records: what an operator behind a stream, a source and each split of a source have in common.

Hot path, per chunk: one call of the user's assigner per record if there is one, one ``max``, one call of the generator.

Side:       task.
Invariants: a record goes out before any watermark that it caused; watermarks rise strictly; no watermark goes out while the stream is idle;
            a status goes out only when it changes; a chunk is split only where a generator emits inside it.
Units:      timestamps in milliseconds, clocks in nanoseconds.
Source:     Flink ``TimestampsAndWatermarksOperator``, ``SourceOutputWithWatermarks``, ``WatermarkToDataOutput``.
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

from flowlet.common.watermark_generator import WatermarkGenerator
from flowlet.common.watermark_generator import WatermarkOutput as GeneratorOutput
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.errors import UserFunctionError
from flowlet.operators.base import OperatorContext
from flowlet.operators.time_services import ProcessingTimeService, RelativeClock, WatermarkOutput
from flowlet.operators.user_function import last_of, preview
from flowlet.records import ACTIVE, IDLE, MAX_TIMESTAMP, MIN_TIMESTAMP, Chunk, Watermark, WatermarkStatus


class WatermarkEmitter:
    """What a generator talks to: keeps the order of things, and drops what is no news.

    Threading: task thread.

    Args:
        output: of the operator.
    """

    __slots__ = ("_is_idle", "_output", "_pending", "last_watermark")

    def __init__(self, output: WatermarkOutput) -> None:
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


class EventTimeStream:
    """Applies a strategy to one stream of records.

    Threading: task thread.

    Args:
        strategy: of the user.
        ctx: of the operator; its clock limits timestamps, its counters know the records from the future.
        collect: takes the records.
        emitter: of the operator; flushed behind the records that made it say something.
        said_to: what the generator talks to; the emitter itself, or a part of what becomes one watermark there.
        now_ns: measures idleness.
    """

    def __init__(
        self,
        strategy: WatermarkStrategy,
        ctx: OperatorContext,
        collect: Callable[[Chunk], None],
        emitter: WatermarkEmitter,
        said_to: GeneratorOutput,
        now_ns: Callable[[], int],
    ) -> None:
        self._strategy = strategy
        self._ctx = ctx
        self._output_collect = collect
        self._emitter = emitter
        self._said_to = said_to
        self._generator: WatermarkGenerator = strategy.create_generator(now_ns)
        self._max_skew_ms = None if strategy.max_future_skew is None else strategy.max_future_skew.to_millis()

    def __repr__(self) -> str:
        return f"<EventTimeStream of {self._generator!r}>"

    def process_chunk(self, chunk: Chunk) -> None:
        """Set the timestamps, show them to the generator, pass the records on.

        Raises:
            UserFunctionError: the assigner or the generator failed.
        """
        if self._strategy.timestamp_assigner is not None:
            chunk = chunk.with_timestamps(self._assigned(chunk))
        if self._generator.needs_events:
            self._process_by_event(chunk.values, chunk.timestamps)
            return
        if not chunk.has_timestamps:
            self._generator.on_largest_timestamp(MIN_TIMESTAMP)
        elif (largest := self._largest(chunk)) is not None:
            self._generator.on_largest_timestamp(largest)
        self._output_collect(chunk)

    def ask(self) -> None:
        """Ask the generator what it knows; the caller flushes the emitter.

        Raises:
            UserFunctionError: the generator failed.
        """
        try:
            self._generator.on_periodic_emit(self._said_to)
        except Exception as error:
            error.add_note("raised by on_periodic_emit()")
            raise UserFunctionError(self._ctx.operator_name, self._ctx.subtask, None) from error

    def _assigned(self, chunk: Chunk) -> list[int]:
        assigner = self._strategy.timestamp_assigner
        assert assigner is not None, "so said the caller"
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
            raise UserFunctionError(self._ctx.operator_name, self._ctx.subtask, preview(last_of(values, records))) from error
        if not _are_timestamps(timestamps):
            self._complain_about(values, timestamps)
        return timestamps

    def _complain_about(self, values: list[Any], timestamps: list[Any]) -> None:
        value, timestamp = next(pair for pair in zip(values, timestamps, strict=True) if not _are_timestamps([pair[1]]))
        advice = TypeError(
            f"extract_timestamp must return milliseconds since the epoch as an int of 64 bits, got {preview(timestamp)} of type "
            f"{type(timestamp).__name__}"
        )
        raise UserFunctionError(self._ctx.operator_name, self._ctx.subtask, preview(value)) from advice

    def _largest(self, chunk: Chunk) -> int | None:
        """The largest timestamp that may raise the watermark."""
        largest = _largest_timestamp(chunk)
        if largest is None or self._max_skew_ms is None:
            return largest
        limit = self._ctx.processing_time_service.current_time_ms() + self._max_skew_ms
        if largest <= limit:
            return largest
        timestamps = chunk.timestamps or []
        sane = [timestamp for timestamp in timestamps if timestamp <= limit]
        self._ctx.counters.num_records_from_the_future += len(timestamps) - len(sane)
        return max(sane, default=MIN_TIMESTAMP)

    def _process_by_event(self, values: list[Any], timestamps: list[int] | None) -> None:
        emitter, said_to, on_event = self._emitter, self._said_to, self._generator.on_event
        limit = MAX_TIMESTAMP
        if self._max_skew_ms is not None:
            limit = self._ctx.processing_time_service.current_time_ms() + self._max_skew_ms
        start = 0
        for index, timestamp in enumerate(repeat(MIN_TIMESTAMP, len(values)) if timestamps is None else timestamps):
            if timestamp > limit:
                self._ctx.counters.num_records_from_the_future += 1
                continue
            try:
                on_event(values[index], timestamp, said_to)
            except Exception as error:
                raise UserFunctionError(self._ctx.operator_name, self._ctx.subtask, preview(values[index])) from error
            if emitter.has_pending:
                self._collect(values, timestamps, start, index + 1)
                start = index + 1
                emitter.flush()
        self._collect(values, timestamps, start, len(values))

    def _collect(self, values: list[Any], timestamps: list[int] | None, start: int, stop: int) -> None:
        if start < stop:
            self._output_collect(Chunk(values[start:stop], None if timestamps is None else timestamps[start:stop]))


def idleness_clock(service: ProcessingTimeService) -> Callable[[], int]:
    """A clock to measure idleness with, in nanoseconds."""
    # A service without such a clock is a test's, which moves its time by hand.
    return service.relative_time_ns if isinstance(service, RelativeClock) else lambda: service.current_time_ms() * 1_000_000


def _largest_timestamp(chunk: Chunk) -> int | None:
    if chunk.columns is None:
        return max(chunk.timestamps or (), default=None)
    array = chunk.timestamp_array
    return int(array.max()) if array is not None and len(array) else None


def _are_timestamps(timestamps: Sequence[Any]) -> bool:
    """Whether all are plain ints of 64 bits."""
    if not timestamps:
        return True
    return set(map(type, timestamps)) == {int} and min(timestamps) >= MIN_TIMESTAMP and max(timestamps) <= MAX_TIMESTAMP


def without_watermarks(strategy: WatermarkStrategy) -> WatermarkStrategy:
    """The timestamps of a strategy alone."""
    assigner = strategy.timestamp_assigner
    plain = WatermarkStrategy.no_watermarks()
    return plain if assigner is None else plain.with_timestamp_assigner(assigner)

"""Timestamps and watermarks of one stream of records: what an operator behind a stream, a source and each split of a source have in common.

Hot path.  Per record one call of the user's assigner, if there is one, and a comparison; per chunk one call of the generator.

Side:       task.
Invariants: a record goes out before any watermark that it caused; watermarks rise strictly; no watermark goes out while the stream is idle;
            a status goes out only when it changes.
Units:      timestamps in milliseconds, clocks in nanoseconds.
Source:     Flink ``TimestampsAndWatermarksOperator``, ``SourceOutputWithWatermarks``, ``WatermarkToDataOutput``.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any, Protocol

from flowlet.chain.loop_code import Blame, LoopCode
from flowlet.chain.preview import preview
from flowlet.chain.stream_operator import OperatorContext
from flowlet.common.watermark_generator import WatermarkGenerator
from flowlet.common.watermark_generator import WatermarkOutput as GeneratorOutput
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.errors import UserFunctionError
from flowlet.records import ACTIVE, IDLE, MAX_TIMESTAMP, MIN_TIMESTAMP, Chunk, Watermark, WatermarkStatus
from flowlet.timers.time_api import ProcessingTimeService, RelativeClock, WatermarkOutput


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


class EventTimeOutput(Protocol):
    """The part of an operator's output that takes the records."""

    def collect(self, chunk: Chunk) -> None:
        """Records that have their timestamps."""

    def collect_each(self, records: Iterable[Any], timestamps: Iterable[int] | None, num_records: int) -> None:
        """Records whose timestamps are made one by one."""

    def takes_whole(self, chunk: Chunk) -> bool:
        """Whether nobody behind looks at single records."""


class EventTimeStream:
    """Applies a strategy to one stream of records.

    Threading: task thread.

    Args:
        strategy: of the user.
        ctx: of the operator; its clock limits timestamps, its counters know the records from the future.
        output: takes the records.
        emitter: of the operator; flushed behind the records that made it say something.
        said_to: what the generator talks to; the emitter itself, or a part of what becomes one watermark there.
        now_ns: measures idleness.
    """

    def __init__(
        self,
        strategy: WatermarkStrategy,
        ctx: OperatorContext,
        output: EventTimeOutput,
        emitter: WatermarkEmitter,
        said_to: GeneratorOutput,
        now_ns: Callable[[], int],
    ) -> None:
        self._strategy = strategy
        self._ctx = ctx
        self._output = output
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
        if self._strategy.timestamp_assigner is None and not self._generator.needs_events:
            self._show_largest(chunk)
            self._output.collect(chunk)
        elif chunk.columns is not None and not self._generator.needs_events and self._output.takes_whole(chunk):
            self._output.collect(chunk.with_timestamps(list(self._stamps(chunk))))
        else:
            self._output.collect_each(chunk.values, self._stamps(chunk), len(chunk))

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

    def _show_largest(self, chunk: Chunk) -> None:
        if not chunk.has_timestamps:
            self._generator.on_largest_timestamp(MIN_TIMESTAMP)
        elif (largest := self._largest(chunk)) is not None:
            self._generator.on_largest_timestamp(largest)

    def _stamps(self, chunk: Chunk) -> Iterator[int]:
        """The timestamp of each record, for a loop that asks for the next one when a record is through."""
        values, old = chunk.values, chunk.timestamps
        assigner = self._strategy.timestamp_assigner
        extract = None if assigner is None else assigner.extract_timestamp
        limit, needs_events = self._limit(), self._generator.needs_events
        largest = MIN_TIMESTAMP
        record = None
        try:
            for record, timestamp in zip(values, repeat(MIN_TIMESTAMP) if old is None else old):  # noqa: B905 - or endless
                if extract is not None:
                    timestamp = extract(record, timestamp)
                    if type(timestamp) is not int or not MIN_TIMESTAMP <= timestamp <= MAX_TIMESTAMP:
                        raise _advice(timestamp)
                yield timestamp
                if timestamp > limit:
                    self._ctx.counters.num_records_from_the_future += 1
                elif needs_events:
                    self._show(record, timestamp)
                elif timestamp > largest:
                    largest = timestamp
        except Exception as error:
            raise UserFunctionError(self._ctx.operator_name, self._ctx.subtask, preview(record)) from error
        if not needs_events:
            self._generator.on_largest_timestamp(largest)

    def _show(self, record: Any, timestamp: int) -> None:
        """Show a record that went out to the generator; a watermark goes out at once."""
        self._generator.on_event(record, timestamp, self._said_to)
        if self._emitter.has_pending:
            self._emitter.flush()

    def _limit(self) -> int:
        """Later timestamps do not raise the watermark."""
        if self._max_skew_ms is None:
            return MAX_TIMESTAMP
        return self._ctx.processing_time_service.current_time_ms() + self._max_skew_ms

    def _largest(self, chunk: Chunk) -> int | None:
        """The largest timestamp that may raise the watermark."""
        largest, limit = _largest_timestamp(chunk), self._limit()
        if largest is None or largest <= limit:
            return largest
        timestamps = chunk.timestamps or []
        sane = [timestamp for timestamp in timestamps if timestamp <= limit]
        self._ctx.counters.num_records_from_the_future += len(timestamps) - len(sane)
        return max(sane, default=MIN_TIMESTAMP)

    # ---------------------------------------------------------------- in the loop of a chain

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, emit: Callable[[str | None], None]) -> None:
        """The statements for one record; ``emit`` writes those that pass it on, with the variable of its timestamp."""
        blame = Blame(self._ctx.operator_name, self._ctx.subtask, record)
        assigner, limit = self._strategy.timestamp_assigner, code.variable("limit")
        assigned = timestamp
        if assigner is not None:
            assigned = code.variable("t")
            extract = code.bind(assigner.extract_timestamp, "extract")
            code.line(f"{assigned} = {extract}({record}, {timestamp or MIN_TIMESTAMP})", blame)
            with code.block(f"if type({assigned}) is not int or not {MIN_TIMESTAMP} <= {assigned} <= {MAX_TIMESTAMP}:"):
                code.line(f"raise {code.bind(_advice, 'advice')}({assigned})", blame)
        with code.sharing(record, is_shared=self._generator.needs_events):
            emit(assigned)
        if self._max_skew_ms is not None:
            code.at_start(f"{limit} = {code.bind(self._limit, 'limit_of')}()")
            head = f"if {assigned or MIN_TIMESTAMP} > {limit}:"
            with code.block(head):
                code.line(f"{code.bind(self._ctx.counters, 'counters')}.num_records_from_the_future += 1")
            with code.block("else:"):
                self._write_seen(code, record, assigned, blame)
        else:
            self._write_seen(code, record, assigned, blame)

    def _write_seen(self, code: LoopCode, record: str, timestamp: str | None, blame: Blame) -> None:
        if self._generator.needs_events:
            code.line(f"{code.bind(self._show, 'show')}({record}, {timestamp or MIN_TIMESTAMP})", blame)
            return
        largest = code.variable("largest")
        code.at_start(f"{largest} = None")
        code.at_end(f"if {largest} is not None: {code.bind(self._generator.on_largest_timestamp, 'on_largest')}({largest})")
        if timestamp is None:
            code.line(f"{largest} = {MIN_TIMESTAMP}")
            return
        with code.block(f"if {largest} is None or {timestamp} > {largest}:"):
            code.line(f"{largest} = {timestamp}")


def _advice(timestamp: Any) -> TypeError:
    return TypeError(
        f"extract_timestamp must return milliseconds since the epoch as an int of 64 bits, got {preview(timestamp)} of type "
        f"{type(timestamp).__name__}"
    )


def idleness_clock(service: ProcessingTimeService) -> Callable[[], int]:
    """A clock to measure idleness with, in nanoseconds."""
    # A service without such a clock is a test's, which moves its time by hand.
    return service.relative_time_ns if isinstance(service, RelativeClock) else lambda: service.current_time_ms() * 1_000_000


def _largest_timestamp(chunk: Chunk) -> int | None:
    if chunk.columns is None:
        return max(chunk.timestamps or (), default=None)
    array = chunk.timestamp_array
    return int(array.max()) if array is not None and len(array) else None


def without_watermarks(strategy: WatermarkStrategy) -> WatermarkStrategy:
    """The timestamps of a strategy alone."""
    assigner = strategy.timestamp_assigner
    plain = WatermarkStrategy.no_watermarks()
    return plain if assigner is None else plain.with_timestamp_assigner(assigner)

"""Timestamps and watermarks of one stream of records: behind an operator, in a source, or in a split of a source.

``TimestampsAndWatermarksOperator`` gives the records of a stream their event time, and watermarks to the stream.

Hot path.  Per record one call of the user's assigner, if there is one, and a comparison; per chunk one call of the
generator.

Side:       task.
Invariants: a record is emitted before any watermark that it caused.  Watermarks rise strictly, and no watermark is
            emitted while the stream is idle.  A status is emitted only when it changes.
Units:      timestamps and intervals in milliseconds, clocks in nanoseconds.
Source:     Flink ``TimestampsAndWatermarksOperator``, ``SourceOutputWithWatermarks``, ``WatermarkToDataOutput``.  The
            operator drops the watermarks and statuses of its input, but for the last watermark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowlet.chain.loop_code import Blame, LoopCode, RecordLoop
from flowlet.chain.operator_output import OperatorOutput
from flowlet.chain.stream_operator import OperatorContext, StreamOperator
from flowlet.columns import Columns
from flowlet.common.execution_config import DEFAULT_AUTO_WATERMARK_INTERVAL_MS
from flowlet.common.watermark_generator import WatermarkGenerator
from flowlet.common.watermark_generator import WatermarkOutput as GeneratorOutput
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.errors import UserFunctionError
from flowlet.mailbox.task_mailbox import Attention, Interrupts
from flowlet.records import ACTIVE, IDLE, MAX_TIMESTAMP, MAX_WATERMARK, MIN_TIMESTAMP, Chunk, Watermark, WatermarkStatus
from flowlet.serde.type_serializer import preview
from flowlet.timers.keyed_timer_service import WatermarkOutput
from netstack.late import dataclass
from netstack.late import numpy as np
from netstack.loop.eventloop import Cancellable

if TYPE_CHECKING:
    from numpy.typing import NDArray


class WatermarkEmitter:
    """The ``WatermarkOutput`` of a generator; passes changes on to ``output``, in order.  Task thread only."""

    __slots__ = ("_output", "_pending", "is_idle", "last_watermark")

    def __init__(self, output: WatermarkOutput) -> None:
        self._output = output
        self.is_idle = False
        self._pending: list[Watermark | WatermarkStatus] = []
        self.last_watermark = MIN_TIMESTAMP

    @property
    def has_pending(self) -> bool:
        """Whether ``flush`` would emit an element."""
        return bool(self._pending)

    def emit_watermark(self, timestamp: int) -> None:
        """Keep the watermark for the next flush, if it rises; the stream is active."""
        if timestamp <= self.last_watermark:
            return
        self.last_watermark = timestamp
        self.mark_active()
        self._pending.append(Watermark(timestamp))

    def mark_idle(self) -> None:
        """Keep the change of status for the next flush; does nothing if the stream is idle."""
        if not self.is_idle:
            self.is_idle = True
            self._pending.append(IDLE)

    def mark_active(self) -> None:
        """Keep the change of status for the next flush; does nothing if the stream is active."""
        if self.is_idle:
            self.is_idle = False
            self._pending.append(ACTIVE)

    def flush(self) -> None:
        """Emit the generator's watermarks and statuses since the last flush."""
        pending, self._pending = self._pending, []
        for element in pending:
            self._output.emit_control(element)


@dataclass(eq=False)
class EventTimeStream:
    """Applies a watermark strategy to one stream of records; task thread only.

    Args:
        strategy: the user's.
        ctx: the operator's; its clock limits timestamps, its counters count records with timestamps above the limit.
        output: takes the records.
        emitter: the operator's; flushed behind the records that caused its output.
        said_to: the output that the generator calls: the emitter itself, or one of several parts combined there.
        now_ns: the clock for idleness.
        loop_owner: another stream of this strategy and output, whose loop takes this stream's records, too; None: this
            stream has a loop of its own.
    """

    strategy: WatermarkStrategy
    ctx: OperatorContext
    output: OperatorOutput
    emitter: WatermarkEmitter
    said_to: GeneratorOutput
    now_ns: Callable[[], int]
    loop_owner: EventTimeStream | None = None

    def __post_init__(self) -> None:
        """Make the generator and the loops."""
        self._generator: WatermarkGenerator = self.strategy.create_generator(self.now_ns)
        # Whether the timestamps of a chunk in columns are one of its columns.
        self._takes_columns = is_by_column(self.strategy) and not self._generator.needs_events
        self._owner = self if self.loop_owner is None else self.loop_owner
        self._acting = self  # of an owner: the stream whose records its loop takes
        self._loop = RecordLoop(self.ctx.operator_name, self._write_loop, self.output.loop_ends, self.ctx.attention)
        self._stamp_loop = RecordLoop(self.ctx.operator_name, self._write_stamp, (), self.ctx.attention)
        self._stamps: list[int] = []  # the timestamps from the last run of ``_stamp_loop``
        self._max_skew_ms = None if self.strategy.max_future_skew is None else self.strategy.max_future_skew.to_millis()

    def __repr__(self) -> str:
        return f"<EventTimeStream of {self._generator!r}>"

    def process_chunk(self, chunk: Chunk, interrupts: Interrupts | None = None) -> int:
        """Assign timestamps, call the generator, pass the records on.

        ``interrupts``: of the task's mailbox, for the head of a chain: it stops between two records when these are not
            empty; None: it does not stop.

        Returns how many records were processed.

        Raises:
            UserFunctionError: the assigner or the generator failed.
        """
        if not len(chunk):
            return 0
        if self.strategy.timestamp_assigner is None and not self._generator.needs_events:
            return self._pass_on(chunk, interrupts)
        if chunk.columns is not None and self._takes_columns:
            return self._pass_on(chunk.with_timestamps(self._times_of(chunk.columns)), interrupts)
        if chunk.columns is not None and not self._generator.needs_events and self.output.takes_whole(chunk):
            # No other function of the chain sees the records: the loop takes their timestamps alone, up to the record
            # at which a mail waits.
            owner = self._owner
            owner._acting = self
            owner._stamp_loop.run(chunk.values, chunk.timestamps, len(chunk), None, interrupts)
            stamps = owner._stamps
            done = chunk if len(stamps) == len(chunk) else chunk.slice(0, len(stamps))
            self.output.collect(done.with_timestamps(stamps))
            return len(stamps)
        # The loop is shared, and its last run may have been for another split: it asks here whose generator to call.
        self._owner._acting = self
        return self._owner._loop.run(chunk.records(), chunk.timestamps, len(chunk), None, interrupts)

    def _pass_on(self, chunk: Chunk, interrupts: Interrupts | None) -> int:
        num_before = self.ctx.counters.num_records_from_the_future
        largest = self._largest(chunk) if chunk.has_timestamps else MIN_TIMESTAMP  # now: the chunk is given away
        num_done = self.output.collect_some(chunk, interrupts)
        if num_done < len(chunk) and chunk.has_timestamps:
            # The loop was left, so the chunk is still ours.  The generator must not know of records that were not
            # passed on.
            self.ctx.counters.num_records_from_the_future = num_before
            largest = self._largest(chunk.slice(0, num_done))
        if largest is not None:
            self._generator.on_largest_timestamp(largest)
        return num_done

    def _write_loop(self, code: LoopCode, record: str, timestamp: str | None, _key: str | None) -> None:
        self.write_record(
            code, record, timestamp, lambda assigned: self.output.write(code, record, assigned, count="num_records")
        )

    def _write_stamp(self, code: LoopCode, record: str, timestamp: str | None, _key: str | None) -> None:
        stamps = code.variable("stamps")
        code.at_start(f"{stamps} = []")
        code.at_end(f"{code.bind(self, 'stream')}._stamps = {stamps}")
        self.write_record(code, record, timestamp, lambda assigned: code.line(f"{stamps}.append({assigned})"))

    def ask(self) -> None:
        """Call the generator's ``on_periodic_emit``; the caller flushes the emitter.

        Raises UserFunctionError if the generator failed.
        """
        try:
            self._generator.on_periodic_emit(self.said_to)
        except Exception as error:
            error.add_note("raised by on_periodic_emit()")
            raise UserFunctionError(self.ctx.operator_name, self.ctx.subtask, None) from error

    def _times_of(self, columns: Columns) -> NDArray[np.int64]:
        assigner: Any = self.strategy.timestamp_assigner
        try:
            times: NDArray[np.int64] = assigner.timestamps_of(columns)
        except Exception as error:
            raise UserFunctionError(
                self.ctx.operator_name, self.ctx.subtask, f"a batch of {columns.num_rows} rows"
            ) from error
        return times

    def _show(self, record: Any, timestamp: int) -> None:
        """Call the generator for a record that was emitted; a watermark follows at once."""
        self._acting._generator.on_event(record, timestamp, self._acting.said_to)
        if self.emitter.has_pending:
            self.emitter.flush()

    def _limit(self) -> int:
        """The largest timestamp that may raise the watermark."""
        if self._max_skew_ms is None:
            return MAX_TIMESTAMP
        return self.ctx.processing_time_service.current_time_ms() + self._max_skew_ms

    def _largest(self, chunk: Chunk) -> int | None:
        """The largest timestamp of the chunk that may raise the watermark."""
        if chunk.columns is None:
            largest = max(chunk.timestamps or (), default=None)
        else:
            array = chunk.timestamp_array
            largest = int(array.max()) if array is not None and len(array) else None
        limit = self._limit()
        # Few chunks have a timestamp above the limit: only these are read record by record.
        if largest is None or largest <= limit:
            return largest
        timestamps = chunk.timestamps or []
        sane = [timestamp for timestamp in timestamps if timestamp <= limit]
        self.ctx.counters.num_records_from_the_future += len(timestamps) - len(sane)
        return max(sane, default=MIN_TIMESTAMP)

    # ---------------------------------------------------------------- in the loop of a chain

    def write_record(
        self, code: LoopCode, record: str, timestamp: str | None, emit: Callable[[str | None], None]
    ) -> None:
        """Generate the statements for one record; ``emit`` generates those that pass it on, given the variable of its
        timestamp.
        """
        blame = Blame(self.ctx.operator_name, self.ctx.subtask, record)
        assigner, limit = self.strategy.timestamp_assigner, code.variable("limit")
        assigned = timestamp
        if assigner is not None:
            assigned = code.variable("t")
            extract = code.bind(assigner.extract_timestamp, "extract")
            code.line(f"{assigned} = {extract}({record}, {timestamp or MIN_TIMESTAMP})", blame)
            if self._max_skew_ms is None and not self._generator.needs_events:
                self._write_checked_and_seen(code, assigned, blame)
                emit(assigned)
                return
            with code.block(f"if type({assigned}) is not int or not {MIN_TIMESTAMP} <= {assigned} <= {MAX_TIMESTAMP}:"):
                code.line(f"raise {code.bind(_advice, 'advice')}({assigned})", blame)
        with code.sharing(record, is_shared=self._generator.needs_events):
            emit(assigned)
        largest = None if self._generator.needs_events else self._write_largest(code)
        if self._max_skew_ms is not None:
            # The clock is read once per run: it hardly moves within one, and a call per record would cost more than the
            # test.
            code.at_start(f"{limit} = {code.bind(self._limit, 'limit_of')}()")
            head = f"if {assigned or MIN_TIMESTAMP} > {limit}:"
            with code.block(head):
                code.line(f"{code.bind(self.ctx.counters, 'counters')}.num_records_from_the_future += 1")
                if largest is not None:  # the watermark stays, but the stream is not idle
                    code.line(f"if {largest} < {MIN_TIMESTAMP}: {largest} = {MIN_TIMESTAMP}")
            with code.block("else:"):
                self._write_seen(code, record, assigned, blame, largest)
        else:
            self._write_seen(code, record, assigned, blame, largest)

    def _write_checked_and_seen(self, code: LoopCode, timestamp: str, blame: Blame) -> None:
        """Write the statements that check a timestamp and remember the largest.

        A timestamp above the largest so far is not too small, so most need no test for that.
        """
        largest, advice = self._write_largest(code), code.bind(_advice, "advice")
        code.line(f"if type({timestamp}) is not int: raise {advice}({timestamp})", blame)
        with code.block(f"if {timestamp} > {largest}:"):
            code.line(f"if {timestamp} > {MAX_TIMESTAMP}: raise {advice}({timestamp})", blame)
            code.line(f"{largest} = {timestamp}")
        with code.block(f"elif {timestamp} < {MIN_TIMESTAMP}:"):
            code.line(f"raise {advice}({timestamp})", blame)

    def _write_seen(
        self, code: LoopCode, record: str, timestamp: str | None, blame: Blame, largest: str | None
    ) -> None:
        if largest is None:
            code.line(f"{code.bind(self._show, 'show')}({record}, {timestamp or MIN_TIMESTAMP})", blame)
            return
        if timestamp is None:
            code.line(f"{largest} = {MIN_TIMESTAMP}")
            return
        with code.block(f"if {timestamp} > {largest}:"):
            code.line(f"{largest} = {timestamp}")

    def _write_largest(self, code: LoopCode) -> str:
        """The variable of the largest timestamp; behind the loop the generator learns it, if there was a timestamp."""
        largest = code.variable("largest")
        code.at_start(f"{largest} = {MIN_TIMESTAMP - 1}")
        show = f"{code.bind(self, 'stream')}._acting._generator.on_largest_timestamp({largest})"
        code.at_end(f"if {largest} >= {MIN_TIMESTAMP}: {show}")
        return largest


def _advice(timestamp: Any) -> TypeError:
    return TypeError(
        f"extract_timestamp must return milliseconds since the epoch as an int of 64 bits, got {preview(timestamp)} of "
        "type "
        f"{type(timestamp).__name__}"
    )


def is_by_column(strategy: WatermarkStrategy) -> bool:
    """Whether the strategy takes the timestamps of all rows at once from a column."""
    return hasattr(strategy.timestamp_assigner, "timestamps_of")


def without_watermarks(strategy: WatermarkStrategy) -> WatermarkStrategy:
    """A strategy that assigns timestamps as this one does, and emits no watermarks."""
    assigner = strategy.timestamp_assigner
    plain = WatermarkStrategy.no_watermarks()
    return plain if assigner is None else plain.with_timestamp_assigner(assigner)


class TimestampsAndWatermarksOperator(StreamOperator):
    """Applies a ``WatermarkStrategy``, but for its alignment, which is for sources.

    Args:
        strategy: of the user.
        auto_watermark_interval_ms: how often the generator is asked; 0: only at the end.
        emits_watermarks: False for a bounded job in batch mode, which needs timestamps only.
        name: for people.
    """

    takes_chunks: bool  # of columns that have the timestamps
    _stream: EventTimeStream  # from open on, as the next field
    _emitter: _EmitterBetweenRecords

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
        self._timer: Cancellable | None = None

    def open(self) -> None:
        """Make the generator and start the periodic timer."""
        service = self.ctx.processing_time_service
        self._emitter = _EmitterBetweenRecords(self.output, self.ctx.attention)
        self._stream = EventTimeStream(
            self._strategy, self.ctx, self.output, self._emitter, self._emitter, service.relative_time_ns
        )
        interval_ms = self.auto_watermark_interval_ms if self._emits_watermarks else 0
        if interval_ms > 0:
            self._timer = service.schedule_with_fixed_delay(
                lambda _: self._emit_periodic(), initial_delay_ms=interval_ms, period_ms=interval_ms
            )

    def process_chunk(self, chunk: Chunk) -> None:
        """Set the timestamps, show them to the generator, pass the records on."""
        self._stream.process_chunk(chunk)

    def process_some(self, chunk: Chunk) -> int:
        """Process records until a mail waits; returns how many."""
        return self._stream.process_chunk(chunk, self.ctx.interrupts)

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Write the statements that set the timestamp of one record, show it to the generator and pass it on."""
        count = code.counts.get(id(self))
        self._stream.write_record(
            code, record, timestamp, lambda assigned: self.output.write(code, record, assigned, count=count)
        )

    def process_watermark(self, watermark: Watermark) -> None:
        """Pass on the end of the input's event time; drop other watermarks, for here the strategy makes them."""
        if watermark == MAX_WATERMARK:
            self._emitter.emit_watermark(MAX_TIMESTAMP)
            self._emitter.flush_last()

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        """Drop the status: the strategy alone says whether the stream is idle."""

    def finish(self) -> None:
        """Ask the generator a last time, and emit its watermark."""
        self._emit_periodic()

    def close(self) -> None:
        """Stop the periodic timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _emit_periodic(self) -> None:
        self._stream.ask()
        self._emitter.flush_last()


class _EmitterBetweenRecords(WatermarkEmitter):
    """Emits a generator's watermark at a record.  Other records of one call of a function may follow it at once, so no
    timer that it fires may be put off.
    """

    __slots__ = ("_attention",)

    def __init__(self, output: WatermarkOutput, attention: Attention) -> None:
        super().__init__(output)
        self._attention = attention

    def flush(self) -> None:
        """Emit watermarks and statuses; all timers of a watermark fire before this returns."""
        before, self._attention.has_records_behind = self._attention.has_records_behind, True
        try:
            super().flush()
        finally:
            self._attention.has_records_behind = before

    def flush_last(self) -> None:
        """Emit watermarks and statuses where no records follow: timers may be put off."""
        super().flush()

"""Timestamps, watermarks and alignment inside a source; a clock that can be paused.

``SourceAlignment`` decides whether a source, or one of its splits, has run too far ahead of its alignment group.

Hot path; see ``event_time_stream``.  For a reader with splits, one more look-up per chunk, and work per split that came
or went.

Side:       task.
Source:     Flink ``PausableRelativeClock``.  Flink ``SourceOperator`` (``checkWatermarkAlignment``,
            ``checkSplitWatermarkAlignment``), ``WatermarkSampler``.  The source reports once per update interval; the
            JobManager replies with the limit (``flowlet/jm/source_coordinator.py``).  Flink
            ``SourceOperator``, ``ProgressiveTimestampsAndWatermarks``, FLIP-27, FLIP-182, FLIP-217.
Invariants: a source waits exactly while its oldest sampled watermark is above the group's limit.  An idle or finished
            source holds no other source back.  A split is paused at most once before it is resumed.  The watermark is
            the lowest one of the open splits.  A source that is too far ahead of its alignment group reads no record.
            Time during which the group holds back a source or a split does not count as idleness.
Units:      milliseconds.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from typing import TYPE_CHECKING, Final

from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.mailbox.task_mailbox import Interrupts
from flowlet.operators.event_time_stream import EventTimeStream, WatermarkEmitter, without_watermarks
from flowlet.operators.source_reader import OpenSplits, SourceReaderBase
from flowlet.records import MAX_TIMESTAMP, MIN_TIMESTAMP, Chunk, Watermark, WatermarkStatus
from flowlet.watermarks.combined_watermarks import WatermarkMultiplexer
from netstack.availability import AvailabilityFuture
from netstack.late import dataclass
from netstack.loop.eventloop import Cancellable

if TYPE_CHECKING:
    from flowlet.operators.source_operator import SourceOperator


class PausableClock:
    """Nanoseconds of the monotonic clock ``now_ns``, without pauses."""

    __slots__ = ("_now_ns", "_paused_at_ns", "_paused_ns")

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._paused_ns = 0  # length of all past pauses
        self._paused_at_ns: int | None = None  # start of the present pause; None: it runs

    def __repr__(self) -> str:
        return f"<PausableClock {'stopped' if self._paused_at_ns is not None else 'running'} at {self()} ns>"

    def __call__(self) -> int:
        """The time in nanoseconds."""
        now_ns = self._now_ns() if self._paused_at_ns is None else self._paused_at_ns
        return now_ns - self._paused_ns

    def pause(self) -> None:
        """Pause; does nothing if paused."""
        if self._paused_at_ns is None:
            self._paused_at_ns = self._now_ns()

    def resume(self) -> None:
        """Continue; does nothing if running."""
        if self._paused_at_ns is not None:
            self._paused_ns += self._now_ns() - self._paused_at_ns
            self._paused_at_ns = None


# Flink's pipeline.watermark-alignment.buffer-size: how many reports ago the watermark counts.  Without it, a source
# that was just released would stop again before the other sources have heard of the new limit.
NUM_SAMPLES: Final = 3


class SourceAlignment:
    """The alignment of one subtask of a source; task thread only.

    Args:
        emitter: has the watermark of the source, and whether it is idle.
        num_samples: how many reports ago the watermark counts.
    """

    def __init__(self, emitter: WatermarkEmitter, num_samples: int = NUM_SAMPLES) -> None:
        if num_samples < 1:
            raise ValueError(f"an alignment needs at least one sample, got {num_samples}")
        self._emitter = emitter
        self._samples = deque([MIN_TIMESTAMP] * num_samples, maxlen=num_samples)
        self._max_allowed = MAX_TIMESTAMP
        self.is_finished = False
        self._paused: set[str] = set()

    def __repr__(self) -> str:
        state = "waits" if self.must_wait else "runs"
        return (
            f"<SourceAlignment {state} at {self._samples[0]} of {self._max_allowed}, {len(self._paused)} splits paused>"
        )

    @property
    def must_wait(self) -> bool:
        """Whether the source must stop emitting."""
        return self._samples[0] > self._max_allowed

    @property
    def drift_ms(self) -> int:
        """How far the source is above the limit; negative below it; in 64 bits.

        Flink's metric ``watermarkAlignmentDrift``.
        """
        # Read without a lock by threads that report metrics: two numbers of different moments give a drift that is off
        # once, and steer no source.
        return min(max(self._emitter.last_watermark - self._max_allowed, MIN_TIMESTAMP), MAX_TIMESTAMP)

    def sample(self) -> int:
        """Sample the watermark for a report, once per update interval; ``MAX_TIMESTAMP``: no source must wait for this
        one.
        """
        watermark = self._emitter.last_watermark
        self._samples.append(watermark)
        return MAX_TIMESTAMP if self._emitter.is_idle or self.is_finished else watermark

    def allow(self, max_allowed: int) -> None:
        """Set the group's limit; ``split_orders`` derives from it which splits pause."""
        self._max_allowed = max_allowed

    def split_orders(self, watermarks: Mapping[str, int]) -> tuple[Set[str], Set[str]]:
        """The splits to pause, and those to resume, by the watermarks of the open ones.

        All splits are compared once per call: a call per split would be quadratic.  A single split is not paused: the
        source as a whole waits.
        """
        ahead = {split for split, watermark in watermarks.items() if watermark > self._max_allowed}
        if len(watermarks) < 2:
            ahead = set()
        paused = self._paused & watermarks.keys()
        self._paused = ahead
        return ahead - paused, paused - ahead


@dataclass(slots=True)
class _Split:
    """One split: its clock, which stops while the split is paused, and its stream."""

    clock: PausableClock
    stream: EventTimeStream


class SourceEventTime:
    """The event time of one reader; task thread only.

    Life cycle: made when the source opens; ``finish`` if its data ends by itself, ``close`` in any case.

    Args:
        operator: the source's.
        strategy: the user's.
        reader: gives the records.
    """

    def __init__(self, operator: "SourceOperator", strategy: WatermarkStrategy, reader: SourceReaderBase) -> None:
        ctx = operator.ctx
        self._strategy = strategy if operator.emits_watermarks else without_watermarks(strategy)
        self._ctx = ctx
        self._output = operator.output
        self._report = ctx.report_watermark or (lambda _: None)  # no JobManager listens, so there is no group
        self._params = self._strategy.alignment if ctx.report_watermark is not None else None
        self._emitter = WatermarkEmitter(self._output)
        self.alignment = None if self._params is None else SourceAlignment(self._emitter)
        self._clock = PausableClock(ctx.processing_time_service.relative_time_ns)
        # Set while the source waits for its group, and the reader must not be polled; done when it may go on.
        self.wait_future: AvailabilityFuture | None = None
        self._parts = WatermarkMultiplexer(self._emitter)
        self._splits: dict[str, _Split] = {}
        # The open splits whose changes are taken; a reader of several sources in turn has several such objects.
        self._watched: OpenSplits | None = None
        self._had_splits = False
        self._ended: list[str] = []  # splits that end behind the chunk that is being processed
        self._reader = reader
        self._has_splits = reader.open_splits is not None
        self._pauses = self._has_splits and reader.pauses_splits
        self._whole = self._stream_of(None, self._clock)  # for records of a reader without splits
        self._timers: list[Cancellable] = []
        self._start_timers(operator.auto_watermark_interval_ms if operator.emits_watermarks else 0)

    def __repr__(self) -> str:
        return f"<SourceEventTime {len(self._splits)} splits, {self._parts!r}, {self.alignment!r}>"

    def _start_timers(self, watermark_interval_ms: int) -> None:
        service = self._ctx.processing_time_service
        ways = [(self._on_periodic_timer, watermark_interval_ms)]
        if self._params is not None:
            ways.append((self._on_report_timer, self._params.update_interval_ms))
        for callback, interval_ms in ways:
            if interval_ms > 0:
                self._timers.append(
                    service.schedule_with_fixed_delay(callback, initial_delay_ms=interval_ms, period_ms=interval_ms)
                )

    def _stream_of(self, split: str | None, clock: PausableClock) -> EventTimeStream:
        said_to = self._emitter if split is None else self._parts.add(split)
        owner = None if split is None else self._whole  # one compiled loop, even for thousands of splits
        return EventTimeStream(self._strategy, self._ctx, self._output, self._emitter, said_to, clock, owner)

    # -- records of the reader

    @property
    def current_split(self) -> str | None:
        """The split of the records that were polled last; None if the reader has none."""
        return self._reader.current_split if self._has_splits else None

    def process_some(self, chunk: Chunk, split: str | None, interrupts: Interrupts | None) -> int:
        """Process records of a split until ``interrupts`` are not empty; returns how many, 0 if a mail came before the
        first.
        """
        open_splits = self._reader.open_splits
        if open_splits is None or split is None:
            return self._whole.process_chunk(chunk, interrupts)
        if open_splits is not self._watched or open_splits.has_changed or split not in self._splits:
            # The chunk may hold a split's first records, and also its last.
            self._ended += self._open_splits(open_splits, split)
        return self._splits[split].stream.process_chunk(chunk, interrupts)

    def end_chunk(self) -> None:
        """Close the splits that ended with the records polled so far, which are all processed, and emit watermarks."""
        if not self._has_splits:
            return
        if self._ended:
            ended, self._ended = self._ended, []
            self._close_splits(ended)
        self._emitter.flush()

    def emit_control(self, element: Watermark | WatermarkStatus) -> None:
        """Take a watermark or a status of the reader, or the last watermark."""
        if isinstance(element, Watermark):
            self._emitter.emit_watermark(element.timestamp)
        elif element.is_idle:
            self._emitter.mark_idle()
        else:
            self._emitter.mark_active()
        self._emitter.flush()

    def _open_splits(self, open_splits: OpenSplits, *current: str) -> list[str]:
        """Open the splits that came, and the current one; returns the splits that have ended, which stay open here: the
        records that were polled last may be theirs.
        """
        changed = dict.fromkeys((*open_splits.take_changed(), *current))
        if open_splits is not self._watched:
            self._watched = open_splits
            # This object knows only its own changes: splits of the object before it may have ended unnoticed.
            changed |= dict.fromkeys((*self._splits, *open_splits))
        for name in changed:
            if name not in self._splits and (name in open_splits or name in current):
                self._had_splits = True
                clock = PausableClock(self._clock)
                self._splits[name] = _Split(clock, self._stream_of(name, clock))
        return [name for name in changed if name in self._splits and name not in open_splits]

    def _close_splits(self, ended: Iterable[str]) -> None:
        for name in ended:
            if self._splits.pop(name, None) is not None:
                self._parts.remove(name)

    # -- time

    def _on_periodic_timer(self, timestamp_ms: int) -> None:
        open_splits = self._reader.open_splits
        if open_splits is None:
            self._whole.ask()
        else:
            ended = self._open_splits(open_splits)
            # Each generator may raise the lowest watermark: it is looked for once behind all splits, not for each of
            # them.
            self._parts.defer()
            for split in self._splits.values():
                split.stream.ask()
            self._close_splits(ended)
            self._parts.update()
            self._order_splits()
        self._emitter.flush()

    def _on_report_timer(self, timestamp_ms: int) -> None:
        assert self.alignment is not None, "the source is in a group"
        sampled = self.alignment.sample()
        # A reader that has read its splits, and waits for others or for the next source, must not be waited for.
        has_nothing = self._had_splits and not self._reader.open_splits
        self._report(MAX_TIMESTAMP if has_nothing else sampled)
        self._look_at_alignment()

    def finish(self) -> None:
        """Report that the source has no more records, so that no other source waits for it."""
        if self.alignment is not None:
            self.alignment.is_finished = True
            self._report(MAX_TIMESTAMP)

    def close(self) -> None:
        """Cancel the timers."""
        for timer in self._timers:
            timer.cancel()

    # -- alignment

    def allow(self, max_allowed_ms: int) -> None:
        """Set the alignment group's limit, which the JobManager sent."""
        if self.alignment is None:
            return
        self.alignment.allow(max_allowed_ms)
        self._order_splits()
        self._look_at_alignment()

    def _look_at_alignment(self) -> None:
        assert self.alignment is not None, "the source is in a group"
        if self.alignment.must_wait and self.wait_future is None:
            self.wait_future = AvailabilityFuture()
            self._clock.pause()
        elif not self.alignment.must_wait and self.wait_future is not None:
            allowed, self.wait_future = self.wait_future, None
            self._clock.resume()
            allowed.complete()

    def _order_splits(self) -> None:
        if self.alignment is None or not self._pauses:
            return
        pause, resume = self.alignment.split_orders(self._parts.watermarks())
        for name in pause:
            self._splits[name].clock.pause()
        for name in resume:
            self._splits[name].clock.resume()
        if pause or resume:
            self._reader.pause_or_resume_splits(pause, resume)

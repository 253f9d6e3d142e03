"""Sources: where records come from.

Side:       task.  A ``Source`` is made in the user's program and pickled; its readers live in the tasks.
Invariants: a reader is made when its task opens and closed once.
Rules:      a reader knows from its subtask number what is its share, or its source has an enumerator in the JobManager,
            which hands out the splits on demand (``flowlet/splits/enumerator.py``).  A checkpoint has each reader's
            position.  Watermarks are not part of it, as in Flink: after a restart they begin anew with the records that
            are read then, and idleness is found out again.
Source:     Flink ``Source``, ``SourceReader``, ``SourceOperator``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from flowlet.chain.operator_output import output_for
from flowlet.chain.record_copies import copy_if_mutable, unpickled
from flowlet.chain.record_slices import Caution, RecordSlices
from flowlet.chain.stream_operator import OperatorContext, OperatorCounters, Output, StreamOperator
from flowlet.common.execution_config import DEFAULT_AUTO_WATERMARK_INTERVAL_MS
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.errors import FlowletError, StateRestoreError, UserFunctionError
from flowlet.mailbox.task_mailbox import Interrupts
from flowlet.operators.latency_stats import LatencyMarkerEmitter
from flowlet.operators.source_event_time import SourceEventTime
from flowlet.records import Chunk, CompletionMark, StreamElement, Watermark, WatermarkStatus
from flowlet.splits.enumerator import SourceSplit, SplitEnumerator, SplitReceiver
from flowlet.splits.known_splits import NumbersLeft, Runs, share_of_runs
from flowlet.state.state_snapshots import StateShare
from flowlet.timers.time_api import ProcessingTimeService
from netstack.availability import AvailabilityFuture
from netstack.late import dataclass
from netstack.log_lines import LogLines

_log = LogLines(__name__)
# 1,000-2,000 records per chunk are best for records that are Python objects (hot-path measurements).
MAX_CHUNK_RECORDS = 1_000


class SourceReader(Protocol):
    """Reads one subtask's share.

    A reader that knows how much there is may have an attribute ``progress``: the fraction read so far, 0 to 1, read by
    any thread.  One that may have nothing just now should have a method ``available_future()``: a future that is done
    once it is worth to poll again; without it the reader is polled again at once.  One whose poll never waits for
    anything should have an attribute ``never_waits``, which is true: then what several polls gave may go on its way
    together, which is cheaper; what other readers give goes at once, since the next poll may wait.  One that reads
    splits may be a ``SplitReader``: then each has a watermark of its own.  One whose source has an enumerator must be a
    ``SplitReceiver``.  One that acknowledges what was processed may be a ``MarkedReader``.  One that can go on after a
    restart has ``snapshot_position()``, which gives a value that says what was read so far and never changes, and
    ``restore_position(value)``, which is called before the first poll; without them a restored source reads everything
    again.  A source whose positions can be divided among another number of readers has
    ``redistribute_positions(positions, share)``: the positions by former subtask (None: it had read everything) and a
    ``StateShare``; it gives the position of one reader, which is never None.  One that acknowledges what checkpoints
    hold may be a ``PositionListener``.  One with a user's function that has states may be a ``CheckpointedReader``.
    One that needs a clock or timers may be a ``TimedReader``.  One that calls a function of the user for each record
    may be an ``InterruptibleReader``.
    """

    def poll_chunk(self) -> Chunk | Watermark | WatermarkStatus | None:
        """The next records, a watermark or status, an empty chunk if there is nothing just now, or None at the end."""

    def close(self) -> None:
        """Give back files and the like."""


@runtime_checkable
class MarkedReader(Protocol):
    """A reader that wants to know when everything that it has given was processed by the whole job.

    One implementer: ``RemoteGateReader`` stands on a floor above.
    """

    def mark_emitted(self, number: int) -> None:
        """A completion mark follows what the reader has given so far."""

    def mark_completed(self, number: int) -> None:
        """The completion mark has passed every task of the job."""


@runtime_checkable
class PositionListener(Protocol):
    """A reader that wants to know which of its positions a complete checkpoint holds."""

    def position_taken(self, checkpoint_id: int, num_waiting: int) -> None:
        """The checkpoint has what ``snapshot_position`` just gave, and the last ``num_waiting`` records, which wait to
        be processed.
        """

    def position_kept(self, checkpoint_id: int) -> None:
        """The checkpoint is complete.  Must not block."""

    def position_lost(self, checkpoint_id: int) -> None:
        """The checkpoint has failed; of some that fail nothing is said."""


@runtime_checkable
class CheckpointedReader(Protocol):
    """A reader with a user's function that takes part in checkpoints, and may run on a thread of its own.

    One implementer: ``BlockingSourceReader`` stands on a floor above.
    """

    @property
    def keeps_function_state(self) -> bool:
        """Whether the function's states tell what it has emitted, so that it does not emit that
        again after a restart.
        """

    def initialize_function(self, ctx: OperatorContext) -> None:
        """Let the function get its states; before the first poll."""

    def hold_function(self) -> Sequence[Chunk | Watermark | WatermarkStatus]:
        """Keep the function from changing its state until ``snapshot_function``; returns all that it emitted and that
        was not polled.
        """

    def snapshot_function(self, ctx: OperatorContext, checkpoint_id: int, timestamp_ms: int) -> None:
        """Let the function put what it keeps into its states, and copy them; then it goes on."""

    def checkpoint_completed(self, ctx: OperatorContext, checkpoint_id: int) -> None:
        """Tell the function, if it wants to know."""

    def checkpoint_aborted(self, ctx: OperatorContext, checkpoint_id: int) -> None:
        """Tell the function, if it wants to know."""


@runtime_checkable
class TimedReader(Protocol):
    """A reader that has nothing until some time, such as one with a rate."""

    def use_clock(self, clock: ProcessingTimeService) -> None:
        """Take the clock and the timers of the task; once, before everything else.

        Timers fire on the task's thread.
        """


@runtime_checkable
class InterruptibleReader(Protocol):
    """A reader whose poll calls a function of the user for each record, and gives what it has between two of them when
    a mail comes.
    """

    def use_interrupts(self, interrupts: Interrupts) -> None:
        """Take what is not empty while a mail waits; once, before the first poll."""


@runtime_checkable
class CountingReader(Protocol):
    """A reader that leaves out messages, and counts them."""

    def use_counters(self, counters: OperatorCounters) -> None:
        """Take the counters of the operator; once, before the first poll."""


class Source(ABC):
    """Something to read from."""

    is_bounded: bool = True

    @abstractmethod
    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        """The reader of subtask ``subtask`` of ``parallelism``; together they read everything once."""

    def create_enumerator(self) -> SplitEnumerator | None:
        """What hands out the splits, in the JobManager; None: each reader knows its share."""
        return None


def enumerator_of(source: Source) -> SplitEnumerator | None:
    """A new enumerator of a source, if it has any; a source of a user need not know of them."""
    create = getattr(source, "create_enumerator", None)
    return None if create is None else create()


@dataclass(frozen=True, slots=True)
class KeptRecords:
    """Records of a chunk in a snapshot; those that could change are pickled."""

    values: tuple[Any, ...]
    timestamps: tuple[int, ...] | None

    @classmethod
    def of(cls, chunk: Chunk) -> "KeptRecords":
        """Copies of the records as they are now."""
        return cls(
            tuple(map(copy_if_mutable, chunk.values)), None if chunk.timestamps is None else tuple(chunk.timestamps)
        )

    def taken(self) -> Chunk:
        """The records."""
        return Chunk(unpickled(list(self.values)), None if self.timestamps is None else list(self.timestamps))


KeptElement = tuple[str | None, KeptRecords | Watermark | WatermarkStatus]


@dataclass(frozen=True, slots=True)
class PositionWithRest:
    """The position of a reader in a snapshot that was taken between two records of what it gave last.

    ``rest``: what it gave and has not gone through the chain, in order, each with its split; its effects are in no
        state.
    """

    position: object
    rest: tuple[KeptElement, ...]


class SourceOperator(StreamOperator):
    """The head of a chain that has no input.

    The task calls ``emit_next`` until it returns False.

    Args:
        source: makes the reader.
        strategy: event time; None: that of the reader, if it has any.
        emits_watermarks: False for a bounded job in batch mode, which needs timestamps only.
        name: for people.
    """

    def __init__(
        self,
        source: Source,
        *,
        strategy: WatermarkStrategy | None = None,
        emits_watermarks: bool = True,
        name: str = "Source",
    ) -> None:
        self.name = name
        self.source = source
        self.latency_tracking_interval_ms = 0  # 0: no markers
        self.auto_watermark_interval_ms = DEFAULT_AUTO_WATERMARK_INTERVAL_MS
        self.strategy = strategy
        self._emits_watermarks = emits_watermarks
        self._event_time: SourceEventTime | None = None  # from open on, if there is a strategy
        self._reader: SourceReader | None = None
        # The reader while it is open, if splits are handed out.
        self._receiver: SplitReceiver[SourceSplit] | None = None
        self._last_progress: float | None = None
        self._has_nothing = False
        self._never_waits = False  # of the reader
        self._markers: LatencyMarkerEmitter | None = None
        self._restored: object | None = None
        # What was polled and has not gone through the chain, each with its split.
        self._slices: RecordSlices[str | None] = RecordSlices(lambda: 0)  # until the task gives its clocks
        self._has_warned = False

    def setup(self, ctx: OperatorContext, output: Output) -> None:
        """Tell the operator where it is and where its results go."""
        super().setup(ctx, output)
        self.out = output_for(output, self.name, ctx.counters)
        self.output = self.out

    def cut_chunks(
        self, clock_ns: Callable[[], int], cpu_ns: Callable[[], int], caution: Caution, *, cuts: bool
    ) -> None:
        """Take what the task gives to ``RecordSlices``; before ``initialize_state``."""
        self._slices = RecordSlices(clock_ns, cpu_ns=cpu_ns, cuts=cuts, caution=caution)

    def initialize_state(self, state: object | None) -> None:
        """Keep the position for the reader, and what was read before it."""
        if isinstance(state, PositionWithRest):
            for split, element in state.rest:
                self._slices.add(split, (element.taken() if isinstance(element, KeptRecords) else element,))
            state = state.position
        self._restored = state

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Take what a function has emitted so far, and keep it from going on: so its state belongs exactly before the
        barrier.
        """
        self.hold()

    def hold(self) -> None:
        """Take what a function has emitted so far; it goes on after the next snapshot, or ends at ``close``."""
        if isinstance(self._reader, CheckpointedReader):
            self._slices.add(None, self._reader.hold_function())

    @property
    def has_rest(self) -> bool:
        """Whether something that was polled has not gone through the chain."""
        return bool(self._slices)

    def snapshot_functions(self, checkpoint_id: int, timestamp_ms: int) -> None:
        """Let the reader's function put what it keeps into its states."""
        if isinstance(self._reader, CheckpointedReader):
            self._reader.snapshot_function(self.ctx, checkpoint_id, timestamp_ms)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Tell the reader, or its function."""
        if isinstance(self._reader, CheckpointedReader):
            self._reader.checkpoint_completed(self.ctx, checkpoint_id)
        if isinstance(self._reader, PositionListener):
            with self._reader_errors():
                self._reader.position_kept(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Tell the reader, or its function."""
        if isinstance(self._reader, CheckpointedReader):
            self._reader.checkpoint_aborted(self.ctx, checkpoint_id)
        if isinstance(self._reader, PositionListener):
            with self._reader_errors():
                self._reader.position_lost(checkpoint_id)

    def snapshot_state(self, checkpoint_id: int) -> object | None:
        """How far the reader is, if it can tell, and what it gave that has not gone through the chain."""
        position = getattr(self._reader, "snapshot_position", None)
        if position is None:
            self._warn_that_it_begins_anew()
            return None
        with self._reader_errors():
            found: object = position()
            if isinstance(self._reader, PositionListener):
                num_waiting = sum(len(element) for _, element in self._slices if isinstance(element, Chunk))
                self._reader.position_taken(checkpoint_id, num_waiting)
        keeps_rest = found is not None or (
            isinstance(self._reader, CheckpointedReader) and self._reader.keeps_function_state
        )
        rest = self._kept_rest() if keeps_rest else ()  # else the reader gives it again
        return PositionWithRest(found, rest) if rest else found

    def _kept_rest(self) -> "tuple[KeptElement, ...]":
        """A completion mark is not kept: nobody waits for it after a restart."""
        return tuple(
            (split, KeptRecords.of(element) if isinstance(element, Chunk) else element)
            for split, element in self._slices
            if isinstance(element, Chunk | Watermark | WatermarkStatus)
        )

    def redistribute(self, states: Sequence[object | None], share: StateShare) -> object | None:
        """This subtask's part of what was not read.

        Raises:
            StateRestoreError: the source cannot divide it otherwise.
        """
        redistribute = getattr(self.source, "redistribute_positions", None)
        if redistribute is not None:
            rest: list[KeptElement] = []
            for index, state in enumerate(states):
                if isinstance(state, PositionWithRest) and index % share.parallelism == share.subtask:
                    # Watermarks are not divided.
                    rest += [(split, each) for split, each in state.rest if isinstance(each, KeptRecords)]
            positions = [state.position if isinstance(state, PositionWithRest) else state for state in states]
            found: object = redistribute(positions, share)
            return PositionWithRest(found, tuple(rest)) if rest else found
        if share.finished:
            raise StateRestoreError(
                f"source {self.name!r} had ended in {len(share.finished)} of {share.former_parallelism} subtasks and "
                "cannot divide what "
                f"is left; set its parallelism to {share.former_parallelism}, and leave the chaining as it was"
            )
        return super().redistribute(states, share)

    def _warn_that_it_begins_anew(self) -> None:
        if self.ctx.subtask == 0 and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "a reader has no snapshot_position(): after a restart the source reads everything again",
                source=self.name,
                reader=type(self._reader).__name__,
            )

    def open(self) -> None:
        """Make the reader, and start the latency markers if there are to be any."""
        if self.latency_tracking_interval_ms > 0:
            self._markers = LatencyMarkerEmitter(
                self.ctx.processing_time_service,
                self.output.emit_latency_marker,
                interval_ms=self.latency_tracking_interval_ms,
                operator_id=self.ctx.operator_id,
                subtask=self.ctx.subtask,
            )
        with self._reader_errors():
            self._reader = self.source.create_reader(self.ctx.subtask, self.ctx.parallelism)
            self._never_waits = bool(getattr(self._reader, "never_waits", False))
            if isinstance(self._reader, TimedReader):
                self._reader.use_clock(self.ctx.processing_time_service)
            if isinstance(self._reader, InterruptibleReader):
                self._reader.use_interrupts(self.ctx.interrupts)
            if isinstance(self._reader, CountingReader):
                self._reader.use_counters(self.ctx.counters)
            if self._restored is not None:
                getattr(self._reader, "restore_position", lambda _: None)(self._restored)
            if isinstance(self._reader, CheckpointedReader):
                self._reader.initialize_function(self.ctx)
            if enumerator_of(self.source) is not None:
                self._start_receiving(self._reader)
        if self.strategy is not None:
            self._event_time = SourceEventTime(
                self.strategy,
                self.ctx,
                self.out,
                self._reader,
                auto_watermark_interval_ms=self.auto_watermark_interval_ms,
                emits_watermarks=self._emits_watermarks,
            )

    def _start_receiving(self, reader: SourceReader) -> None:
        if self.ctx.request_splits is None:
            raise FlowletError(
                f"source {self.name!r}: only a JobManager hands out its splits; run the job on a cluster"
            )
        if not isinstance(reader, SplitReceiver):
            kind = type(reader).__name__
            raise FlowletError(
                f"source {self.name!r} has an enumerator, so its {kind} needs start(), add_splits() and "
                "no_more_splits()"
            )
        self._receiver = reader
        reader.start(self.ctx.request_splits)

    def add_splits(self, splits: Sequence[SourceSplit], waiting_bytes: int) -> None:
        """The JobManager gives these to the reader, and keeps so much for all readers together; nothing for a source
        that has none.

        Raises:
            FlowletError: the reader said so.
            UserFunctionError: the reader failed otherwise.
        """
        if self._receiver is not None:
            with self._reader_errors():
                self._receiver.add_splits(splits, waiting_bytes)

    def no_more_splits(self) -> None:
        """The JobManager has none left for the reader; nothing for a source that has none.

        Raises:
            FlowletError: the reader said so.
            UserFunctionError: the reader failed otherwise.
        """
        if self._receiver is not None:
            with self._reader_errors():
                self._receiver.no_more_splits()

    @contextmanager
    def _reader_errors(self, *notes: str) -> Iterator[None]:
        try:
            yield
        except FlowletError:
            raise
        except Exception as error:
            for note in notes:
                error.add_note(note)
            raise UserFunctionError(self.name, self.ctx.subtask, None) from error

    def emit_next(self, should_stop: Callable[[], bool] = lambda: False) -> bool:
        """Emit what comes next, or nothing if there is nothing just now; False when there is no more.

        ``should_stop`` is asked between pieces of it; what is left then comes next.

        Raises:
            FlowletError: the reader said so.
            UserFunctionError: the reader failed otherwise.
        """
        assert self._reader is not None, "opened"
        event_time = self._event_time
        if self._slices.waiting:
            self._emit_waiting(should_stop)
            return True
        if event_time is not None and event_time.must_wait:
            return True
        try:
            element = self._reader.poll_chunk()
        except FlowletError:
            raise
        except Exception as error:
            raise UserFunctionError(self.name, self.ctx.subtask, None) from error
        if element is None:
            self._has_nothing = False
            return False
        self._has_nothing = isinstance(element, Chunk) and not len(element)
        if not self._has_nothing:
            split = event_time.current_split if event_time is not None and isinstance(element, Chunk) else None
            # A mail that comes before the record is taken leaves it here.
            if self._slices.is_needless_for(element) and self._emit_some(split, element):
                if event_time is not None:
                    event_time.end_chunk()
            else:
                self._slices.add(split, (element,))
                self._emit_waiting(should_stop)
        return True

    def _emit_waiting(self, should_stop: Callable[[], bool]) -> None:
        is_done = self._slices.process(self._emit_some, self._emit_control, should_stop)
        if is_done and self._event_time is not None:
            self._event_time.end_chunk()

    def _emit_some(self, split: str | None, chunk: Chunk) -> int:
        if self._event_time is None:
            return self.out.collect_some(chunk, self.ctx.interrupts)
        return self._event_time.process_some(chunk, split, self.ctx.interrupts)

    def _emit_control(self, _split: str | None, element: StreamElement) -> None:
        match element:
            case Watermark():
                self.process_watermark(element)
            case WatermarkStatus():
                self.process_watermark_status(element)
            case CompletionMark():
                self.output.emit_mark(element)
            case _:
                raise AssertionError(f"no reader gives {element!r}")

    @property
    def may_go_on(self) -> bool:
        """Whether ``emit_next`` had something, and will not wait for more when it is called at once."""
        return self._never_waits and not self._has_nothing and not self.is_held_back

    def process_watermark(self, watermark: Watermark) -> None:
        """One that the reader gave; or the last one, which the task gives."""
        if self._event_time is None:
            self.output.emit_watermark(watermark)
        else:
            self._event_time.process_watermark(watermark)

    def process_watermark_status(self, status: WatermarkStatus) -> None:
        """One that the reader gave."""
        if self._event_time is None:
            self.output.emit_watermark_status(status)
        else:
            self._event_time.process_status(status)

    def allow_watermark(self, max_allowed_ms: int) -> None:
        """The JobManager said how far the sources of the alignment group may be."""
        if self._event_time is not None:
            self._event_time.allow(max_allowed_ms)

    def emit_mark(self, mark: CompletionMark) -> None:
        """Emit a completion mark behind all records so far, and tell the reader, if it wants to know."""
        if isinstance(self._reader, MarkedReader):
            self._reader.mark_emitted(mark.number)
        if self._slices:
            self._slices.add(None, (mark,))
        else:
            self.output.emit_mark(mark)

    def mark_completed(self, number: int) -> None:
        """A mark has passed every task of the job: tell the reader, if it wants to know."""
        if isinstance(self._reader, MarkedReader):
            self._reader.mark_completed(number)

    @property
    def is_held_back(self) -> bool:
        """Whether the source waits for the others of its alignment group."""
        return self._event_time is not None and self._event_time.must_wait

    @property
    def alignment_drift_ms(self) -> int | None:
        """How far the source is ahead of what its group allows; None without a group.  Any thread."""
        event_time = self._event_time
        return None if event_time is None or event_time.alignment is None else event_time.alignment.drift_ms

    def wait_future(self) -> AvailabilityFuture | None:
        """What to wait for before the next ``emit_next``; None when there is no need, or no way, to wait."""
        if self._slices:
            return None
        if self._event_time is not None and self._event_time.must_wait:
            return self._event_time.wait_future
        if not self._has_nothing:
            return None
        available_future = getattr(self._reader, "available_future", None)
        return None if available_future is None else available_future()

    @property
    def progress(self) -> float | None:
        """The fraction that was read, 0 to 1; None if the reader does not tell.  Any thread."""
        reader = self._reader
        return self._last_progress if reader is None else getattr(reader, "progress", None)

    def finish(self) -> None:
        """Nobody has to wait for this source any more."""
        if self._event_time is not None:
            self._event_time.finish()

    def close(self) -> None:
        """Close the reader.

        Raises:
            FlowletError: the reader said so.
            UserFunctionError: the reader failed otherwise.
        """
        if self._event_time is not None:
            self._event_time.close()
        if self._markers is not None:
            self._markers.close()
        self._last_progress = self.progress
        self._slices.clear()
        reader, self._reader, self._receiver = self._reader, None, None
        if reader is None:
            return
        with self._reader_errors("raised by close()"):
            reader.close()


class CollectionSource(Source):
    """The records of a collection; subtask i gets the i-th of ``parallelism`` runs of about the same length.

    Args:
        values: copied; the records travel with the job.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self.values = list(values)

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        """A reader of one run."""
        start, end = (len(self.values) * number // parallelism for number in (subtask, subtask + 1))
        return _CollectionReader(self.values, start, end)

    def redistribute_positions(self, positions: Sequence[Runs | None], share: StateShare) -> Runs:
        """A run of what is left, about as long as those of the other readers."""
        return share_of_runs([run for runs in positions for run in runs or ()], share.subtask, share.parallelism)


class _CollectionReader:
    never_waits = True

    def __init__(self, values: list[Any], start: int, end: int) -> None:
        self._values = values
        self._left = NumbersLeft(((start, end),))

    def poll_chunk(self) -> Chunk | None:
        found = self._left.take(MAX_CHUNK_RECORDS)
        return None if found is None else Chunk(self._values[found.start : found.stop])

    def snapshot_position(self) -> Runs:
        return self._left.runs

    def restore_position(self, position: Runs) -> None:
        self._left = NumbersLeft(position)

    def close(self) -> None:
        self._values = []
        self._left = NumbersLeft(())

"""The operator of a source: ``SourceOperator`` polls a reader, and gives its records event time.

``CollectionSource``: the records of a collection.

Side:       task.
Invariants: records that a reader gave and that have not gone through the chain belong to the snapshot, in order.
Rules:      a reader knows its share from its subtask number, or its source has an enumerator in the JobManager, which
            hands out the splits on demand (``flowlet/splits/enumerators.py``).  A checkpoint has each reader's
            position.  Watermarks are not part of it, as in Flink: after a restart they begin anew with the records that
            are read then, and idleness is found out again.
Source:     Flink ``SourceOperator``, ``StreamSource.LatencyMarkerEmitter``.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flowlet.chain.record_shape import copy_if_mutable, unpickled
from flowlet.chain.record_slices import RecordSlices
from flowlet.chain.stream_operator import StreamOperator
from flowlet.common.execution_config import DEFAULT_AUTO_WATERMARK_INTERVAL_MS
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.errors import FlowletError, StateRestoreError, UserFunctionError
from flowlet.operators.source_event_time import SourceEventTime
from flowlet.operators.source_reader import (
    MAX_CHUNK_RECORDS,
    ReaderByNames,
    Source,
    SourceReader,
    SourceReaderBase,
    split_set_of,
)
from flowlet.records import Chunk, CompletionMark, LatencyMarker, StreamElement, Watermark, WatermarkStatus
from flowlet.splits.split_kinds import Runs, SourceSplit, share_of_runs
from flowlet.state.state_snapshots import StateShare
from netstack.availability import AvailabilityFuture
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.loop.eventloop import Cancellable

_log = LogLines(__name__)


@dataclass(frozen=True, slots=True)
class KeptRecords:
    """Records of a chunk in a snapshot; those that could change are pickled."""

    values: tuple[Any, ...]
    timestamps: tuple[int, ...] | None

    @classmethod
    def of(cls, chunk: Chunk) -> "KeptRecords":
        """The records of a chunk in their present state; records that can change are copied."""
        # The chain goes on with these objects while the snapshot is written, and a function may change them.
        return cls(
            tuple(map(copy_if_mutable, chunk.values)), None if chunk.timestamps is None else tuple(chunk.timestamps)
        )

    def taken(self) -> Chunk:
        """The records as a chunk."""
        return Chunk(unpickled(list(self.values)), None if self.timestamps is None else list(self.timestamps))


KeptElement = tuple[str | None, KeptRecords | Watermark | WatermarkStatus]


@dataclass(frozen=True, slots=True)
class PositionWithRest:
    """The position of a reader in a snapshot that was taken between two records of its last chunk.

    ``rest``: the elements that the reader gave and that have not gone through the chain, in order, each with its split;
        their effects are in no state.
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
        self.emits_watermarks = emits_watermarks
        self._event_time: SourceEventTime | None = None  # from open on, if there is a strategy
        self._reader: SourceReaderBase | None = None  # while it is open
        self._last_progress: float | None = None
        self._has_nothing = False
        self._has_splits = False  # whether an enumerator hands out splits
        self._marker_timer: Cancellable | None = None
        self._restored: object | None = None
        # The polled elements that have not gone through the chain, each with its split.  The task replaces this object
        # by its own before ``initialize_state``.
        self.slices: RecordSlices[str | None] = RecordSlices(lambda: 0)
        self._has_warned = False

    def initialize_state(self, state: object | None) -> None:
        """Keep the position for the reader, and the elements that were read before it and not processed."""
        if isinstance(state, PositionWithRest):
            for split, element in state.rest:
                self.slices.add(split, (element.taken() if isinstance(element, KeptRecords) else element,))
            state = state.position
        self._restored = state

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Take the records that a function has emitted so far, and keep it from going on, so that its state belongs
        exactly before the barrier.
        """
        self.hold()

    def hold(self) -> None:
        """Take the records that a function has emitted so far; it goes on after the next snapshot, or ends at
        ``close``.
        """
        self.slices.add(None, self._opened.hold())

    @property
    def _opened(self) -> SourceReaderBase:
        assert self._reader is not None, "open"
        return self._reader

    def snapshot_functions(self, checkpoint_id: int, timestamp_ms: int) -> None:
        """Let the reader's function save its data in its states."""
        self._opened.snapshot_function(checkpoint_id, timestamp_ms)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Tell the reader."""
        if self._reader is not None:
            with self._reader_errors():
                self._reader.position_kept(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Tell the reader."""
        if self._reader is not None:
            with self._reader_errors():
                self._reader.position_lost(checkpoint_id)

    def snapshot_state(self, checkpoint_id: int) -> object | None:
        """The position of the reader, if it has one, and the elements that have not gone through the chain."""
        reader = self._opened
        if isinstance(reader, ReaderByNames) and not reader.keeps_position:
            self._warn_that_it_begins_anew(reader.reader)
            return None
        with self._reader_errors():
            found = reader.snapshot_position()
            reader.position_taken(
                checkpoint_id, sum(len(element) for _, element in self.slices if isinstance(element, Chunk))
            )
        rest = () if found is None and reader.gives_again else self._kept_rest()
        return PositionWithRest(found, rest) if rest else found

    def _kept_rest(self) -> "tuple[KeptElement, ...]":
        """The elements that wait, for a snapshot; without completion marks, which have no use after a restart."""
        return tuple(
            (split, KeptRecords.of(element) if isinstance(element, Chunk) else element)
            for split, element in self.slices
            if isinstance(element, Chunk | Watermark | WatermarkStatus)
        )

    def redistribute(self, states: Sequence[object | None], share: StateShare) -> object | None:
        """This subtask's part of the records that were not read.

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

    def _warn_that_it_begins_anew(self, reader: SourceReader) -> None:
        if self.ctx.subtask == 0 and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "a reader has no snapshot_position(): after a restart the source reads everything again",
                source=self.name,
                reader=type(reader).__name__,
            )

    def open(self) -> None:
        """Make the reader, and start the latency markers if there are to be any."""
        if self.latency_tracking_interval_ms > 0:
            self._marker_timer = self.ctx.processing_time_service.schedule_with_fixed_delay(
                self._emit_marker, initial_delay_ms=0, period_ms=self.latency_tracking_interval_ms
            )
        with self._reader_errors():
            self._has_splits = split_set_of(self.source) is not None
            made = self.source.create_reader(self.ctx.subtask, self.ctx.parallelism)
            reader = made if isinstance(made, SourceReaderBase) else ReaderByNames(made, has_splits=self._has_splits)
            self._reader = reader
            reader.setup(self.ctx)
            if self._restored is not None:
                reader.restore_position(self._restored)
            if self._has_splits and self.ctx.request_splits is None:
                raise FlowletError(
                    f"source {self.name!r}: only a JobManager hands out its splits; run the job on a cluster"
                )
            reader.start(self.ctx.request_splits or (lambda: None))  # a reader that knows its share does not ask
        if self.strategy is not None:
            self._event_time = SourceEventTime(self, self.strategy, reader)

    def _emit_marker(self, _timestamp_ms: int) -> None:
        now_ms = self.ctx.processing_time_service.current_time_ms()
        self.output.emit_control(LatencyMarker(now_ms, self.ctx.operator_id, self.ctx.subtask))

    def add_splits(self, splits: Sequence[SourceSplit], waiting_bytes: int) -> None:
        """Give the reader splits from the JobManager; does nothing if the source has no splits.

        ``waiting_bytes``: how many bytes of splits the JobManager still has for all readers together.

        Raises:
            FlowletError: the reader said so.
            UserFunctionError: the reader failed otherwise.
        """
        if self._has_splits and self._reader is not None:
            with self._reader_errors():
                self._reader.add_splits(splits, waiting_bytes)

    def no_more_splits(self) -> None:
        """Tell the reader that the JobManager has no split left; does nothing if the source has no splits.

        Raises:
            FlowletError: the reader said so.
            UserFunctionError: the reader failed otherwise.
        """
        if self._has_splits and self._reader is not None:
            with self._reader_errors():
                self._reader.no_more_splits()

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
        """Emit the next element, if there is one just now; False at the end of the source.

        ``should_stop`` is asked between pieces of a chunk; the next call goes on with the rest.

        Raises:
            FlowletError: the reader said so.
            UserFunctionError: the reader failed otherwise.
        """
        event_time = self._event_time
        # Before the look at the group: it holds back the reader, and these records are read already.
        if self.slices.waiting:
            self._emit_waiting(should_stop)
            return True
        if event_time is not None and event_time.wait_future is not None:
            return True
        try:
            element = self._opened.poll_chunk()
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
            if self.slices.is_needless_for(element) and self._emit_some(split, element):
                if event_time is not None:
                    event_time.end_chunk()
            else:
                self.slices.add(split, (element,))
                self._emit_waiting(should_stop)
        return True

    def _emit_waiting(self, should_stop: Callable[[], bool]) -> None:
        is_done = self.slices.process(self._emit_some, self._emit_control, should_stop)
        if is_done and self._event_time is not None:
            self._event_time.end_chunk()

    def _emit_some(self, split: str | None, chunk: Chunk) -> int:
        if self._event_time is None:
            return self.output.collect_some(chunk, self.ctx.interrupts)
        return self._event_time.process_some(chunk, split, self.ctx.interrupts)

    def _emit_control(self, _split: str | None, element: StreamElement) -> None:
        if isinstance(element, Watermark | WatermarkStatus):
            (self._event_time or self.output).emit_control(element)
        else:
            assert isinstance(element, CompletionMark), f"no reader gives {element!r}"
            self.output.emit_control(element)

    @property
    def may_go_on(self) -> bool:
        """Whether the last ``emit_next`` had an element, and another call at once will not wait."""
        return not self._has_nothing and not self.is_held_back and self._opened.never_waits

    def process_watermark(self, watermark: Watermark) -> None:
        """Pass on the last one, which the task gives."""
        (self._event_time or self.output).emit_control(watermark)

    def allow_watermark(self, max_allowed_ms: int) -> None:
        """Set how far the JobManager lets the sources of the alignment group go."""
        if self._event_time is not None:
            self._event_time.allow(max_allowed_ms)

    def emit_mark(self, mark: CompletionMark) -> None:
        """Emit a completion mark behind all records so far, and tell the reader."""
        self._opened.mark_emitted(mark.number)
        if self.slices.waiting:
            self.slices.add(None, (mark,))
        else:
            self.output.emit_control(mark)

    def mark_completed(self, number: int) -> None:
        """Tell the reader that a mark has passed every task of the job."""
        if self._reader is not None:
            self._reader.mark_completed(number)

    @property
    def is_held_back(self) -> bool:
        """Whether the source waits for the others of its alignment group."""
        return self._event_time is not None and self._event_time.wait_future is not None

    @property
    def alignment_drift_ms(self) -> int | None:
        """How far the source is above the limit of its group, in milliseconds; None without a group.  Any thread."""
        event_time = self._event_time
        return None if event_time is None or event_time.alignment is None else event_time.alignment.drift_ms

    def wait_future(self) -> AvailabilityFuture | None:
        """The future that is done when ``emit_next`` is worth a call; None: no need, or no way, to wait."""
        if self.slices.waiting:
            return None
        if self._event_time is not None and self._event_time.wait_future is not None:
            return self._event_time.wait_future
        return self._opened.available_future() if self._has_nothing else None

    @property
    def progress(self) -> float | None:
        """The fraction that was read, 0 to 1; None if the reader does not tell.  Any thread."""
        reader = self._reader
        return self._last_progress if reader is None else reader.progress

    def finish(self) -> None:
        """Report to the alignment group that the data ended: no source waits for this one any more."""
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
        if self._marker_timer is not None:
            self._marker_timer.cancel()
        # Before the reader goes: other threads ask for the progress, and get this one from then on.
        self._last_progress = self.progress
        self.slices.waiting.clear()
        reader = self._reader
        self._reader = None
        if reader is not None:
            with self._reader_errors("raised by close()"):
                reader.close()


class ShareSource(Source):
    """Base class of sources of numbered records that travel with the job.

    The subtasks get runs of about equal lengths; after a restart with another parallelism the rest is dealt out anew.
    """

    def redistribute_positions(self, positions: Sequence[Runs | None], share: StateShare) -> Runs:
        """This subtask's runs of the records that are left: about as many as other subtasks get."""
        return share_of_runs([run for runs in positions for run in runs or ()], share.subtask, share.parallelism)


class ShareReader(SourceReaderBase):
    """Reads runs of numbered records, one after the other.

    Args:
        num_records: of the source.
        share: the subtask, and the parallelism.
        chunk_of: gives the records with these numbers.
        max_records: of a chunk.
    """

    never_waits = True

    def __init__(
        self, num_records: int, share: tuple[int, int], chunk_of: Callable[[range], Chunk], max_records: int
    ) -> None:
        self._left = share_of_runs([(0, num_records)], *share)
        self._chunk_of = chunk_of
        self._max_records = max_records

    def __repr__(self) -> str:
        return f"<ShareReader {self._left}>"

    def poll_chunk(self) -> Chunk | None:
        """The next records; None at the end."""
        if not self._left:
            return None
        (start, end), *later = self._left
        stop = min(start + self._max_records, end)
        self._left = ((stop, end), *later) if stop < end else tuple(later)
        return self._chunk_of(range(start, stop))

    def snapshot_position(self) -> Runs:
        """The numbers of the records that are left."""
        return self._left

    def restore_position(self, position: Runs) -> None:
        """Go on with the records of these numbers."""
        self._left = position

    def close(self) -> None:
        """Let the records go."""
        self._left = ()


class CollectionSource(ShareSource):
    """The records of a collection.

    Args:
        values: copied; the records travel with the job.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self.values = list(values)

    def create_reader(self, subtask: int, parallelism: int) -> ShareReader:
        """A reader of one run."""
        values = self.values
        return ShareReader(
            len(values),
            (subtask, parallelism),
            lambda numbers: Chunk(values[numbers.start : numbers.stop]),
            MAX_CHUNK_RECORDS,
        )

"""Windows and joins of columns in a task: event time or the clock, late rows, and their rows in the back end; and parts
of windows, made in the task that has the rows, so that few of them travel.

Hot path, per chunk and per watermark.

Side:       task.
Invariants: results of a watermark are emitted before it.  In BATCH mode windows end with their keys, or ahead of the
            last watermark, and the clock ends none.  Rows that were in RocksDB are older than those that are here.
Source:     Flink ``WindowOperator``; its ``numLateRecordsDropped``; ``WindowOperator`` with a ``CoGroupFunction``; the
            local half of Flink SQL's two-phase aggregation.
Rules:      no part waits: the parts of a chunk go on at once, so there is no state, and a watermark passes behind them.
            In small batches, and where most rows have a key and pane of their own, each row goes on as a part.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

import numpy as np
import pyarrow as pa

from flowlet.chain.stream_operator import MultipleInputStreamOperator
from flowlet.columns.arrow_batches import batch_of_records, columns_of_batch
from flowlet.errors import FlowletError, StateRestoreError, UserFunctionError
from flowlet.io.key_dictionary import DictionaryBypass
from flowlet.kernels.grouping import IndexArray
from flowlet.kernels.windows.columnar_join import LEFT, RIGHT, ColumnarJoin, ColumnJoin
from flowlet.kernels.windows.columnar_windows import (
    ColumnSessions,
    LocalWindows,
    PaneWindows,
    PartsLayout,
    WindowedAggregation,
    columnar_windows,
)
from flowlet.kernels.windows.window_partials import ColumnInputs, Int64Array
from flowlet.kernels.windows.window_shapes import MAX_WINDOW_TIMESTAMP, AlignedWindows, EmittedWindows, WindowTables
from flowlet.keys.exact_keys import key_group_range
from flowlet.keys.key_columns import column_key_groups
from flowlet.operators.record_batches import ToColumnsOperator, chunks_of
from flowlet.operators.user_function import UserFunctionOperator
from flowlet.records import MAX_TIMESTAMP, Chunk, Watermark
from flowlet.state.state_snapshots import ColumnBlock, ColumnHolder, StateShare
from flowlet.windows.window_blocks import WindowColumnsSnapshot, former_state, known_blocks, put_blocks, row_blocks
from netstack.loop.eventloop import Cancellable

if TYPE_CHECKING:
    from flowlet.state.rocksdb.cached_columns import CachedColumns

_NO_TIME: Final = (
    "windows of event time need rows with timestamps: call with_event_time(...) or "
    "assign_timestamps_and_watermarks(...) before window(...)"
)


def checked_timestamps(chunk: Chunk) -> Int64Array:
    """The timestamps of a chunk.

    Raises:
        FlowletError: there are none, or one is too far from 1970 for windows.
    """
    timestamps = chunk.timestamp_array
    if timestamps is None:
        raise FlowletError(_NO_TIME)
    lowest, highest = int(timestamps.min()), int(timestamps.max())
    if lowest < -MAX_WINDOW_TIMESTAMP or highest > MAX_WINDOW_TIMESTAMP:
        if lowest == -(2**63):
            raise FlowletError(_NO_TIME)
        raise FlowletError(
            f"windows cannot hold a row with the timestamp {lowest if lowest < -MAX_WINDOW_TIMESTAMP else highest}"
        )
    return timestamps


Tables = TypeVar("Tables", bound=WindowTables[Any])


class _WindowTablesOperator(UserFunctionOperator, ColumnHolder, Generic[Tables]):
    """Keeps windows in columns: their rows in the back end, and their ends.

    The subclass makes ``windows`` at first, and again whenever the keys have ended.
    """

    ends_keys_singly: ClassVar[bool | None] = False
    num_tables: ClassVar[int] = 1
    windows: Tables  # only the subclass assigns it, and the next field
    _description: str  # of the aggregation or join; state with another description is refused
    _cache: "CachedColumns | None" = None  # None: all rows are here
    _has_checkpoints = True

    @abstractmethod
    def _new_windows(self) -> Tables:
        """Windows without rows, for which no row is late."""

    def open(self) -> None:
        """Open the functions, and take over restored rows.

        Raises:
            StateRestoreError: the rows are of other windows, aggregations or keys.
        """
        super().open()
        if self.ctx.keyed_state is not None and self._has_checkpoints:
            try:
                self._cache = self.ctx.keyed_state.open_columns(self, self._description)
            except (StateRestoreError, TypeError, OverflowError) as error:
                raise StateRestoreError(f"operator {self.name!r}: {error}") from error

    def end_keys(self) -> None:
        """With sorted inputs: emit the windows of all keys so far, and forget them."""
        super().end_keys()
        self._end_windows()

    def _end_windows(self) -> None:
        self._fire(MAX_TIMESTAMP)
        self.windows = self._new_windows()

    def _fire(self, time_ms: int) -> None:
        """Emit the results of the windows that end at or before a time."""
        windows = self.windows
        try:
            if self._cache is None:
                self._emit(windows.fire(time_ms))
            else:
                self._emit(windows.fire(time_ms, self._cache.due(time_ms, windows.shape.starts_before(time_ms))))
        except OverflowError as error:
            raise UserFunctionError(self.name, self.ctx.subtask, None) from error

    def _emit(self, emitted: Iterable[EmittedWindows]) -> None:
        for windows in emitted:
            for chunk in chunks_of(windows.batch, windows.ends_ms - 1):
                self.output.collect(chunk)

    def close(self) -> None:
        """Let the rows go."""
        self.windows = self._new_windows()
        super().close()

    # -- checkpoints

    def initialize_state(self, state: object | None) -> None:
        """Give the back end the snapshot of an earlier version of flowlet, or those of several former subtasks."""
        parts = state if isinstance(state, tuple) else (state,)
        if state is not None:
            found = [each for each in parts if isinstance(each, WindowColumnsSnapshot)]
            assert len(found) == len(parts), f"a snapshot of {self.name!r} is a {type(parts[0]).__name__}"
            self.ctx.keyed_state_backend.restore(former_state(found, self.ctx.max_parallelism))

    def redistribute(self, states: Sequence[object | None], share: StateShare) -> object | None:
        """All snapshots of earlier versions of flowlet: the back end takes the keys of this subtask's key groups."""
        return tuple([each for each in states if each is not None]) or None

    def held_blocks(self, *, in_order: bool) -> Callable[[], Iterable[ColumnBlock]]:
        """Implement ``ColumnHolder.held_blocks``.  Raises UserFunctionError: a sum overflowed as runs were joined."""
        ctx = self.ctx
        try:
            keys, progress, tables = self.windows.state(in_order=in_order)
        except OverflowError as error:
            raise UserFunctionError(self.name, ctx.subtask, None) from error
        # Many rows share a pane; each row of a session may have a start of its own.
        is_cut = in_order and isinstance(self.windows.shape, AlignedWindows)
        key_groups = key_group_range(ctx.max_parallelism, ctx.parallelism, ctx.subtask)
        return lambda: chain(
            known_blocks(progress, key_groups), row_blocks(keys, tables, ctx.max_parallelism, is_cut=is_cut)
        )

    def take_blocks(self, blocks: list[ColumnBlock], before: int | None = None) -> list[ColumnBlock]:
        """Implement ``ColumnHolder.take_blocks``."""
        return put_blocks(self.windows, blocks, before, self.ctx.max_parallelism)


class WindowColumnsOperator(_WindowTablesOperator[PaneWindows | ColumnSessions], ToColumnsOperator):
    """Aggregates rows by key and window.

    Args:
        aggregation: the description of the aggregations.
        schema: of the rows, or of the parts; a ``pyarrow.Schema``.
        late_tag: the side output of rows that are too late; None: they are counted and dropped.
        layout: of the parts, if another task has made parts of the rows; None: rows arrive.
        is_batch: whether windows wait for the end of their keys, or of the input if it is not sorted.
        name: for people.
    """

    def __init__(
        self,
        aggregation: WindowedAggregation,
        schema: Any,
        late_tag: str | None = None,
        *,
        layout: PartsLayout | None = None,
        is_batch: bool = False,
        name: str = "Window",
    ) -> None:
        super().__init__(schema, name=name)
        self._layout = layout
        self._is_batch = is_batch
        self._has_checkpoints = not is_batch
        self._aggregation = aggregation
        self._late_tag = late_tag
        self.windows = self._new_windows()
        self._timer: Cancellable | None = None  # of windows by the clock
        wanted = ", ".join(f"{each.kind}({each.column or ''})" for each in aggregation.aggregates)
        self._description = f"{wanted} of {aggregation.shape} by {aggregation.key!r}: {aggregation.key_type}"

    def _new_windows(self) -> PaneWindows | ColumnSessions:
        return columnar_windows(self._aggregation, None if self._layout is None else self._layout.received)

    def open(self) -> None:
        """Open the functions, take over restored rows, and set the timer of windows that the clock ends."""
        super().open()
        self._set_timer()

    def close(self) -> None:
        """Cancel the timer, and let the rows go."""
        if self._timer is not None:
            self._timer.cancel()
        super().close()

    def process_chunk(self, chunk: Chunk) -> None:
        """Add the rows to their windows.

        Raises:
            UserFunctionError: the rows have no timestamps, or a value cannot be aggregated; names the column.
        """
        if not len(chunk):
            return
        columns = self._columns(chunk) if chunk.columns is None else chunk.columns
        try:
            inputs = ColumnInputs(columns, self._schema, self._times(chunk))
            if self._cache is not None:
                self._bring_reopened(inputs, self._cache)
            added = self.windows.add(inputs)
        except (FlowletError, TypeError, OverflowError) as error:
            raise UserFunctionError(self.name, self.ctx.subtask, f"a batch of {len(chunk)} rows") from error
        if len(added.late_rows):
            self._pass_late(inputs, added.late_rows)
        self._emit(added.changed)
        if self._cache is not None:
            self._cache.settle()
        self._set_timer()

    def _bring_reopened(self, inputs: ColumnInputs, cache: "CachedColumns") -> None:
        """Load the rows of windows that were emitted, and that these rows may change."""
        windows = self.windows
        rows = windows.reopened(inputs)
        if len(rows):
            key = self._aggregation.key
            keys = pa.nulls(1) if key is None else inputs.array(key).take(pa.array(rows))
            groups = np.unique(column_key_groups(keys, self.ctx.max_parallelism)).tolist()
            cache.bring(groups, windows.shape.starts_before(windows.progress.latest()))

    def process_watermark(self, watermark: Watermark) -> None:
        """Emit the windows that end here, then the watermark."""
        if self._aggregation.shape.is_event_time:
            self._fire(watermark.timestamp)
        elif self._is_batch and watermark.timestamp == MAX_TIMESTAMP:
            self._end_windows()
        super().process_watermark(watermark)

    def finish(self) -> None:
        """Emit, in BATCH mode, windows by the clock whose rows came behind the last watermark."""
        if self._is_batch:
            self._end_windows()
        super().finish()

    def _pass_late(self, inputs: ColumnInputs, rows: IndexArray) -> None:
        if self._late_tag is None:
            num_late = len(rows) if self._layout is None else self._layout.num_rows(inputs, rows)
            self.ctx.counters.num_late_records_dropped += num_late
            return
        late = inputs.take(rows)
        self.output.collect_side(
            self._late_tag, Chunk.of_columns(late.columns.with_key_position(None), late.timestamps)
        )

    # -- the clock

    def _times(self, chunk: Chunk) -> Int64Array:
        if self._aggregation.shape.is_event_time:
            return checked_timestamps(chunk)
        # No row is late for windows by the clock, even if it was set back.
        now_ms = max(self.ctx.processing_time_service.current_time_ms(), self.windows.progress.latest() + 1)
        return np.full(len(chunk), now_ms)

    def _set_timer(self) -> None:
        if self._is_batch or self._aggregation.shape.is_event_time or self._timer is not None:
            return
        ends = [self.windows.next_end(), None if self._cache is None else self._cache.next_end]
        if any(end is not None for end in ends):
            # The cache knows only a lower bound of the next end, which may have passed.
            end = max(min([end for end in ends if end is not None]), self.windows.progress.latest() + 1)
            self._timer = self.ctx.processing_time_service.register_timer(end, self._on_time)

    def _on_time(self, timestamp_ms: int) -> None:
        self._timer = None
        self._fire(timestamp_ms)
        self._set_timer()


class JoinColumnsOperator(_WindowTablesOperator[ColumnarJoin], MultipleInputStreamOperator):
    """Joins the rows of two inputs by key and window.

    Args:
        join: the description of the join.
        name: for people.
    """

    num_inputs = 2
    num_tables: ClassVar[int] = 2

    def __init__(self, join: ColumnJoin, *, name: str = "Join") -> None:
        super().__init__(name)
        self._join = join
        self.windows = self._new_windows()
        sides = [f"{join.kept_columns(side)} by {join.keys[side]!r}" for side in (LEFT, RIGHT)]
        self._description = f"{join.kind} join of {' and '.join(sides)}, a {join.key_type}, in {join.windows}"

    def _new_windows(self) -> ColumnarJoin:
        return ColumnarJoin(self._join)

    def process_watermark(self, watermark: Watermark) -> None:
        """Emit the rows of the windows that end here, then the watermark."""
        self._fire(watermark.timestamp)
        super().process_watermark(watermark)

    def process_input_chunk(self, input_id: int, chunk: Chunk) -> None:
        """Take rows of the left stream (1) or of the right one (2)."""
        if not len(chunk):
            return
        side = (LEFT, RIGHT)[input_id - 1]
        schema = self._join.schemas[side]
        try:
            columns = chunk.columns
            if columns is None:
                columns = columns_of_batch(batch_of_records(chunk.values, schema))
            num_late = self.windows.add(side, ColumnInputs(columns, schema, checked_timestamps(chunk)))
        except (FlowletError, TypeError) as error:
            raise UserFunctionError(self.name, self.ctx.subtask, f"a batch of {len(chunk)} rows") from error
        self.ctx.counters.num_late_records_dropped += num_late
        if self._cache is not None:
            self._cache.settle()


# Fewer rows in a part, on average, do not pay.
_ROWS_PER_PART: Final = 4
_MIN_ROWS: Final = 64  # of a batch that is looked at; not measured closely
_MIN_JUDGED_ROWS: Final = 1_024


class LocalWindowColumnsOperator(ToColumnsOperator):
    """Makes parts of rows.

    Args:
        aggregation: the description of the aggregations.
        schema: of the rows, a ``pyarrow.Schema``.
        layout: of the parts.
        name: for people.
    """

    def __init__(
        self, aggregation: WindowedAggregation, schema: Any, layout: PartsLayout, *, name: str = "Local Window"
    ) -> None:
        super().__init__(schema, name=name)
        self._aggregation = aggregation
        self._local = LocalWindows(aggregation, layout)
        self._bypass = DictionaryBypass()
        self._num_rows = self._num_parts = 0  # since the last judgement

    def __repr__(self) -> str:
        return f"<LocalWindowColumnsOperator {self.name!r} of {self._local!r}>"

    def process_chunk(self, chunk: Chunk) -> None:
        """Hand on the parts of the rows.

        Raises:
            UserFunctionError: the rows have no timestamps, or a value cannot be aggregated; names the column.
        """
        if not len(chunk):
            return
        columns = self._columns(chunk) if chunk.columns is None else chunk.columns
        try:
            parts = self._parts(ColumnInputs(columns, self._schema, checked_timestamps(chunk)))
        except (FlowletError, TypeError, OverflowError) as error:
            raise UserFunctionError(
                self.name, self.ctx.subtask, f"a batch of {len(chunk)} rows {self._purpose}"
            ) from error
        self.output.collect(parts)

    def _parts(self, inputs: ColumnInputs) -> Chunk:
        if len(inputs) < _MIN_ROWS:
            return self._local.single(inputs)
        if self._bypass.is_taken():
            self._local.forget_keys()
            return self._local.single(inputs)
        try:
            parts = self._local.combined(inputs)
        except OverflowError:  # of a sum whose rows may be too late to count
            parts = None
        self._num_rows += len(inputs)
        self._num_parts += len(inputs) if parts is None else len(parts)
        if self._num_rows >= _MIN_JUDGED_ROWS:
            self._bypass.judge(self._num_rows, self._num_parts // _ROWS_PER_PART, is_full=True)
            self._num_rows = self._num_parts = 0
        return self._local.single(inputs) if parts is None else parts

    @property
    def _purpose(self) -> str:
        """The results that the parts are for, as a hint in errors: users have not named this operator."""
        aggregation = self._aggregation
        names = ", ".join([each.name for each in aggregation.aggregates])
        return f"for {names}" if aggregation.key is None else f"for {names} by {aggregation.key}"

"""Windows and joins of columns in a task: event time or the clock, late rows, what they put into a checkpoint; and
parts of windows, made in the task that has the rows, so that few of them travel.

Hot path, per chunk and per watermark.

Side:       task.
Format:     Arrow IPC streams.  Keys: ``key``, and ``emitted``, the watermark up to which the windows of the key were
            emitted.  Rows: ``slot``, ``start``, the marks, and the arrays of the parts; the names of columns that come
            back as numpy arrays begin with "n".
Invariants: a key is in one subtask's state; all its rows are there, too.  Results of a watermark are emitted before it.
            In BATCH mode windows end with their keys, or ahead of the last watermark, and the clock ends none.
Source:     Flink ``WindowOperator``; its ``numLateRecordsDropped``; ``WindowOperator`` with a ``CoGroupFunction``; the
            local half of Flink SQL's two-phase aggregation.
Rules:      no part waits: those of a chunk go on at once, so there is no state, and a watermark passes behind them.
            Where most rows have a key and pane of their own, and in small batches, each row goes on as a part.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Generic, TypeVar

import numpy as np
import pyarrow as pa

from flowlet.chain.stream_operator import MultipleInputStreamOperator
from flowlet.columns import Columns
from flowlet.columns.arrow_batches import columns_of_records
from flowlet.errors import FlowletError, StateRestoreError, UserFunctionError
from flowlet.io.key_dictionary import DictionaryBypass
from flowlet.kernels.grouping import IndexArray
from flowlet.kernels.windows.columnar_join import LEFT, RIGHT, ColumnarJoin, ColumnJoin
from flowlet.kernels.windows.columnar_windows import (
    ColumnSessions,
    EmittedWindows,
    LocalWindows,
    PaneWindows,
    PartsLayout,
    WindowedAggregation,
    WindowsState,
    WindowTables,
    columnar_windows,
)
from flowlet.kernels.windows.window_partials import ColumnInputs, Int64Array
from flowlet.kernels.windows.window_shapes import MAX_WINDOW_TIMESTAMP, Run, joined_runs
from flowlet.keys.column_key import column_key_hashes
from flowlet.keys.key_columns import groups_of_hashes
from flowlet.operators.record_batches import ToColumnsOperator, chunks_of
from flowlet.operators.user_function import UserFunctionOperator
from flowlet.records import MAX_TIMESTAMP, Chunk, Watermark
from flowlet.state.state_snapshots import StateShare
from flowlet.timers.time_api import TimerHandle
from netstack.late import dataclass

_LOWEST: Final = -(1 << 62)
_NUMPY, _ARROW = "n", "a"


@dataclass(frozen=True, slots=True)
class WindowColumnsSnapshot:
    """The state of one subtask, version 1.

    Whoever changes a field raises ``STATE_VERSION`` of the operator.

    Args:
        description: of the aggregation; state of another one is refused.
        emitted: the watermark up to which windows were emitted.
        keys: a stream; empty: there are no rows.
        tables: a stream for each table of rows (a join has two); empty: it has no rows.
        layouts: of each table the number of marks, and of arrays of each part.
    """

    is_by_key: ClassVar[bool] = True  # see state_assignment
    description: str
    emitted: int
    keys: bytes
    tables: tuple[bytes, ...]
    layouts: tuple[tuple[int, ...], ...]


def encoded(state: WindowsState, description: str) -> WindowColumnsSnapshot:
    """The snapshot of a state; only keys with rows are in it."""
    tables = [joined_runs(runs) if runs else None for runs in state.tables]
    filled = [run.slots for run in tables if run is not None]
    if not filled:
        return WindowColumnsSnapshot(description, state.emitted, b"", (), ())
    live = np.unique(np.concatenate(filled))
    floors = np.full(len(live), max(state.emitted, _LOWEST)) if state.floors is None else state.floors.take(live)
    keys = pa.record_batch({"key": state.keys.take(pa.array(live)), "emitted": pa.array(floors)})
    written = [
        b"" if run is None else _written(_batch_of(run.with_slots(np.searchsorted(live, run.slots)))) for run in tables
    ]
    layouts = [() if run is None else (len(run.marks), *[len(part) for part in run.parts]) for run in tables]
    return WindowColumnsSnapshot(description, state.emitted, _written(keys), tuple(written), tuple(layouts))


def decoded(snapshot: WindowColumnsSnapshot, description: str, operator: str) -> WindowsState:
    """The state of a snapshot.

    Raises:
        StateRestoreError: it is of another aggregation.
    """
    if snapshot.description != description:
        raise StateRestoreError(
            f"the state of operator {operator!r} is of {snapshot.description}, the program has {description}; "
            "restore it with the former windows and aggregations, or give the operator another uid and start without "
            "its state"
        )
    if not snapshot.keys:
        return WindowsState(None, snapshot.emitted, None, ())
    keys = _read(snapshot.keys)
    floors = keys.column("emitted").to_numpy()
    is_needed = bool((floors > max(snapshot.emitted, _LOWEST)).any())
    return WindowsState(
        keys.column("key"), snapshot.emitted, floors if is_needed else None, tuple(map(tuple, _tables(snapshot)))
    )


def redistributed(
    snapshots: Sequence[WindowColumnsSnapshot], key_groups: range | None, max_parallelism: int
) -> WindowColumnsSnapshot | None:
    """The keys of these groups (None: all keys), of which no two snapshots have one in common, in one
    snapshot; None: there is no snapshot.
    """
    if not snapshots:
        return None
    keys: list[Any] = []
    tables: list[list[Run]] = []
    num_keys = 0
    for each in snapshots:
        if not each.keys:
            continue
        batch = _read(each.keys)
        is_ours = np.ones(batch.num_rows, np.bool_)
        if key_groups is not None:
            groups = groups_of_hashes(column_key_hashes(batch.column("key")), max_parallelism)
            is_ours = (groups >= key_groups.start) & (groups < key_groups.stop)
        tables = tables or [[] for _ in each.tables]
        for ours, runs in zip(tables, _tables(each), strict=True):
            found = [run.take(is_ours.take(run.slots).nonzero()[0]) for run in runs]
            ours += [run.with_slots(run.slots + num_keys) for run in found if len(run)]
        keys.append(batch)
        num_keys += batch.num_rows
    emitted = min(each.emitted for each in snapshots)
    if not keys:
        return WindowColumnsSnapshot(snapshots[0].description, emitted, b"", (), ())
    every = pa.concat_arrays([batch.column("key") for batch in keys])
    floors = np.concatenate([batch.column("emitted").to_numpy() for batch in keys])
    return encoded(WindowsState(every, emitted, floors, tuple(map(tuple, tables))), snapshots[0].description)


def _batch_of(run: Run) -> Any:
    arrays: dict[str, Any] = {"slot": pa.array(run.slots.astype(np.int64, copy=False)), "start": pa.array(run.starts)}
    for number, part in enumerate((run.marks, *run.parts)):
        for index, values in enumerate(part):
            is_numpy = isinstance(values, np.ndarray)
            arrays[f"{_NUMPY if is_numpy else _ARROW}{number}.{index}"] = pa.array(values) if is_numpy else values
    return pa.record_batch(arrays)


def _tables(snapshot: WindowColumnsSnapshot) -> Iterator[list[Run]]:
    for written, layout in zip(snapshot.tables, snapshot.layouts, strict=True):
        if not written:
            yield []
            continue
        batch = _read(written)
        names = iter(batch.schema.names[2:])
        marks, *parts = [tuple([_values(batch, next(names)) for _ in range(size)]) for size in layout]
        yield [Run(batch.column("slot").to_numpy(), batch.column("start").to_numpy(), marks, tuple(parts))]


def _values(batch: Any, name: str) -> Any:
    array = batch.column(name)
    return array.to_numpy(zero_copy_only=False) if name.startswith(_NUMPY) else array


def _written(batch: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def _read(stream: bytes) -> Any:
    return pa.ipc.open_stream(stream).read_next_batch()


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


Tables = TypeVar("Tables", bound=WindowTables)


class _WindowTablesOperator(UserFunctionOperator, Generic[Tables]):
    """Keeps windows in columns: their snapshots, and their ends.

    ``_windows`` is made by the subclass, at first and whenever the keys have ended.
    """

    ends_keys_singly: ClassVar[bool | None] = False
    _windows: Tables

    @property
    @abstractmethod
    def _description(self) -> str:
        """What a snapshot of the state belongs to."""

    @abstractmethod
    def _new_windows(self) -> Tables:
        """Windows without rows, for which no row is late."""

    def end_keys(self) -> None:
        """With sorted inputs: emit the windows of all keys so far, and forget them."""
        super().end_keys()
        self._end_windows()

    def _end_windows(self) -> None:
        self._fire(MAX_TIMESTAMP)
        self._windows = self._new_windows()

    def _fire(self, time_ms: int) -> None:
        """Emit the results of the windows that end at a time, or did before."""
        try:
            self._emit(self._windows.fire(time_ms))
        except OverflowError as error:
            raise UserFunctionError(self.name, self.ctx.subtask, None) from error

    def _emit(self, emitted: Iterable[EmittedWindows]) -> None:
        for windows in emitted:
            for chunk in chunks_of(windows.batch, windows.ends_ms - 1):
                self.output.collect(chunk)

    def close(self) -> None:
        """Let the rows go."""
        self._windows = self._new_windows()
        super().close()

    # -- checkpoints

    def snapshot_state(self, checkpoint_id: int) -> object | None:
        """Arrays that nobody changes; another thread makes bytes of them."""
        return partial(encoded, self._windows.state(), self._description)

    def initialize_state(self, state: object | None) -> None:
        """Go on from a snapshot.

        Raises:
            StateRestoreError: it is of other windows, aggregations or keys.
        """
        if state is None:
            return
        assert isinstance(state, WindowColumnsSnapshot), f"a snapshot of {self.name!r} is a {type(state).__name__}"
        found = decoded(state, self._description, self.name)
        try:
            self._windows.load(found)
        except TypeError as error:
            raise StateRestoreError(f"operator {self.name!r}: {error}") from error

    def redistribute(self, states: Sequence[object | None], share: StateShare) -> object | None:
        """The keys of this subtask's key groups."""
        parts = [each for each in states if isinstance(each, WindowColumnsSnapshot)]
        return redistributed(parts, share.key_groups if self._windows.is_keyed else None, share.max_parallelism)


class WindowColumnsOperator(_WindowTablesOperator[PaneWindows | ColumnSessions], ToColumnsOperator):
    """Aggregates rows by key and window.

    Args:
        aggregation: what is computed.
        schema: of the rows, or of the parts; a ``pyarrow.Schema``.
        late_tag: the side output of rows that are too late; None: they are counted and dropped.
        layout: how parts come that were made of the rows already; None: rows come.
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
        self._aggregation = aggregation
        self._late_tag = late_tag
        self._windows = self._new_windows()
        self._timer: TimerHandle | None = None  # of windows by the clock

    @property
    def _description(self) -> str:
        """What a snapshot of the state belongs to."""
        aggregation = self._aggregation
        wanted = ", ".join(f"{each.kind}({each.column or ''})" for each in aggregation.aggregates)
        return f"{wanted} of {aggregation.shape} by {aggregation.key!r}: {aggregation.key_type}"

    def _new_windows(self) -> PaneWindows | ColumnSessions:
        return columnar_windows(self._aggregation, None if self._layout is None else self._layout.received)

    def open(self) -> None:
        """Go on with windows that the clock has to end."""
        super().open()
        self._set_timer()

    def close(self) -> None:
        """Let the state go."""
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
            added = self._windows.add(inputs)
        except (FlowletError, TypeError, OverflowError) as error:
            raise UserFunctionError(self.name, self.ctx.subtask, f"a batch of {len(chunk)} rows") from error
        if len(added.late_rows):
            self._pass_late(inputs, added.late_rows)
        self._emit(added.changed)
        self._set_timer()

    def process_watermark(self, watermark: Watermark) -> None:
        """Emit the windows that end here, then the watermark."""
        if self._aggregation.shape.is_event_time:
            self._fire(watermark.timestamp)
        elif self._is_batch and watermark.timestamp == MAX_TIMESTAMP:
            self._end_windows()
        super().process_watermark(watermark)

    def finish(self) -> None:
        """In BATCH mode, emit windows by the clock of rows that came behind the last watermark."""
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
        now_ms = max(self.ctx.processing_time_service.current_time_ms(), self._windows.latest_emitted() + 1)
        return np.full(len(chunk), now_ms)

    def _set_timer(self) -> None:
        if self._is_batch or self._aggregation.shape.is_event_time or self._timer is not None:
            return
        end = self._windows.next_end()
        if end is not None:
            self._timer = self.ctx.processing_time_service.register_timer(end, self._on_time)

    def _on_time(self, timestamp_ms: int) -> None:
        self._timer = None
        self._fire(timestamp_ms)
        self._set_timer()


class JoinColumnsOperator(_WindowTablesOperator[ColumnarJoin], MultipleInputStreamOperator):
    """Joins the rows of two inputs by key and window.

    Args:
        join: what is joined.
        name: for people.
    """

    num_inputs = 2

    def __init__(self, join: ColumnJoin, *, name: str = "Join") -> None:
        super().__init__(name)
        self._join = join
        self._windows = self._new_windows()

    @property
    def _description(self) -> str:
        """What a snapshot of the state belongs to."""
        join = self._join
        sides = [f"{join.kept_columns(side)} by {join.keys[side]!r}" for side in (LEFT, RIGHT)]
        return f"{join.kind} join of {' and '.join(sides)}, a {join.key_type}, in {join.windows}"

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
            columns: Columns = columns_of_records(chunk.values, schema) if chunk.columns is None else chunk.columns
            num_late = self._windows.add(side, ColumnInputs(columns, schema, checked_timestamps(chunk)))
        except (FlowletError, TypeError) as error:
            raise UserFunctionError(self.name, self.ctx.subtask, f"a batch of {len(chunk)} rows") from error
        self.ctx.counters.num_late_records_dropped += num_late


# Fewer rows in a part, on average, do not pay.
_ROWS_PER_PART: Final = 4
_MIN_ROWS: Final = 64  # of a batch that is looked at; not measured closely
_MIN_JUDGED_ROWS: Final = 1_024


class LocalWindowColumnsOperator(ToColumnsOperator):
    """Makes parts of rows.

    Args:
        aggregation: what is computed.
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
        except OverflowError:  # of a sum; it may be of rows that are too late
            parts = None
        self._num_rows += len(inputs)
        self._num_parts += len(inputs) if parts is None else len(parts)
        if self._num_rows >= _MIN_JUDGED_ROWS:
            self._bypass.judge(self._num_rows, self._num_parts // _ROWS_PER_PART, is_full=True)
            self._num_rows = self._num_parts = 0
        return self._local.single(inputs) if parts is None else parts

    @property
    def _purpose(self) -> str:
        """For errors: nobody has named this operator, and there may be several."""
        aggregation = self._aggregation
        names = ", ".join([each.name for each in aggregation.aggregates])
        return f"for {names}" if aggregation.key is None else f"for {names} by {aggregation.key}"

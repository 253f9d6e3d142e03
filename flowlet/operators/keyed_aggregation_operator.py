"""What all running results per key do: state in columns or in a dictionary, and emission.

Hot path, per chunk.

Side:       task.
Invariants: results are those of a loop over single records, and keys are in the order in which they were first seen,
            whatever representation the state has.  It is in columns only while every chunk is; the first chunk that
            cannot be done exactly in columns ends that for good.  The back end knows all rows: on the heap they are
            here, and in RocksDB those of a generation (``CachedRows``); each generation has a form of its own.
Source:     Flink ``StreamGroupedReduceOperator``, ``BatchGroupedReduceOperator`` (``emit_on_finish``).
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from flowlet.chain.key_extractor import field_selected_by
from flowlet.columns import Column, Columns, Shape, column_of, columns_of
from flowlet.kernels.columnar_reduction import ColumnarReduction, Layout
from flowlet.operators.keyed_operator import KeyedInput
from flowlet.operators.user_function import UserFunctionOperator
from flowlet.records import MAX_TIMESTAMP, Chunk, Watermark
from flowlet.state.state_snapshots import (
    AGGREGATES,
    AGGREGATES_DESCRIPTION,
    ColumnRows,
    KeyedStateSnapshot,
    RowHolder,
    StateShare,
)
from flowlet.state.state_table import rows_by_key_group
from netstack.late import dataclass

if TYPE_CHECKING:
    from flowlet.state.rocksdb.cached_rows import CachedRows


class StateForm(Enum):
    """What a keyed aggregation keeps for each key."""

    COLUMNS = "columns"  # a row of columns
    SUMS = "sums"  # the second field of a pair, of which the key is the first one
    PAIRS = "pairs"  # a tuple of two fields
    TUPLES = "tuples"  # a tuple
    RECORDS = "records"  # any record


@dataclass(frozen=True, slots=True)
class AggregationSnapshot:
    """What a keyed aggregation wrote before its back end kept its rows; it is only read.

    Args:
        form: what the values are.
        keys: exact keys (``flowlet.keys.exact_keys``), in the order in which they were first seen.
        values: for each key, unless the form is COLUMNS.
        columns: a row for each key, if the form is COLUMNS.
        has_timestamps: whether a record had one.
    """

    is_by_key: ClassVar[bool] = True  # see state_assignment
    form: StateForm
    keys: tuple[Any, ...]
    values: tuple[Any, ...] = ()
    columns: Columns | None = None
    has_timestamps: bool = False

    def rows(self) -> Iterable[Any] | ColumnRows:
        """A record for each key."""
        if self.columns is not None:
            return ColumnRows(self.columns)
        return zip(self.keys, self.values, strict=True) if self.form is StateForm.SUMS else self.values

    def keyed(self, max_parallelism: int) -> KeyedStateSnapshot:
        """The same rows in the form that every back end reads."""
        by_group = rows_by_key_group(list(self.keys), self.rows(), max_parallelism) if self.keys else {}
        groups = {group: {AGGREGATES: rows} for group, rows in by_group.items()}
        return KeyedStateSnapshot({AGGREGATES: AGGREGATES_DESCRIPTION}, max_parallelism, groups)


FINAL_CHUNK_RECORDS: Final = 1_000
FINAL_CHUNK_ROWS: Final = 16_384  # of columns
# More Python objects at a time leave the cache: 16,000 pairs cost 410 ns each in a reduce function that is called,
# 2,000 cost 210.
MAX_RECORDS: Final = 2_000
RECORDS_PER_SAMPLE: Final = 512  # whose size is looked at where RocksDB keeps the rows: some ns per record
# Smaller chunks are done record by record, as long as the state is a dictionary: columns cost 60 us each time, a record
# 0.2 us.
MIN_COLUMN_ROWS: Final = 256


class _Missing:
    """Not None: users may reduce to None."""


MISSING: Final[Any] = _Missing()


def column_of_key(columns: Columns, field: int | str | None) -> Column | None:
    """The column of keys: where the sender called the selector and saw what it gave, or the field that it selects."""
    position = columns.key_position
    if position is None and field is not None and columns.shape is not Shape.SCALAR:
        position = Layout.of(columns).position(field)
    return None if position is None else columns.fields[position]


class KeyedAggregationOperator(UserFunctionOperator, RowHolder):
    """Keeps one record per key; emits it after each change.

    Args:
        key_selector: a callable, or an object with ``get_key(value)``.
        name: for people.
        emit_on_finish: emit only the last result of each key, at the end.
        emits_batches: emit, of each chunk, only the last result of each key.
        columnar: keeps the state in columns; None: nothing can.
    """

    ends_keys_singly: ClassVar[bool | None] = False
    state_refusal: str | None = (
        "the function of an aggregation cannot use keyed state; use process() with a KeyedProcessFunction"
    )

    def __init__(
        self,
        key_selector: Any,
        name: str,
        *,
        emit_on_finish: bool = False,
        emits_batches: bool = False,
        columnar: ColumnarReduction | None = None,
    ) -> None:
        super().__init__(name)
        self._key_input = KeyedInput(self, key_selector, is_shown=False)
        self._key_field = field_selected_by(key_selector)
        self._emit_on_finish = emit_on_finish
        self._emits_batches = emits_batches
        self._form = StateForm.RECORDS
        self._state: dict[Any, Any] = {}
        self._columnar = columnar  # None from the first chunk on that cannot be done in columns
        self._has_timestamps = False
        self._cache: CachedRows | None = None  # None: all rows are here

    def open(self) -> None:
        """Open the functions, and take over what was restored."""
        super().open()
        if self.ctx.keyed_state is not None and not self._emit_on_finish:  # BATCH has no checkpoints, and ends keys
            self._cache = self.ctx.keyed_state.open_rows(self)

    def set_key_context(self, record: object) -> None:
        """Make the record's key the current one."""
        self.ctx.key_context.current_key = self._key_input.keys([record])[0]

    def process_chunk(self, chunk: Chunk) -> None:
        """Bring the state up to date with each record."""
        if not len(chunk):
            return
        if chunk.has_timestamps:
            self._has_timestamps = True
        if self._cache is not None:
            self._cache.begin(self._samples(chunk))
        if self._columnar is not None and self._process_columns(chunk, self._columnar):
            return
        if self._emits_batches or self._emit_on_finish:
            results: list[Any] = []
            self._advance_chunk(chunk, results)
            if self._emits_batches:
                self._emit_last(chunk, results)
            return
        self._advance_and_emit(chunk)

    def _advance_and_emit(self, chunk: Chunk) -> None:
        """Emit the result after each record; also those before one that fails."""
        for part in chunk.parts(MAX_RECORDS):
            results: list[Any] = []
            try:
                self._advance_chunk(part, results)
            finally:
                stamps = part.timestamps
                self.output.collect(Chunk(results, None if stamps is None else stamps[: len(results)]))

    def process_watermark(self, watermark: Watermark) -> None:
        """Ahead of the last one, emit what ``emit_on_finish`` kept back, as Flink does: behind it the results would be
        late.
        """
        if self._emit_on_finish and watermark.timestamp == MAX_TIMESTAMP:
            self._end_results()
        super().process_watermark(watermark)

    def end_keys(self) -> None:
        """With a sorted input: emit the results of the keys so far, and forget them."""
        super().end_keys()
        self._end_results()

    def _end_results(self) -> None:
        self.finish()
        self.take_rows([], [])

    def finish(self) -> None:
        """Emit the results of keys that ``emit_on_finish`` kept back and that have not ended."""
        if not self._emit_on_finish:
            return
        columns = None if self._columnar is None else self._columnar.columns()
        if columns is not None:
            self._finish_columns(columns)
        results = iter(self._records()[1])
        while values := list(islice(results, FINAL_CHUNK_RECORDS)):
            self.output.collect(Chunk(values, [MAX_TIMESTAMP] * len(values) if self._has_timestamps else None))

    def close(self) -> None:
        """Let the state go."""
        self._state = {}
        self._columnar = None
        super().close()

    # -- checkpoints

    def initialize_state(self, state: object | None) -> None:
        """Give the back end what an earlier flowlet wrote: a snapshot, or those of several former subtasks."""
        for each in state if isinstance(state, tuple) else (state,):
            if each is not None:
                assert isinstance(each, AggregationSnapshot), f"a snapshot of {self.name!r} is a {type(each).__name__}"
                self.ctx.keyed_state_backend.restore(each.keyed(self.ctx.max_parallelism))

    def redistribute(self, states: Sequence[object | None], share: StateShare) -> object | None:
        """What an earlier flowlet wrote: the back end takes the keys of this subtask's key groups."""
        return tuple([each for each in states if each is not None]) or None

    def held_rows(self) -> tuple[list[Any], Iterable[Any] | ColumnRows]:
        """See ``RowHolder``."""
        columns = None if self._columnar is None else self._columnar.columns()
        if self._columnar is not None and columns is not None:
            return self._columnar.keys(), ColumnRows(columns)
        return self._records()

    def take_rows(self, keys: list[Any], values: Iterable[Any] | ColumnRows) -> None:
        """See ``RowHolder``."""
        form = self._form
        # Before the records: what takes them over looks at the form.
        self._columnar = None if self._columnar is None else self._columnar.emptied()
        if isinstance(values, ColumnRows) and self._columnar is not None and self._columnar.load(keys, values.columns):
            self._form = StateForm.COLUMNS
            return
        if isinstance(values, ColumnRows):
            self._columnar = None
        self._take_records(keys, list(values))
        if self._cache is not None and form is not StateForm.COLUMNS:
            self._form = form  # a loop goes on in it

    # -- records

    @abstractmethod
    def _advance_chunk(self, chunk: Chunk, results: list[Any]) -> None:
        """Append the result after each record."""

    @property
    def _has_keys(self) -> bool:
        """Whether there are records of any key yet."""
        return bool(self._state)

    def _records(self) -> tuple[list[Any], Iterable[Any]]:
        """Keys, and a record of each, as ``held_rows`` gives them."""
        return list(self._state), list(self._state.values())

    def _take_records(self, keys: list[Any], records: list[Any]) -> None:
        """The state is these records from now on."""
        self._state.clear()
        self._state.update(zip(keys, records, strict=True))
        self._form = self._form_of(records)

    def _form_of(self, records: list[Any]) -> StateForm:
        """In which form these records are kept."""
        return StateForm.RECORDS

    def _samples(self, chunk: Chunk) -> Sequence[Any]:
        """Some values like those that are kept."""
        num_samples = 1 + len(chunk) // RECORDS_PER_SAMPLE
        return chunk.values[:num_samples] if chunk.columns is None else chunk.columns.slice(0, num_samples).to_list()

    def _emit_last(self, chunk: Chunk, results: list[Any]) -> None:
        rows = sorted({key: row for row, key in enumerate(self._key_input.exact_keys_of(chunk))}.values())
        timestamps = chunk.timestamps
        self.output.collect(
            Chunk([results[row] for row in rows], None if timestamps is None else [timestamps[row] for row in rows])
        )

    # -- columns

    def _process_columns(self, chunk: Chunk, columnar: ColumnarReduction) -> bool:
        """False: go on record by record."""
        columns = chunk.columns
        if self._form is not StateForm.COLUMNS:
            if columns is None:
                return False
            # Rows that were records once cannot become columns again: so the first ones stay in columns, however few
            # they are.
            if len(chunk) < MIN_COLUMN_ROWS and (columns.shape is not Shape.ROW or self._has_keys):
                return False
            if self._cache is not None:
                self._cache.end()
            elif self._has_keys and not self._adopt(columnar):
                return False
        elif columns is None:
            columns = columns_of(chunk.values)
        key = None if columns is None else self._key_column(columns)
        if key is None and columns is not None and columns.shape is not Shape.SCALAR and chunk.keys is not None:
            key = column_of(chunk.keys)
        is_taken = (
            columns is not None
            and key is not None
            and self._load_columns(key, columnar)
            and self._advance_columns(chunk, columns, key, columnar)
        )
        if not is_taken:
            self._leave_columns(columnar)
            return False
        self._form = StateForm.COLUMNS
        return True

    def _advance_columns(self, chunk: Chunk, columns: Columns, key: Column, columnar: ColumnarReduction) -> bool:
        timestamps = chunk.timestamp_array
        if self._emit_on_finish or self._emits_batches:
            last = columnar.advance_batch(columns, key)
            if last is not None and self._emits_batches:
                self.output.collect(Chunk.of_columns(last[0], None if timestamps is None else timestamps.take(last[1])))
            return last is not None
        results = columnar.advance(columns, key)
        if results is not None:
            self.output.collect(Chunk.of_columns(results, timestamps))
        return results is not None

    def _key_column(self, columns: Columns) -> Column | None:
        """The column of keys, as far as it is known."""
        return None if columns.shape is Shape.SCALAR else column_of_key(columns, self._key_field)

    def _load_columns(self, key: Column, columnar: ColumnarReduction) -> bool:
        """Have the rows of all these keys in the columns; False: not all of them fit."""
        if self._cache is None:
            return True
        new = columnar.unseen(key)
        if new is None:
            return False
        rows = {exact: row for exact in new if (row := self._cache.load(exact, MISSING)) is not MISSING}
        columns = columns_of(list(rows.values())) if rows else None
        return not rows or (columns is not None and columnar.load(list(rows), columns))

    def _adopt(self, columnar: ColumnarReduction) -> bool:
        """Put the records so far into columns; if they do not fit, nothing ever will."""
        keys, records = self._records()
        columns = columns_of(list(records))
        if columns is not None and columnar.load(keys, columns):
            self._take_records([], [])
            return True
        self._columnar = None
        return False

    def _leave_columns(self, columnar: ColumnarReduction) -> None:
        if self._cache is not None:
            self._cache.end()  # which writes the rows of the columns: each is loaded as a record when its key comes
            self._columnar = None
            return
        self._columnar = None
        columns = columnar.columns()
        if columns is not None:
            self._take_records(columnar.keys(), columns.to_list())

    def _finish_columns(self, columns: Columns) -> None:
        for start in range(0, columns.num_rows, FINAL_CHUNK_ROWS):
            part = columns.slice(start, start + FINAL_CHUNK_ROWS)
            timestamps = np.full(part.num_rows, MAX_TIMESTAMP) if self._has_timestamps else None
            self.output.collect(Chunk.of_columns(part, timestamps))

"""Running results per key, record by record; in columns where the records are columns: ``reduce``, ``sum``, ``count``.

Hot path.  Record by record one look for the key's slot, the combination of two records (written out for sums of
tuples), and one store, in a generated loop that emits the result, too.  In columns there is no work per record.

Side:       task.
Invariants: in every representation of the state, results are as from a loop over single records, and keys are in the
            order in which they were first seen.  The state is in columns only while every chunk is; the first chunk
            that cannot be done exactly in columns ends that for good.  Else the state is a slot for each key, and a
            list of results by slot.  The back end knows all rows.  With the heap, all rows are here; with RocksDB, only
            the rows of a generation (``CachedRows``), and each generation has a form of its own.  A sum has the fields
            of the key's first record, except for the summed one.  Counting is adding up a column of ones.
Source:     Flink ``StreamGroupedReduceOperator``, ``BatchGroupedReduceOperator`` (``emit_on_finish``),
            ``SumAggregator``.
Absent:     ``count`` in PyFlink, where it is ``map`` to pairs, ``key_by`` and ``sum``.
"""

from collections.abc import Iterable, Sequence
from itertools import islice, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from flowlet.chain.chunking_output import field_selected_by
from flowlet.chain.loop_code import Blame, LoopCode, RecordLoop
from flowlet.columns import Column, Columns, ConstantColumn, Shape, column_of, columns_of
from flowlet.common.typeinfo import TypeInformation
from flowlet.common.types import Row
from flowlet.datastream.user_functions.aggregations import Aggregation
from flowlet.kernels.columnar_reduction import ColumnarReduction
from flowlet.keys.column_key import ColumnKey
from flowlet.keys.exact_keys import exact_key
from flowlet.keys.key_index import KeyIndex, Slots
from flowlet.operators.user_function import KeyedInput, UserFunctionOperator, is_state_used, write_current_key
from flowlet.records import MAX_TIMESTAMP, Chunk, Watermark
from flowlet.serde.type_serializer import preview
from flowlet.state.state_snapshots import ColumnRows, RowHolder, StateShare
from flowlet.state.state_table import AggregationSnapshot
from flowlet.typed.record_conversion import DeclaredOutput, RecordConversion
from flowlet.typed.value_conversion import changes_values

if TYPE_CHECKING:
    from flowlet.state.rocksdb.cached_rows import CachedRows

FINAL_CHUNK_RECORDS: Final = 1_000
FINAL_CHUNK_ROWS: Final = 16_384  # of columns
RECORDS_PER_SAMPLE: Final = 512  # whose size is looked at where RocksDB keeps the rows: some ns per record
# Smaller chunks are done record by record, as long as the state is: columns cost 60 us each time, a record 0.2 us.
MIN_COLUMN_ROWS: Final = 256
_PAIR: Final = 2
_ONE: Final = 1


class _Missing:
    """Stands for a missing value; None does not, because users may reduce to None."""


MISSING: Final[Any] = _Missing()
_MISSES_PER_LOOK: Final = 64
_SAMPLES_PER_LOOK: Final = 8


class LoadedSlots(Slots):
    """Slots of the keys whose rows are in ``results``; a look-up of another key loads its row.

    Before it loads a row, the cache may write and forget all others, and their slots: the caller must hold no slot.
    """

    __slots__ = ("_cache", "_num_missing", "_results")

    def __init__(self, cache: "CachedRows", results: list[Any]) -> None:
        super().__init__()
        self._cache = cache
        self._results = results
        self._num_missing = 0

    def __missing__(self, key: Any) -> int:
        self._num_missing += 1
        # A reduce behind another operator of its chain is given no chunks: so it looks here how large its results are.
        looks = self._num_missing % _MISSES_PER_LOOK == 0
        self._cache.begin(self._results[:: 1 + len(self._results) // _SAMPLES_PER_LOOK] if looks else ())
        self._results.append(self._cache.load(key, MISSING))
        return super().__missing__(key)


def column_of_key(columns: Columns, field: int | str | None) -> Column | None:
    """The column of keys: the column in which the sender found them, or else ``field``, which the selector names; None:
    neither is known.
    """
    position = columns.key_position
    if position is None and field is not None and columns.shape is not Shape.SCALAR:
        position = columns.position_of(field)
    return None if position is None else columns.fields[position]


class KeyedReduceOperator(UserFunctionOperator, RowHolder):
    """Keeps one record per key, and emits it after each change: the first record of a key unchanged, then the
    function's result for the result so far and the next record.

    Args:
        key_selector: a callable, or an object with ``get_key(value)``.
        reduce_function: a callable of two records, or an object with ``reduce(value1, value2)``; the state can be in
            columns only for an ``Aggregation``.
        emit_on_finish: only the last result of each key, at the end (``RuntimeExecutionMode.BATCH``).
        emits_batches: only the last result of each key in a chunk.
        result_type: results are converted to it before the function sees them again; None: they stay as they are.
        name: for people.
    """

    ends_keys_singly: ClassVar[bool | None] = False
    state_refusal: str | None = None

    def __init__(
        self,
        key_selector: Any,
        reduce_function: Any,
        *,
        emit_on_finish: bool = False,
        emits_batches: bool = False,
        result_type: TypeInformation | None = None,
        name: str = "Keyed Reduce",
    ) -> None:
        super().__init__(name)
        columnar = ColumnarReduction(reduce_function) if isinstance(reduce_function, Aggregation) else None
        self.result_type = None if result_type is None or not changes_values(result_type) else result_type
        # A declared reduction, and one that emits no single results, is given chunks when it is chained.
        self.takes_chunks = columnar is not None or emit_on_finish or emits_batches
        self._key_input = KeyedInput(self, key_selector, is_shown=False)
        self._key_field = field_selected_by(key_selector)
        self._allows_null = isinstance(key_selector, ColumnKey)
        self._emit_on_finish = emit_on_finish
        self._emits_batches = emits_batches
        self._columnar = columnar  # None from the first chunk on that cannot be done in columns
        self._has_timestamps = False
        self._cache: CachedRows | None = None  # None: all rows are here
        self._uses_state = False  # whether the functions use keyed state; known from ``open`` on
        self._index: KeyIndex | None = None  # used while all keys come in columns of one kind
        self._is_indexable = True  # whether an index may be made of all keys so far
        self._slots = Slots()  # while there is no index: exact key -> slot
        self._num_looked_up = 0  # records since then; to make an index, or to leave it, costs as much as there are keys
        self._loops_find_slots = False  # whether the text of a loop reads the slots: then there is never an index again
        self._results: list[Any] = []  # by slot; never replaced, because loops hold the list
        self._reduce_function = self._add(reduce_function, "reduce")

    def open(self) -> None:
        """Open the functions, and take over the restored state."""
        super().open()
        if self.ctx.keyed_state is not None and not self._emit_on_finish:  # BATCH has no checkpoints, and ends keys
            self._cache = self.ctx.keyed_state.open_rows(self)
        self._uses_state = is_state_used(self.ctx)
        if self._cache is not None:
            self._cache.is_shared = self._uses_state
            self._slots = LoadedSlots(self._cache, self._results)
        # Whether the loops are given keys, and find the slots themselves.
        self._takes_keys = self._uses_state or self._cache is not None
        if self._takes_keys:
            self._loops_find_slots = True
            self._leave_index()
        self._loop = self._record_loop(self._write_advance)
        self._silent_loop = RecordLoop(self.name, self._write_silent, [], self.ctx.attention)
        self._silent_results: list[Any] = []

    def process_chunk(self, chunk: Chunk) -> None:
        """Bring the state up to date with each record."""
        if not len(chunk):
            return
        chunk = self._taken(chunk)
        if self._columnar is not None and self._process_columns(chunk, self._columnar):
            return
        if not self._emits_batches and not self._emit_on_finish:
            self._loop.run(chunk.records(), chunk.timestamps, len(chunk), self._keys_or_slots(chunk))
            return
        self._silent_results.clear()
        self._silent_loop.run(chunk.records(), None, len(chunk), self._keys_or_slots(chunk))
        if self._emits_batches:
            self._emit_last(chunk, self._silent_results)

    def process_some(self, chunk: Chunk) -> int:
        """Bring the state up to date; a chunk that goes record by record stops when a mail waits.  Returns how many."""
        if not len(chunk) or self._columnar is not None or self._emits_batches or self._emit_on_finish:
            return super().process_some(chunk)
        if self.ctx.interrupts:  # the loop takes one record, so the rest is not looked at
            chunk = chunk.slice(0, 1)
        chunk = self._taken(chunk)
        return self._loop.run(
            chunk.records(), chunk.timestamps, len(chunk), self._keys_or_slots(chunk), self.ctx.interrupts
        )

    def _taken(self, chunk: Chunk) -> Chunk:
        """The records to combine, at least one."""
        if chunk.has_timestamps:
            self._has_timestamps = True
        if self._cache is not None:
            self._cache.begin(self._samples(chunk))
        return chunk

    def process_watermark(self, watermark: Watermark) -> None:
        """Emit the results that ``emit_on_finish`` kept back ahead of the last watermark, as Flink does: behind it they
        would be late.
        """
        if self._emit_on_finish and watermark.timestamp == MAX_TIMESTAMP:
            self._end_results()
        super().process_watermark(watermark)

    def end_keys(self) -> None:
        """Emit the results of the keys so far, and forget the keys; only with a sorted input."""
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
        self._take_records([], [])
        self._columnar = None
        super().close()

    # -- checkpoints

    def initialize_state(self, state: object | None) -> None:
        """Give the back end the snapshot of an earlier version of flowlet, or those of several former subtasks."""
        for each in state if isinstance(state, tuple) else (state,):
            if each is not None:
                assert isinstance(each, AggregationSnapshot), f"a snapshot of {self.name!r} is a {type(each).__name__}"
                self.ctx.keyed_state_backend.restore(each.keyed(self.ctx.max_parallelism))

    def redistribute(self, states: Sequence[object | None], share: StateShare) -> object | None:
        """All snapshots of earlier versions of flowlet: the back end takes the keys of this subtask's key groups."""
        return tuple([each for each in states if each is not None]) or None

    def held_rows(self) -> tuple[list[Any], Iterable[Any] | ColumnRows]:
        """Implement ``RowHolder.held_rows``: columns while the state is in columns, else a list of results."""
        columns = None if self._columnar is None else self._columnar.columns()
        if self._columnar is not None and columns is not None:
            return self._columnar.keys(), ColumnRows(columns)
        return self._records()

    def take_rows(self, keys: list[Any], values: Iterable[Any] | ColumnRows) -> None:
        """Implement ``RowHolder.take_rows``; rows in columns stay in columns if the reduction can load them."""
        self._columnar = None if self._columnar is None else self._columnar.emptied()
        if isinstance(values, ColumnRows) and self._columnar is not None and self._columnar.load(keys, values.columns):
            return
        if isinstance(values, ColumnRows):
            self._columnar = None
        self._take_records(keys, list(values))

    # -- records

    def _write_first(self, code: LoopCode, result: str, record: str) -> None:
        """Generate the statements that make the first record of a key its result."""
        code.line(f"{result} = {record}")

    def _write_next(self, code: LoopCode, result: str, so_far: str, record: str) -> None:
        """Generate the statements that combine the result so far with the next record."""
        call = f"{code.bind(self._reduce_function.call, 'reduce')}({so_far}, {record})"
        code.line(f"{result} = {call}", Blame(self.name, self.ctx.subtask, record))
        if self.result_type is not None:
            conversion = RecordConversion(DeclaredOutput(self.result_type), preview, self.name, self.ctx.subtask)
            code.line(f"{result} = {code.bind(conversion.convert, 'convert')}({result})")

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Write the statements that emit the result after the record, behind another operator of the chain."""
        self._loops_find_slots = True
        self._leave_index()
        slot = self._write_slot(code, self._key_input.write_key(code, record, key), is_exact=False)
        self.output.write(code, self._write_result(code, record, slot), timestamp, count=code.counts.get(id(self)))

    def _write_slot(self, code: LoopCode, key: str, *, is_exact: bool) -> str:
        """Write the statements that find the slot of a key, and that make the key the current one if the function uses
        keyed state; returns the variable with the slot.
        """
        if self._uses_state:
            write_current_key(code, self.ctx, key)
        slot, state = code.variable("s"), code.bind(self._results, "state")
        exact = key
        if not is_exact:
            exact = f"{key} if type({key}) is {code.bind(str, 'kind')} else {code.bind(exact_key, 'exact_key')}({key})"
        code.line(f"{slot} = {code.bind(self._slots, 'slots')}[{exact}]")
        code.line(f"if {slot} == len({state}): {state}.append({code.bind(MISSING, 'MISSING')})")
        return slot

    def _write_advance(self, code: LoopCode, record: str, timestamp: str | None, key_or_slot: str | None) -> None:
        slot = self._slot_of(code, key_or_slot)
        self.output.write(code, self._write_result(code, record, slot), timestamp, count="num_records")

    def _write_silent(self, code: LoopCode, record: str, timestamp: str | None, key_or_slot: str | None) -> None:
        slot = self._slot_of(code, key_or_slot)
        code.line(f"{code.bind(self._silent_results, 'results')}.append({self._write_result(code, record, slot)})")

    def _slot_of(self, code: LoopCode, key_or_slot: str | None) -> str:
        assert key_or_slot is not None, "the loop is given keys or slots"
        if not self._takes_keys:
            return key_or_slot
        return self._write_slot(code, key_or_slot, is_exact=not self._uses_state)

    def _write_result(self, code: LoopCode, record: str, slot: str) -> str:
        """Write the statements that bring the state up to date; returns the variable with the result."""
        state, so_far, result = code.bind(self._results, "state"), code.variable("so_far"), code.variable("v")
        code.line(f"{so_far} = {state}[{slot}]")
        with code.block(f"if {so_far} is {code.bind(MISSING, 'MISSING')}:"):
            self._write_first(code, result, record)
        with code.block("else:"):
            self._write_next(code, result, so_far, record)
        code.line(f"{state}[{slot}] = {result}")
        return result

    # -- the state: a slot for each key, and a list of results by slot

    def _keys_or_slots(self, chunk: Chunk) -> list[Any]:
        """The keys that a loop gets: keys if the function uses keyed state, exact keys if not all rows are here, else
        slots.
        """
        if self._uses_state:
            return self._key_input.keys_and_exact(chunk)[0]
        return self._state_slots(chunk) if self._cache is None else self._key_input.keys_and_exact(chunk)[1]

    def _samples(self, chunk: Chunk) -> Sequence[Any]:
        """Some values like those that are kept."""
        step = 1 + len(self._results) * RECORDS_PER_SAMPLE // (RECORDS_PER_SAMPLE + len(chunk))
        if found := self._results[::step]:
            return found
        num_samples = 1 + len(chunk) // RECORDS_PER_SAMPLE
        return chunk.values[:num_samples] if chunk.columns is None else chunk.columns.slice(0, num_samples).to_list()

    def _state_slots(self, chunk: Chunk) -> list[int]:
        """The slot of each record; there is a place for each."""
        slots = self._indexed_slots(chunk)
        num_slots = len(self._slots) if self._index is None else self._index.num_slots
        if num_slots > len(self._results):
            self._results.extend([MISSING] * (num_slots - len(self._results)))
        return slots

    def _indexed_slots(self, chunk: Chunk) -> list[int]:
        """The slot of each record: looked up by the column of keys, if there is one, else record by record."""
        column = self._known_key_column(chunk) if self._is_indexable and not self._loops_find_slots else None
        if column is not None and (index := self._made_index(len(chunk))) is not None:
            found = index.slots(column)
            if found is not None:
                slots: list[int] = found.tolist()
                return slots
            self._is_indexable = False
        self._leave_index()
        self._num_looked_up += len(chunk)
        return [self._slots[key] for key in self._key_input.keys_and_exact(chunk)[1]]

    def _made_index(self, num_records: int) -> KeyIndex | None:
        """The index, made of the keys so far if there was none; None if the keys are of several kinds, or are more than
        ``num_records`` and the records since the last index together.
        """
        if self._index is None:
            if self._num_looked_up + num_records < len(self._slots):
                return None
            index = KeyIndex(allows_null=self._allows_null)
            if self._slots and not index.load(list(self._slots)):
                self._is_indexable = False
                return None
            self._index = index
            self._slots.clear()
        return self._index

    def _known_key_column(self, chunk: Chunk) -> Column | None:
        """The keys as a column; None for a few records while there is no index: then columns cost more than they save.
        A present index stays in use, because leaving it copies all keys.
        """
        if len(chunk) < MIN_COLUMN_ROWS and self._index is None:
            return None
        if chunk.columns is not None:
            return self._key_column(chunk.columns)
        if chunk.key_column is not None:
            return chunk.key_column
        return None if chunk.keys is None else column_of(chunk.keys)

    def _leave_index(self) -> None:
        """Look keys up one by one from now on: there are few so far, or not all are in columns of one kind."""
        if self._index is not None:
            self._num_looked_up = 0
            self._slots.update(zip(self._index.keys(), range(len(self._results)), strict=False))
            self._index = None

    def _records(self) -> tuple[list[Any], list[Any]]:
        """Keys, and a record of each, as ``held_rows`` gives them."""
        keys = list(self._slots) if self._index is None else self._index.keys()
        # A key whose first record failed has a slot, and no result.
        kept = [(key, result) for key, result in zip(keys, self._results, strict=False) if result is not MISSING]
        return [key for key, _ in kept], [result for _, result in kept]

    def _take_records(self, keys: list[Any], records: list[Any]) -> None:
        """Replace the state by these records."""
        self._results[:] = records  # in place, as the slots below: loops hold the list and the dictionary
        self._slots.clear()
        if self._index is not None:
            self._index.close()
        self._index = None
        self._slots.update(zip(keys, range(len(keys)), strict=True))
        self._is_indexable, self._num_looked_up = True, 0
        if keys and not self._loops_find_slots:
            self._made_index(len(keys))

    def _emit_last(self, chunk: Chunk, results: list[Any]) -> None:
        rows = sorted({key: row for row, key in enumerate(self._key_input.keys_and_exact(chunk)[1])}.values())
        timestamps = chunk.timestamps
        self.output.collect(
            Chunk([results[row] for row in rows], None if timestamps is None else [timestamps[row] for row in rows])
        )

    # -- columns

    def _process_columns(self, chunk: Chunk, columnar: ColumnarReduction) -> bool:
        """Process a chunk in columns; False: no record was processed, so go on record by record."""
        columns = chunk.columns
        if not columnar.num_slots:
            if columns is None:
                return False
            # Rows that were records once cannot become columns again: so the first ones stay in columns, however few
            # they are.
            if len(chunk) < MIN_COLUMN_ROWS and (columns.shape is not Shape.ROW or self._results):
                return False
            if self._cache is not None:
                self._cache.end()
            elif self._results and not self._adopt(columnar):
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
        return is_taken

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
        """The column of keys; None if it is unknown."""
        return None if columns.shape is Shape.SCALAR else column_of_key(columns, self._key_field)

    def _load_columns(self, key: Column, columnar: ColumnarReduction) -> bool:
        """Load the rows of all these keys from the cache into the columns; False: not all of them fit."""
        if self._cache is None:
            return True
        new = columnar.unseen(key)
        if new is None:
            return False
        rows = {exact: row for exact in new if (row := self._cache.load(exact, MISSING)) is not MISSING}
        columns = columns_of(list(rows.values())) if rows else None
        return not rows or (columns is not None and columnar.load(list(rows), columns))

    def _adopt(self, columnar: ColumnarReduction) -> bool:
        """Move the records so far into columns; False if they do not fit: then columns are given up for good."""
        keys, records = self._records()
        columns = columns_of(records)
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


class KeyedSumOperator(KeyedReduceOperator):
    """``sum``: the first record of a key, with the sum of one field so far.

    Records are tuples, lists, rows, or plain numbers (position 0).

    Args:
        key_selector: a callable, or an object with ``get_key(value)``.
        position: of the field; a name for rows and named tuples.
        skips_nulls: see ``Aggregation``.
        options: ``emit_on_finish``, ``emits_batches`` and ``name``, as of ``KeyedReduceOperator``.
    """

    def __init__(
        self, key_selector: Any, position: int | str = 0, *, skips_nulls: bool = False, **options: Any
    ) -> None:
        self._sum = Aggregation("sum", position, skips_nulls=skips_nulls)
        super().__init__(key_selector, self._sum, **options)

    def _write_first(self, code: LoopCode, result: str, record: str) -> None:
        code.line(f"{code.bind(self._sum.number, 'number')}({record})", self._blame(record))
        super()._write_first(code, result, record)

    def _write_next(self, code: LoopCode, result: str, so_far: str, record: str) -> None:
        position = self._sum.position
        blame = self._blame(record)
        kind = code.bind(tuple, "tuple")
        are_tuples = f"type({so_far}) is {kind} and type({record}) is {kind} and {type(position) is int}"
        with code.block(f"if {are_tuples} and len({so_far}) == {_PAIR} and {position == 1}:"):  # 90 ns less than below
            code.line(f"{result} = ({so_far}[0], {so_far}[1] + {record}[1])", blame)
        with code.block(f"elif {are_tuples}:"):
            fields = code.variable("fields")
            code.line(f"{fields} = {code.bind(list, 'list')}({so_far})")
            code.line(f"{fields}[{position!r}] += {record}[{position!r}]", blame)
            code.line(f"{result} = {kind}({fields})")
        with code.block("else:"):
            code.line(f"{result} = {code.bind(self._sum.added, 'added')}({so_far}, {record})", blame)

    def _blame(self, record: str) -> Blame:
        return Blame(self.name, self.ctx.subtask, record, cause=self._cause)

    def _cause(self, record: Any, error: BaseException) -> BaseException:
        """The error that names the fault of a record: one text for all generated statements that can fail."""
        try:
            self._sum.number(record)
        except Exception as clearer:  # noqa: BLE001 - raised by the caller
            clearer.__context__ = None  # it would be ``error``, which tells that fault in other words
            return clearer
        return error


class KeyedCountOperator(KeyedSumOperator):
    """Keys and counts, as pairs, or as rows with names.

    Args:
        key_selector: a callable, or an object with ``get_key(value)``.
        field_names: those of the rows; None: pairs come out.
        options: as of ``KeyedSumOperator``.
    """

    def __init__(self, key_selector: Any, *, field_names: tuple[str, str] | None = None, **options: Any) -> None:
        key = itemgetter(0) if field_names is None else ColumnKey(field_names[0])
        super().__init__(key, 1, skips_nulls=field_names is not None, **options)
        self._counted = KeyedInput(self, key_selector)
        self._counted_field = field_selected_by(key_selector)
        self._field_names = field_names

    def _taken(self, chunk: Chunk) -> Chunk:
        """A pair of the key and 1 for each record; there is at least one record."""
        key = None if chunk.columns is None else column_of_key(chunk.columns, self._counted_field)
        return super()._taken(self._pairs(chunk) if key is None else self._pairs_in_columns(chunk, key))

    def _pairs_in_columns(self, chunk: Chunk, key: Column) -> Chunk:
        ones = ConstantColumn(_ONE, len(chunk))
        shape = Shape.TUPLE if self._field_names is None else Shape.ROW
        return Chunk.of_columns(Columns(len(chunk), (key, ones), shape, self._field_names or ()), chunk.timestamp_array)

    def _pairs(self, chunk: Chunk) -> Chunk:
        keys = self._counted.keys_and_exact(chunk)[0]
        if self._field_names is None:
            pairs = Chunk(list(zip(keys, repeat(_ONE))), chunk.timestamps)
            pairs.keys = keys
            return pairs
        # Rows are grouped by the field itself, whose value may be None.
        make = Row(*self._field_names)
        name = self._field_names[0]
        return Chunk([make(record[name], _ONE) for record in chunk.values], chunk.timestamps)

"""``reduce`` per key, record by record; in columns where the records are columns and the aggregation is declared.

Hot path.  One probe, one call of the user's function, and one store per record.

Side:   task.
Source: Flink ``StreamGroupedReduceOperator``.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from flowlet.chain.loop_code import Blame, LoopCode
from flowlet.chain.record_loop import RecordLoop
from flowlet.columns import Column, column_of
from flowlet.common.typeinfo import TypeInformation
from flowlet.datastream.user_functions.aggregations import Aggregation
from flowlet.kernels.columnar_reduction import Aggregate, ColumnarReduction
from flowlet.keys.column_key import ColumnKey
from flowlet.keys.exact_keys import exact_key
from flowlet.keys.key_index import KeyIndex, Slots
from flowlet.operators.keyed_aggregation_operator import (
    MIN_COLUMN_ROWS,
    MISSING,
    RECORDS_PER_SAMPLE,
    KeyedAggregationOperator,
    StateForm,
)
from flowlet.operators.keyed_operator import is_state_used, write_current_key
from flowlet.records import Chunk
from flowlet.serde.type_serializer import preview
from flowlet.typed.record_conversion import DeclaredOutput, RecordConversion
from flowlet.typed.value_conversion import changes_values

if TYPE_CHECKING:
    from flowlet.state.rocksdb.cached_rows import CachedRows


_MISSES_PER_LOOK: Final = 64
_SAMPLES_PER_LOOK: Final = 8


class LoadedSlots(Slots):
    """Slots of the keys whose rows are in ``results``; a key that is not is loaded, with its row.

    Before that the rows may go, and the slots with them: no slot may be in use then.
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


class KeyedReduceOperator(KeyedAggregationOperator):
    """``reduce``: the first record of a key as it is, then the function's result for the result so far and the next
    record.

    Args:
        key_selector: a callable, or an object with ``get_key(value)``.
        reduce_function: a callable of two records, or an object with ``reduce(value1, value2)``.
        emit_on_finish: only the last result of each key, at the end (``RuntimeExecutionMode.BATCH``).
        emits_batches: only the last result of each key in a chunk.
        result_type: results are converted to it before the function sees them again; None: they stay as they are.
        name: for people.
    """

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
        columnar = None
        if isinstance(reduce_function, Aggregation) and (known := reduce_function.known) is not None:
            columnar = ColumnarReduction(
                Aggregate(known.method), known.field, num_fields=known.num_fields, skips_nulls=known.skips_nulls
            )
        super().__init__(
            key_selector, name, emit_on_finish=emit_on_finish, emits_batches=emits_batches, columnar=columnar
        )
        self.result_type = None if result_type is None or not changes_values(result_type) else result_type
        self._reduce_function = self._add(reduce_function, "reduce")
        self._allows_null = isinstance(key_selector, ColumnKey)
        # A declared reduction, and one that emits no single results, is given chunks when it is chained.
        self.takes_chunks = columnar is not None or emit_on_finish or emits_batches
        # While all keys come in columns of one kind.
        self._index: KeyIndex | None = KeyIndex(allows_null=self._allows_null)
        self._is_indexable = True  # whether an index may be made of all keys so far
        self._slots = Slots()  # while there is no index: exact key -> slot
        self._num_looked_up = 0  # records since then; to make an index, or to leave it, costs as much as there are keys
        self._loops_find_slots = False  # the text of a loop reads the slots: there is no index any more
        self._results: list[Any] = []  # by slot; the same list all the time

    def open(self) -> None:
        """Prepare; from now on it is known whether the function uses keyed state."""
        super().open()
        self._uses_state = is_state_used(self.ctx)
        if self._cache is not None:
            self._cache.is_shared = self._uses_state
            self._slots = LoadedSlots(self._cache, self._results)
        if self._takes_keys:
            self._loops_find_slots = True
            self._leave_index()
        self._loop = self._record_loop(self._write_advance)
        self._silent_loop = RecordLoop(self.name, self._write_silent, [], self.ctx.attention)
        self._silent_results: list[Any] = []

    def process_some(self, chunk: Chunk) -> int:
        """As ``process_chunk``, where the function is called for each record until a mail waits."""
        if not len(chunk) or self._columnar is not None or self._emits_batches or self._emit_on_finish:
            return super().process_some(chunk)
        if chunk.has_timestamps:
            self._has_timestamps = True
        if self._cache is not None:
            self._cache.begin(self._samples(chunk))
        return self._loop.run(
            chunk.records(), chunk.timestamps, len(chunk), self._keys_or_slots(chunk), self.ctx.interrupts
        )

    @property
    def _takes_keys(self) -> bool:
        """Whether the loops are given keys, and find the slots themselves."""
        return self._uses_state or self._cache is not None

    def _advance_and_emit(self, chunk: Chunk) -> None:
        self._loop.run(chunk.records(), chunk.timestamps, len(chunk), self._keys_or_slots(chunk))

    def _advance_chunk(self, chunk: Chunk, results: list[Any]) -> None:
        self._silent_results.clear()
        self._silent_loop.run(chunk.records(), None, len(chunk), self._keys_or_slots(chunk))
        results += self._silent_results

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Behind another operator of its chain: emit the result after the record."""
        self._loops_find_slots = True
        self._leave_index()
        if key is None:
            key = self._key_input.write_key(code, record)
        slot = self._write_slot(code, key, is_exact=False)
        self.out.write(code, self._write_result(code, record, slot), timestamp, count=code.counts.get(id(self)))

    def _write_slot(self, code: LoopCode, key: str, *, is_exact: bool) -> str:
        """The statements that find the slot of a key, and make the key the current one if the function uses keyed
        state.
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
        self.out.write(code, self._write_result(code, record, slot), timestamp, count="num_records")

    def _write_silent(self, code: LoopCode, record: str, timestamp: str | None, key_or_slot: str | None) -> None:
        slot = self._slot_of(code, key_or_slot)
        code.line(f"{code.bind(self._silent_results, 'results')}.append({self._write_result(code, record, slot)})")

    def _slot_of(self, code: LoopCode, key_or_slot: str | None) -> str:
        assert key_or_slot is not None, "the loop is given keys or slots"
        if not self._takes_keys:
            return key_or_slot
        return self._write_slot(code, key_or_slot, is_exact=not self._uses_state)

    def _write_result(self, code: LoopCode, record: str, slot: str) -> str:
        """The statements that bring the state up to date; returns the variable with the result."""
        state, so_far, result = code.bind(self._results, "state"), code.variable("so_far"), code.variable("v")
        code.line(f"{so_far} = {state}[{slot}]")
        with code.block(f"if {so_far} is {code.bind(MISSING, 'MISSING')}:"):
            code.line(f"{result} = {record}")
        with code.block("else:"):
            call = f"{code.bind(self._reduce_function.call, 'reduce')}({so_far}, {record})"
            code.line(f"{result} = {call}", Blame(self.name, self.ctx.subtask, record))
            if self.result_type is not None:
                conversion = RecordConversion(DeclaredOutput(self.result_type), preview, self.name, self.ctx.subtask)
                code.line(f"{result} = {code.bind(conversion.convert, 'convert')}({result})")
        code.line(f"{state}[{slot}] = {result}")
        return result

    # -- the state: a slot for each key, and a list of results by slot

    def _keys_or_slots(self, chunk: Chunk) -> list[Any]:
        """For the loops: keys, if the function uses keyed state, exact keys, if not all rows are here, or slots."""
        if self._uses_state:
            return self._key_input.keys_of(chunk)
        return self._state_slots(chunk) if self._cache is None else self._key_input.exact_keys_of(chunk)

    def _samples(self, chunk: Chunk) -> Sequence[Any]:
        step = 1 + len(self._results) * RECORDS_PER_SAMPLE // (RECORDS_PER_SAMPLE + len(chunk))
        return self._results[::step] or super()._samples(chunk)

    def _state_slots(self, chunk: Chunk) -> list[int]:
        """The slot of each record; there is a place for each."""
        slots = self._indexed_slots(chunk)
        num_slots = len(self._slots) if self._index is None else self._index.num_slots
        if num_slots > len(self._results):
            self._results.extend([MISSING] * (num_slots - len(self._results)))
        return slots

    def _indexed_slots(self, chunk: Chunk) -> list[int]:
        """By the column that is the key, if there is one; else record by record."""
        column = self._known_key_column(chunk) if self._is_indexable and not self._loops_find_slots else None
        if column is not None and (index := self._made_index(len(chunk))) is not None:
            found = index.slots(column)
            if found is not None:
                slots: list[int] = found.tolist()
                return slots
            self._is_indexable = False
        self._leave_index()
        self._num_looked_up += len(chunk)
        return [self._slots[key] for key in self._key_input.exact_keys_of(chunk)]

    def _made_index(self, num_records: int) -> KeyIndex | None:
        """The index for so many more records, made of the keys so far; None if these are of several kinds, or more than
        those records.
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
        """The keys as a column; None for a few records where there is no index yet: columns cost more than they save
        for them.
        """
        is_short = len(chunk) < MIN_COLUMN_ROWS
        if self._index is None and is_short:
            return None
        if chunk.columns is not None:
            return self._key_column(chunk.columns)
        if chunk.key_column is not None:
            return chunk.key_column
        is_begun = self._index is not None and self._index.num_slots > 0
        return None if chunk.keys is None or (is_short and not is_begun) else column_of(chunk.keys)

    def _leave_index(self) -> None:
        """From now on keys are looked up one by one: there are few so far, or not all are in columns of one kind."""
        if self._index is not None:
            self._num_looked_up = 0
            self._slots.update(zip(self._index.keys(), range(len(self._results)), strict=False))
            self._index = None

    @property
    def _has_keys(self) -> bool:
        return bool(self._results)

    def _records(self) -> tuple[list[Any], Iterable[Any]]:
        keys = list(self._slots) if self._index is None else self._index.keys()
        # A key whose first record failed has a slot, and no result.
        kept = [(key, result) for key, result in zip(keys, self._results, strict=False) if result is not MISSING]
        return [key for key, _ in kept], [result for _, result in kept]

    def _take_records(self, keys: list[Any], records: list[Any]) -> None:
        self._form = StateForm.RECORDS
        self._results[:] = records  # the same list and dictionary: loops hold them
        self._slots.clear()
        if self._index is not None:
            self._index.close()
        self._index = None
        self._slots.update(zip(keys, range(len(keys)), strict=True))
        self._is_indexable, self._num_looked_up = True, 0
        if not self._loops_find_slots:
            self._made_index(len(keys))

    def close(self) -> None:
        """Let the state go."""
        self._take_records([], [])
        super().close()

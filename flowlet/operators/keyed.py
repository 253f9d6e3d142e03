"""``reduce`` and ``sum`` per key, record by record; in columns where the records are columns and the aggregation is declared.

Hot path.  One probe, one addition or call of the user's function, and one store per record.

Side:       task.
Invariants: what is emitted for a key has the fields of its first record, except for the one that is summed.
Source:     Flink ``SumAggregator``; PyFlink ``KeyedStream.sum``.  Plain loops with ``get``: no C-level pipeline and no other form of
            dictionary beats them by more than a few per cent (hot-path measurements, 1.4).
"""

from collections.abc import Iterator
from operator import is_
from typing import Any, Final

from flowlet.column_key import ColumnKey
from flowlet.columns import Column, column_of
from flowlet.columns.unchanging import are_unchanging
from flowlet.datastream.aggregations import Aggregation, KnownReduction
from flowlet.errors import JobGraphError, UserFunctionError
from flowlet.kernels.columnar_reduction import Aggregate, ColumnarReduction
from flowlet.kernels.slot_index import SlotIndex, Slots
from flowlet.keys import are_plain, exact_key
from flowlet.operators.loop_code import Blame, LoopCode
from flowlet.operators.preview import last_of, preview
from flowlet.operators.record_fields import checked_number, field_to_sum, with_field
from flowlet.operators.record_loop import RecordLoop
from flowlet.operators.running import MIN_COLUMN_ROWS, RunningOperator
from flowlet.records import Chunk


class _Missing:
    """Not None: users may reduce to None."""


MISSING: Final[Any] = _Missing()


class KeyedReduceOperator(RunningOperator):
    """``reduce``: the first record of a key as it is, then the function's result for the result so far and the next record.

    Args:
        key_selector: a callable, or an object with ``get_key(value)``.
        reduce_function: a callable of two records, or an object with ``reduce(value1, value2)``.
        emit_on_finish: only the last result of each key, at the end (``RuntimeExecutionMode.BATCH``).
        emits_batches: only the last result of each key in a chunk.
        name: for people.
    """

    def __init__(
        self,
        key_selector: Any,
        reduce_function: Any,
        *,
        emit_on_finish: bool = False,
        emits_batches: bool = False,
        name: str = "Keyed Reduce",
    ) -> None:
        known = _known(reduce_function)
        columnar = None if known is None else _columnar(known)
        super().__init__(key_selector, name, emit_on_finish=emit_on_finish, emits_batches=emits_batches, columnar=columnar)
        self._reduce_function = self._add(reduce_function, "reduce")
        self._allows_null = isinstance(key_selector, ColumnKey)
        # A declared reduction, and one that emits no single results, is given chunks when it is chained.
        self.takes_chunks = columnar is not None or emit_on_finish or emits_batches
        self._index: SlotIndex | None = SlotIndex(allows_null=self._allows_null)  # while all keys come in columns of one kind
        self._slots = Slots()  # afterwards: exact key -> slot
        self._results: list[Any] = []  # by slot; the same list all the time

    def open(self) -> None:
        """Prepare."""
        super().open()
        self._loop = RecordLoop(self.name, self._write_advance, self.out.emitters)
        self._silent_loop = RecordLoop(self.name, self._write_silent, [])
        self._silent_results: list[Any] = []

    def _advance_and_emit(self, chunk: Chunk) -> None:
        self._loop.run(chunk.records(), chunk.timestamps, len(chunk), self._state_slots(chunk))

    def _advance_chunk(self, chunk: Chunk, results: list[Any]) -> None:
        self._silent_results.clear()
        self._silent_loop.run(chunk.records(), None, len(chunk), self._state_slots(chunk))
        results += self._silent_results

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Behind another operator of its chain: emit the result after the record."""
        self._leave_index()
        if key is None:
            key = self._key_input.write_key(code, record)
        slot, state = code.variable("s"), code.bind(self._results, "state")
        exact = f"{key} if type({key}) is {code.bind(str, 'kind')} else {code.bind(exact_key, 'exact_key')}({key})"
        code.line(f"{slot} = {code.bind(self._slots, 'slots')}[{exact}]")
        code.line(f"if {slot} == len({state}): {state}.append({code.bind(MISSING, 'MISSING')})")
        self.out.write(code, self._write_result(code, record, slot), timestamp)

    def _write_advance(self, code: LoopCode, record: str, timestamp: str | None, slot: str | None) -> None:
        self.out.write(code, self._write_result(code, record, slot), timestamp, count="num_records")

    def _write_silent(self, code: LoopCode, record: str, timestamp: str | None, slot: str | None) -> None:
        code.line(f"{code.bind(self._silent_results, 'results')}.append({self._write_result(code, record, slot)})")

    def _write_result(self, code: LoopCode, record: str, slot: str | None) -> str:
        """The statements that bring the state up to date; returns the variable with the result."""
        assert slot is not None, "the loop is given slots"
        state, so_far, result = code.bind(self._results, "state"), code.variable("so_far"), code.variable("v")
        code.line(f"{so_far} = {state}[{slot}]")
        with code.block(f"if {so_far} is {code.bind(MISSING, 'MISSING')}:"):
            code.line(f"{result} = {record}")
        with code.block("else:"):
            call = f"{code.bind(self._reduce_function.call, 'reduce')}({so_far}, {record})"
            code.line(f"{result} = {call}", Blame(self.name, self.ctx.subtask, record))
        code.line(f"{state}[{slot}] = {result}")
        return result

    # -- the state: a slot for each key, and a list of results by slot

    def _state_slots(self, chunk: Chunk) -> list[int]:
        """The slot of each record; there is a place for each."""
        slots = self._indexed_slots(chunk)
        num_slots = len(self._slots) if self._index is None else self._index.num_slots
        if num_slots > len(self._results):
            self._results.extend([MISSING] * (num_slots - len(self._results)))
        return slots

    def _indexed_slots(self, chunk: Chunk) -> list[int]:
        """By the column that is the key, if there is one; else record by record."""
        column = None if self._index is None else self._known_key_column(chunk)
        found = None if column is None or self._index is None else self._index.slots(column)
        if found is not None:
            slots: list[int] = found.tolist()
            return slots
        self._leave_index()
        return [self._slots[key] for key in self._key_input.exact_keys_of(chunk)]

    def _known_key_column(self, chunk: Chunk) -> Column | None:
        """The keys as a column; None for a short list in the beginning, for columns cost more than they save for a few records."""
        if chunk.columns is not None:
            return self._key_column(chunk.columns)
        if chunk.key_column is not None:
            return chunk.key_column
        is_begun = (self._index is not None and self._index.num_slots > 0) or len(chunk) >= MIN_COLUMN_ROWS
        return column_of(chunk.keys) if is_begun and chunk.keys is not None else None

    def _leave_index(self) -> None:
        """From now on keys are looked up one by one: not all are in columns of one kind."""
        if self._index is not None:
            self._slots.update(zip(self._index.keys(), range(len(self._results)), strict=False))
            self._index = None

    def _records(self) -> tuple[list[Any], list[Any]]:
        keys = list(self._slots) if self._index is None else self._index.keys()
        # A key whose first record failed has a slot, and no result.
        kept = [(key, result) for key, result in zip(keys, self._results, strict=False) if result is not MISSING]
        return [key for key, _ in kept], [result for _, result in kept]

    def _take_records(self, keys: list[Any], records: list[Any]) -> None:
        self._results[:] = records  # the same list and dictionary: loops hold them
        self._slots.clear()
        self._index = SlotIndex(allows_null=self._allows_null)
        if not self._index.load(keys):
            self._index = None
            self._slots.update(zip(keys, range(len(keys)), strict=True))

    def _final_records(self) -> Iterator[Any]:
        return iter(self._records()[1])

    def close(self) -> None:
        """Let the state go."""
        self._take_records([], [])
        super().close()


class KeyedSumOperator(RunningOperator):
    """``sum``: the first record of a key, with the sum of one field so far.

    Records are tuples, lists, rows, or plain numbers (position 0).  Pairs that are keyed by their first field take a path of their own,
    in which the state is key -> sum; the first chunk of anything else ends that for good.

    Args:
        key_selector: a callable, or an object with ``get_key(value)``.
        position: of the field; a name for rows and named tuples.
        emit_on_finish: only the last sum of each key, at the end (``RuntimeExecutionMode.BATCH``).
        emits_batches: only the last sum of each key in a chunk.
        name: for people.

    Raises:
        JobGraphError: the position is neither an int nor a str.
    """

    takes_chunks = True

    def __init__(
        self,
        key_selector: Any,
        position: int | str = 0,
        *,
        emit_on_finish: bool = False,
        emits_batches: bool = False,
        name: str = "Keyed Sum",
    ) -> None:
        columnar = ColumnarReduction(Aggregate.SUM, position)
        super().__init__(key_selector, name, emit_on_finish=emit_on_finish, emits_batches=emits_batches, columnar=columnar)
        if type(position) not in (int, str):
            raise JobGraphError(f"the position to sum must be an int, or a str for rows and named tuples, got {position!r}")
        self._position = position
        # While it holds, the state is key -> sum of (key, number) pairs; afterwards it is key -> record.
        self._holds_sums = self._key_field == 0 and position == 1
        # Whether the state's records are all plain tuples, and all of two fields.
        self._holds_tuples = isinstance(position, int)
        self._holds_pairs = position == 1

    def _advance_and_emit(self, chunk: Chunk) -> None:
        values = chunk.values
        if list(map(type, values)).count(tuple) == len(values) and are_unchanging(values):
            super()._advance_and_emit(chunk)
            return
        # Whoever reads the results may change them, and with them the first record of a key, which is in the state.
        self._hold_records()
        self._holds_tuples = self._holds_pairs = False
        keys = self._key_input.exact_keys_of(chunk)
        self.out.collect_each(self._each_advanced(keys, values), chunk.timestamps, len(values))

    def _each_advanced(self, keys: list[Any], values: list[Any]) -> Iterator[Any]:
        """The result after each record, each when it is asked for."""
        results: list[Any] = []
        for key, value in zip(keys, values, strict=True):
            try:
                self._advance_records([key], iter((value,)), results)
            except Exception as error:  # noqa: BLE001 - raised from the error, or from one that says it better
                raise UserFunctionError(self.name, self.ctx.subtask, preview(value)) from self._cause(value, error)
            yield results.pop()

    def _advance_chunk(self, chunk: Chunk, results: list[Any]) -> None:
        values = chunk.values
        self._advance(values, self._key_input.exact_keys_of(chunk), results)

    def _advance(self, values: list[Any], keys: list[Any], results: list[Any]) -> None:
        if self._holds_sums and list(map(type, values)).count(tuple) == len(values):
            self._advance_sums(values, keys, results)
            return
        self._hold_records()
        self._holds_tuples = self._holds_tuples and list(map(type, values)).count(tuple) == len(values)
        self._holds_pairs = self._holds_tuples and self._holds_pairs and list(map(len, values)).count(2) == len(values)
        advance = self._advance_pairs if self._holds_pairs else self._advance_tuples if self._holds_tuples else self._advance_records
        records = iter(values)
        try:
            advance(keys, records, results)
        except Exception as error:  # noqa: BLE001 - raised from the error, or from one that says it better
            raise self._failure(values, records) from self._cause(last_of(values, records), error)

    def _cause(self, record: Any, error: Exception) -> Exception:
        """What is wrong with a record, in the same words whatever path met it."""
        try:
            field_to_sum(record, self._position)
        except Exception as clearer:  # noqa: BLE001 - raised by the caller
            clearer.__context__ = None  # the error, which says the same in other words
            return clearer
        return error

    def _advance_sums(self, values: list[Any], keys: list[Any], results: list[Any]) -> None:
        sums: list[Any] = []
        try:
            firsts = [record[0] for record in values]
            if are_plain(firsts) and all(map(is_, firsts, keys)):
                self._add_pairs(firsts, values, sums)
                results += zip(firsts, sums, strict=True)
                return
        except Exception:  # noqa: BLE001, S110 - a tuple of another length, no number, too large: the other path shows whose fault it is
            pass
        self._hold_records()
        results += zip(keys, sums)  # noqa: B905 - only the first ones were added
        self._advance(values[len(sums) :], keys[len(sums) :], results)

    def _add_pairs(self, keys: list[Any], values: list[Any], sums: list[Any]) -> None:
        state = self._state
        get = state.get
        append = sums.append
        for key, (_, addend) in zip(keys, values):  # noqa: B905 - one key per record; strict costs in the hot loop
            total = get(key)
            # Not 0 as default: 0 + True and 0 + -0.0 are something else.
            total = checked_number(addend, 1) if total is None else total + addend
            state[key] = total
            append(total)

    def _facts(self) -> dict[str, bool]:
        facts = {"_holds_sums": self._holds_sums, "_holds_tuples": self._holds_tuples, "_holds_pairs": self._holds_pairs}
        return super()._facts() | facts

    def _restore(self, keys: list[Any], values: list[Any]) -> None:
        self._state = dict(zip(keys, values, strict=True))  # of which the facts say what it is

    def _take_records(self, keys: list[Any], records: list[Any]) -> None:
        super()._take_records(keys, records)
        self._holds_sums = False
        self._holds_tuples = self._holds_tuples and list(map(type, records)).count(tuple) == len(records)
        self._holds_pairs = self._holds_tuples and self._holds_pairs and list(map(len, records)).count(2) == len(records)

    def _hold_records(self) -> None:
        if self._holds_sums:
            self._state = {key: (key, total) for key, total in self._state.items()}
            self._holds_sums = False

    def _advance_pairs(self, keys: list[Any], records: Iterator[Any], results: list[Any]) -> None:
        state = self._state
        get = state.get
        append = results.append
        for key, record in zip(keys, records):  # noqa: B905 - one key per record; strict costs in the hot loop
            so_far = get(key)
            if so_far is None:
                field_to_sum(record, 1)
            else:
                record = (so_far[0], so_far[1] + record[1])
            state[key] = record
            append(record)

    def _advance_tuples(self, keys: list[Any], records: Iterator[Any], results: list[Any]) -> None:
        state, position = self._state, self._position
        assert isinstance(position, int)
        get = state.get
        append = results.append
        for key, record in zip(keys, records):  # noqa: B905 - as above
            so_far = get(key)
            if so_far is None:
                field_to_sum(record, position)
            else:
                fields = list(so_far)
                fields[position] += record[position]
                record = tuple(fields)
            state[key] = record
            append(record)

    def _advance_records(self, keys: list[Any], records: Iterator[Any], results: list[Any]) -> None:
        state, position = self._state, self._position
        for key, record in zip(keys, records, strict=True):
            addend = field_to_sum(record, position)
            so_far = state.get(key, MISSING)
            state[key] = result = record if so_far is MISSING else with_field(so_far, position, field_to_sum(so_far, position) + addend)
            results.append(result)

    def _final_records(self) -> Iterator[Any]:
        return iter(self._state.items()) if self._holds_sums else iter(self._state.values())


def _known(function: Any) -> KnownReduction | None:
    return function.known if isinstance(function, Aggregation) else None


def _columnar(known: KnownReduction) -> ColumnarReduction:
    return ColumnarReduction(Aggregate(known.method), known.field, num_fields=known.num_fields, skips_nulls=known.skips_nulls)

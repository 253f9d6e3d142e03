"""``sum`` and ``count`` per key, record by record; in columns where the records are columns.

Hot path, where records are summed one by one: one probe, one addition, and one store per record.  In columns nothing is
done per record (see ``keyed_aggregation_operator``).

Side:       task.
Invariants: records are not changed.  What is emitted for a key has the fields of its first record, except for the one
            that is summed.  Counting is adding up a column of ones, in every representation.
Source:     Flink ``SumAggregator``; PyFlink ``KeyedStream.sum``.  Plain loops with ``get``: no C-level pipeline and no
            other form of dictionary beats them by more than a few per cent (hot-path measurements, 1.4).
Absent:     ``count`` in PyFlink, where it is ``map`` to pairs, ``key_by`` and ``sum``.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from numbers import Number
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any, Final

from flowlet.chain.key_extractor import field_selected_by
from flowlet.columns import Column, Columns, ConstantColumn, Shape
from flowlet.columns.column import are_unchanging
from flowlet.common.types import Row
from flowlet.errors import JobGraphError, UserFunctionError
from flowlet.kernels.columnar_reduction import Aggregate, ColumnarReduction
from flowlet.keys.column_key import ColumnKey
from flowlet.keys.exact_keys import are_plain
from flowlet.operators.keyed_aggregation_operator import (
    KeyedAggregationOperator,
    StateForm,
    column_of_key,
)
from flowlet.operators.keyed_operator import KeyedInput
from flowlet.records import Chunk
from flowlet.serde.type_serializer import last_of, preview

if TYPE_CHECKING:
    from flowlet.state.rocksdb.cached_rows import CachedRows


def field_to_sum(record: Any, position: int | str) -> Any:
    """The number to sum."""
    if isinstance(record, tuple):
        value = record[_index(record, position)]
    elif isinstance(record, list | Row):
        value = record[position]  # type: ignore[index]  # a list says itself that it takes no str
    elif position == 0:
        value = record
    else:
        raise TypeError(f"sum({position!r}) needs tuples, lists or rows, got a value of type {type(record).__name__}")
    return checked_number(value, position)


def checked_number(value: Any, position: int | str) -> Any:
    """The value, which must be a number."""
    if not isinstance(value, Number):
        raise TypeError(f"sum({position!r}) adds numbers, got a value of type {type(value).__name__}")
    return value


def with_field(record: Any, position: int | str, total: Any) -> Any:
    """A copy of the record with the sum in its place."""
    if isinstance(record, tuple):
        index = _index(record, position)
        fields = list(record)
        fields[index] = total
        return tuple.__new__(type(record), fields)  # of a subclass, too: a named tuple takes its fields one by one
    if isinstance(record, list | Row):
        changed = copy.copy(record)
        changed[position] = total  # type: ignore[index]  # as above
        return changed
    return total


def _index(record: tuple[Any, ...], position: int | str) -> int:
    if isinstance(position, int):
        return position
    names = getattr(record, "_fields", ())
    if position not in names:
        raise TypeError(f"sum({position!r}) needs rows or named tuples with that field, got a {type(record).__name__}")
    return list(names).index(position)


_GENERALITY: Final = (StateForm.PAIRS, StateForm.TUPLES, StateForm.RECORDS)  # each can hold what those before it hold


class WiderFormError(Exception):
    """A row that was loaded is of another form than those that the loop takes."""


class LoadedRecords(dict[Any, Any]):
    """The records of some keys; that of another key is loaded when it is asked for, or is None.

    Before that the others may go.  Raises WiderFormError: ``takes`` says that the loop does not take it.
    """

    __slots__ = ("_cache", "_takes")

    def __init__(self, cache: "CachedRows", takes: Callable[[Any], bool]) -> None:
        super().__init__()
        self._cache = cache
        self._takes = takes

    def __missing__(self, key: Any) -> Any:
        self._cache.begin()
        record = self._cache.load(key, None)
        if record is not None and not self._takes(record):
            raise WiderFormError
        return record


class KeyedSumOperator(KeyedAggregationOperator):
    """``sum``: the first record of a key, with the sum of one field so far.

    Records are tuples, lists, rows, or plain numbers (position 0).  Pairs that are keyed by their first field take a
    path of their own, in which the state is key -> sum; the first chunk of anything else ends that for good.

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
        super().__init__(
            key_selector, name, emit_on_finish=emit_on_finish, emits_batches=emits_batches, columnar=columnar
        )
        if type(position) not in (int, str):
            raise JobGraphError(
                f"the position to sum must be an int, or a str for rows and named tuples, got {position!r}"
            )
        self._position = position
        self._keeps_sums = self._key_field == 0 and position == 1
        self._form = StateForm.SUMS if self._keeps_sums else self._form_of([])

    def open(self) -> None:
        """See ``KeyedAggregationOperator``."""
        self._get: Callable[[Any], Any] = self._state.get
        super().open()
        if self._cache is not None:
            self._state = LoadedRecords(self._cache, self._takes)
            self._get = self._state.__getitem__
            self._leave_sums()

    def _takes(self, record: Any) -> bool:
        """Whether the loop that runs takes this record, too."""
        return _GENERALITY.index(self._form_of([record])) <= _GENERALITY.index(self._form)

    def _advance_and_emit(self, chunk: Chunk) -> None:
        values = chunk.values
        if list(map(type, values)).count(tuple) == len(values) and are_unchanging(values):
            super()._advance_and_emit(chunk)
            return
        # Whoever reads the results may change them, and with them the first record of a key, which is in the state.
        self._leave_sums()
        self._form = StateForm.RECORDS
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
        if self._form is StateForm.SUMS and list(map(type, values)).count(tuple) == len(values):
            self._advance_sums(values, keys, results)
            return
        self._leave_sums()
        self._form = max(self._form, self._form_of(values), key=_GENERALITY.index)
        records = iter(values)
        advance = self._advance_records
        if self._form is not StateForm.RECORDS:
            advance = self._advance_pairs if self._form is StateForm.PAIRS else self._advance_tuples
        num_before = len(results)
        try:
            advance(keys, records, results)
            return
        except WiderFormError:
            self._form = StateForm.RECORDS
        except Exception as error:  # noqa: BLE001 - raised from the error, or from one that says it better
            raise self._failure(values, records) from self._cause(last_of(values, records), error)
        num_done = len(results) - num_before
        self._advance(values[num_done:], keys[num_done:], results)

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
        self._leave_sums()
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

    def _records(self) -> tuple[list[Any], Iterable[Any]]:
        keys, values = super()._records()
        return keys, zip(keys, values, strict=True) if self._form is StateForm.SUMS else values

    def _take_records(self, keys: list[Any], records: list[Any]) -> None:
        super()._take_records(keys, records)
        if keys and self._keeps_sums and self._form is StateForm.PAIRS:
            firsts = [record[0] for record in records]
            if are_plain(firsts) and firsts == keys:
                self._state.update([(key, total) for key, total in records])
                self._form = StateForm.SUMS

    def _form_of(self, records: list[Any]) -> StateForm:
        if not isinstance(self._position, int) or list(map(type, records)).count(tuple) != len(records):
            return StateForm.RECORDS
        is_pair = self._position == 1 and list(map(len, records)).count(2) == len(records)
        return StateForm.PAIRS if is_pair else StateForm.TUPLES

    def _leave_sums(self) -> None:
        if self._form is StateForm.SUMS:
            self._state.update([(key, (key, total)) for key, total in self._state.items()])
            self._form = StateForm.PAIRS

    def _advance_pairs(self, keys: list[Any], records: Iterator[Any], results: list[Any]) -> None:
        state = self._state
        get = self._get
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
        get = self._get
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
        state, get, position = self._state, self._get, self._position
        for key, record in zip(keys, records, strict=True):
            addend = field_to_sum(record, position)
            so_far = get(key)  # None is no number, and no record with one
            state[key] = result = (
                record if so_far is None else with_field(so_far, position, field_to_sum(so_far, position) + addend)
            )
            results.append(result)


_ONE: Final = 1


class KeyedCountOperator(KeyedSumOperator):
    """Keys and counts, as pairs, or as rows with names.

    Args:
        key_selector: a callable, or an object with ``get_key(value)``.
        field_names: those of the rows; None: pairs come out.
        emit_on_finish: only the last count of each key, at the end (``RuntimeExecutionMode.BATCH``).
        emits_batches: only the last count of each key in a chunk.
        name: for people.
    """

    def __init__(
        self,
        key_selector: Any,
        *,
        field_names: tuple[str, str] | None = None,
        emit_on_finish: bool = False,
        emits_batches: bool = False,
        name: str = "Keyed Count",
    ) -> None:
        key = itemgetter(0) if field_names is None else ColumnKey(field_names[0])
        super().__init__(key, 1, emit_on_finish=emit_on_finish, emits_batches=emits_batches, name=name)
        self._columnar = ColumnarReduction(Aggregate.SUM, 1, skips_nulls=field_names is not None)
        self._counted = KeyedInput(self, key_selector)
        self._counted_field = field_selected_by(key_selector)
        self._field_names = field_names

    def set_key_context(self, record: object) -> None:
        """Make the record's key the current one."""
        self.ctx.key_context.current_key = self._counted.keys([record])[0]

    def process_chunk(self, chunk: Chunk) -> None:
        """Count the records of each key."""
        if not len(chunk):
            return
        key = None if chunk.columns is None else column_of_key(chunk.columns, self._counted_field)
        super().process_chunk(self._pairs(chunk) if key is None else self._pairs_in_columns(chunk, key))

    def _pairs_in_columns(self, chunk: Chunk, key: Column) -> Chunk:
        ones = ConstantColumn(_ONE, len(chunk))
        shape = Shape.TUPLE if self._field_names is None else Shape.ROW
        return Chunk.of_columns(Columns(len(chunk), (key, ones), shape, self._field_names or ()), chunk.timestamp_array)

    def _pairs(self, chunk: Chunk) -> Chunk:
        keys = self._counted.keys_of(chunk)
        if self._field_names is None:
            pairs = Chunk(list(zip(keys, repeat(_ONE))), chunk.timestamps)
            pairs.keys = keys
            return pairs
        # Of rows the field itself, which may be None.
        make = Row(*self._field_names)
        name = self._field_names[0]
        return Chunk([make(record[name], _ONE) for record in chunk.values], chunk.timestamps)

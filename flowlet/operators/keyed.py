"""``reduce`` and ``sum`` per key, record by record; in columns where the records are columns and the function is known.

Hot path.  One dictionary probe, one addition and one store per record; no calls but the user's own.

Side:       task.
Invariants: what is emitted for a key has the fields of its first record, except for the one that is summed.
Source:     Flink ``SumAggregator``; PyFlink ``KeyedStream.sum``.  Plain loops with ``get``: no C-level pipeline and no other form of
            dictionary beats them by more than a few per cent (hot-path measurements, 1.4).
"""

from collections.abc import Callable, Iterator
from typing import Any

from flowlet.datastream.aggregations import Aggregation, KnownReduction
from flowlet.errors import JobGraphError
from flowlet.fusing.known_reductions import known_reduction
from flowlet.fusing.unchanging import can_change
from flowlet.kernels.columnar_reduction import Aggregate, ColumnarReduction
from flowlet.keys import are_plain
from flowlet.operators.copying import copy_value
from flowlet.operators.record_fields import checked_number, field_to_sum, with_field
from flowlet.operators.running import RunningOperator
from flowlet.operators.user_function import last_of


class _Missing:
    """Not None: users may reduce to None."""


_MISSING: Any = _Missing()


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
        known = reduce_function.known if isinstance(reduce_function, Aggregation) else known_reduction(reduce_function)
        columnar = None if known is None else _columnar(known)
        super().__init__(key_selector, name, emit_on_finish=emit_on_finish, emits_batches=emits_batches, columnar=columnar)
        self._reduce_function = self._add(reduce_function, "reduce")

    def _advance(self, values: list[Any]) -> list[Any]:
        keys = self._keys(values)
        state = self._state
        get = state.get
        reduce = self._reduce_function.call
        results: list[Any] = []
        append: Callable[[Any], None] = results.append
        if self.ctx.copies_results and can_change(values[0]):
            # The function may change what it returned before and return it again; results are of the records' type.
            append = lambda result: results.append(copy_value(result))  # noqa: E731 - one of two ways to append
        records = iter(values)
        try:
            for key, record in zip(keys, records):  # noqa: B905 - one key per record; strict costs in the hot loop
                so_far = get(key, _MISSING)
                state[key] = result = record if so_far is _MISSING else reduce(so_far, record)
                append(result)
        except Exception as error:
            raise self._failure(values, records) from error
        return results


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

    def _advance(self, values: list[Any]) -> list[Any]:
        if self._holds_sums and list(map(type, values)).count(tuple) == len(values):
            return self._advance_sums(values)
        self._hold_records()
        keys = self._keys(values)
        self._holds_tuples = self._holds_tuples and list(map(type, values)).count(tuple) == len(values)
        self._holds_pairs = self._holds_tuples and self._holds_pairs and list(map(len, values)).count(2) == len(values)
        advance = self._advance_pairs if self._holds_pairs else self._advance_tuples if self._holds_tuples else self._advance_records
        records = iter(values)
        try:
            return advance(keys, records)
        except Exception as error:  # noqa: BLE001 - raised from the error, or from one that says it better
            raise self._failure(values, records) from self._cause(last_of(values, records), error)

    def _cause(self, record: Any, error: Exception) -> Exception:
        """What is wrong with a record, in the same words whatever path met it."""
        try:
            field_to_sum(record, self._position)
        except Exception as clearer:  # noqa: BLE001 - raised by the caller
            return clearer
        return error

    def _advance_sums(self, values: list[Any]) -> list[Any]:
        keys: list[Any] = []
        sums: list[Any] = []
        try:
            keys = [record[0] for record in values]
            if are_plain(keys):
                self._add_pairs(keys, values, sums)
                return [] if self._emit_on_finish else list(zip(keys, sums, strict=True))
        except Exception:  # noqa: BLE001, S110 - a tuple of another length, no number, too large: the other path shows whose fault it is
            pass
        self._hold_records()
        return [*zip(keys, sums), *self._advance(values[len(sums) :])]  # noqa: B905 - only the first ones were added

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

    def _take_records(self, keys: list[Any], records: list[Any]) -> None:
        super()._take_records(keys, records)
        self._holds_sums = False
        self._holds_tuples = self._holds_tuples and list(map(type, records)).count(tuple) == len(records)
        self._holds_pairs = self._holds_tuples and self._holds_pairs and list(map(len, records)).count(2) == len(records)

    def _hold_records(self) -> None:
        if self._holds_sums:
            self._state = {key: (key, total) for key, total in self._state.items()}
            self._holds_sums = False

    def _advance_pairs(self, keys: list[Any], records: Iterator[Any]) -> list[Any]:
        state = self._state
        get = state.get
        results: list[Any] = []
        append = results.append
        for key, record in zip(keys, records):  # noqa: B905 - one key per record; strict costs in the hot loop
            so_far = get(key)
            if so_far is None:
                field_to_sum(record, 1)
            else:
                record = (so_far[0], so_far[1] + record[1])
            state[key] = record
            append(record)
        return results

    def _advance_tuples(self, keys: list[Any], records: Iterator[Any]) -> list[Any]:
        state, position = self._state, self._position
        assert isinstance(position, int)
        get = state.get
        results: list[Any] = []
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
        return results

    def _advance_records(self, keys: list[Any], records: Iterator[Any]) -> list[Any]:
        state, position = self._state, self._position
        results: list[Any] = []
        for key, record in zip(keys, records, strict=True):
            addend = field_to_sum(record, position)
            so_far = state.get(key, _MISSING)
            state[key] = result = record if so_far is _MISSING else with_field(so_far, position, field_to_sum(so_far, position) + addend)
            results.append(result)
        return results

    def _final_records(self) -> Iterator[Any]:
        return iter(self._state.items()) if self._holds_sums else iter(self._state.values())


def _columnar(known: KnownReduction) -> ColumnarReduction:
    return ColumnarReduction(Aggregate(known.method), known.field, num_fields=known.num_fields, skips_nulls=known.skips_nulls)

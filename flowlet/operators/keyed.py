"""Running reductions per key.

Hot path.  One dictionary probe, one addition and one store per record; no calls but the user's own.

Side:       task.
Invariants: keys are in the order in which they were first seen; what is emitted for a key has the fields of its first record, except for
            the one that is summed.
Source:     Flink ``StreamGroupedReduceOperator``, ``BatchGroupedReduceOperator`` (``emit_on_finish``), ``SumAggregator``; PyFlink
            ``KeyedStream.sum``.  The state is a dictionary, which a checkpoint copies.  Plain loops with ``get``: no C-level pipeline and
            no other form of dictionary beats them by more than a few per cent (hot-path measurements, 1.4).
Absent:     min, max, aggregate; state backends, and with them state by key group; columnar state.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from numbers import Number
from typing import Any

from flowlet.common.types import Row
from flowlet.errors import JobGraphError
from flowlet.fusing.unchanging import can_change
from flowlet.keys import are_plain
from flowlet.operators.copying import copy_value, copy_values
from flowlet.operators.key_selection import KeyedOperator
from flowlet.operators.user_function import last_of
from flowlet.records import MAX_TIMESTAMP, Chunk

FINAL_CHUNK_RECORDS = 1_000


class _Missing:
    """Not None: users may reduce to None."""


_MISSING: Any = _Missing()


@dataclass(frozen=True, slots=True)
class RunningState:
    """A snapshot; nobody changes it."""

    keys: tuple[Any, ...]
    values: tuple[Any, ...]
    facts: Mapping[str, bool]


class _RunningOperator(KeyedOperator, ABC):
    """Keeps one record per key; emits it after each change, or (``emit_on_finish``) once at the end."""

    def __init__(self, key_selector: Any, name: str, *, emit_on_finish: bool) -> None:
        super().__init__(key_selector, name)
        self._emit_on_finish = emit_on_finish
        self._state: dict[Any, Any] = {}
        self._has_timestamps = False

    def process_chunk(self, chunk: Chunk) -> None:
        """Bring the state up to date with each record."""
        if not len(chunk):
            return
        if chunk.has_timestamps:
            self._has_timestamps = True
        results = self._advance(chunk.values)
        if not self._emit_on_finish:
            self.output.collect(Chunk(results, chunk.timestamps))

    def finish(self) -> None:
        """Emit what ``emit_on_finish`` kept back; as Flink does, at the end of event time."""
        if not self._emit_on_finish:
            return
        results = self._final_records()
        while values := list(islice(results, FINAL_CHUNK_RECORDS)):
            self.output.collect(Chunk(values, [MAX_TIMESTAMP] * len(values) if self._has_timestamps else None))

    def snapshot_state(self, checkpoint_id: int) -> object | None:
        """A copy of the state; records that could be changed are copied, too, and the others shared."""
        if not self._state:
            return None
        return RunningState(tuple(self._state), tuple(copy_values(list(self._state.values()))), self._facts())

    def initialize_state(self, state: object | None) -> None:
        """Go on from a snapshot."""
        if state is None:
            return
        assert isinstance(state, RunningState), f"a snapshot of {self.name!r} is a RunningState, this is a {type(state).__name__}"
        self._state = dict(zip(state.keys, copy_values(list(state.values)), strict=True))
        for fact, holds in state.facts.items():
            setattr(self, fact, holds)

    def _facts(self) -> dict[str, bool]:
        """What else must be known of the state, by attribute."""
        return {"_has_timestamps": self._has_timestamps}

    def close(self) -> None:
        """Let the state go."""
        self._state = {}
        super().close()

    @abstractmethod
    def _advance(self, values: list[Any]) -> list[Any]:
        """The result after each record."""

    def _final_records(self) -> Iterator[Any]:
        return iter(self._state.values())


class KeyedReduceOperator(_RunningOperator):
    """``reduce``: the first record of a key as it is, then the function's result for the result so far and the next record.

    Args:
        key_selector: a callable, or an object with ``get_key(value)``.
        reduce_function: a callable of two records, or an object with ``reduce(value1, value2)``.
        emit_on_finish: only the last result of each key, at the end (``RuntimeExecutionMode.BATCH``).
        name: for people.
    """

    def __init__(self, key_selector: Any, reduce_function: Any, *, emit_on_finish: bool = False, name: str = "Keyed Reduce") -> None:
        super().__init__(key_selector, name, emit_on_finish=emit_on_finish)
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


class KeyedSumOperator(_RunningOperator):
    """``sum``: the first record of a key, with the sum of one field so far.

    Records are tuples, lists, rows, or plain numbers (position 0).  Pairs that are keyed by their first field take a path of their own,
    in which the state is key -> sum; the first chunk of anything else ends that for good.

    Args:
        key_selector: a callable, or an object with ``get_key(value)``.
        position: of the field; a name for rows and named tuples.
        emit_on_finish: only the last sum of each key, at the end (``RuntimeExecutionMode.BATCH``).
        name: for people.

    Raises:
        JobGraphError: the position is neither an int nor a str.
    """

    def __init__(self, key_selector: Any, position: int | str = 0, *, emit_on_finish: bool = False, name: str = "Keyed Sum") -> None:
        super().__init__(key_selector, name, emit_on_finish=emit_on_finish)
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
            _field(record, self._position)
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
            total = _checked(addend, 1) if total is None else total + addend
            state[key] = total
            append(total)

    def _facts(self) -> dict[str, bool]:
        facts = {"_holds_sums": self._holds_sums, "_holds_tuples": self._holds_tuples, "_holds_pairs": self._holds_pairs}
        return super()._facts() | facts

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
                _field(record, 1)
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
                _field(record, position)
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
            addend = _field(record, position)
            so_far = state.get(key, _MISSING)
            state[key] = result = record if so_far is _MISSING else _with_field(so_far, position, _field(so_far, position) + addend)
            results.append(result)
        return results

    def _final_records(self) -> Iterator[Any]:
        return iter(self._state.items()) if self._holds_sums else iter(self._state.values())


def _field(record: Any, position: int | str) -> Any:
    """The number to sum."""
    if isinstance(record, tuple):
        value = record[_index(record, position)]
    elif isinstance(record, list | Row):
        value = record[position]  # type: ignore[index]  # a list says itself that it takes no str
    elif position == 0:
        value = record
    else:
        raise TypeError(f"sum({position!r}) needs tuples, lists or rows, got a value of type {type(record).__name__}")
    return _checked(value, position)


def _checked(value: Any, position: int | str) -> Any:
    if not isinstance(value, Number):
        raise TypeError(f"sum({position!r}) adds numbers, got a value of type {type(value).__name__}")
    return value


def _with_field(record: Any, position: int | str, total: Any) -> Any:
    """A copy of the record with the sum in its place."""
    if isinstance(record, tuple):
        index = _index(record, position)
        fields = list(record)
        fields[index] = total
        return tuple(fields) if type(record) is tuple else type(record)._make(fields)  # type: ignore[attr-defined]  # a named tuple
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

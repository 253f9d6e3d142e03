"""``sum``, ``min``, ``max``, ``min_by`` and ``max_by`` per key, on columns.

Hot path, per chunk: slots of keys, rows by key, one accumulator; every other field comes from its key's first record,
or from the record with the extreme (``bench shuffle``, ``bench shuffle-columnar``).
Side:       pure.
Invariants: results equal those of a loop over single records.  A chunk that cannot be computed exactly is refused
            before anything changes.  Then ``keys`` and ``columns`` are the state with which the caller goes on record
            by record.  If the refused chunk brought keys, all later chunks are refused.
Rules:      where nulls are skipped, a null in the field changes nothing.  A key without a value yet has a null as its
            result.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowlet.columns import ArrayColumn, ArrowColumn, Column, Columns, Shape, column_of
from flowlet.columns.column import INSTANT, NumberKind, Numbers
from flowlet.datastream.user_functions.aggregations import Aggregation
from flowlet.kernels.grouping import (
    Accumulator,
    ExtremeAccumulator,
    FieldStore,
    Grouping,
    IndexArray,
    LastRows,
    SumAccumulator,
    accumulate,
    first_rows,
    group,
    new_extremes,
    rows_of_extremes,
)
from flowlet.keys.key_columns import key_for
from flowlet.keys.key_index import KeyIndex, SlotArray, grown


class ColumnarReduction:
    """The running result of each key, in columns.

    Args:
        aggregation: the kind of result, and the field.  Where it skips nulls, None and instants can be keys; else such
            chunks are refused.
    """

    def __init__(self, aggregation: Aggregation) -> None:
        self._aggregation = aggregation
        self._index = KeyIndex(allows_null=aggregation.skips_nulls)
        self._seen: KeyIndex | None = None  # the keys that were asked for (``unseen``)
        # Shape, number and names of fields that all records must have.  The first records set it and the fields below.
        self._layout: tuple[Shape, int, tuple[str, ...]] | None = None
        self._position = 0
        # One per field; for the aggregated field, the values that the kept records had.
        self._stores: list[FieldStore] = []
        # The fields that are the key in each key's first record; None: there are no keys.
        self._key_fields: set[int] | None = None
        self._accumulator: Accumulator
        self._kind: NumberKind | None = None  # of the field's numbers
        self._has_value: NDArray[np.bool_] | None = None  # by slot; None: every key has one
        self.num_slots = 0  # how many keys have a result; read by the operator, too
        self._last_rows = LastRows()

    def __repr__(self) -> str:
        return (
            f"<ColumnarReduction {self._aggregation.method}({self._aggregation.position!r}) of {self.num_slots} keys>"
        )

    def emptied(self) -> "ColumnarReduction":
        """A reduction like this one without any key; a reduction that has keys must not be used afterwards."""
        if not self._index.num_slots and self._layout is None:
            return self
        self._index.close()
        if self._seen is not None:
            self._seen.close()
        return ColumnarReduction(self._aggregation)

    def advance(self, columns: Columns, keys: Column) -> Columns | None:
        """The result after each record; None if the chunk is refused."""
        return None if self._has_refused_keys else self._advance(columns, keys)

    def _advance(self, columns: Columns, keys: Column) -> Columns | None:
        found = self._start_rows(columns, keys)
        if found is None:
            return None
        numbers, slots, num_slots = found
        grouping = group(slots, num_slots)
        if self._aggregation.keeps_record:
            return self._advance_records(columns, grouping, numbers, num_slots)
        results = self._accumulator.advance(grouping, self._filled(numbers))
        if results is None:
            return None
        has_value = self._advance_validity(grouping, numbers, num_slots)
        if num_slots > self.num_slots:
            is_new = grouping.codes >= self.num_slots
            self._append(columns.take(grouping.order.take(grouping.starts[is_new])), num_slots)
        return self._output(slots, grouping.unsorted(results), has_value, self._same(columns, keys))

    def advance_batch(self, columns: Columns, keys: Column) -> tuple[Columns, IndexArray] | None:
        """The result of each key after its last record in the chunk, and the rows of these records; None if the chunk
        is refused.
        """
        found = None if self._has_refused_keys else self._start_rows(columns, keys)
        if found is None:
            return None
        numbers, slots, num_slots = found
        # No sort and no running results: only the last result of each key leaves.
        is_plain = numbers.is_valid is None and self._has_value is None and not self._aggregation.keeps_record
        if is_plain and self._accumulator.advance_once(slots, numbers.array):
            rows = self._last_rows.of(slots, num_slots)
            if num_slots > self.num_slots:
                self._append(columns.take(first_rows(slots, self.num_slots, num_slots)), num_slots)
            slots = slots.take(rows)
            same = [(index, column.take(rows)) for index, column in self._same(columns, keys)]
            return self._output(slots, self._accumulator.at(slots), None, same), rows
        results = self._advance(columns, keys)
        if results is None:
            return None
        rows = self._last_rows.of(slots, num_slots)
        return results.take(rows), rows

    def keys(self) -> list[Any]:
        """The exact key of each record of ``columns``."""
        # The index may end with keys of a refused chunk.
        return self._index.keys()[: self.num_slots]

    def columns(self) -> Columns | None:
        """The result of each key, in order of first sight; None if there are no keys."""
        if self._layout is None or not self.num_slots:
            return None
        slots = np.arange(self.num_slots)
        if self._aggregation.keeps_record:
            return self._columns([store.column() for store in self._stores])
        has_value = None if self._has_value is None else self._has_value[: self.num_slots]
        return self._output(slots, self._accumulator.at(slots), has_value)

    def load(self, keys: list[Any], columns: Columns) -> bool:
        """Take over a result for each of these exact keys, which are new; False: they do not fit, and every later chunk
        is refused.
        """
        numbers = self._start(columns)
        if numbers is None or not self._load_keys(keys):
            return False
        self._accept(columns, numbers)
        num_before = self.num_slots
        self._accumulator.load(num_before, self._filled(numbers))
        same = {index for index, column in enumerate(columns.fields) if _are_same(column.to_list(), keys)}
        self._key_fields = same if self._key_fields is None else self._key_fields & same
        self._append(columns, self._index.num_slots)
        if self._has_value is not None or numbers.is_valid is not None:
            before = np.ones(num_before, np.bool_) if self._has_value is None else self._has_value
            self._has_value = grown(before, self.num_slots, filler=False)
            self._has_value[num_before : self.num_slots] = True if numbers.is_valid is None else numbers.is_valid
        return True

    def _load_keys(self, keys: list[Any]) -> bool:
        """Give the keys the next slots, in their order."""
        first = self._index.num_slots
        if not first:
            return self._index.load(keys)
        slots = self._index.slots(column_of([key_for(key) for key in keys]))
        # A key that the index takes for one that it has gets no new slot, and all results behind it would be one slot
        # off.
        return slots is not None and bool((slots == np.arange(first, first + len(keys))).all())

    def unseen(self, keys: Column) -> list[Any] | None:
        """The exact keys that no column of an earlier call had; None: not all keys are of one kind."""
        if self._seen is None:
            # Not the index of the results, whose every slot must have one.
            self._seen = KeyIndex(allows_null=self._aggregation.skips_nulls)
        seen = self._seen
        num_before = seen.num_slots
        if seen.slots(keys) is None:
            return None
        return seen.keys()[num_before:] if seen.num_slots > num_before else []

    # -- input

    @property
    def _has_refused_keys(self) -> bool:
        # A chunk was refused after the index had learned its keys: their slots have no results, so no chunk is taken
        # any more.
        return self._index.num_slots > self.num_slots

    def _start_rows(self, columns: Columns, keys: Column) -> tuple[Numbers, SlotArray, int] | None:
        """The field's numbers, the slots, and the number of slots after these rows; None if the chunk is refused."""
        numbers = self._start(columns)
        slots = None if numbers is None else self._index.slots(keys)
        if numbers is None or slots is None:
            return None
        self._accept(columns, numbers)
        if self._index.num_slots > self.num_slots:
            found = _positions_of(keys, columns)
            self._key_fields = found if self._key_fields is None else self._key_fields & found
        return numbers, slots, self._index.num_slots

    def _accept(self, columns: Columns, numbers: Numbers) -> None:
        """Let the first records define the layout."""
        if not self._stores:
            self._stores = [FieldStore(column, is_replaced=self._aggregation.keeps_record) for column in columns.fields]
        self._kind = numbers.kind
        self._accumulator.grow(self._index.num_slots)

    def _start(self, columns: Columns) -> Numbers | None:
        """The field's numbers; None if the chunk is refused."""
        if not self._is_of_layout(columns):
            return None
        numbers = columns.fields[self._position].numbers()
        takes_nulls = self._aggregation.skips_nulls and not self._aggregation.keeps_record
        if numbers is None or (numbers.is_valid is not None and not takes_nulls):
            return None
        if numbers.kind.is_instant and (self._aggregation.is_sum or not self._aggregation.skips_nulls):
            return None
        if self._kind is not None and self._kind != numbers.kind:
            return None
        if self._kind is None:
            dtype = numbers.array.dtype
            is_sum = self._aggregation.is_sum
            is_largest = self._aggregation.is_largest
            self._accumulator = SumAccumulator(dtype) if is_sum else ExtremeAccumulator(dtype, is_largest=is_largest)
        return numbers if self._accumulator.takes(numbers.array) else None

    def _is_of_layout(self, columns: Columns) -> bool:
        layout = (columns.shape, len(columns.fields), columns.field_names)
        if self._layout is None:
            position = columns.position_of(self._aggregation.position)
            if position is None:
                return False
            self._position = position
            self._layout = layout
        return layout == self._layout

    def _filled(self, numbers: Numbers) -> NDArray[Any]:
        if numbers.is_valid is None:
            return numbers.array
        filler = numbers.array.dtype.type(self._accumulator.identity)
        return np.where(numbers.is_valid, numbers.array, filler)

    # -- the kept fields of each key's records

    def _append(self, columns: Columns, num_slots: int) -> None:
        if columns.num_rows:
            for store, column in zip(self._stores, columns.fields, strict=True):
                store.append(column)
        self.num_slots = num_slots

    def _advance_validity(self, grouping: Grouping, numbers: Numbers, num_slots: int) -> NDArray[np.bool_] | None:
        """Whether each row's key has had a value; None: all have."""
        if self._has_value is None:
            if numbers.is_valid is None:
                return None
            self._has_value = np.ones(self.num_slots, np.bool_)
        self._has_value = grown(self._has_value, num_slots, filler=False)
        if numbers.is_valid is None:
            self._has_value[grouping.codes] = True
            return None
        in_order = grouping.sorted(numbers.is_valid)
        has_value = accumulate(np.logical_or, grouping, in_order, self._has_value.take(grouping.codes))
        self._has_value[grouping.codes] = has_value.take(grouping.ends - 1)
        return None if has_value.all() else grouping.unsorted(has_value)

    def _advance_records(
        self, columns: Columns, grouping: Grouping, numbers: Numbers, num_slots: int
    ) -> Columns | None:
        """``advance`` for aggregations that keep the whole record."""
        is_new = grouping.codes >= self.num_slots
        before = self._accumulator.at(grouping.codes)
        in_order = grouping.sorted(numbers.array)
        results = self._accumulator.advance(grouping, numbers.array)
        assert results is not None, "extremes are always among the values"
        changes = new_extremes(grouping, in_order, results, before, is_new=is_new)
        rows = rows_of_extremes(grouping, changes)
        # A record that is older than these rows is denoted by the number of its group, behind the rows.
        older = columns.num_rows + grouping.spread(np.cumsum(~is_new) - 1)
        sources = grouping.unsorted(np.where(rows < 0, older, rows))
        old_slots = grouping.codes[~is_new]
        fields = [
            store.take_either(column, old_slots, sources)
            for store, column in zip(self._stores, columns.fields, strict=True)
        ]
        last = rows.take(grouping.ends - 1)
        is_replaced = ~is_new & (last >= 0)
        if is_replaced.any():
            for store, column in zip(self._stores, columns.take(last[is_replaced]).fields, strict=True):
                store.replace(grouping.codes[is_replaced], column)
        self._append(columns.take(last[is_new]), num_slots)
        return self._columns(fields)

    # -- output

    def _output(
        self,
        slots: SlotArray,
        results: NDArray[Any],
        has_value: NDArray[np.bool_] | None,
        same: Sequence[tuple[int, Column]] = (),
    ) -> Columns:
        """The results with all other fields; ``same`` are fields whose columns are known."""
        assert self._kind is not None, "there were records"
        known = dict(same)
        known[self._position] = _column_of(self._kind, results, has_value)
        return self._columns(
            [known[index] if index in known else store.take(slots) for index, store in enumerate(self._stores)]
        )

    def _same(self, columns: Columns, keys: Column) -> list[tuple[int, Column]]:
        """The fields that hold the key in these and in the first records, each with ``keys`` as its result column.

        Empty if equal keys may differ, since then a record's key cannot stand for the one in the first record.
        """
        if not self._key_fields or not self._index.are_plain:
            return []
        return [(index, keys) for index in _positions_of(keys, columns) & self._key_fields]

    def _columns(self, fields: list[Column]) -> Columns:
        assert self._layout is not None, "there were records"
        shape, _, names = self._layout
        return Columns(len(fields[0]), tuple(fields), shape, names)


def _are_same(values: list[Any], keys: list[Any]) -> bool:
    """Whether all are equal and of equal types: an exact key may stand for an instance of a subclass."""
    return values == keys and list(map(type, values)) == list(map(type, keys))


def _positions_of(keys: Column, columns: Columns) -> set[int]:
    return {index for index, column in enumerate(columns.fields) if column is keys}


def _column_of(kind: NumberKind, array: NDArray[Any], is_valid: NDArray[np.bool_] | None) -> Column:
    """Results as a column; ``is_valid`` False: a null, None: there are none."""
    if kind.is_instant and kind.arrow_type is None:
        instants = array.view(INSTANT)
        return ArrayColumn(instants if is_valid is None else np.where(is_valid, instants, np.datetime64("NaT", "us")))
    if kind.arrow_type is None and is_valid is None:
        return ArrayColumn(array)
    import pyarrow as pa  # here, because it takes long, and jobs without Arrow do without it

    if kind.arrow_type is not None and pa.types.is_date32(kind.arrow_type):
        array = array.astype(np.int32)
    whole = pa.array(array, mask=None if is_valid is None else ~is_valid)
    return ArrowColumn(whole if kind.arrow_type is None else whole.view(kind.arrow_type))

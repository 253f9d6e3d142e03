"""The parts that a window keeps of its rows for an aggregation, how two parts become one, and the aggregations.  The
keys of windows of columns: a number for each, as long as a window holds it; rows by pairs of a window and a key.

Hot path: C code per chunk and aggregation.  Where the pairs of a window and a key that are possible are not many more
than the rows, each has a place in an array and nothing is sorted.

Side:       pure.
Invariants: numbers are int64 or float64; a column is converted once, however many aggregations read it.  A part of some
            rows does not depend on how the rows were divided before, but for the rounding of sums of floats.  Sums of
            integers are exact, or an error.  Groups are in the order of their windows, and within a window in the order
            of their slots.  Equal keys have one slot; ``WindowKeys.array`` has the key of each slot in its Arrow type.
Units:      timestamps in milliseconds.
Rules:      nulls are left out, as in Arrow; a smallest or largest float is NaN only where all others are NaN, too.
            "First" and "last" go by event time, and where that is equal, by arrival.
Source:     the names are those of Arrow's and pandas' aggregations.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from flowlet.columns import ArrowColumn, Column, Columns
from flowlet.columns.arrow_batches import array_of_column, columns_of_batch
from flowlet.columns.column import INT64_MAX, INT64_MIN, Numbers
from flowlet.kernels.grouping import IndexArray, first_rows, magnitude
from flowlet.keys.key_columns import column_key_groups
from flowlet.keys.key_index import KeyIndex
from netstack.late import dataclass

Int64Array = NDArray[np.int64]


class ColumnInputs:
    """Rows with their timestamps.

    Args:
        columns: the rows.
        schema: a ``pyarrow.Schema`` that has a field for each column.
        timestamps: one per row.
    """

    __slots__ = ("_arrays", "_numbers", "_schema", "columns", "timestamps")

    def __init__(self, columns: Columns, schema: Any, timestamps: Int64Array) -> None:
        self.columns = columns
        self.timestamps = timestamps
        self._schema = schema
        self._numbers: dict[str, Numbers] = {}
        self._arrays: dict[str, Any] = {}

    def __len__(self) -> int:
        return self.columns.num_rows

    def column(self, name: str) -> Column:
        """A column as it came."""
        position: int = self._schema.get_field_index(name)
        return self.columns.fields[position]

    def array(self, name: str) -> Any:
        """A column as a ``pyarrow.Array`` of its declared type; codes of a dictionary as their values."""
        found = self._arrays.get(name)
        if found is None:
            found = array_of_column(self.column(name), self._schema.field(name))
            if pa.types.is_dictionary(found.type):
                found = found.dictionary_decode()
            self._arrays[name] = found
        return found

    def numbers(self, name: str) -> Numbers:
        """A column of numbers, or of instants as numbers.

        Raises:
            OverflowError: an integer needs more than 63 bits.
        """
        found = self._numbers.get(name)
        if found is None:
            numbers = self.column(name).numbers()
            if numbers is None:
                numbers = ArrowColumn(self.array(name)).numbers()
            if numbers is None:
                raise OverflowError(f"column {name!r} has integers above 2**63 - 1; cast it to float64 before")
            self._numbers[name] = found = numbers
        return found

    def take(self, rows: IndexArray) -> "ColumnInputs":
        """These rows."""
        return ColumnInputs(self.columns.take(rows), self._schema, self.timestamps.take(rows))


def no_rows(schema: Any) -> ColumnInputs:
    """Columns of a ``pyarrow.Schema`` without a row."""
    empty = [pa.nulls(0, field.type) for field in schema]  # of unions, too, which no list becomes
    columns = columns_of_batch(pa.RecordBatch.from_arrays(empty, schema=schema))
    return ColumnInputs(columns, schema, np.empty(0, np.int64))


Part = tuple[Any, ...]  # numpy arrays or Arrow arrays of one length

_LOW_BITS: Final = 32
_LOW_MASK: Final = (1 << _LOW_BITS) - 1
_NO_ROW: Final = -1


def join_values(arrays: Sequence[Any]) -> Any:
    """Numpy or Arrow arrays one behind the other."""
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if isinstance(arrays[0], np.ndarray) else pa.concat_arrays(arrays)


class Partial(ABC):
    """One kind of part."""

    @abstractmethod
    def of_rows(self, inputs: ColumnInputs) -> Part:
        """A part for each row.

        Raises:
            OverflowError: an integer is too large; names the column.
        """

    @abstractmethod
    def combined(self, part: Part, codes: IndexArray, num_groups: int) -> Part:
        """Combine the parts of each group into one.

        Args:
            part: the parts, earlier ones first.
            codes: the group of each part.
            num_groups: the number of groups; each has at least one part.

        Raises:
            OverflowError: a sum is too large; names the column.
        """

    def of_groups(self, inputs: ColumnInputs, codes: IndexArray, num_groups: int) -> Part:
        """A part for each group of rows; raises OverflowError as ``of_rows`` and ``combined``."""
        return self.combined(self.of_rows(inputs), codes, num_groups)


@dataclass(frozen=True, slots=True)
class CountPartial(Partial):
    """The number of rows; with a column, the number of rows in which it is not null."""

    column: str | None

    def of_rows(self, inputs: ColumnInputs) -> Part:
        """A one for each row; a zero where the column is null."""
        is_valid = self._is_valid(inputs)
        return (np.ones(len(inputs), np.int64) if is_valid is None else is_valid.astype(np.int64),)

    def of_groups(self, inputs: ColumnInputs, codes: IndexArray, num_groups: int) -> Part:
        """The number of rows of each group, counted without an array of ones."""
        is_valid = self._is_valid(inputs)
        return (np.bincount(codes if is_valid is None else codes[is_valid], minlength=num_groups),)

    def combined(self, part: Part, codes: IndexArray, num_groups: int) -> Part:
        """Add up the counts of each group."""
        counts = np.zeros(num_groups, np.int64)
        np.add.at(counts, codes, part[0])
        return (counts,)

    def _is_valid(self, inputs: ColumnInputs) -> NDArray[np.bool_] | None:
        if self.column is None or inputs.column(self.column).never_has_nulls:
            return None
        array = inputs.array(self.column)
        return array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None


# How two numbers become one.
_COMBINING: Final = {"sum": np.add, "min": np.fmin, "max": np.fmax}


@dataclass(frozen=True, slots=True)
class NumberPartial(Partial):
    """The sum, the smallest or the largest number of a column; instants are numbers.

    ``kind``: a key of ``_COMBINING``.
    """

    column: str
    kind: str

    def of_rows(self, inputs: ColumnInputs) -> Part:
        """The values; for a null the number that changes no other value."""
        numbers = inputs.numbers(self.column)
        if numbers.is_valid is None:
            return (numbers.array,)
        return (np.where(numbers.is_valid, numbers.array, self._identity(numbers.array.dtype)),)

    def combined(self, part: Part, codes: IndexArray, num_groups: int) -> Part:
        """Combine the values of each group one after the other; sums that may overflow are computed in halves."""
        values = part[0]
        is_int = values.dtype == np.int64
        # A cheap upper bound: only sums that might overflow pay for halves and for numbers of Python.
        if self.kind == "sum" and is_int and magnitude(values) * len(values) > INT64_MAX:
            return (self._exact(values, codes, num_groups),)
        found = np.full(num_groups, self._identity(values.dtype), values.dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            _COMBINING[self.kind].at(found, codes, values)
        return (found,)

    def _identity(self, dtype: "np.dtype[Any]") -> Any:
        if self.kind == "sum":
            return dtype.type(0)
        if dtype == np.int64:
            return dtype.type(INT64_MIN if self.kind == "max" else INT64_MAX)
        # Of a number and NaN, fmin and fmax give the number.
        return np.nan

    def _exact(self, values: Int64Array, codes: IndexArray, num_groups: int) -> Int64Array:
        upper = np.zeros(num_groups, np.int64)
        lower = np.zeros(num_groups, np.int64)
        # Halves of 32 bits: sums of 2**31 of them fit 64 bits, and Python joins them exactly.
        np.add.at(upper, codes, values >> _LOW_BITS)
        np.add.at(lower, codes, values & _LOW_MASK)
        sums = [(high << _LOW_BITS) + low for high, low in zip(upper.tolist(), lower.tolist(), strict=True)]
        for found in sums:
            if not INT64_MIN <= found <= INT64_MAX:
                raise OverflowError(
                    f"a sum of column {self.column!r} is {found}, which no int64 holds; cast the column to float64 "
                    "before"
                )
        return np.array(sums, np.int64)


@dataclass(frozen=True, slots=True)
class RankedPartial(Partial):
    """The smallest or largest value of a column of texts, bytes, decimals, times or truth values."""

    column: str
    is_largest: bool

    def of_rows(self, inputs: ColumnInputs) -> Part:
        """The values."""
        return (inputs.array(self.column),)

    def combined(self, part: Part, codes: IndexArray, num_groups: int) -> Part:
        """The value of each group with the lowest or highest rank among the distinct values."""
        encoded = part[0].dictionary_encode()
        order = pc.array_sort_indices(encoded.dictionary)
        ranks = np.empty(len(order) + 1, np.int64)
        ranks[order.to_numpy()] = np.arange(len(order))
        neutral = _NO_ROW if self.is_largest else len(order)
        # The place behind all values is for nulls, which get that index below.
        ranks[-1] = neutral
        indices = encoded.indices.fill_null(len(order)).to_numpy(zero_copy_only=False)
        found = np.full(num_groups, neutral, np.int64)
        (np.maximum if self.is_largest else np.minimum).at(found, codes, ranks.take(indices))
        # A null index gives a null value.
        chosen = order.take(pa.array(np.where(found == neutral, 0, found), mask=found == neutral))
        return (encoded.dictionary.take(chosen),)


@dataclass(frozen=True, slots=True)
class EdgePartial(Partial):
    """The first or the last value of a column."""

    column: str
    is_last: bool

    def of_rows(self, inputs: ColumnInputs) -> Part:
        """The timestamps and the values."""
        return (inputs.timestamps, inputs.array(self.column))

    def combined(self, part: Part, codes: IndexArray, num_groups: int) -> Part:
        """The value at one end of each group, sorted by time; the sort leaves equal times in their order."""
        times, values = part
        rows = (
            values.is_valid().to_numpy(zero_copy_only=False).nonzero()[0]
            if values.null_count
            else np.arange(len(values))
        )
        groups = codes.take(rows)
        order = np.lexsort((times.take(rows), groups))
        in_order = groups.take(order)
        is_edge = np.ones(len(order), np.bool_)
        np.not_equal(in_order[1:], in_order[:-1], out=is_edge[:-1] if self.is_last else is_edge[1:])
        edges = is_edge.nonzero()[0]
        chosen = np.full(num_groups, _NO_ROW, np.int64)
        chosen[in_order.take(edges)] = rows.take(order.take(edges))
        is_missing = chosen == _NO_ROW
        chosen[is_missing] = 0
        found_times = np.where(is_missing, 0, times.take(chosen))
        return (found_times, values.take(pa.array(chosen, mask=is_missing)))


def value_type(kind: Any) -> Any:
    """The Arrow type itself; for a dictionary the type of its values."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


AGGREGATES: Final = ("sum", "mean", "min", "max", "count", "first", "last")


@dataclass(frozen=True, slots=True)
class WindowAggregate:
    """One column of results.

    Args:
        name: of the column.
        kind: one of ``AGGREGATES``.
        column: the column that is aggregated; None: the rows are counted.
        column_type: its Arrow type.
    """

    name: str
    kind: str
    column: str | None = None
    column_type: Any = None

    @property
    def output_type(self) -> Any:
        """The Arrow type of the results."""
        if self.kind == "count":
            return pa.int64()
        if self.kind == "mean":
            return pa.float64()
        if self.kind == "sum":
            return pa.int64() if pa.types.is_integer(self.column_type) else pa.float64()
        return value_type(self.column_type)

    def partials(self) -> tuple[Partial, ...]:
        """The kinds of parts that the aggregation needs; several aggregations may share a kind."""
        column = self.column
        kind = self.kind
        if kind == "count" or column is None:
            return (CountPartial(column),)
        if kind in ("first", "last"):
            return (EdgePartial(column, is_last=kind == "last"),)
        if kind in ("min", "max") and not _is_number(self.column_type):
            return (RankedPartial(column, is_largest=kind == "max"),)
        return (NumberPartial(column, "sum" if kind == "mean" else kind), CountPartial(column))

    def results(self, parts: list[Part]) -> Any:
        """A ``pyarrow.Array`` of the parts that ``partials`` names."""
        values = parts[0][-1]
        if self.kind == "count":
            return pa.array(values)
        if len(parts) == 1:
            return values
        is_null = parts[1][0] == 0
        if self.kind == "mean":
            values = values / np.where(is_null, 1, parts[1][0])
        return _typed(pa.array(values, mask=is_null if is_null.any() else None), self.output_type)


def distinct_partials(aggregates: tuple[WindowAggregate, ...]) -> tuple[Partial, ...]:
    """All parts that are needed, each once."""
    return tuple(dict.fromkeys(partial for each in aggregates for partial in each.partials()))


def _typed(array: Any, kind: Any) -> Any:
    """Numbers as an array of the type: times by their bits, numbers by their values."""
    if array.type == kind:
        return array
    if pa.types.is_temporal(kind):
        return array.cast(pa.int32()).view(kind) if kind.bit_width == 32 else array.view(kind)
    return array.cast(kind)


def _is_number(kind: Any) -> bool:
    kinds = pa.types
    return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_timestamp(kind) or kinds.is_date32(kind))


# Up to this number of places per row, an array is cheaper than a sort of the rows (about 60 ns each); not measured
# closely.
_MAX_CELLS_PER_ROW: Final = 4
_MIN_CELLS: Final = 1 << 14
_MAX_CELLS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class CellGroups:
    """Groups of rows.

    ``codes``: the group of each row.  ``windows``, ``slots``: of each group.
    """

    codes: IndexArray
    windows: Int64Array
    slots: Int64Array

    def __len__(self) -> int:
        return len(self.windows)


def group_cells(windows: Int64Array, slots: Int64Array) -> CellGroups:
    """Group rows; there is at least one.

    Args:
        windows: a number of the window of each row; consecutive windows should have consecutive numbers.
        slots: of the key of each row.
    """
    found = try_group_cells(windows, slots)
    if found is not None:
        return found
    low, num_slots = int(windows.min()), int(slots.max()) + 1
    if (int(windows.max()) - low + 1) * num_slots < _MAX_CELLS:
        present, codes = np.unique((windows - low) * num_slots + slots, return_inverse=True)
        return _groups(codes, present, low, num_slots)
    distinct, ranks = np.unique(windows, return_inverse=True)
    present, codes = np.unique(ranks.astype(np.int64) * num_slots + slots, return_inverse=True)
    return CellGroups(codes, distinct.take(present // num_slots), present % num_slots)


def try_group_cells(windows: Int64Array, slots: Int64Array) -> CellGroups | None:
    """Group rows without a sort, as ``group_cells`` does; None: there are many more possible pairs than rows."""
    low, num_slots = int(windows.min()), int(slots.max()) + 1
    span = int(windows.max()) - low + 1
    if span * num_slots > max(_MAX_CELLS_PER_ROW * len(windows), _MIN_CELLS):
        return None
    cells = slots if span == 1 else (windows - low) * num_slots + slots
    present = np.bincount(cells, minlength=span * num_slots).nonzero()[0]
    if len(present) == span * num_slots:
        codes = cells.astype(np.intp, copy=False)
    else:
        places = np.empty(span * num_slots, np.intp)
        places[present] = np.arange(len(present))
        codes = places.take(cells)
    return _groups(codes, present, low, num_slots)


def _groups(codes: IndexArray, present: Int64Array, low: int, num_slots: int) -> CellGroups:
    number = present // num_slots
    return CellGroups(codes, number + low, present - number * num_slots)


# Fewer slots are not worth numbering again.
_MIN_SLOTS: Final = 1 << 14
_NO_GROUPS: Final = np.empty(0, np.int64)


class WindowKeys:
    """The slots of keys: a number for each.

    Args:
        name: of the key's column; None: there are no keys, and one slot.
        key_type: its Arrow type, of plain values.
    """

    def __init__(self, name: str | None, key_type: Any = None) -> None:
        self._name = name
        self._type = key_type
        self._index = KeyIndex(allows_null=True)
        self._arrays: list[Any] = [pa.nulls(1)] if name is None else []
        self.num_slots = 1 if name is None else 0
        self.num_bytes = 0  # of the keys in Arrow
        self._groups = _NO_GROUPS

    def __repr__(self) -> str:
        return f"<WindowKeys {self._name!r}, {self.num_slots} slots>"

    def slots(self, inputs: ColumnInputs, name: str | None = None) -> Int64Array:
        """The slot of each row's key.

        Args:
            inputs: the rows.
            name: of the column here; None: it has the usual name.

        Raises:
            TypeError: there are values that cannot be keys.
        """
        if self._name is None:
            return np.zeros(len(inputs), np.int64)
        name = name or self._name
        slots = self._index.slots(inputs.column(name))
        if slots is None:
            # The form of this chunk may differ from the earlier ones; in its declared type every chunk is alike.
            slots = self._index.slots(ArrowColumn(inputs.array(name)))
        if slots is None:
            raise TypeError(
                f"column {name!r} has values that cannot be keys together; cast it to string or int64 before key_by()"
            )
        if self._index.num_slots > self.num_slots:
            self._take_new(slots, inputs.array(name))
        return slots

    def slots_of(self, keys: Any) -> Int64Array:
        """The slot of each key of an Arrow array that ``array`` returned once; raises TypeError as ``slots``."""
        if self._name is None:
            return np.zeros(len(keys), np.int64)
        slots = self._index.slots(ArrowColumn(keys))
        if slots is None:
            raise TypeError(f"the keys of column {self._name!r} in the checkpoint are of another kind, or of several")
        if self._index.num_slots > self.num_slots:
            self._take_new(slots, keys)
        return slots

    def groups(self, max_parallelism: int) -> Int64Array:
        """The key group of each slot."""
        if len(self._groups) != self.num_slots:
            self._groups = column_key_groups(self.array(), max_parallelism).astype(np.int64)
        return self._groups

    def array(self) -> Any:
        """The key of each slot."""
        if len(self._arrays) != 1:
            self._arrays = [pa.concat_arrays(self._arrays) if self._arrays else pa.array([], self._type)]
        return self._arrays[0]

    def are_sparse(self, num_rows: int) -> bool:
        """Whether most slots surely belong to no row, as the state has ``num_rows`` rows."""
        return self._name is not None and self.num_slots > max(_MIN_SLOTS, 2 * num_rows)

    def keep(self, is_live: Any) -> Int64Array:
        """Keep only the keys of live slots; returns an array with the new slot of each former slot that stays."""
        live = is_live.nonzero()[0]
        keys = self.array().take(live)
        self.forget()
        self.slots_of(keys)
        slots = np.zeros(len(is_live), np.int64)
        slots[live] = np.arange(len(live))
        return slots

    def forget(self) -> None:
        """Forget all keys."""
        if self._name is not None:
            self._index.close()
            self._index = KeyIndex(allows_null=True)
            self._arrays = []
            self.num_slots = self.num_bytes = 0
            self._groups = _NO_GROUPS

    def _take_new(self, slots: Int64Array, keys: Any) -> None:
        after = self._index.num_slots
        array = keys.take(first_rows(slots, self.num_slots, after))
        self._arrays.append(array if array.type == self._type else array.cast(self._type))
        self.num_bytes += int(self._arrays[-1].nbytes)
        self.num_slots = after

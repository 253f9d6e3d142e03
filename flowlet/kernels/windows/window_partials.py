"""What a window keeps of its rows for an aggregation, how two such parts become one, and which aggregations there are.

Hot path: C code per chunk and aggregation.

Side:       pure.
Invariants: numbers are int64 or float64; a column is converted once, however many aggregations read it.  A part of some
            rows is the same however the rows were divided before, but for the rounding of sums of floats.  Sums of
            integers are exact, or an error.
Units:      timestamps in milliseconds.
Rules:      nulls are left out, as in Arrow; a smallest or largest float is NaN only where there is nothing else.
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
from flowlet.kernels.accumulators import magnitude
from flowlet.kernels.grouping import IndexArray
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
    """Nothing, in columns of a ``pyarrow.Schema``."""
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
        """The parts of each group as one.

        Args:
            part: earlier ones first.
            codes: the group of each.
            num_groups: each has at least one.

        Raises:
            OverflowError: a sum is too large; names the column.
        """

    def of_groups(self, inputs: ColumnInputs, codes: IndexArray, num_groups: int) -> Part:
        """A part for each group of rows; raises as the others."""
        return self.combined(self.of_rows(inputs), codes, num_groups)


@dataclass(frozen=True, slots=True)
class CountPartial(Partial):
    """The number of rows; with a column, of those in which it is not null."""

    column: str | None

    def of_rows(self, inputs: ColumnInputs) -> Part:
        """Ones and zeros."""
        is_valid = self._is_valid(inputs)
        return (np.ones(len(inputs), np.int64) if is_valid is None else is_valid.astype(np.int64),)

    def of_groups(self, inputs: ColumnInputs, codes: IndexArray, num_groups: int) -> Part:
        """Without an array of ones."""
        is_valid = self._is_valid(inputs)
        return (np.bincount(codes if is_valid is None else codes[is_valid], minlength=num_groups),)

    def combined(self, part: Part, codes: IndexArray, num_groups: int) -> Part:
        """Added up."""
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
        """The values; for a null what changes no other value."""
        numbers = inputs.numbers(self.column)
        if numbers.is_valid is None:
            return (numbers.array,)
        return (np.where(numbers.is_valid, numbers.array, self._identity(numbers.array.dtype)),)

    def combined(self, part: Part, codes: IndexArray, num_groups: int) -> Part:
        """Combined one after the other."""
        values = part[0]
        is_int = values.dtype == np.int64
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
        return np.nan

    def _exact(self, values: Int64Array, codes: IndexArray, num_groups: int) -> Int64Array:
        upper = np.zeros(num_groups, np.int64)
        lower = np.zeros(num_groups, np.int64)
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
        """By the rank of each distinct value among the values."""
        encoded = part[0].dictionary_encode()
        order = pc.array_sort_indices(encoded.dictionary)
        ranks = np.empty(len(order) + 1, np.int64)
        ranks[order.to_numpy()] = np.arange(len(order))
        neutral = _NO_ROW if self.is_largest else len(order)
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
        """When, and what."""
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
    """An Arrow type, of the values if it is that of a dictionary."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


AGGREGATES: Final = ("sum", "mean", "min", "max", "count", "first", "last")


@dataclass(frozen=True, slots=True)
class WindowAggregate:
    """One column of results.

    Args:
        name: of the column.
        kind: one of ``AGGREGATES``.
        column: that is aggregated; None: the rows are counted.
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
        """What must be kept; the same parts serve several aggregations."""
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
    """Numbers as values of the type, whose bits they are, or of which they are values."""
    if array.type == kind:
        return array
    if pa.types.is_temporal(kind):
        return array.cast(pa.int32()).view(kind) if kind.bit_width == 32 else array.view(kind)
    return array.cast(kind)


def _is_number(kind: Any) -> bool:
    kinds = pa.types
    return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_timestamp(kind) or kinds.is_date32(kind))

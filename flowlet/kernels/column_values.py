"""The numbers of a column, as numpy arrays for arithmetic.

Hot path, per column; int64 and float64 are not copied.
Side:       pure.
Invariants: the numbers are exactly the column's.  A column that no such array can hold (bool, ints beyond 64 bits, mixed types) is refused.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.columns import ArrayColumn, ArrowColumn, Column, ConstantColumn

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
_WIDE_INT: Final = np.dtype(np.int64)
_WIDE_FLOAT: Final = np.dtype(np.float64)
_INSTANT: Final = np.dtype("datetime64[us]")
_NO_INSTANT: Final = np.datetime64("NaT", "us")


@dataclass(frozen=True, slots=True)
class NumberKind:
    """What the numbers mean; ``is_instant``: microseconds since the epoch, or the unit of ``arrow_type``."""

    is_instant: bool = False
    arrow_type: Any = None  # for instants from Arrow

    def column(self, array: NDArray[Any], is_valid: NDArray[np.bool_] | None) -> Column:
        """Results as a column; ``is_valid`` is False for nulls, None if there are none."""
        if self.is_instant and self.arrow_type is None:
            instants = array.view(_INSTANT)
            return ArrayColumn(instants if is_valid is None else np.where(is_valid, instants, _NO_INSTANT))
        if self.arrow_type is None and is_valid is None:
            return ArrayColumn(array)
        import pyarrow as pa  # slow to import, and not needed without Arrow columns

        if self.arrow_type is not None and pa.types.is_date32(self.arrow_type):
            array = array.astype(np.int32)
        whole = pa.array(array, mask=None if is_valid is None else ~is_valid)
        return ArrowColumn(whole if self.arrow_type is None else whole.view(self.arrow_type))


@dataclass(frozen=True, slots=True)
class Numbers:
    """A column for arithmetic.

    ``array``: int64 or float64; any value stands for a null.  ``is_valid``: False for nulls; None if there are none.
    """

    array: NDArray[Any]
    is_valid: NDArray[np.bool_] | None = None
    kind: NumberKind = NumberKind()


def numbers_of(column: Column) -> Numbers | None:
    """The column's ints, floats or instants; None if it holds anything else."""
    if isinstance(column, ArrayColumn):
        return _of_array(column.array)
    if isinstance(column, ConstantColumn):
        return _of_constant(column.value, len(column))
    if isinstance(column, ArrowColumn):
        return _of_arrow(column.array)
    return None


def wide(array: NDArray[Any]) -> NDArray[Any] | None:
    """The array as int64 or float64, without change of values; None if impossible."""
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "i" or (kind == "u" and (size < _WIDE_INT.itemsize or array.max(initial=0) <= INT64_MAX)):
        return array.astype(_WIDE_INT, copy=False)
    if kind == "f" and size <= _WIDE_FLOAT.itemsize:
        return array.astype(_WIDE_FLOAT, copy=False)
    return None


def _of_array(array: NDArray[Any]) -> Numbers | None:
    if array.dtype == _INSTANT:
        is_valid = ~np.isnat(array)
        return Numbers(array.view(np.int64), None if is_valid.all() else is_valid, NumberKind(is_instant=True))
    numbers = wide(array)
    return None if numbers is None else Numbers(numbers)


def _of_constant(value: Any, num_values: int) -> Numbers | None:
    if type(value) is int and INT64_MIN <= value <= INT64_MAX:
        return Numbers(np.full(num_values, value, np.int64))
    return Numbers(np.full(num_values, value)) if type(value) is float else None


def _of_arrow(array: Any) -> Numbers | None:
    import pyarrow as pa

    kinds, kind = pa.types, array.type
    is_instant = kinds.is_timestamp(kind) or kinds.is_date32(kind)
    if not (is_instant or kinds.is_integer(kind) or kinds.is_floating(kind)):
        return None
    is_valid = None if not array.null_count else array.is_valid().to_numpy(zero_copy_only=False)
    plain = array.view(pa.int32() if kinds.is_date32(kind) else pa.int64()) if is_instant else array
    numbers = wide((plain if is_valid is None else plain.fill_null(0)).to_numpy(zero_copy_only=False))
    if numbers is None:
        return None
    return Numbers(numbers, is_valid, NumberKind(is_instant=True, arrow_type=kind) if is_instant else NumberKind())

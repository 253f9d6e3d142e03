"""The aggregations that windows of columns know: which parts they need, and what they make of them.

Side:       pure.
Source:     the names are those of Arrow's and pandas' aggregations.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa

from flowlet.kernels.windows.window_partials import (
    CountPartial,
    EdgePartial,
    ExtremePartial,
    Part,
    Partial,
    RankedPartial,
    SumPartial,
)
from netstack.late import dataclass

AGGREGATES: Final = ("sum", "mean", "min", "max", "count", "first", "last")
_EXTREMES: Final = ("min", "max")
_EDGES: Final = ("first", "last")


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
        return _plain(self.column_type)

    @property
    def is_nullable(self) -> bool:
        """Whether a window without a value has a null."""
        return self.kind != "count"

    def partials(self) -> tuple[Partial, ...]:
        """What must be kept; the same parts serve several aggregations."""
        column = self.column
        if self.kind == "count" or column is None:
            return (CountPartial(column),)
        if self.kind in _EDGES:
            return (EdgePartial(column, is_last=self.kind == "last"),)
        if self.kind in _EXTREMES:
            is_largest = self.kind == "max"
            if not _is_number(self.column_type):
                return (RankedPartial(column, is_largest=is_largest),)
            return (ExtremePartial(column, is_largest=is_largest), CountPartial(column))
        return (SumPartial(column), CountPartial(column))

    def results(self, parts: list[Part]) -> Any:
        """A ``pyarrow.Array`` of the parts that ``partials`` names."""
        if self.kind == "count":
            return pa.array(parts[0][0])
        if self.kind in _EDGES:
            return parts[0][1]
        if len(parts) == 1:
            return parts[0][0]
        values, counts = parts[0][0], parts[1][0]
        is_null = counts == 0
        if self.kind == "mean":
            values = values / np.where(is_null, 1, counts)
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


def _plain(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_number(kind: Any) -> bool:
    kinds = pa.types
    return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_timestamp(kind) or kinds.is_date32(kind))

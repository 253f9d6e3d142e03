"""Timestamps from a column, for all rows of a batch at once.

Hot path: no work in Python per row.

Side:       pure.
Invariants: a row without a time is refused; a time is rounded down to milliseconds.
Units:      integers are milliseconds since 1970; instants without a time zone are in UTC.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.columns import ArrowColumn, Columns
from flowlet.columns.column import NumberKind
from flowlet.common.watermark_strategy import TimestampAssigner

_PER_MILLISECOND: Final = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_MS_PER_SECOND: Final = 1_000


class TimeColumn(TimestampAssigner):
    """Takes timestamps from a column.

    Args:
        name: of the column.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"TimeColumn({self.name!r})"

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """The time of one row."""
        import pyarrow as pa

        time = value[self.name]
        if type(time) is int:
            return time
        return int(self._milliseconds(pa.array([time]))[0])

    def timestamps_of(self, columns: Columns) -> NDArray[np.int64]:
        """The time of each row.

        Raises:
            ValueError: a row has no time.
            TypeError: there is no such column, or it is no time.
        """
        if self.name not in columns.field_names:
            raise TypeError(f"with_event_time({self.name!r}): the rows have the columns {list(columns.field_names)}")
        column = columns.fields[columns.field_names.index(self.name)]
        numbers = column.numbers()
        if numbers is not None and numbers.is_valid is None and numbers.kind == NumberKind():
            if numbers.array.dtype == np.int64:
                return numbers.array
            raise TypeError(
                f"with_event_time({self.name!r}): the column holds floats; use milliseconds as integers, or timestamps"
            )
        array = column.arrow_array()
        if array is None:
            import pyarrow as pa

            array = pa.array(column.to_list())
        return self._milliseconds(array)

    def _milliseconds(self, array: Any) -> NDArray[np.int64]:
        import pyarrow as pa

        if array.null_count:
            raise ValueError(
                f"with_event_time({self.name!r}): {array.null_count} of {len(array)} rows have no time there (null); "
                "filter them out, or fill the nulls by map_batches(...)"
            )
        kind = array.type
        if pa.types.is_date(kind) or pa.types.is_integer(kind):
            array = array.cast(pa.timestamp("ms") if pa.types.is_date(kind) else pa.int64())
            kind = array.type
        numbers = ArrowColumn(array).numbers()
        if numbers is None:
            raise TypeError(
                f"with_event_time({self.name!r}): the column is a {kind}; use milliseconds as integers, or timestamps"
            )
        if not numbers.kind.is_instant:
            return numbers.array
        # By floor division: it rounds times before 1970 down, too, where a division towards zero would round them up.
        return numbers.array * _MS_PER_SECOND if kind.unit == "s" else numbers.array // _PER_MILLISECOND[kind.unit]

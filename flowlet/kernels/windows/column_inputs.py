"""The columns of one chunk, as aggregations over windows want them.

Hot path, per chunk.

Side:       pure.
Invariants: numbers are int64 or float64; a column is converted once, however many aggregations read it.
Units:      timestamps in milliseconds.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from flowlet.columns import ArrowColumn, Column, Columns
from flowlet.columns.arrow_batches import array_of_column
from flowlet.columns.column import Numbers
from flowlet.kernels.grouping import IndexArray

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

    def batch(self) -> Any:
        """All columns as a ``pyarrow.RecordBatch``."""
        fields = list(self._schema)
        arrays = [array_of_column(column, field) for column, field in zip(self.columns.fields, fields, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def take(self, rows: IndexArray) -> "ColumnInputs":
        """These rows."""
        return ColumnInputs(self.columns.take(rows), self._schema, self.timestamps.take(rows))

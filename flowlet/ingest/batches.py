"""Makes columns of Arrow record batches.

Hot path: nothing per row.

Side:       pure.
Invariants: the records are what ``to_pylist`` of the columns gives, in the shape of the gate's type; numbers without
            nulls share its memory.
"""

from typing import Final

import pyarrow as pa

from flowlet.columns import ArrayColumn, ArrowColumn, Column, Columns, Shape
from flowlet.common.typeinfo import PickledBytesTypeInfo, RowTypeInfo, TupleTypeInfo, TypeInformation

# Types whose arrays numpy can use without a copy.
_PLAIN: Final = frozenset(
    {pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.timestamp("us")}
)


def columns_of_batch(batch: pa.RecordBatch, type_info: TypeInformation) -> Columns:
    """The rows of ``batch`` as records of ``type_info``: rows with its names, tuples, or the values
    of the only column.
    """
    return shaped(tuple([column_of_array(array) for array in batch.columns]), type_info)


def shaped(fields: tuple[Column, ...], type_info: TypeInformation) -> Columns:
    """Columns of records of ``type_info``; at least one field."""
    num_rows = len(fields[0])
    match type_info:
        case RowTypeInfo():
            return Columns(num_rows, fields, Shape.ROW, tuple(type_info.get_field_names()))
        case TupleTypeInfo() | PickledBytesTypeInfo():
            return Columns(num_rows, fields, Shape.TUPLE)
        case _:
            return Columns(num_rows, fields, Shape.SCALAR)


def column_of_array(array: pa.Array) -> Column:
    """A column of the array's values; numbers without nulls share its memory."""
    if array.null_count == 0 and array.type in _PLAIN:
        return ArrayColumn(array.to_numpy())
    return ArrowColumn(array)

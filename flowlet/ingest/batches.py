"""An Arrow record batch as a chunk of records, in columns.

Hot path: nothing per row.

Side:       pure.
Invariants: the records are what ``to_pylist`` of the columns gives, in the shape of the gate's type; numbers without a null share the
            memory of the batch.
"""

from typing import Final

import pyarrow as pa

from flowlet.columns import ArrayColumn, ArrowColumn, Column, Columns, Shape
from flowlet.common.typeinfo import PickledBytesTypeInfo, RowTypeInfo, TupleTypeInfo, TypeInformation
from flowlet.records import Chunk

# What numpy holds without a copy.
_PLAIN: Final = frozenset({pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.timestamp("us")})


def chunk_of_batch(batch: pa.RecordBatch, type_info: TypeInformation) -> Chunk:
    """The rows of ``batch`` as records of ``type_info``: ``Row``s with its names, tuples, or the values of the only column."""
    return Chunk.of_columns(shaped(tuple([column_of_array(array) for array in batch.columns]), type_info))


def shaped(fields: tuple[Column, ...], type_info: TypeInformation) -> Columns:
    """A table of the records of ``type_info``; there is at least one field."""
    num_rows = len(fields[0])
    match type_info:
        case RowTypeInfo():
            return Columns(num_rows, fields, Shape.ROW, tuple(type_info.get_field_names()))
        case TupleTypeInfo() | PickledBytesTypeInfo():
            return Columns(num_rows, fields, Shape.TUPLE)
        case _:
            return Columns(num_rows, fields, Shape.SCALAR)


def column_of_array(array: pa.Array) -> Column:
    """A column of the same values; numbers without a null share its memory."""
    if array.null_count == 0 and array.type in _PLAIN:
        return ArrayColumn(array.to_numpy())
    return ArrowColumn(array)

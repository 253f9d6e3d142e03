"""Makes chunks of Arrow record batches: their rows as columns, or each batch as one record.

Hot path: nothing per row.

Side:       pure.
Invariants: the records are what ``to_pylist`` of the columns gives, in the shape of the gate's type; numbers without
            nulls share its memory.
"""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from flowlet.columns import ArrayColumn, ArrowColumn, Column, Columns, Shape
from flowlet.common.typeinfo import ArrowTypeInfo, PickledBytesTypeInfo, RowTypeInfo, TupleTypeInfo, TypeInformation
from flowlet.ingest.errors import GateTypeError
from flowlet.records import Chunk
from flowlet.serde.types.arrow_serializer import message_of_batch
from flowlet.serde.types.type_serializer import ValueMismatchError

# Types whose arrays numpy can use without a copy.
_PLAIN: Final = frozenset(
    {pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.timestamp("us")}
)


def columns_of_batch(batch: pa.RecordBatch, type_info: TypeInformation) -> Columns:
    """The rows of ``batch`` as records of ``type_info``: rows with its names, tuples, or the values
    of the only column.
    """
    return shaped(tuple([column_of_array(array) for array in batch.columns]), type_info)


def whole_batches(batches: Sequence[Any], timestamps: list[int] | None, type_info: ArrowTypeInfo, gate: str) -> Chunk:
    """Each batch as one record, encoded as an Arrow message, so that its reader unpickles nothing.

    Raises:
        GateTypeError: a batch does not have the gate's schema; names the column.
    """
    try:
        return Chunk(
            [message_of_batch(_declared(batch, type_info.schema), type_info.schema).to_pybytes() for batch in batches],
            timestamps,
        )
    except ValueMismatchError as error:
        column = f"column {error.path!r}: " if error.path else ""
        raise GateTypeError(f"{column}{error.reason}; {gate} takes {type_info!r}") from error


def _declared(batch: Any, schema: pa.Schema) -> Any:
    """The batch with the declared schema if they differ only in nullability."""
    if isinstance(batch, pa.RecordBatch) and batch.schema.names == schema.names and batch.schema.types == schema.types:
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    return batch


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

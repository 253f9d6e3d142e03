"""``ParquetFormatWriter``: writes records into one Parquet file.

Hot path, per chunk: C calls per column; nothing per record if records are in columns or tuples (bench: sinks).

Side:       task.
Source:     Flink ``ParquetBulkWriter``.
Invariants: at most one row group waits in memory.
Absent:     other formats: this module imports pyarrow, which their jobs do without.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from flowlet.columns import Column, Shape
from flowlet.common.types import RowFieldsError, fields_by_name, fields_of_record, fields_of_records
from flowlet.connectors.files.part_files import FormatWriter, blamed
from flowlet.datastream.formats.bulk_formats import ParquetWriterFactory
from flowlet.records import Chunk
from flowlet.serde.type_serializer import ValueMismatchError
from flowlet.sinks.commit_runner import BadRecordError
from flowlet.types.gate_forms import exact_array
from flowlet.types.leaf_forms import arrow_type_of

ROWS_PER_GROUP: Final = 65_536
_LOCAL: Final = pa.timestamp("us")
_UTC: Final = pa.timestamp("us", "UTC")


class ParquetFormatWriter(FormatWriter):
    """Writes one Parquet file.

    Args:
        factory: the columns; records are rows or tuples with as many fields.
        file: open for writing.
    """

    def __init__(self, factory: ParquetWriterFactory, file: BinaryIO) -> None:
        names = factory.row_type.get_field_names()
        types = factory.row_type.get_field_types()
        self._names = names
        kinds = list(map(arrow_type_of, types))
        if factory.utc_timestamp:
            kinds = [_UTC if each == _LOCAL else each for each in kinds]
        self._declared = pa.schema(list(zip(names, kinds, strict=True)))
        self._writer = pq.ParquetWriter(file, self._declared)
        self._waiting: list[pa.RecordBatch] = []
        self._num_waiting = 0

    def write(self, chunk: Chunk) -> None:
        """Keep the records, and write them once there are enough for a row group.

        Raises:
            BadRecordError: a record is not of the declared type; its cause names the field.
        """
        try:
            self._waiting.append(self._batch(chunk))
        except ValueMismatchError as error:
            raise blamed(chunk.values, lambda record: self._batch(Chunk([record])), error)  # noqa: B904 - it has its cause
        self._num_waiting += len(chunk)
        if self._num_waiting >= ROWS_PER_GROUP:
            self._write()

    def end(self) -> None:
        """Write the last row group and the footer."""
        self._write()
        self._writer.close()

    def drop(self) -> None:
        """Close the writer now: it would otherwise close itself when it is collected as garbage."""
        with suppress(OSError, pa.ArrowException):
            self._writer.close()

    def _write(self) -> None:
        batches = self._waiting
        self._waiting = []
        self._num_waiting = 0
        if batches:
            self._writer.write_table(pa.Table.from_batches(batches))

    def _batch(self, chunk: Chunk) -> pa.RecordBatch:
        columns = chunk.columns
        if columns is not None and columns.shape is not Shape.SCALAR and len(columns.fields) == len(self._declared):
            fields: Sequence[Any] = columns.fields
            if columns.field_names:
                try:
                    fields = fields_by_name(columns.field_names, columns.fields, tuple(self._names))
                except RowFieldsError as error:
                    raise BadRecordError(chunk.values[0]) from error
        else:
            fields = self._transposed(chunk.values)
        arrays = [self._array(field, each) for field, each in zip(self._declared, fields, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._declared)

    def _transposed(self, records: list[Any]) -> list[tuple[Any, ...]]:
        try:
            return list(zip(*fields_of_records(records, self._names), strict=True))
        except RowFieldsError as error:
            raise blamed(records, lambda record: fields_of_record(record, self._names), error)  # noqa: B904 - it has its cause

    def _array(self, field: Any, column: Column | Sequence[Any]) -> pa.Array:
        values: Sequence[Any]
        if isinstance(column, Column):
            array = column.arrow_array()
            if array is not None and array.type == field.type:
                return array
            if array is not None and array.type == _LOCAL and field.type == _UTC:
                return array.cast(_UTC)
            values = column.to_list()
        else:  # values transposed
            values = column
        try:
            return exact_array(values, field.type)
        except ValueMismatchError as error:
            raise error.within(field.name) from None

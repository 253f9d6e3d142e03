"""``ParquetSink``: writes a Parquet file per subtask.

Hot path, per chunk: C calls per column; nothing per record if records are in columns or tuples.

Side:       task.
Invariants: a file gets its name only when it holds all records; a task that fails leaves none.  At most one row group waits in memory.
Source:     Flink ``FileSink`` with ``ParquetBulkWriters``, for bounded input.
Absent:     finishing files at checkpoints, compaction, buckets.
"""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from flowlet.chain.preview import preview
from flowlet.chain.stream_operator import StreamOperator
from flowlet.columns import Column, Shape
from flowlet.common.typeinfo import RowTypeInfo
from flowlet.common.types import Row
from flowlet.errors import FlowletError, UserFunctionError
from flowlet.records import Chunk
from flowlet.serde.types.arrow_types import arrow_type_of, exact_array
from flowlet.serde.types.type_serializer import ValueMismatchError

ROWS_PER_GROUP: Final = 65_536


class ParquetSink(StreamOperator):
    """Writes ``part-<subtask>-<random>.parquet`` into a folder.

    Args:
        folder: created if it does not exist.
        row_type: the columns; records are rows or tuples with as many fields.
        utc_timestamp: whether timestamps are points in time, stored with the zone UTC.
    """

    takes_chunks = True

    def __init__(self, folder: str, row_type: RowTypeInfo, *, utc_timestamp: bool = False, name: str = "Sink: Writer") -> None:
        self.name = name
        self._folder = folder
        self._row_type = row_type
        self._utc_timestamp = utc_timestamp
        self._path = Path()
        self._draft = Path()
        self._writer: Any = None  # set by open()
        self._waiting: list[pa.RecordBatch] = []
        self._num_waiting = 0

    def open(self) -> None:
        """Create the folder and the file."""
        names, types = self._row_type.get_field_names(), self._row_type.get_field_types()
        self._declared = pa.schema([(name, arrow_type_of(each)) for name, each in zip(names, types, strict=True)])
        self._written = pa.schema([(each.name, _in_utc(each.type) if self._utc_timestamp else each.type) for each in self._declared])
        name = f"part-{self.ctx.subtask}-{secrets.token_hex(4)}.parquet"
        self._path, self._draft = Path(self._folder, name), Path(self._folder, f".{name}.inprogress")
        try:
            os.makedirs(self._folder, exist_ok=True)
            self._writer = pq.ParquetWriter(self._draft, self._written)
        except OSError as error:
            raise self._failure(error) from error

    def process_chunk(self, chunk: Chunk) -> None:
        """Keep the records, and write them once there are enough for a row group.

        Raises:
            UserFunctionError: a record is not of the declared type; shows it, and names the field.
            FlowletError: the file cannot be written.
        """
        if not len(chunk):
            return
        try:
            self._waiting.append(self._batch(chunk))
        except ValueMismatchError as error:
            failed, cause = self._first_failure(chunk.values, error)
            raise UserFunctionError(self.name, self.ctx.subtask, preview(failed)) from cause
        self._num_waiting += len(chunk)
        if self._num_waiting >= ROWS_PER_GROUP:
            self._write()

    def finish(self) -> None:
        """Write the last row group and give the file its name."""
        self._write()
        writer, self._writer = self._writer, None
        try:
            writer.close()
            self._draft.replace(self._path)
        except OSError as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Remove an unfinished file."""
        writer, self._writer = self._writer, None
        self._waiting.clear()
        if writer is not None:
            try:
                writer.close()
            finally:
                self._draft.unlink(missing_ok=True)

    def _write(self) -> None:
        batches, self._waiting, self._num_waiting = self._waiting, [], 0
        if not batches:
            return
        try:
            self._writer.write_table(pa.Table.from_batches(batches).cast(self._written))
        except OSError as error:
            raise self._failure(error) from error

    def _batch(self, chunk: Chunk) -> pa.RecordBatch:
        columns = chunk.columns
        if columns is not None and columns.shape is not Shape.SCALAR and len(columns.fields) == len(self._declared):
            fields: Sequence[Any] = columns.fields
        else:
            fields = self._transposed(chunk.values)
        arrays = [self._array(field, each) for field, each in zip(self._declared, fields, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._declared)

    def _first_failure(self, records: list[Any], error: ValueMismatchError) -> tuple[Any, ValueMismatchError]:
        for record in records:
            try:
                self._batch(Chunk([record]))
            except ValueMismatchError as its_error:
                return record, its_error
        return records[0], error

    def _transposed(self, records: list[Any]) -> list[tuple[Any, ...]]:
        width = len(self._declared)
        if not all(issubclass(kind, Row | tuple | list) for kind in set(map(type, records))) or set(map(len, records)) != {width}:
            odd = next(each for each in records if not isinstance(each, Row | tuple | list) or len(each) != width)
            names = ", ".join(self._declared.names)
            raise UserFunctionError(self.name, self.ctx.subtask, preview(odd)) from ValueMismatchError(
                f"it is no row of the fields {names}"
            )
        return list(zip(*records, strict=True))

    def _array(self, field: Any, column: Column | Sequence[Any]) -> pa.Array:
        values: Sequence[Any]
        if isinstance(column, Column):
            array = column.arrow_array()
            if array is not None and array.type == field.type:
                return array
            values = column.to_list()
        else:  # values transposed
            values = column
        try:
            return exact_array(values, field.type)
        except ValueMismatchError as error:
            raise error.within(field.name) from None

    def _failure(self, error: OSError) -> FlowletError:
        return FlowletError(f"operator {self.name!r} (subtask {self.ctx.subtask}) cannot write {self._draft}: {error}")


def _in_utc(arrow_type: pa.DataType) -> pa.DataType:
    return pa.timestamp("us", "UTC") if arrow_type == pa.timestamp("us") else arrow_type

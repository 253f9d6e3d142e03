"""``FormatWriter``: writes the records of one part file; ``EncodedWriter``: with an ``Encoder``; ``CsvWriter``: as CSV.

Hot path, per chunk: one call of the encoder, or of ``csv.writer.writerows``, and one write (bench: sinks).

``ParquetFormatWriter``: writes records into one Parquet file.

Hot path, per chunk: C calls per column; nothing per record if records are in columns or tuples (bench: sinks).

Side:       task.
Source:     Flink ``BulkWriter``, ``RowWisePartWriter``, ``CsvBulkWriter``.  Flink ``ParquetBulkWriter``.
Invariants: at most one row group waits in memory.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from flowlet.columns import Column, Columns, Shape
from flowlet.common.serialization import Encoder
from flowlet.common.types import RowFieldsError, fields_by_name, fields_of_record, fields_of_records
from flowlet.common.values.field_values import is_missing
from flowlet.datastream.formats.bulk_formats import CsvColumn, CsvSchema, ParquetWriterFactory
from flowlet.records import Chunk
from flowlet.serde.type_serializer import ValueMismatchError
from flowlet.serde.types.arrow_types import arrow_type_of, exact_array
from flowlet.sinks.sink_calls import BadRecordError

_BOOLEANS: Final = {True: "true", False: "false"}  # 1 and 0 are equal to them
_OTHER_ENDS: Final = {"\n": "\r", "\r": "\n"}
_NAT: Final = re.compile("NaT").search  # faster than ``in``


class FormatWriter(Protocol):
    """Writes into an open file, which it does not close."""

    @property
    def num_bytes(self) -> int:
        """How much was given to the file so far; 0 for a format that does not roll by size."""

    def write(self, chunk: Chunk) -> None:
        """Write the records.  Raises BadRecordError: one of them has no form in this format."""

    def end(self) -> None:
        """Write what must stand at the end of the file."""

    def drop(self) -> None:
        """Release what the writer holds, without ``end``: the file is of no use, or goes on elsewhere."""


class EncodedWriter:
    """Appends what an encoder makes of the records."""

    def __init__(self, encoder: Encoder, file: BinaryIO) -> None:
        self._encoder = encoder
        self._file = file
        self.num_bytes = 0

    def write(self, chunk: Chunk) -> None:
        """Append the records."""
        values = chunk.values
        try:
            data = self._encoder.encode_all(values)
        except Exception as error:  # noqa: BLE001 - a user's code
            raise blamed(values, self._encoder.encode, error)  # noqa: B904 - it has its cause
        self._file.write(data)
        self.num_bytes += len(data)

    def end(self) -> None:
        """Nothing follows the last record."""

    def drop(self) -> None:
        """Nothing is held."""


class CsvWriter:
    """Appends lines of CSV."""

    num_bytes = 0

    def __init__(self, schema: CsvSchema, file: BinaryIO) -> None:
        self._schema = schema
        self._file = file
        self._names = [each.name for each in schema.columns]
        self._bytes = re.compile(f"b{re.escape(schema.escape_char or '')}['\"]").search
        self._null_is_number = _is_number(schema.null_value)
        self._is_plain = not schema.null_value and not any(
            each.is_boolean or each.separator is not None for each in schema.columns
        )
        if schema.uses_header:
            file.write(self._lines([[each.name for each in schema.columns]]))

    def write(self, chunk: Chunk) -> None:
        """Append the records."""
        values = chunk.values
        try:
            data = self._lines(self._fields_of(values))
        except Exception as error:  # noqa: BLE001 - ``str`` of a user's object
            raise blamed(values, lambda value: self._lines(self._fields_of([value])), error)  # noqa: B904 - as above
        self._file.write(data)

    def end(self) -> None:
        """Nothing follows the last line."""

    def drop(self) -> None:
        """Nothing is held."""

    def _fields_of(self, records: Sequence[Any]) -> Iterable[Iterable[Any]]:
        fields = fields_of_records(records, self._names)
        if self._is_plain:
            return fields
        columns = zip(*fields, strict=True)
        return zip(*map(self._texts, self._schema.columns, columns), strict=True)

    def _texts(self, column: CsvColumn, values: Sequence[Any]) -> list[Any]:
        null = self._schema.null_value
        if column.is_boolean:
            return [null if each is None else _boolean(each, column.name) for each in values]
        if column.separator is not None:
            return [null if each is None else _joined(each, column, null) for each in values]
        if null and (null in (map(str, values) if self._null_is_number else values)):
            raise ValueError(
                f"column {column.name!r}: a value is {null!r}, which stands for None: use another set_null_value()"
            )
        return [null if each is None else each for each in values]

    def _lines(self, rows: Iterable[Iterable[Any]]) -> bytes:
        end = self._schema.line_separator
        text = io.StringIO(newline="")
        rows = rows if isinstance(rows, Sequence) else list(rows)
        self._csv_writer(text, end).writerows(rows)
        data = text.getvalue()
        other = _OTHER_ENDS.get(end)
        # Before Python 3.13 only the characters of the line end are quoted, so both are given.
        if other is not None and other in data:
            lines: list[str] = []
            self._csv_writer(_Lines(lines), "\r\n").writerows(rows)
            data = "".join([line[:-2] + end for line in lines])
        if self._may_be_no_text(data):
            self._check_values(rows)
        return data.encode()

    def _may_be_no_text(self, data: str) -> bool:
        """Whether parts of the lines look like ``str`` of a value without a text; looks for single characters first,
        which is fast.
        """
        has_quotes = "'" in data or '"' in data
        return (has_quotes and self._bytes(data) is not None) or "<" in data or _NAT(data) is not None

    def _csv_writer(self, file: Any, line_end: str) -> Any:
        schema = self._schema
        return csv.writer(
            file,
            delimiter=schema.column_separator,
            lineterminator=line_end,
            quotechar=schema.quote_char,
            quoting=csv.QUOTE_NONE if schema.quote_char is None else csv.QUOTE_MINIMAL,
            escapechar=schema.escape_char,
            doublequote=schema.escape_char is None,
        )

    def _check_values(self, rows: Iterable[Iterable[Any]]) -> None:
        for row in rows:
            for name, value in zip(self._names, row, strict=True):
                check_has_text(value, name)


class _Lines:
    """The file of a ``csv.writer``, which writes once per line."""

    def __init__(self, lines: list[str]) -> None:
        self.write = lines.append


def check_has_text(value: Any, name: str) -> None:
    """Refuse a value whose ``str`` is no text of it: bytes, and what pandas has for a missing value."""
    if isinstance(value, bytes | bytearray | memoryview):
        raise ValueError(f"column {name!r}: CSV has no form for bytes: decode them in map(), or use their base64")
    if is_missing(value):
        raise ValueError(f"column {name!r}: {value!r} of type {type(value).__name__} is no value: use None")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _boolean(value: Any, name: str) -> str:
    try:
        return _BOOLEANS[value]
    except (KeyError, TypeError):
        raise ValueError(f"column {name!r}: {value!r} of type {type(value).__name__} is no boolean") from None


def _joined(values: Iterable[Any], column: CsvColumn, null: str) -> str:
    """The elements of an array as one field, which can be split again."""
    separator = column.separator or ""
    texts = []
    for each in values:
        check_has_text(each, column.name)
        if each is None:
            texts.append(null)
        elif type(each).__name__ in {"bool", "bool_"}:  # of Python or numpy
            texts.append(_BOOLEANS[each])
        else:
            texts.append(str(each))
    text = separator.join(texts)
    if texts and text.split(separator) != texts:
        raise ValueError(
            f"column {column.name!r}: {values!r} has {separator!r} in an element: give add_array_column() another "
            "separator"
        )
    return text


def blamed(values: Sequence[Any], write_one: Any, error: Exception) -> Exception:
    """The error about the first record that cannot be written alone; if each can, the one that all of them gave."""
    for value in values:
        try:
            write_one(value)
        except Exception as its_error:  # noqa: BLE001 - becomes the cause
            blamed = BadRecordError(value)
            blamed.__cause__ = its_error
            return blamed
    return error


ROWS_PER_GROUP: Final = 65_536
_LOCAL: Final = pa.timestamp("us")
_UTC: Final = pa.timestamp("us", "UTC")


class ParquetFormatWriter:
    """Writes one file.

    Args:
        factory: the columns; records are rows or tuples with as many fields.
        file: open for writing.
    """

    num_bytes = 0

    def __init__(self, factory: ParquetWriterFactory, file: BinaryIO) -> None:
        names = factory.row_type.get_field_names()
        types = factory.row_type.get_field_types()
        self._names = names
        kinds = [_in_utc(arrow_type_of(each)) if factory.utc_timestamp else arrow_type_of(each) for each in types]
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
            failed, cause = self._first_failure(chunk.values, error)
            raise BadRecordError(failed) from cause
        self._num_waiting += len(chunk)
        if self._num_waiting >= ROWS_PER_GROUP:
            self._write()

    def end(self) -> None:
        """Write the last row group and the footer."""
        self._write()
        self._writer.close()

    def drop(self) -> None:
        """Close the writer, which would otherwise do it when it is garbage."""
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
                fields = self._named(columns, chunk)
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

    def _named(self, columns: Columns, chunk: Chunk) -> Sequence[Column]:
        try:
            return fields_by_name(columns.field_names, columns.fields, tuple(self._names))
        except RowFieldsError as error:
            raise BadRecordError(chunk.values[0]) from error

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


def _in_utc(arrow_type: pa.DataType) -> pa.DataType:
    return _UTC if arrow_type == _LOCAL else arrow_type

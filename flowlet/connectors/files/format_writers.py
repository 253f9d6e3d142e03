"""``FormatWriter``: writes the records of one part file; ``EncodedWriter``: with an ``Encoder``; ``CsvWriter``: as CSV.

Hot path, per chunk: one call of the encoder, or of ``csv.writer.writerows``, and one write (bench: sinks).

Side:   task.
Source: Flink ``BulkWriter``, ``RowWisePartWriter``, ``CsvBulkWriter``.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, Protocol

from flowlet.common.serialization import Encoder
from flowlet.common.types import Row
from flowlet.datastream.formats.csv import CsvColumn, CsvSchema
from flowlet.records import Chunk
from flowlet.sinks.bad_record import BadRecordError


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
            raise _blamed(values, self._encoder.encode, error)  # noqa: B904 - it has its cause
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
        self._is_plain = not schema.null_value and not any(each.is_boolean or each.separator is not None for each in schema.columns)
        if schema.uses_header:
            file.write(self._lines([[each.name for each in schema.columns]]))

    def write(self, chunk: Chunk) -> None:
        """Append the records."""
        values = chunk.values
        try:
            data = self._lines(self._fields_of(values))
        except Exception as error:  # noqa: BLE001 - ``str`` of a user's object
            raise _blamed(values, lambda value: self._lines(self._fields_of([value])), error)  # noqa: B904 - as above
        self._file.write(data)

    def end(self) -> None:
        """Nothing follows the last line."""

    def drop(self) -> None:
        """Nothing is held."""

    def _fields_of(self, records: Sequence[Any]) -> Iterable[Iterable[Any]]:
        width = len(self._schema)
        kinds = set(map(type, records))
        if not all(issubclass(kind, Row | tuple | list) for kind in kinds) or set(map(len, records)) != {width}:
            names = ", ".join(each.name for each in self._schema.columns)
            raise TypeError(f"it is no row of the columns {names}")
        if self._is_plain:
            return records
        columns = zip(*records, strict=True)
        return zip(*map(self._texts, self._schema.columns, columns), strict=True)

    def _texts(self, column: CsvColumn, values: Sequence[Any]) -> list[Any]:
        null = self._schema.null_value
        if column.is_boolean:
            return [null if each is None else "true" if each else "false" for each in values]
        if column.separator is not None:
            return [null if each is None else column.separator.join(map(str, each)) for each in values]
        return [null if each is None else each for each in values]

    def _lines(self, rows: Iterable[Iterable[Any]]) -> bytes:
        schema, text = self._schema, io.StringIO(newline="")
        csv.writer(
            text,
            delimiter=schema.column_separator,
            lineterminator=schema.line_separator,
            quotechar=schema.quote_char,
            quoting=csv.QUOTE_NONE if schema.quote_char is None else csv.QUOTE_MINIMAL,
            escapechar=schema.escape_char,
            doublequote=schema.escape_char is None,
        ).writerows(rows)
        return text.getvalue().encode()


def _blamed(values: Sequence[Any], write_one: Any, error: Exception) -> Exception:
    """The error about the first record that cannot be written alone; if each can, the one that all of them gave."""
    for value in values:
        try:
            write_one(value)
        except Exception as its_error:  # noqa: BLE001 - becomes the cause
            blamed = BadRecordError(value)
            blamed.__cause__ = its_error
            return blamed
    return error

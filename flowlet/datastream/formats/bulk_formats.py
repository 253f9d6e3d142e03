"""The descriptions of bulk formats of a file sink, which its writers read: ``CsvWriterFactory`` with its ``CsvSchema``,
and ``ParquetWriterFactory``.

Side:   pure.  It describes; the task that runs it opens files.
Rules:  of CSV, as RFC 4180, with a line feed at the end of a line: a field is in quotes if it holds a separator, a
        quote or a line end, and a quote inside is doubled.  Booleans are true and false, None is an empty field.  A
        field that would be read as another value is refused: a value that is the null value, a separator in an element
        of an array, bytes.
Source: PyFlink ``pyflink.datastream.formats.csv``, ``pyflink.datastream.formats.parquet``.
Absent: settings of a schema that concern reading alone (comments, the first row, strict headers, properties).
"""

import csv
from dataclasses import field, replace
from typing import Any, ClassVar, Final, Self

from flowlet.common.checks import check_kind, check_name
from flowlet.common.typeinfo import RowTypeInfo
from flowlet.connectors.files.api import BulkWriterFactory
from flowlet.errors import JobGraphError
from netstack.late import dataclass

_LINE_ENDS: Final = ("\n", "\r\n", "\r")


@dataclass(frozen=True, slots=True)
class CsvColumn:
    """A column; ``separator``: between the elements of an array; None: it holds single values."""

    name: str
    is_boolean: bool = False
    separator: str | None = None


@dataclass(frozen=True, slots=True)
class CsvSchema:
    """The columns of a file and the characters between them; made by ``builder``."""

    columns: tuple[CsvColumn, ...]
    column_separator: str = ","
    line_separator: str = "\n"
    quote_char: str | None = '"'
    escape_char: str | None = None
    null_value: str = ""
    uses_header: bool = False

    @staticmethod
    def builder() -> "CsvSchemaBuilder":
        """A builder of a schema."""
        return CsvSchemaBuilder()

    def size(self) -> int:
        """The number of columns."""
        return len(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __str__(self) -> str:
        return f"CsvSchema({', '.join(each.name for each in self.columns)})"


@dataclass(slots=True)
class CsvSchemaBuilder:
    """Builds a ``CsvSchema``."""

    _columns: list[CsvColumn] = field(default_factory=list)
    _schema: CsvSchema = field(default_factory=lambda: CsvSchema(()))

    def build(self) -> CsvSchema:
        """The schema.  Raises JobGraphError: it has no columns, or two that share a name."""
        names = [each.name for each in self._columns]
        if not names:
            raise JobGraphError("a CsvSchema needs at least one column, such as add_string_column('name')")
        twice = next((each for each in names if names.count(each) > 1), None)
        if twice is not None:
            raise JobGraphError(f"a CsvSchema has two columns of the name {twice!r}; give each its own")
        return replace(self._schema, columns=tuple(self._columns))

    # -- columns

    def add_string_column(self, name: str) -> Self:
        """Add a column of texts."""
        return self._add(CsvColumn(name))

    def add_number_column(self, name: str, number_type: Any = None) -> Self:
        """Add a column of numbers; ``number_type`` is for readers."""
        return self._add(CsvColumn(name))

    def add_boolean_column(self, name: str) -> Self:
        """Add a column of true and false."""
        return self._add(CsvColumn(name, is_boolean=True))

    def add_array_column(self, name: str, separator: str = ";", element_type: Any = None) -> Self:
        """Add a column of lists, with ``separator`` between elements; ``element_type`` is for readers."""
        return self._add(CsvColumn(name, separator=checked_text(separator, "add_array_column", may_be_empty=False)))

    def add_columns_from(self, schema: CsvSchema) -> Self:
        """Add the columns of another schema."""
        check_kind(schema, CsvSchema, "add_columns_from() needs a CsvSchema")
        self._columns += schema.columns
        return self

    def clear_columns(self) -> Self:
        """Drop the columns so far."""
        self._columns.clear()
        return self

    def size(self) -> int:
        """The number of columns so far."""
        return len(self._columns)

    # -- characters

    def set_column_separator(self, char: str) -> Self:
        """Set the character between columns; a comma by default."""
        return self._set(column_separator=checked_character(char, "set_column_separator"))

    def set_line_separator(self, separator: str) -> Self:
        r"""Set the end of each line: \n (the default), \r\n or \r."""
        if separator not in _LINE_ENDS:
            raise JobGraphError(
                f"set_line_separator() needs one of {', '.join(map(repr, _LINE_ENDS))}, got {separator!r}"
            )
        return self._set(line_separator=separator)

    def set_quote_char(self, char: str) -> Self:
        """Set the character around fields that need quotes; a double quote by default."""
        return self._set(quote_char=checked_character(char, "set_quote_char"))

    def disable_quote_char(self) -> Self:
        """Write no quotes; without an escape character, a field that would need them fails the job."""
        return self._set(quote_char=None)

    def set_escape_char(self, char: str) -> Self:
        """Set the character in front of a quote inside a field, in place of a second quote.

        If quotes are disabled, it stands in front of all special characters.
        """
        return self._set(escape_char=checked_character(char, "set_escape_char"))

    def disable_escape_char(self) -> Self:
        """Use no escape character, which is the default."""
        return self._set(escape_char=None)

    def set_null_value(self, null_value: str) -> Self:
        """Set the text that stands for None; empty by default."""
        return self._set(null_value=checked_text(null_value, "set_null_value"))

    def set_use_header(self, use: bool = True) -> Self:  # noqa: FBT001, FBT002  # PyFlink's signature
        """Begin each file with the names of its columns."""
        return self._set(uses_header=bool(use))

    def _add(self, column: CsvColumn) -> Self:
        check_name(column.name, "a column of a CsvSchema needs a name")
        self._columns.append(column)
        return self

    def _set(self, **changes: Any) -> Self:
        self._schema = replace(self._schema, **changes)
        return self


@dataclass(frozen=True, slots=True)
class CsvWriterFactory(BulkWriterFactory):
    """Writes files of a schema; made by ``CsvBulkWriters``."""

    schema: CsvSchema
    suffix: ClassVar[str] = ".csv"


@dataclass(frozen=True, slots=True)
class ParquetWriterFactory(BulkWriterFactory):
    """Writes files with one column per field; made by ``ParquetBulkWriters``.

    ``utc_timestamp``: whether timestamps are points in time, not local dates and times.
    """

    row_type: RowTypeInfo
    utc_timestamp: bool
    suffix: ClassVar[str] = ".parquet"


def csv_dialect(delimiter: str, quote: str | None, escape: str | None) -> dict[str, Any]:
    """The arguments of Python's ``csv``."""
    return {
        "delimiter": delimiter,
        "quotechar": quote,
        "escapechar": escape,
        "quoting": csv.QUOTE_NONE if quote is None else csv.QUOTE_MINIMAL,
        "doublequote": escape is None,
        "strict": True,
    }


def checked_text(text: Any, method: str, *, may_be_empty: bool = True) -> str:
    """Return the text.  Raises JobGraphError: it is no text."""
    if not isinstance(text, str) or not (text or may_be_empty):
        raise JobGraphError(f"{method}() needs a text, got {text!r}")
    return text


def checked_character(char: Any, method: str) -> str:
    """Return the character.  Raises JobGraphError: it cannot stand between or around fields."""
    if not isinstance(char, str) or len(char) != 1 or char in "\r\n":
        raise JobGraphError(f"{method}() needs one character, got {char!r}")
    return char

"""``CsvRowDeserializationSchema`` and ``CsvRowSerializationSchema``: a message is one line of comma-separated values.

Side:   pure.  They are pickled with the job, and called on the thread of one task.
Rules:  fields stand in the order of the type.  An array is one field, with a character of its own between the elements.  Dates and times
        are texts in ISO 8601, booleans are true and false.  An empty field that is no text is None, and so is the null literal.
Source: PyFlink ``pyflink.datastream.formats.csv``; Flink ``CsvRowDeserializationSchema``, ``CsvRowSerializationSchema``.
Absent: rows inside rows.
"""

import csv
import datetime
import decimal
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from flowlet.common.conversion import to_declared_element
from flowlet.common.serialization import DeserializationSchema, SerializationSchema
from flowlet.common.typeinfo import (
    BasicArrayTypeInfo,
    BasicType,
    BasicTypeInfo,
    DateTypeInfo,
    ListTypeInfo,
    ObjectArrayTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    TimestampTypeInfo,
    TimeTypeInfo,
    TypeInformation,
)
from flowlet.common.types import Row
from flowlet.errors import JobGraphError

__all__ = ["CsvRowDeserializationSchema", "CsvRowSerializationSchema"]

_ARRAYS: Final = (ListTypeInfo, BasicArrayTypeInfo, ObjectArrayTypeInfo, PrimitiveArrayTypeInfo)
_WHOLE: Final = (BasicType.BYTE, BasicType.SHORT, BasicType.INT, BasicType.LONG, BasicType.BIG_INT)
_FRACTIONS: Final = (BasicType.FLOAT, BasicType.DOUBLE)
_TEXTS: Final = (BasicType.STRING, BasicType.CHAR)
# Python's csv refuses longer fields than 131,072 characters unless it is told otherwise, for the whole process; we set one limit only, so
# that tasks do not undo each other's.
_MAX_FIELD_CHARS: Final = 2**31 - 1
_BOOLEANS: Final = {"true": True, "false": False}
_DATES: Final[dict[type[TypeInformation], Callable[[str], Any]]] = {
    DateTypeInfo: datetime.date.fromisoformat,
    TimeTypeInfo: datetime.time.fromisoformat,
    TimestampTypeInfo: datetime.datetime.fromisoformat,
}


@dataclass(frozen=True, slots=True)
class _Characters:
    """What stands between, around and for values."""

    delimiter: str = ","
    array_delimiter: str = ";"
    quote: str | None = '"'
    escape: str | None = None
    null: str | None = None
    line_end: str = "\n"

    def dialect(self) -> dict[str, Any]:
        """The arguments of Python's ``csv``."""
        quoting = csv.QUOTE_NONE if self.quote is None else csv.QUOTE_MINIMAL
        doubles = self.escape is None
        return {
            "delimiter": self.delimiter,
            "quotechar": self.quote,
            "escapechar": self.escape,
            "quoting": quoting,
            "doublequote": doubles,
            "strict": True,
        }


class CsvRowDeserializationSchema(DeserializationSchema):
    """Lines as rows; made by ``CsvRowDeserializationSchema.Builder(type_info)``.

    A line that does not fit fails the job, unless parse errors are ignored: then a field that does not fit is None, and so are fields that
    are missing; a line with too many fields, or that is no line of this form, is left out.  Both are counted.
    """

    def __init__(self, type_info: RowTypeInfo, characters: _Characters, *, allows_comments: bool, ignores_parse_errors: bool) -> None:
        self._type_info = type_info
        self._characters = characters
        self._allows_comments = allows_comments
        self._ignores_parse_errors = ignores_parse_errors

    def deserialize(self, message: bytes) -> Row | None:
        """The row; None for a message without one, and for a comment.  ValueError: it does not fit."""
        if message is None:
            return None
        try:
            text = bytes(message).decode()
            return None if self._allows_comments and text.startswith("#") else self._row(text)
        except (ValueError, TypeError, csv.Error, decimal.InvalidOperation) as error:
            if self._ignores_parse_errors:
                self.num_unparsable_records += 1
                return None
            raise ValueError(f"a line does not fit {self._type_info}: {error}; it is {bytes(message[:200])!r}") from error

    def get_produced_type(self) -> TypeInformation:
        """The type that was given."""
        return self._type_info

    def _row(self, text: str) -> Row:
        if len(text) > csv.field_size_limit():
            csv.field_size_limit(_MAX_FIELD_CHARS)
        fields = next(csv.reader([text.rstrip("\r\n")], **self._characters.dialect()), [])
        names, kinds = self._type_info.get_field_names(), self._type_info.get_field_types()
        if self._ignores_parse_errors and 0 < len(fields) < len(kinds):
            self.num_unparsable_fields += len(kinds) - len(fields)
            return self._named([*map(self._value, fields, kinds), *[None] * (len(kinds) - len(fields))], names)
        if len(fields) != len(kinds):
            raise ValueError(f"{len(kinds)} fields are expected, got {len(fields)}")
        return self._named(map(self._value, fields, kinds), names)

    @staticmethod
    def _named(values: Iterable[Any], names: list[str]) -> Row:
        row = Row(*values)
        row.set_field_names(names)
        return row

    def _value(self, text: str, wanted: TypeInformation) -> Any:
        try:
            return self._exact_value(text, wanted)
        except (ValueError, TypeError, decimal.InvalidOperation):
            if not self._ignores_parse_errors:
                raise
            self.num_unparsable_fields += 1
            return None

    def _exact_value(self, text: str, wanted: TypeInformation) -> Any:
        if text == self._characters.null:
            return None
        if isinstance(wanted, BasicTypeInfo) and wanted.basic_type in _TEXTS:
            return text
        if not text.strip():
            return None
        if isinstance(wanted, _ARRAYS):
            return [self._value(each, wanted.elem_type) for each in text.split(self._characters.array_delimiter)]
        parse = _DATES.get(type(wanted))
        return parse(text.strip()) if parse is not None else _basic(text.strip(), wanted)

    class Builder:
        """Builds a ``CsvRowDeserializationSchema``."""

        def __init__(self, type_info: TypeInformation) -> None:
            self._type_info = _checked_type(type_info)
            self._characters = _Characters()
            self._allows_comments = False
            self._ignores_parse_errors = False

        def set_field_delimiter(self, delimiter: str) -> Self:
            """Between fields; a comma by default."""
            return self._set(delimiter=_character(delimiter, "set_field_delimiter"))

        def set_allow_comments(self, allow_comments: bool) -> Self:  # noqa: FBT001  # PyFlink's signature
            """Leave out lines that begin with ``#``."""
            self._allows_comments = bool(allow_comments)
            return self

        def set_array_element_delimiter(self, delimiter: str) -> Self:
            """Between the elements of an array; a semicolon by default."""
            return self._set(array_delimiter=_text(delimiter, "set_array_element_delimiter"))

        def set_quote_character(self, c: str) -> Self:
            """Around fields that need it; a double quote by default."""
            return self._set(quote=_character(c, "set_quote_character"))

        def set_escape_character(self, c: str) -> Self:
            """In front of a character that stands for itself; none by default."""
            return self._set(escape=_character(c, "set_escape_character"))

        def set_null_literal(self, null_literal: str) -> Self:
            """The field of None, also among texts; none by default."""
            return self._set(null=_text(null_literal, "set_null_literal"))

        def set_ignore_parse_errors(self, ignore_parse_errors: bool) -> Self:  # noqa: FBT001  # PyFlink's signature
            """Let fields that do not fit be None, and leave out lines that are none; by default they fail the job."""
            self._ignores_parse_errors = bool(ignore_parse_errors)
            return self

        def build(self) -> "CsvRowDeserializationSchema":
            """The schema."""
            return CsvRowDeserializationSchema(
                self._type_info,
                self._characters,
                allows_comments=self._allows_comments,
                ignores_parse_errors=self._ignores_parse_errors,
            )

        def _set(self, **changes: Any) -> Self:
            self._characters = replace(self._characters, **changes)
            return self


class CsvRowSerializationSchema(SerializationSchema):
    """Rows or tuples as lines; made by ``CsvRowSerializationSchema.Builder(type_info)``."""

    def __init__(self, type_info: RowTypeInfo, characters: _Characters) -> None:
        self._num_fields = len(type_info.get_field_types())
        self._characters = characters

    def serialize(self, element: Any) -> bytes | None:
        """The line.  ValueError: it has not as many fields as the type, or needs quotes, which are disabled."""
        if element is None:
            return None
        fields = [self._text(each) for each in element]
        if len(fields) != self._num_fields:
            raise ValueError(f"a row of {self._num_fields} fields is expected, got {element!r}")
        line = io.StringIO()
        try:
            csv.writer(line, lineterminator=self._characters.line_end, **self._characters.dialect()).writerow(fields)
        except csv.Error as error:
            raise ValueError(f"{element!r} cannot be written as a line: {error}") from error
        return line.getvalue().encode()

    def _text(self, value: Any) -> str:
        if value is None:
            return self._characters.null or ""
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, (list, tuple)):
            return self._characters.array_delimiter.join(map(self._text, value))
        return str(value)

    class Builder:
        """Builds a ``CsvRowSerializationSchema``."""

        def __init__(self, type_info: TypeInformation) -> None:
            self._type_info = _checked_type(type_info)
            self._characters = _Characters()

        def set_field_delimiter(self, c: str) -> Self:
            """Between fields; a comma by default."""
            return self._set(delimiter=_character(c, "set_field_delimiter"))

        def set_line_delimiter(self, delimiter: str) -> Self:
            r"""At the end of the line: \n by default; it may be empty."""
            return self._set(line_end=_text(delimiter, "set_line_delimiter"))

        def set_array_element_delimiter(self, delimiter: str) -> Self:
            """Between the elements of an array; a semicolon by default."""
            return self._set(array_delimiter=_text(delimiter, "set_array_element_delimiter"))

        def disable_quote_character(self) -> Self:
            """No quotes; a field that would need them fails the job, unless there is an escape character."""
            return self._set(quote=None)

        def set_quote_character(self, c: str) -> Self:
            """Around fields that need it; a double quote by default."""
            return self._set(quote=_character(c, "set_quote_character"))

        def set_escape_character(self, c: str) -> Self:
            """In front of a quote inside a field, instead of a second quote; none by default."""
            return self._set(escape=_character(c, "set_escape_character"))

        def set_null_literal(self, s: str) -> Self:
            """The field of None; empty by default."""
            return self._set(null=_text(s, "set_null_literal"))

        def build(self) -> "CsvRowSerializationSchema":
            """The schema."""
            return CsvRowSerializationSchema(self._type_info, self._characters)

        def _set(self, **changes: Any) -> Self:
            self._characters = replace(self._characters, **changes)
            return self


def _basic(text: str, wanted: TypeInformation) -> Any:
    assert isinstance(wanted, BasicTypeInfo), "the builder refuses other types"
    kind = wanted.basic_type
    if kind in _WHOLE:
        return to_declared_element(int(text), wanted)
    if kind in _FRACTIONS:
        return to_declared_element(float(text), wanted)
    if kind is BasicType.BOOLEAN:
        if text.lower() not in _BOOLEANS:
            raise ValueError(f"true or false is expected, got {text!r}")
        return _BOOLEANS[text.lower()]
    return decimal.Decimal(text)


def _checked_type(type_info: Any) -> RowTypeInfo:
    if not isinstance(type_info, RowTypeInfo):
        raise JobGraphError(f"a schema of CSV needs the type of a row, such as Types.ROW_NAMED([...], [...]), got {type_info!r}")
    for name, kind in zip(type_info.get_field_names(), type_info.get_field_types(), strict=True):
        inner = kind.elem_type if isinstance(kind, _ARRAYS) else kind
        if type(inner) not in _DATES and (not isinstance(inner, BasicTypeInfo) or inner.basic_type is BasicType.INSTANT):
            raise JobGraphError(f"a schema of CSV cannot hold the field {name!r} of {kind!r}: use plain values, dates and arrays of these")
    return type_info


def _text(text: Any, method: str) -> str:
    if not isinstance(text, str):
        raise JobGraphError(f"{method}() needs a text, got {text!r}")
    return text


def _character(char: Any, method: str) -> str:
    if not isinstance(char, str) or len(char) != 1 or char in "\r\n":
        raise JobGraphError(f"{method}() needs one character, got {char!r}")
    return char

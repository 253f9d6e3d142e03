"""``CsvRowDeserializationSchema`` and ``CsvRowSerializationSchema``: a message is one line of comma-separated values.

Side:   pure.  They are pickled with the job, and called on the thread of one task.
Rules:  fields stand in the order of the type.  An array is one field, with a character of its own between the elements.
        Dates and times are texts in ISO 8601, booleans are true and false, bytes are in base64.  An empty field that is
        no text is None, and so is the null literal.  Values that do not fit into their type are errors, in both
        directions (``field_values``).  Written values are read equal, but for the kind of a row: a value that CSV
        cannot tell from another one is refused, such as an empty array, or None in a text without a null literal.
Source: PyFlink ``pyflink.datastream.formats.csv``; Flink ``CsvRowDeserializationSchema``,
        ``CsvRowSerializationSchema``.
Absent: rows inside rows.
"""

import csv
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final, Self

from flowlet.common.checks import check_kind
from flowlet.common.serialization import SerializationSchema, TypedDeserializationSchema
from flowlet.common.typeinfo import ARRAY_TYPES, PrimitiveArrayTypeInfo, RowTypeInfo, TypeInformation, named_fields
from flowlet.common.types import Row, RowFieldsError, fields_of_record, restored_row
from flowlet.common.values.conversion import field_form, known_form
from flowlet.common.values.field_values import Convert, FieldForm, plain_list
from flowlet.datastream.formats.bulk_formats import checked_character, checked_text, csv_dialect
from flowlet.errors import JobGraphError
from netstack.late import dataclass

__all__ = ["CsvRowDeserializationSchema", "CsvRowSerializationSchema"]

_INSERT: Final = Row().get_row_kind()
# Part of the writer's, so that it quotes both: before Python 3.13 it quotes only the characters of its own.
_LINE_END: Final = "\r\n"
# Python's csv refuses longer fields than 131,072 characters unless it is told otherwise, for the whole process; we set
# one limit only, so that tasks do not undo each other's.
_MAX_FIELD_CHARS: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class _Characters:
    """The characters between and around values, and the texts that stand for special values."""

    delimiter: str = ","
    array_delimiter: str = ";"
    quote: str | None = '"'
    escape: str | None = None
    null: str | None = None
    line_end: str = "\n"

    def dialect(self) -> dict[str, Any]:
        """The arguments of Python's ``csv``."""
        return csv_dialect(self.delimiter, self.quote, self.escape)


class _Builder:
    """Takes the type of rows and the characters of lines, for a reader or a writer."""

    def __init__(self, type_info: TypeInformation) -> None:
        self._type_info = _checked_type(type_info)
        self._characters = _Characters()

    def set_array_element_delimiter(self, delimiter: str) -> Self:
        """Set the text between the elements of an array; a semicolon by default."""
        return self._set(array_delimiter=checked_text(delimiter, "set_array_element_delimiter", may_be_empty=False))

    def set_quote_character(self, c: str) -> Self:
        """Set the character around fields that need quotes; a double quote by default."""
        return self._set(quote=checked_character(c, "set_quote_character"))

    def set_escape_character(self, c: str) -> Self:
        """Set the character in front of a character that stands for itself, or of a quote in a field; default: none."""
        return self._set(escape=checked_character(c, "set_escape_character"))

    def _set(self, **changes: Any) -> Self:
        self._characters = replace(self._characters, **changes)
        return self


class CsvRowDeserializationSchema(TypedDeserializationSchema):
    """Reads lines as rows; made by ``CsvRowDeserializationSchema.Builder(type_info)``.

    A line that does not fit fails the job, unless parse errors are ignored: then a field that does not fit, or is
    missing, is None; a line with too many fields, or that is no line of this form, is left out.  Both are counted.
    """

    _what = "a line"
    _errors: ClassVar[tuple[type[Exception], ...]] = (ValueError, TypeError, csv.Error)

    def __init__(
        self, type_info: RowTypeInfo, characters: _Characters, *, allows_comments: bool, ignores_parse_errors: bool
    ) -> None:
        super().__init__(type_info, ignores_parse_errors=ignores_parse_errors)
        self._decode = partial(str, encoding="utf-8")
        self._names = type_info.get_field_names()
        self._characters = characters
        self._allows_comments = allows_comments
        self._parts = [
            (name, self._lenient(_reader(kind, characters, self._lenient))) for name, kind in named_fields(type_info)
        ]
        self._dialect = csv.reader([], **characters.dialect()).dialect  # made once: it costs more than reading a line

    def __reduce__(self) -> Any:
        return _restored_reader, (self._type_info, self._characters, self._allows_comments, self._ignores_parse_errors)

    def _read(self, text: str) -> Row | None:
        if self._allows_comments and text.startswith("#"):
            return None
        if len(text) > csv.field_size_limit():
            csv.field_size_limit(_MAX_FIELD_CHARS)
        # With a new line end: behind an escaped one Python would wait for another line.
        fields = next(csv.reader([_without_line_end(text) + "\n"], self._dialect), [])
        num_missing = len(self._parts) - len(fields)
        if num_missing and not (self._ignores_parse_errors and fields and num_missing > 0):
            raise ValueError(f"{len(self._parts)} fields are expected, got {len(fields)}")
        values = []
        name = ""
        try:
            for (name, read), field in zip(self._parts, fields, strict=False):  # noqa: B007 - read below
                values.append(read(field))
        except ValueError as error:
            raise ValueError(f"field {name!r}: {error}") from error
        if num_missing:
            self.num_unparsable_fields += num_missing
            values += [None] * num_missing
        return restored_row(self._names, values, _INSERT)

    class Builder(_Builder):
        """Builds a ``CsvRowDeserializationSchema``."""

        def __init__(self, type_info: TypeInformation) -> None:
            super().__init__(type_info)
            self._allows_comments = False
            self._ignores_parse_errors = False

        def set_field_delimiter(self, delimiter: str) -> Self:
            """Set the character between fields; a comma by default."""
            return self._set(delimiter=checked_character(delimiter, "set_field_delimiter"))

        def set_allow_comments(self, allow_comments: bool) -> Self:  # noqa: FBT001  # PyFlink's signature
            """Leave out lines that begin with ``#``."""
            self._allows_comments = bool(allow_comments)
            return self

        def set_null_literal(self, null_literal: str) -> Self:
            """Set the text that stands for None, also among texts; there is none by default."""
            return self._set(null=checked_text(null_literal, "set_null_literal"))

        def set_ignore_parse_errors(self, ignore_parse_errors: bool) -> Self:  # noqa: FBT001  # PyFlink's signature
            """Let fields that do not fit be None, and leave out lines that are no CSV; by default both fail the job."""
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


class CsvRowSerializationSchema(SerializationSchema):
    """Writes rows or tuples as lines; made by ``CsvRowSerializationSchema.Builder(type_info)``."""

    def __init__(self, type_info: RowTypeInfo, characters: _Characters) -> None:
        self._type_info = type_info
        self._characters = characters
        self._names = type_info.get_field_names()
        self._parts = [(name, _writer(kind, characters)) for name, kind in named_fields(type_info)]
        self._end = _LINE_END + characters.line_end
        self._lines: list[str] = []  # one at most, while it is written
        self._write = csv.writer(_Lines(self._lines), lineterminator=self._end, **characters.dialect()).writerow

    def __reduce__(self) -> Any:
        return CsvRowSerializationSchema, (self._type_info, self._characters)

    def serialize(self, element: Any) -> bytes | None:
        """The line.

        Raises:
            ValueError: it is no row of the type, CSV cannot hold a value, or a field needs quotes, which are disabled;
                names the field.
        """
        if element is None:
            return None
        texts, name = [], ""
        try:
            for (name, write), value in zip(self._parts, fields_of_record(element, self._names), strict=True):  # noqa: B007 - read below
                texts.append(write(value))
            name = ""
            self._write(texts)
        except (ValueError, RowFieldsError, csv.Error) as error:
            place = f"field {name!r}: " if name else ""
            raise ValueError(f"{element!r} cannot be written as a line: {place}{error}") from error
        return (self._lines.pop().removesuffix(self._end) + self._characters.line_end).encode()

    class Builder(_Builder):
        """Builds a ``CsvRowSerializationSchema``."""

        def set_field_delimiter(self, c: str) -> Self:
            """Set the character between fields; a comma by default."""
            return self._set(delimiter=checked_character(c, "set_field_delimiter"))

        def set_line_delimiter(self, delimiter: str) -> Self:
            r"""Set the end of the line: \n by default; it may be empty."""
            return self._set(line_end=checked_text(delimiter, "set_line_delimiter"))

        def disable_quote_character(self) -> Self:
            """Write no quotes; a field that would need them fails the job, unless there is an escape character."""
            return self._set(quote=None)

        def set_null_literal(self, s: str) -> Self:
            """Set the text that stands for None; empty by default."""
            return self._set(null=checked_text(s, "set_null_literal"))

        def build(self) -> "CsvRowSerializationSchema":
            """The schema."""
            return CsvRowSerializationSchema(self._type_info, self._characters)


class _Lines:
    """The file of a ``csv.writer``, which writes once per line."""

    def __init__(self, lines: list[str]) -> None:
        self.write = lines.append


def _restored_reader(type_info: RowTypeInfo, characters: _Characters, *flags: bool) -> CsvRowDeserializationSchema:
    return CsvRowDeserializationSchema(type_info, characters, allows_comments=flags[0], ignores_parse_errors=flags[1])


def _without_line_end(text: str) -> str:
    """The text without its last line end; one before that belongs to the last field."""
    for end in ("\r\n", "\n", "\r"):
        if text.endswith(end):
            return text[: -len(end)]
    return text


# ---------------------------------------------------------------- fields as values, and back


def _reader(type_info: TypeInformation, characters: _Characters, lenient: Convert) -> Callable[[str], Any]:
    """A function that makes a value of a field, and raises ValueError if it does not fit.

    ``lenient``: wraps the function for elements of arrays.
    """
    form = field_form(type_info)
    if form is not None:
        return partial(_read, form, characters.null)
    assert isinstance(type_info, ARRAY_TYPES), "the builder refuses other types"
    inner = known_form(type_info.elem_type)
    return partial(_read_array, inner.is_text, characters, lenient(partial(_read, inner, characters.null)))


def _read(form: FieldForm, null: str | None, text: str) -> Any:
    if text == null:
        return None
    if form.is_text:
        return form.parsed(text)
    plain = text.strip()
    return form.parsed(plain) if plain else None


def _read_array(of_texts: bool, characters: _Characters, read: Callable[[str], Any], text: str) -> list[Any] | None:  # noqa: FBT001  # of partial
    if text == characters.null or not (text if of_texts else text.strip()):
        return None
    return [read(each) for each in text.split(characters.array_delimiter)]


def _writer(type_info: TypeInformation, characters: _Characters) -> Callable[[Any], str]:
    """A function that makes a field of a value.

    The function raises ValueError if the value is not of the type, or would be read as another one.
    """
    form = field_form(type_info)
    if form is not None:
        return partial(_written, form, characters.null)
    assert isinstance(type_info, ARRAY_TYPES), "the builder refuses other types"
    allows_none = not isinstance(type_info, PrimitiveArrayTypeInfo)
    return partial(
        _written_array, characters, partial(_written, known_form(type_info.elem_type), characters.null), allows_none
    )


def _written(form: FieldForm, null: str | None, value: Any) -> str:
    if value is None:
        if null is not None:
            return null
        if form.is_text:
            raise ValueError(
                "None in a text, which would be read as an empty one: set_null_literal() for writer and reader"
            )
        return ""
    text = form.text(form.checked(value))
    if text == null:
        raise ValueError(f"{value!r} is the null literal, so that it would be read as None: use another literal")
    if not (text or form.is_text):
        raise ValueError(f"{value!r} is an empty field, so that it would be read as None")
    return text


def _written_array(characters: _Characters, write: Callable[[Any], str], allows_none: bool, value: Any) -> str:  # noqa: FBT001  # of partial
    if value is None:
        return characters.null or ""
    texts = [write(each) for each in plain_list(value, allows_none=allows_none)]
    text = characters.array_delimiter.join(texts)
    if not text or text == characters.null:
        raise ValueError(f"{value!r} is an empty field or the null literal, so that it would be read as None")
    if text.split(characters.array_delimiter) != texts:
        raise ValueError(
            f"{value!r} has {characters.array_delimiter!r} in an element: set_array_element_delimiter() for writer and "
            "reader"
        )
    return text


def _checked_type(type_info: Any) -> RowTypeInfo:
    check_kind(type_info, RowTypeInfo, "a schema of CSV needs the type of a row, such as Types.ROW_NAMED([...], [...])")
    row: RowTypeInfo = type_info
    for name, kind in named_fields(row):
        inner = kind.elem_type if isinstance(kind, ARRAY_TYPES) and field_form(kind) is None else kind
        if field_form(inner) is None:
            raise JobGraphError(
                f"a schema of CSV cannot hold the field {name!r} of {kind!r}: use plain values, dates and arrays of "
                "these"
            )
    return row

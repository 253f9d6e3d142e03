"""A message is one line of comma-separated values."""

import csv
import datetime
import io
import pickle
from decimal import Decimal
from typing import Any

import pytest

from flowlet.common import Row, Types
from flowlet.datastream.formats.csv import CsvRowDeserializationSchema, CsvRowSerializationSchema
from flowlet.errors import JobGraphError
from tests.pandas_values import NA, NAT

ALL = Types.ROW_NAMED(
    ["text", "whole", "part", "flag", "price", "day", "list"],
    [
        Types.STRING(),
        Types.INT(),
        Types.DOUBLE(),
        Types.BOOLEAN(),
        Types.BIG_DEC(),
        Types.SQL_DATE(),
        Types.BASIC_ARRAY(Types.INT()),
    ],
)

PAIR = Types.ROW([Types.STRING(), Types.INT()])
Reader, Writer = CsvRowDeserializationSchema.Builder, CsvRowSerializationSchema.Builder


def test_fields_are_read_and_written_by_the_type() -> None:
    reader: CsvRowDeserializationSchema = pickle.loads(pickle.dumps(Reader(ALL).build()))
    writer: CsvRowSerializationSchema = pickle.loads(pickle.dumps(Writer(ALL).build()))
    row = Row(
        text='a, "b"', whole=-3, part=0.5, flag=True, price=Decimal("1.50"), day=datetime.date(2024, 2, 29), list=[1, 2]
    )

    line = writer.serialize(row)

    assert line == b'"a, ""b""",-3,0.5,true,1.50,2024-02-29,1;2\n'
    assert reader.deserialize(line) == row
    assert reader.get_produced_type() == ALL


def test_an_empty_field_is_none_unless_it_is_a_text() -> None:
    assert Reader(PAIR).build().deserialize(b",") == Row(f0="", f1=None)
    assert Reader(PAIR).set_null_literal("-").build().deserialize(b"-,-") == Row(f0=None, f1=None)
    assert Writer(PAIR).set_null_literal("-").build().serialize(("a", None)) == b"a,-\n"
    assert Writer(PAIR).build().serialize(("a", None)) == b"a,\n"


def test_characters_can_be_set() -> None:
    reader = (
        Reader(ALL)
        .set_field_delimiter("|")
        .set_array_element_delimiter("+")
        .set_quote_character("'")
        .set_escape_character("\\")
        .build()
    )
    writer = (
        Writer(ALL)
        .set_field_delimiter("|")
        .set_array_element_delimiter("+")
        .set_quote_character("'")
        .set_escape_character("\\")
        .set_line_delimiter("")
        .build()
    )
    row = Row(text="a|'b", whole=1, part=1.0, flag=False, price=Decimal(2), day=datetime.date(2024, 1, 1), list=[1])

    line = writer.serialize(row)

    assert line == b"'a|\\'b'|1|1.0|false|2|2024-01-01|1"
    assert reader.deserialize(line) == row


def test_without_quotes_a_field_that_needs_them_fails() -> None:
    writer = Writer(PAIR).disable_quote_character()

    assert writer.build().serialize(("a", 1)) == b"a,1\n"
    with pytest.raises(ValueError, match="cannot be written as a line"):
        writer.build().serialize(("a,b", 1))


@pytest.mark.parametrize("line", [b"a,1,2", b'"a,1', b"\xff,1"])
def test_a_line_that_does_not_fit_fails_or_is_left_out_and_counted(line: bytes) -> None:
    ignoring = Reader(PAIR).set_ignore_parse_errors(True).build()

    with pytest.raises(ValueError, match="a line does not fit RowTypeInfo"):
        Reader(PAIR).build().deserialize(line)
    assert ignoring.deserialize(line) is None
    assert (ignoring.num_unparsable_records, ignoring.num_unparsable_fields) == (1, 0)


@pytest.mark.parametrize(
    ("line", "row", "num_fields"),
    [
        (
            b"a,old,0.5,true,1.50,2024-02-29,1;2",
            ["a", None, 0.5, True, Decimal("1.50"), datetime.date(2024, 2, 29), [1, 2]],
            1,
        ),
        (b"a,1,0.5,perhaps,cheap,2024-02-30,1;2", ["a", 1, 0.5, None, None, None, [1, 2]], 3),
        (
            b"a,1,0.5,true,1.50,2024-02-29,1;x;3",
            ["a", 1, 0.5, True, Decimal("1.50"), datetime.date(2024, 2, 29), [1, None, 3]],
            1,
        ),
        (b"a,1,0.5", ["a", 1, 0.5, None, None, None, None], 4),
    ],
)
def test_if_errors_are_ignored_a_field_that_does_not_fit_or_is_missing_is_none(
    line: bytes, row: list[Any], num_fields: int
) -> None:
    """The other fields of the row are kept, as in Flink; each field that became None is counted."""
    schema = Reader(ALL).set_ignore_parse_errors(True).build()
    names = ["text", "whole", "part", "flag", "price", "day", "list"]

    assert schema.deserialize(line) == Row(**dict(zip(names, row, strict=True)))
    assert (schema.num_unparsable_records, schema.num_unparsable_fields) == (0, num_fields)
    with pytest.raises(ValueError, match="a line does not fit RowTypeInfo"):
        Reader(ALL).build().deserialize(line)


@pytest.mark.parametrize("ignores", [False, True])
@pytest.mark.parametrize("num_characters", [131_072, 131_073, 1_000_000])
def test_a_field_may_be_longer_than_what_pythons_csv_takes(num_characters: int, ignores: bool) -> None:
    """Python's limit of 131,072 characters would make an error of the field, or lose it."""
    long = "x" * num_characters
    schema = Reader(PAIR).set_ignore_parse_errors(ignores).build()

    assert schema.deserialize(f'"{long}",1\n'.encode()) == Row(f0=long, f1=1)


def test_comments_are_left_out_if_they_are_allowed() -> None:
    assert Reader(PAIR).set_allow_comments(True).build().deserialize(b"# a,1") is None
    assert Reader(PAIR).build().deserialize(b"# a,1") == Row(f0="# a", f1=1)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: Reader(Types.STRING()), "needs the type of a row"),
        (lambda: Writer(Types.ROW([Types.MAP(Types.STRING(), Types.INT())])), "cannot hold the field 'f0'"),
        (lambda: Reader(PAIR).set_field_delimiter("ab"), "needs one character, got 'ab'"),
        (lambda: Writer(PAIR).set_null_literal(None), ("needs a text, got None")),  # type: ignore[arg-type]  # that is the test
    ],
)
def test_a_wrong_argument_is_refused(call: Any, reason: str) -> None:
    with pytest.raises(JobGraphError, match=reason):
        call()


@pytest.mark.parametrize(
    ("type_info", "text", "reason"),
    [
        (Types.INT(), "2147483648", "2147483648 does not fit into the 32 bits of INT"),
        (Types.BYTE(), "300", "300 does not fit into the 8 bits of BYTE"),
        (Types.INT(), "1_000", "a number is expected, got '1_000'"),
        (Types.LONG(), "\u0661\u0662", "a number is expected"),
        (Types.DOUBLE(), "1_0.5", "a number is expected"),
        (Types.DOUBLE(), "1e400", "does not fit into DOUBLE"),
        (Types.FLOAT(), "1e300", "does not fit into the 32 bits of FLOAT"),
        (Types.BIG_DEC(), "1_0", "a number is expected"),
        (Types.BIG_DEC(), "NaN", "is no number"),
        (Types.BASIC_ARRAY(Types.BYTE()), "1;300", "300 does not fit into the 8 bits of BYTE"),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), "1;300", "bytes in base64 are expected"),
        (Types.CHAR(), "ab", "is no CHAR"),
        (Types.SQL_TIMESTAMP(), "2026-06-25T09:15:00+02:00", "has an offset from UTC"),
        (Types.SQL_TIME(), "09:15+02:00", "has an offset from UTC"),
    ],
)
def test_what_does_not_fit_its_type_is_an_error_that_names_the_field(type_info: Any, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"does not fit RowTypeInfo.*: field 'x': .*{reason}"):
        Reader(Types.ROW_NAMED(["x"], [type_info])).build().deserialize(text.encode())


@pytest.mark.parametrize(
    ("type_info", "value", "reason"),
    [
        (Types.INT(), 2**31, "2147483648 does not fit into the 32 bits of INT"),
        (Types.FLOAT(), 1e300, "does not fit into the 32 bits of FLOAT"),
        (Types.STRING(), None, "None in a text, which would be read as an empty one: set_null_literal"),
        (Types.BASIC_ARRAY(Types.STRING()), ["a", None], "None in a text"),
        (Types.BASIC_ARRAY(Types.STRING()), ["a;b", "c"], "has ';' in an element: set_array_element_delimiter"),
        (Types.BASIC_ARRAY(Types.STRING()), [], "would be read as None"),
        (Types.PRIMITIVE_ARRAY(Types.INT()), [1, None], "is no element of an array of primitives"),
        (Types.STRING(), b"ab", "b'ab' of type bytes is no STRING"),
        (Types.STRING(), NA, "NAType is no STRING"),
        (Types.SQL_TIMESTAMP(), NAT, "NaTType is no timestamp"),
    ],
)
def test_what_csv_cannot_tell_from_another_value_is_not_written(type_info: Any, value: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=f"cannot be written as a line: field 'x': .*{reason}"):
        Writer(Types.ROW_NAMED(["x", "y"], [type_info, Types.INT()])).build().serialize(Row(y=1, x=value))


def test_a_text_that_is_the_null_literal_is_not_written() -> None:
    with pytest.raises(ValueError, match="'-' is the null literal, so that it would be read as None"):
        Writer(PAIR).set_null_literal("-").build().serialize(("-", 1))


@pytest.mark.parametrize("text", ["a\rb", "a\nb", "\r", "a\r\n", 'a"', '"', "a,b\r"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "", ";"])
def test_ends_of_lines_in_a_text_are_quoted(text: str, end: str) -> None:
    """The line is one for Python's ``csv``, too."""
    line = Writer(PAIR).set_line_delimiter(end).build().serialize((text, 1))

    assert line is not None
    assert line.endswith(end.encode())
    whole = line.decode().removesuffix(end)
    assert list(csv.reader(io.StringIO(whole, newline=""))) == [[text, "1"]]
    assert Reader(PAIR).build().deserialize(whole.encode()) == Row(f0=text, f1=1)


def test_a_line_end_at_the_end_of_a_text_belongs_to_it() -> None:
    types = Types.ROW([Types.INT(), Types.STRING()])
    writer = Writer(types).disable_quote_character().set_escape_character("\\").build()

    line = writer.serialize((1, "a\n"))

    assert line == b"1,a\\\n\n"
    assert Reader(types).set_escape_character("\\").build().deserialize(line) == Row(f0=1, f1="a\n")


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="a row of 1 fields, declared are 2"):
        Writer(PAIR).build().serialize(("a",))
    assert Writer(PAIR).build().serialize(None) is None

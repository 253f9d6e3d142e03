"""A message is one line of comma-separated values."""

import datetime
import pickle
from decimal import Decimal
from typing import Any

import pytest

from flowlet.common import Row, Types
from flowlet.datastream.formats.csv import CsvRowDeserializationSchema, CsvRowSerializationSchema
from flowlet.errors import JobGraphError

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
    row = Row(text='a, "b"', whole=-3, part=0.5, flag=True, price=Decimal("1.50"), day=datetime.date(2024, 2, 29), list=[1, 2])

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
        Reader(ALL).set_field_delimiter("|").set_array_element_delimiter("+").set_quote_character("'").set_escape_character("\\").build()
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


@pytest.mark.parametrize("line", [b"a", b"a,b", b"a,1,2", b'"a,1', b"\xff,1"])
def test_a_line_that_does_not_fit_fails_or_is_left_out(line: bytes) -> None:
    with pytest.raises(ValueError, match="a line does not fit RowTypeInfo"):
        Reader(PAIR).build().deserialize(line)
    assert Reader(PAIR).set_ignore_parse_errors(True).build().deserialize(line) is None


def test_comments_are_left_out_if_they_are_allowed() -> None:
    assert Reader(PAIR).set_allow_comments(True).build().deserialize(b"# a,1") is None
    assert Reader(PAIR).build().deserialize(b"# a,1") == Row(f0="# a", f1=1)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: Reader(Types.STRING()), "needs the type of a row"),
        (lambda: Writer(Types.ROW([Types.MAP(Types.STRING(), Types.INT())])), "cannot hold the field 'f0'"),
        (lambda: Reader(PAIR).set_field_delimiter("ab"), "needs one character, got 'ab'"),
        (lambda: Writer(PAIR).set_null_literal(None), "needs a text, got None"),  # type: ignore[arg-type]  # that is the test
    ],
)
def test_a_wrong_argument_is_refused(call: Any, reason: str) -> None:
    with pytest.raises(JobGraphError, match=reason):
        call()


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="a row of 2 fields is expected"):
        Writer(PAIR).build().serialize(("a",))
    assert Writer(PAIR).build().serialize(None) is None

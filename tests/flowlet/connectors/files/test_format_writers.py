"""Text, JSON and CSV in files."""

import io
from typing import Any

import pytest

from flowlet.common.serialization import Encoder
from flowlet.common.types import Row
from flowlet.connectors.files.format_writers import CsvWriter, EncodedWriter
from flowlet.datastream.formats.csv import CsvSchema, CsvSchemaBuilder
from flowlet.datastream.formats.json_lines import JsonLinesEncoder
from flowlet.records import Chunk
from flowlet.sinks.bad_record import BadRecordError


def encoded(encoder: Encoder, *chunks: list[Any]) -> bytes:
    file = io.BytesIO()
    writer = EncodedWriter(encoder, file)
    for each in chunks:
        writer.write(Chunk(each))
    writer.end()
    assert writer.num_bytes == len(file.getvalue())
    return file.getvalue()


def csv_of(schema: CsvSchema, *records: Any) -> str:
    file = io.BytesIO()
    writer = CsvWriter(schema, file)
    if records:
        writer.write(Chunk(list(records)))
    writer.end()
    return file.getvalue().decode()


def schema() -> CsvSchemaBuilder:
    return CsvSchema.builder().add_string_column("name").add_number_column("age")


def test_text_is_a_line_per_record() -> None:
    assert encoded(Encoder.simple_string_encoder(), ["a", "ü"], [1, None]) == "a\nü\n1\nNone\n".encode()


def test_text_is_in_the_charset() -> None:
    assert encoded(Encoder.simple_string_encoder("UTF-16LE"), ["a"], ["b"]).decode("utf-16-le") == "a\nb\n"


def test_json_is_a_line_per_record() -> None:
    found = encoded(JsonLinesEncoder(), [Row(name="a", age=1), Row("b", 2), ("c", None)], [{"d": [1.5, True]}])

    assert found == b'{"name":"a","age":1}\n["b",2]\n["c",null]\n{"d":[1.5,true]}\n'


@pytest.mark.parametrize(
    ("encoder", "bad"), [(Encoder.simple_string_encoder("ascii"), "ü"), (JsonLinesEncoder(), object())], ids=["text", "json"]
)
def test_a_record_without_a_form_is_named(encoder: Encoder, bad: Any) -> None:
    with pytest.raises(BadRecordError) as caught:
        encoded(encoder, ["a", bad, "b"])

    assert caught.value.record is bad
    assert caught.value.__cause__ is not None


class Framed(Encoder):
    """A user's own."""

    def encode(self, value: Any) -> bytes:
        return b"<%d>" % value


def test_an_encoder_of_the_users_own_gets_each_record() -> None:
    assert encoded(Framed(), [1, 2], [3]) == b"<1><2><3>"


def test_csv_quotes_what_needs_it() -> None:
    assert csv_of(schema().build(), ("a", 1), Row("b,c", 2.5), ['say "x"', None], ("line\nend", 3)) == (
        'a,1\n"b,c",2.5\n"say ""x""",\n"line\nend",3\n'
    )


def test_csv_has_the_characters_of_its_schema() -> None:
    made = schema().set_column_separator(";").set_quote_char("'").set_escape_char("\\").set_line_separator("\r\n").set_null_value("-")

    assert csv_of(made.build(), ("a;b", 1), ("it's", None)) == "'a;b';1\r\nit\\'s;-\r\n"


def test_csv_has_a_header_if_wanted() -> None:
    assert csv_of(schema().set_use_header().build(), ("a", 1)) == "name,age\na,1\n"


def test_csv_has_booleans_and_arrays() -> None:
    made = CsvSchema.builder().add_boolean_column("is").add_array_column("of").build()

    assert csv_of(made, (True, [1, 2]), (False, []), (None, None)) == "true,1;2\nfalse,\n,\n"


@pytest.mark.parametrize("bad", [("a",), ("a", 1, 2), "ab", None], ids=repr)
def test_csv_names_a_record_that_is_no_row_of_its_columns(bad: Any) -> None:
    with pytest.raises(BadRecordError) as caught:
        csv_of(schema().build(), ("a", 1), bad)

    assert caught.value.record == bad
    assert "no row of the columns name, age" in str(caught.value.__cause__)


def test_csv_without_quotes_refuses_what_needs_them() -> None:
    with pytest.raises(BadRecordError) as caught:
        csv_of(schema().disable_quote_char().build(), ("a", 1), ("b,c", 2))

    assert caught.value.record == ("b,c", 2)

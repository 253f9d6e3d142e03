"""Text, JSON and CSV in files."""

import csv
import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common.serialization import Encoder
from flowlet.common.types import Row
from flowlet.connectors.files.part_files import CsvWriter, EncodedWriter
from flowlet.datastream.formats.csv import CsvSchema, CsvSchemaBuilder
from flowlet.datastream.formats.json_lines import JsonLinesEncoder
from flowlet.records import Chunk
from flowlet.sinks.commit_runner import BadRecordError
from tests.flowlet.connectors.files.file_formats import refused
from tests.pandas_values import NA, NAT

pa.enable_signal_handlers(False)  # pyarrow's; else its reader of CSV opens a pipe that stays open


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


def test_text_is_a_line_per_record_in_the_charset() -> None:
    assert encoded(Encoder.simple_string_encoder(), ["a", "ü"], [1, None]) == "a\nü\n1\nNone\n".encode()
    assert encoded(Encoder.simple_string_encoder("UTF-16LE"), ["a"], ["b"]).decode("utf-16-le") == "a\nb\n"


def test_csv_has_a_header_if_wanted() -> None:
    assert csv_of(schema().set_use_header().build(), ("a", 1)) == "name,age\na,1\n"


def test_json_is_a_line_per_record() -> None:
    found = encoded(JsonLinesEncoder(), [Row(name="a", age=1), Row("b", 2), ("c", None)], [{"d": [1.5, True]}])

    assert found == b'{"name":"a","age":1}\n["b",2]\n["c",null]\n{"d":[1.5,true]}\n'


@pytest.mark.parametrize(
    ("encoder", "bad"),
    [(Encoder.simple_string_encoder("ascii"), "ü"), (JsonLinesEncoder(), object())],
    ids=["text", "json"],
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
    made = schema().set_column_separator(";").set_quote_char("'").set_escape_char("\\").set_line_separator("\r\n")
    made.set_null_value("-")

    assert csv_of(made.build(), ("a;b", 1), ("it's", None)) == "'a;b';1\r\nit\\'s;-\r\n"


def test_csv_has_booleans_and_arrays() -> None:
    made = CsvSchema.builder().add_boolean_column("is").add_array_column("of").build()

    assert csv_of(made, (True, [1, 2]), (False, []), (None, None)) == "true,1;2\nfalse,\n,\n"


@pytest.mark.parametrize("bad", [("a",), ("a", 1, 2), "ab", None], ids=repr)
def test_csv_names_a_record_that_is_no_row_of_its_columns(bad: Any) -> None:
    with refused(bad, "name, age"):
        csv_of(schema().build(), ("a", 1), bad)


def test_csv_rows_go_by_the_names_of_their_fields() -> None:
    assert csv_of(schema().build(), Row(age=1, name="a"), Row("b", 2), ("c", 3)) == "a,1\nb,2\nc,3\n"
    for bad, reason in ((Row(name="a", years=1), "'age'"), (Row(name="a", age=1, years=1), "'years'")):
        with refused(bad, reason):
            csv_of(schema().build(), ("a", 1), bad)


@pytest.mark.parametrize(
    ("made", "bad", "reason"),
    [
        (schema(), (b"ab", 1), "column 'name': CSV has no form for bytes"),
        (schema().set_quote_char("'").set_escape_char("\\"), (b"ab", 1), "CSV has no form for bytes"),
        (schema(), ("a", NAT), "column 'age': NaT of type NaTType is no value: use None"),
        (schema(), (NA, 1), "<NA> of type NAType is no value"),
        (schema(), ("a", np.datetime64("NaT", "s")), "is no value"),
        (schema().set_null_value("-"), ("-", 1), "column 'name': a value is '-', which stands for None"),
        (schema().set_null_value("-1"), ("a", -1), "column 'age': a value is '-1'"),
        (CsvSchema.builder().add_boolean_column("is"), ("false",), "column 'is': 'false' of type str is no boolean"),
        (CsvSchema.builder().add_array_column("of"), (["a;b"],), "column 'of': .* has ';' in an element"),
        (CsvSchema.builder().add_array_column("of"), ([b"a"],), "CSV has no form for bytes"),
    ],
)
def test_csv_names_a_value_that_would_be_read_as_another(made: CsvSchemaBuilder, bad: Any, reason: str) -> None:
    with refused(bad, reason):
        csv_of(made.build(), bad)


def test_csv_has_elements_of_arrays_in_the_forms_of_columns() -> None:
    made = CsvSchema.builder().add_array_column("of").set_null_value("-").build()

    assert csv_of(made, ([1, None, True, np.bool_(False)],)) == "1;-;true;false\n"


def test_csv_leaves_texts_that_look_like_values_without_a_text() -> None:
    assert csv_of(schema().build(), ("b'x' NaT <NA> <memory", 1)) == "b'x' NaT <NA> <memory,1\n"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@given(rows=st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.integers()), min_size=1))
def test_csv_is_read_by_python_and_arrow_as_it_was_written(end: str, rows: list[tuple[str, int]]) -> None:
    found = csv_of(schema().set_line_separator(end).build(), *rows)

    assert [(text, int(number)) for text, number in csv.reader(io.StringIO(found, newline=""))] == rows
    # Arrow takes no carriage return for the end of a line.
    if end != "\r" and not any("\0" in text for text, _ in rows):
        options = {
            "read_options": arrow_csv.ReadOptions(column_names=["name", "age"]),
            "parse_options": arrow_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            "convert_options": arrow_csv.ConvertOptions(column_types={"name": pa.string(), "age": pa.string()}),
        }
        table = arrow_csv.read_csv(io.BytesIO(found.encode()), **options)
        assert [(row["name"], int(row["age"])) for row in table.to_pylist()] == rows


def test_csv_without_quotes_refuses_what_needs_them() -> None:
    with refused(("b,c", 2), ""):
        csv_of(schema().disable_quote_char().build(), ("a", 1), ("b,c", 2))

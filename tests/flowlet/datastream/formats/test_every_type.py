"""Every declared type in every format: written values are read equal, or the schema is refused when it is built."""

import contextlib
import datetime
import io
import json
import pickle
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.columns.arrow_batches import batch_of_records, columns_of_batch
from flowlet.common import Row, TypeInformation, Types
from flowlet.connectors.database.sink import row_values_of
from flowlet.connectors.files.parquet_writer import ParquetFormatWriter
from flowlet.datastream.connectors.jdbc import JdbcConnectionOptions, JdbcSink
from flowlet.datastream.formats.arrow_schemas import declared_schema
from flowlet.datastream.formats.csv import CsvRowDeserializationSchema, CsvRowSerializationSchema
from flowlet.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema
from flowlet.datastream.formats.parquet import ParquetBulkWriters
from flowlet.errors import JobGraphError
from flowlet.records import Chunk
from tests.flowlet.datastream.formats.declared_types import ALL, COMPOSITE, EXAMPLES, PLAIN, described, has_names

UNHELD: Final = {
    "JSON": set[str](),
    "CSV": {"OBJECT_ARRAY", "MAP", "MAP of INT", "TUPLE", "ROW", "ROW_NAMED"},
    "Parquet": {"CHAR", "BIG_INT", "BIG_DEC", "INSTANT", "MAP", "MAP of INT", "TUPLE"},
    "Arrow": {
        "CHAR",
        "BIG_INT",
        "BIG_DEC",
        "INSTANT",
        "SQL_TIME",
        "LOCAL_TIME",
        "LOCAL_DATE_TIME",
        "bytes",
        "LIST of BYTE",
    }
    | set(COMPOSITE),
    "SQLite": set(COMPOSITE),
    "PostgreSQL": {"OBJECT_ARRAY", "MAP", "MAP of INT", "TUPLE", "ROW", "ROW_NAMED"},
}


def json_again(row: Row, row_type: Any) -> Row:
    writer = JsonRowSerializationSchema.builder().with_type_info(row_type).build()
    reader = JsonRowDeserializationSchema.builder().type_info(row_type).build()
    message = pickle.loads(pickle.dumps(writer)).serialize(row)
    json.loads(message)
    return pickle.loads(pickle.dumps(reader)).deserialize(message)  # type: ignore[no-any-return]  # a row


def csv_again(row: Row, row_type: Any, null: str = "\\N") -> Row:
    writer = CsvRowSerializationSchema.Builder(row_type).set_null_literal(null).build()
    reader = CsvRowDeserializationSchema.Builder(row_type).set_null_literal(null).build()
    line = pickle.loads(pickle.dumps(writer)).serialize(row)
    return pickle.loads(pickle.dumps(reader)).deserialize(line)  # type: ignore[no-any-return]  # a row


def parquet_again(row: Row, row_type: Any) -> Row:
    factory, file = ParquetBulkWriters.for_row_type(row_type), io.BytesIO()
    writer = ParquetFormatWriter(factory, file)  # type: ignore[arg-type]  # it is one for Parquet
    writer.write(Chunk([row]))
    writer.end()
    return Row(**pq.read_table(io.BytesIO(file.getvalue())).to_pylist()[0])


def arrow_again(row: Row, row_type: Any) -> Row:
    found: Row = columns_of_batch(batch_of_records([row], declared_schema(row_type))).to_list()[0]
    return found


def database_sink(row_type: Any, url: str) -> JdbcSink:
    connection = JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url(url).build()
    return JdbcSink.sink("INSERT INTO t VALUES (?)", row_type, connection)


def sqlite_again(row: Row, row_type: Any) -> Row:
    """Return the row as SQLite gives it back: the texts and numbers that the sink documents."""
    values = row_values_of(database_sink(row_type, "sqlite:////tmp/never.db").statement).of([row])
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.executemany("INSERT INTO t VALUES (?)", values)
        return Row(x=connection.execute("SELECT x FROM t").fetchone()[0])


def postgresql_again(row: Row, row_type: Any) -> Row:
    pytest.importorskip("psycopg")
    row_values_of(database_sink(row_type, "postgresql://a@127.0.0.1/b").statement).of([row])
    return row  # what the server gives back: tests of the sink


FORMATS: Final[dict[str, Callable[[Row, Any], Row]]] = {
    "JSON": json_again,
    "CSV": csv_again,
    "Parquet": parquet_again,
    "Arrow": arrow_again,
    "SQLite": sqlite_again,
    "PostgreSQL": postgresql_again,
}
AS_TEXT: Final[dict[str, Callable[[Any], Any]]] = {
    "BIG_DEC": str,
    "INSTANT": lambda value: value.to_epoch_milli(),
    "BOOLEAN": int,
    **dict.fromkeys(("SQL_DATE", "SQL_TIME", "LOCAL_DATE", "LOCAL_TIME"), lambda value: value.isoformat()),
    **dict.fromkeys(("SQL_TIMESTAMP", "LOCAL_DATE_TIME"), lambda value: value.isoformat(" ")),
}


def expected(form: str, name: str) -> Any:
    value = EXAMPLES[name]
    if form == "SQLite" and name in AS_TEXT:
        return AS_TEXT[name](value)
    if form == "Parquet" and name == "LIST of BYTE":
        return [97, -1]
    if form == "Parquet" and name in {"OBJECT_ARRAY", "ROW", "ROW_NAMED"}:  # structs
        return by_names(value)
    return value


def by_names(value: Any) -> Any:
    if isinstance(value, list):
        return [by_names(each) for each in value]
    if not isinstance(value, Row):
        return value
    fields = value.as_dict() if has_names(value) else {f"f{index}": each for index, each in enumerate(value)}
    fields = {"a": fields["f0"], "b": fields["f1"]} if fields.get("f0") == "a" else fields  # the inner row of ROW
    return {name: by_names(each) for name, each in fields.items()}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("form", FORMATS)
def test_every_type_is_held_or_refused_when_the_schema_is_built(form: str, name: str) -> None:
    type_info = ALL[name][0]
    row_type = Types.ROW_NAMED(["x"], [type_info])
    row = Row(x=EXAMPLES[name])

    if name in UNHELD[form]:
        with pytest.raises(JobGraphError, match=r"x|schema"):
            FORMATS[form](row, row_type)
    else:
        found = FORMATS[form](row, row_type)["x"]
        wanted = expected(form, name)
        same = type(found) is type(wanted) and wanted == found
        assert same or described(found, type_info) == described(wanted, type_info)


@pytest.mark.parametrize("name", ["x: a record batch"])
@pytest.mark.parametrize("form", FORMATS)
def test_record_batches_are_no_fields(form: str, name: str) -> None:
    row_type = Types.ROW_NAMED(["x"], [Types.ARROW(pa.schema([("a", pa.int64())]))])

    with pytest.raises(JobGraphError, match=r"x|schema"):
        FORMATS[form](Row(x=name), row_type)


# ---------------------------------------------------------------- any values


ROWS: Final = st.sampled_from(sorted(ALL)).flatmap(lambda name: st.tuples(st.just(name), st.none() | ALL[name][1]))


@given(typed=ROWS)
def test_json_is_read_as_it_was_written(typed: tuple[str, Any]) -> None:
    name, value = typed
    row_type = Types.ROW_NAMED(["x", "y"], [ALL[name][0], Types.INT()])

    assert described(json_again(Row(y=1, x=value), row_type), row_type) == described(Row(x=value, y=1), row_type)


def is_empty(value: Any) -> bool:
    """Whether CSV has no form for it: it would be read as None."""
    return value == b"" or (isinstance(value, list) and value in ([], [""], [None]))


CSV_TYPES: Final = [*PLAIN, "PRIMITIVE_ARRAY", "BASIC_ARRAY", "LIST"]


@pytest.mark.parametrize("settings", ["plain", "escape", "no quotes"])
@given(data=st.data())
def test_csv_is_read_as_it_was_written_or_refused(settings: str, data: st.DataObject) -> None:
    """Python's ``csv`` finds as many fields in the line, if it is told the schema's characters."""
    name = data.draw(st.sampled_from(CSV_TYPES))
    value = data.draw(st.none() | ALL[name][1])
    row_type = Types.ROW_NAMED(["x", "y"], [ALL[name][0], Types.STRING()])
    row = Row(y="end\r", x=value)
    writing = CsvRowSerializationSchema.Builder(row_type).set_null_literal("\\N")
    reading = CsvRowDeserializationSchema.Builder(row_type).set_null_literal("\\N")
    if settings == "escape":
        writing, reading = writing.set_escape_character("\\"), reading.set_escape_character("\\")
    if settings == "no quotes":
        writing = writing.disable_quote_character()
        row["y"] = "end"
    try:
        line = writing.build().serialize(row)
    except ValueError as error:
        reasons = ["would be read as", "in an element"] + (
            ["need to escape", "escapechar"] if settings == "no quotes" else []
        )
        assert any(reason in str(error) for reason in reasons)  # noqa: PT017  # most values are written
        assert settings == "no quotes" or is_empty(value) or ";" in str(value) or "\\N" in str(value)
    else:
        if settings == "no quotes" and '"' in str(value):
            return  # this reader has quotes
        assert line is not None
        assert described(reading.build().deserialize(line), row_type) == described(row, row_type)


PARQUET_TYPES: Final = [
    each
    for each in ALL
    if each not in UNHELD["Parquet"] and each not in {"LIST of BYTE", "ROW", "ROW_NAMED", "OBJECT_ARRAY"}
]


@given(values=st.sampled_from(PARQUET_TYPES).flatmap(lambda name: st.tuples(st.just(name), st.none() | ALL[name][1])))
def test_pyarrow_reads_in_parquet_what_was_written(values: tuple[str, Any]) -> None:
    name, value = values
    row_type = Types.ROW_NAMED(["x", "y"], [ALL[name][0], Types.INT()])

    assert described(parquet_again(Row(y=1, x=value), row_type), row_type) == described(Row(x=value, y=1), row_type)


@given(
    values=st.sampled_from(sorted(set(ALL) - UNHELD["Arrow"])).flatmap(
        lambda name: st.tuples(st.just(name), st.none() | ALL[name][1])
    )
)
def test_columns_have_the_values_of_the_records(values: tuple[str, Any]) -> None:
    name, value = values
    row_type = Types.ROW_NAMED(["x", "y"], [ALL[name][0], Types.INT()])

    assert described(arrow_again(Row(y=1, x=value), row_type), row_type) == described(Row(x=value, y=1), row_type)


# ---------------------------------------------------------------- what does not fit


BERLIN: Final = datetime.timezone(datetime.timedelta(hours=2))
MOMENT: Final = datetime.datetime(2026, 6, 25, 9, 15, tzinfo=BERLIN)
MISFITS: Final[list[tuple[TypeInformation, Any]]] = [
    (Types.BYTE(), 300),
    (Types.SHORT(), 2**15),
    (Types.INT(), 2**31),
    (Types.LONG(), 2**63),
    (Types.FLOAT(), 1e300),
    (Types.SQL_TIMESTAMP(), MOMENT),
    (Types.SQL_TIME(), datetime.time(9, 15, tzinfo=BERLIN)),
    (Types.SQL_DATE(), datetime.datetime(2026, 6, 25, 9, 15)),  # noqa: DTZ001 - that is the test
    (Types.LIST(Types.FLOAT()), [1.0, 1e300]),
]


@pytest.mark.parametrize(("type_info", "value"), MISFITS, ids=[f"{value!r}" for _, value in MISFITS])
@pytest.mark.parametrize("form", ["JSON", "CSV", "Parquet", "Arrow", "SQLite", "PostgreSQL"])
def test_no_writer_changes_a_value_that_does_not_fit(form: str, type_info: TypeInformation, value: Any) -> None:
    """The error names the field; nothing wraps around, becomes infinite or is shifted."""
    row_type = Types.ROW_NAMED(["x"], [type_info])
    if form in {"SQLite", "PostgreSQL"} and "Float" in repr(type_info):
        pytest.skip("columns of these databases have 64 bits, or are lists")
    if form == "Arrow" and ("List" in repr(type_info) or "Time" in repr(type_info).removesuffix("stampTypeInfo")):
        pytest.skip("to_arrow() finds no column for it")

    with pytest.raises(Exception) as caught:  # noqa: PT011  # each format has its own
        FORMATS[form](Row(x=value), row_type)

    causes = f"{caught.value} {caught.value.__cause__}"
    assert not isinstance(caught.value, (AttributeError, AssertionError))
    assert "'x'" in causes or "'x[" in causes


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("row", "name"),
    [
        (Row(a="x", c=1), "'b'"),
        (Row(a="x", b=1, c=1), "'c'"),
        (Row("x"), "declared are 2"),
        (Row("x", 1, 2), "declared are 2"),
    ],
)
def test_a_row_with_other_fields_is_refused_by_name(form: str, row: Row, name: str) -> None:
    """Rows go by the names of their fields, in every format."""
    row_type = Types.ROW_NAMED(["a", "b"], [Types.STRING(), Types.INT()])
    if form in {"SQLite", "PostgreSQL"}:
        if form == "PostgreSQL":
            pytest.importorskip("psycopg")
        url = "sqlite:////tmp/never.db" if form == "SQLite" else "postgresql://a@127.0.0.1/b"
        connection = JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url(url).build()
        values = row_values_of(JdbcSink.sink("INSERT INTO t VALUES (?, ?)", row_type, connection).statement)
        assert values.of([Row(b=1, a="x")]) == [("x", 1)]
        with pytest.raises(Exception, match=name):  # as above
            values.of([row])
        return

    assert described(FORMATS[form](Row(b=1, a="x"), row_type), row_type) == described(Row(a="x", b=1), row_type)
    with pytest.raises(Exception) as caught:  # noqa: PT011  # each format has its own
        FORMATS[form](row, row_type)
    assert name in f"{caught.value} {caught.value.__cause__}"


def test_nothing_is_made_by_looking_at_a_schema() -> None:
    assert not Path("/tmp/never.db").exists()

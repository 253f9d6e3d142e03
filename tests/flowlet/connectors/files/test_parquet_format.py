"""Records in a Parquet file: exactly the declared types and values."""

import datetime
import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowlet.columns import ArrayColumn, ArrowColumn, Columns, ListColumn, Shape
from flowlet.common.typeinfo import RowTypeInfo, Types
from flowlet.common.types import Row
from flowlet.connectors.files.parquet_writer import ROWS_PER_GROUP, ParquetFormatWriter
from flowlet.datastream.formats.parquet import ParquetWriterFactory
from flowlet.records import Chunk
from tests.flowlet.connectors.files.file_formats import refused

SALE = Types.ROW_NAMED(["user", "amount"], [Types.LONG(), Types.DOUBLE()])
NOON = datetime.datetime(2024, 7, 1, 12)  # noqa: DTZ001 - a time on the wall


class Writing:
    """A writer, and the file that it writes."""

    def __init__(self, row_type: RowTypeInfo = SALE, *, utc_timestamp: bool = False) -> None:
        self.file = io.BytesIO()
        self.writer = ParquetFormatWriter(ParquetWriterFactory(row_type, utc_timestamp=utc_timestamp), self.file)

    def write(self, *values: Any) -> None:
        self.writer.write(Chunk(list(values)))

    def ended(self) -> pq.ParquetFile:
        self.writer.end()
        return pq.ParquetFile(io.BytesIO(self.file.getvalue()))


def test_tuples_and_rows_become_rows_of_the_declared_columns() -> None:
    writing = Writing()

    writing.write((1, 0.5), (2, None))
    writing.write(Row(user=3, amount=1.5), [None, -0.0])

    table = writing.ended().read()
    assert table.schema.names == ["user", "amount"]
    assert table.to_pydict() == {"user": [1, 2, 3, None], "amount": [0.5, None, 1.5, -0.0]}


def test_columns_are_written_as_they_are() -> None:
    writing = Writing(Types.ROW_NAMED(["a", "b", "c"], [Types.LONG(), Types.STRING(), Types.DOUBLE()]))
    fields = (ArrayColumn(np.array([1, 2])), ArrowColumn(pa.array(["x", None])), ListColumn([1.5, None]))

    writing.writer.write(Chunk.of_columns(Columns(2, fields, Shape.ROW, ("a", "b", "c"))))
    writing.writer.write(Chunk.of_columns(Columns(2, (ListColumn([3, 4]), *fields[1:]), Shape.TUPLE)))

    assert writing.ended().read().to_pydict() == {"a": [1, 2, 3, 4], "b": ["x", None] * 2, "c": [1.5, None] * 2}


def test_rows_are_written_in_groups() -> None:
    """Memory holds one group."""
    writing = Writing()
    num_rows = 67 * 1000
    for start in range(0, num_rows, 1000):
        writing.write(*((number, 0.0) for number in range(start, start + 1000)))

    file = writing.ended()
    assert file.num_row_groups == 2
    assert num_rows > ROWS_PER_GROUP
    assert file.read().column("user").to_pylist() == list(range(num_rows))


@pytest.mark.parametrize(("utc_timestamp", "wanted"), [(False, pa.timestamp("us")), (True, pa.timestamp("us", "UTC"))])
def test_timestamps_are_points_in_time_if_wanted(utc_timestamp: bool, wanted: pa.DataType) -> None:
    writing = Writing(Types.ROW_NAMED(["at"], [Types.SQL_TIMESTAMP()]), utc_timestamp=utc_timestamp)

    writing.write((NOON,))

    column = writing.ended().read().column("at")
    assert column.type == wanted
    assert column.cast(pa.timestamp("us")).to_pylist() == [NOON]


def test_rows_and_columns_go_by_the_names_of_their_fields() -> None:
    writing = Writing()
    fields = (ArrayColumn(np.array([2.5])), ArrayColumn(np.array([2])))

    writing.write(Row(amount=0.5, user=1), (3, 3.5))
    writing.writer.write(Chunk.of_columns(Columns(1, fields, Shape.ROW, ("amount", "user"))))

    assert writing.ended().read().to_pydict() == {"user": [1, 3, 2], "amount": [0.5, 3.5, 2.5]}


@pytest.mark.parametrize("wrong", [Row(user=1, total=0.5), Row(user=1, amount=0.5, total=1)], ids=repr)
def test_a_row_with_other_fields_is_refused_by_name(wrong: Row) -> None:
    writing = Writing()

    with refused(wrong, "'amount'|'total'"):
        writing.write((1, 0.5), wrong)
    writing.writer.drop()


def test_a_time_with_a_zone_is_a_point_in_time_or_refused() -> None:
    aware = NOON.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    kind = Types.ROW_NAMED(["at"], [Types.SQL_TIMESTAMP()])
    points, local = Writing(kind, utc_timestamp=True), Writing(kind)

    points.write((aware,))
    local.write((NOON.replace(tzinfo=datetime.UTC),), (None,))
    with refused((aware,), "has an offset"):
        local.write((NOON,), (None,), (aware,))

    assert points.ended().read().column("at").to_pylist() == [aware]
    assert local.ended().read().column("at").to_pylist() == [NOON, None]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        *((each, "user, amount") for each in ("ab", (1,), (1, 2, 3), None, 5)),
        ((1.5, 0.5), "field 'user': 1.5 of type float is no int64"),
    ],
    ids=repr,
)
def test_a_record_of_another_type_is_refused(wrong: Any, reason: str) -> None:
    """1.5 is not cut to 1."""
    writing = Writing()

    with refused(wrong, reason):
        writing.write((1, 0.5), wrong)
    writing.writer.drop()

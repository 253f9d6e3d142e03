"""Records in a Parquet file: exactly what was declared, and a file that is there when it is whole."""

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flowlet.columns import ArrayColumn, ArrowColumn, Columns, ListColumn, Shape
from flowlet.common.typeinfo import RowTypeInfo, Types
from flowlet.common.types import Row
from flowlet.connectors.parquet_sink import ROWS_PER_GROUP, ParquetSink
from flowlet.errors import FlowletError, UserFunctionError
from flowlet.records import Chunk
from tests.flowlet.operators.harness import Harness

SALE = Types.ROW_NAMED(["user", "amount"], [Types.LONG(), Types.DOUBLE()])
NOON = datetime.datetime(2024, 7, 1, 12)  # noqa: DTZ001 - a time on the wall


def sink(folder: Path, row_type: RowTypeInfo = SALE, **options: Any) -> Harness:
    return Harness(ParquetSink(str(folder), row_type, **options), subtask=3, parallelism=4)


def finished(harness: Harness) -> None:
    harness.operator.finish()
    harness.operator.close()


def read(folder: Path) -> pa.Table:
    (file,) = folder.iterdir()
    return pq.read_table(file)


def test_tuples_and_rows_become_rows_of_the_declared_columns(tmp_path: Path) -> None:
    harness = sink(tmp_path / "new" / "folder")

    harness.process((1, 0.5), (2, None))
    harness.process(Row(user=3, amount=1.5), [None, -0.0])
    finished(harness)

    table = read(tmp_path / "new" / "folder")
    assert table.schema.names == ["user", "amount"]
    assert table.to_pydict() == {"user": [1, 2, 3, None], "amount": [0.5, None, 1.5, -0.0]}


def test_columns_are_written_as_they_are(tmp_path: Path) -> None:
    row_type = Types.ROW_NAMED(["a", "b", "c"], [Types.LONG(), Types.STRING(), Types.DOUBLE()])
    harness = sink(tmp_path, row_type)
    fields = (ArrayColumn(np.array([1, 2])), ArrowColumn(pa.array(["x", None])), ListColumn([1.5, None]))

    harness.operator.process_chunk(Chunk.of_columns(Columns(2, fields, Shape.ROW, ("a", "b", "c"))))
    harness.operator.process_chunk(Chunk.of_columns(Columns(2, (ListColumn([3, 4]), *fields[1:]), Shape.TUPLE)))
    finished(harness)

    assert read(tmp_path).to_pydict() == {"a": [1, 2, 3, 4], "b": ["x", None] * 2, "c": [1.5, None] * 2}


def test_the_file_has_its_name_when_everything_is_in_it(tmp_path: Path) -> None:
    """Readers leave out names that begin with a dot."""
    harness = sink(tmp_path)

    harness.process((1, 0.5))
    (draft,) = tmp_path.iterdir()
    finished(harness)

    (file,) = tmp_path.iterdir()
    assert draft.name == f".{file.name}.inprogress"
    assert file.name.startswith("part-3-")


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    harness = sink(tmp_path)
    harness.process((1, 0.5))

    harness.operator.close()

    assert list(tmp_path.iterdir()) == []


def test_a_subtask_without_records_writes_an_empty_file(tmp_path: Path) -> None:
    """So that the columns are known whoever got the records."""
    finished(sink(tmp_path))

    assert read(tmp_path).schema.names == ["user", "amount"]


def test_rows_are_written_in_groups(tmp_path: Path) -> None:
    """Memory holds one group."""
    harness = sink(tmp_path)
    num_rows = 67 * 1000
    for start in range(0, num_rows, 1000):
        harness.process(*((number, 0.0) for number in range(start, start + 1000)))
    finished(harness)

    (file,) = tmp_path.iterdir()
    assert pq.ParquetFile(file).num_row_groups == 2
    assert num_rows > ROWS_PER_GROUP
    assert pq.read_table(file).column("user").to_pylist() == list(range(num_rows))


@pytest.mark.parametrize(("utc_timestamp", "wanted"), [(False, pa.timestamp("us")), (True, pa.timestamp("us", "UTC"))])
def test_timestamps_are_points_in_time_if_wanted(tmp_path: Path, utc_timestamp: bool, wanted: pa.DataType) -> None:
    harness = sink(tmp_path, Types.ROW_NAMED(["at"], [Types.SQL_TIMESTAMP()]), utc_timestamp=utc_timestamp)

    harness.process((NOON,))
    finished(harness)

    column = read(tmp_path).column("at")
    assert column.type == wanted
    assert column.cast(pa.timestamp("us")).to_pylist() == [NOON]


def test_a_value_of_another_type_is_refused_with_its_record_and_field(tmp_path: Path) -> None:
    """1.5 is not cut to 1."""
    harness = sink(tmp_path)

    with pytest.raises(UserFunctionError) as caught:
        harness.process((1, 0.5), (1.5, 0.5))
    harness.operator.close()

    assert "(1.5, 0.5)" in str(caught.value)
    assert "field 'user': 1.5 of type float is no int64" in str(caught.value.__cause__)


@pytest.mark.parametrize("wrong", ["ab", (1,), (1, 2, 3), None, 5], ids=repr)
def test_a_record_that_is_no_row_of_the_type_is_shown(tmp_path: Path, wrong: Any) -> None:
    harness = sink(tmp_path)

    with pytest.raises(UserFunctionError) as caught:
        harness.process((1, 0.5), wrong)
    harness.operator.close()

    assert repr(wrong) in str(caught.value)
    assert "no row of the fields user, amount" in str(caught.value.__cause__)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(FlowletError, match=r"operator 'Sink: Writer' \(subtask 3\) cannot write .*file/\.part-3"):
        sink(tmp_path / "file")

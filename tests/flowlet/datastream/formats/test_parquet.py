"""Results of a job as Parquet files, in PyFlink's words."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flowlet.common.typeinfo import RowTypeInfo, Types
from flowlet.datastream.connectors import BucketAssigner, FileSink
from flowlet.datastream.formats.parquet import ParquetBulkWriters, ParquetWriterFactory
from flowlet.errors import JobGraphError
from flowlet.testing import MiniCluster

COUNT = Types.ROW_NAMED(["word", "count"], [Types.STRING(), Types.LONG()])


def first(pair: tuple[str, int]) -> str:
    return pair[0]


@pytest.mark.slow
def test_a_job_writes_parquet_files(tmp_path: Path) -> None:
    folder = tmp_path / "counts"
    with MiniCluster(num_task_managers=2) as cluster:
        env = cluster.environment().set_parallelism(2)
        counts = env.from_collection([("to", 1), ("be", 1), ("to", 1)]).key_by(first).sum(1)
        builder = FileSink.for_bulk_format(str(folder), ParquetBulkWriters.for_row_type(COUNT))
        counts.sink_to(builder.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build())

        env.execute()

    assert all(path.name.startswith("part-") and path.suffix == ".parquet" for path in folder.iterdir())
    rows = pq.read_table(folder).to_pylist()
    assert sorted((row["word"], row["count"]) for row in rows) == [("be", 1), ("to", 1), ("to", 2)]


def test_a_tuple_type_has_columns_by_number() -> None:
    factory = ParquetBulkWriters.for_row_type(Types.TUPLE([Types.STRING(), Types.LONG()]))

    assert factory == ParquetWriterFactory(RowTypeInfo([Types.STRING(), Types.LONG()]), utc_timestamp=False)


@pytest.mark.parametrize(
    ("row_type", "message"),
    [
        (Types.LONG(), r"needs a type such as Types\.ROW_NAMED"),
        (Types.ROW_NAMED(["a"], [Types.PICKLED_BYTE_ARRAY()]), "field 'a' is .*, for which no Parquet column is known"),
    ],
    ids=str,
)
def test_what_has_no_columns_is_refused_when_the_job_is_built(row_type: Any, message: str) -> None:
    with pytest.raises(JobGraphError, match=message):
        ParquetBulkWriters.for_row_type(row_type)


@pytest.mark.parametrize(
    ("path", "factory"), [("", ParquetBulkWriters.for_row_type(COUNT)), ("out", COUNT)], ids=["path", "format"]
)
def test_a_sink_needs_a_folder_and_a_format(path: str, factory: Any) -> None:
    with pytest.raises(JobGraphError, match="a file sink"):
        FileSink.for_bulk_format(path, factory)

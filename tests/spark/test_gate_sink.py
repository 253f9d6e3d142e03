"""``GateSink``: rows of DataFrames and RDDs come out of a gate, each once; what does not fit is refused with its
column.
"""

import asyncio
import datetime
import decimal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from pyspark import TaskContext

from flowlet.common.time import Instant, Time
from flowlet.common.typeinfo import TypeInformation, Types
from flowlet.common.types import Row
from flowlet.datastream.async_data_stream import AsyncDataStream
from flowlet.ingest import GateNotFoundError, GateUnreachableError, PartitionOffer, open_gate
from flowlet.spark import GateSink, SchemaMismatchError, type_info_of
from tests.spark.conftest import (
    BOTH_WAYS,
    EXECUTORS,
    LOCAL,
    GateCluster,
    Write,
    into,
    stream_of,
    write_batches,
    write_to_its_end,
)
from tests.waiting import Stopwatch

BOTH = pytest.mark.parametrize("spark", [LOCAL, EXECUTORS], indirect=True)
ON_LOCAL = pytest.mark.parametrize("spark", [LOCAL], indirect=True)
PAIR = Types.TUPLE([Types.LONG(), Types.STRING()])
ROWS_DDL = (
    "id bigint, name string, real double, at timestamp, wall timestamp_ntz, day date, raw binary, flag boolean, "
    "small tinyint"
)
AT = datetime.datetime(2024, 7, 1, 12, 30, 0, 5, tzinfo=datetime.UTC)
WALL = datetime.datetime(2024, 7, 1, 23, 30)  # noqa: DTZ001 - a time on the wall
ROWS = [
    (2**62, "a\0b", -0.0, AT, WALL, WALL.date(), b"\0x", True, -128),
    (None,) * 9,
    (-1, "ä", float("inf"), AT, WALL, WALL.date(), b"", False, 127),
]


@BOTH
@BOTH_WAYS
def test_a_dataframe_comes_out_of_the_gate(spark: Any, cluster: GateCluster, write: Write) -> None:
    """A gate gives exact values of every column type that travels as a column, and points in time in UTC whatever the
    session's zone; batches give the very records that rows give, without a row.
    """
    df = spark.createDataFrame(ROWS, ROWS_DDL).repartition(2)

    with cluster.collect(type_info_of(df.schema), producers=2) as results:
        write(df, cluster)
        found = list(results)

    utc = AT.replace(tzinfo=None)
    wanted = [Row(*df.columns)(*(utc if value is AT else value for value in row)) for row in ROWS]
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))


@ON_LOCAL
def test_nested_columns_instants_and_decimals_come_out_as_well(spark: Any, cluster: GateCluster) -> None:
    declared = Types.ROW_NAMED(
        ["at", "price", "tags", "sizes", "address"],
        [
            Types.INSTANT(),
            Types.BIG_DEC(),
            Types.LIST(Types.STRING()),
            Types.MAP(Types.STRING(), Types.LONG()),
            address(),
        ],
    )
    row = (AT, decimal.Decimal("1.50"), ["a", None], {"x": 1}, ("Berlin", None))
    df = spark.createDataFrame(
        [row],
        "at timestamp, price decimal(12,2), tags array<string>, sizes map<string,bigint>, address "
        "struct<city:string,zip:int>",
    )

    with cluster.collect(declared, producers=None) as results:
        df.repartition(1).foreachPartition(into(cluster))
        write_batches(df.repartition(1), cluster)
        results.job_client.finish_gate("clicks").result()
        found = list(results)

    nested = Row(city="Berlin", zip=None)
    at = Instant(int(AT.timestamp()), AT.microsecond * 1000)
    wanted = Row(at=at, price=decimal.Decimal("1.50"), tags=["a", None], sizes={"x": 1}, address=nested)
    assert list(map(repr, found)) == [repr(wanted)] * 2


def address() -> TypeInformation:
    return Types.ROW_NAMED(["city", "zip"], [Types.STRING(), Types.INT()])


@BOTH
def test_an_rdd_comes_out_in_the_order_of_its_partitions(spark: Any, cluster: GateCluster) -> None:
    """An RDD of tuples goes by position, and an empty partition counts as one."""
    rdd = spark.sparkContext.parallelize([(number, f"text {number}") for number in range(10_000)], 2).union(
        spark.sparkContext.parallelize([], 1)
    )

    with cluster.collect(PAIR, producers=3) as results:
        rdd.foreachPartition(into(cluster, chunk_rows=700))
        found = list(results)

    assert sorted(found) == [(number, f"text {number}") for number in range(10_000)]
    assert [pair for pair in found if pair[0] < 5_000] == [(number, f"text {number}") for number in range(5_000)]


processed: list[Any] = []


async def slowly(value: Any) -> list[Any]:
    for _ in range(20):
        await asyncio.sleep(0)
    return [value]


def note(value: Any) -> bool:
    processed.append(value)
    return False


@BOTH
def test_a_write_returns_when_operators_and_sinks_of_other_tasks_have_processed_every_row(
    spark: Any, cluster: GateCluster
) -> None:
    """A write waits for an async operator behind the gate, and for a stand-in of a sink behind an exchange."""
    processed.clear()
    gate = cluster.environment().from_remote_gate("clicks", type_info=Types.ROW_NAMED(["id"], [Types.LONG()]))
    answers = AsyncDataStream.unordered_wait(gate, slowly, Time.seconds(100), 1_000)
    answers.rebalance().map(lambda row: row["id"]).filter(note).print()
    client = gate.get_execution_environment().execute_async()
    df = spark.range(0, 300, numPartitions=2)

    df.foreachPartition(into(cluster))
    found = list(processed)

    assert sorted(found) == list(range(300))
    client.cancel()


@ON_LOCAL
def test_single_values_need_no_tuple(spark: Any, cluster: GateCluster) -> None:
    with cluster.collect(Types.STRING(), producers=1) as results:
        spark.sparkContext.parallelize(["a", "b", None], 1).foreachPartition(into(cluster))

        assert list(results) == ["a", "b", None]


@ON_LOCAL
def test_epochs_of_a_stream_are_pushed_inside_foreach_batch(spark: Any, cluster: GateCluster, tmp_path: Any) -> None:
    """A sink serves all epochs: each partition of each epoch is an offer of its own."""
    lines = stream_of(spark, tmp_path, "line 0\n", "line 1\n", "line 2\n")

    with cluster.collect(Types.STRING(), producers=None) as results:
        sink = into(cluster)
        write_to_its_end(lines.writeStream.foreachBatch(lambda df, _: df.foreachPartition(sink)), tmp_path)
        results.job_client.finish_gate("clicks").result()
        found = list(results)

    assert sorted(found) == ["line 0", "line 1", "line 2"]


@ON_LOCAL
def test_a_worker_keeps_one_connection_and_one_thread_for_all_its_tasks(spark: Any, cluster: GateCluster) -> None:
    """Spark uses its Python workers again; their connection and thread are still there."""

    def push_and_look(sink: GateSink) -> Any:
        def push(rows: Iterable[Any]) -> Iterator[tuple[int, list[str], int]]:
            import os
            from pathlib import Path

            sink(rows)
            threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("flowlet")]
            sockets = [
                fd
                for fd in Path("/proc/self/fd").iterdir()
                if fd.is_symlink() and os.readlink(fd).startswith("socket:")
            ]
            yield os.getpid(), threads, len(sockets)

        return push

    with cluster.collect(Types.LONG(), producers=None) as results:
        sink = into(cluster)
        seen = [
            spark.sparkContext.parallelize(range(9), 3).mapPartitions(push_and_look(sink)).collect() for _ in range(3)
        ]
        results.job_client.finish_gate("clicks").result()
        found = list(results)

    by_pid: dict[int, list[tuple[list[str], int]]] = {}
    for job in seen:
        for pid, threads, num_sockets in job:
            by_pid.setdefault(pid, []).append((threads, num_sockets))
    assert len(by_pid) < 9, "no worker was used again"
    assert {tuple(threads) for tasks in by_pid.values() for threads, _ in tasks} == {("flowlet-producer",)}
    assert all(len({num_sockets for _, num_sockets in tasks}) == 1 for tasks in by_pid.values())
    assert sorted(found) == sorted([*range(9)] * 3)


@BOTH
@pytest.mark.parametrize(
    ("columns", "of_columns", "of_rows"),
    [
        (
            "id bigint, amount double",
            "column 'amount' is double, gate 'clicks' takes bigint: cast it",
            r"column 'amount': 0\.5 of type float is no int64, which gate 'clicks' takes there",
        ),
        (
            "id bigint, total double",
            "column 'amount' is missing: gate 'clicks' takes id, amount; there are id, total",
            "column 'amount' is missing: gate 'clicks' takes id, amount; there are id, total",
        ),
    ],
    ids=["type", "name"],
)
def test_a_column_that_does_not_fit_is_named(
    spark: Any, cluster: GateCluster, columns: str, of_columns: str, of_rows: str
) -> None:
    """A misfit column is named in the driver where the schema is given, before a task runs where Spark knows it, else
    by the first value in a worker.
    """
    declared = Types.ROW_NAMED(["id", "amount"], [Types.LONG(), Types.LONG()])
    df = spark.createDataFrame([(1, 0.5)], columns)

    with cluster.collect(declared, producers=None):
        with pytest.raises(SchemaMismatchError, match=of_columns):
            into(cluster, schema=df.schema)
        with pytest.raises(Exception, match=of_columns):
            write_batches(df, cluster)
        with pytest.raises(Exception, match=of_rows):
            df.foreachPartition(into(cluster))


def by_writer(cluster: GateCluster) -> Any:
    """Write as a program that has its own idea of a partition."""
    address, secret_file = cluster.address, cluster.secret_file

    def push(records: Iterable[Any]) -> None:
        context = TaskContext.get()
        assert context is not None
        offer = PartitionOffer("own", context.partitionId(), context.attemptNumber())
        with open_gate("clicks", jobmanager=address, secret_file=secret_file).open_partition(offer) as writer:
            writer.write_records(list(records))
            writer.finish()

    return push


@BOTH
@pytest.mark.parametrize(
    ("push", "message"),
    [
        (
            into,
            r"column 'f1': 42 of type int is no string, which gate 'clicks' takes there \(row 42 of the partition\)",
        ),
        (by_writer, r"record 42: [^\n]*42 is of type int, not String; gate 'clicks' "),
    ],
    ids=["sink", "writer"],
)
def test_the_first_wrong_record_is_named(
    spark: Any, cluster: GateCluster, push: Callable[[GateCluster], Any], message: str
) -> None:
    """The first wrong record is named by its position, and where a sink writes, by column and value, too; and its
    partition does not count.
    """
    records: list[Any] = [(number, "text") for number in range(100)]
    wrong = [*records[:42], (42, 42), *records[43:], (100, 100)]

    with cluster.collect(PAIR, producers=1) as results:
        with pytest.raises(Exception, match=message):
            spark.sparkContext.parallelize(wrong, 1).foreachPartition(push(cluster))
        spark.sparkContext.parallelize(records, 1).foreachPartition(into(cluster))
        assert list(results) == records


@BOTH
def test_fields_of_structs_are_found_by_name(spark: Any, cluster: GateCluster) -> None:
    """Fields are found by name, with rows and with batches: the values of a and b, which were swapped, are right."""
    declared = Types.ROW_NAMED(["pair"], [Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.LONG()])])
    df = spark.sql("select named_struct('b', 2L, 'a', 1L) as pair").coalesce(1)

    with cluster.collect(declared, producers=1) as results:
        df.foreachPartition(into(cluster))
        assert list(results) == [Row(pair=Row(a=1, b=2))]
    with cluster.collect(declared, producers=1) as results:
        write_batches(df, cluster)
        assert list(results) == [Row(pair=Row(a=1, b=2))]


@BOTH
def test_foreach_is_refused_by_name(spark: Any, cluster: GateCluster) -> None:
    """``foreach`` is refused: it would write the fields of each row as records."""
    declared = Types.ROW_NAMED(["id", "amount"], [Types.LONG(), Types.LONG()])
    df = spark.createDataFrame([(1, 2)], "id bigint, amount bigint").coalesce(1)

    with cluster.collect(declared, producers=1) as results:
        for frame in (df, df.rdd):
            with pytest.raises(
                Exception, match=r"got Row\(id=1, amount=2\); foreach\(\) calls it with each row: use foreachPartition"
            ):
                frame.foreach(into(cluster))
        df.foreachPartition(into(cluster))
        assert list(results) == [Row(id=1, amount=2)]


@BOTH
def test_foreach_of_a_stream_is_refused_by_name(spark: Any, cluster: GateCluster, tmp_path: Path) -> None:
    """The query of a ``foreach`` ends with the reason, and nothing came out of the gate."""
    lines = stream_of(spark, tmp_path, "a line\n")

    with cluster.collect(Types.STRING(), producers=1) as results:
        query = lines.writeStream.foreach(into(cluster))
        with pytest.raises(
            Exception,
            match=r"got Row\(value='a line'\); foreach\(\) calls it with each row: .* foreachBatch for a stream",
        ):
            write_to_its_end(query, tmp_path)
        spark.sparkContext.parallelize(["another"], 1).foreachPartition(into(cluster))
        assert list(results) == ["another"]


@ON_LOCAL
def test_a_gate_that_nobody_declared_is_an_error_in_the_driver(spark: Any, cluster: GateCluster) -> None:
    with Stopwatch() as watch, pytest.raises(GateNotFoundError, match=f"'clicks' at JobManager {cluster.address}"):
        into(cluster)

    assert watch.seconds < 5


@ON_LOCAL
def test_a_jobmanager_that_is_not_there_is_an_error_in_the_driver(spark: Any, cluster: GateCluster) -> None:
    with (
        Stopwatch() as watch,
        pytest.raises(GateUnreachableError, match=r"gate 'clicks'.*JobManager 127\.0\.0\.1:1: Connection refused"),
    ):
        GateSink("clicks", jobmanager="127.0.0.1:1", secret_file=cluster.secret_file)

    assert watch.seconds < 5

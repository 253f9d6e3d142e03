"""``format("flowlet")``: found by itself, checked before anything runs, batches of columns from Spark to the gate."""

from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="needs the extra 'spark'")


from flowlet.common.typeinfo import Types
from flowlet.common.types import Row
from flowlet.datastream.functions import ProcessFunction
from flowlet.jm.gates import JobGate
from flowlet.spark import type_info_of
from tests.flowlet.ingest.conftest import collecting
from tests.spark.conftest import LOCAL, GateCluster, into, stream_of, write_batches, write_to_its_end
from tests.spark.test_gate_sink import AT
from tests.waiting import Stopwatch

ON_LOCAL = pytest.mark.parametrize("spark", [LOCAL], indirect=True)
SOON_S = 20.0  # a Python process for the planner is started


@ON_LOCAL
def test_a_gate_of_an_arrow_schema_takes_dataframes_and_rows(spark: Any, cluster: GateCluster) -> None:
    """A gate gives whole batches of exactly its schema; a column that is not of it is named before anything runs."""
    declared = pa.schema([("name", pa.large_string()), ("at", pa.timestamp("us", "UTC")), ("id", pa.int64())])
    df = spark.createDataFrame([(1, "a", AT), (2, None, None)], "id bigint, name string, at timestamp")

    with cluster.collect(Types.ARROW(declared), producers=None) as results:
        with pytest.raises(Exception, match="column 'id' is int, gate 'clicks' takes bigint"):
            write_batches(df.withColumn("id", df.id.cast("int")), cluster)
        write_batches(df.repartition(2), cluster)
        df.repartition(2).foreachPartition(into(cluster, schema=df.schema))
        results.job_client.finish_gate("clicks").result()
        found = list(results)

    assert {batch.schema for batch in found} == {declared}
    one, two = {"name": "a", "at": AT, "id": 1}, {"name": None, "at": None, "id": 2}
    assert sorted(pa.Table.from_batches(found).to_pylist(), key=lambda row: row["id"]) == [one, one, two, two]


@ON_LOCAL
def test_a_column_of_the_dataframe_is_the_event_time(spark: Any, cluster: GateCluster) -> None:
    """Event time is read from the column, whatever the session's zone, and whether rows or batches travel."""
    df = spark.createDataFrame([(1, AT)], "id bigint, at timestamp").coalesce(1)
    declared = type_info_of(df.schema)
    stream = cluster.environment().from_remote_gate("clicks", type_info=declared, event_time="at")

    with collecting(stream.process(TimestampOf())) as results:
        write_batches(df, cluster)
        df.foreachPartition(into(cluster))
        results.job_client.finish_gate("clicks").result()

        assert list(results) == [int(AT.timestamp() * 1000)] * 2


class TimestampOf(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield ctx.timestamp()


@ON_LOCAL
def test_large_partitions_come_in_order(spark: Any, cluster: GateCluster) -> None:
    """Partitions with more rows than an Arrow batch come in order."""
    df = spark.range(0, 50_000, 1, 2)

    with cluster.collect(Types.LONG(), producers=2) as results:
        write_batches(df, cluster)
        found = list(results)

    assert [number for number in found if number < 25_000] == list(range(25_000))
    assert [number for number in found if number >= 25_000] == list(range(25_000, 50_000))


@ON_LOCAL
def test_a_partition_without_rows_counts_as_one(spark: Any, cluster: GateCluster) -> None:
    with cluster.collect(Types.LONG(), producers=3) as results:
        write_batches(spark.range(0, 2, 1, 3), cluster)

        assert sorted(results) == [0, 1]


@ON_LOCAL
def test_a_gate_that_declares_nothing_gets_rows_with_names(spark: Any, cluster: GateCluster) -> None:
    with cluster.collect(Types.PICKLED_BYTE_ARRAY(), producers=1, allow_pickle=True) as results:
        write_batches(spark.range(0, 2, 1, 1).selectExpr("id", "array('a', null) AS tags"), cluster)

        assert list(results) == [Row(id=0, tags=["a", None]), Row(id=1, tags=["a", None])]


@ON_LOCAL
def test_a_stream_is_pushed_epoch_by_epoch(
    spark: Any, cluster: GateCluster, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each epoch has a writer, and so a token, of its own: a query outlives a token's day."""
    announced: list[str] = []
    monkeypatch.setattr(JobGate, "announce", lambda _self, job: announced.append(job))
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.txt").write_text(f"line {number}\n")
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(tmp_path / "in"))

    with cluster.collect(Types.STRING(), producers=None) as results:
        write_to_its_end(lines.writeStream.format("flowlet").options(**cluster.options()), tmp_path)
        results.job_client.finish_gate("clicks").result()
        found = list(results)

    assert sorted(found) == ["line 0", "line 1", "line 2"]
    assert len(set(announced)) >= 3  # Spark may plan an epoch twice


@ON_LOCAL
def test_the_epoch_of_a_stream_with_enough_partitions_ends_the_gate(
    spark: Any, cluster: GateCluster, tmp_path: Any
) -> None:
    """The process that commits an epoch commits what its tasks have pushed, not a write of its own."""
    lines = stream_of(spark, tmp_path, "".join(f"line {number}\n" for number in range(4))).repartition(2)

    with cluster.collect(Types.STRING(), producers=2) as results:
        write_to_its_end(lines.writeStream.format("flowlet").options(**cluster.options()), tmp_path)
        assert sorted(results) == [f"line {number}" for number in range(4)]


@ON_LOCAL
def test_a_stream_whose_job_was_cancelled_says_so(spark: Any, cluster: GateCluster, tmp_path: Any) -> None:
    """The error has the gate and the cause, although the process that aborts the epoch cannot find the gate either."""
    lines = stream_of(spark, tmp_path, "line\n")

    with cluster.collect(Types.STRING(), producers=None) as results:
        stream = lines.writeStream.format("flowlet").options(**cluster.options())
        query = stream.option("checkpointLocation", str(tmp_path / "out")).start()
        try:
            query.processAllAvailable()
            results.job_client.cancel().result()
            (tmp_path / "in" / "1.txt").write_text("line\n")
            with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's
                query.processAllAvailable()
        finally:
            query.stop()

    assert "gate 'clicks'" in str(caught.value)
    assert "cancel" in str(caught.value).lower()


@ON_LOCAL
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gate": ""}, r"needs option(\"gate\", ...)"),
        ({"gate": "clacks"}, "'clacks' at JobManager"),
        ({"jobmanager": "127.0.0.1:1"}, "nothing listens there; start a JobManager"),
        ({"timeoutSeconds": "soon"}, "option timeoutSeconds is 'soon'"),
        ({}, "column 'id' is bigint, gate 'clicks' takes string: cast it"),
    ],
    ids=["no name", "no gate", "no JobManager", "no number", "column"],
)
def test_what_cannot_work_fails_before_a_task_runs(
    spark: Any, cluster: GateCluster, options: dict[str, str], message: str
) -> None:
    """A hopeless write fails with its reason, and soon: most of the time is Spark's own."""
    declared = Types.ROW_NAMED(["id"], [Types.STRING()])

    with cluster.collect(declared, producers=None), Stopwatch() as watch, pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's
        write_batches(spark.range(1), cluster, **options)

    assert message.replace("\\", "") in str(caught.value)
    assert watch.seconds < SOON_S


@ON_LOCAL
def test_a_gate_is_not_overwritten(spark: Any, cluster: GateCluster) -> None:
    with pytest.raises(Exception, match="cannot be overwritten"):
        spark.range(1).write.format("flowlet").mode("overwrite").options(**cluster.options()).save()

"""Spark's part: clean, join and order the raw files, and compute the figures that the flowlet job computes, too.

Side: the driver, except ``paced``, which runs in Spark's Python workers.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from examples.spark_clickstream.data import DAY_US, START_US
from examples.spark_clickstream.job import BURST_CLICKS, BURST_US, CLICK

ROWS_PER_PAUSE = 100
# The columns that are pushed, in the order of the gate's fields; the worker adds sent_ns.
COLUMNS = ("user", "at_us", "event", "kind", "cents", "country")


def clean_events(spark: SparkSession, raw: Path) -> DataFrame:
    """Return clicks and purchases of known users, without duplicates, at possible times."""
    users = spark.read.parquet(str(raw / "users")).dropDuplicates(["user"])
    clicks = spark.read.parquet(str(raw / "clicks")).withColumns(
        {"kind": F.lit(CLICK), "cents": F.lit(None).cast("bigint")}
    )
    purchases = spark.read.parquet(str(raw / "purchases")).where("cents > 0").withColumn("kind", F.lit("purchase"))
    events = clicks.drop("page").unionByName(purchases).withColumn("at_us", F.unix_micros("at"))
    in_time = F.col("at_us").between(START_US, START_US + DAY_US - 1)
    return (
        events.where(in_time & F.col("user").isNotNull()).dropDuplicates(["event"]).join(users, "user").select(*COLUMNS)
    )


def in_order(events: DataFrame, num_partitions: int) -> DataFrame:
    """Put all events of a user into one partition, and order each partition by time."""
    return events.repartition(num_partitions, "user").sortWithinPartitions("at_us", "event")


def paced(push: Callable[[Iterable[Any]], None], rows_per_s: float = 0.0) -> Callable[[Iterable[Any]], None]:
    """Wrap ``push`` so that it appends to each row the time at which the row is taken.

    ``rows_per_s``: per partition, as if people were clicking now; 0: as fast as the flowlet job accepts rows.  Then
        rows, and so alerts, wait in the buffers on the way.
    """

    def rows_with_time(rows: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        clock, start_s = time.time_ns, time.monotonic()
        for number, row in enumerate(rows):
            if rows_per_s and not number % ROWS_PER_PAUSE:
                time.sleep(max(0.0, start_s + number / rows_per_s - time.monotonic()))
            yield (*row, clock())

    def push_paced(rows: Iterable[Any]) -> None:
        push(rows_with_time(rows))

    return push_paced


def own_figures(events: DataFrame) -> DataFrame:
    """Return the figures that the flowlet job must compute for each event."""
    so_far = (
        Window.partitionBy("user").orderBy("at_us", "event").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )

    def total(value: Column) -> Column:
        return F.sum(value).over(so_far)

    is_click = (F.col("kind") == CLICK).cast("bigint")
    return events.select(
        "user",
        "event",
        "country",
        total(is_click).alias("clicks"),
        total(1 - is_click).alias("purchases"),
        total(F.coalesce("cents", F.lit(0))).alias("revenue_cents"),
    )


def own_alerts(events: DataFrame) -> DataFrame:
    """Return the clicks that end a run of ``BURST_CLICKS`` within ``BURST_US``: user, event, microseconds."""
    in_time = Window.partitionBy("user").orderBy("at_us", "event")
    took_us = F.col("at_us") - F.lag("at_us", BURST_CLICKS - 1).over(in_time)
    return (
        events.where(F.col("kind") == CLICK)
        .select("user", "event", took_us.alias("took_us"))
        .where(F.col("took_us") <= BURST_US)
    )


def differences(expected: DataFrame, found: DataFrame) -> DataFrame:
    """Return the rows that only one of the two has, or has more often, with the side that has them."""
    missing = expected.exceptAll(found).select(F.lit("missing").alias("what"), "*")
    return missing.unionByName(found.exceptAll(expected).select(F.lit("unexpected").alias("what"), "*"))

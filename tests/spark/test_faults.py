"""Tasks, workers and jobs that end in the middle: their rows are pushed again, or the error names the gate."""

import itertools
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from pyspark import TaskContext

from flowlet.common.typeinfo import Types
from flowlet.datastream.data_stream import CloseableIterator
from flowlet.spark import GateSink
from tests.flowlet.ingest.conftest import collecting, write_secret
from tests.integration.test_frozen_task_manager import PRODUCER_FAILS_WITHIN_S, cluster_with_gate
from tests.spark.conftest import EXECUTORS, LOCAL, GateCluster, into, write_batches
from tests.waiting import Stopwatch, spin_until

ON_LOCAL = pytest.mark.parametrize("spark", [LOCAL], indirect=True)
ON_EXECUTORS = pytest.mark.parametrize("spark", [EXECUTORS], indirect=True)
NUM_ROWS = 20_000
BEFORE = 5_000  # so many rows of the second partition are pushed before it ends
MANY_ROWS = 10_000_000  # seconds' worth of pushing


def raises() -> None:
    raise ValueError("in the middle of a partition")


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def ending(end: Callable[[], None], rows: Iterable[int]) -> Iterator[int]:
    """The rows; but the first attempt of the second partition ends on the way."""
    context = TaskContext.get()
    is_first = context is not None and context.partitionId() == 1 and context.attemptNumber() == 0
    for count, row in enumerate(rows):
        if is_first and count == BEFORE:
            end()
        yield row


@ON_EXECUTORS
@pytest.mark.parametrize("end", [raises, is_killed], ids=["the task fails", "the worker is killed"])
def test_a_partition_that_ended_in_the_middle_is_pushed_again(
    spark: Any, cluster: GateCluster, end: Callable[[], None]
) -> None:
    """A partition's second attempt is at least once: every row is there, twice at most what the first attempt had
    pushed; and the gate knows when it has all.
    """
    with cluster.collect(Types.LONG(), producers=2) as results:
        sink = into(cluster, chunk_rows=500)

        spark.sparkContext.parallelize(range(NUM_ROWS), 2).foreachPartition(lambda rows: sink(ending(end, rows)))
        found = Counter(results)

    assert sorted(found) == list(range(NUM_ROWS))
    again = {row for row, count in found.items() if count > 1}
    assert again <= set(range(NUM_ROWS // 2, NUM_ROWS // 2 + BEFORE))
    assert max(found.values()) <= 2


def cancel_when_it_reads(results: CloseableIterator) -> None:
    """Push in the main thread, and cancel in another: Spark finds Python data sources only in threads in which the
    session is the active one.
    """

    def reads() -> bool:
        subtasks = results.job_client.metrics()["vertices"][0]["subtasks"]
        return any(each["metrics"]["num_bytes_in_remote"] for each in subtasks)

    spin_until(reads, "a record that comes in")
    results.job_client.cancel()


def endless_rows(spark: Any, cluster: GateCluster) -> None:
    sink = into(cluster)
    spark.sparkContext.parallelize(range(2), 2).foreachPartition(lambda _: sink(itertools.count()))


def many_batches(spark: Any, cluster: GateCluster) -> None:
    write_batches(spark.range(0, MANY_ROWS, 1, 2), cluster)


@ON_LOCAL
@pytest.mark.parametrize("push", [endless_rows, many_batches], ids=["rows", "batches"])
def test_a_job_that_is_cancelled_fails_the_spark_tasks_with_the_name_of_the_gate(
    spark: Any, cluster: GateCluster, push: Callable[[Any, GateCluster], None]
) -> None:
    """A cancelled job fails Spark tasks while they push.  Batches end: Spark hears of a Python worker's error when it
    has given it all of its input.
    """
    stream = cluster.environment().from_remote_gate("clicks", type_info=Types.LONG())

    with collecting(stream.filter(lambda _: False)) as results:
        canceller = threading.Thread(target=cancel_when_it_reads, args=(results,), name="canceller")
        canceller.start()
        with pytest.raises(Exception, match="gate 'clicks'"):
            push(spark, cluster)
        canceller.join()


def stopping(rows: Iterable[int], pid: int) -> Iterator[int]:
    """Yield the rows; on the way the process stands still, with its acknowledged rows and its connections."""
    for count, row in enumerate(rows):
        if count == BEFORE:
            os.kill(pid, signal.SIGSTOP)
        yield row


@pytest.mark.long
@ON_LOCAL
@pytest.mark.parametrize("num_rows", [BEFORE + 1, None], ids=["at the end", "without credit"])
def test_the_task_of_a_task_manager_that_stands_still_is_told(spark: Any, tmp_path: Path, num_rows: int | None) -> None:
    """A task of a TaskManager that stands still is told within 30 s, whether it waits for the end of its partition or
    for credit.
    """
    with cluster_with_gate() as (cluster, _):
        (pid,) = cluster.pids()
        sink = GateSink(
            "clicks",
            jobmanager=f"{cluster.host}:{cluster.port}",
            secret_file=write_secret(cluster.secret, tmp_path),
            chunk_rows=500,
        )
        rows = spark.sparkContext.parallelize([0], 1)

        def push(_: Any) -> None:
            sink(stopping(itertools.count() if num_rows is None else range(num_rows), pid))

        with Stopwatch() as watch, pytest.raises(Exception, match=r"GateLostError[^\n]*gate 'clicks'"):
            rows.foreachPartition(push)

    assert watch.seconds < PRODUCER_FAILS_WITHIN_S

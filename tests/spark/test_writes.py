"""Promises of a Spark write that goes wrong, for rows and for batches, on threads and on executors."""

import os
import pickle
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from pyspark import TaskContext

from flowlet.common.typeinfo import Types
from flowlet.ingest import close_producers
from flowlet.spark import register
from flowlet.tm.task_executor import TaskExecutorConfig
from netstack.config import NetstackConfig
from tests.flowlet.ingest.conftest import collecting, write_secret
from tests.spark.conftest import BOTH_WAYS, EXECUTORS, LOCAL, GateCluster, Write, into, write_batches

pytestmark = pytest.mark.long

# On executors, too, by ``make test-spark-cluster``: each of these takes some ten seconds there.
ON_BOTH = pytest.mark.parametrize("spark", [LOCAL, EXECUTORS], indirect=True)
# On local[2] the first failure of a task ends its Spark job, whatever spark.task.maxFailures says; the second number is
# what counts there.
WHERE_TASKS_ARE_TRIED_AGAIN = pytest.mark.parametrize("spark", ["local[2,4]", EXECUTORS], indirect=True)
NUM_ROWS = 1_000


def numbers(spark: Any, *, is_broken: bool = False) -> Any:
    """Return numbers in two partitions; the last row of a broken one cannot be computed."""
    last = "cast(raise_error('broken') as bigint)" if is_broken else "id"
    return spark.range(0, NUM_ROWS, 1, 2).selectExpr(f"if(id = {NUM_ROWS - 1}, {last}, id) AS id")


def raise_at_last(row: Any) -> Any:
    if row.id == NUM_ROWS - 1:
        raise ValueError("broken")
    return row


@ON_BOTH
def test_rows_that_failed_in_python_and_are_pushed_again_are_all_there(spark: Any, cluster: GateCluster) -> None:
    """Rows that failed in Python and are pushed again are all there.  The JVM's failure looks to Python like a whole
    end of the rows (docs/remote-gates.md).
    """
    with cluster.collect(Types.LONG(), producers=2) as results:
        with pytest.raises(Exception, match="broken"):
            numbers(spark).rdd.map(raise_at_last).foreachPartition(into(cluster))
        numbers(spark).foreachPartition(into(cluster))
        found = Counter(results)

    assert sorted(found) == list(range(NUM_ROWS))


@ON_BOTH
def test_a_write_that_failed_and_is_run_again_loses_no_row(spark: Any, cluster: GateCluster) -> None:
    """Partitions of the failed write do not count: the gate ends with the second write, when that is whole."""
    with cluster.collect(Types.LONG(), producers=2) as results:
        with pytest.raises(Exception, match="broken"):
            write_batches(numbers(spark, is_broken=True), cluster)
        write_batches(numbers(spark), cluster)
        found = Counter(results)

    assert sorted(found) == list(range(NUM_ROWS))
    assert found[NUM_ROWS - 1] == 1


@WHERE_TASKS_ARE_TRIED_AGAIN
def test_a_partition_whose_worker_died_when_it_was_counted_is_not_pushed_again(
    spark: Any, cluster: GateCluster
) -> None:
    """Spark has not heard that the task was done and runs it again, but the partition is not pushed again."""
    with cluster.collect(Types.LONG(), producers=2) as results:
        sink = into(cluster)

        def push_and_die(rows: Iterable[int]) -> None:
            sink(rows)
            context = TaskContext.get()
            assert context is not None
            if context.partitionId() == 1 and context.attemptNumber() == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        spark.sparkContext.parallelize(range(NUM_ROWS), 2).foreachPartition(push_and_die)

        assert sorted(results) == list(range(NUM_ROWS))


@pytest.fixture
def narrow_cluster(spark: Any, tmp_path: Path) -> Iterator[GateCluster]:
    """Yield a cluster whose gates take one producer at a time."""
    config = TaskExecutorConfig(network=NetstackConfig(max_producers_per_gate=1))
    with GateCluster(num_task_managers=1, config=config) as cluster:
        assert cluster.target.secret is not None
        cluster.secret_file = write_secret(cluster.target.secret, tmp_path)
        yield cluster
        close_producers()


@ON_BOTH
def test_a_pool_of_threads_waits_for_the_gate_and_for_room(spark: Any, narrow_cluster: GateCluster) -> None:
    """A pool of threads waits, although two writes at once have twice the tasks that the gate takes; each thread must
    have the session made known to it.
    """

    def write(gate: str) -> None:
        write_batches(numbers(spark), narrow_cluster, gate=gate, waitForGate="60", waitForRoom="60")

    gates = ("clicks", "views")
    with ThreadPoolExecutor(2, initializer=register, initargs=(spark,)) as pool:
        writes = [pool.submit(write, gate) for gate in gates]
        env = narrow_cluster.environment()
        streams = [env.from_remote_gate(gate, type_info=Types.LONG(), producers=2) for gate in gates]
        with collecting(streams[0].union(streams[1])) as results:
            found = Counter(results)
        for each in writes:
            each.result()

    assert found == dict.fromkeys(range(NUM_ROWS), 2)


@ON_BOTH
def test_what_waits_too_long_says_for_what(spark: Any, cluster: GateCluster) -> None:
    with pytest.raises(Exception, match=rf"gate 'clicks' did not appear at JobManager {cluster.address} within 0.1 s"):
        write_batches(numbers(spark), cluster, waitForGate="0.1")


@ON_BOTH
@BOTH_WAYS
def test_the_cause_of_a_failed_job_is_in_the_error_of_the_write(spark: Any, cluster: GateCluster, write: Write) -> None:
    gate = cluster.environment().from_remote_gate("clicks", type_info=Types.LONG())

    with (
        collecting(gate.map(lambda number: 1 // (number - 7))),
        pytest.raises(Exception, match=r"gate 'clicks'[^\n]*ZeroDivisionError[^\n]*subtask 0"),
    ):
        write(numbers(spark), cluster)


@ON_BOTH
def test_a_sink_takes_a_new_token_into_the_workers_when_its_own_is_old(spark: Any, cluster: GateCluster) -> None:
    """A sink takes a new token with it whenever Spark pickles it; neither the file of the secret nor the way to it goes
    along.
    """
    with cluster.collect(Types.LONG(), producers=2) as results:
        sink = into(cluster)
        young = pickle.loads(pickle.dumps(sink))
        old = replace(sink.description, expires_ms=sink.description.expires_ms - 13 * 3600 * 1000, token=b"old")
        sink.description = old

        data = pickle.dumps(sink)

        renewed = pickle.loads(data)
        assert str(cluster.secret_file).encode() not in data
        assert renewed.description.token not in (b"old", young.description.token)
        assert renewed.description.expires_ms >= young.description.expires_ms
        assert pickle.loads(pickle.dumps(renewed)).description == renewed.description

        sink.description = old  # no task could open the gate with it
        numbers(spark).foreachPartition(sink)
        assert sorted(results) == list(range(NUM_ROWS))

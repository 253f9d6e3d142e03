"""Spark writes into gates of jobs that take checkpoints: each row is in once, after any failure."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from pyspark import TaskContext

from flowlet.common.configuration import Configuration
from flowlet.common.typeinfo import Types
from flowlet.datastream.data_stream import CloseableIterator
from tests.spark.conftest import EXECUTORS, LOCAL, GateCluster, into, write_batches
from tests.waiting import PATIENCE_S

ON_LOCAL = pytest.mark.parametrize("spark", [LOCAL], indirect=True)
ON_EXECUTORS = pytest.mark.parametrize("spark", [EXECUTORS], indirect=True)
ROW = Types.ROW_NAMED(["id"], [Types.LONG()])
NUM_ROWS = 20_000
BEFORE = 5_000  # so many rows of the second partition are pushed before its worker ends

fails_at: set[int] = set()


def careful(row: Any) -> int:
    number = row[0]
    if number in fails_at:
        fails_at.remove(number)
        raise RuntimeError(f"it fails at {number}")
    return int(number)


def started(cluster: GateCluster, folder: Path, producers: int) -> tuple[list[int], threading.Thread]:
    """Start a job with checkpoints whose results a thread reads."""
    options = {
        "execution.checkpointing.dir": str(folder / "checkpoints"),
        "execution.checkpointing.interval": "100 ms",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "10",
        "restart-strategy.fixed-delay.delay": "10 ms",
    }
    env = cluster.environment()
    env.configure(Configuration.from_dict(options))
    gate = env.from_remote_gate("clicks", type_info=ROW, producers=producers)
    results = gate.map(careful, output_type=Types.LONG()).execute_and_collect()
    assert isinstance(results, CloseableIterator)
    found: list[int] = []

    def read() -> None:
        with results:
            found.extend(results)

    reader = threading.Thread(target=read, name="reader", daemon=True)
    reader.start()
    return found, reader


@ON_LOCAL
@pytest.mark.parametrize("form", ["data source", pytest.param("foreachPartition", marks=pytest.mark.long)])
def test_a_write_goes_on_when_the_job_starts_again(spark: Any, cluster: GateCluster, tmp_path: Path, form: str) -> None:
    """Spark's tasks try again inside one call: Spark sees no failure."""
    fails_at.update({3_000, 15_000})
    found, reader = started(cluster, tmp_path, producers=2)
    frame = spark.range(0, NUM_ROWS, 1, 2)

    if form == "data source":
        write_batches(frame, cluster)
    else:
        frame.foreachPartition(into(cluster, chunk_rows=500))
    reader.join(PATIENCE_S)

    assert not reader.is_alive()
    assert not fails_at
    assert Counter(found) == Counter(range(NUM_ROWS))


def dying(rows: Iterable[int]) -> Iterator[tuple[int]]:
    """The worker of the second partition is killed on the way, twice."""
    context = TaskContext.get()
    dies = context is not None and context.partitionId() == 1 and context.attemptNumber() < 2
    for count, row in enumerate(rows):
        if dies and count == BEFORE:
            os.kill(os.getpid(), signal.SIGKILL)
        yield (row,)


@ON_EXECUTORS
def test_a_task_that_is_tried_again_brings_only_what_is_not_in(
    spark: Any, cluster: GateCluster, tmp_path: Path
) -> None:
    """A task's rows come from a range, so each attempt has equal rows; the job fails as well."""
    fails_at.update({3_000, 15_000})
    found, reader = started(cluster, tmp_path, producers=2)
    sink = into(cluster, chunk_rows=500)

    spark.sparkContext.parallelize(range(NUM_ROWS), 2).foreachPartition(lambda rows: sink(dying(rows)))
    reader.join(PATIENCE_S)

    assert not reader.is_alive()
    assert not fails_at
    assert Counter(found) == Counter(range(NUM_ROWS))

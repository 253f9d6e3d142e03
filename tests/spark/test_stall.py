"""A consumer that stands still for half a minute stops Spark's tasks; no queue grows, a warning says why, and then all
rows arrive.
"""

import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from bench.cluster import Cluster
from flowlet.common import Configuration
from flowlet.common.typeinfo import Types
from flowlet.datastream import CloseableIterator, StreamExecutionEnvironment
from flowlet.ingest import close_producers
from flowlet.spark import GateSink
from tests.spark.conftest import LOCAL
from tests.waiting import PATIENCE_S, spin_until

ROW = Types.TUPLE([Types.LONG(), Types.STRING()])
NUM_ROWS = 400_000
TEXT = "x" * 200  # 80 MB in all: more than all buffers and sockets on the way hold
STALL_S = 30.0
SETTLE_S = 8.0  # of these, until what has room is full
MAX_GROWTH_BYTES = 16 << 20


class Door:
    """A function of the job: the first record waits until the test holds the named pipe open."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._is_open = False

    def __call__(self, record: tuple[int, str]) -> tuple[int, int]:
        if not self._is_open:
            self._file.open("rb").close()
            self._is_open = True
        return record[0], len(record[1])


def pushing(sink: GateSink, folder: Path) -> Any:
    """Push from a worker, and say who it is, and where its warnings go."""

    def push(rows: Iterable[Any]) -> None:
        import structlog

        log = (folder / f"worker-{os.getpid()}").open("a", buffering=1)
        structlog.configure(
            processors=[structlog.processors.LogfmtRenderer()], logger_factory=structlog.WriteLoggerFactory(log)
        )
        sink((row, TEXT) for row in rows)

    return push


@contextmanager
def in_background(action: Any) -> Iterator[threading.Thread]:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            failures.append(error)

    thread = threading.Thread(target=run, name="push")
    thread.start()
    yield thread
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "the Spark job does not end"
    if failures:
        raise failures[0]


@pytest.mark.long
@pytest.mark.parametrize("spark", [LOCAL], indirect=True)
def test_a_consumer_that_stands_still_stops_spark_and_nothing_grows(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory of both sides grows by at most 16 MiB; a warning names the gate after 10 s; every row arrives once in the
    end.
    """
    door, workers = tmp_path / "door", tmp_path / "workers"
    workers.mkdir()
    os.mkfifo(door)
    with Cluster(tmp_path, num_task_managers=1) as cluster:
        monkeypatch.setenv("FLOWLET_SECRET_FILE", str(cluster.secret_file))
        results = collect(cluster.address, door)
        rdd = spark.sparkContext.parallelize(range(NUM_ROWS), 2)
        action = pushing(GateSink("clicks", jobmanager=cluster.address), workers)
        with results, in_background(lambda: rdd.foreachPartition(action)) as thread:
            try:
                samples = watch(cluster.task_managers[0].pid, workers)
                assert thread.is_alive(), "Spark pushed everything, although nobody read"
            finally:
                opened = os.open(door, os.O_RDWR)  # waits for nobody
            try:
                found = list(results)
            finally:
                os.close(opened)
        close_producers()

    assert sorted(found) == [(number, len(TEXT)) for number in range(NUM_ROWS)]
    assert {
        name: max(values) - min(values)
        for name, values in samples.items()
        if max(values) - min(values) > MAX_GROWTH_BYTES
    } == {}
    for log in workers.iterdir():
        # Credit, or the job.
        warnings = [line for line in log.read_text().splitlines() if "a producer waits for" in line]
        assert len(warnings) == 1, "once per stall"
        assert "gate 'clicks'" in warnings[0]


def collect(jobmanager: str, door: Path) -> CloseableIterator:
    configuration = Configuration()
    configuration.set_string("flowlet.jobmanager", jobmanager)
    env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(1)
    results = env.from_remote_gate("clicks", type_info=ROW, producers=2).map(Door(door)).execute_and_collect()
    assert isinstance(results, CloseableIterator)
    return results


def watch(task_manager: int, workers: Path) -> dict[str, list[int]]:
    """Record the memory of the TaskManager and of both workers, twice a second while all stand still."""
    tick = threading.Event()
    spin_until(lambda: len(list(workers.iterdir())) >= 2, "the start of Spark's tasks")
    end = time.monotonic() + STALL_S
    tick.wait(SETTLE_S)
    processes = {path.name: psutil.Process(int(path.name.partition("-")[2])) for path in workers.iterdir()}
    processes["TaskManager"] = psutil.Process(task_manager)
    samples: dict[str, list[int]] = {name: [] for name in processes}
    while time.monotonic() < end:
        for name, process in processes.items():
            samples[name].append(process.memory_info().rss)
        tick.wait(0.5)
    return samples

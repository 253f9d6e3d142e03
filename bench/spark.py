"""Rows per second out of Spark: into remote gates, and where they could go instead.

Side:     any.
Work:     2 M rows (long, string, double, timestamp) of a cached DataFrame, 2 partitions, ``local[2]``; batches of
          10,000 rows, which is Spark's default.  The gates belong to jobs that discard, on one TaskManager process;
          they run as long as the case.
Rate:     rows / time of the Spark action, on the driver's clock.  ``finish`` is part of it: every row was processed by
          the gate's job.
Beside:   ``noop`` is what Spark needs by itself; ``count rows`` a ``foreachPartition`` that only counts, ``bare
          socket`` a ``mapInArrow`` that writes the very batches to a socket which another process empties.
Ratios:   round by round: the data source to the bare socket, ``GateSink`` to counting.
Proof:    in the end each gate's job has had every row of every run once, by their number and the sum of their ids.
"""

import importlib.util
import os
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.cluster import Cluster, Process
from bench.jobs.pipeline import Run, into_operator
from bench.jobs.summed import SummingSink, check_summed
from bench.load import ForeignLoad
from bench.report import Result
from bench.rounds import Contender, run_rounds, tell
from flowlet.common import Configuration
from flowlet.common.job_client import JobClient
from flowlet.common.typeinfo import TypeInformation
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.ingest import close_producers

NUM_ROWS: Final = 2_000_000
QUICK_ROWS: Final = 20_000
NUM_PARTITIONS: Final = 2
ROW_GATE, ARROW_GATE = "rows", "batches"
NOOP, SOCKET, ARROW = "noop", "mapInArrow bare socket", "format flowlet"
COUNT, ROWS = "foreachPartition count rows", "foreachPartition GateSink"
RATIOS: Final = ((ARROW, SOCKET), (ROWS, COUNT))
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "OFF",
}
# Empties every connection, one after the other, and prints the number of bytes.
_DRAIN: Final = """
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
def drain(connection):
    buffer = bytearray(1 << 20)
    while connection.recv_into(buffer):
        pass
    connection.sendall(b".")
    connection.close()
while True:
    threading.Thread(target=drain, args=(server.accept()[0],), daemon=True).start()
"""


def run(num_runs: int, *, quick: bool = False) -> list[Result]:
    """Measure all five in turns; return no results where Spark is not installed."""
    if (missing := why_missing()) is not None:
        tell(f"spark is left out: {missing}")
        return []
    from pyspark.sql import SparkSession

    num_rows = QUICK_ROWS if quick else NUM_ROWS
    root = Path(__file__).resolve().parents[1]
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    os.environ["PYTHONPATH"] = os.pathsep.join([str(root), str(root / "flowlet" / "spark" / "discovery")])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flowlet-bench-")))
        cluster = stack.enter_context(Cluster(folder, num_task_managers=1, slots=2))
        os.environ |= cluster.environment
        builder = SparkSession.builder.master(f"local[{NUM_PARTITIONS}]")
        for name, value in _SETTINGS.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        stack.callback(spark.stop)
        stack.callback(close_producers)
        df = cached_rows(spark, num_rows)
        port = drain_port(stack, folder)
        gates = start_gates(stack, cluster.address, df, folder)
        contenders = [
            Contender(name, timed(action, num_rows)) for name, action in actions(df, cluster.address, port).items()
        ]
        for contender in contenders:  # Python workers, connections, and the JVM's compiler
            contender.run()
        runs = run_rounds(contenders, num_runs)
        for gate, job in gates.items():
            job.finish_gate(gate).result()
            job.get_job_execution_result().result()
            check_summed(folder / gate, (num_runs + 1) * num_rows, (num_runs + 1) * (num_rows * (num_rows - 1) // 2))
    return figures(runs, num_rows)


def why_missing() -> str | None:
    """Return what is not installed; None if it can run."""
    if importlib.util.find_spec("pyspark") is None:
        return "there is no pyspark: pip install 'flowlet[spark]'"
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        return "there is no java"
    return None


def cached_rows(spark: Any, num_rows: int) -> Any:
    """Return the DataFrame, computed."""
    from pyspark.sql import functions

    key = functions.concat(functions.lit("key-"), (functions.col("id") % 1000).cast("string"))
    df = spark.range(0, num_rows, 1, NUM_PARTITIONS).select(
        "id", key.alias("k"), (functions.col("id") * 0.5).alias("v"), functions.timestamp_seconds("id").alias("ts")
    )
    df = df.cache()
    df.count()
    return df


def start_gates(stack: ExitStack, jobmanager: str, df: Any, folder: Path) -> dict[str, JobClient]:
    """Start two jobs that sum their input, each into a folder with its gate's name."""
    from flowlet.spark import type_info_of

    for gate in (ROW_GATE, ARROW_GATE):
        (folder / gate).mkdir()
    return {
        gate: start_summing(stack, gate, jobmanager, type_info_of(df.schema), folder / gate)
        for gate in (ROW_GATE, ARROW_GATE)
    }


def start_summing(stack: ExitStack, gate: str, jobmanager: str, type_info: TypeInformation, folder: Path) -> JobClient:
    """Return a running job, gate and sink in one task."""
    configuration = Configuration()
    configuration.set_string("flowlet.jobmanager", jobmanager)
    env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(1)
    into_operator(env.from_remote_gate(gate, type_info=type_info), "summing sink", partial(SummingSink, folder))
    stack.callback(env.close)
    return env.execute_async(gate)


def drain_port(stack: ExitStack, folder: Path) -> int:
    """Return the port of a new process that empties its connections."""
    process = stack.enter_context(Process([sys.executable, "-c", _DRAIN], log=folder / "drain.log"))
    return int(process.wait_for_line(r"^(\d+)$").group(1))


def actions(df: Any, jobmanager: str, port: int) -> dict[str, Callable[[], None]]:
    """Return the actions that are measured, by name."""
    from flowlet.spark import GateSink

    def noop(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def data_source() -> None:
        df.write.format("flowlet").mode("append").option("gate", ARROW_GATE).option("jobmanager", jobmanager).save()

    return {
        NOOP: lambda: noop(df),
        COUNT: lambda: df.foreachPartition(count_rows),
        ROWS: lambda: df.foreachPartition(GateSink(ROW_GATE, jobmanager=jobmanager)),
        SOCKET: lambda: noop(df.mapInArrow(pushing(port), "id long")),
        ARROW: data_source,
    }


def count_rows(rows: Iterator[Any]) -> None:
    """Look at every row, in a worker, and do nothing with it."""
    sum(1 for _ in rows)


def pushing(port: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function for workers: it sends batches as an Arrow stream into a socket, until the other end has read
    them all.
    """

    def push(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        with closing(socket.create_connection(("127.0.0.1", port))) as connection:
            with connection.makefile("wb", 1 << 18) as file:
                writer = None
                for batch in batches:
                    writer = writer or pa.ipc.new_stream(file, batch.schema)
                    writer.write_batch(batch)
                if writer is not None:
                    writer.close()
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
        return iter(())

    return push


def timed(action: Callable[[], None], num_rows: int) -> Callable[[], Run]:
    """Return a function that measures one run of ``action``."""

    def once() -> Run:
        with ForeignLoad() as load:
            start = time.perf_counter()
            action()
            seconds = time.perf_counter() - start
        return Run(num_rows / seconds, seconds, load.cores)

    return once


def figures(runs: dict[str, list[Run]], num_rows: int) -> list[Result]:
    """Return one figure per contender, and the two ratios."""
    from pyspark import __version__

    versions = {"pyspark": __version__}
    details = {"num_rows": num_rows, "num_partitions": NUM_PARTITIONS, "master": f"local[{NUM_PARTITIONS}]"}
    found = []
    for name, every in runs.items():
        rates, foreign = [each.rate for each in every], [each.foreign_cores for each in every]
        found.append(Result(f"spark: {name}", "rows/s", rates, details, foreign, versions=versions))
    for ours, other in RATIOS:
        ratios = [mine.rate / theirs.rate for mine, theirs in zip(runs[ours], runs[other], strict=True)]
        found.append(Result(f"spark: {ours} / {other}", "x", ratios, details, versions=versions))
        tell(f"{ours} / {other}: {statistics.median(ratios):.2f} x ({min(ratios):.2f}..{max(ratios):.2f})")
    return found

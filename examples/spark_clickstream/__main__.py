"""From raw Parquet files through Spark into a running flowlet job, and back: ``make example-spark``.

Spark cleans, joins and orders the clicks and purchases of a web shop, and pushes its partitions into the remote gate of
a flowlet job.  The job computes figures per user and raises alerts while Spark is still pushing.  At the end Spark
reads the job's Parquet files and compares them, row by row, with its own results.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from examples.spark_clickstream import job, pipeline
from examples.spark_clickstream.cluster import RunningCluster, local_cluster
from examples.spark_clickstream.data import make_data
from flowlet.common import Configuration
from flowlet.common.job_client import JobClient
from flowlet.datastream import CloseableIterator, StreamExecutionEnvironment
from flowlet.errors import FlowletError
from flowlet.spark import GateSink

ROOT = Path(__file__).resolve().parents[2]
REPORT_INTERVAL_S = 1.0
SHOWN_ALERTS = 5
NUM_TASK_MANAGERS = 2
SHOWN_METRICS = {
    "rows": "rows",
    "buffers": "num_buffers_in",
    "credits granted": "num_credits_granted",
    "ms busy": "accumulated_busy_ms",
    "ms idle": "accumulated_idle_ms",
}
CHUNK_ROWS = 100  # small, because rows of a chunk wait for each other: so alerts come sooner


@dataclass(frozen=True)
class Alert:
    """A burst that the job found; latencies: since Spark sent its last click, until the alert was raised, and until it
    arrived here.
    """

    user: int
    event: int
    took_us: int
    job_latency_ms: float
    latency_ms: float


@dataclass
class Outcome:
    """The results of the job, beside Spark's."""

    num_events: int
    seconds: float
    alerts: list[Alert]
    document: dict[str, Any]
    differences: list[Any] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether the flowlet job found what Spark found."""
        return not self.differences


@contextmanager
def spark_session(master: str) -> Iterator[SparkSession]:
    """Return a small Spark session on loopback; its workers can import this example and flowlet."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("clickstream")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


class Watch:
    """Prints the progress of the job once a second, and collects its alerts."""

    def __init__(self, console: Console, results: CloseableIterator, num_events: int) -> None:
        self._console = console
        self._results = results
        self._num_events = num_events
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._report, name="report"),
            threading.Thread(target=self._read, name="alerts"),
        ]
        self.alerts: list[Alert] = []
        self.failure: FlowletError | None = None

    def __enter__(self) -> "Watch":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        if kind is not None:
            self._results.close()  # without further pushes the job would wait for ever
        self._threads[1].join()
        self._is_over.set()
        self._threads[0].join()

    def _read(self) -> None:
        try:
            for user, event, took_us, sent_ns, raised_ns in self._results:
                self._keep(Alert(user, event, took_us, (raised_ns - sent_ns) / 1e6, (time.time_ns() - sent_ns) / 1e6))
        except FlowletError as error:
            self.failure = error

    def _keep(self, alert: Alert) -> None:
        self.alerts.append(alert)
        if len(self.alerts) <= SHOWN_ALERTS:
            text = (
                f"{job.BURST_CLICKS} clicks within {alert.took_us / 1e6:.2f} s; raised {alert.job_latency_ms:.1f} "
                "ms and here "
            )
            text += f"{alert.latency_ms:.1f} ms after Spark sent the last one"
            self._console.print(f"alert: user {alert.user}: {text}", highlight=False)

    def _report(self) -> None:
        client: JobClient = self._results.job_client
        last = 0
        while not self._is_over.wait(REPORT_INTERVAL_S):
            try:
                document = client.metrics()
            except FlowletError:
                return
            metrics = gate_metrics(document)
            rows, granted = (sum(each[name] for each in metrics) for name in ("rows", "num_credits_granted"))
            text = (
                f"{rows:,} of {self._num_events:,} rows, {(rows - last) / REPORT_INTERVAL_S:,.0f} rows/s, "
                f"{granted:,} credits granted"
            )
            self._console.print(f"pushing: {text}, {len(self.alerts)} alerts", highlight=False)
            last = rows


def gate_metrics(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the counters of the tasks that own the gate; ``rows``: how many the gate passed to the next operator."""
    metrics = [subtask["metrics"] for subtask in document["vertices"][0]["subtasks"]]
    return [each | {"rows": each["operators"][0]["num_records_out"] if each["operators"] else 0} for each in metrics]


def push(
    console: Console, events: DataFrame, cluster: RunningCluster, output: Path, options: argparse.Namespace
) -> Outcome:
    """Start the flowlet job, push the events into it, and wait for its end.  Raises FlowletError if the job failed."""
    num_events = events.count()
    configuration = Configuration()
    configuration.set_string("flowlet.jobmanager", cluster.jobmanager)
    os.environ["FLOWLET_SECRET_FILE"] = str(cluster.secret_file)
    env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(NUM_TASK_MANAGERS)
    results = job.build(env, options.partitions, str(output)).execute_and_collect("clickstream")
    assert isinstance(results, CloseableIterator), "without a limit"
    with results:
        sink = GateSink(job.GATE, jobmanager=cluster.jobmanager, secret_file=cluster.secret_file, chunk_rows=CHUNK_ROWS)
        started = time.monotonic()
        with Watch(console, results, num_events) as watch:
            events.foreachPartition(pipeline.paced(sink, options.rate / options.partitions))
        if watch.failure is not None:
            raise watch.failure
        return Outcome(num_events, time.monotonic() - started, watch.alerts, results.job_client.metrics())


def compare(spark: SparkSession, events: DataFrame, outcome: Outcome, output: Path) -> None:
    """Compute Spark's own figures and alerts, and compare them with the job's."""
    found = spark.read.parquet(str(output))
    outcome.differences += pipeline.differences(pipeline.own_figures(events), found).take(10)
    rows = [(alert.user, alert.event, alert.took_us) for alert in outcome.alerts]
    alerts = spark.createDataFrame(rows, "user bigint, event bigint, took_us bigint")
    outcome.differences += pipeline.differences(pipeline.own_alerts(events), alerts).take(10)


def report(console: Console, outcome: Outcome) -> None:
    """Print the results."""
    rate = outcome.num_events / outcome.seconds
    console.print(f"pushed {outcome.num_events:,} rows in {outcome.seconds:.1f} s: {rate:,.0f} rows/s", highlight=False)
    for number, metrics in enumerate(gate_metrics(outcome.document), start=1):
        counts = ", ".join(f"{metrics[name]:,} {what}" for what, name in SHOWN_METRICS.items())
        console.print(f"gate subtask {number}: {counts}", highlight=False)
    console.print(f"{len(outcome.alerts)} alerts", highlight=False)
    for what, latencies in (
        ("raised", sorted(alert.job_latency_ms for alert in outcome.alerts)),
        ("here", sorted(alert.latency_ms for alert in outcome.alerts)),
    ):
        if latencies:
            median, p99 = (latencies[min(len(latencies) - 1, int(share * len(latencies)))] for share in (0.5, 0.99))
            text = f"median {median:.1f} ms, p99 {p99:.1f} ms, slowest {latencies[-1]:.1f} ms"
            console.print(f"  {what} after the click was sent: {text}", highlight=False)
    for row in outcome.differences:
        console.print(f"difference: {row}", highlight=False)
    console.print(f"equal: {'yes' if outcome.is_equal else 'no'}", highlight=False)


def run(console: Console, options: argparse.Namespace, spark: SparkSession, folder: Path) -> Outcome:
    """Run everything, in ``folder``."""
    made = make_data(folder / "raw", options.rows, options.seed)
    console.print(
        f"made {made.num_clicks:,} clicks, {made.num_purchases:,} purchases, {made.num_users:,} users in {folder}",
        highlight=False,
    )
    events = pipeline.in_order(pipeline.clean_events(spark, folder / "raw"), options.partitions).persist()
    kept, total = events.count(), made.num_clicks + made.num_purchases
    console.print(f"Spark {spark.version} on {options.master}: {kept:,} of {total:,} rows are clean", highlight=False)
    with local_cluster(folder, NUM_TASK_MANAGERS) as cluster:
        console.print(f"flowlet's JobManager: http://{cluster.jobmanager}", highlight=False)
        outcome = push(console, events, cluster, folder / "figures", options)
    compare(spark, events, outcome, folder / "figures")
    events.unpersist()
    return outcome


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.spark_clickstream", description="Clicks from Spark into flowlet and back."
    )
    parser.add_argument(
        "--rows", type=int, default=300_000, metavar="N", help="how many clicks to make (default: 300,000)"
    )
    parser.add_argument(
        "--partitions", type=int, default=2, metavar="N", help="of the DataFrame that is pushed (default: 2)"
    )
    parser.add_argument(
        "--rate",
        type=float,
        default=20_000,
        metavar="N",
        help="rows per second to push; 0: all it takes (default: 20,000)",
    )
    parser.add_argument(
        "--master", default="local[2]", help="Spark's (default: local[2]); local-cluster[2,1,1024]: with executors"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the data (default: 1)")
    parser.add_argument(
        "--folder", type=Path, help="an empty folder for data and results; default: one that is removed"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example; the exit code is 0 if both results are equal."""
    options = parse_options(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    with tempfile.TemporaryDirectory(prefix="clickstream-") as folder, spark_session(options.master) as spark:
        try:
            outcome = run(console, options, spark, options.folder or Path(folder))
        except FlowletError as error:
            print(f"spark_clickstream: {error}", file=sys.stderr)
            return 1
    report(console, outcome)
    return 0 if outcome.is_equal else 1


if __name__ == "__main__":
    sys.exit(main())

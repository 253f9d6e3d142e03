"""A Spark session for all tests of one kind, one after the other: Spark allows one per process.

Without Java, or without PySpark, these tests are skipped with that reason.
"""

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlet.common.typeinfo import TypeInformation
from flowlet.datastream.data_stream import CloseableIterator
from flowlet.ingest import close_producers
from flowlet.testing.mini_cluster import MiniCluster
from tests.conftest import child_pids, describe_process, left_behind, live_threads
from tests.flowlet.ingest.conftest import write_secret
from tests.quiet_logging import unconfigured_logging
from tests.waiting import PATIENCE_S

__all__ = ["unconfigured_logging"]

ROOT = Path(__file__).resolve().parents[2]
LOCAL = "local[2]"
EXECUTORS = "local-cluster[2,1,1024]"  # each with a JVM and Python workers of its own; tasks that fail are tried again
# Small jobs, each of its own kind: compiling them well takes longer than running them.
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.driver.extraJavaOptions": QUICK_START,
    "spark.executor.extraJavaOptions": QUICK_START,
    "spark.sql.codegen.wholeStage": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "Asia/Tokyo",  # not the machine's zone, so that a mistake shows
    "spark.task.maxFailures": "4",
    "spark.log.level": "OFF",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = _why_not()
    for item in items:
        if "tests/spark/" in item.nodeid:
            item.add_marker(pytest.mark.slow)
            # Its start alone takes a quarter of a minute: make test-spark-cluster, or make test-long.
            if EXECUTORS in item.nodeid:
                item.add_marker(pytest.mark.long)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


def _why_not() -> str | None:
    try:
        import pyspark
    except ImportError:
        return "PySpark is not installed: pip install 'flowlet[spark]'"
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else None
    if shutil.which("java") is None and (java is None or not java.exists()):
        return f"PySpark {pyspark.__version__} needs Java 17, and there is none: make java"
    return None


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """Check for leftovers as everywhere, but leave out those that PySpark opens when it needs them: connections to its
    JVM and threads that serve them.
    """
    threads, children = live_threads(), child_pids()

    yield

    names = [describe_process(pid) for pid in left_behind(child_pids, children)]
    assert not names, f"processes left behind: {names}"
    left = left_behind(own_threads, threads)
    assert not left, f"threads left behind: {sorted(thread.name for thread in left)}"


def own_threads() -> set[threading.Thread]:
    """Return threads without those of Py4J, which gives its threads no names."""
    return {thread for thread in live_threads() if not thread.name.startswith("Thread-")}


@pytest.fixture(scope="session")
def spark_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="session", params=[LOCAL, EXECUTORS])
def spark(request: pytest.FixtureRequest, spark_folder: Path) -> Iterator[Any]:
    """The session; pytest runs all tests of one kind before those of the other."""
    import pyspark
    from pyspark.sql import SparkSession

    # Where the executors of a local cluster write, wherever one would like to have it.
    work = Path(pyspark.__file__).with_name("work")
    environment = {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "flowlet" / "spark" / "discovery")]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(spark_folder),
    }
    builder = SparkSession.builder.master(request.param).appName("flowlet tests")
    for name, value in {**SETTINGS, "spark.sql.warehouse.dir": str(spark_folder / "warehouse")}.items():
        builder = builder.config(name, value)
    with pytest.MonkeyPatch.context() as patch:  # for the JVM, which hands it on; not for the tests that follow
        for name, value in environment.items():
            patch.setenv(name, value)
        session = builder.getOrCreate()
        # Connections and workers are there before a test counts what it leaves behind.
        session.range(2).rdd.foreach(print)
    application = session.sparkContext.applicationId
    yield session
    session.stop()
    shutil.rmtree(work / application, ignore_errors=True)  # not the others: they may belong to another run


class GateCluster(MiniCluster):
    secret_file: Path

    @property
    def address(self) -> str:
        return f"{self.target.host}:{self.target.port}"

    def collect(
        self, type_info: TypeInformation, producers: int | None, gate: str = "clicks", *, allow_pickle: bool = False
    ) -> CloseableIterator:
        """Start a job that gives out the records that it gets."""
        env = self.environment()
        stream = env.from_remote_gate(gate, type_info=type_info, producers=producers, allow_pickle=allow_pickle)
        results = stream.execute_and_collect()
        assert isinstance(results, CloseableIterator)
        return results

    def options(self, gate: str = "clicks") -> dict[str, str]:
        return {"gate": gate, "jobmanager": self.address, "secretFile": str(self.secret_file)}


def into(cluster: GateCluster, gate: str = "clicks", **options: Any) -> Any:
    """Return a ``GateSink``; it is imported late, as PySpark may be missing."""
    from flowlet.spark import GateSink

    return GateSink(gate, jobmanager=cluster.address, secret_file=cluster.secret_file, **options)


def write_batches(df: Any, cluster: GateCluster, **options: str) -> None:
    df.write.format("flowlet").mode("append").options(**(cluster.options() | options)).save()


def write_rows(df: Any, cluster: GateCluster) -> None:
    df.foreachPartition(into(cluster, schema=df.schema))


Write = Callable[[Any, GateCluster], None]
BOTH_WAYS = pytest.mark.parametrize("write", [write_batches, write_rows], ids=["batches", "rows"])


def stream_of(spark: Any, folder: Path, *texts: str) -> Any:
    """Return a stream of the lines in files that are made in ``folder / "in"``; each file is an epoch."""
    (folder / "in").mkdir()
    for number, text in enumerate(texts):
        (folder / "in" / f"{number}.txt").write_text(text)
    return spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(folder / "in"))


def write_to_its_end(stream: Any, folder: Path) -> None:
    """Run a query with its checkpoints in ``folder`` until it has read all files."""
    query = stream.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S), "the query never ended"


@pytest.fixture
def cluster(spark: Any, tmp_path: Path) -> Iterator[GateCluster]:
    """Yield a JobManager and a TaskManager in this process; Spark's workers come in over TCP."""
    with GateCluster(num_task_managers=1) as cluster:
        assert cluster.target.secret is not None
        cluster.secret_file = write_secret(cluster.target.secret, tmp_path)
        yield cluster
        close_producers()

"""A job on real processes that starts again after a TaskManager was killed."""

import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cluster import Cluster
from flowlet.client.executor import execute
from flowlet.client.remote import RemoteTarget
from flowlet.client.running_job import RunningJob
from flowlet.client.translate import translate
from flowlet.common.job_settings import JobSettings, RestartKind, RestartSettings
from flowlet.datastream import MapFunction, RuntimeContext, StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink
from tests.integration.signals import Signals
from tests.waiting import PATIENCE_S, Stopwatch

pytestmark = pytest.mark.slow
NUM_RECORDS = 1000
HEARTBEAT_TIMEOUT_S = 50.0  # the default


class TellAndWait(MapFunction):
    """Tells the test at its first record in which process it runs; in the first run it then waits for the test."""

    def __init__(self, signals: Path, go: Path) -> None:
        self._signals = signals
        self._go = go
        self._has_told = False

    def open(self, runtime_context: RuntimeContext) -> None:
        self._has_told = False

    def map(self, value: int) -> int:
        if not self._has_told:
            self._has_told = True
            with self._signals.open("w", encoding="ascii") as signals:
                signals.write(f"{os.getpid()}\n")
        while not self._go.exists():
            time.sleep(0.005)  # waits for the file; ended by the test
        return value


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Yield a cluster with two TaskManagers for the job and a spare one."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    with Cluster(folder, num_task_managers=3) as running:
        yield running


def start(cluster: Cluster, signals: Path, go: Path, restart: RestartSettings) -> RunningJob:
    env = StreamExecutionEnvironment()
    env.set_parallelism(2)
    env.from_collection(range(NUM_RECORDS)).rebalance().map(TellAndWait(signals, go)).name("tell").sink_to(
        DiscardingSink()
    )
    graph = dataclasses.replace(translate(env._stream_graph("restarting", None)), settings=JobSettings(restart=restart))
    host, _, port = cluster.address.rpartition(":")
    return execute(graph, RemoteTarget(host, int(port), secret_file=cluster.secret_file))


def test_a_job_whose_task_manager_is_killed_reads_everything_again_on_a_spare_one(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The client that waits sees only the end."""
    go = tmp_path / "go"
    restart = RestartSettings(RestartKind.FIXED_DELAY, attempts=1, delay_ms=0)
    with Signals(tmp_path / "signals") as signals:
        job = start(cluster, signals.path, go, restart)
        try:
            first = {int(signals.wait()), int(signals.wait())}
            killed, survivor = sorted(first)
            os.kill(killed, signal.SIGKILL)
            go.touch()

            with Stopwatch(cluster.job_manager.pid) as watch:
                job.wait(PATIENCE_S)

            second = {int(signals.wait()), int(signals.wait())}
            document = job.metrics()
        finally:
            job.close()

    (told,) = [vertex for vertex in document["vertices"] if "tell" in vertex["name"]]
    assert (document["state"], document["numRestarts"], document["failure"]) == ("FINISHED", 1, None)
    assert told["metrics"]["read-records"] == NUM_RECORDS
    assert len(second) == 2
    assert second & first == {survivor}
    assert watch.seconds < HEARTBEAT_TIMEOUT_S / 2, "a process that died is known by its closed connection"

"""A BATCH job on real processes, one of which is killed in the second stage."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.cluster import Cluster
from flowlet.client.executor import execute
from flowlet.client.remote import RemoteTarget
from flowlet.client.translate import translate
from flowlet.common import Configuration
from flowlet.common.job_client import SubmittedJob
from flowlet.datastream import KeyedProcessFunction, RuntimeExecutionMode, StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink
from flowlet.graph.stream_graph import StreamGraph
from tests.integration.signals import Signals
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow
NUM_RECORDS, NUM_KEYS = 4_000, 50


class Totals(KeyedProcessFunction):
    """The total of each key, into a file of its name; at the first record it waits for the test."""

    def __init__(self, folder: Path, signals: Path, go: Path) -> None:
        self._folder, self._signals, self._go = folder, signals, go
        self._has_told = False
        self._total = 0

    def process_element(self, value: tuple[int, int], ctx: Any) -> Iterator[Any]:
        if not self._has_told:
            self._has_told = True
            with self._signals.open("w", encoding="ascii") as signals:
                signals.write(f"{os.getpid()}\n")
            while not self._go.exists():
                time.sleep(0.005)  # waits for the file; ended by the test
        self._total += value[1]
        ctx.timer_service().register_event_time_timer(0)
        yield from ()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        (self._folder / str(ctx.get_current_key())).write_text(str(self._total), encoding="ascii")
        self._total = 0
        yield from ()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Yield a cluster with two TaskManagers for the job and a spare one."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    with Cluster(folder, num_task_managers=3) as running:
        yield running


def test_results_of_a_killed_task_manager_are_made_again(cluster: Cluster, tmp_path: Path) -> None:
    """The producers of lost results run again elsewhere, and every key gets its total once more."""
    go, totals = tmp_path / "go", tmp_path / "totals"
    totals.mkdir()
    options = {
        "execution.sorted-inputs.memory": "64 kb",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1",
        "restart-strategy.fixed-delay.delay": "0 ms",
    }
    host, _, port = cluster.address.rpartition(":")
    jobs: list[Any] = []

    def submit(stream_graph: StreamGraph, *_: object) -> SubmittedJob:
        jobs.append(execute(translate(stream_graph), RemoteTarget(host, int(port), secret_file=cluster.secret_file)))
        return SubmittedJob(jobs[0], ())

    env = StreamExecutionEnvironment(Configuration.from_dict(options), submit)
    env.set_parallelism(2).set_runtime_mode(RuntimeExecutionMode.BATCH)
    with Signals(tmp_path / "signals") as signals:
        pairs = env.from_collection(range(NUM_RECORDS)).rebalance().map(lambda number: (number % NUM_KEYS, number))
        pairs.key_by(lambda pair: pair[0]).process(Totals(totals, signals.path, go)).sink_to(DiscardingSink())
        env.execute_async("totals")
        job = jobs[0]
        try:
            killed, _ = int(signals.wait()), int(signals.wait())
            os.kill(killed, signal.SIGKILL)
            go.touch()

            job.wait(PATIENCE_S)

            document = job.metrics()
        finally:
            job.close()

    expected = {str(key): str(sum(range(key, NUM_RECORDS, NUM_KEYS))) for key in range(NUM_KEYS)}
    assert {path.name: path.read_text(encoding="ascii") for path in totals.iterdir()} == expected
    assert (document["state"], document["numRestarts"]) == ("FINISHED", 1)

"""Jobs on real processes that start again after a TaskManager was killed."""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.cluster import Cluster
from flowlet.common import Configuration
from flowlet.datastream import (
    KeyedProcessFunction,
    MapFunction,
    RuntimeContext,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
)
from flowlet.datastream.connectors import DiscardingSink
from tests.integration.jobs import cluster_fixture
from tests.integration.signals import Signals
from tests.waiting import Stopwatch

pytestmark = pytest.mark.slow
NUM_RECORDS, NUM_KEYS = 4_000, 50
HEARTBEAT_TIMEOUT_S = 50.0  # the default

cluster = cluster_fixture(3)  # two for the job and a spare one


class Tells:
    """Tells the test at its first record in which process it runs; in the first run it then waits for the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, runtime_context: RuntimeContext) -> None:
        self._has_told = False

    def tell(self) -> None:
        if not self._has_told:
            self._has_told = True
            with (self._folder / "signals").open("w", encoding="ascii") as signals:
                signals.write(f"{os.getpid()}\n")
        while not (self._folder / "go").exists():
            time.sleep(0.005)  # waits for the file; ended by the test


class TellAndWait(Tells, MapFunction):
    def map(self, value: int) -> int:
        self.tell()
        return value


class Totals(Tells, KeyedProcessFunction):
    """Writes the total of each key into a file of its name."""

    _total = 0

    def process_element(self, value: tuple[int, int], ctx: Any) -> Iterator[Any]:
        self.tell()
        self._total += value[1]
        ctx.timer_service().register_event_time_timer(0)
        yield from ()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        (self._folder / f"total {ctx.get_current_key()}").write_text(str(self._total), encoding="ascii")
        self._total = 0
        yield from ()


def restarting(cluster: Cluster, options: Mapping[str, str] | None = None) -> StreamExecutionEnvironment:
    """Return the environment of a job that starts again once, at once."""
    fixed = {
        "flowlet.jobmanager": cluster.address,
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1",
        "restart-strategy.fixed-delay.delay": "0 ms",
    }
    configuration = Configuration.from_dict({**fixed, **(options or {})})
    return StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(2)


def test_a_job_whose_task_manager_is_killed_reads_everything_again_on_a_spare_one(
    cluster: Cluster, signals: Signals, tmp_path: Path
) -> None:
    """The client that waits sees only the end."""
    env = restarting(cluster)
    numbers = env.from_collection(range(NUM_RECORDS)).rebalance()
    numbers.map(TellAndWait(tmp_path)).name("tell").sink_to(DiscardingSink())
    job = env.execute_async("restarting")
    first = {int(signals.wait()), int(signals.wait())}
    killed, survivor = sorted(first)
    os.kill(killed, signal.SIGKILL)
    (tmp_path / "go").touch()

    with Stopwatch(cluster.job_manager.pid) as watch:
        job.get_job_execution_result().result()

    second = {int(signals.wait()), int(signals.wait())}
    document = job.metrics()
    (told,) = [vertex for vertex in document["vertices"] if "tell" in vertex["name"]]
    assert (document["state"], document["numRestarts"], document["failure"]) == ("FINISHED", 1, None)
    assert told["metrics"]["read-records"] == NUM_RECORDS
    assert len(second) == 2
    assert second & first == {survivor}
    assert watch.seconds < HEARTBEAT_TIMEOUT_S / 2, "a process that died is known by its closed connection"


def test_results_of_a_killed_task_manager_are_made_again(cluster: Cluster, signals: Signals, tmp_path: Path) -> None:
    """The producers of lost results of a BATCH job, which is in its second stage, run again elsewhere, and every key
    gets its total once more.
    """
    env = restarting(cluster, {"execution.sorted-inputs.memory": "64 kb"})
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    pairs = env.from_collection(range(NUM_RECORDS)).rebalance().map(lambda number: (number % NUM_KEYS, number))
    pairs.key_by(lambda pair: pair[0]).process(Totals(tmp_path)).sink_to(DiscardingSink())
    job = env.execute_async("totals")
    killed, _ = int(signals.wait()), int(signals.wait())
    os.kill(killed, signal.SIGKILL)
    (tmp_path / "go").touch()

    job.get_job_execution_result().result()

    document = job.metrics()
    totals = {path.name: path.read_text(encoding="ascii") for path in tmp_path.glob("total *")}
    assert totals == {f"total {key}": str(sum(range(key, NUM_RECORDS, NUM_KEYS))) for key in range(NUM_KEYS)}
    assert (document["state"], document["numRestarts"]) == ("FINISHED", 1)

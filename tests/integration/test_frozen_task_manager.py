"""Processes that stand still for long: one that is stopped is lost, one whose function keeps the interpreter's lock
goes on.

The kernel still acknowledges received bytes of both.  ``ctypes.PyDLL`` calls C without giving the lock back, as a
regular expression or a sort does.
"""

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from flowlet.client import embedded
from flowlet.client.embedded import EmbeddedCluster
from flowlet.client.executor import execute
from flowlet.client.remote import RemoteTarget
from flowlet.client.running_job import RunningJob
from flowlet.client.translate import translate
from flowlet.datastream.stream_execution_environment import StreamExecutionEnvironment
from flowlet.errors import JobExecutionError
from flowlet.ingest import GateClient, GateLostError, PartitionOffer, close_producers, open_gate, runtime
from flowlet.jm.job_manager_config import JobManagerConfig
from netstack.config import NetstackConfig
from tests.flowlet.ingest.conftest import write_secret
from tests.waiting import PATIENCE_S, Stopwatch

pytestmark = [pytest.mark.slow, pytest.mark.long]  # each waits for a timeout of about 10 s, or holds the lock for 15 s
JOB_FAILS_WITHIN_S = 15.0  # the JobManager gives the TaskManager up after 8 s
PRODUCER_FAILS_WITHIN_S = 30.0
HOLD_S = 15.0  # more than the 8 s and 10 s after which a silent process was lost once
NUM_RECORDS = 200
RECORD_OF_HOLD = 7


def identity(number: int) -> int:
    return number


@contextmanager
def cluster_with_gate(function: Callable[[int], int] = identity) -> Iterator[tuple[EmbeddedCluster, RunningJob]]:
    """Yield a TaskManager process with a job that applies a function to what comes through a gate."""
    cluster = EmbeddedCluster.start(1, 1, in_process=False)
    try:
        env = StreamExecutionEnvironment()
        env.set_parallelism(1)
        env.from_remote_gate("clicks", allow_pickle=True).map(function).print()
        job = execute(
            translate(env._stream_graph("job", None)), RemoteTarget(cluster.host, cluster.port, secret=cluster.secret)
        )
        try:
            yield cluster, job
        finally:
            job.close()
    finally:
        for pid in cluster.pids():
            os.kill(pid, signal.SIGCONT)
        close_producers()
        cluster.close()


def gate_of(cluster: EmbeddedCluster, folder: Path) -> GateClient:
    address, secret_file = f"{cluster.host}:{cluster.port}", write_secret(cluster.secret, folder)
    return open_gate("clicks", jobmanager=address, secret_file=secret_file, timeout_s=PATIENCE_S)


def test_whoever_waits_for_a_task_manager_that_stands_still_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The JobManager tells the job, and names the TaskManager; the heartbeats of its data connection tell a producer
    outside the cluster.  The defaults of the times are 50 s and 60 s.
    """
    monkeypatch.setattr(
        embedded, "JobManagerConfig", partial(JobManagerConfig, heartbeat_interval_ms=1000, heartbeat_timeout_s=8.0)
    )
    monkeypatch.setattr(
        runtime, "NetstackConfig", partial(NetstackConfig, heartbeat_interval_s=2.0, heartbeat_timeout_s=10.0)
    )
    with cluster_with_gate() as (cluster, job):
        gate = gate_of(cluster, tmp_path)
        (place,) = gate.description.endpoints
        with gate.open_partition(PartitionOffer("job", 0)) as writer, Stopwatch() as producers_watch:
            writer.write_records([1])
            os.kill(cluster.pids()[0], signal.SIGSTOP)
            with (
                Stopwatch() as jobs_watch,
                pytest.raises(
                    JobExecutionError, match=r"TaskManager tm-[0-9a-f]{8} .* was lost: no message from it for 8 s"
                ),
            ):
                job.wait(JOB_FAILS_WITHIN_S + PATIENCE_S)
            with pytest.raises(
                GateLostError, match=rf"127.0.0.1:{place.port} sent nothing for 1\d\.\d s.*gate 'clicks'"
            ):
                writer.finish(PATIENCE_S)
    assert jobs_watch.seconds < JOB_FAILS_WITHIN_S
    assert producers_watch.seconds < PRODUCER_FAILS_WITHIN_S


def hold(seconds: float) -> None:
    """Keep the interpreter's lock."""
    ctypes.PyDLL(None).usleep(ctypes.c_uint(round(seconds * 1_000_000)))


class NotesAndHolds:
    """The user's function: at one record no other thread of its process runs."""

    def __init__(self, notes: Path, *, holds: bool = True) -> None:
        self._notes = notes
        self._holds = holds

    def __call__(self, number: int) -> int:
        with self._notes.open("a", encoding="ascii") as file:
            file.write(f"{number}\n")
        if self._holds and number == RECORD_OF_HOLD:
            hold(HOLD_S)
        return number

    def noted(self) -> list[int]:
        return [int(line) for line in self._notes.read_text(encoding="ascii").splitlines()]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_job_goes_on_while_a_function_keeps_the_lock(parallelism: int, tmp_path: Path) -> None:
    """Each result comes once, from one run: alone in the program's process, with JobManager and client, or in a
    TaskManager.
    """
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    function = NotesAndHolds(tmp_path / "notes")
    stream = env.from_collection(range(NUM_RECORDS)).rebalance().map(function).key_by(lambda number: number % 7)

    results = sorted(stream.map(identity).execute_and_collect())

    assert results == list(range(NUM_RECORDS))
    assert sorted(function.noted()) == list(range(NUM_RECORDS))


@pytest.mark.parametrize("holder", ["gate", "producer"])
def test_a_gate_and_its_producer_wait_for_each_other(tmp_path: Path, holder: str) -> None:
    """Both wait if the TaskManager of the gate stands still, or this process, with the producer, the JobManager and the
    client.
    """
    function = NotesAndHolds(tmp_path / "notes", holds=holder == "gate")
    with cluster_with_gate(function) as (cluster, job):
        with gate_of(cluster, tmp_path).open_partition(PartitionOffer("job", 0)) as writer:
            for start in range(0, NUM_RECORDS, 10):
                writer.write_records(list(range(start, start + 10)))
                if holder == "producer" and not start:
                    threading.Thread(target=hold, args=(HOLD_S,)).start()
            writer.finish(PATIENCE_S)
        document = job.metrics()
        job.cancel()

    assert (document["state"], document["numRestarts"]) == ("RUNNING", 0)
    assert function.noted() == list(range(NUM_RECORDS))

"""Functions that keep the interpreter's lock: no heartbeat leaves their process, and the job goes on.

``ctypes.PyDLL`` calls C without giving the lock back, as a regular expression or a sort does.
"""

import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlet.client.embedded import EmbeddedCluster
from flowlet.client.executor import execute
from flowlet.client.remote import RemoteTarget
from flowlet.client.translate import translate
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink
from flowlet.ingest import PartitionOffer, close_producers, open_gate
from tests.flowlet.ingest.conftest import write_secret
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.long]  # each holds the lock for 15 s
HOLD_S = 15.0  # more than the 8 s and 10 s after which a silent process was lost once
NUM_RECORDS = 200
RECORD_OF_HOLD = 7


def hold(seconds: float) -> None:
    """Keep the interpreter's lock."""
    ctypes.PyDLL(None).usleep(ctypes.c_uint(round(seconds * 1_000_000)))


def hold_once(number: int) -> int:
    """The user's function: at one record no other thread of its process runs."""
    if number == RECORD_OF_HOLD:
        hold(HOLD_S)
    return number


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_job_goes_on_while_a_function_keeps_the_lock(parallelism: int, tmp_path: Path) -> None:
    """Each result comes once, from one run: alone in the program's process, with JobManager and client, or in a
    TaskManager.
    """
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    attempts = tmp_path / "attempts"

    def note_and_hold(number: int) -> int:
        if number == RECORD_OF_HOLD:
            with attempts.open("a", encoding="ascii") as file:
                file.write(f"{os.getpid()}\n")
        return hold_once(number)

    stream = env.from_collection(range(NUM_RECORDS)).rebalance().map(note_and_hold).key_by(lambda number: number % 7)

    results = sorted(stream.map(lambda number: number).execute_and_collect())

    assert results == list(range(NUM_RECORDS))
    assert len(attempts.read_text(encoding="ascii").splitlines()) == 1


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """Yield a cluster with one TaskManager process."""
    cluster = EmbeddedCluster.start(1, 1, in_process=False)
    yield cluster
    close_producers()
    cluster.close()


@pytest.mark.parametrize("holder", ["gate", "producer"])
def test_a_gate_and_its_producer_wait_for_each_other(cluster: EmbeddedCluster, tmp_path: Path, holder: str) -> None:
    """Both wait if the TaskManager of the gate stands still, or this process, with the producer, the JobManager and the
    client.
    """
    processed = tmp_path / "processed"

    def process(number: int) -> int:
        with processed.open("a", encoding="ascii") as file:
            file.write(f"{number}\n")
        return hold_once(number) if holder == "gate" else number

    env = StreamExecutionEnvironment()
    env.set_parallelism(1)
    env.from_remote_gate("clicks", allow_pickle=True).map(process).sink_to(DiscardingSink())
    job = execute(
        translate(env._stream_graph("job", None)), RemoteTarget(cluster.host, cluster.port, secret=cluster.secret)
    )
    try:
        address, secret_file = f"{cluster.host}:{cluster.port}", write_secret(cluster.secret, tmp_path)
        client = open_gate("clicks", jobmanager=address, secret_file=secret_file)
        with client.open_partition(PartitionOffer("job", 0)) as writer:
            for start in range(0, NUM_RECORDS, 10):
                writer.write_records(list(range(start, start + 10)))
                if holder == "producer" and not start:
                    threading.Thread(target=hold, args=(HOLD_S,)).start()
            writer.finish(PATIENCE_S)
        document = job.metrics()
    finally:
        job.cancel()
        job.close()

    assert (document["state"], document["numRestarts"]) == ("RUNNING", 0)
    assert [int(line) for line in processed.read_text(encoding="ascii").splitlines()] == list(range(NUM_RECORDS))

"""Producers that fork: their children have no part in their connections."""

import os
import signal
import subprocess

from tests.flowlet.ingest.conftest import GateCluster, collecting, counts_of, in_time, running_gate
from tests.flowlet.ingest.producer_process import producer_process
from tests.waiting import PATIENCE_S, spin_until


def test_the_child_of_a_killed_producer_does_not_keep_its_attempt_alive(cluster: GateCluster) -> None:
    """The gate sees the end of the connection, although a forked child lives on."""
    client = running_gate(cluster)
    with producer_process(
        cluster, "fork-and-wait", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as producer:
        assert producer.stdout is not None
        child = int(producer.stdout.readline())
        producer.send_signal(signal.SIGKILL)
        with in_time():
            spin_until(lambda: counts_of(client)["subtasks"][0]["num_aborted"] == 1)
        os.kill(child, 0)  # it is there
    client.cancel()


def test_a_forked_child_leaves_its_parents_connection_alone(cluster: GateCluster) -> None:
    """A child may not write to its parent's partition, and whatever it destroys at its end, the parent goes on."""
    stream = cluster.environment().from_remote_gate("clicks", producers=1, allow_pickle=True)
    with collecting(stream) as results:
        with producer_process(
            cluster, "fork-within", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as producer:
            out, err = producer.communicate(timeout=PATIENCE_S)
        received = list(results)

    assert received == [1, 1, 3]
    assert err == ""
    assert producer.returncode == 0
    assert len(out.splitlines()) == 2
    assert all("gate 'clicks'" in line and "open a partition in this process" in line for line in out.splitlines())


def test_a_forked_process_makes_connections_of_its_own(cluster: GateCluster) -> None:
    client = running_gate(cluster, producers=3)

    with producer_process(cluster, "fork") as producer:
        assert producer.wait(PATIENCE_S) == 0

    client.get_job_execution_result().result()

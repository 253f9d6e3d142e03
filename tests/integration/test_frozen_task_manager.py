"""A TaskManager process that is stopped: its loop sends nothing, and the kernel still acknowledges received bytes."""

import os
import signal
from collections.abc import Iterator
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
from flowlet.ingest import GateLostError, PartitionOffer, close_producers, open_gate, runtime
from flowlet.jm.job_manager_config import JobManagerConfig
from netstack.config import NetstackConfig
from tests.flowlet.ingest.conftest import write_secret
from tests.waiting import PATIENCE_S, Stopwatch

pytestmark = [pytest.mark.slow, pytest.mark.long]  # each waits for a timeout of about 10 s
JOB_FAILS_WITHIN_S = 15.0  # the JobManager gives the TaskManager up after 8 s
PRODUCER_FAILS_WITHIN_S = 30.0


@pytest.fixture(autouse=True)
def _times_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The defaults are 50 s and 60 s."""
    monkeypatch.setattr(
        embedded, "JobManagerConfig", partial(JobManagerConfig, heartbeat_interval_ms=1000, heartbeat_timeout_s=8.0)
    )
    monkeypatch.setattr(
        runtime, "NetstackConfig", partial(NetstackConfig, heartbeat_interval_s=2.0, heartbeat_timeout_s=10.0)
    )


@contextmanager
def cluster_with_gate() -> Iterator[tuple[EmbeddedCluster, RunningJob]]:
    """Yield a TaskManager process with a job that reads a gate."""
    cluster = EmbeddedCluster.start(1, 1, in_process=False)
    try:
        env = StreamExecutionEnvironment()
        env.set_parallelism(1)
        env.from_remote_gate("clicks", allow_pickle=True).map(lambda record: record).print()
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


def test_whoever_waits_for_a_task_manager_that_stands_still_is_told(tmp_path: Path) -> None:
    """The JobManager tells the job, and names the TaskManager; the heartbeats of its data connection tell a producer
    outside the cluster.
    """
    with cluster_with_gate() as (cluster, job):
        address = f"{cluster.host}:{cluster.port}"
        gate = open_gate(
            "clicks", jobmanager=address, secret_file=write_secret(cluster.secret, tmp_path), timeout_s=PATIENCE_S
        )
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

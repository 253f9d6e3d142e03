"""Checkpoints in a bucket: real processes, s3fs, and an S3 server on this machine."""

import importlib.util
import os
import signal
import socket
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from bench.cluster import Cluster, Process
from flowlet.errors import JobSubmissionError
from tests.integration.held_job import HeldJob, expected
from tests.integration.jobs import RESTARTING, cluster_fixture
from tests.waiting import PATIENCE_S, spin_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("s3fs", "moto", "flask", "flask_cors"))),
        reason="s3fs, moto or flask is not installed",
    ),
]
URL: Final = "s3://bucket/checkpoints"
_SERVER: Final = "import sys; from moto.server import main; main(['-H', '127.0.0.1', '-p', sys.argv[1]])"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Store:
    """The server, with one bucket."""

    def __init__(self, log: Path) -> None:
        self.address = f"http://127.0.0.1:{free_port()}"
        self.process = Process([sys.executable, "-c", _SERVER, self.address.rpartition(":")[2]], log=log)
        spin_until(self._is_up, "the store")
        self._ask("/bucket", method="PUT")

    def _is_up(self) -> bool:
        try:
            self._ask("/")
        except OSError:
            return False
        return True

    def _ask(self, path: str, method: str = "GET") -> str:
        with urllib.request.urlopen(
            urllib.request.Request(self.address + path, method=method), timeout=PATIENCE_S
        ) as answer:
            return str(answer.read().decode())

    def keys(self) -> list[str]:
        """The names of all objects."""
        text = self._ask("/bucket")
        return [each.partition("</Key>")[0] for each in text.split("<Key>")[1:]]


@pytest.fixture(autouse=True)  # before the cluster, whose processes inherit its variables
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    (tmp_path / "nothing").touch()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(tmp_path / "nothing"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "nothing"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    found = Store(tmp_path / "store.log")
    monkeypatch.setenv("AWS_ENDPOINT_URL", found.address)
    yield found
    found.process.send(signal.SIGCONT)
    found.process.close()


cluster = cluster_fixture(pins=False)


def test_a_killed_taskmanager_costs_no_result_with_checkpoints_in_a_bucket(
    cluster: Cluster, store: Store, tmp_path: Path
) -> None:
    """A job that survives a kill gives all results, and leaves no object in the bucket when it has ended."""
    with HeldJob(cluster, tmp_path / "go", URL, RESTARTING) as job:
        completed = job.wait_for_completed()
        keys = store.keys()
        victim = next(each for each in cluster.task_managers if job.runs_in(each.pid))
        os.kill(victim.pid, signal.SIGKILL)
        job.wait_for_completed(after=completed)

        found = job.let_go()

        assert found == expected()
        assert job.restarts() == 1
    assert any(key.startswith(f"checkpoints/{job.job_id}/chk-") and key.endswith("/_metadata") for key in keys)
    spin_until(lambda: not store.keys(), "the removal of all objects")


@pytest.mark.long
def test_a_store_that_hangs_costs_checkpoints_until_it_answers_again(
    cluster: Cluster, store: Store, tmp_path: Path
) -> None:
    """The timeout of a checkpoint ends it while the store hangs; the job goes on."""
    options = {
        "execution.checkpointing.timeout": "1 s",
        "execution.checkpointing.tolerable-failed-checkpoints": "1000000",
    }
    with HeldJob(cluster, tmp_path / "go", URL, options) as job:
        completed = job.wait_for_completed()
        store.process.send(signal.SIGSTOP)
        failed = job.wait_for_checkpoint(
            lambda each: each["id"] > completed and each.get("failure_reason") == "CHECKPOINT_EXPIRED"
        )
        store.process.send(signal.SIGCONT)
        job.wait_for_completed(after=failed["id"])

        found = job.let_go()

        assert found == expected()
        assert job.restarts() == 0
    assert failed["failure_message"].startswith("it was not complete in time (1000 ms), it waited for ")


def test_a_bucket_that_does_not_exist_refuses_the_job(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(
        JobSubmissionError,
        match=r"keep checkpoints: .*s3://none/x/\S+ cannot be written: there is no such bucket; make it",
    ):
        HeldJob(cluster, tmp_path / "go", "s3://none/x")

"""A job whose client was killed ends or goes on, as the options say."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.cluster import Cluster, Process
from flowlet.client.remote import ClusterClient, RemoteTarget
from tests.integration.signals import Signals
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.long]

USER_JOB = Path(__file__).resolve().parent / "user_job.py"
TIMEOUT = "client.heartbeat.timeout=1000"
SHUTDOWN, DETACHED = "execution.shutdown-on-attached-exit=true", "execution.attached=false"
LONGER_THAN_TIMEOUT_S = 2.0
KNOWN_S = 30.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a running cluster; every test leaves its two slots free."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def client(running: Cluster) -> Iterator[ClusterClient]:
    host, _, port = running.address.rpartition(":")
    client = RemoteTarget(host, int(port), running.secret_file).open(0)
    yield client
    client.close()


@pytest.mark.parametrize(
    ("arguments", "ends"),
    [
        (["--collect"], True),
        (["--collect", "--option", TIMEOUT], True),
        (["--collect", "--option", TIMEOUT, "--option", DETACHED], False),
        (["--option", TIMEOUT, "--option", SHUTDOWN], True),
        (["--option", TIMEOUT], False),
    ],
)
def test_a_job_ends_without_its_client_if_it_is_attached(
    running: Cluster, client: ClusterClient, tmp_path: Path, arguments: list[str], ends: bool
) -> None:
    """A job goes on while its client lives, however long; the end of the client's connection counts as the client's
    end.
    """
    with Signals(tmp_path / "signals") as signals:
        command = [
            sys.executable,
            str(USER_JOB),
            "endless",
            "--jobmanager",
            running.address,
            "--signals",
            str(signals.path),
            *arguments,
        ]
        with Process(command, log=tmp_path / "log", environment=running.environment) as program:
            signals.wait()
            (job_id,) = [job["jid"] for job in client.call(lambda api: api.list_jobs()) if job["state"] == "RUNNING"]
            with_client = client.call(lambda api: api.wait_terminal(job_id, LONGER_THAN_TIMEOUT_S))
            program.send(9)
            program.wait(PATIENCE_S)
            # The default is a minute: a client that was killed is not waited for so long.
            without_client = client.call(
                lambda api: api.wait_terminal(job_id, KNOWN_S if ends else LONGER_THAN_TIMEOUT_S)
            )
            client.call(lambda api: api.cancel(job_id))
            document = client.call(lambda api: api.wait_terminal(job_id, PATIENCE_S))

    assert with_client is None
    assert (without_client is not None) == ends
    assert document is not None
    assert document["state"] == "CANCELED"
    # A client that is killed between two of its requests has no open one: then its silence tells.
    assert (document["cancel-reason"] or "").startswith(
        ("its client has ended", "no sign of life from its client for 1 s")
    ) == ends

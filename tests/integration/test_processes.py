"""A cluster of processes started by hand works, stops cleanly, and survives the failures that it must."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from bench.cluster import Cluster, Process
from flowlet.client.remote import ClusterClient
from tests.integration.jobs import target_of
from tests.integration.signals import Signals
from tests.waiting import PATIENCE_S, Stopwatch

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "word_count.py"
USER_JOB = Path(__file__).resolve().parent / "user_job.py"
STOP_S = 2.0
LOST_S = 10.0
StartJob = Callable[..., Process]

pytestmark = pytest.mark.slow


def is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1.0).close()
    except ConnectionRefusedError:
        return False
    return True


def user_job(cluster: Cluster, name: str, signals: Signals, *args: str) -> Process:
    return cluster.start(
        str(USER_JOB), name, "--jobmanager", cluster.address, "--signals", str(signals.path), *args, name=name
    )


@pytest.fixture(scope="module")
def lasting_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield one cluster for all tests that leave it as they found it: with two TaskManagers and two free slots."""
    with Cluster(tmp_path_factory.mktemp("lasting")) as running:
        yield running


@pytest.fixture
def lasting_job(lasting_cluster: Cluster, tmp_path: Path) -> Iterator[StartJob]:
    """Yield a function that starts a client of the lasting cluster, which ends with the test."""
    with ExitStack() as stack:

        def start(name: str, signals: Signals, *args: str) -> Process:
            where = ("--jobmanager", lasting_cluster.address, "--signals", str(signals.path))
            command = [sys.executable, str(USER_JOB), name, *where, *args]
            process = Process(command, log=tmp_path / f"{name}.log", environment=lasting_cluster.environment)
            return stack.enter_context(process)

        yield start


def test_the_example_runs_on_processes_started_by_hand_and_control_c_ends_each_of_them(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Processes end within two seconds, with exit code 0, no output, and no listener left."""
    text, output = tmp_path / "text.txt", tmp_path / "counts.csv"
    text.write_text("b a b")

    example = cluster.start(
        str(EXAMPLE), "--jobmanager", cluster.address, "--input", str(text), "--output", str(output), name="example"
    )
    code = example.wait(PATIENCE_S)

    assert code == 0, example.stderr
    assert output.read_text() == "word,count\nb,2\na,1\n"
    for process in [*cluster.task_managers, cluster.job_manager]:
        with Stopwatch(process.pid) as watch:
            assert process.interrupt(PATIENCE_S) == 0, process.stderr
        assert watch.seconds < STOP_S
        assert "Traceback" not in process.stderr
    assert not is_listening(cluster.address)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_stops_within_two_seconds_while_a_job_runs(cluster: Cluster, signals: Signals, number: int) -> None:
    """The JobManager stops first: the TaskManagers end their tasks and wait for another one, until they are stopped,
    too.
    """
    user_job(cluster, "endless", signals)
    signals.wait()

    codes = []
    for process in [cluster.job_manager, *cluster.task_managers]:
        with Stopwatch(process.pid) as watch:
            process.send(number)
            codes.append(process.wait(PATIENCE_S))
        assert watch.seconds < STOP_S

    assert codes == [0, 0, 0]


def test_a_taskmanager_waits_for_a_jobmanager_that_starts_later(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {"FLOWLET_SECRET_FILE": str(tmp_path / "secret")}
    tm_command = [sys.executable, "-m", "flowlet.tm", "--jobmanager", f"127.0.0.1:{port}"]
    jm_command = [sys.executable, "-m", "flowlet.jm", "--port", str(port)]

    with (
        Process(tm_command, log=tmp_path / "tm.log", environment=environment) as task_manager,
        Process(jm_command, log=tmp_path / "jm.log", environment=environment) as job_manager,
    ):
        job_manager.wait_for_line("^JobManager listening on ")

        assert task_manager.wait_for_line(f"registered at 127.0.0.1:{port}$").string


def test_a_taskmanager_whose_parent_dies_ends(cluster: Cluster, tmp_path: Path) -> None:
    """A TaskManager ends when its parent dies, even if the parent is killed and tells nobody."""
    program = (
        "import os, subprocess, sys\n"
        f"subprocess.run([sys.executable, '-m', 'flowlet.tm', '--jobmanager', '{cluster.address}', '--parent-pid', "
        "str(os.getpid())])\n"
    )
    parent = cluster.start("-c", program, name="parent")
    parent.wait_for_line("^TaskManager .* registered at ")
    (task_manager,) = psutil.Process(parent.pid).children()

    parent.send(signal.SIGKILL)

    assert psutil.wait_procs([task_manager], timeout=PATIENCE_S)[1] == []


def test_a_taskmanager_whose_parent_is_dead_already_does_not_start(cluster: Cluster) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()

    orphan = cluster.start(
        "-m", "flowlet.tm", "--jobmanager", cluster.address, "--parent-pid", str(dead.pid), name="orphan"
    )

    orphan.wait(PATIENCE_S)


@pytest.mark.parametrize("module", ["flowlet.jm", "flowlet.tm"])
def test_an_address_that_others_can_reach_is_refused_in_one_line(tmp_path: Path, module: str) -> None:
    args = ["--host", "0.0.0.0"] + (["--jobmanager", "127.0.0.1:1"] if module == "flowlet.tm" else [])
    environment = {"FLOWLET_SECRET_FILE": str(tmp_path / "secret")}

    with Process([sys.executable, "-m", module, *args], log=tmp_path / "log", environment=environment) as process:
        code = process.wait(PATIENCE_S)

        assert code == 2
        assert process.stdout == ""
        assert process.stderr.count("\n") == 1
        assert "0.0.0.0" in process.stderr


def test_a_failing_function_is_shown_to_the_client(lasting_job: StartJob, signals: Signals) -> None:
    """The client shows the user's own traceback, the operator, the subtask and the record; the cluster takes the next
    job.
    """
    client = lasting_job("failing", signals)
    code = client.wait(PATIENCE_S)

    assert code == 1
    assert "ZeroDivisionError: integer division or modulo by zero" in client.stderr
    assert "in divide" in client.stderr
    assert "return 100 // (number - 7)" in client.stderr
    assert "'divide them'" in client.stderr
    assert re.search(r"subtask \d", client.stderr)
    assert re.search(r"record\D+7\b", client.stderr)
    assert lasting_job("succeeding", signals).wait(PATIENCE_S) == 0


def test_a_lost_taskmanager_fails_the_job_within_ten_seconds_and_is_named(cluster: Cluster, signals: Signals) -> None:
    client = user_job(cluster, "endless", signals)
    pid = int(signals.wait())

    with Stopwatch(cluster.job_manager.pid, client.pid) as watch:
        os.kill(pid, signal.SIGKILL)
        code = client.wait(PATIENCE_S)

    assert code == 1
    assert watch.seconds < LOST_S
    assert re.search(rf"TaskManager \S+ \(127\.0\.0\.1:\d+, pid {pid}\) was lost", client.stderr)
    assert "shutting down" not in client.stderr


def test_the_client_hears_of_a_lost_taskmanager_although_a_function_is_blocked_elsewhere(
    cluster: Cluster, signals: Signals
) -> None:
    """The blocked task cannot end, and is named; its TaskManager is killed by the test."""
    client = user_job(cluster, "blocked", signals)
    pids = {int(signals.wait()), int(signals.wait())}

    os.kill(min(pids), signal.SIGKILL)
    with Stopwatch(cluster.job_manager.pid, client.pid) as watch:
        code = client.wait(PATIENCE_S)
    os.kill(max(pids), signal.SIGKILL)

    assert code == 1
    assert watch.seconds < LOST_S
    assert f"pid {min(pids)}) was lost" in client.stderr
    assert "have not ended yet: 'block" in client.stderr


def test_a_frozen_taskmanager_is_lost_too(signals: Signals, tmp_path: Path) -> None:
    """A frozen TaskManager is lost although its connection stays open: only its heartbeats are missing."""
    short = ("--heartbeat-interval-s", "1", "--heartbeat-timeout-s", "4")
    folder = tmp_path / "cluster"
    folder.mkdir()
    with Cluster(folder, job_manager_options=short) as cluster:
        client = user_job(cluster, "endless", signals)
        pid = int(signals.wait())

        os.kill(pid, signal.SIGSTOP)
        try:
            with Stopwatch(cluster.job_manager.pid, client.pid) as watch:
                code = client.wait(PATIENCE_S)
        finally:
            os.kill(pid, signal.SIGCONT)

    assert code == 1
    assert watch.seconds < LOST_S
    assert f"pid {pid}) was lost" in client.stderr


def test_cancel_ends_a_running_job_and_frees_its_slots(lasting_job: StartJob, signals: Signals) -> None:
    client = lasting_job("endless", signals, "--cancel-after-signal")

    assert client.wait_for_line(r"^status (\w+)$").group(1) == "CANCELED"
    assert client.wait(PATIENCE_S) == 0
    assert lasting_job("succeeding", signals).wait(PATIENCE_S) == 0


def test_a_job_that_waits_for_slots_can_be_cancelled(lasting_job: StartJob, signals: Signals) -> None:
    """A job that needs three slots, in a cluster of two, can be cancelled."""
    client = lasting_job("succeeding", signals, "--parallelism", "3", "--cancel-at-once")

    assert client.wait_for_line(r"^status (\w+)$").group(1) == "CANCELED"
    assert client.wait(PATIENCE_S) == 0


# ---------------------------------------------------------------- clients that are killed

TIMEOUT = "client.heartbeat.timeout=1000"
SHUTDOWN, DETACHED = "execution.shutdown-on-attached-exit=true", "execution.attached=false"
LONGER_THAN_TIMEOUT_S = 2.0
KNOWN_S = 30.0


@pytest.fixture
def client(lasting_cluster: Cluster) -> Iterator[ClusterClient]:
    client = target_of(lasting_cluster).open(0)
    yield client
    client.close()


@pytest.mark.long
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
    lasting_job: StartJob, client: ClusterClient, signals: Signals, arguments: list[str], ends: bool
) -> None:
    """A job goes on while its client lives, however long; the end of the client's connection counts as the client's
    end.
    """
    program = lasting_job("endless", signals, *arguments)
    signals.wait()
    (job_id,) = [job["jid"] for job in client.call(lambda api: api.list_jobs()) if job["state"] == "RUNNING"]
    with_client = client.call(lambda api: api.wait_terminal(job_id, LONGER_THAN_TIMEOUT_S))
    program.send(signal.SIGKILL)
    program.wait(PATIENCE_S)
    # The default is a minute: a client that was killed is not waited for so long.
    without_client = client.call(lambda api: api.wait_terminal(job_id, KNOWN_S if ends else LONGER_THAN_TIMEOUT_S))
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

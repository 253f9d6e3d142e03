"""The command ``flowlet``: what it prints, and its errors in one line."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlet.cli.main import app, installed_version, run_command
from flowlet.client.running_job import RunningJob
from flowlet.common import RestartStrategies
from flowlet.common.job_status import JobStatus
from flowlet.datastream.connectors import DiscardingSink
from flowlet.errors import JobExecutionError
from flowlet.rpc.secret import load_or_create_secret
from flowlet.testing.mini_cluster import MiniCluster
from tests.flowlet.client.jobs import endless_shuffle, mapped
from tests.flowlet.client.programs import variables_of
from tests.waiting import PATIENCE_S


@pytest.fixture
def cluster() -> Iterator[MiniCluster]:
    with MiniCluster() as cluster:
        yield cluster


class Cli:
    """Runs commands against a cluster, in this process."""

    def __init__(self, cluster: MiniCluster, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.variables = variables_of(cluster.target, folder)
        self._capsys = capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        address, secret_file = self.variables["FLOWLET_JOBMANAGER"], self.variables["FLOWLET_SECRET_FILE"]
        return self.alone(*arguments, "--jobmanager", address, "--secret-file", secret_file)

    def alone(self, *arguments: str) -> tuple[int, str, str]:
        """Run a command that asks no cluster."""
        code = run_command(list(arguments))
        captured = self._capsys.readouterr()
        return code, captured.out, captured.err


@pytest.fixture
def cli(cluster: MiniCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(cluster, tmp_path, capsys)


def failed(cluster: MiniCluster) -> RunningJob:
    job_graph, _ = mapped([0], lambda value: 1 // value, name="dividing")
    job = cluster.execute(job_graph)
    with pytest.raises(JobExecutionError):
        job.wait(PATIENCE_S)
    return job


def test_jobs_are_listed_with_id_name_and_state(cli: Cli, cluster: MiniCluster) -> None:
    """An empty cluster lists only the columns."""
    code, out, err = cli("list")
    assert (code, err) == (0, "")
    assert out.split() == ["job", "name", "state", "duration", "tasks"]

    job = cluster.execute(endless_shuffle())
    _, out, _ = cli("list")

    assert f"{job.job_id}  endless" in out
    assert any(state in out for state in ("RUNNING", "CREATED"))


def test_a_failed_job_is_shown_with_its_tasks_and_the_reason(cli: Cli, cluster: MiniCluster) -> None:
    job = failed(cluster)

    code, out, _ = cli("job", job.job_id)

    assert code == 0
    assert f"dividing  {job.job_id}  FAILED" in out
    assert "dividing (1/1)" in out
    assert "records out" in out
    assert "while processing the record 0" in out
    assert "ZeroDivisionError" in out


def test_a_job_that_has_restarted_says_when_and_why(cli: Cli, cluster: MiniCluster, tmp_path: Path) -> None:
    """The newest restart comes first; the counters are those of all attempts: a slice of records that fails is not
    counted.
    """

    def fail_twice(value: int) -> int:
        with (tmp_path / "failures").open("a+") as file:
            file.seek(0)
            number = len(file.readlines())
            if value == 2 and number < 2:
                file.write("one\n")
                raise ValueError(f"failure\n{number}")
        return value

    environment = cluster.environment().set_parallelism(1)
    environment.set_restart_strategy(RestartStrategies.fixed_delay_restart(2, 1))
    failing = environment.from_collection([1, 2, 3]).rebalance().map(fail_twice).name("failing")
    failing.disable_chaining().sink_to(DiscardingSink())
    client = environment.execute_async("restarting")
    client.get_job_execution_result().result()

    code, out, _ = cli("job", str(client.get_job_id()))
    document = json.loads(cli("job", str(client.get_job_id()), "--format", "json")[1])

    assert code == 0
    today = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    lines = out.splitlines()
    start = lines.index("2 restarts, the newest first; the counters above are sums over all attempts")
    assert lines[start + 1].split() == ["failed", "started", "again", "task", "cause"]
    for line, number in zip(lines[start + 2 :], (1, 0), strict=True):
        assert re.fullmatch(rf"{today}  {today}  failing.* \(1/1\)  ValueError: failure {number}", line.rstrip()), line
    [task] = [line for line in lines if line.startswith("failing")]
    # One record in each of two attempts, three in the last one.
    assert task.split()[task.split().index("FINISHED") + 1] == "5"
    assert [each["cause"] for each in document["restarts"]] == ["ValueError: failure 1", "ValueError: failure 0"]
    assert all(each["restarted"] >= each["failed"] > 0 for each in document["restarts"])
    [subtask] = document["vertices"][1]["subtasks"]
    assert (subtask["metrics"]["num_records_in"], subtask["metrics-of-all-attempts"]["num_records_in"]) == (3, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["job", "zz", "--format", "yaml"], "--format is 'yaml', it must be one of table, json"),
        (["job", "zz"], "no job's id begins with 'zz'"),
    ],
)
def test_what_cannot_be_answered_is_one_line_and_exit_code_2(cli: Cli, arguments: list[str], message: str) -> None:
    assert cli(*arguments) == (2, "", f"flowlet: {message}\n")


def test_the_first_digits_of_an_id_are_enough_unless_they_fit_several_jobs(cli: Cli, cluster: MiniCluster) -> None:
    job = failed(cluster)
    assert cli("job", job.job_id[:6])[0] == 0

    failed(cluster)
    assert cli("cancel", "") == (2, "", "flowlet: 2 jobs' ids begin with ''\n")


def test_cancel_waits_for_the_end(cli: Cli, cluster: MiniCluster) -> None:
    job = cluster.execute(endless_shuffle())

    code, out, _ = cli("cancel", job.job_id)

    assert (code, out) == (0, f"{job.job_id} CANCELED\n")
    assert job.status() is JobStatus.CANCELED


def test_task_managers_are_listed(cli: Cli, cluster: MiniCluster) -> None:
    _, out, _ = cli("taskmanagers")

    assert all(executor.tm_id in out for executor in cluster.task_executors)
    assert len(out.splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "--jobmanager", "127.0.0.1:1"], "flowlet: JobManager 127.0.0.1:1: Connection refused"),
        (["list", "--jobmanager", "nowhere"], "flowlet: --jobmanager is 'nowhere'; it must be host:port"),
        (["nothing"], "flowlet: No such command 'nothing'"),
        (["job"], "flowlet: Missing argument 'job'"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("FLOWLET_SECRET_FILE", str(tmp_path / "secret"))
    load_or_create_secret()

    code = run_command(arguments)

    err = capsys.readouterr().err
    assert code == 2
    assert err.startswith(message)
    assert len(err.splitlines()) == 1


def test_a_wrong_address_of_the_variable_is_called_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLOWLET_JOBMANAGER", "nowhere")

    assert run_command(["cancel", "ab"]) == 2
    assert capsys.readouterr().err.startswith(
        "flowlet: environment variable FLOWLET_JOBMANAGER is 'nowhere'; it must be host:port"
    )


def test_a_command_that_asks_a_cluster_makes_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run_command(["list", "--jobmanager", "127.0.0.1:1", "--secret-file", str(tmp_path / "misspelled")])

    err = capsys.readouterr().err
    assert code == 2
    assert err.startswith(
        f"flowlet: JobManager 127.0.0.1:1 cannot be asked: secret file {tmp_path}/misspelled does not exist"
    )
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--version"]) == 0

    assert capsys.readouterr().out == f"flowlet {installed_version()}\n"
    assert installed_version()[0].isdigit()


def test_every_command_explains_itself() -> None:
    assert all(command.callback is not None and command.callback.__doc__ for command in app.registered_commands)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "ready"), [("jm", "JobManager listening on http://127.0.0.1:")])
def test_processes_are_started_by_the_same_command(command: str, ready: str, tmp_path: Path) -> None:
    """The command ``flowlet`` turns into the process that it starts, so that signals reach it."""
    arguments = [command, "--port", "0", "--secret-file", str(tmp_path / "secret"), "--log-level", "error"]
    process = subprocess.Popen(
        [sys.executable, "-m", "flowlet.cli.main", *arguments], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout as lines:
        assert lines.readline().startswith(ready)

        os.kill(process.pid, signal.SIGINT)

        assert process.wait(PATIENCE_S) == 0


@pytest.mark.slow
def test_the_package_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flowlet", "--version"], capture_output=True, text=True, timeout=PATIENCE_S
    )

    assert (done.returncode, done.stdout) == (0, f"flowlet {installed_version()}\n")


@pytest.mark.slow
def test_options_of_a_process_are_its_own(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flowlet.cli.main", "tm", "--help"], capture_output=True, text=True, timeout=PATIENCE_S
    )

    assert done.returncode == 0
    assert "--network-memory" in done.stdout

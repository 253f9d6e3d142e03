"""Ctrl-C in a user's program, as a real signal to a real process: one line, the usual exit status, and nothing is left.

Each program is interrupted after a line of output, a connection or a job that shows where it is.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlet.client.remote import ClusterClient, JobManagerApi, RemoteTarget
from flowlet.testing.mini_cluster import MiniCluster
from tests.flowlet.client.programs import running, silent_job_manager
from tests.flowlet.ingest.conftest import write_secret
from tests.waiting import spin_until

pytestmark = pytest.mark.slow
INTERRUPTED = (-signal.SIGINT, ["KeyboardInterrupt"])  # a shell shows 130

_JOB = """
import sys
from flowlet.datastream import StreamExecutionEnvironment
env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(int(sys.argv[1]))
env.from_collection([1]).map(lambda value: value).print()
"""


def test_while_the_client_is_imported() -> None:
    """The first ``execute`` imports the client; the line that the test waits for comes in the middle of this import."""
    with running("-X", "importtime", "-c", f"{_JOB}\nwhile True:\n    env.execute()", "1") as program:
        program.wait_for_error("flowlet.rpc.requests")
        program.interrupt()
        code, _, errors = program.end()

    assert (code, [line for line in errors if not line.startswith("import time:")]) == INTERRUPTED


def test_while_the_task_managers_of_an_embedded_cluster_start(tmp_path: Path) -> None:
    """TaskManagers that run already end, too."""
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\necho started >&2\nexec sleep 1000\n")
    interpreter.chmod(0o755)

    with running("-c", f"{_JOB}\nsys.executable = {str(interpreter)!r}\nenv.execute()", "2") as program:
        program.wait_for_error("started")
        program.interrupt()
        code, _, errors = program.end()

    assert (code, [line for line in errors if line != "started"]) == INTERRUPTED


def test_while_a_mini_cluster_starts() -> None:
    text = """
import asyncio
from flowlet.testing.mini_cluster import MiniCluster
from flowlet.tm.task_executor import TaskExecutor
async def start(self, rpc):
    print("starting", flush=True)
    await asyncio.Event().wait()
TaskExecutor.start = start
with MiniCluster():
    pass
"""
    with running("-c", text) as program:
        program.wait_for_output("starting")
        program.interrupt()
        code, _, errors = program.end()

    assert (code, errors) == INTERRUPTED


def test_while_it_waits_for_a_job_manager_that_does_not_answer(tmp_path: Path) -> None:
    with (
        silent_job_manager(tmp_path) as (server, environment),
        running("-c", f"{_JOB}\nenv.execute()", "1", environment=environment) as program,
    ):
        connection, _ = server.accept()
        with connection:
            program.interrupt()
            code, _, errors = program.end()

    assert (code, errors) == INTERRUPTED


@pytest.fixture
def job_manager(tmp_path: Path) -> Iterator[tuple[ClusterClient, dict[str, str]]]:
    """One without TaskManagers: a client of it, and the environment of programs that use it."""
    secret_file = tmp_path / "secret"
    with running(
        "-m", "flowlet.jm", "--port", "0", "--secret-file", str(secret_file), "--log-level", "error"
    ) as program:
        assert program.process.stdout is not None
        port = int(program.process.stdout.readline().rpartition(":")[2])
        client = RemoteTarget("127.0.0.1", port, secret_file).open(1)
        yield client, {"FLOWLET_JOBMANAGER": f"127.0.0.1:{port}", "FLOWLET_SECRET_FILE": str(secret_file)}
        client.close()


def test_while_its_job_waits_for_slots(job_manager: tuple[ClusterClient, dict[str, str]]) -> None:
    """The job does not wait on without its program."""
    client, environment = job_manager
    with running("-c", f"{_JOB}\nenv.execute()", "1", environment=environment) as program:
        spin_until(lambda: client.call(JobManagerApi.list_jobs))
        program.interrupt()
        code, _, errors = program.end()

    assert (code, errors) == INTERRUPTED
    assert [job["state"] for job in client.call(JobManagerApi.list_jobs)] == ["CANCELED"]


@pytest.mark.parametrize("parallelism", ["1", "2"], ids=["in this process", "with child processes"])
def test_while_its_job_runs(parallelism: str) -> None:
    text = """
import sys
from flowlet.datastream import SourceFunction, StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink
class Endless(SourceFunction):
    def run(self, ctx):
        print("running", flush=True)
        while not ctx.is_cancelled:
            ctx.collect(1)
env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(int(sys.argv[1]))
env.add_source(Endless()).map(lambda value: value).sink_to(DiscardingSink())
env.execute()
"""
    with running("-c", text, parallelism) as program:
        program.wait_for_output("running")
        program.interrupt()
        code, _, errors = program.end()

    assert (code, errors) == INTERRUPTED


@pytest.mark.parametrize(
    "last_line",
    [
        "stream.print()\nenv.execute()",
        "stream.print()\nenv.execute_async().get_job_execution_result().result()",
        "list(stream.execute_and_collect())",
    ],
    ids=["execute", "the result of execute_async", "results"],
)
def test_while_its_job_runs_on_a_cluster_of_others(tmp_path: Path, last_line: str) -> None:
    """The job ends with the program that waits for it."""
    mark = tmp_path / "mark"
    text = f"""
from pathlib import Path
from flowlet.datastream import SourceFunction, StreamExecutionEnvironment
class Endless(SourceFunction):
    def run(self, ctx):
        Path({str(mark)!r}).touch()
        while not ctx.is_cancelled:
            ctx.collect(1)
env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
stream = env.add_source(Endless()).filter(lambda value: False)
{last_line}
"""
    with MiniCluster(1) as cluster:
        target = cluster.target
        assert target.secret is not None
        environment = {
            "FLOWLET_JOBMANAGER": f"{target.host}:{target.port}",
            "FLOWLET_SECRET_FILE": str(write_secret(target.secret, tmp_path)),
        }
        with running("-c", text, environment=environment) as program:
            spin_until(mark.exists)
            program.interrupt()
            code, out, errors = program.end()
        client = target.open(1)
        states = [job["state"] for job in client.call(JobManagerApi.list_jobs)]
        client.close()

    assert (code, out, errors) == (-signal.SIGINT, "", ["KeyboardInterrupt"])
    assert states == ["CANCELED"]


def test_an_interrupt_of_the_users_own_code_is_shown_as_ever() -> None:
    """The interrupt may come below a call of ours: the frames are the user's."""
    text = f"""{_JOB}
import signal
def numbers():
    print("waiting", flush=True)
    signal.pause()
    yield 1
env.execute()
env.from_collection(numbers())
"""
    with running("-c", text, "1") as program:
        program.wait_for_output("waiting")
        program.interrupt()
        code, _, errors = program.end()

    assert code == -signal.SIGINT
    assert errors[0] == "Traceback (most recent call last):"
    assert any("in numbers" in line for line in errors)
    assert errors[-1] == "KeyboardInterrupt"


def test_an_interrupt_that_the_program_catches_is_its_own_affair(tmp_path: Path) -> None:
    """The job that the program caught can be run again."""
    with silent_job_manager(tmp_path) as (server, environment):
        text = (
            f"{_JOB}\ntry:\n    env.execute()\nexcept KeyboardInterrupt:\n    del "
            "os.environ['FLOWLET_JOBMANAGER']\n    env.execute()"
        )
        with running("-c", f"import os\n{text}", "1", environment=environment) as program:
            connection, _ = server.accept()
            with connection:
                program.interrupt()
                code, out, errors = program.end()

    assert (code, out, errors) == (0, "1\n", [])

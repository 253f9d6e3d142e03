"""Ctrl-C in a user's program, as a real signal to a real process: one line, the usual exit status, and nothing is left.

Each program is interrupted after a line of output, a connection or a job that shows where it is.
"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flowlet.client.executor import execute
from flowlet.client.remote import JobManagerApi
from flowlet.errors import FlowletError
from flowlet.rpc.requests import RpcConnectError
from flowlet.testing.mini_cluster import MiniCluster
from tests.flowlet.client.conftest import SharedCluster
from tests.flowlet.client.jobs import endless_shuffle
from tests.flowlet.client.programs import Fork, job_manager, running, silent_job_manager, variables_of
from tests.waiting import PATIENCE_S, spin_until

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
        code, errors = program.interrupted()

    assert (code, [line for line in errors if not line.startswith("import time:")]) == INTERRUPTED


def test_while_the_task_managers_of_an_embedded_cluster_start(tmp_path: Path) -> None:
    """TaskManagers that run already end, too."""
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\necho started >&2\nexec sleep 1000\n")
    interpreter.chmod(0o755)

    text = f"{_JOB}\nsys.executable = {str(interpreter)!r}\nenv.execute()"
    with running("-c", text, "2", fork=Fork.PROGRAM) as program:
        program.wait_for_error("started")
        code, errors = program.interrupted()

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
    with running("-c", text, fork=Fork.WITH_SERVER) as program:
        program.wait_for_output("starting")
        assert program.interrupted() == INTERRUPTED


def test_while_it_waits_for_a_job_manager_that_does_not_answer(tmp_path: Path) -> None:
    with (
        silent_job_manager(tmp_path) as (server, environment),
        running("-c", f"{_JOB}\nenv.execute()", "1", environment=environment, fork=Fork.WITH_SERVER) as program,
    ):
        connection, _ = server.accept()
        with connection:
            assert program.interrupted() == INTERRUPTED


def test_while_its_job_waits_for_slots(tmp_path: Path) -> None:
    """The job does not wait on without its program."""
    with (
        job_manager(tmp_path) as (_, client, environment),
        running("-c", f"{_JOB}\nenv.execute()", "1", environment=environment, fork=Fork.WITH_SERVER) as program,
    ):
        spin_until(lambda: client.call(JobManagerApi.list_jobs))
        assert program.interrupted() == INTERRUPTED
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
    with running("-c", text, parallelism, fork=Fork.WITH_SERVER) as program:
        program.wait_for_output("running")
        assert program.interrupted() == INTERRUPTED


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
        with running("-c", text, environment=variables_of(cluster.target, tmp_path), fork=Fork.WITH_SERVER) as program:
            spin_until(mark.exists)
            program.interrupt()
            code, out, errors = program.end()
        client = cluster.target.open(1)
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
    with running("-c", text, "1", fork=Fork.WITH_SERVER) as program:
        program.wait_for_output("waiting")
        code, errors = program.interrupted()

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
        with running("-c", f"import os\n{text}", "1", environment=environment, fork=Fork.WITH_SERVER) as program:
            connection, _ = server.accept()
            with connection:
                program.interrupt()
                code, out, errors = program.end()

    assert (code, out, errors) == (0, "1\n", [])


# -------------------------------------------------------------------- the traces of a program that ends before its job


PROGRAM = """
import os, signal, sys
from flowlet.datastream import StreamExecutionEnvironment
env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
env.from_collection(list(range(100_000))).map(lambda value: value).map(str).filter(lambda text: False).print()
job = env.execute_async("a job")
"""


@pytest.mark.parametrize(
    ("last_line", "code"),
    [
        ("", 0),
        ("raise SystemExit(3)", 3),
        ("second = env.get_execution_environment().from_collection([1]).execute_and_collect()", 0),
    ],
    ids=["while execute_async runs", "by an exit", "with an open iterator"],
)
def test_a_program_that_ends_before_its_job_says_nothing(
    cluster: SharedCluster, tmp_path: Path, last_line: str, code: int
) -> None:
    """No connection is left to the interpreter, whose libraries would complain on the screen."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM + last_line],
        env=os.environ | variables_of(cluster.target, tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", "")


def test_a_job_whose_job_manager_is_gone_says_so_and_its_client_leaves_nothing() -> None:
    """Each question names the JobManager that does not answer, and ``close`` ends the threads."""
    threads = set(threading.enumerate())
    with MiniCluster(2) as mini_cluster:
        job = mini_cluster.execute(endless_shuffle())
        target = mini_cluster.target
    for ask in (job.status, job.cancel, job.checkpoints, job.wait):
        with pytest.raises(FlowletError, match="was closed"):
            ask()
    reason = f"JobManager {target.host}:{target.port}: Connection refused: nothing listens there; start a JobManager"
    with pytest.raises(RpcConnectError, match=reason) as refused:
        execute(endless_shuffle(), target)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__

    job.close()

    assert set(threading.enumerate()) == threads


def test_questions_about_a_job_name_the_job_manager_that_died() -> None:
    """The answer is one line each; the cluster can be closed nevertheless."""
    threads = set(threading.enumerate())
    with MiniCluster(2) as mini_cluster:
        target = mini_cluster.target
        job = execute(endless_shuffle(), target)
    said = []
    for ask in (job.status, job.cancel, job.checkpoints, job.wait):
        with pytest.raises(RpcConnectError, match=rf"^JobManager {target.host}:{target.port}: [^\n]+$") as caught:
            ask()
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__
        said.append(str(caught.value))
    assert "job 'endless' may be lost" in said[-1]

    job.close()

    assert set(threading.enumerate()) == threads

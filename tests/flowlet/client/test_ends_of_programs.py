"""The traces of a program that ends before its job, on a cluster that is not its own and on the screen."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flowlet.client.executor import execute
from flowlet.errors import FlowletError
from flowlet.rpc.requests import RpcConnectError
from flowlet.testing.mini_cluster import MiniCluster
from tests.flowlet.client.conftest import SharedCluster
from tests.flowlet.client.jobs import endless_shuffle
from tests.waiting import PATIENCE_S

PROGRAM = """
import os, signal, sys
from flowlet.datastream import StreamExecutionEnvironment
env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
env.from_collection(list(range(100_000))).map(lambda value: value).map(str).filter(lambda text: False).print()
job = env.execute_async("a job")
"""


@pytest.mark.slow
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
    target = cluster.target
    assert target.secret is not None
    secret = tmp_path / "secret"
    secret.write_text(target.secret.hex() + "\n", encoding="ascii")
    secret.chmod(0o600)
    environment = os.environ | {
        "FLOWLET_JOBMANAGER": f"{target.host}:{target.port}",
        "FLOWLET_SECRET_FILE": str(secret),
    }

    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM + last_line],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", "")


@pytest.mark.slow
def test_a_job_whose_job_manager_is_gone_says_so_and_its_client_leaves_nothing() -> None:
    """Each question names the JobManager that does not answer, and ``close`` ends the threads."""
    threads = set(threading.enumerate())
    with MiniCluster(2) as mini_cluster:
        job = mini_cluster.execute(endless_shuffle())
        target = mini_cluster.target
    for ask in (job.status, job.cancel, job.checkpoints, job.wait):
        with pytest.raises(FlowletError, match="was closed"):
            ask()
    with pytest.raises(
        RpcConnectError,
        match=f"JobManager {target.host}:{target.port}: Connection refused: nothing listens there; start a JobManager",
    ) as refused:
        execute(endless_shuffle(), target)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__

    job.close()

    assert set(threading.enumerate()) == threads


@pytest.mark.slow
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

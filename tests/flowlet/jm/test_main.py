"""Tests of ``python -m flowlet.jm`` as a process."""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from flowlet.rpc.http import RpcClient
from flowlet.rpc.secret import load_or_create_secret
from tests.forked_processes import ForkServer, Outcome, fork_server
from tests.waiting import PATIENCE_S, Stopwatch

pytestmark = pytest.mark.slow
READY = re.compile(r"JobManager listening on http://127\.0\.0\.1:(\d+)\n")


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Provide a JobManager on a free port, not ready yet."""
    command = [
        sys.executable,
        "-m",
        "flowlet.jm",
        "--secret-file",
        str(tmp_path / "secret"),
        "--port",
        "0",
        "--advertise",
        "127.0.0.1:9",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        yield process
        if process.poll() is None:
            process.kill()


def wait_until_ready(process: subprocess.Popen[str]) -> int:
    """Wait until the process is ready; return its port."""
    assert process.stdout is not None
    line = process.stdout.readline()
    match = READY.fullmatch(line)
    assert match is not None, (line, process.stderr.read() if process.stderr is not None else "")
    return int(match[1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_order(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """The process ends with exit code 0 within two seconds, with one line on standard output and no traceback."""
    wait_until_ready(process)

    with Stopwatch(process.pid) as watch:
        process.send_signal(number)
        output, errors = process.communicate(timeout=PATIENCE_S)

    assert watch.seconds < 2
    assert (process.returncode, output) == (0, "")
    assert "Traceback" not in errors


async def test_it_serves_who_knows_the_secret(process: subprocess.Popen[str], tmp_path: Path) -> None:
    port = wait_until_ready(process)

    async with RpcClient("127.0.0.1", port, load_or_create_secret(tmp_path / "secret")) as client:
        answer = await client.request("GET", "/overview")
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/overview") as refused:
        status = refused.status

    assert (answer.status, status) == (200, 401)


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1:9", 401), ("127.0.0.1:10", 421)])
async def test_it_serves_at_the_address_that_it_advertises(
    process: subprocess.Popen[str], host: str, status: int
) -> None:
    port = wait_until_ready(process)

    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/overview", headers={"Host": host}) as refused,
    ):
        assert refused.status == status


@pytest.fixture(scope="module")
def forked() -> Iterator[ForkServer]:
    with fork_server("flowlet.jm.job_manager", "typer", "uvloop") as server:
        yield server


Run = Callable[..., Outcome]


@pytest.fixture
def run(forked: ForkServer, tmp_path: Path) -> Run:
    return partial(forked.run, "flowlet.jm", "--secret-file", str(tmp_path / "secret"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], "refusing to listen on 0.0.0.0: only loopback"),
        (["--port", "x"], "--port"),
        (["--port", "65536"], "--port"),
        (["--bogus"], "--bogus"),
        (["--slot-request-timeout", "0"], "slot_request_timeout_s is 0.0"),
        (["--log-level", "loud"], "loud"),
    ],
)
def test_a_bad_option_is_one_line_and_exit_code_2(run: Run, options: list[str], message: str) -> None:
    code, output, errors = run(*options)

    assert (code, output) == (2, "")
    assert errors.startswith("python -m flowlet.jm: ")
    assert errors.count("\n") == 1
    assert message in errors


def test_a_port_in_use_is_one_line_and_exit_code_2(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        code, output, errors = run("--port", str(port))

    assert (code, output) == (2, "")
    assert errors == f"python -m flowlet.jm: cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_a_secret_that_others_can_read_is_one_line_and_exit_code_2(run: Run, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("ab" * 32)
    (tmp_path / "secret").chmod(0o644)

    code, output, errors = run("--port", "0")

    assert (code, output) == (2, "")
    assert errors.count("\n") == 1
    assert "chmod 600" in errors
    assert "abab" not in errors

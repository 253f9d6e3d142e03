"""Tests of ``python -m flowlet.jm`` as a process."""

import re
import signal
import socket
from pathlib import Path

import aiohttp
import pytest

from flowlet.rpc.http import RpcClient
from flowlet.rpc.secret import load_or_create_secret
from tests.cluster_commands import Command, Start
from tests.waiting import Stopwatch

pytestmark = pytest.mark.slow
READY = re.compile(r"JobManager listening on http://127\.0\.0\.1:(\d+)\n")


@pytest.fixture
def job_manager(start: Start) -> Command:
    """Provide a JobManager on a free port, not ready yet."""
    return start("flowlet.jm", "--port", "0", "--advertise", "127.0.0.1:9")


def wait_until_ready(job_manager: Command) -> int:
    """Wait until the process is ready; return its port."""
    line = job_manager.stdout.readline()
    match = READY.fullmatch(line)
    assert match is not None, line
    return int(match[1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_order(job_manager: Command, number: signal.Signals) -> None:
    """The process ends with exit code 0 within two seconds, with one line on standard output and no traceback."""
    wait_until_ready(job_manager)

    with Stopwatch(job_manager.pid) as watch:
        job_manager.process.send_signal(number)
        code, output, errors = job_manager.result()

    assert watch.seconds < 2
    assert (code, output) == (0, "")
    assert "Traceback" not in errors


async def test_it_serves_who_knows_the_secret_at_the_address_that_it_advertises(
    job_manager: Command, tmp_path: Path
) -> None:
    """Others are refused; at an address that is none of its own, for that."""
    port = wait_until_ready(job_manager)
    refused = {}

    async with RpcClient("127.0.0.1", port, load_or_create_secret(tmp_path / "secret")) as client:
        answer = await client.request("GET", "/overview")
    async with aiohttp.ClientSession() as session:
        for host in (f"127.0.0.1:{port}", "127.0.0.1:9", "127.0.0.1:10"):
            async with session.get(f"http://127.0.0.1:{port}/overview", headers={"Host": host}) as refusal:
                refused[host] = refusal.status

    assert answer.status == 200
    assert refused == {f"127.0.0.1:{port}": 401, "127.0.0.1:9": 401, "127.0.0.1:10": 421}


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
def test_a_bad_option_is_one_line_and_exit_code_2(start: Start, options: list[str], message: str) -> None:
    code, output, errors = start("flowlet.jm", *options).result()

    assert (code, output) == (2, "")
    assert errors.startswith("python -m flowlet.jm: ")
    assert errors.count("\n") == 1
    assert message in errors


def test_a_port_in_use_is_one_line_and_exit_code_2(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        code, output, errors = start("flowlet.jm", "--port", str(port)).result()

    assert (code, output) == (2, "")
    assert errors == f"python -m flowlet.jm: cannot listen on 127.0.0.1:{port}: Address already in use\n"


def test_a_secret_that_others_can_read_is_one_line_and_exit_code_2(start: Start, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("ab" * 32)
    (tmp_path / "secret").chmod(0o644)

    code, output, errors = start("flowlet.jm", "--port", "0").result()

    assert (code, output) == (2, "")
    assert errors.count("\n") == 1
    assert "chmod 600" in errors
    assert "abab" not in errors

"""Tests of ``flowlet.jm.job_manager``: its config, where it listens, and how it ends."""

import asyncio
import contextlib
import math
import socket
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowlet.errors import ConfigError
from flowlet.jm.job_manager import JobManager
from flowlet.jm.job_manager_config import JobManagerConfig
from flowlet.messages.execution_state import ExecutionState
from flowlet.rpc.auth import AuthenticationError
from flowlet.rpc.http import RpcClient
from flowlet.shipping.bundle_store import PartStore
from tests.flowlet.jm.conftest import Cluster
from tests.flowlet.jm.scripted_task_manager import JOB_ID, SECRET, word_count
from tests.waiting import PATIENCE_S


async def test_port_0_picks_a_free_one_which_the_end_gives_back() -> None:
    """The end is idempotent, and needs no start."""
    job_manager = JobManager(JobManagerConfig(SECRET))

    host, port = await job_manager.start()
    listening = repr(job_manager)
    await job_manager.close()
    await job_manager.close()

    assert (host, port > 0) == ("127.0.0.1", True)
    assert str(port) in listening
    assert "closed" in repr(job_manager)
    with socket.create_server((host, port)):
        await JobManager(JobManagerConfig(SECRET)).close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org", ""])
async def test_only_loopback_addresses_are_listened_on(host: str) -> None:
    with pytest.raises(ConfigError, match="only loopback"):
        await JobManager(JobManagerConfig(SECRET)).start(host, 0)


async def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            await JobManager(JobManagerConfig(SECRET)).start("127.0.0.1", port)


async def test_the_end_cancels_jobs_and_waits_for_them(cluster: Cluster) -> None:
    """Jobs end as cancelled, not as lost, as long as their TaskManagers cooperate."""
    task_manager = await cluster.connect()
    job = cluster.dispatcher.submit(word_count())
    attempts = [(await task_manager.expect_deployment()).attempt for _ in range(2)]
    cluster.dispatcher._config = JobManagerConfig(SECRET, shutdown_timeout_s=10)

    async with asyncio.TaskGroup() as group:
        group.create_task(cluster.job_manager.close())
        for attempt in [await task_manager.expect_cancel() for _ in attempts]:
            await task_manager.report(attempt, ExecutionState.CANCELED)
        reason = await task_manager.expect_close()

    assert reason == "the JobManager is shutting down"
    assert job.graph.status.name == "CANCELED"


async def test_the_end_answers_those_who_wait_for_a_job(cluster: Cluster) -> None:
    """The TaskManager of the job may fail to cooperate."""
    await cluster.connect()
    cluster.dispatcher.submit(word_count())

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(cluster.request("GET", f"/jobs/{JOB_ID}/execution-result?timeout_ms=60000"))
        await cluster.request("GET", "/overview")  # by now the other request is being served, too
        await cluster.job_manager.close()

    assert b'"state":"CANCELED"' in waiting.result().body


async def test_a_silent_connection_is_cut_for_a_new_one_and_costs_no_task(unstarted: Cluster) -> None:
    await unstarted.start(max_unproved_connections=1)
    num_tasks = len(asyncio.all_tasks())
    first_reader, first_writer = await asyncio.open_connection(*unstarted.address)
    second_reader, second_writer = await asyncio.open_connection(*unstarted.address)

    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionResetError):
            assert await first_reader.read() == b""

    assert len(asyncio.all_tasks()) == num_tasks
    second_writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b'{"status":"ok"}' in await second_reader.read()
    for writer in (first_writer, second_writer):
        writer.close()


async def test_a_request_passed_on_by_who_listens_elsewhere_is_refused(cluster: Cluster) -> None:
    """The port of a JobManager that is gone, say: its TaskManagers still dial it."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*cluster.address)
        there_writer.write(await reader.readuntil(b"\r\n\r\n"))
        writer.write(await there_reader.read())
        for each in (writer, there_writer):
            each.close()

    relay = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    async with RpcClient("127.0.0.1", relay.sockets[0].getsockname()[1], SECRET) as client:
        with pytest.raises(AuthenticationError, match="has another address"):
            await client.open_session()
        with pytest.raises(AuthenticationError, match="start it with --advertise 127"):
            await client.request("GET", "/overview")
    relay.close()
    await relay.wait_closed()


async def test_files_that_arrive_at_the_end_make_no_directory(
    unstarted: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that looks for them may get there after the JobManager has removed its files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    await unstarted.start()
    reads, may_go_on, read = threading.Event(), threading.Event(), PartStore.sizes

    def read_late(store: PartStore) -> dict[bytes, int]:
        reads.set()
        assert may_go_on.wait(PATIENCE_S)
        return read(store)

    monkeypatch.setattr(PartStore, "sizes", read_late)
    asked = asyncio.ensure_future(unstarted.request("POST", "/files/missing", msgspec.msgpack.encode([bytes(32)])))
    await asyncio.to_thread(reads.wait, PATIENCE_S)
    [thread] = [each for each in threading.enumerate() if each.name == "shipped files"]

    await unstarted.job_manager.close()
    may_go_on.set()
    await asyncio.to_thread(thread.join, PATIENCE_S)
    await asyncio.gather(asked, return_exceptions=True)

    left = await asyncio.to_thread(lambda: list(tmp_path.rglob("*")))
    assert [path for path in left if not path.name.startswith("flowlet-")] == []


def test_the_secret_is_never_shown() -> None:
    assert "ssss" not in repr(JobManagerConfig(SECRET))


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_secret_has_32_bytes(length: int) -> None:
    with pytest.raises(ConfigError, match=f"secret has {length} bytes"):
        JobManagerConfig(b"s" * length)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 2_000_000_000])
@pytest.mark.parametrize("option", ["slot_request_timeout_s", "heartbeat_timeout_s", "max_active_jobs"])
def test_numbers_are_positive_and_finite(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=option):
        JobManagerConfig(SECRET, **{option: value})


def test_processes_are_given_as_long_as_in_flink() -> None:
    """A function may keep the interpreter's lock for so long; heartbeat.interval and heartbeat.timeout."""
    config = JobManagerConfig(SECRET)

    assert (config.heartbeat_interval_ms, config.heartbeat_timeout_s) == (10_000, 50.0)


def test_a_timeout_that_no_heartbeat_can_keep_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"heartbeat_interval_ms is 10000, it must be less than the heartbeat_timeout_s of 8"
    ):
        JobManagerConfig(SECRET, heartbeat_timeout_s=8.0)

"""Tests of ``flowlet.jm.job_manager``: where it listens, and how it ends."""

import asyncio
import contextlib
import socket
import threading
from pathlib import Path

import msgspec
import pytest

from flowlet.errors import ConfigError
from flowlet.jm.dispatcher import BusyError
from flowlet.jm.job_manager import JobManager
from flowlet.jm.job_manager_config import JobManagerConfig
from flowlet.messages.execution_state import ExecutionState
from flowlet.rpc.auth import AuthenticationError
from flowlet.rpc.http import RpcClient
from flowlet.shipping.bundle_store import PartStore
from tests.flowlet.jm.conftest import Connect, StartJobManager
from tests.flowlet.jm.scripted_task_manager import JOB_ID, SECRET, word_count
from tests.waiting import PATIENCE_S

Address = tuple[str, int]


async def test_port_0_picks_a_free_one() -> None:
    job_manager = JobManager(JobManagerConfig(SECRET))

    host, port = await job_manager.start()
    listening = repr(job_manager)
    await job_manager.close()

    assert (host, port > 0) == ("127.0.0.1", True)
    assert str(port) in listening
    assert "closed" in repr(job_manager)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org", ""])
async def test_only_loopback_addresses_are_listened_on(host: str) -> None:
    with pytest.raises(ConfigError, match="only loopback"):
        await JobManager(JobManagerConfig(SECRET)).start(host, 0)


async def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            await JobManager(JobManagerConfig(SECRET)).start("127.0.0.1", port)


async def test_the_end_is_idempotent_and_frees_the_port() -> None:
    job_manager = JobManager(JobManagerConfig(SECRET))
    host, port = await job_manager.start()

    await job_manager.close()
    await job_manager.close()

    with socket.create_server((host, port)):
        pass


async def test_one_that_never_started_can_be_closed() -> None:
    await JobManager(JobManagerConfig(SECRET)).close()


async def test_the_end_cancels_jobs_and_waits_for_them(
    address: Address, connect: Connect, job_managers: list[JobManager]
) -> None:
    """Jobs end as cancelled, not as lost, as long as their TaskManagers cooperate."""
    task_manager = await connect(address)
    job = job_managers[0].dispatcher.submit(word_count())
    attempts = [(await task_manager.expect_deployment()).attempt for _ in range(2)]
    job_managers[0].dispatcher._config = JobManagerConfig(SECRET, shutdown_timeout_s=10)

    async with asyncio.TaskGroup() as group:
        group.create_task(job_managers[0].close())
        for attempt in [await task_manager.expect_cancel() for _ in attempts]:
            await task_manager.report(attempt, ExecutionState.CANCELED)
        reason = await task_manager.expect_close()

    assert reason == "the JobManager is shutting down"
    assert job.graph.status.name == "CANCELED"


async def test_the_end_answers_those_who_wait_for_a_job(
    address: Address, connect: Connect, job_managers: list[JobManager]
) -> None:
    """The TaskManager of the job may fail to cooperate."""
    await connect(address)
    job_managers[0].dispatcher.submit(word_count())

    async with RpcClient(*address, SECRET) as client, asyncio.TaskGroup() as group:
        waiting = group.create_task(client.request("GET", f"/jobs/{JOB_ID}/execution-result?timeout_ms=60000"))
        await client.request("GET", "/overview")  # by now the other request is being served, too
        await job_managers[0].close()

    assert b'"state":"CANCELED"' in waiting.result().body


async def test_a_stopping_one_takes_no_job(address: Address, job_managers: list[JobManager]) -> None:
    await job_managers[0].close()

    with pytest.raises(BusyError, match="stopping"):
        job_managers[0].dispatcher.submit(word_count())


async def test_a_silent_connection_is_cut_for_a_new_one_and_costs_no_task(start_job_manager: StartJobManager) -> None:
    address = await start_job_manager(max_unproved_connections=1)
    num_tasks = len(asyncio.all_tasks())
    first_reader, first_writer = await asyncio.open_connection(*address)
    second_reader, second_writer = await asyncio.open_connection(*address)

    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionResetError):
            assert await first_reader.read() == b""

    assert len(asyncio.all_tasks()) == num_tasks
    second_writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b'{"status":"ok"}' in await second_reader.read()
    for writer in (first_writer, second_writer):
        writer.close()


async def test_a_request_passed_on_by_who_listens_elsewhere_is_refused(address: Address) -> None:
    """The port of a JobManager that is gone, say: its TaskManagers still dial it."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*address)
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
    start_job_manager: StartJobManager, job_managers: list[JobManager], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that looks for them may get there after the JobManager has removed its files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    reads, may_go_on, read = threading.Event(), threading.Event(), PartStore.sizes

    def read_late(store: PartStore) -> dict[bytes, int]:
        reads.set()
        assert may_go_on.wait(PATIENCE_S)
        return read(store)

    monkeypatch.setattr(PartStore, "sizes", read_late)
    async with RpcClient(*await start_job_manager(), SECRET) as client:
        asked = asyncio.ensure_future(
            client.request("POST", "/files/missing", body=msgspec.msgpack.encode([bytes(32)]))
        )
        await asyncio.to_thread(reads.wait, PATIENCE_S)
        [thread] = [each for each in threading.enumerate() if each.name == "shipped files"]

        await job_managers[0].close()
        may_go_on.set()
        await asyncio.to_thread(thread.join, PATIENCE_S)
        await asyncio.gather(asked, return_exceptions=True)

    left = await asyncio.to_thread(lambda: list(tmp_path.rglob("*")))
    assert [path for path in left if not path.name.startswith("flowlet-")] == []

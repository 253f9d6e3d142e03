"""Tests of ``flowlet.checkpoint.jobmanager.savepoints``: over REST, with a scripted TaskManager."""

from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from flowlet.common.job_settings import CheckpointSettings, JobSettings
from flowlet.messages.control_messages import CheckpointCompleted, TriggerCheckpoint
from flowlet.messages.execution_state import ExecutionState
from flowlet.messages.job_messages import JobGraphMessage
from flowlet.rpc.http import RpcClient
from flowlet.rpc.requests import RpcResponse
from flowlet.storage.checkpoint_storage import SavepointStorage
from flowlet.storage.manifest import manifest_key
from netstack.wire.events import SnapshotType
from tests.flowlet.jm.acknowledgements import acknowledged
from tests.flowlet.jm.conftest import Connect
from tests.flowlet.jm.scripted_task_manager import JOB_ID, SECRET, ScriptedTaskManager, word_count

Address = tuple[str, int]
JOB = f"/jobs/{JOB_ID}"


def job(directory: str) -> JobGraphMessage:
    """Return a job whose results no client reads."""
    message = word_count()
    settings = JobSettings(checkpoints=CheckpointSettings(None, "", savepoint_directory=directory))
    return msgspec.structs.replace(message, edges=message.edges[:1], settings=settings)


async def started(client: RpcClient, task_manager: ScriptedTaskManager, message: JobGraphMessage) -> list[bytes]:
    answer = await client.request("POST", "/jobs", body=msgspec.msgpack.encode(message))
    assert answer.status == 202, answer.body
    attempts = [(await task_manager.expect_deployment()).attempt for _ in range(2)]
    for attempt in attempts:
        await task_manager.report(attempt, ExecutionState.RUNNING)
    return attempts


async def posted(client: RpcClient, path: str, **body: object) -> RpcResponse:
    return await client.request("POST", path, body=msgspec.json.encode(body))


def errors(answer: RpcResponse) -> tuple[int, str]:
    (error,) = msgspec.json.decode(answer.body, type=dict[str, list[str]])["errors"]
    return answer.status, error


async def ended(client: RpcClient, request_id: str) -> Any:
    answer = await client.request("GET", f"{JOB}/savepoints/{request_id}?timeout_ms=10000")
    return msgspec.json.decode(answer.raise_for_status().body)


async def test_a_savepoint_from_the_request_to_its_place(
    address: Address, client: RpcClient, connect: Connect, tmp_path: Path
) -> None:
    task_manager = await connect(address)
    attempts = await started(client, task_manager, job(str(tmp_path)))

    answer = await posted(client, f"{JOB}/savepoints", triggerId="ab" * 16)
    again = await posted(client, f"{JOB}/savepoints", triggerId="ab" * 16)
    order = await task_manager.expect(TriggerCheckpoint)
    pending = await client.request("GET", f"{JOB}/savepoints/{'ab' * 16}")
    for attempt in attempts:
        await task_manager.send(acknowledged(attempt, order.checkpoint_id))
    document = await ended(client, "ab" * 16)

    assert msgspec.json.decode(answer.body) == msgspec.json.decode(again.body) == {"request-id": "ab" * 16}
    assert answer.status == 202
    assert msgspec.json.decode(pending.body)["status"] == {"id": "IN_PROGRESS"}
    assert order.snapshot_type == SnapshotType.SAVEPOINT
    assert document == {"status": {"id": "COMPLETED"}, "operation": {"location": order.location}}
    assert SavepointStorage(order.location, manifest_key(SECRET)).read_manifest().job_id == JOB_ID


@pytest.mark.parametrize(
    ("drain", "kind"), [(True, SnapshotType.SAVEPOINT_TERMINATE), (False, SnapshotType.SAVEPOINT_SUSPEND)]
)
async def test_a_job_is_stopped(
    address: Address, client: RpcClient, connect: Connect, tmp_path: Path, drain: bool, kind: SnapshotType
) -> None:
    """The request has ended when the job has."""
    task_manager = await connect(address)
    attempts = await started(client, task_manager, job(""))

    answer = await posted(client, f"{JOB}/stop", targetDirectory=str(tmp_path), drain=drain)
    request_id = msgspec.json.decode(answer.body)["request-id"]
    order = await task_manager.expect(TriggerCheckpoint)
    for attempt in attempts:
        await task_manager.send(acknowledged(attempt, order.checkpoint_id))
    for _ in attempts:
        await task_manager.expect(CheckpointCompleted)
    for attempt in attempts:
        await task_manager.report(attempt, ExecutionState.FINISHED)
    document = await ended(client, request_id)
    late = await posted(client, f"{JOB}/stop", targetDirectory=str(tmp_path))

    assert order.snapshot_type == kind
    assert document["operation"] == {"location": order.location}
    assert errors(late) == (409, "the job is FINISHED")


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        ("savepoints", {"target-directory": 7}, 400, "the body is no request for a savepoint"),
        ("savepoints", {"unheard-of": True}, 400, "the body is no request for a savepoint"),
        ("stop", {"drain": "yes"}, 400, "the body is no request to stop"),
        ("savepoints", {"triggerId": "../x"}, 400, "triggerId must have 32 lower-case hex digits"),
        ("stop", {"formatType": "NATIVE"}, 400, "in the CANONICAL format only"),
        ("savepoints", {"target-directory": "/" + "x" * 5000}, 400, "more than 4096 characters"),
        ("savepoints", {"target-directory": "relative"}, 409, "name an absolute path"),
        ("savepoints", {}, 409, "name a directory"),
    ],
)
async def test_what_is_wrong_is_said(
    address: Address, client: RpcClient, connect: Connect, path: str, body: dict[str, object], status: int, error: str
) -> None:
    await started(client, await connect(address), job(""))

    found = errors(await posted(client, f"{JOB}/{path}", **body))

    assert found[0] == status
    assert error in found[1]


async def test_unknown_jobs_and_requests_are_said(address: Address, client: RpcClient, connect: Connect) -> None:
    await started(client, await connect(address), job(""))

    assert errors(await posted(client, f"/jobs/{'f' * 32}/stop")) == (404, "no job with this id")
    status, error = errors(await client.request("GET", f"{JOB}/savepoints/{'0' * 32}"))
    assert status == 404
    assert error.startswith("no such request is known")


@pytest.mark.parametrize("path", ["savepoints", "stop"])
async def test_nobody_without_the_secret_gets_in(address: Address, path: str) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{address[0]}:{address[1]}{JOB}/{path}", json={}) as answer,
    ):
        assert answer.status == 401

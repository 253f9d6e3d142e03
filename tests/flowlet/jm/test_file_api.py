"""Parts of files over signed HTTP."""

import hashlib
from pathlib import Path

import msgspec
import pytest

from flowlet.jm.job_manager import JobManager
from flowlet.messages.program_bundle import PART_BYTES
from flowlet.rpc.http import RpcClient
from tests.flowlet.jm.conftest import StartJobManager
from tests.flowlet.jm.scripted_task_manager import SECRET

CONTENT = b"content"
TOO_LARGE = bytes(PART_BYTES + 1)
DIGEST = hashlib.sha256(CONTENT).digest()


def files_below(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


async def test_a_part_that_was_put_is_no_longer_missing_and_can_be_got(start_job_manager: StartJobManager) -> None:
    async with RpcClient(*await start_job_manager(), SECRET) as rpc:
        missing = await rpc.request("POST", "/files/missing", body=msgspec.msgpack.encode([DIGEST]))
        put = await rpc.request("PUT", f"/files/{DIGEST.hex()}", body=CONTENT)
        then = await rpc.request("POST", "/files/missing", body=msgspec.msgpack.encode([DIGEST]))
        got = await rpc.request("GET", f"/files/{DIGEST.hex()}")

    assert msgspec.msgpack.decode(missing.body) == [DIGEST]
    assert put.status == 201
    assert msgspec.msgpack.decode(then.body) == []
    assert (got.status, got.body) == (200, CONTENT)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (DIGEST.hex(), b"other"),
        ("ab", CONTENT),
        ("..%2Fa", CONTENT),
        (hashlib.sha256(TOO_LARGE).hexdigest(), TOO_LARGE),
    ],
)
async def test_a_part_that_is_not_what_its_name_says_is_refused(
    name: str, content: bytes, start_job_manager: StartJobManager
) -> None:
    async with RpcClient(*await start_job_manager(), SECRET) as rpc:
        answer = await rpc.request("PUT", f"/files/{name}", body=content)

    assert answer.status == 400


async def test_requests_of_another_form_are_refused(start_job_manager: StartJobManager) -> None:
    async with RpcClient(*await start_job_manager(), SECRET) as rpc:
        unknown = await rpc.request("GET", f"/files/{DIGEST.hex()}")
        no_digest = await rpc.request("GET", "/files/secret")
        no_list = await rpc.request("POST", "/files/missing", body=b"\xc1")

    assert (unknown.status, no_digest.status, no_list.status) == (404, 404, 400)


async def test_temporary_files_go_with_the_jobmanager(
    start_job_manager: StartJobManager, job_managers: list[JobManager], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with RpcClient(*await start_job_manager(), SECRET) as rpc:
        await rpc.request("PUT", f"/files/{DIGEST.hex()}", body=CONTENT)
        assert DIGEST.hex() in files_below(tmp_path)

    await job_managers[0].close()

    assert files_below(tmp_path) == []

"""Parts of files over signed HTTP."""

import hashlib
from pathlib import Path

import msgspec
import pytest

from flowlet.messages.program_bundle import PART_BYTES
from tests.flowlet.jm.conftest import Cluster

CONTENT = b"content"
TOO_LARGE = bytes(PART_BYTES + 1)
DIGEST = hashlib.sha256(CONTENT).digest()


def files_below(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


async def test_a_part_that_was_put_is_no_longer_missing_and_can_be_got(cluster: Cluster) -> None:
    missing = await cluster.request("POST", "/files/missing", msgspec.msgpack.encode([DIGEST]))
    put = await cluster.request("PUT", f"/files/{DIGEST.hex()}", CONTENT)
    then = await cluster.request("POST", "/files/missing", msgspec.msgpack.encode([DIGEST]))
    got = await cluster.request("GET", f"/files/{DIGEST.hex()}")

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
async def test_a_part_that_is_not_what_its_name_says_is_refused(name: str, content: bytes, cluster: Cluster) -> None:
    assert (await cluster.request("PUT", f"/files/{name}", content)).status == 400


async def test_requests_of_another_form_are_refused(cluster: Cluster) -> None:
    unknown = await cluster.request("GET", f"/files/{DIGEST.hex()}")
    no_digest = await cluster.request("GET", "/files/secret")
    no_list = await cluster.request("POST", "/files/missing", b"\xc1")

    assert (unknown.status, no_digest.status, no_list.status) == (404, 404, 400)


async def test_temporary_files_go_with_the_jobmanager(
    unstarted: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    await unstarted.start()
    await unstarted.request("PUT", f"/files/{DIGEST.hex()}", CONTENT)
    assert DIGEST.hex() in files_below(tmp_path)

    await unstarted.job_manager.close()

    assert files_below(tmp_path) == []

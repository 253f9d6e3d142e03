"""A JobManager that is started with the job store of an earlier one goes on with its jobs; over real HTTP and
WebSockets.
"""

import dataclasses
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from flowlet.common.job_settings import JobSettings, RestartKind, RestartSettings
from flowlet.errors import ConfigError
from flowlet.jm.job_manager import JobManager
from flowlet.jm.job_manager_config import JobManagerConfig
from flowlet.messages.execution_state import ExecutionState
from flowlet.messages.job_messages import JobGraphMessage
from flowlet.rpc.http import RpcClient
from flowlet.rpc.requests import RpcResponse
from tests.flowlet.jm.conftest import Cluster
from tests.flowlet.jm.scripted_task_manager import COLLECT_ID, JOB_ID, SECRET, ScriptedTaskManager, word_count
from tests.waiting import spin_until

OTHER_ID = "ab" * 16


def restarting(job_id: str = JOB_ID) -> JobGraphMessage:
    settings = JobSettings(restart=RestartSettings(RestartKind.FIXED_DELAY))
    return msgspec.structs.replace(word_count(job_id), settings=settings)


class Successions(Cluster):
    """JobManagers one after the other at one store; each ends before the next one starts."""

    def __init__(self, stack: AsyncExitStack, store: Path) -> None:
        super().__init__(stack)
        self.config = JobManagerConfig(SECRET, job_store=store, shutdown_timeout_s=0.01, job_store_lock_s=0.01)
        self.address = ("", 0)
        self._running = AsyncExitStack()

    async def next(self) -> RpcClient:
        await self.close()
        self.job_manager = JobManager(self.config)
        self._running.push_async_callback(self.job_manager.close)
        self.address = await self.job_manager.start("127.0.0.1", self.address[1])
        return await self._running.enter_async_context(RpcClient(*self.address, SECRET))

    async def close(self) -> None:
        await self._running.aclose()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


@pytest_asyncio.fixture
async def successions(store: Path) -> AsyncIterator[Successions]:
    async with AsyncExitStack() as stack:
        successions = Successions(stack, store)
        stack.push_async_callback(successions.close)
        yield successions


async def submit(client: RpcClient, job: JobGraphMessage) -> RpcResponse:
    return await client.request("POST", "/jobs", body=msgspec.msgpack.encode(job))


async def document(client: RpcClient, path: str) -> Any:
    return msgspec.json.decode((await client.request("GET", path)).raise_for_status().body)


async def problem(client: RpcClient, path: str) -> tuple[int, str]:
    answer = await client.request("GET", path)
    return answer.status, msgspec.json.decode(answer.body, type=dict[str, list[str]])["errors"][0]


async def deployed(task_manager: ScriptedTaskManager) -> list[bytes]:
    return [(await task_manager.expect_deployment()).attempt for _ in range(2)]


async def test_a_job_is_on_disk_when_its_submission_is_answered(successions: Successions, store: Path) -> None:
    client = await successions.next()

    answer = await submit(client, word_count())

    assert answer.status == 202
    assert (store / JOB_ID / "job").stat().st_size > 100


async def test_a_job_that_the_store_does_not_take_is_refused(successions: Successions, store: Path) -> None:
    client = await successions.next()
    (store / JOB_ID).touch()

    answer = await submit(client, word_count())

    assert answer.status == 503
    assert f"job store file {store}/{JOB_ID}/job cannot be written".encode() in answer.body
    assert (await document(client, f"/jobs/{JOB_ID}"))["state"] == "FAILED"


async def test_a_job_goes_on_as_a_new_run(successions: Successions) -> None:
    """The attempts have numbers above all earlier ones; reports about earlier ones are counted, and change nothing."""
    client = await successions.next()
    first = await successions.connect()
    await submit(client, restarting())
    before = await deployed(first)
    client = await successions.next()
    waiting = await document(client, f"/jobs/{JOB_ID}")

    second = await successions.connect()
    after = await deployed(second)
    await second.report(before[0], ExecutionState.FAILED)
    await second.report(after[0], ExecutionState.RUNNING)
    await second.report(after[1], ExecutionState.RUNNING)
    await client.request("GET", f"/jobs/{JOB_ID}/collect/{COLLECT_ID}")
    overview, running = await document(client, "/overview"), await document(client, f"/jobs/{JOB_ID}")

    assert waiting["state"] == "CREATED"
    assert [int.from_bytes(attempt[-4:], "big") for attempt in before + after] == [0, 0, 1, 1]
    assert (running["state"], running["numRestarts"], running["failure"]) == ("RUNNING", 1, None)
    assert (overview["keeps-jobs"], overview["ignored-messages"]) == (True, 1)


async def test_every_jobmanager_uses_a_new_number(successions: Successions) -> None:
    """The number is kept before the run asks for slots, so a JobManager that ends before there is a TaskManager uses
    one, too.
    """
    client = await successions.next()
    await submit(client, restarting())
    last: list[bytes] = []
    for _ in range(2):
        task_manager = await successions.connect()
        last = await deployed(task_manager)
        client = await successions.next()

    assert [int.from_bytes(attempt[-4:], "big") for attempt in last] == [1, 1]
    assert (await document(client, f"/jobs/{JOB_ID}"))["numRestarts"] == 2


async def test_a_job_that_may_not_run_twice_has_failed(successions: Successions) -> None:
    await submit(await successions.next(), word_count())

    for _ in range(2):
        found = await document(await successions.next(), f"/jobs/{JOB_ID}/execution-result")
        assert (found["state"], found["failure"]["exception_type"]) == ("FAILED", "JobManagerLost")


async def test_the_next_jobmanager_tells_how_a_job_ended(successions: Successions, store: Path) -> None:
    """The client may not have heard of it; and the job must not run again, nor its id be used again."""
    client = await successions.next()
    task_manager = await successions.connect()
    await submit(client, restarting())
    for attempt in await deployed(task_manager):
        await task_manager.report(attempt, ExecutionState.RUNNING)
        await task_manager.report(attempt, ExecutionState.FINISHED)
    told = await document(client, f"/jobs/{JOB_ID}/execution-result")
    kept = sorted(path.name for path in (store / JOB_ID).iterdir())  # when it is told, it is on disk

    client = await successions.next()

    assert kept == ["end"]
    assert told["state"] == "FINISHED"
    assert (await document(client, f"/jobs/{JOB_ID}/execution-result")) | {"now": 0} == told | {"now": 0}
    assert (await document(client, f"/jobs/{JOB_ID}")) | {"now": 0} == told | {"now": 0}
    assert await problem(client, f"/jobs/{JOB_ID}/collect/{COLLECT_ID}") == (409, "the job is FINISHED")
    assert (await submit(client, restarting())).status == 409


async def test_a_corrupt_entry_stops_its_job_alone(successions: Successions, store: Path) -> None:
    """A request for the job is answered with the name of the file."""
    client = await successions.next()
    await submit(client, restarting())
    await submit(client, restarting(OTHER_ID))
    file = store / JOB_ID / "job"
    damaged = file.read_bytes()[:-1]
    file.write_bytes(damaged)

    client = await successions.next()
    status, words = await problem(client, f"/jobs/{JOB_ID}")

    assert (status, str(file) in words) == (404, True)
    assert [each["jid"] for each in (await document(client, "/jobs/overview"))["jobs"]] == [OTHER_ID]
    assert file.read_bytes() == damaged


async def test_two_jobmanagers_do_not_share_a_store(successions: Successions) -> None:
    await successions.next()

    with pytest.raises(ConfigError, match="another JobManager uses it"):
        await JobManager(successions.config).start()


async def test_a_start_that_fails_gives_the_store_back(successions: Successions) -> None:
    await successions.next()
    port = successions.address[1]
    other = JobManager(JobManagerConfig(SECRET, job_store=successions.config.job_store))

    await successions.close()
    blocker = JobManager(JobManagerConfig(SECRET))
    await blocker.start("127.0.0.1", port)
    with pytest.raises(ConfigError, match="Address already in use"):
        await other.start("127.0.0.1", port)
    await blocker.close()

    await successions.next()


async def test_the_ends_of_jobs_do_not_pile_up(successions: Successions, store: Path) -> None:
    """A store holds as many ends as a JobManager without a store, those of earlier JobManagers included."""
    successions.config = dataclasses.replace(successions.config, max_finished_jobs=1)
    await submit(await successions.next(), word_count())
    await submit(await successions.next(), word_count(OTHER_ID))

    client = await successions.next()
    await document(client, f"/jobs/{OTHER_ID}/execution-result")

    spin_until(lambda: [path.name for path in store.iterdir() if path.is_dir()] == [OTHER_ID], "one end is left")

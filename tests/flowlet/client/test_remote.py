"""Asking a JobManager from the user's thread."""

import asyncio
import os
import secrets
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from flowlet.client import remote
from flowlet.client.executor import execute
from flowlet.client.remote import ClusterClient, JobEndedError, JobManagerApi, RemoteTarget
from flowlet.common import Configuration
from flowlet.common.option import settings_of
from flowlet.common.options.client_options import ClientRetry
from flowlet.errors import FlowletError, JobExecutionError, JobSubmissionError
from flowlet.messages.job_messages import JobGraphMessage
from flowlet.rpc.auth import AuthenticationError
from flowlet.rpc.http import RpcClient
from flowlet.rpc.requests import RpcConnectError, RpcResponse, RpcStatusError
from tests.flowlet.client.conftest import SharedCluster
from tests.flowlet.client.jobs import endless_shuffle, word_count
from tests.flowlet.client.programs import variables_of
from tests.flowlet.task.local_network import Thread
from tests.waiting import PATIENCE_S


@pytest.fixture
def client(cluster: SharedCluster) -> Iterator[ClusterClient]:
    client = cluster.target.open(1)
    yield client
    client.close()


def test_a_cluster_that_is_not_there_is_named() -> None:
    """The error is raised at once, not after the first job was prepared."""
    with pytest.raises(RpcConnectError, match=r"JobManager 127\.0\.0\.1:1: Connection refused"):
        RemoteTarget("127.0.0.1", 1, secret=bytes(32)).open(1)


def test_a_client_whose_loop_does_not_run_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's thread ends on a machine that stands still, and no connection is made that would stay open."""

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(remote, "create_rpc_client", never)
    for limit in ("_START_TIMEOUT_S", "_DISCONNECT_TIMEOUT_S"):
        monkeypatch.setattr(remote, limit, 0.01, raising=False)
    threads = set(threading.enumerate())

    reason = r"the client's event loop did not run within 0\.01 s: the machine is too busy"
    with pytest.raises(FlowletError, match=reason):
        RemoteTarget("127.0.0.1", 1, secret=bytes(32)).open(1)

    assert set(threading.enumerate()) == threads


def test_another_secret_is_told_apart_from_a_missing_cluster(cluster: SharedCluster) -> None:
    target = RemoteTarget(cluster.target.host, cluster.target.port, secret=secrets.token_bytes(32))

    with pytest.raises(AuthenticationError, match="same secret file"):
        target.open(1)


def test_the_secret_may_come_from_a_file(cluster: SharedCluster, tmp_path: Path) -> None:
    variables_of(cluster.target, tmp_path)

    client = RemoteTarget(cluster.target.host, cluster.target.port, tmp_path / "secret").open(1)
    overview = client.call(JobManagerApi.overview)
    client.close()

    assert overview["taskmanagers"] == 2


def test_the_secret_is_not_shown() -> None:
    assert "secret=" not in repr(RemoteTarget("h", 1, secret=b"hidden"))


def test_an_unknown_job_is_answered_with_the_servers_words(client: ClusterClient) -> None:
    with pytest.raises(RpcStatusError, match="no job with this id"):
        client.call(lambda api: api.job("ab" * 16))


def test_a_refused_job_says_why(client: ClusterClient, cluster: SharedCluster) -> None:
    job_graph, _ = word_count()
    execute(job_graph, cluster.target).close()

    with pytest.raises(JobSubmissionError, match="job 'word count' was refused: a job with the id "):
        execute(job_graph, cluster.target)


def test_waiting_ends_at_the_timeout(client: ClusterClient, cluster: SharedCluster) -> None:
    job = cluster.execute(endless_shuffle())

    assert client.call(lambda api: api.wait_terminal(job.job_id, 0.01)) is None


class ScriptedRpc:
    """A JobManager on a manual clock: each answer comes after so many seconds, the last one with a document."""

    def __init__(self, *delays_s: float) -> None:
        self.now_s = 0.0
        self.asked_ms: list[int] = []
        self._delays_s = list(delays_s)

    async def request(self, method: str, path: str, *, body: bytes = b"", timeout_s: float = 30.0) -> RpcResponse:
        self.asked_ms.append(int(path.partition("timeout_ms=")[2].partition("&")[0]))
        self.now_s += self._delays_s.pop(0)
        return RpcResponse(204, b"") if self._delays_s else RpcResponse(200, b'{"state": "FINISHED"}')


@pytest.mark.parametrize(
    ("delays_s", "asked_ms"),
    [((1, 1, 1, 1), [5_000, 4_000, 3_000, 2_000]), ((0, 4.5, 0.25), [5_000, 5_000, 500])],
    ids=["a JobManager that polls for a second at most", "one that was started again meanwhile"],
)
async def test_a_wait_lasts_as_long_as_it_was_asked_to(delays_s: tuple[float, ...], asked_ms: list[int]) -> None:
    """How long the JobManager lets each question wait is its own affair."""
    rpc = ScriptedRpc(*delays_s)
    api = JobManagerApi(cast(RpcClient, rpc), lambda: rpc.now_s)

    assert await api.wait_terminal("ab" * 16, 5) == {"state": "FINISHED"}
    assert rpc.asked_ms == asked_ms


@pytest.mark.parametrize("delays_s", [(2, 2, 2, 2), (30, 30), (5, 5)])
async def test_a_wait_is_over_at_its_end_whenever_the_answers_come(delays_s: tuple[float, ...]) -> None:
    rpc = ScriptedRpc(*delays_s)

    assert await JobManagerApi(cast(RpcClient, rpc), lambda: rpc.now_s).wait_terminal("ab" * 16, 5) is None
    assert 5 <= rpc.now_s - max(0, delays_s[0] - 5) < 7


def test_channels_of_a_job_that_has_ended_are_an_error_of_their_own(
    client: ClusterClient, cluster: SharedCluster
) -> None:
    job_graph, edge_id = word_count(split=lambda line: [(line, 1 // 0)])
    job = cluster.execute(job_graph)
    with pytest.raises(JobExecutionError):
        job.wait(PATIENCE_S)

    with pytest.raises(JobEndedError, match="FAILED"):
        client.call(lambda api: api.wait_channels(job.job_id, edge_id))


def test_closing_ends_a_call_that_waits_on_another_thread(client: ClusterClient, cluster: SharedCluster) -> None:
    job = cluster.execute(endless_shuffle())
    waiting = threading.Event()

    async def wait_for_ever(api: JobManagerApi) -> None:
        waiting.set()
        await api.wait_terminal(job.job_id, None)

    call = Thread(lambda: client.call(wait_for_ever), "call")
    assert waiting.wait(PATIENCE_S)
    client.close()

    with pytest.raises(FlowletError, match=r"^the connection to the cluster was closed$"):
        call.result()


def test_a_closed_client_says_so(client: ClusterClient) -> None:
    client.close()
    client.close()

    with pytest.raises(FlowletError, match="was closed"):
        client.call(JobManagerApi.overview)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_leaves_its_parents_client_alone(client: ClusterClient) -> None:
    """The client's loop does not run in a child: a call would wait for ever, ``close`` at exit for fifteen seconds."""
    child = os.fork()
    if not child:
        signal.alarm(int(PATIENCE_S))
        try:
            client.call(JobManagerApi.overview)
        except FlowletError as error:
            client.close()
            os._exit(0 if "forked child" in str(error) else 1)
        os._exit(2)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client.call(JobManagerApi.overview)["jobs-failed"] >= 0


def test_ctrl_c_ends_a_call_at_once(client: ClusterClient, cluster: SharedCluster) -> None:
    job = cluster.execute(endless_shuffle())

    async def interrupt_and_wait(api: JobManagerApi) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await api.wait_terminal(job.job_id, None)

    with pytest.raises(KeyboardInterrupt):
        client.call(interrupt_and_wait)

    assert client.call(JobManagerApi.overview)["taskmanagers"] == 2


# ---------------------------------------------- requests that wait for a JobManager that keeps its jobs


class AbsentFor:
    """A JobManager that does not answer the first requests."""

    def __init__(self, num_requests: int, status: int = 200) -> None:
        self.left = num_requests
        self.pauses: list[float] = []
        self._status = status

    async def request(self, method: str, path: str, *, body: bytes = b"", timeout_s: float = 30.0) -> RpcResponse:
        self.left -= 1
        if self.left >= 0:
            raise RpcConnectError("Connection refused")
        return RpcResponse(self._status, b"")

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def api(self, retry: ClientRetry | None) -> JobManagerApi:
        api = JobManagerApi(cast(RpcClient, self), sleep=self.sleep)
        api.retry = retry
        return api


async def test_a_request_is_sent_again_until_there_is_an_answer() -> None:
    server = AbsentFor(3)

    await server.api(ClientRetry()).cancel("ab" * 16)

    assert (server.left, server.pauses) == (-1, [0.1, 0.2, 0.4])


async def test_a_job_that_is_there_when_it_is_submitted_again_was_taken_at_the_first_time() -> None:
    server = AbsentFor(1, status=409)

    await server.api(ClientRetry()).submit(JobGraphMessage("ab" * 16, "job", [], []))

    assert server.left == -1


async def test_pauses_grow_up_to_the_delay_and_end() -> None:
    server = AbsentFor(100)

    with pytest.raises(RpcConnectError, match="Connection refused"):
        await server.api(ClientRetry(max_attempts=4, delay_ms=300)).cancel("ab" * 16)

    assert server.pauses == [0.1, 0.2, 0.3, 0.3]
    assert server.left == 95


async def test_a_jobmanager_that_keeps_no_jobs_is_asked_once() -> None:
    server = AbsentFor(1)

    with pytest.raises(RpcConnectError):
        await server.api(None).cancel("ab" * 16)

    assert server.pauses == []


def test_the_options_are_flinks() -> None:
    options = Configuration.from_dict({"rest.retry.max-attempts": "7", "rest.retry.delay": "1 s"})

    assert settings_of(ClientRetry, options) == ClientRetry(7, 1000)
    assert settings_of(ClientRetry, Configuration()) == ClientRetry(20, 3000)

"""Requests wait for a JobManager that keeps its jobs, for a bounded time, and for no other one."""

from typing import cast

import pytest

from flowlet.client.remote import JobManagerApi
from flowlet.common import Configuration
from flowlet.common.option import settings_of
from flowlet.common.options.client_options import ClientRetry
from flowlet.messages.control_messages import JobGraphMessage
from flowlet.rpc.http import RpcClient
from flowlet.rpc.requests import RpcConnectError, RpcResponse


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

"""Tests of ``flowlet.client.executor``: the client of a job reports until the job is over."""

import pytest
import structlog

from flowlet.client.executor import keep_job_alive
from flowlet.client.remote import JobManagerApi
from flowlet.errors import FlowletError
from flowlet.rpc.requests import RpcConnectError, RpcStatusError


class Receiver(JobManagerApi):
    """The JobManager's side of heartbeats: each ends as it is told."""

    def __init__(self, *ends: FlowletError | None) -> None:
        self.ends = list(ends)

    async def report_client_heartbeat(self, job_id: str, held_s: float) -> None:
        assert (job_id, held_s) == ("job", 2.5)
        end = self.ends.pop(0)
        if end is not None:
            raise end


@pytest.mark.parametrize("status", [404, 409])
async def test_heartbeats_come_at_their_interval_until_the_job_is_over(status: int) -> None:
    """A JobManager that does not answer, or answers with something else, is told again after a second; one line says
    so.
    """
    slept: list[float] = []
    trouble = RpcConnectError("JobManager 127.0.0.1:1: Connection refused")
    receiver = Receiver(
        None, trouble, trouble, RpcStatusError(500, ["internal error"]), None, RpcStatusError(status, ["over"])
    )

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    with structlog.testing.capture_logs() as logs:
        await keep_job_alive(receiver, "job", 2.5, sleep, clock=lambda: 0.0)

    assert slept == [2.5, 1.0, 1.0, 1.0, 2.5]
    assert receiver.ends == []
    assert [line["reason"] for line in logs] == [str(trouble)]

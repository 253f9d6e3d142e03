"""Tells the JobManager that the client of a job is there.

Side:   loop.
Source: Flink ``ClientUtils.reportHeartbeatPeriodically``.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from flowlet.errors import FlowletError
from flowlet.rpc.requests import RpcStatusError
from netstack.log_lines import LogLines

_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_log = LogLines(__name__)


class HeartbeatReceiver(Protocol):
    """The JobManager, as far as heartbeats go."""

    async def report_client_heartbeat(self, job_id: str) -> None:
        """Raises FlowletError: it was not told."""


async def keep_job_alive(
    receiver: HeartbeatReceiver, job_id: str, interval_s: float, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Report every ``interval_s`` until the job has ended, or this is cancelled.  A JobManager that cannot be told is tried again."""
    problem: str | None = None
    while True:
        await sleep(interval_s)
        try:
            await receiver.report_client_heartbeat(job_id)
        except FlowletError as error:
            if isinstance(error, RpcStatusError) and error.status in (_NOT_FOUND, _CONFLICT):
                return
            if problem is None:
                _log.warning("the JobManager was not told that this job's client is there; trying again", job=job_id, reason=str(error))
            problem = str(error)
        else:
            problem = None

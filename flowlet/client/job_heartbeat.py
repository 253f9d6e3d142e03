"""Tells the JobManager that the client of a job is there.

Side:   loop.
Source: Flink ``ClientUtils.reportHeartbeatPeriodically``.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from flowlet.errors import FlowletError
from flowlet.rpc.requests import RpcStatusError
from netstack.log_lines import LogLines

_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_RETRY_S: Final = 1.0  # the JobManager takes a client whose connection has ended for one that has
_log = LogLines(__name__)


class HeartbeatReceiver(Protocol):
    """The JobManager, as far as heartbeats go."""

    async def report_client_heartbeat(self, job_id: str, held_s: float) -> None:
        """Say that the client is there for so long.  Raises FlowletError: the JobManager was not told."""


async def keep_job_alive(
    receiver: HeartbeatReceiver,
    job_id: str,
    interval_s: float,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Report every ``interval_s`` until the job has ended, or this is cancelled.

    A JobManager that cannot be told is tried again.
    """
    problem: str | None = None
    while True:
        due_s = clock() + interval_s
        try:
            await receiver.report_client_heartbeat(job_id, interval_s)
        except FlowletError as error:
            if isinstance(error, RpcStatusError) and error.status in (_NOT_FOUND, _CONFLICT):
                return
            if problem is None:
                _log.warning(
                    "the JobManager was not told that this job's client is there; trying again",
                    job=job_id,
                    reason=str(error),
                )
            problem = str(error)
            due_s = min(due_s, clock() + _RETRY_S)
        else:
            problem = None
        await sleep(max(0.0, due_s - clock()))

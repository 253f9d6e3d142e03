"""``PatientRequests``: requests to a JobManager that may be started again meanwhile.

Side:   loop.
Rules:  a request that got no answer may have been carried out.  All that are sent here may be sent twice; whoever
        submits a job sees in ``num_retries`` that a refusal may be about the first time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from flowlet.graph.client_retry import ClientRetry
from flowlet.rpc.requests import ANSWER_TIMEOUT_S, RpcConnectError, RpcResponse
from netstack.late import dataclass
from netstack.log_lines import LogLines

_log = LogLines(__name__)


class Requests(Protocol):
    """The part of ``RpcClient`` that is needed here."""

    async def request(
        self, method: str, path: str, *, body: bytes = b"", timeout_s: float = ANSWER_TIMEOUT_S
    ) -> RpcResponse:
        """The answer.  Raises RpcConnectError: there is none."""


@dataclass(frozen=True, slots=True)
class PatientAnswer:
    """An answer, and how often the request was sent again."""

    response: RpcResponse
    num_retries: int


class PatientRequests:
    """Threading: the loop of ``rpc``.

    Args:
        retry: None: every request is sent once.  Set when it is known that the JobManager keeps its jobs.
    """

    def __init__(
        self, rpc: Requests, retry: ClientRetry | None = None, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._rpc = rpc
        self._sleep = sleep
        self.retry = retry

    def __repr__(self) -> str:
        return f"<PatientRequests over {self._rpc!r}, {self.retry}>"

    async def request(
        self, method: str, path: str, *, body: bytes = b"", timeout_s: float = ANSWER_TIMEOUT_S
    ) -> PatientAnswer:
        """The answer of the first JobManager that gives one.

        Raises:
            RpcConnectError: none did so in time.
        """
        pauses = iter(()) if self.retry is None else self.retry.pauses_s()
        num_retries = 0
        while True:
            try:
                return PatientAnswer(await self._rpc.request(method, path, body=body, timeout_s=timeout_s), num_retries)
            except RpcConnectError as error:
                pause_s = next(pauses, None)
                if pause_s is None:
                    raise
                if num_retries == 0:
                    _log.info("the JobManager does not answer, trying again", reason=str(error))
            await self._sleep(pause_s)
            num_retries += 1

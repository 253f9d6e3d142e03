"""``PatientRequests``: requests to a JobManager that may be started again meanwhile.

Asks a JobManager for savepoints, and waits for them.

Side:  loop.
Rules: a request that got no answer may have been carried out.  All that are sent here may be sent twice; whoever
       submits a job sees in ``num_retries`` that a refusal may be about the first time.  a directory is relative to the
       working directory of the process that asks. A request that got no answer is sent again with the same id, so that
       it cannot begin a second savepoint.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Any, Final, Protocol

import msgspec

from flowlet.common.options.client_options import ClientRetry
from flowlet.common.paths import absolute_url
from flowlet.errors import SavepointError, StorageError
from flowlet.rpc.requests import ANSWER_TIMEOUT_S, RpcConnectError, RpcResponse, RpcStatusError
from netstack.flow.heartbeats import Backoff
from netstack.late import dataclass
from netstack.log_lines import LogLines

_FIRST_PAUSE_MS: Final = 100  # so that a JobManager that is back soon is found soon
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


def pauses_s(retry: ClientRetry) -> Iterator[float]:
    """The pause before each further try, in seconds."""
    pauses_ms = Backoff(_FIRST_PAUSE_MS, retry.delay_ms).delays()
    return (pause_ms / 1000 for pause_ms in islice(pauses_ms, retry.max_attempts))


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
        pauses = iter(()) if self.retry is None else pauses_s(self.retry)
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


_REFUSALS: Final = (400, 404, 409)


class Send(Protocol):
    """Sends a request about a job, patiently."""

    async def __call__(self, method: str, path: str, timeout_s: float, body: bytes = b"") -> RpcResponse:
        """An answer with a good status."""


async def begin_savepoint(send: Send, job_id: str, directory: str | None, *, cancels_job: bool = False) -> str:
    """Ask for a savepoint; returns the id of the request.  Raises SavepointError: the job cannot take one."""
    return await _begin(
        send, f"/jobs/{job_id}/savepoints", {"target-directory": _absolute(directory), "cancel-job": cancels_job}
    )


async def begin_stop(send: Send, job_id: str, directory: str | None, *, drain: bool) -> str:
    """Ask for the end of a job with a savepoint; returns the id of the request.

    Raises SavepointError: the job cannot take one.
    """
    return await _begin(send, f"/jobs/{job_id}/stop", {"targetDirectory": _absolute(directory), "drain": drain})


def _absolute(directory: str | None) -> str | None:
    try:
        return None if directory is None else absolute_url(directory)
    except StorageError as error:
        raise SavepointError(f"a savepoint cannot be written there: {error}") from error


async def _begin(send: Send, path: str, body: dict[str, object]) -> str:
    request_id = secrets.token_hex(16)
    try:
        answer = await send("POST", path, 30.0, msgspec.json.encode(body | {"triggerId": request_id}))
    except RpcStatusError as error:
        if error.status not in _REFUSALS:
            raise
        raise SavepointError(str(error)) from error
    found: str = msgspec.json.decode(answer.body)["request-id"]
    return found


async def wait_for_savepoint(poll: Callable[[], Awaitable[Any]]) -> str:
    """The directory of a savepoint, once it is complete.

    Args:
        poll: the document of the request when it has ended, or after a while.

    Raises:
        SavepointError: it has failed, or nobody knows of it any more.
    """
    while True:
        try:
            document = await poll()
        except RpcStatusError as error:
            if error.status not in _REFUSALS:
                raise
            raise SavepointError(str(error)) from error
        operation = document["operation"]
        if operation is None:
            continue
        if "failure-cause" in operation:
            raise SavepointError(operation["failure-cause"]["message"])
        return str(operation["location"])

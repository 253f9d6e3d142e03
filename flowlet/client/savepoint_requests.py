"""Asks a JobManager for savepoints, and waits for them.

Side:   loop.
Rules:  a directory is relative to the working directory of the process that asks.
        A request that got no answer is sent again with the same id, so that it cannot begin a second savepoint.
"""

import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec

from flowlet.common.paths import absolute_url
from flowlet.errors import SavepointError, StorageError
from flowlet.rpc.requests import RpcResponse, RpcStatusError

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

"""Asks the JobManager about a remote gate.

Side:       loop.
"""

from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from flowlet.datastream.job_manager_address import parsed_address
from flowlet.errors import ConfigError
from flowlet.ingest.description import GateDescription
from flowlet.ingest.errors import GateAccessError, GateEndedError, GateError, GateNotFoundError, GateUnreachableError
from flowlet.rpc.auth import AuthenticationError
from flowlet.rpc.http import RpcClient, RpcConnectError, RpcResponse, RpcStatusError
from flowlet.rpc.secret import load_secret

_NO_CONTENT: Final = 204
_ANSWER_SHARE: Final = 0.8  # of the timeout is given to the JobManager; the rest is for the network


async def describe_gate(gate: str, jobmanager: str, timeout_s: float, secret: bytes) -> GateDescription:
    """Get the description of ``gate``; waits until its tasks run.  Raises GateError: as ``flowlet.ingest.producer.open_gate``."""
    path = f"/gates/{quote(gate, safe='')}?timeout_ms={round(timeout_s * _ANSWER_SHARE * 1000)}"
    answer = await _ask(gate, jobmanager, "GET", path, timeout_s, secret)
    if answer.status == _NO_CONTENT:
        raise GateNotFoundError(f"gate {gate!r}: its tasks do not run yet, {timeout_s:g} s after JobManager {jobmanager} was asked")
    return GateDescription.of_document(msgspec.json.decode(answer.body), jobmanager)


async def request_finish(gate: str, jobmanager: str, timeout_s: float, secret: bytes) -> None:
    """Tell ``gate`` to end after the open partitions.  Raises GateError: as ``flowlet.ingest.producer.finish_gate``."""
    path = f"/gates/{quote(gate, safe='')}?mode=finish&timeout_ms={round(timeout_s * _ANSWER_SHARE * 1000)}"
    answer = await _ask(gate, jobmanager, "PATCH", path, timeout_s, secret)
    if answer.status == _NO_CONTENT:
        raise GateNotFoundError(f"gate {gate!r}: its tasks are not deployed yet, {timeout_s:g} s after JobManager {jobmanager} was asked")


async def _ask(gate: str, jobmanager: str, method: str, path: str, timeout_s: float, secret: bytes) -> RpcResponse:
    try:
        host, port = parsed_address(jobmanager, "jobmanager")
        async with RpcClient(host, port, secret) as rpc:
            return (await rpc.request(method, path, timeout_s=timeout_s)).raise_for_status()
    except ConfigError as error:
        raise GateUnreachableError(f"gate {gate!r}: {error}") from error
    except AuthenticationError as error:
        raise GateAccessError(f"gate {gate!r}: JobManager {jobmanager}: {error}") from error
    except RpcConnectError as error:
        raise GateUnreachableError(f"gate {gate!r}: {error}; is the JobManager at {jobmanager} running?") from error
    except RpcStatusError as error:
        raise _status_error(gate, jobmanager, error) from error


def _status_error(gate: str, jobmanager: str, error: RpcStatusError) -> GateError:
    text = f"gate {gate!r} at JobManager {jobmanager}: {error}"
    match error.status:
        case 404:
            return GateNotFoundError(f"{text}; start the job that declares it first")
        case 410:
            return GateEndedError(text)
        case _:
            return GateError(text)


def secret_of(secret_file: str | Path | None) -> bytes:
    """The cluster's secret; reads a file, so call it on no loop.  Raises GateAccessError: the file cannot be read."""
    try:
        return load_secret(None if secret_file is None else Path(secret_file))
    except ConfigError as error:
        raise GateAccessError(str(error)) from error

"""Asks the JobManager about a remote gate: where it is, and whether it still reads at the place that a producer uses.

Side: loop.
Why:  a gate that grants no credit may be slow, which may last for hours, or its job may be gone from that place.
"""

import asyncio
import math
import time
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

import msgspec

from flowlet.common.written_values import parse_address
from flowlet.errors import ConfigError
from flowlet.ingest.description import (
    GateAccessError,
    GateDescription,
    GateEndedError,
    GateEndpoint,
    GateError,
    GateLostError,
    GateNotFoundError,
    GateUnreachableError,
    GateWriteError,
)
from flowlet.messages.control_messages import CountedPartition, GateOutcome
from flowlet.rpc.auth import AuthenticationError
from flowlet.rpc.http import RpcClient
from flowlet.rpc.requests import RpcConnectError, RpcResponse, RpcStatusError
from flowlet.rpc.secret import load_secret
from netstack.log_lines import LogLines
from netstack.loop.background_call import run_in_background

_NO_CONTENT: Final = 204
_outcome_decoder: Final = msgspec.json.Decoder(GateOutcome)
_STATUS_ERRORS: Final[dict[int, tuple[type[GateError], str]]] = {
    404: (GateNotFoundError, "; start the job that declares it first"),
    409: (GateWriteError, ""),
    410: (GateEndedError, ""),
}
_ASK_INTERVAL_S: Final = 0.2  # while there is no gate
_ANSWER_SHARE: Final = 0.8  # of the timeout is given to the JobManager; the rest is for the network
_LEAST_WAIT_S: Final = 4.0  # for tasks that are being deployed


async def await_gate(
    gate: str, jobmanager: str, timeout_s: float, secret: bytes, wait_s: float, committed_job: str | None
) -> GateDescription:
    """Get the description of a gate, as ``describe_gate`` does; ask again for ``wait_s`` while there is no JobManager,
    or no running job with this gate.
    """
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            left_s = max(_LEAST_WAIT_S, deadline_s - time.monotonic()) if wait_s else timeout_s
            return await describe_gate(gate, jobmanager, timeout_s, secret, committed_job, tasks_timeout_s=left_s)
        except (GateNotFoundError, GateEndedError, GateUnreachableError) as error:
            if time.monotonic() + _ASK_INTERVAL_S < deadline_s:
                await asyncio.sleep(_ASK_INTERVAL_S)
            elif not wait_s:
                raise
            else:
                text = (
                    f"gate {gate!r} did not appear at JobManager {jobmanager} within {wait_s:g} s (wait_for_gate_s, "
                    "in Spark waitForGate)"
                )
                raise type(error)(f"{text}; at last: {error}") from error


async def describe_gate(
    gate: str,
    jobmanager: str,
    timeout_s: float,
    secret: bytes,
    committed_job: str | None = None,
    tasks_timeout_s: float = math.inf,
) -> GateDescription:
    """Get the description of ``gate``; waits until its tasks run, at most ``tasks_timeout_s`` or most of ``timeout_s``.

    Raises:
        GateError: as ``flowlet.ingest.producer.open_gate``.
    """
    tasks_timeout_s = min(tasks_timeout_s, timeout_s * _ANSWER_SHARE)
    query: dict[str, object] = {"timeout_ms": round(tasks_timeout_s * 1000)}
    if committed_job is not None:
        query["committed_job"] = committed_job
    path = f"/gates/{quote(gate, safe='')}?{urlencode(query)}"
    answer = await _ask(gate, jobmanager, "GET", path, timeout_s, secret)
    if answer.status == _NO_CONTENT:
        raise GateNotFoundError(
            f"gate {gate!r}: its tasks do not run yet, {tasks_timeout_s:g} s after JobManager {jobmanager} was asked"
        )
    return GateDescription.of_document(msgspec.json.decode(answer.body), jobmanager)


async def request_finish(gate: str, jobmanager: str, timeout_s: float, secret: bytes) -> None:
    """Tell ``gate`` to end after the open partitions.  Raises GateError: as ``flowlet.ingest.producer.finish_gate``."""
    path = f"/gates/{quote(gate, safe='')}?mode=finish&timeout_ms={round(timeout_s * _ANSWER_SHARE * 1000)}"
    answer = await _ask(gate, jobmanager, "PATCH", path, timeout_s, secret)
    if answer.status == _NO_CONTENT:
        raise GateNotFoundError(
            f"gate {gate!r}: its tasks are not deployed yet, {timeout_s:g} s after JobManager {jobmanager} was asked"
        )


async def ask_outcome(
    description: GateDescription, partition: CountedPartition, timeout_s: float, *, has_failed: bool
) -> GateOutcome:
    """Ask for the outcome of a partition and the status of the gate's job.

    ``has_failed``: an attempt of the partition has failed, so the JobManager waits if the job is about to fail.

    Raises:
        GateError: the JobManager gives no answer; names gate and JobManager.
    """
    query = msgspec.structs.asdict(partition) | {"has_failed": int(has_failed)}
    answer = await _ask_with_token(description, "GET", "partition", query, timeout_s)
    return _outcome_decoder.decode(answer.body)


async def ask_place(description: GateDescription, timeout_s: float) -> tuple[GateEndpoint, ...] | None:
    """Ask for the endpoints where the gate's subtasks run now; None: they do not run.

    Raises GateError: as ``ask_outcome``.
    """
    answer = await _ask_with_token(description, "GET", "place", {}, timeout_s)
    if answer.status == _NO_CONTENT:
        return None
    return tuple(GateEndpoint(each["host"], each["port"]) for each in msgspec.json.decode(answer.body))


async def want_checkpoint(description: GateDescription, timeout_s: float) -> None:
    """Ask for a checkpoint soon.  Raises GateError: as ``ask_outcome``."""
    await _ask_with_token(description, "PATCH", "checkpoint", {}, timeout_s)


async def end_write(
    description: GateDescription, job: str, epoch: int, num_partitions: int | None, timeout_s: float, patience_s: float
) -> None:
    """Commit a write of so many partitions, or abort it if None; ask again for ``patience_s`` until a checkpoint holds
    it.

    Raises:
        GateError: as ``GateClient.commit``.
    """
    mode = {"mode": "abort"} if num_partitions is None else {"mode": "commit", "partitions": num_partitions}
    query = {"job": job, "epoch": epoch} | mode
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            answer = await _ask_with_token(description, "PATCH", "write", query, timeout_s)
        except GateUnreachableError:
            if time.monotonic() >= deadline_s:
                raise
        else:
            if answer.status != _NO_CONTENT:
                return
            if time.monotonic() >= deadline_s:
                raise GateLostError(
                    f"gate {description.name!r}: no checkpoint has held write {job!r} within {patience_s:g} s"
                )
        await asyncio.sleep(_ASK_INTERVAL_S)


async def _ask_with_token(
    description: GateDescription, method: str, what: str, query: dict[str, object], timeout_s: float
) -> RpcResponse:
    """Ask with the gate's token in place of the cluster's secret, which a worker does not have."""
    gate = description.name
    resource = f"/producers/{description.job_id}/{quote(gate, safe='')}/{description.expires_ms}/{what}"
    path = f"{resource}?{urlencode(query)}" if query else resource
    return await _ask(gate, description.jobmanager, method, path, timeout_s, description.token)


async def _ask(gate: str, jobmanager: str, method: str, path: str, timeout_s: float, secret: bytes) -> RpcResponse:
    try:
        host, port = parse_address(jobmanager, "jobmanager")
        async with RpcClient(host, port, secret) as rpc:
            return (await rpc.request(method, path, timeout_s=timeout_s)).raise_for_status()
    except ConfigError as error:
        raise GateUnreachableError(f"gate {gate!r}: {error}") from error
    except AuthenticationError as error:
        raise GateAccessError(f"gate {gate!r}: JobManager {jobmanager}: {error}") from error
    except RpcConnectError as error:
        raise GateUnreachableError(f"gate {gate!r}: {error}") from error
    except RpcStatusError as error:
        kind, advice = _STATUS_ERRORS.get(error.status, (GateError, ""))
        raise kind(f"gate {gate!r} at JobManager {jobmanager}: {error}{advice}") from error


def secret_of(secret_file: str | Path | None) -> bytes:
    """The cluster's secret, read from a file, so not on a loop.  Raises GateAccessError: the file cannot be read."""
    try:
        return load_secret(None if secret_file is None else Path(secret_file))
    except ConfigError as error:
        raise GateAccessError(str(error)) from None


_log = LogLines(__name__)
_TASKS_TIMEOUT_S: Final = 4.0  # the question is asked again
_TIMEOUT_S: Final = 60.0


async def why_in_vain(description: GateDescription, secret_file: Path | None = None) -> GateError | None:
    """Why waiting for credit is in vain; None: the gate's tasks run where the description says, or it is not known.

    It is not known without the cluster's secret; then only heartbeats and the end of the connection tell.
    """
    try:
        secret = await run_in_background(partial(secret_of, secret_file), "secret of the cluster")
        now = await describe_gate(
            description.name, description.jobmanager, _TIMEOUT_S, secret, tasks_timeout_s=_TASKS_TIMEOUT_S
        )
    except (GateAccessError, GateUnreachableError) as error:
        _log.info("the JobManager cannot be asked why a gate grants no credit", gate=str(description), error=str(error))
        return None
    except GateNotFoundError as error:
        # Without this cause the job is there, and its tasks do not all run at the moment.
        return error if isinstance(error.__cause__, RpcStatusError) else None
    except GateEndedError as error:
        return error
    if now.job_id != description.job_id:
        return GateEndedError(f"{description} has ended: its name belongs to job {now.job_name!r} ({now.job_id}) now")
    for subtask, (before, after) in enumerate(zip(description.endpoints, now.endpoints, strict=False)):
        if before != after:
            return GateLostError(
                f"subtask {subtask} of {description} runs on the TaskManager at {after.host}:{after.port} now, not at "
                f"{before.host}:{before.port}: push the partition again with a new attempt"
            )
    return None

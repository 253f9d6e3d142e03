"""Routes of savepoints and checkpoints: to begin one, to hear how it went, and what lies in a directory.

Whether the JobManager can write checkpoints where a job wants them: tried at submission, not at the first
checkpoint.

Side:   loop.
Source: Flink's REST API: ``/jobs/:jobid/savepoints``, ``/jobs/:jobid/savepoints/:triggerid``, ``/jobs/:jobid/stop``.
Ours:   ``timeout_ms`` of ``GET``: answer when the operation has ended, or after so long.
Rules:  the storage is used on another thread, and one that does not answer refuses the job: its checkpoints would only
        expire.
"""

import asyncio
import re
import secrets
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from flowlet.common.job_status import JobStatus
from flowlet.errors import JobGraphError
from flowlet.jm.savepoints.job_savepoints import JobSavepoints, SavepointRefusedError
from flowlet.messages.control_messages import JobGraphMessage
from flowlet.rpc.requests import Request, Response, Route, error_response
from flowlet.storage.checkpoint_storage import CheckpointStorage
from netstack.loop.background_call import CallInBackground
from netstack.wire.events import SnapshotType

_REQUEST_ID: Final = re.compile(r"[0-9a-f]{32}")
_MAX_DIRECTORY_CHARS: Final = 4096


class _Trigger(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    target_directory: str | None = None
    cancel_job: bool = False
    format_type: str = "CANONICAL"
    trigger_id: str | None = msgspec.field(default=None, name="triggerId")


class _Stop(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    target_directory: str | None = None
    drain: bool = False
    format_type: str = "CANONICAL"
    trigger_id: str | None = None


_trigger_decoder: Final = msgspec.json.Decoder(_Trigger)
_stop_decoder: Final = msgspec.json.Decoder(_Stop)


class _Graph(Protocol):
    @property
    def status(self) -> JobStatus:
        """Of the job."""


class JobWithSavepoints(Protocol):
    """The part of ``JobMaster`` that is needed here."""

    @property
    def graph(self) -> _Graph:
        """Knows the job's status."""

    @property
    def is_ended(self) -> bool:
        """Whether the job is in a terminal status."""

    @property
    def savepoints(self) -> JobSavepoints:
        """Takes them."""


class SavepointApi:
    """The handlers.

    Threading: the JobManager's loop.

    Args:
        find_job: the job that a request names; raises the error of the answer.
        long_poll_s: how long a request wants to wait.
    """

    def __init__(
        self, find_job: Callable[[Request], JobWithSavepoints], long_poll_s: Callable[[Request], float]
    ) -> None:
        self._find_job = find_job
        self._long_poll_s = long_poll_s

    def __repr__(self) -> str:
        return "<SavepointApi>"

    def routes(self) -> list[Route]:
        """The routes, for the application of ``RestApi``."""
        return [
            Route("POST", "/jobs/{job_id}/savepoints", self.trigger),
            Route("GET", "/jobs/{job_id}/savepoints/{request_id}", self.status),
            Route("POST", "/jobs/{job_id}/stop", self.stop),
        ]

    async def trigger(self, request: Request) -> Response:
        """Take a savepoint: 202 with the id of the request; 400 the body or the directory, 409 the
        job cannot take one.
        """
        try:
            # no wait: the check of its signature has read it
            body = _trigger_decoder.decode(await request.read() or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return error_response(400, f"the body is no request for a savepoint: {error}")
        return self._begin(request, body, SnapshotType.SAVEPOINT, cancels_job=body.cancel_job)

    async def stop(self, request: Request) -> Response:
        """Stop the job with a savepoint; as ``trigger``."""
        try:
            # no wait: the check of its signature has read it
            body = _stop_decoder.decode(await request.read() or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return error_response(400, f"the body is no request to stop: {error}")
        return self._begin(
            request, body, SnapshotType.SAVEPOINT_TERMINATE if body.drain else SnapshotType.SAVEPOINT_SUSPEND
        )

    def _begin(
        self, request: Request, body: _Trigger | _Stop, kind: SnapshotType, *, cancels_job: bool = False
    ) -> Response:
        master = self._find_job(request)
        request_id = secrets.token_hex(16) if body.trigger_id is None else body.trigger_id
        if _REQUEST_ID.fullmatch(request_id) is None:
            return error_response(400, "triggerId must have 32 lower-case hex digits")
        if body.format_type.upper() != "CANONICAL":
            return error_response(400, "savepoints are written in the CANONICAL format only")
        if len(body.target_directory or "") > _MAX_DIRECTORY_CHARS:
            return error_response(400, f"the directory has more than {_MAX_DIRECTORY_CHARS} characters")
        if master.is_ended:
            return error_response(409, f"the job is {master.graph.status.name}")
        try:
            operation = master.savepoints.trigger(request_id, body.target_directory, kind, cancels_job=cancels_job)
        except SavepointRefusedError as error:
            return error_response(409, str(error))
        return _json({"request-id": operation.request_id}, status=202)

    async def status(self, request: Request) -> Response:
        """What became of a request: 200; 404 it is not known, or not any more."""
        master, request_id = self._find_job(request), request.match_info["request_id"]
        timeout_s = self._long_poll_s(request) if "timeout_ms" in request.query else 0.0
        operation = await master.savepoints.wait(request_id, timeout_s)
        if operation is None:
            return error_response(
                404, "no such request is known: was the JobManager started again? Look into the directory"
            )
        return _json(operation.document())


def _json(document: object, status: int = 200) -> Response:
    return Response(status=status, body=msgspec.json.encode(document))


PROBE_TIMEOUT_S: Final = 20.0  # below the 30 s that the client waits for the answer to a submission


class ProbedStorage(Protocol):
    """The part of ``CheckpointStorage`` that is needed here; blocking."""

    def check_writable(self) -> None:
        """Write a file and remove it."""


async def check_checkpoint_directory(
    job: JobGraphMessage,
    call_in_background: CallInBackground,
    open_storage: Callable[[str, str], ProbedStorage] = CheckpointStorage,
    timeout_s: float = PROBE_TIMEOUT_S,
) -> None:
    """Raises JobGraphError: the job takes checkpoints, and they could not be written; the message names the place and
    says what to do.
    """
    settings = job.settings.checkpoints
    if settings is None or not settings.is_periodic:
        return
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(error: Exception) -> None:
        if not answer.done():
            answer.set_exception(error)

    def succeed(_: None) -> None:
        if not answer.done():
            answer.set_result(None)

    call_in_background(
        lambda: open_storage(settings.directory, job.job_id).check_writable(),
        succeed,
        fail,
        "probe of a directory for checkpoints",
    )
    try:
        async with asyncio.timeout(timeout_s):
            await answer
    except TimeoutError as error:
        raise JobGraphError(
            f"checkpoints cannot be kept in {settings.directory!r}: it did not answer within {timeout_s:g} s; is the "
            "file server or the store up, and can the JobManager reach it?"
        ) from error
    except Exception as error:
        raise JobGraphError(f"the JobManager cannot keep checkpoints: {error}") from error

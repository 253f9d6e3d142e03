"""``JobSavepoints``: the savepoints of one job, from the request of a user to its answer.

``SavepointApi``: the routes of savepoints: to begin one, and to hear how it went.

The JobManager tries at submission, not at the first checkpoint, whether it can write checkpoints where a job wants
them.

Side:       loop.
Invariants: an operation ends once; the last ``MAX_ENDED`` ended operations are kept.  One that stops the job succeeds
            only when the job has finished.  A directory is made, and known to be writable, before any task hears of its
            savepoint.  The files of a savepoint that failed are removed; a complete savepoint is never touched.
Source:     Flink ``SavepointHandlers``, ``StopWithSavepointTerminationHandlerImpl``, ``CompletedOperationCache``.
            Flink ``DefaultScheduler.triggerSavepoint``, ``stopWithSavepoint``.  Flink's REST API:
            ``/jobs/:jobid/savepoints``, ``/jobs/:jobid/savepoints/:triggerid``, ``/jobs/:jobid/stop``.
Ours:       ``timeout_ms`` of ``GET``: answer when the operation has ended, or after so long.
Rules:      the storage is used on another thread, and one that does not answer refuses the job: its checkpoints would
            only expire.
"""

import asyncio
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final

import msgspec

from flowlet.checkpoint.jobmanager.job_checkpoints import JobCheckpoints
from flowlet.checkpoint.jobmanager.pending_checkpoint import SavepointRequest
from flowlet.common.job_status import JobStatus
from flowlet.errors import FlowletError, JobGraphError
from flowlet.messages.job_messages import JobGraphMessage
from flowlet.rpc.requests import Request, Response, Route, decoded, error_response, json_response
from flowlet.storage.checkpoint_storage import CheckpointStorage, SavepointStorage, target_root
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.loop.background_call import run_in_background
from netstack.wire.events import SnapshotType

if TYPE_CHECKING:
    from flowlet.jm.job_master import JobMaster

MAX_ENDED: Final = 100
_IN_PROGRESS: Final = "IN_PROGRESS"
_COMPLETED: Final = "COMPLETED"  # also one that has failed, as in Flink

Document = dict[str, object]


@dataclass(slots=True)
class SavepointOperation:
    """One request; ``location`` None: not known yet; ``is_complete``: the savepoint is complete, while the job may
    still have to finish.
    """

    request_id: str
    stops_job: bool
    cancels_job: bool = False
    location: str | None = None
    is_complete: bool = False
    failure: str | None = None
    has_ended: bool = False

    def document(self) -> Document:
        """Make the document of ``GET /jobs/:jobid/savepoints/:triggerid``."""
        if not self.has_ended:
            return {"status": {"id": _IN_PROGRESS}, "operation": None}
        operation = (
            {"location": self.location} if self.failure is None else {"failure-cause": {"message": self.failure}}
        )
        return {"status": {"id": _COMPLETED}, "operation": operation}


_NO_MACHINERY: Final = (
    "the job takes neither checkpoints nor savepoints: set execution.checkpointing.savepoint-dir, or "
    "execution.checkpointing.interval, before it starts"
)
_NO_DIRECTORY: Final = "name a directory, or set execution.checkpointing.savepoint-dir before the job starts"
log = LogLines(__name__)


class SavepointRefusedError(FlowletError):
    """The request cannot be accepted; the text names the reason."""

    http_status = 409


@dataclass(slots=True, eq=False)
class JobSavepoints:
    """The savepoints of one job.

    Threading: the JobManager's loop.

    Args:
        taker: takes them; a job without its settings has no barriers, and so no savepoints.
        cancel: the job, once a savepoint is complete, if that was asked for.
        gates: the remote gates of the job, by name; with any it takes no savepoints.
        create: makes the directory; blocking.
        changed: called when an operation has ended, or may have.
    """

    taker: JobCheckpoints
    cancel: Callable[[], object]
    gates: Sequence[str] = ()
    create: Callable[[str, str], SavepointStorage] = SavepointStorage.create
    changed: Callable[[], object] = lambda: None
    _operations: dict[str, SavepointOperation] = field(init=False, default_factory=dict)  # by request, the oldest first

    def __repr__(self) -> str:
        return f"<JobSavepoints of {self.taker.job_id}, {len(self._operations)} requests>"

    def trigger(
        self, request_id: str, target: str | None, kind: SnapshotType, *, cancels_job: bool = False
    ) -> SavepointOperation:
        """Begin a savepoint, below the directory ``target`` (None: that of the job); a known id changes nothing.

        Raises:
            SavepointRefusedError: the job cannot take one, or the directory cannot be used; says what to do.
        """
        known = self._operations.get(request_id)
        # A client that got no answer asks again: it must not take a second savepoint.
        if known is not None:
            return known
        directory = self._directory(target)
        stopping = next((each for each in self._operations.values() if each.stops_job and not each.has_ended), None)
        # The job may end at any moment: a second savepoint would be begun in vain.
        if stopping is not None:
            raise SavepointRefusedError(
                f"the job is being stopped with a savepoint already (request {stopping.request_id})"
            )
        stops_job = kind is not SnapshotType.SAVEPOINT
        operation = SavepointOperation(request_id, stops_job, cancels_job)
        ended = [each.request_id for each in self._operations.values() if each.has_ended]
        for each in ended[: max(0, len(ended) - MAX_ENDED + 1)]:
            del self._operations[each]
        # Before the directory is made: a repetition that comes meanwhile must find it.
        self._operations[request_id] = operation
        # Before the directory is made: meanwhile tasks that wait for their last checkpoint could end with another one.
        if stops_job:
            self.taker.announce_stop(is_near=True)
        self.taker.call_in_background(
            lambda: self.create(directory, self.taker.job_id),
            lambda storage: self._created(operation, storage.location, kind),
            lambda error: self._not_created(operation, str(error) or repr(error)),
            f"directory of a savepoint of job {self.taker.job_id}",
        )
        return operation

    def _directory(self, target: str | None) -> str:
        if self.gates:
            raise SavepointRefusedError(
                f"a job with a remote gate ({self.gates[0]!r}) takes no savepoints yet: cancel it with "
                "execution.checkpointing.externalized-checkpoint-retention set to RETAIN_ON_CANCELLATION, and start "
                "from that checkpoint"
            )
        if self.taker.settings is None:
            raise SavepointRefusedError(_NO_MACHINERY)
        directory = target or self.taker.settings.savepoint_directory
        if not directory:
            raise SavepointRefusedError(_NO_DIRECTORY)
        try:
            return target_root(directory)
        except FlowletError as error:
            raise SavepointRefusedError(str(error)) from error

    def _created(self, operation: SavepointOperation, location: str, kind: SnapshotType) -> None:
        # Before the request, whose end may be told at once.
        operation.location = location
        self.taker.request_savepoint(SavepointRequest(location, kind), lambda failure: self._ended(operation, failure))

    def _not_created(self, operation: SavepointOperation, failure: str) -> None:
        # Tasks may take their last checkpoint again: no savepoint comes.
        if operation.stops_job:
            self.taker.announce_stop(is_near=False)
        self._ended(operation, failure)

    def _ended(self, operation: SavepointOperation, failure: str | None) -> None:
        operation.failure = failure
        operation.is_complete = failure is None
        # One that stops the job has a complete savepoint, and ends with the job.
        operation.has_ended = failure is not None or not operation.stops_job
        self.changed()
        if failure is not None:
            log.warning("savepoint failed", job=self.taker.job_id, path=operation.location, why=failure[:1000])
        elif operation.cancels_job:
            self.cancel()

    def job_changed(self, status: JobStatus, cause: str | None) -> None:
        """Note that the job is in another status; ``cause``: of its failure.

        A complete savepoint that has not stopped the job when it should have has failed.
        """
        for operation in self._operations.values():
            # One that is not complete hears of the end from the coordinator.
            if operation.has_ended or not operation.is_complete or status is JobStatus.RUNNING:
                continue
            operation.has_ended = True
            if status is not JobStatus.FINISHED:
                why = "" if cause is None else f" ({cause})"
                operation.failure = (
                    f"savepoint {operation.location} is complete, but then the job was {status.name} instead of "
                    f"FINISHED{why}: if it goes on from its last checkpoint, results behind that come again after the "
                    "savepoint, too; stop it again, and use the newer savepoint"
                )
        self.changed()

    def find(self, request_id: str) -> SavepointOperation | None:
        """Find an operation; None: it is not known."""
        return self._operations.get(request_id)


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


@dataclass(slots=True, eq=False, repr=False)
class SavepointApi:
    """The handlers of requests about savepoints.

    Threading: the JobManager's loop.

    Args:
        find_job: the job that a request names; raises the error of the answer.
        long_poll_s: how long a request wants to wait.
    """

    find_job: Callable[[Request], "JobMaster"]
    long_poll_s: Callable[[Request], float]

    def routes(self) -> list[Route]:
        """List the routes, for the application of ``RestApi``."""
        return [
            Route("POST", "/jobs/{job_id}/savepoints", self.trigger),
            Route("GET", "/jobs/{job_id}/savepoints/{request_id}", self.status),
            Route("POST", "/jobs/{job_id}/stop", self.stop),
        ]

    async def trigger(self, request: Request) -> Response:
        """Take a savepoint: 202 with the id of the request; 400 the body or the directory, 409 the
        job cannot take one.
        """
        body = decoded(request, _trigger_decoder, "no request for a savepoint", if_empty=b"{}")
        return self._begin(request, body, SnapshotType.SAVEPOINT, cancels_job=body.cancel_job)

    async def stop(self, request: Request) -> Response:
        """Stop the job with a savepoint; answers as ``trigger`` does."""
        body = decoded(request, _stop_decoder, "no request to stop", if_empty=b"{}")
        kind = SnapshotType.SAVEPOINT_TERMINATE if body.drain else SnapshotType.SAVEPOINT_SUSPEND
        return self._begin(request, body, kind)

    def _begin(
        self, request: Request, body: _Trigger | _Stop, kind: SnapshotType, *, cancels_job: bool = False
    ) -> Response:
        master = self.find_job(request)
        request_id = secrets.token_hex(16) if body.trigger_id is None else body.trigger_id
        if _REQUEST_ID.fullmatch(request_id) is None:
            return error_response(400, "triggerId must have 32 lower-case hex digits")
        if body.format_type.upper() != "CANONICAL":
            return error_response(400, "savepoints are written in the CANONICAL format only")
        if len(body.target_directory or "") > _MAX_DIRECTORY_CHARS:
            return error_response(400, f"the directory has more than {_MAX_DIRECTORY_CHARS} characters")
        if master.is_ended:
            return error_response(409, f"the job is {master.graph.status.name}")
        operation = master.savepoints.trigger(request_id, body.target_directory, kind, cancels_job=cancels_job)
        return json_response({"request-id": operation.request_id}, status=202)

    async def status(self, request: Request) -> Response:
        """Answer how a request went: 200; 404 it is not known, or not any more."""
        master, request_id = self.find_job(request), request.match_info["request_id"]
        timeout_s = self.long_poll_s(request) if "timeout_ms" in request.query else 0.0
        # Forgotten meanwhile, it ends the wait as well.
        await master.wait_until(
            lambda: (found := master.savepoints.find(request_id)) is None or found.has_ended, timeout_s
        )
        operation = master.savepoints.find(request_id)
        if operation is None:
            return error_response(
                404, "no such request is known: was the JobManager started again? Look into the directory"
            )
        return json_response(operation.document())


PROBE_TIMEOUT_S: Final = 20.0  # below the 30 s that the client waits for the answer to a submission


async def check_checkpoint_directory(
    job: JobGraphMessage,
    open_storage: Callable[[str, str], CheckpointStorage] = CheckpointStorage,
    timeout_s: float = PROBE_TIMEOUT_S,
) -> None:
    """Check that the checkpoints of a job can be written.

    Raises JobGraphError: the job takes checkpoints, and they could not be written; the message names the place and says
    what to do.
    """
    settings = job.settings.checkpoints
    if settings is None or not settings.is_periodic:
        return
    try:
        # The thread stays until its file server answers; the client does not wait for that.
        async with asyncio.timeout(timeout_s):
            await run_in_background(
                lambda: open_storage(settings.directory, job.job_id).check_writable(),
                "probe of a directory for checkpoints",
            )
    except TimeoutError as error:
        raise JobGraphError(
            f"checkpoints cannot be kept in {settings.directory!r}: it did not answer within {timeout_s:g} s; is the "
            "file server or the store up, and can the JobManager reach it?"
        ) from error
    except Exception as error:
        raise JobGraphError(f"the JobManager cannot keep checkpoints: {error}") from error

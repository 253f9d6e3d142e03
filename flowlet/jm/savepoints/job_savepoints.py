"""``JobSavepoints``: the savepoints of one job, from the request of a user to its answer.

``SavepointOperations``: what became of the savepoints that users asked for.

Side:       loop.
Invariants: an operation ends once; of those that have ended the last ``MAX_ENDED`` are kept.  One that stops the job
            succeeds only when the job has finished.  a directory is made, and known to be writable, before any task
            hears of its savepoint.  What a savepoint that fails has left is removed; one that is complete is never
            touched.
Source:     Flink ``SavepointHandlers``, ``StopWithSavepointTerminationHandlerImpl``, ``CompletedOperationCache``.
            Flink ``DefaultScheduler.triggerSavepoint``, ``stopWithSavepoint``.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from flowlet.common.job_settings import CheckpointSettings
from flowlet.common.job_status import JobStatus
from flowlet.errors import FlowletError
from flowlet.jm.checkpoints.pending_checkpoint import SavepointRequest
from flowlet.storage.checkpoint_storage import SavepointStorage, target_root
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.loop.background_call import CallInBackground
from netstack.wire.events import SnapshotType

MAX_ENDED: Final = 100
_IN_PROGRESS: Final = "IN_PROGRESS"
_COMPLETED: Final = "COMPLETED"  # also one that has failed, as in Flink

Document = dict[str, object]


@dataclass(slots=True)
class SavepointOperation:
    """One request; ``location`` None: not known yet; ``is_complete``: the savepoint, while the job
    is still to finish.
    """

    request_id: str
    stops_job: bool
    cancels_job: bool = False
    location: str | None = None
    is_complete: bool = False
    failure: str | None = None
    has_ended: bool = False

    def document(self) -> Document:
        """The document of ``GET /jobs/:jobid/savepoints/:triggerid``."""
        if not self.has_ended:
            return {"status": {"id": _IN_PROGRESS}, "operation": None}
        operation = (
            {"location": self.location} if self.failure is None else {"failure-cause": {"message": self.failure}}
        )
        return {"status": {"id": _COMPLETED}, "operation": operation}


class SavepointOperations:
    """The operations of one job.  Threading: one thread."""

    def __init__(self) -> None:
        self._operations: dict[str, SavepointOperation] = {}  # the oldest first

    def __repr__(self) -> str:
        return f"<SavepointOperations {len(self._operations)}>"

    def find(self, request_id: str) -> SavepointOperation | None:
        """The operation, unless it is not known, or not any more."""
        return self._operations.get(request_id)

    @property
    def stopping(self) -> SavepointOperation | None:
        """The one that is about to stop the job."""
        return next((each for each in self._operations.values() if each.stops_job and not each.has_ended), None)

    def begin(self, operation: SavepointOperation) -> None:
        """A new one, whose id no other has."""
        assert operation.request_id not in self._operations, "the caller looked"
        ended = [each.request_id for each in self._operations.values() if each.has_ended]
        for each in ended[: max(0, len(ended) - MAX_ENDED + 1)]:
            del self._operations[each]
        self._operations[operation.request_id] = operation

    def savepoint_ended(self, operation: SavepointOperation, failure: str | None) -> None:
        """The savepoint is complete, or has failed."""
        operation.failure = failure
        operation.is_complete = failure is None
        operation.has_ended = failure is not None or not operation.stops_job

    def job_changed(self, status: JobStatus, cause: str | None) -> None:
        """The job is in another status; a savepoint that is complete and has not stopped the job did not do what it was
        for.
        """
        for operation in self._operations.values():
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


_NO_MACHINERY: Final = (
    "the job takes neither checkpoints nor savepoints: set execution.checkpointing.savepoint-dir, or "
    "execution.checkpointing.interval, before it starts"
)
_NO_DIRECTORY: Final = "name a directory, or set execution.checkpointing.savepoint-dir before the job starts"
log = LogLines(__name__)


class SavepointRefusedError(FlowletError):
    """The request cannot be accepted; says why."""


class SavepointTaker(Protocol):
    """The part of ``JobCheckpoints`` that is needed here."""

    def announce_stop(self, *, is_near: bool) -> None:
        """One that stops the job comes, or does not after all."""

    def request_savepoint(self, request: SavepointRequest, on_end: Callable[[str | None], object]) -> None:
        """Take it; ``on_end`` gets None or the failure."""


class Located(Protocol):
    """The part of ``SavepointStorage`` that is needed here."""

    location: str


class JobSavepoints:
    """The savepoints of one job.

    Threading: the JobManager's loop.

    Args:
        job_id: the job's.
        settings: of its checkpoints; None: it has no barriers, and so no savepoints.
        taker: takes them.
        call_in_background: for the file system.
        cancel: the job, once a savepoint is complete, if that was asked for.
        gates: the remote gates of the job, by name; with any it takes no savepoints.
        create: makes the directory; blocking.
    """

    def __init__(
        self,
        job_id: str,
        settings: CheckpointSettings | None,
        taker: SavepointTaker,
        *,
        call_in_background: CallInBackground,
        cancel: Callable[[], object],
        gates: Sequence[str] = (),
        create: Callable[[str, str], Located] = SavepointStorage.create,
    ) -> None:
        self._job_id = job_id
        self._settings = settings
        self._taker = taker
        self._call_in_background = call_in_background
        self._cancel = cancel
        self._gates = gates
        self._create = create
        self._operations = SavepointOperations()
        self._changed = asyncio.Event()  # set and replaced at every change

    def __repr__(self) -> str:
        return f"<JobSavepoints of {self._job_id}, {self._operations!r}>"

    def trigger(
        self, request_id: str, target: str | None, kind: SnapshotType, *, cancels_job: bool = False
    ) -> SavepointOperation:
        """Begin a savepoint, below the directory ``target`` (None: that of the job); an id that is known changes
        nothing.

        Raises:
            SavepointRefusedError: the job cannot take one, or the directory cannot be used; says what to do.
        """
        known = self._operations.find(request_id)
        if known is not None:
            return known
        directory = self._directory(target)
        stopping = self._operations.stopping
        if stopping is not None:
            raise SavepointRefusedError(
                f"the job is being stopped with a savepoint already (request {stopping.request_id})"
            )
        stops_job = kind is not SnapshotType.SAVEPOINT
        operation = SavepointOperation(request_id, stops_job, cancels_job)
        self._operations.begin(operation)
        if stops_job:
            self._taker.announce_stop(is_near=True)
        self._call_in_background(
            lambda: self._create(directory, self._job_id),
            lambda storage: self._created(operation, storage.location, kind),
            lambda error: self._not_created(operation, str(error) or repr(error)),
            f"directory of a savepoint of job {self._job_id}",
        )
        return operation

    def _directory(self, target: str | None) -> str:
        if self._gates:
            raise SavepointRefusedError(
                f"a job with a remote gate ({self._gates[0]!r}) takes no savepoints yet: cancel it with "
                "execution.checkpointing.externalized-checkpoint-retention set to RETAIN_ON_CANCELLATION, and start "
                "from that checkpoint"
            )
        if self._settings is None:
            raise SavepointRefusedError(_NO_MACHINERY)
        directory = target or self._settings.savepoint_directory
        if not directory:
            raise SavepointRefusedError(_NO_DIRECTORY)
        try:
            return target_root(directory)
        except FlowletError as error:
            raise SavepointRefusedError(str(error)) from error

    def _created(self, operation: SavepointOperation, location: str, kind: SnapshotType) -> None:
        operation.location = location
        self._taker.request_savepoint(SavepointRequest(location, kind), lambda failure: self._ended(operation, failure))

    def _not_created(self, operation: SavepointOperation, failure: str) -> None:
        if operation.stops_job:
            self._taker.announce_stop(is_near=False)
        self._ended(operation, failure)

    def _ended(self, operation: SavepointOperation, failure: str | None) -> None:
        self._operations.savepoint_ended(operation, failure)
        self._wake_waiters()
        if failure is not None:
            log.warning("savepoint failed", job=self._job_id, path=operation.location, why=failure[:1000])
        elif operation.cancels_job:
            self._cancel()

    def job_changed(self, status: JobStatus, cause: str | None) -> None:
        """The job is in another status; ``cause``: of its failure."""
        self._operations.job_changed(status, cause)
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, request_id: str, timeout_s: float) -> SavepointOperation | None:
        """The operation once it has ended, or as it is after the timeout; None: it is not known."""
        try:
            async with asyncio.timeout(timeout_s):
                while (operation := self._operations.find(request_id)) is not None and not operation.has_ended:
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self._operations.find(request_id)

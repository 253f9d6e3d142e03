"""``SavepointOperations``: what became of the savepoints that users asked for.

Side:       pure.
Invariants: an operation ends once; of those that have ended the last ``MAX_ENDED`` are kept.  One that stops the job
            succeeds only when the job has finished.
Source:     Flink ``SavepointHandlers``, ``StopWithSavepointTerminationHandlerImpl``, ``CompletedOperationCache``.
"""

from typing import Final

from flowlet.common.job_status import JobStatus
from netstack.late import dataclass

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
                    f"FINISHED{why}: if it goes "
                    "on from its last checkpoint, results behind that come again after the savepoint, too; stop it "
                    "again, and use the "
                    "newer savepoint"
                )

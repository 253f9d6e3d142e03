"""Tests of ``flowlet.checkpoint.jobmanager.savepoints``: the file system and the coordinator answer
when the test says so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from flowlet.checkpoint.jobmanager.job_checkpoints import JobCheckpoints
from flowlet.checkpoint.jobmanager.pending_checkpoint import SavepointRequest
from flowlet.checkpoint.jobmanager.savepoints import MAX_ENDED, JobSavepoints, SavepointOperation, SavepointRefusedError
from flowlet.common.job_settings import CheckpointSettings
from flowlet.common.job_status import JobStatus
from flowlet.errors import StorageError
from flowlet.storage.checkpoint_storage import SavepointStorage
from netstack.wire.events import SnapshotType
from tests.flowlet.checkpoint.jobmanager.background import Background
from tests.flowlet.checkpoint.jobmanager.coordinated import JOB_ID

SETTINGS = CheckpointSettings(None, "", savepoint_directory="/savepoints")
IN_PROGRESS = {"status": {"id": "IN_PROGRESS"}, "operation": None}
SAVEPOINT, SUSPEND = SnapshotType.SAVEPOINT, SnapshotType.SAVEPOINT_SUSPEND


@dataclass
class Directory(SavepointStorage):
    location: str


class Rig(JobCheckpoints):
    """The checkpoints of a job, as its savepoints see them."""

    def __init__(self, settings: CheckpointSettings | None = SETTINGS, gates: Sequence[str] = ()) -> None:
        self.background = Background()
        self.requests: list[tuple[SavepointRequest, Callable[[str | None], object]]] = []
        self.created: list[str] = []
        self.error: Exception | None = None
        self.num_cancelled = 0
        self.announced: list[bool] = []
        self.job_id = JOB_ID
        self.settings = settings
        self.call_in_background = self.background
        self.savepoints = JobSavepoints(self, self._cancel, gates, self._create)

    def announce_stop(self, *, is_near: bool) -> None:
        self.announced.append(is_near)

    def request_savepoint(self, request: SavepointRequest, on_end: Callable[[str | None], object]) -> None:
        self.requests.append((request, on_end))

    def _create(self, directory: str, job_id: str) -> Directory:
        if self.error is not None:
            raise self.error
        self.created.append(directory)
        return Directory(f"{directory}/savepoint-{len(self.created)}")

    def _cancel(self) -> None:
        self.num_cancelled += 1

    def begun(self, request_id: str = "r", kind: SnapshotType = SAVEPOINT) -> SavepointOperation:
        """A savepoint whose directory is there."""
        operation = self.savepoints.trigger(request_id, None, kind)
        self.background.end_all()
        return operation


def test_no_task_hears_of_it_before_its_directory_is_there() -> None:
    rig = Rig()

    rig.savepoints.trigger("r", None, SAVEPOINT)
    assert rig.requests == []
    rig.background.end_all()

    assert [request for request, _ in rig.requests] == [SavepointRequest("/savepoints/savepoint-1", SAVEPOINT)]


def test_a_directory_that_cannot_be_written_is_its_failure() -> None:
    rig = Rig()
    rig.error = StorageError("the disk is full")

    operation = rig.savepoints.trigger("r", "/elsewhere/", SUSPEND)
    rig.background.end_all()

    assert (operation.failure, rig.requests) == ("the disk is full", [])
    assert rig.announced == [True, False]


def test_the_job_is_cancelled_when_that_was_wanted_and_the_savepoint_is_complete() -> None:
    rig = Rig()
    rig.savepoints.trigger("bad", None, SAVEPOINT, cancels_job=True)
    rig.savepoints.trigger("good", None, SAVEPOINT, cancels_job=True)
    rig.background.end_all()

    rig.requests[0][1]("it was not complete in time")
    after_failure = rig.num_cancelled
    rig.requests[1][1](None)

    assert (after_failure, rig.num_cancelled) == (0, 1)


def test_the_same_request_begins_nothing_new() -> None:
    """A client that got no answer sends it again."""
    rig = Rig()

    assert rig.savepoints.trigger("r", None, SAVEPOINT) is rig.savepoints.trigger("r", None, SAVEPOINT)

    rig.background.end_all()
    assert len(rig.requests) == 1


def test_a_job_that_is_being_stopped_takes_no_other() -> None:
    rig = Rig()
    rig.savepoints.trigger("r", None, SUSPEND)

    with pytest.raises(SavepointRefusedError, match=r"is being stopped .* \(request r\)"):
        rig.savepoints.trigger("s", None, SAVEPOINT)


@pytest.mark.parametrize(
    ("settings", "target", "message"),
    [
        (None, "/there", "takes neither checkpoints nor savepoints: set execution.checkpointing.savepoint-dir"),
        (CheckpointSettings(None, ""), None, "name a directory, or set execution.checkpointing.savepoint-dir"),
        (SETTINGS, "relative", "a savepoint cannot be written to 'relative'"),
    ],
    ids=["no settings", "no directory", "relative"],
)
def test_what_cannot_be_done_is_refused_at_once(
    settings: CheckpointSettings | None, target: str | None, message: str
) -> None:
    """The message says which option to set."""
    with pytest.raises(SavepointRefusedError, match=message):
        Rig(settings).savepoints.trigger("r", target, SAVEPOINT)


def test_a_job_with_a_remote_gate_takes_none() -> None:
    """The gate's producers would go on with a job that is no longer there."""
    with pytest.raises(
        SavepointRefusedError, match=r"a job with a remote gate \('clicks'\) takes no savepoints yet: cancel it"
    ):
        Rig(gates=["clicks"]).savepoints.trigger("r", "/there", SAVEPOINT)


def test_a_savepoint_is_complete_or_has_failed() -> None:
    rig = Rig()
    good, bad = rig.begun("good"), rig.begun("bad")
    before = good.document()

    rig.requests[0][1](None)
    rig.requests[1][1]("the disk is full")

    assert before == IN_PROGRESS
    assert rig.num_cancelled == 0
    assert good.document() == {"status": {"id": "COMPLETED"}, "operation": {"location": "/savepoints/savepoint-1"}}
    assert bad.document() == {
        "status": {"id": "COMPLETED"},
        "operation": {"failure-cause": {"message": "the disk is full"}},
    }


def test_one_that_stops_the_job_has_ended_when_the_job_has_finished() -> None:
    rig = Rig()
    operation = rig.begun(kind=SUSPEND)

    rig.requests[0][1](None)
    rig.savepoints.job_changed(JobStatus.RUNNING, None)
    assert operation.document() == IN_PROGRESS
    rig.savepoints.job_changed(JobStatus.FINISHED, None)

    assert (operation.document()["operation"], operation.has_ended) == ({"location": "/savepoints/savepoint-1"}, True)
    assert (rig.savepoints.find("r"), rig.savepoints.find("x")) == (operation, None)
    assert rig.begun("next").document() == IN_PROGRESS  # none stops the job any more


@pytest.mark.parametrize("status", [JobStatus.RESTARTING, JobStatus.FAILING, JobStatus.CANCELLING])
def test_a_job_that_does_not_finish_after_it_is_told(status: JobStatus) -> None:
    """The failure names the place of the savepoint, and what its use would mean."""
    rig = Rig()
    operation = rig.begun(kind=SUSPEND)
    rig.requests[0][1](None)

    rig.savepoints.job_changed(status, "ValueError: boom")
    rig.savepoints.job_changed(JobStatus.FINISHED, None)

    assert operation.failure is not None
    assert operation.failure.startswith(
        f"savepoint /savepoints/savepoint-1 is complete, but then the job was {status.name} instead of FINISHED "
        "(ValueError: boom)"
    )


def test_what_happens_to_the_job_before_a_savepoint_is_complete_is_not_its_end() -> None:
    """The coordinator says how it ended."""
    rig = Rig()
    operation = rig.begun(kind=SUSPEND)

    rig.savepoints.job_changed(JobStatus.RESTARTING, "boom")

    assert operation.document() == IN_PROGRESS


def test_the_oldest_that_have_ended_are_forgotten() -> None:
    """One that is under way is not."""
    rig = Rig()
    rig.begun("under way")
    for number in range(MAX_ENDED + 1):
        rig.begun(f"{number}")
        rig.requests[-1][1](None)

    rig.begun("last")

    assert rig.savepoints.find("0") is rig.savepoints.find("1") is None
    assert rig.savepoints.find("2") is not None
    assert rig.savepoints.find("under way") is not None

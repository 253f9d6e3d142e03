"""Tests of ``flowlet.jm.savepoints.job_savepoints``: what people are told of their requests."""

import pytest

from flowlet.common.job_status import JobStatus
from flowlet.jm.savepoints.job_savepoints import MAX_ENDED, SavepointOperation, SavepointOperations

IN_PROGRESS = {"status": {"id": "IN_PROGRESS"}, "operation": None}


def begun(operations: SavepointOperations, request_id: str = "r", *, stops_job: bool = False) -> SavepointOperation:
    operation = SavepointOperation(request_id, stops_job, location=f"/savepoints/{request_id}")
    operations.begin(operation)
    return operation


def test_a_savepoint_is_complete_or_has_failed() -> None:
    operations = SavepointOperations()
    good, bad = begun(operations, "good"), begun(operations, "bad")
    before = good.document()

    operations.savepoint_ended(good, None)
    operations.savepoint_ended(bad, "the disk is full")

    assert before == IN_PROGRESS
    assert good.document() == {"status": {"id": "COMPLETED"}, "operation": {"location": "/savepoints/good"}}
    assert bad.document() == {
        "status": {"id": "COMPLETED"},
        "operation": {"failure-cause": {"message": "the disk is full"}},
    }


def test_one_that_stops_the_job_has_ended_when_the_job_has_finished() -> None:
    operations = SavepointOperations()
    operation = begun(operations, stops_job=True)

    operations.savepoint_ended(operation, None)
    operations.job_changed(JobStatus.RUNNING, None)
    between = operation.document()
    operations.job_changed(JobStatus.FINISHED, None)

    assert between == IN_PROGRESS
    assert operations.stopping is None
    assert operation.document()["operation"] == {"location": "/savepoints/r"}


@pytest.mark.parametrize("status", [JobStatus.RESTARTING, JobStatus.FAILING, JobStatus.CANCELLING])
def test_a_job_that_does_not_finish_after_it_is_told(status: JobStatus) -> None:
    """With the place of the savepoint, and what its use would mean."""
    operations = SavepointOperations()
    operation = begun(operations, stops_job=True)
    operations.savepoint_ended(operation, None)

    operations.job_changed(status, "ValueError: boom")
    operations.job_changed(JobStatus.FINISHED, None)

    assert operation.failure is not None
    assert operation.failure.startswith(
        f"savepoint /savepoints/r is complete, but then the job was {status.name} instead of FINISHED (ValueError: "
        "boom)"
    )


def test_what_happens_to_the_job_before_a_savepoint_is_complete_is_not_its_end() -> None:
    """The coordinator says how it ended."""
    operations = SavepointOperations()
    operation = begun(operations, stops_job=True)

    operations.job_changed(JobStatus.RESTARTING, "boom")

    assert operation.document() == IN_PROGRESS
    assert operations.stopping is operation


def test_the_oldest_that_have_ended_are_forgotten() -> None:
    """One that is under way is not."""
    operations = SavepointOperations()
    begun(operations, "under way")
    for number in range(MAX_ENDED + 1):
        operations.savepoint_ended(begun(operations, f"{number}"), None)

    begun(operations, "last")

    assert operations.find("0") is operations.find("1") is None
    assert operations.find("2") is not None
    assert operations.find("under way") is not None

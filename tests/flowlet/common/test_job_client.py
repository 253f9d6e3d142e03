"""The client of a job, what it answers, and the futures of its answers."""

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from flowlet.client.running_job import RunningJob
from flowlet.common import CompletableFuture, JobClient, JobExecutionResult, JobID, JobStatus
from flowlet.errors import FlowletError, JobExecutionError, SavepointError

JOB_ID = "0123456789abcdef" * 2


@dataclass
class ScriptedJob:
    """A running job whose end is given."""

    outcome: JobExecutionResult | Exception
    state: JobStatus = JobStatus.RUNNING
    job_id: str = JOB_ID
    last_status: JobStatus | None = None
    calls: list[str] = field(default_factory=list)
    refusal: SavepointError | None = None

    def status(self) -> JobStatus:
        return self.state

    def cancel(self) -> None:
        self.calls.append("cancel")

    def trigger_savepoint(self, directory: str | None) -> CompletableFuture[str]:
        self.calls.append(f"savepoint {directory}")
        return self._savepoint()

    def stop_with_savepoint(self, directory: str | None, *, drain: bool) -> CompletableFuture[str]:
        self.calls.append(f"stop {directory} {drain}")
        return self._savepoint()

    def _savepoint(self) -> CompletableFuture[str]:
        def wait() -> str:
            self.calls.append("wait for a savepoint")
            if self.refusal is not None:
                raise self.refusal
            return "/savepoints/savepoint-1"

        return CompletableFuture(wait, lambda: self.refusal is not None or "wait for a savepoint" in self.calls)

    def wait(self) -> JobExecutionResult:
        self.calls.append("wait")
        self.state = JobStatus.FINISHED
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def metrics(self) -> dict[str, Any]:
        return {"name": "job"}

    def close(self) -> None:
        self.calls.append("close")


def client_of(job: ScriptedJob) -> JobClient:
    return JobClient(cast("RunningJob", job), lambda running: running.close())


def test_the_text_has_the_id_and_the_state_that_was_last_heard_of() -> None:
    """The JobManager is not asked: it may be gone, and a debugger would wait for it."""
    job = ScriptedJob(JobExecutionResult(JobID(JOB_ID), 1))
    client = client_of(job)

    assert repr(client) == f"<JobClient {JOB_ID} submitted>"
    job.last_status = JobStatus.RESTARTING
    assert repr(client) == f"<JobClient {JOB_ID} RESTARTING>"
    assert job.calls == []


def test_the_result_is_waited_for_and_the_job_given_back() -> None:
    job = ScriptedJob(JobExecutionResult(JobID(JOB_ID), 1234))
    future = client_of(job).get_job_execution_result()

    assert not future.done()
    result = future.result()

    assert (str(result.get_job_id()), result.get_net_runtime()) == (JOB_ID, 1234)
    assert future.done()
    assert job.calls == ["wait", "close"]


def test_a_failure_reaches_the_caller_and_gives_the_job_back() -> None:
    job = ScriptedJob(JobExecutionError("boom"))

    with pytest.raises(JobExecutionError, match="boom"):
        client_of(job).get_job_execution_result().result()

    assert job.calls == ["wait", "close"]


def test_cancel_only_asks() -> None:
    job = ScriptedJob(JobExecutionError("cancelled"))

    future = client_of(job).cancel()

    assert future.done()
    assert future.result() is None
    assert job.calls == ["cancel"]


def test_the_status_is_that_of_the_moment() -> None:
    job = ScriptedJob(JobExecutionError("never"), state=JobStatus.CANCELLING)

    status = client_of(job).get_job_status()
    job.state = JobStatus.CANCELED

    assert status.result() is JobStatus.CANCELLING
    assert client_of(job).get_job_status().result() is JobStatus.CANCELED
    assert client_of(job).get_job_id() == JobID(JOB_ID)


def test_a_result_prints_its_job_and_runtime() -> None:
    assert str(JobExecutionResult(JobID(JOB_ID), 5)) == f"Job with JobID {JOB_ID} has finished.\nJob Runtime: 5 ms"


def test_terminal_states_are_those_that_nothing_follows() -> None:
    ended = {JobStatus.FAILED, JobStatus.CANCELED, JobStatus.FINISHED}

    assert {status for status in JobStatus if status.is_globally_terminal_state()} == ended
    assert {status for status in JobStatus if status.is_terminal_state()} == ended | {JobStatus.SUSPENDED}


@pytest.mark.parametrize("text", ["", "0" * 31, "0" * 33, "G" * 32, "A" * 32])
def test_a_job_id_has_32_hex_digits(text: str) -> None:
    with pytest.raises(ValueError, match="32 lower-case hex digits"):
        JobID(text)
    assert repr(JobID(JOB_ID)) == f"JobID({JOB_ID})"


def test_metrics_are_the_jobs_document() -> None:
    """Handed on as the job gives it."""
    job = ScriptedJob(JobExecutionResult(JobID(JOB_ID), 1))

    assert client_of(job).metrics() == job.metrics()
    assert job.calls == []


def test_a_savepoint_begins_at_the_call_and_is_waited_for_in_its_future() -> None:
    """The savepoint begins at the call, as in PyFlink; the future's value is its place."""
    job = ScriptedJob(JobExecutionResult(JobID(JOB_ID), 1))
    client = client_of(job)

    stops = client.stop_with_savepoint(True, "/there"), client.stop_with_savepoint(False)
    futures = [client.trigger_savepoint(), *stops]
    before = [future.done() for future in futures]
    values = [future.result() for future in futures]

    assert job.calls[:3] == ["stop /there True", "stop None False", "savepoint None"]
    assert (before, values) == ([False] * 3, ["/savepoints/savepoint-1"] * 3)
    assert futures[0].done()


def test_a_savepoint_that_is_refused_is_the_error_of_its_future() -> None:
    job = ScriptedJob(JobExecutionResult(JobID(JOB_ID), 1), refusal=SavepointError("name a directory"))

    future = client_of(job).trigger_savepoint()

    assert future.done()
    with pytest.raises(SavepointError, match="name a directory"):
        future.result()


def failing() -> int:
    raise JobExecutionError("it failed")


def test_a_completed_future_has_its_value() -> None:
    future = CompletableFuture.completed(7)

    assert future.done()
    assert future.result() == 7
    assert future.exception() is None
    assert str(future) == "CompletableFuture(done)"


def test_the_value_is_waited_for_only_when_it_is_asked_for() -> None:
    waits: list[str] = []
    future = CompletableFuture(lambda: waits.append("waited"), lambda: bool(waits))

    assert not future.done()
    assert str(future) == "CompletableFuture(pending)"
    assert waits == []

    future.result()

    assert waits == ["waited"]
    assert future.done()


def test_an_error_is_raised_by_result_and_returned_by_exception() -> None:
    future = CompletableFuture(failing, lambda: True)

    with pytest.raises(JobExecutionError, match="it failed"):
        future.result()
    assert isinstance(future.exception(), JobExecutionError)


def test_an_interrupt_is_never_taken_for_the_jobs_error() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CompletableFuture(interrupted, lambda: False).exception()


def test_a_future_that_was_given_up_has_no_value() -> None:
    """The wait is not even begun."""
    future = CompletableFuture(failing, lambda: False)

    assert not future.cancelled()
    assert future.cancel()
    assert future.cancelled()
    assert future.done()
    assert future.cancel()
    with pytest.raises(FlowletError, match="the future was cancelled"):
        future.result()
    assert "cancelled" in str(future.exception())


def test_a_value_that_is_there_cannot_be_given_up() -> None:
    future = CompletableFuture.completed(7)

    assert not future.cancel()
    assert not future.cancelled()
    assert future.result() == 7

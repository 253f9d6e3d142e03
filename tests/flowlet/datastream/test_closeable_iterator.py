"""Promises of ``CloseableIterator``."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pytest

from flowlet.client.running_job import RunningJob
from flowlet.common import JobExecutionResult, JobID, JobStatus
from flowlet.common.completable_future import CompletableFuture
from flowlet.common.job_client import ProgressMode, SubmittedJob
from flowlet.datastream import CloseableIterator
from flowlet.errors import FlowletError, JobExecutionError

JOB_ID = "0123456789abcdef" * 2
SCHEMA = pa.schema([("n", pa.int64())])


class ScriptedRecords(Iterator[Any]):
    """Each record is a chunk of its own."""

    def __init__(self, values: Iterator[Any]) -> None:
        self._values = values

    def __next__(self) -> Any:
        return next(self._values)

    def chunks(self) -> Iterator[Any]:
        return ([value] for value in self._values)


@dataclass
class ScriptedJob:
    """A running job with given records, which may fail behind them or while they are read."""

    values: list[Any]
    failure: Exception | None = None
    read_failure: BaseException | None = None
    state: JobStatus = JobStatus.RUNNING
    job_id: str = JOB_ID
    is_inherited: bool = False
    last_status: JobStatus | None = None
    calls: list[str] = field(default_factory=list)

    def status(self) -> JobStatus:
        return self.state

    def cancel(self) -> None:
        self.calls.append("cancel")

    def cancel_after_interrupt(self) -> None:
        self.calls.append("cancel after interrupt")

    def finish_gate(self, name: str) -> None:
        self.calls.append(f"finish_gate {name}")

    def trigger_savepoint(self, directory: str | None) -> CompletableFuture[str]:
        raise AssertionError("not asked for")

    def stop_with_savepoint(self, directory: str | None, *, drain: bool) -> CompletableFuture[str]:
        raise AssertionError("not asked for")

    def announce(self, progress: ProgressMode) -> None:
        """Show nothing."""

    def wait(self, timeout: float | None = None, *, progress: ProgressMode = ProgressMode.OFF) -> JobExecutionResult:
        self.calls.append("wait")
        if self.failure is not None:
            raise self.failure
        return JobExecutionResult(JobID(JOB_ID), 1)

    def collect(self, edge_id: str) -> "ScriptedRecords":
        return ScriptedRecords(self._read(edge_id))

    def _read(self, edge_id: str) -> Iterator[Any]:
        self.calls.append(f"collect {edge_id}")
        yield from self.values
        if self.read_failure is not None:
            raise self.read_failure

    def metrics(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.calls.append("close")


def iterator_of(job: ScriptedJob, release: Callable[[RunningJob], None] = lambda job: job.close()) -> CloseableIterator:
    return CloseableIterator(SubmittedJob(cast("RunningJob", job), ("edge",)), release, lambda: SCHEMA)


def test_all_records_are_given_and_the_job_is_given_back_at_their_end() -> None:
    job = ScriptedJob([1, None, 3])

    with iterator_of(job) as values:
        assert list(values) == [1, None, 3]
        assert job.calls == ["collect edge", "wait", "close"]

    assert job.calls == ["collect edge", "wait", "close"]


def test_after_the_end_there_is_nothing_more() -> None:
    values = iterator_of(ScriptedJob([1]))

    assert values.next() == 1
    for _ in range(2):
        with pytest.raises(StopIteration):
            values.next()


def test_a_failure_behind_the_last_record_is_not_hidden() -> None:
    job = ScriptedJob([1], failure=JobExecutionError("boom"))
    values = iterator_of(job)

    assert next(values) == 1
    with pytest.raises(JobExecutionError, match="boom"):
        next(values)
    assert job.calls[-1] == "close"


@pytest.mark.parametrize("failure", [JobExecutionError("boom"), KeyboardInterrupt()])
def test_whatever_stops_the_reading_cancels_the_job(failure: BaseException) -> None:
    job = ScriptedJob([1], read_failure=failure)
    values = iterator_of(job)

    next(values)
    with pytest.raises(type(failure)):
        next(values)

    assert job.calls == ["collect edge", "cancel", "close"]


def test_closing_early_cancels_the_job_once() -> None:
    job = ScriptedJob([1, 2])
    values = iterator_of(job)
    next(values)

    values.close()
    values.close()

    assert job.calls == ["collect edge", "cancel", "close"]
    with pytest.raises(StopIteration):
        next(values)


@pytest.mark.parametrize("state", [JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED])
def test_an_ended_job_is_not_cancelled(state: JobStatus) -> None:
    job = ScriptedJob([1], state=state)

    with iterator_of(job):
        pass

    assert job.calls == ["close"]


def test_the_job_can_be_watched_while_it_is_read() -> None:
    """The client belongs to the iterator's job; taking it neither waits for the job nor gives it back."""
    job = ScriptedJob([1, 2])
    ended: list[object] = []
    values = iterator_of(job, ended.append)

    client = values.job_client

    assert str(client.get_job_id()) == JOB_ID
    assert ended == []
    assert list(values) == [1, 2]
    assert ended == [job]


def test_a_table_has_all_records_and_the_job_is_given_back() -> None:
    """The job is waited for, as at the end of an iteration, so that its failure is not hidden."""
    job = ScriptedJob([1, 2])

    assert iterator_of(job).to_arrow().equals(pa.table({"n": [1, 2]}, SCHEMA))
    assert job.calls == ["collect edge", "wait", "close"]


@pytest.mark.parametrize("failure", [JobExecutionError("boom"), KeyboardInterrupt()])
def test_what_stops_the_reading_of_a_table_cancels_the_job(failure: BaseException) -> None:
    job = ScriptedJob([1], read_failure=failure)

    with pytest.raises(type(failure)):
        iterator_of(job).to_arrow()
    assert job.calls == ["collect edge", "cancel", "close"]


def test_a_table_of_a_closed_iterator_is_an_error_and_not_an_empty_table() -> None:
    values = iterator_of(ScriptedJob([1]))
    list(values)

    with pytest.raises(FlowletError, match="comes too late: the records were read to their end"):
        values.to_arrow()

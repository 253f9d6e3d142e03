"""Promises of ``CloseableIterator``."""

from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
import pytest

from flowlet.client.running_job import RunningJob
from flowlet.common import JobStatus
from flowlet.common.job_client import SubmittedJob
from flowlet.datastream import CloseableIterator
from flowlet.errors import FlowletError, JobExecutionError
from tests.flowlet.datastream.scripted_job import JOB_ID, ScriptedJob

SCHEMA = pa.schema([("n", pa.int64())])


def iterator_of(job: ScriptedJob, release: Callable[[RunningJob], None] = lambda job: job.close()) -> CloseableIterator:
    return CloseableIterator(SubmittedJob(cast("RunningJob", job), ("edge",)), release, lambda: SCHEMA)


def test_all_records_are_given_and_the_job_is_given_back_at_their_end() -> None:
    job = ScriptedJob((1, None, 3))

    with iterator_of(job) as values:
        assert list(values) == [1, None, 3]
        assert job.calls == ["collect edge", "wait", "close"]

    assert job.calls == ["collect edge", "wait", "close"]


def test_after_the_end_there_is_nothing_more() -> None:
    values = iterator_of(ScriptedJob((1,)))

    assert values.next() == 1
    for _ in range(2):
        with pytest.raises(StopIteration):
            values.next()


def test_a_failure_behind_the_last_record_is_not_hidden() -> None:
    job = ScriptedJob((1,), failure=JobExecutionError("boom"))
    values = iterator_of(job)

    assert next(values) == 1
    with pytest.raises(JobExecutionError, match="boom"):
        next(values)
    assert job.calls[-1] == "close"


@pytest.mark.parametrize("read", [list, CloseableIterator.to_arrow], ids=["records", "a table"])
@pytest.mark.parametrize("failure", [JobExecutionError("boom"), KeyboardInterrupt()])
def test_whatever_stops_the_reading_cancels_the_job(
    read: Callable[[CloseableIterator], Any], failure: BaseException
) -> None:
    job = ScriptedJob((1,), read_failure=failure)

    with pytest.raises(type(failure)):
        read(iterator_of(job))

    assert job.calls == ["collect edge", "cancel", "close"]


def test_closing_early_cancels_the_job_once() -> None:
    job = ScriptedJob((1, 2))
    values = iterator_of(job)
    next(values)

    values.close()
    values.close()

    assert job.calls == ["collect edge", "cancel", "close"]
    with pytest.raises(StopIteration):
        next(values)


@pytest.mark.parametrize("state", [JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED])
def test_an_ended_job_is_not_cancelled(state: JobStatus) -> None:
    job = ScriptedJob((1,), state=state)

    with iterator_of(job):
        pass

    assert job.calls == ["close"]


def test_the_job_can_be_watched_while_it_is_read() -> None:
    """The client belongs to the iterator's job; taking it neither waits for the job nor gives it back."""
    job = ScriptedJob((1, 2))
    ended: list[object] = []
    values = iterator_of(job, ended.append)

    client = values.job_client

    assert str(client.get_job_id()) == JOB_ID
    assert ended == []
    assert list(values) == [1, 2]
    assert ended == [job]


def test_a_table_has_all_records_and_the_job_is_given_back() -> None:
    """The job is waited for, as at the end of an iteration, so that its failure is not hidden."""
    job = ScriptedJob((1, 2))

    assert iterator_of(job).to_arrow().equals(pa.table({"n": [1, 2]}, SCHEMA))
    assert job.calls == ["collect edge", "wait", "close"]


def test_a_table_of_a_closed_iterator_is_an_error_and_not_an_empty_table() -> None:
    values = iterator_of(ScriptedJob((1,)))
    list(values)

    with pytest.raises(FlowletError, match="comes too late: the records were read to their end"):
        values.to_arrow()

"""A reader goes on over a restart of its job, and gets each record as often as the job's checkpoints promise."""

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from flowlet.client import collect
from flowlet.client.collect import CollectedValues, RunReader
from flowlet.client.result_buffer import Guarantee
from flowlet.client.running_job import RunningJob
from flowlet.common.job_status import JobStatus
from flowlet.errors import FlowletError, JobExecutionError
from netstack.errors import LocalProtocolError, NetstackError, RemoteProtocolError
from tests.flowlet.client.scripted_job import EDGE, ScriptedJob
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

EXACTLY_ONCE, AT_LEAST_ONCE = Guarantee.EXACTLY_ONCE, Guarantee.AT_LEAST_ONCE


class Reader:
    """Reads a scripted job on a thread of its own, so that the test can say meanwhile how the job goes on."""

    def __init__(self, job: ScriptedJob, guarantee: Guarantee | None) -> None:
        job.guarantee = guarantee
        self.values = CollectedValues(EDGE, job.channels, cast(RunningJob, job))
        self.taken: list[Any] = []
        self._error: Exception | None = None
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            for value in self.values:
                with self._condition:
                    self.taken.append(value)
                    self._condition.notify()
        except Exception as error:  # noqa: BLE001  # the test looks at it
            self._error = error

    def wait_for(self, number: int) -> list[Any]:
        """Return the records taken so far, once there are so many."""
        with self._condition:
            assert self._condition.wait_for(lambda: len(self.taken) >= number, PATIENCE_S)
            return list(self.taken)

    def end(self) -> list[Any]:
        """Wait for the end of the iteration; return the records that it gave."""
        error = self.fail()
        assert error is None
        return self.taken

    def fail(self) -> Exception | None:
        """Wait until the iteration is over; return why."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self._error


@pytest.fixture(params=[1])
def job(request: pytest.FixtureRequest) -> Iterator[ScriptedJob]:
    """Make a job of one producer, or of as many as the test says."""
    made = ScriptedJob(request.param)
    yield made
    made.close()


def throw(error: Exception) -> None:
    raise error


def test_news_wait_in_their_order_and_of_checkpoints_in_a_row_the_last_one(job: ScriptedJob) -> None:
    values = CollectedValues(EDGE, job.channels, cast(RunningJob, job))

    for each in (1, 2, job.channels, 3):
        values._tell(each)

    assert list(values._news) == [2, job.channels, 3]
    values.release()


def test_records_are_handed_out_when_the_checkpoint_behind_them_is_complete(job: ScriptedJob) -> None:
    reader = Reader(job, EXACTLY_ONCE)

    job.run.send(0, 1, 2)
    job.pass_barrier(1)
    job.run.send(0, 3)
    assert reader.taken == []
    job.complete(1)
    assert reader.wait_for(2) == [1, 2]
    job.finish()

    assert reader.end() == [1, 2, 3]


@pytest.mark.parametrize("job", [2], indirect=True, ids=["two producers"])
def test_a_restart_repeats_and_loses_nothing(job: ScriptedJob) -> None:
    """Records of both producers arrive once, though one producer had passed the barrier of a checkpoint that was never
    complete.
    """
    reader = Reader(job, EXACTLY_ONCE)

    job.run.send(0, "a1")
    job.run.send(1, "b1")
    job.pass_barrier(1)
    job.complete(1)
    job.run.send(0, "a2")
    job.pass_barrier(2, 0)
    job.run.send(0, "a3")
    job.fail_run()
    run = job.start_run(1)
    run.send(0, "a2")
    run.send(1, "b2")
    job.pass_barrier(3)
    job.complete(3)
    run.send(0, "a3")
    job.finish()

    taken = reader.end()
    assert [value for value in taken if value[0] == "a"] == ["a1", "a2", "a3"]
    assert [value for value in taken if value[0] == "b"] == ["b1", "b2"]


def test_a_connection_that_breaks_while_the_job_runs_has_it_start_again(
    job: ScriptedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the reader knows that records under way are lost, so it reports the run that it cannot read any further."""
    monkeypatch.setattr(collect, "_REPORT_AFTER_S", 0.0)
    reader = Reader(job, EXACTLY_ONCE)

    job.run.send(0, 1)
    job.pass_barrier(1)
    job.complete(1)
    reader.wait_for(1)
    job.run.send(0, "lost on its way")
    job.run.kill()
    reason = job.wait_until_told_broken(0)
    job.start_run(1).send(0, 2)
    job.finish()

    assert reader.end() == [1, 2]
    assert "it was released before it was consumed" in reason


@pytest.mark.parametrize("kind", [RemoteProtocolError, LocalProtocolError])
def test_bytes_that_were_changed_on_their_way_have_the_job_start_again(
    job: ScriptedJob, monkeypatch: pytest.MonkeyPatch, kind: type[NetstackError]
) -> None:
    """The next run begins at the newest checkpoint, as it does between tasks.

    LocalProtocolError: the TaskManager got bytes that this program never sent.
    """
    monkeypatch.setattr(collect, "_REPORT_AFTER_S", 0.0)
    flipped = [kind("frame 7 does not bear the peer's seal")]
    poll = RunReader.poll
    monkeypatch.setattr(
        RunReader, "poll", lambda reader, buffer: poll(reader, buffer) if not flipped else throw(flipped.pop())
    )
    reader = Reader(job, EXACTLY_ONCE)

    assert job.wait_until_told_broken(0) == "frame 7 does not bear the peer's seal"
    job.start_run(-1).send(0, 1)
    job.finish()

    assert reader.end() == [1]


def test_a_job_whose_runs_cannot_be_read_at_all_is_not_started_for_ever(
    job: ScriptedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The TaskManagers of such a job may be out of this program's reach."""
    monkeypatch.setattr(collect, "_REPORT_AFTER_S", 0.0)
    reader = Reader(job, EXACTLY_ONCE)

    for attempt in range(2):
        job.run.kill()
        job.wait_until_told_broken(attempt)
        job.start_run(-1)
    job.run.kill()

    assert isinstance(reader.fail(), JobExecutionError)
    assert reader.taken == []


def test_runs_that_fail_by_themselves_do_not_count_for_that(job: ScriptedJob) -> None:
    """A job may be unable to restore its state until a disk is back, for example."""
    reader = Reader(job, EXACTLY_ONCE)

    for _ in range(5):
        job.fail_run()
        job.start_run(-1)
    job.run.send(0, 1)
    job.finish()

    assert reader.end() == [1]


@pytest.mark.parametrize(
    ("guarantee", "before", "taken"),
    [(EXACTLY_ONCE, [], [1, 2]), (AT_LEAST_ONCE, [1], [1, 1, 2])],
    ids=["exactly once", "at least once, which hands out at once and repeats"],
)
def test_a_restart_before_the_first_checkpoint_begins_anew(
    job: ScriptedJob, guarantee: Guarantee, before: list[int], taken: list[int]
) -> None:
    reader = Reader(job, guarantee)

    job.run.send(0, 1)
    job.pass_barrier(1)
    assert reader.wait_for(len(before)) == before
    job.fail_run()
    job.start_run(-1).send(0, 1, 2)
    job.finish()

    assert reader.end() == taken


def test_a_job_that_fails_after_the_end_of_data_is_read_again(job: ScriptedJob) -> None:
    """The end of the data is not the end of the job: another task may still fail."""
    reader = Reader(job, EXACTLY_ONCE)

    job.run.send(0, 1)
    job.run.end_data()
    job.pass_barrier(1)
    job.fail_run()
    job.start_run(-1).send(0, 1)
    job.finish()

    assert reader.end() == [1]


def test_barriers_go_on_after_the_end_of_data_and_let_the_records_go(job: ScriptedJob) -> None:
    """The barriers of the final checkpoint, for which the tasks wait, pass the end of data and release the records."""
    reader = Reader(job, EXACTLY_ONCE)

    job.run.send(0, 1)
    job.run.end_data()
    job.pass_barrier(1)
    job.complete(1)
    assert reader.wait_for(1) == [1]
    job.pass_barrier(2)
    job.end(JobStatus.FINISHED)

    assert reader.end() == [1]


def test_without_checkpoints_a_restart_after_the_first_record_is_an_error(job: ScriptedJob) -> None:
    """One before it is none."""
    reader = Reader(job, Guarantee.NONE)

    job.fail_run()
    job.start_run(-1).send(0, 1)
    reader.wait_for(1)
    job.fail_run()
    job.start_run(-1)

    error = reader.fail()
    assert reader.taken == [1]
    assert isinstance(error, JobExecutionError)
    assert "job 'scripted': its results could not be read: the job restarted after results were read" in str(error)
    assert job.was_cancelled


def test_a_failure_for_good_is_the_jobs_own(job: ScriptedJob) -> None:
    """A record that waits for a checkpoint is not handed out."""
    reader = Reader(job, EXACTLY_ONCE)

    job.run.send(0, 1)
    job.pass_barrier(1)
    job.fail_run()
    job.end(JobStatus.FAILED)

    assert str(reader.fail()) == "explained: the job is over, and its results did not come to their end"
    assert reader.taken == []


def test_what_has_arrived_stays_readable_when_the_finished_job_is_released(job: ScriptedJob) -> None:
    """Another thread's ``wait`` has seen the end, and gives back the resources of reading."""
    reader = Reader(job, EXACTLY_ONCE)
    acknowledged = threading.Event()
    job.run.partitions[0].all_data_processed.add_done_callback(acknowledged.set)

    job.run.send(0, *range(1000))
    job.run.end_data()
    assert acknowledged.wait(PATIENCE_S)
    reader.values.release(has_job_finished=True)

    assert reader.end() == list(range(1000))


def test_a_release_of_a_job_that_goes_on_is_an_error(job: ScriptedJob) -> None:
    reader = Reader(job, EXACTLY_ONCE)

    job.pass_barrier(1)
    reader.values.release()

    assert isinstance(reader.fail(), FlowletError)


def test_what_waits_too_long_is_told(
    job: ScriptedJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("flowlet.client.collect.WARN_BYTES", 1000)
    reader = Reader(job, EXACTLY_ONCE)

    job.run.send(0, "x" * 1500)
    job.run.send(0, "x" * 100)
    job.pass_barrier(1)
    job.finish()

    assert len(reader.end()) == 2
    (line,) = [record.getMessage() for record in caplog.records if "wait for a checkpoint" in record.getMessage()]
    assert "scripted" in line

"""Writes happen in the order of the calls, one at a time for each job, and callbacks tell their outcome."""

from collections.abc import Callable

from flowlet.checkpoint.jobmanager.job_store import ID_BLOCK, JobEnd, JobKeeper, JobStore, RecoveredJob, StoredProgress
from flowlet.errors import StorageError
from flowlet.messages.control_messages import JobGraphMessage
from tests.flowlet.jm.scripted_task_manager import JOB_ID, word_count

OTHER_ID = "ab" * 16
END = JobEnd("FINISHED", b"{}")


class Rig(JobStore):
    """A store that takes notes, and threads that run when the test says so."""

    def __init__(self) -> None:
        self.written: list[object] = []
        self.told: list[object] = []
        self.problem: StorageError | None = None
        self._waiting: list[Callable[[], None]] = []
        self.keeper = JobKeeper(self, self._call)

    def put_job(self, job: JobGraphMessage) -> None:
        self._write(("job", job.job_id))

    def put_progress(self, job_id: str, progress: StoredProgress) -> None:
        self._write(progress)

    def put_end(self, job_id: str, end: JobEnd) -> None:
        self._write(end)

    def forget(self, job_id: str) -> None:
        self.written.append(("forgotten", job_id))

    def _write(self, what: object) -> None:
        if self.problem is not None:
            raise self.problem
        self.written.append(what)

    def _call(
        self,
        function: Callable[[], None],
        on_result: Callable[[None], None],
        on_error: Callable[[Exception], None],
        name: str,
    ) -> object:
        def run() -> None:
            try:
                function()
            except StorageError as error:
                on_error(error)
            else:
                on_result(None)

        self._waiting.append(run)
        return None

    def run_next(self) -> None:
        self._waiting.pop(0)()

    def run_all(self) -> None:
        while self._waiting:
            self.run_next()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)


def test_the_writes_of_a_job_follow_each_other() -> None:
    rig = Rig()
    rig.keeper.submitted(word_count(), rig.told.append)
    rig.keeper.run_begins(JOB_ID, 1, rig.told.append)
    rig.keeper.ended(JOB_ID, lambda: END, rig.told.append)
    at_once = rig.num_waiting
    rig.run_all()

    assert at_once == 1
    assert rig.written == [("job", JOB_ID), StoredProgress(attempt=1), END]
    assert rig.told == [None, None, None]


def test_the_writes_of_two_jobs_do_not_wait_for_each_other() -> None:
    rig = Rig()
    rig.keeper.submitted(word_count(), rig.told.append)
    rig.keeper.submitted(word_count(OTHER_ID), rig.told.append)

    assert rig.num_waiting == 2


def test_a_callback_gets_the_problem_and_the_next_write_follows() -> None:
    rig = Rig()
    rig.problem = StorageError("the disk is full")
    rig.keeper.submitted(word_count(), rig.told.append)
    rig.keeper.run_begins(JOB_ID, 1, rig.told.append)
    rig.run_next()
    rig.problem = None
    rig.run_all()

    assert rig.told == ["the disk is full", None]


def test_an_end_that_cannot_be_kept_takes_the_job_away() -> None:
    """A JobManager that finds the job would run it again."""
    rig = Rig()
    rig.problem = StorageError("the disk is full")
    rig.keeper.ended(JOB_ID, lambda: END, rig.told.append)
    rig.run_all()

    assert (rig.written, rig.told) == ([("forgotten", JOB_ID)], ["the disk is full"])


def test_a_complete_checkpoint_is_kept_beside_the_number_of_the_run() -> None:
    rig = Rig()
    rig.keeper.submitted(word_count(), rig.told.append)
    rig.keeper.run_begins(JOB_ID, 2, rig.told.append)
    rig.keeper.checkpoint_completed(JOB_ID, 5)
    rig.run_all()

    assert rig.written[-1] == StoredProgress(attempt=2, completed_checkpoint=5)


def test_no_id_is_used_before_it_is_reserved() -> None:
    rig = Rig()
    rig.keeper.submitted(word_count(), rig.told.append)
    rig.run_all()

    first, last, beyond = (rig.keeper.may_trigger(JOB_ID, each) for each in (1, ID_BLOCK - 1, ID_BLOCK))
    rig.run_all()

    assert (first, last, beyond) == (True, True, False)
    assert rig.keeper.may_trigger(JOB_ID, ID_BLOCK)
    assert all(not isinstance(each, StoredProgress) or each.ids_below > ID_BLOCK for each in rig.written)


def test_a_recovered_job_goes_on_with_what_is_known() -> None:
    rig = Rig()
    rig.keeper.recovered(RecoveredJob(word_count(), 3, [], 200))
    before = rig.keeper.may_trigger(JOB_ID, 200)
    rig.keeper.run_begins(JOB_ID, 3, rig.told.append)
    rig.run_all()

    assert (before, rig.keeper.may_trigger(JOB_ID, 200)) == (False, True)
    assert rig.written == [StoredProgress(3, -1, 200 + ID_BLOCK)]


def test_after_the_close_nothing_is_written_or_told() -> None:
    rig = Rig()
    rig.keeper.submitted(word_count(), rig.told.append)
    rig.keeper.run_begins(JOB_ID, 1, rig.told.append)
    rig.keeper.close()
    rig.keeper.forget(JOB_ID)
    rig.run_all()

    assert (rig.written, rig.told) == ([("job", JOB_ID)], [])

"""A reader hears of runs and checkpoints in the order in which they happened."""

import asyncio
from collections.abc import Sequence

import pytest

from flowlet.client.collect import News, follow_runs
from flowlet.client.remote import JobEndedError, JobManagerApi, JobProgress, RunChannels
from flowlet.errors import FlowletError


def run(attempt: int, restored: int = -1) -> RunChannels:
    return RunChannels(attempt, restored, [])


class Answers(JobManagerApi):
    """Gives the answers of a list, one after the other, and keeps the questions."""

    def __init__(self, answers: Sequence[RunChannels | JobProgress | Exception]) -> None:
        self._answers = list(answers)
        self.questions: list[tuple[int | None, int | None]] = []

    async def wait_channels(self, job_id: str, edge_id: str, after_attempt: int | None = None) -> RunChannels:
        self.questions.append((after_attempt, None))
        answer = self._next()
        assert isinstance(answer, RunChannels)
        return answer

    async def wait_progress(self, job_id: str, edge_id: str, attempt: int, after_checkpoint: int) -> JobProgress:
        self.questions.append((attempt, after_checkpoint))
        answer = self._next()
        assert isinstance(answer, JobProgress)
        return answer

    def _next(self) -> RunChannels | JobProgress:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def followed(*answers: RunChannels | JobProgress | Exception) -> tuple[list[News], list[tuple[int | None, int | None]]]:
    """Return the news that the reader is told, and the questions that were asked."""
    source, told = Answers(answers), list[News]()
    asyncio.run(follow_runs(source, "job", "edge", run(0), told.append))
    return told, source.questions


def test_completed_checkpoints_are_told_and_asked_after() -> None:
    told, asked = followed(JobProgress(0, "RUNNING", 3), JobProgress(0, "FINISHED", 4), JobEndedError("FINISHED"))

    assert told == [3, 4]
    assert asked == [(0, -1), (0, 3), (0, None)]


def test_a_new_run_is_told_with_its_channels_and_followed_from_its_checkpoint() -> None:
    told, asked = followed(
        JobProgress(0, "RESTARTING", -1),
        run(1, restored=2),
        JobProgress(1, "RUNNING", 5),
        JobProgress(1, "FAILING", 5),
        JobEndedError(""),
    )

    assert told == [run(1, restored=2), 5]
    assert asked == [(0, -1), (0, None), (1, 2), (1, 5), (1, None)]


def test_a_checkpoint_of_a_later_run_is_told_after_that_run() -> None:
    """The reader may have slept over a whole run."""
    told, _ = followed(
        JobProgress(2, "RUNNING", 9),
        run(2, restored=7),
        JobProgress(2, "RUNNING", 9),
        JobProgress(2, "FINISHED", 9),
        JobEndedError(""),
    )

    assert told == [run(2, restored=7), 9]


def test_a_job_that_is_being_cancelled_is_not_asked_again_and_again() -> None:
    """The state of the job is no news; the next answer is its end."""
    told, asked = followed(JobProgress(0, "CANCELLING", -1), JobEndedError("CANCELED"))

    assert told == []
    assert len(asked) == 2


def test_a_job_manager_that_is_gone_is_an_error() -> None:
    with pytest.raises(FlowletError, match="gone"):
        followed(FlowletError("gone"))

"""The completion marks that a job gets, and the moment at which a mark is complete."""

from dataclasses import dataclass, field

import pytest

from flowlet.jm.gate_supervisor import MarkCoordinator
from flowlet.jm.scheduler import attempt_id
from flowlet.messages.control_messages import (
    EdgeMessage,
    EmitMark,
    JobGraphMessage,
    MarkCompleted,
    RemoteGateMessage,
    VertexMessage,
)

JOB = "ab" * 16
GATE, OTHER, SINK = (f"{number:032x}" for number in range(3))


def attempt(vertex: str, subtask: int = 0) -> bytes:
    return attempt_id(JOB, vertex, subtask)


def vertex(vertex_id: str, parallelism: int, gate: RemoteGateMessage | None = None) -> VertexMessage:
    return VertexMessage(vertex_id, vertex_id, parallelism, 128, "default", ["operator"], b"chain", remote_gate=gate)


@dataclass
class Job:
    """A gate with two subtasks, another source, a sink."""

    marks: MarkCoordinator = field(
        default_factory=lambda: MarkCoordinator(
            JobGraphMessage(
                JOB,
                "a job",
                [
                    vertex(GATE, 2, RemoteGateMessage("clicks", "Long", b"F" * 16, b"")),
                    vertex(OTHER, 1),
                    vertex(SINK, 1),
                ],
                [EdgeMessage(source, source, 0, SINK, False, "REBALANCE", b"", 100) for source in (GATE, OTHER)]
                + [EdgeMessage("client", SINK, 0, None, False, "FORWARD", b"", 100)],
            )
        )
    )

    def pass_all(self, number: int) -> list[object]:
        found: list[object] = []
        for each in TASKS:
            found += self.marks.passed(each, number)
        return found


TASKS = [attempt(GATE), attempt(GATE, 1), attempt(OTHER), attempt(SINK)]
GATES, SOURCES = TASKS[:2], TASKS[:3]


@pytest.fixture
def job() -> Job:
    return Job()


def emit(number: int) -> list[EmitMark]:
    return [EmitMark(each, number) for each in SOURCES]


def complete(number: int) -> list[MarkCompleted]:
    return [MarkCompleted(each, number) for each in GATES]


def test_a_mark_goes_to_every_source_and_is_complete_when_every_task_has_passed_it(job: Job) -> None:
    assert job.marks.requested(0) == emit(1)
    for each in TASKS[:-1]:
        assert job.marks.passed(each, 1) == []
    assert repr(job.marks) == "<MarkCoordinator at mark 1, 1 tasks are missing, wanted 1>"
    assert job.marks.passed(TASKS[-1], 1) == complete(1)
    assert job.marks.passed(TASKS[-1], 1) == []


def test_requests_while_a_mark_is_on_its_way_share_the_next_one(job: Job) -> None:
    """One of a source that this mark has not reached yet needs no other."""
    job.marks.requested(0)
    assert job.marks.requested(0) == []
    assert job.marks.requested(1) == []
    assert job.marks.requested(1) == []

    assert job.pass_all(1) == complete(1) + emit(2)
    assert job.pass_all(2) == complete(2)


def test_a_task_that_has_finished_holds_back_nothing(job: Job) -> None:
    """The task may finish before the mark, or while it is on its way; no mark is sent to it."""
    job.marks.finished(attempt(OTHER))
    assert job.marks.requested(0) == [EmitMark(each, 1) for each in GATES]
    job.marks.passed(attempt(GATE), 1)
    job.marks.passed(attempt(SINK), 1)

    assert job.marks.finished(attempt(GATE, 1)) == [MarkCompleted(attempt(GATE), 1)]


def test_a_report_of_an_earlier_mark_counts_for_nothing(job: Job) -> None:
    job.marks.requested(0)
    job.pass_all(1)
    job.marks.requested(1)
    job.pass_all(1)

    assert job.pass_all(2) == complete(2)


def test_a_job_that_runs_no_more_completes_no_mark(job: Job) -> None:
    job.marks.requested(0)
    for each in TASKS[:-1]:
        job.marks.passed(each, 1)

    job.marks.close()

    assert job.marks.passed(TASKS[-1], 1) == []
    assert job.marks.finished(TASKS[-1]) == []
    assert job.marks.requested(1) == []
    assert repr(job.marks) == "<MarkCoordinator at mark 1, closed, wanted 2>"

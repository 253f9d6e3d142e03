"""The gates of a job from run to run: their counts, their orders, and the marks that they ask for."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import msgspec
import pytest

from flowlet.checkpoint.jobmanager.job_checkpoints import JobCheckpoints
from flowlet.common.job_settings import Acknowledge, CheckpointSettings, GateSettings, JobSettings
from flowlet.graph.execution_graph import Execution
from flowlet.jm.gate_supervisor import GateSupervisor, MarkCoordinator
from flowlet.jm.gates import JobGate
from flowlet.jm.scheduler import attempt_id, new_executions
from flowlet.messages import control_messages as messages
from flowlet.messages.control_messages import EmitMark, MarkCompleted
from flowlet.messages.execution_state import ExecutionState, Subtask
from flowlet.messages.job_messages import EdgeMessage, JobGraphMessage, RemoteGateMessage, VertexMessage

VERTEX = f"{1:032x}"
TASK = Subtask(VERTEX, 0)
CHECKPOINTS = CheckpointSettings(1000, "/checkpoints")


@dataclass
class Rig:
    """A gate of two subtasks that waits for one partition; notes its orders."""

    settings: JobSettings = field(default_factory=lambda: JobSettings(checkpoints=CHECKPOINTS))
    restored: bytes | None = None
    finished: list[bytes] = field(default_factory=list)
    marks: list[messages.MarkOrder] = field(default_factory=list)
    num_requested: int = 0
    failures: list[str] = field(default_factory=list)
    snapshots: dict[str, Callable[[], bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        gate = RemoteGateMessage("clicks", "Long", b"F" * 16, b"", producers=1)
        self.job = JobGraphMessage(
            "ab" * 16,
            "job",
            [VertexMessage(VERTEX, "gate", 2, 128, "default", ["gate"], b"", remote_gate=gate)],
            [],
        )
        self.job = msgspec.structs.replace(self.job, settings=self.settings)
        self.executions: dict[bytes, Execution] = {}
        self.gates = GateSupervisor(
            self.job,
            self._send,
            cast(JobCheckpoints, self),
            lambda: self.executions,
            fail=lambda error, _: self.failures.append(str(error)),
        )

    @property
    def gate(self) -> JobGate:
        found = self.gates.find("clicks")
        assert found is not None
        return found

    def _send(self, tm_id: str, message: messages.FinishGate | messages.MarkOrder) -> None:
        if isinstance(message, messages.FinishGate):
            self.finished.append(message.attempt)
        else:
            self.marks.append(message)

    def add_source(self, vertex_id: str, snapshot: Callable[[], bytes]) -> None:
        self.snapshots[vertex_id] = snapshot

    def source_state(self, vertex_id: str) -> bytes | None:
        return self.restored

    def request(self) -> int:
        self.num_requested += 1
        return self.num_requested

    def run(self, number: int = 0) -> list[bytes]:
        """Deploy a run; returns its attempts."""
        self.gates.run_begins(self.job, number)
        self.executions = {each.attempt: each for each in new_executions(self.job, number)}
        for each in self.executions.values():
            each.state, each.tm_id = ExecutionState.RUNNING, "tm"
        self.gates.run_deployed()
        return list(self.executions)

    def count(self, attempts: list[bytes]) -> None:
        for subtask, attempt in enumerate(attempts):
            self.gates.reported(
                Subtask(VERTEX, subtask),
                messages.GateReported(attempt, messages.GateCounts(), [messages.CountedPartition("job", 0, 0)]),
            )


def test_a_gate_that_has_all_partitions_finishes_and_the_next_run_says_again_whether_it_has() -> None:
    rig = Rig()
    first = rig.run()
    rig.count(first)
    assert rig.finished == first

    second = rig.run(1)
    assert rig.finished == first
    assert not rig.gate.is_finishing
    rig.count(second)
    assert rig.finished == [*first, *second]


def test_a_gate_that_was_told_to_finish_hears_it_in_each_run_also_of_another_jobmanager() -> None:
    rig = Rig()
    first = rig.run()
    rig.gates.finish(rig.gate)
    rig.gates.finish(rig.gate)
    second = rig.run(1)
    other = Rig(restored=rig.snapshots[VERTEX]())
    third = other.run(2)

    assert rig.finished == [*first, *second]
    assert other.finished == third


def test_what_is_no_gate_reports_nothing() -> None:
    rig = Rig()
    [attempt, _] = rig.run()

    rig.gates.reported(
        Subtask("f" * 32, 0),
        messages.GateReported(attempt, messages.GateCounts(), [messages.CountedPartition("job", 0, 0)]),
    )

    assert rig.finished == []


def test_a_state_that_cannot_be_read_fails_the_run_when_it_is_deployed() -> None:
    rig = Rig(restored=b"?")

    rig.run()

    assert [each.partition(" cannot be read")[0] for each in rig.failures] == [
        f"the state of the gate of vertex {VERTEX} in a checkpoint"
    ]


@pytest.mark.parametrize("acknowledge", Acknowledge)
def test_who_wants_a_mark_gets_a_checkpoint_where_writes_wait_for_those(acknowledge: Acknowledge) -> None:
    rig = Rig(JobSettings(checkpoints=CHECKPOINTS, gates=GateSettings(acknowledge)))
    first, second = rig.run()

    rig.gates.reported(TASK, messages.MarkRequested(first, 0))

    is_checkpoint = acknowledge is Acknowledge.CHECKPOINTED
    assert rig.num_requested == is_checkpoint
    assert rig.marks == ([] if is_checkpoint else [messages.EmitMark(first, 1), messages.EmitMark(second, 1)])
    rig.gates.reported(TASK, messages.MarkPassed(first, 1))
    assert rig.gates.missing == ([] if is_checkpoint else [second])


def test_marks_go_through_each_run_anew() -> None:
    rig = Rig(JobSettings())
    [first, _] = rig.run()
    rig.gates.reported(TASK, messages.MarkRequested(first, 0))
    rig.gates.run_ends()
    rig.marks.clear()

    again, other = rig.run(1)
    rig.gates.reported(TASK, messages.MarkRequested(again, 0))

    assert rig.marks == [messages.EmitMark(again, 1), messages.EmitMark(other, 1)]


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

"""The gates of a job from run to run: their counts and their orders."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import msgspec
import pytest

from flowlet.checkpoint.jobmanager.job_checkpoints import JobCheckpoints
from flowlet.common.job_settings import Acknowledge, CheckpointSettings, GateSettings, JobSettings
from flowlet.graph.execution_graph import Execution
from flowlet.jm.gate_supervisor import GateSupervisor
from flowlet.jm.gates import JobGate
from flowlet.jm.scheduler import new_executions
from flowlet.messages.control_messages import (
    CountedPartition,
    EmitMark,
    FinishGate,
    GateCounts,
    GateReported,
    JobGraphMessage,
    MarkOrder,
    MarkPassed,
    MarkRequested,
    RemoteGateMessage,
    VertexMessage,
)
from flowlet.messages.execution_state import ExecutionState, Subtask

VERTEX = f"{1:032x}"
TASK = Subtask(VERTEX, 0)
CHECKPOINTS = CheckpointSettings(1000, "/checkpoints")


@dataclass
class Rig:
    """A gate of two subtasks that waits for one partition; notes its orders."""

    settings: JobSettings = field(default_factory=lambda: JobSettings(checkpoints=CHECKPOINTS))
    restored: bytes | None = None
    finished: list[bytes] = field(default_factory=list)
    marks: list[MarkOrder] = field(default_factory=list)
    num_requested: int = 0
    failures: list[str] = field(default_factory=list)
    snapshots: dict[str, Callable[[], bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        gate = RemoteGateMessage("clicks", "Long", b"F" * 16, b"", producers=1)
        self.job = JobGraphMessage(
            "ab" * 16, "job", [VertexMessage(VERTEX, "gate", 2, 128, "default", ["gate"], b"", remote_gate=gate)], []
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

    def _send(self, tm_id: str, message: FinishGate | MarkOrder) -> None:
        if isinstance(message, FinishGate):
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
                Subtask(VERTEX, subtask), GateReported(attempt, GateCounts(), [CountedPartition("job", 0, 0)])
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

    rig.gates.reported(Subtask("f" * 32, 0), GateReported(attempt, GateCounts(), [CountedPartition("job", 0, 0)]))

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

    rig.gates.reported(TASK, MarkRequested(first, 0))

    is_checkpoint = acknowledge is Acknowledge.CHECKPOINTED
    assert rig.num_requested == is_checkpoint
    assert rig.marks == ([] if is_checkpoint else [EmitMark(first, 1), EmitMark(second, 1)])
    rig.gates.reported(TASK, MarkPassed(first, 1))
    assert rig.gates.missing == ([] if is_checkpoint else [second])


def test_marks_go_through_each_run_anew() -> None:
    rig = Rig(JobSettings())
    [first, _] = rig.run()
    rig.gates.reported(TASK, MarkRequested(first, 0))
    rig.gates.run_ends()
    rig.marks.clear()

    again, other = rig.run(1)
    rig.gates.reported(TASK, MarkRequested(again, 0))

    assert rig.marks == [EmitMark(again, 1), EmitMark(other, 1)]

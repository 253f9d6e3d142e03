"""The environment of a task: names, gates, partitions, a timer.

The states of one task attempt (``TaskLifecycle``), where the thread that runs it and a thread that cancels it meet.

Side:       shared.
Source:     Flink ``Environment``, ``RuntimeEnvironment``, ``NonChainedOutput``.  Flink ``Task`` (transitions of
            ``ExecutionState``), reduced to those inside the task.
Invariants: every step is one of ``_STEPS``.  Exactly one terminal state is reached.  A refused step changes nothing.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from flowlet.checkpoint.task.channel_state_writer import InMemoryChannelStateWriter
from flowlet.checkpoint.task.operator_snapshots import CheckpointResponder
from flowlet.checkpoint.task.single_checkpoint_barrier_handler import BarrierMode
from flowlet.checkpoint.task.snapshots import OperatorState, RecoveredStream
from flowlet.common.job_settings import BatchSettings, StateSettings
from flowlet.graph.partitioner import Partitioner
from flowlet.messages.control_messages import FromTask
from flowlet.messages.execution_state import ExecutionState
from flowlet.serde.element_limits import DEFAULT_ELEMENT_LIMITS, ElementLimits
from flowlet.state.state_backends import SharedFiles
from netstack.gate.offered_input_gate import OfferedInputGate
from netstack.gate.single_input_gate import SingleInputGate
from netstack.late import dataclass
from netstack.loop.eventloop import ScheduleTimer
from netstack.partition.result_partition import ResultPartition


@dataclass(frozen=True, slots=True)
class OutputEdge:
    """One output of the task: ``partition`` gets the records of the operator at ``source_operator`` in the chain."""

    source_operator: int
    partition: ResultPartition
    partitioner: Partitioner
    buffer_timeout_ms: int  # -1: never flush; 0: flush after each default action that wrote
    tag: str | None = None  # the operator's side output; None: its main output


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """The part of a task's environment with which it takes part in checkpoints."""

    responder: CheckpointResponder
    execute_async: Callable[[Callable[[], None]], object]  # runs a function on the snapshot pool
    channel_state: InMemoryChannelStateWriter
    mode: BarrierMode | None = BarrierMode.ALTERNATING  # None: at least once, barriers are only counted
    restored: Mapping[str, OperatorState] = field(default_factory=dict)  # ``SubtaskState.operators``
    in_flight: Sequence[RecoveredStream] = ()  # processed before the first input is read
    restored_checkpoint_id: int | None = None  # the checkpoint that the job goes on from; None: there is none
    # Also after tasks have ended; then each task waits at its end for one more checkpoint.
    are_taken_after_finish: bool = True
    are_periodic: bool = True  # False: only savepoints are taken, and no task waits for one
    shared_files: SharedFiles | None = None  # of incremental checkpoints; None: there is no storage
    max_concurrent: int = 1  # how many the JobManager has under way at a time
    # Reports that only the last checkpoint is left to wait for; called once, on the task thread.
    report_end: Callable[[], None] = lambda: None


@dataclass(slots=True)
class TaskEnvironment:
    """The surroundings of a task: all that it knows of its job and its process.

    ``schedule_timer`` calls a function on the loop thread after a delay in seconds and returns an object with
    ``cancel()``; both from any thread.  The task owns gates and partitions from its construction: ``invoke`` or
    ``cancel`` releases them.
    """

    job_id: str
    job_name: str
    vertex_id: str
    task_name: str
    subtask: int
    parallelism: int
    max_parallelism: int
    attempt: bytes
    gates: list[SingleInputGate]
    outputs: list[OutputEdge]
    schedule_timer: ScheduleTimer
    checkpointing: Checkpointing | None = None  # None: no barriers are expected
    send: Callable[[FromTask], None] = lambda _: None  # sends a message to the JobManager; any thread
    offered_gate: OfferedInputGate | None = None  # for a source that producers outside the cluster push into
    # The thread for light tasks; None: all tasks stay on their own threads.
    is_loop_thread: Callable[[], bool] | None = None
    limits: ElementLimits = DEFAULT_ELEMENT_LIMITS  # of the elements between the tasks of the job
    state: StateSettings = field(default_factory=StateSettings)  # where keyed state is kept
    batch: BatchSettings | None = None  # None: the job is no BATCH job
    # The input of the head, from 1, that each gate feeds; empty: the first.
    gate_inputs: list[int] = field(default_factory=list)
    job_parameters: Mapping[str, str] = field(default_factory=dict)  # the user's, for all functions of the job
    # The paths here of files that travelled with the job, by name.
    cached_files: Mapping[str, str] = field(default_factory=dict)

    @property
    def task_name_with_subtask(self) -> str:
        """The subtask's name for people: ``name (2/4)``, counted from 1."""
        return f"{self.task_name} ({self.subtask + 1}/{self.parallelism})"

    @property
    def all_gates(self) -> list[SingleInputGate]:
        """The gates of its edges, and the gate for producers outside the cluster, if there is one."""
        return [*self.gates, *([] if self.offered_gate is None else [self.offered_gate])]

    def gates_by_input(self) -> list[list[SingleInputGate]]:
        """The gates of each input of the head, first input first."""
        numbers = self.gate_inputs or [1] * len(self.gates)
        found: list[list[SingleInputGate]] = [[] for _ in range(max(numbers, default=0))]
        for gate, number in zip(self.gates, numbers, strict=True):
            found[number - 1].append(gate)
        return found

    @property
    def attempt_number(self) -> int:
        """How many times the subtask was started before: the last field of the attempt id."""
        return int.from_bytes(self.attempt[-4:], "big")


_STEPS: dict[ExecutionState, frozenset[ExecutionState]] = {
    ExecutionState.CREATED: frozenset((ExecutionState.INITIALIZING, ExecutionState.CANCELED)),
    ExecutionState.INITIALIZING: frozenset((ExecutionState.RUNNING, ExecutionState.CANCELING, ExecutionState.FAILED)),
    ExecutionState.RUNNING: frozenset((ExecutionState.FINISHED, ExecutionState.CANCELING, ExecutionState.FAILED)),
    ExecutionState.CANCELING: frozenset((ExecutionState.CANCELED,)),
}


class TaskLifecycle:
    """The state of one attempt, and its allowed steps; any thread."""

    __slots__ = ("_lock", "state")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.state = ExecutionState.CREATED  # Guarded by _lock; read anywhere, one step stale is fine.

    def __repr__(self) -> str:
        return f"<TaskLifecycle {self.state}>"

    def try_advance(self, target: ExecutionState) -> bool:
        """Change to ``target``; False if no step leads there."""
        with self._lock:
            if target not in _STEPS.get(self.state, ()):
                return False
            self.state = target
            return True

    def cancel(self) -> ExecutionState:
        """Change towards CANCELED, unless the attempt has ended; returns the state before."""
        with self._lock:
            before = self.state
            if before is ExecutionState.CREATED:
                self.state = ExecutionState.CANCELED
            elif ExecutionState.CANCELING in _STEPS.get(before, ()):
                self.state = ExecutionState.CANCELING
            return before

    def end(self, target: ExecutionState) -> ExecutionState:
        """Change to a terminal state: ``target``, or CANCELED if the attempt was being cancelled; returns the state."""
        assert target in (ExecutionState.FINISHED, ExecutionState.FAILED), (
            f"{target} is not how an attempt ends by itself"
        )
        with self._lock:
            assert not self.state.is_terminal, f"ended twice: {self.state} -> {target}"
            self.state = ExecutionState.CANCELED if self.state is ExecutionState.CANCELING else target
            return self.state

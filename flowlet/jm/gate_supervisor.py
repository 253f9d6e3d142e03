"""``GateSupervisor``: the remote gates of one job from run to run: what counts, which marks go through, which gates
end.

``MarkCoordinator``: sends completion marks through one job, so that producers learn when the whole job has processed
their partitions.

Side:       loop.
Invariants: at most one mark is on its way; requests meanwhile share the next one.  A mark is complete when every task
            has reported it or has FINISHED.  After ``close`` no mark is sent or completed: a producer then hears of the
            end of the job.  Partitions are counted for one run: the next one begins with the partitions that its
            subtasks report from their checkpoint.  The reports of producers' drivers (commits, aborts, announcements)
            and the order to finish a gate stay, and are part of checkpoints.  Marks go through jobs whose writes wait
            for processing; where writes wait for checkpoints, a gate that wants a mark gets a checkpoint.
Source:     Flink ``CheckpointCoordinator``, without state.  Flink ``OperatorCoordinatorHolder``, for its life cycle.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, field

from flowlet.checkpoint.jobmanager.job_checkpoints import JobCheckpoints
from flowlet.errors import StateRestoreError
from flowlet.graph.execution_graph import Execution
from flowlet.jm.gates import JobGate
from flowlet.jm.job_document import Document
from flowlet.jm.scheduler import new_executions
from flowlet.messages import control_messages as messages
from flowlet.messages.execution_state import Subtask
from flowlet.messages.job_messages import JobGraphMessage
from netstack.late import dataclass


class MarkCoordinator:
    """The completion marks of one run of a job.  Threading: one thread.  Every method returns the orders to send."""

    def __init__(self, job: JobGraphMessage, attempt_number: int = 0) -> None:
        targets = {edge.target for edge in job.edges}
        gates = {vertex.id for vertex in job.vertices if vertex.remote_gate is not None}
        tasks = new_executions(job, attempt_number)
        self._sources = [each.attempt for each in tasks if each.vertex_id not in targets]
        self._gates = [each.attempt for each in tasks if each.vertex_id in gates]
        self._unfinished = {each.attempt for each in tasks}
        self._missing: set[bytes] = set()  # tasks that the mark on its way has not passed
        self._last = 0  # the number of the mark that was sent last
        self._wanted = 0  # the highest number that was requested
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self._missing)} tasks are missing"
        return f"<MarkCoordinator at mark {self._last}, {state}, wanted {self._wanted}>"

    @property
    def missing(self) -> list[bytes]:
        """List the attempts that the mark on its way has not passed."""
        return sorted(self._missing)

    def requested(self, after: int) -> Sequence[messages.MarkOrder]:
        """Want a later mark: a source has emitted mark ``after``."""
        self._wanted = max(self._wanted, after + 1)
        return self._go_on()

    def passed(self, attempt: bytes, number: int) -> Sequence[messages.MarkOrder]:
        """Note that a mark has passed a task."""
        # A report of an older mark, which is complete: it must not count for the one on its way.
        if number != self._last:
            return []
        return self._without(attempt)

    def finished(self, attempt: bytes) -> Sequence[messages.MarkOrder]:
        """Note that a task has FINISHED, so it has processed everything."""
        self._unfinished.discard(attempt)
        return self._without(attempt)

    def close(self) -> None:
        """End the marks: the job runs no more; idempotent."""
        self._is_closed = True

    def _without(self, attempt: bytes) -> Sequence[messages.MarkOrder]:
        # A task may report a mark and finish: it counts once.
        if self._is_closed or attempt not in self._missing:
            return []
        self._missing.remove(attempt)
        if self._missing:
            return []
        # Only to tasks that still run: one that has finished has told its producers with its end.
        completed = [messages.MarkCompleted(each, self._last) for each in self._gates if each in self._unfinished]
        return [*completed, *self._go_on()]

    def _go_on(self) -> Sequence[messages.MarkOrder]:
        """Send the next mark, if it is wanted and none is on its way."""
        if self._is_closed or self._missing or self._wanted <= self._last:
            return []
        self._last += 1
        # Counted now: a task that finishes while the mark is on its way is taken out by ``finished``.
        self._missing = set(self._unfinished)
        return [messages.EmitMark(each, self._last) for each in self._sources if each in self._unfinished]


@dataclass(eq=False, repr=False)
class GateSupervisor:
    """The gates of one job; does nothing for a job without any.

    Threading: the JobManager's loop.
    Life cycle: for each run ``run_begins`` before its tasks are deployed, ``run_deployed`` behind it, ``run_ends``.

    Args:
        job: whose blobs are not kept.
        send: sends a message to a TaskManager.
        states: in checkpoints.
        executions: the newest attempts of all subtasks.
        fail: fails the run; with the error and what it is about.
    """

    job: InitVar[JobGraphMessage]
    send: Callable[[str, messages.FinishGate | messages.MarkOrder], None]
    states: JobCheckpoints
    executions: Callable[[], Mapping[bytes, Execution]]
    fail: Callable[[Exception, str], None]
    _is_restored: bool = field(init=False, default=False)
    _problem: StateRestoreError | None = field(init=False, default=None)  # why this run cannot restore its gates

    def __post_init__(self, job: JobGraphMessage) -> None:
        # By vertex id.
        self._gates = {
            each.id: JobGate(each, each.remote_gate) for each in job.vertices if each.remote_gate is not None
        }
        self._marks = MarkCoordinator(job)  # of the newest run; replaced by run_begins()
        self._has_checkpoints = job.settings.takes_checkpoints
        self._waits_for_checkpoints = job.settings.acknowledges_checkpointed

    def __repr__(self) -> str:
        return f"<GateSupervisor of {list(self._gates.values())}, {self._marks!r}>"

    @property
    def missing(self) -> list[bytes]:
        """List the attempts that the mark on its way has not passed."""
        return self._marks.missing

    def documents(self) -> list[Document]:
        """Make one document per gate, with the counts of its subtasks."""
        return [gate.document() for gate in self._gates.values()]

    def run_begins(self, job: JobGraphMessage, attempt_number: int) -> None:
        """Prepare the gates for a run of all tasks, which is about to be deployed; it begins with the newest complete
        checkpoint.
        """
        self._marks = MarkCoordinator(job, attempt_number)
        for gate in self._gates.values():
            # Once: in later runs this object knows more than the checkpoint does, such as an order that came since.
            restored = None if self._is_restored else self.states.source_state(gate.vertex_id)
            try:
                if restored is not None:
                    gate.restore(restored)
            except StateRestoreError as error:
                # Kept until the tasks are deployed: before that there is no run to fail.
                self._problem = error
            gate.begin_run()
            if self._has_checkpoints:
                self.states.add_source(gate.vertex_id, gate.snapshot)
        self._is_restored = self._problem is None

    def run_deployed(self) -> None:
        """Repeat the order to finish to the deployed tasks of gates that were told to finish before."""
        if self._problem is not None:
            problem, self._problem = self._problem, None
            self.fail(problem, "remote gates")
            return
        for gate in self._gates.values():
            if gate.is_finishing:
                self._finish(gate)

    def run_ends(self) -> None:
        """End the run: no mark is sent or completed any more."""
        self._marks.close()

    def reported(self, subtask: Subtask, message: messages.GateReported | messages.MarkReport) -> None:
        """Handle a report of a task: it wants a mark, or a mark has passed it; or it has counts of a gate's subtask.

        Counts end the gate if it is complete; they are ignored if the vertex has no gate.
        """
        match message:
            case messages.GateReported(_, counts, completed):
                gate = self._gates.get(subtask.vertex_id)
                if gate is not None and gate.report(subtask.subtask, counts, completed):
                    self._finish(gate)
            # A mark says "processed", but these producers wait until the records are in a checkpoint.
            case messages.MarkRequested() if self._waits_for_checkpoints:
                self.states.request()
            case messages.MarkRequested(_, after):
                self._send_marks(self._marks.requested(after))
            case messages.MarkPassed(attempt, number):
                self._send_marks(self._marks.passed(attempt, number))

    def task_finished(self, attempt: bytes) -> None:
        """Note that a task has processed everything."""
        self._send_marks(self._marks.finished(attempt))

    def find(self, name: str) -> JobGate | None:
        """Find the gate with this name; None: the job has none."""
        return next((each for each in self._gates.values() if each.gate.name == name), None)

    def finish(self, gate: JobGate) -> None:
        """Let a gate take no more producers, in this run and all later ones; open ones continue.

        After ``run_deployed``; idempotent.
        """
        if gate.request_finish():
            self._finish(gate)

    def commit(self, gate: JobGate, job: str, epoch: int, num_partitions: int) -> None:
        """Commit a write of ``num_partitions`` partitions; ends the gate if it waits for that.

        Raises WriteError: as ``JobGate.commit``.
        """
        if gate.commit(job, epoch, num_partitions) and gate.finish():
            self._finish(gate)

    def _finish(self, gate: JobGate) -> None:
        # All its subtasks, also those that have no producer: a partition may need any of them.
        for each in self.executions().values():
            if each.vertex_id == gate.vertex_id and each.tm_id is not None and not each.state.is_terminal:
                self.send(each.tm_id, messages.FinishGate(each.attempt))

    def _send_marks(self, orders: Sequence[messages.MarkOrder]) -> None:
        # The newest attempts alone: marks of a former run end with ``run_ends``.
        for order in orders:
            tm_id = self.executions()[order.attempt].tm_id
            assert tm_id is not None, "marks go through deployed tasks"
            self.send(tm_id, order)

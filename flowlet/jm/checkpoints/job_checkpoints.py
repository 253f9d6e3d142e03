"""``JobCheckpoints``: the checkpoints of one job: feeds events to its coordinator and carries out the effects.

Side:   loop.
Source: Flink ``CheckpointCoordinator``.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from flowlet.graph.execution_state import ExecutionState
from flowlet.rpc.control_messages import CheckpointOrder, CheckpointReport, JobGraphMessage, RestoredState


class CheckpointGateway(Protocol):
    """Sends orders to TaskManagers."""

    def send_checkpoint_order(self, tm_id: str, order: CheckpointOrder) -> None:
        """Send an order about a checkpoint; to a TaskManager that is not registered any more nothing is sent."""


class JobCheckpoints:
    """The checkpoints of one job; does nothing for a job without ``CheckpointSettings``.

    Threading: the JobManager's loop.
    Life cycle: for each run of the tasks ``tasks_deployed``, then ``task_state_changed``, then ``stop``; ``close`` when the job has ended.
    """

    def __init__(self, job: JobGraphMessage, gateway: CheckpointGateway) -> None:
        self._job = job
        self._gateway = gateway

    def add_source(self, vertex_id: str, snapshot: Callable[[], bytes]) -> None:
        """Ask ``snapshot`` for the state of a source's split enumerator at every trigger, before the trigger is sent; before each run."""

    def tasks_deployed(self, locations: Mapping[bytes, str]) -> None:
        """A run begins: the TaskManager of every attempt.  The first checkpoint is triggered once all of them run."""

    def task_state_changed(self, attempt: bytes, state: ExecutionState) -> None:
        """An attempt of this run is in a new state."""

    def report(self, tm_id: str, message: CheckpointReport) -> bool:
        """A task acknowledges or declines; False if no such checkpoint is pending."""
        return False

    def stop(self) -> None:
        """The run ends: abort what is pending; idempotent."""

    def close(self) -> None:
        """The job has ended; idempotent."""

    def restored_state(self, vertex_id: str, subtask: int) -> RestoredState | None:
        """What a subtask of the next run begins with: its part of the newest complete checkpoint; None: there is none."""
        return None

    def source_state(self, vertex_id: str) -> bytes | None:
        """The state of a source's split enumerator in the newest complete checkpoint; None: there is none."""
        return None

    @property
    def last_completed_id(self) -> int:
        """The newest complete checkpoint; -1: there is none."""
        return -1

"""``TaskManagerGateway``: what a job tells TaskManagers.

Side:   pure.
Source: Flink ``TaskManagerGateway``.
"""

from collections.abc import Sequence
from typing import Protocol

from flowlet.rpc.control_messages import CheckpointOrder, MarkOrder, TaskDeploymentDescriptor
from flowlet.splits.split_kinds import AnySplit


class TaskManagerGateway(Protocol):
    """Sends a job's messages to registered TaskManagers.  No method may end a job before it returns.

    One implementer: ``Dispatcher`` imports this module, which therefore cannot import it.
    """

    def deploy(self, tm_id: str, task: TaskDeploymentDescriptor) -> None:
        """Send ``DeployTask``."""

    def cancel(self, tm_id: str, attempt: bytes) -> None:
        """Send ``CancelTask``."""

    def release_results(self, tm_id: str, attempt: bytes) -> None:
        """Send ``ReleaseResults``; to a TaskManager that is not registered any more nothing is sent."""

    def allow_watermark(self, tm_id: str, attempt: bytes, max_allowed: int) -> None:
        """Send ``AllowSourceWatermark``: the subtask pauses while its watermark is above ``max_allowed`` (ms)."""

    def add_splits(self, tm_id: str, attempt: bytes, splits: Sequence[AnySplit], waiting_bytes: int) -> None:
        """Send ``AddSplits``; ``waiting_bytes`` is the size of the splits that are still unassigned."""

    def no_more_splits(self, tm_id: str, attempt: bytes) -> None:
        """Send ``NoMoreSplits``."""

    def finish_gate(self, tm_id: str, attempt: bytes) -> None:
        """Send ``FinishGate``."""

    def send_mark(self, tm_id: str, order: MarkOrder) -> None:
        """Send an order about a completion mark."""

    def send_checkpoint_order(self, tm_id: str, order: CheckpointOrder) -> None:
        """Send an order about a checkpoint; to a TaskManager that is not registered any more nothing is sent."""

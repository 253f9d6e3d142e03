"""Reports of tasks that have taken their part of a checkpoint.

Side:   any.
"""

from typing import Any

from flowlet.messages.control_messages import CheckpointAcknowledged, CheckpointDurations
from flowlet.messages.job_messages import StateHandle, SubtaskEntry
from netstack.ids import subtask_of


def acknowledged(
    attempt: bytes,
    checkpoint_id: int,
    state: StateHandle | None = None,
    *,
    durations: CheckpointDurations = CheckpointDurations(),  # noqa: B008 - it cannot be changed
    **fields: Any,
) -> CheckpointAcknowledged:
    """The part of an attempt's subtask; ``fields`` of it."""
    part = SubtaskEntry(*subtask_of(attempt), state, **fields)
    return CheckpointAcknowledged(attempt, checkpoint_id, part, durations)

"""``SavepointRequest``: what a user asked for, and the requests that wait for their turn.

Side:       pure.
Invariants: at most ``MAX_WAITING`` wait.
Source:     Flink ``CheckpointProperties.forSavepoint``, ``CheckpointRequestDecider``.
"""

from typing import Final

from netstack.late import dataclass
from netstack.wire.events import SnapshotType

MAX_WAITING: Final = 16
_STOPPING: Final = (SnapshotType.SAVEPOINT_SUSPEND, SnapshotType.SAVEPOINT_TERMINATE)


@dataclass(frozen=True, slots=True)
class SavepointRequest:
    """One savepoint.

    Args:
        location: its directory, which is new and empty.
        type: whether the job goes on, is suspended, or is drained.
    """

    location: str
    type: SnapshotType = SnapshotType.SAVEPOINT

    @property
    def stops_job(self) -> bool:
        """Whether the job ends with it."""
        return self.type in _STOPPING

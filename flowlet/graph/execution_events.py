"""What happens to a job, and what its ``ExecutionGraph`` wants done about it.

Side:   pure.
Units:  times in milliseconds since the epoch.
Source: Flink ``DefaultScheduler``, ``ExecutionGraphHandler``.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flowlet.common.job_status import JobStatus
from flowlet.messages.execution_state import ExecutionState, Subtask
from netstack.late import dataclass

if TYPE_CHECKING:
    from flowlet.messages.control_messages import FailureInfo, ToTaskManager


@dataclass(frozen=True, slots=True)
class ExecutionVertex:
    """One subtask in one run, with the id of its attempt."""

    attempt: bytes  # 40 bytes
    vertex_id: str
    subtask: int
    attempt_number: int = 0  # how often the subtask was started before

    @property
    def key(self) -> Subtask:
        """The subtask, in every run."""
        return Subtask(self.vertex_id, self.subtask)


@dataclass(frozen=True, slots=True)
class SlotsAllocated:
    """Every attempt that waits for one has a slot; ``locations`` has the TaskManager id of each."""

    locations: Mapping[bytes, str]


@dataclass(frozen=True, slots=True)
class SchedulingFailed:
    """The job did not get its slots in time."""

    failure: "FailureInfo"


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The user asks to cancel the job, or the JobManager stops or has another ``reason``, which people then see."""

    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ExecutionReported:
    """A TaskManager reports the state of an attempt.

    ``failure``: with FAILED, the cause; with CANCELED, the cause to record if the JobManager did not ask for it.
    """

    attempt: bytes
    tm_id: str
    state: ExecutionState
    failure: "FailureInfo | None" = None


@dataclass(frozen=True, slots=True)
class TaskManagerLost:
    """A TaskManager is lost, and all attempts there with it."""

    tm_id: str
    failure: "FailureInfo"


@dataclass(frozen=True, slots=True)
class GlobalFailure:
    """Something failed that is no task: the splits of a source cannot be found, too many checkpoints failed, no state
    can be restored.
    """

    failure: "FailureInfo"


@dataclass(frozen=True, slots=True)
class RestartDue:
    """The delay of a restart is over; ``vertices`` are the attempts of the next run of its regions, in the order of
    deployment.
    """

    vertices: Sequence[ExecutionVertex]


Event = (
    SlotsAllocated
    | SchedulingFailed
    | CancelRequested
    | ExecutionReported
    | TaskManagerLost
    | GlobalFailure
    | RestartDue
)


@dataclass(frozen=True, slots=True)
class Deploy:
    """Send the attempt to its TaskManager."""

    attempt: bytes
    tm_id: str


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send the message to the TaskManager."""

    tm_id: str
    message: "ToTaskManager"


@dataclass(frozen=True, slots=True)
class ExecutionStateChanged:
    """An attempt is in a new state; to be logged."""

    attempt: bytes
    state: ExecutionState


@dataclass(frozen=True, slots=True)
class JobStatusChanged:
    """The job is in a new state; to be logged, and for those who wait."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class ReleaseSlots:
    """No attempt of the job is left: its slots are free.  The job has ended, too, unless ``RestartAfter`` follows."""


@dataclass(frozen=True, slots=True)
class RestartAfter:
    """Send ``RestartDue`` for these regions after the delay, unless the job leaves RESTARTING before."""

    delay_ms: int
    regions: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class RequestSlots:
    """The next run or stage waits for its slots; those of further regions that are due meanwhile are waited for
    together.
    """


Effect = Deploy | SendMessage | ExecutionStateChanged | JobStatusChanged | ReleaseSlots | RestartAfter | RequestSlots

"""The orders of an ``ExecutionGraph``.

Side:       pure.
Source:     Flink ``DefaultScheduler``, ``ExecutionGraphHandler``.
"""

import msgspec

from flowlet.common.job_status import JobStatus
from flowlet.messages.control_messages import ToTaskManager
from flowlet.messages.execution_state import ExecutionState


class Deploy(msgspec.Struct, frozen=True):
    """Send the attempt to its TaskManager."""

    attempt: bytes
    tm_id: str


class SendMessage(msgspec.Struct, frozen=True):
    """Send the message to the TaskManager."""

    tm_id: str
    message: ToTaskManager


class ExecutionStateChanged(msgspec.Struct, frozen=True):
    """An attempt is in a new state; to be logged."""

    attempt: bytes
    state: ExecutionState


class JobStatusChanged(msgspec.Struct, frozen=True):
    """The job is in a new state; to be logged, and for those who wait."""

    status: JobStatus


class ReleaseSlots(msgspec.Struct, frozen=True):
    """No attempt of the job is left: its slots are free.  The job has ended, too, unless ``RestartAfter`` follows."""


class RestartAfter(msgspec.Struct, frozen=True):
    """Call ``begin_next_run`` for these regions after the delay, unless the job leaves RESTARTING before."""

    delay_ms: int
    regions: tuple[int, ...] = (0,)


class RequestSlots(msgspec.Struct, frozen=True):
    """The next run or stage waits for its slots; those of further regions that are due meanwhile are waited for
    together.
    """


Effect = Deploy | SendMessage | ExecutionStateChanged | JobStatusChanged | ReleaseSlots | RestartAfter | RequestSlots

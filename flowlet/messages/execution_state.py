"""``Subtask`` of a job, ``ExecutionState`` of an attempt, and the allowed transitions of attempts and jobs.

Side:   pure.
Source: Flink ``ExecutionState``, ``JobStatus``, ``Execution``.  The table lets an attempt skip states, because a short
        task may end before its start was reported.  Terminal states are final.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from flowlet.common.job_status import JobStatus


class Subtask(NamedTuple):
    """A subtask of a job, in every run."""

    vertex_id: str
    subtask: int


class ExecutionState(StrEnum):
    """The state of one attempt; sent by name."""

    CREATED = "CREATED"
    SCHEDULED = "SCHEDULED"
    DEPLOYING = "DEPLOYING"
    INITIALIZING = "INITIALIZING"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    CANCELING = "CANCELING"
    CANCELED = "CANCELED"
    FAILED = "FAILED"

    @property
    def is_terminal(self) -> bool:
        """Whether the attempt has ended."""
        return not EXECUTION_TRANSITIONS[self]

    @property
    def is_deployed(self) -> bool:
        """Whether a TaskManager runs the attempt."""
        return self in _DEPLOYED


_S = ExecutionState
_DEPLOYED: Final = frozenset({_S.DEPLOYING, _S.INITIALIZING, _S.RUNNING, _S.CANCELING})
_ENDS: Final = frozenset({_S.FINISHED, _S.CANCELED, _S.FAILED})

EXECUTION_TRANSITIONS: Final[Mapping[ExecutionState, frozenset[ExecutionState]]] = {
    _S.CREATED: frozenset({_S.SCHEDULED, _S.CANCELED, _S.FAILED}),
    _S.SCHEDULED: frozenset({_S.DEPLOYING, _S.CANCELED, _S.FAILED}),
    _S.DEPLOYING: frozenset({_S.INITIALIZING, _S.RUNNING, _S.CANCELING}) | _ENDS,
    _S.INITIALIZING: frozenset({_S.RUNNING, _S.CANCELING}) | _ENDS,
    _S.RUNNING: frozenset({_S.CANCELING}) | _ENDS,
    _S.CANCELING: _ENDS,
    _S.FINISHED: frozenset(),
    _S.CANCELED: frozenset(),
    _S.FAILED: frozenset(),
}

JOB_TRANSITIONS: Final[Mapping[JobStatus, frozenset[JobStatus]]] = {
    JobStatus.CREATED: frozenset({JobStatus.RUNNING, JobStatus.FAILING, JobStatus.CANCELLING}),
    JobStatus.RUNNING: frozenset({JobStatus.FINISHED, JobStatus.RESTARTING, JobStatus.FAILING, JobStatus.CANCELLING}),
    JobStatus.RESTARTING: frozenset({JobStatus.RUNNING, JobStatus.FAILING, JobStatus.CANCELLING}),
    JobStatus.FAILING: frozenset({JobStatus.FAILED}),
    JobStatus.CANCELLING: frozenset({JobStatus.CANCELED}),
    JobStatus.FAILED: frozenset(),
    JobStatus.CANCELED: frozenset(),
    JobStatus.FINISHED: frozenset(),
}

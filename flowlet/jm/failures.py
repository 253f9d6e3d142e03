"""Failures that the JobManager itself detects, as ``FailureInfo`` like those that tasks report.

Side:   pure.
Rules:  ``exception_type`` is Flink's name without ``Exception``; the traceback is empty unless an exception was raised.
"""

import traceback
from typing import Final

import msgspec

from flowlet.errors import FlowletError, StateRestoreError
from flowlet.jm.deployment_plan import TaskManagerLocation
from flowlet.messages.control_messages import TASK_MANAGER_LOST, FailureInfo
from flowlet.messages.execution_state import ExecutionState

_MAX_MESSAGE_CHARS: Final = 8 * 1024
_MAX_LINE_CHARS: Final = 2_000
_MAX_TRACEBACK_CHARS: Final = 64 * 1024


def no_slots(message: str, now_ms: int) -> FailureInfo:
    """The job did not get its slots in time."""
    return _failure("NoResourceAvailable", message, "", now_ms)


def not_recovered(error: Exception, now_ms: int) -> FailureInfo:
    """The checkpoint that the job should start from cannot be used; without a traceback if the message is written for
    users.
    """
    return msgspec.structs.replace(source_failed(error, "", now_ms), suppresses_restarts=True)


def no_slots_to_restart(original: FailureInfo, message: str, now_ms: int) -> FailureInfo:
    """A job that failed did not get slots to start again: the original failure, with the second one behind it."""
    second = f"and the job could not start again: {no_slots(message, now_ms).exception_type}: {message}"
    return msgspec.structs.replace(original, message=f"{original.message}\n{second}", timestamp_ms=now_ms)


def job_manager_lost(now_ms: int) -> FailureInfo:
    """The former JobManager was lost, and the job may not run a second time."""
    return _failure(
        "JobManagerLost",
        "its JobManager was lost, and a job without a restart strategy does not run again: set restart-strategy.type, "
        "or take checkpoints",
        "",
        now_ms,
    )


def task_manager_lost(location: TaskManagerLocation, reason: str, now_ms: int) -> FailureInfo:
    """The connection to a TaskManager that runs tasks of the job has ended."""
    return _failure(TASK_MANAGER_LOST, f"{location} was lost: {reason}", location.tm_id, now_ms)


def results_broken(reason: str, now_ms: int) -> FailureInfo:
    """The client that reads results has lost a connection, and with it what was under way."""
    return _failure("ResultsBroken", f"the client cannot read the results any further: {reason}", "", now_ms)


def ended_unasked(location: TaskManagerLocation, task_name: str, subtask: int, now_ms: int) -> FailureInfo:
    """A TaskManager cancelled a task although the JobManager did not ask for it: the TaskManager is shutting down."""
    message = (
        f"{location} was lost: it cancelled {task_name!r} (subtask {subtask}) on its own, so it is probably "
        "shutting down"
    )
    return _failure(TASK_MANAGER_LOST, message, location.tm_id, now_ms, task_name, subtask)


def unexplained(
    state: ExecutionState, location: TaskManagerLocation, name: str, subtask: int, now_ms: int
) -> FailureInfo | None:
    """Why a task that said nothing is in this state; None: there is nothing to explain."""
    match state:
        case ExecutionState.FAILED:
            return without_cause(location, name, subtask, now_ms)
        case ExecutionState.CANCELED:
            return ended_unasked(location, name, subtask, now_ms)
        case _:
            return None


def without_cause(location: TaskManagerLocation, task_name: str, subtask: int, now_ms: int) -> FailureInfo:
    """A TaskManager reported a failed task without a cause."""
    message = f"{task_name!r} (subtask {subtask}) failed on {location}, which did not say why; see its log"
    return _failure("UnknownFailure", message, location.tm_id, now_ms, task_name, subtask)


def source_failed(error: Exception, task_name: str, now_ms: int) -> FailureInfo:
    """The enumerator of a source could not find or assign its splits."""
    kind = type(error)
    name = (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )
    failure = _failure(name, str(error)[:_MAX_MESSAGE_CHARS], "", now_ms, task_name)
    if isinstance(error, StateRestoreError):
        return msgspec.structs.replace(failure, suppresses_restarts=True)
    if isinstance(error, FlowletError):
        return failure  # its message is written for users, who need no traceback of ours
    return msgspec.structs.replace(
        failure, traceback="".join(traceback.format_exception(error))[-_MAX_TRACEBACK_CHARS:]
    )


def cause_in_one_line(failure: FailureInfo) -> str:
    """The cause for people: where, and the exception's text, at most 2,000 characters; no traceback."""
    reason = f"{failure.exception_type}: {failure.message}" if failure.message else failure.exception_type
    if not failure.task_name:
        return reason[:_MAX_LINE_CHARS]
    operator = "" if failure.operator is None else f", operator {failure.operator!r}"
    subtask = "" if failure.subtask < 0 else f", subtask {failure.subtask}"
    record = "" if failure.record_preview is None else f", while processing the record {failure.record_preview}"
    return f"{reason} (task {failure.task_name!r}{operator}{subtask}{record})"[:_MAX_LINE_CHARS]


def _failure(
    exception_type: str, message: str, tm_id: str, now_ms: int, task_name: str = "", subtask: int = -1
) -> FailureInfo:
    return FailureInfo(
        exception_type=exception_type,
        message=message,
        traceback="",
        operator=None,
        task_name=task_name,
        subtask=subtask,
        record_preview=None,
        tm_id=tm_id,
        timestamp_ms=now_ms,
    )

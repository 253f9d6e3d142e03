"""Failures that the JobManager itself detects, as ``FailureInfo`` like those that tasks report.

Side:   pure.
Rules:  ``exception_type`` is Flink's name without ``Exception``; the traceback is empty unless an exception was raised.
"""

import traceback
from typing import Final

import msgspec

from flowlet.errors import FlowletError, StateRestoreError
from flowlet.messages.control_messages import TASK_MANAGER_LOST, FailureInfo, RegisterTaskManager, exception_type_of
from flowlet.messages.execution_state import ExecutionState

_MAX_MESSAGE_CHARS: Final = 8 * 1024
_MAX_LINE_CHARS: Final = 2_000
_MAX_TRACEBACK_CHARS: Final = 64 * 1024


def no_slots(message: str, now_ms: int, original: FailureInfo | None = None) -> FailureInfo:
    """Describe that the job did not get its slots in time; ``original``: of a job that failed, and then could not start
    again.
    """
    failure = FailureInfo("NoResourceAvailable", message, timestamp_ms=now_ms)
    if original is None:
        return failure
    # The first failure is the cause that people look for; that no slots came is its consequence.
    second = f"and the job could not start again: {failure.exception_type}: {message}"
    return msgspec.structs.replace(original, message=f"{original.message}\n{second}", timestamp_ms=now_ms)


def job_manager_lost(now_ms: int) -> FailureInfo:
    """Describe that the former JobManager was lost, and the job may not run a second time."""
    message = (
        "its JobManager was lost, and a job without a restart strategy does not run again: set restart-strategy.type, "
        "or take checkpoints"
    )
    return FailureInfo("JobManagerLost", message, timestamp_ms=now_ms)


def task_manager_lost(location: RegisterTaskManager, reason: str, now_ms: int) -> FailureInfo:
    """Describe that the connection to a TaskManager that runs tasks of the job has ended."""
    message = f"{location} was lost: {reason}"
    return FailureInfo(TASK_MANAGER_LOST, message, tm_id=location.tm_id, timestamp_ms=now_ms)


def results_broken(reason: str, now_ms: int) -> FailureInfo:
    """Describe that the client that reads results has lost a connection, and with it the data that was under way."""
    message = f"the client cannot read the results any further: {reason}"
    return FailureInfo("ResultsBroken", message, timestamp_ms=now_ms)


def unexplained(
    state: ExecutionState, location: RegisterTaskManager, name: str, subtask: int, now_ms: int
) -> FailureInfo | None:
    """Explain why a task is in this state without a report of its own; None: there is nothing to explain.

    FAILED: its TaskManager reported no cause.  CANCELED: the JobManager did not ask for it.
    """
    task = f"{name!r} (subtask {subtask})"
    match state:
        case ExecutionState.FAILED:
            kind = "UnknownFailure"
            message = f"{task} failed on {location}, which did not say why; see its log"
        case ExecutionState.CANCELED:
            kind = TASK_MANAGER_LOST
            message = f"{location} was lost: it cancelled {task} on its own, so it is probably shutting down"
        case _:
            return None
    return FailureInfo(kind, message, task_name=name, subtask=subtask, tm_id=location.tm_id, timestamp_ms=now_ms)


def source_failed(error: Exception, task_name: str, now_ms: int) -> FailureInfo:
    """Describe that the enumerator of a source could not find or assign its splits."""
    name = exception_type_of(type(error))
    failure = FailureInfo(name, str(error)[:_MAX_MESSAGE_CHARS], task_name=task_name, timestamp_ms=now_ms)
    # Another run would read the very state again.
    if isinstance(error, StateRestoreError):
        return msgspec.structs.replace(failure, suppresses_restarts=True)
    if isinstance(error, FlowletError):
        return failure  # its message is written for users, who need no traceback of ours
    return msgspec.structs.replace(
        failure, traceback="".join(traceback.format_exception(error))[-_MAX_TRACEBACK_CHARS:]
    )


def cause_in_one_line(failure: FailureInfo) -> str:
    """Write the cause for people: the place, and the exception's text, at most 2,000 characters; no traceback."""
    reason = f"{failure.exception_type}: {failure.message}" if failure.message else failure.exception_type
    if not failure.task_name:
        return reason[:_MAX_LINE_CHARS]
    # Each part only where it is known: a lost TaskManager has no operator, and a failed job no task.
    operator = "" if failure.operator is None else f", operator {failure.operator!r}"
    subtask = "" if failure.subtask < 0 else f", subtask {failure.subtask}"
    record = "" if failure.record_preview is None else f", while processing the record {failure.record_preview}"
    # Cut at its end: the exception's text comes first.
    return f"{reason} (task {failure.task_name!r}{operator}{subtask}{record})"[:_MAX_LINE_CHARS]

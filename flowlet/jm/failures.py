"""Failures that the JobManager itself finds, in the same form as those that tasks report.

Side:   pure.
Rules:  ``exception_type`` uses Flink's nouns without ``Exception``; there is no traceback, because no code failed.
"""

from flowlet.jm.deployment import TaskManagerLocation
from flowlet.rpc.messages import FailureInfo


def no_slots(message: str, now_ms: int) -> FailureInfo:
    """The job never got its slots."""
    return _failure("NoResourceAvailable", message, "", now_ms)


def task_manager_lost(location: TaskManagerLocation, reason: str, now_ms: int) -> FailureInfo:
    """A TaskManager with tasks of the job is gone."""
    return _failure("TaskManagerLost", f"{location} was lost: {reason}", location.tm_id, now_ms)


def ended_unasked(location: TaskManagerLocation, task_name: str, subtask: int, now_ms: int) -> FailureInfo:
    """A TaskManager cancelled a task that nobody wanted cancelled: it is stopping."""
    message = f"{location} was lost: it cancelled {task_name!r} (subtask {subtask}) on its own, so it is probably shutting down"
    return _failure("TaskManagerLost", message, location.tm_id, now_ms, task_name, subtask)


def without_cause(location: TaskManagerLocation, task_name: str, subtask: int, now_ms: int) -> FailureInfo:
    """A TaskManager reported a failure without saying why."""
    message = f"{task_name!r} (subtask {subtask}) failed on {location}, which did not say why; see its log"
    return _failure("UnknownFailure", message, location.tm_id, now_ms, task_name, subtask)


def _failure(exception_type: str, message: str, tm_id: str, now_ms: int, task_name: str = "", subtask: int = -1) -> FailureInfo:
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

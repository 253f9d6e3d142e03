"""Describes the failure of a task as text for the client.

The name of the wait that a thread stands in.

Side:       shared.  Any thread.
Source:     the comment at every wait without a deadline, on its line or above it: "waits for NAME; ended by WHAT".  So
            the name stands where the wait is, costs nothing, and ``tests/test_waits.py`` finds a wait without one.
Absent:     names where the sources are not installed.
Invariants: only text leaves the process, never the exception; every text has a limit, and can be sent as UTF-8;
            whatever the exception does when it is asked for its text, the failure is described.
Rules:      for a failing user function only the user's frames are shown (all with ``FLOWLET_TRACEBACK=full``), for an
            error of the engine all frames.
"""

import linecache
import re
import traceback
from types import FrameType
from typing import Final

import flowlet
import netstack
from flowlet.errors import ClosedOutputError, StateRestoreError, UserFunctionError, shows_all_frames
from flowlet.logs import all_shown
from flowlet.messages.control_messages import FailureInfo, TaskDeploymentDescriptor, exception_type_of
from flowlet.serde.type_serializer import preview
from netstack.log_lines import LogLines

_log = LogLines(__name__)
_NAME: Final = re.compile(r"# (waits for .*; ended by .*)")


def named_wait(frame: FrameType | None) -> str | None:
    """Return the text "waits for NAME; ended by WHAT" of the innermost named wait on the stack of ``frame``; None: the
    frame stands in none.
    """
    while frame is not None:
        number = frame.f_lineno or 0  # None if the thread goes on just then
        # The comment stands on the line of the call, or above it.
        for line in (number, number - 1):
            found = _NAME.search(linecache.getline(frame.f_code.co_filename, line))
            if found is not None:
                return found[1]
        frame = frame.f_back
    return None


_MAX_MESSAGE_CHARS: Final = 8 * 1024
_MAX_TRACEBACK_CHARS: Final = 64 * 1024
_ENGINE_FOLDERS: Final = tuple(f"{package.__path__[0]}/" for package in (flowlet, netstack))


def failure_info(
    error: BaseException, descriptor: TaskDeploymentDescriptor, tm_id: str, timestamp_ms: int
) -> FailureInfo:
    """Describe what ended a task: the user's exception if a user function raised it, otherwise the engine's."""
    try:
        return _described(error, descriptor, tm_id, timestamp_ms)
    except BaseException as failure:  # noqa: BLE001 - an exception's class and attributes are the user's code
        # The task must be reported as failed, whatever its exception does: its job would wait for ever.
        text = f"<an exception that cannot be described: {preview(failure)}>"
        operator, record = (
            (error.operator, error.record_preview) if isinstance(error, UserFunctionError) else (None, None)
        )
        kind = preview(type(error))
        return FailureInfo(
            kind, text, text, operator, descriptor.task_name, descriptor.subtask, record, tm_id, timestamp_ms
        )


def _described(
    error: BaseException, descriptor: TaskDeploymentDescriptor, tm_id: str, timestamp_ms: int
) -> FailureInfo:
    operator = record_preview = None
    cause = error
    if isinstance(error, UserFunctionError):
        operator, record_preview = error.operator, error.record_preview
        cause = error.__cause__ or error
    # Text from here on: the exception holds frames, and with them the user's objects.
    lines = traceback.TracebackException.from_exception(cause, max_group_depth=4)
    notes: list[str] = []
    if cause is not error:
        # The engine's frames are dropped from the exception, and from its causes and contexts.
        for each in () if shows_all_frames() else all_shown(lines):
            frames = [frame for frame in each.stack if not _is_engine_file(frame.filename)]
            each.stack = traceback.StackSummary.from_list(frames)
        # Error itself is not shown, but its notes must be.
        notes = [f"{note}\n" for note in getattr(error, "__notes__", ())]
    return FailureInfo(
        exception_type=_sendable(exception_type_of(type(cause))),
        message=_shorten(_safe_str(cause), _MAX_MESSAGE_CHARS),
        traceback=_shorten("".join([*lines.format(), *notes]), _MAX_TRACEBACK_CHARS),
        operator=operator,
        task_name=descriptor.task_name,
        subtask=descriptor.subtask,
        record_preview=record_preview,
        tm_id=tm_id,
        timestamp_ms=timestamp_ms,
        suppresses_restarts=isinstance(error, StateRestoreError | ClosedOutputError),
    )


def log_failure(error: BaseException, failure: FailureInfo) -> None:
    """Log a failure.

    A user's error is only info, because the client shows its text, too.  So is an output that its reader has closed, as
    ``program | head`` does.
    """
    log = _log.info if isinstance(error, UserFunctionError | ClosedOutputError) else _log.warning
    log(
        "the task failed",
        error=f"{failure.exception_type}: {failure.message}",
        operator=failure.operator,
        record=failure.record_preview,
        traceback=failure.traceback,
    )


def format_thread_stack(frame: FrameType) -> str:
    """Write the stack of a running thread from the user's first call on, innermost call last, and the wait that the
    thread stands in.

    The whole stack if no call is the user's.
    ``frame`` is from ``sys._current_frames()``.
    """
    # The thread goes on meanwhile: the lines may be of different moments.
    calls = traceback.extract_stack(frame)
    first_engine = next((index for index, call in enumerate(calls) if _is_engine_file(call.filename)), len(calls))
    first_user = next(
        (index for index in range(first_engine, len(calls)) if not _is_engine_file(calls[index].filename)), 0
    )
    shown = [call for call in calls[first_user:] if not _is_engine_file(call.filename)] if first_user else calls
    stack = _shorten("".join(traceback.StackSummary.from_list(shown).format()).rstrip(), _MAX_TRACEBACK_CHARS)
    wait = named_wait(frame)
    return stack if wait is None else f"{stack}\n  It {wait}."


def _is_engine_file(filename: str) -> bool:
    return filename.startswith(_ENGINE_FOLDERS)


def _safe_str(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as failure:  # noqa: BLE001 - the text of a user's exception is the user's code, which may call sys.exit
        return f"<its text cannot be shown: str() raised {type(failure).__name__}>"


def _sendable(text: str) -> str:
    """Return the text without lone surrogates, which UTF-8 does not have; an exact str."""
    return str.encode(text, "utf-8", "backslashreplace").decode()


def _shorten(text: str, limit: int) -> str:
    """Keep head and tail of a traceback: the entry point is at its start, the cause at its end."""
    text = _sendable(text)
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"

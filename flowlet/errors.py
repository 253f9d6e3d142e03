"""The error tree of the stream runtime.

Side: pure.
"""

import importlib
import os
import sys
from typing import ClassVar, Final, TypeVar

_TRACEBACK_VARIABLE: Final = "FLOWLET_TRACEBACK"
_E = TypeVar("_E", bound=BaseException)


class FlowletError(Exception):
    """Base class of every error that this package raises on purpose.

    Where a program does not catch one, its traceback has the program's frames alone
    (``flowlet.client.program.user_frames``).
    """

    is_one_line: ClassVar[bool] = False
    """Whether an uncaught one is a line without frames: it is about the cluster, and no line of the
    program is wrong.
    """


class ConfigError(FlowletError):
    """An option is wrong; the message names it and its allowed values."""


class JobGraphError(FlowletError):
    """A job graph is not valid; the message names the vertex or the edge."""


class JobSubmissionError(FlowletError):
    """The job could not be handed to a JobManager, or it refused the job."""


class JobExecutionError(FlowletError):
    """A submitted job failed or was cancelled.

    The message names the task, the record and the root cause in a line each.  ``__cause__`` is the ``RemoteTraceback``
    of the root cause, if it has one, so that Python shows the user's frames first.
    """


class ClosedOutputError(JobExecutionError):
    """Standard output is closed, or its reader has left, as in ``program | head``: the job has no place to print to any
    more.

    Such a job is not started again.  A program that does not catch it ends with one line on standard error instead of a
    traceback.
    """

    is_one_line = True


class RemoteTraceback(FlowletError):  # noqa: N818 - as in concurrent.futures and multiprocessing
    """The traceback of a failure in a task, as text; the cause of a ``JobExecutionError``, never raised itself."""

    def __str__(self) -> str:
        return f"\n{super().__str__()}"  # a line of its own behind the name of this class


class KeyTypeError(FlowletError):
    """A key might differ from process to process; the message names the type, the reason and what to use instead."""


class StateRestoreError(FlowletError):
    """The state of a checkpoint cannot be taken back."""


class StorageError(FlowletError):
    """A checkpoint could not be written, read or removed; the message names the file and says what to do."""


class SavepointError(FlowletError):
    """A savepoint was refused, or has failed, or did not stop its job; the message says why and what to do."""


class SerdeError(FlowletError):
    """Bytes that should hold stream elements do not; the message names channel and offset."""


class MailboxClosedError(FlowletError):
    """The mailbox takes no (more) mails."""


class UserFunctionError(FlowletError):
    """A user's function raised.

    Raised ``from`` the user's own exception.  ``record_preview`` is the shortened ``repr`` of the record being
    processed.
    ``num_processed``: so many records of its slice were processed before.
    """

    num_processed: int = 0

    def __init__(self, operator: str, subtask: int, record_preview: str | None) -> None:
        record = "" if record_preview is None else f" while processing the record {record_preview}"
        super().__init__(f"operator {operator!r} (subtask {subtask}) failed{record}")
        self.operator = operator
        self.subtask = subtask
        self.record_preview = record_preview


class DeclaredTypeError(UserFunctionError):
    """A function emitted a record that is not of the type that the program declares for it; ``reason`` names that type
    and the field.
    """

    def __init__(self, operator: str, subtask: int, record_preview: str, reason: str) -> None:
        super().__init__(operator, subtask, record_preview)
        self.args = (
            (
                f"operator {operator!r} (subtask {subtask}) emitted {record_preview}, which is not of its declared type "  # noqa: E501
                f"{reason}"
            ),
        )


class TaskCancelled(BaseException):
    """The task was asked to stop; outside ``Exception`` so that user code cannot swallow it."""


def shows_all_frames() -> bool:
    """Whether tracebacks keep the frames of flowlet and its libraries: ``FLOWLET_TRACEBACK=full``."""
    return os.environ.get(_TRACEBACK_VARIABLE, "").strip().lower() == "full"


def without_our_frames(error: _E) -> _E:
    """Return the error as a public method raises it: the frames that it passed so far are ours, and dropped unless all
    are to be shown.
    """
    return error if shows_all_frames() else error.with_traceback(None)


class _MissingModules:
    """The last finder of modules: explains a missing module that PyFlink has under this name."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Find nothing.  Raises MissingImportError: ``name`` is a module of PyFlink that this version lacks."""
        if name.startswith("flowlet."):
            # By name and here: most programs never need it.
            importlib.import_module("flowlet.common.not_yet").check_module(name)


def explain_missing_modules() -> None:
    """Let an import of a module of PyFlink that this version lacks tell from now on what to use; called once, by
    ``flowlet`` itself.
    """
    sys.meta_path.append(_MissingModules())


def missing_top_level_name(name: str) -> object:
    """Find a name of ``flowlet`` itself, which has no classes, as its ``__getattr__``.

    Raises MissingImportError, which tells where a class is.
    """
    if not name[:1].isupper():
        raise AttributeError(f"module 'flowlet' has no attribute {name!r}")
    return importlib.import_module("flowlet.common.not_yet").missing_names("flowlet")(name)

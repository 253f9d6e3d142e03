"""The user's frames of a traceback, and how an uncaught error of ours, or an interrupt, looks on the terminal.

Side:       shared.  The exception hook runs on the user's thread.
Invariants: one failure is one traceback, of the user's frames: first the frames that led to the call of ours, then
            those of the function that failed in a task; an error about the cluster alone is one line.  An interrupt
            that caught the user's own code is shown as Python shows it, and so is every error that is not ours; a hook
            that the program has set stays.  The interrupt itself is not touched: it can be caught, and it ends the
            program as it always does (SIGINT).  With ``FLOWLET_TRACEBACK=full`` errors keep all frames.
Rules:      imports the standard library and ``flowlet.errors`` alone, so that the hook is there while the rest of the
            client is imported.
"""

import os
import sys
import sysconfig
import traceback
from enum import Enum
from functools import cache
from importlib.util import find_spec
from types import TracebackType
from typing import Final

from flowlet.errors import ClosedOutputError, FlowletError, RemoteTraceback, shows_all_frames
from flowlet.logs import all_shown

_HEADER: Final = "Traceback (most recent call last):\n"


class Owner(Enum):
    """The owner of a piece of code."""

    ENGINE = "flowlet and netstack"
    LIBRARY = "Python and installed packages"
    USER = "everything else"


def owner_of(filename: str) -> Owner:
    """Return the owner of the code object of a frame."""
    if filename.startswith(_engine_folders()):
        return Owner.ENGINE
    is_library = filename.startswith(("<frozen ", *_library_folders())) or filename.endswith(".pyx")
    return Owner.LIBRARY if is_library else Owner.USER


def is_users_file(filename: str) -> bool:
    """Whether a file, or a folder with a slash at its end, is the user's."""
    return owner_of(filename) is Owner.USER


def from_user_frame(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins with the user's first frame; None if there is no such frame."""
    while trace is not None and owner_of(trace.tb_frame.f_code.co_filename) is not Owner.USER:
        trace = trace.tb_next
    return trace


def install_exception_hook() -> None:
    """Let an uncaught error of ours show the user's frames alone from now on, and an uncaught Ctrl-C inside the client
    be one line.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt) and _is_inside_engine(trace):
        if sys.stderr is not None:
            sys.stderr.write(f"{kind.__name__}\n")
    elif isinstance(error, ClosedOutputError):
        if sys.stderr is not None:
            sys.stderr.write(f"{' '.join(str(error).split())}\n")
        _drop_output()
    elif isinstance(error, FlowletError) and not shows_all_frames():
        if sys.stderr is not None:
            sys.stderr.write(_one_traceback(error, trace))
    else:
        sys.__excepthook__(kind, error, trace)


def _one_traceback(error: FlowletError, trace: TracebackType | None) -> str:
    """Write the user's frames, and the text of the error; as Python shows it where no frame is the user's."""
    if error.is_one_line:
        return f"{' '.join(''.join(traceback.format_exception_only(error)).split())}\n"
    shown = traceback.TracebackException(type(error), error, trace)
    _cut(shown)
    calls, end = "".join(shown.stack.format()), "".join(shown.format_exception_only())
    if not calls:
        return "".join(traceback.format_exception(type(error), error, trace))
    reason = _reason(error.__cause__, shown.__cause__)
    before, header, after = reason.rpartition(_HEADER)
    if header and (not before or before.endswith("\n")):
        return f"{before}{header}{calls}{after}{end}"
    return f"{reason}{_HEADER}{calls}{end}"


def _reason(cause: BaseException | None, shown: traceback.TracebackException | None) -> str:
    """Write the traceback of the cause of an error; empty if no frame of it is the user's, for then the error's own
    text tells it.
    """
    if isinstance(cause, RemoteTraceback):
        return f"{str(cause).strip()}\n"
    return "".join(shown.format()) if shown is not None and shown.stack else ""


def _cut(shown: traceback.TracebackException) -> None:
    """Drop the frames of the engine, and those of libraries that it calls, from an exception and from its causes."""
    for each in all_shown(shown):
        frames, caller = [], Owner.USER
        for frame in each.stack:
            owner = owner_of(frame.filename)
            caller = caller if owner is Owner.LIBRARY else owner
            if caller is not Owner.ENGINE:
                frames.append(frame)
        each.stack = traceback.StackSummary.from_list(frames)


def _drop_output() -> None:
    """Let standard output lead nowhere if it takes nothing more: at its exit Python would complain of the text that
    waits there.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except ValueError:  # it is closed
        return


def _is_inside_engine(trace: TracebackType | None) -> bool:
    """Whether the innermost frame, but for libraries and generated code (of dataclasses, say), is ours."""
    frames = [
        frame
        for frame, _ in traceback.walk_tb(trace)
        # Code of ``python -c`` has the file name of generated code, too, and is the user's.
        if frame.f_code.co_filename != "<string>" or frame.f_globals.get("__name__") == "__main__"
    ]
    owners = (owner_of(frame.f_code.co_filename) for frame in reversed(frames))
    return next((owner for owner in owners if owner is not Owner.LIBRARY), Owner.LIBRARY) is Owner.ENGINE


@cache
def _engine_folders() -> tuple[str, ...]:
    specs = (find_spec("flowlet"), find_spec("netstack"))
    return tuple(f"{folder}/" for spec in specs if spec is not None for folder in spec.submodule_search_locations or ())


@cache
def _library_folders() -> tuple[str, ...]:
    return tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))

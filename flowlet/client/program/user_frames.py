"""Which frames of a traceback are the user's, and the one line that an interrupt, or the end of ``program | head``, is worth.

Side:       shared.  The exception hook runs on the user's thread.
Invariants: an interrupt that caught the user's own code is shown as Python shows it, and so is every other error; a hook that the program
            has set stays.  The interrupt itself is not touched: it can be caught, and it ends the program as it always does (SIGINT).
Rules:      imports the standard library alone, so that the hook is there while the rest of the client is imported.
"""

import os
import sys
import sysconfig
import traceback
from enum import Enum
from functools import cache
from importlib.util import find_spec
from types import FrameType, TracebackType


class Owner(Enum):
    """Whose code it is."""

    ENGINE = "flowlet and netstack"
    LIBRARY = "Python and installed packages"
    USER = "everything else"


def owner_of(filename: str) -> Owner:
    """The owner of the code object of a frame."""
    if filename.startswith(_engine_folders()):
        return Owner.ENGINE
    is_library = filename.startswith(("<frozen ", *_library_folders())) or filename.endswith(".pyx")
    return Owner.LIBRARY if is_library else Owner.USER


def from_user_frame(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins with the user's first frame; None if there is no such frame."""
    while trace is not None and owner_of(trace.tb_frame.f_code.co_filename) is not Owner.USER:
        trace = trace.tb_next
    return trace


def show_interrupts_in_one_line() -> None:
    """From now on an uncaught Ctrl-C inside the client is one line on standard error: the frames of its waiting help nobody."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt) and _is_inside_engine(trace):
        if sys.stderr is not None:
            sys.stderr.write(f"{kind.__name__}\n")
    elif kind.__name__ == "ClosedOutputError" and kind.__module__ == "flowlet.errors":  # not imported: see the rules
        if sys.stderr is not None:
            sys.stderr.write(f"{' '.join(str(error).split())}\n")
        _drop_output()
    else:
        sys.__excepthook__(kind, error, trace)


def _drop_output() -> None:
    """Let standard output lead nowhere if it takes nothing more: at its exit Python would complain of what waits there."""
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
    frames = [frame for frame, _ in traceback.walk_tb(trace) if not _is_generated(frame)]
    owners = (owner_of(frame.f_code.co_filename) for frame in reversed(frames))
    return next((owner for owner in owners if owner is not Owner.LIBRARY), Owner.LIBRARY) is Owner.ENGINE


def _is_generated(frame: FrameType) -> bool:
    """Whether a module had its code made, as dataclasses have; the text of ``python -c`` has the same file name, and is the user's."""
    return frame.f_code.co_filename == "<string>" and frame.f_globals.get("__name__") != "__main__"


@cache
def _engine_folders() -> tuple[str, ...]:
    specs = (find_spec("flowlet"), find_spec("netstack"))
    return tuple(f"{folder}/" for spec in specs if spec is not None for folder in spec.submodule_search_locations or ())


@cache
def _library_folders() -> tuple[str, ...]:
    return tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib", "purelib", "platlib"))

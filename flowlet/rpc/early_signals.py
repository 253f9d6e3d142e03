"""Signals that reach a process of the cluster before its event loop handles them, in a third of a second of imports;
and the line in which a command tells what went wrong.

Side:   shared.  The handlers run on the main thread.
Rules:  imports the standard library alone, so that it comes first.
"""

import os
import signal
import sys
from types import FrameType
from typing import Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_at_signals(program: str) -> None:
    """Let a stop signal end the process from now on with exit code 0: at once, silently, after SIGINT (Ctrl-C) with one
    line.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        try:
            if number == signal.SIGINT:
                # Not print(): a handler may have interrupted a write to this very stream.
                os.write(2, f"{program}: interrupted\n".encode())
        finally:  # also where nobody reads standard error
            os._exit(0)

    for each in STOP_SIGNALS:
        signal.signal(each, end)


def complain(program: str, message: str, code: int) -> int:
    """Write one line about the failure, for the person who typed the command; returns the exit code."""
    if sys.stderr is not None:  # print() would take standard output instead
        print(f"{program}: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201 - see above
    return code

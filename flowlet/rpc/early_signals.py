"""What signals do to a process of the cluster before its event loop handles them: a third of a second of imports.

Side:   shared.  The handlers run on the main thread.
Rules:  imports the standard library alone, so that it comes first.
"""

import os
import signal
from types import FrameType
from typing import Final

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_at_signals(program: str) -> None:
    """From now on a stop signal ends the process with exit code 0: at once, silently, after SIGINT (Ctrl-C) with one
    line.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        try:
            if number == signal.SIGINT:
                os.write(2, f"{program}: interrupted\n".encode())
        finally:  # also where nobody reads standard error
            os._exit(0)

    for each in STOP_SIGNALS:
        signal.signal(each, end)

"""``python -m flowlet.tm``: see ``flowlet.tm.command``.

Side: shared.
"""

import atexit
import contextlib
import os
import signal
import sys
from typing import NoReturn


def main() -> None:
    """Run the TaskManager.  Until the event loop handles signals (a third of a second of imports), they end the process silently."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: os._exit(0))
    from flowlet.tm.command import run_command

    _leave(run_command())


def _leave(code: int) -> NoReturn:
    """Run the exit functions and end the process; shutting down the interpreter would take long on a busy machine."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader is gone, or the stream is closed
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()

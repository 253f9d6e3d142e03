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
    """Until the event loop handles signals (a third of a second of imports), they end the process at once and silently."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: os._exit(0))
    from flowlet.tm.command import run_command

    _leave(run_command())


def _leave(code: int) -> NoReturn:
    """Do what users registered for the end, but do not take the interpreter apart, which takes long on a busy machine."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more, or it was closed
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()

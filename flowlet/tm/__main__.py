"""``python -m flowlet.tm``: see ``flowlet.tm.command``.

Side: shared.
"""

import atexit
import contextlib
import os
import sys
from typing import NoReturn

from flowlet.rpc.early_signals import end_at_signals


def main() -> None:
    """Take over signals, then import the rest and run."""
    end_at_signals("python -m flowlet.tm")
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

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
    """Do what users registered for the end, but do not take the interpreter apart, which takes long on a busy machine."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more, or it was closed
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()

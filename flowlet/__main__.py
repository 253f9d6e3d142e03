"""``python -m flowlet``, and the command ``flowlet``: see ``flowlet.cli.main``.

Side: shared.
"""

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command; Ctrl-C prints one line, also while the command is imported or waits for one answer."""
    is_interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not in the background of a shell
    if is_interruptible:
        signal.signal(signal.SIGINT, _end)
    from flowlet.cli.quick_commands import run_quickly

    code = run_quickly(sys.argv[1:])
    if code is not None:
        sys.exit(code)
    from flowlet.cli.main import run_command

    if is_interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(run_command())


def _end(_number: int, _frame: FrameType | None) -> None:
    try:
        os.write(2, b"flowlet: interrupted\n")
    finally:  # also where standard error is closed
        os._exit(130)  # as a shell reports a program that SIGINT ended


if __name__ == "__main__":
    main()

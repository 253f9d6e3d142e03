"""``python -m flowlet.tm``: see ``flowlet.tm.command``.

Side: shared.
"""

import os
import signal
import sys


def main() -> None:
    """Until the event loop handles signals (a third of a second of imports), they end the process at once and silently."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: os._exit(0))
    from flowlet.tm.command import run_command

    sys.exit(run_command())


if __name__ == "__main__":
    main()

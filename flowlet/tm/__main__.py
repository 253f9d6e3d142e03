"""``python -m flowlet.tm``: see ``flowlet.tm.command``.

Side: shared.
"""

import os
from typing import Final

from flowlet.rpc.early_signals import end_at_signals

# The settings of a TaskManager beside its command line.  A child that finds one of them parses its options with
# typer.
_VARIABLES: Final = (
    "FLOWLET_CONF_DIR",
    "FLOWLET_HEARTBEAT_INTERVAL_S",
    "FLOWLET_HEARTBEAT_TIMEOUT_S",
    "FLOWLET_LATENCY_MODE",
)


def main() -> None:
    """Take over signals, then import the rest and run."""
    end_at_signals("python -m flowlet.tm")
    from flowlet.tm.process.process_model import leave
    from flowlet.tm.process.program_start import program_end

    end = program_end()
    if end is not None and not any(name in os.environ for name in _VARIABLES):
        from flowlet.tm.taskmanager_process import run_forked

        leave(run_forked(end))
    from netstack.late import import_many

    leave(import_many("flowlet.tm.command").run_command(program_end=end))


if __name__ == "__main__":
    main()

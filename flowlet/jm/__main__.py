"""``python -m flowlet.jm``: a JobManager as a process of its own, see ``flowlet.jm.cluster_entrypoint``.

Side: shared.
"""

import sys

from flowlet.rpc.early_signals import end_at_signals


def main() -> None:
    """Take over signals, then import the rest and run."""
    end_at_signals("python -m flowlet.jm")
    from netstack.late import import_many

    code = import_many("flowlet.jm.cluster_entrypoint").run_command()
    end_at_signals("python -m flowlet.jm")  # the event loop has given them back, and Python needs a moment to end
    sys.exit(code)


if __name__ == "__main__":
    main()

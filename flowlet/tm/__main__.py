"""``python -m flowlet.tm``: see ``flowlet.tm.command``.

Side: shared.
"""

from flowlet.rpc.early_signals import end_at_signals


def main() -> None:
    """Take over signals, then import the rest and run."""
    end_at_signals("python -m flowlet.tm")
    from flowlet.tm.process.process_model import leave
    from flowlet.tm.process.program_start import program_end

    end = program_end()
    if end is not None:
        from flowlet.tm.fork_server import run_forked

        leave(run_forked(end))
    from netstack.late import import_many

    leave(import_many("flowlet.tm.command").run_command())


if __name__ == "__main__":
    main()

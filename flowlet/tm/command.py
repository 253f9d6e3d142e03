"""The TaskManager as a program: its options.  What it then does is in ``taskmanager_process``.

The options of ``python -m flowlet.tm``: their limits and help.  Types and defaults stand in ``TaskManagerSettings``.

Side:       shared.
Invariants: one line on standard output when ready; every error is one line and exit code 2.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from inspect import Parameter, Signature
from typing import Annotated, Any, Final, get_type_hints

import typer

from flowlet.common.written_values import JOB_MANAGER_VARIABLE
from flowlet.errors import FlowletError
from flowlet.rpc.config_file import task_manager_defaults
from flowlet.rpc.early_signals import complain
from flowlet.tm.latency.latency_policy import (
    CROWDED_SWITCH_INTERVAL_MS,
    DEFAULT_SWITCH_INTERVAL_MS,
    LATENCY_BUSY_POLL_US,
    LATENCY_SWITCH_INTERVAL_MS,
)
from flowlet.tm.taskmanager_process import EXIT_FAILURE, PROGRAM, TaskManagerSettings, run_taskmanager
from netstack.errors import NetstackError

# The typer options of the fields of ``TaskManagerSettings``; types and defaults are those of the fields.
_OPTIONS: Final[Mapping[str, Any]] = {
    # The cluster.
    "jobmanager": typer.Option(envvar=JOB_MANAGER_VARIABLE, help="Where the JobManager listens, host:port."),
    "secret_file": typer.Option(help="Default: $FLOWLET_SECRET_FILE or ~/.flowlet/secret."),
    "slots": typer.Option(min=1, help="How many subtasks of one slot sharing group may run here."),
    # The network stack.
    "host": typer.Option(help="The address of the data port."),
    "data_port": typer.Option(min=0, max=65535, help="0 picks a free one."),
    "advertise": typer.Option(
        help="host:port of the way to the data port that peers are told, such as a tunnel's entrance on this machine.  "
        "[default: the data port itself]"
    ),
    "network_memory": typer.Option(help="Memory for network buffers: bytes, or with k, m or g."),
    "segment_size": typer.Option(help="Size of one network buffer: bytes, or with k; 256 bytes at least."),
    "exclusive_buffers": typer.Option(min=0, help="Network buffers that each channel of an input has for itself."),
    "floating_buffers": typer.Option(min=0, help="Further network buffers that the channels of one input share."),
    "max_producers_per_gate": typer.Option(min=1, help="How many producers may push into a remote gate at once."),
    "producer_memory_percent": typer.Option(
        min=1, max=100, help="How much of the network memory the producers of all remote gates may hold."
    ),
    "congestion_control": typer.Option(
        help="The kernel's congestion control of data connections, by its name there, such as cubic; kernel: whatever "
        "the kernel chooses.  [default: reno where both ends are on one machine, else kernel]"
    ),
    "heartbeat_interval_s": typer.Option(
        envvar="FLOWLET_HEARTBEAT_INTERVAL_S",
        help="How often the peers of data connections send something, at least; heartbeats if there is no data.",
    ),
    "heartbeat_timeout_s": typer.Option(
        envvar="FLOWLET_HEARTBEAT_TIMEOUT_S",
        help="After this time without a byte the peer of a data connection is lost.  A process that a debugger stops "
        "is silent, too.",
    ),
    # The process.
    "parent_pid": typer.Option(help="End when this process, our parent, ends."),
    "pin_cpu": typer.Option(help="Run on this core only."),
    "gc_threshold": typer.Option(
        help="How many more objects than were freed are made before the garbage collector runs; 0: never."
    ),
    "cancellation_interval": typer.Option(
        "--task-cancellation-interval",
        min=1,
        help="Milliseconds between reports of a cancelled task that does not end.",
    ),
    "cancellation_timeout": typer.Option(
        "--task-cancellation-timeout",
        min=0,
        help="After how many milliseconds a cancelled task that does not end makes this process end itself; 0: never.  "
        "Unless it is 0, a job's task.cancellation.timeout comes before it.",
    ),
    "registration_timeout_s": typer.Option(
        "--registration-timeout-s",
        min=0.1,
        help="How long this process looks for a JobManager, at its start and when it has lost one, before it ends with "
        "an error.",
    ),
    "log_level": typer.Option(help="debug, info, warning, error or critical."),
    "log_format": typer.Option(help="auto, console or json."),
    # Throughput or latency.
    "latency_mode": typer.Option(
        "--latency-mode",
        envvar="FLOWLET_LATENCY_MODE",
        help="What makes single records quick, alone and beside busy tasks: --keep-awake, --task-driver loop, "
        "--busy-poll-us, short time slices, and task threads that turn out busy at nice 19.",
    ),
    "switch_interval_ms": typer.Option(
        help=f"sys.setswitchinterval.  [default: {DEFAULT_SWITCH_INTERVAL_MS}, and {CROWDED_SWITCH_INTERVAL_MS:.0f} "
        "while several tasks are at work and no other one does anything, not with --task-driver loop; "
        f"{LATENCY_SWITCH_INTERVAL_MS} with --latency-mode]"
    ),
    "task_scheduling": typer.Option(
        help="How the kernel treats task threads; idle or nice: lower latency beside CPU-bound tasks."
    ),
    "keep_awake": typer.Option(
        "--keep-awake", help="Keep the core from halting, for lower latency; the CPU is then always busy."
    ),
    "task_driver": typer.Option(
        help="loop: light tasks run where their data arrives; users' functions must not block then."
    ),
    "busy_poll_us": typer.Option(
        min=0,
        help="How long the loop looks for more data, without sleeping, after the last came, while no task is busy; 0: "
        f"not at all.  [default: 0, or {LATENCY_BUSY_POLL_US} with --latency-mode]",
    ),
}

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def taskmanager(**options: Any) -> TaskManagerSettings:
    """Run a TaskManager until a signal comes."""
    return TaskManagerSettings(**options)


def _parameter(of: Field[Any], kind: object) -> Parameter:
    default = Parameter.empty if of.default is MISSING else of.default
    annotation = Annotated[kind, _OPTIONS[of.name]]  # type: ignore[valid-type]  # of the field
    return Parameter(of.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_types: Final = get_type_hints(TaskManagerSettings)
_parameters: Final = [_parameter(each, _types[each.name]) for each in fields(TaskManagerSettings)]
taskmanager.__signature__ = Signature(_parameters)  # type: ignore[attr-defined]  # typer reads it
app.command()(taskmanager)


def run_command(arguments: list[str] | None = None, program_end: socket.socket | None = None) -> int:
    """Parse the command line (None: of this process) and run; returns the exit code.  Every error is one line.

    ``program_end``: of the pair whose other end the JobManager in the program has, if a program has forked this
        process.
    """
    try:
        settings = app(
            arguments, prog_name=PROGRAM, standalone_mode=False, default_map=task_manager_defaults(os.environ)
        )
        if isinstance(settings, TaskManagerSettings):  # not after --help
            run_taskmanager(settings, program_end)
    except typer.TyperException as error:
        message = error.format_message()
    except (FlowletError, NetstackError, OSError) as error:
        message = str(error)
    else:
        return 0
    return complain(PROGRAM, message, EXIT_FAILURE)

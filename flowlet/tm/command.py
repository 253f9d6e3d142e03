"""The TaskManager as a program: its options.  What it then does is in ``taskmanager_process``.

The options of ``python -m flowlet.tm``: their types, limits and help.  Defaults stand in the command.

Side:       shared.
Invariants: one line on standard output when ready; every error is one line and exit code 2.
"""

import os
import socket
from pathlib import Path
from typing import Annotated, Final

import typer

from flowlet.common.written_values import JOB_MANAGER_VARIABLE
from flowlet.errors import FlowletError
from flowlet.rpc.config_file import task_manager_defaults
from flowlet.tm.latency.latency_policy import (
    CROWDED_SWITCH_INTERVAL_MS,
    DEFAULT_SWITCH_INTERVAL_MS,
    LATENCY_BUSY_POLL_US,
    LATENCY_SWITCH_INTERVAL_MS,
    TaskDriver,
)
from flowlet.tm.process.process_model import TaskScheduling
from flowlet.tm.taskmanager_process import EXIT_FAILURE, PROGRAM, TaskManagerSettings, complain, run_taskmanager
from netstack.errors import NetstackError

# The cluster.
JobManagerAddress = Annotated[
    str, typer.Option(envvar=JOB_MANAGER_VARIABLE, help="Where the JobManager listens, host:port.")
]
SecretFile = Annotated[Path | None, typer.Option(help="Default: $FLOWLET_SECRET_FILE or ~/.flowlet/secret.")]
Slots = Annotated[int, typer.Option(min=1, help="How many subtasks of one slot sharing group may run here.")]

# The network stack.
Host = Annotated[str, typer.Option(help="The address of the data port.")]
DataPort = Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free one.")]
Advertise = Annotated[
    str | None,
    typer.Option(
        help="host:port of the way to the data port that peers are told, such as a tunnel's entrance on this machine.  "
        "[default: the data port itself]"
    ),
]
NetworkMemory = Annotated[str, typer.Option(help="Memory for network buffers: bytes, or with k, m or g.")]
SegmentSize = Annotated[str, typer.Option(help="Size of one network buffer: bytes, or with k; 256 bytes at least.")]
ExclusiveBuffers = Annotated[
    int, typer.Option(min=0, help="Network buffers that each channel of an input has for itself.")
]
FloatingBuffers = Annotated[
    int, typer.Option(min=0, help="Further network buffers that the channels of one input share.")
]
MaxProducersPerGate = Annotated[
    int, typer.Option(min=1, help="How many producers may push into a remote gate at once.")
]
ProducerMemoryPercent = Annotated[
    int, typer.Option(min=1, max=100, help="How much of the network memory the producers of all remote gates may hold.")
]
CongestionControl = Annotated[
    str | None,
    typer.Option(
        help="The kernel's congestion control of data connections, by its name there, such as cubic; kernel: whatever "
        "the kernel "
        "chooses.  [default: reno where both ends are on one machine, else kernel]"
    ),
]
HeartbeatIntervalS = Annotated[
    float,
    typer.Option(
        envvar="FLOWLET_HEARTBEAT_INTERVAL_S",
        help="How often the peers of data connections send something, at least; heartbeats if there is no data.",
    ),
]
HeartbeatTimeoutS = Annotated[
    float,
    typer.Option(
        envvar="FLOWLET_HEARTBEAT_TIMEOUT_S",
        help="After this time without a byte the peer of a data connection is lost.  A process that a debugger stops "
        "is silent, too.",
    ),
]

# The process.
ParentPid = Annotated[int | None, typer.Option(help="End when this process, our parent, ends.")]
PinCpu = Annotated[int | None, typer.Option(help="Run on this core only.")]
GcThreshold = Annotated[
    int,
    typer.Option(help="How many more objects than were freed are made before the garbage collector runs; 0: never."),
]
CancellationInterval = Annotated[
    int,
    typer.Option(
        "--task-cancellation-interval",
        min=1,
        help="Milliseconds between reports of a cancelled task that does not end.",
    ),
]
CancellationTimeout = Annotated[
    int,
    typer.Option(
        "--task-cancellation-timeout",
        min=0,
        help="After how many milliseconds a cancelled task that does not end makes this process end itself; 0: never.  "
        "Unless it is 0, a job's task.cancellation.timeout comes before it.",
    ),
]
RegistrationTimeoutS = Annotated[
    float,
    typer.Option(
        "--registration-timeout-s",
        min=0.1,
        help="How long this process looks for a JobManager, at its start and when it has lost one, before it ends with "
        "an error.",
    ),
]
LogLevel = Annotated[str, typer.Option(help="debug, info, warning, error or critical.")]
LogFormat = Annotated[str, typer.Option(help="auto, console or json.")]

# Throughput or latency.
LatencyMode = Annotated[
    bool,
    typer.Option(
        "--latency-mode",
        envvar="FLOWLET_LATENCY_MODE",
        help="What makes single records quick, alone and beside busy tasks: --keep-awake, --task-driver loop, "
        "--busy-poll-us, short "
        "time slices, and task threads that turn out busy at nice 19.",
    ),
]
SwitchIntervalMs = Annotated[
    float | None,
    typer.Option(
        help=f"sys.setswitchinterval.  [default: {DEFAULT_SWITCH_INTERVAL_MS}, and {CROWDED_SWITCH_INTERVAL_MS:.0f} "
        "while several "
        f"tasks are at work and no other one does anything, not with --task-driver loop; "
        f"{LATENCY_SWITCH_INTERVAL_MS} with --latency-mode]"
    ),
]
Scheduling = Annotated[
    TaskScheduling,
    typer.Option(help="How the kernel treats task threads; idle or nice: lower latency beside CPU-bound tasks."),
]
KeepsAwake = Annotated[
    bool,
    typer.Option("--keep-awake", help="Keep the core from halting, for lower latency; the CPU is then always busy."),
]
Driver = Annotated[
    TaskDriver,
    typer.Option(help="loop: light tasks run where their data arrives; users' functions must not block then."),
]
BusyPollUs = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="How long the loop looks for more data, without sleeping, after the last came, while no task is busy; 0: "
        "not at all.  "
        f"[default: 0, or {LATENCY_BUSY_POLL_US} with --latency-mode]",
    ),
]


_D: Final = TaskManagerSettings  # whose attributes are the defaults

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def taskmanager(
    jobmanager: JobManagerAddress,
    slots: Slots = _D.slots,
    host: Host = _D.host,
    data_port: DataPort = _D.data_port,
    advertise: Advertise = _D.advertise,
    network_memory: NetworkMemory = _D.network_memory,
    segment_size: SegmentSize = _D.segment_size,
    exclusive_buffers: ExclusiveBuffers = _D.exclusive_buffers,
    floating_buffers: FloatingBuffers = _D.floating_buffers,
    max_producers_per_gate: MaxProducersPerGate = _D.max_producers_per_gate,
    producer_memory_percent: ProducerMemoryPercent = _D.producer_memory_percent,
    congestion_control: CongestionControl = _D.congestion_control,
    heartbeat_interval_s: HeartbeatIntervalS = _D.heartbeat_interval_s,
    heartbeat_timeout_s: HeartbeatTimeoutS = _D.heartbeat_timeout_s,
    parent_pid: ParentPid = _D.parent_pid,
    pin_cpu: PinCpu = _D.pin_cpu,
    switch_interval_ms: SwitchIntervalMs = _D.switch_interval_ms,
    task_scheduling: Scheduling = _D.task_scheduling,
    keep_awake: KeepsAwake = _D.keep_awake,
    task_driver: Driver = _D.task_driver,
    busy_poll_us: BusyPollUs = _D.busy_poll_us,
    latency_mode: LatencyMode = _D.latency_mode,
    gc_threshold: GcThreshold = _D.gc_threshold,
    secret_file: SecretFile = _D.secret_file,
    cancellation_interval: CancellationInterval = _D.cancellation_interval,
    cancellation_timeout: CancellationTimeout = _D.cancellation_timeout,
    registration_timeout_s: RegistrationTimeoutS = _D.registration_timeout_s,
    log_level: LogLevel = _D.log_level,
    log_format: LogFormat = _D.log_format,
) -> TaskManagerSettings:
    """Run a TaskManager until a signal comes."""
    return TaskManagerSettings(**locals())


def run_command(arguments: list[str] | None = None, program_end: socket.socket | None = None) -> int:
    """Parse the command line (None: of this process) and run; the exit code.  Every error is one line.

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
    complain(message)
    return EXIT_FAILURE

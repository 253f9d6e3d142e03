"""The TaskManager as a program: its options.  What it then does is in ``taskmanager_process``.

Side:       shared.
Invariants: one line on standard output when ready; every error is one line and exit code 2.
"""

import os
import socket
from typing import Final

import typer

from flowlet.errors import FlowletError
from flowlet.rpc.config_file import task_manager_defaults
from flowlet.tm.command_options import (
    Advertise,
    BusyPollUs,
    CancellationInterval,
    CancellationTimeout,
    CongestionControl,
    DataPort,
    Driver,
    ExclusiveBuffers,
    FloatingBuffers,
    GcThreshold,
    HeartbeatIntervalS,
    HeartbeatTimeoutS,
    Host,
    JobManagerAddress,
    KeepsAwake,
    LatencyMode,
    LogFormat,
    LogLevel,
    MaxProducersPerGate,
    NetworkMemory,
    ParentPid,
    PinCpu,
    ProducerMemoryPercent,
    RegistrationTimeoutS,
    Scheduling,
    SecretFile,
    SegmentSize,
    Slots,
    SwitchIntervalMs,
)
from flowlet.tm.taskmanager_process import EXIT_FAILURE, PROGRAM, TaskManagerSettings, complain, run_taskmanager
from netstack.errors import NetstackError

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

"""The process from which a program's TaskManagers are forked: it has imported what they need, and nothing of the
program.

Two TaskManagers that are executed import 600 modules each, 0.55 s of CPU; forked ones share them.

Side:       shared.  The one thread of this process, and of a child until it runs.
Invariants: this process was executed, not forked from the program: it has none of the program's threads, locks and
            descriptors.  It has one thread, no event loop and no socket but that of the program.  (numpy's BLAS ends
            its threads before a fork, and starts them in the child when they are needed.)  A child is killed with its
            group before it is waited for, so that no id is used again.  This process ends when the program closes its
            end of the socket, or is gone, and when it has rested as long as it was told: between two clusters it has
            neither the program's standard error, which a reader may wait to be closed, nor its working directory.
Rules:      seeds of ``random`` differ in each child (Python sees to that); ``hash`` of texts is the same in all.
"""

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from flowlet.errors import FlowletError
from flowlet.rpc.early_signals import STOP_SIGNALS, complain, end_at_signals
from flowlet.tm.process.program_start import end_with, forked_from
from flowlet.tm.taskmanager_process import (
    EXIT_FAILURE,
    PROGRAM,
    TaskManagerSettings,
    import_task_modules,
    run_taskmanager,
)
from netstack.errors import NetstackError
from netstack.late import make_constructors

PROCESS_NAME: Final = "flowlet-tm"  # of a child
MAX_MESSAGE_BYTES: Final = 64 * 1024
# In this order they come with an order to fork.
DESCRIPTORS: Final = ("stdout", "stderr", "life", "status", "program_end", "exit")
# The classes of which each TaskManager makes objects.  Their methods are made once, not in each child.  With
# ``import_task_modules`` that is 20 of the 75 ms of CPU of a child.
_CLASSES: Final = {
    "flowlet.chain.loop_code": "Blame _Source",
    "flowlet.chain.stream_operator": "OperatorContext OperatorCounters",
    "flowlet.checkpoint.task.operator_snapshots": "CheckpointStatistics OperatorSnapshots",
    "flowlet.checkpoint.task.task_checkpoints": "TaskCheckpoints",
    "flowlet.columns.table": "Columns",
    "flowlet.io.record_writer": "RecordWriterOptions",
    "flowlet.mailbox.mailbox_processor": "MailboxExecutor MailboxProcessor TimingsSnapshot",
    "flowlet.metrics.metricbase": "MetricRegistry",
    "flowlet.shipping.job_file_cache": "JobPaths",
    "flowlet.task.operator_services": "OperatorServices",
    "flowlet.task.task_environment": "OutputEdge TaskEnvironment",
    "flowlet.timers.keyed_timer_service": "KeyedTimerServiceManager",
    "flowlet.timers.system_processing_time_service": "SystemProcessingTimeService",
    "flowlet.tm.jobmanager_connection": "JobManagerConnection ReconnectConfig",
    "flowlet.tm.latency.latency_policy": "BusyTasks LatencyPolicy SwitchInterval TaskLoad WatchedThread",
    "flowlet.tm.task_checkpointing": "CheckpointServices TaskCheckpointing",
    "flowlet.tm.task_executor": "ProcessHooks TaskExecutorConfig",
    "flowlet.tm.taskmanager_process": "TaskManagerSettings _Process",
    "netstack.buffer.local_buffer_pool": "LocalBufferPool",
    "netstack.buffer.network_buffer": "BufferDecompressor",
    "netstack.config": "NetstackConfig SecurityConfig",
    "netstack.connection_manager": "NetworkPartitionRequestClient",
    "netstack.environment": "ChannelSpec",
    "netstack.flow.handshake": "Handshake",
    "netstack.gate.channels.channel_receiver": "ChannelReceiver",
    "netstack.gate.channels.local_input_channel": "LocalInputChannel",
    "netstack.gate.gate_channels": "GateStatistics",
    "netstack.handlers.partition_request_client_handler": "ConnectionRoles",
    "netstack.handlers.partition_request_server_handler": "PartitionRequestServerHandler",
    "netstack.ids": "ConnectionID ResultPartitionID",
    "netstack.partition.buffer_writing_result_partition": "ResultPartitionStatistics",
    "netstack.transport.authentication_handler": "AuthenticationHandler PeerCheck",
    "netstack.transport.direct_writer": "DirectWriter",
    "netstack.wire.events": "EndOfData",
    "netstack.wire.frame_decoder": "FrameDecoder",
    "netstack.wire.messages": "AckAllUserRecordsProcessed CancelPartitionRequest Heartbeat Hello PartitionRequest "
    "Proof Ready",
}
# What sets options of a TaskManager beside its command line.  A child that finds one of them parses its options with
# typer.
_VARIABLES: Final = (
    "FLOWLET_CONF_DIR",
    "FLOWLET_HEARTBEAT_INTERVAL_S",
    "FLOWLET_HEARTBEAT_TIMEOUT_S",
    "FLOWLET_LATENCY_MODE",
)


def serve(control: socket.socket) -> NoReturn:
    """Do as the orders say that come through ``control``, until its other end is closed: fork a TaskManager, rest,
    begin again.
    """
    control.setblocking(True)  # noqa: FBT003 - socket's own
    # By the descriptor that tells their end: id, and where their exit code is told.
    children: dict[int, tuple[int, int]] = {}
    rest_ms: float | None = None
    looker = select.poll()
    looker.register(control, select.POLLIN)
    import_task_modules()
    make_constructors(_CLASSES)
    control.send(json.dumps({"pid": os.getpid()}).encode())  # ready
    gc.freeze()  # so that a collection in a child copies none of the pages that it shares with this process
    gc.enable()
    while True:
        events = looker.poll(rest_ms)  # until the program wants something, or ends, or a child ends
        if not events:
            os._exit(0)  # it has rested long enough
        for descriptor, _ in events:
            if descriptor != control.fileno():
                looker.unregister(descriptor)
                _bury(descriptor, *children.pop(descriptor))
                continue
            message, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, len(DESCRIPTORS))
            if not message:
                os._exit(0)
            order = json.loads(message)
            rest_ms = None
            if order["kind"] == "rest":
                _rest()
                rest_ms = order["max_s"] * 1000
                control.send(json.dumps({"children": len(children)}).encode())
                continue
            if order["kind"] == "begin":
                _begin(*descriptors)
                control.send(json.dumps({"pid": os.getpid()}).encode())
                continue
            found = dict(zip(DESCRIPTORS, descriptors, strict=True))
            ends = [descriptor for end_fd, (_, exit_fd) in children.items() for descriptor in (end_fd, exit_fd)]
            pid = _fork(order, found, [control.fileno(), *ends])
            end_fd = os.pidfd_open(pid)
            for name in DESCRIPTORS[:-1]:
                os.close(found[name])
            children[end_fd] = pid, found["exit"]
            looker.register(end_fd, select.POLLIN)
            socket.send_fds(control, [json.dumps({"pid": pid}).encode()], [end_fd])


def _rest() -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)
    os.chdir("/")


def _begin(stderr: int, directory: int) -> None:
    """Have standard error and working directory of the program, as they are now."""
    os.dup2(stderr, 2)
    os.fchdir(directory)
    for descriptor in (stderr, directory):
        os.close(descriptor)
    importlib.invalidate_caches()  # the program may have written modules meanwhile


def _bury(end_fd: int, pid: int, exit_fd: int) -> None:
    """Wait for a child that has ended, after what it leaves behind was killed, and tell its exit code."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with suppress(BrokenPipeError):  # the program does not want to know any more
        os.write(exit_fd, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os.close(exit_fd)
    os.close(end_fd)


def _fork(order: dict[str, Any], found: dict[str, int], foreign: list[int]) -> int:
    """The id of a new child; in the child this does not return."""
    # One that comes early waits for the child's handlers.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return pid
    code = EXIT_FAILURE
    try:
        os.setsid()
        with suppress(OSError):  # only for people who look at processes
            Path("/proc/self/comm").write_text(PROCESS_NAME, encoding="ascii")
        for descriptor in (*foreign, found["exit"]):
            os.close(descriptor)
        for name, number in (("stdout", 1), ("stderr", 2)):
            os.dup2(found[name], number)
            os.close(found[name])
        end_with(found["life"])
        forked_from(Path(order["program_file"]), found["status"], socket.socket(fileno=found["program_end"]))
        end_at_signals(PROGRAM)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        sys.argv[1:] = order["arguments"]
        runpy.run_module("flowlet.tm", run_name="__main__", alter_sys=True)  # ends the process
    except BaseException as error:  # noqa: BLE001 - the top of a process: nothing of it returns into that of its parent
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        os._exit(code)


def run_forked(program_end: socket.socket) -> int:
    """Run the TaskManager of this process, which was forked; the exit code."""
    if any(name in os.environ for name in _VARIABLES):
        from flowlet.tm.command import run_command

        return run_command(program_end=program_end)
    try:
        run_taskmanager(_settings(sys.argv[1:]), program_end)
    except (FlowletError, NetstackError, OSError) as error:
        return complain(PROGRAM, str(error), EXIT_FAILURE)
    return 0


def _settings(arguments: list[str]) -> TaskManagerSettings:
    given = {
        name.removeprefix("--").replace("-", "_"): text
        for name, text in zip(arguments[::2], arguments[1::2], strict=True)
    }
    values: dict[str, Any] = given | {
        name: int(given[name]) for name in ("slots", "parent_pid", "pin_cpu") if name in given
    }
    return TaskManagerSettings(**values | {"secret_file": Path(given["secret_file"])})

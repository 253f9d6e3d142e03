"""A TaskManager's own process: its settings, signals, the event loop, and a quick end.

And the process from which a program's TaskManagers are forked (``serve``): it has imported what they need, and nothing
of the program.  Two TaskManagers that are executed import 600 modules each, 0.55 s of CPU; forked ones share them.

Side:       shared.  Runs the loop on the main thread.  The server has one thread, and so has a child until it runs.
Invariants: SIGINT, SIGTERM, SIGHUP and the parent's death end the process within ``STOP_S``, even if a task does not
            let go, unless functions have left work for its end (``process_end``).
            The server was executed, not forked from the program: it has none of the program's threads, locks and
            descriptors.  It has one thread, no event loop and no socket but that of the program.  (numpy's BLAS ends
            its threads before a fork, and starts them in the child when they are needed.)  A child is killed with its
            group before it is waited for, so that no id is used again.  The server ends when the program closes its
            end of the socket, or is gone, and when it has rested as long as it was told: between two clusters it has
            neither the program's standard error, which a reader may wait to be closed, nor its working directory.
            Where the system refuses a process or a descriptor, the program gets an error for that one child.
Rules:      imports no typer: a process that a program forks has its settings from there.  Seeds of ``random`` differ
            in each child (Python sees to that); all children have one ``hash`` of a text.
"""

import asyncio
import errno
import faulthandler
import gc
import importlib
import json
import os
import runpy
import secrets
import select
import signal
import socket
import sys
from contextlib import ExitStack, closing, suppress
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from flowlet.common.job_settings import DEFAULT_CANCELLATION_INTERVAL_MS, DEFAULT_CANCELLATION_TIMEOUT_MS
from flowlet.common.written_values import parse_address, parse_bytes, parse_job_manager_option
from flowlet.errors import ConfigError, FlowletError
from flowlet.logs import configure_logging, configure_program_logging
from flowlet.rpc.early_signals import STOP_SIGNALS, complain, end_at_signals
from flowlet.rpc.local_rpc import PipeRpc
from flowlet.rpc.secret import load_or_create_secret
from flowlet.shipping.program_modules import SHIPPED_CODE
from flowlet.tm.jobmanager_connection import DEFAULT_GIVE_UP_AFTER_S, ReconnectConfig
from flowlet.tm.latency.latency_policy import KeepAwake, LatencyPolicy, SwitchInterval, TaskDriver, TaskLoad
from flowlet.tm.process import process_model
from flowlet.tm.process.program_start import end_with, enter_program, forked_from, started_by, tell_program
from flowlet.tm.shared_process import SharedProcess
from flowlet.tm.task import CancellationConfig
from flowlet.tm.task_executor import ProcessHooks, TaskExecutor, TaskExecutorConfig
from netstack.config import NetstackConfig, SecurityConfig
from netstack.errors import NetstackError
from netstack.late import dataclass, make_constructors, numpy
from netstack.log_lines import LogLines
from netstack.loop.eventloop import EventLoopThread
from netstack.loop.forks import serving_thread
from netstack.loop.uv_loop import UvLoop

if TYPE_CHECKING:
    from flowlet.rpc.http import RpcClient

_log = LogLines(__name__)

PROGRAM: Final = "python -m flowlet.tm"
EXIT_FAILURE: Final = 2
# Modules that tasks import when they need them; a program with a TaskManager in its own process may never need them.
_TASK_MODULES: Final = (
    "cryptography.hazmat.primitives.ciphers.aead",
    "numpy",
    "flowlet.columns.number_tuples",
    "flowlet.connectors.gates.reader",
    "flowlet.sinks.function_sink",
    "flowlet.io.create_record_writer",
    "flowlet.checkpoint.task.input_recovery",
    "flowlet.operators.process_operator",
    "flowlet.state.heap_keyed_state_backend",
    "flowlet.state.rocksdb.rocksdb_keyed_state_backend",
    "flowlet.checkpoint.task.state_codec",
    "flowlet.task.one_input_stream_task",
)
STOP_S: Final = 1.8  # of the promised 2 s
_TASKS_STOP_S: Final = 1.3
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


@dataclass(frozen=True, kw_only=True)
class TaskManagerSettings:
    """The values of the options of ``python -m flowlet.tm``, which explains them; the attributes of the class are the
    defaults.
    """

    jobmanager: str
    slots: int = 1
    host: str = "127.0.0.1"
    data_port: int = 0
    advertise: str | None = None
    network_memory: str = "64m"
    segment_size: str = "32k"
    exclusive_buffers: int = 8
    floating_buffers: int = 8
    max_producers_per_gate: int = 64
    producer_memory_percent: int = 50
    congestion_control: str | None = None
    heartbeat_interval_s: float = 10.0
    heartbeat_timeout_s: float = 60.0
    parent_pid: int | None = None
    pin_cpu: int | None = None
    switch_interval_ms: float | None = None
    task_scheduling: process_model.TaskScheduling = process_model.TaskScheduling.NORMAL
    keep_awake: bool = False
    task_driver: TaskDriver = TaskDriver.THREAD
    busy_poll_us: int | None = None
    latency_mode: bool = False
    gc_threshold: int = process_model.DEFAULT_GC_THRESHOLD
    secret_file: Path | None = None
    cancellation_interval: int = DEFAULT_CANCELLATION_INTERVAL_MS
    cancellation_timeout: int = DEFAULT_CANCELLATION_TIMEOUT_MS
    registration_timeout_s: float = DEFAULT_GIVE_UP_AFTER_S
    log_level: str = "info"
    log_format: str = "auto"


def run_taskmanager(settings: TaskManagerSettings, program_end: socket.socket | None = None) -> None:
    """Run a TaskManager until a signal comes; ``program_end``: of the pair whose other end the JobManager in the
    program has.

    Raises:
        FlowletError, NetstackError, OSError: it could not start or go on; the message is for people.
    """
    started = started_by()
    if started is None:
        configure_logging(settings.log_level, settings.log_format)
    else:
        configure_program_logging(started.loggers, started.disabled)
    # Before any thread starts: they inherit it.
    if settings.pin_cpu is not None:
        process_model.pin_to_cpu(settings.pin_cpu)
    policy = LatencyPolicy.of(
        latency_mode=settings.latency_mode,
        keeps_awake=settings.keep_awake,
        task_driver=settings.task_driver,
        busy_poll_us=settings.busy_poll_us,
        switch_interval_ms=settings.switch_interval_ms,
    )
    switch_interval = policy.begin()
    jobmanager = parse_job_manager_option(settings.jobmanager, os.environ)
    secret = load_or_create_secret(settings.secret_file)
    advertised = None if settings.advertise is None else parse_address(settings.advertise, "--advertise")
    network = NetstackConfig(
        network_memory_bytes=parse_memory_size(settings.network_memory, "--network-memory"),
        segment_size_bytes=parse_memory_size(settings.segment_size, "--segment-size"),
        exclusive_buffers_per_channel=settings.exclusive_buffers,
        floating_buffers_per_gate=settings.floating_buffers,
        max_producers_per_gate=settings.max_producers_per_gate,
        congestion_control=settings.congestion_control,
        heartbeat_interval_s=settings.heartbeat_interval_s,
        heartbeat_timeout_s=settings.heartbeat_timeout_s,
        max_producer_memory_percent=settings.producer_memory_percent,
        security=SecurityConfig.hmac(secret, authorities=() if settings.advertise is None else (settings.advertise,)),
    )
    config = TaskExecutorConfig(
        num_slots=settings.slots,
        host=settings.host,
        data_port=settings.data_port,
        advertised=advertised,
        network=network,
        reconnect=ReconnectConfig(give_up_after_s=settings.registration_timeout_s),
        cancellation=CancellationConfig(settings.cancellation_interval / 1000, settings.cancellation_timeout / 1000),
        task_scheduling=settings.task_scheduling,
        latency=policy,
    )
    with policy.keeper() as keeper:
        run(_Process(settings, *jobmanager, secret, program_end, config, keeper, switch_interval))


def import_task_modules() -> None:
    """Import now the modules that tasks would import when they need them.

    A TaskManager needs most of these modules soon.  Later a folder of the program is on the import path, which may hold
    modules with their names.
    """
    for module in _TASK_MODULES:
        importlib.import_module(module)
    numpy.ndarray  # noqa: B018 - from now on our modules have it


def run(process: "_Process") -> None:
    """Run until a signal comes, the parent dies, or the JobManager refuses us.

    Raises:
        FlowletError, NetstackError, OSError: it could not start or go on; the message is for people.
    """
    import_task_modules()
    enter_program()  # after the options were read: packages that do that import parts of themselves late
    process_model.check_free_descriptors(process_model.NUM_DESCRIPTORS, "a TaskManager")
    process_model.keep_apart(STOP_SIGNALS)
    SHIPPED_CODE.owns_process = True
    with SharedProcess(SHIPPED_CODE.brings) as shared, asyncio.Runner(loop_factory=UvLoop) as runner:
        if sys.stderr is not None:
            faulthandler.enable()  # after standard error has its final descriptor
        failure = runner.run(process.run(shared))
    if failure is not None:
        raise FlowletError(failure)


@dataclass(slots=True, eq=False)
class _Process:
    """The life of the process on its loop."""

    settings: TaskManagerSettings
    jobmanager_host: str
    jobmanager_port: int
    secret: bytes = field(repr=False)
    program_end: socket.socket | None  # of the pair whose other end the JobManager has, if a program has forked this
    config: TaskExecutorConfig
    keeper: KeepAwake | None  # rests while a watched task is busy
    switch_interval: SwitchInterval | None  # None: it stays as it is
    _stop: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _failure: str | None = field(init=False, default=None)
    _num_signals: int = field(init=False, default=0)
    _executor: TaskExecutor | None = field(init=False, default=None)
    _ready_line: str | None = field(init=False, default=None)  # until it was told

    async def run(self, shared: SharedProcess) -> str | None:
        """Run until the end; returns why the process could not go on, None after a signal."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)
        parent_pid = self.settings.parent_pid
        watch = None if parent_pid is None else process_model.ParentWatch(loop, parent_pid, self._parent_died)
        try:
            with serving_thread(loop), closing(EventLoopThread.adopt(loop, "flowlet-tm")) as event_loop:
                await self._serve(event_loop, shared)
        finally:
            if watch is not None:
                watch.close()
        return self._failure

    async def _serve(self, event_loop: EventLoopThread, shared: SharedProcess) -> None:
        gc_tuning = process_model.GarbageCollectorTuning(self.settings.gc_threshold)

        # The collector is tuned after the whole batch of deployments was taken in, not in the middle of it.
        def busy() -> None:
            gc_tuning.freeze_soon(event_loop.loop)

        def deploying(job: str, task: str) -> None:
            if self.switch_interval is not None:
                self.switch_interval.task_deployed()
            shared.before_deployment(job, task)

        hooks = ProcessHooks(
            busy=busy,
            idle=gc_tuning.thaw,
            failed=self._failed,
            loaded=self._loaded,
            deploying=deploying,
            ended=shared.after_task,
            heartbeat=shared.at_heartbeat,
            registered=self._announce,
        )
        self._executor = executor = TaskExecutor(f"tm-{secrets.token_hex(4)}", self.config, event_loop, hooks)
        async with await self._rpc() as rpc:
            try:
                address = await executor.start(rpc)
                jobmanager = f"{self.jobmanager_host}:{self.jobmanager_port}"
                # Early enough for ``_announce``: the session begins with the next ``await``.
                self._ready_line = f"TaskManager {executor.tm_id} listening on {address}, registered at {jobmanager}"
                await self._stop.wait()  # waits for a signal; ended by it, or by the parent's death
            finally:
                await self._shut_down(executor)

    async def _rpc(self) -> "PipeRpc | RpcClient":
        if self.program_end is not None:
            return await PipeRpc.open(self.program_end, f"{self.jobmanager_host}:{self.jobmanager_port}")
        from flowlet.rpc.http import RpcClient  # here, as a process that a program forks needs no aiohttp

        return RpcClient(self.jobmanager_host, self.jobmanager_port, self.secret)

    def _loaded(self, load: TaskLoad) -> None:
        if self.keeper is not None:
            self.keeper.rest(is_crowded=load.is_crowded)
        if self.switch_interval is not None:
            self.switch_interval.follow(load)

    def _announce(self) -> None:
        """Tell once that this TaskManager is registered."""
        ready_line = self._ready_line
        self._ready_line = None
        if ready_line is None or tell_program(ready_line):
            return
        try:
            print(ready_line, flush=True)  # noqa: T201 - for the person or script that waits for it
        except (OSError, ValueError) as error:  # not an error of the session in which it comes
            self._failed(f"standard output cannot be written: {error}")

    async def _shut_down(self, executor: TaskExecutor) -> None:
        try:
            async with asyncio.timeout(STOP_S):
                stuck = await executor.stop(_TASKS_STOP_S)
        except TimeoutError:
            self._leave("the network stack did not close in time")
        if stuck:
            self._leave("tasks did not end in time:\n" + "\n".join(task.describe_stuck() for task in stuck))

    def _leave(self, reason: str) -> NoReturn:
        """End without asking the threads that do not listen; exit functions run."""
        process_model.leave(_told_code(reason, self._failure))

    def _signalled(self, number: signal.Signals) -> None:
        self._num_signals += 1
        # Before the tasks end: the JobManager then names the signal as the cause of what it loses.
        if self._executor is not None:
            self._executor.announce_end(f"it got {number.name}")
        # A person who signals twice does not want to wait for tasks.
        if self._num_signals > 1:
            process_model.end_now(_told_code(f"{number.name} again", self._failure))
        _log.info("stopping", signal=number.name)
        self._stop.set()

    def _parent_died(self) -> None:
        _log.info("stopping: the parent process is gone")
        self._stop.set()

    def _failed(self, reason: str) -> None:
        _log.error("stopping", reason=reason)
        # The first one is the cause; later ones follow from it.
        self._failure = self._failure or reason
        self._stop.set()


def _told_code(reason: str, failure: str | None) -> int:
    """Log why the process does not end as it should, and return the exit code."""
    _log.warning("leaving the hard way", reason=reason)
    if failure is None:
        return 0
    return complain(PROGRAM, failure, EXIT_FAILURE)


def parse_memory_size(text: str, option: str) -> int:
    """Parse ``1048576``, ``1024k``, ``64m`` or ``1g`` as bytes.  Raises ConfigError, which names the option: it is
    none.
    """
    try:
        return parse_bytes(text)
    except ValueError:
        raise ConfigError(
            f"{option} is {text!r}, expected a number of bytes, or one with k, m or g, such as 64m"
        ) from None


# ---------------------------------------------------------------- the server that forks TaskManagers


def serve(control: socket.socket) -> NoReturn:
    """Carry out the orders that come through ``control``, until its other end is closed: fork a TaskManager, rest,
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
    _answer(control, {"pid": os.getpid()})  # ready
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
            try:
                message, descriptors, _, _ = socket.recv_fds(control, MAX_MESSAGE_BYTES, len(DESCRIPTORS))
            except ConnectionError:  # it has not read an answer
                os._exit(0)
            # The program closed its end, or is gone.
            if not message:
                os._exit(0)
            order = json.loads(message)
            # It has work again: the end of the rest does not count any more.
            rest_ms = None
            if order["kind"] == "rest":
                _rest()
                rest_ms = order["max_s"] * 1000
                _answer(control, {"children": len(children)})
                continue
            if order["kind"] == "begin":
                _begin(*descriptors)
                _answer(control, {"pid": os.getpid()})
                continue
            ends = [descriptor for end_fd, (_, exit_fd) in children.items() for descriptor in (end_fd, exit_fd)]
            try:
                pid, end_fd, exit_fd = _start_child(order, descriptors, [control.fileno(), *ends])
            except OSError as error:
                advice = "raise the limit of processes (ulimit -u) or of open files (ulimit -n), or the container's"
                _answer(control, {"error": f"{error.strerror}; {advice}"})
                continue
            children[end_fd] = pid, exit_fd
            looker.register(end_fd, select.POLLIN)
            _answer(control, {"pid": pid}, end_fd)


def _answer(control: socket.socket, answer: dict[str, Any], *descriptors: int) -> None:
    # A program that has left wants no answer; the next look finds its end.
    with suppress(ConnectionError):
        socket.send_fds(control, [json.dumps(answer).encode()], descriptors)


def _rest() -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)
    os.chdir("/")


def _begin(stderr: int, directory: int) -> None:
    """Take over standard error and working directory of the program, as they are now."""
    os.dup2(stderr, 2)
    os.fchdir(directory)
    for descriptor in (stderr, directory):
        os.close(descriptor)
    importlib.invalidate_caches()  # the program may have written modules meanwhile


def _bury(end_fd: int, pid: int, exit_fd: int) -> None:
    """Wait for a child that has ended, after its leftovers were killed, and tell its exit code."""
    # Before the wait: until then its id names no other process.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with suppress(BrokenPipeError):  # the program does not want to know any more
        os.write(exit_fd, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os.close(exit_fd)
    os.close(end_fd)


def _start_child(order: dict[str, Any], descriptors: list[int], foreign: list[int]) -> tuple[int, int, int]:
    """Fork a child; return its id, the descriptor that tells its end, and that to which its exit code is written.

    Takes over ``descriptors``, and closes the others.

    Raises OSError: the system refuses a process or a descriptor; nothing is left of the child.
    """
    with ExitStack() as given:
        for each in descriptors:
            given.callback(os.close, each)
        # The kernel leaves out the descriptors of a message for which this process has no room.
        if len(descriptors) < len(DESCRIPTORS):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        found = dict(zip(DESCRIPTORS, descriptors, strict=True))
        pid = _fork(order, found, foreign)
        try:
            end_fd = os.pidfd_open(pid)
        except OSError:
            # Nothing would tell its end.  By its id, too: it may not have a group of its own yet.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        given.pop_all()
    for name in DESCRIPTORS[:-1]:
        os.close(found[name])
    return pid, end_fd, found["exit"]


def _fork(order: dict[str, Any], found: dict[str, int], foreign: list[int]) -> int:
    """Fork a child and return its id; in the child this does not return.  Raises OSError."""
    # One that comes early waits for the child's handlers.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        pid = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        raise
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        return pid
    code = EXIT_FAILURE
    try:
        # A session of its own: ``_bury`` kills its group, and a terminal's signals go to the program alone.
        os.setsid()
        with suppress(OSError):  # only for people who look at processes
            Path("/proc/self/comm").write_text(PROCESS_NAME, encoding="ascii")
        # Of other children: this one would keep their ends open, and their program would not learn that they are gone.
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
    """Run the TaskManager of this process, which was forked, by its command line alone; returns the exit code."""
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

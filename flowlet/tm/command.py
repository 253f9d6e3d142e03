"""The TaskManager as a program: options, signals, the event loop, and a quick end.

Side:       shared.  Runs the loop on the main thread.
Invariants: one line on standard output when ready; SIGINT, SIGTERM, SIGHUP and the parent's death end the process within ``STOP_S``,
            even if a task does not let go, unless functions have left work for its end (``process_end``); every error is one line
            and exit code 2.
"""

import asyncio
import faulthandler
import os
import secrets
import signal
import sys
from contextlib import closing
from dataclasses import field
from typing import Final, NoReturn

import typer

from flowlet.common.settings.job_settings import DEFAULT_CANCELLATION_INTERVAL_MS, DEFAULT_CANCELLATION_TIMEOUT_MS
from flowlet.common.units.host_address import parse_address
from flowlet.errors import ConfigError, FlowletError
from flowlet.logs import configure_logging, configure_program_logging
from flowlet.rpc.config_file import task_manager_defaults
from flowlet.rpc.early_signals import STOP_SIGNALS
from flowlet.rpc.http import RpcClient
from flowlet.rpc.secret import load_or_create_secret
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
from flowlet.tm.jobmanager_connection import DEFAULT_GIVE_UP_AFTER_S, ReconnectConfig
from flowlet.tm.latency.busy_tasks import TaskLoad
from flowlet.tm.latency.keep_awake import KeepAwake
from flowlet.tm.latency.latency_policy import Goal, LatencyPolicy, TaskDriver
from flowlet.tm.latency.switch_interval import SwitchInterval
from flowlet.tm.process_end import end_now, keep_apart, leave
from flowlet.tm.process_model import (
    DEFAULT_GC_THRESHOLD,
    NUM_DESCRIPTORS,
    GarbageCollectorTuning,
    ParentWatch,
    TaskScheduling,
    check_free_descriptors,
    pin_to_cpu,
)
from flowlet.tm.program_start import enter_program, started, tell_program
from flowlet.tm.shared_process import SharedProcess
from flowlet.tm.shipped_folders import SHIPPED_FOLDERS, is_users_module
from flowlet.tm.task import CancellationConfig
from flowlet.tm.task_executor import ProcessHooks, TaskExecutor, TaskExecutorConfig
from netstack.config import NetstackConfig
from netstack.errors import NetstackError
from netstack.eventloop import EventLoopThread
from netstack.forks import serving_thread
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.security import SecurityConfig
from netstack.uv_loop import UvLoop

_log = LogLines(__name__)

_PROGRAM: Final = "python -m flowlet.tm"
_EXIT_FAILURE: Final = 2
STOP_S: Final = 1.8  # of the promised 2 s
_TASKS_STOP_S: Final = 1.3
_UNITS: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """What concerns the process, not the TaskManager in it."""

    jobmanager_host: str
    jobmanager_port: int
    secret: bytes = field(repr=False)
    parent_pid: int | None = None
    gc_tuning: GarbageCollectorTuning = field(default_factory=GarbageCollectorTuning)
    switch_interval: SwitchInterval | None = None  # None: it stays as it is


@app.command()
def taskmanager(
    jobmanager: JobManagerAddress,
    slots: Slots = 1,
    host: Host = "127.0.0.1",
    data_port: DataPort = 0,
    advertise: Advertise = None,
    network_memory: NetworkMemory = "64m",
    segment_size: SegmentSize = "32k",
    exclusive_buffers: ExclusiveBuffers = 8,
    floating_buffers: FloatingBuffers = 8,
    max_producers_per_gate: MaxProducersPerGate = 64,
    producer_memory_percent: ProducerMemoryPercent = 50,
    congestion_control: CongestionControl = None,
    heartbeat_interval_s: HeartbeatIntervalS = 2.0,
    heartbeat_timeout_s: HeartbeatTimeoutS = 10.0,
    parent_pid: ParentPid = None,
    pin_cpu: PinCpu = None,
    switch_interval_ms: SwitchIntervalMs = None,
    task_scheduling: Scheduling = TaskScheduling.NORMAL,
    keep_awake: KeepsAwake = False,  # noqa: FBT002 - an option of the command line
    task_driver: Driver = TaskDriver.THREAD,
    busy_poll_us: BusyPollUs = None,
    latency_mode: LatencyMode = False,  # noqa: FBT002 - an option of the command line
    gc_threshold: GcThreshold = DEFAULT_GC_THRESHOLD,
    secret_file: SecretFile = None,
    cancellation_interval: CancellationInterval = DEFAULT_CANCELLATION_INTERVAL_MS,
    cancellation_timeout: CancellationTimeout = DEFAULT_CANCELLATION_TIMEOUT_MS,
    registration_timeout_s: RegistrationTimeoutS = DEFAULT_GIVE_UP_AFTER_S,
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
) -> None:
    """Run a TaskManager until a signal comes."""
    if started is None:
        configure_logging(log_level, log_format)
    else:
        configure_program_logging(started.loggers, started.disabled)
    if pin_cpu is not None:
        pin_to_cpu(pin_cpu)
    policy = LatencyPolicy.of(
        Goal.LATENCY if latency_mode else Goal.THROUGHPUT,
        keeps_awake=keep_awake,
        task_driver=task_driver,
        busy_poll_us=busy_poll_us,
        switch_interval_ms=switch_interval_ms,
    )
    switch_interval = policy.begin()
    jm_host, jm_port = parse_address(jobmanager, "--jobmanager")
    secret = load_or_create_secret(secret_file)
    advertised = None if advertise is None else parse_address(advertise, "--advertise")
    process = ProcessOptions(jm_host, jm_port, secret, parent_pid, GarbageCollectorTuning(gc_threshold), switch_interval)
    network = NetstackConfig(
        network_memory_bytes=parse_memory_size(network_memory, "--network-memory"),
        segment_size_bytes=parse_memory_size(segment_size, "--segment-size"),
        exclusive_buffers_per_channel=exclusive_buffers,
        floating_buffers_per_gate=floating_buffers,
        max_producers_per_gate=max_producers_per_gate,
        congestion_control=congestion_control,
        heartbeat_interval_s=heartbeat_interval_s,
        heartbeat_timeout_s=heartbeat_timeout_s,
        max_producer_memory_percent=producer_memory_percent,
        security=SecurityConfig.hmac(secret, authorities=() if advertise is None else (advertise,)),
    )
    config = TaskExecutorConfig(
        num_slots=slots,
        host=host,
        data_port=data_port,
        advertised=advertised,
        network=network,
        reconnect=ReconnectConfig(give_up_after_s=registration_timeout_s),
        cancellation=CancellationConfig(cancellation_interval / 1000, cancellation_timeout / 1000),
        task_scheduling=task_scheduling,
        latency=policy,
    )
    with policy.keeper() as keeper:
        run(process, config, keeper)


def run_command(arguments: list[str] | None = None) -> int:
    """Parse the command line (None: of this process) and run; the exit code.  Every error is one line."""
    try:
        app(arguments, prog_name=_PROGRAM, standalone_mode=False, default_map=task_manager_defaults(os.environ))
    except typer.TyperException as error:
        message = error.format_message()
    except (FlowletError, NetstackError, OSError) as error:
        message = str(error)
    else:
        return 0
    _complain(message)
    return _EXIT_FAILURE


def _complain(message: str) -> None:
    if sys.stderr is not None:  # print() would take standard output instead
        print(f"{_PROGRAM}: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201 - for the person who typed the command


def run(process: ProcessOptions, config: TaskExecutorConfig, keeper: KeepAwake | None = None) -> None:
    """Run until a signal comes, the parent dies, or the JobManager refuses us; ``keeper`` rests while a watched task is busy.

    Raises:
        FlowletError, NetstackError, OSError: it could not start or go on; the message is for people.
    """
    enter_program()  # after the options were read: packages that do that import parts of themselves late
    check_free_descriptors(NUM_DESCRIPTORS, "a TaskManager")
    keep_apart(STOP_SIGNALS)
    SHIPPED_FOLDERS.owns_process = True
    with SharedProcess(is_users_module) as shared, asyncio.Runner(loop_factory=UvLoop) as runner:
        if sys.stderr is not None:
            faulthandler.enable()  # after standard error is what it stays
        failure = runner.run(_Process(process, config, shared, keeper).run())
    if failure is not None:
        raise FlowletError(failure)


class _Process:
    """The life of the process on its loop."""

    def __init__(self, options: ProcessOptions, config: TaskExecutorConfig, shared: SharedProcess, keeper: KeepAwake | None = None) -> None:
        self._options = options
        self._shared = shared
        self._keeper = keeper
        self._config = config
        self._stop = asyncio.Event()
        self._failure: str | None = None
        self._num_signals = 0
        self._executor: TaskExecutor | None = None

    async def run(self) -> str | None:
        """Returns why it could not go on; None after a signal."""
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)
        parent_pid = self._options.parent_pid
        watch = None if parent_pid is None else ParentWatch(loop, parent_pid, self._parent_died)
        try:
            with serving_thread(loop), closing(EventLoopThread.adopt(loop, "flowlet-tm")) as event_loop:
                await self._serve(event_loop)
        finally:
            if watch is not None:
                watch.close()
        return self._failure

    async def _serve(self, event_loop: EventLoopThread) -> None:
        options, gc_tuning = self._options, self._options.gc_tuning

        def busy() -> None:  # the collector is tuned after the whole batch of deployments was taken in, not in the middle of it
            event_loop.loop.call_soon(gc_tuning.freeze)

        hooks = ProcessHooks(
            busy=busy,
            idle=gc_tuning.thaw,
            failed=self._failed,
            loaded=self._loaded,
            deploying=self._shared.before_deployment,
            ended=self._shared.after_task,
            heartbeat=self._shared.at_heartbeat,
        )
        executor = TaskExecutor(f"tm-{secrets.token_hex(4)}", self._config, event_loop, hooks)
        self._executor = executor
        async with RpcClient(options.jobmanager_host, options.jobmanager_port, options.secret) as rpc:
            try:
                address = await executor.start(rpc)
                if await self._registered_before_stop(executor):
                    self._announce(executor.tm_id, f"{address}")
                await self._stop.wait()  # waits for a signal; ended by it, or by the parent's death
            finally:
                await self._shut_down(executor)

    def _loaded(self, load: TaskLoad) -> None:
        if self._keeper is not None:
            self._keeper.rest(is_crowded=load.is_crowded)
        if self._options.switch_interval is not None:
            self._options.switch_interval.follow(load)

    async def _registered_before_stop(self, executor: TaskExecutor) -> bool:
        # waits for the JobManager; ended by a signal, or give_up_after_s
        registered = asyncio.create_task(executor.is_registered.wait(), name="registered")
        stopped = asyncio.create_task(self._stop.wait(), name="stopped")  # waits for a signal; ended by it, or by the registration
        # waits for the JobManager or a signal; ended by them
        done, pending = await asyncio.wait((registered, stopped), return_when=asyncio.FIRST_COMPLETED)
        for waiter in pending:
            waiter.cancel()
        await asyncio.gather(*pending, return_exceptions=True)  # waits for a cancelled task; ended by its next step
        return registered in done

    def _announce(self, tm_id: str, address: str) -> None:
        jobmanager = f"{self._options.jobmanager_host}:{self._options.jobmanager_port}"
        ready_line = f"TaskManager {tm_id} listening on {address}, registered at {jobmanager}"
        if not tell_program(ready_line):
            print(ready_line, flush=True)  # noqa: T201 - for the person or script that waits for it

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
        leave(_told_code(reason, self._failure))

    def _signalled(self, number: signal.Signals) -> None:
        self._num_signals += 1
        if self._executor is not None:
            self._executor.announce_end(f"it got {number.name}")
        if self._num_signals > 1:
            end_now(_told_code(f"{number.name} again", self._failure))
        _log.info("stopping", signal=number.name)
        self._stop.set()

    def _parent_died(self) -> None:
        _log.info("stopping: the parent process is gone")
        self._stop.set()

    def _failed(self, reason: str) -> None:
        _log.error("stopping", reason=reason)
        self._failure = self._failure or reason
        self._stop.set()


def _told_code(reason: str, failure: str | None) -> int:
    """The exit code, after the log was told why the process does not end as it should."""
    _log.warning("leaving the hard way", reason=reason)
    if failure is None:
        return 0
    _complain(failure)
    return _EXIT_FAILURE


def parse_memory_size(text: str, option: str) -> int:
    """Bytes of ``1048576``, ``1024k``, ``64m`` or ``1g``.

    Raises:
        ConfigError: it is something else; names the option.
    """
    number, unit = text.strip().lower().removesuffix("b"), ""
    if number[-1:] in _UNITS and number:
        number, unit = number[:-1], number[-1]
    if not number.isascii() or not number.isdigit():
        raise ConfigError(f"{option} is {text!r}, expected a number of bytes, or one with k, m or g, such as 64m")
    return int(number) * _UNITS[unit]

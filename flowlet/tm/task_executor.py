"""``TaskExecutor``: runs the tasks that the JobManager deploys, and reports their states and metrics.

Side:       loop.
Invariants: ``_tasks`` has exactly the tasks without a terminal state; ``_results`` has the blocking results of finished
            tasks that the JobManager has not released; when the JobManager is lost, all tasks are cancelled before the
            next registration; messages about unknown attempts are ignored, because those attempts have ended.
Source:     Flink ``TaskExecutor``.
Absent:     slots as objects (only the JobManager counts them), several network stacks.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import field, replace
from functools import partial

from flowlet.common.job_settings import CANCELLATION_TIMEOUT_OPTION
from flowlet.errors import FlowletError
from flowlet.messages import control_messages as messages
from flowlet.messages.execution_state import ExecutionState
from flowlet.rpc.requests import RpcGateway
from flowlet.shipping.job_file_cache import JobFileCache
from flowlet.tm.jobmanager_connection import JobManagerConnection, ReconnectConfig
from flowlet.tm.latency.latency_policy import LOOK_INTERVAL_S, BusyTasks, LatencyPolicy, TaskLoad
from flowlet.tm.process.process_model import TaskScheduling
from flowlet.tm.task import CancellationConfig, Task
from flowlet.tm.task_checkpointing import CheckpointServices, SnapshotPool
from flowlet.tm.task_deployment import blocking_results
from netstack.availability import run_all
from netstack.config import NetstackConfig
from netstack.environment import NetworkEnvironment
from netstack.ids import ConnectionID, ResultPartitionID
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.loop.background_call import close_in_background
from netstack.loop.eventloop import EventLoopThread

_log = LogLines(__name__)

_LOST_SESSION_GRACE_S = 5.0  # after it, cancelled tasks of a lost JobManager are named in the log
_LARGE_RESULTS_BYTES = 64 << 20  # the file system takes long to free larger files; not measured
# Threads that have nothing to do end within microseconds; one that writes may take as long as its file system.
_POOL_STOP_S = 0.1
_PART_TIMEOUT_S = 60.0  # of a part of a mebibyte; the request itself ends after 50


@dataclass(frozen=True, slots=True)
class TaskExecutorConfig:
    """Settings of a TaskManager.

    ``advertised``: host and port that peers dial, if they are not those of the data port.
    """

    num_slots: int = 1
    host: str = "127.0.0.1"
    data_port: int = 0
    advertised: tuple[str, int] | None = None
    network: NetstackConfig = field(default_factory=NetstackConfig)
    reconnect: ReconnectConfig = field(default_factory=ReconnectConfig)
    cancellation: CancellationConfig = field(default_factory=CancellationConfig)
    task_scheduling: TaskScheduling = TaskScheduling.NORMAL
    latency: LatencyPolicy = field(default_factory=LatencyPolicy)


@dataclass(frozen=True, slots=True)
class _Results:
    """The results that a finished task keeps for its consumers."""

    partitions: list[ResultPartitionID]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessHooks:
    """Callbacks into the process around a TaskManager; all on the loop thread."""

    busy: Callable[[], None] = lambda: None  # the first task was deployed
    idle: Callable[[], None] = lambda: None  # the last task has ended
    failed: Callable[[str], None] = lambda _reason: None  # this TaskManager cannot go on
    # At each look at watched tasks, and when the last one has ended.
    loaded: Callable[[TaskLoad], None] = lambda _load: None
    registered: Callable[[], None] = lambda: None  # the JobManager has accepted this TaskManager, again perhaps
    deploying: Callable[[str, str], None] = lambda _job, _task: None  # a task is about to be deployed
    ended: Callable[[str, str], None] = lambda _job, _task: None  # a task has ended, which was not reported yet
    heartbeat: Callable[[set[str]], None] = lambda _jobs: None  # a heartbeat is made; tasks of these jobs run


class TaskExecutor:
    """One TaskManager.  Threading: the loop thread.  Life cycle: ``start`` once, ``stop`` once."""

    def __init__(
        self, tm_id: str, config: TaskExecutorConfig, loop: EventLoopThread, hooks: ProcessHooks | None = None
    ) -> None:
        self.tm_id = tm_id
        self.loop = loop
        self.config = config
        self.is_registered = asyncio.Event()
        self._hooks = hooks or ProcessHooks()
        # Both configs can ask for polling; a loop that polls needs the watched tasks.
        policy = replace(config.latency, busy_poll_us=config.latency.busy_poll_us or config.network.busy_poll_us)
        self.network = NetworkEnvironment(replace(config.network, busy_poll_us=policy.busy_poll_us), loop)
        self.runs_light_tasks = policy.runs_light_tasks  # on the loop thread
        self._tasks: dict[bytes, Task] = {}
        self._results: dict[bytes, _Results] = {}  # by attempt
        self._has_lost_port = False  # and has said so
        self.busy_tasks = policy.busy_tasks()  # watches task threads, and may lower their priority
        self._poller = self.network.busy_poller
        self._next_look: asyncio.TimerHandle | None = None  # at the load of the tasks, while there are some
        self._snapshot_pool = SnapshotPool(f"snapshots of {tm_id}")
        self.checkpoints = CheckpointServices(self._snapshot_pool)
        self.files = JobFileCache()
        self._is_stopping = False
        self._rpc: RpcGateway | None = None  # from ``start`` on
        self._connection: JobManagerConnection | None = None
        self._session: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<TaskExecutor {self.tm_id}, {len(self._tasks)} tasks, {self._connection!r}>"

    async def start(self, rpc: RpcGateway) -> ConnectionID:
        """Open the data port and start to register; return the data port's address.  The caller closes ``rpc``.

        Raises:
            netstack.errors.ConfigError: the address is not a loopback address.
            OSError: the address cannot be bound.
        """
        config, self._rpc = self.config, rpc
        address = await self.network.start(config.host, config.data_port)
        host, port = config.advertised or (address.host, address.port)
        registration = messages.RegisterTaskManager(self.tm_id, config.num_slots, host, port, os.getpid())
        self._connection = JobManagerConnection(rpc, registration, self, config.reconnect)
        self._session = asyncio.create_task(self._connection.run(), name=f"session of {self.tm_id}")
        self._session.add_done_callback(self._session_ended)
        return address

    def _session_ended(self, session: asyncio.Task[None]) -> None:
        if not session.cancelled() and (error := session.exception()) is not None:
            self._hooks.failed(str(error) or type(error).__name__)

    async def stop(self, timeout_s: float) -> list[Task]:
        """Cancel all tasks and close everything; return the tasks that did not end within ``timeout_s``."""
        self._is_stopping = True
        stuck = await self._cancel_all(timeout_s)
        if self._session is not None:  # after the tasks, whose last states go through it
            self._session.cancel()
            # waits for the cancelled session; ended by its next steps
            await asyncio.gather(self._session, return_exceptions=True)
        if not self._snapshot_pool.close(_POOL_STOP_S):
            _log.warning("a checkpoint is still being written; its thread ends after that", tm=self.tm_id)
        await close_in_background(self.files.close, f"files of {self.tm_id}")
        await self.network.close()
        return stuck

    def announce_end(self, reason: str) -> None:
        """Tell the JobManager why this TaskManager is about to end: it is the cause of failure for the jobs that lose
        tasks here.
        """
        if self._connection is not None:
            self._connection.send(messages.TaskManagerEnding(reason))

    async def _cancel_all(self, timeout_s: float) -> list[Task]:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for task in tasks:
                    await task.ended.wait()
        for task in tasks:
            if task.ended.is_set():
                task.join(timeout_s=0.1)
        return [task for task in tasks if not task.ended.is_set()]

    # ---------------------------------------------------------------- the session's listener

    def registered(self, jm_id: str) -> None:
        """Note that the JobManager has accepted the registration."""
        _log.info("registered", tm=self.tm_id, jobmanager=jm_id)
        self.is_registered.set()
        self._hooks.registered()

    def handle(self, message: messages.ToTaskManager) -> None:
        """Carry out an order; an order for an attempt that is unknown here is ignored."""
        match message:
            case messages.TaskDeploymentDescriptor():
                self._deploy(message)
            case messages.ReleaseResults(attempt=attempt):
                # Of a finished task: consumers have them, or want others.
                results = self._results.pop(attempt, None)
                if results is not None:
                    self._release(results)
            case messages.ToTask(attempt=attempt) if attempt in self._tasks:
                self._tasks[attempt].handle(message)

    def _deploy(self, descriptor: messages.TaskDeploymentDescriptor) -> None:
        if descriptor.attempt in self._tasks:
            _log.warning("an attempt was deployed twice; the second one is ignored", task=descriptor.task_name)
            return
        # The session goes on until the tasks have ended.  Nobody would cancel this one; the JobManager hears of its end
        # with that of the session.
        if self._is_stopping:
            _log.info("not deployed: this TaskManager stops", job=descriptor.job_name, task=descriptor.task_name)
            return
        task = Task(descriptor, self)
        self._hooks.deploying(descriptor.job_name, task.name)
        if not self._tasks:
            self._hooks.busy()
            if self.busy_tasks is not None:
                self._look_later(self.busy_tasks)
        # Before the start: a thread that the system refuses fails the task at once, which looks here.
        self._tasks[task.attempt] = task
        _log.info("deploying", job=descriptor.job_name, task=task.name)
        task.start()

    def _release(self, results: "_Results") -> None:
        manager = self.network.partition_manager
        releases = [partial(manager.release, each, None) for each in results.partitions]
        if results.num_bytes >= _LARGE_RESULTS_BYTES:
            with suppress(FlowletError):  # there is no thread for it
                self._snapshot_pool.execute(lambda: run_all(releases))
                return
        run_all(releases)

    def heartbeat(self) -> messages.TaskManagerHeartbeat:
        """Make the heartbeat, with the metrics of all tasks."""
        jobs = {task.descriptor.job_name for task in self._tasks.values()}
        self._hooks.heartbeat(jobs)
        self._end_without_port(jobs)
        for task in self._tasks.values():
            task.check_thread()
        return messages.TaskManagerHeartbeat(
            self.tm_id, {attempt: task.metrics() for attempt, task in self._tasks.items()}
        )

    def _end_without_port(self, jobs: set[str]) -> None:
        """End this TaskManager if its data port is gone: it would go on to take tasks whose results nobody can read."""
        if self.network.has_lost_port and not self._has_lost_port:
            self._has_lost_port = True
            reason = (
                "its data port is gone: a function has closed or replaced file descriptors that are not its own; "
                f"jobs that run here: {', '.join(sorted(jobs)) or 'none'}"
            )
            self.announce_end(reason)
            self._hooks.failed(reason)

    async def session_lost(self, reason: str) -> None:
        """Cancel all tasks: the JobManager has failed their jobs.

        Returns when they have ended: until then their slots are not free.
        """
        self.is_registered.clear()
        for task in await self._cancel_all(_LOST_SESSION_GRACE_S):
            _log.warning(
                "a task of a lost JobManager holds up the next registration", task=task.describe_stuck(), reason=reason
            )
            await task.ended.wait()  # waits for a stuck task; ended by its watchdog
        # Only now: tasks read results until they end, and one that finishes before it hears of the cancel leaves its
        # own.
        all_results, self._results = self._results, {}
        for results in all_results.values():
            self._release(results)

    # ---------------------------------------------------------------- the tasks' reports

    def report(self, task: Task, change: messages.TaskStateChanged) -> None:
        """Send a new state of a task to the JobManager; keep the results of a task that has ended, if it has some."""
        if change.state.is_terminal:
            self._hooks.ended(task.descriptor.job_name, task.name)
        if self._connection is not None:
            self._connection.send(change)
        if not change.state.is_terminal:
            return
        if change.state is ExecutionState.FINISHED and (partitions := blocking_results(task.descriptor)):
            num_bytes = 0 if change.metrics is None else change.metrics.num_bytes_out
            self._results[task.attempt] = _Results(partitions, num_bytes)
        _log.info("task ended", job=task.descriptor.job_name, task=task.name, state=change.state.name)
        del self._tasks[task.attempt]
        if not self._tasks:
            self._hooks.idle()
            if self._next_look is not None:
                self._next_look.cancel()
                self._loaded(TaskLoad())

    def _look_later(self, busy_tasks: BusyTasks) -> None:
        self._next_look = self.loop.loop.call_later(LOOK_INTERVAL_S, self._look, busy_tasks)

    def _look(self, busy_tasks: BusyTasks) -> None:
        self._loaded(busy_tasks.look())
        self._look_later(busy_tasks)

    def _loaded(self, load: TaskLoad) -> None:
        self._hooks.loaded(load)
        if self._poller is not None:
            self._poller.hold(is_held=load.is_crowded)

    def send(self, message: messages.FromTask) -> None:
        """Send a message of a task to the JobManager; on the loop thread."""
        if self._connection is not None and message.attempt in self._tasks:
            self._connection.send(message)

    def stuck(self, task: Task, report: messages.TaskStuck) -> None:
        """End the process: a cancelled task did not end within the fatal timeout."""
        place = "" if report.operator is None else f" in operator {report.operator!r}"
        seconds = report.waited_ms / 1000
        reason = (
            f"task {task.name!r} of job {task.descriptor.job_name!r} did not end within {seconds:g} s after it was "
            f"cancelled, which is {CANCELLATION_TIMEOUT_OPTION}; it stands{place} in\n{report.stack}"
        )
        self.announce_end(reason)
        self._hooks.failed(reason)

    def fetch_part(self, digest: bytes) -> bytes:
        """Fetch the content of a part of a shipped file from the JobManager; on a task's thread."""
        assert self._rpc is not None, "tasks come after start()"
        answer = self.loop.submit(self._rpc.request("GET", f"/files/{digest.hex()}"))
        return answer.result(_PART_TIMEOUT_S).raise_for_status().body

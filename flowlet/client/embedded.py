"""A cluster of its own for one program: a JobManager in this process, TaskManagers as children or in this process, too.

Side:       shared.
Invariants: whatever way the program ends, no child, thread, socket or file stays: ``close``, else at exit, else
            (killed) the children notice that their parent is gone.  A child that dies before is replaced
            (``ChildSupervisor``).  The secret is made for this cluster and is readable by this user alone.
Source:     Flink ``MiniCluster`` as used by ``LocalExecutor``; processes because of the interpreter lock.
"""

import asyncio
import errno
import os
import secrets
import shutil
import socket
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flowlet.client.child_supervisor import ChildSupervisor, RespawnPolicy
from flowlet.client.children import OutputForwarder, TaskManagerOptions
from flowlet.client.fork_server_client import ForkServer
from flowlet.client.program.interrupts import DeferredSignals
from flowlet.client.program.user_frames import install_exception_hook
from flowlet.client.python_interpreter import checked_interpreter, program_start
from flowlet.client.remote import ClusterClient, JobManagerApi
from flowlet.common.job_status import JobStatus
from flowlet.errors import ClosedOutputError, ConfigError, FlowletError, JobExecutionError
from flowlet.jm.job_manager import JobManager
from flowlet.jm.job_manager_config import JobManagerConfig
from flowlet.logs import configure_embedded_logging
from flowlet.rpc.auth import SECRET_BYTES
from flowlet.rpc.local_rpc import PipeRpc
from flowlet.shipping.bundle_maker import NeededCode
from flowlet.tm.process.process_model import NUM_DESCRIPTORS, check_free_descriptors
from netstack.late import dataclass, import_many
from netstack.log_lines import LogLines
from netstack.loop.eventloop import EventLoopThread

if TYPE_CHECKING:
    from flowlet.tm.task_executor import TaskExecutor, TaskExecutorConfig

_log = LogLines(__name__)

_EXIT_CODE_S: Final = 0.5  # a process closes its connections some milliseconds before its exit code can be had
_EXIT_CODE_POLL_S: Final = 0.01
_DESCRIPTORS_OF_CHILD: Final = 8  # its pipes, its end, its connections
_HOST: Final = "127.0.0.1"
_READY_TIMEOUT_S: Final = 60.0  # a TaskManager needs under a second; a loaded machine needs more
_STOP_TASKS_S: Final = 1.5
_STOP_EXECUTOR_S: Final = 5.0  # for a TaskManager in this process and its connections, which linger a second
_STOP_JOB_MANAGER_S: Final = 5.0  # it promises 2 s


@dataclass(frozen=True, slots=True)
class EmbeddedTarget:
    """A new cluster for one job; it ends when the job is closed.

    ``in_process``: everything runs in this process, so that a debugger works.  ``num_task_managers`` None: one in this
    process, else as many as there are cores, but not more than ``parallelism``.  ``checkpoint_secret``: of the
    manifests of checkpoints; None: a new one, for this cluster alone.
    """

    parallelism: int = 1
    num_task_managers: int | None = None
    in_process: bool = True
    checkpoint_secret: bytes | None = field(default=None, repr=False)
    python: str | None = None  # the interpreter of TaskManagers that are children; None: this one

    @property
    def needed_code(self) -> NeededCode:
        """Children find the program's modules, but have a main module of their own."""
        return NeededCode.NOTHING if self.in_process else NeededCode.MAIN

    def open(self, needed_slots: int) -> ClusterClient:
        """Start the cluster; returns when its TaskManagers are registered.

        Raises:
            FlowletError: a TaskManager could not be started.
        """
        num_task_managers = self.num_task_managers
        if num_task_managers is None:
            num_task_managers = 1 if self.in_process else min(self.parallelism, len(os.sched_getaffinity(0)))
        if num_task_managers < 1:
            raise ConfigError(f"num_task_managers is {num_task_managers}, it must be 1 or more")
        slots = -(-needed_slots // num_task_managers)
        return EmbeddedCluster.start(
            num_task_managers,
            slots,
            in_process=self.in_process,
            checkpoint_secret=self.checkpoint_secret,
            python=self.python,
        )


class EmbeddedCluster(ClusterClient):
    """A running embedded cluster and the client of it.

    Threading and life cycle: as ``ClusterClient``; ``close`` cancels running jobs and ends everything, within two
    seconds as a rule.
    """

    outlives_program = False

    def __init__(
        self, loop: EventLoopThread, rpc: PipeRpc, job_manager: JobManager, address: tuple[str, int], secret: bytes
    ) -> None:
        super().__init__(loop, rpc, secret)
        self.host, self.port = address
        self.task_executors: list[TaskExecutor] = []  # those in this process
        self._job_manager = job_manager
        self._forwarder: OutputForwarder | None = None
        self._supervisor: ChildSupervisor | None = None  # of the TaskManagers that are children
        self._fork_server: ForkServer | None = None  # from which they are forked
        self._folder: Path | None = None  # with the secret file of the children

    @classmethod
    def start(
        cls,
        num_task_managers: int,
        num_slots: int,
        *,
        in_process: bool,
        config: "TaskExecutorConfig | None" = None,
        checkpoint_secret: bytes | None = None,
        python: str | None = None,
    ) -> "EmbeddedCluster":
        """Start a cluster whose TaskManagers, ``num_slots`` slots each, are registered; ``config`` is for TaskManagers
        in this process alone.

        ``checkpoint_secret``: of the manifests of checkpoints; None: a new one, for this cluster alone.  ``python``:
        the interpreter of children; None: this one.

        Raises:
            FlowletError: a TaskManager could not be started.
        """
        num_children = 0 if in_process else num_task_managers
        check_free_descriptors(NUM_DESCRIPTORS + num_children * _DESCRIPTORS_OF_CHILD, "a local cluster")
        install_exception_hook()
        configure_embedded_logging()
        cluster = None
        try:
            with DeferredSignals():
                cluster = cls._start_empty(secrets.token_bytes(SECRET_BYTES), checkpoint_secret)
            if in_process:
                cluster._start_in_process(num_task_managers, num_slots, config)
            else:
                python = None if python is None else checked_interpreter(python)
                cluster._start_children(num_task_managers, num_slots, python)
        except BaseException:
            if cluster is not None:  # else it was interrupted before there was anything
                cluster.close()
            raise
        return cluster

    @classmethod
    def _start_empty(cls, secret: bytes, checkpoint_secret: bytes | None) -> "EmbeddedCluster":
        """Start a cluster without TaskManagers."""
        loop = EventLoopThread.start("flowlet-client")
        try:
            job_manager, rpc, address = loop.submit(_start_job_manager(secret, checkpoint_secret)).result(
                _READY_TIMEOUT_S
            )
        except BaseException:
            loop.close()
            raise
        return cls(loop, rpc, job_manager, address, secret)

    def pids(self) -> list[int]:
        """List the process ids of the TaskManagers that are children."""
        return [] if self._supervisor is None else self._supervisor.pids()

    def where_to_look(self, job_id: str) -> str:
        """Return the command that shows the job, or "in this process": without a file with the cluster's secret no
        command can ask.
        """
        if self._folder is None:
            return "in this process"
        return f"{super().where_to_look(job_id)} --secret-file {self._folder / 'secret'}"

    def after_job(self) -> None:
        """Show everything that the TaskManagers printed before the job ended."""
        if self._forwarder is not None:
            self._forwarder.drain()

    def output_failure(self) -> JobExecutionError | None:
        """Explain why something that the TaskManagers printed is not on standard output; None: all of it is."""
        error = None if self._forwarder is None else self._forwarder.failure
        if error is None:
            return None
        what = "what its tasks print cannot be written to standard output"
        if isinstance(error, BrokenPipeError):
            return ClosedOutputError(f"{what}: its reader has left")
        if isinstance(error, ValueError) or (isinstance(error, OSError) and error.errno == errno.EBADF):
            return ClosedOutputError(
                f"{what}: it is closed; start the program with one, such as >/dev/null, or use another sink"
            )
        return JobExecutionError(f"{what}: {error}")

    def _cancel_jobs(self) -> None:
        """Cancel the running jobs, because their output is not seen; on the forwarder's thread."""
        with suppress(FlowletError):  # the cluster closes, and cancels them
            self.begin(_cancel_all)

    def process_ends(self) -> list[str]:
        """Describe how children ended that should still run, one line each; waits a moment for a child whose connection
        has just broken off.
        """
        if self._supervisor is None:
            return []
        deadline = time.monotonic() + _EXIT_CODE_S
        while not (found := self._supervisor.ends()) and time.monotonic() < deadline:
            time.sleep(_EXIT_CODE_POLL_S)
        return found

    def stop_task_manager(self, index: int) -> None:
        """End one TaskManager of this process in such a way that the JobManager takes it for a crash; later ones move
        up.
        """
        executor = self.task_executors.pop(index)
        self.run(lambda: executor.stop(_STOP_TASKS_S))

    # ---------------------------------------------------------------- start

    def _start_in_process(self, num_task_managers: int, num_slots: int, config: "TaskExecutorConfig | None") -> None:
        # Here, as a program whose TaskManagers are children runs none of what they import.
        import_many("flowlet.tm.task_executor")
        from flowlet.tm.task import CancellationConfig
        from flowlet.tm.task_executor import TaskExecutorConfig
        from netstack.config import SecurityConfig

        # Nothing can end one of them alone: the process is the user's.
        config = config or TaskExecutorConfig(cancellation=CancellationConfig(fatal_timeout_s=0))
        config = replace(
            config, num_slots=num_slots, network=replace(config.network, security=SecurityConfig.hmac(self.secret))
        )
        self.run(partial(self._start_executors, num_task_managers, config))

    async def _start_executors(self, num_task_managers: int, config: "TaskExecutorConfig") -> None:
        from flowlet.tm.task_executor import ProcessHooks, TaskExecutor

        hooks = ProcessHooks(
            failed=lambda reason: _log.error("a TaskManager in this process cannot go on", reason=reason)
        )
        for _ in range(num_task_managers):
            executor = TaskExecutor(f"tm-{secrets.token_hex(4)}", config, self.loop, hooks)
            # Before anything is open: a caller that is interrupted while it starts closes it.
            self.task_executors.append(executor)
            await executor.start(self._rpc)
        for executor in self.task_executors:
            try:
                async with asyncio.timeout(_READY_TIMEOUT_S):
                    await executor.is_registered.wait()
            except TimeoutError:
                name = f"TaskManager {executor.tm_id} of this process"
                raise FlowletError(f"{name} was not ready within {_READY_TIMEOUT_S:g} s") from None

    def _start_children(self, num_task_managers: int, num_slots: int, python: str | None) -> None:
        with DeferredSignals():
            self._folder = Path(tempfile.mkdtemp(prefix="flowlet-"))  # mode 0700
            secret_file = write_secret(self._folder / "secret", self.secret)
            program_file = self._folder / "program.json"
            program_file.write_text(program_start(python).to_json(), encoding="ascii")
            self._forwarder = OutputForwarder(self._cancel_jobs)
            self._fork_server = ForkServer(python, program_file, self._forwarder, self._connect_child)
            self._supervisor = ChildSupervisor(self._forwarder, RespawnPolicy(), self._fork_server.launch)
        self._fork_server.wait_ready(time.monotonic() + _READY_TIMEOUT_S)
        cpus = sorted(os.sched_getaffinity(0))
        pins = cpus if num_task_managers == len(cpus) else [None] * num_task_managers
        address = f"{self.host}:{self.port}"
        options = [TaskManagerOptions(address, secret_file, program_file, num_slots, pin_cpu) for pin_cpu in pins]
        self._supervisor.start(options, _READY_TIMEOUT_S)

    def _connect_child(self, end: socket.socket) -> None:
        """Let the JobManager serve the child that has the other end."""
        local = self._job_manager.local
        self.loop.execute_threadsafe(local.begin_pipe, end, "a TaskManager of this program")

    # ---------------------------------------------------------------- end

    def _shut_down(self) -> None:
        with ExitStack() as steps:  # the last one first; each is taken whatever the others do
            if self._folder is not None:
                steps.callback(shutil.rmtree, self._folder, ignore_errors=True)
            steps.callback(self._stop_children)
            steps.callback(super()._shut_down)
            steps.callback(self._stop_executors)
            steps.callback(lambda: self._finish("the JobManager", self._job_manager.close(), _STOP_JOB_MANAGER_S))
            if self._supervisor is not None:  # a TaskManager may end because its JobManager does
                steps.callback(self._supervisor.stop_replacing)

    def _stop_executors(self) -> None:
        for executor in self.task_executors:
            stuck = self._finish(f"the TaskManager {executor.tm_id}", executor.stop(_STOP_TASKS_S), _STOP_EXECUTOR_S)
            for task in stuck or ():
                _log.warning("a task does not end; its thread stays", task=task.describe_stuck())

    def _stop_children(self) -> None:
        if self._supervisor is not None:
            self._supervisor.stop()
        elif self._forwarder is not None:  # it was interrupted, or no server could be started
            self._forwarder.close()
        if self._fork_server is not None:
            self._fork_server.close()


async def _cancel_all(api: JobManagerApi) -> None:
    for job in await api.list_jobs():
        if not JobStatus[job["state"]].is_globally_terminal_state():
            await api.cancel(job["jid"])


async def _start_job_manager(
    secret: bytes, checkpoint_secret: bytes | None
) -> tuple[JobManager, PipeRpc, tuple[str, int]]:
    job_manager = JobManager(JobManagerConfig(secret=secret, checkpoint_secret=checkpoint_secret))
    address = await job_manager.start(_HOST, 0, expects_strangers=False)
    ours, theirs = socket.socketpair()
    job_manager.local.begin_pipe(theirs, "this program")
    return job_manager, await PipeRpc.open(ours, f"{address[0]}:{address[1]}"), address


def write_secret(path: Path, secret: bytes) -> Path:
    """Write a new file that this user alone can read; returns its path."""
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w", encoding="ascii"
    ) as file:
        file.write(secret.hex() + "\n")
    return path

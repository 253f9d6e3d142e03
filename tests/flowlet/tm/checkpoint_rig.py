"""One task of a TaskManager with checkpoints, a storage that can be held and broken, and the messages to the
JobManager.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.stream_operator import StreamOperator
from flowlet.common.job_settings import CheckpointSettings, JobSettings
from flowlet.messages.control_messages import (
    CheckpointAcknowledged,
    CheckpointDeclined,
    CheckpointReport,
    FailureInfo,
    FinalCheckpointAwaited,
    FromTask,
    StateHandle,
    TaskDeploymentDescriptor,
    TaskStateChanged,
    TriggerCheckpoint,
)
from flowlet.messages.execution_state import ExecutionState
from flowlet.serde.deploy_blobs import dump_chain
from flowlet.storage.checkpoint_storage import CheckpointStorage
from flowlet.tm.task import Task
from flowlet.tm.task_checkpointing import CheckpointServices, SnapshotPool
from netstack.config import NetstackConfig
from netstack.environment import NetworkEnvironment
from netstack.loop.eventloop import EventLoopThread
from tests.flowlet.tm.recording_executor import RecordingExecutor
from tests.waiting import PATIENCE_S

JOB_ID, VERTEX_ID = "ab" * 16, "cd" * 16
ATTEMPT = bytes(39) + b"\x02"
SETTINGS = JobSettings(checkpoints=CheckpointSettings(interval_ms=1000, directory="memory"))


class MemoryStorage(CheckpointStorage):
    """Keeps states in memory; ``release`` lets writes go on, ``error`` fails them."""

    def __init__(self) -> None:
        super().__init__("/in/memory", JOB_ID)
        self.opened_with: list[tuple[str, str]] = []
        self.states: dict[str, bytes] = {}
        self.reading: list[str] = []  # the names of the threads that read
        self.error: Exception | None = None
        self.is_writing, self.release = threading.Event(), threading.Event()
        self.release.set()

    def open(self, url: str, job_id: str) -> CheckpointStorage:
        self.opened_with.append((url, job_id))
        return self

    def write_state(self, checkpoint_id: int, name: str, content: bytes) -> StateHandle:
        self.is_writing.set()
        assert self.release.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        path = f"chk-{checkpoint_id}/{name}"
        assert path not in self.states, f"{path} was written before"
        self.states[path] = content
        return StateHandle(len(content), b"", path)

    def read_state(self, handle: StateHandle) -> bytes:
        self.reading.append(threading.current_thread().name)
        if self.error is not None:
            raise self.error
        assert handle.path is not None
        return self.states[handle.path]


class Rig:
    """A network, a loop, a pool, a storage; and everything that was reported."""

    def __init__(self, network: NetworkEnvironment, loop: EventLoopThread, pool: SnapshotPool) -> None:
        self.loop = loop
        self.storage = MemoryStorage()
        self.reports: list[CheckpointReport] = []
        self.changes: list[TaskStateChanged] = []
        self._changed = asyncio.Event()
        self.now_ns = 0
        self.services = CheckpointServices(pool, self.storage.open, lambda: self.now_ns)
        self.executor = RecordingExecutor(network, loop, self.services, self._task_changed, self._reported)
        self.tasks: list[Task] = []

    def send(self, message: FromTask) -> None:
        """Send the message as a task does, from any thread."""
        self.loop.execute_threadsafe(self._reported, message)

    def _reported(self, report: FromTask) -> None:
        assert isinstance(report, CheckpointAcknowledged | CheckpointDeclined | FinalCheckpointAwaited)
        self.reports.append(report)
        self._changed.set()

    def _task_changed(self, _task: Task, change: TaskStateChanged) -> None:
        self.changes.append(change)
        self._changed.set()

    @property
    def states(self) -> list[ExecutionState]:
        return [change.state for change in self.changes]

    @property
    def failure(self) -> FailureInfo:
        failure = self.changes[-1].failure
        assert failure is not None
        return failure

    def task(self, *operators: StreamOperator, **fields: Any) -> Task:
        blob = dump_chain([ChainedOperator(operator, index - 1) for index, operator in enumerate(operators)], "v")
        descriptor = TaskDeploymentDescriptor(
            JOB_ID, "job", VERTEX_ID, "t", 0, 1, 128, ATTEMPT, blob, [], [], settings=SETTINGS
        )
        task = Task(msgspec.structs.replace(descriptor, **fields), self.executor)
        self.tasks.append(task)
        return task

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that a report makes true."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def running(self, *operators: StreamOperator, **fields: Any) -> Task:
        task = self.task(*operators, **fields)
        task.start()
        await self.until(lambda: ExecutionState.RUNNING in self.states)
        return task

    async def answer(self, task: Task, checkpoint_id: int) -> CheckpointReport:
        """Trigger a checkpoint; return the task's answer."""
        num_before = len(self.reports)
        task.handle(TriggerCheckpoint(task.attempt, checkpoint_id, 0))
        await self.until(lambda: len(self.reports) > num_before)
        return self.reports[-1]

    async def passed(self) -> None:
        """Wait until all calls that other threads have posted to the loop so far have run."""
        is_passed = asyncio.Event()
        self.loop.execute_threadsafe(is_passed.set)
        await is_passed.wait()

    async def cancelled(self, task: Task) -> None:
        task.cancel()
        await ended(task)


async def ended(task: Task) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await task.ended.wait()
    task.join(PATIENCE_S)


@asynccontextmanager
async def checkpoint_rig() -> AsyncIterator[Rig]:
    """Provide a rig; no task, thread or buffer is left at the end."""
    loop = EventLoopThread.adopt(asyncio.get_running_loop(), "test")
    network = NetworkEnvironment(NetstackConfig(network_memory_bytes=4 * 1024 * 1024), loop)
    pool = SnapshotPool("snapshots of tm-1")
    rig = Rig(network, loop, pool)
    try:
        yield rig
    finally:
        rig.storage.release.set()
        for task in rig.tasks:
            if task.state is not ExecutionState.CREATED:
                await rig.cancelled(task)
        assert pool.close(PATIENCE_S)
        assert network.buffer_pool.num_available == network.buffer_pool.num_total
        await network.close()
        loop.close()

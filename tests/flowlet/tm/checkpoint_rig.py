"""A TaskManager whose tasks take checkpoints, and a storage that can be held and broken."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from flowlet.common.job_settings import CheckpointSettings, JobSettings
from flowlet.messages import control_messages as messages
from flowlet.messages.execution_state import ExecutionState
from flowlet.messages.job_messages import StateHandle
from flowlet.storage.checkpoint_storage import CheckpointStorage
from flowlet.tm.task import Task
from flowlet.tm.task_checkpointing import CheckpointServices, SnapshotPool
from netstack.config import NetstackConfig
from netstack.environment import NetworkEnvironment
from netstack.loop.eventloop import EventLoopThread
from tests.flowlet.tm.recording_executor import JOB_ID, RecordingExecutor
from tests.waiting import PATIENCE_S

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


class Rig(RecordingExecutor):
    """Tasks with checkpoints in a storage in memory."""

    settings = SETTINGS

    def __init__(self, network: NetworkEnvironment, loop: EventLoopThread, pool: SnapshotPool) -> None:
        self.storage = MemoryStorage()
        self.now_ns = 0
        super().__init__(network, loop, CheckpointServices(pool, self.storage.open, lambda: self.now_ns))

    def send_threadsafe(self, message: messages.FromTask) -> None:
        """Send the message as a task does, from any thread."""
        self.loop.execute_threadsafe(self.send, message)

    async def answer(self, task: Task, checkpoint_id: int) -> Any:
        """Trigger a checkpoint; return the task's answer."""
        num_before = len(self.reports)
        task.handle(messages.TriggerCheckpoint(task.attempt, checkpoint_id, 0))
        await self.until(lambda: len(self.reports) > num_before)
        return self.reports[-1]

    async def passed(self) -> None:
        """Wait until all calls that other threads have posted to the loop so far have run."""
        is_passed = asyncio.Event()
        self.loop.execute_threadsafe(is_passed.set)
        await is_passed.wait()


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
        for task in rig.made:
            if task.state is not ExecutionState.CREATED:
                await rig.cancelled(task)
        assert pool.close(PATIENCE_S)
        assert network.buffer_pool.num_available == network.buffer_pool.num_total
        await network.close()
        loop.close()

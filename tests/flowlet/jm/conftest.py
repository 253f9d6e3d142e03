"""The JobManager of a test, with its client and its TaskManagers, all of which are closed at the end."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest_asyncio

from flowlet.jm.dispatcher import Dispatcher
from flowlet.jm.job_manager import JobManager
from flowlet.jm.job_manager_config import JobManagerConfig
from flowlet.rpc.http import RpcClient
from flowlet.rpc.requests import RpcResponse
from tests.cluster_commands import cluster_starter, start
from tests.flowlet.jm.scripted_task_manager import SECRET, ScriptedTaskManager

__all__ = ["cluster_starter", "start"]

Connect = Callable[..., Awaitable[ScriptedTaskManager]]


class Cluster:
    """A JobManager on a free port, and those that have connected to it."""

    job_manager: JobManager
    address: tuple[str, int]
    client: RpcClient

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def start(self, **options: float) -> None:
        """Start the JobManager, with ``options`` of its config."""
        defaults: dict[str, float] = {"shutdown_timeout_s": 0.01}
        self.job_manager = JobManager(JobManagerConfig(SECRET, **(defaults | options)))  # type: ignore[arg-type]  # ints among the floats
        self._stack.push_async_callback(self.job_manager.close)
        self.address = await self.job_manager.start()
        self.client = await self._stack.enter_async_context(RpcClient(*self.address, SECRET))

    @property
    def dispatcher(self) -> Dispatcher:
        return self.job_manager.dispatcher

    async def request(self, method: str, path: str, body: bytes = b"") -> RpcResponse:
        return await self.client.request(method, path, body=body)

    async def open(self, tm_id: str = "tm-1") -> ScriptedTaskManager:
        """Connect a TaskManager that has not registered."""
        task_manager = await ScriptedTaskManager.open(self.address, tm_id)
        self._stack.push_async_callback(task_manager.close)
        return task_manager

    async def connect(self, tm_id: str = "tm-1", slots: int = 1, port: int = 6000) -> ScriptedTaskManager:
        """Connect a TaskManager, and register it."""
        task_manager = await self.open(tm_id)
        await task_manager.register(slots, port)
        return task_manager


@pytest_asyncio.fixture
async def unstarted() -> AsyncIterator[Cluster]:
    """Provide a cluster that the test starts with its own options."""
    async with AsyncExitStack() as stack:
        yield Cluster(stack)


@pytest_asyncio.fixture
async def cluster(unstarted: Cluster) -> Cluster:
    """Start a JobManager with the usual limits."""
    await unstarted.start()
    return unstarted

"""Fixtures of the JobManager's tests: a JobManager on a free port, and clients and TaskManagers that are closed at the
end.
"""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest_asyncio

from flowlet.jm.job_manager import JobManager
from flowlet.jm.job_manager_config import JobManagerConfig
from flowlet.rpc.http import RpcClient
from tests.flowlet.jm.scripted_task_manager import SECRET, ScriptedTaskManager

StartJobManager = Callable[..., Awaitable[tuple[str, int]]]
Connect = Callable[..., Awaitable[ScriptedTaskManager]]


@pytest_asyncio.fixture
async def job_managers() -> AsyncIterator[list[JobManager]]:
    """Provide the list of JobManagers that a test starts; close them last."""
    started: list[JobManager] = []
    yield started
    for job_manager in started:
        await job_manager.close()


@pytest_asyncio.fixture
async def start_job_manager(job_managers: list[JobManager]) -> StartJobManager:
    async def start(**options: float) -> tuple[str, int]:
        defaults: dict[str, float] = {"shutdown_timeout_s": 0.01}
        job_manager = JobManager(JobManagerConfig(SECRET, **(defaults | options)))  # type: ignore[arg-type]  # ints among the floats
        job_managers.append(job_manager)
        return await job_manager.start()

    return start


@pytest_asyncio.fixture
async def address(start_job_manager: StartJobManager) -> tuple[str, int]:
    """Start a JobManager with the usual limits; return its address."""
    return await start_job_manager()


@pytest_asyncio.fixture
async def client(address: tuple[str, int]) -> AsyncIterator[RpcClient]:
    async with RpcClient(*address, SECRET) as client:
        yield client


@pytest_asyncio.fixture
async def connect(job_managers: list[JobManager]) -> AsyncIterator[Connect]:
    """Connects a registered TaskManager; takes what ``ScriptedTaskManager.connect`` takes."""
    connected: list[ScriptedTaskManager] = []

    async def connect(*arguments: object, **options: object) -> ScriptedTaskManager:
        task_manager = await ScriptedTaskManager.connect(*arguments, **options)  # type: ignore[arg-type]  # as connect() takes them
        connected.append(task_manager)
        return task_manager

    yield connect
    for task_manager in connected:
        await task_manager.close()

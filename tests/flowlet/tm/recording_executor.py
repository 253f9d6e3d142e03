"""A TaskManager without a session, which only notes the messages of its tasks."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.stream_operator import StreamOperator
from flowlet.common.job_settings import JobSettings
from flowlet.messages import control_messages as messages
from flowlet.messages.execution_state import ExecutionState
from flowlet.serde.deploy_blobs import dump_chain
from flowlet.shipping.job_file_cache import JobFileCache
from flowlet.tm.task import Task
from flowlet.tm.task_checkpointing import CheckpointServices, SnapshotPool
from flowlet.tm.task_executor import TaskExecutor, TaskExecutorConfig
from netstack.environment import NetworkEnvironment
from netstack.loop.eventloop import EventLoopThread
from tests.waiting import PATIENCE_S

JOB_ID, VERTEX_ID = "ab" * 16, "cd" * 16
ATTEMPT = bytes(39) + b"\x02"


class RecordingExecutor(TaskExecutor):
    """Makes tasks, and notes their reports; it is neither started nor stopped."""

    settings = JobSettings()

    def __init__(
        self, network: NetworkEnvironment, loop: EventLoopThread, checkpoints: CheckpointServices | None = None
    ) -> None:
        self.tm_id = "tm-1"
        self.network = network
        self.loop = loop
        self.config = TaskExecutorConfig()
        self.runs_light_tasks = False
        self.busy_tasks = None
        self.checkpoints = checkpoints or CheckpointServices(SnapshotPool("none"))
        self.files = JobFileCache()
        self.changes: list[messages.TaskStateChanged] = []
        self.reports: list[Any] = []  # all messages but changes of the state
        self.stuck_tasks: list[Task] = []
        self.made: list[Task] = []
        self._has_heard = asyncio.Event()

    def report(self, task: Task, change: messages.TaskStateChanged) -> None:
        self.changes.append(change)
        self._has_heard.set()

    def send(self, message: messages.FromTask) -> None:
        self.reports.append(message)
        self._has_heard.set()

    def stuck(self, task: Task, report: messages.TaskStuck) -> None:
        self.stuck_tasks.append(task)
        self._has_heard.set()

    @property
    def states(self) -> list[ExecutionState]:
        return [change.state for change in self.changes]

    @property
    def failure(self) -> messages.FailureInfo:
        """The reason why the last task has failed."""
        assert self.changes[-1].state is ExecutionState.FAILED
        failure = self.changes[-1].failure
        assert failure is not None
        return failure

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for something that a report makes true."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._has_heard.clear()
                await self._has_heard.wait()

    def task(self, *operators: StreamOperator, **fields: Any) -> Task:
        """Make a task of a chain; ``fields`` of its descriptor."""
        blob = dump_chain([ChainedOperator(operator, index - 1) for index, operator in enumerate(operators)], "v")
        descriptor = messages.TaskDeploymentDescriptor(
            JOB_ID, "job", VERTEX_ID, "t", 0, 1, 128, ATTEMPT, blob, [], [], settings=self.settings
        )
        self.made.append(Task(msgspec.structs.replace(descriptor, **fields), self))
        return self.made[-1]

    async def running(self, *operators: StreamOperator, **fields: Any) -> Task:
        task = self.task(*operators, **fields)
        task.start()
        await self.until(lambda: ExecutionState.RUNNING in self.states)
        return task

    async def run(self, *operators: StreamOperator, **fields: Any) -> Task:
        """Run a task to its end."""
        task = self.task(*operators, **fields)
        task.start()
        await ended(task)
        return task

    async def cancelled(self, task: Task) -> None:
        task.cancel()
        await ended(task)


async def ended(task: Task) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await task.ended.wait()
    task.join(PATIENCE_S)

"""A TaskManager without a session, which only notes the messages of its tasks."""

from collections.abc import Callable

from flowlet.messages.control_messages import FromTask, TaskStateChanged, TaskStuck
from flowlet.shipping.job_file_cache import JobFileCache
from flowlet.tm.task import Task
from flowlet.tm.task_checkpointing import CheckpointServices
from flowlet.tm.task_executor import TaskExecutor, TaskExecutorConfig
from netstack.environment import NetworkEnvironment
from netstack.loop.eventloop import EventLoopThread


class RecordingExecutor(TaskExecutor):
    """Hands on what ``Task`` tells its executor; it is neither started nor stopped."""

    def __init__(
        self,
        network: NetworkEnvironment,
        loop: EventLoopThread,
        checkpoints: CheckpointServices,
        on_change: Callable[[Task, TaskStateChanged], None],
        on_message: Callable[[FromTask], None],
        on_stuck: Callable[[Task, TaskStuck], None] = lambda _task, _report: None,
    ) -> None:
        self.tm_id = "tm-1"
        self.network = network
        self.loop = loop
        self.config = TaskExecutorConfig()
        self.runs_light_tasks = False
        self.busy_tasks = None
        self.checkpoints = checkpoints
        self.files = JobFileCache()
        self.on_change = on_change
        self.on_message = on_message
        self.on_stuck = on_stuck

    def report(self, task: Task, change: TaskStateChanged) -> None:
        self.on_change(task, change)

    def send(self, message: FromTask) -> None:
        self.on_message(message)

    def stuck(self, task: Task, report: TaskStuck) -> None:
        self.on_stuck(task, report)

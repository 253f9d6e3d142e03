"""``MiniCluster``: a whole cluster in one process, for tests and debuggers.

Side:       shared.
Invariants: ``close`` leaves no thread, socket or file behind.
Source:     Flink ``MiniCluster``.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import Self

from flowlet.client.embedded import EmbeddedCluster
from flowlet.client.executor import execute
from flowlet.client.remote import RemoteTarget
from flowlet.client.running_job import RunningJob
from flowlet.client.translate import check_fits_this_process, submit_to, translate
from flowlet.common.job_client import SubmittedJob
from flowlet.datastream.stream_execution_environment import StreamExecutionEnvironment
from flowlet.graph.job_graph import JobGraph
from flowlet.graph.stream_graph import StreamGraph
from flowlet.tm.task_executor import TaskExecutor, TaskExecutorConfig
from netstack.availability import run_all


class MiniCluster:
    """One JobManager and TaskManagers on one event loop thread; data between TaskManagers goes over real TCP.

    Example::

        with MiniCluster(num_task_managers=2) as cluster:
            env = cluster.environment()
            with env.from_collection([1, 2, 3]).map(lambda number: 2 * number).execute_and_collect() as results:
                assert sorted(results) == [2, 4, 6]

    Threading: any thread but the cluster's own.
    Life cycle: runs from creation until ``close`` or the end of ``with``.

    Args:
        num_task_managers: how many TaskManagers.
        slots_per_task_manager: how many slots each has.
        config: other settings of every TaskManager.
    """

    def __init__(
        self, num_task_managers: int = 2, slots_per_task_manager: int = 1, config: TaskExecutorConfig | None = None
    ) -> None:
        self._cluster = EmbeddedCluster.start(num_task_managers, slots_per_task_manager, in_process=True, config=config)
        self._num_slots = num_task_managers * slots_per_task_manager
        self._lock = threading.Lock()
        self._jobs: list[RunningJob] = []  # Guarded by _lock; all jobs that are not closed, and some closed ones.

    def __repr__(self) -> str:
        return (
            f"<MiniCluster at {self._cluster.host}:{self._cluster.port}, {len(self._cluster.task_executors)} "
            "TaskManagers>"
        )

    @property
    def target(self) -> RemoteTarget:
        """The address and secret for ``flowlet.client.executor.execute`` and other clients."""
        return RemoteTarget(self._cluster.host, self._cluster.port, secret=self._cluster.secret)

    @property
    def task_executors(self) -> list[TaskExecutor]:
        """The TaskManagers; call their methods on their loop only."""
        return list(self._cluster.task_executors)

    def environment(self) -> StreamExecutionEnvironment:
        """A new environment whose jobs run here, with as many subtasks as there are slots."""
        environment = StreamExecutionEnvironment(submit=self._submit)
        environment.set_parallelism(self._num_slots)
        return environment

    def _submit(
        self, stream_graph: StreamGraph, _address: object, _in_process: object, keep: Callable[[RunningJob], None]
    ) -> SubmittedJob:
        check_fits_this_process(stream_graph.settings.dependencies, "run the job without MiniCluster")
        return submit_to(self.target, stream_graph, translate(stream_graph), partial(self._keep_until_closed, keep))

    def execute(self, job_graph: JobGraph, keep: Callable[[RunningJob], None] | None = None) -> RunningJob:
        """Start a job; ``close`` ends it at the latest.  ``keep``: as of ``flowlet.client.executor.execute``.

        Raises:
            FlowletError: as ``flowlet.client.executor.execute``.
        """
        return execute(job_graph, self.target, keep=partial(self._keep_until_closed, keep))

    def _keep_until_closed(self, keep: Callable[[RunningJob], None] | None, job: RunningJob) -> None:
        with self._lock:
            self._jobs = [each for each in self._jobs if not each.client.is_closed] + [job]
        if keep is not None:
            keep(job)

    def stop_task_manager(self, index: int) -> None:
        """Stop one TaskManager; jobs with tasks there fail."""
        self._cluster.stop_task_manager(index)

    def close(self) -> None:
        """End all jobs and the cluster, even if one of them raises; idempotent."""
        with self._lock:
            jobs = self._jobs
            self._jobs = []
        run_all([*(job.close for job in jobs), self._cluster.close])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

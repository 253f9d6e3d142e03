"""Runs a program of the DataStream API on real TaskManager processes, and measures it.

Side:  any.
Job:   submitted as a user submits it, to a JobManager and TaskManagers that run as processes of their own, one slot
       each, each pinned to a core if there are as many cores.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.cluster import Cluster
from bench.jobs.checked import CheckedSink, Keep, Reports
from bench.load import ForeignLoad
from bench.report import ProcessUse
from flowlet.chain.stream_operator import StreamOperator
from flowlet.client.executor import execute
from flowlet.client.remote import RemoteTarget
from flowlet.client.running_job import RunningJob
from flowlet.client.translate import translate
from flowlet.common.job_client import SubmittedJob
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.datastream.data_stream import DataStream, DataStreamSink
from flowlet.graph.stream_graph import StreamGraph
from flowlet.graph.transformation import OperatorFactory

END_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True)
class Run:
    """One measured run of ours or of a peer."""

    rate: float  # records per second
    seconds: float
    foreign_cores: float
    details: dict[str, Any] = field(default_factory=dict)


# Adds a program to the environment; its sources and sinks write into the folder.
Build = Callable[[StreamExecutionEnvironment, Path], None]
# Asks the cluster about the job of this id.
Observe = Callable[[Cluster, str], dict[str, Any]]


def into_sink(
    stream: DataStream, folder: Path, keep: Keep, *, inspects_all: bool = False, in_chunks: bool = False
) -> None:
    """End a stream in sinks that check; ``in_chunks``: behind an operator on columns, whose results stay columns."""
    into_operator(
        stream, "checked sink", partial(CheckedSink, folder, keep, inspects_all=inspects_all, in_chunks=in_chunks)
    )


def into_operator(stream: DataStream, name: str, make: Callable[[], StreamOperator]) -> DataStreamSink:
    """End a stream in an operator that sees its records chunk by chunk.

    As ``sink_to`` does; the API has no sinks of one's own yet.
    """
    factory = OperatorFactory.of("bench.jobs.pipeline:made_operator", make=make)
    return DataStreamSink(stream._add(name, factory, stream.get_type()))


def made_operator(make: Callable[[], StreamOperator], *, name: str) -> StreamOperator:  # noqa: ARG001  # a factory's
    """Return the operator that ``make`` makes; the factory finds this function by its name."""
    return make()


@dataclass(frozen=True)
class Deployment:
    """The processes on which a program runs."""

    num_task_managers: int = 2
    task_manager_options: Sequence[str] = ()
    pins: bool = True  # each TaskManager to a core of its own, if there are as many

    def cluster(self, folder: Path) -> Cluster:
        """Return a cluster to be entered; logs and secret are in the folder."""
        options = self.task_manager_options
        return Cluster(folder, num_task_managers=self.num_task_managers, task_manager_options=options, pins=self.pins)


TWO_TASK_MANAGERS: Final = Deployment()


def _see_nothing(_cluster: Cluster, _job_id: str) -> dict[str, Any]:
    return {}


def run_program(
    build: Build,
    num_records: int,
    check: Callable[[Reports], None],
    deployment: Deployment,
    *,
    observe: Observe = _see_nothing,
) -> Run:
    """Run a program once in a fresh cluster, and check it; its parallelism is the number of TaskManagers.

    ``observe`` is called when the job has ended; its result is in the details.

    Raises:
        WrongOutputError: the output is wrong.
        JobExecutionError: the job failed.
    """
    with tempfile.TemporaryDirectory(prefix="flowlet-bench-") as name:
        folder = Path(name)
        with deployment.cluster(folder) as cluster:
            submit = _Submit(cluster)
            environment = StreamExecutionEnvironment(submit=submit).set_parallelism(deployment.num_task_managers)
            build(environment, folder)
            before = [ProcessUse.of(tm.pid).cpu_s for tm in cluster.task_managers]
            with ForeignLoad() as load:
                environment.execute_async("bench")
                submit.jobs[0].wait(END_TIMEOUT_S)
            after = [ProcessUse.of(tm.pid) for tm in cluster.task_managers]
            tasks = task_metrics(submit.jobs[0])
            observed = observe(cluster, submit.jobs[0].job_id)
            environment.close()
        reports = Reports.read(folder)
    check(reports)
    details = {
        "cpu_s_per_tm": [new.cpu_s - old for new, old in zip(after, before, strict=True)],
        "rss_bytes_per_tm": [use.rss_bytes for use in after],
        "tasks": tasks,
        **observed,
    }
    return Run(num_records / reports.seconds, reports.seconds, load.cores, details)


@contextmanager
def running(cluster: Cluster, build: Callable[[StreamExecutionEnvironment], object]) -> Iterator[RunningJob]:
    """Start a program of one subtask per operator on a running cluster; it is cancelled at the end of the block."""
    submit = _Submit(cluster)
    with closing(StreamExecutionEnvironment(submit=submit).set_parallelism(1)) as environment:
        build(environment)
        environment.execute_async("bench")
        try:
            yield submit.jobs[0]
        finally:
            submit.jobs[0].cancel()


class _Submit:
    """Sends the jobs of an environment to a cluster, and remembers them."""

    def __init__(self, cluster: Cluster) -> None:
        host, _, port = cluster.address.rpartition(":")
        self._target = RemoteTarget(host, int(port), cluster.secret_file)
        self.jobs: list[RunningJob] = []

    def __call__(self, graph: StreamGraph, *_: object) -> SubmittedJob:
        self.jobs.append(execute(translate(graph), self._target))
        return SubmittedJob(self.jobs[-1], ())


def task_metrics(job: RunningJob) -> dict[str, Any]:
    """Return the counters of every subtask."""
    return {
        f"{vertex['name']} {subtask['subtask']}": subtask["metrics"]
        for vertex in job.metrics()["vertices"]
        for subtask in vertex["subtasks"]
    }

"""A job that could not be started, or that failed, leaves its environment usable: what runs next is what the user
means.
"""

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from flowlet.client.remote import JobManagerApi, RemoteTarget
from flowlet.client.running_job import RunningJob
from flowlet.common import Configuration, WatermarkStrategy
from flowlet.common.job_client import SubmittedJob
from flowlet.datastream import DataStream, StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink, FileSource, Sink, StreamFormat
from flowlet.errors import FlowletError, JobExecutionError, JobGraphError, JobSubmissionError
from flowlet.testing.mini_cluster import MiniCluster
from tests.waiting import PATIENCE_S

MakeEnvironment = Callable[[], StreamExecutionEnvironment]


@dataclass(frozen=True)
class Address:
    """The address of the tests' JobManager."""

    host: str
    port: int
    secret_file: Path

    def jobs(self) -> list[dict[str, Any]]:
        client = RemoteTarget(self.host, self.port, self.secret_file).open(1)
        try:
            return client.call(JobManagerApi.list_jobs)
        finally:
            client.close()


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """Provide a JobManager and a TaskManager, each a process."""
    secret_file = tmp_path_factory.mktemp("cluster") / "secret"
    options = ["--secret-file", str(secret_file), "--log-level", "error"]
    with ExitStack() as ends:
        ends.enter_context(pytest.MonkeyPatch.context()).setenv("FLOWLET_SECRET_FILE", str(secret_file))
        port = int(ends.enter_context(started("flowlet.jm", "--port", "0", *options)).rpartition(":")[2])
        ends.enter_context(started("flowlet.tm", "--jobmanager", f"127.0.0.1:{port}", "--slots", "2", *options))
        yield Address("127.0.0.1", port, secret_file)


@contextmanager
def started(module: str, *options: str) -> Iterator[str]:
    """Run a process of a cluster; its ready line."""
    with subprocess.Popen([sys.executable, "-m", module, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def mini_cluster() -> Iterator[MiniCluster]:
    with MiniCluster() as cluster:
        yield cluster


@pytest.fixture(scope="module", params=["mini cluster", pytest.param("processes", marks=pytest.mark.slow)])
def make_environment(request: pytest.FixtureRequest) -> MakeEnvironment:
    """Environments of programs whose jobs go to one cluster or the other."""
    if request.param == "mini cluster":
        cluster: MiniCluster = request.getfixturevalue("mini_cluster")
        return cluster.environment
    address: Address = request.getfixturevalue("processes")
    return lambda: StreamExecutionEnvironment.get_execution_environment(at(address.port))


@pytest.fixture
def environment(make_environment: MakeEnvironment) -> Iterator[StreamExecutionEnvironment]:
    made = make_environment()
    made.set_parallelism(1)
    yield made
    made.close()


def at(port: int) -> Configuration:
    return Configuration().set_string("flowlet.jobmanager", f"127.0.0.1:{port}")


def written(stream: DataStream, path: Path) -> None:
    """Append each record to a file, in whatever process the task runs; ends in a sink."""

    def write(value: object) -> object:
        with open(path, "a", encoding="ascii") as file:
            file.write(f"{value}\n")
        return value

    stream.map(write).sink_to(DiscardingSink())


def lines(path: Path) -> list[str]:
    return sorted(path.read_text(encoding="ascii").split()) if path.exists() else []


def raising(value: int) -> int:
    raise ValueError(f"no {value}s")


def unpicklable() -> Callable[[int], object]:
    lock = threading.Lock()
    return lambda value: (lock, value)


class Unknown(Sink):
    """No operator is known for it."""


# Programs of a stream that write to a file, and fail, and how.
FAILING: dict[str, tuple[Callable[[DataStream, Path], object], type[Exception], str]] = {
    "a job that failed": (lambda stream, old: written(stream.map(raising), old), JobExecutionError, "no 1s"),
    "a function that cannot be sent": (
        lambda stream, old: written(stream.map(unpicklable()), old),
        JobSubmissionError,
        "cannot be sent",
    ),
    "a sink that cannot be run": (lambda stream, _: stream.sink_to(Unknown()), JobGraphError, "cannot be run"),
    "a graph that contradicts itself": (
        lambda stream, old: written(stream.map(abs).forward().map(abs).set_parallelism(2), old),
        JobGraphError,
        "does not allow a change of parallelism",
    ),
}


@pytest.mark.parametrize(("build", "error", "reason"), FAILING.values(), ids=FAILING)
def test_after_a_failure_the_next_program_is_all_new(
    environment: StreamExecutionEnvironment,
    tmp_path: Path,
    build: Callable[[DataStream, Path], object],
    error: type[Exception],
    reason: str,
) -> None:
    """Streams of the program that failed can be used again."""
    stream = environment.from_collection([1])
    build(stream, tmp_path / "old")
    with pytest.raises(error, match=reason):
        environment.execute()

    written(stream.map(lambda value: value + 1), tmp_path / "new")
    environment.execute()

    assert (lines(tmp_path / "old"), lines(tmp_path / "new")) == ([], ["2"])


def test_a_job_that_failed_is_not_run_again_by_chance(environment: StreamExecutionEnvironment) -> None:
    """The cluster had taken it, and some of its work is done."""
    environment.from_collection([1]).map(raising).sink_to(DiscardingSink())
    with pytest.raises(JobExecutionError):
        environment.execute()

    with pytest.raises(JobGraphError, match="has no operators"):
        environment.execute()


def test_a_graph_that_contradicts_itself_can_be_corrected_in_place(
    environment: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    stream = environment.from_collection([1]).map(abs).forward().map(abs).set_parallelism(2)
    written(stream, tmp_path / "out")
    with pytest.raises(JobGraphError, match="does not allow a change of parallelism"):
        environment.execute()

    stream.set_parallelism(1)
    environment.execute()

    assert lines(tmp_path / "out") == ["1"]


def test_a_job_that_the_job_manager_refused_can_be_submitted_again(
    environment: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    written(environment.from_collection([1]), tmp_path / "out")
    with pytest.raises(JobSubmissionError, match="was refused"):
        environment.execute("a name that is too long " * 1000)

    environment.execute("a shorter name")

    assert lines(tmp_path / "out") == ["1"]


def test_a_collection_that_cannot_be_sent_does_not_stop_the_next_one(environment: StreamExecutionEnvironment) -> None:
    """A source that is read directly adds no operator, so nothing but the stream says that the program is a new one."""
    with pytest.raises(JobSubmissionError):
        environment.from_collection([1]).map(unpicklable()).execute_and_collect()

    assert list(environment.from_collection([2]).execute_and_collect()) == [2]


def test_a_collection_that_failed_before_its_tasks_ran_leaves_nothing(
    environment: StreamExecutionEnvironment, tmp_path: Path
) -> None:
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(tmp_path / "missing")).build()
    with pytest.raises(JobExecutionError, match="No such file"):
        list(environment.from_source(source, WatermarkStrategy.no_watermarks(), "lines").execute_and_collect())

    assert list(environment.from_collection([2]).execute_and_collect()) == [2]


class FailedJob:
    """A job that failed before its tasks ran."""

    job_id, is_closed = "0" * 32, False

    def collect(self, edge_id: str) -> Any:
        raise JobExecutionError("no such file")

    def announce(self, progress: object) -> None:
        """Show no progress."""

    def close(self) -> None:
        self.is_closed = True

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"nobody needs {name}")


def test_a_collection_that_failed_before_there_is_an_iterator_gives_its_cluster_back() -> None:
    """The environment closes a job that fails before the caller has an iterator to close."""
    job = FailedJob()

    def submit(
        _graph: object, _address: object, _in_process: object, keep: Callable[[RunningJob], None]
    ) -> SubmittedJob:
        running = cast("RunningJob", job)
        keep(running)
        return SubmittedJob(running, ("edge",))

    environment = StreamExecutionEnvironment(submit=submit)

    with pytest.raises(JobExecutionError):
        environment.from_collection([1]).execute_and_collect()

    assert job.is_closed


@pytest.mark.slow
@pytest.mark.parametrize("is_written_again", [False, True])
def test_a_program_without_its_cluster_runs_once_the_cluster_is_there(
    processes: Address, tmp_path: Path, is_written_again: bool
) -> None:
    """After ``Connection refused`` in a notebook, the user starts the cluster and runs the last cell again; if it
    builds the program anew, its records are processed once, not twice.
    """
    environment = StreamExecutionEnvironment.get_execution_environment(at(unused_port())).set_parallelism(1)
    written(environment.from_collection([1]), tmp_path / "out")
    with pytest.raises(FlowletError, match="Connection refused"):
        environment.execute()

    environment.configure(at(processes.port))
    if is_written_again:
        written(environment.from_collection([1]), tmp_path / "out")
    name = "written again" if is_written_again else "as it was"
    environment.execute(name)

    assert lines(tmp_path / "out") == ["1"]
    assert [job["state"] for job in processes.jobs() if job["name"] == name] == ["FINISHED"]


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_the_plan_after_a_failure_is_what_would_run_next(mini_cluster: MiniCluster) -> None:
    environment = mini_cluster.environment()
    environment.from_collection([1]).map(unpicklable()).name("old").sink_to(DiscardingSink())
    with pytest.raises(JobSubmissionError):
        environment.execute()

    before = environment.get_execution_plan()
    environment.from_collection([1]).map(abs).name("new").sink_to(DiscardingSink())
    after = environment.get_execution_plan()

    assert ('"old"' in before, '"new"' in before) == (True, False)
    assert ('"old"' in after, '"new"' in after) == (False, True)


def test_what_was_collected_is_collected_again_with_the_sinks_beside_it(
    mini_cluster: MiniCluster, tmp_path: Path
) -> None:
    environment = mini_cluster.environment().set_parallelism(1)
    stream = environment.from_collection([1]).map(abs)
    written(stream, tmp_path / "beside")
    with pytest.raises(JobSubmissionError, match="was refused"):
        stream.execute_and_collect("a name that is too long " * 1000)

    assert list(stream.execute_and_collect()) == [1]
    assert lines(tmp_path / "beside") == ["1"]

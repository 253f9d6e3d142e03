"""A cluster of one's own: in this process, or as real child processes that never outlive it."""

import os
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from flowlet.client.embedded import EmbeddedCluster, EmbeddedTarget, write_secret
from flowlet.client.executor import execute
from flowlet.client.remote import JobManagerApi
from flowlet.errors import ConfigError, FlowletError, JobExecutionError
from flowlet.graph.job_graph import JobEdge, JobGraph
from flowlet.graph.partitioner import Rebalance
from flowlet.sinks.function_sink import PrintSink
from flowlet.tm.taskmanager_process import PROCESS_NAME
from tests.flowlet.client.jobs import endless_shuffle, expected_counts, source, vertex, word_count
from tests.flowlet.client.programs import Program, running
from tests.waiting import PATIENCE_S, Stopwatch, spin_until


def test_parallelism_one_stays_in_this_process() -> None:
    """A debugger works there.  Closing the cluster twice is no error."""
    client = EmbeddedTarget(1).open(1)

    pids = {document["pid"] for document in client.call(JobManagerApi.list_task_managers)}
    client.close()
    client.close()

    assert pids == {os.getpid()}


def test_slots_are_spread_and_rounded_up() -> None:
    client = EmbeddedTarget(3, num_task_managers=2, in_process=True).open(5)

    overview = client.call(JobManagerApi.overview)
    client.close()

    assert (overview["taskmanagers"], overview["slots-total"]) == (2, 6)


def test_no_task_manager_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_task_managers is 0"):
        EmbeddedTarget(1, num_task_managers=0).open(1)


def test_closing_ends_a_running_job() -> None:
    job = execute(endless_shuffle(), EmbeddedTarget(2, num_task_managers=1, in_process=True))

    job.close()

    with pytest.raises(FlowletError, match="was closed"):
        job.status()


def test_a_secret_file_is_for_this_user_alone_and_never_replaces_another(tmp_path: Path) -> None:
    path = write_secret(tmp_path / "secret", bytes(range(32)))

    assert path.read_text(encoding="ascii") == bytes(range(32)).hex() + "\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        write_secret(path, bytes(32))


@pytest.mark.slow
def test_a_word_count_runs_in_two_child_processes_over_tcp() -> None:
    job_graph, edge_id = word_count()
    job = execute(job_graph, EmbeddedTarget(2, num_task_managers=2, in_process=False))

    counts = dict(job.collect(edge_id))
    job.wait(PATIENCE_S)
    subtasks = [each for vertex_document in job.metrics()["vertices"] for each in vertex_document["subtasks"]]
    job.close()

    assert counts == expected_counts()
    assert len({each["tm_id"] for each in subtasks}) == 2
    assert sum(each["metrics"]["num_bytes_in_remote"] for each in subtasks) > 0


@pytest.mark.slow
def test_what_the_children_print_is_here_when_the_job_has_finished(capsys: pytest.CaptureFixture[str]) -> None:
    """The ready lines of the children are not the user's, and are not printed."""
    head, tail = vertex("head", source(range(100))), vertex("tail", PrintSink("out"), parallelism=2)
    job_graph = JobGraph("printing", vertices=[head, tail], edges=[JobEdge(head.id, 0, tail.id, Rebalance())])
    job = execute(job_graph, EmbeddedTarget(2, num_task_managers=2, in_process=False))

    job.wait(PATIENCE_S)
    out = capsys.readouterr().out
    job.close()

    assert sorted(line.partition("> ")[2] for line in out.splitlines()) == sorted(str(number) for number in range(100))
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_a_child_that_is_killed_is_replaced_and_its_slots_are_back() -> None:
    cluster = EmbeddedCluster.start(2, 3, in_process=False)
    stays, victim = cluster.pids()

    os.kill(victim, signal.SIGKILL)
    spin_until(lambda: len(pids := _registered_pids(cluster)) == 2 and victim not in pids)
    overview = cluster.call(JobManagerApi.overview)
    pids = cluster.pids()
    cluster.close()

    assert overview["slots-total"] == 6
    assert stays in pids
    assert victim not in pids
    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)


def _registered_pids(cluster: EmbeddedCluster) -> set[int]:
    return {document["pid"] for document in cluster.call(JobManagerApi.list_task_managers)}


@pytest.mark.slow
def test_children_have_a_core_each_when_there_are_as_many() -> None:
    cpus = os.sched_getaffinity(0)
    cluster = EmbeddedCluster.start(len(cpus), 1, in_process=False)

    pinned = [os.sched_getaffinity(pid) for pid in cluster.pids()]
    cluster.close()

    assert sorted(pinned, key=min) == [{cpu} for cpu in sorted(cpus)]


@pytest.mark.slow
def test_children_do_not_see_the_terminals_ctrl_c_and_end_on_close() -> None:
    """Ctrl-C goes to every process of the terminal's foreground group; the client must be the one that decides."""
    cluster = EmbeddedCluster.start(1, 1, in_process=False)
    (pid,) = cluster.pids()
    child = psutil.Process(pid)

    session = os.getsid(pid)
    with Stopwatch() as watch:
        cluster.close()

    assert session == pid != os.getsid(0)
    assert watch.seconds < 10
    assert not child.is_running()


@pytest.mark.slow
def test_a_child_that_cannot_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    with pytest.raises(FlowletError, match="the process from which TaskManagers are forked ended with exit code 1"):
        EmbeddedCluster.start(1, 1, in_process=False)


def test_an_interpreter_that_does_not_know_its_program_says_what_else_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that embeds Python may know no interpreter; the error then names ``in_process=True``."""
    monkeypatch.setattr(sys, "executable", "")

    with pytest.raises(FlowletError, match="use in_process=True"):
        EmbeddedCluster.start(1, 1, in_process=False)


_PROGRAM = """
import sys
from flowlet.client.embedded import EmbeddedTarget
from flowlet.client.executor import execute, to_message
from tests.flowlet.client.jobs import endless_shuffle
job = execute(endless_shuffle(), EmbeddedTarget(2, num_task_managers=2, in_process=False))
print("running", flush=True)
if sys.argv[1] == "wait":
    job.wait()
"""


def started(program: Program) -> list[psutil.Process]:
    """Return the TaskManagers of the program and the process from which they are forked, once its job was submitted."""
    program.wait_for_output("running")
    children = psutil.Process(program.process.pid).children(recursive=True)
    assert [child.name() for child in children].count(PROCESS_NAME) == 2
    assert len(children) == 3
    return children


def forgets_to_close(program: Program) -> None:
    code, _, errors = program.end()
    assert (code, errors) == (0, [])


def is_interrupted(program: Program) -> None:
    code, errors = program.interrupted()
    assert (code, errors[-1]) == (-signal.SIGINT, "KeyboardInterrupt")
    # One line if it caught the client's wait, and the program's own line if it came just before that.
    assert [line for line in errors if line.startswith("  File")] in ([], ['  File "<string>", line 7, in <module>'])


def is_killed(program: Program) -> None:
    program.process.kill()
    program.end()


@pytest.mark.slow
@pytest.mark.parametrize("ends", [forgets_to_close, is_interrupted, is_killed])
def test_the_children_of_a_program_end_with_it(ends: Callable[[Program], None]) -> None:
    """A killed program can end nothing, so its children notice by themselves."""
    with running("-c", _PROGRAM, "forget" if ends is forgets_to_close else "wait") as program:
        children = started(program)
        ends(program)

    _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert not alive


def test_a_failing_job_in_an_embedded_cluster_is_explained_and_leaves_nothing() -> None:
    job_graph, edge_id = word_count(["1 x"], split=lambda line: [(word, int(word)) for word in line.split()])
    job = execute(job_graph, EmbeddedTarget(2, num_task_managers=2, in_process=True))

    with pytest.raises(JobExecutionError, match="ValueError: invalid literal"):
        list(job.collect(edge_id))
    job.close()

"""``python -m flowlet.tm`` as a process: its ready line, its errors, and how it ends."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from flowlet.client.executor import execute
from flowlet.client.remote import RemoteTarget
from flowlet.client.running_job import RunningJob
from flowlet.common.written_values import parse_address
from flowlet.errors import ConfigError, JobExecutionError
from flowlet.graph.job_graph import JobGraph
from flowlet.operators.process_operator import MapOperator
from flowlet.sinks.function_sink import DiscardSink
from flowlet.tm.taskmanager_process import parse_memory_size
from tests.cluster_commands import Command, Start
from tests.flowlet.client.jobs import endless_shuffle, mapped, source, vertex
from tests.flowlet.client.programs import running
from tests.waiting import PATIENCE_S, Stopwatch, spin_until

STOP_S = 2.0


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    return tmp_path / "secret"


def start_cluster(start: Start, *options: str, num_task_managers: int = 1) -> tuple[int, list[Command]]:
    port = start("flowlet.jm", "--port", "0", "--log-level", "error").port()
    jobmanager = ("--jobmanager", f"127.0.0.1:{port}")
    task_managers = [start("flowlet.tm", *jobmanager, *options) for _ in range(num_task_managers)]
    for each in task_managers:
        assert "listening" in each.line()
    return port, task_managers


@pytest.mark.parametrize("text", ["", "host", ":1", "h:", "h:0", "h:65536", "h:x", "h:-1", "h:\u0661"])
def test_what_is_no_address_names_the_option(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--x is {text!r}(; it must be host:port|: .* are no host and port)"):
        parse_address(text, "--x")
    assert parse_address("h:65535", "--x") == ("h", 65535)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5", 5), ("2k", 2048), ("64m", 64 * 1024**2), ("1G", 1024**3), ("64mb", 64 * 1024**2), (" 7 ", 7)],
)
def test_memory_sizes(text: str, expected: int) -> None:
    assert parse_memory_size(text, "--x") == expected


@pytest.mark.parametrize("text", ["", "m", "1.5m", "-1", "64x", "\u0661"])
def test_what_is_no_memory_size_names_the_option(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--x is {text!r}, expected a number of bytes"):
        parse_memory_size(text, "--x")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ((), "environment variable FLOWLET_JOBMANAGER is 'nowhere'"),
        (("--jobmanager", "elsewhere"), "--jobmanager is 'elsewhere'"),
    ],
)
def test_the_jobmanager_can_be_named_by_the_variable(start: Start, options: tuple[str, ...], named: str) -> None:
    """The variable names the JobManager, as for all other commands; the option precedes it."""
    code, _, errors = start("flowlet.tm", *options, FLOWLET_JOBMANAGER="nowhere").result()

    assert code == 2
    assert f"{named}; it must be host:port" in errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--jobmanager nowhere", "--jobmanager is 'nowhere'; it must be host:port, such as 127.0.0.1:8081"),
        ("--host 0.0.0.0", "refusing to listen on 0.0.0.0"),
        ("--pin-cpu 4095", "--pin-cpu is 4095"),
        ("--network-memory 1k", "network_memory_bytes is 1024"),
        ("--segment-size 128", "segment_size_bytes is 128"),
        ("--advertise here", "--advertise is 'here'; it must be host:port"),
        ("--advertise 10.0.0.1:6121", "has '10.0.0.1:6121', expected a literal loopback address"),
        ("--producer-memory-percent 101", "--producer-memory-percent"),
        ("--congestion-control carrier-pigeon", "congestion_control is 'carrier-pigeon'"),
        ("--heartbeat-interval-s 31", "heartbeat_timeout_s is 60.0"),
        ("--heartbeat-timeout-s 3", "heartbeat_timeout_s is 3.0"),
        ("--log-level loud", "log level 'loud' does not exist"),
        ("--switch-interval-ms 0", "--switch-interval-ms is 0.0"),
        ("--data-port 99999", "--data-port"),
        ("", "--jobmanager"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(start: Start, arguments: str, message: str) -> None:
    """The last one is that no JobManager is named."""
    named = "" if arguments.startswith("--jobmanager") or not arguments else "--jobmanager 127.0.0.1:1 "

    code, out, err = start("flowlet.tm", *f"{named}{arguments}".split()).result()

    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_the_ready_line_says_who_and_where(start: Start, secret_file: Path) -> None:
    """Here the process is executed."""
    port = start("flowlet.jm", "--port", "0").port()
    arguments = ("--jobmanager", f"127.0.0.1:{port}", "--secret-file", str(secret_file), "--log-level", "error")

    with running("-m", "flowlet.tm", *arguments) as task_manager:
        assert task_manager.process.stdout is not None
        line = task_manager.process.stdout.readline()

    assert re.fullmatch(
        rf"TaskManager tm-[0-9a-f]{{8}} listening on 127\.0\.0\.1:\d+, registered at 127\.0\.0\.1:{port}\n", line
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_an_idle_process_with_code_0(start: Start, number: int) -> None:
    _, (task_manager,) = start_cluster(start)

    with Stopwatch(task_manager.pid) as watch:
        task_manager.process.send_signal(number)
        code, out, err = task_manager.result()

    assert code == 0
    assert watch.seconds < STOP_S
    assert out == ""
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_signal_before_the_job_manager_is_there_ends_it_too(start: Start) -> None:
    task_manager = start("flowlet.tm", "--jobmanager", "127.0.0.1:1", "--log-format", "json")
    assert "no JobManager yet" in task_manager.stderr.readline()

    task_manager.process.send_signal(signal.SIGINT)

    assert task_manager.result()[0] == 0


@pytest.mark.slow
def test_a_signal_ends_running_tasks_first_and_the_job_names_the_lost_task_manager(
    start: Start, secret_file: Path
) -> None:
    port, (one, two) = start_cluster(start, num_task_managers=2)
    job = execute(endless_shuffle(), RemoteTarget("127.0.0.1", port, secret_file))
    wait_until_running(job)

    with Stopwatch(one.pid) as watch:
        one.process.send_signal(signal.SIGINT)
        code, _, err = one.result()
    with pytest.raises(JobExecutionError, match=rf"TaskManager tm-\w+ \(127\.0\.0\.1:\d+, pid {one.pid}\) was lost"):
        job.wait(PATIENCE_S)
    job.close()

    assert code == 0
    assert watch.seconds < STOP_S
    assert "leaving the hard way" not in err or watch.has_stalled
    assert two.is_running


@pytest.mark.slow
def test_a_task_that_does_not_let_go_is_named_and_left(start: Start, secret_file: Path, tmp_path: Path) -> None:
    """User code that never returns must not keep the process."""
    port, (task_manager,) = start_cluster(start)
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)

    def hang_here(value: int) -> int:
        with open(fifo, "w", encoding="ascii") as out:
            out.write("here\n")
        time.sleep(3600)
        return value

    job = execute(mapped([1], hang_here)[0], RemoteTarget("127.0.0.1", port, secret_file))
    with open(fifo, encoding="ascii") as reached:
        assert reached.readline() == "here\n"

    with Stopwatch(task_manager.pid) as watch:
        task_manager.process.send_signal(signal.SIGINT)
        code, _, err = task_manager.result()
    job.close()

    assert code == 0
    # The interpreter's start and end are not part of the promise, a loaded machine is.
    assert watch.seconds < STOP_S + 0.5
    assert "leaving the hard way" in err
    assert "mapped (1/1)" in err
    assert "in hang_here" in err


@pytest.mark.slow
def test_it_ends_when_its_parent_is_killed(start: Start, secret_file: Path) -> None:
    port, _ = start_cluster(start, num_task_managers=0)
    program = (
        "import os, subprocess, sys\n"
        "tm = [sys.executable, '-m', 'flowlet.tm', *sys.argv[1:], '--parent-pid', str(os.getpid())]\n"
        "child = subprocess.Popen(tm, start_new_session=True)\n"
        "sys.stdin.read()\n"
    )
    arguments = ["--jobmanager", f"127.0.0.1:{port}", "--secret-file", str(secret_file), "--log-level", "error"]
    parent = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    with parent.stdin, parent.stdout as lines:
        assert "registered at" in lines.readline()
        (child,) = psutil.Process(parent.pid).children()

        parent.kill()
        parent.wait()

        assert lines.read() == ""  # the child has closed its standard output: it ended
    assert child.wait(PATIENCE_S) in (0, None)


@pytest.mark.slow
def test_what_a_function_spoils_for_all_is_mended_before_the_next_job(start: Start, secret_file: Path) -> None:
    """The process goes on: the next job has modules, descriptors and streams, and the log says what was done."""
    port, (task_manager,) = start_cluster(start)

    def spoil(value: int) -> int:
        import os
        import resource
        import sys
        import warnings

        print("before")
        warnings.simplefilter("error")  # with it uvloop's loop would not close
        resource.setrlimit(resource.RLIMIT_NOFILE, (10, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        for fd in (0, 1, 2):  # no connection is made that could get one of them: nobody reads results
            os.close(fd)
        sys.stderr.close()
        sys.stdout.buffer.close()
        for name in [name for name in sys.modules if name.startswith(("flowlet", "netstack", "json"))]:
            del sys.modules[name]
        return value

    def say(value: int) -> int:
        import os

        print("after")
        os.system("echo child")
        return value

    for function in (spoil, say):
        head = vertex("mapped", source([1]), MapOperator(function, name="map"), DiscardSink())
        job = execute(JobGraph("mapped", vertices=[head], edges=[]), RemoteTarget("127.0.0.1", port, secret_file))
        job.wait(PATIENCE_S)
        job.close()
    task_manager.process.send_signal(signal.SIGINT)
    code, out, err = task_manager.result()

    assert (code, out) == (0, "before\nafter\nchild\n")
    warning = "\n".join(line for line in err.splitlines() if "was spoilt" in line)
    parts = ["flowlet", *(f"descriptor {fd} again" for fd in range(3)), "from 10 to", "sys.stdout again"]
    assert [part for part in parts if part not in warning] == []


@pytest.mark.slow
def test_a_job_that_forbids_its_own_connection_is_read_all_the_same(
    start: Start, secret_file: Path, tmp_path: Path
) -> None:
    """The task ends only when its results were read, and the limit that it lowered keeps its reader from connecting
    until the next heartbeat.
    """
    port, (task_manager,) = start_cluster(start, "--heartbeat-interval-s", "0.2")
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)

    def lower_the_limit(value: int) -> int:
        import resource

        with open(fifo, "w", encoding="ascii") as out:
            out.write("here\n")
            resource.setrlimit(resource.RLIMIT_NOFILE, (10, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        return value

    job_graph, edge_id = mapped([1], lower_the_limit)
    job = execute(job_graph, RemoteTarget("127.0.0.1", port, secret_file))
    with open(fifo, encoding="ascii") as reached:
        assert reached.read() == "here\n"
    results = list(job.collect(edge_id))
    job.close()
    task_manager.process.send_signal(signal.SIGINT)

    assert results == [1]
    assert "raised the limit of file descriptors from 10 to" in task_manager.result()[2]


def wait_until_running(job: RunningJob) -> None:
    def states() -> set[str]:
        return {each["state"] for vertex in job.metrics()["vertices"] for each in vertex["subtasks"]}

    spin_until(lambda: states() == {"RUNNING"}, "the tasks")

"""The output of TaskManagers, which reaches the user whole, and the instructions with which they start."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlet.client.children import OutputForwarder, TaskManagerOptions
from flowlet.client.python_interpreter import checked_interpreter, program_start
from flowlet.common import Configuration
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.errors import ConfigError, FlowletError, JobGraphError
from tests.flowlet.client.executed_children import launch
from tests.flowlet.client.jobs import ran
from tests.waiting import PATIENCE_S


class Pipe:
    """The standard output of a child.  ``close`` it after the forwarder."""

    def __init__(self, forwarder: OutputForwarder) -> None:
        self._read_fd, self.write_fd = os.pipe()
        self.entry = forwarder.add(self._read_fd)
        self._forwarder = forwarder
        self._has_ended = False

    def print(self, text: bytes) -> None:
        """Let the forwarder see the text before there is more."""
        os.write(self.write_fd, text)
        self._forwarder.drain()

    def end(self) -> None:
        if not self._has_ended:
            os.close(self.write_fd)
            self._has_ended = True

    def close(self) -> None:
        self.end()
        os.close(self._read_fd)


@pytest.fixture
def forwarder() -> Iterator[OutputForwarder]:
    forwarder = OutputForwarder()
    yield forwarder
    forwarder.close()


@pytest.fixture
def pipes(forwarder: OutputForwarder) -> Iterator[list[Pipe]]:
    made = [Pipe(forwarder), Pipe(forwarder)]
    yield made
    forwarder.close()
    for pipe in made:
        pipe.close()


@pytest.mark.parametrize(
    ("pieces", "printed"),
    [
        ([b"hello from a mod", b"ule\nrecord 1\n"], "hello from a module\nrecord 1\n"),
        ([b"caf\xc3", b"\xa9 \xff\n"], "caf\u00e9 \ufffd\n"),
    ],
    ids=["the first line as every other", "characters split between two reads"],
)
def test_what_a_child_prints_in_pieces_is_printed_whole(
    pipes: list[Pipe], capsys: pytest.CaptureFixture[str], pieces: list[bytes], printed: str
) -> None:
    """A child reports to its parent through another pipe, so a module that prints on import disturbs nothing."""
    for piece in pieces:
        pipes[0].print(piece)

    assert capsys.readouterr().out == printed


def test_lines_of_two_children_do_not_mix(pipes: list[Pipe], capsys: pytest.CaptureFixture[str]) -> None:
    """Half a line waits for its end."""
    pipes[0].print(b"half a")
    pipes[1].print(b"whole b\n")
    pipes[0].print(b" line\n")

    assert capsys.readouterr().out == "whole b\nhalf a line\n"


@pytest.mark.parametrize(
    ("text", "is_open"),
    [("last words", False), ("x" * 10_000 + "\n", True), ("last words", True)],
    ids=["a last line without a newline", "a pipe that is open in another process, such as a grandchild", "both"],
)
def test_closing_prints_what_is_still_in_the_pipe(
    forwarder: OutputForwarder, pipes: list[Pipe], capsys: pytest.CaptureFixture[str], text: str, is_open: bool
) -> None:
    os.write(pipes[0].write_fd, text.encode())
    if not is_open:
        pipes[0].end()
    forwarder.close()

    assert capsys.readouterr().out == text


def test_a_closed_standard_output_does_not_stop_the_reading(
    pipes: list[Pipe], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A full pipe would block the child's task."""
    closed = (tmp_path / "closed").open("w", encoding="utf-8")
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)

    for _ in range(40):
        pipes[0].print(b"x" * 9_999 + b"\n")  # six times what a pipe holds


def test_what_cannot_be_printed_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Exception | None] = []
    printer = OutputForwarder(lambda: told.append(printer.failure))
    pipe = Pipe(printer)
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        pipe.print(b"ready\none\n")
        pipe.print(b"two\n")
        printer.close()
        os.dup2(pipe.write_fd, full.fileno())  # else closing the file would try to write once more
    pipe.close()

    assert [error.errno for error in told if isinstance(error, OSError)] == [errno.ENOSPC]


def test_a_child_imports_what_its_parent_can_in_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/users/program", "", b"/bytes", Path("/a/path"), "/10:21:15", "/users/program"])

    start = program_start(None)

    assert start.last_path(["/of/the/child"]) == ["/users/program", os.getcwd(), "/10:21:15"]


def test_a_child_finds_its_own_modules_before_those_of_the_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Folders of installed packages come first, and in their order."""
    installed = tmp_path / "installed"
    (installed / "a_package-1.0.dist-info").mkdir(parents=True)
    standard = os.path.dirname(os.__file__)
    monkeypatch.setattr(sys, "path", ["/users/program", str(installed), standard, "/more"])

    assert program_start(None).first_path([]) == [str(installed), standard, "/users/program", "/more"]


def test_another_interpreter_keeps_its_own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/users/program", os.path.dirname(os.__file__)])

    start = program_start("/another/python")

    assert start.last_path(["/its/library", "/users/program"]) == ["/users/program", "/its/library"]
    assert start.first_path(["/its/library", "/users/program"]) == ["/its/library", "/users/program"]


def test_flags_of_the_interpreter_are_given_again() -> None:
    code = "from flowlet.client.python_interpreter import interpreter_flags; print(interpreter_flags())"
    flags = ["-B", "-s", "-OO", "-Wonce::UserWarning", "-Xutf8", "-Xmine=1"]

    found = subprocess.run(
        [sys.executable, *flags, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    ).stdout

    assert found == f"{flags}\n"


def test_the_command_line_says_where_the_cluster_is_and_who_the_parent_is() -> None:
    options = TaskManagerOptions("127.0.0.1:1", Path("/s"), Path("/p"), 3, pin_cpu=0)

    assert options.arguments(7) == [
        *("--jobmanager", "127.0.0.1:1", "--slots", "3", "--secret-file", "/s", "--parent-pid", "7"),
        *("--pin-cpu", "0"),
    ]


def test_a_pipe_that_is_removed_is_read_to_its_end_and_no_further(
    forwarder: OutputForwarder, pipes: list[Pipe], capsys: pytest.CaptureFixture[str]
) -> None:
    """Another process may still have the other end of the pipe."""
    os.write(pipes[0].write_fd, b"last words")
    assert forwarder.remove(pipes[0].entry, PATIENCE_S)
    assert capsys.readouterr().out == "last words"

    os.write(pipes[0].write_fd, b"of another process\n")
    forwarder.close()

    assert capsys.readouterr().out == ""


def test_a_pipe_that_has_ended_can_be_removed_while_the_forwarder_is_open(
    forwarder: OutputForwarder, pipes: list[Pipe]
) -> None:
    pipes[0].end()
    forwarder.drain()

    assert forwarder.remove(pipes[0].entry, PATIENCE_S)
    forwarder.close()
    assert not forwarder.remove(pipes[1].entry)


@pytest.mark.parametrize(
    "closes", [">&-", "$(for fd in /proc/self/fd/[3-9]*; do echo ${fd##*/}'>&-'; done)"], ids=["output", "everything"]
)
def test_a_child_that_closes_its_output_and_stays_is_an_error_of_ours(
    forwarder: OutputForwarder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, closes: str
) -> None:
    """An interpreter of the user's choice may close its output, and the pipe through which it would report that it is
    ready.
    """
    monkeypatch.setattr(sys, "executable", program(tmp_path, f'eval "exec sleep 1000 {closes}"', "bash"))
    child = launch(TaskManagerOptions("127.0.0.1:1", tmp_path, tmp_path, 1), forwarder)
    try:
        with pytest.raises(FlowletError, match=f"TaskManager process {child.pid} was not ready in time"):
            child.wait_ready(time.monotonic() + 0.01)
    finally:
        child.terminate()
        child.wait_or_kill(time.monotonic() + PATIENCE_S)
        child.remove_output()


# -------------------------------------------------------------------- another interpreter for the TaskManagers


def program(folder: Path, text: str, shell: str = "sh") -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/{shell}\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.slow  # starts a Python
def test_the_interpreter_of_this_program_is_accepted() -> None:
    assert checked_interpreter(sys.executable) == sys.executable


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo 2.7", r"it is Python 2.7, the program runs on 3\."),
        ("echo no module named flowlet >&2; exit 1", "it cannot run a TaskManager: no module named flowlet"),
        ("exit 3", "it cannot run a TaskManager: exit code 3"),
    ],
)
def test_one_that_cannot_run_a_taskmanager_is_refused(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        checked_interpreter(program(tmp_path, text))


def test_one_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"set_python_executable\('data.zip/bin/python'\): there is no such program"):
        checked_interpreter("data.zip/bin/python")


def test_a_job_for_a_running_cluster_is_refused() -> None:
    environment = StreamExecutionEnvironment(Configuration.from_dict({"flowlet.jobmanager": "127.0.0.1:1"}))
    environment.set_python_executable(sys.executable)
    environment.from_collection([1]).print()

    reason = "has no effect on TaskManagers that run already: start them with that Python"
    with pytest.raises(JobGraphError, match=reason):
        environment.execute()


def test_files_that_need_processes_do_not_go_with_a_cluster_in_this_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FLOWLET_LOCAL", "inprocess")
    environment = StreamExecutionEnvironment()
    environment.add_python_archive(str(tmp_path / "data.zip"))
    environment.from_collection([1]).print()

    reason = r"add_python_archive\(\), .* needs TaskManagers that are processes of their own: unset"
    with pytest.raises(JobGraphError, match=reason):
        environment.execute()


@pytest.mark.slow  # starts a cluster of processes
def test_tasks_run_with_the_interpreter(tmp_path: Path) -> None:
    """A job at parallelism 1 would otherwise stay in this process."""
    environment = StreamExecutionEnvironment().set_parallelism(1)
    environment.set_python_executable(program(tmp_path, f'OWN_PYTHON=1 exec {sys.executable} "$@"'))

    assert ran(environment.from_collection([1]).map(lambda _: os.environ["OWN_PYTHON"])) == ["1"]

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
from flowlet.client.python_interpreter import program_start
from flowlet.errors import FlowletError
from tests.flowlet.client.executed_children import launch
from tests.waiting import PATIENCE_S


@pytest.fixture
def pipes() -> Iterator[list[tuple[int, int]]]:
    pairs = [os.pipe(), os.pipe()]
    yield pairs
    for read_fd, write_fd in pairs:
        os.close(read_fd)
        try:
            os.close(write_fd)
        except OSError:  # the test closed it
            continue


@pytest.fixture
def forwarder(pipes: list[tuple[int, int]]) -> Iterator[OutputForwarder]:
    """Closed before the pipes are."""
    forwarder = OutputForwarder()
    yield forwarder
    forwarder.close()


def test_the_first_line_is_printed_as_every_other(
    forwarder: OutputForwarder, pipes: list[tuple[int, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A child reports to its parent through another pipe, so a module that prints on import disturbs nothing."""
    read_fd, write_fd = pipes[0]
    forwarder.add(read_fd)

    os.write(write_fd, b"hello from a mod")
    os.write(write_fd, b"ule\nrecord 1\n")
    forwarder.drain()

    assert capsys.readouterr().out == "hello from a module\nrecord 1\n"


def test_lines_of_two_children_do_not_mix(
    forwarder: OutputForwarder, pipes: list[tuple[int, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Half a line waits for its end."""
    (read_a, write_a), (read_b, write_b) = pipes
    forwarder.add(read_a)
    forwarder.add(read_b)

    for write_fd, text in ((write_a, b"half a"), (write_b, b"whole b\n"), (write_a, b" line\n")):
        os.write(write_fd, text)
        forwarder.drain()

    assert capsys.readouterr().out == "whole b\nhalf a line\n"


def test_characters_that_are_split_between_two_reads_stay_whole(
    forwarder: OutputForwarder, pipes: list[tuple[int, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    read_fd, write_fd = pipes[0]
    forwarder.add(read_fd)

    for piece in (b"caf\xc3", b"\xa9 \xff\n"):
        os.write(write_fd, piece)
        forwarder.drain()

    assert capsys.readouterr().out == "caf\u00e9 \ufffd\n"


def test_a_last_line_without_a_newline_is_printed_at_the_end(
    forwarder: OutputForwarder, pipes: list[tuple[int, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    read_fd, write_fd = pipes[0]
    forwarder.add(read_fd)

    os.write(write_fd, b"last words")
    os.close(write_fd)
    forwarder.close()

    assert capsys.readouterr().out == "last words"


def test_closing_prints_what_is_still_in_the_pipe(
    forwarder: OutputForwarder, pipes: list[tuple[int, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    """The pipe may still be open in another process, such as a grandchild."""
    read_fd, write_fd = pipes[0]
    forwarder.add(read_fd)

    os.write(write_fd, b"x" * 10_000 + b"\n")
    forwarder.close()

    assert capsys.readouterr().out == "x" * 10_000 + "\n"


def test_a_closed_standard_output_does_not_stop_the_reading(
    forwarder: OutputForwarder, pipes: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A full pipe would block the child's task."""
    closed = (tmp_path / "closed").open("w", encoding="utf-8")
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    read_fd, write_fd = pipes[0]
    forwarder.add(read_fd)

    for _ in range(40):
        os.write(write_fd, b"x" * 9_999 + b"\n")  # six times what a pipe holds
        forwarder.drain()


def test_what_cannot_be_printed_is_told_once(pipes: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Exception | None] = []
    printer = OutputForwarder(lambda: told.append(printer.failure))
    read_fd, write_fd = pipes[0]
    printer.add(read_fd)
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        os.write(write_fd, b"ready\none\n")
        printer.drain()
        os.write(write_fd, b"two\n")
        printer.drain()
        printer.close()
        os.dup2(write_fd, full.fileno())  # else closing the file would try to write once more

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
    forwarder: OutputForwarder, pipes: list[tuple[int, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Another process may still have the other end of the pipe."""
    read_fd, write_fd = pipes[0]
    pipe = forwarder.add(read_fd)

    os.write(write_fd, b"last words")
    assert forwarder.remove(pipe, PATIENCE_S)
    assert capsys.readouterr().out == "last words"
    os.write(write_fd, b"of another process\n")
    forwarder.close()

    assert capsys.readouterr().out == ""


def test_a_pipe_that_has_ended_can_be_removed(forwarder: OutputForwarder, pipes: list[tuple[int, int]]) -> None:
    read_fd, write_fd = pipes[0]
    pipe = forwarder.add(read_fd)

    os.close(write_fd)
    forwarder.drain()

    assert forwarder.remove(pipe, PATIENCE_S)


def test_a_closed_forwarder_removes_nothing(forwarder: OutputForwarder, pipes: list[tuple[int, int]]) -> None:
    pipe = forwarder.add(pipes[0][0])
    forwarder.close()

    assert not forwarder.remove(pipe)


@pytest.mark.parametrize(
    "closes", [">&-", "$(for fd in /proc/self/fd/[3-9]*; do echo ${fd##*/}'>&-'; done)"], ids=["output", "everything"]
)
def test_a_child_that_closes_its_output_and_stays_is_an_error_of_ours(
    forwarder: OutputForwarder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, closes: str
) -> None:
    """An interpreter of the user's choice may close its output, and the pipe through which it would report that it is
    ready.
    """
    script = tmp_path / "python"
    script.write_text(f'#!/bin/bash\neval "exec sleep 1000 {closes}"\n')
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    child = launch(TaskManagerOptions("127.0.0.1:1", tmp_path, tmp_path, 1), forwarder)
    try:
        with pytest.raises(FlowletError, match=f"TaskManager process {child.pid} was not ready in time"):
            child.wait_ready(time.monotonic() + 0.01)
    finally:
        child.terminate()
        child.wait_or_kill(time.monotonic() + PATIENCE_S)
        child.remove_output()

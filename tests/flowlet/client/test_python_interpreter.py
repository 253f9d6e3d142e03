"""Another interpreter for the TaskManagers of a program's own cluster."""

import os
import sys
from pathlib import Path

import pytest

from flowlet.client.python_interpreter import checked_interpreter
from flowlet.common import Configuration
from flowlet.datastream import CloseableIterator, StreamExecutionEnvironment
from flowlet.errors import ConfigError, JobGraphError


def program(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
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

    with pytest.raises(
        JobGraphError, match="has no effect on TaskManagers that run already: start them with that Python"
    ):
        environment.execute()


def test_files_that_need_processes_do_not_go_with_a_cluster_in_this_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FLOWLET_LOCAL", "inprocess")
    environment = StreamExecutionEnvironment()
    environment.add_python_archive(str(tmp_path / "data.zip"))
    environment.from_collection([1]).print()

    with pytest.raises(
        JobGraphError, match=r"add_python_archive\(\), .* needs TaskManagers that are processes of their own: unset"
    ):
        environment.execute()


@pytest.mark.slow  # starts a cluster of processes
def test_tasks_run_with_the_interpreter(tmp_path: Path) -> None:
    """A job at parallelism 1 would otherwise stay in this process."""
    environment = StreamExecutionEnvironment().set_parallelism(1)
    environment.set_python_executable(program(tmp_path, f'OWN_PYTHON=1 exec {sys.executable} "$@"'))

    results = environment.from_collection([1]).map(lambda _: os.environ["OWN_PYTHON"]).execute_and_collect()
    assert isinstance(results, CloseableIterator)
    with results:
        assert list(results) == ["1"]

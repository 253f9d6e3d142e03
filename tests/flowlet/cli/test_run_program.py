"""``flowlet run``: the arguments of the program, and errors before it starts."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from flowlet.cli.main import run_command
from flowlet.common import Configuration
from flowlet.common.options.client_options import is_detached, run_options
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.errors import ConfigError


class Became(Exception):
    """The process is another program now."""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text("")
    return path


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the arguments that ``execve`` gets."""
    given: dict[str, Any] = {}

    def execve(path: str, arguments: list[str], environment: dict[str, str]) -> None:
        given.update(path=path, arguments=arguments, environment=environment)
        raise Became

    monkeypatch.setattr(os, "execve", execve)
    return given


def run(*arguments: str) -> None:
    with pytest.raises(Became):
        run_command(["run", *arguments])


def test_a_program_starts_as_python_starts_it(program: Path, become: dict[str, Any]) -> None:
    """Options behind its name are its own."""
    run(str(program), "--verbose", "-p", "7")

    assert become["path"] == sys.executable
    assert become["arguments"] == [sys.executable, str(program), "--verbose", "-p", "7"]
    assert "FLOWLET_RUN_OPTIONS" not in become["environment"]


def test_options_of_the_command_line_travel_in_variables(
    program: Path, become: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths are absolute there, because the JobManager has another working directory."""
    monkeypatch.chdir(tmp_path)

    options = "-s savepoints/savepoint-1 -n -p 3 -m host:1 -d -D pipeline.name=a=b --secret-file key"
    run(*options.split(), str(program))

    variables = become["environment"]
    assert json.loads(variables["FLOWLET_RUN_OPTIONS"]) == {
        "pipeline.name": "a=b",
        "parallelism.default": "3",
        "execution.state-recovery.path": str(tmp_path / "savepoints/savepoint-1"),
        "execution.state-recovery.ignore-unclaimed-state": "true",
    }
    assert variables["FLOWLET_JOBMANAGER"] == "host:1"
    assert variables["FLOWLET_SECRET_FILE"] == str(tmp_path / "key")
    assert is_detached(variables)


def test_a_url_stays_as_it_is(program: Path, become: dict[str, Any]) -> None:
    run("-s", "s3://bucket/savepoint-1", str(program))

    assert "s3://bucket/savepoint-1" in become["environment"]["FLOWLET_RUN_OPTIONS"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.py",), "there is no file 'nowhere.py'"),
        (
            ("-D", "execution.checkpointing.intervall=1 s", "{program}"),
            "did you mean 'execution.checkpointing.interval'?",
        ),
        (("-D", "no-value", "{program}"), "write it as -D NAME=VALUE"),
        (("-n", "{program}"), "--allow-non-restored-state has no effect without --from-savepoint"),
        (("-m", "nonsense", "{program}"), "nonsense"),
        (("-p", "0", "{program}"), "greater than or equal to 1"),
        (("-x", "{program}"), "No such option"),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: tuple[str, ...], message: str, program: Path, become: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 2, and nothing has started."""
    code = run_command(["run", *(each.format(program=program) for each in arguments)])

    error = capsys.readouterr().err
    assert (code, become) == (2, {})
    assert message in error
    assert len(error.splitlines()) == 1


def test_an_environment_has_the_options_of_the_command_line_and_the_program_overrides_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"parallelism.default": "3", "pipeline.max-parallelism": "64"}
    monkeypatch.setenv("FLOWLET_RUN_OPTIONS", json.dumps(options))

    of_program = Configuration.from_dict({"parallelism.default": "2"})
    environment = StreamExecutionEnvironment.get_execution_environment(of_program)

    assert (environment.get_parallelism(), environment.get_max_parallelism()) == (2, 64)


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}'])
def test_a_variable_that_somebody_else_has_set_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="FLOWLET_RUN_OPTIONS is no JSON object of texts"):
        run_options({"FLOWLET_RUN_OPTIONS": text})


def test_a_detached_job_needs_a_cluster_that_outlives_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWLET_RUN_DETACHED", "1")
    monkeypatch.delenv("FLOWLET_JOBMANAGER", raising=False)
    environment = StreamExecutionEnvironment.get_execution_environment()
    environment.from_collection([1]).print()

    with pytest.raises(ConfigError, match=r"needs a cluster that runs already: name it with -m host:port"):
        environment.execute()

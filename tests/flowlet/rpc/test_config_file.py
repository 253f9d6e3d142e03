"""One file of options for all processes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flowlet.cli.main import run_command as flowlet_command
from flowlet.common import Configuration
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.errors import ConfigError
from flowlet.rpc.config_file import (
    JOB_MANAGER_OPTIONS,
    TASK_MANAGER_OPTIONS,
    client_options,
    job_manager_address_of_commands,
    job_manager_defaults,
    task_manager_defaults,
)
from flowlet.tm.command import run_command as taskmanager_command

PAGE = Path(__file__).resolve().parents[3] / "docs" / "options.md"
FILE = """
# a comment
parallelism.default: 3
rest:
  address: localhost
  port: 9000
taskmanager:
  numberOfTaskSlots: 2
  memory:
    segment-size: 64 kb
  registration.timeout: 1 min
slot.request.timeout: 500 ms
pipeline:
  name: on: off
""".replace("name: on: off", "name: 'on: off'")
Write = Callable[[str], dict[str, str]]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes the file; gives the variables that name it."""

    def write_file(text: str) -> dict[str, str]:
        (tmp_path / "config.yaml").write_text(text)
        return {"FLOWLET_CONF_DIR": str(tmp_path)}

    return write_file


def test_each_process_takes_what_concerns_it(write: Write) -> None:
    variables = write(FILE)

    assert client_options(variables) == Configuration.from_dict(
        {"parallelism.default": "3", "rest.address": "localhost", "rest.port": "9000", "pipeline.name": "on: off"}
    )
    assert job_manager_defaults(variables) == {"port": "9000", "slot_request_timeout": "0.5"}
    assert task_manager_defaults(variables) == {
        "jobmanager": "localhost:9000",
        "slots": "2",
        "segment_size": "65536",
        "registration_timeout_s": "60.0",
    }
    assert job_manager_address_of_commands(variables) == "localhost:9000"


def test_without_a_variable_or_with_an_empty_file_nothing_is_said(write: Write) -> None:
    assert client_options({}) is None
    assert task_manager_defaults({}) == job_manager_defaults({"FLOWLET_CONF_DIR": ""}) == {}
    assert client_options(write("# nothing\n")) == Configuration()
    assert job_manager_address_of_commands(write("rest.port: 1")) is None


def test_an_environment_begins_with_the_options_of_the_file_and_a_program_overrides_them(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in write("parallelism.default: 3\npipeline.max-parallelism: 64\n").items():
        monkeypatch.setenv(name, value)

    environment = StreamExecutionEnvironment(Configuration.from_dict({"parallelism.default": "5"}))

    assert (environment.get_parallelism(), environment.get_max_parallelism()) == (5, 64)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "is no YAML"),
        ("- a", "has no options by name: write NAME: VALUE"),
        (
            "paralelism.default: 3",
            r"config.yaml: option 'paralelism.default' is not known; did you mean 'parallelism.default'",
        ),
        (
            "parallelism.default: many",
            r"config.yaml: option 'parallelism.default' is 'many', which is not a whole number",
        ),
        ("taskmanager.memory.process.size: 1g", "option 'taskmanager.memory.process.size' is not read here"),
        ("!!python/object/apply:os.system ['true']", "has no options by name"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(text: str, words: str, write: Write) -> None:
    with pytest.raises(ConfigError, match=words):
        client_options(write(text))


def test_a_file_that_is_not_there_and_a_size_that_is_none(tmp_path: Path, write: Write) -> None:
    with pytest.raises(
        ConfigError,
        match=r"config.yaml cannot be read: No such file or directory; FLOWLET_CONF_DIR names its directory",
    ):
        client_options({"FLOWLET_CONF_DIR": str(tmp_path / "nowhere")})
    with pytest.raises(
        ConfigError,
        match=r"option 'taskmanager.memory.segment-size' in config.yaml is 'big', which is no size or duration",
    ):
        task_manager_defaults(write("taskmanager.memory.segment-size: big"))


def test_every_option_of_clusters_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert [name for name in (*TASK_MANAGER_OPTIONS, *JOB_MANAGER_OPTIONS) if f"`{name}`" not in page] == []


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, write: Write, tmp_path: Path) -> Write:
    """Provide ``write`` for the commands of this process."""
    monkeypatch.setenv("FLOWLET_SECRET_FILE", str(tmp_path / "secret"))

    def write_and_name(text: str) -> dict[str, str]:
        for name, value in write(text).items():
            monkeypatch.setenv(name, value)
        return {}

    return write_and_name


def test_the_commands_take_their_parameters_from_the_file(commands: Write, capsys: pytest.CaptureFixture[str]) -> None:
    commands("rest: {address: localhost, port: 1}\ntaskmanager: {numberOfTaskSlots: 0}\n")

    assert taskmanager_command([]) == 2
    assert "Invalid value for '--slots'" in capsys.readouterr().err
    assert flowlet_command(["list"]) == 2
    assert "localhost:1" in capsys.readouterr().err
    assert flowlet_command(["list", "-m", "127.0.0.1:2"]) == 2
    assert "127.0.0.1:2" in capsys.readouterr().err

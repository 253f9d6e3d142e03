"""``flowlet list`` and ``taskmanagers``: equal answers with and without typer, and the modules that they import."""

import contextlib
import io
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from flowlet.cli.main import run_command
from flowlet.cli.quick_commands import print_table, run_quickly
from flowlet.client.embedded import write_secret
from flowlet.testing.mini_cluster import MiniCluster
from tests.flowlet.client.jobs import endless_shuffle
from tests.flowlet.client.programs import variables_of

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
@pytest.mark.parametrize("command", [("list",), ("list", "-r"), ("list", "--all", "--running"), ("taskmanagers",)])
def test_a_quick_command_prints_what_the_whole_command_prints(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MiniCluster() as cluster:
        found = variables_of(cluster.target, tmp_path)
        options = [f"--jobmanager={found['FLOWLET_JOBMANAGER']}", "--secret-file", found["FLOWLET_SECRET_FILE"]]
        cluster.execute(endless_shuffle())

        codes, outputs = [], []
        for run in (run_quickly, run_command):
            codes.append(run([*command, *options]))
            outputs.append([line.split()[:3] for line in capsys.readouterr().out.splitlines()])

    assert codes == [0, 0]
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) >= 2


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "--version",
        "list --help",
        "list -ra",
        "list extra",
        "list --jobmanager",
        "list -m=x",
        "taskmanagers --all",
        "cancel ab",
    ],
)
def test_what_is_not_understood_is_left_to_the_whole_command(arguments: str) -> None:
    assert run_quickly(arguments.split()) is None


def test_a_configured_address_is_left_to_the_whole_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLOWLET_CONF_DIR", str(tmp_path))

    assert run_quickly(["list"]) is None


def test_a_wrong_address_of_the_variable_is_called_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLOWLET_JOBMANAGER", "nowhere")

    assert run_quickly(["list"]) == 2
    expected = (
        "flowlet: environment variable FLOWLET_JOBMANAGER is 'nowhere'; it must be host:port, such as 127.0.0.1:8081\n"
    )
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-m", "nowhere"], "flowlet: --jobmanager is 'nowhere'; it must be host:port, such as 127.0.0.1:8081\n"),
        (
            ["-m", "127.0.0.1:1"],
            (
                "flowlet: JobManager 127.0.0.1:1: Connection refused: nothing listens there; start a JobManager (flowlet "  # noqa: E501
                "jm),"
            ),
        ),
        (
            ["-m", "no-such-host.invalid:1"],
            "flowlet: JobManager no-such-host.invalid:1: the host 'no-such-host.invalid' is unknown",
        ),
    ],
)
def test_errors_are_one_line(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = write_secret(tmp_path / "secret", bytes(32))

    assert run_quickly(["list", *options, "--secret-file", str(secret)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1


def test_another_secret_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = write_secret(tmp_path / "secret", bytes(32))
    with MiniCluster() as cluster:
        code = run_quickly(["list", "-m", f"{cluster.target.host}:{cluster.target.port}", "--secret-file", str(secret)])

    assert code == 2
    assert "authentication failed; do both use the same secret file?" in capsys.readouterr().err


TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=4))
def test_a_table_in_a_pipe_is_that_of_rich(rows: list[tuple[str, str, str]]) -> None:
    out = io.StringIO()
    console = Console(width=10_000, markup=False, highlight=False, file=out)
    table = Table("job", "n", "state", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    console.print(table, crop=False)

    with contextlib.redirect_stdout(io.StringIO()) as ours:
        print_table(("job", "n", "state"), rows)

    assert ours.getvalue() == out.getvalue()


@pytest.mark.parametrize("command", ["list", "taskmanagers"])
def test_a_quick_command_imports_neither_typer_nor_aiohttp(command: str) -> None:
    program = f"""
import sys
from flowlet.cli.quick_commands import run_quickly
code = run_quickly([{command!r}, "--jobmanager", "127.0.0.1:1"])
standard = set(sys.stdlib_module_names)
print(code, sorted({{name.partition(".")[0] for name in sys.modules if not name.startswith("_")}} - standard))
"""

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout == "2 ['flowlet', 'msgspec', 'netstack', 'typing_extensions']\n"

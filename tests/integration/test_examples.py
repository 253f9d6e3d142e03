"""The short examples, run as a user runs them.  Longer ones have files of their own."""

import re
import sys
from pathlib import Path

import pytest

from bench.cluster import Process
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("secret")]


def output_of(folder: Path, name: str, *arguments: Path) -> str:
    """Return what an example prints; it ends without an error."""
    command = [sys.executable, str(ROOT / "examples" / name), *map(str, arguments)]
    with Process(command, log=folder / "stderr.txt", environment={"PYTHONPATH": str(ROOT)}) as process:
        code, output = process.wait(PATIENCE_S), process.stdout
    assert (code, process.stderr) == (0, "")
    return output


TABLES = {
    # Each order once, whichever stream was faster: the table that enriches them is broadcast.
    "enriched_orders.py": (
        r"(\d)\s+\S\s+(\w+ \w+)\s+\S\s+(\d+)",
        [
            ("1", "green tea", "900"),
            ("2", "oat milk", "199"),
            ("3", "green tea", "2250"),
            ("4", "red rice", "320"),
            ("5", "oat milk", "597"),
        ],
    ),
    # A click out of order by less than the bound is counted; one later than the minute's end goes to the side output;
    # no click is lost.
    "late_clicks.py": (
        r"(ann|bob)\s+\S\s+(\d)\s+\S\s+(\d|late)",
        [
            ("ann", "0", "late"),
            ("ann", "0", "3"),
            ("ann", "1", "1"),
            ("ann", "2", "1"),
            ("bob", "0", "late"),
            ("bob", "0", "3"),
            ("bob", "2", "1"),
        ],
    ),
    # Every match once, whichever stream was faster: the rules are broadcast state.
    "shape_rules.py": (
        r"(corners first|round first|twins)\s+\S\s+(red|blue|green)\s+\S\s+(\d)",
        [
            ("corners first", "blue", "3"),
            ("corners first", "red", "2"),
            ("corners first", "red", "4"),
            ("round first", "blue", "2"),
            ("round first", "red", "3"),
        ],
    ),
}


@pytest.mark.parametrize(
    ("example", "local"),
    [
        ("enriched_orders.py", "inprocess"),
        pytest.param("enriched_orders.py", "", marks=pytest.mark.long),
        *((example, local) for example in ("late_clicks.py", "shape_rules.py") for local in ("", "inprocess")),
    ],
)
def test_the_table_that_an_example_prints_is_exact(
    example: str, local: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is exact in the program's process and in children."""
    monkeypatch.setenv("FLOWLET_LOCAL", local)
    pattern, expected = TABLES[example]

    assert re.findall(pattern, output_of(tmp_path, example)) == expected


def test_the_table_has_the_highest_temperature_of_each_sensor(tmp_path: Path) -> None:
    """Among some 250,000 readings below 51, 56, 61, ... degrees Fahrenheit the highest is less than a tenth below."""
    output = output_of(tmp_path, "sensor_columns.py")

    found = re.findall(r"sensor-(\d)\s+\S\s+([\d.]+) °C", output)
    assert found == [(str(number), f"{(19 + 5 * number) / 1.8:.1f}") for number in range(8)]


def test_netstack_pipe_copies_a_file_through_two_processes(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    content = bytes(range(256)) * 13_000 + b"the last buffer is not full"
    source.write_bytes(content)

    output = output_of(tmp_path, "netstack_pipe.py", source, copy)

    assert output == f"all data received: {len(content)} bytes\n"
    assert copy.read_bytes() == content


def test_netstack_pipe_stays_short() -> None:
    assert len((ROOT / "examples" / "netstack_pipe.py").read_text(encoding="utf-8").splitlines()) < 80

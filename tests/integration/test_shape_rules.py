"""The example of broadcast state, run as a user runs it: its table holds every match, whichever stream was faster."""

import re
import sys
from pathlib import Path

import pytest

from bench.cluster import Process
from tests.waiting import PATIENCE_S

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "shape_rules.py"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("secret")]


@pytest.mark.parametrize("local", ["", "inprocess"])
def test_the_table_holds_each_match_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: str) -> None:
    monkeypatch.setenv("FLOWLET_LOCAL", local)

    with Process([sys.executable, str(EXAMPLE)], log=tmp_path / "stderr.txt") as process:
        code, output = process.wait(PATIENCE_S), process.stdout

    assert (code, process.stderr) == (0, "")
    assert re.findall(r"(corners first|round first|twins)\s+\S\s+(red|blue|green)\s+\S\s+(\d)", output) == [
        ("corners first", "blue", "3"),
        ("corners first", "red", "2"),
        ("corners first", "red", "4"),
        ("round first", "blue", "2"),
        ("round first", "red", "3"),
    ]

"""The example of late clicks, run as a user runs it: its table holds each minute's count and the clicks that came too
late.
"""

import re
import sys
from pathlib import Path

import pytest

from bench.cluster import Process
from tests.waiting import PATIENCE_S

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "late_clicks.py"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("secret")]


@pytest.mark.parametrize("local", ["", "inprocess"])
def test_the_table_counts_minutes_and_names_late_clicks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: str
) -> None:
    """A click out of order by less than the bound is counted; one later than the minute's end goes to the side output;
    no click is lost.
    """
    monkeypatch.setenv("FLOWLET_LOCAL", local)

    with Process([sys.executable, str(EXAMPLE)], log=tmp_path / "stderr.txt") as process:
        code, output = process.wait(PATIENCE_S), process.stdout

    assert (code, process.stderr) == (0, "")
    assert re.findall(r"(ann|bob)\s+\S\s+(\d)\s+\S\s+(\d|late)", output) == [
        ("ann", "0", "late"),
        ("ann", "0", "3"),
        ("ann", "1", "1"),
        ("ann", "2", "1"),
        ("bob", "0", "late"),
        ("bob", "0", "3"),
        ("bob", "2", "1"),
    ]

"""The example of enrichment by a broadcast table, run as a user runs it: each order once, whichever
stream was faster.
"""

import re
import sys
from pathlib import Path

import pytest

from bench.cluster import Process
from tests.waiting import PATIENCE_S

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "enriched_orders.py"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("secret")]


@pytest.mark.parametrize("local", ["inprocess", pytest.param("", marks=pytest.mark.long)])
def test_the_table_holds_each_order_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: str) -> None:
    monkeypatch.setenv("FLOWLET_LOCAL", local)

    with Process([sys.executable, str(EXAMPLE)], log=tmp_path / "stderr.txt") as process:
        code, output = process.wait(PATIENCE_S), process.stdout

    assert (code, process.stderr) == (0, "")
    assert re.findall(r"(\d)\s+\S\s+(\w+ \w+)\s+\S\s+(\d+)", output) == [
        ("1", "green tea", "900"),
        ("2", "oat milk", "199"),
        ("3", "green tea", "2250"),
        ("4", "red rice", "320"),
        ("5", "oat milk", "597"),
    ]

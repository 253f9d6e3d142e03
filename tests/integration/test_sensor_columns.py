"""The example of sensors, run as a user runs it."""

import re
import sys
from pathlib import Path

import pytest

from bench.cluster import Process
from tests.waiting import PATIENCE_S

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "sensor_columns.py"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("secret")]


def test_the_table_has_the_highest_temperature_of_each_sensor(tmp_path: Path) -> None:
    """Among some 250,000 readings below 51, 56, 61, ... degrees Fahrenheit the highest is less than a tenth below."""
    with Process([sys.executable, str(EXAMPLE)], log=tmp_path / "stderr.txt") as process:
        code, output = process.wait(PATIENCE_S), process.stdout

    assert (code, process.stderr) == (0, "")
    found = re.findall(r"sensor-(\d)\s+\S\s+([\d.]+) °C", output)
    assert found == [(str(number), f"{(19 + 5 * number) / 1.8:.1f}") for number in range(8)]

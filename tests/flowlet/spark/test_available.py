"""Without PySpark, everything but ``flowlet.spark`` works, and its error says what to install."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys
sys.modules["pyspark"] = None  # as if it were not installed
import flowlet, flowlet.datastream, flowlet.client.translate
assert not any(name.startswith(("pyspark", "pandas")) for name in sys.modules if sys.modules[name] is not None)
try:
    import {module}
except ImportError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("module", ["flowlet.spark", "flowlet.spark.gate_schema"])
def test_without_pyspark_the_error_names_the_extra(module: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(module=module)]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=True)

    assert (
        done.stdout == "MissingSparkError flowlet.spark needs PySpark 4, which is not installed here: pip install "
        "'flowlet[spark]'\n"
    )

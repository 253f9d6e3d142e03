"""The flowlet job of the example finds, while Spark pushes, exactly the results that Spark finds by itself."""

import io
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from rich.console import Console

from examples.spark_clickstream.__main__ import parse_options, report, run
from flowlet.ingest import close_producers
from tests.spark.conftest import EXECUTORS, LOCAL


@pytest.mark.long
@pytest.mark.parametrize("spark", [LOCAL, EXECUTORS], indirect=True)
def test_the_results_are_equal_row_by_row(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures and alerts are equal; the data has late, double, broken and unknown rows, and bursts."""
    monkeypatch.setenv("FLOWLET_SECRET_FILE", "set by the example")
    text = io.StringIO()
    console = Console(file=text, width=140)

    outcome = run(console, parse_options(["--rows", "20000", "--partitions", "3", "--rate", "0"]), spark, tmp_path)
    report(console, outcome)
    close_producers()

    assert outcome.differences == []
    assert 15_000 < outcome.num_events < 23_000
    assert len(outcome.alerts) >= 8, "four bursts of 14 clicks, late and double rows among them"
    assert "equal: yes" in text.getvalue()
    assert "credits granted" in text.getvalue()
    assert text.getvalue().count("alert: user") == 5

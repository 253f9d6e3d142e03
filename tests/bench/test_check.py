"""What became slower is found whatever the machine's pace is."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import check
from bench.report import Result


def document(name: str, value: float, calibration: float, unit: str = "words/s", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Result(name, unit, [value], calibration=[calibration], **more).to_json())
    return found


def test_a_machine_that_is_half_as_quick_changes_nothing() -> None:
    before = [document("rate", 100.0, 10.0), document("time", 3.0, 10.0, "s")]
    now = [document("rate", 50.0, 5.0), document("time", 6.0, 5.0, "s")]

    assert [(verdict.name, verdict.change) for verdict in check.compare(before, now)] == [("rate", 0.0), ("time", 0.0)]


def test_a_lower_rate_and_a_longer_time_are_worse() -> None:
    before = [document("rate", 100.0, 10.0), document("time", 3.0, 10.0, "s")]
    now = [document("rate", 70.0, 10.0), document("time", 6.0, 10.0, "s")]

    rate, time = check.compare(before, now)

    assert [rate.change, time.change] == pytest.approx([-0.3, -0.5])
    assert rate.is_worse(0.2)
    assert not rate.is_worse(0.4)
    assert check.report([rate, time], 0.4).splitlines() == [" -50.0%  time  WORSE", " -30.0%  rate"]


def test_peers_ratios_and_figures_that_are_new_are_not_compared() -> None:
    before = [document("peer", 100.0, 10.0, is_peer=True), document("ratio", 2.0, 10.0, "x"), document("gone", 1.0, 1.0)]
    now = [document("peer", 1.0, 10.0, is_peer=True), document("ratio", 1.0, 10.0, "x"), document("new", 1.0, 1.0)]

    assert check.compare(before, now) == []


def test_a_short_form_is_not_compared_with_a_long_one() -> None:
    before = [document("rate", 100.0, 10.0, details={"num_words": 10, "samples": [1]})]
    short, same = ([document("rate", 50.0, 10.0, details={"num_words": number, "samples": [2]})] for number in (1, 10))

    assert check.compare(before, short) == []
    assert [verdict.change for verdict in check.compare(before, same)] == [-0.5]


def test_the_cases_of_a_file_are_run_again(tmp_path: Path) -> None:
    file = tmp_path / "figures"
    file.write_text("\n".join(json.dumps(document("x", 1.0, 1.0, case=case)) for case in ("startup", "memory", "shuffle")) + "\n")

    assert check.cases_of(check.read(file)) == ["shuffle", "startup"]

"""``bench check`` measures two revisions in turns, and says which figure is slower by its rule."""

import json
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bench import check, gauges
from bench.__main__ import main
from bench.check import MIN_RATIO, Comparison, compare
from bench.gauges import GAUGES, Figure
from bench.report import Result
from tests.waiting import PATIENCE_S


def measuring(
    values: Sequence[float], calls: list[str], name: str, *, more_is_better: bool = True
) -> Callable[[str], list[Figure]]:
    """Return a gauge that gives one value after the other, and writes down that it was called."""
    following = iter(values)

    def measure(gauge: str) -> list[Figure]:
        calls.append(name)
        return [Figure(gauge, next(following), more_is_better)]

    return measure


def test_both_take_turns_and_who_begins_alternates() -> None:
    """A machine that becomes slower favours neither."""
    calls: list[str] = []

    list(compare(["words"], measuring([1.0] * 4, calls, "now"), measuring([1.0] * 4, calls, "before"), 4, 4))

    assert calls == ["before", "now", "now", "before", "before", "now", "now", "before"]


def test_both_run_at_the_same_time_if_they_are_to_run_beside_each_other() -> None:
    """Each of two measurements that run beside each other waits until the other one runs."""
    both_run = threading.Barrier(2, timeout=PATIENCE_S)

    def measure(gauge: str) -> list[Figure]:
        both_run.wait()
        return [Figure(gauge, 1.0)]

    [found] = compare(["words"], measure, measure, 3, 3, is_beside=True)

    assert found.ratios == [1.0] * 3


def test_cpu_seconds_of_each_figure_are_those_since_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that follows a job, such as its memory, takes no time and gets no figure of CPU seconds."""
    seconds = iter([1.0, 3.5, 3.51, 4.5])
    monkeypatch.setattr(gauges, "cpu_s", lambda: next(seconds))

    found = check.of_cpu(
        list(gauges.with_cpu_s([Figure("one", 100.0), Figure("one, MiB held", 7.0), Figure("other", 200.0)]))
    )

    assert [(each.name, round(each.value, 2), each.more_is_better) for each in found] == [
        ("one: CPU s", 2.5, False),
        ("other: CPU s", 0.99, False),
    ]


def test_cpu_seconds_that_a_gauge_measured_itself_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gauge does that where imports, which a process makes once, come before the figure."""
    seconds = iter([1.0, 3.5, 4.5])
    monkeypatch.setattr(gauges, "cpu_s", lambda: next(seconds))

    found = check.of_cpu(list(gauges.with_cpu_s([Figure("one", 100.0, cpu_s=1.25), Figure("other", 200.0)])))

    assert [(each.name, each.value) for each in found] == [("one: CPU s", 1.25), ("other: CPU s", 1.0)]


def test_ratios_are_taken_within_a_pair_and_the_median_decides() -> None:
    """The pace doubles from pair to pair, which changes nothing; one bad pair of three neither."""
    now = measuring([100.0, 200.0, 40.0], [], "now")
    before = measuring([100.0, 200.0, 400.0], [], "before")

    [found] = compare(["words"], now, before, 3, 3)

    assert found.ratios == [1.0, 1.0, 0.1]
    assert not found.is_slower


def test_a_longer_time_is_worse_and_so_is_a_lower_rate() -> None:
    """The ratio says how much better this checkout is, whatever the unit."""
    rate = check.ratio(Figure("rate", 90.0), Figure("rate", 100.0))
    time = check.ratio(Figure("time", 2.0, more_is_better=False), Figure("time", 1.0, more_is_better=False))

    assert (rate, time) == (0.9, 0.5)


@pytest.mark.parametrize(("ratio", "is_slower"), [(MIN_RATIO, False), (MIN_RATIO - 0.001, True), (1.2, False)])
def test_three_percent_are_allowed(ratio: float, is_slower: bool) -> None:
    assert Comparison("words", [ratio] * 9).is_slower is is_slower


def test_a_figure_that_looks_slower_gets_more_pairs_and_they_decide() -> None:
    """Nine pairs at 0.9 and then sixteen at 1.0 are not slower."""
    calls: list[str] = []

    [found] = compare(
        ["words"], measuring([0.9] * 9 + [1.0] * 16, calls, "now"), measuring([1.0] * 25, [], "before"), 9, 25
    )

    assert len(calls) == 19, "of 19 pairs ten are at 1.0"
    assert not found.is_slower


def test_a_figure_that_stays_slower_is_told_after_25_pairs() -> None:
    calls: list[str] = []

    [found] = compare(["words"], measuring([0.9] * 25, calls, "now"), measuring([1.0] * 25, [], "before"), 9, 25)

    assert len(calls) == 25
    assert found.is_slower
    assert "SLOWER" in str(found)


def test_figures_of_one_side_alone_are_not_compared() -> None:
    """A new figure has no ratio, and a figure that is gone has none."""
    found: dict[str, Comparison] = {}

    check.add_pair(found, [Figure("new", 1.0), Figure("both", 2.0)], [Figure("gone", 1.0), Figure("both", 1.0)])

    assert {name: each.ratios for name, each in found.items()} == {"both": [2.0]}


def test_the_verdict_has_the_worst_first() -> None:
    results = [Result("check good", "x", [1.1]), Result("check bad", "x", [0.5])]

    lines = check.verdict(results).splitlines()

    assert lines[0].endswith("check bad  SLOWER")
    assert lines[1].endswith("check good")
    assert lines[2] == f"1 of 2 figures are slower (median ratio below {MIN_RATIO})"


def test_an_unknown_revision_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "check", "--against", "no-such-revision"])

    with pytest.raises(SystemExit, match="--against: no revision 'no-such-revision' in"):
        main()


def test_the_gauges_are_those_that_the_rule_is_for() -> None:
    expected = ("words", "programs", "windows", "columns", "state", "shuffle", "latency", "transport", "startup")
    assert tuple(GAUGES) == expected


@pytest.mark.slow
def test_a_revision_is_cloned_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The clone measures its own flowlet (``measure`` looks), and each figure is an object."""
    objects = tmp_path / "objects"
    options = ["--against", "HEAD", "--quick", "--only", "transport", "--pairs", "1", "--deciding-pairs", "1"]
    monkeypatch.setattr(sys, "argv", ["bench", "check", *options, "--json", str(objects)])

    code = main()

    assert code in (0, 1), capsys.readouterr().err
    found = [json.loads(line) for line in objects.read_text(encoding="utf-8").splitlines()]
    assert [each["name"] for each in found] == ["check transport job-1, GB/s", "check transport threads-100, GB/s"]
    assert all(each["unit"] == "x" and len(each["runs"]) == 1 for each in found)

"""The bench of slow functions: small forms of it run, and it tells a wait that is too long."""

import math
from pathlib import Path

import pytest

from bench import __main__ as bench_main
from bench import slow
from bench.jobs.slow_functions import KINDS, Beats
from bench.report import Result
from bench.slow import Waits
from tests.bench.test_main import run


@pytest.mark.slow
def test_every_wait_of_a_slow_function_is_measured() -> None:
    """Every wait is measured on real processes; the figures mean nothing here."""
    results = slow.run(1, quick=True, only=["sleep-1", "async"])

    of_async = results[len(slow.FIGURES) + 1 :]
    assert [result.name for result in of_async] == [f"slow async: {figure}" for figure in (*slow.FIGURES, "restarts")]
    assert all(result.runs[0] >= 0 for result in results)
    assert all({"owed_ms", "noise_ms", "verdicts"} <= set(result.details) for result in of_async[:-1])
    assert of_async[0].details["samples"][0]["num_results"] > 0


@pytest.mark.parametrize(
    ("value", "expected"), [(10.0, "ok"), (25.0, "ok"), (26.0, "over"), (65.0, "over"), (66.0, "FAILS")]
)
def test_a_wait_is_judged_by_what_is_owed_and_by_the_noise(value: float, expected: str) -> None:
    """20 ms are owed, 5 ms are noise."""
    assert slow.verdict(value, 20.0, 5.0) == expected


def test_a_wait_that_was_cut_fails_and_is_shown_as_the_limit() -> None:
    waits, noise = Waits(barrier=math.inf, end=12.0, last_call=0.0), Waits(barrier=30.0, end=8.0, last_call=0.0)

    results = list(slow.figures("sleep-10", KINDS["sleep-10"], [waits], noise))
    row = slow.row("sleep-10", waits, KINDS["sleep-10"], noise)

    assert [(result.name, result.runs, result.details["fails"]) for result in results] == [
        ("slow sleep-10: barrier", [10_000.0], True),
        ("slow sleep-10: last call", [0.0], False),
        ("slow sleep-10: end", [12.0], False),
        ("slow sleep-10: restarts", [0.0], False),
    ]
    assert "> 10 s (20) FAILS" in row


def test_a_case_that_fails_its_own_verdict_exits_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def figures(case: str, *_: object) -> list[Result]:
        return [Result(f"{case} figure", "ms", [1.0], {"fails": case == "slow"}, case=case)]

    monkeypatch.setattr(bench_main, "run_case", figures)

    assert (run(monkeypatch, "slow"), run(monkeypatch, "wordcount")) == (1, 0)


def test_what_a_function_says_is_seen_by_the_bench(tmp_path: Path) -> None:
    """The bench sees the calls and results of a function through a file that both have in memory."""
    with Beats.made(tmp_path / "beats") as beats:
        of_function = Beats(tmp_path / "beats")
        before = beats.has_begun, beats.emitted_at(0)

        of_function.call()
        emitted = [of_function.emit(), of_function.emit()]
        of_function.close()

        assert before == (False, 0)
        assert beats.has_begun
        assert 0 < beats.last_call_ns <= emitted[0]
        assert [beats.emitted_at(number) for number in range(3)] == [*emitted, 0]
    assert not (tmp_path / "beats").exists()

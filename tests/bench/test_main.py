"""The arguments of ``python -m bench``, and the results that are left when a case fails."""

import sys
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as bench_main
from bench.jobs.checked import WrongOutputError
from bench.report import Result


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    monkeypatch.setattr(bench_main, "configure_logging", lambda _level: None)  # it is for the whole process
    return bench_main.main()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "invalid choice: 'nothing'"),
        (["shuffle", "--peers=flnk,plain"], "--peers: no such thing: flnk; there are flink, pyflink, bytewax, plain"),
        (["all", "--words=3"], "options of one case: --words=3"),
        (["check"], "the following arguments are required: --against"),
        (["shuffle", "--against", "x"], "unrecognized arguments: --against x"),
    ],
)
def test_what_is_not_known_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, *arguments)

    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_case_that_fails_takes_nothing_of_the_others_along(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def figures(case: str, *_: Any) -> list[Result]:
        if case == "shuffle":
            raise WrongOutputError("a record is lost")
        return [Result(f"{case} figure", "x", [1.0], case=case)]

    monkeypatch.setattr(bench_main, "run_case", figures)
    page, objects = tmp_path / "page.md", tmp_path / "objects"

    with pytest.raises(WrongOutputError):
        run(monkeypatch, "all", "--markdown", str(page), "--json", str(objects))

    assert "| wordcount figure |" in page.read_text(encoding="utf-8")
    assert len(objects.read_text(encoding="utf-8").splitlines()) == 1

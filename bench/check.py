"""Whether something became slower: figures of today beside those of a file, each in proportion to a calibration loop of its own time.

Side:  any.
Rules: absolute times are never compared: a rate is divided by what the plain loop of ``bench/load.py`` did just before and after, a time is
       multiplied with it.  Only our own figures count, of cases that take the CPU and nothing else, and of the same work: a short form
       is not compared with a long one.  Ratios to peers need no calibration.
"""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

CASES: Final = ("wordcount", "shuffle", "shuffle-columnar", "scaling", "channels", "startup")
DEFAULT_TOLERANCE: Final = 0.2  # runs on one quiet machine differ by up to a tenth
_TIMES: Final = ("s", "us")
_MEASURED: Final = frozenset({"samples", "warm_up_rates"})  # what else is in the details says what the work was


@dataclass(frozen=True)
class Verdict:
    """One figure now and then; ``change`` is the gain, 0.1: a tenth better than then."""

    name: str
    change: float

    def is_worse(self, tolerance: float) -> bool:
        """Whether it lost more than that."""
        return self.change < -tolerance


def read(file: Path) -> list[dict[str, Any]]:
    """The objects of a file that ``--json`` wrote."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def relative(document: Mapping[str, Any]) -> float | None:
    """The figure in proportion to the calibration, more is better; None if it is not to be compared."""
    unit, calibration = document["unit"], document["calibration"]
    if not calibration or document.get("is_peer"):
        return None
    figure, pace = float(document["median"]), float(statistics.mean(calibration))
    if unit.endswith("/s"):
        return figure / pace
    return 1e6 / (figure * pace) if unit in _TIMES else None


def compare(before: Iterable[Mapping[str, Any]], now: Iterable[Mapping[str, Any]]) -> list[Verdict]:
    """Every figure that both have; of several with one name and work the last counts."""
    then = {work_of(document): value for document in before if (value := relative(document)) is not None}
    latest = {work_of(document): value for document in now if (value := relative(document)) is not None}
    return [Verdict(work[0], value / then[work] - 1) for work, value in latest.items() if work in then]


def work_of(document: Mapping[str, Any]) -> tuple[str, str]:
    """The figure's name, and how much was done."""
    details = {key: value for key, value in document.get("details", {}).items() if key not in _MEASURED}
    return document["name"], json.dumps(details, sort_keys=True)


def cases_of(documents: Iterable[Mapping[str, Any]]) -> list[str]:
    """The cases to run again, in the order of ``CASES``."""
    present = {document.get("case") for document in documents}
    return [case for case in CASES if case in present]


def report(verdicts: Sequence[Verdict], tolerance: float) -> str:
    """One line per figure, the worst first."""
    lines = [
        f"{verdict.change:+7.1%}  {verdict.name}{'  WORSE' if verdict.is_worse(tolerance) else ''}"
        for verdict in sorted(verdicts, key=lambda verdict: verdict.change)
    ]
    return "\n".join(lines)

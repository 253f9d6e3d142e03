"""Runs that failed once are run again, with equal faults at equal moments."""

from pathlib import Path

import pytest

from tests.chaos.chaos_plan import FaultKind, RunPlan, plan_faults
from tests.chaos.chaos_series import run_series

FILE = Path(__file__).with_name("failed_seeds.txt")


def read_failed() -> dict[int, list[FaultKind]]:
    lines = [
        line.split() for line in FILE.read_text(encoding="ascii").splitlines() if line and not line.startswith("#")
    ]
    return {int(seed): [FaultKind[name] for name in kinds.split(",")] for seed, kinds in lines}


@pytest.mark.slow
@pytest.mark.long
def test_runs_that_failed_once_go_well(tmp_path: Path) -> None:
    """The runs go one after the other; a failed one does not keep the others from running."""
    failed, lines = read_failed(), list[str]()

    def plan_of(seed: int, _: bool) -> RunPlan:
        return plan_faults(seed, failed[seed])

    summary = run_series(sorted(failed), tmp_path, lines.append, plan_of)

    assert [report.plan.seed for report in summary.reports if not report.is_right] == [], "\n".join(lines)
    assert len(summary.reports) == len(failed)


def test_the_file_names_seeds_and_kinds_of_faults() -> None:
    assert all(kinds for kinds in read_failed().values())

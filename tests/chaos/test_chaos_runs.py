"""Ten short runs with faults on real processes: nothing is lost, repeated or out of order.

``make chaos`` does many more.

Side:   any.
"""

from pathlib import Path

import pytest

from tests.chaos.chaos_plan import FaultKind, RunPlan, plan_run
from tests.chaos.chaos_series import Pace, run_series

pytestmark = pytest.mark.slow

PACE = Pace(num_records=1200, num_rules=20, seconds=2.0)
# They wait for new processes, or until a heartbeat is missed.
_TAKE_LONG = (
    FaultKind.KILL_TM_TWICE,
    FaultKind.ZOMBIE_TM,
    FaultKind.KILL_TM_IN_RESTORE,
    FaultKind.RAISE_IN_RESTORE,
    FaultKind.KILL_JM_AND_TM,
)
KINDS = tuple(kind for kind in FaultKind if kind not in _TAKE_LONG)
HALVES = {"first": range(5), "second": range(5, 10)}


def plan_of(seed: int, has_small_disk: bool = True) -> RunPlan:
    return plan_run(seed, has_small_disk=has_small_disk, kinds=KINDS)


@pytest.mark.parametrize("half", HALVES)
def test_faults_cost_no_result_and_repeat_none(tmp_path: Path, half: str) -> None:
    """Each run asserts that its faults have happened, and that nobody else was hurt.

    The runs of a half share a cluster.
    """
    lines: list[str] = []

    summary = run_series(HALVES[half], tmp_path, lines.append, plan_of, PACE)

    assert [report.plan.seed for report in summary.reports if not report.is_right] == [], "\n".join(lines)
    assert [report.plan.seed for report in summary.reports] == list(HALVES[half])
    assert all(report.num_checkpoints >= 3 for report in summary.reports)
    assert all(len(report.happened) >= len(report.plan.faults) for report in summary.reports)


def test_the_jobmanager_is_killed_in_one_of_the_runs() -> None:
    """And there are faults of every sort."""
    kinds = {fault.kind for half in HALVES.values() for seed in half for fault in plan_of(seed).faults}

    assert FaultKind.KILL_JM in kinds
    assert any(kind.name.startswith("DATA_") for kind in kinds)
    assert any(kind.is_on_control for kind in kinds)
    assert len(kinds) >= 10

"""Eight short runs with faults of 21 kinds on real processes: no record is lost, repeated or out of order.

``make chaos`` does many more.
"""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cluster import Process
from tests.chaos.chaos_plan import FaultKind, RunPlan, plan_run
from tests.chaos.chaos_series import Pace, run_series
from tests.forked_processes import ClusterStarter, fork_server

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
# Of two clusters, those four seeds of each whose plans have the most kinds between them.
HALVES = {"first": (121, 123, 124, 125), "second": (4711, 4713, 4714, 4719)}


@pytest.fixture
def processes(half: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Processes of the first half are forks of one that has imported their modules without the checks of tests.  Those
    of the other half are executed, as by ``make chaos``: each hashes texts in its own way.
    """
    monkeypatch.setenv("NETSTACK_DEBUG", "0")
    with ExitStack() as stack:
        if half == "first":
            server = stack.enter_context(fork_server("tests.cluster_modules"))
            monkeypatch.setattr(Process, "starter", ClusterStarter(server))
        else:
            monkeypatch.setattr(Process, "starter", subprocess.Popen)
        yield


def plan_of(seed: int, has_small_disk: bool = True) -> RunPlan:
    """Return the plan without processes that only take processors: the tests beside these take enough."""
    return replace(plan_run(seed, has_small_disk=has_small_disk, kinds=KINDS), num_hogs=0)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.usefixtures("processes")
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


def test_nearly_every_kind_of_fault_is_in_one_of_the_runs() -> None:
    """All kinds of faults are drawn but those of ``_TAKE_LONG``, and three of which other runs of ``make chaos`` have
    many.
    """
    kinds = {fault.kind for half in HALVES.values() for seed in half for fault in plan_of(seed).faults}

    assert set(KINDS) - kinds == {FaultKind.RAISE_IN_TIMER, FaultKind.READER_PAUSES, FaultKind.DATA_DELAY}

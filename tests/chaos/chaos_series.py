"""Runs one after another, several on one cluster, and their results together.

Units:  seconds.
"""

import os
import shutil
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from unittest.mock import patch

from tests.chaos.chaos_cluster import ChaosCluster
from tests.chaos.chaos_generator import Scale
from tests.chaos.chaos_plan import RunPlan, cluster_of, plan_cluster, plan_run
from tests.chaos.chaos_run import ChaosRun, RunReport
from tests.chaos.injections import inject

MakePlan = Callable[[int, bool], RunPlan]  # of a seed, and whether there is a small disk


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a run is: records of each source, rules, and the time in which three quarters of them are emitted."""

    num_records: int = 3000
    num_rules: int = 40
    seconds: float = 4.0


@dataclass
class Summary:
    reports: list[RunReport] = field(default_factory=list)

    def __str__(self) -> str:
        verdicts = [report.verdict for report in self.reports if report.verdict is not None]
        recoveries = sorted(each for report in self.reports for each in report.recoveries)
        kinds = Counter(fault.kind.name for report in self.reports for fault in report.plan.faults)
        num_failed = sum(not report.is_right for report in self.reports)
        num_checkpoints = sum(report.num_checkpoints for report in self.reports)
        p50, p99, longest = (percentile(recoveries, share) for share in (0.5, 0.99, 1.0))
        lost, duplicated, out_of_order, wrong = (
            sum(getattr(each, name) for each in verdicts) for name in ("lost", "duplicated", "out_of_order", "wrong")
        )
        return (
            f"{len(self.reports)} runs, {num_failed} failed, {num_checkpoints} checkpoints, {kinds.total()} faults of "
            f"{len(kinds)} kinds\n"
            f"lost {lost}, duplicated {duplicated}, out of order {out_of_order}, wrong {wrong}\n"
            f"recovery: p50 {p50:.2f} s, p99 {p99:.2f} s, the longest {longest:.2f} s, of {len(recoveries)}\n"
            f"a run took {sum(report.seconds for report in self.reports) / max(1, len(self.reports)):.1f} s\n"
            + ", ".join(f"{name} {count}" for name, count in kinds.most_common())
        )


def plan_of_seed(seed: int, has_small_disk: bool) -> RunPlan:
    """Return the plan that a run follows unless it is given another."""
    return plan_run(seed, has_small_disk=has_small_disk)


def run_series(
    seeds: Sequence[int],
    folder: Path,
    tell: Callable[[str], None],
    make_plan: MakePlan = plan_of_seed,
    pace: Pace = Pace(),
) -> Summary:
    """Run every seed; runs of one cluster follow each other on it, and ``tell`` gets a line for each.

    A failed run ends its cluster.  Logs go below ``folder``; those of a cluster without a failure are removed.
    """
    summary = Summary()
    for number, group in groupby(seeds, cluster_of):
        left = list(group)
        while left:
            place = folder / f"cluster-{number}-from-{left[0]}"
            is_right = True
            with ChaosCluster(place, plan_cluster(number)) as cluster, secret_of(cluster):
                while left and is_right:
                    report = run_plan(cluster, make_plan(left.pop(0), cluster.has_small_disk), pace)
                    summary.reports.append(report)
                    tell(str(report))
                    is_right = report.is_right
            if is_right:
                shutil.rmtree(place, ignore_errors=True)
            else:
                tell(f"    logs: {place}; again: make chaos RUNS=1 SEED={summary.reports[-1].plan.seed}")
    return summary


def run_plan(cluster: ChaosCluster, plan: RunPlan, pace: Pace = Pace()) -> RunReport:
    """Do one run; its errors are in the report."""
    started_s = time.monotonic()
    cluster.wait_until_free()
    scale = Scale(plan.seed, pace.num_records, pace.num_rules)
    run = ChaosRun(cluster, plan, cluster.folder / f"run-{plan.seed}", scale, pace.seconds)
    try:
        with cluster.hogs(plan.num_hogs):
            run.start()
            for fault in plan.faults:
                inject(run, fault)
            run.finish()
    except Exception as error:  # noqa: BLE001 - the report has it, and the next run goes on
        run.report.problem = f"{type(error).__name__}: {error}"
        if not isinstance(error, AssertionError):
            run.report.problem += f"\n{traceback.format_exc()}"
    finally:
        run.close()
    run.report.seconds = time.monotonic() - started_s
    return run.report


def secret_of(cluster: ChaosCluster) -> AbstractContextManager[object]:
    """Let the client in this process find the cluster's secret."""
    return patch.dict(os.environ, {"FLOWLET_SECRET_FILE": str(cluster.secret_file)})


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile of sorted values; 0 if there are none."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0

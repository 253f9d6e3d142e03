"""``python -m tests.chaos.soak``: one cluster and one long job, a fault every so often, exact counts at the end, and nothing that grows.

Side:   any.
Units:  seconds.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Final

from tests.chaos.chaos_cluster import ChaosCluster
from tests.chaos.chaos_generator import Scale
from tests.chaos.chaos_plan import FaultKind, plan_cluster, plan_faults
from tests.chaos.chaos_run import ChaosRun
from tests.chaos.chaos_series import percentile, secret_of
from tests.chaos.injections import inject
from tests.chaos.soak_samples import Sample, Trend, sample, trend_of

_SAMPLE_S: Final = 2.0
_RECORDS_PER_S: Final = 200  # of each source
_MORE_MIB, _MORE_FDS, _MORE_THREADS = 24.0, 6, 4
_END_S: Final = 900.0  # for the last quarter of the records, which come at once
_LEAST_LIFE_S: Final = 120.0  # a process that lived for less says nothing about growth


class Soak:
    """The samples of all processes while a job runs."""

    def __init__(self, cluster: ChaosCluster, run: ChaosRun) -> None:
        self._cluster = cluster
        self._run = run
        self._samples: dict[tuple[str, int], list[Sample]] = {}
        self._last_s = 0.0

    def look(self) -> None:
        """Check the job; take a sample if it is time for one."""
        self._run.look()
        now_s = time.monotonic()
        if now_s < self._last_s + _SAMPLE_S:
            return
        self._last_s = now_s
        processes = [("this client", os.getpid()), ("JobManager", self._cluster.job_manager.pid)]
        processes += [(f"TaskManager {place.number}", place.process.pid) for place in self._cluster.places]
        for name, pid in processes:
            if (taken := sample(pid, now_s)) is not None:
                self._samples.setdefault((name, pid), []).append(taken)

    def trends(self) -> list[Trend]:
        """Of every process that lived for long enough."""
        found = [trend_of(f"{name} ({pid})", samples) for (name, pid), samples in self._samples.items()]
        return [trend for trend in found if trend is not None and trend.seconds >= _LEAST_LIFE_S]


def soak(cluster: ChaosCluster, seed: int, seconds: float, every_s: float) -> list[str]:
    """Run for so long; what is wrong."""
    random = Random(f"soak {seed}")
    kinds = [kind for kind in FaultKind if kind is not FaultKind.DISK_FULL or cluster.has_small_disk]
    count = max(2, int(seconds / every_s))
    drawn = random.choices(kinds, [kind.weight for kind in kinds], k=count)
    plan = plan_faults(seed, drawn)
    num_records = int(_RECORDS_PER_S * seconds)
    scale = Scale(seed, num_records, max(40, num_records // 100))
    run = ChaosRun(cluster, plan, cluster.folder / "soak", scale, seconds)
    started_s = time.monotonic()
    try:
        run.start()
        watch = Soak(cluster, run)
        for number, fault in enumerate(plan.faults):
            while time.monotonic() < started_s + number * every_s:
                watch.look()
                time.sleep(0.1)  # until the next fault is due
            inject(run, fault)
            print(f"{time.monotonic() - started_s:6.0f} s: {fault.kind.name}: {run.report.happened[-1]}", flush=True)
        while time.monotonic() < started_s + seconds:
            watch.look()
            time.sleep(0.1)  # until the end
        trends = watch.trends()
        run.finish(_END_S)
    finally:
        run.close()
    run.report.seconds = time.monotonic() - started_s
    return _problems(run, trends)


def _problems(run: ChaosRun, trends: list[Trend]) -> list[str]:
    report = run.report
    recoveries = sorted(report.recoveries)
    print(f"{len(report.plan.faults)} faults, {report.num_checkpoints} checkpoints, {len(run.reader.found)} results; {report.verdict}")
    print(f"recovery: p50 {percentile(recoveries, 0.5):.2f} s, p99 {percentile(recoveries, 0.99):.2f} s, of {len(recoveries)}")
    for trend in trends:
        print(trend)
    problems = [] if report.is_right else [f"the results are wrong: {report.verdict}"]
    for trend in trends:
        if not trend.name.startswith("this client"):  # it keeps every result
            problems += trend.grown(_MORE_MIB, _MORE_FDS, _MORE_THREADS)
    return problems


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every-s", type=float, default=20.0, help="from one fault to the next")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ["NETSTACK_DEBUG"] = "0"
    folder = Path(tempfile.mkdtemp(prefix="flowlet-soak-"))
    print(f"SEED={options.seed}; logs: {folder}", flush=True)
    with ChaosCluster(folder / "cluster", plan_cluster(options.seed)) as cluster, secret_of(cluster):
        problems = soak(cluster, options.seed, options.minutes * 60, options.every_s)
    for problem in problems:
        print(f"WRONG: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

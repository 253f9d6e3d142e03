"""``python -m tests.chaos.soak``: one cluster and one long job, a fault every so often, exact counts at the end, and no
growth.

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

import msgspec

from tests.chaos.chaos_cluster import ChaosCluster
from tests.chaos.chaos_generator import Scale
from tests.chaos.chaos_plan import FaultKind, plan_cluster, plan_faults
from tests.chaos.chaos_run import ChaosRun
from tests.chaos.chaos_series import percentile, run_plan, secret_of
from tests.chaos.injections import inject
from tests.chaos.soak_samples import Sample, Trend, left_over, sample, trend_of

_SAMPLE_S: Final = 2.0
_RECORDS_PER_S: Final = 200  # of each source
_MORE_MIB, _MORE_FDS, _MORE_THREADS = 24.0, 8, 6
_END_S: Final = 900.0  # for the last quarter of the records, which come at once
_LEAST_LIFE_S: Final = 120.0  # a process that lived for less says nothing about growth


class Watch:
    """The samples of all processes of a cluster, and of this one."""

    def __init__(self, cluster: ChaosCluster) -> None:
        self._cluster = cluster
        self._samples: dict[tuple[str, int], list[Sample]] = {}
        self._last_s = 0.0

    def look(self) -> None:
        """Take a sample if it is time for one."""
        now_s = time.monotonic()
        if now_s < self._last_s + _SAMPLE_S:
            return
        self._last_s = now_s
        for name, taken in self.now():
            self._samples.setdefault(name, []).append(taken)

    def now(self) -> list[tuple[tuple[str, int], Sample]]:
        processes = [("this client", os.getpid()), ("JobManager", self._cluster.job_manager.pid)]
        processes += [(f"TaskManager {place.number}", place.process.pid) for place in self._cluster.places]
        found = [((name, pid), sample(pid, time.monotonic())) for name, pid in processes]
        return [(name, taken) for name, taken in found if taken is not None]

    def write(self, path: Path) -> None:
        """Write all samples, for readers who want the details or doubt a verdict."""
        path.write_bytes(
            msgspec.json.encode({f"{name} ({pid})": samples for (name, pid), samples in self._samples.items()})
        )

    def trends(self) -> list[Trend]:
        """Return the trend of every process that lived for long enough."""
        found = [trend_of(f"{name} ({pid})", samples) for (name, pid), samples in self._samples.items()]
        return [trend for trend in found if trend is not None and trend.seconds >= _LEAST_LIFE_S]


def soak(cluster: ChaosCluster, seed: int, seconds: float, every_s: float) -> list[str]:
    watch = Watch(cluster)
    warm_up = run_plan(cluster, plan_faults(0, []))
    cluster.wait_until_free()
    idle = {name.partition(" ")[0]: taken for (name, _), taken in watch.now()}  # one of the TaskManagers stands for all
    num_records = int(_RECORDS_PER_S * seconds)
    scale = Scale(seed, num_records, max(40, num_records // 100))
    plan = plan_faults(seed, _kinds(cluster, seed, max(2, int(seconds / every_s))))
    run = ChaosRun(cluster, plan, cluster.folder / "soak", scale, seconds)
    try:
        _run_job(run, watch, seconds, every_s)
    finally:
        run.close()
    watch.write(cluster.folder / "samples.json")
    cluster.wait_until_free()
    problems = [] if warm_up.is_right else [f"the first job: {warm_up}"]
    for (name, pid), taken in watch.now():
        problems += left_over(f"{name} ({pid})", idle[name.partition(" ")[0]], taken, _MORE_FDS, _MORE_THREADS)
    return problems + _problems(run, watch.trends())


def _kinds(cluster: ChaosCluster, seed: int, count: int) -> list[FaultKind]:
    kinds = [kind for kind in FaultKind if kind is not FaultKind.DISK_FULL or cluster.has_small_disk]
    return Random(f"soak {seed}").choices(kinds, [kind.weight for kind in kinds], k=count)


def _run_job(run: ChaosRun, watch: Watch, seconds: float, every_s: float) -> None:
    started_s = time.monotonic()

    def wait_until(due_s: float) -> None:
        while time.monotonic() < started_s + due_s:
            run.look()
            watch.look()
            time.sleep(0.1)  # until the next fault, or the end

    run.start()
    for number, fault in enumerate(run.plan.faults):
        wait_until(number * every_s)
        inject(run, fault)
        print(f"{time.monotonic() - started_s:6.0f} s: {fault.kind.name}: {run.report.happened[-1]}", flush=True)
    wait_until(seconds)
    run.finish(_END_S)
    run.report.seconds = time.monotonic() - started_s


def _problems(run: ChaosRun, trends: list[Trend]) -> list[str]:
    report = run.report
    recoveries = sorted(report.recoveries)
    print(
        f"{len(report.plan.faults)} faults, {report.num_checkpoints} checkpoints, {len(run.reader.found)} results; "
        f"{report.verdict}"
    )
    print(
        f"recovery: p50 {percentile(recoveries, 0.5):.2f} s, p99 {percentile(recoveries, 0.99):.2f} s, of "
        f"{len(recoveries)}"
    )
    for trend in trends:
        print(trend)
    problems = [] if report.is_right else [f"the results are wrong: {report.verdict}"]
    # Which keeps every result.
    grown = [trend.grown(_MORE_MIB) for trend in trends if not trend.name.startswith("this client")]
    return problems + [each for each in grown if each is not None]


def main() -> int:
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

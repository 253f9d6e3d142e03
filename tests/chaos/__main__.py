"""``python -m tests.chaos``: runs with faults chosen by seed, and what became of each."""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.chaos_plan import FaultKind, cluster_of, plan_cluster, plan_faults
from tests.chaos.chaos_series import plan_of_seed, run_series


def main() -> int:
    """Run the seeds; return the exit status: 1 if a run has failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument(
        "--seed", type=int, default=None, help="of the first run; the others follow.  Default: by the clock"
    )
    parser.add_argument(
        "--faults", default="", help="the kinds of the faults of every run, in their order, with commas between them"
    )
    parser.add_argument("--plan", action="store_true", help="print the plans, and run nothing")
    options = parser.parse_args()
    os.environ["NETSTACK_DEBUG"] = "0"
    seed = int(time.time()) % 1_000_000 * 10 if options.seed is None else options.seed
    kinds = [FaultKind[name.strip().upper()] for name in options.faults.split(",") if name.strip()]
    make_plan = (lambda each, _: plan_faults(each, kinds)) if kinds else plan_of_seed
    seeds = range(seed, seed + options.runs)
    if options.plan:
        for each in seeds:
            plan = make_plan(each, True)
            print(each, plan_cluster(cluster_of(each)), plan, *(fault.kind.text for fault in plan.faults), sep="\n    ")
        return 0
    folder = Path(tempfile.mkdtemp(prefix="flowlet-chaos-"))
    print(f"{options.runs} runs from SEED={seed}; logs: {folder}", flush=True)
    started_s = time.monotonic()
    summary = run_series(seeds, folder, lambda line: print(line, flush=True), make_plan)
    print(f"{summary}\nin {time.monotonic() - started_s:.0f} s")
    return 1 if any(not report.is_right for report in summary.reports) else 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m tests.windows``: random cases of windows on the operator and on a plain interpreter, and those that
differ.
"""

import argparse
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.windows.window_runs import differing, report

_CASES_PER_PART = 250


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.windows", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the first one; the next one has the next seed")
    parser.add_argument("--reports", type=int, default=3, help="how many of those that differ are shown")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="at the same time")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.cases)
    parts = [seeds[start : start + _CASES_PER_PART] for start in range(0, len(seeds), _CASES_PER_PART)]
    started = time.perf_counter()
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as processes:
        found = [seed for part in processes.map(differing, parts) for seed in part]
    for seed in found[: options.reports]:
        print(f"\n{'=' * 100}\n{report(seed)}")
    if len(found) > options.reports:
        print(f"\nseeds that differ: {', '.join(map(str, found))}")
    print(
        f"\n{len(seeds)} cases from seed {options.seed} in {time.perf_counter() - started:.0f} s: {len(found)} differ"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

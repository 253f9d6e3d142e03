"""``python -m tests.differential``: run random programs on flowlet and record by record, and show those that differ."""

import argparse
import os
import sys
import time

from tests.differential.campaign import differing_of, local_cluster, report
from tests.differential.programs import random_program


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--programs", type=int, default=5_000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the first one; the next one has the next seed")
    parser.add_argument("--reports", type=int, default=3, help="how many of those that differ are made small and shown")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="at the same time")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.programs)
    started = time.perf_counter()
    found: dict[int, str] = {}
    num_done = 0
    for num_more, more in differing_of(seeds, options.processes):
        num_done += num_more
        found |= more
        if sys.stderr.isatty():
            print(f"\r{num_done} programs, {len(found)} differ", end="", file=sys.stderr)
    elapsed_s = time.perf_counter() - started
    _show(dict(list(found.items())[: options.reports]))
    if len(found) > options.reports:
        print(f"\nseeds that differ: {', '.join(map(str, found))}")
    print(f"\n{num_done} programs from seed {options.seed} in {elapsed_s:.0f} s: {len(found)} differ")
    return 1 if found else 0


def _show(problems: dict[int, str]) -> None:
    if not problems:
        return
    with local_cluster() as run:
        for seed, problem in problems.items():
            print(f"\n{'=' * 100}\n{random_program(seed)}\n{'-' * 100}\n{report(seed, problem, run)}")


if __name__ == "__main__":
    sys.exit(main())

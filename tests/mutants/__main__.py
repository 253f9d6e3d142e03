"""``python -m tests.mutants``: every historical bug put back in, and the table of the tests that noticed."""

import argparse
import sys
import time

from tests.mutants.registry import MUTANTS
from tests.mutants.runner import MutantResult, run_healthy, run_mutants


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="only mutants whose id contains this")
    parser.add_argument("--parallel", type=int, default=2)
    options = parser.parse_args()
    numbers = [number for number, mutant in enumerate(MUTANTS) if options.only in mutant.id]
    started = time.perf_counter()
    healthy = run_healthy(sorted({MUTANTS[number].killed_by for number in numbers}))
    if healthy.returncode:
        print(healthy.stdout)
        print("the named tests do not pass even without a mutant")
        return 1
    results = run_mutants(numbers, options.parallel)
    _print_table(results)
    survivors = [result for result in results if not result.is_killed]
    for result in survivors:
        print(f"\n{result.mutant.id}: {result.verdict.value}\n{result.output}")
    print(
        f"\n{len(results) - len(survivors)} of {len(results)} mutants killed in {time.perf_counter() - started:.0f} s"
    )
    return len(survivors)


def _print_table(results: list[MutantResult]) -> None:
    print(f"{'mutant':44} {'FLINK':16} {'verdict':18} {'s':>5}  killed by")
    for result in results:
        mutant = result.mutant
        print(f"{mutant.id:44} {mutant.flink:16} {result.verdict.value:18} {result.seconds:5.1f}  {mutant.killed_by}")


sys.exit(main())

"""``python -m tests.sim``: run worlds until so many steps were made, or see one seed again."""

import argparse
import os
import sys
import time

os.environ.setdefault("NETSTACK_DEBUG", "1")  # before the stack is imported: its ownership checks are on

from tests.sim.swarm import run_swarm, silent_logs
from tests.sim.world import SimulationError, World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000, help="how many steps at least")
    parser.add_argument("--seed", type=int, default=0, help="the first world; the next one has the next seed")
    parser.add_argument("--trace", action="store_true", help="run this one world only, and print its last steps")
    options = parser.parse_args()
    started = time.perf_counter()
    with silent_logs():
        if options.trace:
            return _trace(options.seed)
        try:
            result = run_swarm(options.steps, options.seed)
        except SimulationError as error:
            print(error)
            return 1
    elapsed_s = time.perf_counter() - started
    print(f"{result} in {elapsed_s:.1f} s ({result.num_steps / elapsed_s:,.0f} steps/s)")
    return 0


def _trace(seed: int) -> int:
    world = World(seed, is_traced=True)
    try:
        world.run()
    except SimulationError as error:
        print(*world.trace, sep="\n")
        print(error)
        if error.__cause__ is not None:
            import traceback

            traceback.print_exception(error.__cause__)
        return 1
    print(*world.trace, sep="\n")
    print(f"seed {seed}: {world.step_number} steps, hash {world.trace_hash:08x}")
    return 0


sys.exit(main())

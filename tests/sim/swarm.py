"""Many worlds, one after the other, each from its own seed."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog

from tests.sim.world import World


@dataclass
class SwarmResult:
    num_steps: int = 0
    num_worlds: int = 0
    num_faults: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    # By seed: how many steps, and one number for all of them.
    traces: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        outcomes = ", ".join(f"{number} {outcome}" for outcome, number in sorted(self.outcomes.items()))
        return (
            f"{self.num_steps:,} steps in {self.num_worlds:,} worlds with {self.num_faults:,} faults; consumers: "
            f"{outcomes}"
        )


@contextmanager
def silent_logs() -> Iterator[None]:
    """The stack's warnings are not printed: in a simulated world faults are everyday business."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


def run_swarm(num_steps: int, first_seed: int = 0) -> SwarmResult:
    """Run worlds from ``first_seed`` on, until ``num_steps`` steps were made.

    Raises:
        SimulationError: an invariant broke.
    """
    result = SwarmResult()
    while result.num_steps < num_steps:
        world = World(first_seed + result.num_worlds)
        result.num_steps += world.run()
        result.traces[world.seed] = world.step_number, world.trace_hash
        result.num_worlds += 1
        result.num_faults += len(world.mix.faults)
        result.outcomes.update(consumer.state for consumer in world.consumers)
    return result


def traces_of(seeds: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return, by seed, the number of steps and one number for all of them.

    The invariants are not looked at: nor may the steps depend on that.
    """
    traces = {}
    for seed in seeds:
        world = World(seed, is_checked=False)
        world.run()
        traces[seed] = world.step_number, world.trace_hash
    return traces

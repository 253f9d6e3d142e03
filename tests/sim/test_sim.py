"""The whole stack in simulated worlds: ``make sim STEPS=...`` runs any number of steps, this file 100,000 in every test
run.
"""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.sim.streams import Stream
from tests.sim.swarm import SwarmResult, run_swarm, silent_logs, traces_of
from tests.sim.world import SimulationError, World

NUM_STEPS = 100_000
NUM_PARTS = 2
NUM_REPLAYED = 15  # of the worlds of each part: they make their steps twice
FIRST_SEED = int(os.environ.get("SIM_SEED", "1"))


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    with silent_logs():
        yield


@pytest.mark.slow
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_every_invariant_holds_after_every_step(part: int, capsys: pytest.CaptureFixture[str]) -> None:
    """I1-I5, I8, I10 and I11 hold after each of 100,000 steps (a half here), liveness at the end of every world; seeds
    repeat their steps.
    """
    result = run_swarm(NUM_STEPS // NUM_PARTS, FIRST_SEED + part * 10_000)

    with capsys.disabled():
        print(f"\n  simulated: {result}")
    assert result.num_steps >= NUM_STEPS // NUM_PARTS
    assert set(result.outcomes) == {"finished", "failed", "cancelled"}, "the faults happen, and not always"
    again = traces_of(list(result.traces)[:NUM_REPLAYED])
    assert len(again) == NUM_REPLAYED
    assert again.items() <= result.traces.items(), "the same seed makes other steps"


@pytest.mark.slow
def test_the_steps_do_not_depend_on_the_hashes_of_strings() -> None:
    """The steps are equal in another process, with other hashes: the order of no set or dictionary may matter."""
    program = "from tests.sim.swarm import *\nwith silent_logs(): print(traces_of(range(1, 16)))"
    hashes = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=600, check=True
        )
        hashes.add(done.stdout)

    assert len(hashes) == 1


def test_a_broken_invariant_names_its_seed_and_how_to_replay_it() -> None:
    """A reader of the failure can see it again."""
    world = World(8)
    for consumer in world.consumers:
        consumer.streams = [Stream("what nobody wrote") for _ in consumer.streams]

    with pytest.raises(SimulationError, match=r"seed 8, step \d+.*\n.*\n.*make sim SEED=8 STEPS=1"):
        world.run()


def test_a_swarm_counts_what_it_did() -> None:
    """A swarm counts steps, worlds, faults and the ends of its consumers."""
    result = run_swarm(1000)

    assert isinstance(result, SwarmResult)
    assert result.num_steps >= 1000
    assert result.num_worlds >= 1
    assert sum(result.outcomes.values()) >= result.num_worlds

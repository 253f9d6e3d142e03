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
SEEDS_PER_PART = 10_000
NUM_REPLAYED = 15  # of the worlds of each part: they make their steps twice
FIRST_SEED = int(os.environ.get("SIM_SEED", "1"))


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    with silent_logs():
        yield


@pytest.fixture(scope="module")
def replayed() -> dict[int, tuple[int, int]]:
    """The steps of the first worlds of each part."""
    starts = [FIRST_SEED + part * SEEDS_PER_PART for part in range(NUM_PARTS)]
    with silent_logs():
        return traces_of(seed for start in starts for seed in range(start, start + NUM_REPLAYED))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_every_invariant_holds_after_every_step(
    part: int, replayed: dict[int, tuple[int, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    """I1-I5, I8, I10 and I11 hold after each of 100,000 steps (a half here) for the node that has made it and for all
    connections, and for all nodes after every 32 steps; liveness at the end of every world; seeds repeat their steps.
    """
    result = run_swarm(NUM_STEPS // NUM_PARTS, FIRST_SEED + part * SEEDS_PER_PART)

    with capsys.disabled():
        print(f"\n  simulated: {result}")
    assert result.num_steps >= NUM_STEPS // NUM_PARTS
    assert set(result.outcomes) == {"finished", "failed", "cancelled"}, "the faults happen, and not always"
    seeds = list(result.traces)[:NUM_REPLAYED]
    assert len(seeds) == NUM_REPLAYED
    assert {seed: result.traces[seed] for seed in seeds} == {seed: replayed[seed] for seed in seeds}, (
        "the same seed makes other steps"
    )


@pytest.mark.slow
def test_the_steps_do_not_depend_on_the_hashes_of_strings(replayed: dict[int, tuple[int, int]]) -> None:
    """The steps are equal in another process, with other hashes: the order of no set or dictionary may matter."""
    seeds = list(replayed)[:NUM_REPLAYED]
    program = f"from tests.sim.swarm import *\nwith silent_logs(): print(traces_of({seeds}), hash('a text'))"
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    traces, _, other_hash = done.stdout.strip().rpartition(" ")

    assert other_hash != str(hash("a text"))
    assert traces == str({seed: replayed[seed] for seed in seeds})


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

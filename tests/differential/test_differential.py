"""Random programs do on flowlet what they do record by record.

``make differential`` runs thousands of them, this file the 200 of every test run.
"""

from functools import partial

import pytest

from flowlet.testing.mini_cluster import MiniCluster
from tests.differential import engine
from tests.differential.campaign import differing, report
from tests.differential.programs import random_program

NUM_PROGRAMS = 200
NUM_PARTS = 4


@pytest.mark.slow
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_programs_do_what_they_do_record_by_record(part: int) -> None:
    """Each task makes the expected calls with the expected records in their order; results and error are as
    expected.
    """
    seeds = range(part * NUM_PROGRAMS // NUM_PARTS, (part + 1) * NUM_PROGRAMS // NUM_PARTS)
    with MiniCluster(num_task_managers=1) as cluster:
        run = partial(engine.run, cluster=cluster)
        found = differing(seeds, run)
        first = report(*next(iter(found.items())), run) if found else ""

    assert not found, f"{len(found)} of {len(seeds)} programs differ: {sorted(found)}\n\n{first}"


def test_a_seed_always_gives_the_same_program() -> None:
    assert [str(random_program(seed)) for seed in range(50)] == [str(random_program(seed)) for seed in range(50)]

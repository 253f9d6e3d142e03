"""The order in which workers of pytest-xdist run the files of tests.

A file is run by one worker.  Files that start clusters wait much and compute in bursts: they come first, the longest in
front, and no more than ``MAX_CLUSTERS`` workers run them at a time, so that clusters do not starve each other while the
other workers compute.  The short files at the end fill what is left: no worker waits long for the last one.

Absent: measured durations.  They would differ by machine, and a new file would have none.
"""

from collections.abc import Collection, Mapping
from typing import Final

MAX_CLUSTERS: Final = 2
# Spark starts once per worker and kind, and its local clusters of one machine share a folder, which the fixture empties
# at its end.
SPARK: Final = "tests/spark"
# What looks at the sources of the product: their trees are made once in a process.
SOURCES: Final = "tests/syntax_trees.py"
OF_SOURCES: Final = (
    "tests/frozen/test_options.py",
    "tests/test_architecture.py",
    "tests/test_dependencies.py",
    "tests/test_inventory.py",
    "tests/test_layering.py",
    "tests/test_msgspec_types.py",
    "tests/test_private_names.py",
    "tests/test_waits.py",
)
# What starts processes, the longest first.
CLUSTERS: Final = (
    SPARK,
    "tests/integration/test_bench.py",
    "tests/integration/test_processes.py",
    "tests/bench/test_nexmark.py",
    "tests/integration/test_word_count.py",
    "tests/integration/test_task_manager_leaks.py",
    "tests/bench/test_programs.py",
    "tests/chaos/test_chaos_runs.py",
    "tests/chaos/test_failed_seeds.py",
    "tests/attack/",
    "tests/integration/",
    "tests/kafka/",
    "tests/test_packaging.py",
    "tests/flowlet/cli/test_main.py",
    "tests/flowlet/client/test_objects_of_main_programs.py",
    "tests/flowlet/client/test_starts_of_main_programs.py",
    "tests/flowlet/client/test_what_users_see.py",
    "tests/flowlet/client/test_progress.py",
)
# What computes for long, in few tests.
LONG: Final = (
    SOURCES,
    "tests/sim/test_sim.py",
    "tests/differential/test_differential.py",
    "tests/flowlet/operators/test_chunks_or_records.py",
    "tests/flowlet/operators/test_keyed_operators_in_back_ends.py",
    "tests/flowlet/windows/test_keys_that_have_ended.py",
)


def scope_of(nodeid: str) -> str:
    """Return the tests that one worker runs as a whole: a file, all of ``tests/spark``, or all that looks at the
    sources.
    """
    file = nodeid.partition("::")[0]
    if file.startswith(f"{SPARK}/"):
        return SPARK
    return SOURCES if file in OF_SOURCES else file


def starts_clusters(scope: str) -> bool:
    """Whether its tests start processes that compute."""
    return scope.startswith(CLUSTERS)


def next_scope(num_tests: Mapping[str, int], running: Collection[str]) -> str:
    """The scope that a free worker begins with.

    Args:
        num_tests: of each scope that nobody has begun; at least one.
        running: what the other workers have not finished.
    """
    may_start_clusters = sum(map(starts_clusters, running)) < MAX_CLUSTERS

    def rank(scope: str) -> tuple[bool, int, int]:
        is_cluster = starts_clusters(scope)
        first = CLUSTERS if is_cluster else LONG
        place = next((place for place, prefix in enumerate(first) if scope.startswith(prefix)), len(first))
        return is_cluster is not may_start_clusters, place, -num_tests[scope]

    return min(num_tests, key=rank)

"""The order in which workers run the files of tests."""

from pathlib import Path

from tests import schedule
from tests.schedule import MAX_CLUSTERS, SOURCES, SPARK, next_scope, scope_of, starts_clusters

ROOT = Path(__file__).resolve().parent.parent
BENCH, WORDS, LATE = (f"tests/integration/test_{name}.py" for name in ("bench", "word_count", "examples"))
SIM, LARGE, SMALL = "tests/sim/test_sim.py", "tests/netstack/test_large.py", "tests/netstack/test_small.py"
NUM_TESTS = {SMALL: 2, LATE: 2, LARGE: 90, SIM: 7, WORDS: 18, BENCH: 31, SPARK: 32}


def test_a_file_is_run_by_one_worker_and_so_are_all_of_spark_and_all_of_the_sources() -> None:
    assert scope_of("tests/netstack/test_large.py::TestA::test_b[a::b]") == LARGE
    assert scope_of("tests/test_waits.py::test_a") == scope_of("tests/test_layering.py::test_b[1]") == SOURCES
    assert scope_of("tests/spark/test_rows.py::test_b") == scope_of("tests/spark/test_stall.py::test_c[1]") == SPARK


def test_clusters_come_first_then_what_takes_long_then_many_tests() -> None:
    waiting, order = dict(NUM_TESTS), []

    while waiting:
        order.append(next_scope(waiting, []))
        del waiting[order[-1]]

    assert order == [SPARK, BENCH, WORDS, LATE, SIM, LARGE, SMALL]


def test_so_many_workers_start_clusters_at_a_time_and_no_more() -> None:
    """No further worker starts clusters unless nothing else is left."""
    assert MAX_CLUSTERS == 2
    assert next_scope(NUM_TESTS, [LATE, SMALL]) == SPARK
    assert next_scope(NUM_TESTS, [LATE, BENCH]) == SIM
    assert next_scope({WORDS: 18}, [LATE, BENCH]) == WORDS


def test_what_is_listed_exists() -> None:
    """Listed files exist: a file that was renamed would silently come last."""
    listed = (*schedule.CLUSTERS, *schedule.LONG, *schedule.OF_SOURCES)

    assert [name for name in listed if not (ROOT / name).exists()] == []
    assert starts_clusters(SPARK)
    assert not starts_clusters(SIM)

"""The effects of a sink on the process that it runs in."""

import contextlib
import gc
from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark", reason="needs the extra 'spark'")

from flowlet.spark.data_source import collecting_rarely


@pytest.fixture(autouse=True)
def _thresholds_come_back() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("before", "inside"),
    [((700, 10, 5), (50_000, 10, 5)), ((0, 10, 10), (0, 10, 10)), ((90_000, 3, 3), (90_000, 3, 3))],
)
def test_the_collector_runs_rarely_for_a_while(before: tuple[int, int, int], inside: tuple[int, int, int]) -> None:
    """The collector runs as before afterwards, whatever happened; one that is off, or rarer still, is left alone."""
    gc.set_threshold(*before)

    with contextlib.suppress(ZeroDivisionError), collecting_rarely():
        found = gc.get_threshold()
        _ = 1 // 0

    assert found == inside
    assert gc.get_threshold() == before


def test_sinks_of_several_threads_leave_no_trace() -> None:
    """Python's collector gets its threshold back, in whatever order the sinks end."""
    gc.set_threshold(700, 10, 10)
    first, second = collecting_rarely(), collecting_rarely()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)

    assert gc.get_threshold() == (700, 10, 10)

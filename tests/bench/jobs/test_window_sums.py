"""All ways to sum in windows give the results of the loop, with many windows, as in a long run."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bench import windows
from bench.jobs import checked_work, window_sum_columns, window_sums
from bench.jobs.checked import Reports, WrongOutputError
from bench.jobs.window_sum_columns import Rows
from bench.peers import window_sum_loops
from flowlet.datastream import StreamExecutionEnvironment
from tests.bench.jobs.run_here import run_here

NUM_RECORDS = 20_000  # 400 ms of event time
WINDOW_MS = 100


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    caches = checked_work.expected, window_sum_columns.expected
    for module in (window_sums, window_sum_columns, window_sum_loops):
        monkeypatch.setattr(module, "WINDOW_MS", WINDOW_MS)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize("form", ["friendly", "twin"])
@pytest.mark.parametrize("way", ["reduce", "aggregate"])
def test_functions_give_the_sums_of_the_loop(way: str, form: str) -> None:
    work = windows.work_of(way, form, 10, NUM_RECORDS)

    collected = run_here(work)

    assert (collected.num_outputs, collected.numbers) == checked_work.expected(work)
    assert collected.num_outputs == (340 if form == "twin" else 40)


@pytest.mark.parametrize("form", ["friendly", "twin"])
def test_columns_give_the_sums_of_the_loop(form: str, tmp_path: Path) -> None:
    rows = Rows(10, NUM_RECORDS, form == "twin")
    with closing(StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)) as environment:
        window_sum_columns.build(rows, environment, tmp_path)
        environment.execute()

    reports = Reports.read(tmp_path)

    window_sum_columns.check(rows, reports)
    loop = checked_work.expected(windows.work_of("reduce", form, 10, NUM_RECORDS))
    assert window_sum_columns.expected(rows) == reports.sinks[0].last == loop.numbers
    with pytest.raises(WrongOutputError):
        window_sum_columns.check(Rows(10, NUM_RECORDS - 1, form == "twin"), reports)

"""Windows on real TaskManagers; their figures mean nothing here, but their results are checked."""

import pytest

from bench import windows
from bench.jobs import checked_work, window_sum_columns
from bench.jobs.window_sum_columns import Rows


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.long), 2])
def test_all_ways_give_the_sums_of_the_loop(number: int) -> None:
    """Outputs are compared in every run."""
    results = windows.run(1, quick=True, keys=["10"], taskmanagers=[number])

    rates = {result.name: result.runs for result in results if not result.is_peer and result.unit == "records/s"}
    assert len(rates) == 2 * len(windows.WAYS)
    assert {
        f"windows {way}, 10 keys, twin, {number} TaskManager{'s' if number > 1 else ''}" for way in windows.WAYS
    } <= set(rates)
    assert all(rate > 0 for (rate,) in rates.values())


@pytest.mark.parametrize("form", ["friendly", "twin"])
def test_columns_and_the_loop_have_the_same_records(form: str) -> None:
    """Records are equal over more than one window of each key and more than one batch."""
    num_records = 260_000

    numbers = checked_work.expected(windows.work_of("reduce", form, 10, num_records)).numbers

    assert window_sum_columns.expected(Rows(10, num_records, form == "twin")) == numbers
    assert len(numbers) == (30 if form == "twin" else 20)

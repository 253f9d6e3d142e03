"""Queries with windows give what the loops give where there are many windows, as there are in a long run."""

import pytest

from bench import nexmark
from bench.jobs import checked_work, nexmark_joins, nexmark_windows
from bench.peers import nexmark_loops, nexmark_window_loops
from tests.bench.jobs.run_here import run_here

NUM_EVENTS = 3_000  # 300 ms of event time
SIZES = {"WINDOW_MS": 100, "SLIDE_MS": 20, "GAP_MS": 3, "DAY_MS": 70}


@pytest.mark.slow
@pytest.mark.parametrize("query", ["q5", "q7", "q8_windowed", "q11_windowed", "q16", "q17"])
def test_many_windows_give_what_the_loop_gives(query: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (nexmark_windows, nexmark_joins, nexmark_loops, nexmark_window_loops):
        for name, size in SIZES.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, size)
    work = nexmark.work_of(query, "friendly", NUM_EVENTS)
    checked_work.expected.cache_clear()

    collected = run_here(work)

    assert (collected.num_outputs, collected.numbers) == checked_work.expected(work)
    checked_work.expected.cache_clear()

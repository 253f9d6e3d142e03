"""NEXMark's queries on real TaskManagers; their figures mean nothing here, but their results are checked."""

import pytest

from bench import nexmark


@pytest.mark.slow
@pytest.mark.parametrize(
    "query", [pytest.param("q2", marks=pytest.mark.long), "q8", pytest.param("q11", marks=pytest.mark.long)]
)
def test_a_query_and_its_twin_give_what_the_loop_gives_on_two_taskmanagers(query: str) -> None:
    """A query without keys, one that joins, and one with timers give the loop's results; outputs are compared in every
    run.
    """
    results = nexmark.run(1, quick=True, only=[query], taskmanagers=[2])

    assert [result.name for result in results if not result.is_peer and result.unit == "records/s"] == [
        f"nexmark {query}, 2 TaskManagers",
        f"nexmark {query}, twin, 2 TaskManagers",
    ]
    assert all(rate > 0 for result in results for rate in result.runs)


def test_queries_that_look_at_one_event_after_the_other_get_more_of_them() -> None:
    one_by_one, joined = (nexmark.work_of(query, "friendly", 1001) for query in ("q1", "q3"))

    assert [each.num_records for each in one_by_one.inputs] == [8000]
    # Time goes on: no event comes again.
    assert [(each.num_made, each.num_records) for each in joined.inputs] == [(1000, 1000)]

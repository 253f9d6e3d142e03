"""The input of every engine: all readers together have the records of one reader, whatever their number."""

import itertools
import json

import pytest

from bench.jobs.work import Collected, Input, Outputs, Work

CONTENT = Input("bench.jobs.made_lines:event_line", 12, 31)
WORK = Work(
    "a name", "json_dicts", (CONTENT, Input("bench.jobs.made_lines:customer_line", 2, 2)), "streams", "loops", "flows"
)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_all_readers_together_give_what_one_gives(parallelism: int) -> None:
    shares = [
        itertools.islice(itertools.cycle(CONTENT.ready(subtask, parallelism)), CONTENT.share(subtask, parallelism))
        for subtask in range(parallelism)
    ]

    together = sorted(itertools.chain.from_iterable(shares))

    assert together == sorted(CONTENT.records())
    assert len(together) == 31


def test_readers_whose_cycles_would_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="12 different records cannot be shared by 5 readers"):
        CONTENT.ready(0, 5)


@pytest.mark.parametrize(("num_made", "num_records"), [(3, 10), (12, 10), (0, 10)])
def test_an_input_that_readers_cannot_share_is_refused(num_made: int, num_records: int) -> None:
    with pytest.raises(ValueError, match=f"{num_records} records of {num_made}"):
        Input("module:function", num_made, num_records)


def test_a_work_survives_json() -> None:
    assert Work.from_options(json.loads(json.dumps(WORK.as_options()))) == WORK


def test_a_smaller_work_has_fewer_records_in_its_first_input_alone() -> None:
    smaller = WORK.with_at_most(7)

    assert [(each.num_made, each.num_records) for each in smaller.inputs] == [(6, 7), (2, 2)]
    assert WORK.with_at_most(1000) == WORK


def test_outputs_are_counted_and_the_last_or_the_sum_of_each_text_is_kept() -> None:
    last, total = Collected(Outputs.LAST), Collected(Outputs.SUM)

    for collected in (last, total):
        collected.add([("a", 1), ("b", 2)])
        collected.add([("a", 5)])

    assert (last.num_outputs, last.numbers) == (3, {"a": 5, "b": 2})
    assert (total.num_outputs, total.numbers) == (3, {"a": 6, "b": 2})

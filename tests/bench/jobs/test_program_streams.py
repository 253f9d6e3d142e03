"""Every program and every query gives in the DataStream API what the plain loop gives, in one process."""

from contextlib import closing

import pytest

from bench import nexmark, programs
from bench.jobs import checked_work
from bench.jobs.checked import Reports, SinkReport, WrongOutputError
from bench.jobs.work import Collected, Work, imported
from flowlet.datastream import StreamExecutionEnvironment

WORKS = [
    *(programs.work_of(program, form, 400) for program in programs.PROGRAMS for form in programs.FORMS),
    *(
        nexmark.work_of(query, form, 4_000).with_at_most(4_000)
        for query in nexmark.ALL_QUERIES
        for form in nexmark.forms_of(query, programs.FORMS)
    ),
]


def run_here(work: Work) -> Collected:
    collected = Collected(work.outputs)
    with closing(StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)) as environment:
        inputs = [environment.from_collection(list(each.records())) for each in work.inputs]
        collected.add(list(imported(f"{work.streams}:{work.program}")(*inputs).execute_and_collect()))
    return collected


@pytest.mark.slow
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_a_stream_gives_what_the_loop_gives(work: Work) -> None:
    collected = run_here(work)

    assert collected.num_outputs > 0
    assert (collected.num_outputs, collected.numbers) == checked_work.expected(work)


def reports_of(*sinks: tuple[int, dict[str, int]]) -> Reports:
    return Reports(0, tuple(SinkReport(num_records, 1, numbers) for num_records, numbers in sinks))


def test_another_result_than_the_loops_is_wrong() -> None:
    work = programs.work_of("json_dicts", "friendly", 100)
    num_outputs, numbers = checked_work.expected(work)
    some = next(iter(numbers))

    checked_work.check(work, reports_of((num_outputs, numbers)))
    with pytest.raises(WrongOutputError, match=f"{num_outputs + 1} outputs instead of {num_outputs}"):
        checked_work.check(work, reports_of((num_outputs, numbers), (1, {})))
    with pytest.raises(WrongOutputError, match=f"'{some}' ended at"):
        checked_work.check(work, reports_of((num_outputs, numbers | {some: 0})))
    with pytest.raises(WrongOutputError, match="were at two subtasks"):
        checked_work.check(work, reports_of((num_outputs, numbers), (0, {some: numbers[some]})))


def test_sums_of_several_sinks_are_added() -> None:
    work = nexmark.work_of("q0", "friendly", 100).with_at_most(100)
    num_outputs, numbers = checked_work.expected(work)
    rest = numbers | {"bid": numbers["bid"] - 7}

    checked_work.check(work, reports_of((num_outputs - 1, rest), (1, {"bid": 7})))
    with pytest.raises(WrongOutputError, match="'bid' ended at"):
        checked_work.check(work, reports_of((num_outputs - 1, rest), (1, {"bid": 8})))

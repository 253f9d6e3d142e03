from collections.abc import Iterator
from typing import Any

import pytest

from flowlet.fusing.generated import failed_call
from flowlet.fusing.stages import Stage, Step, StepKind, flat_stage, has_inlined, list_stage, stages_of

MAP, FILTER, FLAT_MAP = StepKind.MAP, StepKind.FILTER, StepKind.FLAT_MAP


def inlined(record: Any) -> Any:
    return record[0], record[1]


def listed(record: Any) -> Any:
    return [record[0]]


def called(record: Any) -> Any:
    return tuple(record)


def cuts(*steps: Step) -> list[tuple[int, int, bool]]:
    return [(stage.start, stage.stop, stage.must_not_change) for stage in stages_of(steps)]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([MAP, MAP, FILTER, MAP], [(0, 4)]),
        ([FILTER, FILTER], [(0, 1), (1, 2)]),
        ([FILTER, MAP, FILTER, MAP], [(0, 2), (2, 4)]),
        ([MAP, FLAT_MAP, MAP], [(0, 2), (2, 3)]),
        ([FILTER, FLAT_MAP], [(0, 1), (1, 2)]),
        ([FILTER, MAP, FLAT_MAP], [(0, 2), (2, 3)]),
        ([FLAT_MAP, FLAT_MAP], [(0, 1), (1, 2)]),
    ],
)
def test_a_chain_is_cut_where_records_must_be_counted(kinds: list[StepKind], expected: list[tuple[int, int]]) -> None:
    """Behind the first of two filters, behind a filter before a flat_map, behind a flat_map; never because functions are called."""
    for function in (inlined, called):
        assert cuts(*(Step(kind, function) for kind in kinds)) == [(start, stop, False) for start, stop in expected]


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        ([inlined, inlined, inlined], [(0, 3, True)]),
        ([inlined, called, inlined], [(0, 2, True), (2, 3, True)]),
        ([inlined, listed, inlined], [(0, 2, True), (2, 3, True)]),
        ([called, called], [(0, 1, True), (1, 2, True)]),
    ],
)
def test_with_copies_it_is_cut_where_anything_may_come(functions: list[Any], expected: list[tuple[int, int, bool]]) -> None:
    """What comes from expressions that only keep what they got need not be looked at again."""
    assert cuts(*(Step(MAP, function, copies=True) for function in functions)) == expected


def test_records_are_looked_at_once() -> None:
    """A stage that was cut for another reason knows what the one before found."""
    steps = [Step(FILTER, called, copies=True), Step(FILTER, inlined, copies=True), Step(MAP, called, copies=True), Step(MAP, called)]

    assert cuts(*steps) == [(0, 1, True), (1, 4, False)]


def test_copies_for_the_first_step_alone_are_looked_at_too() -> None:
    assert cuts(Step(MAP, inlined, copies=True), Step(MAP, inlined)) == [(0, 2, True)]
    assert cuts(Step(MAP, inlined), Step(MAP, inlined, copies=True)) == [(0, 2, True)]


def test_there_is_nothing_to_gain_where_all_is_called() -> None:
    assert not has_inlined([Step(MAP, called), Step(FILTER, len)])
    assert has_inlined([Step(MAP, called), Step(FILTER, inlined)])


STEPS = [Step(MAP, lambda r: (r[0], r[1] * 2)), Step(FILTER, lambda r: r[1] % 3), Step(MAP, called), Step(MAP, lambda r: r[1])]
RECORDS = [("a", 1), ("b", 3), ("c", 5)]


def test_a_loop_gives_what_stays() -> None:
    loop = list_stage("test", STEPS, Stage(0, 4, must_not_change=False, filter=1, is_flat=False), has_timestamps=False)

    assert loop(RECORDS) == [2, 10]


def test_a_loop_with_timestamps_keeps_those_of_what_stays() -> None:
    stamps: list[int] = []
    loop = list_stage("test", STEPS, Stage(0, 4, must_not_change=False, filter=1, is_flat=False), has_timestamps=True)

    assert loop(RECORDS, [10, 20, 30], stamps.append) == [2, 10]
    assert stamps == [10, 30]


def test_a_loop_without_a_filter_needs_no_timestamps() -> None:
    loop = list_stage("test", STEPS, Stage(2, 4, must_not_change=False, filter=None, is_flat=False), has_timestamps=True)

    assert loop(RECORDS) == [1, 3, 5]


def numbers(record: Any) -> Iterator[int]:
    yield from range(record)


@pytest.mark.parametrize(
    ("function", "sizes"), [(numbers, [2, 2, 2]), (lambda n: list(range(n)), [3, 3]), (lambda n: (n, n), [2, 2, 2]), (lambda _: [], [])]
)
def test_a_flat_loop_gives_batches(function: Any, sizes: list[int]) -> None:
    """An iterator is read up to the limit; a list is taken whole."""
    steps = [Step(MAP, lambda n: n + 1), Step(FLAT_MAP, function)]
    stage = Stage(0, 2, must_not_change=False, filter=None, is_flat=True)

    plain = list(flat_stage("test", steps, stage, iterate=iter, has_timestamps=False)(2, [2, 0, 1]))
    stamped = list(flat_stage("test", steps, stage, iterate=iter, has_timestamps=True)(2, [2, 0, 1], [10, 20, 30]))

    expected = [(item, stamp) for n, stamp in ((3, 10), (1, 20), (2, 30)) for item in function(n)]
    assert [len(batch) for batch in plain] == sizes
    assert [item for batch in plain for item in batch] == [item for item, _ in expected]
    assert [batch for batch, _ in stamped] == plain
    assert [stamp for _, stamps in stamped for stamp in stamps] == [stamp for _, stamp in expected]


def test_the_labels_are_the_numbers_of_the_steps() -> None:
    """In the chain, not in the stage."""
    loop = list_stage("test", STEPS, Stage(2, 4, must_not_change=False, filter=None, is_flat=False), has_timestamps=False)

    with pytest.raises(IndexError) as caught:
        loop([("a", 1), ("b",)])

    failed = failed_call(caught.value)
    assert failed is not None
    assert (failed.label, failed.arguments) == (3, (("b",),))

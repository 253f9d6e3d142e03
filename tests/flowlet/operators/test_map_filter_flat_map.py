import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.chain import chunking_output
from flowlet.chain.stream_operator import StreamOperator
from flowlet.errors import TaskCancelled, UserFunctionError
from flowlet.operators import process_operator as flat_map_operator
from flowlet.operators.process_operator import FilterOperator, FlatMapOperator, MapOperator
from flowlet.records import IDLE, Chunk, Watermark
from tests.flowlet.operators.harness import Harness, RecordingOutput, results


def fail_on_three(value: Any) -> Any:
    if value == 3:
        raise ValueError("no threes")
    return [value]


def is_odd(value: int) -> bool:
    return value % 2 == 1


def lines_of(value: int) -> Iterator[str]:
    for number in range(value):
        yield f"{value}.{number}"


class Upper:
    def map(self, value: str) -> str:
        return value.upper()


class Words:
    def flat_map(self, value: str) -> list[str]:
        return value.split()


class Long:
    def filter(self, value: str) -> bool:
        return len(value) > 2


OPERATORS: dict[str, Callable[[], StreamOperator]] = {
    "map": lambda: MapOperator(lambda value: value * 2),
    "filter": lambda: FilterOperator(is_odd),
    "flat_map list": lambda: FlatMapOperator(lambda value: [value] * (value % 4)),
    "flat_map generator": lambda: FlatMapOperator(lambda value: lines_of(value % 5)),
    "flat_map tuple": lambda: FlatMapOperator(lambda value: (value, -value)),
    "flat_map dict": lambda: FlatMapOperator(lambda value: {value: 1}),
}
EXPECTED: dict[str, Any] = {
    "map": lambda value: [value * 2],
    "filter": lambda value: [value] if value % 2 else [],
    "flat_map list": lambda value: [value] * (value % 4),
    "flat_map generator": lambda value: [f"{value % 5}.{number}" for number in range(value % 5)],
    "flat_map tuple": lambda value: [value, -value],
    "flat_map dict": lambda value: [value],
}


@pytest.mark.parametrize("name", OPERATORS)
@given(
    values=st.lists(st.integers(0, 9), max_size=12),
    size=st.integers(1, 12),
    has_timestamps=st.booleans(),
    limit=st.integers(1, 5),
)
def test_chunks_of_any_size_give_the_same_records(
    name: str, values: list[int], size: int, has_timestamps: bool, limit: int
) -> None:
    """The results are those of single records; each result has its record's timestamp."""
    timestamps = [100 + index for index in range(len(values))] if has_timestamps else None
    expected = [
        (result, 100 + index if has_timestamps else None)
        for index, value in enumerate(values)
        for result in EXPECTED[name](value)
    ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flat_map_operator, "MAX_WAITING", limit)
        patch.setattr(chunking_output, "MAX_WAITING", limit)
        found, stamps = results(OPERATORS[name](), values, size=size, timestamps=timestamps)

    assert list(zip(found, stamps, strict=True)) == expected


@pytest.mark.parametrize(
    ("operator", "value", "expected"),
    [
        (MapOperator(Upper()), "ab c", ["AB C"]),
        (FlatMapOperator(Words()), "ab c", ["ab", "c"]),
        (FilterOperator(Long()), "ab c", ["ab c"]),
    ],
    ids=["map", "flat_map", "filter"],
)
def test_function_objects_are_called_by_their_method(operator: StreamOperator, value: str, expected: list[str]) -> None:
    assert results(operator, [value], size=1)[0] == expected


@pytest.mark.parametrize("make", [MapOperator, FlatMapOperator, FilterOperator])
@pytest.mark.parametrize("timestamps", [None, [1, 2, 3, 4, 5]])
def test_the_record_that_failed_is_named(make: Any, timestamps: list[int] | None) -> None:
    """The error names the very record of the chunk; the user's exception is the cause."""
    harness = Harness(make(fail_on_three, name="check"), subtask=2, parallelism=4)

    with pytest.raises(UserFunctionError) as caught:
        harness.process(1, 2, 3, 4, 5, timestamps=timestamps)

    assert (caught.value.operator, caught.value.subtask, caught.value.record_preview) == ("check", 2, "3")
    assert str(caught.value) == "operator 'check' (subtask 2) failed while processing the record 3"
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.__cause__.args == ("no threes",)


def test_a_condition_without_a_truth_value_is_the_records_failure() -> None:
    array = np.array([1, 2])
    for timestamps in (None, [1, 2]):
        with pytest.raises(UserFunctionError) as caught:
            Harness(FilterOperator(lambda value: value == 1)).process(1, array, timestamps=timestamps)

        assert caught.value.record_preview == "array([1, 2])"


@pytest.mark.parametrize("make", [MapOperator, FlatMapOperator, FilterOperator])
def test_a_cancellation_passes_through(make: Any) -> None:
    def stop(value: Any) -> Any:
        raise TaskCancelled("stop")

    with pytest.raises(TaskCancelled):
        Harness(make(stop), pickled=False).process(1)


@pytest.mark.parametrize("make", [MapOperator, FlatMapOperator, FilterOperator])
def test_a_failure_further_down_is_not_blamed_on_the_function(make: Any) -> None:
    class FailingOutput(RecordingOutput):
        def collect(self, chunk: Chunk) -> None:
            raise OSError("disk full")

    harness = Harness(make(lambda value: [value]), output=FailingOutput())

    with pytest.raises(OSError, match="disk full"):
        harness.process(1)


@pytest.mark.parametrize(
    ("result", "shown"), [(None, "None"), (5, "5 of type int"), (fail_on_three, "of type function")]
)
def test_a_flat_map_that_returns_no_iterable_is_told_what_to_return(result: Any, shown: str) -> None:
    harness = Harness(FlatMapOperator(lambda value: result if value == 2 else [value], name="split"))

    with pytest.raises(UserFunctionError) as caught:
        harness.process(1, 2, 3)

    assert caught.value.record_preview == "2"
    assert isinstance(caught.value.__cause__, TypeError)
    message = str(caught.value.__cause__)
    assert message.startswith(
        "a flat_map function yields its results or returns a list of them ([] for none, [x] for one); got "
    )
    assert shown in message


def test_a_type_error_of_the_users_own_iterator_is_shown_as_it_is() -> None:
    class Odd:
        def __iter__(self) -> Iterator[int]:
            raise TypeError("my own")

    def fail_inside(value: int) -> Iterator[int]:
        yield value
        raise TypeError("'int' object is not iterable")

    for function, message in (
        (lambda value: Odd(), "my own"),
        (fail_inside, "'int' object is not iterable"),
        (lambda value: map(len, [value]), "object of type 'int' has no len()"),
    ):
        with pytest.raises(UserFunctionError) as caught:
            Harness(FlatMapOperator(function)).process(1)
        assert str(caught.value.__cause__) == message


def test_a_generator_is_read_no_further_than_its_consumers_are() -> None:
    """The consumers have their turn after each chunk, even with more results than fit into memory."""
    made: list[int] = []

    def endless(value: int) -> Iterator[int]:
        while True:
            made.append(value)
            yield value

    seen: list[tuple[int, int]] = []

    class StoppingOutput(RecordingOutput):
        def collect(self, chunk: Chunk) -> None:
            seen.append((len(chunk), len(made)))
            if len(seen) == 3:
                raise TaskCancelled

    harness = Harness(FlatMapOperator(endless), pickled=False, output=StoppingOutput())
    with pytest.raises(TaskCancelled):
        harness.process(7)

    limit = chunking_output.MAX_WAITING
    assert seen == [(limit, limit), (limit, 2 * limit), (limit, 3 * limit)]


def test_flat_map_gives_chunks_of_about_the_best_size() -> None:
    harness = Harness(FlatMapOperator(lambda value: [value] * 10))

    harness.process(*range(450))

    assert [len(chunk) for chunk in harness.output.chunks] == [2000, 2000, 500]


def test_the_list_that_a_function_returned_is_left_alone() -> None:
    """A function may return one list of its own again and again."""
    mine = [1, 2]
    harness = Harness(FlatMapOperator(lambda value: mine), pickled=False)

    harness.process("a", "b")

    assert mine == [1, 2]
    assert harness.output.values == [1, 2, 1, 2]


def test_a_chunk_that_nothing_is_left_of_is_not_passed_on() -> None:
    for operator in (FilterOperator(lambda value: False), FlatMapOperator(lambda value: [])):
        harness = Harness(operator)
        harness.process(1, 2, timestamps=[1, 2])
        harness.process(1, 2)
        assert harness.output.elements == []


@pytest.mark.parametrize("make", [MapOperator, FlatMapOperator, FilterOperator])
def test_watermarks_and_status_pass(make: Any) -> None:
    harness = Harness(make(lambda value: [value]))

    harness.operator.process_watermark(Watermark(5))
    harness.operator.process_watermark_status(IDLE)

    assert harness.output.elements == [Watermark(5), IDLE]


def test_the_traceback_leads_from_the_loop_to_the_users_line() -> None:
    with pytest.raises(UserFunctionError) as caught:
        Harness(MapOperator(fail_on_three), pickled=False).process(3)

    assert caught.value.__cause__ is not None
    trace = traceback.extract_tb(caught.value.__cause__.__traceback__)
    assert [frame.name for frame in trace] == ["run", "run", "fail_on_three"]
    assert trace[-1].line == 'raise ValueError("no threes")'


def test_a_stop_iteration_of_the_users_does_not_end_the_chunk_quietly() -> None:
    def stop(value: int) -> Any:
        raise StopIteration

    for make in (MapOperator, FlatMapOperator, FilterOperator):
        with pytest.raises(UserFunctionError, match=re.escape("the record 1")):
            Harness(make(stop)).process(1)

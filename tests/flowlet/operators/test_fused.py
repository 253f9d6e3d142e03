import copy
import itertools
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.columns import ArrayColumn, Columns, ListColumn, Shape
from flowlet.common.types import Row
from flowlet.errors import TaskCancelled, UserFunctionError
from flowlet.fusing import switch
from flowlet.operators import fused, transform
from flowlet.operators.base import OperatorContext
from flowlet.operators.chain import ChainedOperator, OperatorChain
from flowlet.operators.fused import FusedLink, FusedRun
from flowlet.operators.transform import FilterOperator, FlatMapOperator, MapOperator, TransformOperator
from flowlet.records import IDLE, Chunk, Watermark
from tests.flowlet.operators.harness import RecordingOutput


def lines_of(value: Any) -> Iterator[Any]:
    for number in range(len(value) % 4):
        yield (value[0], number)


def changes(value: Any) -> Any:
    if isinstance(value, list):
        value.append(1)
    return value


def fails_on_three(value: Any) -> Any:
    if value[0] == 3:
        raise ValueError("no threes")
    return value


class Scale:
    factor = 2

    def map(self, value: Any) -> Any:
        return (value[0], self.factor)


# Records are sequences whose first item is an int.
STEPS: dict[str, Callable[[], TransformOperator]] = {
    "map swap": lambda: MapOperator(lambda r: (r[0], r[-1])),
    "map add": lambda: MapOperator(lambda r: (r[0] + 1, r[0])),
    "map list": lambda: MapOperator(lambda r: [r[0], r[0]]),
    "map same": lambda: MapOperator(lambda r: r),
    "map called": lambda: MapOperator(changes),
    "map row": lambda: MapOperator(lambda r: Row(r[0], r)),
    "map object": lambda: MapOperator(Scale()),
    "map fails": lambda: MapOperator(fails_on_three),
    "filter even": lambda: FilterOperator(lambda r: r[0] % 2 == 0),
    "filter fails": lambda: FilterOperator(lambda r: 12 // (r[0] - 5)),
    "filter called": lambda: FilterOperator(lambda r: len(r) > 0),
    "flat_map list": lambda: FlatMapOperator(lambda r: [r] * (r[0] % 3)),
    "flat_map inlined": lambda: FlatMapOperator(lambda r: [(r[0], 1), (r[0], 2)]),
    "flat_map generator": lambda: FlatMapOperator(lines_of),
    "flat_map tuple": lambda: FlatMapOperator(lambda r: (r, r)),
    "flat_map none": lambda: FlatMapOperator(lambda r: None if r[0] == 9 else [r]),
}
RECORDS = st.tuples(st.integers(0, 9), st.integers(0, 9)) | st.lists(st.integers(0, 9), min_size=1, max_size=3)


def chain_of(
    operators: Sequence[TransformOperator], copies: Sequence[bool], *, fuses: bool, is_chained: bool = False
) -> tuple[OperatorChain, RecordingOutput]:
    """In a task of its own, or (``is_chained``) behind an operator that is not fused."""
    output = RecordingOutput()
    head = [ChainedOperator(Passing())] if is_chained else []
    chained = [
        *head,
        *(
            ChainedOperator(each, index - 1, copies=copy)
            for index, (each, copy) in enumerate(zip(operators, copies, strict=True), len(head))
        ),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(switch.FUSE_VARIABLE, "1" if fuses else "0")
        chain = OperatorChain(chained, {(len(chained) - 1, None): [output]}, context)
    chain.open()
    return chain, output


class Passing(MapOperator):
    """Not fused: a subclass may do anything."""

    def __init__(self) -> None:
        super().__init__(lambda record: record)


def context(index: int, name: str) -> OperatorContext:
    return OperatorContext("task", 1, 2, 128, name, chain_index=index)


def run(chain: OperatorChain, output: RecordingOutput, chunks: list[Chunk]) -> tuple[list[Any], tuple[Any, ...]]:
    """All that can be seen from outside: records and counters after each chunk, and the failure that ended it."""
    seen: list[Any] = []
    for chunk in copy.deepcopy(chunks):
        num_before = len(output.chunks)
        try:
            chain.process_chunk(chunk)
        except UserFunctionError as error:
            return seen, (error.operator, error.subtask, error.record_preview, type(error.__cause__), str(error.__cause__))
        counted = {index: (each.num_records_in, each.num_records_out) for index, each in chain.counters().items()}
        seen.append(([(list(map(repr, each.values)), each.timestamps) for each in output.chunks[num_before:]], counted))
    return seen, ()


def check_fused(
    names: Sequence[str], copies: Sequence[bool], chunks: list[Chunk], *, limit: int = 2, is_chained: bool = False, names_failure: bool
) -> None:
    """The same chunks, timestamps and counts; the same failure, where it is one record's."""
    outcomes = []
    for fuses in (True, False):
        operators = [STEPS[name]() for name in names]
        for index, operator in enumerate(operators):
            operator.name = f"{index} {names[index]}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transform, "FLAT_MAP_CHUNK_RECORDS", limit)
            patch.setattr(fused, "is_traced", lambda: False)
            chain, output = chain_of(operators, copies, fuses=fuses, is_chained=is_chained)
            outcomes.append(run(chain, output, chunks))
        chain.close()
    (found, found_failure), (expected, expected_failure) = outcomes
    assert found == expected
    assert bool(found_failure) == bool(expected_failure)
    if names_failure:
        assert found_failure == expected_failure


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("first", sorted(STEPS))
def test_two_operators_do_fused_what_they_do_alone(first: str, copies: bool) -> None:
    """Each behind each; with records that fail, and records that can change."""
    chunks = [Chunk([(0, 1), (2, 2), (1, 5)]), Chunk([(4, 1), [2, 1], [7]], [10, 20, 30]), Chunk([(3, 3)]), Chunk([(9, 9)])]
    for second in sorted(STEPS):
        check_fused([first, second], [copies] * 2, chunks, names_failure=False)


@given(
    names=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5),
    copies=st.lists(st.booleans(), min_size=5, max_size=5),
    records=st.lists(RECORDS, min_size=1, max_size=8),
    size=st.integers(1, 6),
    limit=st.integers(1, 5),
    has_timestamps=st.booleans(),
    is_chained=st.booleans(),
)
def test_a_fused_chain_does_what_its_operators_do(
    names: list[str], copies: list[bool], records: list[Any], size: int, limit: int, has_timestamps: bool, is_chained: bool
) -> None:
    """Of several records that fail in one chunk, another one may be met first."""
    parts = [records[start : start + size] for start in range(0, len(records), size)]
    chunks = [Chunk([*part], [100 + index for index in range(len(part))] if has_timestamps else None) for part in parts]
    names_failure = size == 1 and not any("flat_map" in name for name in names)
    check_fused(names, copies[: len(names)], chunks, limit=limit, is_chained=is_chained, names_failure=names_failure)


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("first", ["map swap", "map called", "map list", "filter even", "flat_map list", "flat_map inlined"])
def test_records_in_columns_are_processed_like_others(first: str, copies: bool) -> None:
    """Columns know that nothing can change, or do not; rows and fields that can change are copied."""
    numbers, lists = ArrayColumn(np.array([4, 5, 6])), ListColumn([[1], [2], [3]])
    pairs = Columns(3, (numbers, ListColumn(["a", "b", "c"], str)), Shape.TUPLE)
    for columns in (pairs, Columns(3, (numbers, lists), Shape.TUPLE), Columns(3, (numbers,), Shape.ROW, ("n",))):
        for second in sorted(STEPS):
            chunks = [Chunk.of_columns(columns), Chunk.of_columns(columns, np.array([10, 20, 30]))]
            check_fused([first, second], [copies] * 2, chunks, is_chained=True, names_failure=False)


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("middle", [None, "map swap", "map called", "map list"])
@pytest.mark.parametrize("last", ["map called", "filter even", "flat_map list"])
def test_stages_are_cut_where_records_are_counted_or_copied(middle: str | None, last: str, copies: bool) -> None:
    """Behind a filter, and behind what may be changed by the next operator."""
    names = ["filter called", "flat_map list", "filter even", "filter even", *([middle] if middle else []), last, "map swap", "filter even"]
    records = [(5, 1), (2, 0), (4, 4), (8, 1), (3, 2)]

    for values in (records, [list(record) for record in records]):
        check_fused(names, [copies] * len(names), [Chunk(values)], limit=3, names_failure=False)


class Remembering:
    """Gives away what it still uses."""

    def __init__(self) -> None:
        self.seen = [0]

    def map(self, record: Any) -> Any:
        return self.seen


@pytest.mark.parametrize("last", ["map swap", "filter even"])
def test_what_a_function_still_uses_is_copied_for_the_next_one(last: str) -> None:
    """Nothing that the second one appends is seen by the first one, or with another record."""
    remembering = Remembering()
    operators = [MapOperator(lambda r: r), MapOperator(remembering), MapOperator(changes), STEPS[last]()]
    chain, output = chain_of(operators, [True] * 4, fuses=True)

    chain.process_chunk(Chunk([1, 2]))

    assert remembering.seen == [0]
    assert output.values == [(0, 1) if last == "map swap" else [0, 1]] * 2


def chain_through(*operators: TransformOperator, copies: bool = False) -> tuple[OperatorChain, RecordingOutput]:
    return chain_of(operators, [copies] * len(operators), fuses=True)


def frames_of(error: BaseException) -> list[tuple[str, str | None]]:
    return [(frame.name, frame.line) for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__]


def test_an_error_names_the_operator_and_the_record_that_it_was_given() -> None:
    """Not the record that came into the chain; and the traceback shows the user's line."""
    chain, _ = chain_through(
        MapOperator(lambda r: (r[0], r[1] - 1), name="less"),
        FilterOperator(lambda r: r[0] / r[1] > 0, name="positive"),
        MapOperator(lambda r: r[0], name="first"),
    )

    with pytest.raises(UserFunctionError) as caught:
        chain.process_chunk(Chunk([(1, 2), (1, 1), (1, 3)]))

    assert (caught.value.operator, caught.value.subtask, caught.value.record_preview) == ("positive", 1, "(1, 0)")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert frames_of(caught.value.__cause__) == [("<lambda>", 'FilterOperator(lambda r: r[0] / r[1] > 0, name="positive"),')]


def test_a_condition_without_a_truth_value_is_the_records_failure() -> None:
    """The filter is to blame, though its function returned."""

    class Undecided:
        def __bool__(self) -> bool:
            raise TypeError("undecided")

    for function in (lambda r: r[1], lambda r: [r[1]][0]):
        chain, _ = chain_through(MapOperator(lambda r: r), FilterOperator(function, name="decide"), MapOperator(lambda r: r))

        with pytest.raises(UserFunctionError) as caught:
            chain.process_chunk(Chunk([(1, True), (2, Undecided())]))

        assert caught.value.operator == "decide"
        assert str(caught.value.record_preview).startswith("(2, ")


def test_an_endless_generator_is_read_as_its_results_are_taken() -> None:
    """Through a fused stage behind it; no batch is larger than the limit."""
    read = []

    def endless(first: int) -> Iterator[int]:
        for number in itertools.count(first):
            read.append(number)
            yield number

    def full(number: int) -> int:
        if number > 4_000:
            raise OSError("full")
        return number

    chain, output = chain_through(FlatMapOperator(endless), FilterOperator(lambda n: n % 2), MapOperator(full), MapOperator(lambda n: -n))

    with pytest.raises(UserFunctionError, match="4001"):
        chain.process_chunk(Chunk([0]))

    assert [len(each) for each in output.chunks] == [1_000, 1_000]
    assert read == list(range(6_000))


def test_what_a_flat_map_returns_must_be_iterable() -> None:
    """The same advice as without fusing; a generator's own error is the generator's."""

    def broken(number: int) -> Iterator[int]:
        yield number
        raise OSError("half way")

    for function, cause in ((lambda n: n, TypeError), (broken, OSError)):
        chain, _ = chain_through(MapOperator(lambda n: n + 1), FlatMapOperator(function, name="split"))

        with pytest.raises(UserFunctionError) as caught:
            chain.process_chunk(Chunk([6, 7]))

        assert (caught.value.operator, caught.value.record_preview) == ("split", "7")
        assert type(caught.value.__cause__) is cause


def test_the_end_of_the_task_is_no_failure_of_the_users() -> None:
    def cancelled(_: int) -> int:
        raise TaskCancelled

    chain, _ = chain_through(MapOperator(lambda n: n), MapOperator(cancelled), MapOperator(lambda n: n))

    with pytest.raises(TaskCancelled):
        chain.process_chunk(Chunk([1]))


class Changing:
    """A function that becomes another one."""

    def map(self, value: Any) -> Any:
        return value[0], "before"

    def after(self, value: Any) -> Any:
        return value[0], "after"


def test_a_function_that_is_replaced_is_called_from_then_on() -> None:
    changing: Any = Changing()
    chain, output = chain_through(MapOperator(changing), MapOperator(lambda r: (*r, 1)))

    chain.process_chunk(Chunk([(1,)]))
    changing.map = changing.after
    chain.process_chunk(Chunk([(2,)]))
    chain.process_chunk(Chunk([(3,)]))

    assert output.values == [(1, "before", 1), (2, "after", 1), (3, "after", 1)]


def test_who_traces_sees_the_users_lines() -> None:
    """A debugger stops in functions that are not called otherwise."""
    function = lambda r: r[0]  # noqa: E731 - one that is inlined
    chain, output = chain_through(MapOperator(function), FilterOperator(lambda r: r > 0))
    seen = []

    def trace(frame: Any, event: str, _: Any) -> Any:
        if event == "line" and frame.f_code is function.__code__:
            seen.append(frame.f_lineno)
        return trace

    chain.process_chunk(Chunk([(1,)]))
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        chain.process_chunk(Chunk([(2,), (3,)]))
    finally:
        sys.settrace(before)

    assert seen == [function.__code__.co_firstlineno] * 2
    assert output.values == [1, 2, 3]


def test_an_operator_with_two_readers_ends_a_run() -> None:
    """Both get its records; the first run goes on behind none of them."""
    outputs = [RecordingOutput(), RecordingOutput()]
    operators = [MapOperator(lambda r: r + 1), MapOperator(lambda r: r * 10), FilterOperator(lambda r: r > 2)]
    chained = [ChainedOperator(operators[0]), ChainedOperator(operators[1], 0), ChainedOperator(operators[2], 0)]
    chain = OperatorChain(chained, {(1, None): [outputs[0]], (2, None): [outputs[1]]}, context)
    chain.open()

    chain.process_chunk(Chunk([1, 2]))

    assert [output.values for output in outputs] == [[20, 30], [3]]


def test_a_run_shows_its_operators() -> None:
    run = FusedRun([FusedLink(MapOperator(len, name="length"), None), FusedLink(FilterOperator(bool, name="some"), None)])

    assert repr(run) == "<FusedRun length -> some>"


def test_an_edge_in_the_middle_gets_its_records() -> None:
    outputs = [RecordingOutput(), RecordingOutput()]
    chained = [ChainedOperator(MapOperator(lambda r: r + 1)), ChainedOperator(MapOperator(lambda r: r * 10), 0)]
    chain = OperatorChain(chained, {(0, None): [outputs[0]], (1, None): [outputs[1]]}, context)
    chain.open()

    chain.process_chunk(Chunk([1, 2]))

    assert [output.values for output in outputs] == [[2, 3], [20, 30]]


@pytest.mark.parametrize("is_chained", [True, False])
def test_control_elements_pass_between_the_records(is_chained: bool) -> None:
    chain, output = chain_of(
        [MapOperator(lambda r: r + 1), FilterOperator(lambda r: r > 1)], [True, True], fuses=True, is_chained=is_chained
    )

    chain.process_chunk(Chunk([1]))
    chain.process_watermark(Watermark(5))
    chain.process_watermark_status(IDLE)
    chain.process_chunk(Chunk([2]))

    assert output.elements == [Chunk([2]), Watermark(5), IDLE, Chunk([3])]


@pytest.mark.parametrize(("value", "called"), [("0", True), ("1", False), ("", False)])
def test_fusing_can_be_switched_off(value: str, called: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With FLOWLET_FUSE=0 the traceback has the frame of a call, not only its line."""
    monkeypatch.setenv(switch.FUSE_VARIABLE, value)
    monkeypatch.setattr(fused, "is_traced", lambda: False)  # coverage traces
    chain = OperatorChain([ChainedOperator(MapOperator(lambda r: r[0]))], {(0, None): [RecordingOutput()]}, context)
    chain.open()

    with pytest.raises(UserFunctionError) as caught:
        chain.process_chunk(Chunk([1]))

    assert caught.value.__cause__ is not None
    assert ("<generated" in "".join(traceback.format_tb(caught.value.__cause__.__traceback__))) is not called

from collections.abc import Iterator
from typing import Any

import pytest

from flowlet.chain.chunking_output import ChunkingOutput
from flowlet.chain.loop_code import MAX_BLOCKS, Blame, LoopCode
from flowlet.chain.stream_operator import StreamOperator
from flowlet.errors import UserFunctionError
from flowlet.operators.process_operator import FilterOperator, FlatMapOperator, MapOperator
from tests.flowlet.operators.chains import ChainHarness, loop_of
from tests.flowlet.operators.harness import RecordingOutput


def test_a_loop_is_given_record_timestamp_and_key() -> None:
    """Each where there is one."""
    seen: list[tuple[Any, ...]] = []

    def write(code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        code.line(f"{code.bind(seen.append, 'note')}(({record}, {timestamp}, {key}))")

    loop = loop_of(write)

    loop.run(["a", "b"], [1, 2], 2, ["x", "y"])
    loop.run(["a"], None, 1)
    loop.run(["a"], [1], 1)
    loop.run(["a"], None, 1, ["x"])
    loop.run([], [], 0, [])

    assert seen == [("a", 1, "x"), ("b", 2, "y"), ("a", None, None), ("a", 1, None), ("a", None, "x")]
    assert repr(loop) == "<RecordLoop test>"


def test_the_next_record_is_made_when_the_last_one_is_through() -> None:
    """The record's timestamp, which is asked for before it, is made as late."""
    log: list[Any] = []

    def made(name: str) -> Iterator[int]:
        for number in range(2):
            log.append(f"make {name} {number}")
            yield number

    def write(code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        code.line(f"{code.bind(log.append, 'note')}('through')")

    loop_of(write).run(made("record"), made("timestamp"), 2)

    assert log == ["make timestamp 0", "make record 0", "through", "make timestamp 1", "make record 1", "through"]


def test_the_loop_is_made_when_it_is_first_needed_and_kept() -> None:
    num_written = 0

    def write(code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        nonlocal num_written
        num_written += 1
        code.line("pass")

    loop = loop_of(write)
    assert num_written == 0

    for _ in range(3):
        loop.run([1], None, 1)
        loop.run([1], [2], 1)

    assert num_written == 2


def test_the_loop_is_made_anew_when_other_records_are_emitted() -> None:
    num_written = 0
    output = RecordingOutput()
    chunking_output = ChunkingOutput(output)

    def write(code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        nonlocal num_written
        num_written += 1
        chunking_output.write(code, record, timestamp)

    loop = loop_of(write, chunking_output)

    for _ in range(5):
        loop.run(range(20), None, 20)
    assert num_written == 2
    for _ in range(5):
        loop.run(map(str, range(20)), None, 20)

    assert num_written == 3
    assert output.values == [*range(20)] * 5 + [*map(str, range(20))] * 5


def test_what_was_emitted_before_a_failure_goes_on_before_the_error() -> None:
    """The failing record's own results up to the error arrive, too; no record behind it is processed."""

    def two(value: int) -> Iterator[int]:
        yield value
        if value == 3:
            raise ValueError("no threes")
        yield -value

    harness = ChainHarness(FlatMapOperator(two, name="two"), MapOperator(str), subtask=2)

    with pytest.raises(UserFunctionError) as caught:
        harness.process(1, 2, 3, 4)

    assert harness.output.values == ["1", "-1", "2", "-2", "3"]
    assert (caught.value.operator, caught.value.subtask, caught.value.record_preview) == ("two", 2, "3")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_what_is_no_exception_is_the_functions_error_all_the_same(error: BaseException) -> None:
    """A ``sys.exit()`` in a function does not end the process; the error must name the function."""

    def leave(value: int) -> int:
        if value == 2:
            raise error
        return value

    harness = ChainHarness(MapOperator(leave))

    with pytest.raises(UserFunctionError) as caught:
        harness.process(1, 2, 3)

    assert caught.value.__cause__ is error
    assert caught.value.record_preview == "2"
    assert harness.output.values == [1]


def fail_at(bad: Any) -> Any:
    def check(value: Any) -> Any:
        if value == bad:
            raise ValueError(f"no {bad}")
        return [value]

    return check


def first(values: list[Any]) -> Any:
    return values[0]


def both(value: int) -> list[int]:
    return [value, -value]


def one_by_one(value: int) -> Iterator[int]:
    return iter([value, -value])


def twice(value: int) -> list[int]:
    return [value] * 2


NESTED: list[tuple[list[StreamOperator], str, str, list[Any]]] = [
    ([MapOperator(fail_at(3), name="a"), MapOperator(first, name="b")], "a", "3", [1, 2]),
    ([MapOperator(lambda value: [value], name="a"), MapOperator(fail_at([3]), name="b")], "b", "[3]", [[[1]], [[2]]]),
    ([FlatMapOperator(both, name="a"), FlatMapOperator(fail_at(-2), name="b")], "b", "-2", [1, -1, 2]),
    ([FlatMapOperator(one_by_one, name="a"), FlatMapOperator(fail_at(-2), name="b")], "b", "-2", [1, -1, 2]),
    ([FlatMapOperator(twice, name="a"), FilterOperator(lambda value: 1 / (value - 2), name="b")], "b", "2", [1, 1]),
    (
        [
            FilterOperator(lambda value: value > 1, name="a"),
            FlatMapOperator(fail_at(3), name="b"),
            MapOperator(str, name="c"),
        ],
        "b",
        "3",
        ["2"],
    ),
    (
        [
            FlatMapOperator(twice, name="a"),
            FilterOperator(lambda value: True, name="b"),
            FlatMapOperator(lambda value: [value], name="c"),
            MapOperator(fail_at(4), name="d"),
            FlatMapOperator(lambda value: value, name="e"),
        ],
        "d",
        "4",
        [1, 1, 2, 2, 3, 3],
    ),
]


@pytest.mark.parametrize(("operators", "name", "record", "before"), NESTED, ids=[row[1] + row[2] for row in NESTED])
@pytest.mark.parametrize("timestamps", [None, [10, 20, 30, 40]])
def test_a_failure_is_the_operators_and_the_records_in_which_it_happened(
    operators: list[StreamOperator], name: str, record: str, before: list[Any], timestamps: list[int] | None
) -> None:
    """The loop may be deep; records before the failure arrive."""
    harness = ChainHarness(*operators)

    with pytest.raises(UserFunctionError) as caught:
        harness.process(1, 2, 3, 4, timestamps=timestamps)

    assert (caught.value.operator, caught.value.record_preview) == (name, record)
    assert harness.output.values == before


DEPTHS = [1, MAX_BLOCKS - 1, MAX_BLOCKS, MAX_BLOCKS + 1, 3 * MAX_BLOCKS + 2]


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("timestamps", [None, [10, 20, 30]])
def test_a_chain_may_be_deeper_than_python_allows_blocks(depth: int, timestamps: list[int] | None) -> None:
    """Records, timestamps, order and counts are as in a short one."""
    operators: list[StreamOperator] = []
    for level in range(depth):
        operators.append(FlatMapOperator((lambda value: [value]) if level % 2 else (lambda value: iter([value]))))
        operators.append(FilterOperator(lambda value: True))
    harness = ChainHarness(
        FlatMapOperator(lambda value: [value, -value]), *operators, MapOperator(lambda value: (value, 1))
    )

    harness.process(1, 2, 3, timestamps=timestamps)

    assert harness.output.values == [(value, 1) for value in (1, -1, 2, -2, 3, -3)]
    assert harness.output.timestamps == ([None] * 6 if timestamps is None else [10, 10, 20, 20, 30, 30])
    assert harness.counts == [(3, 6), *[(6, 6)] * (2 * depth + 1)]


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_failure_far_down_a_chain_is_blamed_right(depth: int) -> None:
    operators = [FlatMapOperator(lambda value: [value], name=f"level {level}") for level in range(depth)]
    harness = ChainHarness(*operators, MapOperator(lambda value: 1 // value, name="last"))

    with pytest.raises(UserFunctionError) as caught:
        harness.process(1, -1, 0, 1)

    assert (caught.value.operator, caught.value.record_preview) == ("last", "0")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert harness.output.values == [1, -1]


def test_a_hundred_maps_are_one_loop() -> None:
    harness = ChainHarness(*[MapOperator(lambda value: value + 1) for _ in range(100)])

    harness.process(1, 2)

    assert harness.output.values == [101, 102]


def test_a_blame_of_a_line_without_a_record_does_no_harm() -> None:
    def write(code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        code.line(f"{code.bind(int, 'int')}({record})", Blame("test", 1, "nothing"))

    with pytest.raises(UserFunctionError, match="operator 'test'"):
        loop_of(write).run(["x"], None, 1)

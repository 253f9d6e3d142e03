import copy
import traceback
from collections.abc import Callable
from operator import is_
from typing import Any

import pytest

from flowlet.columns import CodedColumn, Columns, ConstantColumn, ListColumn, NameTable, Shape, column_of
from flowlet.errors import UserFunctionError
from flowlet.fusing.switch import FUSE_VARIABLE
from flowlet.operators.keyed import KeyedReduceOperator
from flowlet.operators.reduce_loop import MISSING, ReduceLoop
from flowlet.records import Chunk
from tests.flowlet.operators.harness import Harness


def subtract(so_far: Any, record: Any) -> Any:
    return (so_far[0], so_far[1] - record[1])


def subtract_in_steps(so_far: Any, record: Any) -> Any:
    difference = so_far[1] - record[1]
    return (so_far[0], difference)


@pytest.fixture(params=["1", "0"], ids=["inlined", "called"])
def fuse(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(FUSE_VARIABLE, request.param)
    return str(request.param)


@pytest.mark.parametrize("function", [subtract, subtract_in_steps])
def test_each_record_is_reduced_into_its_slot(function: Callable[[Any, Any], Any], fuse: str) -> None:
    state = [("a", 1), MISSING, None]
    records = iter([("a", 2), ("b", 3), ("b", 4), ("a", 5)])

    results: list[Any] = []

    ReduceLoop().run(function, [0, 1, 1, 0], records, state, results, copies=False)

    assert results == [("a", -1), ("b", 3), ("b", -1), ("a", -6)]
    assert state == [("a", -6), ("b", -1), None]


def test_another_function_gets_another_loop(fuse: str) -> None:
    loop, state, results = ReduceLoop(), [("a", 1)], list[Any]()

    for function in (subtract, lambda so_far, record: record, subtract):
        loop.run(function, [0], iter([("a", 5)]), state, results, copies=False)

    assert results == [("a", -4), ("a", 5), ("a", 0)]


def test_there_are_results_for_the_records_before_the_one_that_failed_and_the_users_line_is_shown(fuse: str) -> None:
    records = iter([("a", 1), ("b", 1), ("a", None), ("b", 2)])
    state = [MISSING, MISSING]
    results: list[Any] = []

    with pytest.raises(TypeError) as caught:
        ReduceLoop().run(subtract, [0, 1, 0, 1], records, state, results, copies=False)

    assert results == [("a", 1), ("b", 1)]
    assert state == [("a", 1), ("b", 1)]
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.name, last.line) == ("subtract", "return (so_far[0], so_far[1] - record[1])")


def extend(so_far: Any, record: Any) -> Any:
    """Changes what it returned before, where it can be changed."""
    if type(so_far) is tuple and type(so_far[1]) is list:
        so_far[1].append(record[1])
        return so_far
    if type(so_far) is list:
        so_far.append(record)
        return so_far
    return record


@pytest.mark.parametrize(
    ("records", "expected", "are_unchanging"),
    [
        ([("a", 1), ("a", 2)], [("a", 1), ("a", 2)], True),
        ([("a", [1]), ("a", 2), ("a", 3)], [("a", [1]), ("a", [1, 2]), ("a", [1, 2, 3])], False),
        ([("a", 1), ("a", [2]), ("a", 3)], [("a", 1), ("a", [2]), ("a", [2, 3])], False),
        ([("a", 1, 2), ("a", 3, 4)], [("a", 1, 2), ("a", 3, 4)], True),
        ([("a", 1), ("a", 3, 4), ("a", [1]), ("a", 2)], [("a", 1), ("a", 3, 4), ("a", [1]), ("a", [1, 2])], False),
        ([("a", 1), ("a", 3, 4), ("a", 2)], [("a", 1), ("a", 3, 4), ("a", 2)], True),
        ([[1], 2, 3], [[1], [1, 2], [1, 2, 3]], False),
        ([("a", 1), ("a", None), (None, "x"), 5], [("a", 1), ("a", None), (None, "x"), 5], True),
    ],
)
def test_results_that_can_change_are_copied_and_others_are_the_very_objects(
    records: list[Any], expected: list[Any], are_unchanging: bool, fuse: str
) -> None:
    state = [MISSING]

    records = copy.deepcopy(records)

    results: list[Any] = []
    seen = ReduceLoop().run(extend, [0] * len(records), iter(records), state, results, copies=True)

    assert results == expected
    assert seen is are_unchanging
    if are_unchanging:
        assert all(map(is_, results, records))
    else:
        assert results[-1] is not state[0]


def coded(*pairs: tuple[str, Any], names: NameTable, key_position: int | None = None) -> Chunk:
    import numpy as np

    codes = np.array([names.names.index(key) for key, _ in pairs], np.uint16)
    fields = (CodedColumn(codes, names), column_of([value for _, value in pairs]))
    return Chunk.of_columns(Columns(len(pairs), fields, Shape.TUPLE, key_position=key_position))


@pytest.mark.parametrize(
    "selector",
    [
        lambda record: [record[0]][0],
        lambda record: "".join([*record[0]]),
        lambda record: record[1],
        lambda record: record[0] if record[1] % 2 else record[0] + "!",
    ],
)
def test_a_key_selector_that_is_called_gives_the_same_with_columns_and_records(selector: Callable[[Any], Any], fuse: str) -> None:
    table = NameTable(["a", "b", "c"])
    chunks = [[("a", 1), ("b", 2), ("a", 3)], [("c", 2), ("b", 5), ("a", 6), ("b", 8)]]
    by_columns, by_records = (Harness(KeyedReduceOperator(selector, subtract_in_steps)) for _ in range(2))

    for pairs in chunks:
        by_columns.operator.process_chunk(coded(*pairs, names=table))
        by_records.process(*pairs)

    assert by_columns.output.values == by_records.output.values
    assert by_columns.operator.snapshot_state(1) == by_records.operator.snapshot_state(1)


@pytest.mark.parametrize("emits_batches", [False, True])
def test_keys_that_the_sender_saw_are_not_asked_for_again(fuse: str, *, emits_batches: bool) -> None:
    """Not when they come in columns of one kind, and not after others came."""

    def never(_: Any) -> Any:
        raise AssertionError("asked")

    harness = Harness(KeyedReduceOperator(never, subtract_in_steps, emits_batches=emits_batches))
    names = NameTable(["a", "b"])
    mixed = Columns(3, (ListColumn([1, "b", 1.0]), column_of([1, 1, 1])), Shape.TUPLE, key_position=0)

    harness.operator.process_chunk(coded(("a", 1), ("b", 2), names=names, key_position=0))
    harness.operator.process_chunk(coded(("b", 5), ("a", 7), ("b", 1), names=names, key_position=0))
    harness.operator.process_chunk(Chunk.of_columns(mixed))
    harness.operator.process_chunk(coded(("b", 2), names=names, key_position=0))

    first, second = [("a", 1), ("b", 2)], [("b", -3), ("a", -6), ("b", -4)]
    assert harness.output.values == [*first, *(second[1:] if emits_batches else second), (1, 1), ("b", -5), (1.0, 1), ("b", -7)]


def test_codes_lists_and_odd_keys_share_one_state(fuse: str) -> None:
    """Columns of codes of two senders, columns of texts, records, then keys of another type."""
    harness = Harness(KeyedReduceOperator(lambda record: record[0], subtract_in_steps))
    tables = NameTable(["a", "b"]), NameTable(["c", "b", "a"])
    texts = Columns(2, (ListColumn(["b", "d"]), ConstantColumn(10, 2)), Shape.TUPLE)

    harness.operator.process_chunk(coded(("a", 1), ("b", 2), ("a", 3), names=tables[0]))
    harness.operator.process_chunk(coded(("b", 5), ("c", 7), names=tables[1]))
    harness.operator.process_chunk(Chunk.of_columns(texts))
    harness.process(("a", 1), (1, 2), (True, 3), ("d", 1), (1, 4))
    harness.operator.process_chunk(coded(("a", 1), names=tables[1]))

    first = [("a", 1), ("b", 2), ("a", -2), ("b", -3), ("c", 7), ("b", -13), ("d", 10)]
    assert harness.output.values == [*first, ("a", -3), (1, 2), (True, 3), ("d", 9), (1, -2), ("a", -4)]


def test_a_failure_in_columns_names_the_record(fuse: str) -> None:
    harness = Harness(KeyedReduceOperator(lambda record: record[0], subtract))

    with pytest.raises(UserFunctionError) as caught:
        harness.operator.process_chunk(coded(("a", 1), ("b", "text"), ("b", 2), ("a", 3), names=NameTable(["a", "b"])))

    assert caught.value.record_preview == "('b', 2)"

import traceback
from collections.abc import Callable
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
    state, results = [("a", 1), MISSING, None], list[Any]()
    records = iter([("a", 2), ("b", 3), ("b", 4), ("a", 5)])

    ReduceLoop().run(function, [0, 1, 1, 0], records, state, results.append)

    assert results == [("a", -1), ("b", 3), ("b", -1), ("a", -6)]
    assert state == [("a", -6), ("b", -1), None]


def test_another_function_gets_another_loop(fuse: str) -> None:
    loop, state, results = ReduceLoop(), [("a", 1)], list[Any]()

    for function in (subtract, lambda so_far, record: record, subtract):
        loop.run(function, [0], iter([("a", 5)]), state, results.append)

    assert results == [("a", -4), ("a", 5), ("a", 0)]


def test_the_record_that_failed_is_the_last_one_taken_and_the_users_line_is_shown(fuse: str) -> None:
    records = iter([("a", 1), ("b", 1), ("a", None), ("b", 2)])
    state, results = [MISSING, MISSING], list[Any]()

    with pytest.raises(TypeError) as caught:
        ReduceLoop().run(subtract, [0, 1, 0, 1], records, state, results.append)

    assert list(records) == [("b", 2)]
    assert results == [("a", 1), ("b", 1)]
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.name, last.line) == ("subtract", "return (so_far[0], so_far[1] - record[1])")


def coded(*pairs: tuple[str, Any], names: NameTable) -> Chunk:
    import numpy as np

    codes = np.array([names.names.index(key) for key, _ in pairs], np.uint16)
    return Chunk.of_columns(Columns(len(pairs), (CodedColumn(codes, names), column_of([value for _, value in pairs])), Shape.TUPLE))


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

"""Reductions in columns beside the functions that work on single records."""

import math
import operator
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlet.columns import ArrayColumn, ArrowColumn, Columns, ListColumn, Shape, columns_of
from flowlet.datastream.user_functions.aggregations import Aggregation
from flowlet.kernels.columnar_reduction import ColumnarReduction
from flowlet.keys.exact_keys import exact_key
from tests.flowlet.serde.exact import exact

METHODS = ["sum", "min", "max", "min_by", "max_by"]
TEXTS = st.sampled_from(["a", "b", "c\0"])
INTS = st.integers(-3, 3) | st.integers(-(2**62), 2**62)
# No NaN: of several NaNs it is not defined which one a sum is.
FLOATS = st.sampled_from([0.0, -0.0, 0.1, 1e308, -1e308, math.inf]) | st.floats(allow_nan=False)
PAIRS = st.tuples(TEXTS, INTS)
TRIPLES = st.tuples(st.sampled_from(["x", "y", None]) | INTS, st.integers(0, 4), INTS)
FLOAT_KEYS = st.tuples(st.sampled_from([0.0, -0.0, math.nan, -math.nan, 1.5]), st.integers(0, 9), st.booleans())


def add(position: int) -> Callable[[Any, Any], Any]:
    def reduce(so_far: Any, record: Any) -> Any:
        fields = list(so_far)
        fields[position] += record[position]
        return tuple(fields)

    return reduce


def function_of(method: str, position: int) -> Callable[[Any, Any], Any]:
    if method == "sum":
        return add(position)
    return Aggregation(method, position).reduce


def loop(
    records: list[Any], key_of: Callable[[Any], Any], reduce: Callable[[Any, Any], Any], state: dict[Any, Any]
) -> list[Any]:
    running = []
    for record in records:
        key = exact_key(key_of(record))
        state[key] = reduce(state[key], record) if key in state else record
        running.append(state[key])
    return running


def last_of_each(records: list[Any], running: list[Any], key_of: Callable[[Any], Any]) -> list[Any]:
    last = {exact_key(key_of(record)): row for row, record in enumerate(records)}
    return [running[row] for row in sorted(last.values())]


def columns(records: list[Any]) -> Columns:
    found = columns_of(records)
    assert found is not None
    return found


def chunks_of(records: st.SearchStrategy[Any]) -> st.SearchStrategy[list[list[Any]]]:
    return st.lists(st.lists(records, min_size=1, max_size=12), max_size=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("records", "key", "position"),
    [(PAIRS, 0, 1), (st.tuples(TEXTS, FLOATS), 0, 1), (TRIPLES, 1, 2), (TRIPLES, 1, -1), (FLOAT_KEYS, 0, 1)],
    ids=["ints", "floats", "triples", "from the end", "float keys"],
)
@settings(max_examples=40)
@given(data=st.data())
def test_results_are_those_of_a_loop_over_records(
    records: st.SearchStrategy[Any], key: int, position: int, data: st.DataObject
) -> None:
    """One result per row, or one per key and chunk; of each method."""
    chunks = [(chunk, columns(chunk)) for chunk in data.draw(chunks_of(records))]

    for method, is_batch in product(METHODS, (False, True)):
        check_results(chunks, key, position, method, is_batch=is_batch)


def check_results(
    chunks: list[tuple[list[Any], Columns]], key: int, position: int, method: str, *, is_batch: bool
) -> None:
    """A chunk that a reduction refuses, for a reason, leaves the state of the chunks before it."""
    reduction, state = ColumnarReduction(Aggregation(method, position)), dict[Any, Any]()
    reduce, key_of = function_of(method, position), lambda record: record[key]

    for chunk, table in chunks:
        before = dict(state)
        running = loop(chunk, key_of, reduce, state)
        if is_batch:
            done = reduction.advance_batch(table, table.fields[key])
            found = None if done is None else done[0]
            expected = last_of_each(chunk, running, key_of)
        else:
            found, expected = reduction.advance(table, table.fields[key]), running
        if found is None:
            assert needs_a_loop(method, chunk, position, running)
            state = before
            break
        assert exact(found.to_list()) == exact(expected)

    final = reduction.columns()
    assert exact(dict(zip(reduction.keys(), [] if final is None else final.to_list(), strict=True))) == exact(state)


def needs_a_loop(method: str, chunk: list[Any], position: int, running: list[Any]) -> bool:
    values = [record[position] for record in chunk]
    if any(isinstance(value, float) for value in values):
        return method != "sum" and any(value == 0 and math.copysign(1, value) < 0 for value in values)
    bound = max(abs(record[position]) for record in running)
    return method == "sum" and bound + max(map(abs, values)) * len(values) >= 2**62


def test_rows_of_a_batch_say_which_records_came_last() -> None:
    table = columns([("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", 5)])

    found = ColumnarReduction(Aggregation("sum", 1)).advance_batch(table, table.fields[0])

    assert found is not None
    assert found[0].to_list() == [("a", 4), ("c", 4), ("b", 7)]
    assert found[1].tolist() == [2, 3, 4]


def test_once_a_refused_chunk_brought_keys_nothing_is_taken_any_more() -> None:
    reduction = ColumnarReduction(Aggregation("sum", 1))
    first, large, last = columns([("a", 1)]), columns([("b", 2**62), ("b", 2**62)]), columns([("c", 1)])
    assert reduction.advance(first, first.fields[0]) is not None

    assert reduction.advance(large, large.fields[0]) is None

    assert reduction.advance(last, last.fields[0]) is None
    assert reduction.advance_batch(last, last.fields[0]) is None
    assert reduction.keys() == ["a"]
    assert reduction.columns().to_list() == [("a", 1)]  # type: ignore[union-attr]  # there are some


@pytest.mark.parametrize("is_batch", [False, True], ids=["each row", "each key and chunk"])
@pytest.mark.parametrize("is_restored", [False, True], ids=["gone through", "restored"])
def test_each_key_keeps_its_first_record_wherever_the_key_is_in_later_ones(
    *, is_restored: bool, is_batch: bool
) -> None:
    """The key may be another field in later records, as with edges whose key is the smaller one of their ends."""
    reduction = ColumnarReduction(Aggregation("sum", 2))
    first, last = [("a", "x", 1), ("b", "y", 1)], [("c", "c", 1), ("b", "b", 1)]

    found = []
    for records, key in ((first, 0), ([("z", "a", 1)], 1), ([("c", "x", 1)], 0), (last, 0)):
        table = columns(records)
        if is_restored and (results := reduction.columns()):
            keys, reduction = reduction.keys(), ColumnarReduction(Aggregation("sum", 2))
            assert reduction.load(keys, results)
        advance = reduction.advance_batch if is_batch else reduction.advance
        done = advance(table, table.fields[key])
        assert done is not None
        found += (done[0] if isinstance(done, tuple) else done).to_list()

    assert found == [("a", "x", 1), ("b", "y", 1), ("a", "x", 2), ("c", "x", 1), ("c", "x", 2), ("b", "y", 2)]


def test_a_key_that_moved_is_not_taken_for_the_field_that_it_was() -> None:
    reduction = ColumnarReduction(Aggregation("sum", 2))
    first, moved = columns([("z", "a", 1)]), columns([("b", "y", 1)])
    assert reduction.advance(first, first.fields[1]) is not None
    assert reduction.advance(moved, moved.fields[0]) is not None
    last = columns([("a", "a", 1), ("b", "b", 1)])

    for key in (0, 1):
        done = reduction.advance(last, last.fields[key])

        assert done is not None
        assert done.to_list() == [("z", "a", 2 + key), ("b", "y", 2 + key)]


def test_a_first_record_whose_key_is_of_a_subclass_keeps_it_when_it_is_restored() -> None:
    class Name(str):
        __slots__ = ()

    reduction, later = ColumnarReduction(Aggregation("sum", 1)), columns([("a", 2), ("a", 3)])
    assert reduction.load(["a"], columns([(Name("a"), 1)]))

    found = reduction.advance(later, later.fields[0])

    assert found is not None
    assert exact(found.to_list()) == exact([(Name("a"), 3), (Name("a"), 6)])


REFUSED = {
    "another shape": [1, 2],
    "another length": [("a", 1, 2)],
    "another type": [("a", 1.5)],
    "bool": [("a", True)],
    "text": [("a", "x")],
    "beyond 64 bits": [("a", 2**63)],
    "a sum beyond 64 bits": [("a", 2**63 - 1), ("a", 2**63 - 1)],
    "a mixture": [("a", 1), ("b", None)],
    "keys that are none": [({"a"}, 1)],
    "keys of another kind": [(1, 1)],
}


@pytest.mark.parametrize("others", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_changes_nothing(others: list[Any]) -> None:
    reduction = ColumnarReduction(Aggregation("sum", 1))
    first = columns([("a", 1), ("b", 2), ("a", 3)])
    assert reduction.advance(first, first.fields[0]) is not None
    table = columns([*others, ("new", 1)] if type(others[0]) is tuple and len(others[0]) == 2 else others)

    assert reduction.advance(table, table.fields[0]) is None
    assert reduction.advance_batch(table, table.fields[0]) is None

    assert reduction.keys() == ["a", "b"]
    assert reduction.columns().to_list() == [("a", 4), ("b", 2)]  # type: ignore[union-attr]  # there are some
    assert reduction.num_slots == 2


@pytest.mark.slow
@given(chunks=chunks_of(PAIRS), rest=chunks_of(PAIRS))
@settings(max_examples=30)
def test_a_reduction_goes_on_from_results(chunks: list[list[Any]], rest: list[list[Any]]) -> None:
    former, later = list(map(columns, chunks)), list(map(columns, rest))

    for method in METHODS:
        reduction, restored = ColumnarReduction(Aggregation(method, 1)), ColumnarReduction(Aggregation(method, 1))
        if any(reduction.advance(table, table.fields[0]) is None for table in former):
            continue
        results = reduction.columns()
        assert results is None or restored.load(reduction.keys(), results)
        for table in later:
            found, expected = restored.advance(table, table.fields[0]), reduction.advance(table, table.fields[0])
            assert (None if found is None else found.to_list()) == (None if expected is None else expected.to_list())
            if found is None:
                break


NULLABLE = st.lists(
    st.lists(st.tuples(TEXTS | st.none(), st.none() | st.integers(-9, 9)), min_size=1, max_size=9), max_size=4
)


COMBINE: dict[str, Callable[[Any, Any], Any]] = {"sum": operator.add, "min": min, "max": max}


@pytest.mark.slow
@given(chunks=NULLABLE)
@settings(max_examples=30)
def test_nulls_are_skipped_where_that_is_wanted(chunks: list[list[Any]]) -> None:
    """A missing key is one more key; a result is null until there is a value."""
    keys = [ArrowColumn(pa.array([key for key, _ in chunk], pa.string())) for chunk in chunks]

    for kind, is_batch, method in product(
        [pa.int32(), pa.float64(), pa.timestamp("ms"), pa.date32()], (False, True), COMBINE
    ):
        values = [ArrowColumn(pa.array([value for _, value in chunk], kind)) for chunk in chunks]
        tables = [
            Columns(len(chunk), tuple(fields), Shape.ROW, ("k", "v"))
            for chunk, *fields in zip(chunks, keys, values, strict=True)
        ]
        check_nulls(chunks, tables, method, kind, is_batch=is_batch)


def check_nulls(chunks: list[list[Any]], tables: list[Columns], method: str, kind: Any, *, is_batch: bool) -> None:
    reduction, combine = ColumnarReduction(Aggregation(method, "v", skips_nulls=True)), COMBINE[method]
    state: dict[Any, Any] = {}

    for chunk, table in zip(chunks, tables, strict=True):
        running = []
        for key, value in chunk:
            so_far = state.get(key)
            state[key] = value if so_far is None else so_far if value is None else combine(so_far, value)
            running.append((key, state[key]))
        done = (reduction.advance_batch if is_batch else reduction.advance)(table, table.fields[0])

        if method == "sum" and kind in (pa.timestamp("ms"), pa.date32()):
            assert done is None
            return
        found = done[0] if isinstance(done, tuple) else done
        expected = last_of_each(chunk, running, lambda record: (record[0],)) if is_batch else running
        expected_values = pa.array([value for _, value in expected], kind).to_pylist()
        assert found is not None
        assert [tuple(row) for row in found.to_list()] == list(
            zip([key for key, _ in expected], expected_values, strict=True)
        )


def test_where_nulls_are_not_skipped_they_are_refused() -> None:
    fields = (ListColumn(["a", "b"]), ArrowColumn(pa.array([1, None])))

    assert ColumnarReduction(Aggregation("sum", 1)).advance(Columns(2, fields, Shape.TUPLE), fields[0]) is None
    min_by = ColumnarReduction(Aggregation("min_by", 1, skips_nulls=True))
    assert min_by.advance(Columns(2, fields, Shape.TUPLE), fields[0]) is None


def test_scalars_are_fields_of_their_own() -> None:
    table = Columns(4, (ArrayColumn(np.array([1, 2, 3, 4])),), Shape.SCALAR)

    found = ColumnarReduction(Aggregation("sum", 0)).advance(table, ArrayColumn(np.array([1, 0, 1, 0])))

    assert found is not None
    assert found.to_list() == [1, 2, 4, 6]
    for field in (1, -1, "v"):
        assert ColumnarReduction(Aggregation("sum", field)).advance(table, table.fields[0]) is None


@pytest.mark.parametrize(("method", "expected"), [("min", [5, 3, 3, None]), ("max", [5, 5, 5, None])])
def test_instants_in_numpy_have_extremes_and_their_gaps_are_nulls(method: str, expected: list[int | None]) -> None:
    instants = np.array([5, 3, "NaT", "NaT"], "datetime64[us]")
    table = Columns(4, (ListColumn(["a", "a", "a", "b"]), ArrayColumn(instants)), Shape.TUPLE)

    found = ColumnarReduction(Aggregation(method, 1, skips_nulls=True)).advance(table, table.fields[0])

    assert found is not None
    assert [instant for _, instant in found.to_list()] == np.array(
        [each or "NaT" for each in expected], "datetime64[us]"
    ).tolist()
    assert ColumnarReduction(Aggregation("sum", 1, skips_nulls=True)).advance(table, table.fields[0]) is None

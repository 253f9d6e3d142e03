import copy
import itertools
from collections import namedtuple
from collections.abc import Callable
from decimal import Decimal
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common.types import Row
from flowlet.errors import KeyTypeError, UserFunctionError
from flowlet.keys.exact_keys import exact_key
from flowlet.operators.keyed_aggregation_operator import KeyedReduceOperator, KeyedSumOperator
from flowlet.records import MAX_TIMESTAMP, Chunk
from tests.flowlet.operators.harness import Harness, RecordingOutput, results
from tests.flowlet.serde.exact import exact

Pair = namedtuple("Pair", "key value")


class Plain(tuple[Any, ...]):
    """A subclass without names."""


def first_field(record: Any) -> Any:
    return record[0]


def called_first_field(record: Any) -> Any:
    return next(iter(record)) if isinstance(record, Row) else record[0]


def parity(record: Any) -> Any:
    return record[-1] % 2


def reference(
    values: list[Any], key_of: Callable[[Any], Any], reduce: Callable[[Any, Any], Any]
) -> tuple[list[Any], list[Any]]:
    """Return all running results, and the last ones in the order of the keys' first records."""
    state: dict[Any, Any] = {}
    running = []
    for record in values:
        key = exact_key(key_of(record))
        state[key] = reduce(state[key], record) if key in state else record
        running.append(state[key])
    return running, list(state.values())


def add_field(position: int) -> Callable[[Any, Any], Any]:
    def add(so_far: Any, record: Any) -> Any:
        fields = list(so_far)
        fields[position] = so_far[position] + record[position]
        return type(so_far)(fields)

    return add


KEYS = st.sampled_from(["a", "b", "c", b"a", 0, 1, 1.0, 0.0, -0.0, True, False, ("a", 1), ("a", True)])
NUMBERS = st.integers(-5, 5) | st.integers(2**62, 2**64) | st.sampled_from([True, 0.5, -0.0, 1e300, Decimal("0.10")])
PLAIN_PAIRS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(-5, 5)), max_size=15)
PAIRS = st.lists(st.tuples(KEYS, NUMBERS.filter(lambda number: not isinstance(number, float | Decimal))), max_size=15)
FLOAT_PAIRS = st.lists(st.tuples(KEYS, st.sampled_from([0.5, -0.0, 1e300, 1, True])), max_size=15)
TRIPLES = st.lists(st.tuples(KEYS, st.integers(-5, 5), st.integers()), max_size=15)
LISTS = st.lists(st.tuples(KEYS, st.integers(-5, 5)).map(list), max_size=15)
MIXED = st.tuples(PLAIN_PAIRS, TRIPLES, PAIRS).map(lambda parts: [record for part in parts for record in part])
RECORDS = PLAIN_PAIRS | PAIRS | FLOAT_PAIRS | TRIPLES | MIXED | LISTS


@given(values=RECORDS, size=st.integers(1, 20))
def test_sums_are_those_of_a_loop_over_single_records(values: list[Any], size: int) -> None:
    """Chunks have any size; keys may be equal for Python, and records of changing kinds.  A selector's code is inlined,
    or it is called, or it says which field it takes.
    """
    running, final = reference(values, first_field, add_field(1))
    of_each, of_all = exact(running), exact(final)

    for selector in (first_field, called_first_field, itemgetter(0)):
        streamed, _ = results(KeyedSumOperator(selector, 1), values, size=size)
        at_end, _ = results(KeyedSumOperator(selector, 1, emit_on_finish=True), values, size=size)
        assert exact(streamed) == of_each
        assert exact(at_end) == of_all


@given(values=TRIPLES, size=st.integers(1, 20), position=st.sampled_from([2, -1]))
def test_any_position_can_be_summed_by_any_key(values: list[Any], size: int, position: int) -> None:
    """The other fields are those of the key's first record."""
    running, _ = reference(values, parity, add_field(position))

    found, _ = results(KeyedSumOperator(parity, position), values, size=size)

    assert exact(found) == exact(running)


@given(values=st.lists(st.tuples(KEYS, st.integers(0, 9)), max_size=15), size=st.integers(1, 20))
def test_reductions_are_those_of_a_loop_over_single_records(values: list[Any], size: int) -> None:
    """The order of the function's arguments and of the records matters."""

    def reduce(so_far: Any, record: Any) -> Any:
        return (so_far[0], so_far[1] * 10 + record[1])

    running, final = reference(values, first_field, reduce)

    streamed, _ = results(KeyedReduceOperator(first_field, reduce), values, size=size)
    at_end, _ = results(KeyedReduceOperator(first_field, reduce, emit_on_finish=True), values, size=size)

    assert exact(streamed) == exact(running)
    assert exact(at_end) == exact(final)


def test_a_reduction_may_be_none() -> None:
    calls = []

    def reduce(so_far: Any, record: Any) -> None:
        calls.append(so_far)

    harness = Harness(KeyedReduceOperator(lambda record: "k", reduce), pickled=False)
    harness.process(1, 2, 3)

    assert harness.output.values == [1, None, None]
    assert calls == [1, None]


def test_function_objects() -> None:
    class Key:
        def get_key(self, value: Any) -> Any:
            return value[0]

    class Longest:
        def reduce(self, value1: Any, value2: Any) -> Any:
            return max(value1, value2, key=len)

    found, _ = results(KeyedReduceOperator(Key(), Longest()), ["ab", "abc", "a", "b"], size=2)
    assert found == ["ab", "abc", "abc", "b"]


def test_results_have_the_timestamps_of_their_records() -> None:
    values = [("a", 1), ("b", 1), ("a", 1)]

    assert results(KeyedSumOperator(first_field, 1), values, size=2, timestamps=[5, 6, 7])[1] == [5, 6, 7]


@pytest.mark.parametrize("timestamps", [None, list(range(2500))], ids=["without", "with timestamps"])
def test_batch_results_come_at_the_end_in_chunks(timestamps: list[int] | None) -> None:
    """Results come in the order of first sight, and at the end of event time if the records had times."""
    harness = Harness(KeyedSumOperator(first_field, 1, emit_on_finish=True))
    harness.process(*((key, 1) for key in range(2500)), timestamps=timestamps)
    harness.process((2499, 1), (0, 5))
    assert harness.output.elements == []

    harness.operator.finish()

    assert [len(chunk) for chunk in harness.output.chunks] == [1000, 1000, 500]
    assert harness.output.values == [(0, 6), *((key, 1) for key in range(1, 2499)), (2499, 2)]
    assert set(harness.output.timestamps) == {None if timestamps is None else MAX_TIMESTAMP}


def test_nothing_comes_twice_at_the_end_of_a_stream() -> None:
    assert results(KeyedSumOperator(first_field, 1), [("a", 1)], size=1)[0] == [("a", 1)]
    assert results(KeyedReduceOperator(first_field, max), [("a", 1)], size=1)[0] == [("a", 1)]
    assert results(KeyedSumOperator(first_field, 1, emit_on_finish=True), [], size=1)[0] == []


def test_rows_named_tuples_and_numbers() -> None:
    rows = [Row(key="a", value=1), Row(key="a", value=2), Row(key="b", value=5)]
    assert results(KeyedSumOperator(first_field, "value"), rows, size=3)[0] == [rows[0], Row(key="a", value=3), rows[2]]
    assert results(KeyedSumOperator(first_field, 1), rows, size=3)[0] == [rows[0], Row(key="a", value=3), rows[2]]
    assert rows[0] == Row(key="a", value=1)

    pairs = [Pair("a", 1), Pair("a", 2)]
    for position in ("value", 1):
        found = results(KeyedSumOperator(first_field, position), pairs, size=1)[0]
        assert exact(found) == exact([Pair("a", 1), Pair("a", 3)])

    plain = results(KeyedSumOperator(first_field, 1), [Plain(("a", 1)), Plain(("a", 2))], size=1)[0]
    assert exact(plain) == exact([Plain(("a", 1)), Plain(("a", 3))])

    assert results(KeyedSumOperator(lambda number: number % 2, 0), [1, 2, 3, 4], size=3)[0] == [1, 2, 4, 6]


class Bag:
    """Changes where it is added to."""

    def __init__(self, *items: int) -> None:
        self.items = list(items)

    def __add__(self, other: Any) -> Any:
        self.items += other.items if isinstance(other, Bag) else [other]
        return self


@pytest.mark.parametrize(
    "chunks",
    [
        [[("a", 1), ("b", Bag(1)), ("b", Bag(2))]],
        [[("b", Bag(1)), ("a", 1), ("b", 2)]],
        [[("b", Bag(1)), ("a", 1)], [("b", 2), ("b", 3)]],
    ],
    ids=["behind one that cannot", "in front of one", "in an earlier chunk"],
)
@pytest.mark.parametrize("is_restored", [False, True])
def test_results_that_change_later_were_emitted_as_they_were(chunks: list[list[Any]], is_restored: bool) -> None:
    """Such results may be anywhere among records that cannot change."""
    output = RecordingOutput()
    running: dict[str, list[Any]] = {}
    expected = []
    state: object = None

    for run in [[records] for records in chunks] if is_restored else [chunks]:
        reduce = KeyedReduceOperator(itemgetter(0), lambda so_far, record: (so_far[0], so_far[1] + record[1]))
        harness = Harness(reduce, output=output, restored=state)
        for records in run:
            harness.operator.process_chunk(Chunk(copy.deepcopy(records)))
        state = harness.snapshot()
    for key, value in itertools.chain.from_iterable(chunks):
        running.setdefault(key, []).extend(value.items if isinstance(value, Bag) else [value])
        expected.append((key, running[key].copy()))

    results = [(key, value.items if isinstance(value, Bag) else [value]) for key, value in output.values]
    assert results == expected


def test_lists_are_not_changed_in_place() -> None:
    values = [["a", 1], ["a", 2]]

    assert results(KeyedSumOperator(first_field, 1), values, size=2)[0] == [["a", 1], ["a", 3]]
    assert values == [["a", 1], ["a", 2]]


WRONG_RECORDS: list[tuple[Any, Any, type[Exception], str]] = [
    (("a", "x"), 1, TypeError, "adds numbers, got a value of type str"),
    (("a", None), 1, TypeError, "got a value of type NoneType"),
    (("a",), 1, IndexError, "tuple index out of range"),
    (["a", "x"], 1, TypeError, "got a value of type str"),
    (("a", 1), "value", TypeError, r"sum\('value'\) needs rows or named tuples with that field, got a tuple"),
    ("ab", 1, TypeError, "needs tuples, lists or rows, got a value of type str"),
    ({"a": 1, 0: 2}, 1, TypeError, "needs tuples, lists or rows, got a value of type dict"),
    (Row(key="a"), "value", KeyError, "value"),
]


@pytest.mark.parametrize(
    ("record", "position", "kind", "message"), WRONG_RECORDS, ids=[f"{row[0]!r} {row[1]}" for row in WRONG_RECORDS]
)
@pytest.mark.parametrize("selector", [first_field, called_first_field], ids=["inlined", "called"])
def test_a_record_that_cannot_be_summed_is_named(
    record: Any, position: Any, kind: type[Exception], message: str, selector: Any
) -> None:
    """Whether it is the first of its key or not."""
    for before in ([], [("z", 1)] if position == 1 else []):
        harness = Harness(KeyedSumOperator(selector, position, name="total"), subtask=3)
        with pytest.raises(UserFunctionError) as caught:
            harness.process(*before, record)

        assert (caught.value.operator, caught.value.subtask) == ("total", 3)
        assert caught.value.record_preview is not None
        assert isinstance(caught.value.__cause__, kind)
        with pytest.raises(kind, match=message):
            raise caught.value.__cause__


@pytest.mark.parametrize("selector", [first_field, called_first_field], ids=["inlined", "called"])
def test_a_second_record_that_cannot_be_added_is_named(selector: Any) -> None:
    harness = Harness(KeyedSumOperator(selector, 1))

    with pytest.raises(UserFunctionError) as caught:
        harness.process(("a", 1), ("b", 1), ("a", "x"), ("b", 2))

    assert caught.value.record_preview == "('a', 'x')"


def test_a_failing_reduce_names_the_record() -> None:
    def reduce(so_far: Any, record: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(UserFunctionError) as caught:
        Harness(KeyedReduceOperator(first_field, reduce)).process("a1", "b1", "b2", "a2")

    assert caught.value.record_preview == "'b2'"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    "make", [lambda key: KeyedSumOperator(key, 1), lambda key: KeyedReduceOperator(key, max)], ids=["sum", "reduce"]
)
@pytest.mark.parametrize(
    ("selector", "bad", "cause"),
    [
        (lambda record: 1 / record[1], ("b", 0), ZeroDivisionError),
        (first_field, ({"b"}, 2), KeyTypeError),
        (called_first_field, ({"b"}, 2), KeyTypeError),
    ],
    ids=["a selector that fails", "no key, inlined", "no key, called"],
)
def test_a_record_without_a_key_is_named(make: Any, selector: Any, bad: Any, cause: type[Exception]) -> None:
    with pytest.raises(UserFunctionError) as caught:
        Harness(make(selector)).process(("a", 1), bad, ("c", 2))

    assert caught.value.record_preview == repr(bad)
    assert isinstance(caught.value.__cause__, cause)


def test_the_state_goes_with_close() -> None:
    harness = Harness(KeyedSumOperator(first_field, 1, emit_on_finish=True))
    harness.process(("a", 1))

    harness.operator.close()
    harness.operator.finish()

    assert harness.output.elements == []


@pytest.mark.parametrize(
    "values", [[("a", 10**400), ("a", 1.5)], [("a", Decimal("Infinity")), ("a", Decimal("-Infinity"))]]
)
def test_a_sum_that_python_cannot_compute_names_the_record(values: list[Any]) -> None:
    """The record may be among plain pairs, which take a path of their own."""
    harness = Harness(KeyedSumOperator(lambda record: record[0], 1))

    with pytest.raises(UserFunctionError) as caught:
        harness.process(*values)

    assert caught.value.record_preview == repr(values[1])
    assert isinstance(caught.value.__cause__, ArithmeticError)


@pytest.mark.parametrize("others", [[], [["b", 1]], [("b", 1, 2)]])
def test_a_text_among_numbers_gets_the_same_words_whatever_else_is_in_its_chunk(others: list[Any]) -> None:
    harness = Harness(KeyedSumOperator(lambda record: record[0], 1))

    with pytest.raises(UserFunctionError) as caught:
        harness.process(("a", 1), ("a", "text"), *others)

    assert str(caught.value.__cause__) == "sum(1) adds numbers, got a value of type str"
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.__context__ is None  # users read it once

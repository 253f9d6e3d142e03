import operator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.columns import Columns, Shape, columns_of
from flowlet.columns.arrow_batches import columns_of_batch
from flowlet.common.types import Row
from flowlet.errors import UserFunctionError
from flowlet.keys.exact_keys import exact_key
from flowlet.operators import keyed_aggregation_operator
from flowlet.operators.keyed_aggregation_operator import KeyedCountOperator
from flowlet.records import Chunk
from tests.flowlet.operators.harness import Harness
from tests.flowlet.serde.exact import exact

WORDS = st.lists(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=9), max_size=4)
KEYS = st.lists(st.lists(st.sampled_from(["a", 1, 1.0, True, ("a", 1), b"a"]), min_size=1, max_size=9), max_size=4)


@pytest.mark.parametrize("in_columns", [False, True], ids=["records", "columns"])
@given(chunks=WORDS | KEYS)
def test_each_record_comes_with_the_number_of_those_with_its_key(in_columns: bool, chunks: list[list[Any]]) -> None:
    harness = Harness(KeyedCountOperator(lambda word: word))
    counts: dict[Any, int] = {}
    expected = []

    for words in chunks:
        columns = columns_of(words) if in_columns else None
        harness.operator.process_chunk(Chunk(list(words)) if columns is None else Chunk.of_columns(columns))
        for word in words:
            counts[exact_key(word)] = counts.get(exact_key(word), 0) + 1
            expected.append((word, counts[exact_key(word)]))

    assert exact(harness.output.values) == exact(expected)


def never_asked(_: Any) -> Any:
    raise AssertionError("asked")


def test_columns_of_words_are_counted_in_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_aggregation_operator, "MIN_COLUMN_ROWS", 1)
    words = columns_of(["a", "b", "a"])
    pairs = columns_of([("a", 9), ("b", 9), ("a", 9)])
    assert words is not None
    assert pairs is not None

    words = Columns(3, words.fields, Shape.SCALAR, key_position=0)  # as the writer says it, who saw the keys
    for columns, selector in ((words, never_asked), (pairs, operator.itemgetter(0))):
        harness = Harness(KeyedCountOperator(selector))
        harness.operator.process_chunk(Chunk.of_columns(columns, [1, 2, 3]))

        assert harness.output.chunks[0].columns is not None
        assert harness.output.values == [("a", 1), ("b", 1), ("a", 2)]
        assert harness.output.timestamps == [1, 2, 3]


@pytest.mark.parametrize("in_columns", [False, True], ids=["records", "columns"])
def test_rows_are_counted_by_a_column_with_nulls(in_columns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from flowlet.keys.column_key import ColumnKey

    monkeypatch.setattr(keyed_aggregation_operator, "MIN_COLUMN_ROWS", 1)
    harness = Harness(KeyedCountOperator(ColumnKey("k"), field_names=("k", "count"), emits_batches=True))
    columns = columns_of_batch(pa.record_batch({"x": [1, 2, 3, 4], "k": ["a", None, "a", None]}))

    for _ in range(2):
        harness.operator.process_chunk(Chunk.of_columns(columns) if in_columns else Chunk(columns.to_list()))

    assert harness.output.values == [
        Row(k="a", count=2),
        Row(k=None, count=2),
        Row(k="a", count=4),
        Row(k=None, count=4),
    ]
    assert harness.output.chunks[0].columns is not None or not in_columns


def test_a_record_without_a_key_is_named() -> None:
    for selector in (lambda record: record, lambda record: record[0]):
        with pytest.raises(UserFunctionError) as caught:
            Harness(KeyedCountOperator(selector)).process("a", {"b": 1})

        assert caught.value.record_preview == "{'b': 1}"

import datetime
import decimal
import uuid
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.columns import ArrayColumn, ArrowColumn, CodedColumn, Column, Columns, ConstantColumn, ListColumn, NameTable, Shape, WordColumn
from flowlet.fusing.unchanging import UNCHANGING, can_change, is_unchanging
from flowlet.fusing.unchanging_records import are_unchanging, chunk_is_unchanging, has_unchanging_columns
from flowlet.operators.copying import copy_chunk
from flowlet.records import Chunk


class Pair(NamedTuple):
    first: Any
    second: Any


class Text(str):
    __slots__ = ("mark",)


FIELDS = st.sampled_from([1, "a", None, True, 2.5, b"x", 2**70, decimal.Decimal(1), datetime.date(2024, 1, 1), uuid.UUID(int=1)])
OTHERS = st.sampled_from([[1], {"a": 1}, {1}, (1, 2), Text("a"), Pair(1, 2), bytearray(b"x"), np.int64(1)])
RECORDS = st.one_of(FIELDS, st.tuples(FIELDS), st.tuples(FIELDS, FIELDS), st.tuples(FIELDS, OTHERS), OTHERS, st.just(()))


@given(st.lists(RECORDS, max_size=6) | st.lists(st.tuples(st.text(), st.integers()), max_size=5))
def test_a_list_is_unchanging_if_each_record_is(values: list[Any]) -> None:
    """By the exact types of records and fields; scalars and tuples in one list are looked at one by one elsewhere."""
    is_each = all(not can_change(value) for value in values)
    is_mixed = len({type(value) is tuple for value in values}) > 1

    assert are_unchanging(values) == (is_each and not is_mixed)


@pytest.mark.parametrize("other", [(1, 2), ("a",), ("a", 1, 1), ("a", [1]), ["a", 1], Pair("a", 1), ("a", True)])
def test_one_record_of_another_kind_is_found(other: Any) -> None:
    """The first records decide what is looked for, not what is found."""
    values = [("a", 1), ("b", 2), other]

    assert are_unchanging(values) == (not can_change(other))


def test_many_fields_need_no_check_of_their_own() -> None:
    assert are_unchanging([tuple(range(100))])
    assert not are_unchanging([(*range(100), [])])


@pytest.mark.parametrize(
    ("fields", "shape", "says"),
    [
        ([ArrayColumn(np.array([1, 2]))], Shape.SCALAR, True),
        ([ArrayColumn(np.array([1, 2])), ListColumn(["a", "b"], str)], Shape.TUPLE, True),
        ([ListColumn(["a", 1])], Shape.SCALAR, True),
        ([ConstantColumn("a", 2)], Shape.SCALAR, True),
        ([ListColumn([[1], [2]])], Shape.SCALAR, False),
        ([ListColumn([[1], [2]], list)], Shape.SCALAR, False),
        ([ConstantColumn([1], 2)], Shape.SCALAR, False),
        ([CodedColumn(np.array([0, 0], np.uint16), NameTable(["a", 1]))], Shape.SCALAR, True),
        ([CodedColumn(np.array([0, 1], np.uint16), NameTable(["a", [1]]))], Shape.SCALAR, False),
    ],
)
def test_columns_know_it_or_leave_it_to_the_values(fields: list[Column], shape: Shape, says: bool) -> None:
    """What the columns do not know is found in the records."""
    chunk = Chunk.of_columns(Columns(2, tuple(fields), shape))

    assert has_unchanging_columns(chunk) is says
    assert chunk_is_unchanging(chunk) == are_unchanging(chunk.values)


DAY = datetime.datetime(2024, 1, 1)  # noqa: DTZ001 - as Arrow gives it
ARROW: list[tuple[Any, bool]] = [
    (pa.array(["a", None]), True),
    (pa.array(["a", "b"], pa.large_string()), True),
    (pa.array([b"a", None]), True),
    (pa.array([b"ab", None], pa.binary(2)), True),
    (pa.array([1, None], pa.int8()), True),
    (pa.array([1.5, None]), True),
    (pa.array([True, None]), True),
    (pa.array([None, None]), True),
    (pa.array([DAY, None], pa.timestamp("us")), True),
    (pa.array([DAY.date(), None]), True),
    (pa.array([DAY.time(), None]), True),
    (pa.array([datetime.timedelta(1), None]), True),
    (pa.array([decimal.Decimal(1), None]), True),
    (pa.array(["a", None]).dictionary_encode(), True),
    (pa.array([[1], None]), False),
    (pa.array([{"a": 1}, None]), False),
    (pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())), False),
]


@pytest.mark.parametrize(("array", "says"), ARROW, ids=[str(array.type) for array, _ in ARROW])
def test_arrow_columns_know_it_by_their_type(array: Any, says: bool) -> None:
    """Before anything is made of them; so rows of them need no copies."""
    chunk = Chunk.of_columns(Columns(2, (ArrowColumn(array),), Shape.SCALAR))
    rows = Chunk.of_columns(Columns(2, (ArrowColumn(array),), Shape.ROW, ("a",)))

    assert has_unchanging_columns(chunk) is says
    assert are_unchanging(chunk.values) is says
    assert (copy_chunk(rows).columns is rows.columns) is says


def test_rows_can_always_change() -> None:
    chunk = Chunk.of_columns(Columns(1, (ArrayColumn(np.array([1])),), Shape.ROW, ("a",)))

    assert not chunk_is_unchanging(chunk)


def test_a_list_alone_has_no_columns() -> None:
    assert not has_unchanging_columns(Chunk([1]))
    assert chunk_is_unchanging(Chunk([]))


@given(st.recursive(FIELDS, lambda value: st.tuples(value, value)))
def test_tuples_of_what_cannot_change_cannot_change(value: Any) -> None:
    """However deep."""
    assert is_unchanging(value)
    assert not is_unchanging((value, [value]))
    assert not is_unchanging([value])


def test_types_are_exact() -> None:
    """A subclass has room for anything."""
    assert type(Text("a")) not in UNCHANGING
    assert not is_unchanging(Text("a"))
    assert not is_unchanging(Pair(1, 2))


def test_words_of_a_text_cannot_change() -> None:
    """They are texts."""
    assert chunk_is_unchanging(Chunk.of_columns(Columns(2, (WordColumn("to be"),), Shape.SCALAR)))

"""Slots are those of a dictionary of exact keys, whatever the columns are."""

import datetime
import math
import weakref
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.columns import (
    ArrayColumn,
    ArrowColumn,
    CodedColumn,
    Column,
    ConstantColumn,
    ListColumn,
    NameTable,
    column_of,
)
from flowlet.columns.short_text_column import try_short_texts
from flowlet.keys import key_index
from flowlet.keys.exact_keys import exact_key
from flowlet.keys.key_index import KeyIndex
from tests.flowlet.keys_of_every_type import GOLDEN

INTS = st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)
FLOATS = st.sampled_from([0.0, -0.0, 1.0, math.nan, -math.nan, math.inf]) | st.floats()
MANY_TEXTS = [f"key {number}" for number in range(300)]  # for a table of their own
TEXTS = st.sampled_from(["a", "b", "", "a\0", "é"])


def expected(chunks: list[list[Any]]) -> tuple[list[list[int]], list[Any]]:
    slots: dict[Any, int] = {}
    found = [[slots.setdefault(exact_key(key), len(slots)) for key in chunk] for chunk in chunks]
    return found, list(slots)


def check(index: KeyIndex, columns: Sequence[Column], chunks: list[list[Any]]) -> None:
    found = []
    for column in columns:
        slots = index.slots(column)
        assert slots is not None
        assert slots.dtype == np.intp
        found.append(slots.tolist())
    assert (found, index.keys()) == expected(chunks)
    assert index.num_slots == len(index.keys())


def chunks_of(keys: st.SearchStrategy[Any]) -> st.SearchStrategy[list[list[Any]]]:
    return st.lists(st.lists(keys, min_size=1, max_size=12), max_size=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys", [INTS, FLOATS, TEXTS, st.booleans(), st.binary(max_size=2), st.tuples(TEXTS, INTS | st.none())]
)
@given(data=st.data())
def test_keys_of_one_type(keys: st.SearchStrategy[Any], data: st.DataObject) -> None:
    """In columns as they are inspected, and in lists."""
    chunks = data.draw(chunks_of(keys))

    check(KeyIndex(), [column_of(chunk) for chunk in chunks], chunks)
    check(KeyIndex(), [ListColumn(chunk) for chunk in chunks], chunks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "kinds"),
    [
        (INTS, [pa.int64()]),
        (st.integers(-3, 3), [pa.int8()]),
        (st.integers(0, 3), [pa.uint64()]),
        (FLOATS, [pa.float64()]),
        (TEXTS, [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]),
        (st.binary(max_size=2), [pa.binary()]),
        (st.booleans(), [pa.bool_()]),
    ],
    ids=["int64", "int8", "uint64", "float64", "texts", "binary", "bool"],
)
@given(data=st.data())
def test_arrow_columns_with_nulls(keys: st.SearchStrategy[Any], kinds: list[Any], data: st.DataObject) -> None:
    """Null is one more key, in the order of first sight like the others."""
    chunks = data.draw(chunks_of(keys | st.none()))

    for kind, allows_null in product(kinds, (False, True)):
        check(KeyIndex(allows_null=allows_null), [ArrowColumn(pa.array(chunk, kind)) for chunk in chunks], chunks)


@pytest.mark.slow
@given(chunks=chunks_of(st.integers(-5, 5) | st.none()))
def test_instants_are_keys_in_microseconds_where_the_key_is_a_column(chunks: list[list[int | None]]) -> None:
    for kind, step in ((pa.timestamp("s"), 1_000_000), (pa.timestamp("ms", "UTC"), 1_000), (pa.timestamp("us"), 1)):
        check(
            KeyIndex(allows_null=True),
            [ArrowColumn(pa.array(chunk, kind)) for chunk in chunks],
            [[None if key is None else key * step for key in chunk] for chunk in chunks],
        )


@pytest.mark.parametrize(
    "nulls",
    [
        ConstantColumn(None, 2),
        ListColumn([None, None]),
        ArrowColumn(pa.array([None, None], pa.int16()).dictionary_encode()),
        ArrowColumn(pa.array([None, None], pa.string()).dictionary_encode()),
    ],
    ids=["one value", "a list", "a dictionary of numbers", "a dictionary of texts"],
)
@pytest.mark.parametrize(
    "keys",
    [
        pa.array([3, None, 4]),
        pa.array([3, 4]).dictionary_encode(),
        pa.array([0.5, None]),
        pa.array(["a", None]),
        pa.array(MANY_TEXTS),
    ],
    ids=["integers", "a dictionary of integers", "floats", "texts", "many texts"],
)
def test_nulls_alone_do_not_tell_of_what_kind_keys_are(nulls: Column, keys: Any) -> None:
    """A subtask may see them first."""
    column, none = ArrowColumn(keys), [None, None]

    check(
        KeyIndex(allows_null=True),
        [nulls, nulls, column, nulls, column],
        [none, none, keys.to_pylist(), none, keys.to_pylist()],
    )

    index = KeyIndex(allows_null=True)
    assert index.load([None])
    check(index, [nulls, column], [none, keys.to_pylist()])


def test_where_the_key_is_no_column_instants_are_no_numbers() -> None:
    """Instants are no numbers beside one in a list, either: its records are looked at one by one."""
    day = datetime.date(2024, 1, 1)
    for values, kind in [([1], pa.timestamp("us")), ([day], pa.date32())]:
        assert KeyIndex().slots(ArrowColumn(pa.array(values, kind))) is None
    assert KeyIndex(allows_null=True).slots(ListColumn([day])) is None
    check(KeyIndex(), [ListColumn([day, None, day])], [[day, None, day]])
    assert KeyIndex(allows_null=True).slots(ArrowColumn(pa.array([1], pa.timestamp("ns")))) is None


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), max_size=6),
    st.lists(TEXTS, min_size=10, max_size=10),
)
def test_codes_of_tables_that_grow(chunks: list[list[int]], extra: list[str]) -> None:
    """Codes of two tables in turn have the slots of their names; names that no record has are no keys."""
    tables = NameTable(), NameTable()
    values, columns = [], []
    for number, chunk in enumerate(chunks):
        table = tables[number % 2]
        while len(table) <= max(chunk):
            table.names.append(f"{extra[len(table)]}{len(table) % 4}")
        columns.append(CodedColumn(np.array(chunk, np.uint16), table))
        values.append(columns[-1].to_list())

    index, found = KeyIndex(), []
    for column in columns:
        found.append(index.slots(column).tolist())  # type: ignore[union-attr]  # asserted by the comparison

    assert (found, index.keys()) == expected(values)


def texts_as(kind: str, texts: list[str]) -> Column:
    short = try_short_texts(texts)
    return ListColumn(texts, str) if kind == "list" or short is None else short


@given(
    chunks=st.lists(st.lists(TEXTS | st.text(st.sampled_from("ab"), max_size=18), min_size=1, max_size=12), max_size=5),
    kinds=st.lists(st.sampled_from(["short texts", "list"]), min_size=5, max_size=5),
    bytes_at=st.integers(0, 9),
)
def test_texts_have_the_same_slots_however_they_come(chunks: list[list[str]], kinds: list[str], bytes_at: int) -> None:
    """Short ones, until there is one that is not, or a key that is no text."""
    columns = [texts_as(kind, texts) for kind, texts in zip(kinds, chunks, strict=False)]
    keys: list[list[Any]] = list(chunks)
    if bytes_at < len(chunks):
        columns.insert(bytes_at, ListColumn([b"a", b""], bytes))
        keys.insert(bytes_at, [b"a", b""])

    for min_texts in (1, 4, 256):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(key_index, "_MIN_TEXTS", min_texts)
            index = KeyIndex()
            check(index, columns, keys)
            restored = KeyIndex()
            assert restored.load(index.keys())
        assert restored.keys() == index.keys()
        assert restored.num_slots == index.num_slots


def test_tables_that_nobody_uses_any_more_are_let_go() -> None:
    """Each generation of a channel's dictionary has one, with thousands of texts; the tables of a thousand channels
    stay.
    """
    index = KeyIndex()
    used = [NameTable(["a", "b"]) for _ in range(1_000)]
    old = [NameTable(["a", "c"]) for _ in range(1_000)]
    ends = [weakref.ref(table) for table in old]

    for table in [*used, *old]:
        slots = index.slots(CodedColumn(np.array([0, 1], np.uint16), table))
        assert slots is not None
        assert slots.tolist() == [0, 1 if table.names[1] == "b" else 2]
    del old, table

    assert [end for end in ends if end() is not None] == []
    assert index._tables is not None
    assert set(index._tables) == set(used)


def test_a_column_of_another_kind_is_refused() -> None:
    """An index of both would have to tell 1, 1.0 and True apart."""
    ints = KeyIndex()
    assert ints.slots(ArrayColumn(np.array([1, 2]))) is not None
    for other in (
        ArrayColumn(np.array([1.0])),
        ListColumn(["a"]),
        ListColumn([True]),
        ConstantColumn("a", 2),
        ListColumn([1, "a"]),
    ):
        assert ints.slots(other) is None
    assert ints.keys() == [1, 2]

    texts = KeyIndex()
    assert texts.slots(ListColumn(["a"])) is not None
    for other in (
        ArrayColumn(np.array([1])),
        ConstantColumn(1, 3),
        ListColumn([2**64]),
        ListColumn([{"a"}]),
        ListColumn([{"a"}, None]),
    ):
        assert texts.slots(other) is None
    assert texts.keys() == ["a"]


def test_constants_and_lists_find_the_same_slots() -> None:
    index = KeyIndex()

    assert index.slots(ConstantColumn("b", 3)).tolist() == [0, 0, 0]  # type: ignore[union-attr]  # a str is a key
    assert index.slots(ListColumn(["a", "b"])).tolist() == [1, 0]  # type: ignore[union-attr]  # as above
    assert index.slots(ConstantColumn("a", 2)).tolist() == [1, 1]  # type: ignore[union-attr]  # as above


@given(st.lists(FLOATS | st.none()) | st.lists(INTS | st.none()) | st.lists(TEXTS | st.booleans() | st.none()))
def test_an_index_goes_on_from_its_keys(keys: list[Any]) -> None:
    _, distinct = expected([keys])
    index = KeyIndex(allows_null=True)

    assert index.load(distinct)

    assert index.keys() == distinct
    if distinct and None not in distinct:
        column = column_of(keys)
        assert index.slots(column).tolist() == expected([keys])[0][0]  # type: ignore[union-attr]  # keys of one kind


def test_keys_of_every_type_have_slots() -> None:
    keys = [key for key, _ in GOLDEN if type(key) is not int]

    check(KeyIndex(), [ListColumn(keys), ListColumn(keys[::-1])], [keys, keys[::-1]])


def test_where_equal_instants_may_look_different_no_key_stands_for_another() -> None:
    moment = datetime.datetime(2024, 10, 27, 2, 30)  # noqa: DTZ001 - whose hour came twice
    index = KeyIndex()

    check(index, [ListColumn([moment, moment.replace(fold=1)])], [[moment, moment]])

    assert not index.are_plain


@pytest.mark.parametrize("keys", [[1, "a"], [2**70], [1, 2**70], [1, exact_key(1.0)]])
def test_keys_of_several_kinds_are_no_index(keys: list[Any]) -> None:
    assert not KeyIndex().load(keys)

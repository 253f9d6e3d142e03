"""Integers in as few bytes as will do."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowlet.columns import ArrayColumn, Columns, ConstantColumn, ListColumn, OffsetColumn, Shape, narrowed
from flowlet.serde.column_reader import ChannelDictionary, decode_records
from flowlet.serde.column_writer import table_parts

LIMITS = (-(2**63), 2**63 - 1)
CLOSE = st.integers(*LIMITS).flatmap(
    lambda low: st.sampled_from([1, 255, 256, 65535, 65536, 2**32 - 1, 2**32]).flatmap(
        lambda span: st.lists(st.integers(low, min(low + span, LIMITS[1])), min_size=1, max_size=40)
    )
)


@given(st.one_of(CLOSE, st.lists(st.integers(*LIMITS), min_size=1, max_size=40)))
@example([-(2**63), 2**63 - 1] * 10)
@example([2**63 - 1 - n for n in range(20)])
def test_a_narrow_column_stands_for_the_same_integers(values: list[int]) -> None:
    column = narrowed(np.array(values, np.int64))

    assert column.to_list() == values
    assert set(map(type, column.to_list())) == {int}
    half = len(values) // 2
    assert column.slice(half, len(values)).to_list() == values[half:]
    assert column.take(np.arange(len(values))[::-1]).to_list() == values[::-1]
    table, _ = decode_records(
        memoryview(b"".join(table_parts(Columns(len(values), (column,), Shape.SCALAR)))),
        0,
        len(values),
        ChannelDictionary(),
    )
    assert isinstance(table, Columns)
    assert table.to_list() == values


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (range(100), "i1"),
        (range(-200, 200), "i2"),
        (range(200), "u1"),
        (range(10**12, 10**12 + 60_000), "u2"),
        ([0, 2**31] * 20, "u4"),
    ],
)
def test_the_narrowest_type_is_taken(values: list[int], dtype: str) -> None:
    column = narrowed(np.array(values, np.int64))

    assert isinstance(column, OffsetColumn)
    assert column.offsets.dtype == np.dtype(dtype)


def test_one_value_many_times_is_a_constant() -> None:
    assert isinstance(narrowed(np.full(5, 7)), ConstantColumn)


def test_only_integers_of_64_bits_are_narrowed() -> None:
    narrow, texts = ArrayColumn(np.arange(20, dtype=np.int32)), ListColumn(["x"] * 20, str)
    table = Columns(20, (narrow, ArrayColumn(np.arange(20)), texts), Shape.TUPLE)

    fields = table.narrowed().fields

    assert fields[0] is narrow
    assert isinstance(fields[1], OffsetColumn)
    assert fields[2] is texts
    assert table.narrowed().to_list() == table.to_list()

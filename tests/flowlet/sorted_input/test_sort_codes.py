"""Codes of keys: equal exactly for equal keys, and in one order in every representation."""

import datetime
import decimal
import enum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.columns import ArrayColumn, Column, ConstantColumn, ListColumn, column_of
from flowlet.columns.column_kinds import CodedColumn, NameTable
from flowlet.common.types import Row
from flowlet.keys.exact_keys import exact_key
from flowlet.sorted_input.sorted_block import CodeArray, RunKeys, as_bytes, codes_of, integer_codes


class Color(enum.Enum):
    RED = 1
    BLUE = 2


scalars = (
    st.integers(-(2**70), 2**70)
    | st.text(max_size=80)
    | st.binary(max_size=80)
    | st.none()
    | st.booleans()
    | st.floats()
    | st.dates()
    | st.datetimes()
    | st.decimals(allow_nan=False)
    | st.sampled_from(Color)
)
keys = st.recursive(scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4)


def listed_codes(values: list[object]) -> list[bytes]:
    codes: list[bytes] = as_bytes(codes_of(list(map(exact_key, values)))).tolist()
    return codes


def column_codes(*columns: Column) -> CodeArray:
    """Return the codes of the keys of one run."""
    integers = [integer_codes(column) for column in columns]
    if all(each is not None for each in integers):
        return np.concatenate([each for each in integers if each is not None])
    keys = RunKeys()
    numbers = np.concatenate([keys.numbers(column) for column in columns])
    ranks, codes = keys.ranking()
    assert codes.tolist() == sorted(set(codes.tolist()))
    return codes.take(ranks.take(numbers))


@pytest.mark.slow
@given(values=st.lists(keys, max_size=12))
def test_codes_are_equal_exactly_for_the_same_key(values: list[object]) -> None:
    """Values of any types may be beside each other."""
    codes = listed_codes(values)

    for key, code in zip(values, codes, strict=True):
        for other, other_code in zip(values, codes, strict=True):
            assert (code == other_code) == (exact_key(key) == exact_key(other)), (key, other)


@pytest.mark.slow
@given(values=st.lists(keys, min_size=1, max_size=8))
def test_codes_do_not_depend_on_what_is_beside_them(values: list[object]) -> None:
    """The code of a key does not change in a list of its own, or in a column."""
    together = listed_codes(values)

    assert together == [listed_codes([value])[0] for value in values]
    assert together == as_bytes(column_codes(column_of(values))).tolist()
    columns = [column_of([value]) for value in values]
    assert together == as_bytes(column_codes(*columns)).tolist()


@pytest.mark.parametrize(
    "column",
    [
        ArrayColumn(np.array([3, -1, 0, 200], np.int64)),
        ArrayColumn(np.array([3, 0, 7], np.uint8)),
        ArrayColumn(np.array(["2020-01-02", "1969-12-31T23:00"], "datetime64[us]")),
        ListColumn(["b", "a", "long text " * 9]),
        ConstantColumn("x", 3),
        CodedColumn(np.array([1, 0, 1], np.uint16), NameTable(["left", "right"])),
        column_of(["", "a", "sixteen letters!", "ab", "b"] * 100),
    ],
)
def test_columns_have_the_codes_of_their_values(column: Column) -> None:
    """Numpy gives a column the codes that its values have one by one."""
    codes = as_bytes(column_codes(column)).tolist()

    assert codes == [listed_codes([value])[0] for value in column.to_list()]


def test_order_of_integers_and_texts() -> None:
    """Integers are sorted from 0 up, then the negative ones, then texts by their length, as in Flink."""
    values: list[object] = [-1, "b", 5, "ab", 300, "a", 0, -300]

    in_order = [value for _, value in sorted(zip(listed_codes(values), values, strict=True), key=lambda pair: pair[0])]

    assert in_order == [0, 5, 300, -300, -1, "a", "b", "ab"]


def test_numbers_are_in_the_order_of_their_bytes() -> None:
    """Runs of numbers and runs of bytes can be merged."""
    codes = codes_of([5, -5, 2**62, -(2**63), 0, 256])

    assert codes.dtype == np.uint64
    assert np.argsort(codes).tolist() == np.argsort(as_bytes(codes)).tolist()


def test_equal_decimals_and_rows_have_one_code() -> None:
    """Decimals of one value are one key; rows with other field names, or a date and its midnight, are several."""
    first, second = listed_codes([decimal.Decimal("1.0"), decimal.Decimal("1.00")])
    assert first == second
    assert len(set(listed_codes([Row(a=1), Row(b=1), Row(1)]))) == 3
    assert len(set(listed_codes([datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1)]))) == 2  # noqa: DTZ001 - the key


def test_a_dictionary_that_grew() -> None:
    """Codes that came in since are looked up then."""
    names, keys = NameTable(["a"]), RunKeys()
    keys.numbers(CodedColumn(np.array([0], np.uint16), names))
    names.names.append("b")

    assert keys.numbers(CodedColumn(np.array([1, 0], np.uint16), names)).tolist() == [1, 0]


@pytest.mark.parametrize("column", [ListColumn([1, 2]), ArrayColumn(np.array([1, 2])), ConstantColumn(3, 2)])
def test_integers_are_their_own_codes(column: Column) -> None:
    """Numpy sorts them as they are."""
    codes = integer_codes(column)
    assert codes is not None
    assert codes.tolist() == column.to_list()

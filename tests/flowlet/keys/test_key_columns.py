"""Whole columns of keys go exactly where their keys go one by one.

Source: Flink `KeyGroupRangeAssignment` (golden values), `KeyGroupStreamPartitionerTest`.
"""

import math
import struct
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flowlet.errors import KeyTypeError
from flowlet.keys.exact_keys import key_group, key_hash, operator_index
from flowlet.keys.key_columns import ChannelTable, column_hashes, column_key_groups, try_hashes
from tests.flowlet.keys.test_exact_keys import DISTINCT
from tests.flowlet.keys.test_key_groups import GOLDEN

EDGES = [0, 1, -1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32, 2**63 - 1, -(2**63)]
INTS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(EDGES) | st.integers(-5, 5)
TEXTS = st.text(st.characters(exclude_categories=()), max_size=12) | st.text("ab", max_size=5)
NAN_WITH_PAYLOAD = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]
FLOATS = st.floats() | st.sampled_from([0.0, -0.0, math.nan, NAN_WITH_PAYLOAD, math.inf])
COLUMNS = st.one_of(
    st.lists(INTS),
    st.lists(st.integers()),
    st.lists(TEXTS),
    st.lists(st.binary(max_size=12)),
    st.lists(st.booleans()),
    st.lists(FLOATS),
    st.lists(st.sampled_from(DISTINCT)),
    st.lists(st.dates()),
    st.lists(st.datetimes()),
    st.lists(st.datetimes(timezones=st.none() | st.timezones())),
    st.lists(st.timedeltas()),
    st.lists(st.none()),
    st.lists(INTS | TEXTS | st.floats() | st.booleans()),
)


def expect_one_by_one(column: Any, keys: list[Any]) -> None:
    """The column has the hashes, groups and subtasks of ``keys``."""
    groups = [key_group(key, 1000) for key in keys]

    assert column_hashes(column).tolist() == [key_hash(key) for key in keys]
    assert column_key_groups(column, 1000).tolist() == groups
    assert ChannelTable(1000, 7).of_keys(column).tolist() == [operator_index(group, 1000, 7) for group in groups]


@pytest.mark.parametrize("make", [list, pa.array, np.array], ids=["list", "arrow", "numpy"])
@pytest.mark.parametrize("kind", [int, str])
def test_columns_go_where_flink_sends_them(make: Any, kind: type) -> None:
    """The golden table has Flink's subtasks."""
    rows = [row for row in GOLDEN if type(row[0]) is kind]
    column = make([row[0] for row in rows])

    assert column_hashes(column).tolist() == [row[1] for row in rows]
    assert column_key_groups(column, 128).tolist() == [row[2] for row in rows]
    assert column_key_groups(column, 4096).tolist() == [row[3] for row in rows]
    assert ChannelTable(128, 4).of_keys(column).tolist() == [row[4] for row in rows]
    assert ChannelTable(128, 3).of_keys(column).tolist() == [row[5] for row in rows]


@given(COLUMNS)
def test_lists(keys: list[Any]) -> None:
    expect_one_by_one(keys, keys)


@given(
    hnp.arrays(st.sampled_from(["<i8", ">i8", "<i4", ">i4", "i2", "i1"]), 20)
    | hnp.arrays(st.sampled_from(["<u8", ">u8", "u4", "u2", "u1", "?", "<f8", ">f8", "f4", "f2", "S9"]), 20)
)
def test_numbers_and_bytes_of_numpy(column: "np.ndarray[Any, Any]") -> None:
    """Numbers of every width and byte order go with their Python values; unsigned ones above 2**63 are big integers in
    Java.
    """
    expect_one_by_one(column, column.tolist())


@given(st.lists(TEXTS))
def test_texts_of_numpy(keys: list[str]) -> None:
    """An array drops trailing NULs, so its keys are without them."""
    for column in (np.array(keys, "U12"), np.array(keys, ">U12"), np.array(keys, object)):
        expect_one_by_one(column, column.tolist())


def test_slices_of_numpy() -> None:
    """A slice of numpy may lie in pieces of memory."""
    numbers, texts = np.arange(100) * 2**30, np.array([f"k{number}" for number in range(100)])

    expect_one_by_one(numbers[::-3], numbers[::-3].tolist())
    expect_one_by_one(texts[5::7], texts[5::7].tolist())


UTF8_TEXTS = st.text(max_size=12)


@given(
    st.one_of(
        st.tuples(st.lists(INTS), st.just(pa.int64())),
        st.tuples(st.lists(st.integers(0, 2**64 - 1)), st.just(pa.uint64())),
        st.tuples(st.lists(st.integers(-128, 127)), st.just(pa.int8())),
        st.tuples(st.lists(FLOATS), st.just(pa.float64())),
        st.tuples(st.lists(st.floats(width=32)), st.just(pa.float32())),
        st.tuples(st.lists(st.booleans()), st.just(pa.bool_())),
        st.tuples(st.lists(UTF8_TEXTS), st.sampled_from([pa.string(), pa.large_string(), pa.string_view()])),
        st.tuples(
            st.lists(st.binary(max_size=12)), st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()])
        ),
        st.tuples(st.lists(st.binary(min_size=3, max_size=3)), st.just(pa.binary(3))),
    ),
    st.integers(0, 3),
)
def test_arrow_arrays(typed: tuple[list[Any], Any], start: int) -> None:
    """Arrays may be whole, sliced, in chunks, or by dictionary."""
    keys, kind = typed
    column = pa.array(keys, kind)
    sliced = column.slice(start, 5)

    expect_one_by_one(column, column.to_pylist())
    expect_one_by_one(sliced, sliced.to_pylist())
    expect_one_by_one(pa.chunked_array([sliced, column], kind), sliced.to_pylist() + column.to_pylist())
    if "view" not in str(kind):
        expect_one_by_one(column.dictionary_encode(), column.to_pylist())


@pytest.mark.parametrize("letter", ["k", "é", "😀"])
def test_more_text_than_one_block(letter: str) -> None:
    """Tables of powers have 65,536 entries; empty keys are among them, also first and last."""
    keys = ["", *[letter * (number % 23) + str(number) for number in range(7_001)], ""]

    for column in (keys, pa.array(keys), [key.encode() for key in keys], np.array(keys)):
        expect_one_by_one(column, column if isinstance(column, list) else column.tolist())


@pytest.mark.parametrize("length", [2047, 2048, 2049, 4095, 4096, 4097, 10_000, 65_534, 65_535, 65_536])
def test_long_keys(length: int) -> None:
    """Keys may be as long as the table of powers, or longer."""
    texts = ["a" * length, "b", "", "😀" * length]
    blobs = [b"\xff" * length, b"", b"x"]

    for column in (texts, pa.array(texts), pa.array(["a" * length, "b"]), np.array(["a" * length, "b"])):
        expect_one_by_one(column, column if isinstance(column, list) else column.tolist())
    for column in (blobs, pa.array(blobs)):
        expect_one_by_one(column, column if isinstance(column, list) else column.tolist())


def test_a_murmur_hash_without_a_positive_counterpart_becomes_group_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "flowlet.keys.key_columns._murmur", lambda hashes: np.array([2**31, 2**32 - 203, 203], np.uint32)
    )

    assert column_key_groups([1, 2, 3], 100).tolist() == [0, 3, 3]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([{"a": 1}]),
        pa.array([[{"a": 1}]]),
        np.array([1], np.longdouble),
        np.array(["a", {"b"}], object),
        ["a", {"b"}],
        [{}],
    ],
    ids=str,
)
def test_what_cannot_be_a_key_is_refused(column: Any) -> None:
    """The error is that of a single key."""
    with pytest.raises(KeyTypeError, match="cannot be a key"):
        column_key_groups(column, 128)


MOMENTS = [datetime(2024, 2, 29, 1, 2, 3, 4), datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)]  # noqa: DTZ001 - as numpy's


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None, 0]),
        pa.array(["a", None, ""]),
        pa.array(["a", None, "b"]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0]), pa.array([None, "a"])),
        pa.array([None, None]),
        pa.array([[1, None], None, []]),
        pa.array([date(2024, 1, 1), None, date.min, date.max]),
        pa.array([date(2024, 1, 1), None], pa.date64()),
        pa.array([*MOMENTS, None]),
        pa.array([moment.replace(tzinfo=UTC) for moment in MOMENTS], pa.timestamp("us", "Asia/Kathmandu"))[:1],
        pa.array([5, None, -5], pa.timestamp("s")),
        pa.array([5, None, -5], pa.timestamp("ms")),
        pa.array([5_000, None, -5_000], pa.timestamp("ns")),
        pa.array([time(1, 2, 3), None]),
        pa.array([timedelta(1, 2, 3), None]),
        pa.array([Decimal("1.50"), None, Decimal("0.00")]),
        pa.chunked_array([[1, None], [None], []], pa.int64()),
    ],
    ids=lambda column: str(column.type),
)
def test_nulls_and_times_of_arrow(column: Any) -> None:
    expect_one_by_one(column, column.to_pylist())
    expect_one_by_one(column[1:], column.to_pylist()[1:])


@pytest.mark.parametrize(
    "column",
    [
        np.array(MOMENTS, "M8[us]"),
        np.array(MOMENTS, ">M8[us]"),
        np.array([*MOMENTS, "NaT"], "M8[us]"),
        np.array(["20000-01-01", "-1-01-01"], "M8[us]"),
        np.array(["2024-02-29", "NaT"], "M8[D]"),
        np.array([1, 1_000, -1], "M8[ns]"),
        np.array([1, 1_000, -1], "m8[ns]"),
        np.array([1, 1_000, -1], "m8[s]"),
    ],
    ids=lambda column: f"{column.dtype}-{len(column)}",
)
def test_times_of_numpy(column: "np.ndarray[Any, Any]") -> None:
    """Times are taken as scalars: ``tolist`` gives bare counts of nanoseconds."""
    expect_one_by_one(column, list(column))


def test_other_columns_of_numpy() -> None:
    for column in (
        np.array([1 + 2j, complex(-0.0, math.nan)]),
        np.array(["a", None, 1.0], object),
        np.array([(1, 2.0)], "i4,f8"),
    ):
        expect_one_by_one(column, column.tolist())


def test_other_things_are_no_columns() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 2\)"):
        column_hashes(np.zeros((2, 2)))
    with pytest.raises(TypeError, match="got a generator"):
        column_hashes(key for key in "ab")


@pytest.mark.parametrize("keys", [[], ["a", 1], [("a",)], [2**64], [1, True], [None], [MOMENTS[0].replace(tzinfo=UTC)]])
def test_some_lists_have_no_short_cut(keys: list[Any]) -> None:
    assert try_hashes(keys) is None

"""The bytes of keys: as many as there are different keys."""

import decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.errors import KeyTypeError
from flowlet.keys.exact_keys import READABLE_TYPES, exact_key, key_bytes, plain_key
from flowlet.state.rocksdb.rocksdb_store import row_prefix, taken_apart

LEAVES = st.one_of(
    st.integers(),
    st.text(),
    st.binary(),
    st.booleans(),
    st.none(),
    st.floats(),
    st.dates(),
    st.datetimes(),
    st.times(),
    st.timedeltas(),
)
KEYS = st.recursive(
    LEAVES | st.decimals(allow_nan=True) | st.uuids() | st.fractions(),
    lambda parts: (
        st.lists(parts, max_size=3) | st.lists(parts, max_size=3).map(tuple) | st.frozensets(LEAVES, max_size=3)
    ),
    max_leaves=5,
)


@given(st.lists(KEYS, max_size=20))
def test_keys_have_the_same_bytes_exactly_if_they_are_the_same_key(keys: list[Any]) -> None:
    exact = [exact_key(key) for key in keys]

    assert len({key_bytes(each) for each in exact}) == len(set(exact))


@given(st.one_of(st.integers(), st.text(), st.binary(), st.none()))
def test_plain_keys_are_read_back(key: Any) -> None:
    found = plain_key(key_bytes(key))

    assert (type(found), found) == (type(key), key)
    assert type(key) in READABLE_TYPES


@given(st.integers(0, 65_535), st.integers(0, 65_535), LEAVES, st.binary())
def test_a_row_is_taken_apart(group: int, state_id: int, key: Any, inner: bytes) -> None:
    content = key_bytes(exact_key(key))

    assert taken_apart(row_prefix(group, state_id, content) + inner) == (group, state_id, content, inner)


def test_infinite_decimals_and_what_is_no_exact_key() -> None:
    decimals = ["1", "1.0", "1E2", "100", "Infinity", "-Infinity", "-1"]

    assert len({key_bytes(exact_key(decimal.Decimal(each))) for each in decimals}) == 5
    with pytest.raises(KeyTypeError, match="type object cannot be kept in RocksDB; use the state back end 'hashmap'"):
        key_bytes(object())

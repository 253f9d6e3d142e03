"""The hash of a key can be told from its stand-in."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.keys.exact_keys import exact_key, exact_key_hash, key_group, key_hash
from flowlet.keys.key_columns import exact_key_groups
from tests.flowlet.keys_of_every_type import GOLDEN
from tests.names import stable_repr


@pytest.mark.parametrize("key", [key for key, _ in GOLDEN], ids=[stable_repr(key) for key, _ in GOLDEN])
def test_a_stand_in_has_the_hash_of_its_key(key: Any) -> None:
    """The rule holds for keys of every type."""
    assert exact_key_hash(exact_key(key)) == key_hash(key)


@pytest.mark.parametrize("key", [key for key, _ in GOLDEN], ids=[stable_repr(key) for key, _ in GOLDEN])
def test_inside_a_tuple_too(key: Any) -> None:
    """A part of a key is a key."""
    assert exact_key_hash(exact_key((1, key))) == key_hash((1, key))


@given(
    keys=st.lists(st.integers() | st.text() | st.floats() | st.tuples(st.text(), st.booleans())),
    width=st.integers(1, 32768),
)
def test_the_groups_of_many_keys_are_those_of_each(keys: list[Any], width: int) -> None:
    """The groups are equal with and without columns."""
    found = exact_key_groups([exact_key(key) for key in keys], width)

    assert found.tolist() == [key_group(key, width) for key in keys]
    assert found.dtype == np.int32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.keys.key_index import Int64Codes

INT64 = st.integers(-(2**63), 2**63 - 1)
KEYS = st.lists(
    st.lists(st.integers(-3, 3) | INT64 | st.sampled_from([0, 2**63 - 1, -(2**63)]), max_size=30), max_size=5
)


def expected(chunks: list[list[int]]) -> list[list[int]]:
    codes: dict[int, int] = {}
    return [[codes.setdefault(key, len(codes)) for key in chunk] for chunk in chunks]


@given(KEYS)
def test_codes_count_the_different_keys_in_the_order_of_first_sight(chunks: list[list[int]]) -> None:
    table = Int64Codes()

    found = [table.add(np.array(chunk, np.int64)).tolist() for chunk in chunks]

    assert found == expected(chunks)
    assert table.keys.tolist() == list(dict.fromkeys(key for chunk in chunks for key in chunk))
    assert table.num_codes == len(table.keys)


@pytest.mark.parametrize("step", [1, 2**20, 2**40 + 1], ids=["near", "far", "farther"])
def test_a_table_that_grows_several_times_forgets_nothing(step: int) -> None:
    """The distance of the keys decides where they collide, and may be any."""
    table = Int64Codes()
    keys = np.arange(-20_000, 20_000, dtype=np.int64) * step

    for part in np.array_split(keys, 13):
        table.add(part)

    assert table.add(keys[::-1].copy()).tolist() == list(range(len(keys)))[::-1]
    assert table.keys.tolist() == keys.tolist()


def test_keys_that_all_want_the_same_slot_are_told_apart() -> None:
    """The multiplier's inverse makes keys whose hashes begin alike."""
    inverse = pow(0x9E3779B97F4A7C15, -1, 2**64)
    keys = np.array([number * inverse % 2**64 for number in range(500)], np.uint64).view(np.int64)
    table = Int64Codes()

    assert table.add(keys).tolist() == list(range(500))
    assert table.add(keys).tolist() == list(range(500))

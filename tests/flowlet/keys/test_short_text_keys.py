from hypothesis import given
from hypothesis import strategies as st

from flowlet.keys.exact_keys import key_hash
from flowlet.keys.key_columns import short_text_hashes
from tests.flowlet.columns.test_short_texts import SHORT, heads_of


@given(st.lists(SHORT, max_size=20))
def test_hashes_are_those_of_the_texts(texts: list[str]) -> None:
    """Texts of every length have the hashes of keys."""
    assert short_text_hashes(heads_of(texts)).tolist() == list(map(key_hash, texts))


def test_golden_values() -> None:
    """The golden values are Java's."""
    assert short_text_hashes(heads_of(["", "a", "hello", "~" * 16])).tolist() == [0, 97, 99162322, key_hash("~" * 16)]

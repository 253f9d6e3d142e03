from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.columns.short_text_column import Packed16Array, mixed
from flowlet.keys import key_index as text_codes
from flowlet.keys.exact_keys import key_hash
from flowlet.keys.key_columns import short_text_hashes
from flowlet.keys.key_index import TextCodes
from tests.flowlet.columns.test_short_texts import SHORT, heads_of

CHUNKS = st.lists(st.lists(st.text(st.sampled_from("ab"), max_size=3) | SHORT, max_size=20), max_size=6)


@given(st.lists(SHORT, max_size=20))
def test_hashes_of_short_texts_are_those_of_keys_and_java(texts: list[str]) -> None:
    """Texts of every length have the hashes of keys; the golden values are Java's."""
    assert short_text_hashes(heads_of(texts)).tolist() == list(map(key_hash, texts))
    assert short_text_hashes(heads_of(["", "a", "hello"])).tolist() == [0, 97, 99162322]


@given(CHUNKS)
def test_codes_count_texts_in_the_order_of_first_sight(chunks: list[list[str]]) -> None:
    """The texts may lie anywhere in the table."""
    for num_hashes in (1, 2, 1 << 32):
        expected: dict[str, int] = {}
        last_places = partial(in_last_places, num_hashes=np.uint64(num_hashes))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(text_codes, "mixed", last_places)
            patch.setattr(TextCodes, "_hashes", staticmethod(last_places))
            codes = TextCodes()
            for texts in chunks:
                found = codes.add(heads_of(texts)).tolist()
                assert found == [expected.setdefault(text, len(expected)) for text in texts]

        assert codes.num_codes == len(expected)
        assert codes.texts() == list(expected)


def in_last_places(packed16: Packed16Array, num_hashes: np.uint64) -> Any:
    return np.uint64(2**64 - 1) - mixed(packed16) % num_hashes


def test_tables_grow() -> None:
    """A table that grows keeps its codes."""
    codes = TextCodes()
    texts = [f"text{number}" for number in range(20_000)]

    for start in range(0, 20_000, 500):
        codes.add(heads_of(texts[start : start + 500]))

    assert codes.add(heads_of(texts)).tolist() == list(range(20_000))


def test_codes_are_indices_for_numpy() -> None:
    """Narrower ones would be converted by each that uses them."""
    empty: Packed16Array = heads_of([])

    assert TextCodes().add(empty).dtype == np.intp

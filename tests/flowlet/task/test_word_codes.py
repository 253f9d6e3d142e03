import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.columns import WordColumn
from flowlet.columns.short_texts import HeadArray
from flowlet.task import word_codes
from flowlet.task.word_codes import UNKNOWN, WordCodes

WORDS = st.lists(st.text(st.sampled_from("abc"), min_size=1, max_size=16), min_size=1, max_size=30)


def heads_of(words: list[str]) -> HeadArray:
    return WordColumn(" ".join(words)).heads


@given(st.lists(WORDS, max_size=6), WORDS)
@pytest.mark.parametrize("num_homes", [1, 2, 1 << 16], ids=["all in one place", "two places", "spread"])
def test_words_are_told_apart_by_all_of_their_bytes(num_homes: int, chunks: list[list[str]], others: list[str]) -> None:
    """Wherever they lie; what was not added is unknown."""
    with pytest.MonkeyPatch.context() as patch:
        spread = word_codes._places
        patch.setattr(word_codes, "_places", lambda heads: (1 << 16) - num_homes + spread(heads) % num_homes)
        table, expected = WordCodes(), dict[str, int]()
        for words in chunks:
            new = list(dict.fromkeys(word for word in words if word not in expected))
            codes = np.arange(len(expected), len(expected) + len(new), dtype=np.uint16)
            if new:
                expected.update(zip(new, codes.tolist(), strict=True))
                table.add(heads_of(new), codes)

            assert table.codes_of(heads_of(words)).tolist() == [expected[word] for word in words]
        assert table.codes_of(heads_of(others)).tolist() == [expected.get(word, UNKNOWN) for word in others]


def test_all_words_of_a_large_dictionary_are_found() -> None:
    """Also those whose places others have."""
    words = [f"word{number}" for number in range(30_000)]
    table = WordCodes()

    for start in range(0, 30_000, 10_000):
        table.add(heads_of(words[start : start + 10_000]), np.arange(start, start + 10_000, dtype=np.uint16))

    assert table.codes_of(heads_of(words)).tolist() == list(range(30_000))


def test_an_empty_word_is_no_free_place() -> None:
    """Its bytes are those of a place that nobody took."""
    empty = WordColumn(",", ",").heads
    table = WordCodes()

    assert table.codes_of(empty).tolist() == [UNKNOWN, UNKNOWN]

    table.add(empty[:1], np.array([7], np.uint16))
    assert table.codes_of(empty).tolist() == [7, 7]

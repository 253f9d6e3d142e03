import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.columns import WordColumn
from flowlet.task import word_codes
from flowlet.task.word_codes import UNKNOWN, HeadArray, WordCodes

WORDS = st.lists(st.text(st.sampled_from("abc"), min_size=1, max_size=16), min_size=1, max_size=30)


def heads_of(words: list[str]) -> HeadArray:
    return WordColumn(" ".join(words)).heads()


@given(st.lists(WORDS, max_size=6), WORDS)
@pytest.mark.parametrize("num_homes", [1, 2, 1 << 16], ids=["all in one place", "two places", "spread"])
def test_words_are_told_apart_by_all_of_their_bytes(num_homes: int, chunks: list[list[str]], others: list[str]) -> None:
    """Wherever they lie; what was not added is unknown, and what finds no place stays so."""
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

            found = table.codes_of(heads_of(words)).tolist()

            assert all(code in (expected[word], UNKNOWN) for word, code in zip(words, found, strict=True))
            assert num_homes < 1 << 16 or UNKNOWN not in found
        assert all(
            code in (expected.get(word), UNKNOWN) for word, code in zip(others, table.codes_of(heads_of(others)).tolist(), strict=True)
        )


def test_all_words_of_a_large_dictionary_are_found() -> None:
    """But for very few, which had no place near their first one."""
    words = [f"word{number}" for number in range(30_000)]
    table = WordCodes()

    table.add(heads_of(words), np.arange(30_000, dtype=np.uint16))

    codes = table.codes_of(heads_of(words))
    assert (codes != UNKNOWN).mean() > 0.99
    assert (codes[codes != UNKNOWN] == np.flatnonzero(codes != UNKNOWN)).all()


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words for which there is no room are unknown."""
    monkeypatch.setattr(word_codes, "MAX_WORDS", 3)
    table = WordCodes()

    table.add(heads_of(["a", "b"]), np.array([0, 1], np.uint16))
    table.add(heads_of(["c", "d"]), np.array([2, 3], np.uint16))
    table.add(heads_of(["c"]), np.array([2], np.uint16))

    assert table.codes_of(heads_of(["a", "b", "c", "d"])).tolist() == [0, 1, 2, UNKNOWN]


def test_an_empty_word_is_no_free_place() -> None:
    """Its bytes are those of a place that nobody took."""
    empty = WordColumn(",", ",").heads()
    table = WordCodes()

    assert table.codes_of(empty).tolist() == [UNKNOWN, UNKNOWN]

    table.add(empty[:1], np.array([7], np.uint16))
    assert table.codes_of(empty).tolist() == [7, 7]

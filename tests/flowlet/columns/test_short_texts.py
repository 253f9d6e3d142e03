import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.columns import ShortTextColumn, WordColumn
from flowlet.columns.short_texts import HEAD_BYTES, HeadArray, differ, texts_of

# A NUL may be inside of a text, not at its end.
SHORT = st.text(st.characters(max_codepoint=127), max_size=HEAD_BYTES).map(lambda text: text.rstrip("\0"))


def heads_of(texts: list[str]) -> HeadArray:
    return np.array([text.encode() for text in texts] or [b""], f"S{HEAD_BYTES}").view(np.uint64).reshape(-1, 2)[: len(texts)]


@given(st.lists(SHORT, max_size=20))
def test_texts_come_back(texts: list[str]) -> None:
    """NULs inside of them too."""
    column = ShortTextColumn(heads_of(texts))

    assert (len(column), column.to_list(), texts_of(column.heads)) == (len(texts), texts, texts)


@given(st.lists(st.tuples(SHORT, SHORT), min_size=1, max_size=20))
def test_texts_differ_where_their_bytes_do(pairs: list[tuple[str, str]]) -> None:
    """In either half."""
    is_other = differ(heads_of([one for one, _ in pairs]), heads_of([other for _, other in pairs]))

    assert is_other.tolist() == [one != other for one, other in pairs]


@given(st.lists(st.text(st.characters(max_codepoint=200), max_size=20), min_size=1, max_size=20))
def test_words_are_short_texts_if_all_of_them_are(texts: list[str]) -> None:
    """And are joined only if they are ASCII without NUL."""
    words = WordColumn.joined(texts)

    assert (words is not None) == all(text.isascii() and "\0" not in text for text in texts)
    if words is not None:
        assert (len(words), words.to_list()) == (len(texts), texts)
        assert (words.short is not None) == all(len(text) <= HEAD_BYTES for text in texts)
        assert words.short is None or words.short.to_list() == texts


def test_a_column_holds_pairs_of_integers() -> None:
    """Nothing else."""
    with pytest.raises(AssertionError, match="int64"):
        ShortTextColumn(np.zeros((1, 2), np.int64))

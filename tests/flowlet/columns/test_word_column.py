import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowlet.columns import WordColumn
from flowlet.columns.short_texts import HEAD_BYTES

ASCII = st.text(st.characters(min_codepoint=1, max_codepoint=127), max_size=60)
SPACED = st.text(st.sampled_from(" \t\n\v\f\r\x1c\x1d\x1e\x1f\x1b\x0e!ab,"), max_size=60)
SEPARATORS = st.sampled_from([None, " ", ",", "a", "\n", "\x01"])


@given(ASCII | SPACED, SEPARATORS)
@example("", None)
@example("", ",")
@example(" ", None)
def test_words_are_those_of_split(text: str, separator: str | None) -> None:
    """Any white space that Python knows, at the ends too; empty words only between separators."""
    words = text.split(separator)

    column = WordColumn(text, separator)

    assert len(column) == len(words)
    assert column.to_list() == words
    assert column.words_at(np.arange(len(words))) == words
    assert column.lengths.tolist() == list(map(len, words))


@given(ASCII | SPACED, SEPARATORS, st.data())
def test_parts_are_those_of_a_list(text: str, separator: str | None, data: st.DataObject) -> None:
    """Positions and slices."""
    words = text.split(separator)
    column = WordColumn(text, separator)
    positions = data.draw(st.lists(st.integers(0, len(words) - 1), max_size=8) if words else st.just(list[int]()))
    start, stop = data.draw(st.integers(0, len(words))), data.draw(st.integers(0, len(words) + 1))

    assert column.take(np.array(positions, np.intp)).to_list() == [words[position] for position in positions]
    assert column.slice(start, stop).to_list() == words[start:stop]


@given(ASCII | SPACED, SEPARATORS)
def test_heads_are_the_first_bytes(text: str, separator: str | None) -> None:
    """Of a long word not all of them, of a short one with NULs behind."""
    column = WordColumn(text, separator)

    heads = [bytes(head) for head in column.heads.view(np.uint8)]

    assert heads == [word.encode()[:HEAD_BYTES].ljust(HEAD_BYTES, b"\0") for word in column.to_list()]


def test_places_are_those_of_bytes() -> None:
    """So other texts are refused."""
    with pytest.raises(AssertionError, match="bytes"):
        WordColumn("größe")

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowlet.columns import ShortTextColumn
from flowlet.columns.short_text_column import PACKED16_BYTES, Packed16Array, differ, texts_of, try_short_texts

# A NUL may be inside of a text, not at its end.
SHORT = st.text(st.characters(max_codepoint=127), max_size=PACKED16_BYTES).map(lambda text: text.rstrip("\0"))


def heads_of(texts: list[str]) -> Packed16Array:
    return (
        np.array([text.encode() for text in texts] or [b""], f"S{PACKED16_BYTES}")
        .view(np.uint64)
        .reshape(-1, 2)[: len(texts)]
    )


@given(st.lists(SHORT, max_size=20))
def test_texts_come_back(texts: list[str]) -> None:
    """Texts with NULs inside of them come back, too."""
    column = ShortTextColumn(heads_of(texts))

    assert (len(column), column.to_list(), texts_of(column.packed16)) == (len(texts), texts, texts)


@given(st.lists(st.tuples(SHORT, SHORT), min_size=1, max_size=20))
def test_texts_differ_where_their_bytes_do(pairs: list[tuple[str, str]]) -> None:
    """The difference may be in either half."""
    is_other = differ(heads_of([one for one, _ in pairs]), heads_of([other for _, other in pairs]))

    assert is_other.tolist() == [one != other for one, other in pairs]


@given(st.lists(SHORT, min_size=1, max_size=20))
@example(["x" * PACKED16_BYTES, "", "y" * PACKED16_BYTES])
def test_texts_without_a_nul_are_short_texts(texts: list[str]) -> None:
    """A text with a NUL inside is no short text, because the NUL parts texts while the column is made."""
    column = try_short_texts(texts)

    assert (column is not None) == (not any("\0" in text for text in texts))
    if column is not None:
        assert (len(column), column.to_list()) == (len(texts), texts)
        assert column.packed16.tolist() == heads_of(texts).tolist()


@pytest.mark.parametrize("odd", ["longer than sixteen", "x" * 17, "é", "水", "\0", "a\0", "\0a", "a\0b"])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_one_other_text_and_there_are_no_short_texts(odd: str, position: int) -> None:
    """The other text may be at any position, and the others may leave room for it."""
    texts = ["", "a"]
    texts.insert(position, odd)

    assert try_short_texts(texts) is None


def test_a_column_holds_pairs_of_integers() -> None:
    """An array of any other type is refused."""
    with pytest.raises(AssertionError, match="int64"):
        ShortTextColumn(np.zeros((1, 2), np.int64))

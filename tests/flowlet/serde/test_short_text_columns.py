import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.errors import SerdeError
from flowlet.serde.column_format import SHORT_TEXTS, column_at
from flowlet.serde.short_text_columns import decode_short_texts, encode_short_texts
from tests.flowlet.columns.test_short_texts import SHORT, heads_of


@given(st.lists(SHORT, min_size=1, max_size=8), st.sampled_from([1, 63, 64, 65]))
def test_texts_come_back(texts: list[str], repeat: int) -> None:
    """In as many bytes as the longest one needs."""
    texts = texts * repeat

    data = encode_short_texts(heads_of(texts))

    kind, payload, end = column_at(memoryview(data), 0)
    assert (kind, end) == (SHORT_TEXTS, len(data))
    assert len(payload) == 1 + len(texts) * max(1, *map(len, texts))
    assert decode_short_texts(payload).to_list() == texts


@pytest.mark.parametrize(
    ("payload", "message"),
    [(b"", "0 bytes each"), (b"\0ab", "0 bytes each"), (b"\x11" + b"a" * 17, "17 bytes each"), (b"\x02a\xc3", "not ASCII")],
)
def test_a_corrupt_column_is_refused(payload: bytes, message: str) -> None:
    """With what is wrong."""
    with pytest.raises(SerdeError, match=message):
        decode_short_texts(memoryview(payload))


def test_half_a_text_is_refused() -> None:
    """Its reader says so for all columns."""
    with pytest.raises(ValueError, match="reshape"):
        decode_short_texts(memoryview(b"\x02abc"))

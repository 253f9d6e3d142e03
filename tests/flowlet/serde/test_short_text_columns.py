import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.errors import SerdeError
from flowlet.serde.column_reader import ChannelDictionary, decode_records, decode_short_texts
from flowlet.serde.column_writer import Kind, column_at, encode_short_texts, framed
from tests.flowlet.columns.test_short_texts import SHORT, heads_of


@given(st.lists(SHORT, min_size=1, max_size=8), st.sampled_from([1, 63, 64, 65]))
def test_texts_come_back(texts: list[str], repeat: int) -> None:
    """Texts take as many bytes as the longest one needs."""
    texts = texts * repeat

    data = encode_short_texts(heads_of(texts))

    kind, payload, end = column_at(memoryview(data), 0)
    assert (kind, end) == (Kind.SHORT_TEXTS, len(data))
    assert len(payload) == 1 + len(texts) * max(1, *map(len, texts))
    assert decode_short_texts(payload, len(texts)).to_list() == texts


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "0 bytes each"),
        (b"\0ab", "0 bytes each"),
        (b"\x11" + b"a" * 17, "17 bytes each"),
        (b"\x02a\xc3", "not ASCII"),
        (b"\x02abc", "3 bytes of short texts, 1 of 2 bytes each have 2"),
        (b"\x02", "0 bytes of short texts"),
    ],
)
def test_a_corrupt_column_is_refused(payload: bytes, message: str) -> None:
    """The error names the damage."""
    with pytest.raises(SerdeError, match=message):
        decode_short_texts(memoryview(payload), 1)


@pytest.mark.parametrize(("kind", "payload"), [(Kind.SHORT_TEXTS, b"\1" + bytes(1 << 20)), (Kind.TEXT, bytes(1 << 20))])
def test_more_texts_than_records_are_refused_before_they_take_memory(kind: int, payload: bytes) -> None:
    """A byte each on the wire would be 16 in the column, or a reference in a list."""
    data = memoryview(framed(kind, payload))
    tracemalloc.start()

    with pytest.raises(SerdeError):
        decode_records(data, 0, 2, ChannelDictionary())

    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 4 * len(payload)

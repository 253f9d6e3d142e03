"""Java's modified UTF-8: NUL and what lies beyond 16 bits are written differently."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.errors import LocalProtocolError, RemoteProtocolError
from netstack.wire.java import JavaClass, decode_modified, decode_utf, describe_throwable, encode_throwable, encode_utf


@pytest.mark.parametrize(
    ("text", "golden"),
    [
        ("", "0000"),
        ("id", "0002 6964"),
        ("wasser\0é€😀", "0013 776173736572 c080 c3a9 e282ac eda0bd edb880"),
        ("\ud800", "0003 eda080"),
    ],
)
def test_texts_have_the_bytes_of_java(text: str, golden: str) -> None:
    """Texts are written like ``DataOutput.writeUTF`` does; a lone half of a character is a text, too."""
    assert encode_utf(text) == bytes.fromhex(golden)
    assert decode_utf(memoryview(bytes.fromhex(golden) + b"tail")) == (text, len(bytes.fromhex(golden)))


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("", "a text of 0 bytes is announced, 0 bytes follow"),
        ("00", "0 bytes follow"),
        ("0001", "a text of 1 bytes is announced, 0 bytes follow"),
        ("ffff 61", "a text of 65535 bytes is announced, 1 bytes follow"),
        ("0001 80", "not modified UTF-8"),
        ("0001 00", "not modified UTF-8"),
        ("0002 c1bf", "not modified UTF-8"),
        ("0004 f09f9880", "not modified UTF-8"),
    ],
)
def test_what_java_would_not_write_is_refused(body: str, complaint: str) -> None:
    """Lengths beyond the end, overlong forms, a plain NUL and four-byte characters are refused."""
    with pytest.raises(RemoteProtocolError, match=complaint):
        decode_utf(memoryview(bytes.fromhex(body)))


def test_the_length_takes_two_bytes() -> None:
    """The longest text fits, one byte more does not."""
    assert len(encode_utf("x" * 65_535)) == 65_537
    with pytest.raises(LocalProtocolError, match="a text of 65536 bytes cannot be encoded"):
        encode_utf("x" * 65_534 + "é")


@given(st.text())
def test_texts_survive_the_wire(text: str) -> None:
    """Texts of any characters are read as they were written."""
    encoded = encode_utf(text)

    assert decode_utf(memoryview(encoded)) == (text, len(encoded))


@given(st.binary(max_size=20))
def test_garbage_is_refused_or_is_what_java_would_write(body: bytes) -> None:
    """No two forms of one text."""
    try:
        text = decode_modified(body)
    except RemoteProtocolError:
        return
    assert encode_utf(text)[2:] == body


def walked(*num_fields: int) -> tuple[str, str | None]:
    """Return what is found out about a throwable whose classes have so many fields each."""
    classes = [JavaClass("Crafted", "0" * 16, tuple(("I", "", "") for _ in range(number))) for number in num_fields]
    # Fields of a primitive type have no name of a type.
    return describe_throwable(memoryview(encode_throwable(classes, "why").replace(b"I\0\0t\0\0", b"I\0\0")))


def test_a_class_with_too_many_fields_is_not_walked() -> None:
    """A small frame announces 65,535 fields, five times: their walk would hold the loop."""
    assert walked(64)[0] == "Crafted"
    assert walked(65) == ("", None)
    assert walked(*[65_535] * 5) == ("", None)


def test_the_walk_of_a_throwable_is_bounded_as_a_whole() -> None:
    """Many classes with many fields each are given up, however well-formed."""
    assert walked(*[64] * 7)[0] == "Crafted"
    assert walked(*[64] * 8) == ("", None)

"""Promises of the typed views that serializers write to and read from.

Source: Flink `DataOutputSerializer`, `DataInputDeserializer`.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.errors import SerdeError
from flowlet.serde.data_view import DataInput, DataOutput

Write = Callable[[DataOutput], None]
Read = Callable[[DataInput], Any]
GOLDEN: dict[str, tuple[Write, Read, Any, str]] = {
    "byte": (lambda out: out.write_byte(-2), DataInput.read_byte, -2, "FE"),
    "true": (lambda out: out.write_boolean(value=True), DataInput.read_boolean, True, "01"),
    "false": (lambda out: out.write_boolean(value=False), DataInput.read_boolean, False, "00"),
    "short": (lambda out: out.write_short(-2), DataInput.read_short, -2, "FFFE"),
    "char": (lambda out: out.write_char(0xFFFE), DataInput.read_char, 0xFFFE, "FFFE"),
    "int": (lambda out: out.write_int(-2), DataInput.read_int, -2, "FFFFFFFE"),
    "long": (lambda out: out.write_long(258), DataInput.read_long, 258, "0000000000000102"),
    "float": (lambda out: out.write_float(1.5), DataInput.read_float, 1.5, "3FC00000"),
    "double": (lambda out: out.write_double(1.5), DataInput.read_double, 1.5, "3FF8000000000000"),
    "varint 0": (lambda out: out.write_varint(0), DataInput.read_varint, 0, "00"),
    "varint 127": (lambda out: out.write_varint(127), DataInput.read_varint, 127, "7F"),
    "varint 300": (lambda out: out.write_varint(300), DataInput.read_varint, 300, "AC02"),
    "varint max": (lambda out: out.write_varint(2**32 - 1), DataInput.read_varint, 2**32 - 1, "FFFFFFFF0F"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_numbers_are_big_endian(name: str) -> None:
    write, read, value, expected = GOLDEN[name]
    output = DataOutput()

    write(output)

    assert bytes(output.buffer) == bytes.fromhex(expected)
    source = DataInput(output.buffer)
    assert read(source) == value
    assert source.remaining == 0


@pytest.mark.parametrize("name", GOLDEN)
def test_a_number_that_is_cut_is_an_error_and_moves_nothing_past_the_end(name: str) -> None:
    write, read, _, _ = GOLDEN[name]
    output = DataOutput()
    write(output)
    source = DataInput(output.buffer[:-1])

    with pytest.raises(SerdeError, match="expected"):
        read(source)
    assert source.position <= len(output) - 1


def test_a_failed_read_moves_nothing() -> None:
    source = DataInput(b"\x02\x00\x00\x00")

    for read in (source.read_boolean, source.read_long, lambda: source.read(5), lambda: source.read(-1)):
        with pytest.raises(SerdeError):
            read()
        assert source.position == 0


@pytest.mark.parametrize("data", ["FFFFFFFF10", "FFFFFFFFFF", "8080808080"])
def test_a_number_of_more_than_32_bits_is_refused(data: str) -> None:
    source = DataInput(bytes.fromhex(data))

    with pytest.raises(SerdeError, match="more than 32 bits"):
        source.read_varint()
    assert source.position == 0


@pytest.mark.parametrize(("count", "min_bytes", "most"), [(-1, 1, 4), (5, 1, 4), (3, 2, 2), (2**31 - 1, 0, 1 << 20)])
def test_a_count_is_believed_only_as_far_as_the_bytes_go(count: int, min_bytes: int, most: int) -> None:
    output = DataOutput()
    output.write_int(count)
    output.write(b"abcd")

    with pytest.raises(SerdeError, match=f"{count} things, at most {most} can be"):
        DataInput(output.buffer).read_count("things", min_bytes_each=min_bytes)


def test_a_count_that_the_bytes_can_hold() -> None:
    source = DataInput(bytes.fromhex("00000002") + b"abcd")

    assert source.read_count("things", min_bytes_each=2) == 2
    assert source.read(2) == b"ab"
    assert repr(source) == "<DataInput at byte 6 of 8>"


def test_an_output_that_was_cleared_begins_again_and_leaves_what_was_taken() -> None:
    output = DataOutput()
    output.write(b"abc")
    taken = output.buffer

    output.clear()

    assert (bytes(taken), len(output), repr(output)) == (b"abc", 0, "<DataOutput of 0 bytes>")


@given(st.integers(0, 2**32 - 1))
def test_every_number_of_32_bits_comes_back(value: int) -> None:
    output = DataOutput()

    output.write_varint(value)

    assert DataInput(output.buffer).read_varint() == value

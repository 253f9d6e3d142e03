"""The streams of pickles behave as files."""

import pickle

import pytest

from flowlet.storage.pickle_streams import PickleReader, PickleWriter


def test_what_was_written_does_not_change_with_its_source() -> None:
    source = bytearray(b"before")
    writer = PickleWriter()

    assert writer.write(source) == 6
    source[:] = b"after!"

    assert writer.pieces == [b"before"]


def test_a_reader_ends_where_its_bytes_end() -> None:
    reader = PickleReader(memoryview(b"abcdefgh"))
    target = bytearray(4)

    assert reader.read(3) == b"abc"
    assert (reader.readinto(memoryview(target)), bytes(target)) == (4, b"defg")
    assert (reader.readinto(memoryview(target)), bytes(target)) == (1, b"hefg")
    assert reader.read(5) == b""


def test_lines_end_with_a_newline_or_with_the_bytes() -> None:
    reader = PickleReader(memoryview(b"one\ntwo"))

    assert [reader.readline(), reader.readline(), reader.readline()] == [b"one\n", b"two", b""]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("value", [{"k": [1, 2.5, "x" * 100_000, b"y" * 100_000, bytearray(100_000)]}, "line\nline"])
def test_pickles_of_every_protocol_pass(protocol: int, value: object) -> None:
    writer = PickleWriter()
    pickle.Pickler(writer, protocol).dump(value)

    assert pickle.Unpickler(PickleReader(memoryview(b"".join(writer.pieces)))).load() == value

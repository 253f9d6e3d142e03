"""Pickles of states as streams: what is written at once, and where a reader ends."""

import pickle

import pytest

from flowlet.checkpoint.task import state_codec
from flowlet.checkpoint.task.snapshots import OperatorState, SubtaskState
from flowlet.checkpoint.task.state_codec import PickleReader, decode_state, encode_state
from flowlet.serde.pickles.program_pickle import PickleWriter


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
@pytest.mark.parametrize(
    "value",
    [{"k": [1, 2.5, "x" * 100_000, b"y" * 100_000, bytearray(100_000)]}, "line\nline"],
    ids=["large", "two lines"],
)
def test_pickles_of_every_protocol_pass(protocol: int, value: object) -> None:
    writer = PickleWriter()
    pickle.Pickler(writer, protocol).dump(value)

    assert pickle.Unpickler(PickleReader(memoryview(b"".join(writer.pieces)))).load() == value


def test_other_threads_may_run_after_every_64_kib(monkeypatch: pytest.MonkeyPatch) -> None:
    """C's pickler keeps the interpreter's lock while it calls nothing in Python: heartbeats would stop."""
    num_calls = {"write": 0, "read": 0}

    class CountingWriter(PickleWriter):
        def write(self, piece: bytes | bytearray | memoryview) -> int:
            num_calls["write"] += 1
            return super().write(piece)

    class CountingReader(PickleReader):
        def read(self, size: int) -> bytes:
            num_calls["read"] += 1
            return super().read(size)

    monkeypatch.setattr(state_codec, "PickleWriter", CountingWriter)
    monkeypatch.setattr(state_codec, "PickleReader", CountingReader)
    own = {key: float(key) for key in range(200_000)}

    state = SubtaskState({"a": OperatorState(own)})
    content = encode_state(state)
    assert decode_state(content) == state

    num_frames = len(content) // 65_536
    assert num_frames > 20
    assert min(num_calls.values()) >= num_frames

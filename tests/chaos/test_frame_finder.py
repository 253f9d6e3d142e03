"""Frames are found however their bytes are cut up, and no byte is lost."""

import random

import pytest

from netstack.ids import InputChannelID
from netstack.wire.frame_decoder import SEAL_BYTES
from netstack.wire.message_bytes import encode
from netstack.wire.messages import AddCredit, CloseRequest, Hello
from tests.chaos.frame_finder import DataFrames, FrameFinder, Part, WebSocketFrames

HELLO = encode(Hello(2, 2, 1, bytes(32)))
CREDIT = encode(AddCredit(InputChannelID(bytes(16)), 3)) + bytes(SEAL_BYTES)
CLOSE = encode(CloseRequest()) + bytes(SEAL_BYTES)
HEAD = b"GET /rpc/taskmanager HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\n\r\n"
SHORT = b"\x82\x85" + bytes(4) + b"12345"
LONG = b"\x82\xfe\x01\x00" + bytes(4) + bytes(256)
PING = b"\x89\x00"


def cut(data: bytes, seed: int) -> list[bytes]:
    pieces, rng = [], random.Random(seed)
    while data:
        length = rng.randint(1, 20)
        pieces.append(data[:length])
        data = data[length:]
    return pieces


def frames_in(parts: list[Part]) -> list[tuple[bytes, bool]]:
    """Return whole frames, and whether they are work."""
    frames: list[tuple[bytes, bool]] = []
    for part in parts:
        if part.start == 0:
            frames.append((part.data, part.is_work))
        else:
            before, is_work = frames[-1]
            assert part.start == len(before)
            frames[-1] = (before + part.data, is_work)
    return frames


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("make", "frames"),
    [
        (DataFrames, [(HELLO, False), (CREDIT, True), (CREDIT, True), (CLOSE, False), (CREDIT, True)]),
        (WebSocketFrames, [(HEAD, False), (SHORT, True), (LONG, True), (PING, False), (SHORT, True)]),
    ],
)
def test_frames_are_found_in_any_pieces(make: type[FrameFinder], frames: list[tuple[bytes, bool]], seed: int) -> None:
    finder = make()
    data = b"".join(frame for frame, _ in frames)

    parts = [part for piece in cut(data, seed) for part in finder.divide(piece)]

    assert frames_in(parts) == frames


def test_bytes_that_are_no_frames_pass_all_the_same() -> None:
    finder = DataFrames()

    parts = [*finder.divide(b"GET / HTTP/1.1\r\n"), *finder.divide(b"more")]

    assert b"".join(part.data for part in parts) == b"GET / HTTP/1.1\r\nmore"


def test_a_file_that_ends_like_the_beginning_of_a_frame_passes_whole() -> None:
    """The last bytes of a file pass at once; kept back, they would leave its reader waiting."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab\x82\x7f"

    assert b"".join(part.data for part in WebSocketFrames().divide(answer)) == answer

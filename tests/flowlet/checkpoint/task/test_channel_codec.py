"""Data in flight is restored piece by piece, and nothing else is taken for it."""

import pytest

from flowlet.checkpoint.task.channel_state_writer import decode_channels, encode_channels
from flowlet.checkpoint.task.snapshots import ChannelStateSnapshot, SubtaskState
from flowlet.checkpoint.task.state_codec import encode_state
from flowlet.errors import StateRestoreError

WHOLE = ChannelStateSnapshot({(0, 1): (b"in", b"", b"put"), (1, 0): (b"x",)}, {(2, 3): (b"o", b"ut")})


@pytest.mark.parametrize("channels", [WHOLE, ChannelStateSnapshot(), ChannelStateSnapshot({(0, 0): ()})])
def test_all_pieces_come_back(channels: ChannelStateSnapshot) -> None:
    assert decode_channels(encode_channels(channels)) == channels


@pytest.mark.parametrize("size", range(len(encode_channels(WHOLE))))
def test_what_is_cut_off_is_refused(size: int) -> None:
    with pytest.raises(StateRestoreError, match="restore another checkpoint"):
        decode_channels(encode_channels(WHOLE)[:size])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (encode_channels(WHOLE) + b"x", "bytes instead of"),
        (encode_state(SubtaskState()), "are no data in flight"),
        (b"FLCH\x00\x09" + bytes(4), "format version 9, this flowlet reads 1"),
        (b"FLCH\x00\x01\x00\x00\x00\x01\xc1", "the head of the data in flight cannot be read"),
    ],
)
def test_what_is_something_else_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(StateRestoreError, match=message):
        decode_channels(content)

"""The bytes of a subtask's data in flight.

Side:       pure.
Invariants: nothing is unpickled here; what ``encode_channels`` wrote comes back piece by piece, each piece a copy of
            its own.
Format:     magic number (4 bytes), version (u16), size of the head (u32), the head (MessagePack), then all pieces one
            after the other.  The head names each channel with the sizes of its pieces: first those of the inputs, then
            those of the outputs.
Source:     Flink ``ChannelStateSerializerImpl``; ``InputChannelStateHandle`` and ``ResultSubpartitionStateHandle`` for
            the offsets.
"""

import struct
from collections.abc import Mapping
from itertools import chain
from typing import Final

import msgspec

from flowlet.checkpoint.barrier_orders import Channel
from flowlet.checkpoint.snapshots import ChannelStateSnapshot
from flowlet.errors import StateRestoreError

_MAGIC: Final = b"FLCH"
_VERSION: Final = 1
_START: Final = struct.Struct(">4sHI")


class _Stream(msgspec.Struct, frozen=True, array_like=True):
    """The data of one channel: its gate or partition, its index there, and the sizes of its pieces."""

    group: int
    channel: int
    sizes: list[int]


class _Head(msgspec.Struct, frozen=True):
    """What follows, in order."""

    inputs: list[_Stream]
    outputs: list[_Stream]


_head_decoder: Final = msgspec.msgpack.Decoder(_Head)


def encode_channels(channels: ChannelStateSnapshot) -> bytes:
    """The bytes of all data in flight of one subtask."""
    head = msgspec.msgpack.encode(_Head(_streams(channels.inputs), _streams(channels.outputs)))
    pieces = chain.from_iterable(chain(channels.inputs.values(), channels.outputs.values()))
    return b"".join((_START.pack(_MAGIC, _VERSION, len(head)), head, *pieces))


def decode_channels(content: bytes) -> ChannelStateSnapshot:
    """What ``encode_channels`` was given.

    Raises:
        StateRestoreError: the bytes are of another version, or are no data in flight.
    """
    if len(content) < _START.size or not content.startswith(_MAGIC):
        raise StateRestoreError("the bytes are no data in flight; restore another checkpoint")
    _, version, size = _START.unpack_from(content)
    if version != _VERSION:
        raise StateRestoreError(
            f"the data in flight has format version {version}, this flowlet reads {_VERSION}: restore it with the "
            "flowlet that wrote it"
        )
    position = _START.size + size
    try:
        head = _head_decoder.decode(content[_START.size : position])
    except msgspec.DecodeError as error:
        raise StateRestoreError(
            f"the head of the data in flight cannot be read ({error}); restore another checkpoint"
        ) from error
    expected = position + sum(sum(each.sizes) for each in chain(head.inputs, head.outputs))
    if len(content) != expected:
        raise StateRestoreError(
            f"the data in flight has {len(content)} bytes instead of {expected}; restore another checkpoint"
        )
    inputs, position = _read(content, position, head.inputs)
    outputs, _ = _read(content, position, head.outputs)
    return ChannelStateSnapshot(inputs, outputs)


def _streams(channels: Mapping[Channel, tuple[bytes, ...]]) -> list[_Stream]:
    return [_Stream(group, channel, list(map(len, pieces))) for (group, channel), pieces in channels.items()]


def _read(content: bytes, position: int, streams: list[_Stream]) -> tuple[dict[Channel, tuple[bytes, ...]], int]:
    """The pieces of each channel, and the position behind them."""
    found: dict[Channel, tuple[bytes, ...]] = {}
    for each in streams:
        pieces = []
        for size in each.sizes:
            pieces.append(content[position : position + size])
            position += size
        found[each.group, each.channel] = tuple(pieces)
    return found, position

"""Blobs of a job that were divided: large pieces, which several of them may have, travel once.

Side:   pure.
Rules:  a piece is named by the SHA-256 of its content.  A blob without large pieces travels as it is.
Format: 0, then a MessagePack array: what lies between the pieces (one more than there are pieces), and the names of the
        pieces.  Pickles, which all blobs are, begin with 0x80.
Units:  bytes.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

_DIVIDED: Final = b"\0"


class _Divided(msgspec.Struct, frozen=True, array_like=True):
    between: list[bytes]
    names: list[bytes]


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(_Divided)


def divide(parts: Iterable[tuple[bytes, bool]], pieces: dict[bytes, bytes]) -> bytes:
    """The blob that consists of ``parts``; those marked with True are put into ``pieces``, by their names."""
    between: list[list[bytes]] = [[]]
    names = []
    for part, is_piece in parts:
        if is_piece:
            name = hashlib.sha256(part).digest()
            pieces.setdefault(name, part)
            names.append(name)
            between.append([])
        else:
            between[-1].append(part)
    joined = [b"".join(each) for each in between]
    return _DIVIDED + _encoder.encode(_Divided(joined, names)) if names else joined[0]


def piece_names(blob: bytes) -> list[bytes]:
    """The names of the pieces that a blob lacks.  Raises ``msgspec.DecodeError``: this is no divided blob."""
    return _decoder.decode(memoryview(blob)[1:]).names if blob.startswith(_DIVIDED) else []


def join(blob: bytes, pieces: Mapping[bytes, bytes]) -> bytes:
    """The blob as it was.

    Raises:
        KeyError: a piece is missing.
        msgspec.DecodeError: this is no divided blob.
    """
    if not blob.startswith(_DIVIDED):
        return blob
    divided = _decoder.decode(memoryview(blob)[1:])
    parts = divided.between[:1]
    for name, between in zip(divided.names, divided.between[1:], strict=True):
        parts += [pieces[name], between]
    return b"".join(parts)


def pieces_of(blobs: Iterable[bytes], pieces: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Those of ``pieces`` that the ``blobs`` lack."""
    return {name: pieces[name] for blob in blobs for name in piece_names(blob)} if pieces else {}

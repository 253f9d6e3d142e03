"""Blobs of a job are divided, and joined again."""

import hashlib

import msgspec
import pytest

from flowlet.messages.program_bundle import divide, join, piece_names, pieces_of

LARGE, OTHER = b"l" * 100, b"o" * 100


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [(b"\x80abc", False), (b"def", False)],
        [(b"\x80abc", False), (LARGE, True), (b"def", False), (b"ghi", False)],
        [(LARGE, True), (OTHER, True), (LARGE, True)],
    ],
)
def test_a_blob_is_what_it_was(parts: list[tuple[bytes, bool]]) -> None:
    pieces: dict[bytes, bytes] = {}

    blob = divide(parts, pieces)

    assert join(blob, pieces) == b"".join(part for part, _ in parts)
    assert piece_names(blob) == [hashlib.sha256(part).digest() for part, is_piece in parts if is_piece]


def test_a_piece_of_several_blobs_is_kept_once() -> None:
    pieces: dict[bytes, bytes] = {}

    blobs = [
        divide([(b"\x80", False), (LARGE, True)], pieces),
        divide([(LARGE, True), (OTHER, True)], pieces),
        divide([(b"x", False)], pieces),
    ]

    assert list(pieces.values()) == [LARGE, OTHER]
    assert list(pieces_of(blobs[:1], pieces).values()) == [LARGE]
    assert pieces_of(blobs, pieces) == pieces
    assert pieces_of(blobs[2:], pieces) == {}


def test_a_piece_that_is_missing_or_a_damaged_blob_is_an_error() -> None:
    blob = divide([(LARGE, True)], {})

    with pytest.raises(KeyError):
        join(blob, {})
    with pytest.raises(KeyError):
        pieces_of([blob], {b"another": OTHER})
    for broken in (blob[:-1], blob + b"x", b"\0"):
        with pytest.raises(msgspec.DecodeError):
            join(broken, {})

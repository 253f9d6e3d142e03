"""Files and blobs of a job: what a client says of them is not believed, and blobs are divided and joined again."""

import hashlib

import msgspec
import pytest

from flowlet.errors import JobGraphError
from flowlet.messages.program_bundle import (
    MAX_JOB_FILE_BYTES,
    PART_BYTES,
    ShippedArchive,
    ShippedFile,
    ShippedFiles,
    check_shipped_files,
    divide,
    join,
    piece_names,
    pieces_of,
)

DIGEST = bytes(32)


def test_files_whose_parts_make_their_size_are_accepted() -> None:
    files = ShippedFiles([ShippedFile("a.py", PART_BYTES + 1, [DIGEST, DIGEST]), ShippedFile("empty.py", 0, [])])

    check_shipped_files(files)

    assert list(files.parts()) == [DIGEST]
    assert files
    assert not ShippedFiles()


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (ShippedFile("../a", 1, [DIGEST]), "is no name for a shipped file"),
        (ShippedFile("", 1, [DIGEST]), "is no name for a shipped file"),
        (ShippedFile("a" * 256, 1, [DIGEST]), "is no name for a shipped file"),
        (ShippedFile("a", 1, []), "0 parts do not make 1 bytes"),
        (ShippedFile("a", PART_BYTES, [DIGEST, DIGEST]), "2 parts do not make"),
        (ShippedFile("a", -1, []), "0 parts do not make -1 bytes"),
        (ShippedFile("a", 1, [b"short"]), "1 parts do not make 1 bytes"),
        (
            ShippedFile("a", MAX_JOB_FILE_BYTES + 1, [DIGEST] * (MAX_JOB_FILE_BYTES // PART_BYTES + 1)),
            "the limit is 2147483648",
        ),
    ],
)
def test_files_of_another_form_are_refused(file: ShippedFile, words: str) -> None:
    with pytest.raises(JobGraphError, match=words):
        check_shipped_files(ShippedFiles(python_files=[file]))


def test_targets_that_lead_out_and_too_many_files_are_refused() -> None:
    file = ShippedFile("a.zip", 1, [DIGEST])

    with pytest.raises(JobGraphError, match=r"'\.\./a' is no name"):
        check_shipped_files(ShippedFiles(archives=[ShippedArchive(file, "../a")]))
    with pytest.raises(JobGraphError, match="ships 1001 files, the limit is 1000"):
        check_shipped_files(ShippedFiles(python_files=[file] * 1001))


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

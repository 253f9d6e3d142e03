"""Tests of which files are compressed, and which can be read in parts."""

import pytest

from flowlet.connectors.files.split import Compression, compression_of, keeps_line_ends, needs_head
from flowlet.errors import FlowletError


@pytest.mark.parametrize(
    ("path", "compression"),
    [
        ("/a/b.gz", Compression.GZIP),
        ("b.log.GZIP", Compression.GZIP),
        ("b.bz2", Compression.BZIP2),
        ("b.xz", Compression.XZ),
        ("b.zst", Compression.ZSTANDARD),
        ("b.deflate", Compression.DEFLATE),
        ("b.gz.txt", None),
        ("/a.gz/b", None),
        ("gz", None),
    ],
)
def test_the_end_of_the_name_says_how_a_file_is_compressed(path: str, compression: Compression | None) -> None:
    assert compression_of(path) is compression


@pytest.mark.parametrize(
    ("path", "head", "message"),
    [
        ("a.zip", b"PK\x03\x04\x14\x00", "it is a zip archive"),
        ("a", b"PK\x05\x06" + bytes(18), "it is a zip archive"),
        ("a.lz4", b"\x04\x22\x4d\x18@@", "it is compressed with lz4"),
        ("a.7z", b"7z\xbc\xaf\x27\x1c\x00\x04", "it is a 7z archive"),
        ("a.Z", b"\x1f\x9d\x90", "it is compressed with compress"),
        ("a.br", b"\x0f\x02\x80", "it is compressed with brotli"),
        ("a.lzma", b"]\x00\x00\x80\x00", "it is compressed with lzma"),
        ("a.tar", b"name" + bytes(253) + b"ustar\x0000", "it is a tar archive"),
        ("a.TGZ", b"", "it is a tar archive"),
        ("a.tar.bz2", b"", "it is a tar archive"),
    ],
)
def test_an_archive_and_a_compression_that_no_reader_knows_are_refused(path: str, head: bytes, message: str) -> None:
    """The error names the format and a way out: its bytes are no lines."""
    with pytest.raises(
        FlowletError,
        match=f"cannot read {path}: {message}, which a file source does not read; unpack it, or compress it",
    ):
        compression_of(path, head)


@pytest.mark.parametrize(
    ("path", "head"), [("sales.br", b"S\xc3\xa3o Paulo\t3\r\n"), ("notes.zip", b"PK is a name\n"), ("x", b"x^2 + 1\n")]
)
def test_a_text_stays_a_text_whatever_its_name(path: str, head: bytes) -> None:
    assert compression_of(path, head) is None


@pytest.mark.parametrize(
    ("charset", "expected"), [("UTF-8", True), ("latin-1", True), ("utf-16", False), ("iso2022_jp", False)]
)
def test_charsets_in_which_files_can_be_read_in_parts(charset: str, expected: bool) -> None:
    assert keeps_line_ends(charset) is expected


def test_only_the_suffixes_of_known_compressions_speak_for_themselves() -> None:
    assert [needs_head(path) for path in ("a.GZ", "b.deflate", "c.txt", "d")] == [False, False, True, True]

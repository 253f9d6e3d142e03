"""Which files are compressed, and which can be read in parts."""

import pytest

from flowlet.splits.file_split import Compression, can_be_cut, compression_of


@pytest.mark.parametrize(
    ("path", "compression"),
    [
        ("/a/b.gz", Compression.GZIP),
        ("b.log.GZIP", Compression.GZIP),
        ("b.bz2", Compression.BZIP2),
        ("b.xz", Compression.XZ),
        ("b.zst", Compression.ZSTANDARD),
        ("b.gz.txt", None),
        ("/a.gz/b", None),
        ("gz", None),
    ],
)
def test_the_end_of_the_name_says_how_a_file_is_compressed(path: str, compression: Compression | None) -> None:
    assert compression_of(path) is compression


@pytest.mark.parametrize(("path", "charset", "expected"), [("a", "UTF-8", True), ("a", "utf-16", False), ("a.gz", "UTF-8", False)])
def test_files_that_can_be_read_in_parts(path: str, charset: str, expected: bool) -> None:
    assert can_be_cut(path, charset) is expected

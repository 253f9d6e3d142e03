r"""``FileSplit`` and ``FileSet``; decides which files can be read in parts.

Side:       pure.
Units:      offsets and sizes in bytes of the file on disk.
Rules:      the end of its name decides whether a file is compressed; if the name says nothing, the first bytes do, so
            that compressed bytes never become lines.  A compressed file is read as a whole, and so is one in a charset
            whose line ends are not the bytes \n and \r, or which keeps a state across lines, and one whose size is not
            known: a split with ``end`` 0 goes on to the end of its file.
Source:     Flink ``FileSourceSplit``, ``StandardDeCompressors``; looking at the first bytes is not in Flink.
"""

import codecs
import os.path
import re
from enum import Enum
from typing import Final

import msgspec

from flowlet.errors import ConfigError, FlowletError


class FileSplit(msgspec.Struct, frozen=True, tag="file"):
    r"""A part of a file: all pieces between two \n whose first byte is in ``start <= offset < end``.

    ``end`` 0: the size is not known, as of the files in ``/proc``; then the split is the whole file.
    """

    path: str
    start: int
    end: int

    @property
    def split_id(self) -> str:
        """Path and offset."""
        return f"{self.path}:{self.start}"

    @property
    def size_bytes(self) -> int:
        """The approximate size of the data."""
        return self.end - self.start


class FileSet(msgspec.Struct, frozen=True, tag="files"):
    """The files of a source: what is needed to list them and cut them into splits.

    ``paths``: files, and folders, which stand for everything in them that is not hidden by a leading ``.`` or ``_``; a
        path given twice is
    read twice.  ``split_bytes``: the size of a split, if a file can be read in parts; None: the whole file.
    """

    paths: tuple[str, ...]
    charset: str = "UTF-8"
    split_bytes: int | None = None


class Compression(Enum):
    """How a file is compressed; the values are for messages."""

    DEFLATE = "deflate"
    GZIP = "gzip"
    BZIP2 = "bzip2"
    XZ = "xz"
    ZSTANDARD = "zstd"


_BY_SUFFIX = {
    ".deflate": Compression.DEFLATE,
    ".gz": Compression.GZIP,
    ".gzip": Compression.GZIP,
    ".bz2": Compression.BZIP2,
    ".xz": Compression.XZ,
    ".zst": Compression.ZSTANDARD,
}
HEAD_BYTES: Final = 512  # of a file: what ``compression_of`` looks at
# The first bytes of a file.  Deflate is missing: its two bytes may begin a text.
_BY_HEAD: Final = {
    b"\x1f\x8b\x08": Compression.GZIP,
    **{b"BZh%d1AY&SY" % level: Compression.BZIP2 for level in range(1, 10)},
    b"\xfd7zXZ\x00": Compression.XZ,
    b"\x28\xb5\x2f\xfd": Compression.ZSTANDARD,
}
_UNREADABLE_HEADS: Final = {
    b"PK\x03\x04": "a zip archive",
    b"PK\x05\x06": "a zip archive",
    b"PK\x07\x08": "a zip archive",
    b"\x04\x22\x4d\x18": "compressed with lz4",
    b"\x89LZO\x00\r\n\x1a\n": "compressed with lzop",
    b"\xff\x06\x00\x00sNaPpY": "compressed with snappy",
    b"\x1f\x9d": "compressed with compress",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"Rar!\x1a\x07": "a rar archive",
}
_TAR: Final = (b"ustar\x0000", b"ustar  \x00")  # POSIX and GNU
_TAR_OFFSET: Final = 257
_TAR_SUFFIXES: Final = (".tgz", *[f".tar{each}" for each in _BY_SUFFIX])
# Formats without first bytes of their own: a file of such a name is one of them if it has bytes that are in no text.
_HEADLESS: Final = {".br": "brotli", ".lzo": "lzo", ".lzma": "lzma", ".snappy": "snappy"}
_NOT_IN_TEXTS: Final = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


def needs_head(path: str) -> bool:
    """Whether the end of the name does not say how the file is compressed, so that its first bytes must."""
    return os.path.splitext(path)[1].lower() not in _BY_SUFFIX


def compression_of(path: str, head: bytes = b"") -> Compression | None:
    """The compression that the end of the name says, in any case, or else the first bytes; None: not compressed.

    ``head``: the first ``HEAD_BYTES`` bytes of the file, if ``needs_head``.

    Raises:
        FlowletError: the file is compressed or an archive, and cannot be read; the message says what to do.
    """
    unreadable = _unreadable(path.lower(), head)
    if unreadable is not None:
        raise FlowletError(
            f"cannot read {path}: it is {unreadable}, which a file source does not read; unpack it, or compress it "
            "with gzip, bzip2, xz "
            "or zstd"
        )
    if not needs_head(path):
        return _BY_SUFFIX[os.path.splitext(path)[1].lower()]
    return next((each for magic, each in _BY_HEAD.items() if head.startswith(magic)), None)


def _unreadable(name: str, head: bytes) -> str | None:
    """What the file is, in words; None: a reader can read it."""
    if name.endswith(_TAR_SUFFIXES):
        return "a tar archive"
    if not needs_head(name):
        return None
    headless = _HEADLESS.get(os.path.splitext(name)[1])
    if headless is not None and _NOT_IN_TEXTS.search(head):
        return f"compressed with {headless}"
    if head[_TAR_OFFSET:].startswith(_TAR):
        return "a tar archive"
    return next((kind for magic, kind in _UNREADABLE_HEADS.items() if head.startswith(magic)), None)


_STATEFUL = ("iso2022", "hz", "utf-7")


def keeps_line_ends(charset: str) -> bool:
    """Whether line ends are the same bytes as in ASCII and the charset keeps no state across lines, so that lines are
    found undecoded.

    Raises:
        ConfigError: the charset is unknown.
    """
    try:
        return "\n\r".encode(charset) == b"\n\r" and not codecs.lookup(charset).name.startswith(_STATEFUL)
    except LookupError as error:
        raise ConfigError(f"unknown charset {charset!r}") from error

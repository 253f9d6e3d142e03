r"""``FileSplit`` and ``FileSet``; decides which files can be read in parts.

Side:       pure.
Units:      offsets and sizes in bytes of the file on disk.
Rules:      the end of its name decides whether a file is compressed, not its content: a text may begin with any bytes.  A compressed file
            is read as a whole, and so is one in a charset whose line ends are not the bytes \n and \r, or which keeps a state across lines.
Source:     Flink ``FileSourceSplit``, ``StandardDeCompressors`` (without ``.deflate``).
"""

import codecs
import os.path
from enum import Enum

import msgspec

from flowlet.errors import ConfigError


class FileSplit(msgspec.Struct, frozen=True, tag="file"):
    r"""A part of a file: all pieces between two \n whose first byte is in ``start <= offset < end``."""

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

    ``paths``: files, and folders, which stand for everything in them that is not hidden by a leading ``.`` or ``_``; a path given twice is
    read twice.  ``split_bytes``: the size of a split, if a file can be read in parts; None: the whole file.
    """

    paths: tuple[str, ...]
    charset: str = "UTF-8"
    split_bytes: int | None = None


class Compression(Enum):
    """How a file is compressed; the values are for messages."""

    GZIP = "gzip"
    BZIP2 = "bzip2"
    XZ = "xz"
    ZSTANDARD = "zstd"


_BY_SUFFIX = {
    ".gz": Compression.GZIP,
    ".gzip": Compression.GZIP,
    ".bz2": Compression.BZIP2,
    ".xz": Compression.XZ,
    ".zst": Compression.ZSTANDARD,
}


def compression_of(path: str) -> Compression | None:
    """The compression that the end of the name says, in any case; None: not compressed."""
    return _BY_SUFFIX.get(os.path.splitext(path)[1].lower())


_STATEFUL = ("iso2022", "hz", "utf-7")


def keeps_line_ends(charset: str) -> bool:
    """Whether line ends are the same bytes as in ASCII and the charset keeps no state across lines, so that lines are found undecoded.

    Raises:
        ConfigError: the charset is unknown.
    """
    try:
        return "\n\r".encode(charset) == b"\n\r" and not codecs.lookup(charset).name.startswith(_STATEFUL)
    except LookupError as error:
        raise ConfigError(f"unknown charset {charset!r}") from error


def can_be_cut(path: str, charset: str) -> bool:
    """Whether a reader can start in the middle of the file."""
    return compression_of(path) is None and keeps_line_ends(charset)

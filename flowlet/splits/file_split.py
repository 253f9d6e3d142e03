r"""A file, or a part of one, that one reader reads; and which files can be read in parts at all.

Side:       pure.
Units:      offsets and sizes in bytes of the file as it lies on the disk.
Rules:      a file is compressed if the end of its name says so, whatever is in it: a text may begin with any bytes.  Such a file is read as
            a whole, and so is one in a charset whose line ends are not the two bytes \n and \r, or which has a state that crosses lines.
Source:     Flink ``FileSourceSplit``, ``StandardDeCompressors`` (without ``.deflate``).
"""

import codecs
import os.path
from dataclasses import dataclass
from enum import Enum

from flowlet.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FileSplit:
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
        """About how much there is to read."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class FileSet:
    """The files of a source: all that is needed to list them and to cut them into splits.

    ``paths`` are files and folders (then everything below that is not hidden by a leading ``.`` or ``_``); a path given twice is read
    twice.  ``split_bytes`` is how much of a file is a split, where a file can be read in parts; None: all of it.
    """

    paths: tuple[str, ...]
    charset: str = "UTF-8"
    split_bytes: int | None = None


class Compression(Enum):
    """How a file is compressed; the values are for people."""

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
    """What the end of the name says, in small or capital letters; None: not compressed."""
    return _BY_SUFFIX.get(os.path.splitext(path)[1].lower())


_STATEFUL = ("iso2022", "hz", "utf-7")


def keeps_line_ends(charset: str) -> bool:
    """Whether line ends are the same bytes as in ASCII, and no state crosses them, so that lines can be found without decoding.

    Raises:
        ConfigError: the charset is unknown.
    """
    try:
        return "\n\r".encode(charset) == b"\n\r" and not codecs.lookup(charset).name.startswith(_STATEFUL)
    except LookupError as error:
        raise ConfigError(f"unknown charset {charset!r}") from error


def can_be_cut(path: str, charset: str) -> bool:
    """Whether a reader can begin in the middle of the file."""
    return compression_of(path) is None and keeps_line_ends(charset)

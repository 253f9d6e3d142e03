r"""Lists files and assigns them to readers, the largest first; decides which files can be read in parts.

Side:       shared.  ``discover`` opens files, on a thread of its own; the rest only decides, on the JobManager's loop.
Invariants: every byte of every file is assigned once; memory grows with the number of files, not of splits.  Files must
            not change while the job runs.
Rules:      a single reader gets the files in the order of their paths.  Several readers get the largest first, so that
            none is left with a large one at the end.  An answer may hold several small files, but at most half of a
            reader's fair share of what is left.  Files of size 0 that have content, as in ``/proc``, are one split of
            an unknown size, whose ``end`` is 0.  The end of its name decides whether a file is compressed; if the name
            says nothing, the first bytes do, so that compressed bytes never become lines.  A compressed file is read as
            a whole, and so is one in a charset whose line ends are not the bytes \n and \r, or which keeps a state
            across lines.
Source:     Flink ``StaticFileSplitEnumerator``, ``NonSplittingRecursiveEnumerator``,
            ``BlockSplittingRecursiveEnumerator`` (hidden files in folders are skipped); the shares are those of guided
            self-scheduling.  Flink ``StandardDeCompressors``; looking at the first bytes is not in Flink.
"""

import codecs
import os
import os.path
import re
import stat
from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Final

import msgspec

from flowlet.errors import ConfigError, FlowletError
from flowlet.splits.enumerator import SplitEnumerator
from flowlet.splits.split_kinds import FileSet, FileSplit


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
HEAD_BYTES: Final = 512  # of a file, which ``compression_of`` looks at
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
            "with gzip, bzip2, xz or zstd"
        )
    if not needs_head(path):
        return _BY_SUFFIX[os.path.splitext(path)[1].lower()]
    return next((each for magic, each in _BY_HEAD.items() if head.startswith(magic)), None)


def _unreadable(name: str, head: bytes) -> str | None:
    """The kind of a file that no reader can read, in words; None: a reader can read it."""
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
    """Whether lines can be found without decoding: line ends have the bytes of ASCII, and no state crosses lines.

    Raises:
        ConfigError: the charset is unknown.
    """
    try:
        return "\n\r".encode(charset) == b"\n\r" and not codecs.lookup(charset).name.startswith(_STATEFUL)
    except LookupError as error:
        raise ConfigError(f"unknown charset {charset!r}") from error


# The limit of an answer with several files: reading so much takes far longer than the next request.  Not measured.
MAX_ANSWER_BYTES: Final = 4 << 20
MAX_ANSWER_SPLITS: Final = 1_000  # about 100 kB of paths
_HIDDEN: Final = (".", "_")


class FileSplitEnumerator(SplitEnumerator):
    """The files of one source.  Threading: one thread at a time."""

    name = "the splits of a file source"
    # Path, start and end of each split, in their order.
    state_form = msgspec.msgpack.Decoder(tuple[int, list[tuple[str, int, int]]])
    waiting_bytes = 0

    def __init__(self, files: FileSet) -> None:
        self.split_set = files
        self._splits: deque[FileSplit] = deque()  # one per file, without the part that is assigned already
        # Compressed files, which are not cut.  After a restart files are missing here whose names do not say that they
        # are compressed; then they may be cut, and a reader reads them whole with their first split.
        self._whole: set[str] = set()

    def __repr__(self) -> str:
        return f"<FileSplitEnumerator {len(self._splits)} files with {self.waiting_bytes} bytes wait>"

    def find(self) -> list[FileSplit]:
        """List all files; empty ones have no split.

        Raises:
            FlowletError: a file or folder is missing or cannot be read, or is compressed in a way that no reader knows;
                names it.
            ConfigError: the charset is unknown.
        """
        keeps_line_ends(self.split_set.charset)
        found = [_whole_file(_sendable(file)) for path in self.split_set.paths for file in _files(path)]
        self._whole = {split.path for split, is_compressed in filter(None, found) if is_compressed}
        return [split for split, _ in filter(None, found)]

    def add_found(self, found: Sequence[FileSplit]) -> None:
        """Assign these, the largest first if there are several readers."""
        self._splits = deque(sorted(found, key=lambda split: -split.size_bytes) if self._num_readers > 1 else found)
        self.waiting_bytes = sum(split.size_bytes for split in found)

    def next_splits(self, reader: int) -> list[FileSplit]:
        """The next split, with others if they are small; empty: none are left."""
        limit_bytes = min(MAX_ANSWER_BYTES, self.waiting_bytes // (2 * self._num_readers))
        found: list[FileSplit] = []
        while self._splits and len(found) < MAX_ANSWER_SPLITS:
            end = self._end_of_next()
            limit_bytes -= end - self._splits[0].start
            if found and limit_bytes < 0:
                break
            found.append(self._take(end))
        return found

    def left(self) -> tuple[list[tuple[str, int, int]]]:
        """The splits that are not assigned."""
        return ([(split.path, split.start, split.end) for split in self._splits],)

    def take_left(self, splits: list[tuple[str, int, int]]) -> None:
        """Go on with these splits."""
        self._splits = deque(FileSplit(*split) for split in splits)
        self.waiting_bytes = sum(split.size_bytes for split in self._splits)

    def _end_of_next(self) -> int:
        file = self._splits[0]
        is_whole = file.path in self._whole or not needs_head(file.path) or not keeps_line_ends(self.split_set.charset)
        if self.split_set.split_bytes is None or is_whole:
            return file.end
        return min(file.start + self.split_set.split_bytes, file.end)

    def _take(self, end: int) -> FileSplit:
        file = self._splits.popleft()
        if end < file.end:
            self._splits.appendleft(FileSplit(file.path, end, file.end))
        self.waiting_bytes -= end - file.start
        return FileSplit(file.path, file.start, end)


def _whole_file(path: str) -> tuple[FileSplit, bool] | None:
    """The file as one split, and whether it is compressed; None: it is empty.  Opens it and looks at its beginning."""
    try:
        # O_NONBLOCK, because opening a named pipe would otherwise block for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise FlowletError(f"cannot read {path}: it is neither a file nor a folder")
            # Files in /proc have content, although their size is 0.
            head = os.pread(descriptor, HEAD_BYTES, 0) if needs_head(path) or not status.st_size else b""
        finally:
            os.close(descriptor)
    except OSError as error:
        raise FlowletError(f"cannot read {path}: {error.strerror or error}") from error
    compression = compression_of(path, head)
    if status.st_size or head:
        return FileSplit(path, 0, status.st_size), compression is not None
    if compression is not None:
        raise FlowletError(
            f"cannot read {path}: it is empty, which no {compression.value} data are; was it written to its end?"
        )
    return None


def _files(path: str) -> list[str]:
    """The path itself if it is a file, else the files in the folder, which are listed in order.

    Links to folders are followed, as in Flink.  A link to a folder in which it lies is left out: its files are listed
    already.
    """
    if not os.path.isdir(path):
        return [path]
    found: list[str] = []
    # By folder that is still to be listed: the identities of the folders on the way to it.
    identity_of: dict[str, tuple[tuple[int, int], ...]] = {path: (_identity(path),)}
    for folder, folders, files in os.walk(path, onerror=_refuse_folder, followlinks=True):
        way = identity_of.pop(folder)
        inside = {}
        for name in sorted(name for name in folders if not name.startswith(_HIDDEN)):
            identity = _identity(os.path.join(folder, name))
            if identity not in way:
                inside[name] = identity
                identity_of[os.path.join(folder, name)] = (*way, identity)
        folders[:] = inside
        found += [os.path.join(folder, name) for name in sorted(files) if not name.startswith(_HIDDEN)]
    return found


def _identity(folder: str) -> tuple[int, int]:
    """The identity of a folder, which all its names share: its device and its inode."""
    try:
        status = os.stat(folder)
    except OSError as error:
        raise FlowletError(f"cannot list {folder}: {error.strerror or error}") from error
    return status.st_dev, status.st_ino


def _sendable(path: str) -> str:
    """The path, if a message can hold it: messages have text, which must be UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError as error:
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        raise FlowletError(
            f"cannot read {shown}: its name is not UTF-8, so it cannot be sent to a TaskManager; rename it"
        ) from error
    return path


def _refuse_folder(error: OSError) -> None:
    raise FlowletError(f"cannot list {error.filename}: {error.strerror or error}") from error

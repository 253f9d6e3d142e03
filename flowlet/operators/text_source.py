r"""Lines of text files.

Hot path, per block of 128 KiB: one read, one decode, one split; nothing per line.

Side:       task.
Invariants: every line of every file belongs to exactly one split, whatever the sizes; splits and their dealing follow from paths and sizes
            alone, so that all subtasks agree without talking to each other.  Files must not change while the job runs.
Units:      offsets and sizes in bytes.
Rules:      lines end with \n, \r\n or a lone \r; a last line without an end counts, an empty one behind the last end does not (Java's
            ``BufferedReader.readLine``).  A split has the pieces between two \n that begin in it.  Undecodable bytes become U+FFFD.
Source:     Flink ``FileSource``, ``TextLineInputFormat``, ``BlockSplittingRecursiveEnumerator`` (hidden files are skipped in folders).
Absent:     compression, watching folders, assigning splits at run time.
"""

import codecs
import io
import math
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from flowlet.errors import ConfigError, FlowletError
from flowlet.operators.source import Source, SourceReader
from flowlet.records import Chunk

SPLIT_BYTES = 16 << 20
BLOCK_BYTES = 128 << 10
MAX_LINE_BYTES = 64 << 20
MAX_CHUNK_LINES = 2_000


@dataclass(frozen=True, slots=True)
class FileSplit:
    r"""A part of a file: all pieces between two \n whose first byte is in ``start <= offset < end``."""

    path: str
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        """About how much there is to read."""
        return self.end - self.start


class TextLineSource(Source):
    """The lines of files, without their ends.

    Args:
        paths: files and folders (then everything below that is not hidden by a leading ``.`` or ``_``); a path given twice is read twice.
        charset: of the files.
        repeat: how often everything is read.
        split_bytes: how much of a file goes to one subtask at a time.
    """

    def __init__(self, paths: Sequence[str], charset: str = "UTF-8", repeat: int = 1, *, split_bytes: int = SPLIT_BYTES) -> None:
        self.paths = [os.fspath(path) for path in paths]
        self.charset = charset
        self.repeat = repeat
        self.split_bytes = split_bytes

    def list_splits(self) -> list[FileSplit]:
        """Everything to be read, in the order of the paths; empty files have no split.

        Raises:
            FlowletError: a file or folder is not there, or cannot be read; names it.
            ConfigError: the charset is unknown.
        """
        is_splittable = _keeps_line_ends(self.charset)
        splits: list[FileSplit] = []
        for path in self.paths:
            for file in _files(path):
                size = _readable_size(file)
                step = self.split_bytes if is_splittable else max(size, 1)
                splits += [FileSplit(file, start, min(start + step, size)) for start in range(0, size, step)]
        return splits

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        """A reader of the subtask's splits."""
        return TextLineReader(deal(self.list_splits(), parallelism)[subtask] * self.repeat, self.charset)


def deal(splits: Sequence[FileSplit], parallelism: int) -> list[list[FileSplit]]:
    """The splits of each subtask: the largest first, always to the one with the least so far; then in the given order again."""
    shares: list[list[int]] = [[] for _ in range(parallelism)]
    load = [0] * parallelism
    for index in sorted(range(len(splits)), key=lambda index: (-splits[index].size_bytes, index)):
        subtask = load.index(min(load))
        shares[subtask].append(index)
        load[subtask] += splits[index].size_bytes
    return [[splits[index] for index in sorted(share)] for share in shares]


class TextLineReader:
    """Reads splits one after the other.

    Args:
        splits: in this order.
        charset: of all files.
        block_bytes: how much is read at once.
        max_line_bytes: a longer line is an error.
    """

    def __init__(
        self, splits: Iterable[FileSplit], charset: str, *, block_bytes: int = BLOCK_BYTES, max_line_bytes: int = MAX_LINE_BYTES
    ) -> None:
        self._charset = charset
        self._block_bytes = block_bytes
        self._max_line_bytes = max_line_bytes
        splits = list(splits)
        self._total_bytes = sum(split.size_bytes for split in splits)
        self.current_split = ""  # of the lines polled last
        self.open_splits: frozenset[str] = frozenset()  # one at a time: the watermark does not wait for files that come later
        self._done_bytes = 0  # Written by the task thread; read anywhere, one split stale is fine.
        self._chunks = self._read(splits)

    @property
    def progress(self) -> float:
        """The fraction of the splits' bytes that was read, whole splits; any thread."""
        return self._done_bytes / self._total_bytes if self._total_bytes else 1.0

    def poll_chunk(self) -> Chunk | None:
        """Up to 2,000 lines; None at the end.

        Raises:
            FlowletError: a file cannot be read, or has a line that is too long; names it.
        """
        return next(self._chunks, None)

    def close(self) -> None:
        """Close the file that is being read; nothing more is read."""
        self._chunks.close()

    def _read(self, splits: Iterable[FileSplit]) -> Generator[Chunk, None, None]:
        is_splittable = _keeps_line_ends(self._charset)
        charset = self._charset if is_splittable else _RECODED
        for split in splits:
            self.current_split = f"{split.path}:{split.start}"
            self.open_splits = frozenset((self.current_split,))
            try:
                with open(split.path, "rb", buffering=0) as file:
                    read = file.read if is_splittable else _recoded(file, self._charset)
                    if split.start:
                        # From the last byte before: it may be the end of a line.
                        file.seek(split.start - 1)
                    for data in self._line_blocks(read, split, math.inf if not is_splittable else split.end):
                        yield from _chunks(_lines(data, charset))
            except OSError as error:
                raise FlowletError(f"cannot read {split.path}: {error.strerror or error}") from error
            self._done_bytes += split.size_bytes

    def _line_blocks(self, read: Callable[[int], bytes | None], split: FileSplit, end: float) -> Iterator[bytes]:
        r"""Pieces of whole lines that together are the split.

        It reaches from behind the first \n at or after ``start - 1`` (or from 0) to behind the first \n at or after ``end - 1``.
        """
        offset = max(split.start - 1, 0)  # of the block
        is_inside = split.start == 0
        carried = bytearray()  # the beginning of a line
        while block := read(self._block_bytes):
            next_offset = offset + len(block)
            if not is_inside:
                first = block.find(b"\n") + 1
                is_inside = first > 0
                if offset + first >= end if is_inside else next_offset >= end:
                    return  # no line begins in this split
                block = block[first:] if is_inside else b""
            last = block.find(b"\n", max(0, int(end) - 1 - (next_offset - len(block)))) + 1 if next_offset >= end else 0
            if last:
                yield bytes(carried + block[:last])
                return
            cut = _behind_last_line_end(block)
            if cut:
                yield bytes(carried + block[:cut])
                carried.clear()
            carried += block[cut:]
            offset = next_offset
            if len(carried) > self._max_line_bytes:
                begin = offset - len(carried)
                raise FlowletError(f"{split.path}: the line at offset {begin} is longer than {self._max_line_bytes} bytes")
        if carried:
            yield bytes(carried)


# What a file in a charset without plain line ends is turned into while it is read.
_RECODED = "utf-8"


def _behind_last_line_end(block: bytes) -> int:
    r"""0 if there is none for sure: a \r at the end may be half of one."""
    return block.rfind(b"\n") + 1 or block.rfind(b"\r", 0, len(block) - 1) + 1


def _lines(data: bytes, charset: str) -> list[str]:
    """The lines of a non-empty piece of whole lines."""
    text = data.decode(charset, "replace")
    if text.count("\n") != data.count(b"\n") or text.count("\r") != data.count(b"\r"):
        # A broken character took the end of its line with it: EUC-KR does that.
        return [line.decode(charset, "replace") for line in data.splitlines()]
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def _chunks(lines: list[str]) -> Iterator[Chunk]:
    """Chunks of about the same size."""
    if len(lines) <= MAX_CHUNK_LINES:
        yield Chunk(lines)
        return
    step = math.ceil(len(lines) / math.ceil(len(lines) / MAX_CHUNK_LINES))
    for start in range(0, len(lines), step):
        yield Chunk(lines[start : start + step])


_STATEFUL = ("iso2022", "hz", "utf-7")


def _keeps_line_ends(charset: str) -> bool:
    """Whether line ends are the same bytes as in ASCII, and no state crosses them, so that lines can be found without decoding."""
    try:
        return "\n\r".encode(charset) == b"\n\r" and not codecs.lookup(charset).name.startswith(_STATEFUL)
    except LookupError as error:
        raise ConfigError(f"unknown charset {charset!r}") from error


def _recoded(file: io.FileIO, charset: str) -> Callable[[int], bytes]:
    decoder = codecs.getincrementaldecoder(charset)("replace")

    def read(num_bytes: int) -> bytes:
        while True:
            block = file.read(num_bytes)
            text = decoder.decode(block, final=not block)
            if text or not block:
                return text.encode(_RECODED, "surrogatepass")

    return read


def _files(path: str) -> list[str]:
    """The path itself, or the files in it."""
    if not os.path.isdir(path):
        return [path]
    found: list[str] = []
    for folder, folders, files in os.walk(path, onerror=_refuse_folder):
        folders[:] = sorted(name for name in folders if not name.startswith(_HIDDEN))
        found += [os.path.join(folder, name) for name in sorted(files) if not name.startswith(_HIDDEN)]
    return found


_HIDDEN = (".", "_")


def _refuse_folder(error: OSError) -> None:
    raise FlowletError(f"cannot list {error.filename}: {error.strerror or error}") from error


def _readable_size(path: str) -> int:
    try:
        # Opened without waiting: for a pipe that would be for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise FlowletError(f"cannot read {path}: {error.strerror or error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise FlowletError(f"cannot read {path}: it is neither a file nor a folder")
    return status.st_size

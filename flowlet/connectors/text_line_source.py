r"""``TextLineSource``: reads the lines of text files.

Hot path, per block of 128 KiB: one read, one decode, one split; nothing per line.

Side:       task.
Invariants: every line of every file belongs to exactly one split, whatever the sizes; splits are read one at a time.  Files must not change
            while the job runs.
Units:      offsets and sizes in bytes; for a compressed file, of the compressed bytes.
Rules:      lines end with \n, \r\n or a lone \r; a last line without an end counts, an empty one after the last end does not (Java's
            ``BufferedReader.readLine``).  A split has the pieces between two \n that begin in it.  Undecodable bytes become U+FFFD.
Source:     Flink ``FileSource``, ``FileSourceReader``, ``TextLineInputFormat``.
Absent:     watching folders; resuming in the middle of a split after a restart.
"""

import codecs
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import BinaryIO

from flowlet.connectors.compressed_files import ReadBytes, decompressing
from flowlet.errors import FlowletError
from flowlet.operators.source_operator import Source
from flowlet.records import Chunk
from flowlet.splits.assigned_splits import AssignedSplits
from flowlet.splits.file_enumerator import FileSplitEnumerator
from flowlet.splits.file_split import FileSet, FileSplit, can_be_cut, compression_of, keeps_line_ends
from netstack.availability import AvailabilityFuture

BLOCK_BYTES = 128 << 10
MAX_LINE_BYTES = 64 << 20
MAX_CHUNK_LINES = 2_000


class TextLineSource(Source):
    """The lines of files, without their ends.

    By default a file is one split, so that one subtask reads it in order.  The next file, the largest first, goes to the subtask that asks.
    """

    def __init__(self, files: FileSet) -> None:
        self.files = files

    def create_enumerator(self) -> FileSplitEnumerator:
        """The enumerator that lists the files in the JobManager and assigns them."""
        return FileSplitEnumerator(self.files)

    def create_reader(self, subtask: int, parallelism: int) -> "TextLineReader":
        """A reader of the splits that it is assigned."""
        return TextLineReader(self.files.charset, parallelism)


class TextLineReader:
    """Reads the splits that it is assigned, one after the other; see ``SplitReceiver`` and ``SplitReader``.

    Threading: the task thread, except ``progress``.  A line above ``max_line_bytes`` is an error.
    """

    def __init__(self, charset: str, num_readers: int = 1, *, block_bytes: int = BLOCK_BYTES, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._charset = charset
        self._block_bytes = block_bytes
        self._max_line_bytes = max_line_bytes
        self._splits: AssignedSplits[FileSplit] = AssignedSplits(num_readers)
        self._chunks: Generator[Chunk, None, None] | None = None  # of the current split
        self.current_split = ""  # of the lines polled last
        self.open_splits: frozenset[str] = frozenset()  # only the current one: the watermark does not wait for later files
        self._done_bytes = 0  # of earlier splits.  As the next field written by the task thread, read anywhere; one block stale is fine.
        self._current_bytes = 0  # read of the current split

    def __repr__(self) -> str:
        return f"<TextLineReader of {self.current_split!r}, {self._splits!r}>"

    @property
    def progress(self) -> float | None:
        """The fraction read of all bytes that this reader can expect; None if it expects none; any thread."""
        expected_bytes = self._splits.expected_bytes
        return min((self._done_bytes + self._current_bytes) / expected_bytes, 1.0) if expected_bytes else None

    def start(self, request_splits: Callable[[], None]) -> None:
        """Ask for the first splits."""
        self._splits.start(request_splits)

    def add_splits(self, splits: Sequence[FileSplit], waiting_bytes: int) -> None:
        """Read these splits, too."""
        self._splits.add(splits, waiting_bytes)

    def no_more_splits(self) -> None:
        """End after the splits received so far."""
        self._splits.end()

    def available_future(self) -> AvailabilityFuture:
        """Done when there is a split to read, or none will come."""
        return self._splits.available_future

    def poll_chunk(self) -> Chunk | None:
        """Up to 2,000 lines; an empty chunk while no split is there, None at the end.

        Raises:
            FlowletError: a file cannot be read, is damaged, or has too long a line; names it.
        """
        while True:
            if self._chunks is None:
                split = self._splits.take()
                if split is None:
                    return None if self._splits.is_over else Chunk([])
                self._begin(split)
            assert self._chunks is not None, "set by _begin"
            chunk = next(self._chunks, None)
            if chunk is not None:
                return chunk
            self._chunks = None

    def close(self) -> None:
        """Close the current file."""
        chunks, self._chunks = self._chunks, None
        if chunks is not None:
            chunks.close()

    def _begin(self, split: FileSplit) -> None:
        self.current_split = split.split_id
        self.open_splits = frozenset((split.split_id,))
        self._chunks = self._read(split)

    def _read(self, split: FileSplit) -> Generator[Chunk, None, None]:
        charset = self._charset if keeps_line_ends(self._charset) else _RECODED
        end = split.end if can_be_cut(split.path, self._charset) else math.inf
        try:
            with open(split.path, "rb", buffering=0) as file:
                if split.start:
                    # From the byte before the split, which tells whether a line begins at its start.
                    file.seek(split.start - 1)
                for data in self._line_blocks(self._watched(file, split), split, end):
                    yield from _chunks(_lines(data, charset))
        except OSError as error:
            raise FlowletError(f"cannot read {split.path}: {error.strerror or error}") from error
        self._done_bytes += split.size_bytes
        self._current_bytes = 0
        self.open_splits = frozenset()

    def _watched(self, file: BinaryIO, split: FileSplit) -> ReadBytes:
        """Reads the content, recoded if the charset hides line ends, and asks for more splits when little of this one is left."""
        read_content: ReadBytes = file.read
        compression = compression_of(split.path)
        if compression is not None:
            read_content = decompressing(file, split.path, compression)
        if not keeps_line_ends(self._charset):
            read_content = _recoded(read_content, self._charset)

        def read(num_bytes: int) -> bytes | None:
            block = read_content(num_bytes)
            self._current_bytes = min(max(file.tell() - split.start, 0), split.size_bytes)
            self._splits.keep_stocked(split.size_bytes - self._current_bytes)
            return block

        return read

    def _line_blocks(self, read: ReadBytes, split: FileSplit, end: float) -> Iterator[bytes]:
        r"""The split as pieces of whole lines.

        It reaches from after the first \n at or after ``start - 1`` (or from 0) to after the first \n at or after ``end - 1``.
        """
        offset = max(split.start - 1, 0)  # of the block in the file
        is_inside = split.start == 0
        carried = bytearray()  # the incomplete line at the end of the blocks so far
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


# Files in a charset in which line ends cannot be found are converted to this one while they are read.
_RECODED = "utf-8"


def _behind_last_line_end(block: bytes) -> int:
    r"""The offset after the last line end; 0 if there is none for sure, because a final \r may be half of \r\n."""
    return block.rfind(b"\n") + 1 or block.rfind(b"\r", 0, len(block) - 1) + 1


def _lines(data: bytes, charset: str) -> list[str]:
    """The lines in a non-empty piece of whole lines."""
    text = data.decode(charset, "replace")
    if text.count("\n") != data.count(b"\n") or text.count("\r") != data.count(b"\r"):
        # Decoding a broken character swallowed a line end, as happens in EUC-KR: decode line by line.
        return [line.decode(charset, "replace") for line in data.splitlines()]
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def _chunks(lines: list[str]) -> Iterator[Chunk]:
    """Chunks of about equal size."""
    if len(lines) <= MAX_CHUNK_LINES:
        yield Chunk(lines)
        return
    step = math.ceil(len(lines) / math.ceil(len(lines) / MAX_CHUNK_LINES))
    for start in range(0, len(lines), step):
        yield Chunk(lines[start : start + step])


def _recoded(read_content: ReadBytes, charset: str) -> ReadBytes:
    decoder = codecs.getincrementaldecoder(charset)("replace")

    def read(num_bytes: int) -> bytes:
        while True:
            block = read_content(num_bytes)
            text = decoder.decode(block or b"", final=not block)
            if text or not block:
                return text.encode(_RECODED, "surrogatepass")

    return read

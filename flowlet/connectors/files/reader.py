r"""``TextLineReader``: reads the lines of text files.

Decompresses files while they are read.

Hot path, per block of 128 KiB: one read, one decode, one split; nothing per line.

Side:       task.
Rules:      concatenated streams in one file are read one after the other (``cat a.gz b.gz``), with padding between
            those of xz.  Any other bytes behind a stream are damage: Python's ``BZ2File`` and ``LZMAFile`` would take
            them for the end of the file.  A damaged or truncated file is an error that names it; in zstd and xz
            files damage inside is found only if they have checksums, which the command-line tools write by default.
            zstd is Python's own from 3.14 on, before that pyarrow's, which is imported for the first such file.  Lines
            end with \n, \r\n or a lone \r; a last line without an end counts, an empty one after the last end does not
            (Java's ``BufferedReader.readLine``).  A split has the pieces between two \n that begin in it. Undecodable
            bytes become U+FFFD.
Source:     Flink ``StandardDeCompressors``.  Flink ``FileSource``, ``FileSourceReader``, ``TextLineInputFormat``.  A
            position in a split is the offset at which a line begins, in the content that is searched for line ends, and
            how many lines behind it were read.  So no line is counted by itself; a reader that goes on there skips less
            than a block.  In a file that is read as a whole (compressed, or recoded) it reads all content before the
            position again, and drops it.
Invariants: every line of every file belongs to exactly one split, whatever the sizes; splits are read one at a time.
            Files must not change while the job runs.
Units:      offsets and sizes in bytes; for a compressed file, of the compressed bytes.
Absent:     watching folders.
"""

import bz2
import codecs
import gzip
import lzma
import math
import os
import sys
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import BinaryIO, Final, assert_never

from flowlet.connectors.files.split import (
    HEAD_BYTES,
    Compression,
    compression_of,
    keeps_line_ends,
    needs_head,
)
from flowlet.connectors.split_reader import AssignedSource, SplitReaderBase
from flowlet.errors import FlowletError
from flowlet.records import Chunk
from flowlet.splits.split_kinds import FileSet, FileSplit
from netstack.late import dataclass

ReadBytes = Callable[[int], bytes | None]
_INPUT_BYTES: Final = 128 << 10  # as much as the readers of lines take; the standard library reads 8 KiB
_XZ_PADDING_BYTES: Final = 4  # the .xz file format, 2.2


def decompressing(file: BinaryIO, path: str, compression: Compression) -> ReadBytes:
    """A function that reads up to so many bytes of the decompressed content; empty at its end.

    The function raises ``FlowletError``, which names the file, if the file is damaged, truncated, or not compressed as
    its name says.
    """
    read_content = _content(file, compression)
    errors: tuple[type[Exception], ...] = (OSError, zlib.error, lzma.LZMAError, *_zstd_errors(compression))

    def read(num_bytes: int) -> bytes | None:
        try:
            return read_content(num_bytes)
        except EOFError as error:
            raise FlowletError(f"cannot read {path}: it ends in the middle of its {compression.value} data") from error
        except errors as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # an error of the disk
            raise FlowletError(
                f"cannot read {path}: its {compression.value} data are damaged: {error}; is its name right?"
            ) from error

    return read


def _content(file: BinaryIO, compression: Compression) -> ReadBytes:
    match compression:
        case Compression.GZIP:
            return gzip.GzipFile(fileobj=file, mode="rb").read
        case Compression.DEFLATE:
            return _ConcatenatedStreams(file, _Inflater).read
        case Compression.BZIP2:
            return _ConcatenatedStreams(file, bz2.BZ2Decompressor).read
        case Compression.XZ:
            return _ConcatenatedStreams(file, lzma.LZMADecompressor, padding_bytes=_XZ_PADDING_BYTES).read
        case Compression.ZSTANDARD:
            return _zstd_content(file)
        case _:
            assert_never(compression)


class _Inflater:
    """Decompresses one zlib stream; zlib's own object has other names for this."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj()
        self._has_more = False  # content that did not fit

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def needs_input(self) -> bool:
        return not (self._has_more or self._inflate.unconsumed_tail)

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        content = self._inflate.decompress(self._inflate.unconsumed_tail + data, max_length)
        self._has_more = len(content) == max_length
        return content


_Decompressor = bz2.BZ2Decompressor | lzma.LZMADecompressor | _Inflater


class _ConcatenatedStreams:
    """The content of all streams in a file.

    ``padding_bytes``: between streams, and behind the last one, there may be zeros, a multiple of so many; 0: none.
    """

    def __init__(self, file: BinaryIO, make: Callable[[], _Decompressor], *, padding_bytes: int = 0) -> None:
        self._file = file
        self._make = make
        self._padding_bytes = padding_bytes
        self._stream = make()
        self._input = b""  # read of the file, but not decompressed

    def read(self, num_bytes: int) -> bytes:
        """Up to so many bytes; empty at the end.  EOFError: the file ends inside a stream."""
        while True:
            if self._stream.eof and not self._begin_next():
                return b""
            data = b""
            if self._stream.needs_input:
                data = self._input or self._file.read(_INPUT_BYTES)
                self._input = b""
                if not data:
                    raise EOFError("the file ends inside a stream")
            content = self._stream.decompress(data, num_bytes)
            if content:
                return content

    def _begin_next(self) -> bool:
        """Skip padding and begin the next stream; return whether there is one."""
        data = self._stream.unused_data or self._file.read(_INPUT_BYTES)
        num_zeros = 0
        while self._padding_bytes and data:
            rest = data.lstrip(b"\0")
            num_zeros += len(data) - len(rest)
            data = rest or self._file.read(_INPUT_BYTES)
            if rest:
                break
        if self._padding_bytes and num_zeros % self._padding_bytes:
            raise OSError(f"{num_zeros} bytes of padding behind a stream are no multiple of {self._padding_bytes}")
        self._input = data
        if data:
            self._stream = self._make()
        return bool(data)


def _zstd_content(file: BinaryIO) -> ReadBytes:
    if sys.version_info >= (3, 14):
        from compression import zstd

        return _ConcatenatedStreams(file, zstd.ZstdDecompressor).read
    import pyarrow as pa  # here, because its import takes longer than all others, and few files need it

    read: ReadBytes = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd").read
    return read


def _zstd_errors(compression: Compression) -> tuple[type[Exception], ...]:
    if sys.version_info >= (3, 14) and compression is Compression.ZSTANDARD:
        from compression import zstd

        return (zstd.ZstdError,)
    return ()


BLOCK_BYTES = 128 << 10
MAX_LINE_BYTES = 64 << 20
MAX_CHUNK_LINES = 2_000
_DROPPED_BYTES: Final = 1 << 20  # content in front of a position is dropped in blocks of this size


@dataclass(frozen=True, slots=True)
class SplitPosition:
    """The place where a split goes on: ``num_lines`` lines behind ``offset``."""

    offset: int
    num_lines: int


@dataclass(frozen=True, slots=True)
class TextPosition:
    """The splits that a reader has left; ``position`` is in the first of them, None: it was not begun.

    ``later``: the positions in other splits, by their ids, which former readers had begun; empty unless the parallelism
    has changed.
    """

    splits: tuple[FileSplit, ...]
    position: SplitPosition | None
    later: tuple[tuple[str, SplitPosition], ...] = ()


class TextLineReader(SplitReaderBase[FileSplit, SplitPosition, TextPosition]):
    """Reads the splits that it is assigned, one after the other.

    Threading: the task thread, except ``progress``.  A line above ``max_line_bytes`` is an error.
    """

    def __init__(
        self,
        charset: str,
        num_readers: int = 1,
        *,
        block_bytes: int = BLOCK_BYTES,
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> None:
        super().__init__(num_readers)
        self._charset = charset
        self._block_bytes = block_bytes
        self._max_line_bytes = max_line_bytes
        self._chunks: Generator[Chunk, None, None] | None = None  # of the current split
        self._current: FileSplit | None = None  # the current split; None: no line of it is left
        self._position: SplitPosition | None = None  # in the current split; None: at its start
        # Of earlier splits.  As the next field written by the task thread, read anywhere; one block stale is fine.
        self._done_bytes = 0
        self._current_bytes = 0  # read of the current split

    @property
    def progress(self) -> float | None:
        """The fraction read of all bytes that this reader can expect; None if it expects none; any thread."""
        expected_bytes = self.expected_bytes
        return min((self._done_bytes + self._current_bytes) / expected_bytes, 1.0) if expected_bytes else None

    def poll_chunk(self) -> Chunk | None:
        """Lines, up to 2,000; an empty chunk while no split is there, None at the end.

        Raises:
            FlowletError: a file cannot be read, is damaged, or has too long a line; names it.
        """
        while True:
            if self._chunks is None:
                taken = self.take_split()
                if taken is None:
                    return self.nothing()
                self._current, self._position = taken
                self.current_split = self._current.split_id
                # The current one alone is open: the watermark does not wait for later files.
                self._open_splits.add((self.current_split,))
                self._chunks = self._read(*taken)
            chunk = next(self._chunks, None)
            if chunk is not None:
                return chunk
            self._chunks = None

    def begun(self) -> list[tuple[FileSplit, SplitPosition | None]]:
        """The rest of the current split."""
        return [] if self._current is None else [(self._current, self._position)]

    @staticmethod
    def parts_of(position: TextPosition) -> list[tuple[FileSplit, SplitPosition | None]]:
        """The splits with the positions in them."""
        positions = dict(position.later)
        if position.splits and position.position is not None:
            positions[position.splits[0].split_id] = position.position
        # A path that is given twice is two equal splits, of which one may have been begun.
        return [(split, positions.pop(split.split_id, None)) for split in position.splits]

    @staticmethod
    def position_of(parts: Sequence[tuple[FileSplit, SplitPosition | None]]) -> TextPosition:
        """The position that names these splits: the place in the first one, and the places in later ones."""
        later = [(split.split_id, position) for split, position in parts[1:] if position is not None]
        return TextPosition(tuple(split for split, _ in parts), parts[0][1] if parts else None, tuple(later))

    def close(self) -> None:
        """Close the current file."""
        chunks = self._chunks
        self._chunks = None
        if chunks is not None:
            chunks.close()

    def _read(self, split: FileSplit, position: SplitPosition | None) -> Generator[Chunk, None, None]:
        has_line_ends = keeps_line_ends(self._charset)
        charset = self._charset if has_line_ends else _RECODED
        # At the start of a split from the byte before it, which tells whether a line begins there.
        place = SplitPosition(max(split.start - 1, 0), 0) if position is None else position
        skipped = place.num_lines
        try:
            with open(split.path, "rb", buffering=0) as file:
                head = os.pread(file.fileno(), HEAD_BYTES, 0) if needs_head(split.path) else b""
                compression = compression_of(split.path, head)
                is_cut = compression is None and has_line_ends and split.end > 0
                if split.start and not is_cut:
                    self._end_split(split)
                    return  # the split that begins the file is the whole file
                read = self._watched(file, split, compression)
                if not is_cut:
                    read = _behind(read, place.offset, split.path) if place.offset else read
                elif position is not None and os.fstat(file.fileno()).st_size < place.offset:
                    raise _shorter(split.path)
                else:
                    file.seek(place.offset)
                is_inside = split.start == 0 or position is not None
                end = split.end if is_cut else math.inf
                for block in self._line_blocks(read, split.path, place.offset, end, is_inside=is_inside):
                    lines = _lines(block.data, charset)
                    num_read = min(skipped, len(lines))
                    skipped -= num_read
                    if num_read < len(lines):
                        yield from self._rest_of(block, lines, num_read)
        except OSError as error:
            raise FlowletError(f"cannot read {split.path}: {error.strerror or error}") from error
        self._end_split(split)

    def _rest_of(self, block: "_LineBlock", lines: list[str], num_read: int) -> Iterator[Chunk]:
        """The lines of a block behind those that were read before; each chunk is yielded after the position was set
        behind it.
        """
        for chunk in _chunks(lines[num_read:] if num_read else lines):
            num_read += len(chunk)
            if num_read < len(lines):
                self._position = SplitPosition(block.offset, num_read)
            elif block.is_last:
                self._current = self._position = None
            else:
                self._position = SplitPosition(block.offset + len(block.data), 0)
            yield chunk

    def _end_split(self, split: FileSplit) -> None:
        self._current = self._position = None
        self._done_bytes += split.size_bytes
        self._current_bytes = 0
        self._open_splits.remove((split.split_id,))

    def _watched(self, file: BinaryIO, split: FileSplit, compression: Compression | None) -> ReadBytes:
        """A function that reads the content, recoded if the charset hides line ends.

        It asks for more splits when little of this one is left.
        """
        read_content: ReadBytes = file.read
        if compression is not None:
            read_content = decompressing(file, split.path, compression)
        if not keeps_line_ends(self._charset):
            read_content = _recoded(read_content, self._charset)

        def read(num_bytes: int) -> bytes | None:
            block = read_content(num_bytes)
            # Some file systems, such as /sys, give less than the size that they state, and state it still.
            if not block and file.tell() < split.end and os.fstat(file.fileno()).st_size < split.end:
                raise FlowletError(
                    f"cannot read {split.path}: it has become shorter while it was read; read files that are complete"
                )
            self._current_bytes = min(max(file.tell() - split.start, 0), split.size_bytes)
            self.keep_stocked(split.size_bytes - self._current_bytes)
            return block

        return read

    def _line_blocks(
        self, read: ReadBytes, path: str, offset: int, end: float, *, is_inside: bool
    ) -> Iterator["_LineBlock"]:
        r"""A split as pieces of whole lines, from an offset in the file on; ``is_inside``: a line of the split begins
        there.

        A split reaches from after the first \n at or after ``start - 1`` (or from 0) to after the first \n at or after
        ``end - 1``.  Behind ``end``, a position is in front of this last \n: after it no line is left, and no position.
        """
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
            begin = next_offset - len(block) - len(carried)
            if last:
                yield _LineBlock(begin, bytes(carried + block[:last]), is_last=True)
                return
            # 0 if no line ends here for sure, because a final \r may be half of \r\n.
            cut = block.rfind(b"\n") + 1 or block.rfind(b"\r", 0, len(block) - 1) + 1
            if cut:
                yield _LineBlock(begin, bytes(carried + block[:cut]))
                carried.clear()
            carried += block[cut:]
            offset = next_offset
            if len(carried) > self._max_line_bytes:
                begin = offset - len(carried)
                raise FlowletError(f"{path}: the line at offset {begin} is longer than {self._max_line_bytes} bytes")
        if carried:
            yield _LineBlock(offset - len(carried), bytes(carried), is_last=True)


def text_lines(files: FileSet) -> AssignedSource[TextLineReader]:
    """The lines of files, without their ends.

    By default a file is one split, so that one subtask reads it in order.  The next file, the largest first, goes to
    the subtask that asks.
    """
    return AssignedSource(TextLineReader, files, charset=files.charset)


@dataclass(frozen=True, slots=True)
class _LineBlock:
    """Whole lines: the bytes from ``offset`` on; ``is_last``: no line of the split follows."""

    offset: int
    data: bytes
    is_last: bool = False


def _behind(read: ReadBytes, offset: int, path: str) -> ReadBytes:
    """A function that reads the content behind ``offset``.

    ``read`` begins at the start of the content, and may give more bytes than it is asked for.
    """
    rest: bytes | None = None
    while rest is None:
        block = read(_DROPPED_BYTES)
        if not block:
            raise _shorter(path)
        if len(block) >= offset:
            rest = block[offset:]
        offset -= len(block)

    def read_rest(num_bytes: int) -> bytes | None:
        nonlocal rest
        if rest:
            first = rest
            rest = None
            return first
        return read(num_bytes)

    return read_rest


def _shorter(path: str) -> FlowletError:
    return FlowletError(f"cannot go on in {path}: it has become shorter since the checkpoint; restore it")


# Files in a charset in which line ends cannot be found are converted to this one while they are read.
_RECODED = "utf-8"


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

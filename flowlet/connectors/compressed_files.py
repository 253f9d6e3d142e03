"""Decompresses files while they are read.

Side:       task.
Rules:      concatenated streams in one file are read one after the other (``cat a.gz b.gz``), with padding between
            those of xz.  Whatever else stands behind a stream is damage: Python's ``BZ2File`` and ``LZMAFile`` would
            take it for the end of the file.  A damaged or truncated file is an error that names it; in zstd and xz
            files damage inside is found only if they have checksums, which the command-line tools write by default.
            zstd is Python's own from 3.14 on, before that pyarrow's, which is imported for the first such file.
Source:     Flink ``StandardDeCompressors``.
"""

import bz2
import gzip
import lzma
import sys
import zlib
from collections.abc import Callable
from typing import BinaryIO, Final, Protocol, assert_never

from flowlet.errors import FlowletError
from flowlet.splits.file_split import Compression

ReadBytes = Callable[[int], bytes | None]
_INPUT_BYTES: Final = 128 << 10  # as much as the readers of lines take; the standard library reads 8 KiB
_XZ_PADDING_BYTES: Final = 4  # the .xz file format, 2.2


def decompressing(file: BinaryIO, path: str, compression: Compression) -> ReadBytes:
    """A function that reads up to so many bytes of the decompressed content; empty at its end.

    The function raises ``FlowletError``, which names the file, if the file is damaged, truncated, or not compressed as
    its name says.
    """
    read_content = _content(file, compression)
    errors: tuple[type[Exception], ...] = (zlib.error, lzma.LZMAError, *_zstd_errors(compression))

    def read(num_bytes: int) -> bytes | None:
        try:
            return read_content(num_bytes)
        except EOFError as error:
            raise FlowletError(f"cannot read {path}: it ends in the middle of its {compression.value} data") from error
        except OSError as error:
            if error.errno is not None:
                raise  # an error of the disk
            raise _damaged(path, compression, error) from error
        except errors as error:
            raise _damaged(path, compression, error) from error

    return read


def _damaged(path: str, compression: Compression, error: Exception) -> FlowletError:
    return FlowletError(f"cannot read {path}: its {compression.value} data are damaged: {error}; is its name right?")


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


class _Decompressor(Protocol):
    """Decompresses one stream; the standard library has three."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


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


class _ConcatenatedStreams:
    """The content of all streams in a file.

    ``padding_bytes``: between streams, and behind the last one, there may be zeros, a multiple of so many; 0: nothing
        may be there.
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
                data, self._input = self._input or self._file.read(_INPUT_BYTES), b""
                if not data:
                    raise EOFError("the file ends inside a stream")
            content = self._stream.decompress(data, num_bytes)
            if content:
                return content

    def _begin_next(self) -> bool:
        """Whether another stream follows; the padding is gone then."""
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

    stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd")

    def read(num_bytes: int) -> bytes:
        content: bytes = stream.read(num_bytes)
        return content

    return read


def _zstd_errors(compression: Compression) -> tuple[type[Exception], ...]:
    if sys.version_info >= (3, 14) and compression is Compression.ZSTANDARD:
        from compression import zstd

        return (zstd.ZstdError,)
    return ()
